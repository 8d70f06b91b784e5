"""The work directory of a run.

    config.json     the settings
    flags.txt       the same as flags: rerun with --flagfile
    environment.json  versions, devices and compile mode that the run began with
    metrics.jsonl   one line per evaluation
    results.csv     one row per replicate × branch × round
    instability.csv  one row per replicate × round × step (see `barriers`), if the
                    command that makes it was given
    tickets/        the masks that a round trains under, one file per replicate × round;
                    replicate<n>-ends.txt if there was nothing left to prune
    checkpoints/    the weights at the end of each training, those of a replicate at
                    step 0 (…-initial) and at the step to rewind to (…-rewind);
                    …-resume/ what a training that is under way can be gone on with from
                    (see `checkpoints`)
    logs/           what worker processes that failed have written
    parts/          folders of the same kind, each of one process that trains a part of
                    the run; it reads the tickets of the others (`prunetrain merge`
                    joins them)
    run.lock        the process that writes the folder, or did last
    SHA256SUMS      of these files as they were written (see `files`); for metrics.jsonl
                    of the lines of each finished training

A training counts as finished when its row stands in results.csv; what it leaves
besides is written before. Files are written beside and renamed, so that a reader never
sees half a file; only metrics.jsonl grows, by whole lines. What a run goes on from is
compared with its sum where it is read.
"""

import contextlib
import errno
import itertools
import json
import math
import pathlib
import re
import time

from prunetrain.errors import InputError, RunError
from prunetrain.runs import barriers, checkpoints, files, lock, results, tickets

PARTS = "parts"
_RESUME = re.compile(r"replicate(\d+)-(\w+)-round(\d+)-resume")
# A folder with one of these holds results of its settings.
_BINDING = ("metrics.jsonl", "results.csv", barriers.NAME)
# More than HDF5 writes besides, for each variable.
_HDF5_BYTES = 1 << 13
_ZEROS = bytes(1 << 16)
# What keeps a file from being written, and what helps.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMEDIES = {
    **dict.fromkeys(_FULL, "Make room"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Make it writable"),
    errno.ENOENT: "Put back what was removed",
}


