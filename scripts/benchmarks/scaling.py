"""How time and memory grow with the number of weights, and that rounds add nothing.

    python scripts/benchmarks/scaling.py [--rounds=30] [--json=FILE] [--plot=FILE]

Four dense layers that hold 10^5 to 10^8 prunable weights between them: what a step
costs masked and dense, what pruning 20 % takes the first time (it compiles) and the
second, and the peak of memory; the same for 16.8 million weights in one and in four
kernels and for one of 4,097 × 4,097. Then LeNet-300-100 on MNIST over many rounds of
train, prune, rewind: step time, resident memory, traces and XLA compilations.

Each figure comes from a process of its own. Memory is the peak of what is resident
(VmHWM, so Linux only) above what was resident before the model was made. By then
TensorFlow is loaded and a toy of the same depth has been pruned, so that libraries and
compiler do not count; a few tens of MB for compiling the larger shapes still do. Making
the model counts. XLA compilations are counted as the modules that XLA dumps.

Takes about three minutes and 4 GB; nothing else should run on the machine meanwhile.
"""

import argparse
import glob
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import rich.console
import rich.table
import tensorflow as tf

import prunetrain as pt
from prunetrain.models.mlp import lenet_300_100

WIDTHS = [158, 500, 1581, 5000]  # of four layers: 10^5 to 10^8 weights
ALLOCATIONS = ["layerwise", "global"]
# 16.8 million weights, in one kernel and in four; more than float32 can count.
POOLS = [(1, 4096, "global"), (4, 2048, "global"), (1, 4097, "global")]
BATCH_SIZE, NUM_EXAMPLES, MEGA = 16, 64, 1e6
LAST, EARLY = slice(-5, None), slice(1, 6)  # the last five rounds, rounds 2 to 6


def main():
    arguments = _arguments()
    if arguments.measure:
        name, *values = arguments.measure
        print(json.dumps(MEASURES[name](*values)))
        return
    figures = {
        "steps": [measure("steps", 4, width) for width in WIDTHS],
        "prunes": [
            measure("prunes", *case)
            for case in [(4, w, name) for w in WIDTHS for name in ALLOCATIONS] + POOLS
        ],
        "rounds": measure("rounds", arguments.rounds, arguments.steps),
    }
    report(figures)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file)
    if arguments.plot:
        plot(figures, arguments.plot)


