"""The work directory of a run.

    config.json     the settings
    flags.txt       the same as flags: rerun with --flagfile
    environment.json  versions, devices and compile mode that the run began with
    metrics.jsonl   one line per evaluation
    results.csv     one row per replicate × branch × round
    tickets/        the masks that a round trains under, one file per replicate × round;
                    replicate<n>-ends.txt if there was nothing left to prune
    checkpoints/    the weights at the end of each training; …-resume/ what a training
                    that is under way can be gone on with from (see `checkpoints`)
    logs/           what worker processes that failed have written
    run.lock        the process that writes the folder, or did last

A training counts as finished when its row stands in results.csv; what it leaves
besides is written before. Files are written beside and renamed, so that a reader never
sees half a file; only metrics.jsonl grows, by whole lines.
"""

import contextlib
import csv
import dataclasses
import io
import itertools
import json
import math
import os
import pathlib
import re
import tempfile
import time

from prunetrain.errors import InputError, RunError
from prunetrain.runs import checkpoints, lock, tickets

_RESUME = re.compile(r"replicate(\d+)-(\w+)-round(\d+)-resume")


@dataclasses.dataclass(frozen=True)
class Row:
    """The outcome of one training: a row of results.csv.

    `weights_remaining` is a count; `sparsity` the pruned fraction of the prunable
    weights. The losses and accuracies up to `test_accuracy` are those at `best_step`,
    the step of the lowest validation loss (the paper's early stop); `final_…` those of
    the last step. Accuracies are fractions.
    """

    replicate: int
    branch: str
    round: int
    weights_remaining: int
    sparsity: float
    best_step: int
    val_loss: float
    val_accuracy: float
    test_loss: float
    test_accuracy: float
    train_seconds: float
    final_val_loss: float
    final_val_accuracy: float
    final_test_loss: float
    final_test_accuracy: float

    @property
    def key(self):
        return self.replicate, self.branch, self.round


