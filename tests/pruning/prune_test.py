"""Pruning: exact counts, the same ones each time, and what it refuses."""

import logging
import math
import warnings

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import prunetrain as pt
from prunetrain.pruning import patterns, topk
from prunetrain.pruning import prune as prune_lib
from prunetrain.pruning.allocation import ALLOCATIONS
from tests import toys

FRACTIONS = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.1, 0.2, 0.5, 0.99])


def kept(pruned):
    return [layer.kept for layer in pruned.layer_sparsity()]


def flat(variable):
    return variable.numpy().ravel().tolist()


def column(*weights):
    return pt.PrunedModel(toys.column(*weights))


# Properties


@pytest.fixture(scope="module")
def network():
    """Kernels of 6 × 5 and 5 × 3."""
    return pt.PrunedModel(toys.mlp())


def fill(pruned, data):
    """Draws weights, many of them equal in magnitude, and masks."""
    for kernel in pruned.kernels:
        elements = st.integers(-3, 3).map(float)
        kernel.assign(
            data.draw(hnp.arrays(np.float32, kernel.shape, elements=elements))
        )
    masks = [data.draw(hnp.arrays(bool, k.shape)) for k in pruned.kernels]
    pruned.set_masks(masks, allow_regrowth=True)
    return masks


def expected_count(name, fraction, live, total):
    if name == "rate":
        return math.floor(fraction * live + 0.5)
    return max(0, math.floor(fraction * total + 0.5) - (total - live))


