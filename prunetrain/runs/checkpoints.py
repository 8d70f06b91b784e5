"""Checkpoints of a training that is under way: state on the device, and a position.

    <folder>/<n>/state.index, state.data-…  what `tf.train.Checkpoint` writes
    <folder>/<n>/position.json              what else the training goes on from
    <folder>/<n>/SHA256SUMS                 of these files, for sha256sum -c too

All of it is written to another folder and synced, which is then renamed to the next
number: a numbered folder is whole, unless it is damaged later. The sums tell that, also
of the position and to a process without TensorFlow, and before anything is restored.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
import warnings

from prunetrain.errors import InputError
from prunetrain.lazy import tf
from prunetrain.runs import files

# The last one, and one to fall back to.
_NUM_KEPT = 2
_SUMS = "SHA256SUMS"
_POSITION = "position.json"


def save(folder, state, position):
    """Writes a checkpoint, and removes those that it makes superfluous.

    Args:
        folder: `pathlib.Path` of the training's checkpoints; made if need be.
        state: `tf.train.Checkpoint`.
        position: what else to go on from, a dict to be written as JSON.

    Raises:
        OSError: it could not be written; those that were there still are.
    """
    beside = folder / "writing"
    remove(beside)
    # Not what is above it: a work directory that was removed is not to come back.
    folder.mkdir(exist_ok=True)
    beside.mkdir()
    with _as_os_error():
        state.write(str(beside / "state"))
    (beside / _POSITION).write_text(json.dumps(position))
    (beside / _SUMS).write_text("".join(_sums(beside).values()))
    for path in (*beside.iterdir(), beside):
        files.sync(path)
    beside.rename(folder / str(max(_numbers(folder), default=0) + 1))
    files.sync(folder)
    for number in _numbers(folder)[:-_NUM_KEPT]:
        remove(folder / str(number))


def tidy(folder):
    """Removes what an interrupted save has left, and damaged checkpoints, with a word.

    Warns:
        UserWarning: names each damaged checkpoint, and what is gone on from instead.
    """
    numbers = _numbers(folder)
    for path in list(folder.iterdir()):
        if path.name not in map(str, numbers[-_NUM_KEPT:]):
            remove(path)
    for number in reversed(numbers[-_NUM_KEPT:]):
        problem = _problem(folder / str(number))
        if not problem:
            return
        remove(folder / str(number))
        left = _numbers(folder)
        instead = (
            f"from the one before, {left[-1]}" if left else "from the training's start"
        )
        warnings.warn(
            f"the checkpoint {folder / str(number)} is damaged ({problem}) and was "
            f"removed; the run goes on {instead}",
            stacklevel=2,
        )
    folder.rmdir()


def position(folder):
    """The position of the last checkpoint, or None if there is none.

    Raises:
        ValueError, RecursionError: what was written is no JSON object.
    """
    numbers = _numbers(folder)
    if not numbers:
        return None
    values = json.loads((folder / str(numbers[-1]) / _POSITION).read_bytes())
    if not isinstance(values, dict):
        raise ValueError(f"{_POSITION} holds no JSON object")
    return values


def restore(folder, state):
    """Reads the last checkpoint's state.

    Args:
        folder: as for `save`.
        state: `tf.train.Checkpoint` of the same variables as that which was saved.

    Raises:
        InputError: it is of other variables.
    """
    path = folder / str(_numbers(folder)[-1])
    try:
        with _without_wildcards(path) as plain:
            state.read(f"{plain}/state").assert_consumed()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the checkpoint {path} does not fit this software ({reason}). Use the "
            f"versions in environment.json, or remove {folder} to repeat that training"
        ) from error


@contextlib.contextmanager
def _without_wildcards(path):
    """A path to the same folder that TensorFlow does not take for a pattern."""
    if not re.search(r"[*?\[\\{]", str(path)):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        link = os.path.join(folder, "checkpoint")
        os.symlink(path.resolve(), link)
        yield link


def _numbers(folder):
    """The numbers of the checkpoints, the last one last."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir()]
    return sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]*", name))


def _problem(path):
    """What is wrong with a checkpoint, or None."""
    try:
        sums = _sums(path)
        written = (path / _SUMS).read_text(errors="replace")
    except OSError as error:
        return f"{os.path.basename(error.filename)}: {error.strerror}"
    if written == "".join(sums.values()):
        return None
    changed = [name for name, line in sums.items() if line not in written]
    return f"{', '.join(changed) or 'a file'} not as it was written"


def _sums(path):
    """The lines of SHA256SUMS by the name of the file."""
    names = sorted(file.name for file in path.iterdir() if file.name != _SUMS)
    return {name: f"{files.digest_of(path / name)}  {name}\n" for name in names}


def remove(path):
    """Removes a folder with all that is in it, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


@contextlib.contextmanager
def _as_os_error():
    """What prevents TensorFlow from writing, as the rest of Python tells it."""
    try:
        yield
    except tf.errors.OpError as error:
        # The number is in the words only.
        for number in errno.errorcode:
            if os.strerror(number) in error.message:
                raise OSError(number, os.strerror(number)) from error
        raise OSError(error.message.splitlines()[0]) from error
