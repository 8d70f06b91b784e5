"""What lives on the device during an experiment: model, optimizer, loops, snapshots.

TensorFlow is loaded with the first `Lab`: a process that leaves the training to
workers does without.
"""

import contextlib
import dataclasses
import platform
import time
import warnings

import numpy as np

from prunetrain import config as config_lib
from prunetrain import data, losses, metrics, models, optimizers
from prunetrain.config import ConfigError
from prunetrain.data import augmentation
from prunetrain.errors import InputError, told
from prunetrain.lazy import keras, tf
from prunetrain.runs import workers

# What may turn out not to fit when the first step is made.
_MEETING = (
    *("model", "model_args", "precision", "task", "loss", "loss_args", "augment"),
    *("optimizer", "optimizer_args", "learning_rate_schedule"),
    *("learning_rate_schedule_args", "warmup_steps", "train_steps"),
)
# A signal waits for the end of a dispatch.
_DISPATCH_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Mean loss and accuracy (a fraction) over a split, at a step.

    `accuracy` is None for regression, `class_accuracy` unless it is asked for; in it
    None stands for a class without an example.
    """

    step: int
    loss: float
    accuracy: float | None = None
    class_accuracy: list | None = None

    def as_dict(self):
        """What there is of it."""
        return {name: x for name, x in vars(self).items() if x is not None}


def open_data(config):
    """The dataset of a run, for which TensorFlow need not be loaded.

    Raises:
        InputError: the data or their settings are wrong.
    """
    dataset = data.open_dataset(
        config.dataset,
        config.data_dir or None,
        scaling=config.scaling,
        validation_size=config.validation_size,
        arguments=config.arguments("dataset_args"),
        task=config.task,
    )
    num_examples = len(dataset.train[1])
    if config.batch_size > num_examples:
        raise ConfigError(
            "batch_size",
            config.batch_size,
            f"must be at most the {num_examples} training examples there are",
        )
    return dataset


def open_lab(config, directory, dataset=None):
    """A `Lab` in the compile mode that the run began with, whatever "auto" picks now.

    What has changed since then and may change bits is a warning.
    """
    began = directory.environment()
    compile = began.get("compile_mode", config.compile)
    if compile not in list(config_lib.COMPILE_MODES):
        raise InputError(
            f"{directory.path / 'environment.json'} is damaged: compile_mode must be "
            f"one of {', '.join(config_lib.COMPILE_MODES)}. Received: {compile!r}. "
            "Restore it, or start again in another --workdir"
        )
    dataset = open_data(config) if dataset is None else dataset
    read = _what_is_read(config, dataset)
    for name, value in read.items():
        _check_unchanged(config, directory, name, began.get(name, value), value)
    lab = Lab(config, compile, dataset)
    now = {**environment(lab.loop.mode), **read}
    changes = [
        f"{name} was {began[name]}, is {value}"
        for name, value in now.items()
        if began.get(name, value) != value
    ]
    if changes:
        warnings.warn(
            f"{directory.path} began on other ground ({'; '.join(changes)}): what is "
            "trained now may differ in the last bits from what would have been",
            stacklevel=2,
        )
    directory.record_environment(now)
    return lab


def _what_is_read(config, dataset):
    """Sums of what the settings only name: the data, and the model if it is a file."""
    sums = {"dataset_sha256": dataset.digest()}
    if config.starts_trained:
        sums["model_sha256"] = models.digest(config.model)
    return sums


def _check_unchanged(config, directory, name, known, now):
    """Raises InputError unless it is what the run began with."""
    if known != now:
        field = name.removesuffix("_sha256")
        raise InputError(
            f"--{field}={getattr(config, field)} has changed since {directory.path} "
            f"began (SHA-256 was {known}, is {now}). Restore it, or start again in "
            "another --workdir"
        )


def environment(compile_mode):
    """What the bits of a run depend on besides its settings."""
    # XLA's programs give the same bits on any number of threads, oneDNN's kernels not.
    threads = {} if compile_mode == "xla" else {"threads": workers.num_threads()}
    return {
        "compile_mode": compile_mode,
        **threads,
        "devices": ", ".join(d.device_type for d in tf.config.list_logical_devices()),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }


class Lab:
    """What an experiment keeps on the device, built once: nothing is traced twice.

    Args:
        config: `Config`.
        compile: compile mode, in place of `config.compile`.
        dataset: what `open_data` gives; None calls it.

    Raises:
        InputError: the settings do not fit the model or the data.
    """

    def __init__(self, config, compile, dataset=None):
        from prunetrain.core import snapshot, steps, streams

        tf.config.experimental.enable_op_determinism()
        self.config = config
        dataset = open_data(config) if dataset is None else dataset
        stream = config.stream == "always" or (
            config.stream == "auto" and dataset.nbytes > streams.device_memory() / 4
        )
        dataset = dataset if stream else dataset.loaded()
        self._shapes = dataset.input_shape, dataset.num_classes
        # Layers draw initial values from the global seed even if these are replaced.
        keras.utils.set_random_seed(config.seed)
        self.pruned = self._prunable(self._make_model())
        if compile == "xla" and steps.has_max_pooling(self.pruned.model):
            raise ConfigError(
                "compile",
                compile,
                "must be auto, hybrid or graph for a model with max pooling, whose "
                "gradient XLA does not have deterministic",
            )
        self.optimizer = self._make_optimizer()
        self._rates = self._rates_per_kernel()
        with _going_together(config):
            self._build_loops(dataset, compile, stream)
        self.rewind = snapshot.Snapshot(self.pruned, self.optimizer)
        self.best = snapshot.Snapshot(self.pruned)
        self.state = tf.train.Checkpoint(variables=self._variables())
        self.clock = time.monotonic
        # The first dispatches are short: how long a step takes is not known yet.
        self._steps_in_time = 1

    def _build_loops(self, dataset, compile, stream):
        """Builds the loops, and tries them before anything is written."""
        from prunetrain.core import loops

        config = self.config
        loss_fn, tally = self._make_loss(dataset)
        self.loop = loops.make_train_loop(
            self.pruned,
            self.optimizer,
            loss_fn,
            *dataset.train,
            config.batch_size,
            compile=compile,
            augment=augmentation.chained(config.augment),
            stream=stream,
        )
        self._evaluate = {
            split: loops.make_eval_loop(
                self.pruned,
                loss_fn,
                *getattr(dataset, split),
                compile=self.loop.mode,
                stream=stream,
                correct_fn=tally,
            )
            for split in ("validation", "test")
        }
        self._group_sizes = {
            split: metrics.group_sizes(
                config.task, getattr(dataset, split)[1], dataset.num_classes
            )
            for split in self._evaluate
        }
        # It leaves nothing: a training begins with fresh weights, or with those of a
        # checkpoint.
        self.loop(0, 1)

    def _variables(self):
        """Everything on the device that a training changes or goes on from."""
        found = [
            *(v.value for v in self.pruned.model.variables),
            *(v.value for v in self.optimizer.variables),
            *self.pruned.masks,
            *self.rewind.variables,
            *self.best.variables,
            self.loop.seed,
        ]
        return list({id(variable): variable for variable in found}.values())

    def make_dense(self):
        """Masks that keep every weight."""
        masks = [tf.ones_like(mask) for mask in self.pruned.masks]
        self.pruned.set_masks(masks, allow_regrowth=True)

    def draw_weights(self, seed, fresh=False):
        """Initial weights (under the present masks) and a fresh optimizer.

        The weights of a model from a file are those of the file, unless they are to be
        `fresh`.
        """
        keras.utils.set_random_seed(seed)
        model, optimizer = self._make_model(fresh), self._make_optimizer()
        shapes, now = (
            [tuple(v.shape) for v in m.variables] for m in (self.pruned.model, model)
        )
        if shapes != now:
            raise InputError(
                f"--model={self.config.model} must make the same network at each call. "
                f"Received: variables of shapes {shapes}, then of {now}"
            )
        optimizer.build(model.trainable_variables)
        for mine, fresh in (
            (self.pruned.model.variables, model.variables),
            (self.optimizer.variables, optimizer.variables),
        ):
            for variable, value in zip(mine, fresh, strict=True):
                variable.assign(value)
        self.pruned.apply_masks()
        # Some optimizers' slots do not start at zero.
        self.pruned.mask_slots(self.optimizer)

    def train_to_rewind_point(self):
        """From fresh weights to the point that a finished round 0 has passed."""
        step = 0
        while step < self.config.rewind_step:
            _, step = self.advance(0.0, step, self.config.rewind_step)
        self.rewind.update()

    def advance(self, total_loss, step, limit):
        """Trains from `step` towards `limit`, in one dispatch of half a second at most.

        That is how long a signal has to wait; the bits do not depend on it.

        Returns:
            `(total, step)`: `total_loss` plus the losses, and the step reached.
        """
        num_steps = min(limit - step, self.config.steps_per_loop, self._steps_in_time)
        began = self.clock()
        total_loss = self.loop.add_losses(total_loss, step, num_steps)
        seconds = max(self.clock() - began, 1e-6)
        self._steps_in_time = max(1, int(num_steps / seconds * _DISPATCH_SECONDS))
        return total_loss, step + num_steps

    def is_finite(self):
        """Whether every weight of the model is a finite number."""
        return all(
            bool(tf.reduce_all(tf.math.is_finite(variable.value)))
            for variable in self.pruned.model.variables
            if tf.as_dtype(variable.dtype).is_floating
        )

    def next_masks(self, seed):
        """The next round's masks, from the trained weights, or why there are none.

        Returns:
            `(masks, None)`, or `(None, reason)`.
        """
        from prunetrain.pruning import prune

        config = self.config
        remaining = sum(layer.kept for layer in self.pruned.layer_sparsity())
        try:
            masks = prune.new_masks(
                self.pruned,
                rate=config.prune_rate,
                criterion=config.criterion,
                allocation=config.allocation,
                pattern=config.pattern,
                layer_rates=self._rates,
                seed=seed,
            )
        except prune.NoWeightLeftError as error:
            return None, str(error)
        if remaining == sum(int(tf.math.count_nonzero(mask)) for mask in masks):
            rate = f"a rate of {config.prune_rate:g}"
            return None, f"{rate} prunes none of the {remaining} weights"
        return masks, None

    def evaluate(self, split, step):
        """`Evaluation` of the present weights on "validation" or "test"."""
        loss, correct, count = (value.numpy() for value in self._evaluate[split]())
        sizes = self._group_sizes[split]
        found = Evaluation(step, float(loss) / int(count))
        if not len(sizes):
            return found
        accuracy = metrics.accuracy(correct.sum(), sizes.sum())
        by_class = None
        if self.config.accuracy == "by_class":
            by_class = list(map(metrics.accuracy, correct, sizes))
        return dataclasses.replace(found, accuracy=accuracy, class_accuracy=by_class)

    def test_at(self, best, last):
        """Test `Evaluation`s at the best and the last step; leaves the best weights."""
        at_last = self.evaluate("test", last.step)
        self.best.restore()
        return self.evaluate("test", best.step), at_last

    def _make_model(self, fresh=False):
        arguments = self.config.arguments("model_args")
        with _policy(self.config.precision):
            return models.make(self.config.model, *self._shapes, arguments, fresh)

    def _prunable(self, model):
        """`PrunedModel` of what the settings include and do not exclude."""
        from prunetrain.core import pruned_model, selection

        config = self.config
        patterns = [x or None for x in (config.prune_include, config.prune_exclude)]
        try:
            return pruned_model.PrunedModel(model, selection.kernels(*patterns))
        except ValueError as error:
            raise InputError(
                f"--prune_include={','.join(config.prune_include)} "
                f"--prune_exclude={','.join(config.prune_exclude)}: {error}"
            ) from error

    def _make_optimizer(self):
        config = self.config
        with _arguments(config, "learning_rate_schedule_args") as arguments:
            schedule = optimizers.SCHEDULES[config.learning_rate_schedule]
            rate = schedule(config.learning_rate, config.train_steps, **arguments)
        rate = optimizers.with_warmup(rate, config.warmup_steps)
        with _arguments(config, "optimizer_args") as arguments:
            optimizer = optimizers.make_optimizer(config.optimizer, rate, **arguments)
        if config.precision == "mixed_float16":
            return keras.optimizers.LossScaleOptimizer(optimizer)
        return optimizer

    def _make_loss(self, dataset):
        """The loss, and what counts right answers."""
        config, width = self.config, dataset.num_classes
        outputs = self.pruned(dataset.train[0][:64])
        _check_outputs(config.task, outputs, width)
        with _arguments(config, "loss_args") as arguments:
            at_half = losses.decides_at_half(
                config.loss, config.task, arguments, self.pruned.model, outputs
            )
            loss_fn = losses.make_loss(
                config.loss, config.task, at_half, width, **arguments
            )
        return loss_fn, metrics.make_tally(config.task, at_half, width)

    def _rates_per_kernel(self):
        """`layer_rates`, or by default half the rate for the output layer."""
        from prunetrain.core import selection
        from prunetrain.pruning import prune

        config = self.config
        paths = [kernel.path for kernel in self.pruned.kernels]
        if config.layer_rates:
            try:
                return prune.fractions_by_path(
                    paths, config.rates_by_pattern(), config.prune_rate
                )
            except ValueError as error:
                raise ConfigError(
                    "layer_rates",
                    ",".join(config.layer_rates),
                    f"does not fit: {error}",
                ) from error
        if config.allocation != "layerwise":
            return None
        # Frankle & Carbin 2019, figure 2: the output layer at half the rate. It may be
        # excluded from pruning.
        every = selection.kernels()(self.pruned.model)
        output = [choice.variable for choice in every if choice.prunable][-1:]
        halved = [any(kernel is x for x in output) for kernel in self.pruned.kernels]
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
def _going_together(config):
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
    return ",".join(value) if isinstance(value, tuple) else value


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