@pytest.mark.parametrize("name", ["rate", "sparsity"])
@hypothesis.given(data=st.data(), fraction=FRACTIONS)
@hypothesis.settings(max_examples=60)
def test_layerwise_counts_are_exact_in_each_kernel(network, name, data, fraction):
    masks = fill(network, data)
    counts = [expected_count(name, fraction, m.sum(), m.size) for m in masks]
    hypothesis.assume(sum(counts) < sum(mask.sum() for mask in masks))
    scores = [np.abs(kernel.numpy()) for kernel in network.kernels]
    expected = [
        toys.lowest_removed([score], [mask], count)[0]
        for score, mask, count in zip(scores, masks, counts, strict=True)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a kernel may be emptied
        assert pt.prune(network, **{name: fraction}) == sum(counts)
    np.testing.assert_equal(toys.values(network.masks), expected)
    pt.testing.assert_masks_hold(network, previous_masks=masks)


@pytest.mark.parametrize("name", ["rate", "sparsity"])
@hypothesis.given(data=st.data(), fraction=FRACTIONS)
@hypothesis.settings(max_examples=60)
def test_global_counts_are_exact_in_the_pool(network, name, data, fraction):
    masks = fill(network, data)
    live, total = (sum(map(count, masks)) for count in (np.sum, np.size))
    count = expected_count(name, fraction, live, total)
    hypothesis.assume(count < live)
    scores = [np.abs(kernel.numpy()) for kernel in network.kernels]
    expected = toys.lowest_removed(scores, masks, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a kernel may be emptied
        removed = pt.prune(network, allocation="global", **{name: fraction})
    assert removed == count
    np.testing.assert_equal(toys.values(network.masks), expected)
    pt.testing.assert_masks_hold(network, previous_masks=masks)


@pytest.mark.parametrize("allocation", ["layerwise", "global"])
def test_pruning_the_same_weights_again_gives_the_same_masks(network, allocation):
    def run():
        network.model.set_weights(toys.mlp(seed=4).get_weights())
        everything = [np.ones(k.shape, bool) for k in network.kernels]
        network.set_masks(everything, allow_regrowth=True)
        network.model.set_weights(toys.mlp(seed=4).get_weights())
        for _ in range(3):
            pt.prune(network, rate=0.3, allocation=allocation)
        return toys.bits(network.masks, network.kernels)

    assert run() == run()


# Numbers by hand


def test_lenet_loses_twenty_percent_a_round_and_ten_in_the_last_layer():
    """Frankle & Carbin 2019, the LeNet-300-100 of section 2."""
    pruned = pt.PrunedModel(toys.mlp((784, 300, 100, 10)))
    left = {0: sum(kept(pruned))}
    for round_number in range(1, 16):
        pt.prune(pruned, rate=0.2, layer_rates={"dense_3": 0.1})
        left[round_number] = sum(kept(pruned))
    assert [left[n] for n in (0, 1, 2, 3, 7, 15)] == [
        266_200,
        213_060,
        170_538,
        136_511,
        56_094,
        9_537,
    ]


def test_equal_weights_go_by_index_half_of_them_and_always_the_same():
    """G3."""
    for _ in range(2):
        pruned = column(*np.ones(10))
        assert pt.prune(pruned, rate=0.5) == 5
        assert flat(pruned.masks[0]) == [False] * 5 + [True] * 5


def test_rounds_end_with_nothing_pruned():
    """G4: 10 weights, 20 % of what remains: 8, 6, 5, 4, 3, 2, and 0.2 · 2 < 0.5."""
    pruned = column(*range(1, 11))
    removed = [pt.prune(pruned, rate=0.2) for _ in range(30)]
    assert removed == [2, 2, 1, 1, 1, 1] + [0] * 24
    assert kept(pruned) == [2]


def test_layers_that_are_spared_leave_the_others_to_their_sparsity():
    """K2: layers of 1,000 at 90 % and of 10 at 0 % are 900 of 1,010."""
    rng = np.random.default_rng(0)
    pruned = pt.PrunedModel(
        toys.linear(rng.normal(size=(100, 10)), rng.normal(size=(10, 1)))
    )
    assert pt.prune(pruned, sparsity=0.9, layer_rates={"dense_2": 0.0}) == 900
    assert kept(pruned) == [100, 10]
    assert pruned.sparsity() == 900 / 1010


def test_sparsity_is_cumulative_and_rate_is_of_what_remains():
    pruned = column(*range(1, 11))
    assert pt.prune(pruned, sparsity=0.5) == 5
    assert pt.prune(pruned, sparsity=0.5) == 0
    assert pt.prune(pruned, sparsity=0.3) == 0
    assert pt.prune(pruned, rate=0.5) == 3
    assert pt.prune(pruned, sparsity=0.9) == 1
    assert pt.prune(pruned, rate=0.0) == 0
    assert flat(pruned.kernels[0]) == [0] * 9 + [10]


def test_two_rounds_of_twenty_percent_leave_64_percent():
    """D5."""
    pruned = column(*range(1, 101))
    for _ in range(2):
        pt.prune(pruned, rate=0.2)
    assert pruned.sparsity() == 0.36


def test_global_pruning_takes_from_where_the_weights_are_small():
    pruned = pt.PrunedModel(toys.linear([[1, 2], [3, 4]], [[5], [6]]))
    assert pt.prune(pruned, rate=0.33, allocation="global") == 2
    assert kept(pruned) == [2, 2]
    assert flat(pruned.kernels[0]) == [0, 0, 3, 4]


def test_pruned_weights_count_as_pruned_even_if_they_were_regrown_by_hand():
    """Scores of pruned weights are ignored, NaN among them."""
    pruned = column(1, 2, 3, 4)
    pruned.set_masks([np.array([[1], [1], [0], [1]])])
    pruned.kernels[0].assign([[1], [2], [np.nan], [4]])
    assert pt.prune(pruned, rate=0.34) == 1
    assert flat(pruned.masks[0]) == [False, True, False, True]
    assert flat(pruned.kernels[0]) == [0, 2, 0, 4]


@pytest.mark.parametrize(
    ("layer_rates", "expected"),
    [
        (None, [5, 2]),
        ({"dense_1": 0.1}, [9, 2]),
        ({"dense_.": 0.1, "dense_2": 0.9}, [9, 4]),
        ({"dense_2": 0.45, "dense": 0.1}, [9, 2]),
        ({r"net/dense_1/kernel$": 0}, [10, 2]),
        ([0.3, 0.25], [7, 3]),
        ((0.3, 0), [7, 4]),
    ],
)
def test_layer_rates_replace_the_rate_and_the_first_match_counts(layer_rates, expected):
    pruned = pt.PrunedModel(
        toys.linear(np.arange(1, 11).reshape(5, 2), np.arange(1, 5).reshape(2, 2))
    )
    pt.prune(pruned, rate=0.5, layer_rates=layer_rates)
    assert kept(pruned) == expected


def test_layers_of_different_precision_compete_in_one_pool():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(1, use_bias=False, dtype="float32"),
            keras.layers.Dense(3, use_bias=False, dtype="float64"),
        ]
    )
    model.set_weights([np.array([[1], [5], [3]]), np.array([[2, 4, 6]])])
    pruned = pt.PrunedModel(model)
    with pytest.warns(UserWarning, match="fewer weights than outputs"):
        assert pt.prune(pruned, rate=0.5, allocation="global") == 3
    assert [flat(mask) for mask in pruned.masks] == [
        [False, True, False],
        [False, True, True],
    ]


