"""The fully connected networks: shapes, sizes, outputs, initial weights."""

import itertools

import keras
import numpy as np
import pytest

import prunetrain as pt
from prunetrain.models import MODELS

SIZES = {"lenet_300_100": (300, 100), "mlp_300_100_50": (300, 100, 50)}
models = pytest.mark.parametrize("name", SIZES)


def build(name, shape=(28, 28, 1), num_classes=10):
    return MODELS[name](shape, num_classes)


@models
def test_kernels_join_the_sizes_in_the_name(name):
    widths = (784, *SIZES[name], 10)
    shapes = [kernel.shape for kernel in pt.PrunedModel(build(name)).kernels]
    assert shapes == list(itertools.pairwise(widths))


def test_lenet_has_the_number_of_weights_of_the_paper():
    # Frankle & Carbin 2019, figure 2: 266K.
    model = build("lenet_300_100")
    assert sum(x.total for x in pt.PrunedModel(model).layer_sparsity()) == 266_200
    assert model.count_params() == 266_200 + 300 + 100 + 10


@models
def test_outputs_are_logits_of_the_classes(name):
    model = build(name, shape=(5, 4, 3), num_classes=7)
    outputs = model(np.ones((2, 5, 4, 3), np.float32))
    assert outputs.shape == (2, 7)
    output = model.layers[-1]
    assert output.activation is keras.activations.linear
    assert all(x.activation is keras.activations.relu for x in model.layers[1:-1])


@models
def test_paths_are_the_same_for_every_copy(name):
    # Flags name layers by their paths, and tickets are read back by them.
    first, second = ([w.path for w in build(name).weights] for _ in range(2))
    assert first == second
    assert first[-2] == f"{name}/output/kernel"


@models
def test_copies_differ_in_their_weights_and_the_seed_decides_them(name):
    def kernel(seed):
        keras.utils.set_random_seed(seed)
        return build(name).weights[0].numpy()

    np.testing.assert_array_equal(kernel(1), kernel(1))
    assert (kernel(1) != kernel(2)).mean() > 0.99


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
