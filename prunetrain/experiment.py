"""The experiment: iterative pruning with rewinding, and its controls.

Frankle & Carbin 2019 ("The Lottery Ticket Hypothesis", section 2): train, prune,
rewind, repeat. `find_tickets` is the procedure; `Lab` holds what lives on the device.

TensorFlow is loaded with the first `Lab`: a process that leaves the training to
workers does without.
"""

import dataclasses
import math
import pathlib
import platform
import time
import warnings

import numpy as np

from prunetrain import config as config_lib
from prunetrain import data
from prunetrain.config import ConfigError
from prunetrain.errors import InputError, RunError
from prunetrain.lazy import keras, tf
from prunetrain.models import MODELS
from prunetrain.runs import progress as displays
from prunetrain.runs import signals, workers
from prunetrain.runs import workdir as workdirs

# A signal waits for the end of a dispatch.
_DISPATCH_SECONDS = 1
_SEED_PURPOSES = ("weights", "data_order", "reinit", "criterion")


@dataclasses.dataclass(frozen=True)
class Results:
    """What a run leaves: the folder, and a `Row` per training in order."""

    workdir: pathlib.Path
    rows: list


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Mean loss and accuracy (a fraction) over a split, at a step."""

    step: int
    loss: float
    accuracy: float


def run(config, workdir=None, progress=None):
    """Runs an experiment, or goes on with one that was interrupted.

    Makes TensorFlow's ops deterministic in this process: the same settings give the
    same bits. A training whose row is in the folder's results.csv is not repeated; one
    that was interrupted goes on from its last checkpoint.
    With `config.parallel_replicates` above 1 the trainings run in worker processes,
    which start afresh: they do not know what a script has registered or set in Keras.

    Args:
        config: `Config`.
        workdir: folder for the files, or an open `WorkDirectory`; None takes
            `config.workdir`, and if that is empty a new one.
        progress: display (see `runs.progress`); None picks one for the console.

    Returns:
        `Results`.

    Raises:
        InputError: the settings, the data or the folder do not fit.
        RunError: the training diverged, or a worker process failed.
    """
    directory = workdir
    if not isinstance(directory, workdirs.WorkDirectory):
        directory = open_directory(config, workdir)
    display = progress or displays.for_console()
    plans = [
        list(unfinished(config, replicate, directory))
        for replicate in range(config.replicates)
    ]
    if not any(plans):
        display.say(f"{directory.path}: every round is finished, nothing to train")
        return Results(directory.path, directory.rows)
    display.expect(
        sum(
            config.train_steps - reached(config, replicate, *stage, directory)
            for replicate, plan in enumerate(plans)
            for stage in plan
        )
    )
    replicates = [replicate for replicate, plan in enumerate(plans) if plan]
    with display:
        if config.parallel_replicates > 1:
            find_side_by_side(config, replicates, directory, display)
        else:
            lab = open_lab(config, directory)
            for replicate in replicates:
                find_tickets(lab, config, replicate, directory, display)
    directory.tidy_metrics()
    return Results(directory.path, directory.rows)


def open_directory(config, path=None):
    """The `WorkDirectory` of a run: `path`, or `config.workdir`, or a new one."""
    return workdirs.WorkDirectory(
        path or config.workdir, config.as_dict(), config_lib.free_settings()
    )


def open_lab(config, directory):
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
    lab = Lab(config, compile)
    now = environment(lab.loop.mode)
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


def find_side_by_side(config, replicates, directory, display):
    """`find_tickets` for several replicates, in worker processes.

    This process alone writes the files that the replicates share, and the screen.

    Raises:
        RunError: workers failed; the others have gone on to their end.
    """
    failures = workers.run(
        "prunetrain.worker",
        (config.as_dict(), directory),
        {replicate: directory.log(replicate) for replicate in replicates},
        config.parallel_replicates,
        {"directory": directory, "display": display},
        on_failure=display.fail,
    )
    if failures:
        told = "; ".join(f"replicate {who} failed: {why}" for who, why in failures)
        raise RunError(
            f"{told}. What is finished is kept in {directory.path}; repeat the command "
            "on it to train the rest"
        )


def find_tickets(lab, config, replicate, directory, display):
    """Train, evaluate, prune, rewind, repeat, for one replicate.

    What is still to be trained is looked up anew after each training, since whether
    there is a next round depends on what the last one left to prune.
    """
    lab.loop.seed.assign(seed_for(config, "data_order", replicate))
    progress = resumed(lab, config, replicate, directory, display)
    if not progress:
        lab.make_dense()
        lab.draw_weights(seed_for(config, "weights", replicate))
        if directory.row((replicate, "ticket", 0)):
            lab.train_to_rewind_point()
    for round, branch in unfinished(config, replicate, directory):
        if not progress:
            if round:
                lab.pruned.set_masks(directory.load_masks(replicate, round))
            if round and branch == "ticket":
                lab.rewind.restore()
            elif branch == "reinit":
                lab.draw_weights(seed_for(config, "reinit", replicate, round))
            progress = Progress(first_step(config, round, branch))
        log = Log(directory, display, replicate, branch, round, lab.pruned, progress)
        saves = Saves(lab, directory, (replicate, branch, round), progress)
        best, last = train(lab, progress, log, saves, round == 0)
        if branch == "ticket" and round < config.rounds:
            masks, problem = lab.next_masks(
                seed_for(config, "criterion", replicate, round)
            )
            if problem:
                display.say(f"No round after {round}: {problem}")
                directory.end_at(replicate, round, problem)
            else:
                paths = [kernel.path for kernel in lab.pruned.kernels]
                directory.save_masks(replicate, round + 1, paths, masks)
        directory.save_weights(lab.pruned.model, replicate, branch, round)
        log.finish(best, last, *lab.test_at(best, last))
        progress = None


def resumed(lab, config, replicate, directory, display):
    """`Progress` of the training that was cut off, whose state the lab then holds.

    None if there is no checkpoint of it.
    """
    round, branch = next(unfinished(config, replicate, directory))
    key = replicate, branch, round
    position = directory.position(key)
    if not position:
        return None
    directory.restore(key, lab.state)
    progress = Progress.from_dict(position)
    place = f"replicate {replicate} round {round} {branch} step {progress.step:,}"
    display.say(f"goes on at {place}")
    return progress


def unfinished(config, replicate, directory):
    """Yields `(round, branch)` of the trainings to come, as far as can be told.

    It may have been recorded that a round is the last one: nothing left to prune.
    """
    for round in range(config.rounds + 1):
        if directory.ends_at(replicate, round - 1):
            return
        for branch in ("ticket", *(config.controls if round else ())):
            if not directory.row((replicate, branch, round)):
                yield round, branch


def first_step(config, round, branch):
    """The step that a training starts from: a control starts over, a ticket rewinds."""
    return config.rewind_step if round and branch == "ticket" else 0


def reached(config, replicate, round, branch, directory):
    """The step that a training goes on from, or starts from if it has no checkpoint."""
    position = directory.position((replicate, branch, round))
    return position["step"] if position else first_step(config, round, branch)


def train(lab, progress, log, saves, take_rewind_point):
    """Trains to the last step, keeping the weights of the lowest validation loss.

    Args:
        lab: `Lab`, whose model, masks and optimizer stand at `progress.step`.
        progress: `Progress`, which goes on with the training.
        log: `Log` told of every evaluation.
        saves: `Saves`, which writes the checkpoints.
        take_rewind_point: whether this training passes the point to rewind to.

    Returns:
        The best and the last `Evaluation`.

    Raises:
        RunError: the loss is no longer finite.
        signals.Stopped: a signal came, and what it would have cut off is saved.
    """
    config, then = lab.config, lab.clock()
    log.begin(progress.step, config.train_steps)
    with signals.deferred() as stop:
        while True:
            now = lab.clock()
            progress.seconds, then = progress.seconds + now - then, now
            if stop:
                saves.save(progress)
                stop.obey()
            if take_rewind_point and progress.step == config.rewind_step:
                lab.rewind.update()
            if evaluation_is_due(config, progress):
                evaluate(lab, progress, log)
            if saves.due(progress.step):
                saves.save(progress)
            if progress.step == config.train_steps:
                return progress.best, progress.last
            advance(lab, progress, log)


def evaluation_is_due(config, progress):
    """Before the first step, at every `eval_every`th and at the last: once at each."""
    step = progress.step
    if progress.last is None:
        return True
    at_such_a_step = step == config.train_steps or step % config.eval_every == 0
    return at_such_a_step and progress.last.step != step


def evaluate(lab, progress, log):
    """Evaluates on the validation examples, and keeps the weights if they are best."""
    # Here numbers cross to the host, and when a checkpoint is written.
    num_steps = progress.num_steps
    train_loss = float(progress.total_loss) / num_steps if num_steps else None
    last = lab.evaluate("validation", progress.step)
    log.evaluated(last, train_loss)
    if progress.best is None or last.loss < progress.best.loss:
        lab.best.update()
        progress.best = last
    progress.last, progress.total_loss, progress.num_steps = last, 0.0, 0


def advance(lab, progress, log):
    """Trains for one dispatch."""
    limit = next_stop(lab.config, progress.step)
    progress.total_loss, step = lab.advance(progress.total_loss, progress.step, limit)
    num_steps = step - progress.step
    progress.num_steps += num_steps
    progress.step = step
    log.advance(step, num_steps)


def next_stop(config, step):
    """The next step at which a dispatch has to end, if it comes that far."""
    stops = [
        (step // every + 1) * every
        for every in (config.eval_every, config.checkpoint_interval()[0])
    ]
    if step < config.rewind_step:
        stops.append(config.rewind_step)
    return min(*stops, config.train_steps)


def seed_for(config, purpose, replicate, round=0):
    """An independent seed for each purpose, from `config.seed`."""
    entropy = [config.seed, _SEED_PURPOSES.index(purpose), replicate, round]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def make_optimizer(name, learning_rate):
    """A Keras optimizer by its class's name in lower case.

    Raises:
        ConfigError: the installed Keras has none of that name.
    """
    # Not keras.optimizers.get: it does not know Lamb.
    classes = {key.lower(): value for key, value in vars(keras.optimizers).items()}
    if name not in classes:
        raise ConfigError(
            "optimizer", name, f"must be one that Keras {keras.__version__} has"
        )
    return classes[name](learning_rate=learning_rate)


class Lab:
    """What an experiment keeps on the device, built once: nothing is traced twice.

    Args:
        config: `Config`.
        compile: compile mode, in place of `config.compile`.

    Raises:
        InputError: the settings do not fit the model or the data.
    """

    def __init__(self, config, compile):
        from prunetrain.core import loops, pruned_model, snapshot, steps

        tf.config.experimental.enable_op_determinism()
        self.config = config
        dataset = data.load_dataset(
            config.dataset,
            config.data_dir or None,
            scaling=config.scaling,
            validation_size=config.validation_size,
        )
        num_examples = len(dataset.train[1])
        if config.batch_size > num_examples:
            raise ConfigError(
                "batch_size",
                config.batch_size,
                f"must be at most the {num_examples} training examples there are",
            )
        self._shapes = dataset.input_shape, dataset.num_classes
        # Layers draw initial values from the global seed even if these are replaced.
        keras.utils.set_random_seed(config.seed)
        self.pruned = pruned_model.PrunedModel(self._make_model())
        if compile == "xla" and steps.has_max_pooling(self.pruned.model):
            raise ConfigError(
                "compile",
                compile,
                "must be auto, hybrid or graph for a model with max pooling, whose "
                "gradient XLA does not have deterministic",
            )
        self.optimizer = self._make_optimizer()
        self._rates = self._rates_per_kernel()
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.loop = loops.make_train_loop(
            self.pruned,
            self.optimizer,
            loss_fn,
            *dataset.train,
            config.batch_size,
            compile=compile,
        )
        self._evaluate = {
            split: loops.make_eval_loop(
                self.pruned, loss_fn, *getattr(dataset, split), compile=self.loop.mode
            )
            for split in ("validation", "test")
        }
        self.rewind = snapshot.Snapshot(self.pruned, self.optimizer)
        self.best = snapshot.Snapshot(self.pruned)
        self.state = tf.train.Checkpoint(variables=self._variables())
        self.clock = time.monotonic
        # The first dispatches are short: how long a step takes is not known yet.
        self._steps_in_time = 1

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

    def draw_weights(self, seed):
        """Fresh initial weights (under the present masks) and a fresh optimizer."""
        keras.utils.set_random_seed(seed)
        model, optimizer = self._make_model(), self._make_optimizer()
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
        """Trains from `step` towards `limit`, in one dispatch of a second at most.

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
        loss, correct, count = (float(value) for value in self._evaluate[split]())
        return Evaluation(step, loss / count, correct / count)

    def test_at(self, best, last):
        """Test `Evaluation`s at the best and the last step; leaves the best weights."""
        at_last = self.evaluate("test", last.step)
        self.best.restore()
        return self.evaluate("test", best.step), at_last

    def _make_model(self):
        return MODELS[self.config.model](*self._shapes)

    def _make_optimizer(self):
        return make_optimizer(self.config.optimizer, self.config.learning_rate)

    def _rates_per_kernel(self):
        """`layer_rates`, or by default half the rate for the output layer."""
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
        # Frankle & Carbin 2019, figure 2: the output layer at half the rate.
        return [config.prune_rate] * (len(paths) - 1) + [config.prune_rate / 2]


