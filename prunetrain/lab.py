"""What lives on the device during an experiment: model, optimizer, loops, snapshots.

TensorFlow is loaded with the first `Lab`: a process that leaves the training to
workers does without.
"""

import dataclasses
import pathlib
import platform
import signal
import time
import warnings

import numpy as np

from prunetrain import build, data, metrics, models, plans, strategies
from prunetrain import config as config_lib
from prunetrain.config import ConfigError
from prunetrain.data import augmentation
from prunetrain.errors import InputError, RunError
from prunetrain.lazy import keras, tf
from prunetrain.pruning.criteria import CRITERIA
from prunetrain.runs import follower, workdir, workers

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


def open_directory(config, path=None):
    """The `WorkDirectory` of a run.

    Args:
        config: `Config`.
        path: the folder; None takes `config.workdir`, and if that is empty a new one.
            A `WorkDirectory` is given back as it is.
    """
    if isinstance(path, workdir.WorkDirectory):
        return path
    kind = workdir.WorkDirectory
    if strategies.follows(config.strategy):
        # By then the first worker has opened it.
        strategies.make(config.strategy)
        kind = follower.Follower
    return kind(
        path or config.workdir,
        config.as_dict(),
        config_lib.free_settings(),
        config_lib.Config().as_dict(),
        keep_ends=plans.needs_ends(config),
    )


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
        "cpu": _cpu(),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }


def _cpu():
    """The processor's name, and what XLA's programs for it may be made of."""
    file = pathlib.Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    found = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    parts = {"avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve"}
    used = sorted(parts & set(found.get("flags", found.get("Features", "")).split()))
    return " ".join([found.get("model name") or platform.processor(), *used]).strip()


