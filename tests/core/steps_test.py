"""The step: its mathematics, exact zeros under every optimizer, the evaluation step."""

import math

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.core import steps
from tests import toys

ALL_OPTIMIZERS = {**toys.OPTIMIZERS, **toys.MORE_OPTIMIZERS}
MIXING = [name for name in ("muon",) if name in ALL_OPTIMIZERS]


def make_step(model, optimizer, loss_fn=None, mask_interval=1, mode="graph"):
    """A training step, and the pruned model that it trains."""
    pruned = pt.PrunedModel(model)
    step = pt.make_train_step(
        pruned, optimizer, loss_fn or toys.cross_entropy(), mask_interval, mode
    )
    return step, pruned


def linear_step(weights, mask, optimizer, inputs=None, **dense):
    """One step on a column of weights whose gradients are `inputs`, by default ones.

    Returns:
        The loss, and the weights after the step as a list.
    """
    step, pruned = make_step(toys.column(*weights, **dense), optimizer, toys.total)
    pruned.set_masks([np.reshape(np.array(mask, bool), [-1, 1])])
    inputs = np.ones([1, len(weights)]) if inputs is None else np.array([inputs])
    loss = float(step(inputs.astype(np.float32), np.zeros([1, 1], np.float32)))
    return loss, pruned.kernels[0].numpy().ravel().tolist()


def file_arrays(path, shape):
    """All arrays of that shape in an HDF5 file, read raw."""
    found = []

    def collect(name, item):
        del name
        if isinstance(item, h5py.Dataset) and item.shape == shape:
            found.append(item[()])

    with h5py.File(path) as file:
        file.visititems(collect)
    return found


# Mathematics


@pytest.mark.parametrize("mode", toys.MODES)
def test_step_agrees_with_numpy_masked_adam(mode):
    x, y = toys.dataset()
    model = toys.mlp()
    step, pruned = make_step(model, keras.optimizers.Adam(0.01), mode=mode)
    reference = toys.MaskedAdam(toys.values(model.weights), 0.01)
    rows = toys.batch_rows(len(x), 4, 0, 20)
    for number, row in enumerate(rows):
        if number in (8, 14):
            pt.prune(pruned, rate=0.4)
            reference.prune(0.4)
        loss = step(x[row], y[row])
        np.testing.assert_allclose(loss, reference.step(x[row], y[row]), rtol=1e-5)
    for mask, expected in zip(pruned.masks, reference.masks[::2], strict=True):
        np.testing.assert_array_equal(mask, expected)
    for weight, expected in zip(model.weights, reference.weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-6)


def test_live_zeros_are_trained():
    """A5: a live zero is no pruned weight."""
    _, weights = linear_step(
        [-1, 1e-9, 0.5, 0], [1, 1, 1, 1], keras.optimizers.SGD(0.1)
    )
    np.testing.assert_allclose(weights, [-1.1, -0.1, 0.4, -0.1], rtol=1e-6)


def test_pruned_weights_neither_act_nor_move():
    loss, weights = linear_step([1, 2, 4], [1, 0, 1], keras.optimizers.SGD(0.5))
    assert loss == 5
    assert weights == [0.5, 0, 3.5]


@pytest.mark.parametrize(
    "clipping", [{"global_clipnorm": 1.0}, {"clipnorm": 1.0}, {"clipvalue": 1.0}]
)
def test_gradients_are_masked_before_they_are_clipped(clipping):
    """A14: the pruned weight's gradient of 1000 takes nothing from the live one's 1."""
    optimizer = keras.optimizers.SGD(1.0, **clipping)
    _, weights = linear_step([0, 5], [0, 1], optimizer, inputs=[1000, 1])
    assert weights == [0, 4]


def test_regularisers_shrink_live_weights_and_count_in_the_loss():
    """A12: L2 of 10, no gradient from the data."""
    loss, weights = linear_step(
        [3, 2],
        [0, 1],
        keras.optimizers.SGD(0.01),
        inputs=[0, 0],
        kernel_regularizer=keras.regularizers.L2(10.0),
    )
    # 10 · 2² = 40, and 2 - 0.01 · 2 · 10 · 2 = 1.6.
    np.testing.assert_allclose(loss, 40, rtol=1e-6)
    np.testing.assert_allclose(weights, [0, 1.6], rtol=1e-6)


