"""What one forward pass costs, in floating-point operations, dense and masked.

A weight of a kernel takes a multiplication and an addition at each place that it is
used: 2 × weights × places. Places are the positions of the output of a convolution (of
the input of a transposed one), and 1 for a Dense layer on a vector. Only kernels are
counted: no biases, normalisation or activations, nor products of activations, as in
attention. With masks, the kept weights are counted: what arithmetic that skips zeros
would need. Dense kernels, which a masked run executes, multiply by the zeros too.
"""

import contextlib
import dataclasses
import math

import numpy as np

from prunetrain.lazy import keras
from prunetrain.pruning import layers, network

_COUNTED = (
    *("Dense", "EinsumDense", "Conv1D", "Conv2D", "Conv3D"),
    *("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
    *("DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"),
)


@dataclasses.dataclass(frozen=True)
class Use:
    """A kernel in a forward pass of one example.

    `places` is how often each of its weights is used, None where that is not known
    (recurrent layers, embeddings, layers of one's own).
    """

    path: str
    weights: int
    places: int | None

    def operations(self, kept=None):
        """Operations of this kernel, with all of its weights or so many kept."""
        return 2 * (self.weights if kept is None else kept) * (self.places or 0)


def uses(model, kernels, input_shape):
    """A `Use` for each of the kernels of a model.

    The model is called once, on zeros.

    Args:
        model: a built Keras model.
        kernels: variables of it.
        input_shape: shape of one example.
    """
    found = layers.kernels(model, kernels)
    counted = tuple(getattr(keras.layers, name) for name in _COUNTED)
    owners = {id(x.layer): x.layer for x in found if isinstance(x.layer, counted)}
    calls = {key: [] for key in owners}
    with contextlib.ExitStack() as stack:
        for key, layer in owners.items():
            recorded = _recording(layer.call, calls[key])
            stack.enter_context(network.replaced(layer, "call", recorded))
        model(np.zeros((1, *input_shape), np.float32), training=False)
    return [
        Use(x.path, math.prod(x.shape), _places(x, calls.get(id(x.layer))))
        for x in found
    ]


def _recording(call, found):
    """A layer's `call`, which adds the shapes of its input and output to `found`."""

    def recorded(inputs, *args, **kwargs):
        outputs = call(inputs, *args, **kwargs)
        found.append((tuple(inputs.shape), tuple(outputs.shape)))
        return outputs

    return recorded


def _places(kernel, calls):
    """At how many places a kernel is used, over all calls of its layer."""
    if calls is None:
        return None
    if type(kernel.layer).__name__.endswith("Transpose"):
        (axis,) = kernel.inputs
        return sum(math.prod(given) // kernel.shape[axis] for given, _ in calls)
    # In a separable convolution the depthwise kernel has other outputs than the layer.
    units = getattr(kernel.layer, "filters", kernel.num_outputs)
    return sum(math.prod(made) // units for _, made in calls)
