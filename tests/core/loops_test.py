"""The loops: which batches, the mathematics in every mode, one trace, exact zeros."""

import gc
import itertools
import math
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.core import loops, mask_updates
from tests import toys

ALL_OPTIMIZERS = {**toys.OPTIMIZERS, **toys.MORE_OPTIMIZERS}
modes = pytest.mark.parametrize("mode", toys.MODES)


def make_loop(model, optimizer, mode="graph", batch_size=4, data=None, **options):
    """A loop over `data`, and the pruned model that it trains."""
    x, y = data or toys.dataset()
    pruned = pt.PrunedModel(model)
    options = {"loss_fn": toys.cross_entropy(), "compile": mode, **options}
    loop = pt.make_train_loop(
        pruned, optimizer, x=x, y=y, batch_size=batch_size, **options
    )
    return loop, pruned


class VisitCounter:
    """A loop whose kernel counts the visits: weight i grows by 1 with example i."""

    def __init__(self, num_examples, batch_size, **options):
        self.num_examples, self.batch_size = num_examples, batch_size
        examples = np.eye(num_examples, dtype=np.float32)
        self.loop, self.pruned = make_loop(
            toys.column(*np.zeros(num_examples)),
            keras.optimizers.SGD(1.0),
            batch_size=batch_size,
            data=(examples, examples[:, 0]),
            loss_fn=lambda y, outputs: -toys.total(y, outputs),
            **options,
        )

    def visits(self, first_step, num_steps):
        (kernel,) = self.pruned.kernels
        before = kernel.numpy().copy()
        self.loop(first_step, num_steps)
        return (kernel.numpy() - before)[:, 0].tolist()

    def expected(self, first_step, num_steps, seed=0):
        rows = toys.batch_rows(
            self.num_examples, self.batch_size, first_step, num_steps, seed
        )
        return np.bincount(rows.ravel(), minlength=self.num_examples).tolist()


@pytest.fixture(scope="module")
def counter():
    return VisitCounter(10, 4, seed=5)


@modes
def test_loop_agrees_with_numpy_masked_adam(mode):
    x, y = toys.dataset()
    model = toys.mlp()
    loop, pruned = make_loop(model, keras.optimizers.Adam(0.01), mode, seed=3)
    reference = toys.MaskedAdam(toys.values(model.weights), 0.01)
    rows = toys.batch_rows(len(x), 4, 0, 24, seed=3)
    for first in range(0, 24, 6):
        loss = loop(first, 6)
        expected = [reference.step(x[r], y[r]) for r in rows[first : first + 6]]
        np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-5)
        pt.prune(pruned, rate=0.3)
        reference.prune(0.3)
    for mask, expected in zip(pruned.masks, reference.masks[::2], strict=True):
        np.testing.assert_array_equal(mask, expected)
    for weight, expected in zip(model.weights, reference.weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-6)


# Where a training diverged


@modes
def test_a_search_that_finds_nothing_makes_the_same_steps(mode):
    weights = []
    for search in (False, True):
        keras.utils.set_random_seed(0)
        loop, pruned = make_loop(toys.mlp(), keras.optimizers.Adam(0.01), mode)
        pt.prune(pruned, sparsity=0.5)
        if search:
            assert loop.first_nonfinite(0, 20) is None
        else:
            loop(0, 20)
        weights.append(toys.values(pruned.model.weights))
    for plain, searched in zip(*weights, strict=True):
        np.testing.assert_allclose(searched, plain, rtol=1e-5, atol=1e-7)


@modes
@pytest.mark.parametrize(
    ("rate", "step", "name"),
    [
        # The gradient is 16: 1.6e38 can be a weight, but not the loss after it.
        (1e37, 2, "the loss"),
        (1e38, 1, "the kernel"),
    ],
)
def test_the_first_number_that_is_not_finite_is_found(mode, rate, step, name):
    x = np.full((4, 2), 4.0, np.float32)
    optimizer = keras.optimizers.SGD(1.0)
    loop, pruned = make_loop(
        toys.column(1.0, 1.0), optimizer, mode, data=(x, x[:, 0]), loss_fn=toys.total
    )
    optimizer.learning_rate.assign(rate)
    found = loop.first_nonfinite(0, 10)
    assert found == (step, pruned.kernels[0].path if "kernel" in name else name)


def test_the_search_begins_at_the_step_that_it_is_told():
    loop, pruned = make_loop(toys.mlp(), keras.optimizers.SGD(0.1))
    pruned.kernels[1].assign(np.full(pruned.kernels[1].shape, np.nan, np.float32))
    assert loop.first_nonfinite(7, 3) == (8, "the loss")


class Root(keras.regularizers.Regularizer):
    """Its gradient at a weight of 0 is infinite."""

    def __call__(self, kernel):
        return tf.reduce_sum(tf.sqrt(kernel))


