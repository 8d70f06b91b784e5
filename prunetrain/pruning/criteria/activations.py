"""What comes into a layer."""

import contextlib

from prunetrain.lazy import keras, tf
from prunetrain.pruning import layers, network
from prunetrain.pruning.criteria import CRITERIA, batches


@CRITERIA.register("wanda", needs=("data",))
def wanda(pruned, *, initial, data, loss_fn, seed):
    """|w| · |x|, the L2 norm of what the weight multiplies (Sun et al. 2023).

    Mingjie Sun, Zhuang Liu, Anna Bair, J. Zico Kolter: "A Simple and Effective Pruning
    Approach for Large Language Models", 2023, section 3. What comes in is a feature of
    a Dense layer or a channel of a convolution; its norm is over examples and places.
    They compare the weights of one output; here the allocation says which compete.

    Raises:
        ValueError: a kernel is of another kind of layer.
    """
    del initial, loss_fn, seed
    _check_layers(layers.kernels(pruned.model, pruned.kernels))
    values = network.live_weights(pruned, network.wide_dtype(pruned.model))
    add = network.program(pruned, "inputs", _make_add)
    sums = [tf.zeros(value.shape[-2], value.dtype) for value in values]
    for x, _ in batches(data):
        sums = add(sums, values, x)
    # The inputs' axis is the last but one of either kernel.
    return [
        tf.abs(value) * tf.sqrt(total)[:, tf.newaxis]
        for value, total in zip(values, sums, strict=True)
    ]


def _check_layers(kernels):
    kinds = ("Dense", "Conv1D", "Conv2D", "Conv3D")
    known = tuple(getattr(keras.layers, kind) for kind in kinds)
    wrong = [
        f"{kernel.path} ({type(kernel.layer).__name__})"
        for kernel in kernels
        if not isinstance(kernel.layer, known) or getattr(kernel.layer, "groups", 1) > 1
    ]
    if wrong:
        raise ValueError(
            "`criterion` wanda is defined for kernels of Dense and of convolutions "
            f"without groups. Received: {', '.join(wrong)}. Leave them out with "
            "prune_exclude, or pt.kernels(exclude=…)"
        )


def _make_add(model, kernels):
    owners = [kernel.layer for kernel in layers.kernels(model, kernels)]
    dtype = network.wide_dtype(model)

    def add(sums, values, x):
        seen = [[total] for total in sums]
        with contextlib.ExitStack() as stack:
            for layer, found in zip(owners, seen, strict=True):
                call = _recording(layer, found)
                stack.enter_context(network.replaced(layer, "call", call))
            network.outputs(model, kernels, values, x, dtype)
        return [tf.add_n(found) for found in seen]

    return add


def _recording(layer, found):
    """The layer's `call`, which adds to `found` the sums of squares of its inputs."""
    call = layer.call
    first = getattr(layer, "data_format", None) == "channels_first"

    def recorded(inputs, *args, **kwargs):
        features = 1 if first else inputs.shape.rank - 1
        others = [axis for axis in range(inputs.shape.rank) if axis != features]
        found.append(tf.reduce_sum(tf.square(inputs), others))
        return call(inputs, *args, **kwargs)

    return recorded
