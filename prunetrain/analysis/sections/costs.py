"""The section on time and arithmetic."""

from prunetrain import plans
from prunetrain.analysis import flops, page
from prunetrain.analysis import levels as levels_lib
from prunetrain.errors import InputError

_FORMULA = (
    "Floating-point operations of one forward pass for one example: 2 × weights × "
    "places, for each kernel, where places are the positions of a convolution's "
    "output, and 1 for a Dense layer on a vector. “With masks” counts the kept weights "
    "only: what arithmetic that skips zeros would need. The run itself executes the "
    "dense count, whatever the masks. A training step is by convention taken as 3 × "
    "the forward pass of its batch (the backward pass as two)."
)


def costs(runs):
    """Seconds and operations of each round and in total."""
    blocks = []
    for run in runs:
        named = f"{run.name}. " if len(runs) > 1 else ""
        blocks += [_seconds(run, named), *_operations(run, named)]
    if any(isinstance(block, page.Table) for block in blocks):
        blocks.append(page.Text(_FORMULA))
    return page.Section("Time and arithmetic", blocks)


def _seconds(run, named):
    groups = levels_lib.grouped(run.rows)
    branches = sorted({b for _, b in groups}, key=lambda b: (b != "ticket", b))
    if not branches:
        return page.Missing(f"{named}results.csv has no finished training to show.")

    def cells(rounds):
        """The sums of each branch, and of all, over these rounds."""
        each = [[x for r in rounds for x in groups.get((r, b), [])] for b in branches]
        return [_sum(rows) for rows in (*each, [x for rows in each for x in rows])]

    rounds = sorted({round for round, _ in groups})
    rows = [[str(round), *cells([round])] for round in rounds]
    rows.append(["all", *cells(rounds)])
    caption = (
        f"{named}Seconds of training and evaluation, added up over replicates and "
        f"draws ({len(run.rows)} trainings)."
    )
    heading = ("round", *(f"{branch} s" for branch in branches), "together s")
    return page.Table(caption, heading, rows, groups=(len(rows) - 1,))


def _sum(rows):
    return f"{sum(row.train_seconds for row in rows):,.1f}" if rows else ""


def _operations(run, named):
    """A table of operations by round, their total, and what is not counted."""
    try:
        pruned, shape = run.pruned, run.shapes[0]
    except InputError as error:
        return [page.Missing(f"{named}Operations are not counted: {error}")]
    masked = flops.uses(pruned.model, pruned.kernels, shape)
    dense = flops.uses(pruned.model, _unpruned(pruned), shape)
    always = sum(use.operations() for use in dense)
    total = always + sum(use.operations() for use in masked)
    rows = []
    for round in sorted({x.round for x in run.rows if x.branch == "ticket"}):
        spread = levels_lib.spread(
            always + sum(map(_kept_operations, masked, layers))
            for r in run.finished(round)
            if (layers := run.layers(r, round)) and len(layers) == len(masked)
        )
        if spread:
            share = 100 * spread.mean / total if total else 0
            cells = f"{run.remaining(round):.2f}", f"{total:,}", f"{spread.mean:,.0f}"
            rows.append([str(round), *cells, f"{share:.2f}"])
    if not rows:
        return [page.Missing(f"{named}tickets/ has no masks to count operations by.")]
    heading = ("round", "weights left %", "dense", "with masks", "with masks %")
    caption = f"{named}Operations of one forward pass, mean over replicates."
    steps, batch = _num_steps(run), run.config.batch_size
    blocks = [
        page.Table(caption, heading, rows),
        page.Text(
            f"{named}All trainings together: {steps:,} steps of {batch} examples, "
            f"about {3 * total * batch * steps:.3g} operations by the dense count."
        ),
    ]
    unknown = [use.path for use in (*masked, *dense) if use.places is None]
    if unknown:
        blocks.append(page.Text(f"{named}Not counted: {', '.join(unknown)}."))
    return blocks


def _kept_operations(use, layer):
    return use.operations(layer.kept)


def _unpruned(pruned):
    """The kernels of a model that are left dense."""
    from prunetrain.core import selection

    every = [x.variable for x in selection.kernels()(pruned.model) if x.prunable]
    return [x for x in every if not any(x is kernel for kernel in pruned.kernels)]


def _num_steps(run):
    """How many steps the finished trainings have taken."""
    return sum(
        plans.last_step(run.config, row.round, row.branch)
        - plans.first_step(run.config, row.round, row.branch)
        for row in run.rows
        if row.branch in plans.branches(run.config, row.round)
    )
