"""What masking costs, by each way to do it.

    python scripts/benchmarks/masking.py [--rounds=5] [--json=FILE] [--plot=FILE]

One network (784-300-100-50-10, Adam 1.2e-4, batches of 64, 40,200 MNIST images, masks
that keep 20 %), trained for an epoch by each variant in turn, several rounds. Prints
the median milliseconds a step, and how far pruned weights get away from zero: the
largest magnitude one has when a step begins, over an epoch that is not timed. Takes
about four minutes; nothing else should run on the machine meanwhile.
"""

import argparse
import dataclasses
import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import rich.box
import rich.console
import rich.progress
import rich.table
import tensorflow as tf

import prunetrain as pt
from prunetrain.models.mlp import mlp_300_100_50

NUM_IMAGES, BATCH_SIZE, DENSITY = 40_200, 64, 0.2
NUM_STEPS = -(-NUM_IMAGES // BATCH_SIZE)
PLAIN, CALLBACK = "fit, no pruning", "fit, set_weights callback each batch"
DENSE, MASKED = "make_train_loop (xla), dense", "make_train_loop (xla), masked"
FLOOR = "matrix multiplications alone (xla)"


@dataclasses.dataclass(frozen=True)
class Variant:
    """`epoch()` trains NUM_STEPS steps; `drift()` too, and watches pruned weights."""

    epoch: Callable[[], None]
    drift: Callable[[], float] | None = None


def variants(x, y):
    """What is compared, by name."""
    return {
        PLAIN: fit(x, y),
        CALLBACK: fit(x, y, SetWeights(every=1)),
        "fit, set_weights callback each 10 batches": fit(x, y, SetWeights(every=10)),
        "fit, set_weights callback each epoch": fit(x, y, SetWeights(every=NUM_STEPS)),
        "fit, pruned.constrain()": fit(x, y, "constrain"),
        "fit, pruned.apply_masks() callback": fit(x, y, ApplyMasks()),
        "make_train_step per batch, masked": step_per_batch(x, y),
        DENSE: compiled_loop(x, y, masked=False),
        MASKED: compiled_loop(x, y),
        "make_train_loop (xla), mask_interval=10": compiled_loop(
            x, y, mask_interval=10
        ),
        **{
            f"make_train_loop ({mode}), {name}": compiled_loop(
                x, y, masked=name == "masked", compile=mode
            )
            for mode in ("hybrid", "graph")
            for name in ("dense", "masked")
        },
        FLOOR: multiplications(),
    }


def main():
    arguments = _arguments()
    dataset = pt.load_dataset("mnist", validation_size=60_000 - NUM_IMAGES)
    # Its warning of many traces is not for many loops.
    tf.get_logger().setLevel("ERROR")
    compared = variants(*dataset.train)
    for variant in rich.progress.track(compared.values(), "compiling"):
        variant.epoch()
    ms = {name: [] for name in compared}
    for _ in rich.progress.track(range(arguments.rounds), "measuring"):
        for name, variant in compared.items():
            start = time.perf_counter()
            variant.epoch()
            ms[name].append(1000 * (time.perf_counter() - start) / NUM_STEPS)
    watched = {name: v.drift for name, v in compared.items() if v.drift}
    drift = {
        name: watch()
        for name, watch in rich.progress.track(watched.items(), "watching")
    }
    report(ms, drift, arguments)


def fit(x, y, masking=None):
    """Epochs of `model.fit`; `masking` is a callback, "constrain" or None (dense)."""
    pruned, optimizer, loss_fn = _setup(masked=masking is not None)
    callbacks = []
    if masking == "constrain":
        pruned.constrain()
    elif masking:
        masking.pruned = pruned
        callbacks = [masking]
    pruned.model.compile(optimizer, loss_fn)

    def epoch(*more):
        pruned.model.fit(
            x, y, BATCH_SIZE, epochs=1, verbose=0, callbacks=[*callbacks, *more]
        )

    def drift():
        watch = Watch(pruned)
        epoch(watch)
        return watch.largest

    return Variant(epoch, drift if masking else None)


def step_per_batch(x, y):
    """The compiled step in a Python loop over tf.data."""
    pruned, optimizer, loss_fn = _setup()
    step = pt.make_train_step(pruned, optimizer, loss_fn)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(NUM_IMAGES)
    # The same shape each time; one example of the epoch's last batch comes again.
    batches = batches.repeat().batch(BATCH_SIZE).take(NUM_STEPS).prefetch(2)

    def epoch():
        for batch in batches:
            loss = step(*batch)
        loss.numpy()

    def drift():
        largest = 0.0
        for batch in batches:
            largest = max(largest, largest_pruned(pruned))
            step(*batch)
        return largest

    return Variant(epoch, drift)


def compiled_loop(x, y, masked=True, compile="xla", mask_interval=1):
    """Epochs of `make_train_loop`, each in one dispatch."""
    pruned, optimizer, loss_fn = _setup(masked)
    loop = pt.make_train_loop(
        pruned,
        optimizer,
        loss_fn,
        x,
        y,
        BATCH_SIZE,
        compile=compile,
        mask_interval=mask_interval,
    )
    if not masked:
        # The same loop without the masking, not merely with masks that keep everything.
        pruned.mask_gradients = list
        pruned.apply_masks = lambda: None
    step = 0

    def run(num_steps):
        nonlocal step
        loop(step, num_steps).numpy()
        step += num_steps

    def drift():
        largest = 0.0
        for _ in range(NUM_STEPS // 5):
            run(5)
            largest = max(largest, largest_pruned(pruned))
        return largest

    return Variant(lambda: run(NUM_STEPS), drift if masked else None)


def multiplications():
    """The eleven products of a step, forward and backward, and nothing else."""
    widths = (784, 300, 100, 50, 10)
    weights = [tf.random.normal(pair) / 20 for pair in itertools.pairwise(widths)]
    x = tf.random.normal((BATCH_SIZE, widths[0]))

    @tf.function(jit_compile=True)
    def run(x, num_steps):
        gradients = tuple(tf.zeros_like(w) for w in weights)
        for _ in tf.range(num_steps):
            inputs, gradients = [x], []
            for w in weights:
                inputs.append(inputs[-1] @ w)
            outputs = inputs.pop()
            # One number, in place, so that no step is like the one before.
            x = tf.tensor_scatter_nd_update(x, [[0, 0]], outputs[0, :1])
            for w in reversed(weights):
                gradients.insert(0, tf.matmul(inputs.pop(), outputs, transpose_a=True))
                if inputs:
                    outputs = tf.matmul(outputs, w, transpose_b=True)
            gradients = tuple(gradients)
        return gradients

    def epoch():
        run(x, tf.constant(NUM_STEPS))[-1].numpy()

    return Variant(epoch)


class SetWeights(keras.callbacks.Callback):
    """What the question's author wrote, for every batch or less often."""

    def __init__(self, every):
        super().__init__()
        self._every, self._masks = every, None

    def on_train_begin(self, logs=None):
        self._masks = [mask.numpy() for mask in self.pruned.masks]

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self._every:
            return
        layers = [layer for layer in self.model.layers if layer.get_weights()]
        for layer, mask in zip(layers, self._masks, strict=True):
            kernel, bias = layer.get_weights()
            layer.set_weights([kernel * mask, bias])


class ApplyMasks(keras.callbacks.Callback):
    """The callback again, but the masks are applied on the device."""

    def on_train_batch_end(self, batch, logs=None):
        self.pruned.apply_masks()


class Watch(keras.callbacks.Callback):
    """Notes the largest magnitude of a pruned weight when a batch begins."""

    def __init__(self, pruned):
        super().__init__()
        self._pruned, self.largest = pruned, 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self.largest = max(self.largest, largest_pruned(self._pruned))


def largest_pruned(pruned):
    return max(
        float(np.abs(kernel.numpy()[~mask.numpy()]).max())
        for kernel, mask in zip(pruned.kernels, pruned.masks, strict=True)
    )


def _setup(masked=True):
    keras.utils.set_random_seed(0)
    pruned = pt.PrunedModel(mlp_300_100_50((28, 28, 1), 10))
    if masked:
        pt.prune(pruned, sparsity=1 - DENSITY)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return pruned, keras.optimizers.Adam(1.2e-4), loss_fn


def report(ms, drift, arguments):
    medians = {name: statistics.median(values) for name, values in ms.items()}
    machine = f"{os.cpu_count()} cores ({platform.machine()})"
    title = (
        f"{NUM_STEPS} steps, median of {arguments.rounds} rounds, "
        f"TensorFlow {tf.__version__}, Keras {keras.__version__}, {machine}"
    )
    table = rich.table.Table(title=title, box=rich.box.SIMPLE)
    table.add_column("variant")
    for column in ("ms a step", "fit ÷", "callback ÷", "pruned weights up to"):
        table.add_column(column, justify="right")
    for name, value in medians.items():
        ratios = (f"{medians[base] / value:.2f}" for base in (PLAIN, CALLBACK))
        away = f"{drift[name]:.2g}" if name in drift else ""
        table.add_row(name, f"{value:.3f}", *ratios, away)
    console = rich.console.Console()
    console.width = max(console.width, 100)
    console.print(table)
    overhead = statistics.median(
        masked / dense for masked, dense in zip(ms[MASKED], ms[DENSE], strict=True)
    )
    console.print(f"masked ÷ dense in one round, median, xla: {overhead:.3f}")
    floor = medians[MASKED] / medians[FLOOR]
    console.print(f"masked ÷ its matrix multiplications alone, xla: {floor:.3f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"title": title, "ms_per_step": ms, "drift": drift}, file)
    if arguments.plot:
        plot(medians, title, arguments.plot)


def plot(medians, title, file):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(medians)[::-1]
    # Blue and orange differ for every kind of colour vision.
    colors = {"make": "#0072b2", "fit,": "#e69f00", "matr": "#999999"}
    colors = [colors[name[:4]] for name in names]
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    bars = axes.barh(names, [medians[name] for name in names], color=colors)
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set_xlabel("milliseconds a step (lower is better)")
    axes.set_title(title, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=120)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--json", metavar="FILE", help="write all measurements here")
    parser.add_argument("--plot", metavar="FILE", help="draw the medians as bars here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
