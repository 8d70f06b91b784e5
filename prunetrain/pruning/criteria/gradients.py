"""Gradients of the loss over examples.

Taken at inference (`training=False`: no dropout, batch norm as it was averaged), of the
loss alone (no regularisers), in float32 or wider whatever the model's precision, with
the pruned weights at 0. All are means over the examples of `data`; a constant factor
changes no order. The sums stay on the device.
"""

from prunetrain.lazy import tf
from prunetrain.pruning import network
from prunetrain.pruning.criteria import CRITERIA, batches

_NEEDS = ("data", "loss_fn")


@CRITERIA.register("taylor", needs=_NEEDS)
def taylor(pruned, *, initial, data, loss_fn, seed):
    """|w · g|: what a weight changes in a batch's loss (Molchanov et al. 2019).

    Pavlo Molchanov et al.: "Importance Estimation for Neural Network Pruning", CVPR
    2019, section 3.1: the first-order term, averaged over the batches. The absolute
    value is taken for each batch, so what cancels between batches still counts.
    """
    del initial, seed
    _, saliency = _mean(pruned, data, loss_fn, "batch", _batch_saliency)
    return saliency


@CRITERIA.register("snip", needs=_NEEDS)
def snip(pruned, *, initial, data, loss_fn, seed):
    """|w · g|, g being the gradient over all batches (Lee et al. 2019).

    Namhoon Lee, Thalaiyasingam Ajanthan, Philip H. S. Torr: "SNIP: Single-shot Network
    Pruning based on Connection Sensitivity", ICLR 2019, section 4.1. They divide by the
    sum over all weights, which changes no order.
    """
    del initial, seed
    values, gradients = _mean(pruned, data, loss_fn, "gradient", _gradients)
    return [tf.abs(w * g) for w, g in zip(values, gradients, strict=True)]


@CRITERIA.register("grasp", needs=_NEEDS)
def grasp(pruned, *, initial, data, loss_fn, seed):
    """w · Hg: what is needed for the gradient to flow stays (Wang et al. 2020).

    Chaoqi Wang, Guodong Zhang, Roger Grosse: "Picking Winning Tickets Before Training
    by Preserving Gradient Flow", ICLR 2020, equation 8: taking a weight away changes
    |g|² by -2 w · Hg, H being the Hessian. They remove the weights of the highest
    -w · Hg. Here the highest scores stay, hence the other sign: a weight whose removal
    would reduce the gradient has w · Hg > 0, and stays.
    """
    del initial, seed
    _, gradients = _mean(pruned, data, loss_fn, "gradient", _gradients)
    # Pruned weights get no gradient in training.
    flow = [
        tf.where(mask, gradient, tf.zeros_like(gradient))
        for gradient, mask in zip(gradients, pruned.masks, strict=True)
    ]
    values, products = _mean(pruned, data, loss_fn, "hessian", _hessian_times, flow)
    return [w * product for w, product in zip(values, products, strict=True)]


@CRITERIA.register("fisher", needs=_NEEDS)
def fisher(pruned, *, initial, data, loss_fn, seed):
    """w² · the mean of g² over single examples (Theis et al. 2018).

    Lucas Theis, Iryna Korshunova, Alykhan Tejani, Ferenc Huszár: "Faster gaze
    prediction with dense networks and Fisher pruning", 2018, section 2.1, without the
    factor 1/2: the diagonal of the empirical Fisher information. It takes a backward
    pass for each example.
    """
    del initial, seed
    _, saliency = _mean(pruned, data, loss_fn, "examples", _example_saliency)
    return saliency


def _mean(pruned, data, loss_fn, kind, contribution, fixed=()):
    """Adds up over the batches and divides by the number of examples.

    Args:
        pruned, data, loss_fn: as for a criterion.
        kind: name of the program that is compiled.
        contribution: `(loss, values, x, y, fixed) -> tensors`, aligned with the
            kernels; `loss(values, x, y)` is the sum over a batch.
        fixed: tensors for it that are the same for all batches.

    Returns:
        The kernels' live weights, and the means.
    """
    dtype = network.wide_dtype(pruned.model)
    values = network.live_weights(pruned, dtype)
    add = network.program(pruned, kind, _make_add, loss_fn, contribution)
    totals, count = [tf.zeros_like(value) for value in values], tf.zeros([], dtype)
    for x, y in batches(data):
        totals, count = add(totals, count, values, x, y, list(fixed))
    return values, [total / count for total in totals]


def _make_add(model, kernels, loss_fn, contribution):
    dtype = network.wide_dtype(model)

    def loss(values, x, y):
        outputs = network.outputs(model, kernels, values, x, dtype)
        losses = tf.cast(loss_fn(y, outputs), dtype)
        if getattr(loss_fn, "reduction", None) == "sum":
            return tf.reduce_sum(losses)
        return tf.reduce_mean(losses) * _num_examples(x, dtype)

    def add(totals, count, values, x, y, fixed):
        found = contribution(loss, values, x, y, fixed)
        totals = [total + part for total, part in zip(totals, found, strict=True)]
        return totals, count + _num_examples(x, dtype)

    return add


def _num_examples(x, dtype):
    return tf.cast(tf.shape(tf.nest.flatten(x)[0])[0], dtype)


def _gradients(loss, values, x, y, fixed=()):
    del fixed
    with tf.GradientTape() as tape:
        tape.watch(values)
        total = loss(values, x, y)
    return tape.gradient(total, values, unconnected_gradients="zero")


def _batch_saliency(loss, values, x, y, fixed):
    del fixed
    gradients = _gradients(loss, values, x, y)
    return [tf.abs(w * g) for w, g in zip(values, gradients, strict=True)]


def _example_saliency(loss, values, x, y, fixed):
    del fixed

    def add(totals, example):
        batch = tf.nest.map_structure(lambda value: value[tf.newaxis], example)
        gradients = _gradients(loss, values, *batch)
        return [
            total + tf.square(w * g)
            for total, w, g in zip(totals, values, gradients, strict=True)
        ]

    return tf.foldl(add, (x, y), [tf.zeros_like(value) for value in values])


def _hessian_times(loss, values, x, y, vectors):
    """The Hessian of the batch's loss times `vectors`, by a tape within a tape."""
    with tf.GradientTape() as tape:
        tape.watch(values)
        gradients = _gradients(loss, values, x, y)
        along = tf.add_n(
            [tf.reduce_sum(g * v) for g, v in zip(gradients, vectors, strict=True)]
        )
    return tape.gradient(along, values, unconnected_gradients="zero")
