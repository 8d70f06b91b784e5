"""What masking costs: the question that prunetrain began with, in numbers.

    python scripts/benchmarks/masking.py [--rounds=5] [--json=FILE]

One network (784-300-100-50-10, Adam 1.2e-4, batches of 64, 40,200 MNIST images, masks
that keep 20 %), trained for an epoch by each variant in turn, several rounds; prints
the median milliseconds a step and checks that each masked variant kept its zeros. Takes
about a minute; nothing else should run on the machine meanwhile.
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
import rich.console
import rich.table
import tensorflow as tf

import prunetrain as pt
from prunetrain.models.mlp import mlp_300_100_50

NUM_IMAGES, BATCH_SIZE, DENSITY = 40_200, 64, 0.2
NUM_STEPS = -(-NUM_IMAGES // BATCH_SIZE)


def main():
    arguments = _arguments()
    (x, y), *_ = _mnist()
    variants = {
        "Keras fit, no pruning": fit(x, y),
        "Keras fit, get_weights/set_weights callback": fit(x, y, masked=True),
        "compiled loop, dense": compiled_loop(x, y),
        "compiled loop, masked": compiled_loop(x, y, masked=True),
        "hybrid loop, masked": compiled_loop(x, y, masked=True, compile="hybrid"),
        "graph loop, masked": compiled_loop(x, y, masked=True, compile="graph"),
    }
    for run in variants.values():
        run()  # traces and compiles
    seconds = {name: [] for name in variants}
    for _ in range(arguments.rounds):
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    step_ms = {
        name: 1000 * statistics.median(values) / NUM_STEPS
        for name, values in seconds.items()
    }
    report(step_ms, arguments)


def fit(x, y, masked=False):
    """An epoch of `model.fit`, with the callback of the question if `masked`."""
    pruned, optimizer, loss_fn = _setup(masked)
    model = pruned.model
    model.compile(optimizer, loss_fn)
    callbacks = [_MaskCallback(pruned)] if masked else []

    def run():
        model.fit(x, y, BATCH_SIZE, epochs=1, verbose=0, callbacks=callbacks)
        _check_zeros(pruned)

    return run


def compiled_loop(x, y, masked=False, compile="auto"):
    """An epoch of `make_train_loop`, in one dispatch."""
    pruned, optimizer, loss_fn = _setup(masked)
    loop = pt.make_train_loop(
        pruned, optimizer, loss_fn, x, y, BATCH_SIZE, compile=compile
    )
    if not masked:
        # The same loop without the masking, not merely with masks that keep everything.
        pruned.mask_gradients = list
        pruned.apply_masks = lambda: None
    step = 0

    def run():
        nonlocal step
        loop(step, NUM_STEPS).numpy()
        step += NUM_STEPS
        _check_zeros(pruned)

    return run


class _MaskCallback(keras.callbacks.Callback):
    """What the question's author wrote."""

    def __init__(self, pruned):
        super().__init__()
        self._masks = [mask.numpy() for mask in pruned.masks]

    def on_train_batch_end(self, batch, logs=None):
        layers = [layer for layer in self.model.layers if layer.get_weights()]
        for layer, mask in zip(layers, self._masks, strict=True):
            kernel, bias = layer.get_weights()
            layer.set_weights([kernel * mask, bias])


def _setup(masked):
    keras.utils.set_random_seed(0)
    pruned = pt.PrunedModel(mlp_300_100_50((28, 28, 1), 10))
    if masked:
        pt.prune(pruned, sparsity=1 - DENSITY)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return pruned, keras.optimizers.Adam(1.2e-4), loss_fn


def _check_zeros(pruned):
    for kernel, mask in zip(pruned.kernels, pruned.masks, strict=True):
        if np.any(kernel.numpy()[~mask.numpy()]):
            raise AssertionError(f"pruned weights of {kernel.path} are not zero")


def _mnist():
    dataset = pt.load_dataset("mnist", validation_size=60_000 - NUM_IMAGES)
    return dataset.train, dataset.validation, dataset.test


def report(step_ms, arguments):
    names = list(step_ms)
    table = rich.table.Table(
        title=f"{NUM_STEPS} steps, median of {arguments.rounds} rounds, "
        f"TensorFlow {tf.__version__}, {os.cpu_count()} cores ({platform.machine()})"
    )
    table.add_column("variant")
    for name in ("ms a step", "fit ÷ this", "fit + callback ÷ this"):
        table.add_column(name, justify="right")
    for name, value in step_ms.items():
        ratios = (step_ms[base] / value for base in names[:2])
        table.add_row(name, f"{value:.3f}", *(f"{ratio:.2f}" for ratio in ratios))
    console = rich.console.Console()
    console.print(table)
    overhead = step_ms["compiled loop, masked"] / step_ms["compiled loop, dense"]
    console.print(f"masked ÷ dense in the compiled loop: {overhead:.3f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"ms_per_step": step_ms, "rounds": arguments.rounds}, file)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="also write the medians here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
