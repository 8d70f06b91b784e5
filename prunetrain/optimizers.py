"""Keras's optimizers and learning-rate schedules, by name.

A schedule is a function `(learning_rate, train_steps, **arguments)` that returns what
an optimizer takes as its learning rate. To add one, write it here and register it in
`SCHEDULES`. It follows the optimizer's count of steps, which is rewound with its state.
"""

from prunetrain.errors import InputError
from prunetrain.lazy import keras
from prunetrain.registry import Registry, imported, is_import_path

OPTIMIZERS = (
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "ftrl",
    "lamb",
    "lion",
    "muon",
    "nadam",
    "rmsprop",
    "schedulefreeadamw",
    "sgd",
)
SCHEDULES = Registry("learning_rate_schedule")


def make_optimizer(name, learning_rate, **arguments):
    """An optimizer by its Keras class's name in lower case, or package.module:Class.

    Args:
        name: one of `OPTIMIZERS`, or an import path.
        learning_rate: number or Keras learning-rate schedule.
        **arguments: what else the class takes.

    Raises:
        InputError: the installed Keras has none of that name, or the import failed.
        TypeError, ValueError: the class refuses an argument.
    """
    if is_import_path(name):
        optimizer = imported("optimizer", name)
    else:
        # Not keras.optimizers.get: it does not know Lamb.
        classes = {key.lower(): value for key, value in vars(keras.optimizers).items()}
        optimizer = classes.get(name)
    if optimizer is None:
        raise InputError(
            f"`optimizer` must be one that Keras {keras.__version__} has. Received: "
            f"optimizer={name!r}"
        )
    return optimizer(learning_rate=learning_rate, **arguments)


@SCHEDULES.register("constant")
def constant(learning_rate, train_steps):
    """The same at every step."""
    del train_steps
    return learning_rate


@SCHEDULES.register("exponential")
def exponential(
    learning_rate, train_steps, decay_steps=None, decay_rate=0.1, staircase=False
):
    """Times decay_rate (0.1) over every decay_steps (all steps)."""
    return keras.optimizers.schedules.ExponentialDecay(
        learning_rate, decay_steps or train_steps, decay_rate, staircase
    )


@SCHEDULES.register("step")
def step(learning_rate, train_steps, boundaries=None, factor=0.1):
    """Times factor (0.1) at each of the boundaries (half and 3/4 of the steps)."""
    if boundaries is None:
        boundaries = train_steps // 2, train_steps * 3 // 4
    # So that a boundary is the first step at the lower rate.
    last_steps = [int(boundary) - 1 for boundary in boundaries]
    if last_steps != sorted(last_steps):
        raise ValueError(f"boundaries must rise. Received: boundaries={boundaries}")
    rates = [learning_rate * factor**drops for drops in range(len(boundaries) + 1)]
    return keras.optimizers.schedules.PiecewiseConstantDecay(last_steps, rates)


@SCHEDULES.register("cosine")
def cosine(learning_rate, train_steps, decay_steps=None, alpha=0.0):
    """Half a cosine down to alpha (0) times the rate (Loshchilov & Hutter 2017)."""
    return keras.optimizers.schedules.CosineDecay(
        learning_rate, decay_steps or train_steps, alpha
    )


@SCHEDULES.register("linear")
def linear(learning_rate, train_steps, decay_steps=None, end_learning_rate=0.0):
    """In a straight line to end_learning_rate (0) at decay_steps (the last step)."""
    return keras.optimizers.schedules.PolynomialDecay(
        learning_rate, decay_steps or train_steps, end_learning_rate
    )


def with_warmup(learning_rate, warmup_steps):
    """`learning_rate`, rising in a straight line over the first steps.

    Goyal et al. 2017, section 2.2. Step i of the first `warmup_steps` trains at
    (i + 1) / warmup_steps of what it would be without.
    """
    if not warmup_steps:
        return learning_rate

    class Warmup(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            rate = learning_rate(step) if callable(learning_rate) else learning_rate
            part = (keras.ops.cast(step, "float32") + 1) / warmup_steps
            return rate * keras.ops.minimum(part, 1.0)

    return Warmup()
