"""What several logical CPUs do, written as JSON for `core/distributed_test.py`.

    python -m tests.toy_replicas FILE CASE …

A process of its own, since TensorFlow can be told their number only at its start.
"""

import json
import os
import sys
import tempfile
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import prunetrain as pt
from prunetrain.core import distributed
from prunetrain.core import mask_updates as updates
from prunetrain.pruning import dynamic, prune, schedules
from prunetrain.pruning.criteria import CRITERIA
from tests import toys

MODES = toys.MODES
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float64")
OPTIMIZERS = {
    "momentum": lambda: toys.OPTIMIZERS["momentum"](),
    "adamw_clipped": lambda: toys.OPTIMIZERS["adamw"](global_clipnorm=0.1),
    "averaged": lambda: toys.OPTIMIZERS["adam"](
        use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
    ),
    "accumulating": lambda: toys.OPTIMIZERS["adam"](gradient_accumulation_steps=3),
    "rmsprop": lambda: toys.OPTIMIZERS["rmsprop"](),
    "muon": lambda: toys.MORE_OPTIMIZERS["muon"](),
}
MASK_UPDATES = {
    "set": lambda pruned: dynamic.sparse_evolution(pruned, schedules.constant(0.3), 3),
    "rigl": lambda pruned: dynamic.rigl(pruned, schedules.constant(0.3), 3, 0, 12),
    "gradual": lambda pruned: dynamic.gradual(
        pruned, schedules.cubic(0.7, 0, 9), 3, 0, 9
    ),
    "straight_through": lambda pruned: dynamic.straight_through(
        pruned, schedules.constant(0.5)
    ),
}
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def strategy(count):
    """None for one device."""
    if count == 1:
        return None
    devices = [f"CPU:{index}" for index in range(count)]
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


class Trained:
    """A toy network in a loop over 40 examples, 12 in a batch."""

    def __init__(
        self, count, mode="graph", optimizer=None, make=None, update=None, **options
    ):
        keras.utils.set_random_seed(3)
        self.strategy = strategy(count)
        with distributed.scope(self.strategy):
            self.pruned = pt.PrunedModel(make() if make else toys.mlp((6, 8, 3)))
            self.optimizer = (optimizer or toys.OPTIMIZERS["adam"])()
            mask_update = update and update(self.pruned)
        loss_fn = options.pop("loss_fn", toys.cross_entropy())
        self.loop = pt.make_train_loop(
            *(self.pruned, self.optimizer, loss_fn, *toys.dataset(40), 12),
            seed=5,
            compile=mode,
            mask_update=mask_update,
            strategy=self.strategy,
            **options,
        )
        self.mask_update = mask_update

    def variables(self):
        return [
            *(v.value for v in self.pruned.model.variables),
            *(v.value for v in self.optimizer.variables),
            *self.pruned.masks,
            *(self.mask_update.variables if self.mask_update else ()),
        ]

    def weights(self):
        return [
            np.asarray(v.value, np.float64)
            for v in self.pruned.model.trainable_variables
        ]

    def copies(self, variable):
        return [
            np.asarray(copy)
            for copy in self.strategy.experimental_local_results(variable)
        ]

    def same_everywhere(self):
        """Names of the variables whose copies differ in a bit, of which pruned ones."""
        return [
            variable.name
            for variable in self.variables()
            if len({copy.tobytes() for copy in self.copies(variable)}) > 1
        ]

    def unheld(self):
        """How many pruned weights are not +0.0, on all devices."""
        pairs = zip(self.pruned.kernels, self.pruned.masks, strict=True)
        return sum(
            int(np.count_nonzero((copy[~mask] != 0) | np.signbit(copy[~mask])))
            for kernel, variable in pairs
            for copy, mask in zip(
                (x.astype(np.float64) for x in self.copies(kernel.value)),
                self.copies(variable),
                strict=True,
            )
        )

    def rounds(self, prune=True):
        """Trains, prunes, trains; the mean losses."""
        losses = [float(self.loop(0, 7))]
        if prune:
            pt.prune(self.pruned, rate=0.4)
        losses.append(float(self.loop(7, 6)))
        losses.append(float(self.loop(13, 2)))
        return losses


def compared(count, prune=True, **options):
    """What is different on several devices and on one.

    Unless they `prune` in between, they begin with every second weight.
    """
    one, several = Trained(1, **options), Trained(count, **options)
    for trained in (one, several):
        if not prune:
            trained.pruned.set_masks(toys.random_masks(trained.pruned))
    losses = [trained.rounds(prune) for trained in (one, several)]
    pairs = zip(one.weights(), several.weights(), strict=True)
    masks = [[m.numpy() for m in x.pruned.masks] for x in (one, several)]
    return {
        "loss": max(abs(a - b) for a, b in zip(*losses, strict=True)),
        "weights": max(float(np.abs(a - b).max()) for a, b in pairs),
        "moved": float(np.abs(several.weights()[0]).max()),
        "masks": sum(int((a != b).sum()) for a, b in zip(*masks, strict=True)),
        "copies": several.same_everywhere(),
        "unheld": several.unheld(),
        "pruned": several.pruned.sparsity(),
        "traces": several.loop.num_traces,
    }