def _check_parts(config, strategy):
    """Raises ConfigError unless all replicas get as many examples of a batch."""
    count = strategy.num_replicas_in_sync if strategy else 1
    if config.batch_size % count:
        raise ConfigError(
            "batch_size",
            config.batch_size,
            f"must be a multiple of the {count} devices of --strategy="
            f"{config.strategy}, which take equal parts of it",
        )


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
        from prunetrain.core import distributed, snapshot, steps, streams

        self._strategy = strategies.make(config.strategy)
        tf.config.experimental.enable_op_determinism()
        self.config = config
        _check_parts(config, self._strategy)
        dataset = open_data(config) if dataset is None else dataset
        stream = config.stream == "always" or (
            config.stream == "auto" and dataset.nbytes > streams.device_memory() / 4
        )
        dataset = dataset if stream else dataset.loaded()
        self._shapes = dataset.input_shape, dataset.num_classes
        # Layers draw initial values from the global seed even if these are replaced.
        keras.utils.set_random_seed(config.seed)
        with distributed.scope(self._strategy):
            model = build.make_model(config, self._shapes)
            self.pruned = build.make_pruned(config, model)
            self.optimizer = build.make_optimizer(config)
        if compile == "xla" and steps.has_max_pooling(self.pruned.model):
            raise ConfigError(
                "compile",
                compile,
                "must be auto, hybrid or graph for a model with max pooling, whose "
                "gradient XLA does not have deterministic",
            )
        self._rates = build.rates_per_kernel(config, self.pruned)
        with build.going_together(config):
            build.check_last_rate(config)
            self._build_loops(dataset, compile, stream)
        with self.loop.places.on(0):
            self._check_pruning()
        with distributed.scope(self._strategy):
            self.rewind = snapshot.Snapshot(self.pruned, self.optimizer)
            self.best = snapshot.Snapshot(self.pruned)
        self.state = tf.train.Checkpoint(variables=self._variables())
        # What is added to a training's step for the place in the order of the data.
        self.data_offset = 0
        self.clock = self._clock
        # The first dispatches are short: how long a step takes is not known yet.
        self._steps_in_time = 1

    def _clock(self):
        """Seconds. Workers in step decide alike, by the first one's clock."""
        (now,) = self.loop.places.chiefs([np.float64(time.monotonic())])
        return float(now)

    def stops(self, stop):
        """Whether a signal has come, to this process or to one it is in step with.

        Args:
            stop: `signals.Stop`, of which it is noted.
        """
        (number,) = self.loop.places.sum_now([np.int32(stop.number or 0)])
        if number and not stop:
            stop.number = signal.SIGTERM
        # Not by `stop`: the others do not know yet what came meanwhile.
        return bool(number)

    def _build_loops(self, dataset, compile, stream):
        """Builds the loops, and tries them before anything is written."""
        from prunetrain.core import distributed, loops

        config = self.config
        loss_fn, tally = build.make_loss(config, self.pruned, dataset)
        self._loss_fn = loss_fn
        # Sparsity at the begin and at the end of a training's updates of the masks.
        self._targets = [tf.Variable(0.0, False, dtype=tf.float64) for _ in range(2)]
        with distributed.scope(self._strategy):
            self.mask_update = build.make_mask_update(
                config, self.pruned, self._targets
            )
        self._stream = stream
        self.loop = self._make_loop(dataset, compile, self.mask_update)
        self._evaluate = {
            split: loops.make_eval_loop(
                self.pruned,
                loss_fn,
                *getattr(dataset, split),
                compile=self.loop.mode,
                stream=stream,
                correct_fn=tally,
                strategy=self._strategy,
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

    def _make_loop(self, dataset, compile, mask_update=None):
        from prunetrain.core import loops

        return loops.make_train_loop(
            self.pruned,
            self.optimizer,
            self._loss_fn,
            *dataset.train,
            self.config.batch_size,
            compile=compile,
            augment=augmentation.chained(self.config.augment),
            stream=self._stream,
            mask_update=mask_update,
            strategy=self._strategy,
        )

    def dense_loop(self, dataset):
        """A loop of the same training without the masking, to compare with.

        It trains pruned weights too.
        """
        # Traced without the masking, not merely with masks that keep everything.
        pruned = self.pruned
        pruned.mask_gradients, pruned.apply_masks = list, lambda: None
        try:
            loop = self._make_loop(dataset, self.loop.mode)
            loop(0, 1)
        finally:
            del pruned.mask_gradients, pruned.apply_masks
        return loop

    def _variables(self):
        """Everything on the device that a training changes or goes on from."""
        found = [
            *(v.value for v in self.pruned.model.variables),
            *(v.value for v in self.optimizer.variables),
            *self.pruned.masks,
            *self.rewind.variables,
            *self.best.variables,
            self.loop.seed,
            *self._targets,
            *(self.mask_update.variables if self.mask_update else ()),
        ]
        return list({id(variable): variable for variable in found}.values())

    def start_mask_updates(self, round):
        """What changes the masks in a training starts anew: for that of a round."""
        if not self.mask_update:
            return
        for variable in self.mask_update.variables:
            variable.assign(tf.zeros_like(variable))
        if self.config.prune_at == "during":
            sparsities = (0.0, 0.0, *self.config.sparsities)
            pair = sparsities[round], sparsities[round + 1]
            for target, sparsity in zip(self._targets, pair, strict=True):
                target.assign(sparsity)

    @property
    def settled_at(self):
        """The step of a training from which on it is as sparse as it will be."""
        during = self.config.prune_at == "during"
        # The last change comes after the step that ends the updates.
        return self.config.update_steps()[1] + 1 if during else 0

    def make_dense(self):
        """Masks that keep every weight."""
        masks = [tf.ones_like(mask) for mask in self.pruned.masks]
        self.pruned.set_masks(masks, allow_regrowth=True)

    def draw_weights(self, seed, fresh=False, parts=None):
        """Initial weights (under the present masks) and a fresh optimizer.

        The weights of a model from a file are those of the file, unless they are to be
        `fresh`. `parts` are those of `snapshot.by_part`; None stands for all of them.
        """
        from prunetrain.core import snapshot

        keras.utils.set_random_seed(seed)
        model = build.make_model(self.config, self._shapes, fresh)
        optimizer = build.make_optimizer(self.config)
        shapes, now = (
            [tuple(v.shape) for v in m.variables] for m in (self.pruned.model, model)
        )
        if shapes != now:
            raise InputError(
                f"--model={self.config.model} must make the same network at each call. "
                f"Received: variables of shapes {shapes}, then of {now}"
            )
        optimizer.build(model.trainable_variables)
        mine = snapshot.by_part(self.pruned.model, self.optimizer)
        drawn = snapshot.by_part(model, optimizer)
        for part in mine if parts is None else parts:
            for variable, value in zip(mine[part], drawn[part], strict=True):
                variable.assign(value)
        self.pruned.apply_masks()
        # Some optimizers' slots do not start at zero.
        self.pruned.mask_slots(self.optimizer)

    def masks_by_path(self):
        """The kernels' paths and their masks, as they are now."""
        paths = [kernel.path for kernel in self.pruned.kernels]
        return paths, [mask.numpy() for mask in self.pruned.masks]

    def kernels(self):
        """The kernels as arrays, as they are now."""
        return [kernel.value.numpy() for kernel in self.pruned.kernels]

    def set_kernels(self, values):
        """Assigns arrays to the kernels, under the present masks."""
        for kernel, value in zip(self.pruned.kernels, values, strict=True):
            kernel.assign(value)
        self.pruned.apply_masks()

    def train(self, step, last_step):
        """Trains from one step to another, without a word."""
        while step < last_step:
            _, step = self.advance(0.0, step, last_step)

    def advance(self, total_loss, step, limit):
        """Trains from `step` towards `limit`, in one dispatch of half a second at most.

        That is how long a signal has to wait; the bits do not depend on it.

        Returns:
            `(total, step)`: `total_loss` plus the losses, and the step reached.
        """
        num_steps = min(limit - step, self.config.steps_per_loop, self._steps_in_time)
        began = self.clock()
        place = step + self.data_offset
        total_loss = self.loop.add_losses(total_loss, place, num_steps)
        seconds = max(self.clock() - began, 1e-6)
        self._steps_in_time = max(1, int(num_steps / seconds * _DISPATCH_SECONDS))
        return total_loss, step + num_steps

    def first_nonfinite(self, step, num_steps):
        """Trains on, and tells what was not finite first; see the loop's."""
        found = self.loop.first_nonfinite(step + self.data_offset, num_steps)
        return found and (found[0] - self.data_offset, found[1])

    def is_finite(self):
        """Whether every weight of the model is a finite number."""
        return all(
            bool(tf.reduce_all(tf.math.is_finite(variable.value)))
            for variable in self.pruned.model.variables
            if tf.as_dtype(variable.dtype).is_floating
        )

    def next_masks(self, seed, weights_seed, round=0):
        """The next round's masks, from the present weights, or why there are none.

        Args:
            seed: for criteria that draw random numbers.
            weights_seed: what the initial weights were drawn from.
            round: the round that the masks follow.

        Returns:
            `(masks, None)`, or `(None, reason)`.

        Raises:
            RunError: the weights cannot be scored.
        """
        with self.loop.places.on(0):
            masks, problem = self._next_masks(seed, weights_seed, round)
        return masks and self.loop.places.chiefs(masks), problem

    def _next_masks(self, seed, weights_seed, round):
        from prunetrain.pruning import prune

        config = self.config
        remaining = sum(layer.kept for layer in self.pruned.layer_sparsity())
        needs = CRITERIA[config.criterion].needs
        name, fraction = "rate", config.prune_rate
        if config.sparsities:
            name, fraction = "sparsity", config.sparsities[round]
        try:
            masks = prune.new_masks(
                self.pruned,
                **{name: fraction},
                criterion=config.criterion,
                allocation=config.allocation,
                pattern=config.pattern,
                initial=self._initial(weights_seed) if "initial" in needs else None,
                data=self._batches(config.criterion_batches),
                loss_fn=self._loss_fn,
                layer_rates=self._rates,
                seed=seed,
                iterations=config.prune_iterations or None,
                min_kept=config.min_kept,
            )
        except prune.NoWeightLeftError as error:
            return None, str(error)
        except ValueError as error:
            raise RunError(f"--criterion={config.criterion}: {error}") from error
        if remaining == sum(int(tf.math.count_nonzero(mask)) for mask in masks):
            asked = f"a {name} of {fraction:g}"
            return None, f"{asked} prunes none of the {remaining} weights"
        return masks, None

    def _check_pruning(self):
        """Raises InputError if the criterion or the pattern does not fit the model."""
        from prunetrain.pruning import prune

        config = self.config
        if not config.rounds:
            return
        try:
            prune.check(
                self.pruned,
                config.criterion,
                config.pattern,
                initial=[kernel.value for kernel in self.pruned.kernels],
                data=self._batches(1),
                loss_fn=self._loss_fn,
            )
        except ValueError as error:
            raise InputError(
                f"--criterion={config.criterion} --pattern={config.pattern} do not go "
                f"with --model={config.model}: {error}"
            ) from error

    def _batches(self, count):
        """The first batches of the training examples, if the criterion needs them."""
        needed = "data" in CRITERIA[self.config.criterion].needs
        return list(self.loop.batches(count)) if needed else None

    def _initial(self, seed):
        """The kernels as they are drawn from this seed."""
        keras.utils.set_random_seed(seed)
        fresh = build.make_model(self.config, self._shapes)
        pairs = zip(self.pruned.model.variables, fresh.variables, strict=True)
        values = {id(mine): drawn.value for mine, drawn in pairs}
        return [values[id(kernel)] for kernel in self.pruned.kernels]

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

    def evaluate_under(self, masks, step):
        """`Evaluation` on "validation" with other masks, and the weights they keep.

        The present masks come back; the weights that the others prune are lost.
        """
        present = [tf.identity(mask) for mask in self.pruned.masks]
        self.pruned.set_masks(masks, allow_regrowth=True)
        kept = sum(layer.kept for layer in self.pruned.layer_sparsity())
        found = self.evaluate("validation", step)
        self.pruned.set_masks(present, allow_regrowth=True)
        return found, kept
