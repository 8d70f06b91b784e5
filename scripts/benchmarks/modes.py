"""Which compile mode is fastest for which network, and whether `auto` picks it.

    python scripts/benchmarks/modes.py [--only=NAME,…] [--json=FILE]

Five kinds of network, masked to 20 % of their weights, trained by `make_train_loop` in
each mode in turn; prints the median milliseconds a step and what `auto` would cost
against the best mode. Random data: only time is measured. About three minutes on a
CPU, most of them for convolutions compiled by XLA; nothing else should run meanwhile.
"""

import argparse
import json
import os
import platform
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import rich.box
import rich.console
import rich.progress
import rich.table
import tensorflow as tf

import prunetrain as pt
from prunetrain.core import steps
from prunetrain.models import MODELS

MODES = ("xla", "hybrid", "graph")
# Network: shape of an example, batch size.
NETWORKS = {
    "mlp_300_100_50": ((28, 28, 1), 64),
    "lenet5": ((28, 28, 1), 60),
    "conv2": ((32, 32, 3), 60),
    "resnet20": ((32, 32, 3), 32),
    "transformer": ((28, 28, 1), 64),
}


def main():
    arguments = _arguments()
    # Its warning of many traces is not for many loops.
    tf.get_logger().setLevel("ERROR")
    results = {
        name: {
            "auto": steps.pick_mode("auto", model(name)),
            "ms_per_step": measure(
                {mode: training(name, mode) for mode in MODES}, arguments.rounds
            ),
        }
        for name in rich.progress.track(arguments.only or NETWORKS, "measuring")
    }
    report(results, arguments)


def measure(runs, num_rounds):
    """Median milliseconds a step; of a mode 20 times slower than another, one step."""
    for run in runs.values():
        run(1)  # traces and compiles
    first = {mode: run(1) for mode, run in runs.items()}
    slow = {mode for mode in runs if first[mode] > 20 * min(first.values())}
    ms = {mode: [1000 * first[mode]] if mode in slow else [] for mode in runs}
    for _ in range(num_rounds):
        for mode in runs.keys() - slow:
            num_steps = max(1, min(1000, round(1.5 / first[mode])))
            ms[mode].append(1000 * runs[mode](num_steps) / num_steps)
    return {mode: statistics.median(values) for mode, values in ms.items()}


def training(name, mode):
    """A function that trains `num_steps` steps and returns the seconds."""
    keras.utils.set_random_seed(0)
    shape, batch_size = NETWORKS[name]
    pruned = pt.PrunedModel(model(name))
    pt.prune(pruned, sparsity=0.8)
    random = np.random.default_rng(0)
    loop = pt.make_train_loop(
        pruned,
        keras.optimizers.Adam(1.2e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        random.random((10 * batch_size, *shape), np.float32),
        random.integers(0, 10, 10 * batch_size),
        batch_size,
        compile=mode,
    )
    step = 0

    def run(num_steps):
        nonlocal step
        start = time.perf_counter()
        loop(step, num_steps).numpy()
        step += num_steps
        return time.perf_counter() - start

    return run


def model(name):
    shape, _ = NETWORKS[name]
    return transformer(shape, 10) if name == "transformer" else MODELS[name](shape, 10)


def transformer(input_shape, num_classes, width=64, heads=4, depth=2):
    """A small vision transformer: patches of 7 × 7, pre-norm blocks, mean pooling."""
    layers = keras.layers
    inputs = keras.Input(input_shape)
    height, breadth, channels = input_shape
    x = layers.Reshape((height // 7, 7, breadth // 7, 7, channels))(inputs)
    x = layers.Permute((1, 3, 2, 4, 5))(x)
    x = layers.Reshape((height * breadth // 49, 49 * channels))(x)
    x = layers.Dense(width)(x)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(heads, width // heads)(y, y)])
        y = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(num_classes)(x))


def report(results, arguments):
    table = rich.table.Table(
        box=rich.box.SIMPLE,
        title=f"ms a step, masked, median of {arguments.rounds} rounds, "
        f"TensorFlow {tf.__version__}, {os.cpu_count()} cores ({platform.machine()})",
    )
    table.add_column("network")
    for column in (*MODES, "auto picks", "auto ÷ best"):
        table.add_column(column, justify="right")
    for name, result in results.items():
        ms = result["ms_per_step"]
        ratio = ms[result["auto"]] / min(ms.values())
        table.add_row(
            name, *(f"{ms[m]:.2f}" for m in MODES), result["auto"], f"{ratio:.2f}"
        )
    rich.console.Console().print(table)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=2)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--json", metavar="FILE", help="also write the medians here")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        help=f"some of {', '.join(NETWORKS)}",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