def test_new_masks_leave_the_model_as_it_is():
    pruned = column(1, 2, 3, 4)
    (mask,) = prune_lib.new_masks(pruned, rate=0.5)
    assert flat(mask) == [False, False, True, True]
    assert pruned.sparsity() == 0
    assert flat(pruned.kernels[0]) == [1, 2, 3, 4]


def test_allocations_and_patterns_may_be_functions():
    pruned = column(4, 3, 2, 1)

    def one_from_the_first(stocks, due):
        (stock,) = stocks
        counts = stock.total, stock.kept, stock.removable, stock.least
        assert counts == (4, 4, 4, 0)
        assert (stock.path, stock.shape) == ("net/dense_1/kernel", (4, 1))
        assert due(0) == 2
        return [((0,), 1)]

    def upside_down(score, mask, kernel):
        assert kernel.path == "net/dense_1/kernel"
        return patterns.Units(-topk.evaluate(score), mask, lambda kept: kept)

    removed = pt.prune(
        pruned, rate=0.5, allocation=one_from_the_first, pattern=upside_down
    )
    assert removed == 1
    assert flat(pruned.masks[0]) == [False, True, True, True]


def test_an_allocation_that_asks_for_more_than_may_go_is_refused():
    pruned = column(4, 3, 2, 1)
    for groups in ([((0,), 4)], [((0,), 5)]):
        with toys.raises(prune_lib.NoWeightLeftError, "at least one", "all 4"):
            pt.prune(pruned, rate=0.5, allocation=lambda stocks, due: groups)  # noqa: B023
    with toys.raises(prune_lib.NoWeightLeftError, "can lose 2 of 4", "removes 3"):
        pt.prune(
            pruned, rate=0.5, allocation=lambda stocks, due: [((0,), 3)], min_kept=2
        )
    assert pruned.sparsity() == 0


def test_a_criterion_may_give_functions_instead_of_scores():
    pruned = pt.PrunedModel(toys.linear([[1, 4], [3, 2]], [[9], [7]]))

    def farthest_from_three(pruned, **_):
        return [
            (from_three, (pruned.kernels[0].value,)),
            np.array([[0.5], [5]], np.float32),
        ]

    assert (
        pt.prune(pruned, 0.5, criterion=farthest_from_three, allocation="global") == 3
    )
    assert [flat(mask) for mask in pruned.masks] == [
        [True, False, False, True],
        [False, True],
    ]


def from_three(weights):
    return abs(weights - 3)


# In steps


def test_steps_end_at_the_counts_of_a_single_one():
    def lost(**arguments):
        pruned = pt.PrunedModel(toys.mlp((8, 9, 3)))
        pt.prune(pruned, criterion="random", **arguments)
        return kept(pruned)

    for arguments in (
        {"rate": 0.37, "layer_rates": {"dense_2": 0.6}},
        {"sparsity": 0.83, "allocation": "erk"},
        {"sparsity": 0.41, "pattern": "channel"},
    ):
        assert lost(iterations=7, **arguments) == lost(**arguments)