class WorkDirectory:
    """Reads and writes the files of one run.

    Args:
        path: the folder; made if it does not exist. None or "": a new folder
            runs/<date>-<time>.
        settings: dict of the run's settings.
        free: names of settings that may differ from those that the run began with.
        defaults: settings that a run has which began before there were such.
        keep_ends: keep the last checkpoints of a ticket for the next round, which
            starts from there, until the round after that has its ticket.

    Raises:
        InputError: the folder holds a run of other settings, is in use by another
            process, cannot be written, or one of its files is damaged.
        RunError: there is no room.

    Warns:
        UserWarning: names each damaged checkpoint, and what is gone on from instead.
    """

    def __init__(self, path, settings, free=(), defaults=(), keep_ends=False):
        self._keep_ends = keep_ends
        # A shell leaves the ~ of --workdir=~/x as it is.
        self.path = pathlib.Path(path or "runs")
        try:
            self.path = self.path.expanduser()
            if not path:
                self.path = _new_folder()
            _check_ours(self.path)
            self._check_beside(settings, free, dict(defaults))
            self.path.mkdir(parents=True, exist_ok=True)
            # Whatever else may be there then: this file says that the folder is ours.
            self._lock = lock.acquire(self.path / "run.lock")
            for folder in ("tickets", "checkpoints"):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            self._settle(settings, free, dict(defaults))
        # RuntimeError: ~name of a user that there is not.
        except (OSError, RuntimeError) as error:
            if getattr(error, "errno", None) in _FULL:
                raise _not_written(error.filename or self.path, error) from error
            problem = getattr(error, "strerror", None) or error
            raise InputError(
                f"`workdir` must be a folder that can be written. Received: "
                f"workdir={str(self.path)!r} ({problem}). Make it writable, or choose "
                "another --workdir"
            ) from error
        self._read_rows()
        with told(self.path / "checkpoints"):
            self._tidy_checkpoints()
        self.tidy_metrics()

    def _read_rows(self):
        self._rows = {row.key: row for row in results.read_rows(self.path)}
        self._rows_beside = {
            row.key: row
            for folder in self._beside()
            for row in results.read_rows(folder)
        }

    def _settle(self, settings, free, defaults):
        """Writes the settings, or compares them with those that are there."""
        file, known = self.path / "config.json", None
        # Settings that never trained bind nobody: they may have been a mistake.
        if any((self.path / name).exists() for name in _BINDING):
            known = parse_json(files.read(self.path, file.name), file)
            self._write_flags(known)
            self._compare({**defaults, **known}, settings, free)
        else:
            self._environment.unlink(missing_ok=True)
            for folder in self._resumes().values():
                checkpoints.remove(folder)
        if settings != known:
            files.write(self.path, file.name, json.dumps(settings, indent=2) + "\n")
        self._write_flags(settings)

    def _check_beside(self, settings, free, defaults):
        """Raises InputError if another part has trained with other settings."""
        for folder in self._beside():
            if (folder / "results.csv").exists():
                known = parse_json(files.read(folder, "config.json"), folder)
                self._compare({**defaults, **known}, settings, free, folder)

    def _write_flags(self, settings):
        """Writes flags.txt, unless it says so already."""
        file, content = self.path / "flags.txt", as_flags(settings).encode()
        if not file.exists() or file.read_bytes() != content:
            files.write(self.path, file.name, content)

    def _compare(self, known, settings, free, folder=None):
        """Raises InputError if a setting differs from those that the run began with.

        Args:
            folder: where that is said; None: here.
        """
        folder = folder or self.path
        differing = [
            f"{name}: {known.get(name)!r} there, {settings.get(name)!r} here"
            for name in sorted({*known, *settings} - {*free})
            if known.get(name) != settings.get(name)
        ]
        if differing:
            raise InputError(
                f"`workdir` {folder} holds a run of other settings "
                f"({'; '.join(differing)}). Choose another --workdir, or repeat that "
                f"run with --flagfile={folder / 'flags.txt'}"
            )

    @property
    def _environment(self):
        return self.path / "environment.json"

    def environment(self):
        """What was recorded about the ground that the run began on: a dict."""
        file = self._environment
        if not file.exists():
            return {}
        return parse_json(files.read(self.path, file.name), file)

    def record_environment(self, values):
        """Records that ground, unless it has been: it is what the run goes on with."""
        if not self._environment.exists():
            self._write("environment.json", json.dumps(values, indent=2) + "\n")

    def _write(self, name, content):
        with told(self.path / name):
            files.write(self.path, name, content)

    def row(self, key):
        """The finished row of (replicate, branch, round), or None.

        In a part of a run also one that another part had as this one was opened.
        """
        return self._rows.get(key) or self._rows_beside.get(key)

    @property
    def rows(self):
        """Finished rows, in the order of `results.order`."""
        return sorted(self._rows.values(), key=lambda row: results.order(row.key))

    def add_row(self, row):
        """Adds a finished training to results.csv, and removes spent checkpoints."""
        self._rows[row.key] = row
        if lines := self._lines.pop(row.key, None):
            with told(self.path / files.SUMS):
                files.record(self.path, lines_of(row.key), files.digest(lines))
        self._write("results.csv", results.as_csv(self.rows))
        with told(self.path / "checkpoints"):
            for key, folder in self._resumes().items():
                if self._is_spent(key):
                    checkpoints.remove(folder)

    def _is_spent(self, key):
        """Whether nothing goes on from a training's checkpoints any more."""
        replicate, branch, round = key
        # Controls of the next round may start from there too.
        after = replicate, "ticket", round + 2
        kept = self._keep_ends and branch == "ticket" and after not in self._rows
        return key in self._rows and not kept

    def add_metrics(self, **values):
        """Adds a line to metrics.jsonl; what is not finite becomes null, as in JSON."""
        line, file = _metrics_line(values), self.path / "metrics.jsonl"
        with told(file), open(file, "ab") as stream:
            stream.write(line)
        self._lines.setdefault(key_of(values, file), []).append(line)

    def tidy_metrics(self):
        """Puts the evaluations in order, without those to be repeated.

        Of a training that was cut off, those up to its checkpoint remain. They are
        taken from there: the last lines here may have been lost.
        """
        file = self.path / "metrics.jsonl"
        try:
            found = file.read_bytes() if file.exists() else b""
        except OSError as error:
            raise files.damaged(file, error) from error
        kept = {key: [] for key in self._rows}
        for line in found.splitlines(keepends=True):
            if line.endswith(b"\n"):
                kept.get(key_of(parse_json(line, file), file), []).append(line)
        sums = {lines_of(key): files.digest(lines) for key, lines in kept.items()}
        files.check(self.path, sums)
        self._lines = {
            key: [_metrics_line(x) for x in _position(key, folder)["metrics"]]
            for key, folder in self._resumes().items()
            if key not in self._rows
        }
        lines = {**kept, **self._lines}
        ordered = [lines[key] for key in sorted(lines, key=results.order)]
        content = b"".join(itertools.chain.from_iterable(ordered))
        if content != found:
            with told(file):
                files.replace(file, content)
        self._compact(sums)

    def _compact(self, sums):
        """Forgets the sums of what is no longer there, given those of metrics.jsonl."""
        for name in ("config.json", "environment.json", "results.csv", "flags.txt"):
            if (self.path / name).exists():
                sums[name] = files.digest([files.read(self.path, name)])
        with told(self.path / files.SUMS):
            # What the sums are of is to be on the disk first.
            files.sync(self.path)
            files.compact(self.path, sums)

    def write_barriers(self, rows):
        """Writes instability.csv, with a single sum on record: nothing compares it."""
        content = barriers.as_csv(rows)
        self._write(barriers.NAME, content)
        with told(self.path / files.SUMS):
            files.compact(self.path, {barriers.NAME: files.digest([content.encode()])})

    def log(self, replicate):
        """The file for what a worker process writes while it trains `replicate`."""
        return self.path / "logs" / f"replicate{replicate}.log"

    def end_at(self, replicate, round, why):
        """Records that there is no round after `round`."""
        self._write(_end(replicate), f"{round}\n{why}\n")

    def ends_at(self, replicate, round):
        """Whether `round` was recorded as the last one."""
        end = self.end(replicate)
        return end is not None and end[0] == round

    def end(self, replicate):
        """What `end_at` has recorded, `(round, why)`, or None."""
        folder = self._folder_of(_end(replicate))
        return read_end(folder, replicate) if folder else None

    def _beside(self):
        """The folders of the other parts, and that of the whole run, if this is one."""
        if self.path.parent.name != PARTS:
            return []
        whole = self.path.parent.parent
        return [whole, *(x for x in parts(whole) if x.name != self.path.name)]

    def _folder_of(self, name):
        """Where there is such a file, here or else in another part; None if nowhere."""
        folders = (self.path, *self._beside())
        return next((x for x in folders if (x / name).exists()), None)

    def save_masks(self, replicate, round, paths, masks, branch=None):
        """Writes the masks that `round` trains under, one bit a weight.

        Args:
            paths: the kernels' paths.
            masks: boolean arrays aligned with them.
            branch: if given, those with which its training has ended.
        """
        name = ticket(replicate, round, branch)
        self._write(name, tickets.to_bytes(paths, masks))

    def has_masks(self, replicate, round):
        """Whether there is a ticket of this round."""
        return (self.path / ticket(replicate, round)).exists()

    def load_masks(self, replicate, round):
        """The masks that `round` trains under, a list of boolean arrays.

        Raises:
            InputError: the file is missing or damaged.
        """
        name = ticket(replicate, round)
        folder = self._folder_of(name)
        if not folder and self._beside():
            raise InputError(
                f"no part of the run has {name} yet. Train the ticket first, with "
                f"--only={replicate}:ticket, or together with its controls"
            )
        content = files.read(folder or self.path, name)
        try:
            return tickets.from_bytes(content)
        except ValueError as error:
            raise files.damaged((folder or self.path) / name, error) from error

    def save_weights(self, model, replicate, branch, round):
        """Writes the model's weights in Keras's format (`model.load_weights`)."""
        self._save_weights(model, weights(replicate, branch, round))

    def save_start(self, model, replicate, name):
        """Writes weights that tickets are made of, as `save_weights` does.

        Args:
            name: "initial", or "rewind" for those of the step to rewind to.
        """
        self._save_weights(model, f"checkpoints/replicate{replicate}-{name}.weights.h5")

    def _save_weights(self, model, name):
        file = self.path / name
        beside = file.with_name(f"writing-{file.name}")
        with told(file):
            _check_room(beside, sum(map(_num_bytes, model.weights)))
            model.save_weights(beside)
            files.move(beside, self.path, name)

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
            # Rows may be lost: what came after them is to be repeated with them.
            known = self._rows.keys() | self._rows_beside.keys()
            if self._is_spent(key) or not known >= _before(*key):
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
        with told(self._resume(*key)) as folder:
            checkpoints.save(folder, state, position)

    def position(self, key):
        """The position of a training's last checkpoint, or None if there is none."""
        return _position(key, self._resume(*key))

    def restore(self, key, state):
        """Reads the last checkpoint's state; see `checkpoints.restore`."""
        checkpoints.restore(self._resume(*key), state)