def test_gradients_of_pruned_weights_do_not_count():
    x = np.ones((1, 2), np.float32)
    loop, pruned = make_loop(
        toys.column(4.0, 0.0, kernel_regularizer=Root()),
        keras.optimizers.SGD(0.1),
        **{"data": (x, x[:, 0]), "batch_size": 1, "loss_fn": toys.total},
    )
    kernel = pruned.kernels[0]
    assert loop.first_nonfinite(0, 1) == (1, f"the gradient of {kernel.path}")
    kernel.assign([[4.0], [0.0]])
    pt.prune(pruned, sparsity=0.5)
    assert loop.first_nonfinite(0, 1) is None


def test_scaled_gradients_that_overflow_do_not_count():
    x = np.full((1, 1), 1e30, np.float32)
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1e-30), initial_scale=1e30
    )
    loop, pruned = make_loop(
        toys.column(1.0),
        optimizer,
        **{"data": (x, x[:, 0]), "batch_size": 1, "loss_fn": toys.total},
    )
    assert loop.first_nonfinite(0, 1) is None
    assert pruned.kernels[0].numpy() == 1


# The batches


@pytest.mark.parametrize(
    ("num_examples", "batch_size"), [(10, 4), (10, 7), (5, 5), (7, 1), (9, 3)]
)
def test_every_example_is_visited_exactly_once_per_epoch(num_examples, batch_size):
    counter = VisitCounter(num_examples, batch_size)
    # The smallest number of steps that ends where an epoch ends.
    num_steps = math.lcm(num_examples, batch_size) // batch_size
    num_epochs = num_steps * batch_size // num_examples
    for first_step in (0, num_steps, 2 * num_steps):
        assert counter.visits(first_step, num_steps) == [num_epochs] * num_examples


def test_a_batch_straddles_two_epochs(counter):
    epoch_0, epoch_1 = (loops.shuffled(10, 5, epoch).numpy() for epoch in (0, 1))
    # Step 2 is at positions 8 to 11.
    rows = [*epoch_0[8:], *epoch_1[:2]]
    expected = np.bincount(rows, minlength=10).tolist()
    assert counter.visits(2, 1) == expected


@modes
def test_batch_depends_on_seed_and_step_only(mode):
    counter = VisitCounter(10, 4, mode=mode, seed=1)
    for seed in (1, 2, 1):
        counter.loop.seed.assign(seed)
        # Forwards, far ahead, beyond 32 bits, back, and back to the first.
        for step in (0, 1, 2, 3, 40, 41, 2**40, 2**40 + 1, 3, 2, 17, 0, 0):
            assert counter.visits(step, 1) == counter.expected(step, 1, seed), step


def test_steps_in_one_call_are_the_steps_of_many_calls(counter):
    together = counter.visits(3, 11)
    apart = [counter.visits(step, 1) for step in range(3, 14)]
    assert together == np.sum(apart, 0).tolist()
    assert together == counter.expected(3, 11, seed=5)


@modes
def test_the_sum_of_the_losses_has_the_same_bits_however_the_steps_are_cut(mode):
    totals = []
    for cuts in ([0, 23], [0, 1, 2, 9, 23], list(range(24))):
        loop, _ = make_loop(toys.mlp(), keras.optimizers.Adam(0.01), mode, seed=3)
        total = 0.5
        for first, end in itertools.pairwise(cuts):
            total = loop.add_losses(total, first, end - first)
        totals.append(float(total))
        assert loop.num_traces == 1
    assert totals[0] > 0.5
    assert totals == totals[:1] * 3


def test_shuffled_is_a_permutation_that_epoch_and_seed_change():
    orders = {
        (seed, epoch): loops.shuffled(50, seed, epoch).numpy().tolist()
        for seed in (0, 1)
        for epoch in (0, 1, 2**33)
    }
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len(set(map(tuple, orders.values()))) == len(orders)
    assert orders[0, 1] == loops.shuffled(50, 0, 1).numpy().tolist()


@modes
def test_splitting_a_run_into_calls_changes_no_bit(mode):
    optimizer = keras.optimizers.Adam(0.01)
    loop, pruned = make_loop(toys.mlp(), optimizer, mode)
    pruned.set_masks(toys.random_masks(pruned))
    state = [*pruned.model.variables, *optimizer.variables]
    start = toys.values(state)
    loop(0, 10)
    whole = toys.bits(state)
    for variable, value in zip(state, start, strict=True):
        variable.assign(value)
    loop(0, 3)
    assert toys.bits(state) != whole
    loop(3, 7)
    assert toys.bits(state) == whole