def test_each_step_sees_the_masks_and_weights_of_the_last():
    pruned = column(1, 2, 3, 4, 5, 6, 7, 8)
    seen = []

    def remembered(received, **_):
        assert received is pruned
        # Applies the masks: what it zeroes comes back too.
        received(np.ones([1, 8], np.float32))
        seen.append((flat(received.masks[0]), flat(received.kernels[0])))
        return [tf.abs(kernel.value) for kernel in received.kernels]

    (mask,) = prune_lib.new_masks(
        pruned, sparsity=0.875, criterion=remembered, iterations=3
    )
    assert flat(mask) == [False] * 7 + [True]
    assert [sum(masks) for masks, _ in seen] == [8, 4, 2]
    assert [weights for _, weights in seen] == [
        [1, 2, 3, 4, 5, 6, 7, 8],
        [0, 0, 0, 0, 5, 6, 7, 8],
        [0, 0, 0, 0, 0, 0, 7, 8],
    ]
    assert flat(pruned.masks[0]) == [True] * 8
    assert flat(pruned.kernels[0]) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_steps_take_scores_anew():
    """Of a criterion that turns the order round in each."""
    pruned = column(1, 2, 3, 4)
    turn = []

    def alternating(pruned, **_):
        turn.append(1)
        return [kernel.value * (-1) ** len(turn) for kernel in pruned.kernels]

    pt.prune(pruned, rate=0.5, criterion=alternating, iterations=2)
    # 4 goes first, then 1.
    assert flat(pruned.masks[0]) == [False, True, True, False]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_the_middle_of_the_steps_changes_nothing(kind):
    pruned = pt.PrunedModel(toys.mlp())
    pruned.set_masks(toys.random_masks(pruned))
    optimizer = keras.optimizers.Adam()
    pruned.attach_optimizer(optimizer)
    for slot, _ in pruned.slots(optimizer):
        slot.assign(tf.ones_like(slot))
    state = pruned.model.variables, pruned.masks, optimizer.variables
    before, turn = toys.bits(*state), []

    def failing(pruned, **_):
        turn.append(1)
        if len(turn) == 3:
            raise kind
        return [tf.abs(kernel.value) for kernel in pruned.kernels]

    with pytest.raises(kind):
        pt.prune(pruned, rate=0.5, criterion=failing, iterations=5)
    assert len(turn) == 3
    assert toys.bits(*state) == before


def test_a_criterion_of_one_s_own_may_say_how_many_steps_it_takes():
    pruned, turn = column(*range(1, 9)), []

    def counted(pruned, **_):
        turn.append(1)
        return [tf.abs(kernel.value) for kernel in pruned.kernels]

    counted.iterations = 4
    pt.prune(pruned, rate=0.5, criterion=counted)
    assert len(turn) == 4
    pt.prune(pruned, rate=0.5, criterion=counted, iterations=1)
    assert len(turn) == 5


# A floor


@pytest.mark.parametrize("allocation", ["global", "uniform", "erk", "lamp"])
def test_a_floor_is_held_and_the_others_make_up_for_it(allocation):
    """G6."""
    rng = np.random.default_rng(0)
    small = 1e-3 * rng.uniform(1, 2, size=(5, 4))
    pruned = pt.PrunedModel(toys.linear(small, rng.uniform(1, 2, size=(4, 10))))
    removed = pt.prune(pruned, rate=0.6, allocation=allocation, min_kept=12)
    assert removed == 36
    assert min(kept(pruned)) >= 12
    # The highest stay.
    lowest = np.sort(small.ravel())[20 - kept(pruned)[0]]
    np.testing.assert_array_equal(
        pruned.masks[0].numpy(), small >= np.float32(lowest) * (1 - 1e-6)
    )


def test_a_floor_that_a_kernel_s_own_rate_goes_below_ends_the_pruning():
    pruned = pt.PrunedModel(toys.linear(np.ones([4, 5]), np.ones([5, 2])))
    assert pt.prune(pruned, rate=0.3, min_kept=7) == 9
    before = toys.bits(pruned.kernels, pruned.masks)
    with toys.raises(
        prune_lib.NoWeightLeftError,
        *("net/dense_2/kernel can lose 0 of 7", "min_kept", "rate=0.3", "removes 2"),
    ):
        pt.prune(pruned, rate=0.3, min_kept=7)
    assert toys.bits(pruned.kernels, pruned.masks) == before


