"""Operations of a forward pass, against numbers worked out by hand."""

import keras
import numpy as np
import pytest

from prunetrain import models
from prunetrain.analysis import flops
from prunetrain.core import pruned_model

layers = keras.layers


def uses(model, shape):
    kernels = pruned_model.PrunedModel(model).kernels
    return flops.uses(model, kernels, shape)


def places(*stack, shape=(8, 6, 2)):
    """How often the weights of each kernel of a chain of layers are used."""
    found = uses(keras.Sequential([keras.Input(shape), *stack]), shape)
    return [use.places for use in found]


def test_lenet_300_100_takes_two_operations_a_weight():
    model = models.MODELS["lenet_300_100"]((28, 28, 1), 10)
    found = uses(model, (28, 28, 1))
    # 784 × 300, 300 × 100, 100 × 10.
    assert [use.operations() for use in found] == [470_400, 60_000, 2_000]
    kept = (47_040, 6_000, 500)
    assert sum(map(flops.Use.operations, found, kept)) == 2 * 53_540


def test_a_convolution_uses_each_weight_at_every_position_of_its_output():
    # Padded: 8 × 6; valid: 6 × 4; by strides of 2: 4 × 3.
    assert places(layers.Conv2D(5, 3, padding="same")) == [48]
    assert places(layers.Conv2D(5, 3)) == [24]
    assert places(layers.Conv2D(5, 3, strides=2, padding="same")) == [12]
    (found,) = uses(
        keras.Sequential([keras.Input((8, 6, 2)), layers.Conv2D(5, 3)]), (8, 6, 2)
    )
    # 3 × 3 × 2 × 5 weights at 24 positions, twice.
    assert found.operations() == 2 * 90 * 24
    assert found.operations(10) == 2 * 10 * 24


def test_groups_and_depths_count_the_weights_there_are():
    assert places(layers.Conv2D(4, 3, groups=2)) == [24]
    assert places(layers.DepthwiseConv2D(3, depth_multiplier=2)) == [24]
    # Depthwise, then pointwise, at the same positions.
    assert places(layers.SeparableConv2D(7, 3, depth_multiplier=2)) == [24, 24]


def test_a_transposed_convolution_uses_its_weights_at_every_position_of_its_input():
    assert places(layers.Conv2DTranspose(5, 3, strides=2)) == [48]


def test_dense_layers_on_a_grid_work_at_each_of_its_places():
    assert places(layers.Dense(5)) == [48]
    assert places(layers.EinsumDense("abcd,de->abce", (8, 6, 5))) == [48]


def test_a_layer_that_is_called_twice_counts_twice():
    shared = layers.Dense(3)
    one = keras.Input((8,))
    halves = one[:, :4], one[:, 4:]
    model = keras.Model(one, layers.Add()([shared(half) for half in halves]))
    (found,) = uses(model, (8,))
    assert found.places == 2


def test_kernels_within_models_within_models_are_found():
    inner = keras.Sequential([keras.Input((6, 4, 3)), layers.Conv2D(2, 1)])
    assert places(layers.Conv2D(3, 3), inner) == [24, 24]


def test_recurrent_layers_are_not_counted():
    (kernel, recurrent) = uses(
        keras.Sequential([keras.Input((5, 4)), layers.SimpleRNN(3)]), (5, 4)
    )
    assert kernel.places is recurrent.places is None
    assert kernel.operations() == 0


@pytest.mark.parametrize("name", ["lenet5", "conv2"])
def test_counting_leaves_the_model_as_it_was(name):
    model = models.MODELS[name]((28, 28, 1), 10)
    before = [layer.call for layer in model.layers]
    x = np.ones((1, 28, 28, 1), np.float32)
    outputs = model(x).numpy()
    uses(model, (28, 28, 1))
    assert [layer.call for layer in model.layers] == before
    np.testing.assert_array_equal(model(x).numpy(), outputs)