@pytest.mark.parametrize("mode", ["xla", "graph"])
def test_same_seed_gives_the_same_bits_with_dropout_and_shuffling(mode):
    """F4."""

    def run():
        optimizer = keras.optimizers.Adam(0.01)
        model = toys.mlp()
        model.add(keras.layers.Dropout(0.5, seed=4))
        loop, pruned = make_loop(model, optimizer, mode, seed=3)
        loss = loop(0, 5)
        pt.prune(pruned, rate=0.5)
        return toys.bits([loss, loop(5, 5)], model.variables, optimizer.variables)

    assert run() == run()


IN_A_PROCESS = """
import hashlib, keras, tensorflow as tf
import prunetrain as pt
from tests import toys

tf.config.experimental.enable_op_determinism()
model, optimizer = toys.mlp(), keras.optimizers.Adam(0.01)
model.add(keras.layers.Dropout(0.5, seed=4))
pruned = pt.PrunedModel(model)
x, y = toys.dataset()
loop = pt.make_train_loop(pruned, optimizer, toys.cross_entropy(), x, y, 4)
losses = [loop(0, 5)]
pt.prune(pruned, rate=0.5)
losses.append(loop(5, 5))
state = toys.bits(losses, model.variables, optimizer.variables, pruned.masks)
print("hash", hashlib.sha256(b"".join(state)).hexdigest())
"""


