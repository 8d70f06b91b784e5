"""Random changes of the training images, drawn anew at every step on the device.

An augmentation is a function `(x, seed) -> x`: x float32 `[batch, height, width,
channels]`, seed int64 `[2]`. It draws from `tf.random.stateless_…` with `alg="philox"`
(the same bits in every compile mode) and keeps shape and type. The seed is a pure
function of the order's seed and the step, so a run that goes on draws what it would
have drawn.
"""

import inspect

from prunetrain.errors import InputError
from prunetrain.lazy import tf
from prunetrain.registry import Registry

AUGMENTATIONS = Registry("augment")
_PADDING = 4


@AUGMENTATIONS.register("crop")
def crop(x, seed):
    """Moved by up to 4 pixels each way, with zeros (after scaling) at the edge."""
    _check_images(x)
    size, height, width, _ = x.shape
    padded = tf.pad(x, [[0, 0], [_PADDING] * 2, [_PADDING] * 2, [0, 0]])
    corners = tf.random.stateless_uniform(
        [size, 2], seed, 0, 2 * _PADDING + 1, tf.int32, alg="philox"
    )
    rows = corners[:, :1] + tf.range(height)
    columns = corners[:, 1:] + tf.range(width)
    x = tf.gather(padded, rows, axis=1, batch_dims=1)
    return tf.gather(x, columns, axis=2, batch_dims=1)


@AUGMENTATIONS.register("flip")
def flip(x, seed):
    """Left and right swapped, for half of the images."""
    _check_images(x)
    heads = tf.random.stateless_uniform(
        [x.shape[0], 1, 1, 1], seed, 0, 2, tf.int32, alg="philox"
    )
    return tf.where(heads == 1, x[:, :, ::-1], x)


def chained(names):
    """The augmentations of these names, one after the other, as one `(x, seed) -> x`.

    None for no name.

    Raises:
        InputError: now or when it is called, that one does not fit.
    """
    functions = {name: AUGMENTATIONS[name] for name in names}
    for name, function in functions.items():
        _check_signature(name, function)

    def augment(x, seed):
        for index, (name, function) in enumerate(functions.items()):
            own = tf.stack([seed[0], seed[1] * len(functions) + index])
            x = _checked(name, x, function(x, own))
        return x

    return augment if functions else None


def _check_signature(name, function):
    try:
        inspect.signature(function).bind("x", "seed")
    except (TypeError, ValueError) as error:
        raise InputError(
            f"`augment` must name functions (x, seed) -> x ({error}). "
            f"Received: augment={name!r}"
        ) from error


def _checked(name, before, after):
    shape, dtype = (getattr(after, part, None) for part in ("shape", "dtype"))
    if (shape, dtype) != (before.shape, before.dtype):
        raise InputError(
            "`augment` must keep a batch's shape and type. Received: augment="
            f"{name!r}, which makes {dtype} {shape} of {before.dtype} {before.shape}"
        )
    return after


def _check_images(x):
    if x.shape.rank != 4:
        raise InputError(
            "`augment` needs images [height, width, channels]. Received: examples of "
            f"shape {tuple(x.shape[1:])}"
        )