def test_a_floor_counts_weights_whatever_the_units():
    """Channels of 3 and of 6: 7 weights are held by 3 of the one, 2 of the other."""
    pruned = pt.PrunedModel(
        toys.linear(np.ones([3, 6]), 1 + np.arange(24).reshape(6, 4))
    )
    left = []
    with toys.raises(prune_lib.NoWeightLeftError, "can lose 0 of 5 units"):
        for _ in range(3):
            pt.prune(pruned, 0.25, allocation="global", pattern="channel", min_kept=7)
            left.append(kept(pruned))
    assert left == [[9, 24], [9, 12]]


def test_a_kernel_that_has_less_than_the_floor_keeps_what_it_has():
    pruned = pt.PrunedModel(toys.linear([[1, 2]], 9 * np.ones([2, 10])))
    assert pt.prune(pruned, rate=0.4, allocation="global", min_kept=5) == 9
    assert kept(pruned) == [2, 11]


def test_without_a_floor_everything_may_go_from_a_kernel():
    pruned = pt.PrunedModel(toys.linear([[1], [2]], 3 * np.ones([1, 20])))
    with pytest.warns(UserWarning, match="net/dense_1/kernel"):
        pt.prune(pruned, rate=0.5, allocation="global", min_kept=0)
    assert kept(pruned) == [0, 11]


# Emptied layers


def test_a_layer_that_is_emptied_is_named_in_a_warning():
    """G6: one layer scaled by 1e-3, 60 % globally."""
    rng = np.random.default_rng(0)
    small = 1e-3 * rng.uniform(1, 2, size=(5, 4))
    pruned = pt.PrunedModel(toys.linear(small, rng.uniform(1, 2, size=(4, 5))))
    with pytest.warns(UserWarning, match="every weight of net/dense_1/kernel") as seen:
        assert pt.prune(pruned, rate=0.6, allocation="global") == 24
    # It points at the line that pruned.
    assert [warning.filename for warning in seen] == [__file__]
    assert kept(pruned) == [0, 16]
    assert np.isfinite(pruned(np.ones([1, 5]))).all()


def test_a_layer_with_fewer_weights_than_outputs_is_named_with_both():
    pruned = pt.PrunedModel(toys.linear(np.ones([2, 6]), 9 * np.ones([6, 2])))
    assert pt.prune(pruned, rate=0.25, allocation="global") == 6
    with pytest.warns(UserWarning) as seen:
        pt.prune(pruned, rate=0.1, allocation="global")
    (warning,) = seen
    assert warning.filename == __file__
    text = str(warning.message)
    assert "fewer weights than outputs in net/dense_1/kernel (4 for 6)" in text
    assert "min_kept" in text
    assert "\n" not in text
    # Once, where it happens.
    pt.prune(pruned, rate=0.1, allocation="global")


def test_emptied_and_thin_layers_are_told_in_one_line():
    pruned = pt.PrunedModel(
        toys.linear(np.ones([2, 3]), 2 * np.ones([3, 4]), 9 * np.ones([4, 5]))
    )
    with pytest.warns(UserWarning) as seen:
        pt.prune(pruned, sparsity=16 / 38, allocation="global")
    assert len(seen) == 1
    text = str(seen[0].message)
    assert "every weight of net/dense_1/kernel: nothing" in text
    assert "net/dense_2/kernel (2 for 4)" in text


def test_a_layer_is_told_of_once_however_many_steps_it_took():
    pruned = pt.PrunedModel(toys.linear(np.ones([2, 6]), 9 * np.ones([6, 5])))
    with pytest.warns(UserWarning) as seen:
        pt.prune(pruned, rate=0.2, allocation="global", iterations=4)
    assert len(seen) == 1


def test_an_empty_layer_stays_empty_and_is_not_reported_again():
    """G1."""
    pruned = pt.PrunedModel(toys.linear(np.ones([2, 2]), np.ones([2, 2])))
    pruned.set_masks([np.zeros([2, 2]), np.ones([2, 2])])
    assert pt.prune(pruned, rate=0.25) == 1
    assert kept(pruned) == [0, 3]


