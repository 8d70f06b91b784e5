"""The same masked training in prunetrain and in its peers, side by side in one run.

    python scripts/benchmarks/peers.py --setup
    python scripts/benchmarks/peers.py [--rounds=5] [--only=mlp|conv2] [--json=FILE]
        [--plot=FILE]

mlp: 784-300-100-50-10, Adam 1.2e-4, batches of 64, 40,200 MNIST images.
conv2: Conv-2 (Frankle & Carbin 2019, figure 2), Adam 2e-4, batches of 60, random images
of CIFAR's shape. Masks keep 20 % of each kernel.

Each framework runs in a process, and each peer in a virtual environment, of its own
(`.venv-peers/`, made by --setup, about 4 GB). The processes take turns, an epoch each:
whose turn it is not waits for its input. Two cores; takes about four minutes, and
nothing else should run on the machine meanwhile.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import typing

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import rich.console
import rich.table

import prunetrain as pt

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKERS = pathlib.Path(__file__).parent / "peers"
ENVIRONMENTS = ROOT / ".venv-peers"
OURS = "prunetrain, masked"
NUM_CORES = 2
MAX_IDLE_CPU = 0.05  # of the time that a process waits


class Peer(typing.NamedTuple):
    """A process with one framework; without packages, in our own environment."""

    worker: str
    tasks: tuple[str, ...]
    packages: tuple[str, ...] = ()


PEERS = {
    "prunetrain": Peer("in_prunetrain.py", ("mlp", "conv2")),
    "keras": Peer("in_keras.py", ("conv2",)),
    "jax": Peer("in_jax.py", ("mlp",), ("jax", "jaxlib")),
    "torch": Peer("in_torch.py", ("mlp", "conv2"), ("torch==2.13.0", "numpy")),
    "tfmot": Peer(
        "in_tfmot.py",
        ("mlp",),
        ("tensorflow", "tf_keras", "tensorflow-model-optimization==0.8.1"),
    ),
}


class Task(typing.NamedTuple):
    title: str
    batch_size: int
    data: typing.Callable


def mnist():
    dataset = pt.load_dataset("mnist", validation_size=60_000 - 40_200)
    x, y = dataset.train
    return x.reshape(len(x), -1), y


def random_images():
    generator = np.random.default_rng(0)
    x = generator.random((1800, 32, 32, 3), dtype=np.float32)
    return x, generator.integers(0, 10, len(x)).astype(np.int32)


TASKS = {
    "mlp": Task("784-300-100-50-10, batches of 64", 64, mnist),
    "conv2": Task("Conv-2, batches of 60", 60, random_images),
}


def main():
    arguments = _arguments()
    if arguments.setup:
        set_up()
        return
    num_cores = limit_cores()
    tasks = [arguments.only] if arguments.only else list(TASKS)
    results = {task: measure(task, arguments.rounds) for task in tasks}
    for task, result in results.items():
        report(task, result, num_cores)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(results, indent=2))
    if arguments.plot:
        plot(results, arguments.plot)


def limit_cores():
    """Keeps this process and its workers on two cores, where the system can.

    Returns:
        How many cores they have.
    """
    cores = range(os.cpu_count())
    if hasattr(os, "sched_setaffinity"):
        # Inherited by the workers, whose thread pools count the cores they may use.
        cores = sorted(os.sched_getaffinity(0))[:NUM_CORES]
        os.sched_setaffinity(0, cores)
    os.environ["OMP_NUM_THREADS"] = str(len(cores))
    return len(cores)


def measure(task, num_rounds):
    """Trains by every variant in turn, an epoch each, `num_rounds` times."""
    with tempfile.TemporaryDirectory() as folder:
        x, y = TASKS[task].data()
        num_steps = len(x) // TASKS[task].batch_size
        np.savez(f"{folder}/data.npz", x=x, y=y)
        workers = []
        try:
            for name in _present(task):
                workers.append(Worker(name, task, folder))
            turns = [(worker, name) for worker in workers for name in worker.variants]
            step_ms = {name: [] for _, name in turns}
            for _ in range(num_rounds):
                for worker, name in turns:
                    step_ms[name].append(1000 * worker.train(name) / num_steps)
        finally:
            for worker in workers:
                worker.close()
    return {
        "step_ms": {name: statistics.median(all) for name, all in step_ms.items()},
        "times_ours": {
            name: _ratio(all, step_ms[OURS]) for name, all in step_ms.items()
        },
        "step_ms_of_rounds": step_ms,
        "versions": {k: v for worker in workers for k, v in worker.versions.items()},
    }


def _ratio(values, ours):
    """The median of the ratios within a round, which share what disturbed it."""
    return statistics.median(a / b for a, b in zip(values, ours, strict=True))


class Worker:
    """A process that trains an epoch when told to (see peers/serve.py)."""

    def __init__(self, name, task, folder):
        self.name = name
        self._log = pathlib.Path(folder, f"{name}.log")
        command = [_python(name), str(WORKERS / PEERS[name].worker), task]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, f"{folder}/data.npz"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(name),
            )
        ready = self._answer()
        self.variants, self.versions = ready["variants"], ready["versions"]
        for note in ready["notes"]:
            print(note)
        self._idle_since = time.perf_counter()

    def train(self, variant):
        """Trains an epoch; returns its seconds."""
        idle = time.perf_counter() - self._idle_since
        self._process.stdin.write(f"{variant}\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._idle_since = time.perf_counter()
        # What the last epoch leaves behind is done within a second.
        if answer["idle_cpu"] > MAX_IDLE_CPU * max(idle, 1):
            print(
                f"Warning: {self.name} used {answer['idle_cpu']:.2f} s of CPU time in "
                f"{idle:.2f} s of waiting, while others were measured"
            )
        return answer["seconds"]

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            log = self._log.read_text()[-2000:]
            sys.exit(f"{log}\nThe worker of {self.name} failed: see the lines above")
        return json.loads(line)


def _present(task):
    """The peers of `task` whose environments exist; says which do not."""
    for name, peer in PEERS.items():
        if task not in peer.tasks:
            continue
        if peer.packages and not _stamp(name).exists():
            print(
                f"{name} is left out: {ENVIRONMENTS / name} is not there. "
                "`python scripts/benchmarks/peers.py --setup` makes it"
            )
        else:
            yield name


def set_up():
    """Makes the virtual environments of the peers that are not there yet."""
    for name, peer in PEERS.items():
        if not peer.packages or _stamp(name).exists():
            continue
        folder = ENVIRONMENTS / name
        print(f"Installing {', '.join(peer.packages)} into {folder}", flush=True)
        pip = [_python(name), "-m", "pip", "install", "--quiet", *peer.packages]
        for command in ([sys.executable, "-m", "venv", str(folder)], pip):
            if subprocess.run(command).returncode:
                sys.exit(f"{folder} is not complete: {' '.join(command)} failed")
        _stamp(name).touch()


def _stamp(name):
    """The file that says that an environment is complete."""
    return ENVIRONMENTS / name / ".installed"


def _python(name):
    if PEERS[name].packages:
        return str(ENVIRONMENTS / name / "bin" / "python")
    return sys.executable


def _environment(name):
    """Only our own worker sees prunetrain, wherever this Python finds it."""
    if PEERS[name].packages:
        return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def report(task, result, num_cores):
    table = rich.table.Table(title=TASKS[task].title)
    table.add_column("variant")
    table.add_column("ms a step", justify="right")
    table.add_column(f"÷ {OURS}", justify="right")
    for name, value in result["step_ms"].items():
        table.add_row(name, f"{value:.3f}", f"{result['times_ours'][name]:.2f}")
    console = rich.console.Console()
    console.print(table)
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    console.print(
        f"Medians of {len(result['step_ms_of_rounds'][OURS])} rounds in turn; a ratio "
        f"is the median of the rounds' ratios. {versions}. {num_cores} of "
        f"{os.cpu_count()} cores ({platform.machine()})"
    )


def plot(results, file):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = [1 + 0.4 * len(result["step_ms"]) for result in results.values()]
    figure, axes = pyplot.subplots(
        len(results),
        figsize=(8, sum(heights)),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for axis, (task, result) in zip(axes[:, 0], results.items(), strict=True):
        step_ms = result["step_ms"]
        colors = ["C0" if "prunetrain" in name else "0.7" for name in step_ms]
        bars = axis.barh(list(step_ms), list(step_ms.values()), color=colors)
        axis.bar_label(bars, fmt="%.2f", padding=3)
        axis.margins(x=0.12)
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
        axis.set(title=TASKS[task].title, xlabel="milliseconds a step")
    figure.savefig(file, dpi=150)


def _arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--setup", action="store_true", help="make the missing environments, then stop"
    )
    parser.add_argument("--rounds", type=_positive, default=5)
    parser.add_argument("--only", choices=tuple(TASKS))
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    parser.add_argument("--plot", metavar="FILE", help="also draw them here")
    return parser.parse_args()


def _positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"must be a whole number from 1. Received: {text}"
        )
    return int(text)


if __name__ == "__main__":
    main()