def of_precision(name):
    def make():
        return toys.mlp((6, 8, 3), dtype=name)

    return make


def scaled(precision):
    def make():
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        if precision != "mixed_float16":
            return optimizer
        return keras.optimizers.LossScaleOptimizer(optimizer)

    return make


@case
def table():
    """Strategy × compile × precision."""
    return {
        f"{count} {mode} {precision}": compared(
            count, mode=mode, make=of_precision(precision), optimizer=scaled(precision)
        )
        for count, modes in ((2, MODES), (4, ("xla",)))
        for mode in modes
        for precision in PRECISIONS
    }


@case
def cell():
    """One cell of it, soon done."""
    return {"2 graph float32": compared(2)}


@case
def optimizers():
    return {
        name: compared(2, mode="hybrid", optimizer=make)
        for name, make in OPTIMIZERS.items()
    }


@case
def overflow():
    """A scale at which float16 overflows: every device skips the step and halves it."""

    def optimizer():
        inner = keras.optimizers.SGD(0.1)
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**40)

    trained = Trained(2, make=of_precision("mixed_float16"), optimizer=optimizer)
    before = trained.weights()
    trained.loop(0, 1)
    scale = float(trained.optimizer.dynamic_scale.numpy())
    pairs = zip(before, trained.weights(), strict=True)
    return {
        "scale": np.log2(scale),
        "moved": max(float(np.abs(a - b).max()) for a, b in pairs),
        "copies": trained.same_everywhere(),
    }


@case
def penalties():
    """Regularisers and losses of activities count once, sums as sums."""

    def penalized():
        return toys.mlp((6, 8, 3), kernel_regularizer="l2", activity_regularizer="l2")

    summed = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="sum"
    )
    return {
        "penalties": compared(2, make=penalized),
        "sum": compared(4, loss_fn=summed, make=penalized),
    }


@case
def averages():
    """Batch norm without memory: what one step leaves, and what it should."""

    def make():
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((6,)),
                layers.BatchNormalization(momentum=0.0, name="norm"),
                layers.Dense(3, name="dense"),
            ]
        )

    trained = Trained(4, make=make)
    trained.loop(0, 1)
    x, _ = toys.dataset(40)
    batch = x[toys.batch_rows(40, 12, 0, 1, 5)[0]].astype(np.float64)
    variances = [part.var(0) for part in np.split(batch, 4)]
    norm = trained.pruned.model.get_layer("norm")
    return {
        "mean": float(np.abs(norm.moving_mean.numpy() - batch.mean(0)).max()),
        "variance": float(
            np.abs(norm.moving_variance.numpy() - np.mean(variances, 0)).max()
        ),
        "copies": trained.same_everywhere(),
    }


@case
def dropout():
    """Whether replicas with the same examples drop the same."""

    def make():
        layers = keras.layers
        return keras.Sequential(
            [keras.Input((50,)), layers.Dropout(0.5, seed=1), layers.Dense(1)]
        )

    keras.utils.set_random_seed(0)
    two = strategy(2)
    with two.scope():
        model = make()
        pruned, optimizer = pt.PrunedModel(model), keras.optimizers.SGD(1.0)
    before = model.get_weights()[0][:, 0]
    x, y = np.ones((2, 50), np.float32), np.zeros((2, 1), np.float32)
    loop = pt.make_train_loop(
        *(pruned, optimizer, toys.total, x, y, 2), compile="graph", strategy=two
    )
    loop(0, 1)
    moved = (before - model.get_weights()[0][:, 0]).round(4)
    seeds = [v for v in model.variables if "seed" in v.path]
    copies = [
        np.asarray(x).tolist() for x in two.experimental_local_results(seeds[0].value)
    ]
    return {"moved": sorted(set(moved.tolist())), "seeds": copies}


@case
def evaluation():
    """Sums over ragged last batches, by one device and by several."""
    found = {}
    for num_examples, batch_size in ((103, 10), (40, 40), (3, 2), (1, 1)):
        for stream in (False, True):
            sums = []
            for count in (1, 2, 4):
                trained = Trained(count)
                pt.prune(trained.pruned, sparsity=0.3)
                evaluate = pt.make_eval_loop(
                    *(trained.pruned, toys.cross_entropy()),
                    *toys.dataset(num_examples, seed=2),
                    batch_size=batch_size,
                    compile="xla" if count == 4 else "graph",
                    stream=stream,
                    strategy=trained.strategy,
                )
                sums.append([float(value) for value in evaluate()])
            found[f"{num_examples} {batch_size} {stream}"] = sums
    return found


