"""The assertions for users' tests: they pass when they should, and only then."""

import keras
import numpy as np
import pytest

import prunetrain as pt
from tests import toys


@pytest.fixture
def pruned():
    """Weights 1, 2, 3, of which the second is pruned."""
    pruned = pt.PrunedModel(toys.column(1, 2, 3))
    pruned.set_masks([np.array([[True], [False], [True]])])
    return pruned


def put(variable, *numbers):
    variable.assign(np.reshape(np.array(numbers, np.float32), variable.shape))


def test_masked_weights_pass(pruned):
    pt.testing.assert_masks_hold(pruned)
    assert pruned.kernels[0].numpy().ravel().tolist() == [1, 0, 3]


def test_live_weights_may_be_anything(pruned):
    put(pruned.kernels[0], -0.0, 0, np.nan)
    pt.testing.assert_masks_hold(pruned)
    assert pruned.sparsity() == pytest.approx(1 / 3)


@pytest.mark.parametrize("value", [1e-45, -1.0, -0.0, np.nan, np.inf])
def test_a_pruned_weight_that_is_not_positive_zero_fails(pruned, value):
    put(pruned.kernels[0], 1, value, 3)
    fragments = ["1 pruned weights of net/dense_1/kernel", "(1, 0)", "not +0.0"]
    with toys.raises(AssertionError, *fragments):
        pt.testing.assert_masks_hold(pruned)


def test_slots_are_checked_if_the_optimizer_is_given(pruned):
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    pruned.attach_optimizer(optimizer)
    pt.testing.assert_masks_hold(pruned, optimizer)
    put(optimizer.momentums[0], 1, 2, 3)
    pt.testing.assert_masks_hold(pruned)
    with toys.raises(AssertionError, "1 pruned values of slot", "momentum", "2.0"):
        pt.testing.assert_masks_hold(pruned, optimizer)


@pytest.mark.parametrize("dtype", [bool, np.float32, np.uint8])
def test_masks_may_shrink_but_not_grow(pruned, dtype):
    everything = np.ones([3, 1], dtype)
    pt.testing.assert_masks_hold(pruned, previous_masks=[everything])
    pt.testing.assert_masks_hold(pruned, previous_masks=pruned.masks)
    first_only = np.array([[1], [0], [0]], dtype)
    fragments = ["1 pruned weights of net/dense_1/kernel came back", "(2, 0)"]
    with toys.raises(AssertionError, *fragments):
        pt.testing.assert_masks_hold(pruned, previous_masks=[first_only])


def test_masks_of_another_model_are_no_proof(pruned):
    with pytest.raises(ValueError, match="zip"):
        pt.testing.assert_masks_hold(pruned, previous_masks=[])
