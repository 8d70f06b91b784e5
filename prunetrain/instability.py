"""From which step on the noise of training decides nothing any more.

    prunetrain instability runs/a --steps=0,100,500,1000

Instability analysis by linear mode connectivity (Jonathan Frankle, Gintare Karolina
Dziugaite, Daniel M. Roy, Michael Carbin: "Linear Mode Connectivity and the Lottery
Ticket Hypothesis", ICML 2020). For each replicate of a run and each step k, two
children are trained from step k of round 0 to the end, with different orders of the
data, and the straight line between them is evaluated on the test examples. Where the
error does not rise on the line, both have the same outcome up to a linear path: k is
late enough to rewind to.

With --round=R it is the ticket of round R that is trained: its masks, on the weights of
step k with the optimizer, the learning-rate step and the state of batch norm and
dropout of that step, as --rewind=late has it, whatever the run's own --rewind.

Rows are written to instability.csv in the run's folder, each as soon as it is known;
those that are there already are not computed again.
"""

import argparse
import math
import pathlib

import rich.box
import rich.console
import rich.table

from prunetrain import commands
from prunetrain import config as config_lib
from prunetrain import lab as labs
from prunetrain import starts as starts_lib
from prunetrain.config import ConfigError
from prunetrain.errors import InputError, RunError
from prunetrain.runs import barriers, workdir
from prunetrain.runs import progress as displays

_STEPS = (0, 100, 500, 1000)
_MOST_POINTS = 1001


def measure(
    config,
    path,
    steps=None,
    *,
    round=0,
    points=11,
    replicates=None,
    progress=None,
    start=None,
):
    """Measures the barriers between children of each replicate and step.

    The children of a step see different orders of the data (and thus augmentations);
    these follow from seed, replicate, step and child. Batch norm's moving statistics
    lie on the line as weights do: nothing is estimated anew on data, which would make
    the network between the children another one than the mean of the two.

    Args:
        config: `Config` of the run.
        path: its folder.
        steps: whole numbers, the steps of round 0 that children start from. None: 0,
            100, 500 and 1000, as far as the training goes.
        round: whose ticket is trained; 0: the dense network.
        points: how many places on the line are evaluated, ends included.
        replicates: how many of the run's, from the first. None: all.
        progress: display (see `runs.progress`); None picks one for the console.
        start: called before TensorFlow is loaded, if it is.

    Returns:
        List of `runs.barriers.Row`, by replicate and step.

    Raises:
        InputError: an argument does not fit the run, or see `experiment.run`.
        RunError: a child's training diverged, or a file cannot be written.
    """
    steps = _default_steps(config) if steps is None else list(dict.fromkeys(steps))
    replicates = config.replicates if replicates is None else replicates
    _check(config, steps, points, replicates)
    if config.strategy != "none":
        raise InputError(
            "instability is measured on one device. Received: a run with --strategy="
            f"{config.strategy}"
        )
    directory = labs.open_directory(config, path)
    _check_round(directory, round, replicates)
    rows = {row.key: row for row in barriers.read_rows(directory.path)}
    wanted = [
        (replicate, round, k) for replicate in range(replicates) for k in sorted(steps)
    ]
    missing = [
        key for key in wanted if key not in rows or len(rows[key].losses) != points
    ]
    if missing:
        display = progress or displays.for_console()
        for row in _measured(config, directory, missing, points, display, start):
            rows[row.key] = row
            directory.write_barriers(rows.values())
    return [rows[key] for key in wanted]


def _measured(config, directory, keys, points, display, start):
    """Yields the `Row` of each key."""
    dataset = labs.open_data(config)
    display.expect(_num_steps(config, keys))
    with display:
        if start:
            start()
        lab = labs.open_lab(config, directory, dataset)
        families = _Families(lab, directory, display, points)
        for replicate, round in sorted({key[:2] for key in keys}):
            steps = [key[2] for key in keys if key[:2] == (replicate, round)]
            yield from families.rows(replicate, round, steps)