@pytest.mark.slow
def test_same_seed_gives_the_same_bits_in_another_process():
    """F4."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for _ in range(2)
    ]
    assert outputs[0].startswith("hash ")
    assert outputs[0] == outputs[1]


# Masks that change on the way


def every_fourth(step):
    """Due are 3, 7, 11, …"""
    return step + (3 - step) % 4


@modes
def test_changes_follow_the_updates_of_due_steps(mode):
    """Also of a step that is the last of its epoch or dispatch, and of the first."""
    log = tf.Variable(tf.zeros([20, 3]))

    def change(gradients, step, seed):
        assert gradients is None
        visits = tf.reduce_sum(counter.pruned.kernels[0])
        row = tf.stack([1.0, visits, tf.cast(seed, tf.float32)])
        log.assign(tf.tensor_scatter_nd_update(log, [[step]], [row]))

    update = mask_updates.MaskUpdate(every_fourth, change)
    counter = VisitCounter(10, 4, mode=mode, seed=5, mask_update=update)
    for first, end in itertools.pairwise([0, 3, 4, 7, 13, 20]):
        assert counter.visits(first, end - first) == counter.expected(
            first, end - first, seed=5
        )
    # Four examples a step, the due one among them.
    expected = {step: [1, 4 * (step + 1), 5] for step in (3, 7, 11, 15, 19)}
    assert log.numpy().tolist() == [expected.get(step, [0] * 3) for step in range(20)]
    assert counter.loop.num_traces == 1


@modes
def test_changes_replace_the_updates_of_due_steps_if_they_say_so(mode):
    """They are given the gradients, of pruned weights too."""
    seen = tf.Variable(tf.zeros([10, 1]))

    def change(gradients, step, seed):
        assert step.dtype == seed.dtype == tf.int64
        seen.assign_sub(gradients[0])

    update = mask_updates.MaskUpdate(every_fourth, change, replaces_update=True)
    counter = VisitCounter(10, 4, mode=mode, mask_update=update)
    live = np.arange(10)[:, None] % 2 == 0
    counter.pruned.set_masks([live])
    due = np.sum([counter.expected(step, 1) for step in (3, 7, 11, 15, 19)], 0)
    others = np.array(counter.expected(0, 20)) - due
    found = [counter.visits(first, 5) for first in range(0, 20, 5)]
    assert np.sum(found, 0).tolist() == (others * live[:, 0]).tolist()
    assert seen.numpy()[:, 0].tolist() == due.tolist()
    assert counter.loop._optimizer.iterations.numpy() == 20


def test_another_update_of_the_weights_is_made_at_all_steps():
    def make_update(optimizer):
        def update(gradients):
            optimizer.apply([2 * gradients[0]], counter.pruned.trainable_variables)

        return update

    update = mask_updates.MaskUpdate(
        every_fourth, lambda *now: None, make_update=make_update
    )
    counter = VisitCounter(10, 4, mask_update=update)
    visits = np.array(counter.expected(0, 10))
    assert counter.visits(0, 10) == (2 * visits).tolist()
    assert counter.loop.first_nonfinite(10, 5) is None


@pytest.mark.parametrize("replaces", [True, False])
def test_the_search_changes_masks_where_the_loop_does(replaces):
    (kernel,) = (counter := VisitCounter(10, 4)).pruned.kernels
    poison = mask_updates.MaskUpdate(
        every_fourth,
        lambda *now: kernel.assign(np.full([10, 1], np.nan)),
        replaces_update=replaces,
    )
    counter.loop._mask_update = poison
    assert counter.loop.first_nonfinite(4, 10) == (8, kernel.path)


# Exact zeros


@modes
@pytest.mark.parametrize("name", [*toys.OPTIMIZERS, "drift"])
def test_pruned_weights_are_exactly_zero_after_every_step(name, mode):
    """A1, A2: read raw, with optimizer state that was alive when they were pruned."""
    optimizer = {**toys.OPTIMIZERS, **toys.MORE_OPTIMIZERS}[name]()
    loop, pruned = make_loop(toys.mlp(), optimizer, mode)
    for step in range(200):
        masks = toys.values(pruned.masks)
        if step in (50, 120):
            pt.prune(pruned, rate=0.5)
        loop(step, 1)
        pt.testing.assert_masks_hold(pruned, optimizer, previous_masks=masks)
    # 30 to 15 to 7 and 15 to 7 to 3: of 15 and of 7, half rounds up to 8 and to 4.
    assert [layer.kept for layer in pruned.layer_sparsity()] == [7, 3]
    assert np.isfinite(np.concatenate([np.ravel(k) for k in pruned.kernels])).all()


@modes
@pytest.mark.parametrize(
    "option", [{"gradient_accumulation_steps": 2}, {"use_ema": True}]
)
def test_accumulators_and_averages_are_masked(mode, option):
    """A1, A8: the accumulator is half filled when the weights are pruned."""
    optimizer = toys.OPTIMIZERS["momentum"](**option)
    loop, pruned = make_loop(toys.mlp(), optimizer, mode)
    loop(0, 5)
    pt.prune(pruned, rate=0.5)
    for step in range(5, 10):
        loop(step, 1)
        pt.testing.assert_masks_hold(pruned, optimizer)
    if "use_ema" in option:
        optimizer.finalize_variable_values(pruned.trainable_variables)
        pt.testing.assert_masks_hold(pruned, optimizer)


@pytest.mark.parametrize(
    ("mode", "interval", "loss"),
    # The pruned weight drifts by 1 a step from 0 and is the loss: 0, 1, …, 9, or
    # 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, or always 0.
    [
        ("graph", 10, 4.5),
        ("graph", 4, 1.3),
        ("hybrid", 4, 1.3),
        ("xla", 4, 1.3),
        ("graph", 1, 0.0),
    ],
)
def test_masks_are_applied_every_mask_interval_steps(mode, interval, loss):
    example = np.array([[1.0, 0.0]], np.float32)
    loop, pruned = make_loop(
        toys.column(0.0, 0.0),
        toys.Drift(),
        mode,
        batch_size=1,
        data=(example, example),
        loss_fn=toys.total,
        mask_interval=interval,
    )
    pruned.set_masks([np.array([[False], [True]])])
    np.testing.assert_allclose(loop(0, 10), loss, rtol=1e-6)
    assert pruned.kernels[0].numpy().ravel().tolist() == [0, 10]


@pytest.mark.parametrize(
    "name", [name for name in ("adam", "drift", "muon") if name in ALL_OPTIMIZERS]
)
def test_masks_hold_when_a_run_stops_within_a_mask_interval(name):
    """A4."""
    optimizer = {**toys.OPTIMIZERS, **toys.MORE_OPTIMIZERS}[name]()
    loop, pruned = make_loop(toys.mlp(), optimizer, mask_interval=10)
    loop(0, 5)
    pt.prune(pruned, rate=0.5)
    loss = loop(5, 32)
    pt.testing.assert_masks_hold(pruned, optimizer)
    assert np.isfinite(loss)
    assert all(np.isfinite(kernel).all() for kernel in pruned.kernels)


@pytest.mark.parametrize(
    ("policy", "stored", "mode"),
    [
        ("mixed_float16", "float32", "xla"),
        ("mixed_float16", "float32", "hybrid"),
        ("mixed_bfloat16", "float32", "hybrid"),
        ("bfloat16", "bfloat16", "xla"),
        ("float64", "float64", "graph"),
    ],
)
def test_every_precision_trains_with_exact_zeros(policy, stored, mode):
    """H1."""
    # Not Adam: its 1 - 0.999 is 0 in bfloat16, and nothing would move.
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    loop, pruned = make_loop(toys.mlp(dtype=policy), optimizer, mode)
    start = toys.values(pruned.kernels)
    loop(0, 2)
    pt.prune(pruned, rate=0.5)
    for step in range(2, 5):
        assert np.isfinite(loop(step, 1))
        pt.testing.assert_masks_hold(pruned, optimizer)
    for kernel, mask, before in zip(pruned.kernels, pruned.masks, start, strict=True):
        assert kernel.dtype == stored
        assert (kernel.numpy() != before)[mask.numpy()].mean() > 0.5


@pytest.mark.parametrize(
    ("mode", "include"),
    [
        ("xla", ["kernel", "embeddings"]),
        ("graph", ["kernel", "embeddings"]),
        ("hybrid", None),
        ("graph", None),
    ],
)
def test_embeddings_train_pruned_or_not(mode, include):
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(7, 3, name="words"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, name="logits"),
        ]
    )
    pruned = pt.PrunedModel(model, pt.kernels(include=include))
    optimizer = keras.optimizers.Adam(0.01)
    x = np.random.default_rng(0).integers(7, size=(10, 4))
    loop = pt.make_train_loop(
        pruned, optimizer, toys.cross_entropy(), x, x[:, 0] % 3, 4, compile=mode
    )
    before = toys.values(model.weights)
    loop(0, 3)
    pt.prune(pruned, rate=0.5)
    loop(3, 3)
    pt.testing.assert_masks_hold(pruned, optimizer)
    assert len(pruned.kernels) == (2 if include else 1)
    for old, new in zip(before, toys.values(model.weights), strict=True):
        assert not np.array_equal(old, new)


def test_convolutions_with_batch_normalisation_lose_kernels_only():
    """B4: Conv - BN - ReLU - Add; everything but the kernels stays dense."""
    inputs = keras.Input((6, 6, 2))
    x = keras.layers.Conv2D(2, 3, padding="same", name="conv")(inputs)
    x = keras.layers.BatchNormalization(name="bn")(x)
    x = keras.layers.Add()([keras.layers.ReLU()(x), inputs])
    outputs = keras.layers.Dense(3, name="logits")(keras.layers.Flatten()(x))
    rng = np.random.default_rng(0)
    data = rng.normal(size=(8, 6, 6, 2)).astype(np.float32), np.arange(8) % 3
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    loop, pruned = make_loop(keras.Model(inputs, outputs), optimizer, "auto", data=data)
    loop(0, 3)
    pt.prune(pruned, rate=0.5)
    loop(3, 3)
    assert loop.mode == "hybrid"
    pt.testing.assert_masks_hold(pruned, optimizer)
    assert [kernel.path for kernel in pruned.kernels] == [
        "conv/kernel",
        "logits/kernel",
    ]
    kernels = {id(kernel) for kernel in pruned.kernels}
    rest = [w for w in pruned.model.weights if id(w) not in kernels]
    assert len(rest) == 6
    assert all(np.count_nonzero(weight) == np.size(weight) for weight in rest)


def test_frozen_layers_stay_as_they_are():
    """A13."""
    model = toys.mlp()
    model.layers[0].trainable = False
    loop, pruned = make_loop(model, keras.optimizers.Adam(0.01))
    frozen, live = toys.values(model.layers[0].weights), pruned.kernels[0].numpy()
    loop(0, 3)
    pt.prune(pruned, rate=0.5)
    loop(3, 3)
    assert len(pruned.kernels) == 1
    for old, new in zip(frozen, toys.values(model.layers[0].weights), strict=True):
        np.testing.assert_array_equal(old, new)
    assert not np.array_equal(live, pruned.kernels[0].numpy())


# Traces


@modes
def test_loop_traces_once_over_prunes_rewinds_and_new_seeds(mode):
    """H4, J2."""
    optimizer = keras.optimizers.Adam(0.01)
    loop, pruned = make_loop(toys.mlp(), optimizer, mode)
    start = pt.Snapshot(pruned, optimizer)
    for round_number in range(3):
        loop(0, 4)
        loop(np.int64(4), np.int32(3 + round_number))
        loop(tf.constant(9), tf.constant(2, tf.int64))
        pt.prune(pruned, rate=0.2)
        start.restore()
        start.update()
        loop.seed.assign(round_number)
    assert loop.num_traces == 1


@modes
def test_no_step_calls_python(mode):
    """J1: nothing in the compiled program goes through the host's Python or NumPy."""
    loop, _ = make_loop(toys.mlp(), keras.optimizers.Adam(0.01), mode)
    loop(0, 1)
    (traced,) = loop._run._list_all_concrete_functions()
    graph = traced.graph.as_graph_def()
    bodies = [graph.node, *(f.node_def for f in graph.library.function)]
    kinds = {node.op for body in bodies for node in body}
    assert "MatMul" in kinds
    assert not [kind for kind in kinds if "PyFunc" in kind]