@dataclasses.dataclass
class Progress:
    """How far a training has come: all that it goes on from besides the device's state.

    `total_loss` is the sum over the `num_steps` since the last evaluation; `metrics`
    what the training has logged so far; `seconds` how long it has taken.
    """

    step: int
    best: Evaluation | None = None
    last: Evaluation | None = None
    total_loss: float = 0.0
    num_steps: int = 0
    seconds: float = 0.0
    metrics: list = dataclasses.field(default_factory=list)

    def as_dict(self):
        """Its values as JSON has them."""
        values = {**vars(self), "total_loss": float(self.total_loss)}
        for name in ("best", "last"):
            evaluation = values[name]
            values[name] = evaluation and dataclasses.asdict(evaluation)
        return values

    @classmethod
    def from_dict(cls, values):
        """The inverse of `as_dict`."""
        pair = {name: values[name] for name in ("best", "last")}
        pair = {name: value and Evaluation(**value) for name, value in pair.items()}
        return cls(**{**values, **pair})


class Saves:
    """Writes the checkpoints of one training.

    Args:
        lab: `Lab`.
        directory: work directory.
        key: the training's (replicate, branch, round).
        progress: `Progress` at its begin, which needs no saving.
    """

    def __init__(self, lab, directory, key, progress):
        self._lab, self._directory, self._key = lab, directory, key
        self._interval = lab.config.checkpoint_interval()
        self._step, self._time = progress.step, lab.clock()

    def due(self, step):
        """Whether to save at this step: as the settings say, and at the last one."""
        steps, seconds = self._interval
        return step != self._step and (
            step == self._lab.config.train_steps
            or step % steps == 0
            or self._lab.clock() - self._time >= seconds
        )

    def save(self, progress):
        """Writes a checkpoint."""
        self._directory.save_checkpoint(self._key, self._lab.state, progress.as_dict())
        self._step, self._time = progress.step, self._lab.clock()