def read_settings(path):
    """The settings of the run in a folder: a dict, as config.json has them.

    Raises:
        InputError: there is no run in it, or the file is damaged.
    """
    file = pathlib.Path(path) / "config.json"
    if not file.is_file():
        raise InputError(
            f"{path} must be the work directory of a run: it has no config.json. Give "
            "the folder that the run's --workdir names"
        )
    return parse_json(files.read(file.parent, file.name), file)


def read_end(path, replicate):
    """What `end_at` has recorded in the folder, `(round, why)`, or None.

    Raises:
        InputError: the file is damaged.
    """
    name = _end(replicate)
    if not (path / name).exists():
        return None
    round, _, why = files.read(path, name).partition(b"\n")
    try:
        return int(round), why.decode().strip()
    except ValueError as error:
        raise files.damaged(path / name, error) from error


def part(path, name):
    """The folder of a part of the run in a folder."""
    return pathlib.Path(path).expanduser() / PARTS / name.replace(":", "-")


def parts(path):
    """The folders of all parts that have begun."""
    return sorted(x.parent for x in (path / PARTS).glob("*/config.json"))


def as_flags(settings):
    """Settings as the lines of a flagfile."""
    lines = (
        f"--{name}={','.join(map(str, value)) if isinstance(value, list) else value}\n"
        for name, value in settings.items()
    )
    return "".join(lines)


