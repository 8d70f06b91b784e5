"""Losses for classification: those of Keras, by name.

Labels are class indices throughout. A loss that compares whole rows gets them one-hot.
"""

import inspect

from prunetrain.errors import InputError
from prunetrain.lazy import keras, tf
from prunetrain.registry import imported, is_import_path

LOSSES = {
    "sparse_categorical_crossentropy": "of class indices",
    "categorical_crossentropy": "of rows; takes label_smoothing",
    "categorical_focal_crossentropy": "of rows; takes alpha and gamma",
    "categorical_hinge": "of rows",
    "mean_squared_error": "of rows",
}


def make_loss(name, probabilities, num_classes, **arguments):
    """A loss `(y, outputs) -> loss` for class indices y `[batch]`.

    Args:
        name: one of `LOSSES`, or package.module:function. A class is called with the
            arguments; what else is imported is the loss itself.
        probabilities: whether the outputs are probabilities, not logits.
        num_classes: the width of one-hot rows.
        **arguments: what the loss's class takes; `from_logits` follows from
            `probabilities` unless it is among them.

    Raises:
        InputError: the import failed.
        TypeError, ValueError: the loss refuses an argument.
    """
    if is_import_path(name):
        loss = imported("loss", name)
        if not inspect.isclass(loss):
            _refuse(arguments)
            return loss
    else:
        loss = getattr(keras.losses, "".join(x.title() for x in name.split("_")))
    if "from_logits" in inspect.signature(loss).parameters:
        arguments = {"from_logits": not probabilities, **arguments}
    loss_fn = loss(**arguments)
    if name not in LOSSES or name.startswith("sparse"):
        return loss_fn

    def of_rows(y, outputs):
        return loss_fn(tf.one_hot(y, num_classes, dtype=outputs.dtype), outputs)

    # Evaluation asks for it: whether what comes is a sum or a mean.
    of_rows.reduction = loss_fn.reduction
    return of_rows


def _refuse(arguments):
    if arguments:
        raise InputError(
            "`loss_args` go with a loss's class; a function takes none. Received: "
            f"{', '.join(arguments)}"
        )


def are_probabilities(outputs):
    """Whether each row of a model's outputs `[batch, classes]` sums to 1, none below 0.

    That of logits does so by no chance.
    """
    rows = tf.cast(outputs, tf.float32)
    # What half precision makes of it is a hundredth off at most.
    sums_to_one = tf.reduce_all(tf.abs(tf.reduce_sum(rows, -1) - 1) < 0.02)
    return bool(sums_to_one and tf.reduce_all(rows >= 0))
