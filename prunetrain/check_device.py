"""Is the device used as it should be? Measured, in lines to send with a bug report.

    python -m prunetrain.main --check_device --model=conv2 --dataset=cifar10 ...

Builds the run's model and loop, prunes 20 %, and looks at some hundred steps: where the
variables lie, what crosses between host and device, how many programs are made, how
long a step takes with the masks and without. Writes nothing.
"""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
import time

import rich.console

from prunetrain import lab as labs
from prunetrain.lazy import tf

_SHORT, _LONG = 10, 110
_REPEATS = 7
_SECONDS = 0.5
# Of the masked step's time to the dense one's, from which on something is wrong.
_MOST_RATIO = 1.15


@dataclasses.dataclass(frozen=True)
class Check:
    """What was found.

    Attributes:
        environment: versions, devices and compile mode.
        devices: where variables and masks lie, with how many.
        transfers: copies between host and device in a step; None if not known.
        reads: how often Python asked for a number within a dispatch.
        traces: how often the loop was traced.
        programs, more_programs: XLA's programs, until the first dispatch was done and
            in later ones.
        masked_ms, dense_ms: milliseconds a step, the fastest of some turns: other work
            on the machine only adds to it.
        holds: whether every pruned weight is 0 at the end.
    """

    environment: dict
    devices: dict
    transfers: float | None
    reads: int
    traces: int
    programs: int
    more_programs: int
    masked_ms: float
    dense_ms: float
    holds: bool

    @property
    def ratio(self):
        return self.masked_ms / self.dense_ms

    @property
    def problems(self):
        """What is not as it should be, a list of lines."""
        found = [
            (len(self.devices) > 1, f"variables lie on {len(self.devices)} devices"),
            (bool(self.transfers), "numbers cross between host and device in a step"),
            (self.reads > 0, "Python reads numbers within a dispatch"),
            (self.traces != 1, f"the loop was traced {self.traces} times, not once"),
            (self.more_programs > 0, "programs are compiled after the first dispatch"),
            (
                self.ratio > _MOST_RATIO,
                f"masks cost {self.ratio - 1:.0%} of a step (repeat it if other work "
                "was going on)",
            ),
            (not self.holds, "a pruned weight is not 0"),
        ]
        return [text for is_so, text in found if is_so]


@contextlib.contextmanager
def dumped_programs():
    """A folder in which XLA leaves a file for each program that it compiles.

    To be entered before TensorFlow is loaded.
    """
    before = os.environ.get("XLA_FLAGS")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XLA_FLAGS"] = f"{before or ''} --xla_dump_to={folder}".strip()
        try:
            yield pathlib.Path(folder)
        finally:
            if before is None:
                del os.environ["XLA_FLAGS"]
            else:
                os.environ["XLA_FLAGS"] = before


def check(config, programs):
    """Builds the run's model and loop and looks at some steps.

    Args:
        config: `Config`.
        programs: folder of `dumped_programs`.

    Returns:
        `Check`.

    Raises:
        InputError: as `experiment.run` would.
    """
    from prunetrain import testing
    from prunetrain.pruning import prune

    dataset = labs.open_data(config)
    lab = labs.Lab(config, config.compile, dataset)
    prune.prune(lab.pruned, rate=0.2)
    _run(lab.loop, _SHORT)
    compiled = _count(programs)
    with _counted_reads() as reads:
        lab.loop(0, _SHORT)
    transfers = _transfers_per_step(lab.loop)
    later = _count(programs) - compiled
    dense = lab.dense_loop(dataset)
    dense_ms, masked_ms = _milliseconds([dense, lab.loop])
    # The other loop has trained pruned weights.
    lab.pruned.apply_masks()
    lab.pruned.mask_slots(lab.optimizer)
    _run(lab.loop, _LONG)
    return Check(
        environment=labs.environment(lab.loop.mode),
        devices=_devices(lab),
        transfers=transfers,
        reads=len(reads),
        traces=lab.loop.num_traces,
        programs=compiled,
        more_programs=later,
        masked_ms=masked_ms,
        dense_ms=dense_ms,
        holds=_holds(testing, lab),
    )