class Log:
    """Writes what happens in one training to the work directory and the display."""

    def __init__(self, directory, display, replicate, branch, round, pruned, progress):
        self._directory, self._display, self._progress = directory, display, progress
        self._where = {"replicate": replicate, "branch": branch, "round": round}
        layers = pruned.layer_sparsity()
        self._remaining = sum(layer.kept for layer in layers)
        self._total = sum(layer.total for layer in layers)

    def begin(self, step, last_step):
        self._display.begin(**self._where, kept=self._remaining / self._total)
        self._display.advance(self._where["replicate"], step, 0, last_step)

    def advance(self, step, num_steps):
        self._display.advance(self._where["replicate"], step, num_steps)

    def evaluated(self, evaluation, train_loss):
        """Logs an evaluation on the validation examples; stops if it has diverged."""
        line = self._write("validation", evaluation, train_loss=train_loss)
        self._progress.metrics.append(line)
        self._display.evaluated(self._where["replicate"], evaluation, train_loss)
        if not math.isfinite(evaluation.loss):
            place = "  ".join(f"{k} {v}" for k, v in self._where.items())
            raise RunError(
                f"the training diverged: the validation loss is {evaluation.loss} at "
                f"step {evaluation.step} ({place}). Rounds finished before are kept in "
                f"{self._directory.path}; try a lower --learning_rate"
            )

    def finish(self, best, last, test_at_best, test_at_last):
        """Writes the row of the finished training."""
        self._write("test", test_at_best)
        self._write("test", test_at_last)
        row = workdirs.Row(
            **self._where,
            weights_remaining=self._remaining,
            sparsity=(self._total - self._remaining) / self._total,
            best_step=best.step,
            val_loss=best.loss,
            val_accuracy=best.accuracy,
            test_loss=test_at_best.loss,
            test_accuracy=test_at_best.accuracy,
            train_seconds=round(self._progress.seconds, 3),
            final_val_loss=last.loss,
            final_val_accuracy=last.accuracy,
            final_test_loss=test_at_last.loss,
            final_test_accuracy=test_at_last.accuracy,
        )
        self._directory.add_row(row)
        self._display.finish(row)

    def _write(self, split, evaluation, **more):
        line = {
            **self._where,
            "weights_remaining": self._remaining,
            "split": split,
            **dataclasses.asdict(evaluation),
            **more,
        }
        self._directory.add_metrics(**line)
        return line
