"""Wanda against NumPy, and where it is not defined."""

import keras
import numpy as np
import pytest

import prunetrain as pt
from prunetrain.pruning import criteria
from tests import toys

L = keras.layers
RNG = np.random.default_rng(0)


def scores(pruned, data):
    found = criteria.CRITERIA["wanda"](
        pruned, initial=None, data=data, loss_fn=None, seed=0
    )
    return [score.numpy() for score in found]


def labelled(*inputs):
    return [(np.asarray(x, np.float32), np.zeros(len(x))) for x in inputs]


def test_scores_by_hand():
    """Inputs (3, 1) and (4, 0): norms 5 and 1. Then 1 · 3 and 1 · 4: norm 5."""
    pruned = pt.PrunedModel(toys.linear([[-1], [2]], [[3]]))
    pruned.set_masks([[[1], [0]], [[1]]])
    first, second = scores(pruned, labelled([[3, 1], [4, 0]]))
    assert first[0].tolist() == [5]
    assert second.tolist() == [[15]]


def test_norms_are_over_all_batches():
    x = RNG.normal(size=(7, 6))
    pruned = pt.PrunedModel(toys.mlp())
    first, second = toys.values(pruned.kernels)
    hidden = np.maximum(x @ first, 0)
    found = scores(pruned, labelled(x[:4], x[4:]))
    for score, kernel, inputs in zip(found, (first, second), (x, hidden), strict=True):
        norms = np.sqrt(np.sum(inputs**2, 0))[:, np.newaxis]
        np.testing.assert_allclose(score, np.abs(kernel) * norms, rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: L.Conv1D(4, 3), (5, 2)),
        (lambda: L.Conv2D(4, (3, 2), strides=2), (5, 5, 2)),
        (lambda: L.Conv3D(4, 2), (3, 3, 3, 2)),
        (lambda: L.Dense(4), (3, 3, 2)),
    ],
)
def test_an_input_is_a_channel_over_all_places(layer, shape):
    inputs = keras.Input(shape)
    pruned = pt.PrunedModel(keras.Model(inputs, layer()(inputs)))
    x = RNG.normal(size=(3, *shape))
    (score,) = scores(pruned, labelled(x))
    norms = np.sqrt(np.sum(x**2, tuple(range(x.ndim - 1))))
    want = np.abs(pruned.kernels[0].numpy()) * norms[:, np.newaxis]
    np.testing.assert_allclose(score, want, rtol=1e-5)


def test_a_layer_called_twice_has_both_inputs():
    inputs = keras.Input((2,))
    layer = L.Dense(2, use_bias=False, kernel_initializer="ones")
    pruned = pt.PrunedModel(keras.Model(inputs, layer(layer(inputs))))
    # (3, 4), then (7, 7): squares 9 + 49 and 16 + 49.
    (score,) = scores(pruned, labelled([[3, 4]]))
    np.testing.assert_allclose(score[:, 0] ** 2, [58, 65], rtol=1e-6)


def test_inputs_are_those_at_inference_under_the_masks():
    layers = [keras.Input((2,)), L.Dense(1, name="one"), L.Dropout(0.9)]
    layers += [L.BatchNormalization(epsilon=0), L.Dense(1, name="two")]
    pruned = pt.PrunedModel(keras.Sequential(layers))
    pruned.set_masks([[[1], [0]], [[1]]])
    pruned.kernels[0].assign([[2], [np.nan]])
    pruned.kernels[1].assign([[1]])
    assert scores(pruned, labelled([[3, 1]]))[1].tolist() == [[6]]


def test_layers_of_another_kind_are_named():
    inputs = keras.Input((6, 6, 4))
    x = L.DepthwiseConv2D(3, name="deep")(inputs)
    x = L.Conv2D(4, 3, groups=2, name="grouped")(x)
    x = L.Dense(3, name="plain")(x)
    pruned = pt.PrunedModel(keras.Model(inputs, x))
    data = labelled(np.ones([1, 6, 6, 4]))
    with toys.raises(
        ValueError, "wanda", "deep/kernel (DepthwiseConv2D)", "grouped/kernel (Conv2D)"
    ) as caught:
        pt.prune(pruned, rate=0.2, criterion="wanda", data=data)
    del caught
    plain = pt.PrunedModel(pruned.model, pt.kernels(exclude=["deep", "grouped"]))
    assert pt.prune(plain, rate=0.5, criterion="wanda", data=data) == 6