def _metrics_line(values):
    """A line of metrics.jsonl: JSON knows no numbers that are not finite."""
    values = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
    return json.dumps(values).encode() + b"\n"


def parse_json(text, file):
    """The JSON object in `text`."""
    try:
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
    # Brackets within brackets without end are more than Python's parser takes.
    except (ValueError, RecursionError) as error:
        raise files.damaged(file, error) from error
    return values


def key_of(values, file):
    """The training that a line of metrics.jsonl belongs to, as `Row.key`.

    Raises:
        InputError: it names none.
    """
    key = tuple(values.get(name) for name in ("replicate", "branch", "round"))
    if [type(value) for value in key] != [int, str, int]:
        raise files.damaged(file, ValueError(f"a line is of the training {key}"))
    return key


def _position(key, folder):
    """The position of a training's last checkpoint, or None if there is none."""
    try:
        position = checkpoints.position(folder)
        if position is None:
            return None
        step, metrics = position["step"], position["metrics"]
        if type(step) is not int or any(key_of(x, folder) != key for x in metrics):
            raise ValueError("it is of another training")
        return position
    except (
        *(OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError),
    ) as error:
        raise files.damaged(folder, error) from error


def _before(replicate, branch, round):
    """Keys of rows without which a training does not begin."""
    rounds = range(round + (branch != "ticket"))
    return {(replicate, "ticket", number) for number in rounds}


def lines_of(key):
    """What the lines of a training in metrics.jsonl are called in SHA256SUMS."""
    replicate, branch, round = key
    return f"metrics.jsonl:replicate{replicate}-{branch}-round{round:02d}"


def ticket(replicate, round, branch=None):
    """The file of the masks that a round begins with, or that a branch ends it with."""
    end = f"-{branch}-end" if branch else ""
    return f"tickets/replicate{replicate}{end}-round{round:02d}.npz"


def weights(replicate, branch, round):
    """The file of the weights at the end of a training."""
    return f"checkpoints/replicate{replicate}-{branch}-round{round:02d}.weights.h5"


def _end(replicate):
    return f"tickets/replicate{replicate}-ends.txt"


def _check_ours(path):
    """Raises InputError for a folder with files of something else."""
    ours = ("run.lock", "config.json", "metrics.jsonl", "results.csv", PARTS)
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


def _num_bytes(variable):
    """The room that a variable takes in a file of weights, at most."""
    return math.prod(variable.shape) * variable.value.dtype.size + _HDF5_BYTES


def _check_room(file, num_bytes):
    """Raises OSError unless there is room for a file of weights.

    HDF5 that runs out of room leaves a process that crashes at its end.
    """
    try:
        with open(file, "wb") as stream:
            for _ in range(0, num_bytes, len(_ZEROS)):
                stream.write(_ZEROS)
    except OSError:
        file.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def told(file):
    """The file, with what prevents writing it told as the end of the run.

    Raises:
        RunError: naming the file, the cause and the remedy.
    """
    try:
        yield file
    except OSError as error:
        raise _not_written(file, error) from error


def _not_written(file, error):
    remedy = _REMEDIES.get(error.errno, "Mend that")
    return RunError(
        f"{file} could not be written ({error.strerror or error}). {remedy}, and "
        "repeat the command on its --workdir: it goes on from the trainings finished "
        "and the last checkpoint there"
    )
