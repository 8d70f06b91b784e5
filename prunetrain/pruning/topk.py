"""Exact selection by count, on the device, without sorting or copying.

Where the weights that go end is found bit by bit: floats order like integers once their
bits are mapped, and among equal ones the lower position goes first, so 32 counting
passes (64 for float64) find the key, and as many as a position has bits the place among
ties. The search ends with the first bound below which just as many lie as are to go,
as a rule after some 25 passes. A pass computes scores from weights, compares and counts
in one compiled sweep that stores none of it.
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

    def lowest(key_bound, end, never=False):
        """Where a key is below the bound, or equals it at a position below `end`."""
        keys = [_key(score, integer, never) for score in scores]
        return [
            mask
            & ((key < key_bound) | (key == key_bound) & _is_before(end - start, key))
            for mask, key, start in zip(masks, keys, starts, strict=True)
        ]

    bounds = _search(lowest, num_remove, integer, sum(sizes).bit_length())
    return [mask & ~low for mask, low in zip(masks, lowest(*bounds), strict=True)]


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


def _is_before(end, tensor):
    """Whether the flat index is below `end`, for each element of a tensor."""
    size = tensor.shape.num_elements()
    end = tf.cast(tf.clip_by_value(end, 0, size), tf.int32)
    # By groups: a range over all elements would be compiled in as a large constant.
    firsts, offsets = tf.range(0, size, _GROUP), tf.range(_GROUP)
    before = firsts[:, tf.newaxis] < end - offsets
    return tf.reshape(tf.reshape(before, [-1])[:size], tensor.shape)


def _search(lowest, wanted, integer, position_bits):
    """The bounds below which `wanted` elements lie.

    Searched from the most significant bit, from the lowest key there is, whose first
    addition wraps around, as two's complement does.

    Args:
        lowest: `(key bound, end) -> conditions` as in `remove_lowest`.
        wanted: int64 scalar.
        integer: dtype of keys.
        position_bits: how many bits a position has.
    """

    def refine(bit, key, end, below):
        of_key = bit >= position_bits
        new_key = tf.where(of_key, key + _bit(bit - position_bits, integer), key)
        new_end = tf.where(of_key, end, end + _bit(bit, tf.int64))
        num = count(lowest(new_key, new_end, never=bit < 0))
        fits = num <= wanted
        return (
            bit - 1,
            tf.where(fits, new_key, key),
            tf.where(fits, new_end, end),
            tf.where(fits, num, below),
        )

    _, key, end, _ = tf.while_loop(
        lambda bit, key, end, below: (bit >= 0) & (below != wanted),
        refine,
        [
            tf.constant(integer.size * 8 + position_bits - 1),
            tf.constant(integer.min, integer),
            *(tf.constant(0, tf.int64),) * 2,
        ],
    )
    return key, end


def _bit(place, dtype):
    one = tf.ones([], dtype)
    return tf.bitwise.left_shift(one, tf.cast(tf.maximum(place, 0), dtype))


def count(conditions):
    """How many hold in all: int8 in groups, int32 within a tensor, int64 across."""
    return tf.add_n([tf.cast(_count_one(x), tf.int64) for x in conditions])


def _count_one(condition):
    ones = tf.reshape(tf.cast(condition, tf.int8), [-1])
    cut = ones.shape[0] // _GROUP * _GROUP
    groups = tf.reduce_sum(tf.reshape(ones[:cut], [-1, _GROUP]), 1)
    rest = tf.reduce_sum(ones[cut:])
    return tf.reduce_sum(tf.cast(groups, tf.int32)) + tf.cast(rest, tf.int32)
