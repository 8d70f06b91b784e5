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
from prunetrain.errors import RunError
from prunetrain.lazy import keras, tf
from prunetrain.models import MODELS
from prunetrain.runs import progress as displays
from prunetrain.runs import workdir as workdirs
from prunetrain.runs import workers

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
    same bits. A training whose row is in the folder's results.csv is not repeated.
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
            config.train_steps - first_step(config, *stage)
            for plan in plans
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
    lab = Lab(config, began.get("compile_mode", config.compile))
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
    directory.tidy_metrics()


def find_tickets(lab, config, replicate, directory, display):
    """Train, evaluate, prune, rewind, repeat, for one replicate.

    What is still to be trained is looked up anew after each training, since whether
    there is a next round depends on what the last one left to prune.
    """
    lab.make_dense()
    lab.draw_weights(seed_for(config, "weights", replicate))
    lab.loop.seed.assign(seed_for(config, "data_order", replicate))
    if directory.row((replicate, "ticket", 0)):
        lab.train_to_rewind_point()
    for round, branch in unfinished(config, replicate, directory):
        if round:
            lab.pruned.set_masks(directory.load_masks(replicate, round))
        if round and branch == "ticket":
            lab.rewind.restore()
        elif branch == "reinit":
            lab.draw_weights(seed_for(config, "reinit", replicate, round))
        log = Log(directory, display, replicate, branch, round, lab.pruned)
        started = time.perf_counter()
        best, last = train(lab, first_step(config, round, branch), log, round == 0)
        seconds = time.perf_counter() - started
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
        log.finish(best, last, *lab.test_at(best, last), seconds)


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


def train(lab, step, log, take_rewind_point):
    """Trains to the last step, keeping the weights of the lowest validation loss.

    Args:
        lab: `Lab`, whose model, masks and optimizer stand at `step`.
        step: the first step.
        log: `Log` told of every evaluation.
        take_rewind_point: whether this training passes the point to rewind to.

    Returns:
        The best and the last `Evaluation`.

    Raises:
        RunError: the loss is no longer finite.
    """
    config = lab.config
    best, total_loss, num_steps = None, tf.constant(0.0), 0
    log.begin(step, config.train_steps)
    start = step
    while True:
        if take_rewind_point and step == config.rewind_step:
            lab.rewind.update()
        if step in (start, config.train_steps) or step % config.eval_every == 0:
            # The one place where numbers cross to the host.
            train_loss = float(total_loss) / num_steps if num_steps else None
            last = lab.evaluate("validation", step)
            log.evaluated(last, train_loss)
            if best is None or last.loss < best.loss:
                lab.best.update()
                best = last
            total_loss, num_steps = tf.constant(0.0), 0
        if step == config.train_steps:
            return best, last
        stop = next_stop(config, step)
        total_loss = lab.loop.add_losses(total_loss, step, stop - step)
        num_steps += stop - step
        log.advance(stop, stop - step)
        step = stop


def next_stop(config, step):
    """The next step at which a dispatch has to end."""
    stops = [
        step + config.steps_per_loop,
        (step // config.eval_every + 1) * config.eval_every,
        config.train_steps,
    ]
    if step < config.rewind_step:
        stops.append(config.rewind_step)
    return min(stops)


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
        from prunetrain.core import loops, pruned_model, snapshot

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
        if self.config.rewind_step:
            self.loop(0, self.config.rewind_step)
        self.rewind.update()

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


class Log:
    """Writes what happens in one training to the work directory and the display."""

    def __init__(self, directory, display, replicate, branch, round, pruned):
        self._directory, self._display = directory, display
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
        self._write("validation", evaluation, train_loss=train_loss)
        self._display.evaluated(self._where["replicate"], evaluation, train_loss)
        if not math.isfinite(evaluation.loss):
            place = "  ".join(f"{k} {v}" for k, v in self._where.items())
            raise RunError(
                f"the training diverged: the validation loss is {evaluation.loss} at "
                f"step {evaluation.step} ({place}). Rounds finished before are kept in "
                f"{self._directory.path}; try a lower --learning_rate"
            )

    def finish(self, best, last, test_at_best, test_at_last, seconds):
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
            train_seconds=round(seconds, 3),
            final_val_loss=last.loss,
            final_val_accuracy=last.accuracy,
            final_test_loss=test_at_last.loss,
            final_test_accuracy=test_at_last.accuracy,
        )
        self._directory.add_row(row)
        self._display.finish(row)

    def _write(self, split, evaluation, **more):
        self._directory.add_metrics(
            **self._where,
            weights_remaining=self._remaining,
            split=split,
            **dataclasses.asdict(evaluation),
            **more,
        )