@pytest.mark.filterwarnings("ignore:pruning leaves fewer weights than outputs")
def test_twenty_rounds_leave_no_tensor_behind():
    """J2. Counted after each round: tensors that Python holds, and traces."""
    optimizer = keras.optimizers.Adam(0.01)
    loop, pruned = make_loop(toys.mlp((6, 50, 3)), optimizer, "graph")
    start = pt.Snapshot(pruned, optimizer)
    tensors = []
    for _ in range(20):
        loop(0, 3)
        assert pt.prune(pruned, rate=0.2)
        start.restore()
        gc.collect()
        tensors.append(sum(isinstance(x, tf.Tensor) for x in gc.get_objects()))
    assert tensors == tensors[:1] * 20
    assert loop.num_traces == 1


@pytest.mark.parametrize("stream", [False, True])
def test_batches_are_those_of_the_first_steps_before_augmentation(stream):
    """Of 10 examples by 4, so the third goes on in the next epoch."""
    x, y = toys.dataset()
    loop, pruned = make_loop(
        toys.mlp(),
        keras.optimizers.Adam(0.01),
        data=(x, y),
        seed=5,
        stream=stream,
        augment=lambda x, seed: -x,
    )
    before = toys.bits(pruned.model.variables)
    for seed in (5, 2**40):
        loop.seed.assign(seed)
        rows = toys.batch_rows(10, 4, 0, 6, seed)
        found = list(loop.batches(6))
        np.testing.assert_equal([x.numpy() for x, _ in found], x[rows])
        np.testing.assert_equal([y.numpy() for _, y in found], y[rows])
    assert toys.bits(pruned.model.variables) == before
    assert loop.num_traces == 0


