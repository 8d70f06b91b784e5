"""SynFlow: the flow through the network, without data.

Hidenori Tanaka, Daniel Kunin, Daniel L. K. Yamins, Surya Ganguli: "Pruning neural
networks without any data by iteratively conserving synaptic flow", NeurIPS 2020.
"""

from prunetrain.lazy import tf
from prunetrain.pruning import linear, network
from prunetrain.pruning.criteria import CRITERIA

_WHAT = "`criterion` synflow"


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
    ones = linear.ones(pruned.model, _WHAT)
    flow = network.program(pruned, "synflow", _make_flow)
    with linear.checked(_WHAT):
        once, twice, scores = flow(network.live_weights(pruned, linear.DTYPE), ones)
    _check_flow(float(once), float(twice))
    return scores


def _make_flow(model, kernels):
    others = linear.others(model, kernels)

    def total(magnitudes, inputs):
        values = [*magnitudes, *map(_plain, others)]
        return linear.total(model, [*kernels, *others], values, inputs)

    def flow(weights, ones):
        magnitudes = [tf.abs(weight) for weight in weights]
        with tf.GradientTape() as tape:
            tape.watch(magnitudes)
            once = total(magnitudes, ones)
        slopes = tape.gradient(once, magnitudes, unconnected_gradients="zero")
        scores = [w * slope for w, slope in zip(magnitudes, slopes, strict=True)]
        return once, total(magnitudes, linear.twice(ones)), scores

    return flow


def _plain(variable):
    """The magnitude of what multiplies, 0 for what is added."""
    value = tf.cast(variable.value, linear.DTYPE)
    return tf.zeros_like(value) if linear.is_added(variable) else tf.abs(value)


def _check_flow(once, twice):
    linear.check(_WHAT, once, twice)
