"""The wrapper: what it accepts, masks in and out, slots, counts, constraints."""

import gc
import types
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from tests import toys


@pytest.fixture
def pruned():
    """Kernels of 6 × 5 and 5 × 3, nothing pruned."""
    return pt.PrunedModel(toys.mlp())


def ones(pruned, dtype=bool):
    return [np.ones(kernel.shape, dtype) for kernel in pruned.kernels]


def column_of(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)[:, None]


def flat(variable):
    return variable.numpy().ravel().tolist()


# Construction


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
def test_twenty_million_and_one_weights_are_counted_to_the_unit(policy):
    """float32 stops counting at 2^24, half precision far earlier."""
    total = 20_000_001
    layers = [keras.Input([total]), keras.layers.Dense(1, dtype=policy)]
    pruned = pt.PrunedModel(keras.Sequential(layers))
    mask = np.ones([total, 1], bool)
    mask[[0, 5, total - 1]] = False
    pruned.set_masks([mask])
    (layer,) = pruned.layer_sparsity()
    assert (layer.kept, layer.total) == (total - 3, total)
    assert pruned.sparsity() == 3 / total


def test_wrapping_and_pruning_nothing_changes_no_output_bit():
    """B14."""
    model = toys.mlp()
    x, _ = toys.dataset()
    expected = model(x).numpy()
    pruned = pt.PrunedModel(model)
    pruned.apply_masks()
    pruned.set_masks(ones(pruned))
    assert pruned(x).numpy().tobytes() == expected.tobytes()
    assert pruned.model is model
    assert pruned.model.predict(x, verbose=0).tobytes() == expected.tobytes()


def test_kernels_and_masks_are_aligned_and_start_full(pruned):
    assert [k.path for k in pruned.kernels] == [
        "net/dense_1/kernel",
        "net/dense_2/kernel",
    ]
    for kernel, mask in zip(pruned.kernels, pruned.masks, strict=True):
        assert mask.shape == kernel.shape
        assert mask.dtype == tf.bool
        assert not mask.trainable
        assert mask.numpy().all()
    assert isinstance(pruned.kernels, tuple)
    assert isinstance(pruned.masks, tuple)
    ids = [id(v) for v in pruned.model.trainable_variables]
    assert [id(v) for v in pruned.trainable_variables] == ids


def test_masks_are_part_of_a_checkpoint(pruned, tmp_path):
    """E1."""
    pt.prune(pruned, rate=0.5)
    path = tf.train.Checkpoint(pruned=pruned).write(str(tmp_path / "checkpoint"))
    other = pt.PrunedModel(toys.mlp(seed=9))
    tf.train.Checkpoint(pruned=other).read(path).assert_consumed()
    assert toys.bits(other.masks) == toys.bits(pruned.masks)
    assert toys.bits(other.kernels) == toys.bits(pruned.kernels)
    assert other.sparsity() == pruned.sparsity() > 0


@pytest.mark.parametrize("before", [True, False])
def test_weights_loaded_before_or_after_wrapping_are_masked(tmp_path, before):
    """E5."""
    toys.mlp(seed=9).save_weights(tmp_path / "dense.weights.h5")
    model = toys.mlp()
    if before:
        model.load_weights(tmp_path / "dense.weights.h5")
    pruned = pt.PrunedModel(model)
    pruned.set_masks(toys.random_masks(pruned))
    if not before:
        model.load_weights(tmp_path / "dense.weights.h5")
        pruned.apply_masks()
    pt.testing.assert_masks_hold(pruned)
    for kernel, mask, dense in zip(
        pruned.kernels, pruned.masks, toys.mlp(seed=9).weights[::2], strict=True
    ):
        np.testing.assert_array_equal(kernel, np.where(mask, dense, 0))


def test_tf_keras_of_tensorflow_is_the_same_keras():
    """B9."""
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
    assert pt.PrunedModel(model).kernels[0] is model.layers[0].kernel


def legacy_model():
    """What a model of the tf_keras package looks like from outside."""
    base = type("Model", (), {"__module__": "tf_keras.src.engine.training"})
    return type("MyModel", (base,), {"__module__": "user.code"})()


def test_legacy_tf_keras_models_are_refused_with_the_remedy():
    """B9."""
    with toys.raises(TypeError, "`model`", "legacy tf_keras", "import keras"):
        pt.PrunedModel(legacy_model())