# Refusals


FRACTION_RULE = ["must be a fraction from 0 to below 1", "0.2 for 20 %"]


@pytest.mark.parametrize("name", ["rate", "sparsity"])
@pytest.mark.parametrize(
    "value", [20, 1, 1.0, -0.1, math.nan, math.inf, True, False, "0.2", [0.2]]
)
def test_fractions_out_of_range_are_refused_with_unit_and_example(name, value):
    """D5."""
    pruned = column(1, 2)
    with toys.raises(ValueError, f"`{name}`", *FRACTION_RULE, f"{name}={value!r}"):
        pt.prune(pruned, **{name: value})
    assert pruned.sparsity() == 0


@pytest.mark.parametrize("value", [20, 1, -0.1, math.nan, True, None])
@pytest.mark.parametrize("form", [lambda v: {"dense": v}, lambda v: [v]])
def test_layer_rates_out_of_range_are_refused(form, value):
    with toys.raises(ValueError, "`layer_rates`", *FRACTION_RULE, f"={value!r}"):
        pt.prune(column(1, 2), rate=0.5, layer_rates=form(value))


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ({}, ["exactly one of `rate`", "`sparsity`", "rate=None, sparsity=None"]),
        (
            {"rate": 0.2, "sparsity": 0.5},
            ["exactly one of `rate`", "rate=0.2, sparsity=0.5"],
        ),
        (
            {"rate": 0.2, "criterion": "magnitud"},
            ["`criterion`", "criterion='magnitud'", "did you mean 'magnitude'"],
        ),
        (
            {"rate": 0.2, "allocation": "globl"},
            ["`allocation`", "layerwise", "'globl'", "did you mean 'global'"],
        ),
        (
            {"rate": 0.2, "pattern": "elements"},
            ["`pattern`", "'elements'", "did you mean 'element'"],
        ),
        (
            {"rate": 0.2, "layer_rates": {"dense_7": 0.1}},
            ["`layer_rates`", "'dense_7'", "none of: net/dense_1/kernel"],
        ),
        (
            {"rate": 0.2, "layer_rates": {"dense_(": 0.1}},
            ["`layer_rates`", "regular expressions", "'dense_('"],
        ),
        (
            {"rate": 0.2, "layer_rates": [0.1, 0.1]},
            ["`layer_rates`", "each of the 1 kernels", "2 fractions"],
        ),
        (
            {"rate": 0.2, "pattern": "4:2"},
            ["`pattern`", "N:M (N below M)", "block_HxW", "'4:2'"],
        ),
        (
            {"rate": 0.2, "iterations": 0},
            ["`iterations` must be a whole number from 1", "iterations=0"],
        ),
        (
            {"rate": 0.2, "min_kept": -1},
            ["`min_kept` must be a whole number from 0", "min_kept=-1"],
        ),
        (
            {"rate": 0.2, "min_kept": 0.5},
            ["`min_kept` must be a whole number", "(weights)", "min_kept=0.5"],
        ),
        (
            {"rate": 0.2, "criterion": "snip"},
            ["`data` must be given", "'snip'", "data=None"],
        ),
        (
            {"rate": 0.2, "min_kept": 39},
            ["can lose 1 of 40", "min_kept", "rate=0.2", "removes 8"],
        ),
        ({"rate": 0.99}, ["at least one weight", "rate=0.99", "all 40"]),
        ({"sparsity": 0.99}, ["at least one weight", "sparsity=0.99", "all 40"]),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(arguments, fragments):
    """G1: 0.99 of 40 weights rounds to all 40."""
    pruned = column(*range(1, 41))
    with toys.raises(ValueError, *fragments):
        pt.prune(pruned, **arguments)
    assert pruned.sparsity() == 0
    assert flat(pruned.kernels[0]) == list(range(1, 41))