def print_check(config, programs, console=None):
    """Prints a `Check` and its verdict; returns whether all is as it should be."""
    console = console or rich.console.Console()
    found = check(config, programs)
    lines = [
        ", ".join(f"{name} {value}" for name, value in found.environment.items()),
        "variables and masks: "
        + ", ".join(f"{count} on {name}" for name, count in found.devices.items()),
        f"transfers between host and device: {_transfers_told(found.transfers)}",
        f"numbers that Python reads in a dispatch: {found.reads}",
        f"traces: {found.traces}; programs compiled: {found.programs}, and "
        f"{found.more_programs} after the first dispatch",
        f"a step: {found.masked_ms:.3g} ms masked, {found.dense_ms:.3g} ms dense, "
        f"ratio {found.ratio:.2f}",
        f"pruned weights are exactly 0: {'yes' if found.holds else 'NO'}",
        "verdict: " + ("; ".join(found.problems) or "as it should be"),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return not found.problems


def _transfers_told(transfers):
    if transfers is None:
        return "not known, the profiler recorded nothing"
    if not tf.config.list_logical_devices("GPU"):
        return f"{transfers:g} per step (the device is the host)"
    return f"{transfers:g} per step"


def _run(loop, num_steps):
    """Runs a dispatch to its end."""
    return float(loop(0, num_steps))


def _count(programs):
    return len(list(programs.glob("*.before_optimizations.txt")))


@contextlib.contextmanager
def _counted_reads():
    """A list that gets an item each time Python asks a tensor for its value."""
    # The class in Python below the one in C.
    kind, reads = type(tf.constant(0)).__mro__[1], []
    original = kind._numpy

    def counted(tensor):
        reads.append(tensor)
        return original(tensor)

    kind._numpy = counted
    try:
        yield reads
    finally:
        kind._numpy = original


def _transfers_per_step(loop):
    """Copies between host and device in a step, by TensorFlow's profiler.

    That of dispatches of different length, so that what is once in each does not count.
    """
    short, long = (_num_copies(loop, num_steps) for num_steps in (_SHORT, _LONG))
    if short is None or long is None:
        return None
    return max(0, long - short) / (_LONG - _SHORT)


def _num_copies(loop, num_steps):
    """Copies between host and device in a dispatch; None if nothing was recorded."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            _run(loop, num_steps)
        files = list(pathlib.Path(folder).rglob("*.xplane.pb"))
        spaces = [xplane_pb2.XSpace.FromString(file.read_bytes()) for file in files]
    names = [
        plane.event_metadata[event.metadata_id].name
        for space in spaces
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    ]
    return sum(map(_is_copy, names)) if names else None


def _is_copy(name):
    return any(kind in name.lower() for kind in ("memcpyd2h", "memcpyh2d"))


def _milliseconds(loops):
    """Milliseconds a step of each loop, the fastest of some turns."""
    began = time.perf_counter()
    _run(loops[0], _SHORT), _run(loops[0], _SHORT)
    each = (time.perf_counter() - began) / (2 * _SHORT)
    num_steps = max(_SHORT, int(_SECONDS / each))
    seconds = [[] for _ in loops]
    for _ in range(_REPEATS):
        for loop, found in zip(loops, seconds, strict=True):
            began = time.perf_counter()
            _run(loop, num_steps)
            found.append(time.perf_counter() - began)
    return [1000 * min(x) / num_steps for x in seconds]


def _devices(lab):
    """How many variables and masks lie on each device."""
    found = {}
    for variable in lab.state.variables:
        # Keys of random numbers and counters stay with the host.
        if tf.as_dtype(variable.dtype).is_floating or variable.dtype == tf.bool:
            name = variable.device.rpartition("/")[2] or "no device"
            found[name] = found.get(name, 0) + 1
    return found


def _holds(testing, lab):
    try:
        testing.assert_masks_hold(lab.pruned, lab.optimizer)
    except AssertionError:
        return False
    return True