class _Families:
    """Trains networks and pairs of children of theirs, all in one lab.

    Args:
        lab: `Lab`.
        directory: work directory.
        display: told of what is trained.
        points: how many places on the line between two children are evaluated.
    """

    def __init__(self, lab, directory, display, points):
        from prunetrain.core import snapshot

        self._lab, self._directory, self._display = lab, directory, display
        self._children = lab.best, snapshot.Snapshot(lab.pruned)
        self._move = snapshot.make_line(*self._children)
        self._points = points

    def rows(self, replicate, round, steps):
        """Yields the `Row` of each step, in ascending order, of one dense training."""
        lab = self._lab
        starts = starts_lib.Starts(
            lab, lab.config, replicate, self._directory, self._display
        )
        masks = self._directory.load_masks(replicate, round) if round else ()
        starts.begin(0, "ticket")
        order, reached = int(lab.loop.seed), 0
        for step in steps:
            self._display.begin(replicate, f"k={step}", round, _kept(masks))
            self._train(replicate, reached, step)
            lab.rewind.update()
            row = self._row(starts, masks, (replicate, round, step))
            lab.rewind.restore(masks=True)
            lab.loop.seed.assign(order)
            reached = step
            self._display.close(replicate, _told(row))
            yield row

    def _row(self, starts, masks, key):
        """Trains both children of what `lab.rewind` holds, and measures the line."""
        lab, (replicate, round, step) = self._lab, key
        for number, child in enumerate(self._children, start=1):
            lab.rewind.restore(masks=True)
            if masks:
                starts.set_masks(round, masks)
            seed = starts_lib.seed_for(lab.config, "child", replicate, step, number)
            lab.loop.seed.assign(seed)
            self._train(replicate, step, lab.config.train_steps)
            child.update()
        return barriers.Row(*key, *self._along_the_line())

    def _train(self, replicate, step, last_step):
        """Trains from one step to another.

        Raises:
            RunError: a weight is no longer finite.
        """
        while step < last_step:
            _, reached = self._lab.advance(0.0, step, last_step)
            self._display.advance(replicate, reached, reached - step, last_step)
            step = reached
        if not self._lab.is_finite():
            raise _diverged(replicate, last_step)

    def _along_the_line(self):
        """Losses and errors on the test examples, from one child to the other."""
        found = []
        for index in range(self._points):
            self._move(index / (self._points - 1))
            found.append(self._lab.evaluate("test", self._lab.config.train_steps))
        errors = [1 - x.accuracy for x in found if x.accuracy is not None]
        return tuple(x.loss for x in found), tuple(errors)


def _diverged(replicate, step):
    return RunError(
        f"replicate {replicate}: the training diverged, a weight is not finite at step "
        f"{step:,}. What is finished is kept in {barriers.NAME}. In another --workdir, "
        "try a lower --learning_rate"
    )


def _kept(masks):
    """The fraction of the weights that masks keep; without masks all."""
    kept = sum(int(mask.sum()) for mask in masks)
    return kept / sum(mask.size for mask in masks) if masks else 1.0


def _num_steps(config, keys):
    """How many steps of training the rows of these keys take."""
    last = {replicate: step for replicate, _, step in sorted(keys)}
    children = sum(2 * (config.train_steps - step) for *_, step in keys)
    return sum(last.values()) + children


def _default_steps(config):
    return [step for step in _STEPS if step < config.train_steps]


def _check(config, steps, points, replicates):
    """Raises InputError unless this can be measured in the run."""
    if config.prune_at == "during" or config.mask_updates != "static":
        name = "prune_at" if config.prune_at == "during" else "mask_updates"
        raise InputError(
            f"instability is measured under masks that stay as they are. Received: a "
            f"run with --{name}={getattr(config, name)}, which changes them in a "
            "training"
        )
    if not steps or not all(_is_whole(k, 0, config.train_steps) for k in steps):
        raise ConfigError(
            "steps",
            ",".join(map(str, steps)),
            f"must be whole numbers from 0 to train_steps={config.train_steps}, for "
            f"example {','.join(map(str, _default_steps(config)))}",
        )
    if not _is_whole(points, 3, _MOST_POINTS):
        raise ConfigError(
            "points", points, f"must be a whole number from 3 to {_MOST_POINTS}"
        )
    if not _is_whole(replicates, 1, config.replicates):
        raise ConfigError(
            "replicates",
            replicates,
            f"must be a whole number from 1 to {config.replicates}, as many as the run "
            "has",
        )


def _check_round(directory, round, replicates):
    """Raises InputError unless each replicate has a ticket of that round."""
    if not _is_whole(round, 0, math.inf):
        raise ConfigError("round", round, "must be a whole number from 0 (dense)")
    for replicate in range(replicates if round else 0):
        if not directory.has_masks(replicate, round):
            raise InputError(
                f"--round={round}: replicate {replicate} has no ticket of that round "
                f"in {directory.path / 'tickets'}. Train the run that far, or name an "
                "earlier round or fewer --replicates"
            )


