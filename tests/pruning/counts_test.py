"""How many units are to go, at once or in steps."""

import hypothesis
import pytest
from hypothesis import strategies as st

from prunetrain.pruning import counts
from prunetrain.pruning.allocation import NoWeightLeftError, Stock
from tests import toys

by_rate = counts.num_to_remove_by_rate
by_sparsity = counts.num_to_remove_by_sparsity


def stock(kept, total=None, removable=None, path="net/a/kernel"):
    removable = kept if removable is None else removable
    return Stock(path, (kept,), total or kept, kept, removable, None)


def counter(stocks, fractions, rule=by_rate, share=1, start=None):
    start = start or [(one.kept, one.total) for one in stocks]
    return counts.counter(stocks, start, fractions, rule, share, "rate=…")


@pytest.mark.parametrize(
    ("fraction", "kept", "expected"),
    [(0.2, 5, 1), (0.5, 5, 3), (0.1, 4, 0), (0.1, 5, 1), (0.0, 9, 0), (0.9, 0, 0)],
)
def test_rates_are_of_what_remains_and_halves_round_up(fraction, kept, expected):
    assert by_rate(fraction, kept, 1000) == expected


@pytest.mark.parametrize(
    ("sparsity", "kept", "total", "expected"),
    [
        (0.5, 10, 10, 5),
        (0.5, 8, 10, 3),
        (0.5, 5, 10, 0),
        (0.5, 2, 10, 0),
        (0.5, 5, 5, 3),
    ],
)
def test_sparsity_is_of_all_and_never_asks_for_regrowth(
    sparsity, kept, total, expected
):
    assert by_sparsity(sparsity, kept, total) == expected


def test_what_is_due_is_counted_for_the_kernels_together():
    due = counter([stock(5), stock(5), stock(5)], [0.3] * 3)
    # 1.5 of each, 4.5 of all.
    assert (due(0), due(1, 2), due(0, 1, 2)) == (2, 3, 5)


def test_kernels_with_rates_of_their_own_are_not_counted_together():
    due = counter([stock(10), stock(10)], [0.1, 0.2])
    assert (due(0), due(1)) == (1, 2)
    with toys.raises(ValueError, "`layer_rates`", "'layerwise'"):
        due(0, 1)


def test_what_is_held_cannot_be_due():
    stocks = [stock(10, removable=2), stock(10)]
    due = counter(stocks, [0.3] * 2)
    # The other one has enough for both.
    assert due(0, 1) == 6
    with toys.raises(
        NoWeightLeftError, "net/a/kernel can lose 2 of 10 units", "removes 3", "less"
    ):
        due(0)


def test_many_kernels_that_hold_too_much_are_counted_not_named():
    due = counter([stock(10, removable=1)] * 5, [0.3] * 5)
    with toys.raises(NoWeightLeftError, "the 5 kernels can lose 5 of 50", "removes 15"):
        due(*range(5))


def test_steps_leave_a_constant_factor_less_each():
    """1,000 to 1 in three steps: 100, 10, 1 (Tanaka et al. 2020, algorithm 1)."""
    left, lost = 1000, []
    for step in (1, 2, 3):
        due = counter([stock(left)], [0.999], share=step / 3, start=[(1000, 1000)])
        lost.append(due(0))
        left -= lost[-1]
    assert lost == [900, 90, 9]


@hypothesis.given(
    kept=st.integers(0, 5000),
    pruned=st.integers(0, 500),
    fraction=st.floats(0, 1, exclude_max=True),
    steps=st.integers(1, 30),
    rule=st.sampled_from([by_rate, by_sparsity]),
)
@hypothesis.settings(max_examples=200)
def test_steps_end_at_the_count_of_a_single_one(kept, pruned, fraction, steps, rule):
    total = kept + pruned
    left = kept
    for step in range(1, steps + 1):
        now = stock(left, total)
        due = counter([now], [fraction], rule, step / steps, [(kept, total)])
        count = due(0)
        assert count >= 0
        left -= count
    assert kept - left == rule(fraction, kept, total)