def test_activity_regularisers_count_once_per_step_and_per_trace():
    model = toys.column(1, 1, activity_regularizer=keras.regularizers.L1(0.5))
    step, _ = make_step(model, keras.optimizers.SGD(0.0), lambda y, outputs: 0.0 * y)
    for batch in (1, 2, 1):
        x = np.ones([batch, 2], np.float32)
        loss = step(x, np.zeros(batch, np.float32))
        # |1 + 1| an example; whether it is averaged over the batch is Keras's affair.
        model(x)
        (expected,) = model.losses
        assert float(expected) in (1.0, batch)
        np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "loss_fn",
    [
        toys.cross_entropy(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none"),
        lambda y, outputs: tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs),
    ],
)
def test_losses_per_example_are_averaged(loss_fn):
    x, y = toys.dataset()
    step, _ = make_step(
        toys.linear(np.zeros([6, 3])), keras.optimizers.SGD(0.1), loss_fn
    )
    loss = step(x, y)
    assert loss.dtype == tf.float32
    np.testing.assert_allclose(loss, np.log(3), rtol=1e-6)


@pytest.mark.parametrize(
    ("constraint", "lowest", "highest"),
    [
        (keras.constraints.MaxNorm(0.5), -0.5, 0.5),
        # Adversarial: it moves pruned weights off zero.
        (toys.Repellent(), 1.0, np.inf),
    ],
)
def test_constraints_of_the_layer_are_honoured(constraint, lowest, highest):
    """A11."""
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    model = toys.mlp(kernel_constraint=constraint)
    step, pruned = make_step(model, optimizer)
    pruned.set_masks(toys.random_masks(pruned))
    x, y = toys.dataset()
    for _ in range(5):
        step(x, y)
        pt.testing.assert_masks_hold(pruned, optimizer)
        for kernel, mask in zip(pruned.kernels, pruned.masks, strict=True):
            live = kernel.numpy()[mask.numpy()]
            assert lowest - 1e-6 <= live.min() <= live.max() <= highest + 1e-6


def test_pruning_nothing_gives_the_curve_of_plain_keras_training():
    """F5."""
    x, y = toys.dataset(20)
    plain, model = toys.mlp(), toys.mlp()
    plain.compile(keras.optimizers.Adam(0.01), toys.cross_entropy(), jit_compile=False)
    step, pruned = make_step(model, keras.optimizers.Adam(0.01))
    for row in toys.batch_rows(20, 8, 0, 20):
        expected = plain.train_on_batch(x[row], y[row])
        # Keras reports a running mean.
        plain.reset_metrics()
        np.testing.assert_allclose(step(x[row], y[row]), expected, rtol=1e-5)
    assert pruned.sparsity() == 0
    for ours, theirs in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    "policy", ["mixed_float16", "mixed_bfloat16", "bfloat16", "float64"]
)
def test_every_precision_takes_the_step_of_float32(policy):
    """H2: a loss scaled by 2^15 and not scaled back, or the reverse, would show."""

    def move(dtype):
        optimizer = keras.optimizers.SGD(1.0)
        if dtype == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model = toys.mlp(dtype=dtype)
        # Each type draws initial values of its own.
        model.set_weights(toys.mlp().get_weights())
        step, pruned = make_step(model, optimizer)
        before = toys.values(pruned.kernels)
        loss = step(*toys.dataset())
        after = toys.values(pruned.kernels)
        moves = [
            np.float64(new) - np.float64(old)
            for new, old in zip(after, before, strict=True)
        ]
        return loss, moves

    loss, expected = move("float32")
    found_loss, found = move(policy)
    np.testing.assert_allclose(found_loss, loss, rtol=1e-2)
    for moved, full in zip(found, expected, strict=True):
        # Of weights stored in bfloat16, each move is rounded to 1/256 of the weight.
        scale = 1 if policy == "bfloat16" else np.abs(full).max()
        np.testing.assert_allclose(moved, full, atol=1e-2 * scale)
        assert np.abs(full).max() > 0.02


def test_dropout_acts_in_training_and_not_in_evaluation():
    model = toys.mlp()
    model.add(keras.layers.Dropout(0.9, seed=0))
    pruned = pt.PrunedModel(model)
    loss_fn = toys.cross_entropy()
    step = pt.make_train_step(pruned, keras.optimizers.SGD(0.0), loss_fn, 1, "graph")
    evaluate = pt.make_eval_step(pruned, loss_fn, "graph")
    x, y = toys.dataset()
    assert len({float(step(x, y)) for _ in range(3)}) == 3
    assert len({float(evaluate(x, y)[0]) for _ in range(3)}) == 1


