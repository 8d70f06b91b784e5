"""The selection by count against a stable sort in NumPy."""

import contextlib
import math
import re

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from prunetrain.pruning import topk
from tests import toys

DTYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": tf.bfloat16.as_numpy_dtype,
}
# Few values, so that many tie, among them both zeros, subnormals and the extremes.
FEW = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 5e-324, 1e-45, -1e-45, 6e-8, 3e38, -3e38, 6e4]


def finite(values, dtype):
    """`values` in that precision; what is not finite becomes 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(values).astype(dtype)
    return np.where(np.isfinite(values), values, dtype(1))


def scores_of(shape, dtype=np.float32):
    """Finite scores of that shape: from a few values, or from all bits there are."""
    few = st.sampled_from(FEW)
    bits = st.integers(-(2**31), 2**31 - 1)
    return hnp.arrays(np.float64, shape, elements=few).map(
        lambda values: finite(values, dtype)
    ) | hnp.arrays(np.int32, shape, elements=bits).map(
        lambda values: finite(values.view(np.float32), dtype)
    )


@st.composite
def pools(draw, shapes, dtype=np.float32):
    """Scores, masks, and a count of at most the live weights."""
    scores = [draw(scores_of(shape, dtype)) for shape in shapes]
    masks = [draw(hnp.arrays(bool, shape)) for shape in shapes]
    count = draw(st.integers(0, int(sum(mask.sum() for mask in masks))))
    return scores, masks, count


def remove_lowest(scores, masks, count):
    found = topk.remove_lowest(
        [tf.constant(score) for score in scores],
        [tf.constant(mask) for mask in masks],
        tf.constant(count, tf.int64),
    )
    return [mask.numpy() for mask in found]


def assert_as_reference(scores, masks, count):
    found = remove_lowest(scores, masks, count)
    for new, want in zip(found, toys.lowest_removed(scores, masks, count), strict=True):
        np.testing.assert_array_equal(new, want)


@pytest.mark.parametrize("dtype", DTYPES)
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=60)
def test_compiled_selection_equals_a_stable_sort(dtype, data):
    shapes = [(3, 4), (5,), (2, 1, 3)]
    assert_as_reference(*data.draw(pools(shapes, DTYPES[dtype])))


@contextlib.contextmanager
def eager_functions():
    """New shapes without a compilation each."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


@hypothesis.given(
    data=st.data(),
    shapes=st.lists(hnp.array_shapes(max_dims=4, max_side=4), min_size=1, max_size=4),
)
@hypothesis.settings(max_examples=40)
def test_selection_of_any_shapes_equals_a_stable_sort(data, shapes):
    pool = data.draw(pools(shapes))
    with eager_functions():
        assert_as_reference(*pool)


@pytest.mark.parametrize("size", [31, 32, 33, 96, 100])
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=15)
def test_counting_in_groups_misses_nothing(size, data):
    """Compiled; sizes around multiples of the groups of 32 that are summed first."""
    assert_as_reference(*data.draw(pools([(size,), (3, size)])))


# Scores that are not stored


def difference(first, second):
    return tf.abs(first - second)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=30)
def test_scores_given_as_functions_equal_those_given_as_tensors(dtype, data):
    """A pool of both kinds: |w|, |w - v| and a tensor."""
    dtype = DTYPES[dtype]
    shapes = [(7, 11), (5,), (33,)]
    weights, masks, count = data.draw(pools(shapes, dtype))
    # Small, so that no difference overflows.
    moved = [np.clip(w, -9, 9).astype(dtype) for w in weights]
    others = np.ones(shapes[1], dtype)
    scores = [np.abs(moved[0]), np.abs(moved[1] - others), moved[2]]
    found = topk.remove_lowest(
        [
            (tf.abs, (tf.constant(moved[0]),)),
            (difference, (tf.constant(moved[1]), tf.constant(others))),
            tf.constant(moved[2]),
        ],
        [tf.constant(mask) for mask in masks],
        tf.constant(count, tf.int64),
    )
    expected = toys.lowest_removed(scores, masks, count)
    for new, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(new, want)


