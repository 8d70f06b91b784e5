"""Overlap of tickets, against hand-worked numbers, draws, and itself."""

import math

import hypothesis
import hypothesis.extra.numpy
import numpy as np
import pytest
from hypothesis import strategies

from prunetrain.analysis import overlap
from tests import toys


def drawn(rng, shape, kept):
    """A random mask with just so many weights."""
    mask = np.zeros(math.prod(shape), bool)
    mask[rng.choice(mask.size, kept, replace=False)] = True
    return mask.reshape(shape)


def test_the_overlap_by_hand():
    """3 of 5 and 2 of 5: mean 2 · 3 / 5, variance 1.2 · 0.4 · 3 / 4."""
    (found,) = overlap.overlap(
        [np.array([1, 1, 1, 0, 0], bool)], [np.array([0, 0, 1, 1, 0], bool)]
    )
    assert (found.kept_first, found.kept_second, found.both) == (3, 2, 1)
    assert found.total == 5
    assert found.expected == pytest.approx(1.2)
    assert found.deviation == pytest.approx(0.6)


@pytest.mark.parametrize("seed", range(8))
def test_random_masks_overlap_as_expected(seed):
    rng = np.random.default_rng(seed)
    shapes, kept = [(40, 30), (5, 6, 7)], [(300, 500), (20, 190)]
    pair = [
        [drawn(rng, shape, counts[i]) for shape, counts in zip(shapes, kept)]  # noqa: B905
        for i in range(2)
    ]
    found = overlap.overlap(*pair)
    for one in (*found, overlap.combined(found)):
        assert one.deviation > 0
        assert abs(one.both - one.expected) < 5 * one.deviation


def test_mean_and_deviation_are_those_of_many_draws():
    rng = np.random.default_rng(0)
    first = [drawn(rng, (6, 5), 12), drawn(rng, (9,), 4)]
    counts, found = [], None
    for _ in range(4000):
        second = [drawn(rng, (6, 5), 20), drawn(rng, (9,), 3)]
        found = overlap.combined(overlap.overlap(first, second))
        counts.append(found.both)
    # Of 4,000 draws the mean is off by deviation / 63.
    assert np.mean(counts) == pytest.approx(found.expected, abs=0.1 * found.deviation)
    assert np.std(counts) == pytest.approx(found.deviation, rel=0.05)


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [([], [], 0), ([1], [1], 1), ([1], [0], 0), ([0], [0], 0), ([1, 1], [1, 1], 2)],
)
def test_where_there_is_no_choice_nothing_deviates(first, second, both):
    (found,) = overlap.overlap([np.array(first, bool)], [np.array(second, bool)])
    assert (found.both, found.expected, found.deviation) == (both, both, 0)


def test_counts_of_large_kernels_do_not_wrap_around():
    """The products below the root are beyond 64 bits."""
    mask = np.zeros(20_000_000, bool)
    mask[::2] = True
    (found,) = overlap.overlap([mask], [mask])
    assert found.both == found.kept_first == 10_000_000
    assert found.expected == 5_000_000
    # n (K/N) (1 - K/N) (N - n) / (N - 1) is N / 16 but for the last factor.
    assert found.deviation == pytest.approx(math.sqrt(20_000_000 / 16), rel=1e-6)


masks = strategies.integers(0, 12).flatmap(
    lambda size: strategies.tuples(
        *[hypothesis.extra.numpy.arrays(bool, size) for _ in range(2)]
    )
)


@hypothesis.given(strategies.lists(masks, max_size=4))
def test_an_overlap_is_within_its_bounds_and_sums_up(pairs):
    found = overlap.overlap(*([pair[i] for pair in pairs] for i in range(2)))
    swapped = overlap.overlap(*([pair[1 - i] for pair in pairs] for i in range(2)))
    for one, other in zip(found, swapped, strict=True):
        low = max(0, one.kept_first + one.kept_second - one.total)
        assert low <= one.both <= min(one.kept_first, one.kept_second)
        assert low - 1e-9 <= one.expected <= min(one.kept_first, one.kept_second) + 1e-9
        assert one.both == other.both
        assert one.expected == other.expected
        assert one.deviation == pytest.approx(other.deviation)
    whole = overlap.combined(found)
    assert whole.both == sum(one.both for one in found)
    assert whole.total == sum(one.total for one in found)
    assert whole.expected == pytest.approx(sum(one.expected for one in found))
    variance = sum(one.deviation**2 for one in found)
    assert whole.deviation == pytest.approx(math.sqrt(variance))


def test_masks_that_do_not_fit_are_refused():
    with toys.raises(ValueError, "same shape", "(2,)", "(3,)"):
        overlap.overlap([np.ones(2, bool)], [np.ones(3, bool)])
    with pytest.raises(ValueError):
        overlap.overlap([np.ones(2, bool)], [])