# Exact zeros


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_momentum": 0.5}],
    ids=["plain", "accumulation", "ema"],
)
def test_pruned_weights_stay_zero_with_live_optimizer_state(name, options):
    """A1, A2: after each step, read raw; the 5 steps half fill an accumulator."""
    optimizer = ALL_OPTIMIZERS[name](**options)
    step, pruned = make_step(toys.mlp(), optimizer)
    x, y = toys.dataset()
    for _ in range(5):
        step(x, y)
    pt.prune(pruned, rate=0.5)
    # Adafactor rebuilds its second moments from sums over rows and columns: those of
    # pruned weights are not zero, but only scale an update that is.
    slots_of = None if name == "adafactor" else optimizer
    for _ in range(5):
        step(x, y)
        pt.testing.assert_masks_hold(pruned, slots_of)
    for kernel, mask in zip(pruned.kernels, pruned.masks, strict=True):
        live = kernel.numpy()[mask.numpy()]
        assert np.isfinite(live).all()
        assert np.count_nonzero(live) == live.size


@pytest.mark.parametrize("name", [*toys.OPTIMIZERS, *MIXING, "drift"])
def test_averaged_weights_are_masked_too(name):
    """A8."""
    optimizer = ALL_OPTIMIZERS[name](use_ema=True, ema_momentum=0.9)
    step, pruned = make_step(toys.mlp(), optimizer)
    x, y = toys.dataset()
    for _ in range(3):
        step(x, y)
    pt.prune(pruned, rate=0.5)
    for _ in range(3):
        step(x, y)
    pt.testing.assert_masks_hold(pruned, optimizer)
    before = toys.values(pruned.kernels)
    optimizer.finalize_variable_values(pruned.trainable_variables)
    pt.testing.assert_masks_hold(pruned, optimizer)
    assert not np.array_equal(before[0], pruned.kernels[0].numpy())


def test_averaged_weights_are_masked_under_loss_scaling():
    """A8: the averages are the inner optimizer's."""
    inner = toys.Drift(use_ema=True)
    step, pruned = make_step(toys.mlp(), keras.optimizers.LossScaleOptimizer(inner))
    pruned.set_masks(toys.random_masks(pruned))
    step(*toys.dataset())
    pt.testing.assert_masks_hold(pruned, inner)
    inner.finalize_variable_values(pruned.trainable_variables)
    pt.testing.assert_masks_hold(pruned)


def test_masks_are_applied_every_mask_interval_steps():
    step, pruned = make_step(
        toys.column(0, 0), toys.Drift(), toys.total, mask_interval=10
    )
    pruned.set_masks([np.array([[False], [True]])])
    x, y = np.ones([1, 2], np.float32), np.zeros([1, 1], np.float32)
    drifted = []
    for _ in range(37):
        step(x, y)
        drifted.append(pruned.kernels[0].numpy()[0, 0])
    assert drifted == [(number + 1) % 10 for number in range(37)]
    assert pruned.kernels[0].numpy().ravel().tolist() == [7, 37]


def test_what_is_evaluated_within_a_mask_interval_is_the_pruned_network():
    """A4: at step 37 of an interval of 10."""
    step, pruned = make_step(toys.linear(np.eye(3)), toys.Drift(), mask_interval=10)
    pruned.set_masks([np.diag([1, 1, 0]) | (1 - np.eye(3, dtype=int))])
    evaluate = pt.make_eval_step(pruned, toys.cross_entropy(), "graph")
    x, y = np.eye(3, dtype=np.float32), np.arange(3)
    for _ in range(37):
        step(x, y)
    assert pruned.kernels[0].numpy()[2, 2] == 7
    _, correct, _ = evaluate(x, y)
    pt.testing.assert_masks_hold(pruned)
    # The third example's own score is pruned: 0 against 37.
    assert int(correct) == 2


@pytest.mark.parametrize("name", toys.OPTIMIZERS)
def test_pruned_weights_stay_zero_within_a_mask_interval(name):
    """Their gradients and slots are zero, so nothing pushes them."""
    optimizer = ALL_OPTIMIZERS[name]()
    step, pruned = make_step(toys.mlp(), optimizer, mask_interval=1000)
    x, y = toys.dataset()
    for _ in range(5):
        step(x, y)
    pt.prune(pruned, rate=0.5)
    for _ in range(5):
        step(x, y)
        pt.testing.assert_masks_hold(pruned, optimizer)


