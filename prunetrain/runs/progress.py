"""What a run shows while it goes on: a live line on a terminal, plain lines elsewhere.

A display is told how many steps to expect, when a training begins, advances, is
evaluated and finishes. Replicates may train side by side, each one training at a time.
`Silent` shows nothing and is the base of the others.
"""

import dataclasses
import time

import rich.console
import rich.progress


class Silent:
    """Shows nothing. A context manager, as the others are."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def expect(self, num_steps):
        """The run takes at most so many steps in all."""

    def begin(self, replicate, branch, round, kept):
        """A training begins, with a fraction `kept` of the weights."""

    def advance(self, replicate, step, num_steps, last_step=None):
        """The training has reached `step`, `num_steps` on from the last call."""

    def evaluated(self, replicate, evaluation, train_loss):
        """An evaluation on the validation examples."""

    def finish(self, row):
        """The training is finished, with this row of results."""

    def fail(self, replicate, why):
        """The replicate trains no more; the others go on."""

    def close(self, replicate, text):
        """What the replicate trains is over, with something else to say than a row."""

    def say(self, text):
        """A message that stays on the screen."""


@dataclasses.dataclass
class _Training:
    """What a display knows of a training that is under way."""

    label: str
    short: str
    step: int = 0
    last_step: int = 0

    def reach(self, step, last_step):
        self.step, self.last_step = step, last_step or self.last_step


class Plain(Silent):
    """Plain lines: one for each training, and one every `seconds` in between."""

    def __init__(self, seconds=10, clock=time.monotonic, write=print):
        self._seconds, self._clock, self._write = seconds, clock, write
        self._steps_left = 0
        self._started = None
        self._steps_done = 0
        self._running = {}

    def expect(self, num_steps):
        self._steps_left = num_steps

    def begin(self, replicate, branch, round, kept):
        self._running[replicate] = _training(replicate, branch, round, kept)
        self._last_line = self._clock()

    def advance(self, replicate, step, num_steps, last_step=None):
        self._running[replicate].reach(step, last_step)
        self._steps_left -= num_steps
        if self._started is None and num_steps:
            # Speed is counted from here: the first dispatch compiles.
            self._started = self._clock()
        else:
            self._steps_done += num_steps

    def evaluated(self, replicate, evaluation, train_loss):
        if self._clock() - self._last_line >= self._seconds:
            self._last_line = self._clock()
            training, others = self._running[replicate], len(self._running) - 1
            self.say(
                f"{training.label}  step {training.step}/{training.last_step}"
                f"  {_numbers(evaluation)}"
                + (f"  {others} more running" if others else "")
                + self._speed()
            )

    def finish(self, row):
        self.close(row.replicate, f"{_label(row)}  {_outcome(row)}")

    def fail(self, replicate, why):
        self._running.pop(replicate, None)
        self.say(_failure(replicate, why))

    def close(self, replicate, text):
        self._running.pop(replicate, None)
        self.say(f"{text}{self._speed()}")

    def say(self, text):
        self._write(text, flush=True)

    def _speed(self):
        elapsed = self._clock() - self._started if self._started is not None else 0
        if not (elapsed > 0 and self._steps_done):
            return ""
        rate = self._steps_done / elapsed
        left = _duration(self._steps_left / rate)
        return f"  {rate:,.0f} steps/s  {left} left" if self._steps_left else ""


class Live(Silent):
    """One live line by rich, with the finished trainings above it."""

    def __init__(self, console=None):
        self._console = console or rich.console.Console()
        column = rich.progress.TextColumn
        self._progress = rich.progress.Progress(
            column("{task.description}"),
            column("{task.fields[steps]}"),
            rich.progress.BarColumn(bar_width=None),
            column("{task.fields[numbers]}"),
            rich.progress.TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task(
            "loading data and compiling", total=None, steps="", numbers=""
        )
        self._running = {}

    def __enter__(self):
        self._progress.start()
        return self

    def __exit__(self, *exception):
        self._progress.stop()

    def expect(self, num_steps):
        self._progress.update(self._task, total=num_steps)

    def begin(self, replicate, branch, round, kept):
        self._running[replicate] = _training(replicate, branch, round, kept)
        self._describe(replicate)

    def advance(self, replicate, step, num_steps, last_step=None):
        training = self._running[replicate]
        training.reach(step, last_step)
        speed = self._progress.tasks[0].speed
        texts = [f"{speed:,.0f} steps/s"] if speed else []
        if len(self._running) == 1:
            texts.insert(0, f"{step}/{training.last_step}")
        self._progress.update(self._task, advance=num_steps, steps=" ".join(texts))

    def evaluated(self, replicate, evaluation, train_loss):
        numbers = f"val loss {evaluation.loss:.3f}"
        if evaluation.accuracy is not None:
            numbers += f" {evaluation.accuracy:.1%}"
        if len(self._running) > 1:
            numbers = f"rep {replicate} {numbers}"
        self._describe(replicate)
        self._progress.update(self._task, numbers=numbers)

    def finish(self, row):
        self.close(row.replicate, f"{_label(row)}  {_outcome(row)}")

    def fail(self, replicate, why):
        self.close(replicate, _failure(replicate, why))

    def close(self, replicate, text):
        self._running.pop(replicate, None)
        self.say(text)

    def _describe(self, replicate):
        num, text = len(self._running), self._running[replicate].short
        self._progress.update(
            self._task, description=f"{num} replicates" if num > 1 else text
        )

    def say(self, text):
        self._console.print(text, highlight=False, markup=False)


def for_console():
    """`Live` on a terminal, `Plain` when the output is piped."""
    return Live() if rich.console.Console().is_terminal else Plain()


def _training(replicate, branch, round, kept):
    place = f"replicate {replicate}  round {round:2d} {branch:<6}"
    return _Training(
        f"{place} {kept:7.2%} of weights",
        # Short enough for 80 columns with the rest of the line.
        f"rep {replicate} round {round} {branch} {kept:.1%}",
    )


def _label(row):
    # Masks may have changed since it began.
    return _training(row.replicate, row.branch, row.round, 1 - row.sparsity).label


def _failure(replicate, why):
    return f"replicate {replicate}  failed: {why}"


def _numbers(evaluation):
    text = f"val loss {evaluation.loss:.4f}"
    known = evaluation.accuracy is not None
    return f"{text} accuracy {evaluation.accuracy:.2%}" if known else text


def _outcome(row):
    val = _measured(row.val_accuracy, row.val_loss)
    test = _measured(row.test_accuracy, row.test_loss)
    return (
        f"best step {row.best_step:>6}  val {val}  test {test}  "
        f"{row.train_seconds:6.1f} s"
    )


def _measured(accuracy, loss):
    """The accuracy, or where a task has none the loss."""
    return f"loss {loss:.4g}" if accuracy is None else f"{accuracy:.2%}"


def _duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
    )
