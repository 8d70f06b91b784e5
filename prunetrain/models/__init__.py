"""Keras model factories.

A factory is a function `(input_shape, num_classes) -> keras.Model` whose outputs are
logits `[batch, num_classes]`. To add one, write it in a module of this package and
register it in `MODELS`; the module is found by itself. What else it takes comes from
`--model_args`.
"""

import importlib
import inspect
import pkgutil
import weakref

from prunetrain.errors import InputError
from prunetrain.lazy import keras
from prunetrain.registry import Registry

MODELS = Registry("model")

_handed_out = weakref.WeakSet()


def make(name, input_shape, num_classes, arguments=None):
    """A new model with fresh weights.

    Args:
        name: a name in `MODELS`, or package.module:function.
        input_shape: shape of one example; given to the factory as `input_shape` if it
            takes such an argument.
        num_classes: likewise as `num_classes` or `classes`.
        arguments: dict of further keyword arguments, which go before those two.

    Returns:
        A built Keras 3 model.

    Raises:
        InputError: the factory does not take the arguments, refuses a value, or
            returns something else.
    """
    arguments = arguments or {}
    factory = MODELS[name]
    words = _with_shape(name, factory, arguments, input_shape, num_classes)
    try:
        model = factory(**words)
    except ValueError as error:
        told = " ".join(str(error).split())
        raise InputError(
            f"--model={name} cannot be made for examples of shape {tuple(input_shape)} "
            f"and {num_classes} classes with --model_args={_typed(arguments)}: {told}"
        ) from error
    _check_model(name, model)
    _check_input(name, model, input_shape)
    return model


def _with_shape(name, factory, arguments, input_shape, num_classes):
    """`arguments` with the shape and the classes, as far as `factory` takes them."""
    offered = {
        "input_shape": input_shape,
        "num_classes": num_classes,
        "classes": num_classes,
    }
    signature = _signature(name, factory)
    taken = {word: offered[word] for word in offered if word in signature.parameters}
    words = {**taken, **arguments}
    try:
        signature.bind(**words)
    except TypeError as error:
        raise InputError(
            f"--model_args={_typed(arguments)}: {name} takes {signature} ({error}); "
            f"{', '.join(offered)} are filled in"
        ) from error
    return words


def _signature(name, factory):
    try:
        return inspect.signature(factory)
    # ValueError: a function that is not written in Python.
    except (TypeError, ValueError) as error:
        raise InputError(
            f"--model={name} must name a function that returns a Keras model ({error})"
        ) from error


def _check_model(name, model):
    """Raises InputError unless it is a Keras 3 model with weights of its own."""
    if not isinstance(model, keras.Model):
        kind = type(model)
        raise InputError(
            f"--model={name} must return a Keras 3 model (`import keras`, not "
            f"tf_keras). Received: {kind.__module__}.{kind.__qualname__}"
        )
    if not model.built:
        raise InputError(
            f"--model={name} must return a model that has its weights: start it with "
            "keras.Input(input_shape), or call it once on a batch of data"
        )
    if model in _handed_out:
        raise InputError(
            f"--model={name} must make a new model at each call: every replicate draws "
            "initial weights of its own. Received: the same model again"
        )
    _handed_out.add(model)


def _check_input(name, model, input_shape):
    """Raises InputError if the model is known to take examples of another shape."""
    # A subclassed model finds out when it is called.
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return
    shapes = [tuple(tensor.shape[1:]) for tensor in inputs]
    if len(shapes) > 1 or not _fits(shapes[0], input_shape):
        raise InputError(
            f"--model={name} takes examples of shape {' and '.join(map(str, shapes))}, "
            f"but the data's are {tuple(input_shape)}"
        )


def _fits(expected, shape):
    # Keras itself adds or drops a last axis of length 1.
    expected, shape = (
        sizes[:-1] if sizes[-1:] == (1,) else sizes
        for sizes in (tuple(expected), tuple(shape))
    )
    return len(expected) == len(shape) and all(
        size in (None, there) for size, there in zip(expected, shape, strict=True)
    )


def _typed(arguments):
    return ",".join(f"{word}={value}" for word, value in arguments.items())


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