@pytest.mark.parametrize("name", ["momentum", "drift"])
def test_saved_weights_are_masked_right_after_a_step(name, tmp_path):
    """A3: read raw from the file."""
    step, pruned = make_step(toys.mlp(), ALL_OPTIMIZERS[name]())
    x, y = toys.dataset()
    step(x, y)
    pt.prune(pruned, rate=0.5)
    step(x, y)
    pruned.model.save_weights(tmp_path / "saved.weights.h5")
    for kernel, mask in zip(pruned.kernels, pruned.masks, strict=True):
        (saved,) = file_arrays(tmp_path / "saved.weights.h5", tuple(kernel.shape))
        assert (saved[~mask.numpy()] == 0).all()
        assert np.count_nonzero(saved) == np.count_nonzero(mask)


def test_a_kernel_used_twice_is_pruned_once():
    """B7: a siamese network."""
    shared = keras.layers.Dense(3, name="shared")
    left, right = keras.Input((6,)), keras.Input((6,))
    outputs = keras.layers.Subtract()([shared(left), shared(right)])
    optimizer = keras.optimizers.Adam(0.01)
    step, pruned = make_step(keras.Model([left, right], outputs), optimizer)
    x, y = toys.dataset()
    step((x, x[::-1]), y)
    assert pt.prune(pruned, rate=0.5) == 9
    step((x, x[::-1]), y)
    pt.testing.assert_masks_hold(pruned, optimizer)
    assert [layer.total for layer in pruned.layer_sparsity()] == [18]


def test_layers_without_bias_or_without_weights_are_no_obstacle():
    """B8."""
    model = keras.Sequential(
        [
            keras.Input((3, 2)),
            keras.layers.Rescaling(0.5),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.1, seed=0),
            keras.layers.Dense(3, use_bias=False),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01)
    step, pruned = make_step(model, optimizer)
    x, y = toys.dataset()
    x = x.reshape(-1, 3, 2)
    step(x, y)
    pt.prune(pruned, rate=0.5)
    step(x, y)
    pt.testing.assert_masks_hold(pruned, optimizer)


# Traces and modes


def test_a_smaller_last_batch_costs_one_trace_and_counts_by_example():
    """C4: 20 examples in batches of 8, 3 epochs."""
    x, y = toys.dataset(20)
    batches = [(x[first : first + 8], y[first : first + 8]) for first in (0, 8, 16)]
    step, pruned = make_step(toys.mlp(), keras.optimizers.SGD(0.1))
    evaluate = pt.make_eval_step(pruned, toys.cross_entropy(), "graph")
    for _ in range(3):
        for batch in batches:
            step(*batch)
        pt.prune(pruned, rate=0.2)
        sums = np.sum([[float(value) for value in evaluate(*b)] for b in batches], 0)
    assert step.experimental_get_tracing_count() == 2
    assert evaluate.experimental_get_tracing_count() == 2
    np.testing.assert_allclose(sums, evaluate(x, y), rtol=1e-5)
    assert sums[2] == 20


def test_pruning_and_rewinding_do_not_retrace_the_step():
    optimizer = keras.optimizers.Adam(0.01)
    step, pruned = make_step(toys.mlp(), optimizer)
    start = pt.Snapshot(pruned, optimizer)
    x, y = toys.dataset()
    for _ in range(3):
        step(x, y)
        pt.prune(pruned, rate=0.3)
        start.restore()
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("mode", toys.MODES)
def test_a_named_mode_is_taken(mode):
    assert steps.pick_mode(mode, toys.mlp()) == mode