FIVE_ROUNDS = """
import pathlib, sys, keras
import prunetrain as pt
from tests import toys

optimizer = keras.optimizers.Adam(0.01)
pruned = pt.PrunedModel(toys.mlp())
x, y = toys.dataset()
loop = pt.make_train_loop(pruned, optimizer, toys.cross_entropy(), x, y, 4)
start = pt.Snapshot(pruned, optimizer)
for _ in range(5):
    loop(0, 3)
    pt.prune(pruned, rate=0.2)
    pt.prune(pruned, rate=0.1, allocation="global")
    start.restore()
    print(len(list(pathlib.Path(sys.argv[1]).glob("*.before_optimizations.txt"))))
"""


@pytest.mark.slow
def test_five_rounds_under_xla_compile_in_the_first_only(tmp_path):
    """H4. XLA dumps every module that it compiles."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": f"--xla_dump_to={tmp_path}",
    }
    output = subprocess.run(
        [sys.executable, "-c", FIVE_ROUNDS, tmp_path],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    compiled = [int(line) for line in output.split()]
    # The loop; selection for each of two kernels, and for the pool.
    assert compiled == [4] * 5


def test_fresh_optimizer_each_round_runs_in_graph_mode():
    """A10: two optimizers and more on one model in one process."""
    model = toys.mlp()
    pruned = pt.PrunedModel(model)
    x, y = toys.dataset()
    optimizers = [keras.optimizers.SGD(0.1, momentum=0.9) for _ in range(3)]
    for optimizer in optimizers:
        loop = pt.make_train_loop(
            pruned, optimizer, toys.cross_entropy(), x, y, 4, compile="graph"
        )
        loop(0, 3)
        pt.prune(pruned, rate=0.3)
    # The first optimizer's momentum dates from before the later prunes.
    for optimizer in optimizers:
        pt.testing.assert_masks_hold(pruned, optimizer)
    assert [int(optimizer.iterations.value) for optimizer in optimizers] == [3, 3, 3]


# Refusals


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        (
            {"batch_size": 8},
            ["`batch_size`", "from 1 to 5 (the examples)", "batch_size=8"],
        ),
        ({"batch_size": 0}, ["`batch_size`", "batch_size=0"]),
        ({"batch_size": -1}, ["`batch_size`", "batch_size=-1"]),
        ({"batch_size": 2.0}, ["`batch_size`", "whole number", "batch_size=2.0"]),
        ({"batch_size": True}, ["`batch_size`", "whole number", "batch_size=True"]),
        ({"mask_interval": 0}, ["`mask_interval`", "mask_interval=0"]),
        ({"compile": "fast"}, ["`compile`", "xla, hybrid, graph", "compile='fast'"]),
        ({"x": np.zeros([0, 6]), "y": np.zeros([0])}, ["`x`", "(0, 6)"]),
        ({"y": np.zeros([4])}, ["`x` and `y`", "(5, 6)", "(4,)"]),
        ({"y": 3}, ["`x` and `y`", "()"]),
    ],
)
def test_loop_refuses_what_it_cannot_run(changes, fragments):
    """C3: a batch larger than the data is refused, never zero steps and a loss of 0."""
    x, y = toys.dataset(5)
    arguments = {"x": x, "y": y, "batch_size": 4, **changes}
    pruned = pt.PrunedModel(toys.mlp())
    with toys.raises(ValueError, *fragments):
        pt.make_train_loop(
            pruned, keras.optimizers.SGD(0.1), toys.cross_entropy(), **arguments
        )


@pytest.mark.parametrize(
    ("changes", "kind", "fragments"),
    [
        ({}, TypeError, ["`mask_update`", "MaskUpdate", "'rigl'"]),
        ({"mask_interval": 2}, ValueError, ["`mask_interval`", "mask_interval=2"]),
    ],
)
def test_what_cannot_change_masks_is_refused(changes, kind, fragments):
    update = mask_updates.MaskUpdate(every_fourth, None) if changes else "rigl"
    with toys.raises(kind, *fragments):
        make_loop(toys.mlp(), keras.optimizers.SGD(0.1), mask_update=update, **changes)


@pytest.mark.parametrize("labels", [[1, 2, 3, 1, 2], [0, 1, -1, 2, 0]])
def test_labels_beyond_the_classes_are_refused_with_their_range(labels):
    """C5: under XLA they would give a loss of NaN without a word."""
    x, _ = toys.dataset(5)
    y = np.array(labels)
    pruned = pt.PrunedModel(toys.mlp())
    fragments = ["`y`", "from 0 to 2", f"labels from {y.min()} to {y.max()}"]
    with toys.raises(ValueError, *fragments):
        pt.make_train_loop(
            pruned, keras.optimizers.SGD(0.1), toys.cross_entropy(), x, y, 4
        )
    with toys.raises(ValueError, *fragments):
        pt.make_eval_loop(pruned, toys.cross_entropy(), x, y[:, None])


def test_labels_of_a_subclassed_model_are_checked_too():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    x, y = toys.dataset(5)
    model = Net()
    model(x)
    with toys.raises(ValueError, "`y`", "from 0 to 2"):
        pt.make_train_loop(
            pt.PrunedModel(model),
            keras.optimizers.SGD(0.1),
            toys.cross_entropy(),
            *(x, (y + 1).astype(np.float32), 4),
        )


def test_labels_mean_what_the_loss_makes_of_them():
    """Ignored classes, and integers that are not classes of the outputs."""
    x, _ = toys.dataset(5)
    ignoring = keras.losses.SparseCategoricalCrossentropy(True, ignore_class=-1)
    for loss_fn, y in (
        (ignoring, np.array([0, 1, -1, 2, 0])),
        (lambda y, outputs: tf.reduce_mean(outputs), np.array([7, 8, 9, 7, 8])),
    ):
        loop = pt.make_train_loop(
            *(pt.PrunedModel(toys.mlp()), keras.optimizers.SGD(0.1), loss_fn),
            *(x, y, 4),
            compile="graph",
        )
        assert np.isfinite(loop(0, 2).numpy())


def test_an_accuracy_of_multi_label_rows_is_refused():
    x, _ = toys.dataset(5)
    loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
    rows = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 1, 1], [1, 1, 1]])
    with toys.raises(ValueError, "`y`", "one-hot"):
        pt.make_eval_loop(pt.PrunedModel(toys.mlp()), loss_fn, x, rows)


@pytest.mark.parametrize("reduction", ["sum", "none", "sum_over_batch_size"])
def test_the_loss_sum_does_not_depend_on_how_the_loss_is_reduced(reduction):
    x, y = toys.dataset(5)
    pruned = pt.PrunedModel(toys.mlp())
    loss_fn = keras.losses.SparseCategoricalCrossentropy(True, reduction=reduction)
    expected = pt.make_eval_loop(pruned, toys.cross_entropy(), x, y)()[0]
    for batch_size in (2, 5):
        loss, _, _ = pt.make_eval_loop(pruned, loss_fn, x, y, batch_size)()
        np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize("loss_fn", ["mse", None, keras.losses.MeanSquaredError])
def test_what_is_no_loss_is_refused(loss_fn):
    pruned, optimizer = pt.PrunedModel(toys.mlp()), keras.optimizers.SGD(0.1)
    x, y = toys.dataset(5)
    for build in (
        lambda: pt.make_train_step(pruned, optimizer, loss_fn),
        lambda: pt.make_train_loop(pruned, optimizer, loss_fn, x, y, 4),
        lambda: pt.make_eval_step(pruned, loss_fn),
        lambda: pt.make_eval_loop(pruned, loss_fn, x, y),
    ):
        with toys.raises(TypeError, "`loss_fn`", "Received: loss_fn="):
            build()


@pytest.mark.parametrize("x", [{"a": 1}, (1, 2), None])
def test_several_inputs_are_sent_to_the_train_step(x):
    with toys.raises(TypeError, "`x`", "one array", "make_train_step"):
        pt.make_eval_loop(pt.PrunedModel(toys.mlp()), toys.cross_entropy(), x, [1])


def test_a_keras_model_where_a_pruned_one_is_needed_is_answered_plainly():
    model, optimizer = toys.mlp(), keras.optimizers.SGD(0.1)
    loss_fn, (x, y) = toys.cross_entropy(), toys.dataset(5)
    for use in (
        lambda: pt.make_train_step(model, optimizer, loss_fn),
        lambda: pt.make_train_loop(model, optimizer, loss_fn, x, y, 4),
        lambda: pt.make_eval_step(model, loss_fn),
        lambda: pt.make_eval_loop(model, loss_fn, x, y),
        lambda: pt.Snapshot(model),
        lambda: pt.prune(model, rate=0.2),
    ):
        with toys.raises(TypeError, "`pruned`", "pt.PrunedModel(model)", "Sequential"):
            use()


def test_ftrl_is_refused_with_a_mask_interval():
    """Its update divides by a slot that is zero where pruned: 0 / 0 in between."""
    with toys.raises(ValueError, "`mask_interval`", "Ftrl", "mask_interval=2"):
        pt.make_train_loop(
            pt.PrunedModel(toys.mlp()),
            keras.optimizers.Ftrl(0.1),
            toys.cross_entropy(),
            *toys.dataset(),
            np.int64(4),
            mask_interval=2,
        )


@pytest.mark.parametrize(
    ("steps", "fragments"),
    [
        ((-1, 2), ["`first_step`", "from 0", "first_step=-1"]),
        ((2.5, 1), ["`first_step`", "whole number", "first_step=2.5"]),
        ((0, 0), ["`num_steps`", "from 1", "num_steps=0"]),
    ],
)
def test_loop_refuses_steps_out_of_range(counter, steps, fragments):
    with toys.raises(ValueError, *fragments):
        counter.loop(*steps)


# Evaluation


def numpy_evaluation(weights, x, y):
    """Mean cross-entropy and accuracy of a linear classifier over all of `x`."""
    logits = x.astype(np.float64) @ weights
    logits -= logits.max(1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    loss = -np.mean(log_probabilities[np.arange(len(y)), y])
    return loss, np.mean(logits.argmax(1) == y)


def evaluation(pruned, x, y, *args, **options):
    """Mean loss and accuracy by the loop, over as many examples as there are."""
    loop = pt.make_eval_loop(pruned, toys.cross_entropy(), x, y, *args, **options)
    loss, correct, count = loop()
    assert count == len(x)
    return loss / len(x), int(correct) / len(x)


@pytest.mark.parametrize(
    ("mode", "batch_size"),
    [("xla", 128), ("hybrid", 128), ("graph", 128), ("graph", 1003), ("graph", 2000)],
)
def test_evaluation_covers_the_last_partial_batch(mode, batch_size):
    """C7."""
    x, y = toys.dataset(1003)
    weights = np.random.default_rng(1).normal(size=(6, 3))
    pruned = pt.PrunedModel(toys.linear(weights))
    loss, accuracy = evaluation(pruned, x, y, batch_size, compile=mode)
    expected_loss, expected_accuracy = numpy_evaluation(weights, x, y)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    assert accuracy == expected_accuracy


def test_constant_predictor_on_ten_balanced_classes_has_accuracy_one_tenth():
    """C6."""
    pruned = pt.PrunedModel(toys.linear(np.zeros([6, 10])))
    x, _ = toys.dataset(50)
    loss, accuracy = evaluation(pruned, x, np.arange(50) % 10, 7)
    assert accuracy == 0.1
    np.testing.assert_allclose(loss, np.log(10), rtol=1e-6)


def test_evaluation_sees_the_masked_weights_of_the_moment():
    pruned = pt.PrunedModel(toys.linear(np.eye(3)))
    evaluate = pt.make_eval_loop(
        pruned, toys.cross_entropy(), np.eye(3, dtype=np.float32), np.arange(3)
    )
    assert [int(evaluate()[1]), int(evaluate()[2])] == [3, 3]
    pruned.set_masks([np.diag([True, True, False]) | ~np.eye(3, dtype=bool)])
    # Equal scores go to class 0, so the third example is lost.
    assert int(evaluate()[1]) == 2
    pruned.kernels[0].assign(np.eye(3))
    assert int(evaluate()[1]) == 2


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        ({"y": np.zeros([4])}, ["`x` and `y`", "(5, 6)", "(4,)"]),
        ({"x": np.zeros([0, 6]), "y": np.zeros([0])}, ["`x`", "(0, 6)"]),
        ({"batch_size": 0}, ["`batch_size`", "batch_size=0"]),
        ({"batch_size": -3}, ["`batch_size`", "batch_size=-3"]),
        ({"compile": "fast"}, ["`compile`", "compile='fast'"]),
    ],
)
def test_evaluation_refuses_what_it_cannot_run(changes, fragments):
    x, y = toys.dataset(5)
    arguments = {"x": x, "y": y, **changes}
    with toys.raises(ValueError, *fragments):
        pt.make_eval_loop(pt.PrunedModel(toys.mlp()), toys.cross_entropy(), **arguments)


def test_many_loops_and_snapshots_in_one_process_are_no_reason_to_warn(caplog):
    for _ in range(7):
        loop, pruned = make_loop(toys.mlp(), keras.optimizers.SGD(0.1))
        loop(0, 2)
        pt.make_eval_loop(pruned, toys.cross_entropy(), *toys.dataset())()
        pt.Snapshot(pruned).restore()
    assert "retracing" not in caplog.text