def test_ninety_nine_percent_of_forty_is_possible_over_two_kernels():
    """G1: some weight must be left, not one in each layer."""
    pruned = pt.PrunedModel(toys.linear(np.ones([10, 4]), np.ones([4, 50])))
    with pytest.warns(UserWarning, match="net/dense_1/kernel"):
        assert pt.prune(pruned, rate=0.99) == 40 + 198
    assert kept(pruned) == [0, 2]


def test_layer_rates_need_layerwise_allocation():
    pruned = pt.PrunedModel(toys.linear(np.ones([2, 2]), np.ones([2, 2])))
    for allocation in set(ALLOCATIONS) - {"layerwise"}:
        with toys.raises(ValueError, "`layer_rates`", "'layerwise'", "together"):
            pt.prune(pruned, 0.2, allocation=allocation, layer_rates={"dense_1": 0.1})
    assert pruned.sparsity() == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_diverged_weights_are_refused_by_name(value):
    pruned = pt.PrunedModel(toys.linear([[1, 2]], [[3], [value]]))
    with toys.raises(ValueError, "finite", "net/dense_2/kernel"):
        pt.prune(pruned, rate=0.5)
    assert pruned.sparsity() == 0


def test_nothing_is_left_is_an_error_of_its_own():
    """So that a loop over rounds can end there."""
    with pytest.raises(prune_lib.NoWeightLeftError):
        pt.prune(column(1), rate=0.5)
    assert issubclass(prune_lib.NoWeightLeftError, ValueError)


def test_a_single_weight_survives_what_rounds_down():
    pruned = column(7)
    assert pt.prune(pruned, rate=0.49) == 0
    assert flat(pruned.kernels[0]) == [7]


def test_numpy_fractions_are_fractions():
    assert pt.prune(column(1, 2, 3, 4), rate=np.float64(0.5)) == 2


@pytest.mark.parametrize(
    "scores",
    [
        [np.ones((3,), np.float32)],
        [(from_three, (np.ones((3,), np.float32),))],
    ],
)
def test_a_criterion_that_scores_something_else_is_refused(scores):
    pruned = column(1, 2, 3)
    with toys.raises(ValueError, "`criterion`", "(3, 1)", "Received"):
        pt.prune(pruned, rate=0.5, criterion=lambda pruned, **_: scores)


def scored(function):
    return lambda pruned, **_: [(function, (k.value,)) for k in pruned.kernels]


WRONG_SCORES = {
    "none": lambda pruned, **_: None,
    "an empty list": lambda pruned, **_: [],
    "one tensor": lambda pruned, **_: pruned.kernels[0].value,
    "too few": lambda pruned, **_: [pruned.kernels[0].value],
    "a triple": lambda pruned, **_: [(tf.abs, (k.value,), 0) for k in pruned.kernels],
    "no tensors": lambda pruned, **_: [(tf.abs, ()) for _ in pruned.kernels],
    "no function": scored(None),
    "integers": scored(lambda w: tf.cast(w, tf.int32)),
    "an array": scored(lambda w: w.numpy()),
    "nothing": scored(lambda w: None),
    "a scalar": scored(tf.reduce_sum),
    "transposed": scored(tf.transpose),
}


@pytest.mark.parametrize("kind", WRONG_SCORES)
def test_scores_of_another_kind_are_refused(kind):
    pruned = pt.PrunedModel(toys.mlp())
    with toys.raises(ValueError, "`criterion` must return a list", "Received"):
        pt.prune(pruned, rate=0.2, criterion=WRONG_SCORES[kind])
    assert pruned.sparsity() == 0


def test_a_pair_that_gives_other_scores_at_each_call_is_refused():
    pruned = pt.PrunedModel(toys.mlp((50, 60, 3)))
    with toys.raises(ValueError, "the same bits at each call", "instead of"):
        pt.prune(
            pruned, rate=0.2, criterion=scored(lambda w: tf.random.uniform(w.shape))
        )
    assert pruned.sparsity() == 0


def test_kernels_of_many_shapes_are_pruned_without_a_word_of_tensorflow_s():
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("tensorflow")
    logger.addHandler(handler)
    try:
        pt.prune(pt.PrunedModel(toys.mlp(range(3, 12))), rate=0.2)
    finally:
        logger.removeHandler(handler)
    assert heard == []
