"""One training: to its last step, evaluated and saved on the way."""

import contextlib
import dataclasses
import math

from prunetrain import plans
from prunetrain.errors import RunError
from prunetrain.lab import Evaluation
from prunetrain.runs import results, signals


class DivergedError(RunError):
    """A number is not finite any more: what and at which step, as far as was seen."""


def train(lab, progress, log, saves, round, branch="ticket"):
    """Trains to the last step, keeping the weights of the lowest validation loss.

    Args:
        lab: `Lab`, whose model, masks and optimizer stand at `progress.step`.
        progress: `Progress`, which goes on with the training.
        log: `Log` told of every evaluation.
        saves: `Saves`, which writes the checkpoints.
        round, branch: which training it is; that of round 0 passes the point to
            rewind to.

    Returns:
        The best and the last `Evaluation`.

    Raises:
        DivergedError: the loss or a weight is no longer finite.
        signals.Stopped: a signal came, and what it would have cut off is saved.
    """
    config, then = lab.config, lab.clock()
    last_step = plans.last_step(config, round, branch)
    log.begin(progress.step, last_step)
    with signals.deferred() as stop, _obeyed_if_diverged(stop):
        while True:
            now = lab.clock()
            progress.seconds, then = progress.seconds + now - then, now
            if lab.stops(stop):
                saves.save(progress)
                stop.obey()
            if round == 0 and progress.step == 0:
                saves.save_start("initial")
            if round == 0 and progress.step == config.rewind_step:
                lab.rewind.update()
                if progress.step:
                    saves.save_start("rewind")
            if evaluation_is_due(config, progress):
                evaluate(lab, progress, log)
            if saves.due(progress.step):
                saves.save(progress)
            if progress.step == last_step:
                return progress.best, progress.last
            advance(lab, progress, log)


@contextlib.contextmanager
def _obeyed_if_diverged(stop):
    """A signal goes before a divergence, which shows again where the run goes on."""
    try:
        yield
    except DivergedError:
        if stop:
            stop.obey()
        raise


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
    best = progress.best
    if best is None or best.step < lab.settled_at or last.loss < best.loss:
        lab.best.update()
        progress.best = last
    for split, loss in (("training", train_loss), ("validation", last.loss)):
        if loss is not None and not math.isfinite(loss):
            raise DivergedError(f"the {split} loss is {loss} at step {last.step:,}")
    progress.last, progress.total_loss, progress.num_steps = last, 0.0, 0
    every = lab.config.test_every
    if every and last.step % every == 0:
        log.tested(lab.evaluate("test", last.step))


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
            values[name] = evaluation and evaluation.as_dict()
        return values

    @classmethod
    def from_dict(cls, values):
        """The inverse of `as_dict`.

        Raises:
            LookupError, TypeError: something is missing, or is no number.
        """
        pair = {name: values[name] for name in ("best", "last")}
        pair = {name: value and Evaluation(**value) for name, value in pair.items()}
        progress = cls(**{**values, **pair})
        for held in (progress, progress.best, progress.last):
            _check_numbers(vars(held) if held else {})
        return progress


def _check_numbers(values):
    """Raises TypeError for what is neither a number nor held in a field of its own."""
    for name, value in values.items():
        known = name in ("best", "last", "metrics", "class_accuracy")
        known = known or (name == "accuracy" and value is None)
        if not known and type(value) not in (int, float):
            raise TypeError(f"{name} is {value!r}")


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

    def save_start(self, name):
        """Writes weights that tickets are made of: "initial", or "rewind"."""
        replicate, _, _ = self._key
        self._directory.save_start(self._lab.pruned.model, replicate, name)

    def save(self, progress):
        """Writes a checkpoint.

        Raises:
            DivergedError: there is nothing to go on from, as a weight is not finite.
        """
        if not self._lab.is_finite():
            raise DivergedError(f"a weight is not finite at step {progress.step:,}")
        self._directory.save_checkpoint(self._key, self._lab.state, progress.as_dict())
        self._step, self._time = progress.step, self._lab.clock()


class Log:
    """Writes what happens in one training to the work directory and the display.

    `events` makes the training's `runs.events.Events`, if they are wanted.
    """

    def __init__(self, directory, display, key, pruned, progress, events=None):
        self._directory, self._display, self._progress = directory, display, progress
        self._where = dict(zip(("replicate", "branch", "round"), key, strict=True))
        self._pruned = pruned
        self._total = sum(layer.total for layer in pruned.layer_sparsity())
        self._events = events and events(**self._where)

    @property
    def _remaining(self):
        # Masks may change during a training.
        return sum(layer.kept for layer in self._pruned.layer_sparsity())

    def begin(self, step, last_step):
        self._last_step = last_step
        self._display.begin(**self._where, kept=self._remaining / self._total)
        self._display.advance(self._where["replicate"], step, 0, last_step)

    def advance(self, step, num_steps):
        self._display.advance(self._where["replicate"], step, num_steps)

    def evaluated(self, evaluation, train_loss):
        """Logs an evaluation on the validation examples."""
        phase = "start" if train_loss is None else "training"
        phase = "end" if evaluation.step == self._last_step else phase
        line = self._write("validation", phase, evaluation, train_loss=train_loss)
        self._progress.metrics.append(line)
        if self._events:
            self._events.evaluated("validation", evaluation, train_loss)
        self._display.evaluated(self._where["replicate"], evaluation, train_loss)

    def tested(self, evaluation):
        """Logs an evaluation on the test examples along the training."""
        line = self._write("test", "training", evaluation)
        self._progress.metrics.append(line)
        if self._events:
            self._events.evaluated("test", evaluation)

    def pruned(self, evaluation, kept):
        """Logs how the weights do under the next round's masks, which keep so many."""
        self._write("validation", "pruned", evaluation, weights_remaining=kept)

    def finish(self, best, last, test_at_best, test_at_last):
        """Writes the row of the finished training."""
        self._write("test", "best", test_at_best)
        self._write("test", "end", test_at_last)
        remaining = self._remaining
        row = results.Row(
            **self._where,
            weights_remaining=remaining,
            sparsity=(self._total - remaining) / self._total,
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
            test_class_accuracy=results.joined(test_at_best.class_accuracy),
        )
        if self._events:
            self._events.finished(row, self._pruned)
        self._directory.add_row(row)
        self._display.finish(row)

    def _write(self, split, phase, evaluation, **more):
        line = {
            **self._where,
            "weights_remaining": self._remaining,
            "split": split,
            "phase": phase,
            **evaluation.as_dict(),
            **more,
        }
        self._directory.add_metrics(**line)
        return line
