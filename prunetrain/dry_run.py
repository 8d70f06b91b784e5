"""What a run would do, and how long it would take, told without doing it."""

import collections
import dataclasses
import math
import resource
import sys
import time
import warnings

import rich.box
import rich.console
import rich.table

from prunetrain import lab as labs
from prunetrain import plans, starts
from prunetrain.lazy import tf

# So long steps are timed.
_SECONDS = 3.0
_MOST_COLUMNS = 5


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What is expected of a run.

    Attributes:
        levels: a list per round from 0 of `LayerSparsity` per kernel, as far as there
            is something to prune.
        skipped: how many variables are not pruned, by reason.
        num_trainings, num_steps, num_evaluations: in all replicates and branches.
        step_seconds, evaluation_seconds, pruning_seconds: measured once each.
        memory, disk: bytes; the peak so far, and what the files will take.
        notes: what to know before it is started.
    """

    levels: list
    skipped: dict
    num_trainings: int
    num_steps: int
    num_evaluations: int
    step_seconds: float
    evaluation_seconds: float
    pruning_seconds: float
    memory: int
    disk: int
    notes: list

    @property
    def seconds(self):
        """How long the run takes in one process."""
        return (
            self.num_steps * self.step_seconds
            + self.num_evaluations * self.evaluation_seconds
            + (len(self.levels) - 1) * self.pruning_seconds
        )


def forecast(config, clock=time.perf_counter):
    """Builds a run's model and loops, times some steps, and prunes the initial weights.

    Nothing is written, and what is trained for the timing is thrown away.

    Args:
        config: `Config`.
        clock: seconds, for tests.

    Returns:
        `Forecast`.

    Raises:
        InputError: as `experiment.run` would.
    """
    dataset = labs.open_data(config)
    lab = labs.Lab(config, config.compile, dataset)
    step_seconds = _timed_steps(lab, clock)
    evaluation_seconds = _timed(clock, lambda: lab.evaluate("validation", 0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        levels, pruning_seconds, problem = _levels(lab, clock)
    rounds = range(len(levels))
    trainings = [
        (round, branch) for round in rounds for branch in plans.branches(config, round)
    ]
    steps = [
        plans.last_step(config, *one) - plans.first_step(config, *one)
        for one in trainings
    ]
    evaluations = [
        _num_evaluations(config, *one, ends=problem and one[0] == rounds[-1])
        for one in trainings
    ]
    return Forecast(
        levels=levels,
        skipped=collections.Counter(
            choice.reason for choice in lab.pruned.choices if not choice.prunable
        ),
        num_trainings=len(trainings) * config.replicates,
        num_steps=sum(steps) * config.replicates,
        num_evaluations=sum(evaluations) * config.replicates,
        step_seconds=step_seconds,
        evaluation_seconds=evaluation_seconds,
        pruning_seconds=pruning_seconds,
        memory=_peak_memory(),
        disk=_disk(lab, len(trainings), len(levels)) * config.replicates,
        notes=_notes(config, dataset, levels, problem, caught),
    )


def print_forecast(config, console=None):
    """Prints a `Forecast` as tables and lines."""
    console = console or rich.console.Console()
    found = forecast(config)

    def say(text):
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    console.print(table(found.levels))
    for reason, count in found.skipped.items():
        say(f"Not pruned: {count} variable{'s' if count > 1 else ''} ({reason})")
    say(
        f"{found.num_trainings:,} trainings, {found.num_steps:,} steps in all, "
        f"{1000 * found.step_seconds:.3g} ms each; {found.num_evaluations:,} "
        f"evaluations, {1000 * found.evaluation_seconds:.3g} ms each"
    )
    say(f"About {_duration(found.seconds)} in one process on this machine as it is now")
    say(f"Memory {_size(found.memory)} so far; files about {_size(found.disk)}")
    for note in found.notes:
        say(f"Note: {note}")
    say("Nothing was written. To start, repeat the command without --dry_run")


def table(levels):
    """`rich` table: a line per kernel, a column per round, some of them left out."""
    last = len(levels) - 1
    count = min(len(levels), _MOST_COLUMNS)
    shown = sorted({round(i * last / max(1, count - 1)) for i in range(count)})
    result = rich.table.Table(
        title="Weights that remain in %, if the initial weights are pruned",
        box=rich.box.SIMPLE_HEAD,
    )
    result.add_column("kernel", overflow="fold")
    for name in ("weights", *(f"round {level}" for level in shown)):
        result.add_column(name, justify="right", no_wrap=True)
    for kernels in zip(*levels, strict=True):
        kept = (100 * (1 - kernels[level].sparsity) for level in shown)
        result.add_row(
            kernels[0].path, f"{kernels[0].total:,}", *(f"{x:.4g}" for x in kept)
        )
    result.add_section()
    sums = [(sum(k.kept for k in x), sum(k.total for k in x)) for x in levels]
    shares = (100 * sums[level][0] / sums[level][1] for level in shown)
    result.add_row("all", f"{sums[0][1]:,}", *(f"{share:.4g}" for share in shares))
    return result


def _levels(lab, clock):
    """`LayerSparsity`s by round, seconds per pruning, and why there is no more."""
    config = lab.config
    lab.make_dense()
    weights_seed = starts.seed_for(config, "weights", 0)
    lab.draw_weights(weights_seed)
    levels, problem, began = [lab.pruned.layer_sparsity()], None, clock()
    for round in range(config.rounds):
        seed = starts.seed_for(config, "criterion", 0, round)
        masks, problem = lab.next_masks(seed, weights_seed, round)
        if problem and config.prune_at == "during":
            # Its trainings prune on, from however little.
            masks, problem = list(lab.pruned.masks), None
        if problem:
            problem = f"no round after {round}: {problem}"
            break
        lab.pruned.set_masks(masks)
        levels.append(lab.pruned.layer_sparsity())
    return levels, (clock() - began) / max(1, len(levels) - 1), problem


def _num_evaluations(config, round, branch, ends):
    """How often a training is evaluated; `ends`: nothing is pruned after its round."""
    first = plans.first_step(config, round, branch)
    last, every = plans.last_step(config, round, branch), config.eval_every
    while_training = (
        last // every - first // every + (last > first and last % every > 0)
    )
    pruned = branch == "ticket" and config.prune_at == "end" and not ends
    if config.sparsities and round == config.rounds:
        pruned = False
    # On the test examples: along the training, at the best step and at the last.
    tests, every = 2, config.test_every
    if every:
        tests += (last // every - first // every) + (first % every == 0)
    # One on the validation examples before the first step.
    return 1 + while_training + tests + pruned


def _timed_steps(lab, clock):
    """Seconds a step, after what compiles and warms up."""
    lab.train(0, 2)
    step, began = 2, clock()
    while clock() - began < _SECONDS:
        _, step = lab.advance(0.0, step, step + lab.config.steps_per_loop)
        lab.is_finite()  # waits for the device
    return (clock() - began) / (step - 2)


def _timed(clock, function):
    function()
    began = clock()
    function()
    return clock() - began


def _notes(config, dataset, levels, problem, caught):
    notes = [f"{warning.message}" for warning in caught]
    notes += [problem] if problem else []
    num_examples = len(dataset.train[1])
    epochs = config.train_steps * config.batch_size / num_examples
    if epochs < 1:
        notes.append(
            f"a training of {config.train_steps:,} steps sees {epochs:.0%} of the "
            f"{num_examples:,} examples"
        )
    if config.eval_every > config.train_steps:
        notes.append(
            f"--eval_every={config.eval_every} is more than --train_steps="
            f"{config.train_steps}: the best step is the first or the last"
        )
    if config.parallel_replicates > 1:
        notes.append(
            f"{config.parallel_replicates} replicates side by side take less time, and "
            "each its own memory"
        )
    return notes


def _disk(lab, num_trainings, num_rounds):
    """Bytes that a replicate's files take: tickets, weights, two checkpoints."""
    num_starts = 2 if lab.config.rewind_step else 1
    bits = sum(math.prod(kernel.shape) for kernel in lab.pruned.kernels)
    weights = sum(_nbytes(v) for v in lab.pruned.model.variables)
    state = sum(_nbytes(v) for v in lab.state.variables)
    return num_rounds * bits // 8 + (num_trainings + num_starts) * weights + 2 * state


def _nbytes(variable):
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size


def _peak_memory():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _size(count):
    power = min(4, int(math.log(max(count, 1), 1000)))
    return f"{count / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


def _duration(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
