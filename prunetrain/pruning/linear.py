"""The linear network that a model is for positive inputs, and what flows through it.

Tanaka et al. 2020 ("Pruning neural networks without any data by iteratively conserving
synaptic flow", section 4) count paths through a network by it: every weight is
positive, activations are left out (a ReLU does nothing to what is positive, a softmax
at the end would make the sum of outputs constant), what is added is 0.
"""

import contextlib
import math

from prunetrain.lazy import tf
from prunetrain.pruning import network

# What flows grows with every layer: in a deep network it is beyond float32.
DTYPE = "float64"
_ADDED = ("bias", "beta", "moving_mean")

_LINEAR = (
    "a network that is linear for positive inputs but for its activations (no "
    "embedding, layer normalisation, softmax layer, recurrent layer or ReLU with a "
    "maximum)"
)


def others(model, kernels):
    """The floating-point variables of a model besides `kernels`."""
    known = {id(kernel) for kernel in kernels}
    return [
        variable
        for variable in model.variables
        if id(variable) not in known and tf.as_dtype(variable.dtype).is_floating
    ]


def is_added(variable):
    """Whether a variable is added to what flows, not multiplied with it."""
    return variable.name.endswith(_ADDED)


def total(model, variables, values, inputs):
    """The sum of the outputs, in float64, with `values` in place of `variables`."""
    with _without_activations(model):
        outputs = network.outputs(model, variables, values, inputs, DTYPE)
    return tf.add_n(list(map(tf.reduce_sum, tf.nest.flatten(outputs))))


def twice(inputs):
    """Twice an example."""
    return tf.nest.map_structure(lambda x: 2 * x, inputs)


def ones(model, what):
    """An example of ones, or one for each of the model's inputs if it has several.

    Raises:
        ValueError: their shapes are not known; `what` needs them.
    """
    shapes = [tuple(x.shape) for x in getattr(model, "inputs", None) or ()]
    # A subclassed model knows what it was first called with.
    shapes = shapes or [tuple((model.get_build_config() or {}).get("input_shape", ()))]
    if not all(shape and all(map(_is_size, shape[1:])) for shape in shapes):
        raise ValueError(
            f"{what} needs inputs of a known shape. Received: model {model.name!r} "
            f"with inputs of shape {shapes}. Start it with keras.Input(shape=…) "
            "without None"
        )
    found = [tf.ones([1, *shape[1:]]) for shape in shapes]
    return found if len(found) > 1 else found[0]


@contextlib.contextmanager
def checked(what):
    """Within it the network is run.

    Raises:
        ValueError: inputs of 1 are no inputs of it, which `what` needs.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        # An embedding, which has no such row.
        raise ValueError(
            f"{what} needs {_LINEAR}. Received: one that inputs of 1 or 2 are no "
            "inputs of"
        ) from error


def check(what, once, twice):
    """Raises ValueError unless a total is positive, finite, and doubles with inputs."""
    if not (0 < once < math.inf and abs(twice - 2 * once) < 1e-6 * once):
        raise ValueError(
            f"{what} needs {_LINEAR}, and through which something flows. Received: one "
            f"whose outputs sum to {once:.4g} for inputs of 1 and to {twice:.4g} for "
            "inputs of 2"
        )


@contextlib.contextmanager
def _without_activations(model):
    with contextlib.ExitStack() as stack:
        for layer in model._flatten_layers():
            # A recurrent layer's is a property; its cell has it.
            if callable(vars(layer).get("activation")):
                stack.enter_context(network.replaced(layer, "activation", tf.identity))
        yield


def _is_size(size):
    return isinstance(size, int)
