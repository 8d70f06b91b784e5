"""One training step and one evaluation step.

The training step is four lines of mathematics: gradients of the loss, zero where
pruned, the optimizer's update, kernels zero where pruned. The loops in `loops.py`
repeat the very same functions.
"""

import numbers

import keras
import tensorflow as tf

from prunetrain.core import pruned_model

COMPILE_MODES = ("auto", "xla", "hybrid", "graph")

_CONVOLUTIONS = tuple(
    getattr(keras.layers, f"{kind}{rank}D")
    for kind, ranks in {
        "Conv": (1, 2, 3),
        "DepthwiseConv": (1, 2),
        "SeparableConv": (1, 2),
        "ConvLSTM": (1, 2, 3),
    }.items()
    for rank in ranks
) + tuple(getattr(keras.layers, f"Conv{rank}DTranspose") for rank in (1, 2, 3))
_MAX_POOLINGS = tuple(getattr(keras.layers, f"MaxPooling{rank}D") for rank in (1, 2, 3))


def make_train_step(pruned, optimizer, loss_fn, mask_interval=1, compile="auto"):
    """Builds the compiled training step.

    Args:
        pruned: `PrunedModel`.
        optimizer: any Keras 3 optimizer; it is built here if it is not yet.
        loss_fn: `(y, outputs) -> loss`, a mean or one value per example; a Keras loss
            object or function. The model's own losses (regularisers) are added. Labels
            are not checked here: under XLA one beyond the classes gives NaN.
        mask_interval: steps between two applications of the masks to the kernels.
            Gradients are masked at every step, so pruned weights stay zero in between
            for every optimizer whose update is elementwise.
        compile: "xla" compiles the whole step, "hybrid" only the update, "graph"
            nothing, "auto" picks (see `pick_mode`).

    Returns:
        A `tf.function` `(x, y) -> loss`, a float32 scalar. It traces once per shape of
        the batch.

    Raises:
        TypeError, ValueError: see `PrunedModel.attach_optimizer`; or an argument is out
            of range.
    """
    pruned_model.check_pruned(pruned)
    pruned.attach_optimizer(optimizer)
    mode = pick_mode(compile, pruned.model)
    update = compiled_update(mode, make_update(pruned, optimizer, mask_interval))
    return compiled(mode, step_function(pruned, optimizer, loss_fn, update))


def make_eval_step(pruned, loss_fn, compile="auto", correct_fn=None):
    """Builds the compiled evaluation step.

    Args:
        pruned: `PrunedModel`.
        loss_fn: as for `make_train_step`. Regularisers are not part of it.
        compile: as for `make_train_step`.
        correct_fn: `(y, outputs) -> correct`, an int32 tensor to be added up over
            batches: a scalar, or numbers by class. None: how many of the outputs, class
            scores `[batch, classes]`, are highest at the label: class indices `[batch]`
            or `[batch, 1]`, or one-hot `[batch, classes]`.

    Returns:
        A `tf.function` `(x, y) -> (loss sum, correct, count)`: float32, int32, int32,
        scalars but for what `correct_fn` says. Add them up over batches and divide
        once, so that a smaller last batch weighs what it should.
    """
    pruned_model.check_pruned(pruned)
    check_loss(loss_fn)
    correct_fn = correct_fn or count_correct
    mode = pick_mode(compile, pruned.model)

    def eval_step(x, y):
        # The masks first: whatever the optimizer did since they were last applied,
        # what is evaluated is the pruned network.
        pruned.apply_masks()
        return evaluate_batch(pruned, loss_fn, correct_fn, x, y)

    return compiled(mode, eval_step)


def compiled(mode, function):
    """`function` as a `tf.function`, by XLA as a whole if `mode` is "xla"."""
    return tf.function(function, jit_compile=True if mode == "xla" else None)


def compiled_update(mode, update):
    """`update`, by XLA if `mode` is "hybrid"."""
    return tf.function(update, jit_compile=True) if mode == "hybrid" else update


def step_function(pruned, optimizer, loss_fn, update):
    """The step `(x, y, *now) -> loss`, to be traced by the caller.

    `update(gradients, *now)` is what is done with the gradients.
    """
    check_loss(loss_fn)

    def train_step(x, y, *now):
        loss, gradients = compute_gradients(pruned, optimizer, loss_fn, x, y)
        update(gradients, *now)
        return loss

    return train_step


def compute_gradients(pruned, optimizer, loss_fn, x, y):
    """Loss (float32, unscaled) and its gradients, scaled as the optimizer expects."""
    with tf.GradientTape() as tape:
        loss = mean_loss(loss_fn, y, pruned(x, training=True))
        for extra in pruned.model.losses:
            loss += tf.cast(extra, loss.dtype)
        scaled = optimizer.scale_loss(loss)
    return loss, tape.gradient(scaled, pruned.trainable_variables)


def make_update(pruned, optimizer, mask_interval=1):
    """Builds `gradients -> None`: mask, let the optimizer update, mask."""
    check_whole("mask_interval", mask_interval, 1, what=" (steps)")
    if mask_interval > 1 and isinstance(
        pruned_model.inner(optimizer), keras.optimizers.Ftrl
    ):
        # Its update divides by a slot, which is zero where pruned.
        raise ValueError(
            "`mask_interval` must be 1 for Ftrl. "
            f"Received: mask_interval={mask_interval}"
        )

    def update(gradients):
        mask_due = mask_is_due(optimizer.iterations, mask_interval)
        gradients = pruned.mask_gradients(gradients)
        optimizer.apply(gradients, pruned.trainable_variables)
        if mask_due is True:
            hold_masks(pruned, optimizer)
        else:
            tf.cond(mask_due, lambda: hold_masks(pruned, optimizer), lambda: None)

    return update


