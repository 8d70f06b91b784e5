"""Effective sparsity: which weights lie on a path from an input to an output.

A weight that survives may still do nothing: no input reaches it any more, or no output
comes after it. Such a weight can be removed without changing what the network computes
from its inputs (a unit without inputs still adds a constant, if it has a bias).
"""

import contextlib
import functools
import math

import numpy as np

from prunetrain.lazy import keras, tf
from prunetrain.pruning import layers, linear, network

_WHAT = "effective sparsity"


def effective_masks(pruned, masks):
    """The weights of each mask that lie on a path from an input to an output.

    A weight does if and only if m · dR/dm > 0, R being the sum of the outputs of the
    linear network (see `pruning.linear`) for inputs of 1, with m in place of the
    weights: what is differentiated is a sum over paths (Tanaka et al. 2020). Each
    output's weights are divided by their number, so that every layer averages: nothing
    overflows, and what is above 0 stays so unless a path's weights are one among
    hundreds in a hundred layers. Pooling by maximum becomes pooling by average, since
    any place may be the largest. Whatever else multiplies (batch norm's scales) counts
    as 1, and biases as 0: they are no inputs. Paths are of the network's structure,
    whatever the weights' values; at a place where the inputs are padded there is none.

    Args:
        pruned: `PrunedModel`, which is left as it is; its own masks do not matter.
        masks: boolean arrays aligned with `pruned.kernels`.

    Returns:
        List of boolean arrays, each within its mask.

    Raises:
        ValueError: the model's inputs are of no known shape, the network is not linear
            for positive inputs (recurrent layers, embeddings, layer normalisation,
            attention), or the masks do not fit.
    """
    masks = [np.asarray(mask, bool) for mask in masks]
    shapes = [tuple(kernel.shape) for kernel in pruned.kernels]
    if [mask.shape for mask in masks] != shapes:
        raise ValueError(
            f"masks must be of the kernels' shapes {shapes}. Received: shapes "
            f"{[mask.shape for mask in masks]}"
        )
    axes = output_axes(pruned)
    # Convolutions of other devices may be wrong by more than 0 in the last bits.
    with tf.device("CPU:0"), linear.checked(_WHAT):
        ones = linear.ones(pruned.model, _WHAT)
        flow = network.program(pruned, "paths", _make_flow)
        # With every weight: masks that leave no path are no fault of the network. And
        # with unequal ones: a layer normalisation makes 0 of what is all the same.
        rng = np.random.default_rng(0)
        unequal = [
            weights * rng.uniform(0.5, 1.5, weights.shape)
            for weights in _averaging([np.ones(shape, bool) for shape in shapes], axes)
        ]
        once, twice = (flow(unequal, x)[0] for x in (ones, linear.twice(ones)))
        linear.check(_WHAT, float(once), float(twice))
        _, slopes = flow(_averaging(masks, axes), ones)
    return [
        mask & (slope.numpy() > 0) for mask, slope in zip(masks, slopes, strict=True)
    ]


def output_axes(pruned):
    """For each kernel, the axes that tell which output a weight belongs to."""
    return [x.outputs for x in layers.kernels(pruned.model, pruned.kernels)]


def dead_units(masks, axes=None):
    """How many outputs (units, channels) of each kernel no weight leads to.

    Given effective masks, these are units that nothing reaches or that reach nothing.
    They are dead even if a bias makes them a constant that is not 0.

    Args:
        masks: list of boolean arrays.
        axes: for each, the axes of its outputs, see `output_axes`. None: the last one,
            which is right for dense layers and plain convolutions, not for depthwise
            and transposed ones nor for every EinsumDense.

    Returns:
        List of integers.
    """
    axes = [(np.ndim(mask) - 1,) for mask in masks] if axes is None else axes
    return [
        int(np.count_nonzero(~np.any(mask, axis=_summed(mask, kept))))
        for mask, kept in zip(masks, axes, strict=True)
    ]


def _summed(mask, outputs):
    """The axes that are not those of outputs."""
    return tuple(axis for axis in range(np.ndim(mask)) if axis not in outputs)


def _averaging(masks, axes):
    """Tensors of weights with which each output averages the inputs that it has."""
    found = []
    for mask, outputs in zip(masks, axes, strict=True):
        count = mask.sum(axis=_summed(mask, outputs), keepdims=True)
        found.append(tf.constant(mask / np.maximum(count, 1), linear.DTYPE))
    return found


def _make_flow(model, kernels):
    others = linear.others(model, kernels)

    def flow(weights, inputs):
        with tf.GradientTape() as tape, _averaged_pooling(model):
            tape.watch(weights)
            values = [*weights, *map(_plain, others)]
            total = linear.total(model, [*kernels, *others], values, inputs)
        return total, tape.gradient(total, weights, unconnected_gradients="zero")

    return flow


def _plain(variable):
    """0 for what is added; else all the same, kernels as if they averaged."""
    if linear.is_added(variable):
        return tf.zeros(variable.shape, linear.DTYPE)
    value = 1 / max(1, math.prod(variable.shape[:-1]))
    return tf.fill(variable.shape, tf.constant(value, linear.DTYPE))


@contextlib.contextmanager
def _averaged_pooling(model):
    with contextlib.ExitStack() as stack:
        for layer in model._flatten_layers():
            if vars(layer).get("pool_mode") == "max":
                stack.enter_context(network.replaced(layer, "pool_mode", "average"))
            for rank in ("1D", "2D", "3D"):
                if isinstance(layer, getattr(keras.layers, f"GlobalMaxPooling{rank}")):
                    mean = getattr(keras.layers, f"GlobalAveragePooling{rank}").call
                    mean = functools.partial(mean, layer)
                    stack.enter_context(network.replaced(layer, "call", mean))
        yield
