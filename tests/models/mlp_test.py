"""The fully connected networks: shapes, sizes, initial weights."""

import itertools

import keras
import numpy as np
import pytest

import prunetrain as pt
from prunetrain.models import MODELS

SIZES = {"lenet_300_100": (300, 100), "mlp_300_100_50": (300, 100, 50)}


def build(name):
    return MODELS[name]((28, 28, 1), 10)


@pytest.mark.parametrize("name", SIZES)
def test_kernels_join_the_sizes_in_the_name(name):
    widths = (784, *SIZES[name], 10)
    shapes = [kernel.shape for kernel in pt.PrunedModel(build(name)).kernels]
    assert shapes == list(itertools.pairwise(widths))


def test_lenet_has_the_number_of_weights_of_the_paper():
    # Frankle & Carbin 2019, figure 2: 266K.
    model = build("lenet_300_100")
    assert sum(x.total for x in pt.PrunedModel(model).layer_sparsity()) == 266_200
    assert model.count_params() == 266_200 + 300 + 100 + 10


def test_lenet_starts_glorot_normal_with_zero_biases():
    model = build("lenet_300_100")
    kernel, bias = (weight.numpy() for weight in model.weights[:2])
    # The mean of 235,200 values is off by 6 of its standard errors at most.
    expected = np.sqrt(2 / (784 + 300))
    assert abs(kernel.mean()) < 6 * expected / np.sqrt(kernel.size)
    np.testing.assert_allclose(kernel.std(), expected, rtol=0.01)
    # Glorot's normal is cut at two standard deviations of the normal it is made from.
    assert 1.9 < abs(kernel).max() / expected < 2.3
    assert not bias.any()
    assert type(model.layers[1].kernel_initializer) is keras.initializers.GlorotNormal


def test_the_network_of_the_question_starts_as_keras_does():
    model = build("mlp_300_100_50")
    limit = np.sqrt(6 / (784 + 300))
    assert 0.99 * limit < abs(model.weights[0].numpy()).max() <= limit