def test_the_same_function_over_other_tensors_is_no_reason_to_trace_again():
    masks, one = [tf.ones(6, tf.bool)], tf.constant(1, tf.int64)
    for _ in range(2):
        topk.remove_lowest([(tf.abs, (tf.range(-3.0, 3.0),))], masks, one)
        traces = topk.remove_lowest.experimental_get_tracing_count()
    weights = tf.Variable([1.0, -5, 2, 3, 4, 6])
    for _ in range(2):
        weights.assign_add(tf.ones(6))
        value = tf.convert_to_tensor(weights)
        (mask,) = topk.remove_lowest([(tf.abs, (value,))], masks, one)
    assert mask.numpy().tolist() == [False, True, True, True, True, True]
    assert topk.remove_lowest.experimental_get_tracing_count() == traces


@pytest.mark.parametrize("jit_compile", [True, None])
def test_selection_works_inside_a_compiled_function(jit_compile):
    weights = tf.Variable([[-3.0, 1], [2, -1]])
    mask = tf.Variable(tf.ones([2, 2], tf.bool))

    @tf.function(jit_compile=jit_compile)
    def update(count):
        scores = [(tf.abs, (tf.convert_to_tensor(weights),))]
        (new,) = topk.remove_lowest(scores, [tf.convert_to_tensor(mask)], count)
        mask.assign(new)

    update(tf.constant(1, tf.int64))
    assert mask.numpy().tolist() == [[True, False], [True, True]]
    update(tf.constant(2, tf.int64))
    assert mask.numpy().tolist() == [[True, False], [False, False]]


def test_live_scores_that_are_not_finite_are_found_in_each_tensor():
    values = tf.constant([1.0, np.nan, -np.inf])
    masks = [[True, False, False], [True, True, False], [False, False, True]]
    found = [topk.all_finite(values, tf.constant(mask)) for mask in masks]
    assert found == [True, False, False]


# Memory


def stored(function, *specs):
    """(dtype, number of elements) of what the compiled function computes and stores."""
    text = function.experimental_get_compiler_ir(*specs)(stage="optimized_hlo")
    found, fused = [], False
    for line in text.splitlines():
        if line and not line[0].isspace():
            # What a fusion computes inside goes straight into its result.
            fused = line.startswith(("%fused", "%wrapped"))
        result = re.match(r"\s+(?:ROOT )?%\S+ = (\w+)\[([\d,]*)\]\S* ([\w-]+)\(", line)
        if result and not fused:
            dtype, shape, kind = result.groups()
            if kind not in ("parameter", "get-tuple-element", "bitcast"):
                found.append((dtype, math.prod(int(n) for n in shape.split(",") if n)))
    return found


