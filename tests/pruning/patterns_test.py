"""What goes together, by hand and against NumPy."""

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import prunetrain as pt
from prunetrain.pruning import layers, patterns
from prunetrain.pruning import prune as prune_lib
from tests import toys

L = keras.layers


def kernel_of(array, outputs=None, inputs=None, heads=None, layer=None):
    """A kernel with the axes of a Dense layer or a convolution."""
    rank = array.ndim
    variable = keras.Variable(array.astype(np.float32), name="kernel")
    outputs = (rank - 1,) if outputs is None else outputs
    inputs = (rank - 2,) if inputs is None else inputs
    return layers.Kernel(variable, layer, outputs, inputs, heads)


def units_of(name, scores, mask=None, **axes):
    scores = np.array(scores, np.float32)
    mask = np.ones(scores.shape, bool) if mask is None else np.array(mask, bool)
    kernel = kernel_of(scores, **axes)
    return patterns.PATTERNS[name](tf.constant(scores), tf.constant(mask), kernel)


def flat(tensor):
    return tensor.numpy().ravel().tolist()


# Elements


def test_elements_are_the_scores_and_the_mask_themselves():
    score, mask = (tf.abs, (tf.constant([[1.0], [2.0]]),)), tf.ones([2, 1], tf.bool)
    units = patterns.element(score, mask, None)
    assert units.scores is score
    assert units.live is units.removable is mask
    assert units.mask_of(mask) is mask


# Channels


def test_a_channel_has_the_sum_of_its_live_scores():
    scores = [[1, 2, 4], [8, 16, np.nan]]
    units = units_of("channel", scores, [[1, 1, 0], [1, 0, 0]])
    assert flat(units.scores) == [9, 2, 0]
    assert flat(units.live) == [True, True, False]
    assert flat(units.sizes) == [2, 1, 0]
    assert units.mask_of(tf.constant([[False, True, False]])).numpy().tolist() == [
        [False, True, False],
        [False, False, False],
    ]


def test_scores_in_half_precision_are_summed_in_float32():
    scores = np.ones([4096, 1], np.float16)
    units = patterns.channel(
        tf.constant(scores), tf.ones([4096, 1], tf.bool), kernel_of(scores)
    )
    assert units.scores.dtype == tf.float32
    assert flat(units.scores) == [4096]


CHANNELS = {
    "dense": (lambda: L.Dense(4), (6,), (-1,)),
    "convolution": (lambda: L.Conv2D(4, 3), (5, 5, 6), (-1,)),
    "transposed": (lambda: L.Conv2DTranspose(4, 3), (5, 5, 6), (-2,)),
    "depthwise": (
        lambda: L.DepthwiseConv2D(3, depth_multiplier=2),
        (5, 5, 2),
        (-2, -1),
    ),
}


@pytest.mark.parametrize("kind", CHANNELS)
def test_the_channels_of_the_smallest_l1_norm_go(kind):
    layer, shape, axes = CHANNELS[kind]
    inputs = keras.Input(shape)
    pruned = pt.PrunedModel(keras.Model(inputs, layer()(inputs)))
    (kernel,) = pruned.kernels
    weights = np.random.default_rng(0).normal(size=kernel.shape).astype(np.float32)
    kernel.assign(weights)
    others = tuple(set(range(weights.ndim)) - {a % weights.ndim for a in axes})
    norms = np.abs(weights).sum(others, keepdims=True)
    assert norms.size == 4
    removed = pt.prune(pruned, rate=0.5, pattern="channel")
    assert removed == weights.size / 2
    expected = np.broadcast_to(norms > np.sort(norms.ravel())[1], weights.shape)
    np.testing.assert_array_equal(pruned.masks[0].numpy(), expected)


def test_both_kernels_of_a_separable_convolution_lose_channels():
    inputs = keras.Input((5, 5, 4))
    model = keras.Model(inputs, L.SeparableConv2D(6, 3)(inputs))
    pruned = pt.PrunedModel(model)
    assert pt.prune(pruned, rate=0.5, pattern="channel") == 9 * 2 + 4 * 3
    depthwise, pointwise = (mask.numpy() for mask in pruned.masks)
    assert sorted(depthwise.sum((0, 1)).ravel()) == [0, 0, 9, 9]
    assert sorted(pointwise.sum((0, 1, 2))) == [0, 0, 0, 4, 4, 4]


