"""Exact selection by count, on the device, without sorting.

The r-th lowest score is found bit by bit: floats order like integers once their bits
are mapped, so 32 counting passes (64 for float64) give the threshold exactly. Nothing
is copied or sorted: the passes read scores and masks and add up integers. Ties at the
threshold are broken by position, the lower one being removed first, with the same
search over positions.
"""

import tensorflow as tf


@tf.function(jit_compile=True)
def remove_lowest(scores, masks, num_remove):
    """Masks without the `num_remove` lowest-scored of the live weights.

    The tensors form one pool; among equal scores those of earlier tensors, and of
    lower flat index, are removed first. -0.0 equals +0.0.

    Args:
        scores: list of finite float tensors; layers may differ in precision.
        masks: list of boolean tensors of the same shapes; False is already removed.
        num_remove: int64 scalar, at most the number of live weights.

    Returns:
        The new masks, a list of boolean tensors.
    """
    live = [tf.reshape(mask, [-1]) for mask in masks]
    wide = any(score.dtype == tf.float64 for score in scores)
    scores = [tf.cast(score, tf.float64 if wide else tf.float32) for score in scores]
    keys = [tf.reshape(_ordered_bits(score), [-1]) for score in scores]
    dtype = keys[0].dtype

    def count_keys_below(bound):
        return _count(
            mask & (key < bound) for key, mask in zip(keys, live, strict=True)
        )

    threshold = _largest(count_keys_below, num_remove, dtype.size * 8, dtype)
    ties = [mask & (key == threshold) for key, mask in zip(keys, live, strict=True)]
    # Positions in the pool, so that ties across tensors have an order.
    sizes = [key.shape[0] for key in keys]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    positions = [
        tf.range(start, start + size, dtype=tf.int64)
        for start, size in zip(starts, sizes, strict=True)
    ]

    def count_ties_below(bound):
        return _count(
            tie & (pos < bound) for pos, tie in zip(positions, ties, strict=True)
        )

    num_ties_removed = num_remove - count_keys_below(threshold)
    last = tf.cond(
        tf.equal(num_ties_removed, _count(ties)),
        lambda: tf.constant(sum(sizes), tf.int64),
        lambda: _largest(
            count_ties_below, num_ties_removed, sum(sizes).bit_length() + 1, tf.int64
        ),
    )
    return [
        tf.reshape(
            mask & ~((key < threshold) | (tie & (pos <= last))),
            old.shape,
        )
        for key, mask, tie, pos, old in zip(
            keys, live, ties, positions, masks, strict=True
        )
    ]


def _ordered_bits(scores):
    """Integers that order as the floats do; -0.0 and +0.0 give the same one."""
    integer = tf.int64 if scores.dtype == tf.float64 else tf.int32
    bits = tf.bitcast(scores, integer)
    return tf.where(bits < 0, integer.min - bits, bits)


def _largest(count_below, rank, num_bits, dtype):
    """The `rank`-th lowest value: the largest t with count_below(t) < rank.

    Searched from the most significant of `num_bits` bits, from the lowest value that
    many bits can hold; the first addition may wrap around, as two's complement does.
    """
    full = num_bits == dtype.size * 8
    low = tf.constant(dtype.min if full else 0, dtype)
    top = tf.constant(num_bits - 1, tf.int32)

    def refine(bit, low):
        step = tf.bitwise.left_shift(tf.ones([], dtype), tf.cast(bit, dtype))
        candidate = low + step
        return bit - 1, tf.where(count_below(candidate) < rank, candidate, low)

    _, low = tf.while_loop(lambda bit, _: bit >= 0, refine, [top, low])
    return low


def _count(conditions):
    """How many hold in all, exactly: int32 within a tensor, int64 across."""
    return tf.add_n(
        [
            tf.cast(tf.math.count_nonzero(condition, dtype=tf.int32), tf.int64)
            for condition in conditions
        ]
    )