@pytest.mark.parametrize(
    ("received", "name"),
    [
        (None, "NoneType"),
        ("model.keras", "str"),
        (types.ModuleType("model"), "module"),
        (keras.layers.Dense(3), "Dense"),
    ],
)
def test_what_is_no_keras_model_is_refused(received, name):
    with toys.raises(TypeError, "`model` must be a Keras 3 model", f"{name}."):
        pt.PrunedModel(received)


def test_wrapping_twice_is_refused(pruned):
    """B10."""
    with toys.raises(TypeError, "`model`", "already has masks", "`.model`"):
        pt.PrunedModel(pruned)


def test_models_without_weights_yet_are_refused_with_the_remedy():
    """B3."""
    model = keras.Sequential([keras.layers.Dense(3)], name="shapeless")
    with toys.raises(ValueError, "must be built", "'shapeless'", "keras.Input(shape="):
        pt.PrunedModel(model)
    model(np.zeros([1, 2]))
    assert pt.PrunedModel(model).kernels[0].shape == (2, 3)


def test_models_with_nothing_to_prune_are_refused_with_the_reasons():
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.BatchNormalization(name="bn")], name="net"
    )
    fragments = ["at least one prunable", "'net'", "net/bn/gamma (gamma: biases and"]
    with toys.raises(ValueError, *fragments):
        pt.PrunedModel(model)


def test_a_rule_that_selects_nothing_is_refused():
    with toys.raises(ValueError, "at least one prunable", "excluded by 'dense'"):
        pt.PrunedModel(toys.mlp(), pt.kernels(exclude="dense"))


def test_excluded_layers_are_never_touched():
    """B13: layer A of 100 weights excluded, 20 % globally are 20 of layer B's 100."""
    rng = np.random.default_rng(0)
    model = toys.linear(rng.normal(size=(10, 10)), rng.normal(size=(10, 10)))
    pruned = pt.PrunedModel(model, pt.kernels(exclude="dense_1"))
    assert pt.prune(pruned, rate=0.2, allocation="global") == 20
    zeros = [np.sum(weight == 0) for weight in toys.values(model.weights)]
    assert zeros == [0, 20]


def test_a_user_s_own_rule_decides():
    def first_only(model):
        choices = pt.kernels()(model)
        return choices[:1] + [
            type(c)(c.variable, False, "not the first") for c in choices[1:]
        ]

    pruned = pt.PrunedModel(toys.mlp(), first_only)
    assert [kernel.path for kernel in pruned.kernels] == ["net/dense_1/kernel"]
    assert "not the first" in pruned.summary()


# Gradients and weights


def test_gradients_of_pruned_weights_are_zero_and_none_passes_through():
    pruned = pt.PrunedModel(toys.mlp((2, 2, 1)))
    pruned.set_masks([np.array([[1, 0], [0, 1]]), np.array([[0], [1]])])
    nan = np.float32(np.nan)
    gradients = [
        tf.constant([[1.0, nan], [-np.inf, -4.0]]),
        None,
        tf.constant([[-5.0], [6.0]]),
        tf.constant([7.0]),
    ]
    found = pruned.mask_gradients(gradients)
    assert found[1] is None
    assert [g.numpy().tolist() for g in found if g is not None] == [
        [[1, 0], [0, -4]],
        [[0], [6]],
        [7],
    ]
    # A product with the mask would leave -0.0 behind.
    assert not np.signbit(found[2].numpy()[0, 0])


