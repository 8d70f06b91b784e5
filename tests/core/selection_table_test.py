"""Each kind of layer in each kind of model: found, pruned, trained, saved and loaded.

The layers of a group keep the shape of what they are given, so that they make one
chain, and the chain is put into each kind of model.
"""

import keras
import numpy as np
import pytest

import prunetrain as pt
from tests import toys

layers = keras.layers
KERNEL = ["kernel"]
SEPARABLE = ["depthwise_kernel", "pointwise_kernel"]
RECURRENT = ["kernel", "recurrent_kernel"]


@keras.saving.register_keras_serializable("tests")
class Attend(keras.Layer):
    """Attention of a sequence to itself: a layer that holds a layer."""

    def __init__(self, attention, **kwargs):
        super().__init__(**kwargs)
        self.attention = attention

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)

    def call(self, inputs):
        return self.attention(inputs, inputs)


@keras.saving.register_keras_serializable("tests")
class Positions(keras.Layer):
    """Adds a learned vector at each place: a matrix that is no kernel."""

    def build(self, input_shape):
        self.positions = self.add_weight(shape=input_shape[1:], name="positions")

    def call(self, inputs):
        return inputs + self.positions


# Input shape; by kind: how the layer is made, and the names of what is pruned in it.
GROUPS = {
    "sequence": (
        (3, 4),
        {
            "Positions": (lambda: Positions(), []),
            "Dense": (lambda: layers.Dense(4, "tanh"), KERNEL),
            "EinsumDense": (
                lambda: layers.EinsumDense("abc,cd->abd", (3, 4), bias_axes="d"),
                KERNEL,
            ),
            "TimeDistributed": (
                lambda: layers.TimeDistributed(layers.Dense(4)),
                KERNEL,
            ),
            "Conv1D": (lambda: layers.Conv1D(4, 2, padding="same"), KERNEL),
            "Conv1DTranspose": (
                lambda: layers.Conv1DTranspose(4, 2, padding="same"),
                KERNEL,
            ),
            "DepthwiseConv1D": (
                lambda: layers.DepthwiseConv1D(2, padding="same"),
                KERNEL,
            ),
            "SeparableConv1D": (
                lambda: layers.SeparableConv1D(4, 2, padding="same"),
                SEPARABLE,
            ),
            "LayerNormalization": (lambda: layers.LayerNormalization(), []),
        },
    ),
    "attention": (
        (3, 4),
        {
            "MultiHeadAttention": (
                lambda: Attend(layers.MultiHeadAttention(2, 2)),
                KERNEL * 4,
            ),
            "GroupQueryAttention": (
                lambda: Attend(layers.GroupQueryAttention(2, 2, 1)),
                KERNEL * 4,
            ),
        },
    ),
    "recurrent": (
        (3, 4),
        {
            "SimpleRNN": (
                lambda: layers.SimpleRNN(4, return_sequences=True),
                RECURRENT,
            ),
            "LSTM": (lambda: layers.LSTM(4, return_sequences=True), RECURRENT),
            "GRU": (lambda: layers.GRU(4, return_sequences=True), RECURRENT),
            "Bidirectional": (
                lambda: layers.Bidirectional(layers.GRU(2, return_sequences=True)),
                RECURRENT * 2,
            ),
        },
    ),
    "image": (
        (4, 4, 2),
        {
            "Conv2D": (lambda: layers.Conv2D(2, 3, padding="same"), KERNEL),
            "BatchNormalization": (lambda: layers.BatchNormalization(), []),
            "Conv2DTranspose": (
                lambda: layers.Conv2DTranspose(2, 3, padding="same"),
                KERNEL,
            ),
            "DepthwiseConv2D": (
                lambda: layers.DepthwiseConv2D(3, padding="same"),
                KERNEL,
            ),
            "SeparableConv2D": (
                lambda: layers.SeparableConv2D(2, 3, padding="same"),
                SEPARABLE,
            ),
            "GroupNormalization": (lambda: layers.GroupNormalization(2), []),
        },
    ),
    "volume": (
        (2, 3, 3, 2),
        {
            "Conv3D": (lambda: layers.Conv3D(2, 2, padding="same"), KERNEL),
            "Conv3DTranspose": (
                lambda: layers.Conv3DTranspose(2, 2, padding="same"),
                KERNEL,
            ),
            "ConvLSTM2D": (
                lambda: layers.ConvLSTM2D(2, 2, padding="same", return_sequences=True),
                RECURRENT,
            ),
        },
    ),
    "tokens": ((4,), {"Embedding": (lambda: layers.Embedding(7, 3), [])}),
}


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    """A chain of layers in a list, with a head."""

    def __init__(self, chain, head):
        super().__init__()
        self.chain, self.head = list(chain), head

    def call(self, inputs):
        for layer in self.chain:
            inputs = layer(inputs)
        return self.head(inputs)