def _is_whole(value, low, high):
    return type(value) is int and low <= value <= high


def command(words, start):
    """`prunetrain instability …`; see `commands`."""
    given = _parser().parse_args(words)
    path = pathlib.Path(given.workdir)
    config = _config_of(path)
    rows = measure(
        config,
        path,
        given.steps,
        round=given.round,
        points=given.points,
        replicates=given.replicates,
        start=start,
    )
    print_rows(rows, config)


def _parser():
    parser = commands.Parser("instability", __doc__)
    parser.add_argument("workdir", metavar="WORKDIR", help="the folder of a run")
    parser.add_argument(
        "--steps",
        type=_whole_numbers,
        help=f"steps k of round 0 (default: {','.join(map(str, _STEPS))}, as far as "
        "the training goes)",
    )
    parser.add_argument(
        "--round", type=int, default=0, help="whose ticket is trained (default: 0)"
    )
    parser.add_argument(
        "--points",
        type=int,
        default=11,
        help="places on the line, ends included (default: 11)",
    )
    parser.add_argument(
        "--replicates", type=int, help="how many, from the first (default: all)"
    )
    return parser


def _whole_numbers(text):
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            "must be whole numbers with commas in between, for example 0,100,500. "
            f"Received: {text!r}"
        ) from None


def _config_of(path):
    """The `Config` of the run in a folder."""
    settings = workdir.read_settings(path)
    try:
        return config_lib.Config(**settings)
    # TypeError: a setting that there is not.
    except (ConfigError, TypeError) as error:
        raise InputError(
            f"{path / 'config.json'} does not fit this version of prunetrain, or names "
            f"what only a script has registered: {error}"
        ) from error


def print_rows(rows, config, console=None):
    """Prints a table with a line per step, and the step to rewind to.

    Args:
        rows: `runs.barriers.Row`s of one round.
        config: `Config` of the run.
        console: `rich` console; None: the terminal.
    """
    console = console or rich.console.Console()
    console.print(table(rows))
    for line in _verdict(rows, config):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def table(rows):
    """`rich` table of `Row`s: means over replicates, with the extremes of barriers."""
    round = rows[0].round
    result = rich.table.Table(
        title=f"Ticket of round {round}" if round else "Dense",
        box=rich.box.SIMPLE_HEAD,
    )
    by_step = {}
    for row in rows:
        by_step.setdefault(row.step, []).append(row)
    for name in ("k", *(("error %", "barrier %") if rows[0].errors else ())):
        result.add_column(name, justify="right")
    for name in ("loss", "barrier"):
        result.add_column(name, justify="right")
    for step, mine in sorted(by_step.items()):
        cells = _cells([row.losses for row in mine], 1, "{:.4g}")
        if mine[0].errors:
            cells = _cells([row.errors for row in mine], 100, "{:.2f}") + cells
        result.add_row(f"{step:,}", *cells)
    return result


def _cells(lines, scale, form):
    """Mean of all children and of the barriers, with the extremes of these."""
    heights = [scale * barriers.barrier(line) for line in lines]
    ends = [scale * end for line in lines for end in (line[0], line[-1])]
    # Losses of any size: fmean would raise where a sum overflows.
    means = [form.format(sum(values) / len(values)) for values in (ends, heights)]
    if len(lines) > 1:
        low, high = (form.format(pick(heights)) for pick in (min, max))
        means[1] += f" ({low} to {high})"
    return means


def _verdict(rows, config):
    """Yields what follows for --rewind_step."""
    replicates = len({row.replicate for row in rows})
    yield (
        "On the test examples: the mean of both children, and the barrier, which is "
        "the largest value on the line between them less that mean; "
        f"{replicates} replicate{'s' if replicates > 1 else ''}."
    )
    if not rows[0].errors:
        yield "Without an error there is no threshold: see where the loss barrier ends."
        return
    limit = f"{100 * barriers.STABLE:g} %"
    step = barriers.first_stable(rows, config.train_steps)
    if step is None:
        yield (
            f"No k of these is stable (mean error barrier of at most {limit}, Frankle "
            "et al. 2020)"
        )
    else:
        yield (
            f"Stable from k={step:,} on (mean error barrier of at most {limit}, "
            f"Frankle et al. 2020): --rewind_step={step}"
        )


def _told(row):
    text = f"replicate {row.replicate}  round {row.round:2d} k={row.step:<6}"
    if row.errors:
        text += f"  error barrier {row.error_barrier:.2%}"
    return f"{text}  loss barrier {row.loss_barrier:.4g}"