@pytest.mark.parametrize("shapes", [[(4097, 4097)], [(2048, 2048)] * 4])
@pytest.mark.parametrize("function", [tf.abs, difference])
def test_selection_stores_no_scores_and_no_positions(shapes, function):
    """G8. From what XLA has compiled, not run: masks, and a count per 32 weights."""
    operands = 2 if function is difference else 1

    @tf.function(jit_compile=True)
    def select(count, *tensors):
        weights, masks = tensors[: len(shapes)], tensors[len(shapes) :]
        scores = [(function, (weight,) * operands) for weight in weights]
        return topk.remove_lowest.python_function(scores, masks, count)

    found = stored(
        select,
        tf.TensorSpec([], tf.int64),
        *(tf.TensorSpec(shape) for shape in shapes),
        *(tf.TensorSpec(shape, tf.bool) for shape in shapes),
    )
    size = math.prod(shapes[0])
    large = [dtype for dtype, elements in found if elements > size // 32 + 1]
    assert set(large) == {"pred"}
    # The new masks; one more where the size is no multiple of 32. XLA wrote them twice
    # before TensorFlow 2.20.
    copies = 1 if toys.VERSIONS["tensorflow"] >= (2, 20) else 2
    assert len(shapes) <= len(large) <= copies * len(shapes) + (size % 32 > 0)


# By hand


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        ([3, 1, 2, 4], 0, [1, 1, 1, 1]),
        ([3, 1, 2, 4], 1, [1, 0, 1, 1]),
        ([3, 1, 2, 4], 2, [1, 0, 0, 1]),
        ([3, 1, 2, 4], 4, [0, 0, 0, 0]),
        ([-3, 1, -2, 4], 2, [0, 1, 0, 1]),
        # Ties: the lower index goes first.
        ([1, 1, 1, 1], 1, [0, 1, 1, 1]),
        ([1, 1, 1, 1], 3, [0, 0, 0, 1]),
        ([2, 1, 2, 1], 3, [0, 0, 1, 0]),
        # Both zeros are one value: order is by index.
        ([0.0, -0.0, 0.0, -0.0], 2, [0, 0, 1, 1]),
        ([1, -0.0, 0.0, -1], 2, [1, 0, 1, 0]),
        # Neighbours in the bits of float32 and of its subnormals.
        ([1 + 2**-23, 1, 1 - 2**-24, 1 + 2**-22], 2, [1, 0, 0, 1]),
        ([2e-45, 1e-45, 0, -1e-45], 2, [1, 1, 0, 0]),
    ],
)
def test_the_lowest_go_by_hand(scores, count, expected):
    (mask,) = remove_lowest([np.array(scores, np.float32)], [np.ones(4, bool)], count)
    assert mask.tolist() == [bool(keep) for keep in expected]


def test_removed_weights_do_not_compete_whatever_their_score():
    scores = np.array([-9, np.nan, 5, np.inf], np.float32)
    masks = [np.array([False, False, True, False])]
    assert remove_lowest([scores], masks, 0)[0].tolist() == masks[0].tolist()
    assert remove_lowest([scores], masks, 1)[0].tolist() == [False] * 4


def test_ties_across_tensors_go_in_their_order():
    equal = [np.ones([2, 2], np.float32), np.ones(3, np.float32)]
    masks = [np.ones([2, 2], bool), np.ones(3, bool)]
    first, second = remove_lowest(equal, masks, 5)
    assert first.tolist() == [[False, False], [False, False]]
    assert second.tolist() == [False, True, True]


def test_a_pool_may_mix_precisions():
    """A model whose layers have policies of their own, pruned globally."""
    scores = [
        np.array([1, 4], np.float32),
        np.array([2, 5], np.float64),
        np.array([3, 6], np.float16),
    ]
    masks = [np.ones(2, bool)] * 3
    found = remove_lowest(scores, masks, 3)
    assert [mask.tolist() for mask in found] == [[False, True]] * 3


def test_the_count_is_no_reason_to_trace_again():
    scores, masks = [np.arange(6, dtype=np.float32)], [np.ones(6, bool)]
    remove_lowest(scores, masks, 1)
    traces = topk.remove_lowest.experimental_get_tracing_count()
    left = [remove_lowest(scores, masks, count)[0].sum() for count in range(7)]
    assert left == [6, 5, 4, 3, 2, 1, 0]
    assert topk.remove_lowest.experimental_get_tracing_count() == traces


@pytest.mark.slow
def test_a_kernel_beyond_what_float32_counts_is_pruned_exactly():
    """G8: 4,097 × 4,097 weights are more than 2^24."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(4097, 4097)).astype(np.float32)
    # Many ties, and the threshold among them.
    scores = np.round(scores, 2)
    count = int(0.2 * scores.size + 0.5)
    assert_as_reference([scores], [np.ones(scores.shape, bool)], count)
