"""Joins the parts of a run that processes of their own have trained.

    python -m prunetrain.main --flagfile=a.flags --workdir=runs/a --only=0   # anywhere
    python -m prunetrain.main --flagfile=a.flags --workdir=runs/a --only=1   # anywhere
    prunetrain merge runs/a

What is finished is copied from WORKDIR/parts into WORKDIR, which then is as if one
process had trained it all. Can be repeated as parts go on. Once all are finished and
merged, parts/ can be removed.
"""

import json
import pathlib
import shutil

from prunetrain import commands, experiment
from prunetrain.config import Config, ConfigError, free_settings
from prunetrain.errors import InputError
from prunetrain.runs import files, results
from prunetrain.runs import workdir as workdirs

# Free to change for a run, but here they would make the parts those of two runs.
_BINDING = {"rounds", "controls", "control_rounds"}


def command(words, start):
    """`prunetrain merge WORKDIR`."""
    del start
    parser = commands.Parser("merge", __doc__)
    parser.add_argument("workdir", help="the --workdir that the parts have in common")
    path = pathlib.Path(parser.parse_args(words).workdir)
    added, missing = merge(path)
    print(f"{path}: {added} trainings added, {missing} are still to come")


def merge(path):
    """Copies what the parts of a run have finished.

    Args:
        path: the folder that they have in common.

    Returns:
        `(added, missing)`: how many trainings were added, and how many are missing, as
        far as can be told.

    Raises:
        InputError: there are no parts, or they are of two runs, or one is damaged.
        RunError: a file cannot be written.
    """
    # Settings that never trained bind nobody.
    parts = [x for x in workdirs.parts(path) if (x / "results.csv").exists()]
    if not parts:
        raise InputError(
            f"{path} has no parts to merge: {path / workdirs.PARTS} is missing, or has "
            "no finished training. Train them with --only"
        )
    settings = _common_settings(parts)
    try:
        config = Config(**{**settings, "only": ""})
    # TypeError: a setting that there is not.
    except (ConfigError, TypeError) as error:
        raise InputError(
            f"{parts[0] / 'config.json'} does not fit this version of prunetrain, or "
            f"names what only a script has registered: {error}"
        ) from error
    directory = experiment.open_directory(config, path)
    added = sum(_add(directory, part) for part in parts)
    directory.tidy_metrics()
    missing = [
        key
        for replicate in range(config.replicates)
        for key in experiment.unfinished(config, replicate, directory)
    ]
    return added, len(missing)


def _common_settings(parts):
    """The settings of the parts.

    Raises:
        InputError: they differ.
    """
    first, *others = map(workdirs.read_settings, parts)
    free = free_settings() - _BINDING
    for part, other in zip(parts[1:], others, strict=True):
        told = "; ".join(
            f"{name}: {other.get(name)!r} there, {first.get(name)!r} in {parts[0]}"
            for name in sorted({*first, *other} - free)
            if first.get(name) != other.get(name)
        )
        if told:
            raise InputError(
                f"{part} is a part of another run ({told}). Move one of them away, and "
                "train it with the settings of the other"
            )
    return first


def _add(directory, part):
    """Copies a part's finished trainings into the directory; returns how many."""
    rows = [row for row in results.read_rows(part) if not directory.row(row.key)]
    if not rows:
        return 0
    lines = _lines(part)
    for row in rows:
        _check_whole(part, row, lines)
    environment = part / "environment.json"
    directory.record_environment(
        workdirs.parse_json(files.read(part, environment.name), environment)
    )
    for pattern in ("tickets/*", "checkpoints/*.weights.h5"):
        for file in sorted(part.glob(pattern)):
            _copy(part, file.relative_to(part), directory.path)
    for row in rows:
        for line in lines.get(row.key, ()):
            directory.add_metrics(**json.loads(line))
        directory.add_row(row)
    return len(rows)


def _copy(part, name, path):
    """Copies a file that is whole and not there yet."""
    if (path / name).exists() or name.name.startswith("writing-"):
        return
    files.check(part, {str(name): files.digest_of(part / name)})
    beside = (path / name).with_name(f"writing-{name.name}")
    with workdirs.told(path / name):
        shutil.copyfile(part / name, beside)
        files.move(beside, path, str(name))


def _check_whole(part, row, lines):
    """Raises InputError unless all that a finished training leaves is there.

    The ticket of a control may be in another part.
    """
    found = files.digest(lines.get(row.key, ()))
    files.check(part, {workdirs.lines_of(row.key): found})
    needed = [workdirs.weights(*row.key)]
    if row.branch == "ticket" and row.round:
        needed.append(workdirs.ticket(row.replicate, row.round))
    for name in needed:
        if not (part / name).exists():
            raise files.damaged(part / name, FileNotFoundError("it is not there"))


def _lines(part):
    """The lines of metrics.jsonl by training, as they are."""
    file, found = part / "metrics.jsonl", {}
    try:
        content = file.read_bytes()
    except OSError as error:
        raise files.damaged(file, error) from error
    for line in content.splitlines(keepends=True):
        # One may just be written.
        if line.endswith(b"\n"):
            key = workdirs.key_of(workdirs.parse_json(line, file), file)
            found.setdefault(key, []).append(line)
    return found