@case
def mask_updates():
    return {
        f"{name} {mode}": compared(2, prune=False, mode=mode, update=make)
        for name, make in MASK_UPDATES.items()
        for mode in ("xla", "graph")
    }


@case
def criteria():
    """How many weights each criterion prunes otherwise on two devices than on one."""
    return {name: _differences(name) for name in CRITERIA}


def _differences(criterion):
    found = []
    for count in (1, 2):
        trained = Trained(count)
        initial = [tf.constant(kernel.value) for kernel in trained.pruned.kernels]
        trained.loop(0, 5)
        with trained.loop.places.on(0):
            masks = prune.new_masks(
                *(trained.pruned, 0.4),
                criterion=criterion,
                initial=initial,
                data=list(trained.loop.batches(2)),
                loss_fn=toys.cross_entropy(),
                seed=1,
            )
        trained.pruned.set_masks(masks)
        found.append([mask.numpy() for mask in trained.pruned.masks])
    pairs = zip(*found, strict=True)
    return {
        "differ": sum(int((one != two).sum()) for one, two in pairs),
        "pruned": trained.pruned.sparsity(),
        "copies": trained.same_everywhere(),
    }


@case
def streams():
    """The bits of the weights, resident and streamed, in other dispatches."""
    found = []
    for stream in (False, True):
        trained = Trained(2, "xla", stream=stream)
        if stream:
            trained.loop(0, 13)
        else:
            trained.loop(0, 4)
            trained.loop(4, 9)
        found.append([w.tobytes().hex() for w in trained.weights()])
    return found[0] == found[1]


@case
def checkpoints():
    """Whether what goes on from a checkpoint gets to the same bits on each device."""

    def make():
        layers = keras.layers
        return keras.Sequential(
            [
                *(keras.Input((6,)), layers.Dense(8), layers.BatchNormalization()),
                *(layers.Dropout(0.3), layers.Dense(3)),
            ]
        )

    ends = []
    with tempfile.TemporaryDirectory() as folder:
        for interrupted in (False, True):
            trained = Trained(2, make=make)
            state = tf.train.Checkpoint(variables=trained.variables())
            if interrupted:
                state.read(f"{folder}/state").assert_consumed()
            else:
                trained.loop(0, 5)
                pt.prune(trained.pruned, rate=0.5)
                state.write(f"{folder}/state")
            trained.loop(5, 6)
            ends.append(
                [w.tobytes().hex() for w in map(np.asarray, trained.variables())]
            )
            copies = trained.same_everywhere()
    return {"same": ends[0] == ends[1], "copies": copies}


@case
def snapshots():
    """Whether a snapshot brings every copy back."""
    trained = Trained(2)
    trained.loop(0, 3)
    with trained.strategy.scope():
        snapshot = pt.Snapshot(trained.pruned, trained.optimizer)
    before = [np.asarray(v).tobytes() for v in trained.variables()]
    trained.loop(3, 3)
    snapshot.restore()
    after = [np.asarray(v).tobytes() for v in trained.variables()]
    return {"same": before == after, "copies": trained.same_everywhere()}


@case
def divergence():
    trained = Trained(2, optimizer=lambda: keras.optimizers.SGD(1e30))
    return trained.loop.first_nonfinite(0, 12)


@case
def refusals():
    told = {}

    def note(name, act):
        try:
            act()
        except ValueError as error:
            told[name] = str(error)

    x, y = toys.dataset(40)
    two, pruned = strategy(2), pt.PrunedModel(toys.mlp())
    sgd = keras.optimizers.SGD
    options = {"compile": "graph", "strategy": two}
    note(
        "outside",
        lambda: pt.make_train_loop(
            pruned, sgd(), toys.cross_entropy(), x, y, 4, **options
        ),
    )
    with two.scope():
        pruned = pt.PrunedModel(toys.mlp())
        optimizer, latent = sgd(), tf.Variable(0.0)
    note(
        "odd",
        lambda: pt.make_train_loop(
            pruned, optimizer, toys.cross_entropy(), x, y, 5, **options
        ),
    )
    update = updates.MaskUpdate(lambda step: step, lambda *_: None, variables=(latent,))
    note(
        "tuple",
        lambda: pt.make_train_loop(
            *(pruned, optimizer, toys.cross_entropy(), x, y, 4),
            mask_update=update,
            **options,
        ),
    )
    return told


def main(file, *names):
    cpu = tf.config.list_physical_devices("CPU")[0]
    four = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(cpu, four)
    tf.config.experimental.enable_op_determinism()
    found = {}
    for name in names:
        try:
            found[name] = CASES[name]()
        except Exception:
            found[name] = traceback.format_exc()
    with open(file, "w") as stream:
        json.dump(found, stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
