"""How many units each kernel loses: by hand, and against the methods' own words."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import prunetrain as pt
from prunetrain.pruning import allocation
from tests import toys

LENET = [(784, 300), (300, 100), (100, 10)]


def stocks(*kept, total=None, shapes=None, removable=None):
    """What kernels have left; all of it may go unless told otherwise."""
    total, removable = total or kept, removable or kept
    shapes = shapes or [(size,) for size in total]
    return [
        allocation.Stock(f"net/{index}/kernel", *one, None)
        for index, one in enumerate(zip(shapes, total, kept, removable, strict=True))
    ]


def fixed(count):
    """So many are due of whatever kernels."""
    return lambda *indices: count


def lost(name, known, count):
    """The numbers by kernel, of an allocation that gives each its own."""
    groups = allocation.ALLOCATIONS[name](known, fixed(count))
    assert [indices for indices, _ in groups] == [(i,) for i in range(len(known))]
    return [number for _, number in groups]


def lenet(*kept):
    sizes = [math.prod(shape) for shape in LENET]
    return stocks(*(kept or sizes), total=sizes, shapes=LENET)


# Each by itself, and all in one pool


def test_layerwise_counts_for_each_kernel_by_itself():
    groups = allocation.ALLOCATIONS["layerwise"](
        stocks(100, 50, 7), lambda index: 10 + index
    )
    assert groups == [((0,), 10), ((1,), 11), ((2,), 12)]


def test_global_counts_in_one_pool():
    groups = allocation.ALLOCATIONS["global"](
        stocks(100, 50, 7), lambda *indices: 31 if indices == (0, 1, 2) else None
    )
    assert groups == [((0, 1, 2), 31)]


# Shares


@pytest.mark.parametrize(
    ("kept", "count", "expected"),
    [
        ((100, 50, 10), 80, [50, 25, 5]),
        # 53.3 and 26.7 and 5.3 of 75: 46.875, 23.4375, 4.6875 stay.
        ((100, 50, 10), 85, [53, 27, 5]),
        ((3, 3, 3), 1, [0, 0, 1]),
        ((3, 3, 3), 2, [0, 1, 1]),
        ((7, 7), 0, [0, 0]),
        ((7, 7), 13, [6, 7]),
    ],
)
def test_uniform_gives_all_the_same_sparsity_and_the_total_exactly(
    kept, count, expected
):
    """Largest remainders; the first of equal ones keeps one more."""
    assert lost("uniform", stocks(*kept), count) == expected


def test_a_kernel_that_is_sparser_already_keeps_what_it_has():
    known = stocks(10, 100, 100, total=(100, 100, 100))
    # 110 stay: 10, 50, 50.
    assert lost("uniform", known, 100) == [0, 50, 50]
    # 33 stay: 11 would be the first one's share.
    assert lost("uniform", known, 177) == [0, 88, 89]
    assert lost("uniform", known, 180) == [0, 90, 90]
    assert lost("uniform", known, 183) == [1, 91, 91]


def test_a_kernel_that_has_to_keep_some_is_made_up_for():
    known = stocks(100, 100, 100, removable=(30, 100, 100))
    assert lost("uniform", known, 150) == [30, 60, 60]


def test_uniform_plus_keeps_the_first_dense_and_a_fifth_of_the_last():
    """Gale et al. 2019: sizes 50, 1,000, 100; 95 % of all go."""
    # 58 would stay: fewer than 50 + 20.
    with toys.raises(allocation.NoWeightLeftError, "keeps 70 of the 1150", "leave 58"):
        lost("uniform_plus", stocks(50, 1000, 100), 1092)
    # 230 stay: 50, and of 1,100 others 180, 16 %, but 20 of the last.
    assert lost("uniform_plus", stocks(50, 1000, 100), 920) == [0, 840, 80]
    # 380 stay: 30 % of the others.
    assert lost("uniform_plus", stocks(50, 1000, 100), 770) == [0, 700, 70]
    # What the last has lost before does not come back.
    known = stocks(50, 1000, 10, total=(50, 1000, 100))
    assert lost("uniform_plus", known, 500) == [0, 500, 0]


def erdos_renyi(shapes, density):
    """Numbers to keep, after Evci et al. 2020, section 3, with NumPy.

    Kernels that would be denser than dense are dense, until none is.
    """
    sizes = np.array([math.prod(shape) for shape in shapes], float)
    raw = np.array([sum(shape) / math.prod(shape) for shape in shapes])
    dense = np.zeros(len(shapes), bool)
    while True:
        left = density * sizes.sum() - sizes[dense].sum()
        scale = left / (raw * sizes)[~dense].sum()
        over = ~dense & (scale * raw > 1)
        if not over.any():
            return np.where(dense, sizes, scale * raw * sizes)
        dense |= over


@pytest.mark.parametrize("density", [0.5, 0.2, 0.1, 0.01, 0.001])
@pytest.mark.parametrize(
    "shapes", [LENET, [(3, 3, 3, 16), (3, 3, 16, 32), (1, 1, 32, 64), (64, 10)]]
)
def test_erk_is_as_its_authors_have_it(shapes, density):
    sizes = [math.prod(shape) for shape in shapes]
    total = sum(sizes)
    keep = round(density * total)
    numbers = lost("erk", stocks(*sizes, shapes=shapes), total - keep)
    kept = np.subtract(sizes, numbers)
    assert kept.sum() == keep
    np.testing.assert_allclose(kept, erdos_renyi(shapes, keep / total), atol=1)


def test_erk_by_hand():
    """LeNet-300-100 at 3,188: in proportion to 1,084, 400 and 110, twice as many."""
    assert lost("erk", lenet(), 266_200 - 3188) == [
        235_200 - 2168,
        30_000 - 800,
        1000 - 220,
    ]
    # Ten times as many: 1,100 would be more than the last one has.
    kept = np.subtract([235_200, 30_000, 1000], lost("erk", lenet(), 266_200 - 15_840))
    assert kept.tolist() == [10_840, 4000, 1000]


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=300)
def test_shares_are_exact_within_bounds_and_in_proportion(data):
    number = data.draw(st.integers(1, 6))
    draw = data.draw
    weights = [draw(st.floats(0.01, 1000)) for _ in range(number)]
    most = [draw(st.integers(0, 300)) for _ in range(number)]
    least = [draw(st.integers(0, high)) for high in most]
    total = draw(st.integers(sum(least), sum(most)))
    shares = allocation._shares(weights, least, most, total)
    assert sum(shares) == total
    assert all(a <= b <= c for a, b, c in zip(least, shares, most, strict=True))
    # Whoever is below its bound has no less per weight than anybody above its own.
    for one in range(number):
        for other in range(number):
            if shares[one] < most[one] and shares[other] > least[other]:
                more = (shares[one] + 1) / weights[one]
                assert more >= (shares[other] - 1) / weights[other] - 1e-9


# LAMP


def lamp_masks(scores, masks, count):
    """By Lee et al. 2021, equation 4: all scores in one pool, by a stable sort."""
    pool = []
    for score, mask in zip(scores, masks, strict=True):
        score = score.astype(np.float64).ravel()
        live = np.flatnonzero(mask)
        score = score - min(0, score[live].min(initial=0))
        order = live[np.argsort(score[live], kind="stable")]
        ranks = np.zeros(score.shape)
        for place, index in enumerate(order):
            rest = np.sum(np.square(score[order[place:]]))
            ranks[index] = score[index] ** 2 / rest if rest else 0
        pool.append(ranks.reshape(mask.shape))
    return toys.lowest_removed(pool, masks, count)


@pytest.fixture(scope="module")
def network():
    """Kernels of 6 × 5 and 5 × 3."""
    return pt.PrunedModel(toys.mlp())


@pytest.mark.filterwarnings("ignore:pruning")
@pytest.mark.parametrize("criterion", ["magnitude", "signed"])
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=40)
def test_lamp_selects_what_its_scores_do(network, criterion, data):
    weights = [
        # No equal sums of squares, whose order rounding would decide.
        data.draw(hnp.arrays(np.int64, k.shape, elements=st.integers(-30, 30)))
        for k in network.kernels
    ]
    masks = [data.draw(hnp.arrays(bool, k.shape)) for k in network.kernels]
    rate = data.draw(st.floats(0, 0.95))
    live = sum(int(mask.sum()) for mask in masks)
    count = math.floor(rate * live + 0.5)
    hypothesis.assume(count < live)
    # Kernels of another scale, which LAMP does not see.
    weights = [weights[0].astype(np.float32), weights[1].astype(np.float32) / 512]
    network.set_masks(masks, allow_regrowth=True)
    for kernel, weight in zip(network.kernels, weights, strict=True):
        kernel.assign(weight)
    network.apply_masks()

    def signed(pruned, **_):
        return [kernel.value for kernel in pruned.kernels]

    chosen = signed if criterion == "signed" else criterion
    assert pt.prune(network, rate, criterion=chosen, allocation="lamp") == count
    scores = weights if criterion == "signed" else map(np.abs, weights)
    expected = lamp_masks(list(scores), masks, count)
    np.testing.assert_equal(toys.values(network.masks), expected)


def test_lamp_by_hand():
    """Squares 1, 4, 4 and 9, 16: 1/9, 4/8, 1 and 9/25, 1."""
    pruned = pt.PrunedModel(toys.linear([[1], [2], [2]], [[30, 40, 0]]))
    pruned.set_masks([[[1], [1], [1]], [[1, 1, 0]]])
    order = []
    for _ in range(3):
        before = toys.values(pruned.masks)
        assert pt.prune(pruned, rate=0.25, allocation="lamp") == 1
        after = toys.values(pruned.masks)
        gone = [np.flatnonzero(a != b) for a, b in zip(before, after, strict=True)]
        order.append([places.tolist() for places in gone])
    # Between 4/8 and 9/25, the latter.
    assert order == [[[0], []], [[], [0]], [[1], []]]


def test_lamp_empties_no_layer_whatever_its_scale():
    """G6: the highest weight of a kernel has a score of 1."""
    rng = np.random.default_rng(0)
    pruned = pt.PrunedModel(
        toys.linear(1e-30 * rng.normal(size=(8, 5)), 1e18 * rng.normal(size=(5, 8)))
    )
    with pytest.warns(UserWarning, match="fewer weights than outputs") as told:
        assert pt.prune(pruned, sparsity=0.95, allocation="lamp") == 76
    assert "every weight" not in str(told[0].message)
    assert min(layer.kept for layer in pruned.layer_sparsity()) > 0


def test_unknown_allocations_are_refused_with_the_nearest_name():
    with toys.raises(
        ValueError, "`allocation`", "layerwise, global", "'layerwize'", "did you mean"
    ):
        allocation.ALLOCATIONS["layerwize"]


@pytest.mark.parametrize("name", allocation.ALLOCATIONS)
def test_every_allocation_says_what_it_does(name):
    """Its first line is the flag's help."""
    assert allocation.ALLOCATIONS[name].__doc__.splitlines()[0].endswith(".")