def sequential(inputs, chain, head):
    return keras.Sequential([inputs, *chain, head])


def functional(inputs, chain, head):
    outputs = inputs
    for layer in chain:
        outputs = layer(outputs)
    return keras.Model(inputs, head(outputs))


def subclassed(inputs, chain, head):
    model = Subclassed(chain, head)
    model(inputs)
    return model


def nested(inputs, chain, head):
    """Half of the layers in a Sequential in a functional model, half subclassed."""
    half = len(chain) // 2
    inner = keras.Sequential(chain[:half] or [layers.Identity()])
    rest = Subclassed(chain[half:], layers.Flatten())
    return keras.Model(inputs, head(rest(inner(inputs))))


ARRANGEMENTS = (sequential, functional, subclassed, nested)


def build(group, arrange):
    """The model, and its layers by kind."""
    shape, kinds = GROUPS[group]
    chain = {kind: make() for kind, (make, _) in kinds.items()}
    head = keras.Sequential([layers.Flatten(), layers.Dense(3)])
    inputs = keras.Input(shape, dtype="int32" if group == "tokens" else "float32")
    return arrange(inputs, list(chain.values()), head), {**chain, "head": head}


def selected(pruned, layer):
    """Names of the prunable variables that belong to a layer."""
    own = {id(weight) for weight in layer.weights}
    return [kernel.name for kernel in pruned.kernels if id(kernel) in own]


def batch(group):
    shape, _ = GROUPS[group]
    rng = np.random.default_rng(0)
    if group == "tokens":
        return rng.integers(7, size=(6, *shape)), np.arange(6) % 3
    return rng.normal(size=(6, *shape)).astype(np.float32), np.arange(6) % 3


def train(pruned, step, data, num_steps=20):
    """Steps, each of which leaves what is pruned at zero; whether all kernels moved."""
    before = toys.values(pruned.kernels)
    for _ in range(num_steps):
        assert np.isfinite(step(*data))
        pt.testing.assert_masks_hold(pruned)
    return [
        (kernel.numpy() != old).any()
        for kernel, old in zip(pruned.kernels, before, strict=True)
    ]


@pytest.mark.parametrize("arrange", ARRANGEMENTS)
@pytest.mark.parametrize(
    "group",
    # Loops over time take long to differentiate.
    [pytest.param(g, marks=[pytest.mark.slow] * (g == "recurrent")) for g in GROUPS],
)
def test_every_kind_is_found_pruned_trained_saved_and_loaded(group, arrange, tmp_path):
    """B1, B2, B4, B6."""
    model, chain = build(group, arrange)
    pruned = pt.PrunedModel(model)
    kinds = GROUPS[group][1]
    found = {kind: selected(pruned, layer) for kind, layer in chain.items()}
    assert found == {**{k: names for k, (_, names) in kinds.items()}, "head": KERNEL}
    assert len(pruned.kernels) == sum(map(len, found.values()))

    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    step = pt.make_train_step(pruned, optimizer, toys.cross_entropy(), compile="graph")
    data = batch(group)
    assert all(train(pruned, step, data))
    pt.prune(pruned, rate=0.5)
    assert all(train(pruned, step, data))
    pt.testing.assert_masks_hold(pruned, optimizer)
    totals = [(kernel.numpy() == 0).sum() for kernel in pruned.kernels]
    assert totals == [int(0.5 * np.prod(k.shape) + 0.5) for k in pruned.kernels]

    file = tmp_path / "model.weights.h5"
    model.save_weights(file)
    other, _ = build(group, arrange)
    other.load_weights(file)
    assert toys.bits(other.weights) == toys.bits(model.weights)
    np.testing.assert_array_equal(other(data[0]), model(data[0]))


@pytest.mark.parametrize("arrange", ARRANGEMENTS)
def test_embeddings_are_pruned_where_they_are_included(arrange):
    model, chain = build("tokens", arrange)
    pruned = pt.PrunedModel(model, pt.kernels(include=["kernel", "embeddings"]))
    assert selected(pruned, chain["Embedding"]) == ["embeddings"]
    step = pt.make_train_step(
        pruned, keras.optimizers.Adam(0.01), toys.cross_entropy(), compile="graph"
    )
    pt.prune(pruned, rate=0.5)
    assert all(train(pruned, step, batch("tokens"), num_steps=5))
