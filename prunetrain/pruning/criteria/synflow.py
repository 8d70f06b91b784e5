"""SynFlow: the flow through the network, without data.

Hidenori Tanaka, Daniel Kunin, Daniel L. K. Yamins, Surya Ganguli: "Pruning neural
networks without any data by iteratively conserving synaptic flow", NeurIPS 2020.
"""

import contextlib
import math

from prunetrain.lazy import tf
from prunetrain.pruning import network
from prunetrain.pruning.criteria import CRITERIA

# R grows with every layer: that of a deep network is beyond float32.
_DTYPE = "float64"
_ADDED = ("bias", "beta", "moving_mean")

_LINEAR = (
    "a network that is linear for positive inputs but for its activations (no "
    "embedding, layer normalisation, softmax layer, recurrent layer or ReLU with a "
    "maximum)"
)


@CRITERIA.register("synflow", iterations=100)
def synflow(pruned, *, initial, data, loss_fn, seed):
    """|w| · dR/d|w|, R being the sum of outputs for inputs of 1 (Tanaka et al. 2020).

    Algorithm 1, with every weight at its magnitude, at inference, in float64. The
    network is the linear one of their theory: activations are left out (a ReLU does
    nothing to what is positive, a softmax at the end would make R constant), and what
    is added (biases, means of batch norm) is 0.

    Raises:
        ValueError: the model's inputs are of no known shape, the network is not linear
            for positive inputs, or nothing flows through it.
    """
    del initial, data, loss_fn, seed
    ones = _ones(pruned.model)
    flow = network.program(pruned, "synflow", _make_flow)
    try:
        once, twice, scores = flow(network.live_weights(pruned, _DTYPE), ones)
    except tf.errors.InvalidArgumentError as error:
        # An embedding, which has no such row.
        raise ValueError(
            f"`criterion` synflow needs {_LINEAR}. Received: one that inputs of 1 or 2 "
            "are no inputs of"
        ) from error
    _check_flow(float(once), float(twice))
    return scores


def _make_flow(model, kernels):
    known = {id(kernel) for kernel in kernels}
    others = [
        variable
        for variable in model.variables
        if id(variable) not in known and tf.as_dtype(variable.dtype).is_floating
    ]

    def total(magnitudes, inputs):
        values = [*magnitudes, *map(_plain, others)]
        with _without_activations(model):
            outputs = network.outputs(
                model, [*kernels, *others], values, inputs, _DTYPE
            )
        return tf.add_n(list(map(tf.reduce_sum, tf.nest.flatten(outputs))))

    def flow(weights, ones):
        magnitudes = [tf.abs(weight) for weight in weights]
        with tf.GradientTape() as tape:
            tape.watch(magnitudes)
            once = total(magnitudes, ones)
        slopes = tape.gradient(once, magnitudes, unconnected_gradients="zero")
        scores = [w * slope for w, slope in zip(magnitudes, slopes, strict=True)]
        twos = tf.nest.map_structure(lambda one: 2 * one, ones)
        return once, total(magnitudes, twos), scores

    return flow


def _plain(variable):
    """The magnitude of what multiplies, 0 for what is added."""
    value = tf.cast(variable.value, _DTYPE)
    return tf.zeros_like(value) if variable.name.endswith(_ADDED) else tf.abs(value)


@contextlib.contextmanager
def _without_activations(model):
    with contextlib.ExitStack() as stack:
        for layer in model._flatten_layers():
            # A recurrent layer's is a property; its cell has it.
            if callable(vars(layer).get("activation")):
                stack.enter_context(network.replaced(layer, "activation", tf.identity))
        yield


def _ones(model):
    """An example of ones, or one for each of the model's inputs if it has several."""
    shapes = [tuple(x.shape) for x in getattr(model, "inputs", None) or ()]
    # A subclassed model knows what it was first called with.
    shapes = shapes or [tuple((model.get_build_config() or {}).get("input_shape", ()))]
    if not all(shape and all(map(_is_size, shape[1:])) for shape in shapes):
        raise ValueError(
            "`criterion` synflow needs inputs of a known shape. Received: model "
            f"{model.name!r} with inputs of shape {shapes}. Start it with "
            "keras.Input(shape=…) without None"
        )
    ones = [tf.ones([1, *shape[1:]]) for shape in shapes]
    return ones if len(ones) > 1 else ones[0]


def _is_size(size):
    return isinstance(size, int)


def _check_flow(once, twice):
    """Raises ValueError unless R is positive, finite, and doubles with the inputs."""
    if not (0 < once < math.inf and abs(twice - 2 * once) < 1e-6 * once):
        raise ValueError(
            f"`criterion` synflow needs {_LINEAR}, and through which something flows. "
            f"Received: one whose outputs sum to {once:.4g} for inputs of 1 and to "
            f"{twice:.4g} for inputs of 2"
        )
