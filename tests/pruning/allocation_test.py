"""How many weights each kernel loses, by hand."""

import pytest

from prunetrain.pruning import allocation
from prunetrain.pruning import prune as prune_lib
from tests import toys

by_rate = prune_lib.num_to_remove_by_rate
by_sparsity = prune_lib.num_to_remove_by_sparsity


def test_layerwise_counts_for_each_kernel_by_itself():
    groups = allocation.ALLOCATIONS["layerwise"](
        [100, 50, 7], [100, 100, 10], [0.2, 0.1, 0.0], by_rate
    )
    assert groups == [((0,), 20), ((1,), 5), ((2,), 0)]


def test_global_counts_in_one_pool():
    groups = allocation.ALLOCATIONS["global"](
        [100, 50, 7], [100, 100, 10], [0.2] * 3, by_rate
    )
    # 0.2 · 157 = 31.4.
    assert groups == [((0, 1, 2), 31)]


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


def test_global_refuses_fractions_per_layer():
    with toys.raises(ValueError, "`layer_rates`", "'layerwise'", "'global'"):
        allocation.ALLOCATIONS["global"]([1, 1], [1, 1], [0.1, 0.2], by_rate)


def test_unknown_allocations_are_refused_with_the_nearest_name():
    with toys.raises(
        ValueError, "`allocation`", "layerwise, global", "'layerwize'", "did you mean"
    ):
        allocation.ALLOCATIONS["layerwize"]
