"""What is removed together.

A pattern is a function `(score, mask, kernel) -> Units` on one kernel: `score` as the
criterion gives it (a tensor or a pair, see `criteria`), `mask` the boolean tensor of
its live weights, `kernel` a `layers.Kernel`, which tells what its axes are. It says
what the units are that live and die together, and how a mask of units becomes a mask
of weights. Allocations count in units. To add one, write it here and register it.

The score of a unit is the sum of its live weights' scores, in float32 or wider: for
magnitudes their L1 norm (Li et al. 2017, section 3.1), for first-order criteria what
removing all of them changes (Molchanov et al. 2019). A sum favours large units where
kernels compete, as in global allocation.

Only masks are made here: what an emptied channel or head feeds in the next layer is
still stored and multiplied.
"""

import collections.abc
import dataclasses
import math

import numpy as np

from prunetrain.lazy import tf
from prunetrain.registry import Registry

PATTERNS = Registry("pattern")


@dataclasses.dataclass(frozen=True)
class Units:
    """What can go from a kernel, one by one.

    Attributes:
        scores: float tensor with an element per unit, or a pair as criteria return.
        live: boolean tensor of that shape, which units have a weight left.
        mask_of: function from the mask of the units that stay to the kernel's mask.
        held: boolean tensor, which units must stay; None if all may go.
        sizes: integer tensor, how many live weights each has; None if each is one.
    """

    scores: object
    live: object
    mask_of: collections.abc.Callable
    held: object = None
    sizes: object = None

    @property
    def removable(self):
        """Boolean tensor of the live units that may go."""
        return self.live if self.held is None else self.live & ~self.held

    def but(self, held):
        """The same, of which `held` must stay too."""
        held = held if self.held is None else self.held | held
        return dataclasses.replace(self, held=held)


@PATTERNS.register("element")
def element(score, mask, kernel):
    """Single weights, each for itself (unstructured)."""
    del kernel
    return Units(score, mask, lambda kept: kept)


@PATTERNS.register("channel")
def channel(score, mask, kernel):
    """All weights of an output: a channel of a convolution, a unit of a dense layer.

    Li et al. 2017 ("Pruning Filters for Efficient ConvNets", section 3.1). Of a
    recurrent layer, a gate of a unit.
    """
    return _along(kernel.outputs, score, mask)


@PATTERNS.register("head")
def head(score, mask, kernel):
    """All weights of an attention head in a projection (Michel et al. 2019)."""
    if kernel.heads is None:
        raise ValueError(
            "`pattern` head needs kernels of attention layers. Received: "
            f"{kernel.path} of a {type(kernel.layer).__name__}. Prune those only, with "
            "prune_include or pt.kernels(include=…)"
        )
    return _along((kernel.heads,), score, mask)


@PATTERNS.register_form("N:M (N below M)", "([1-9][0-9]{0,5}):([1-9][0-9]{0,5})")
def n_of_m(n, m):
    """Single weights, but N of each M along the input axis stay, as 2:4.

    Mishra et al. 2021 ("Accelerating Sparse Deep Neural Networks", section 3): the N
    highest of a group cannot go, so pruning moves towards N:M, reaches it at a sparsity
    of 1 - N/M, and cannot go beyond. A last group of fewer than M counts as one filled
    up with pruned weights: N of it stay, or all.
    """
    return None if n >= m else lambda *given: _held_in_groups(n, m, *given)


@PATTERNS.register_form("block_HxW", "block_([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")
def block(height, width):
    """Blocks of H inputs × W outputs (the last two axes), as block_4x4.

    Narang et al. 2017 ("Block-Sparse Recurrent Neural Networks"). At the edges, where
    the size is no multiple, blocks are smaller.
    """
    return lambda score, mask, kernel: _in_blocks(height, width, score, mask)


def with_floor(units, min_kept):
    """`units`, of which the highest-scored that hold `min_kept` weights must stay."""
    if not min_kept:
        return units
    from prunetrain.pruning import topk

    lower = tf.constant(_num_lower(units, min_kept), tf.int64)
    (held,) = topk.remove_lowest([units.scores], [units.live], lower)
    return units.but(held)


