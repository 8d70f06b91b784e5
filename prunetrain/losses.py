"""Losses for each task: those of Keras, by name.

Labels are those of a `data.Dataset`. A loss for classes that compares whole rows gets
the class indices one-hot.
"""

import inspect

from prunetrain.errors import InputError
from prunetrain.lazy import keras, tf
from prunetrain.registry import imported, is_import_path

# The first of each task is the one it takes by default.
LOSSES = {
    "classes": {
        "sparse_categorical_crossentropy": "of class indices",
        "categorical_crossentropy": "of rows; takes label_smoothing",
        "categorical_focal_crossentropy": "of rows; takes alpha and gamma",
        "categorical_hinge": "of rows",
        "mean_squared_error": "of rows",
    },
    "binary": {
        "binary_crossentropy": "takes label_smoothing",
        "binary_focal_crossentropy": "takes alpha and gamma",
        "hinge": "of outputs around 0",
        "squared_hinge": "of outputs around 0",
        "mean_squared_error": "of outputs around 0 and 1",
    },
    "multilabel": {
        "binary_crossentropy": "takes label_smoothing",
        "binary_focal_crossentropy": "takes alpha and gamma",
    },
    "regression": {
        "mean_squared_error": "",
        "mean_absolute_error": "",
        "huber": "takes delta",
        "log_cosh": "",
        "mean_absolute_percentage_error": "",
        "mean_squared_logarithmic_error": "",
    },
}
# Losses for which there is no such question: outputs around 0, or around 0 and 1.
_NO_LOGITS = {"hinge": False, "squared_hinge": False, "mean_squared_error": True}
_LOGITS = ("linear",)
_PROBABILITIES = ("sigmoid", "softmax", "hard_sigmoid", "sparse_sigmoid")


def choices():
    """What `make_loss` takes as a name, with what there is to say about each."""
    texts = {"auto": f"{_first_of_each()}, by task"}
    for task, losses in LOSSES.items():
        for name, about in losses.items():
            text = f"{task}, {about}" if about else task
            texts[name] = f"{texts[name]}; {text}" if name in texts else text
    return texts


def _first_of_each():
    return ", ".join(dict.fromkeys(next(iter(names)) for names in LOSSES.values()))


def make_loss(name, task, probabilities, num_classes, **arguments):
    """A loss `(y, outputs) -> loss` for the labels of a task.

    Args:
        name: one of the task's in `LOSSES`, "auto" for the first of them, or
            package.module:function. A class is called with the arguments; what else is
            imported is the loss itself.
        task: a name in `data.TASKS`.
        probabilities: whether the outputs are probabilities, not logits.
        num_classes: the width of one-hot rows.
        **arguments: what the loss's class takes; `from_logits` follows from
            `probabilities` unless it is among them.

    Raises:
        InputError: the import failed.
        TypeError, ValueError: the loss refuses an argument.
    """
    if name == "auto":
        name = next(iter(LOSSES[task]))
    if is_import_path(name):
        loss = imported("loss", name)
        if not inspect.isclass(loss):
            _refuse(arguments)
            return loss
    else:
        loss = getattr(keras.losses, _class_name(name))
    if "from_logits" in inspect.signature(loss).parameters:
        arguments = {"from_logits": not probabilities, **arguments}
    loss_fn = loss(**arguments)
    if task != "classes" or is_import_path(name) or name.startswith("sparse"):
        return loss_fn

    def of_rows(y, outputs):
        return loss_fn(tf.one_hot(y, num_classes, dtype=outputs.dtype), outputs)

    # Evaluation asks for it: whether what comes is a sum or a mean.
    of_rows.reduction = loss_fn.reduction
    return of_rows


def _class_name(name):
    return "".join(part.title() for part in name.split("_"))


def _refuse(arguments):
    if arguments:
        raise InputError(
            "`loss_args` go with a loss's class; a function takes none. Received: "
            f"{', '.join(arguments)}"
        )


def decides_at_half(name, task, arguments, model, outputs):
    """Whether a model's outputs are probabilities (or near 0 and 1), not logits.

    Raises:
        InputError: neither the model nor `arguments` (of the loss) tell.
    """
    if "from_logits" in arguments:
        return not arguments["from_logits"]
    if task in ("binary", "multilabel") and name in _NO_LOGITS:
        return _NO_LOGITS[name]
    found = task != "regression" and are_probabilities(task, model, outputs)
    if found is None:
        raise InputError(
            "whether the model gives logits or probabilities cannot be told from its "
            "last layer. Say --loss_args=from_logits=True or from_logits=False"
        )
    return found


def are_probabilities(task, model, outputs):
    """Whether a model's outputs are probabilities, as far as can be told.

    Args:
        task: a name in `data.TASKS`.
        model: Keras model.
        outputs: what it gives for some examples, `[batch, width]`.

    Returns:
        For classes, whether each row sums to 1 with none below 0: that of logits does
        so by no chance. For binary and multi-label, False if one is not within [0, 1];
        else by the activation of the layer that the outputs come from, and None if
        that does not tell.
    """
    values = tf.cast(outputs, tf.float32)
    if task == "classes":
        # What half precision makes of it is a hundredth off at most.
        sums_to_one = tf.reduce_all(tf.abs(tf.reduce_sum(values, -1) - 1) < 0.02)
        return bool(sums_to_one and tf.reduce_all(values >= 0))
    if not tf.reduce_all((values >= 0) & (values <= 1)):
        return False
    activation = getattr(_last_layer(model), "activation", None)
    name = getattr(activation, "__name__", "")
    return {**dict.fromkeys(_LOGITS, False), **dict.fromkeys(_PROBABILITIES, True)}.get(
        name
    )


def _last_layer(model):
    """The layer that a model's only output comes from; None if it is not known."""
    outputs = getattr(model, "outputs", None)
    if not outputs or len(outputs) > 1:
        return model if hasattr(model, "activation") else None
    operation = outputs[0]._keras_history.operation
    is_model = isinstance(operation, keras.Model)
    return _last_layer(operation) if is_model else operation