def test_equal_channels_go_by_index():
    pruned = pt.PrunedModel(toys.linear(np.ones([3, 5])))
    assert pt.prune(pruned, rate=0.4, pattern="channel") == 6
    assert pruned.masks[0].numpy()[0].tolist() == [False, False, True, True, True]


@pytest.mark.filterwarnings("ignore:pruning removes every weight of net/dense_2")
def test_a_sum_favours_large_channels_where_kernels_compete():
    pruned = pt.PrunedModel(toys.linear(np.ones([6, 2]), 2 * np.ones([2, 2])))
    assert pt.prune(pruned, rate=0.5, allocation="global", pattern="channel") == 4
    assert [layer.kept for layer in pruned.layer_sparsity()] == [12, 0]


# Heads


def attention(**arguments):
    inputs = keras.Input((3, 4))
    layer = L.MultiHeadAttention(3, 2, name="attention", **arguments)
    return pt.PrunedModel(keras.Model(inputs, layer(inputs, inputs), name="net"))


def test_heads_go_as_a_whole_in_each_projection():
    pruned = attention()
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=k.shape).astype(np.float32) for k in pruned.kernels]
    for kernel, weight in zip(pruned.kernels, weights, strict=True):
        kernel.assign(weight)
    assert pt.prune(pruned, rate=0.34, pattern="head") == 4 * 8
    for mask, weight, axis in zip(pruned.masks, weights, (1, 1, 1, 0), strict=True):
        others = tuple({0, 1, 2} - {axis})
        norms = np.abs(weight).sum(others, keepdims=True)
        expected = np.broadcast_to(norms > norms.min(), weight.shape)
        np.testing.assert_array_equal(mask.numpy(), expected)


def test_heads_are_refused_where_there_are_none():
    with toys.raises(
        ValueError, "`pattern` head", "net/dense_1/kernel of a Dense", "prune_include"
    ):
        pt.prune(pt.PrunedModel(toys.mlp()), rate=0.5, pattern="head")


# Blocks


def test_blocks_at_the_edges_are_smaller():
    units = units_of("block_2x3", np.arange(1, 21).reshape(5, 4))
    assert units.scores.shape == (3, 1, 2, 1)
    assert flat(units.scores) == [
        *(1 + 2 + 3 + 5 + 6 + 7, 4 + 8),
        *(9 + 10 + 11 + 13 + 14 + 15, 12 + 16),
        *(17 + 18 + 19, 20),
    ]
    assert flat(units.sizes) == [6, 2, 6, 2, 3, 1]
    kept = np.array([1, 0, 0, 1, 1, 0], bool).reshape(3, 1, 2, 1)
    assert units.mask_of(tf.constant(kept)).numpy().astype(int).tolist() == [
        [1, 1, 1, 0],
        [1, 1, 1, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 1],
        [1, 1, 1, 0],
    ]


def blocks(array, height, width, reduce):
    """`reduce` of each block over the last two axes, in the array's own places."""
    result = np.zeros(array.shape, np.float64)
    for row in range(0, array.shape[-2], height):
        for column in range(0, array.shape[-1], width):
            place = ..., slice(row, row + height), slice(column, column + width)
            result[place] = reduce(array[place], (-2, -1), keepdims=True)
    return result


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=40)
def test_blocks_sum_their_live_scores_and_leave_other_weights_alone(data):
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=4, max_side=5))
    height, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    whole = st.integers(-50, 50).map(float)
    scores = data.draw(hnp.arrays(np.float32, shape, elements=whole))
    mask = data.draw(hnp.arrays(bool, shape))
    units = units_of(f"block_{height}x{width}", scores, mask)
    for score in np.unique(units.scores):
        new = units.mask_of(units.scores != score)
        sums = blocks(scores * mask, height, width, np.sum)
        np.testing.assert_array_equal(new, mask & (sums != score))


def test_a_convolution_has_blocks_at_each_place_of_its_window():
    weights = np.zeros([2, 1, 4, 4], np.float32)
    weights[0, 0, :2, 2:] = weights[1, 0, 2:, :2] = 1
    weights[0, 0, 0, 0] = 3
    inputs = keras.Input((4, 4, 4))
    model = keras.Model(inputs, L.Conv2D(4, (2, 1), use_bias=False)(inputs))
    model.set_weights([weights])
    pruned = pt.PrunedModel(model)
    # The lowest three of eight blocks left have a sum of 3 and twice 4.
    assert pt.prune(pruned, rate=0.625, pattern="block_2x2") == 5 * 4
    expected = blocks(weights, 2, 2, np.sum) > 0
    np.testing.assert_array_equal(pruned.masks[0].numpy(), expected)


