"""Exact selection by count, on the device, without sorting or copying.

The r-th lowest score is found bit by bit: floats order like integers once their bits
are mapped, so 32 counting passes (64 for float64) give the threshold exactly. Ties at
the threshold are broken by position, the lower one being removed first, with the same
search over positions. A pass computes scores from weights, compares and counts in one
compiled sweep that stores none of it.
"""

import tensorflow as tf

from prunetrain.core import tracing

# Sums of this many 0s and 1s fit into int8; XLA splits longer sums and stores them.
_GROUP = 32


@tracing.unwarned
@tf.function(jit_compile=True)
def remove_lowest(scores, masks, num_remove):
    """Masks without the `num_remove` lowest-scored of the live weights.

    The tensors form one pool; among equal scores those of earlier tensors, and of
    lower flat index, are removed first. -0.0 equals +0.0. In a pool that holds float64
    too, denormal float32 scores count as 0.

    Args:
        scores: list of float tensors, or of pairs `(function, tensors)` for scores that
            are not stored (see `evaluate`); finite where live. Layers may differ in
            precision. No variables here: the trace would keep the first ones.
        masks: list of boolean tensors of the same shapes; False is already removed.
        num_remove: int64 scalar, at most the number of live weights.

    Returns:
        The new masks, a list of boolean tensors.
    """
    dtypes = {evaluate(score).dtype for score in scores}
    integer = tf.int64 if tf.float64 in dtypes else tf.int32
    sizes = [mask.shape.num_elements() for mask in masks]
    # Positions in the pool, so that ties across tensors have an order.
    starts = [sum(sizes[:index]) for index in range(len(sizes))]

    def keys_below(bound, never=False):
        return [
            mask & (_key(score, integer, never) < bound)
            for score, mask in zip(scores, masks, strict=True)
        ]

    def ties_before(bound, never=False):
        return [
            mask
            & (_key(score, integer, never) == threshold)
            & _is_before(bound - start, mask.shape)
            for score, mask, start in zip(scores, masks, starts, strict=True)
        ]

    threshold = _largest(keys_below, num_remove, integer.size * 8, integer)
    # Counted apart from the new masks below, lest both wait in memory for each other.
    never = num_remove < 0
    num_ties = num_remove - _count(keys_below(threshold, never))
    num_bits = sum(sizes).bit_length() + 1
    end = tf.cond(
        tf.equal(num_remove, _count(keys_below(threshold + 1, never))),
        lambda: tf.constant(sum(sizes), tf.int64),
        lambda: 1 + _largest(ties_before, num_ties, num_bits, tf.int64),
    )
    return [
        mask & ~(low | tie)
        for mask, low, tie in zip(
            masks, keys_below(threshold), ties_before(end), strict=True
        )
    ]


def all_finite(scores, mask):
    """Whether a tensor's live scores are finite."""
    return not tf.reduce_any(mask & ~tf.math.is_finite(scores))


def evaluate(score, never=False):
    """The scores of one tensor: `score` itself, or `function(*tensors)` for a pair.

    The function of a pair is elementwise, gives the same bits wherever it is compiled
    (|w| does; a sum of products may be rounded once or twice), and is the same object
    in every call, so that nothing is traced again.
    """
    function, tensors = score if isinstance(score, tuple) else (tf.identity, (score,))
    return function(*(_varying(tensor, never) for tensor in tensors))


def _varying(tensor, never):
    """`tensor`, made to depend on `never`, which is False.

    What does not change from pass to pass, XLA takes out of the loop and stores; that
    `never` does not, it cannot know.
    """
    tensor = tf.convert_to_tensor(tensor)
    return tf.where(never, tf.zeros([], tensor.dtype), tensor)


def _key(score, integer, never):
    """Integers that order as the floats do; -0.0 and +0.0 give the same one."""
    floating = tf.float64 if integer == tf.int64 else tf.float32
    bits = tf.bitcast(tf.cast(evaluate(score, never), floating), integer)
    return tf.where(bits < 0, integer.min - bits, bits)


def _is_before(end, shape):
    """Whether the flat index is below `end`, for each element of a tensor."""
    size = shape.num_elements()
    end = tf.cast(tf.clip_by_value(end, 0, size), tf.int32)
    # By groups: a range over all elements would be compiled in as a large constant.
    firsts, offsets = tf.range(0, size, _GROUP), tf.range(_GROUP)
    before = firsts[:, tf.newaxis] < end - offsets
    return tf.reshape(tf.reshape(before, [-1])[:size], shape)


def _largest(select_below, rank, num_bits, dtype):
    """The `rank`-th lowest value: the largest t below which fewer than `rank` lie.

    Searched from the most significant of `num_bits` bits, from the lowest value that
    many bits can hold; the first addition may wrap around, as two's complement does.
    """
    full = num_bits == dtype.size * 8
    low = tf.constant(dtype.min if full else 0, dtype)
    top = tf.constant(num_bits - 1, tf.int32)

    def refine(bit, low):
        step = tf.bitwise.left_shift(tf.ones([], dtype), tf.cast(bit, dtype))
        candidate = low + step
        below = _count(select_below(candidate, never=bit < 0))
        return bit - 1, tf.where(below < rank, candidate, low)

    _, low = tf.while_loop(lambda bit, _: bit >= 0, refine, [top, low])
    return low


def _count(conditions):
    """How many hold in all: int8 in groups, int32 within a tensor, int64 across."""
    return tf.add_n([tf.cast(_count_one(x), tf.int64) for x in conditions])


def _count_one(condition):
    ones = tf.reshape(tf.cast(condition, tf.int8), [-1])
    cut = ones.shape[0] // _GROUP * _GROUP
    groups = tf.reduce_sum(tf.reshape(ones[:cut], [-1, _GROUP]), 1)
    rest = tf.reduce_sum(ones[cut:])
    return tf.reduce_sum(tf.cast(groups, tf.int32)) + tf.cast(rest, tf.int32)
