"""Final and initial weights: the mask criteria of Zhou et al. 2019.

Hattie Zhou, Janice Lan, Rosanne Liu, Jason Yosinski: "Deconstructing Lottery Tickets:
Zeros, Signs, and the Supermask", NeurIPS 2019. wf is the weight at the end of the
training, wi the one at initialisation. All are elementwise, so no scores are stored.
"""

from prunetrain.lazy import tf
from prunetrain.pruning.criteria import CRITERIA


@CRITERIA.register("large_final")
def large_final(pruned, *, initial, data, loss_fn, seed):
    """|wf|: magnitude, as Zhou et al. 2019 (section 2) call it."""
    del initial, data, loss_fn, seed
    return [(tf.abs, (kernel.value,)) for kernel in pruned.kernels]


@CRITERIA.register("small_final")
def small_final(pruned, *, initial, data, loss_fn, seed):
    """-|wf|: the largest go, a control (Zhou et al. 2019, section 2)."""
    del initial, data, loss_fn, seed
    return [(_small, (kernel.value,)) for kernel in pruned.kernels]


@CRITERIA.register("large_init", needs=("initial",))
def large_init(pruned, *, initial, data, loss_fn, seed):
    """|wi|: what was small at initialisation goes (Zhou et al. 2019, section 2)."""
    del data, loss_fn, seed
    return [(tf.abs, (start,)) for _, start in _final_and_initial(pruned, initial)]


@CRITERIA.register("small_init", needs=("initial",))
def small_init(pruned, *, initial, data, loss_fn, seed):
    """-|wi|: what was large at initialisation goes (Zhou et al. 2019, section 2)."""
    del data, loss_fn, seed
    return [(_small, (start,)) for _, start in _final_and_initial(pruned, initial)]


@CRITERIA.register("large_init_large_final", needs=("initial",))
def large_init_large_final(pruned, *, initial, data, loss_fn, seed):
    """min(|wi|, |wf|): stays if large both times (Zhou et al. 2019, section 2)."""
    del data, loss_fn, seed
    return [(_both_large, pair) for pair in _final_and_initial(pruned, initial)]


@CRITERIA.register("small_init_small_final", needs=("initial",))
def small_init_small_final(pruned, *, initial, data, loss_fn, seed):
    """-max(|wi|, |wf|): stays if small both times (Zhou et al. 2019, section 2)."""
    del data, loss_fn, seed
    return [(_both_small, pair) for pair in _final_and_initial(pruned, initial)]


@CRITERIA.register("magnitude_increase", needs=("initial",))
def magnitude_increase(pruned, *, initial, data, loss_fn, seed):
    """|wf| - |wi|: what has grown stays (Zhou et al. 2019, section 2)."""
    del data, loss_fn, seed
    return [(_growth, pair) for pair in _final_and_initial(pruned, initial)]


@CRITERIA.register("movement", needs=("initial",))
def movement(pruned, *, initial, data, loss_fn, seed):
    """|wf - wi|: what has moved farthest stays (Zhou et al. 2019, section 2)."""
    del data, loss_fn, seed
    return [(_distance, pair) for pair in _final_and_initial(pruned, initial)]


@CRITERIA.register("large_final_same_sign", needs=("initial",))
def large_final_same_sign(pruned, *, initial, data, loss_fn, seed):
    """|wf| if its sign is still that of wi, else -|wf| (Zhou et al. 2019, section 5).

    The masks for "supermasks", which are put on the initial weights: whatever has
    changed its sign goes first. A weight of 0 has a sign of its own.
    """
    del data, loss_fn, seed
    return [(_same_sign, pair) for pair in _final_and_initial(pruned, initial)]


def _final_and_initial(pruned, initial):
    """`(final, initial)` for each kernel, as tensors of one type."""
    kernels = pruned.kernels
    if len(initial) != len(kernels):
        raise ValueError(
            f"`initial` must hold a tensor for each of the {len(kernels)} kernels. "
            f"Received: {len(initial)}"
        )
    pairs = []
    for kernel, start in zip(kernels, initial, strict=True):
        start = tf.cast(start, kernel.dtype)
        if start.shape != kernel.shape:
            raise ValueError(
                f"`initial` must have the shapes of the kernels: {tuple(kernel.shape)} "
                f"for {kernel.path}. Received: shape {tuple(start.shape)}"
            )
        pairs.append((kernel.value, start))
    return pairs


# Each one function, the same object in every call, so that nothing is traced again.


def _small(weights):
    return -tf.abs(weights)


def _both_large(final, initial):
    return tf.minimum(tf.abs(final), tf.abs(initial))


def _both_small(final, initial):
    return -tf.maximum(tf.abs(final), tf.abs(initial))


def _growth(final, initial):
    return _wide(tf.abs(final)) - _wide(tf.abs(initial))


def _distance(final, initial):
    return tf.abs(_wide(final) - _wide(initial))


def _same_sign(final, initial):
    size = tf.abs(final)
    return tf.where(tf.equal(tf.sign(final), tf.sign(initial)), size, -size)


def _wide(tensor):
    """At least float32: in half precision most differences would be rounded."""
    return tensor if tensor.dtype.size >= 4 else tf.cast(tensor, tf.float32)
