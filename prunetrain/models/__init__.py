"""Keras model factories.

A factory is a function `(input_shape, num_classes) -> keras.Model` whose outputs are
logits `[batch, num_classes]`. To add one, write it in a module of this package and
register it in `MODELS`; the module is found by itself. What else it takes comes from
`--model_args`.

A model may also be a trained one in a file of Keras's own format.
"""

import hashlib
import importlib
import inspect
import pathlib
import pkgutil
import weakref

from prunetrain.errors import InputError, told
from prunetrain.lazy import keras
from prunetrain.registry import Registry

MODELS = Registry("model")
SUFFIX = ".keras"

_handed_out = weakref.WeakSet()


def make(name, input_shape, num_classes, arguments=None, fresh=False):
    """A new model: with fresh weights, or with those of its file.

    Args:
        name: a name in `MODELS`, package.module:function, or a file (`is_file`).
        input_shape: shape of one example; given to the factory as `input_shape` if it
            takes such an argument.
        num_classes: likewise as `num_classes` or `classes`.
        arguments: dict of further keyword arguments, which go before those two.
        fresh: draw fresh weights for the model of a file too.

    Returns:
        A built Keras 3 model.

    Raises:
        InputError: the factory does not take the arguments, refuses a value, or
            returns something else; the file cannot be read; or the model is not for
            examples of that shape.
    """
    arguments = arguments or {}
    if is_file(name):
        model = _loaded(name, arguments)
        model = keras.models.clone_model(model) if fresh else model
    else:
        model = _called(name, arguments, input_shape, num_classes)
    _check_model(name, model)
    _check_input(name, model, input_shape)
    return model


def is_file(name):
    """Whether `name` is that of a file with a trained model, which ends in .keras."""
    return name.endswith(SUFFIX)


def digest(name):
    """SHA-256 of a model's file, in hexadecimal digits.

    Raises:
        InputError: there is no such file.
    """
    with _opened(name) as file:
        return hashlib.sha256(file.read()).hexdigest()


def _opened(name):
    try:
        return open(pathlib.Path(name).expanduser(), "rb")
    except OSError as error:
        raise InputError(
            f"--model={name} cannot be read ({error.strerror}). It must be a file that "
            "model.save has written"
        ) from error


def _loaded(name, arguments):
    """The model in a file, of which no code is run."""
    if arguments:
        raise InputError(
            f"--model_args={_typed(arguments)}: must be empty for a model from a file "
            f"(--model={name})"
        )
    _opened(name).close()
    file = pathlib.Path(name).expanduser()
    try:
        return keras.saving.load_model(file, compile=False, safe_mode=True)
    # Damage, code and unknown layers come to light as a dozen types.
    except Exception as error:
        # Of Keras's message the cause, which follows the whole configuration.
        cause = str(error).rpartition("Exception encountered:")[2]
        problem = " ".join(cause.split())[:200]
        raise InputError(
            f"--model={name} cannot be loaded ({type(error).__name__}: {problem}). It "
            "is damaged, or it needs code (a Lambda layer, a class of your own): write "
            "a function that makes the model, and name it as --model=package.module:"
            "function"
        ) from error


def _called(name, arguments, input_shape, num_classes):
    factory = MODELS[name]
    words = _with_shape(name, factory, arguments, input_shape, num_classes)
    try:
        return factory(**words)
    # ValueError: an argument is refused, by Keras in several lines. What else code
    # raises may be any fault in it.
    except Exception as error:
        is_refused = isinstance(error, ValueError)
        problem = " ".join(str(error).split()) if is_refused else told(error)
        raise InputError(
            f"--model={name} cannot be made for examples of shape {tuple(input_shape)} "
            f"and {num_classes} classes with --model_args={_typed(arguments)}: "
            f"{problem}"
        ) from error


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
