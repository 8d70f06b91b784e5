"""What every model of the package keeps to."""

import keras
import numpy as np
import pytest

from prunetrain.models import MODELS

models = pytest.mark.parametrize("name", MODELS)


# Small ones of the kind, for the sake of time.
ARGUMENTS = {"wide_resnet": {"depth": 10, "width": 1}, "vit_tiny": {"depth": 2}}


def build(name, shape=(32, 32, 3), num_classes=7):
    return MODELS[name](shape, num_classes, **ARGUMENTS.get(name, {}))


@models
def test_outputs_are_logits_of_the_classes(name):
    model = build(name)
    outputs = model(np.ones((2, 32, 32, 3), np.float32))
    assert outputs.shape == (2, 7)
    assert model.layers[-1].activation is keras.activations.linear


@models
def test_paths_are_the_same_for_every_copy(name):
    # Flags name layers by their paths, and tickets are read back by them.
    first, second = ([w.path for w in build(name).weights] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)
    assert first[-2].endswith("output/kernel")


@models
def test_copies_differ_in_their_weights_and_the_seed_decides_them(name):
    def kernel(seed):
        keras.utils.set_random_seed(seed)
        return build(name).weights[0].numpy()

    np.testing.assert_array_equal(kernel(1), kernel(1))
    assert (kernel(1) != kernel(2)).mean() > 0.99


@models
def test_hidden_dense_layers_are_rectified(name):
    layers = [x for x in build(name).layers if isinstance(x, keras.layers.Dense)]
    # A transformer's are smooth, and every second one is added as it is.
    known = {"gelu", "linear"} if name == "vit_tiny" else {"relu"}
    for layer in layers[:-1]:
        assert layer.activation.__name__ in known
