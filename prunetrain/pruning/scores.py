"""What a criterion returns, checked."""

import tensorflow as tf

from prunetrain.pruning import topk


def checked(scores, pruned):
    """A tensor or a pair of function and tensors for each kernel.

    Raises:
        ValueError: it is something else.
    """
    num_kernels = len(pruned.kernels)
    if not isinstance(scores, (list, tuple)) or len(scores) != num_kernels:
        raise _wrong(f"{type(scores).__name__} for {num_kernels} kernels")
    return [_checked_one(score) for score in scores]


def _checked_one(score):
    if isinstance(score, list):
        raise _wrong("a list in place of a tensor")
    if not isinstance(score, tuple):
        return tf.convert_to_tensor(score)
    if len(score) != 2 or not callable(score[0]) or not score[1]:
        raise _wrong("a tuple that is no pair (function, tensors)")
    function, tensors = score
    return function, tuple(tf.convert_to_tensor(tensor) for tensor in tensors)


def check_values(score, mask, path):
    """Raises ValueError unless scores are floats of the mask's shape and finite."""
    values = topk.evaluate(score)
    if not tf.is_tensor(values) or not values.dtype.is_floating:
        kind = values.dtype.name if tf.is_tensor(values) else type(values).__name__
        raise _wrong(f"{kind} for {path}")
    if values.shape != mask.shape:
        raise _wrong(
            f"shape {tuple(values.shape)} for {path} of shape {tuple(mask.shape)}"
        )
    if not topk.all_finite(values, mask):
        raise ValueError(
            "scores must be finite to be ranked. Received: NaN or infinity among "
            f"the live weights of {path}"
        )


def _wrong(received):
    return ValueError(
        "`criterion` must return a list with a float tensor of the kernel's shape, or "
        "a pair (function, tensors) that gives it, for each kernel. Received: "
        f"{received}"
    )