def measure(*what):
    """What a process of its own finds."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, SCALING_DUMP=folder)
        if what[0] == "rounds":
            environment["XLA_FLAGS"] = f"--xla_dump_to={folder}"
        command = [sys.executable, __file__, "--measure", *map(str, what)]
        output = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    return json.loads(output.splitlines()[-1])


# What is measured


def steps(num_layers, width):
    """Milliseconds a step of `make_train_loop`, masked and dense."""
    pruned, optimizer = _network(int(num_layers), int(width))
    pt.prune(pruned, sparsity=0.8)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, int(width))).astype(np.float32)
    y = rng.integers(int(width), size=NUM_EXAMPLES)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loops = {
        name: pt.make_train_loop(pruned, optimizer, loss_fn, x, y, BATCH_SIZE)
        for name in ("dense", "masked")
    }
    # Traced without the masking, not merely with masks that keep everything.
    pruned.mask_gradients, pruned.apply_masks = list, lambda: None
    loops["dense"](0, 1).numpy()
    del pruned.mask_gradients, pruned.apply_masks
    loops["masked"](0, 1).numpy()
    num_steps = max(2, min(500, int(2e8 / _num_weights(pruned))))
    seconds = {name: [] for name in loops}
    for _ in range(5):
        for name, loop in loops.items():
            seconds[name].append(_seconds(lambda run=loop: run(0, num_steps).numpy()))
    pt.testing.assert_masks_hold(pruned)
    return {
        "weights": _num_weights(pruned),
        **{
            f"{k}_ms": 1000 * statistics.median(v) / num_steps
            for k, v in seconds.items()
        },
    }


def prunes(num_layers, width, allocation):
    """Seconds and peak memory of pruning 20 %; bytes of masks and snapshot."""
    toy, _ = _network(int(num_layers), 8)
    pt.prune(toy, rate=0.2, allocation=allocation)
    before = _memory("VmRSS")
    pruned, optimizer = _network(int(num_layers), int(width))
    made = _memory("VmHWM")
    total, removed, seconds = _num_weights(pruned), 0, []
    for _ in range(3):
        start = time.perf_counter()
        removed += pt.prune(pruned, rate=0.2, allocation=allocation)
        seconds.append(time.perf_counter() - start)
    peak = _memory("VmHWM")
    if allocation == "global":
        _check_count(total, removed, len(seconds))
    weights_bytes = sum(_bytes(kernel.value) for kernel in pruned.kernels)
    masks = {id(mask) for mask in pruned.masks}
    snapshot = pt.Snapshot(pruned, optimizer)
    return {
        "layers": int(num_layers),
        "width": int(width),
        "allocation": allocation,
        "weights": total,
        "removed": removed,
        "first_s": seconds[0],
        "second_s": min(seconds[1:]),
        "weights_mb": weights_bytes / MEGA,
        "made_mb": (made - before) / MEGA,
        "peak_mb": (peak - before) / MEGA,
        "mask_bytes": sum(map(_bytes, pruned.masks)) / total,
        "snapshot_bytes": sum(
            _bytes(copy) for copy in snapshot.variables if id(copy) not in masks
        )
        / total,
    }


def _check_count(total, removed, num_rounds):
    kept = total
    for _ in range(num_rounds):
        kept -= math.floor(0.2 * kept + 0.5)
    if total - removed != kept:
        raise AssertionError(f"{total - removed} weights are left, not {kept}")


def rounds(num_rounds, num_steps):
    """Per round: milliseconds a step, resident MB, traces, XLA compilations."""
    keras.utils.set_random_seed(0)
    x, y = pt.load_dataset("mnist").train
    pruned, optimizer = pt.PrunedModel(lenet_300_100((28, 28, 1), 10)), _adam()
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loop = pt.make_train_loop(pruned, optimizer, loss_fn, x, y, batch_size=60)
    start, found = pt.Snapshot(pruned, optimizer), []
    loop(0, 1).numpy()
    start.restore()
    for _ in range(int(num_rounds)):
        # The median: what else the machine does for a moment is not the round's.
        seconds = statistics.median(
            _seconds(lambda: loop(0, int(num_steps)).numpy()) for _ in range(9)
        )
        pt.prune(pruned, rate=0.2, layer_rates={"output": 0.1})
        start.restore()
        found.append(
            {
                "step_ms": 1000 * seconds / int(num_steps),
                "resident_mb": _memory("VmRSS") / MEGA,
                "traces": loop.num_traces,
                "compilations": len(
                    glob.glob(
                        f"{os.environ['SCALING_DUMP']}/*.before_optimizations.txt"
                    )
                ),
            }
        )
    return found


MEASURES = {"steps": steps, "prunes": prunes, "rounds": rounds}


def _network(num_layers, width):
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(width, "relu", use_bias=False) for _ in range(num_layers - 1)
    ]
    model = keras.Sequential(
        [keras.Input((width,)), *layers, keras.layers.Dense(width, use_bias=False)]
    )
    return pt.PrunedModel(model), _adam()


def _adam():
    return keras.optimizers.Adam(1.2e-3)


def _num_weights(pruned):
    return sum(layer.total for layer in pruned.layer_sparsity())


def _bytes(variable):
    return variable.dtype.size * variable.shape.num_elements()


def _seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _memory(field):
    """Bytes by the kernel's account: VmRSS is resident now, VmHWM its peak."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


# What is shown


def report(figures):
    console = rich.console.Console(width=96)
    title = f"TensorFlow {tf.__version__}, {os.cpu_count()} cores"
    table = _table(f"A step, batches of {BATCH_SIZE}, Adam ({title})")
    for name in ("weights", "dense ms", "masked ms", "masked ÷ dense"):
        table.add_column(name, justify="right")
    for x in figures["steps"]:
        dense, masked = x["dense_ms"], x["masked_ms"]
        ratio = f"{masked / dense:.3f}"
        table.add_row(f"{x['weights']:,}", f"{dense:.3f}", f"{masked:.3f}", ratio)
    console.print(table)

    table = _table("Pruning 20 %; peak memory ÷ memory of the weights")
    for name in ("kernels", "weights", "allocation", "first s", "then s"):
        table.add_column(name, justify="right")
    for name in ("model ÷", "peak ÷", "peak MB"):
        table.add_column(name, justify="right")
    for x in figures["prunes"]:
        table.add_row(
            f"{x['layers']} of {x['width']}²",
            f"{x['weights']:,}",
            x["allocation"],
            f"{x['first_s']:.2f}",
            f"{x['second_s']:.3f}",
            f"{x['made_mb'] / x['weights_mb']:.2f}",
            f"{x['peak_mb'] / x['weights_mb']:.2f}",
            f"{x['peak_mb']:.0f}",
        )
    console.print(table)
    for name, what in (
        ("mask_bytes", "masks"),
        ("snapshot_bytes", "a snapshot of weights, Adam's slots and masks"),
    ):
        values = sorted(x[name] for x in figures["prunes"])
        console.print(f"bytes a weight of {what}: {values[0]:.2f} to {values[-1]:.2f}")

    found = figures["rounds"]
    for name, unit in (("step_ms", "ms a step"), ("resident_mb", "MB resident")):
        early, last = (_median(found, name, part) for part in (EARLY, LAST))
        console.print(
            f"{unit}: {early:.3f} in rounds 2 to 6, {last:.3f} in the last five of "
            f"{len(found)}, ratio {last / early:.3f}"
        )
    for name in ("traces", "compilations"):
        counts = [x[name] for x in found]
        console.print(f"{name}: {counts[0]} after round 1, {counts[-1]} after the last")


