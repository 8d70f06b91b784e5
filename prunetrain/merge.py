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
from prunetrain.config import Config, free_settings
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
    parts = workdirs.parts(path)
    if not parts:
        raise InputError(
            f"{path} has no parts to merge: {path / workdirs.PARTS} is missing or "
            "empty. Train them with --only"
        )
    settings = _common_settings(parts)
    config = Config(**{**settings, "only": ""})
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
    first, *others = (json.loads(files.read(part, "config.json")) for part in parts)
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
    directory.record_environment(json.loads(files.read(part, "environment.json")))
    for pattern in ("tickets/*", "checkpoints/*.weights.h5"):
        for file in sorted(part.glob(pattern)):
            _copy(part, file.relative_to(part), directory.path)
    lines = _lines(part)
    for row in rows:
        for line in lines.get(row.key, ()):
            directory.add_metrics(**line)
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


def _lines(part):
    """The lines of metrics.jsonl by training."""
    found = {}
    for line in (part / "metrics.jsonl").read_text().splitlines(keepends=True):
        # One may just be written.
        if not line.endswith("\n"):
            continue
        values = json.loads(line)
        key = values["replicate"], values["branch"], values["round"]
        found.setdefault(key, []).append(values)
    return found
