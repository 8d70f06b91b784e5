"""What the axes of a kernel are: outputs, inputs, heads, by the layer it belongs to."""

import dataclasses
import math

from prunetrain.lazy import keras


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A prunable variable and what it is for.

    Attributes:
        variable: the `keras.Variable`.
        layer: the innermost layer that holds it, or None.
        outputs: axes that tell which output (channel, unit) a weight belongs to.
        inputs: axes over which one output sums its inputs at one place; () where it
            has a single one (depthwise).
        heads: axis of the attention heads, or None.
    """

    variable: object
    layer: object
    outputs: tuple
    inputs: tuple
    heads: int | None

    @property
    def path(self):
        return self.variable.path

    @property
    def shape(self):
        return tuple(self.variable.shape)

    @property
    def num_outputs(self):
        """How many outputs (channels, units) there are."""
        return math.prod(self.shape[axis] for axis in self.outputs)


def kernels(model, variables):
    """A `Kernel` for each of the variables of a model."""
    layers = model._flatten_layers()
    # A layer comes before those inside it, so the innermost one stays.
    owners = {id(variable): layer for layer in layers for variable in layer.weights}
    heads = _head_axes(layers)
    found = []
    for variable in variables:
        layer = owners.get(id(variable))
        outputs, inputs = _roles(layer, variable)
        found.append(Kernel(variable, layer, outputs, inputs, heads.get(id(layer))))
    return found


def _roles(layer, variable):
    """The axes of outputs and of inputs, counted from 0."""
    rank = len(variable.shape)
    if isinstance(layer, keras.layers.EinsumDense):
        return _einsum_roles(layer.equation, rank)
    if _is_depthwise(layer, variable):
        return (rank - 2, rank - 1), ()
    transposed = ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
    if _is_one_of(layer, transposed):
        return (rank - 2,), (rank - 1,)
    # Dense, convolutions, recurrent layers, embeddings: Keras's order.
    return (rank - 1,), (rank - 2,)


def _einsum_roles(equation, rank):
    """Of a kernel in `inputs,kernel->outputs`: what is summed over are its inputs."""
    terms, outputs = equation.replace(" ", "").split("->")
    letters = terms.split(",")[1].replace("...", "")
    summed = tuple(axis for axis in range(rank) if letters[axis] not in outputs)
    return tuple(axis for axis in range(rank) if axis not in summed), summed


def _is_depthwise(layer, variable):
    return variable.name == "depthwise_kernel" or _is_one_of(
        layer, ("DepthwiseConv1D", "DepthwiseConv2D")
    )


def _head_axes(layers):
    """The axis of the heads by id of the dense layer, within layers of attention."""
    axes = {}
    for layer in layers:
        if _is_one_of(layer, ("MultiHeadAttention", "GroupQueryAttention")):
            for part in layer._flatten_layers(include_self=False):
                axes[id(part)] = 0 if part.name == "attention_output" else 1
    return axes


def _is_one_of(layer, names):
    return isinstance(layer, tuple(getattr(keras.layers, name) for name in names))
