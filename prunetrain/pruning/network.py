"""A model as a function of its weights, in wide arithmetic; the model is left alone.

Keras reads a variable's value from a `StatelessScope` if one is open: the model runs on
given tensors, and what it would assign stays in the scope.
"""

import contextlib
import weakref

from prunetrain.lazy import keras, tf

_FLOATS = ("float16", "bfloat16", "float32", "float64")
# What is compiled for a model goes with it.
_programs = weakref.WeakKeyDictionary()


def wide_dtype(model):
    """float32, or float64 if the model has weights in it.

    Gradients in half precision would underflow, or need a loss scale.
    """
    return "float64" if "float64" in {v.dtype for v in model.variables} else "float32"


def live_weights(pruned, dtype):
    """The kernels as tensors of that type, 0 where pruned."""
    return [
        tf.where(mask, tf.cast(kernel.value, dtype), tf.zeros([], dtype))
        for kernel, mask in zip(pruned.kernels, pruned.masks, strict=True)
    ]


def outputs(model, variables, values, x, dtype):
    """The model's outputs for `x` at inference, with `values` in place of `variables`.

    Args:
        model: Keras model.
        variables, values: which variables, and the tensors that they count as.
        x: batch of inputs.
        dtype: the precision of all arithmetic, whatever the layers' own.
    """
    scope = keras.StatelessScope()
    for variable, value in zip(variables, values, strict=True):
        # Not in its constructor, which casts to the variable's type.
        scope.add_update((variable, value))
    with _computing_in(model, dtype), scope:
        return model(x, training=False)


@contextlib.contextmanager
def _computing_in(model, dtype):
    """Every layer that computes with floats does so in this precision."""
    layers = [x for x in model._flatten_layers() if x.compute_dtype in _FLOATS]
    with contextlib.ExitStack() as stack:
        for layer in layers:
            if layer.compute_dtype != dtype:
                policy = keras.DTypePolicy(dtype)
                stack.enter_context(replaced(layer, "_dtype_policy", policy))
        yield


@contextlib.contextmanager
def replaced(thing, attribute, value):
    """An attribute has another value for a while."""
    own, before = attribute in vars(thing), getattr(thing, attribute)
    setattr(thing, attribute, value)
    try:
        yield
    finally:
        if own:
            setattr(thing, attribute, before)
        else:  # it was the class's
            delattr(thing, attribute)


def program(pruned, kind, make, *parts):
    """`tf.function(make(model, kernels, *parts))`, compiled once for a model.

    Args:
        pruned: `PrunedModel`.
        kind: name of the program; for each the one last asked for is kept.
        make: makes the function to compile, which must not refer to `pruned`.
        parts: what else it is made of; others than last time make it anew.
    """
    from prunetrain.core import tracing

    known = _programs.setdefault(pruned, {})
    made_of, function = known.get(kind, (None, None))
    if made_of is None or any(a is not b for a, b in zip(made_of, parts, strict=True)):
        # Without autograph, which would look into Keras's context managers.
        function = tracing.unwarned(
            tf.function(make(pruned.model, pruned.kernels, *parts), autograph=False)
        )
        known[kind] = parts, function
    return function
