"""What the settings stand for: model, optimizer, loss, changes of the masks.

What does not fit is told with the settings that it comes from.
"""

import contextlib
import inspect

from prunetrain import config as config_lib
from prunetrain import losses, metrics, models, optimizers, plans
from prunetrain.config import ConfigError
from prunetrain.errors import InputError, told
from prunetrain.lazy import keras
from prunetrain.pruning import schedules

# What may turn out not to fit when the first step is made.
_MEETING = (
    *("model", "model_args", "precision", "task", "loss", "loss_args", "augment"),
    *("optimizer", "optimizer_args", "learning_rate_schedule"),
    *("learning_rate_schedule_args", "warmup_steps", "train_steps"),
    *("mask_updates", "allocation", "prune_at", "sparsities"),
)


def make_model(config, shapes, fresh=False):
    """A new model for `(input shape, number of outputs)`; see `models.make`."""
    arguments = config.arguments("model_args")
    with _policy(config.precision):
        return models.make(config.model, *shapes, arguments, fresh)


def make_pruned(config, model):
    """`PrunedModel` of what the settings include and do not exclude."""
    from prunetrain.core import pruned_model, selection

    patterns = [x or None for x in (config.prune_include, config.prune_exclude)]
    try:
        return pruned_model.PrunedModel(model, selection.kernels(*patterns))
    except ValueError as error:
        raise InputError(
            f"--prune_include={','.join(config.prune_include)} "
            f"--prune_exclude={','.join(config.prune_exclude)}: {error}"
        ) from error


def make_optimizer(config):
    """A new optimizer, with its learning-rate schedule."""
    rate = make_rate(config)
    with _arguments(config, "optimizer_args") as arguments:
        optimizer = optimizers.make_optimizer(config.optimizer, rate, **arguments)
    if config.precision == "mixed_float16":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def make_rate(config):
    """The learning rate: a number, or a function of the optimizer's steps."""
    with _arguments(config, "learning_rate_schedule_args") as arguments:
        schedule = optimizers.SCHEDULES[config.learning_rate_schedule]
        rate = schedule(config.learning_rate, config.train_steps, **arguments)
    return optimizers.with_warmup(rate, config.warmup_steps)


def check_last_rate(config):
    """Raises ConfigError if rounds are to go on at a learning rate of 0."""
    rate = make_rate(config)
    goes_on = plans.sources(config)["schedule"] == "end" and callable(rate)
    if goes_on and not float(rate(config.train_steps)) > 0:
        name = config.learning_rate_schedule
        raise ConfigError(
            "rewind",
            ",".join(config.rewind),
            "goes on at the last rate, which must be above 0. With "
            f"learning_rate_schedule={name} it is 0: take another, or end it above "
            "(alpha for cosine, end_learning_rate for linear)",
        )


def make_loss(config, pruned, dataset):
    """The loss, and what counts right answers."""
    width = dataset.num_classes
    outputs = pruned(dataset.train[0][:64])
    _check_outputs(config.task, outputs, width)
    with _arguments(config, "loss_args") as arguments:
        at_half = losses.decides_at_half(
            config.loss, config.task, arguments, pruned.model, outputs
        )
        loss_fn = losses.make_loss(
            config.loss, config.task, at_half, width, **arguments
        )
    return loss_fn, metrics.make_tally(config.task, at_half, width)


def make_mask_update(config, pruned, targets):
    """What changes the masks in a training; None if they stay.

    `targets` are two float64 variables: the sparsity at the begin and at the end of the
    updates.
    """
    from prunetrain.pruning import dynamic

    during = config.prune_at == "during"
    if not during and config.mask_updates == "static":
        return None
    if plans.data_place(config, 1) != plans.first_step(config, 1):
        raise ConfigError(
            "rewind",
            ",".join(config.rewind),
            "must not put a training's data elsewhere than its steps if masks "
            "change in it, with --prune_at=during or --mask_updates",
        )
    make = dynamic.MASK_UPDATES["gradual" if during else config.mask_updates]
    begin, end = config.update_steps()
    if during:
        # The highest of all is looked at as the update is made.
        targets[1].assign(config.sparsities[-1])
    offered = {
        # None: each kernel keeps what its allocation has left it.
        "sparsity": _rising_sparsity(config, targets, begin, end) if during else None,
        "drop": schedules.cosine_drop(config.drop_fraction, end),
        "update_every": config.update_every,
        "begin_step": begin,
        "end_step": end,
        "allocation": "global" if config.allocation == "global" else "layerwise",
    }
    taken = inspect.signature(make).parameters
    return make(pruned, **{k: v for k, v in offered.items() if k in taken})


def _rising_sparsity(config, targets, begin, end):
    """`step -> sparsity` between the two targets, which are variables."""
    schedule = schedules.SCHEDULES[config.sparsity_schedule](1.0, begin, end)
    first, last = targets

    def sparsity(step):
        # So that it ends exactly at the last.
        return last - (last - first) * (1 - schedule(step))

    return sparsity


def rates_per_kernel(config, pruned):
    """`layer_rates`, or by default half the rate for the output layer."""
    from prunetrain.core import selection
    from prunetrain.pruning import counts

    paths = [kernel.path for kernel in pruned.kernels]
    if config.layer_rates:
        try:
            return counts.fractions_by_path(
                paths, config.rates_by_pattern(), config.prune_rate
            )
        except ValueError as error:
            raise ConfigError(
                "layer_rates",
                ",".join(config.layer_rates),
                f"does not fit: {error}",
            ) from error
    if config.allocation != "layerwise" or config.sparsities:
        return None
    # Frankle & Carbin 2019, figure 2: the output layer at half the rate. It may be
    # excluded from pruning.
    every = selection.kernels()(pruned.model)
    output = [choice.variable for choice in every if choice.prunable][-1:]
    halved = [any(kernel is x for x in output) for kernel in pruned.kernels]
    return [config.prune_rate / (2 if half else 1) for half in halved]


def _check_outputs(task, outputs, width):
    """Raises ValueError unless they are `[batch, width]`; spare classes do no harm."""
    shape = getattr(outputs, "shape", None)
    is_rows = shape is not None and len(shape) == 2
    if task == "classes":
        fits, what = is_rows and shape[1] >= 2, "class scores [batch, classes]"
    else:
        fits, what = is_rows and shape[1] == width, f"[batch, {width}] for task={task}"
    if not fits:
        raise ValueError(
            f"the model's outputs must be {what}. Received: outputs of shape {shape} "
            f"({type(outputs).__name__})"
        )


@contextlib.contextmanager
def _policy(name):
    """Layers are made under this dtype policy."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextlib.contextmanager
def going_together(config):
    """What the code that the settings name raises, as InputError with the settings."""
    try:
        yield
    except InputError:
        raise
    # The user's code, Keras and TensorFlow fail in dozens of ways.
    except Exception as error:
        default = config_lib.Config()
        given = [
            f"--{name}={shown}"
            for name in _MEETING
            if (shown := _typed(getattr(config, name)))
            != _typed(getattr(default, name))
            or name == "model"
        ]
        raise InputError(
            f"{' '.join(given)} cannot be trained on --dataset={config.dataset}: "
            f"{told(error)}"
        ) from error


def _typed(value):
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


@contextlib.contextmanager
def _arguments(config, field):
    """The arguments that a field holds, for a call that may refuse them."""
    try:
        yield config.arguments(field)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(
            field, getattr(config, field), f"does not fit: {error}"
        ) from error