def checked_step_function(pruned, optimizer, loss_fn, update, more_variables=()):
    """The step `(x, y, *now) -> index` of the first number that is not finite, or -1.

    Args:
        pruned, optimizer, loss_fn, update: as for `step_function`.
        more_variables: `tf.Variable`s that are looked at beside the model's.

    Returns:
        `(step, names)`, where `names[index]` tells the loss, a gradient or a variable
        after the update.
    """
    variables = [v for v in pruned.model.variables if tf.as_dtype(v.dtype).is_floating]
    # Scaled ones may overflow: the optimizer then skips the step.
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    derived = [] if scales else pruned.trainable_variables
    names = [
        "the loss",
        *(f"the gradient of {variable.path}" for variable in derived),
        *(variable.path for variable in variables),
        *(variable.name for variable in more_variables),
    ]

    def checked_step(x, y, *now):
        loss, gradients = compute_gradients(pruned, optimizer, loss_fn, x, y)
        # With the masks of this step, before they may change.
        masked = pruned.mask_gradients(gradients)[: len(derived)]
        update(gradients, *now)
        state = [*(variable.value for variable in variables), *more_variables]
        values = [loss, *masked, *state]
        bad = [tf.constant(False) if x is None else _has_nonfinite(x) for x in values]
        return tf.where(tf.reduce_any(bad), tf.argmax(bad, output_type=tf.int32), -1)

    return checked_step, names


def _has_nonfinite(value):
    return tf.reduce_any(~tf.math.is_finite(tf.convert_to_tensor(value)))


def hold_masks(pruned, optimizer):
    """Applies the masks to kernels and to the optimizer's averages of them."""
    pruned.apply_masks()
    if pruned_model.inner(optimizer).use_ema:
        pruned.mask_slots(optimizer)


def mask_is_due(iterations, mask_interval):
    """Whether the masks are applied after this step: True, or a boolean tensor."""
    if mask_interval == 1:
        return True
    return tf.equal((tf.cast(iterations, tf.int64) + 1) % mask_interval, 0)


def mean_loss(loss_fn, y, outputs):
    """`loss_fn` as a float32 scalar: the mean if it gives one value per example."""
    return tf.reduce_mean(tf.cast(loss_fn(y, outputs), tf.float32))


def evaluate_batch(pruned, loss_fn, correct_fn, x, y):
    """`(loss sum, correct, count)` of one batch."""
    outputs = pruned(x, training=False)
    count = tf.shape(y)[0]
    correct = correct_fn(y, outputs)
    loss = mean_loss(loss_fn, y, outputs)
    if getattr(loss_fn, "reduction", None) != "sum":
        loss *= tf.cast(count, tf.float32)
    return loss, correct, count


def count_correct(y, outputs):
    """How many class scores `[batch, classes]` are highest at the label: int32."""
    shape = getattr(outputs, "shape", None)
    if shape is None or shape.rank != 2 or shape[-1] < 2:
        raise ValueError(
            "evaluation needs a model whose outputs are class scores [batch, classes], "
            "two classes or more, or a `correct_fn`. Received: outputs of shape "
            f"{shape} ({type(outputs).__name__})"
        )
    hits = tf.equal(tf.argmax(outputs, -1), label_indices(y, outputs.shape[-1]))
    return tf.math.count_nonzero(hits, dtype=tf.int32)


def label_indices(y, num_classes):
    """Labels `[batch]`, `[batch, 1]` or one-hot `[batch, classes]` as int64 indices."""
    y = tf.convert_to_tensor(y)
    if y.shape.rank == 2 and y.shape[-1] == num_classes:
        return tf.argmax(y, -1)
    return tf.cast(tf.reshape(y, [-1]), tf.int64)


def pick_mode(compile, model):
    """The compile mode for `model` on this machine, always the same for both.

    "auto" is "hybrid" (the update compiled, the rest by TensorFlow's own kernels) for
    models with max pooling, whose gradient XLA does not have deterministic, and on a
    CPU, where XLA has no fast convolutions, for models with a convolution; else "xla".
    """
    if compile not in COMPILE_MODES:
        raise ValueError(
            f"`compile` must be one of {', '.join(COMPILE_MODES)}. "
            f"Received: compile={compile!r}"
        )
    if compile != "auto":
        return compile
    on_cpu = not tf.config.list_logical_devices("GPU")
    if has_max_pooling(model) or (on_cpu and has_convolution(model)):
        return "hybrid"
    return "xla"


def has_convolution(model):
    """Whether one of the model's layers, however deep, is a convolution."""
    return any(isinstance(x, _CONVOLUTIONS) for x in model._flatten_layers())


def has_max_pooling(model):
    """Whether one of the model's layers, however deep, is a max pooling."""
    return any(isinstance(x, _MAX_POOLINGS) for x in model._flatten_layers())


def check_loss(loss_fn):
    """Raises TypeError unless `loss_fn` can be called with labels and outputs."""
    if not callable(loss_fn) or isinstance(loss_fn, type):
        raise TypeError(
            "`loss_fn` must be a function (y, outputs) -> loss, for example "
            "keras.losses.SparseCategoricalCrossentropy(from_logits=True). "
            f"Received: loss_fn={loss_fn!r}"
        )


def check_whole(name, value, low, high=None, what=""):
    """Raises ValueError unless `value` is a whole number from `low` to `high`."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        to = "" if high is None else f" to {high}"
        raise ValueError(
            f"`{name}` must be a whole number from {low}{to}{what}. "
            f"Received: {name}={value!r}"
        )