# N:M


def test_two_of_four_are_held_and_the_higher_index_of_equal_ones():
    scores = np.array([[5, 1], [1, 1], [4, 1], [2, 1], [9, 3], [8, 2], [7, 1], [1, 0]])
    units = units_of("2:4", scores)
    assert units.held.numpy().astype(int).T.tolist() == [
        [1, 0, 1, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1, 0, 0],
    ]
    assert units.scores.numpy().tolist() == scores.tolist()


def test_pruned_weights_are_not_held_and_the_rest_counts_as_filled_up():
    scores = [[9], [8], [7], [6], [5], [4], [3]]
    units = units_of("2:4", scores, [[0], [1], [1], [1], [1], [1], [1]])
    held = flat(units.live & units.held)
    # Of the three at the end two.
    assert held == [False, True, True, False, True, True, False]
    units = units_of("2:4", scores[:5])
    assert flat(units.held) == [True, True, False, False, True]


def groups(array, m):
    """Groups of `m` along the last axis but one, filled up with zeros."""
    array = np.moveaxis(np.asarray(array), -2, -1)
    missing = -array.shape[-1] % m
    array = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])
    return array.reshape(-1, m)


@pytest.mark.parametrize("allocation", ["layerwise", "global", "uniform", "lamp"])
def test_a_sparsity_of_one_minus_n_over_m_gives_exactly_n_of_m(allocation):
    pruned = pt.PrunedModel(toys.mlp((8, 16, 4)))
    weights = toys.values(pruned.kernels)
    assert pt.prune(pruned, sparsity=0.75, allocation=allocation, pattern="1:4") == 144
    for mask, weight in zip(pruned.masks, weights, strict=True):
        sizes = np.abs(groups(weight, 4))
        expected = sizes == sizes.max(1, keepdims=True)
        np.testing.assert_array_equal(groups(mask.numpy(), 4), expected)


def test_beyond_n_of_m_is_refused_and_changes_nothing():
    pruned = pt.PrunedModel(toys.mlp((8, 16, 4)))
    before = toys.bits(pruned.kernels, pruned.masks)
    with toys.raises(
        prune_lib.NoWeightLeftError,
        *("net/dense_1/kernel can lose 64 of 128", "sparsity=0.51", "removes 65"),
    ):
        pt.prune(pruned, sparsity=0.51, pattern="2:4")
    with toys.raises(prune_lib.NoWeightLeftError, "can lose 96 of 192", "removes 98"):
        pt.prune(pruned, sparsity=0.51, pattern="2:4", allocation="global")
    assert toys.bits(pruned.kernels, pruned.masks) == before


def test_rounds_come_nearer_to_n_of_m_until_it_is_reached():
    pruned = pt.PrunedModel(toys.mlp((8, 16, 4)))
    left = []
    with pytest.raises(prune_lib.NoWeightLeftError):
        for _ in range(9):
            pt.prune(pruned, rate=0.2, allocation="global", pattern="2:4")
            left.append(sum(layer.kept for layer in pruned.layer_sparsity()))
    assert left == [154, 123, 98]
    pt.prune(pruned, sparsity=0.5, allocation="global", pattern="2:4")
    for mask in pruned.masks:
        assert (groups(mask.numpy(), 4).sum(1) == 2).all()


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=60)
def test_the_n_highest_live_ones_of_each_m_are_held(data):
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=3, max_side=7))
    m = data.draw(st.integers(2, 9))
    n = data.draw(st.integers(1, m - 1))
    hypothesis.assume(shape[-2] > n)
    few = st.integers(-2, 2).map(float)
    scores = data.draw(hnp.arrays(np.float32, shape, elements=few))
    mask = data.draw(hnp.arrays(bool, shape))
    units = units_of(f"{n}:{m}", scores, mask)
    held = (units.live & units.held).numpy()
    for one, score, live in zip(
        groups(held, m), groups(scores, m), groups(mask, m), strict=True
    ):
        places = np.flatnonzero(live)
        order = places[np.argsort(score[places], kind="stable")]
        assert set(np.flatnonzero(one)) == set(order[-n:])


