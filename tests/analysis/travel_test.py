"""The way of the surviving weights, by hand."""

import math

import hypothesis
import hypothesis.extra.numpy
import numpy as np
import pytest
from hypothesis import strategies

from prunetrain.analysis import travel
from tests import toys


def of(initial, final, mask=None):
    """`Travel` of one kernel."""
    initial, final = np.asarray(initial), np.asarray(final)
    mask = np.ones(initial.shape, bool) if mask is None else np.asarray(mask, bool)
    (found,) = travel.travel([initial], [final], [mask])
    return found


def test_signs_and_distance_by_hand():
    found = of([3, -4, 9, 1], [-1, -1, 0, 1], [1, 1, 0, 1])
    assert (found.kept, found.flipped) == (3, 1)
    assert found.flipped_share == pytest.approx(1 / 3)
    assert found.distance == 5
    assert found.norm == pytest.approx(math.sqrt(26))
    assert found.relative_distance == pytest.approx(5 / math.sqrt(26))


def test_from_and_to_zero_is_no_change_of_sign():
    assert of([0.0, -0.0, 2.0, -2.0], [1.0, -1.0, 0.0, -0.0]).flipped == 0


def test_what_nothing_survives_of_has_not_moved():
    for found in (of([1.0, 2.0], [5.0, -5.0], [0, 0]), of([], [])):
        assert (found.kept, found.flipped_share, found.relative_distance) == (0, 0, 0)


def test_from_nothing_it_is_infinitely_far_unless_it_stays_there():
    assert of([0.0], [0.0]).relative_distance == 0
    assert of([0.0], [1e-30]).relative_distance == math.inf


def test_small_and_large_weights_neither_vanish_nor_overflow():
    tiny = of(np.float32([1e-30, 1e-30]), np.float32([-1e-30, 1e-30]))
    assert tiny.flipped == 1
    assert tiny.relative_distance == pytest.approx(math.sqrt(2))
    assert of(np.float32([3e38]), np.float32([-3e38])).relative_distance == 2


def test_many_small_steps_add_up():
    """In float32 the sum of squares would stop at 2^24."""
    count = 2**24 + 2**22
    ones = np.ones(count, np.float32)
    assert of(ones, 2 * ones).distance == pytest.approx(math.sqrt(count), rel=1e-12)


numbers = strategies.floats(-8, 8, width=32)
kernels = strategies.integers(1, 10).flatmap(
    lambda size: strategies.tuples(
        *[hypothesis.extra.numpy.arrays(np.float32, size, elements=numbers)] * 2,
        hypothesis.extra.numpy.arrays(bool, size),
    )
)


@hypothesis.given(kernels)
def test_what_is_pruned_has_no_part_in_it(kernel):
    initial, final, mask = kernel
    changed = of(np.where(mask, initial, 100), np.where(mask, final, -100), mask)
    assert changed == of(initial[mask], final[mask])
    back = of(final, initial, mask)
    assert (back.flipped, back.distance) == (changed.flipped, changed.distance)


def test_what_does_not_fit_is_refused():
    with toys.raises(ValueError, "one shape", "(2,)", "(3,)"):
        of(np.ones(2), np.ones(3))
    with pytest.raises(ValueError):
        travel.travel([np.ones(2)], [], [np.ones(2, bool)])
