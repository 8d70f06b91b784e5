"""Scores from gradients against NumPy in float64."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.pruning import criteria
from tests import toys

X, Y = toys.dataset(10)
# Of unequal size.
BATCHES = [(X[:6], Y[:6]), (X[6:], Y[6:])]


def network():
    pruned = pt.PrunedModel(toys.mlp(bias_initializer="random_normal"))
    pruned.set_masks(toys.random_masks(pruned, keep=0.7))
    return pruned


def gradients(weights, x, y):
    """Of the mean loss over a batch, in every weight, kernels and biases in turn."""
    reference = toys.MaskedAdam(weights, 0.0)
    return reference.gradients(x, y)[1]


def kernels(values):
    return [np.asarray(value, np.float64) for value in values[::2]]


def scores(name, pruned, data, loss_fn=None):
    found = criteria.CRITERIA[name](
        pruned,
        initial=None,
        data=data,
        loss_fn=loss_fn or toys.cross_entropy(),
        seed=0,
    )
    return [score.numpy() for score in found]


def expected(name, weights, masks):
    weights = [np.asarray(weight, np.float64) for weight in weights]
    found = kernels(weights)
    if name == "snip":
        slopes = kernels(gradients(weights, X, Y))
        return [np.abs(w * g) for w, g in zip(found, slopes, strict=True)]
    if name == "taylor":
        slopes = [kernels(gradients(weights, *batch)) for batch in BATCHES]
        return [
            (6 * np.abs(w * one) + 4 * np.abs(w * two)) / 10
            for w, one, two in zip(found, *slopes, strict=True)
        ]
    if name == "fisher":
        slopes = [
            kernels(gradients(weights, X[i : i + 1], Y[i : i + 1])) for i in range(10)
        ]
        return [
            w**2 * np.mean([slope[index] ** 2 for slope in slopes], 0)
            for index, w in enumerate(found)
        ]
    slopes = kernels(gradients(weights, X, Y))
    flow = [g * mask for g, mask in zip(slopes, masks, strict=True)]
    return [w * h for w, h in zip(found, curvature(weights, flow), strict=True)]


def curvature(weights, direction, step=1e-5):
    """Hessian times direction, by a difference of gradients."""
    sides = []
    for sign in (1, -1):
        moved = list(weights)
        for index, change in enumerate(direction):
            moved[2 * index] = weights[2 * index] + sign * step * change
        sides.append(kernels(gradients(moved, X, Y)))
    return [(up - down) / (2 * step) for up, down in zip(*sides, strict=True)]


@pytest.mark.parametrize("name", ["taylor", "snip", "grasp", "fisher"])
def test_scores_are_those_of_numpy(name):
    pruned = network()
    weights = pruned.model.get_weights()
    masks = toys.values(pruned.masks)
    found = scores(name, pruned, BATCHES)
    for score, want in zip(found, expected(name, weights, masks), strict=True):
        np.testing.assert_allclose(score, want, rtol=2e-3, atol=1e-7)


def test_weights_that_were_pruned_count_as_zero_whatever_they_hold():
    pruned = network()
    before = scores("snip", pruned, BATCHES)
    for kernel, mask in zip(pruned.kernels, pruned.masks, strict=True):
        kernel.assign(tf.where(mask, kernel.value, 7.0))
    after = scores("snip", pruned, BATCHES)
    for one, other, mask in zip(before, after, pruned.masks, strict=True):
        np.testing.assert_array_equal(one[mask.numpy()], other[mask.numpy()])


def test_snip_by_hand():
    """Outputs 1 · 2 + 3 · (-1) = -1 and loss o²: gradients 2 · (-1) · (1, 3)."""
    pruned = pt.PrunedModel(toys.column(2, -1))

    def square(y, outputs):
        return tf.reduce_sum(outputs**2, -1)

    data = [(np.array([[1.0, 3.0]], np.float32), np.zeros(1))]
    for name, want in {
        "snip": [4, 6],
        "taylor": [4, 6],
        "fisher": [16, 36],
        # H is 2 · (1, 3)(1, 3)ᵀ, g is (-2, -6), so Hg is 2 · (-20) · (1, 3).
        "grasp": [-80, 120],
    }.items():
        (score,) = scores(name, pruned, data, square)
        assert score.ravel().tolist() == want


def test_grasp_keeps_the_weights_whose_removal_reduces_the_gradient():
    """In the small: |g|² changes by -2 w · Hg for each share of a weight removed."""
    pruned = pt.PrunedModel(toys.mlp())
    weights = [np.float64(w) for w in pruned.model.get_weights()]
    found = scores("grasp", pruned, BATCHES)

    def flow(values):
        return sum(np.sum(g**2) for g in kernels(gradients(values, X, Y)))

    share = 1e-6
    for layer, score in enumerate(found):
        for place in np.ndindex(score.shape):
            moved = [w.copy() for w in weights]
            moved[2 * layer][place] *= 1 - share
            change = (flow(moved) - flow(weights)) / share
            assert change == pytest.approx(-2 * score[place], rel=1e-2, abs=1e-5)


def test_a_loss_that_is_a_sum_gives_the_order_of_one_that_is_a_mean():
    pruned = network()
    kinds = {
        reduction: keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=reduction
        )
        for reduction in ("sum_over_batch_size", "sum", None)
    }
    for name in ("snip", "fisher"):
        mean, total, each = (
            scores(name, pruned, BATCHES, loss) for loss in kinds.values()
        )
        for one, other, third in zip(mean, total, each, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
            np.testing.assert_allclose(one, third, rtol=1e-5)


def test_scores_are_those_at_inference():
    """Batch norm by its averages, dropout and noise off, no regularisers."""
    layers = keras.layers
    plain = [layers.Dense(5, name="first"), layers.ReLU(), layers.Dense(3, name="last")]
    noisy = [
        layers.Dense(5, kernel_regularizer="l2", name="first"),
        layers.BatchNormalization(epsilon=0),
        layers.ReLU(),
        layers.Dropout(0.9),
        layers.Dense(3, name="last"),
    ]
    plain, noisy = (
        pt.PrunedModel(keras.Sequential([keras.Input((6,)), *parts]))
        for parts in (plain, noisy)
    )
    for mine, theirs in zip(noisy.kernels, plain.kernels, strict=True):
        mine.assign(theirs)
    for name in ("snip", "fisher"):
        for one, other in zip(
            scores(name, plain, BATCHES), scores(name, noisy, BATCHES), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-9)


def test_a_kernel_without_a_part_in_the_outputs_has_scores_of_zero():
    inputs = keras.Input((6,))
    used, idle = (keras.layers.Dense(3, name=name)(inputs) for name in ("used", "idle"))
    outputs = used + keras.ops.stop_gradient(idle)
    pruned = pt.PrunedModel(keras.Model(inputs, outputs))
    names = [kernel.path for kernel in pruned.kernels]
    for name in ("taylor", "snip", "grasp", "fisher"):
        found = dict(zip(names, scores(name, pruned, BATCHES), strict=True))
        assert np.any(found["used/kernel"] != 0)
        assert not np.any(found["idle/kernel"])


def test_a_loss_that_is_not_finite_is_told_with_the_kernel():
    pruned = pt.PrunedModel(toys.mlp())

    def broken(y, outputs):
        return outputs * np.nan

    with toys.raises(ValueError, "finite", "net/dense_1/kernel"):
        pt.prune(pruned, 0.2, criterion="snip", data=BATCHES, loss_fn=broken)


def test_a_model_with_two_inputs_is_scored():
    one, two = keras.Input((6,)), keras.Input((6,))
    outputs = keras.layers.Dense(3)(keras.layers.Concatenate()([one, two]))
    pruned = pt.PrunedModel(keras.Model([one, two], outputs))
    data = [([X, 2 * X], Y)]
    for name in ("taylor", "snip", "grasp", "fisher"):
        (score,) = scores(name, pruned, data)
        assert score.shape == (12, 3)
        # Twice the input, twice the gradient.
        assert np.any(score[:6] != score[6:])
