"""The criteria of Zhou et al. 2019, by hand."""

import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.pruning import criteria, topk
from tests import toys

# Kept and grown, changed its sign, shrunk, from nothing, to nothing, as it was.
FINAL = [3, -2, 0.5, 1, 0, -4]
INITIAL = [1, 2, 5, 0, 2, -4]
EXPECTED = {
    "large_final": [3, 2, 0.5, 1, 0, 4],
    "small_final": [-3, -2, -0.5, -1, 0, -4],
    "large_init": [1, 2, 5, 0, 2, 4],
    "small_init": [-1, -2, -5, 0, -2, -4],
    "large_init_large_final": [1, 2, 0.5, 0, 0, 4],
    "small_init_small_final": [-3, -2, -5, -1, -2, -4],
    "magnitude_increase": [2, 0, -4.5, 1, -2, 0],
    "movement": [2, 4, 4.5, 1, 2, 0],
    "large_final_same_sign": [3, -2, 0.5, -1, 0, 4],
}


def scores(name, pruned, initial):
    found = criteria.CRITERIA[name](
        pruned, initial=initial, data=None, loss_fn=None, seed=0
    )
    return [topk.evaluate(score) for score in found]


@pytest.mark.parametrize("name", EXPECTED)
def test_scores_by_hand(name):
    pruned = pt.PrunedModel(toys.column(*FINAL))
    (score,) = scores(name, pruned, [np.reshape(INITIAL, [6, 1])])
    assert score.dtype == tf.float32
    assert score.numpy().ravel().tolist() == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_no_scores_are_stored(name):
    pruned = pt.PrunedModel(toys.column(*FINAL))
    initial = [np.reshape(INITIAL, [6, 1])]
    pairs = criteria.CRITERIA[name](
        pruned, initial=initial, data=None, loss_fn=None, seed=0
    )
    again = criteria.CRITERIA[name](
        pruned, initial=initial, data=None, loss_fn=None, seed=0
    )
    # One function, or it would be compiled again.
    assert [function for function, _ in pairs] == [function for function, _ in again]


def test_what_changed_its_sign_goes_first():
    pruned = pt.PrunedModel(toys.column(-9, 0.1, -8, 0.2, -0.3))
    initial = [np.reshape([1, 1, 1, 1, -1], [5, 1])]
    order = []
    for _ in range(3):
        before = pruned.masks[0].numpy()
        pt.prune(
            pruned, 1 / before.sum(), criterion="large_final_same_sign", initial=initial
        )
        order.append(int(np.flatnonzero(before != pruned.masks[0].numpy())[0]))
    assert order == [0, 2, 1]


def test_differences_in_half_precision_are_taken_in_float32():
    model = toys.linear(np.full([1, 1], 256), dtype="bfloat16")
    pruned = pt.PrunedModel(model)
    # In bfloat16 256 - 0.25 is 256.
    (score,) = scores("movement", pruned, [np.full([1, 1], 0.25)])
    assert score.numpy().tolist() == [[255.75]]


@pytest.mark.parametrize(
    ("initial", "fragments"),
    [
        ([], ["a tensor for each of the 1 kernels", "Received: 0"]),
        ([np.ones([6])], ["(6, 1) for net/dense_1/kernel", "shape (6,)"]),
    ],
)
def test_initial_weights_that_do_not_fit_are_refused(initial, fragments):
    pruned = pt.PrunedModel(toys.column(*FINAL))
    with toys.raises(ValueError, "`initial` must", *fragments):
        pt.prune(pruned, rate=0.5, criterion="movement", initial=initial)
