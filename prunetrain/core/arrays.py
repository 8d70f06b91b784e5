"""The arrays that a loop is given: placed, and checked before anything is traced."""

import keras
import tensorflow as tf

from prunetrain.core import steps


def on_device(x, y):
    for name, value in (("x", x), ("y", y)):
        if value is None or isinstance(value, (dict, tuple, tf.data.Dataset)):
            raise TypeError(
                f"`{name}` must be one array. Received: {type(value).__name__}. For "
                "several inputs or a tf.data pipeline use pt.make_train_step"
            )
    x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
    _check_shapes(x, y)
    return x, y


def on_host(x, y):
    for name, value in (("x", x), ("y", y)):
        if not all(hasattr(value, part) for part in ("shape", "dtype", "__getitem__")):
            raise TypeError(
                f"`{name}` must be an array with `shape`, `dtype` and `{name}[rows]`, "
                f"to be streamed. Received: {type(value).__name__}"
            )
    _check_shapes(x, y)
    return x, y


def _check_shapes(x, y):
    if len(x.shape) == 0 or len(y.shape) == 0 or x.shape[0] != y.shape[0]:
        raise ValueError(
            "`x` and `y` must hold as many labels as examples. Received: shapes "
            f"{x.shape} and {y.shape}"
        )
    if not x.shape[0]:
        raise ValueError(
            f"`x` must hold at least one example. Received: shape {x.shape}"
        )


def check_batch_size(batch_size, num_examples):
    steps.check_whole("batch_size", batch_size, 1, num_examples, " (the examples)")


def check_labels(pruned, loss_fn, x, y):
    """Raises ValueError if class indices are not below the model's classes.

    Under XLA such a label gives a loss of NaN without a word. Only for Keras's sparse
    cross-entropy: to another loss, integers may mean something else.
    """
    sparse = keras.losses.SparseCategoricalCrossentropy
    if not isinstance(loss_fn, sparse) and (
        loss_fn is not keras.losses.sparse_categorical_crossentropy
    ):
        return
    y = tf.convert_to_tensor(y)
    outputs = pruned(tf.convert_to_tensor(x[:1]))
    one_each = y.shape.rank == 1 or y.shape[1:] == [1]
    if not one_each or not tf.is_tensor(outputs) or outputs.shape.rank != 2:
        return
    classes, labels = outputs.shape[1], y
    if getattr(loss_fn, "ignore_class", None) is not None:
        labels = tf.boolean_mask(y, y != tf.cast(loss_fn.ignore_class, y.dtype))
    low, high = tf.reduce_min(labels).numpy(), tf.reduce_max(labels).numpy()
    if not 0 <= low <= high < classes:
        raise ValueError(
            f"`y` must hold class indices from 0 to {classes - 1}, as the model has "
            f"{classes} outputs. Received: labels from {low} to {high}"
        )


def check_augment(augment, x):
    """Raises TypeError or ValueError unless it maps a batch to one of its kind."""
    if augment is None:
        return
    if not callable(augment):
        raise TypeError(
            "`augment` must be a function (x, seed) -> x. "
            f"Received: augment={augment!r}"
        )
    batch = tf.convert_to_tensor(x[:1])
    changed = augment(batch, tf.zeros([2], tf.int64))
    if (changed.shape, changed.dtype) != (batch.shape, batch.dtype):
        raise ValueError(
            "`augment` must keep a batch's shape and type. Received: "
            f"{changed.dtype.name} {changed.shape} for {batch.dtype.name} {batch.shape}"
        )


def check_one_label(y):
    """Raises ValueError if rows of `y` are not one-hot (or shares that sum to 1)."""
    if len(y.shape) != 2 or y.shape[1] == 1:
        return
    rows = tf.cast(y, tf.float32)
    sums_to_one = tf.reduce_all(tf.abs(tf.reduce_sum(rows, 1) - 1) < 1e-3)
    if tf.reduce_any(rows < 0) or not sums_to_one:
        raise ValueError(
            "`y` must hold class indices or one-hot rows. Received: rows that are not. "
            "Multi-label and regression need a `correct_fn`"
        )
