"""The section on time and arithmetic."""

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
    rounds = sorted({round for round, _ in groups})
    rows = [
        [str(round), *(_sum(groups.get((round, branch), [])) for branch in branches)]
        for round in rounds
    ]
    for row, round in zip(rows, rounds, strict=True):
        row.append(_sum([x for x in run.rows if x.round == round]))
    rows.append(
        [
            "all",
            *(
                _sum([x for (_, b), found in groups.items() if b == b0 for x in found])
                for b0 in branches
            ),
            _sum(run.rows),
        ]
    )
    caption = (
        f"{named}Seconds of training and evaluation, added up over replicates and "
        f"draws ({len(run.rows)} trainings)."
    )
    heading = ("round", *(f"{branch} s" for branch in branches), "together s")
    return page.Table(caption, heading, rows, groups=(len(rows) - 1,))


def _sum(rows):
    return f"{sum(row.train_seconds for row in rows):,.1f}" if rows else ""


def _operations(run, named):
    """A table of operations by round, with what is not counted."""
    try:
        pruned, shape = run.pruned, run.shapes[0]
    except InputError as error:
        return [page.Missing(f"{named}Operations are not counted: {error}")]
    masked = flops.uses(pruned.model, pruned.kernels, shape)
    left = [x for x in _all_kernels(pruned.model) if not _in(x, pruned.kernels)]
    dense = flops.uses(pruned.model, left, shape)
    always, total = (
        sum(use.operations() for use in found) for found in (dense, [*dense, *masked])
    )
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
    caption = f"{named}Operations of one forward pass, mean over replicates."
    heading = ("round", "weights left %", "dense", "with masks", "with masks %")
    blocks = [page.Table(caption, heading, rows)]
    unknown = [use.path for use in (*masked, *dense) if use.places is None]
    if unknown:
        blocks.append(page.Text(f"{named}Not counted: {', '.join(unknown)}."))
    return blocks


def _kept_operations(use, layer):
    return use.operations(layer.kept)


def _all_kernels(model):
    """The kernels of a model, also those that are not pruned."""
    from prunetrain.core import selection

    return [x.variable for x in selection.kernels()(model) if x.prunable]


def _in(variable, variables):
    return any(variable is x for x in variables)