def test_n_of_m_runs_along_all_inputs_of_an_attention_s_output():
    scores = np.arange(8).reshape(2, 2, 2)[::-1]
    units = units_of("1:4", scores, outputs=(2,), inputs=(0, 1))
    assert np.flatnonzero(units.held).tolist() == [2, 3]
    units = units_of("1:2", scores, outputs=(1, 2), inputs=(0,))
    assert np.flatnonzero(units.held).tolist() == [0, 1, 2, 3]


def test_n_of_m_is_refused_where_all_would_be_held():
    pruned = pt.PrunedModel(toys.mlp((2, 8, 3)))
    with toys.raises(
        ValueError, "`pattern` 2:4", "more than 2", "net/dense_1/kernel", "with 2."
    ):
        pt.prune(pruned, rate=0.2, pattern="2:4")
    assert pt.prune(pruned, rate=0.2, pattern="1:4") == 8


def test_n_of_m_is_refused_where_an_output_has_one_input():
    inputs = keras.Input((5, 5, 4))
    model = keras.Model(inputs, L.DepthwiseConv2D(3, name="deep")(inputs))
    with toys.raises(
        ValueError, "`pattern` 2:4", "deep/kernel of a DepthwiseConv2D", "exclude"
    ):
        pt.prune(pt.PrunedModel(model), rate=0.2, pattern="2:4")


def test_groups_and_blocks_larger_than_a_kernel_take_no_more_memory():
    scores = np.arange(1, 13).reshape(4, 3)
    units = units_of("block_999999x999999", scores)
    assert flat(units.scores) == [78]
    units = units_of("3:999999", scores)
    assert units.held.numpy().astype(int).tolist() == [[0] * 3, *[[1] * 3] * 3]


# Names


@pytest.mark.parametrize(
    "name",
    [
        *("4:2", "2:2", "0:4", "2:", ":4", "2:4:8", "-1:4", "02:4", " 2:4", "2:4 "),
        *("block_4", "block_4x", "block_0x4", "block_x", "block_4x4x4", "block4x4"),
        *("9" * 5000 + ":4", "block_HxW", "elements", ""),
    ],
)
def test_other_names_are_refused_with_those_there_are(name):
    assert name not in patterns.PATTERNS
    with toys.raises(
        ValueError, "`pattern`", "element, channel, head, N:M (N below M), block_HxW"
    ):
        patterns.PATTERNS[name]


@pytest.mark.parametrize("name", ["2:4", "1:16", "7:100000", "block_1x1", "block_32x8"])
def test_names_with_numbers_are_known(name):
    assert name in patterns.PATTERNS
    assert callable(patterns.PATTERNS[name])


@pytest.mark.parametrize(
    "pattern", [*patterns.PATTERNS.values(), *patterns.PATTERNS.forms.values()]
)
def test_every_pattern_says_what_it_does(pattern):
    """Its first line is the flag's help."""
    assert pattern.__doc__.splitlines()[0].endswith(".")


# A floor


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=40)
def test_a_floor_holds_the_highest_units_that_have_so_many_weights(data):
    shape = data.draw(st.sampled_from([(3, 4), (4, 3)]))
    few = st.integers(-3, 3).map(float)
    scores = data.draw(hnp.arrays(np.float32, shape, elements=few))
    mask = data.draw(hnp.arrays(bool, shape))
    name = data.draw(st.sampled_from(["element", "channel", "2:3", "block_2x2"]))
    min_kept = data.draw(st.integers(1, 13))
    plain = units_of(name, scores, mask)
    units = patterns.with_floor(plain, min_kept)
    must = (units.live & units.held).numpy()
    if plain.held is not None:
        assert not (plain.live & plain.held & ~must).numpy().any()
    sizes = np.ones(shape) if plain.sizes is None else plain.sizes.numpy()
    live, values = plain.live.numpy().ravel(), plain.scores.numpy().ravel()
    order = [i for i in np.argsort(values, kind="stable")[::-1] if live[i]]
    held, best = 0, set()
    for index in order:
        if held < min_kept:
            best.add(index)
            held += sizes.ravel()[index]
    assert best <= set(np.flatnonzero(must))
    if plain.held is None:
        assert best == set(np.flatnonzero(must))
