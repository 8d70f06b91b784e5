"""What it costs to change masks during training, by each rule.

    python scripts/benchmarks/dynamic.py [--rounds=7] [--update_every=100] [--json=FILE]

LeNet-300-100 (Adam 1.2e-3, batches of 60, 55,000 MNIST images, 90 % pruned, layerwise)
trains for an epoch by each rule in turn, several rounds. Prints the median milliseconds
a step, and the speed of each beside that of the loop whose masks stay as they are: both
from the same round, then the median. Takes about two minutes; nothing else should run
on the machine meanwhile.
"""

import argparse
import json
import os
import platform
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import rich.box
import rich.console
import rich.progress
import rich.table
import tensorflow as tf

import prunetrain as pt
from prunetrain.models.mlp import lenet_300_100
from prunetrain.pruning import dynamic, schedules

BATCH_SIZE, SPARSITY = 60, 0.9
PLAIN = "masks stay as they are"


def rules(every, num_steps):
    """What is compared: by name, a function of the pruned model, or None."""
    cubic = schedules.cubic(SPARSITY, 0, num_steps)
    drop = schedules.cosine_drop(0.3, num_steps)
    same = schedules.constant(SPARSITY)
    return {
        PLAIN: sparse(dynamic.static),
        "gradual": lambda pruned: dynamic.gradual(pruned, cubic, every, 0, num_steps),
        "gradual, global": lambda pruned: dynamic.gradual(
            pruned, cubic, every, 0, num_steps, "global"
        ),
        "SET": sparse(dynamic.sparse_evolution, drop, every),
        "RigL": sparse(dynamic.rigl, drop, every, 0, num_steps),
        "straight-through": lambda pruned: dynamic.straight_through(
            pruned, same, every
        ),
    }


def sparse(make, *arguments):
    """A rule for a model that begins sparse."""

    def begin(pruned):
        pt.prune(pruned, sparsity=SPARSITY)
        return make(pruned, *arguments)

    return begin


class Variant:
    """A loop by one rule, and the step that it has reached."""

    def __init__(self, x, y, make_update, compile):
        keras.utils.set_random_seed(0)
        self.pruned = pt.PrunedModel(lenet_300_100(x.shape[1:], 10))
        self._loop = pt.make_train_loop(
            *(self.pruned, keras.optimizers.Adam(1.2e-3)),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            *(x, y, BATCH_SIZE),
            compile=compile,
            mask_update=make_update(self.pruned),
        )
        self._step = 0

    def train(self, num_steps):
        """Seconds that so many steps take."""
        start = time.perf_counter()
        self._loop(self._step, num_steps).numpy()
        self._step += num_steps
        return time.perf_counter() - start


def main():
    arguments = _arguments()
    x, y = pt.load_dataset("mnist").train
    epoch = -(-len(x) // BATCH_SIZE)
    # The rounds, and one to warm up.
    made = rules(arguments.update_every, (arguments.rounds + 1) * epoch)
    load = os.getloadavg()[0]
    compared = {
        name: Variant(x, y, make, arguments.compile)
        for name, make in rich.progress.track(made.items(), "building")
    }
    first = {
        name: variant.train(1)
        for name, variant in rich.progress.track(compared.items(), "compiling")
    }
    for variant in compared.values():
        variant.train(epoch)
    ms = {name: [] for name in compared}
    for _ in rich.progress.track(range(arguments.rounds), "measuring"):
        for name, variant in compared.items():
            ms[name].append(1000 * variant.train(epoch) / epoch)
    sparsity = {name: variant.pruned.sparsity() for name, variant in compared.items()}
    report(ms, first, sparsity, load, arguments)


def report(ms, first, sparsity, load, arguments):
    machine = f"{os.cpu_count()} cores ({platform.machine()}), load {load:.1f} before"
    title = (
        f"masks change every {arguments.update_every} steps, {arguments.compile}, "
        f"median of {arguments.rounds} rounds, TensorFlow {tf.__version__}, "
        f"Keras {keras.__version__}, {machine}"
    )
    table = rich.table.Table(title=title, box=rich.box.SIMPLE)
    table.add_column("rule")
    for column in ("ms a step", "speed", "first step, s", "pruned %"):
        table.add_column(column, justify="right")
    for name, times in ms.items():
        pairs = zip(ms[PLAIN], times, strict=True)
        speed = statistics.median(plain / own for plain, own in pairs)
        table.add_row(
            name,
            f"{statistics.median(times):.3f}",
            f"{speed:.3f}",
            f"{first[name]:.1f}",
            f"{100 * sparsity[name]:.2f}",
        )
    console = rich.console.Console()
    console.width = max(console.width, 100)
    console.print(table)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"title": title, "ms_per_step": ms, "first_step": first}, file)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    parser.add_argument("--update_every", type=int, default=100, help="default: 100")
    parser.add_argument("--compile", default="xla", help="compile mode; default: xla")
    parser.add_argument("--json", metavar="FILE", help="write all measurements here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