def test_sparse_gradients_of_embeddings_are_masked():
    model = keras.Sequential(
        [keras.Input((2,), dtype="int32"), keras.layers.Embedding(3, 2, name="words")]
    )
    pruned = pt.PrunedModel(model, pt.kernels(include="embeddings"))
    pruned.set_masks([np.array([[1, 0], [1, 1], [0, 0]])])
    # Row 0 occurs twice: its gradients add up.
    gradient = tf.IndexedSlices(
        tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        tf.constant([0, 2, 0]),
        tf.constant([3, 2]),
    )
    (found,) = pruned.mask_gradients([gradient])
    assert tf.convert_to_tensor(found).numpy().tolist() == [[6, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("count", [0, 3, 5])
def test_gradients_must_be_aligned(pruned, count):
    with toys.raises(ValueError, "`gradients`", "4 of them", f"{count} gradients"):
        pruned.mask_gradients([None] * count)


@pytest.mark.parametrize("value", [-3.0, -0.0, np.nan, np.inf])
def test_applying_masks_gives_positive_zero_whatever_stood_there(value):
    pruned = pt.PrunedModel(toys.column(1, 2))
    pruned.set_masks([column_of(0, 1)])
    pruned.kernels[0].assign(column_of(value, 5))
    pruned.apply_masks()
    pt.testing.assert_masks_hold(pruned)
    assert flat(pruned.kernels[0]) == [0, 5]


def test_masks_can_be_applied_in_a_function_and_in_a_keras_callback(pruned):
    pruned.set_masks(toys.random_masks(pruned))
    dense = toys.values(toys.mlp(seed=5).weights)
    pruned.model.set_weights(dense)
    tf.function(pruned.apply_masks)()
    pt.testing.assert_masks_hold(pruned)
    held = []

    def hold(batch, logs):
        del batch, logs
        pruned.apply_masks()
        pt.testing.assert_masks_hold(pruned)
        held.append(True)

    pruned.model.compile("adam", toys.cross_entropy(), jit_compile=False)
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=hold)
    x, y = toys.dataset()
    pruned.model.fit(x, y, 5, epochs=2, verbose=0, callbacks=[callback])
    assert len(held) == 4


# Setting masks


@pytest.mark.parametrize(
    "masks",
    [
        [column_of(1, 0, 1, dtype=bool)],
        (column_of(1, 0, 1, dtype=np.uint8),),
        [column_of(1, 0, 1)],
        [tf.constant([[1], [0], [1]])],
        [[[True], [False], [True]]],
        {"net/dense_1/kernel": column_of(1, 0, 1)},
    ],
)
def test_masks_of_every_form_are_accepted(masks):
    pruned = pt.PrunedModel(toys.column(5, 6, 7))
    pruned.set_masks(masks)
    assert flat(pruned.masks[0]) == [True, False, True]
    assert flat(pruned.kernels[0]) == [5, 0, 7]


def test_masks_by_path_go_to_their_kernels(pruned):
    first, second = toys.random_masks(pruned)
    pruned.set_masks({"net/dense_2/kernel": second, "net/dense_1/kernel": first})
    np.testing.assert_array_equal(pruned.masks[0], first)
    np.testing.assert_array_equal(pruned.masks[1], second)


def wrong(pruned, index, value):
    masks = ones(pruned, np.float32)
    masks[index] = value
    return masks


BAD_MASKS = {
    "missing": (
        lambda p: ones(p)[:1],
        ["`masks`", "2 kernels", "net/dense_1/kernel", "Received: 1 masks"],
    ),
    "extra": (lambda p: ones(p) * 2, ["`masks`", "2 kernels", "Received: 4 masks"]),
    "missing path": (
        lambda p: {"net/dense_1/kernel": ones(p)[0]},
        ["`masks`", "misses net/dense_2/kernel"],
    ),
    "unknown path": (
        lambda p: {
            **{kernel.path: np.ones(kernel.shape) for kernel in p.kernels},
            "net/dense_3/kernel": 1,
        },
        ["`masks`", "unknown net/dense_3/kernel", "net/dense_1/kernel"],
    ),
    "shape": (
        lambda p: wrong(p, 1, np.ones([3, 5])),
        ["`masks`", "(5, 3)", "net/dense_2/kernel", "shape (3, 5)"],
    ),
    "broadcastable shape": (
        lambda p: wrong(p, 0, np.ones([1, 5])),
        ["`masks`", "(6, 5)", "net/dense_1/kernel", "shape (1, 5)"],
    ),
    "not binary": (
        lambda p: wrong(p, 1, np.full([5, 3], 0.5)),
        ["`masks`", "0 and 1", "net/dense_2/kernel"],
    ),
    "not a number": (
        lambda p: wrong(p, 0, np.full([6, 5], np.nan)),
        ["`masks`", "0 and 1", "net/dense_1/kernel"],
    ),
}


@pytest.mark.parametrize("problem", BAD_MASKS)
def test_bad_masks_are_refused_and_nothing_is_assigned(pruned, problem):
    make_masks, fragments = BAD_MASKS[problem]
    kernels = toys.bits(pruned.kernels)
    with toys.raises(ValueError, *fragments):
        pruned.set_masks(make_masks(pruned))
    assert pruned.sparsity() == 0
    assert toys.bits(pruned.kernels) == kernels


def test_masks_of_a_wider_network_name_the_first_layer_that_does_not_fit():
    """E6: 300-100 into 300-101; the first layer fits."""
    donor, receiver = (
        pt.PrunedModel(toys.mlp((8, 300, width, 10))) for width in (100, 101)
    )
    pt.prune(donor, rate=0.2)
    fragments = ["(300, 101) for net/dense_2/kernel", "shape (300, 100)"]
    with toys.raises(ValueError, *fragments):
        receiver.set_masks(donor.masks)
    assert receiver.sparsity() == 0


def test_pruned_weights_come_back_only_if_regrowth_is_allowed():
    pruned = pt.PrunedModel(toys.column(5, 6, 7))
    pruned.set_masks([column_of(1, 0, 1)])
    with toys.raises(ValueError, "`masks`", "allow_regrowth=True", "dense_1/kernel"):
        pruned.set_masks([column_of(0, 1, 1)])
    assert flat(pruned.masks[0]) == [True, False, True]
    pruned.set_masks([column_of(0, 1, 1)], allow_regrowth=True)
    assert flat(pruned.masks[0]) == [False, True, True]
    # It starts at 0.
    assert flat(pruned.kernels[0]) == [0, 0, 7]


def test_kernels_that_share_a_path_take_masks_as_a_sequence_only():
    class Twins(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.one = keras.layers.Dense(2, name="same")
            self.two = keras.layers.Dense(2, name="same")

        def call(self, inputs):
            return self.two(self.one(inputs))

    model = Twins()
    model(np.zeros([1, 2]))
    pruned = pt.PrunedModel(model)
    with toys.raises(ValueError, "a sequence, not a dict", "net/same/kernel"):
        pruned.set_masks({"net/same/kernel": np.ones([2, 2])})
    pruned.set_masks([np.ones([2, 2]), np.eye(2)])
    assert np.count_nonzero(model.one.kernel) == 4
    assert np.count_nonzero(model.two.kernel) == 2


# Optimizers


def attached(optimizer, *weights):
    """An optimizer that is built for a column of weights, and the pruned model."""
    pruned = pt.PrunedModel(toys.column(*weights))
    pruned.attach_optimizer(optimizer)
    return pruned


def test_new_masks_zero_the_slots_of_every_attached_optimizer():
    """Momentum that was alive when the weight was pruned cannot revive it."""
    first, second = (keras.optimizers.SGD(0.1, momentum=0.9) for _ in range(2))
    pruned = attached(first, 1, 2, 3)
    pruned.attach_optimizer(second)
    for optimizer in (first, second):
        optimizer.momentums[0].assign(column_of(4, -5, np.nan))
    pruned.set_masks([column_of(1, 0, 0)])
    for optimizer in (first, second):
        assert flat(optimizer.momentums[0]) == [4, 0, 0]
        pt.testing.assert_masks_hold(pruned, optimizer)


def test_attaching_late_zeroes_the_slots_too():
    pruned = pt.PrunedModel(toys.column(1, 2))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(pruned.trainable_variables)
    optimizer.momentums[0].assign(column_of(4, 5))
    pruned.set_masks([column_of(0, 1)])
    assert flat(optimizer.momentums[0]) == [4, 5]
    pruned.attach_optimizer(optimizer)
    assert flat(optimizer.momentums[0]) == [0, 5]


SLOTS = {
    "momentum": (toys.OPTIMIZERS["momentum"], ["momentum"]),
    "adam": (toys.OPTIMIZERS["adam"], ["momentum", "velocity"]),
    "amsgrad": (
        toys.MORE_OPTIMIZERS["amsgrad"],
        ["momentum", "velocity", "velocity_hat"],
    ),
    "accumulation": (
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
        ["gradient_accumulator"],
    ),
    "ema": (lambda: keras.optimizers.SGD(0.1, use_ema=True), ["average"]),
    "plain": (lambda: keras.optimizers.SGD(0.1), []),
    "scaled": (
        lambda: keras.optimizers.LossScaleOptimizer(toys.OPTIMIZERS["momentum"]()),
        ["momentum"],
    ),
}


@pytest.mark.parametrize("kind", SLOTS)
def test_slots_are_what_the_optimizer_keeps_per_kernel(kind):
    make_optimizer, names = SLOTS[kind]
    optimizer = make_optimizer()
    pruned = attached(optimizer, 1, 2, 3)
    slots = pruned.slots(optimizer)
    assert sorted(slot.path.split("_kernel_")[1] for slot, _ in slots) == names
    assert all(mask is pruned.masks[0] for _, mask in slots)


def test_masking_slots_leaves_rate_and_step_counter_alone():
    optimizer = keras.optimizers.Adam(0.5)
    pruned = attached(optimizer, 1, 2)
    optimizer.iterations.assign(7)
    pruned.set_masks([column_of(0, 1)])
    assert float(optimizer.learning_rate) == 0.5
    assert int(optimizer.iterations.value) == 7


def test_slots_of_biases_are_not_masked(pruned):
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    pruned.attach_optimizer(optimizer)
    for slot in optimizer.momentums:
        slot.assign(np.ones(slot.shape))
    pt.prune(pruned, rate=0.5)
    assert [int(np.sum(slot)) for slot in toys.values(optimizer.momentums)] == [
        15,
        5,
        7,
        3,
    ]


def test_an_optimizer_of_another_model_is_refused(pruned):
    """A9."""
    optimizer = keras.optimizers.Adam(0.01)
    pruned.attach_optimizer(optimizer)
    other = pt.PrunedModel(toys.mlp((6, 3), name="other"))
    fragments = [
        "`optimizer`",
        "another model",
        f"{optimizer.name!r} holding 4 variables",
        "'other' has 2",
        "Make a new optimizer",
    ]
    for build in (other.attach_optimizer, lambda o: pt.Snapshot(other, o)):
        with toys.raises(ValueError, *fragments):
            build(optimizer)
    with toys.raises(ValueError, "another model"):
        pt.make_train_step(other, optimizer, toys.cross_entropy())


def test_an_optimizer_of_a_twin_or_of_some_variables_is_refused(pruned):
    """A9: as many variables, of the same names and shapes."""
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(toys.mlp().trainable_variables)
    with toys.raises(ValueError, "another model", "holding 4 variables"):
        pruned.attach_optimizer(optimizer)
    partial = keras.optimizers.Adam(0.01)
    partial.build(pruned.trainable_variables[:2])
    with toys.raises(ValueError, "some of this one's only", "holding 2 variables"):
        pruned.attach_optimizer(partial)
    # Keras builds the wrapper for this model and leaves what it wraps as it was.
    scaled = keras.optimizers.LossScaleOptimizer(optimizer)
    with toys.raises(ValueError, "another model"):
        pruned.attach_optimizer(scaled)


@pytest.mark.parametrize("received", ["adam", None, keras.optimizers.Adam])
def test_what_is_no_optimizer_is_refused(pruned, received):
    with toys.raises(TypeError, "`optimizer`", "Keras 3", type(received).__name__):
        pruned.attach_optimizer(received)


def test_optimizers_that_are_gone_are_forgotten(pruned):
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    pruned.attach_optimizer(optimizer)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    pt.prune(pruned, rate=0.5)
    assert pruned.sparsity() > 0


# Counts


def test_sparsity_is_counted_in_integers_by_hand():
    pruned = pt.PrunedModel(toys.linear(np.ones([2, 4]), np.ones([4, 1])))
    assert pruned.sparsity() == 0.0
    first = np.array([[1, 0, 0, 0], [1, 1, 0, 0]])
    pruned.set_masks([first, np.array([[1], [1], [1], [0]])])
    one, two = pruned.layer_sparsity()
    assert (one.path, one.shape, one.kept, one.total) == (
        "net/dense_1/kernel",
        (2, 4),
        3,
        8,
    )
    assert (two.path, two.shape, two.kept, two.total) == (
        "net/dense_2/kernel",
        (4, 1),
        3,
        4,
    )
    assert (one.sparsity, two.sparsity) == (0.625, 0.25)
    # 6 of 12 are pruned, not the mean of the layers' fractions.
    assert pruned.sparsity() == 0.5


def test_sparsity_is_read_from_masks_and_not_from_values():
    """G9."""
    pruned = pt.PrunedModel(toys.column(*np.zeros(10)))
    assert pruned.sparsity() == 0.0
    assert pt.prune(pruned, rate=0.1) == 1
    # Exactly: 1 - 9/10 would be 0.09999999999999998.
    assert pruned.sparsity() == pruned.layer_sparsity()[0].sparsity == 0.1


def test_summary_shows_every_weight_pruned_or_skipped():
    """B6."""
    model = toys.mlp((40, 30, 3))
    model.layers[1].bias.trainable = False
    pruned = pt.PrunedModel(model, pt.kernels(exclude="dense_2"))
    mask = np.ones([40, 30], bool)
    mask[:10] = False
    pruned.set_masks([mask])
    lines = [" ".join(line.split()) for line in pruned.summary().splitlines()]
    assert lines == [
        "variable shape kept total sparsity why",
        "net/dense_1/kernel 40×30 900 1,200 25.00% kernel",
        "net/dense_1/bias 30 30 skipped "
        "bias: biases and normalisation are never pruned",
        "net/dense_2/kernel 30×3 90 skipped excluded by 'dense_2'",
        "net/dense_2/bias 3 3 skipped not trainable",
        "prunable in all 900 1,200 25.00%",
    ]


# Constraints


@pytest.mark.parametrize("constraint", [None, keras.constraints.MaxNorm(0.5)])
def test_constrained_models_keep_their_zeros_in_fit(constraint):
    """A11: also in a `fit` that was traced before; calling it twice is harmless."""
    pruned = pt.PrunedModel(toys.mlp(kernel_constraint=constraint))
    model = pruned.model
    x, y = toys.dataset()
    model.compile(
        keras.optimizers.SGD(0.5, momentum=0.9), toys.cross_entropy(), jit_compile=False
    )
    model.fit(x, y, 5, epochs=2, verbose=0)
    pt.prune(pruned, rate=0.5)
    pruned.constrain()
    once = [kernel.constraint for kernel in pruned.kernels]
    pruned.constrain()
    assert [kernel.constraint for kernel in pruned.kernels] == once
    checked = []

    def check(batch, logs):
        del batch, logs
        pt.testing.assert_masks_hold(pruned)
        checked.append(max(np.linalg.norm(k, axis=0).max() for k in pruned.kernels))

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=check)
    before = toys.values(pruned.kernels)
    model.fit(x, y, 5, epochs=3, verbose=0, callbacks=[callback])
    assert len(checked) == 6
    assert max(checked) < 0.5 + 1e-6 or constraint is None
    assert not np.array_equal(before[0], pruned.kernels[0].numpy())


def test_constraints_follow_later_masks():
    pruned = pt.PrunedModel(toys.column(1, 2, 3))
    pruned.constrain()
    optimizer = toys.Drift()
    optimizer.apply([tf.ones([3, 1])], pruned.trainable_variables)
    assert flat(pruned.kernels[0]) == [2, 3, 4]
    pruned.set_masks([column_of(1, 0, 1)])
    optimizer.apply([tf.ones([3, 1])], pruned.trainable_variables)
    assert flat(pruned.kernels[0]) == [3, 0, 5]


def test_two_wrappers_of_one_model_constrain_it_together():
    model = toys.column(1, 2, 3)
    for mask in ([1, 1, 0], [0, 1, 1]):
        pruned = pt.PrunedModel(model)
        pruned.set_masks([column_of(*mask)])
        pruned.constrain()
    toys.Drift().apply([tf.ones([3, 1])], model.trainable_variables)
    assert flat(model.weights[0]) == [0, 3, 0]


def test_constrained_models_can_still_be_saved_and_loaded(tmp_path):
    pruned = pt.PrunedModel(toys.mlp(kernel_constraint="non_neg"))
    pruned.constrain()
    pt.prune(pruned, rate=0.5)
    pruned.model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert toys.bits(loaded.weights) == toys.bits(pruned.model.weights)
    assert isinstance(loaded.layers[0].kernel_constraint, keras.constraints.NonNeg)


def test_averaged_weights_are_refused_by_constrain():
    """A8: Keras puts its averages back after the constraints."""
    model = toys.mlp()
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), toys.cross_entropy())
    with toys.raises(ValueError, "`constrain`", "use_ema=True", "make_train_step"):
        pt.PrunedModel(model).constrain()


def test_weights_loaded_under_masks_are_masked_when_the_model_is_called(tmp_path):
    """E5: loading before and after the masks gives the same outputs."""
    model, (x, _) = toys.mlp(), toys.dataset()
    model.save_weights(tmp_path / "dense.weights.h5")
    pruned = pt.PrunedModel(model)
    pt.prune(pruned, rate=0.5)
    expected = pruned(x).numpy()
    model.load_weights(tmp_path / "dense.weights.h5")
    np.testing.assert_array_equal(pruned(x), expected)
    pt.testing.assert_masks_hold(pruned)


def test_a_rule_must_be_callable():
    with toys.raises(TypeError, "`prunable`", "pt.kernels", "prunable='head'"):
        pt.PrunedModel(toys.mlp(), "head")