CONVOLUTIONS = {
    "Conv1D": (lambda: keras.layers.Conv1D(2, 3), (8, 2)),
    "Conv2DTranspose": (lambda: keras.layers.Conv2DTranspose(2, 3), (6, 6, 2)),
    "DepthwiseConv2D": (lambda: keras.layers.DepthwiseConv2D(3), (6, 6, 2)),
    "SeparableConv2D": (lambda: keras.layers.SeparableConv2D(2, 3), (6, 6, 2)),
    "nested": (
        lambda: keras.Sequential([keras.layers.Conv2D(2, 3)]),
        (6, 6, 2),
    ),
    "wrapped": (
        lambda: keras.layers.TimeDistributed(keras.layers.Conv1D(2, 3)),
        (2, 8, 2),
    ),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_auto_runs_convolutions_in_hybrid_mode_on_the_cpu(kind):
    make_layer, shape = CONVOLUTIONS[kind]
    model = keras.Sequential([keras.Input(shape), make_layer()])
    assert steps.pick_mode("auto", model) == "hybrid"
    assert steps.pick_mode("auto", toys.mlp()) == "xla"


# Refusals


@pytest.mark.parametrize(
    ("changes", "kind", "fragments"),
    [
        ({"compile": "jit"}, ValueError, ["`compile`", "graph", "compile='jit'"]),
        ({"compile": None}, ValueError, ["`compile`", "compile=None"]),
        ({"mask_interval": 0}, ValueError, ["`mask_interval`", "mask_interval=0"]),
        ({"mask_interval": -2}, ValueError, ["`mask_interval`", "mask_interval=-2"]),
        ({"mask_interval": 1.5}, ValueError, ["`mask_interval`", "mask_interval=1.5"]),
        (
            {"mask_interval": True},
            ValueError,
            ["`mask_interval`", "whole number", "mask_interval=True"],
        ),
        ({"optimizer": "adam"}, TypeError, ["`optimizer`", "Keras 3", "str"]),
    ],
)
def test_step_refuses_what_it_cannot_run(changes, kind, fragments):
    arguments = {
        "optimizer": keras.optimizers.SGD(0.1),
        "loss_fn": toys.cross_entropy(),
        **changes,
    }
    with toys.raises(kind, *fragments):
        pt.make_train_step(pt.PrunedModel(toys.mlp()), **arguments)


# Evaluation


@pytest.fixture(scope="module")
def classifier():
    """Ten classes; example i is of class i and scored right for all but the first."""
    scores = np.eye(10, dtype=np.float32)
    scores[0] = scores[1]
    return pt.PrunedModel(toys.linear(scores)), np.eye(10, dtype=np.float32)


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(10),
        np.arange(10)[:, None],
        np.arange(10, dtype=np.uint8),
        np.arange(10, dtype=np.float32),
        np.eye(10, dtype=np.float32),
        np.eye(10, dtype=np.int32),
    ],
    ids=lambda labels: f"{labels.dtype}{labels.shape}",
)
def test_labels_of_every_form_give_the_same_accuracy(classifier, labels):
    """C5."""
    pruned, x = classifier
    one_hot = labels.shape == (10, 10)
    loss_fn = (
        keras.losses.CategoricalCrossentropy(from_logits=True)
        if one_hot
        else toys.cross_entropy()
    )
    loss, correct, count = pt.make_eval_step(pruned, loss_fn, "graph")(x, labels)
    assert [int(correct), int(count)] == [9, 10]
    # Nine right, by log(e + 9) - 1 each, one wrong by log(e + 9).
    np.testing.assert_allclose(loss, 10 * np.log(np.e + 9) - 9, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [128, 1003])
def test_evaluation_in_batches_equals_numpy_over_all_examples(batch_size):
    """C7."""
    x, y = toys.dataset(1003)
    weights = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    pruned = pt.PrunedModel(toys.linear(weights))
    evaluate = pt.make_eval_step(pruned, toys.cross_entropy(), "graph")
    batches = [
        evaluate(x[first : first + batch_size], y[first : first + batch_size])
        for first in range(0, 1003, batch_size)
    ]
    loss, correct, count = (
        sum(map(float, sums)) for sums in zip(*batches, strict=True)
    )
    logits = (x @ weights).astype(np.float64)
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(1003), y]
    np.testing.assert_allclose(loss, expected.sum(), rtol=1e-5)
    assert (correct, count) == (np.sum(logits.argmax(1) == y), 1003)


def test_regularisers_are_no_part_of_the_evaluated_loss():
    model = toys.linear(np.zeros([6, 3]), kernel_regularizer=keras.regularizers.L2(1.0))
    model.set_weights([np.ones([6, 3])])
    x, y = toys.dataset()
    evaluate = pt.make_eval_step(pt.PrunedModel(model), toys.cross_entropy(), "graph")
    np.testing.assert_allclose(evaluate(x, y)[0], 10 * np.log(3), rtol=1e-5)


@pytest.mark.parametrize("shape", [(1,), (3, 1), (1, 3)])
def test_evaluation_needs_class_scores(shape):
    """The index of the one highest score among one tells nothing."""
    model = toys.mlp((6, math.prod(shape)))
    model.add(keras.layers.Reshape(shape))
    x, y = toys.dataset()
    evaluate = pt.make_eval_step(pt.PrunedModel(model), toys.total, "graph")
    received = f"outputs of shape {(10, *shape)}"
    with toys.raises(ValueError, "class scores [batch, classes]", received):
        evaluate(x, y)


def test_a_model_of_two_outputs_is_refused_by_the_evaluation():
    inputs = keras.Input((6,))
    heads = [keras.layers.Dense(3)(inputs), keras.layers.Dense(3)(inputs)]
    pruned = pt.PrunedModel(keras.Model(inputs, heads))
    evaluate = pt.make_eval_step(pruned, toys.cross_entropy(), compile="graph")
    with toys.raises(ValueError, "class scores", "outputs of shape None (list)"):
        evaluate(*toys.dataset())