def _table(title):
    return rich.table.Table(title=title)


def _median(found, name, part):
    return statistics.median(x[name] for x in found[part])


BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # Okabe and Ito's palette


def plot(figures, file):
    """Four panels: step, prune time, peak memory, rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(8, 6), layout="constrained")
    plot_steps(axes[0, 0], figures["steps"])
    by_size = {
        allocation: [
            x
            for x in figures["prunes"]
            if x["allocation"] == allocation and x["width"] in WIDTHS
        ]
        for allocation in ALLOCATIONS
    }
    plot_prunes(axes[0, 1], by_size)
    plot_memory(axes[1, 0], by_size)
    plot_rounds(axes[1, 1], figures["rounds"])
    for panel in axes.flat:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=150)


def plot_steps(axes, found):
    sizes = [x["weights"] for x in found]
    axes.loglog(sizes, [x["dense_ms"] for x in found], "s-", color=BLUE, label="dense")
    masked = [x["masked_ms"] for x in found]
    axes.loglog(sizes, masked, "o--", color=ORANGE, label="masked", fillstyle="none")
    axes.set(xlabel="weights", ylabel="ms a step", title="A training step")


def plot_prunes(axes, by_size):
    styles = {"layerwise": (BLUE, "s"), "global": (ORANGE, "o")}
    for allocation, found in by_size.items():
        color, marker = styles[allocation]
        for name, line, when in (("first_s", ":", "first"), ("second_s", "-", "then")):
            axes.loglog(
                [x["weights"] for x in found],
                [x[name] for x in found],
                line,
                color=color,
                marker=marker,
                label=f"{allocation}, {when}",
            )
    axes.set(xlabel="weights", ylabel="seconds", title="Pruning 20 %")


def plot_memory(axes, by_size):
    styles = {"layerwise": (BLUE, "s-"), "global": (ORANGE, "o--")}
    for allocation, found in by_size.items():
        color, style = styles[allocation]
        sizes = [x["weights"] for x in found]
        peaks = [x["peak_mb"] for x in found]
        axes.loglog(sizes, peaks, style, color=color, label=f"peak, {allocation}")
    weights = np.array([x["weights_mb"] for x in found])
    axes.loglog(sizes, weights, "-", color=GREEN, label="the weights alone")
    axes.loglog(sizes, 3 * weights, ":", color="black", label="3 × the weights")
    axes.set(xlabel="weights", ylabel="MB", title="Memory: model, masks, pruning")


def plot_rounds(axes, found):
    styles = {
        "step_ms": (BLUE, "s", "step time"),
        "resident_mb": (ORANGE, "o", "memory"),
    }
    for name, (color, marker, label) in styles.items():
        values = np.array([x[name] for x in found]) / _median(found, name, EARLY)
        axes.plot(
            range(1, len(found) + 1),
            values,
            color=color,
            marker=marker,
            markersize=4,
            fillstyle="none",
            label=label,
        )
    axes.axhspan(0.97, 1.03, color="gray", alpha=0.2, label="within 3 %")
    axes.set(
        xlabel="round",
        ylabel="relative to rounds 2 to 6",
        title="Rounds",
        ylim=(0.8, 1.2),
    )


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="default: 30")
    parser.add_argument(
        "--steps", type=int, default=200, help="training steps in each of 9 dispatches"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    parser.add_argument(
        "--plot", metavar="FILE", help="also draw them, for example .png"
    )
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