class WorkDirectory:
    """Reads and writes the files of one run.

    Args:
        path: the folder; made if it does not exist. None or "": a new folder
            runs/<date>-<time>.
        settings: dict of the run's settings.
        free: names of settings that may differ from those that the run began with.

    Raises:
        InputError: the folder holds a run of other settings, is in use by another
            process, cannot be written, or one of its files is damaged.

    Warns:
        UserWarning: names each damaged checkpoint, and what is gone on from instead.
    """

    def __init__(self, path, settings, free=()):
        # A shell leaves the ~ of --workdir=~/x as it is.
        self.path = pathlib.Path(path or "runs")
        try:
            self.path = self.path.expanduser()
            if not path:
                self.path = _new_folder()
            _check_ours(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            # Whatever else may be there then: this file says that the folder is ours.
            self._lock = lock.acquire(self.path / "run.lock")
            for folder in ("tickets", "checkpoints"):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            self._settle(settings, free)
        # RuntimeError: ~name of a user that there is not.
        except (OSError, RuntimeError) as error:
            problem = getattr(error, "strerror", None) or error
            raise InputError(
                f"`workdir` must be a folder that can be written. Received: "
                f"workdir={str(self.path)!r} ({problem})"
            ) from error
        self._rows = {row.key: row for row in read_rows(self.path)}
        with _told(self.path / "checkpoints"):
            self._tidy_checkpoints()
        self.tidy_metrics()

    def _settle(self, settings, free):
        """Writes the settings, or compares them with those that are there."""
        file = self.path / "config.json"
        known = None
        # Settings that never trained bind nobody: they may have been a mistake.
        if any(
            (self.path / name).exists() for name in ("metrics.jsonl", "results.csv")
        ):
            try:
                known = _parse_json(file.read_bytes(), file)
            except OSError as error:
                raise _damaged(file, error) from error
            self._compare(known, settings, free)
        else:
            self._environment.unlink(missing_ok=True)
            for folder in self._resumes().values():
                checkpoints.remove(folder)
        if settings != known:
            _write(file, json.dumps(settings, indent=2) + "\n")
            _write(self.path / "flags.txt", as_flags(settings))

    def _compare(self, known, settings, free):
        """Raises InputError if a setting differs from those that the run began with."""
        differing = [
            f"{name}: {known.get(name)!r} there, {settings.get(name)!r} here"
            for name in sorted({*known, *settings} - {*free})
            if known.get(name) != settings.get(name)
        ]
        if differing:
            raise InputError(
                f"`workdir` {self.path} holds a run of other settings "
                f"({'; '.join(differing)}). Choose another --workdir, or repeat that "
                f"run with --flagfile={self.path / 'flags.txt'}"
            )

    @property
    def _environment(self):
        return self.path / "environment.json"

    def environment(self):
        """What was recorded about the ground that the run began on: a dict."""
        file = self._environment
        return _parse_json(file.read_bytes(), file) if file.exists() else {}

    def record_environment(self, values):
        """Records that ground, unless it has been: it is what the run goes on with."""
        if not self._environment.exists():
            with _told(self._environment) as file:
                _write(file, json.dumps(values, indent=2) + "\n")

    def row(self, key):
        """The finished row of (replicate, branch, round), or None."""
        return self._rows.get(key)

    @property
    def rows(self):
        """Finished rows by replicate, then in the order in which they were written."""
        return sorted(self._rows.values(), key=lambda row: row.replicate)

    def add_row(self, row):
        """Adds a finished training to results.csv; it needs no checkpoint any more."""
        self._rows[row.key] = row
        text = io.StringIO()
        writer = csv.DictWriter(
            text, [f.name for f in dataclasses.fields(Row)], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in self.rows)
        with _told(self.path / "results.csv") as file:
            _write(file, text.getvalue())
        with _told(self._resume(*row.key)) as folder:
            checkpoints.remove(folder)

    def add_metrics(self, **values):
        """Adds a line to metrics.jsonl; what is not finite becomes null, as in JSON."""
        with _told(self.path / "metrics.jsonl") as file, open(file, "a") as stream:
            stream.write(_metrics_line(values))

    def tidy_metrics(self):
        """Puts the evaluations in order, by replicate, without those to be repeated.

        Of a training that was cut off, those up to its checkpoint remain. They are
        taken from there: the last lines here may have been lost.
        """
        file = self.path / "metrics.jsonl"
        try:
            lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        except OSError as error:
            raise _damaged(file, error) from error
        whole = [
            (_key(_parse_json(line, file), file), line)
            for line in lines
            if line.endswith(b"\n")
        ]
        finished = [(key, line) for key, line in whole if key in self._rows]
        begun = [
            (key, _metrics_line(values).encode())
            for key, folder in self._resumes().items()
            if key not in self._rows
            for values in _position(key, folder)["metrics"]
        ]
        ordered = sorted(finished + begun, key=lambda pair: pair[0][0])
        kept = [line for _, line in ordered]
        if kept != lines:
            with _told(file):
                _write(file, b"".join(kept))

    def log(self, replicate):
        """The file for what a worker process writes while it trains `replicate`."""
        return self.path / "logs" / f"replicate{replicate}.log"

    def _ticket(self, replicate, round):
        return self.path / "tickets" / f"replicate{replicate}-round{round:02d}.npz"

    def _end(self, replicate):
        return self.path / "tickets" / f"replicate{replicate}-ends.txt"

    def end_at(self, replicate, round, why):
        """Records that there is no round after `round`."""
        with _told(self._end(replicate)) as file:
            _write(file, f"{round}\n{why}\n")

    def ends_at(self, replicate, round):
        """Whether `round` was recorded as the last one."""
        file = self._end(replicate)
        if not file.exists():
            return False
        try:
            return int(file.read_text().partition("\n")[0]) == round
        except (OSError, ValueError) as error:
            raise _damaged(file, error) from error

    def save_masks(self, replicate, round, paths, masks):
        """Writes the masks that `round` trains under, one bit a weight.

        Args:
            paths: the kernels' paths.
            masks: boolean arrays aligned with them.
        """
        with _told(self._ticket(replicate, round)) as file:
            _write(file, tickets.to_bytes(paths, masks))

    def load_masks(self, replicate, round):
        """The masks that `round` trains under, a list of boolean arrays.

        Raises:
            InputError: the file is missing or damaged.
        """
        file = self._ticket(replicate, round)
        try:
            return tickets.from_bytes(file.read_bytes())
        except (OSError, ValueError) as error:
            raise _damaged(file, error) from error

    def save_weights(self, model, replicate, branch, round):
        """Writes the model's weights in Keras's format (`model.load_weights`)."""
        name = f"replicate{replicate}-{branch}-round{round:02d}.weights.h5"
        with (
            _told(self.path / "checkpoints" / name) as file,
            # Elsewhere first: HDF5 that runs out of room crashes as the process ends.
            tempfile.TemporaryDirectory() as folder,
        ):
            elsewhere = pathlib.Path(folder) / name
            model.save_weights(elsewhere)
            _write(file, elsewhere.read_bytes())

    def _resume(self, replicate, branch, round):
        name = f"replicate{replicate}-{branch}-round{round:02d}-resume"
        return self.path / "checkpoints" / name

    def _resumes(self):
        """The folders that trainings can be gone on with from, by `Row.key`."""
        folders = sorted((self.path / "checkpoints").glob("*-resume"))
        names = [_RESUME.fullmatch(folder.name) for folder in folders]
        return {
            (int(name[1]), name[2], int(name[3])): folder
            for name, folder in zip(names, folders, strict=True)
            if name
        }

    def _tidy_checkpoints(self):
        """Makes each checkpoint that is found later one to go on from."""
        for key, folder in self._resumes().items():
            if key in self._rows:
                checkpoints.remove(folder)
            else:
                checkpoints.tidy(folder)

    def save_checkpoint(self, key, state, position):
        """Writes what a training can be gone on with from; see `checkpoints.save`.

        Args:
            key: the training's (replicate, branch, round).
            state: `tf.train.Checkpoint`.
            position: dict; "metrics" are the arguments of its calls of `add_metrics`.
        """
        with _told(self._resume(*key)) as folder:
            checkpoints.save(folder, state, position)

    def position(self, key):
        """The position of a training's last checkpoint, or None if there is none."""
        return _position(key, self._resume(*key))

    def restore(self, key, state):
        """Reads the last checkpoint's state; see `checkpoints.restore`."""
        checkpoints.restore(self._resume(*key), state)


def as_flags(settings):
    """Settings as the lines of a flagfile."""
    lines = (
        f"--{name}={','.join(value) if isinstance(value, list) else value}\n"
        for name, value in settings.items()
    )
    return "".join(lines)


def read_rows(path):
    """The rows of a work directory's results.csv, as `Row`s; none if there is no file.

    Raises:
        InputError: the file is damaged.
    """
    file = pathlib.Path(path) / "results.csv"
    if not file.exists():
        return []
    try:
        with open(file, newline="") as stream:
            reader = csv.DictReader(stream)
            if not {x.name for x in dataclasses.fields(Row)} <= {
                *(reader.fieldnames or ())
            }:
                raise ValueError("it lacks columns")
            rows = [_row(line) for line in reader]
            if len({row.key for row in rows}) < len(rows):
                raise ValueError("a training has two rows")
            return rows
    except (OSError, ValueError, csv.Error) as error:
        raise _damaged(file, error) from error


def _row(line):
    """`Row` from the texts by column, or ValueError."""
    if None in line or None in line.values():
        raise ValueError("a row is shorter or longer than the header")
    row = Row(**{x.name: x.type(line[x.name]) for x in dataclasses.fields(Row)})
    for name, value in vars(row).items():
        if isinstance(value, str):
            valid = re.fullmatch(r"\w+", value)
        elif isinstance(value, int):
            valid = 0 <= value < 2**63
        else:
            # A loss may be whatever it was.
            valid = not name.endswith(("accuracy", "sparsity")) or 0 <= value <= 1
        if not valid:
            raise ValueError(f"{name} cannot be {line[name]!r}")
    return row


def _metrics_line(values):
    """A line of metrics.jsonl: JSON knows no numbers that are not finite."""
    values = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
    return json.dumps(values) + "\n"


def _parse_json(text, file):
    """The JSON object in `text`."""
    try:
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
    # Brackets within brackets without end are more than Python's parser takes.
    except (ValueError, RecursionError) as error:
        raise _damaged(file, error) from error
    return values


def _key(values, file):
    """The training that a line of metrics.jsonl belongs to, as `Row.key`."""
    key = tuple(values.get(name) for name in ("replicate", "branch", "round"))
    if [type(value) for value in key] != [int, str, int]:
        raise _damaged(file, ValueError(f"a line is of the training {key}"))
    return key


def _position(key, folder):
    """The position of a training's last checkpoint, or None if there is none."""
    try:
        position = checkpoints.position(folder)
        if position is None:
            return None
        step, metrics = position["step"], position["metrics"]
        if type(step) is not int or any(_key(x, folder) != key for x in metrics):
            raise ValueError("it is of another training")
        return position
    except (
        *(OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError),
    ) as error:
        raise _damaged(folder, error) from error


def _damaged(file, error):
    return InputError(
        f"{file} is missing or damaged ({type(error).__name__}: {error}). Restore it, "
        "or start again in another --workdir"
    )


def _check_ours(path):
    """Raises InputError for a folder with files of something else."""
    ours = ("run.lock", "config.json", "metrics.jsonl", "results.csv")
    names = {file.name for file in path.iterdir()} if path.is_dir() else set()
    if names and not names.intersection(ours):
        raise InputError(
            f"`workdir` must be new, empty or that of a run. Received: {path}, which "
            "holds other files. Choose another --workdir"
        )


def _new_folder():
    stem = pathlib.Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        path = stem if number == 1 else stem.with_name(f"{stem.name}-{number}")
        # Made here and now, so that two runs that start together get two folders.
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path


@contextlib.contextmanager
def _told(file):
    """The file, with what prevents writing it told as the end of the run."""
    try:
        yield file
    except OSError as error:
        raise RunError(
            f"{file} could not be written ({error.strerror or error}). Trainings "
            "finished before are kept; repeat the command on its --workdir to go on"
        ) from error


def _write(file, content):
    """Writes beside, then renames: a reader sees the old file or the new one."""
    beside = file.with_name(f"{file.name}.writing")
    with contextlib.ExitStack() as stack:
        mode = "wb" if isinstance(content, bytes) else "w"
        stream = stack.enter_context(open(beside, mode))
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(beside, file)