def _num_lower(units, min_kept):
    """How many live units are not needed for the others to hold `min_kept` weights."""
    live = np.asarray(units.live)
    if units.sizes is None:
        return max(0, int(live.sum()) - min_kept)
    order = np.argsort(np.asarray(units.scores)[live], kind="stable")
    held = np.cumsum(np.asarray(units.sizes)[live][order][::-1])
    return max(0, len(held) - 1 - int(np.searchsorted(held, min_kept)))


def _along(axes, score, mask):
    """Units that are told apart by the index along `axes`."""
    others = [axis for axis in range(mask.shape.rank) if axis not in axes]
    return _summed(_values(score), mask, others, lambda kept: mask & kept)


def _in_blocks(height, width, score, mask):
    *rest, rows, columns = mask.shape
    height, width = min(height, rows), min(width, columns)
    down, across = -(-rows // height), -(-columns // width)
    whole = [*rest, down * height, across * width]
    cut = [*rest, down, height, across, width]
    padding = [[0, full - size] for full, size in zip(whole, mask.shape, strict=True)]

    def blocks_of(tensor):
        return tf.reshape(tf.pad(tensor, padding), cut)

    def mask_of(kept):
        return (
            mask & tf.reshape(tf.broadcast_to(kept, cut), whole)[..., :rows, :columns]
        )

    within = [len(rest) + 1, len(rest) + 3]
    return _summed(blocks_of(_values(score)), blocks_of(mask), within, mask_of)


def _summed(values, mask, axes, mask_of):
    """Units of the weights that differ in their index along `axes` only."""
    values = tf.where(mask, values, tf.zeros([], values.dtype))
    return Units(
        scores=tf.reduce_sum(values, axes, keepdims=True),
        live=tf.reduce_any(mask, axes, keepdims=True),
        mask_of=mask_of,
        sizes=tf.reduce_sum(tf.cast(mask, tf.int32), axes, keepdims=True),
    )


def _held_in_groups(n, m, score, mask, kernel):
    length = math.prod(kernel.shape[axis] for axis in kernel.inputs)
    if length <= n:
        raise ValueError(
            f"`pattern` {n}:{m} needs kernels whose outputs have more than {n} inputs "
            f"each. Received: {kernel.path} of a {type(kernel.layer).__name__}, with "
            f"{length}. Leave it out with prune_exclude or pt.kernels(exclude=…)"
        )
    m, scores = min(m, length), _values(score)
    values = tf.where(mask, scores, tf.constant(float("-inf"), scores.dtype))
    others = [axis for axis in range(mask.shape.rank) if axis not in kernel.inputs]
    axes = [*others, *kernel.inputs]
    lines = tf.transpose(values, axes)
    ranks = tf.reshape(_ranks(m, tf.reshape(lines, [-1, length])), lines.shape)
    # As floats: oneDNN complains on the console of transposing anything else.
    ranks = tf.cast(ranks, scores.dtype)
    back = [axes.index(axis) for axis in range(len(axes))]
    return Units(scores, mask, lambda kept: kept, tf.transpose(ranks, back) >= m - n)


def _ranks(m, lines):
    """The rank of each element, from 0, among the `m` of its group in a row.

    Of equal ones the lower index has the lower rank. A last group that is smaller is
    filled up with what is lowest.
    """
    rows, length = lines.shape
    whole = -(-length // m) * m
    missing = tf.fill([rows, whole - length], tf.constant(float("-inf"), lines.dtype))
    groups = tf.reshape(tf.concat([lines, missing], 1), [-1, m])
    ranks = tf.argsort(tf.argsort(groups, stable=True), stable=True)
    return tf.reshape(ranks, [rows, whole])[:, :length]


def _values(score):
    """A kernel's scores as a tensor, in float32 or wider."""
    from prunetrain.pruning import topk

    values = topk.evaluate(score)
    return values if values.dtype.size >= 4 else tf.cast(values, tf.float32)
