"""What the axes of each kind of kernel are."""

import keras
import pytest

import prunetrain as pt
from prunetrain.pruning import layers
from tests import toys

L = keras.layers
IMAGE, SEQUENCE = (8, 8, 6), (5, 6)


def kernels(layer, shape):
    inputs = keras.Input(shape)
    pruned = pt.PrunedModel(keras.Model(inputs, layer(inputs)))
    return layers.kernels(pruned.model, pruned.kernels)


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (lambda: L.Dense(4), (6,), [((6, 4), (1,), (0,), 4)]),
        (lambda: L.Conv1D(4, 3), SEQUENCE, [((3, 6, 4), (2,), (1,), 4)]),
        (lambda: L.Conv2D(4, 3), IMAGE, [((3, 3, 6, 4), (3,), (2,), 4)]),
        (lambda: L.Conv2D(4, 3, groups=2), IMAGE, [((3, 3, 3, 4), (3,), (2,), 4)]),
        (lambda: L.Conv2DTranspose(4, 3), IMAGE, [((3, 3, 4, 6), (2,), (3,), 4)]),
        (lambda: L.Conv1DTranspose(4, 3), SEQUENCE, [((3, 4, 6), (1,), (2,), 4)]),
        (
            lambda: L.DepthwiseConv2D(3, depth_multiplier=2),
            IMAGE,
            [((3, 3, 6, 2), (2, 3), (), 12)],
        ),
        (lambda: L.DepthwiseConv1D(3), SEQUENCE, [((3, 6, 1), (1, 2), (), 6)]),
        (
            lambda: L.SeparableConv2D(4, 3, depth_multiplier=2),
            IMAGE,
            [((3, 3, 6, 2), (2, 3), (), 12), ((1, 1, 12, 4), (3,), (2,), 4)],
        ),
        (
            lambda: L.LSTM(4),
            SEQUENCE,
            [((6, 16), (1,), (0,), 16), ((4, 16), (1,), (0,), 16)],
        ),
        (
            lambda: L.EinsumDense("...x,xy->...y", 4),
            SEQUENCE,
            [((6, 4), (1,), (0,), 4)],
        ),
        (
            # Each place has weights of its own.
            lambda: L.EinsumDense("btx,txy->bty", (5, 4)),
            SEQUENCE,
            [((5, 6, 4), (0, 2), (1,), 20)],
        ),
        (
            lambda: L.EinsumDense("bhwc,whcy->by", 4),
            IMAGE,
            [((8, 8, 6, 4), (3,), (0, 1, 2), 4)],
        ),
    ],
)
def test_outputs_and_inputs_are_found_by_the_kind_of_layer(layer, shape, expected):
    found = kernels(layer(), shape)
    assert expected == [(k.shape, k.outputs, k.inputs, k.num_outputs) for k in found]
    assert {kernel.heads for kernel in found} == {None}


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        (lambda: L.MultiHeadAttention(3, 2), [(6, 3, 2)] * 3 + [(3, 2, 6)]),
        (
            lambda: L.GroupQueryAttention(2, 4, 2),
            [(6, 4, 2), (6, 2, 2), (6, 2, 2), (4, 2, 6)],
        ),
    ],
)
def test_heads_are_found_in_the_projections_of_attention(layer, shapes):
    inputs = keras.Input(SEQUENCE)
    layer = layer()
    pruned = pt.PrunedModel(keras.Model(inputs, layer(inputs, inputs)))
    found = layers.kernels(pruned.model, pruned.kernels)
    assert [kernel.shape for kernel in found] == shapes
    assert [kernel.heads for kernel in found] == [1, 1, 1, 0]
    assert [kernel.outputs for kernel in found] == [(1, 2)] * 3 + [(2,)]
    assert [kernel.inputs for kernel in found] == [(0,)] * 3 + [(0, 1)]


def test_the_innermost_layer_owns_a_kernel():
    inner = toys.mlp((6, 5, 6), name="inner")
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(2, name="last")(inner(inputs)))
    pruned = pt.PrunedModel(model)
    found = layers.kernels(model, pruned.kernels)
    assert [k.layer.name for k in found] == ["dense_1", "dense_2", "last"]


class OwnWeight(keras.layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 3), name="own_kernel")

    def call(self, inputs):
        return inputs @ self.w


def test_a_layer_of_ones_own_has_inputs_and_outputs_last_as_keras_does():
    (kernel,) = kernels(OwnWeight(), (6,))
    assert isinstance(kernel.layer, OwnWeight)
    assert (kernel.outputs, kernel.inputs) == ((1,), (0,))
