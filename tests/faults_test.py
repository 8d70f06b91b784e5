"""A run whose disk fails, whose files are damaged or whose clock steps back."""

import contextlib
import dataclasses
import errno
import os
import resource
import shutil
import time
import warnings

import pytest

import prunetrain as pt
from prunetrain import errors
from prunetrain.runs import progress, results, workdir
from tests import tiny, toys

CONFIG = {
    **{"dataset": "noise", "model": "net", "compile": "graph", "learning_rate": 0.05},
    **{"validation_size": 20, "batch_size": 8, "train_steps": 8, "eval_every": 4},
    **{"rounds": 1, "rewind_step": 2, "controls": "reinit", "checkpoint_every": "4"},
}
# In the order in which a run comes to them.
MOMENTS = {
    "add_metrics": "metrics.jsonl",
    "save_checkpoint": "replicate0-ticket-round00-resume",
    "save_masks": "tickets/replicate0-round01.npz",
    "save_weights": "checkpoints/replicate0-ticket-round00.weights.h5",
    "add_row": "metrics.jsonl",
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    with pytest.MonkeyPatch.context() as patch:
        tiny.register(patch)
        yield


def run(path):
    return pt.run(pt.Config(**CONFIG), path, progress.Silent())


def left(path):
    """What a run has left, less the times."""
    rows = [dataclasses.replace(x, train_seconds=0) for x in results.read_rows(path)]
    tickets = {file.name: file.read_bytes() for file in (path / "tickets").iterdir()}
    weights = {
        file.name: {name: array.tobytes() for name, array in tiny.arrays(file).items()}
        for file in (path / "checkpoints").iterdir()
    }
    return rows, (path / "metrics.jsonl").read_text(), tickets, weights


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing happens to."""
    path = tmp_path_factory.mktemp("whole")
    run(path)
    return path


class Killed(BaseException):
    """What no handler of errors may catch."""


def before(patch, method, number, act):
    """Has `act(directory)` called before a call of a method of `WorkDirectory`."""
    calls, kept = [], getattr(workdir.WorkDirectory, method)

    def call(directory, *arguments, **options):
        calls.append(method)
        if len(calls) == number:
            act(directory)
        return kept(directory, *arguments, **options)

    patch.setattr(workdir.WorkDirectory, method, call)


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """The folder of a run that was killed in round 1, with a checkpoint."""
    path = tmp_path_factory.mktemp("cut")

    def die(directory):
        raise Killed

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        before(patch, "save_checkpoint", 4, die)
        run(path)
    # Without the lines that are to be repeated.
    workdir.WorkDirectory(path, pt.Config(**CONFIG).as_dict())
    return path


@contextlib.contextmanager
def room_again():
    """Lifts the limit on the size of files in the end."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def no_room(directory=None, size=90):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


@pytest.mark.slow
def test_a_run_that_finds_no_room_at_any_moment_goes_on_to_the_same_bits(
    whole, tmp_path, monkeypatch
):
    for method, name in MOMENTS.items():
        told = str(tmp_path), name.split("/")[-1], "File too large", "Make room"
        with monkeypatch.context() as patch, room_again():
            before(patch, method, 1, no_room)
            told = [x if x != "metrics.jsonl" else "" for x in told]
            with toys.raises(errors.RunError, *told, "repeat the command"):
                run(tmp_path)
    run(tmp_path)
    assert left(tmp_path) == left(whole)


def test_a_folder_without_room_is_no_mistake_of_the_user(tmp_path):
    with room_again():
        no_room(size=0)
        with toys.raises(errors.RunError, str(tmp_path), "File too large", "Make room"):
            run(tmp_path)


def test_weights_that_do_not_fit_never_come_to_hdf5(tmp_path):
    directory = workdir.WorkDirectory(tmp_path, {})

    class Model:
        weights = toys.mlp((6, 300, 100, 10)).weights

        def save_weights(self, path):
            pytest.fail("HDF5 would crash as the process ends")

    with room_again():
        no_room(size=100_000)
        with toys.raises(errors.RunError, "round00.weights.h5", "Make room"):
            directory.save_weights(Model(), 0, "ticket", 0)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_folder_that_was_removed_is_told_and_does_not_come_back(
    whole, tmp_path, monkeypatch
):
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        before(patch, "save_checkpoint", 1, lambda directory: shutil.rmtree(path))
        with toys.raises(errors.RunError, str(path), "No such file", "Put back"):
            run(path)
    assert not path.exists()
    run(path)
    assert left(path) == left(whole)


@pytest.mark.parametrize("method", ["add_row", "save_checkpoint"])
def test_a_disk_that_turns_read_only_ends_the_run_with_that_remedy(
    method, tmp_path, monkeypatch
):
    # By a patch, since nothing is forbidden to root.
    def refuse(*arguments, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def turn(directory):
        for module in (workdir.files, workdir.checkpoints):
            monkeypatch.setattr(module.os, "fsync", refuse)

    before(monkeypatch, method, 1, turn)
    with toys.raises(errors.RunError, "Read-only file system", "Make it writable"):
        run(tmp_path)


def test_a_clock_that_steps_back_changes_no_bit(cut, whole, tmp_path, monkeypatch):
    shutil.copytree(cut, tmp_path / "run")
    now = [time.time()]

    def back():
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr(time, "time", back)
    results = run(tmp_path / "run")
    assert left(tmp_path / "run") == left(whole)
    assert all(row.train_seconds >= 0 for row in results.rows)


# Damaged files of a run that is gone on with


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    file.write_bytes(content)


DAMAGE = {
    **{str(x): lambda file, x=x: flip(file, x) for x in (0, 0.2, 0.4, 0.6, 0.8, 1)},
    "half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "emptied": lambda file: os.truncate(file, 0),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name", ["config.json", "environment.json", "results.csv", "SHA256SUMS"]
)
def test_damage_is_refused_at_once_or_leaves_what_is_read_as_it_was(
    name, damage, cut, tmp_path
):
    path = tmp_path / "run"
    shutil.copytree(cut, path)
    DAMAGE[damage](path / name)
    config = pt.Config(**CONFIG)
    try:
        directory = workdir.WorkDirectory(path, config.as_dict())
    except errors.InputError as error:
        assert str(path / name) in str(error)
        assert "another --workdir" in str(error)
        shutil.copy(cut / name, path / name)
        directory = workdir.WorkDirectory(path, config.as_dict())
    else:
        # Only the record itself can be damaged so that it says less.
        assert name == "SHA256SUMS"
    assert directory.rows == results.read_rows(cut)
    for name in ("config.json", "environment.json", "metrics.jsonl"):
        assert (path / name).read_bytes() == (cut / name).read_bytes()


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_changed_line_is_refused_if_its_training_is_finished_else_taken_anew(
    place, cut, tmp_path
):
    path = tmp_path / "run"
    for finished in (True, False):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(cut, path)
        lines = (cut / "metrics.jsonl").read_text().splitlines(keepends=True)
        at = 1 if finished else -1
        assert (f'"round": {1 - finished},') in lines[at]
        digits = [i for i, x in enumerate(lines[at]) if x in "12345678"]
        digit = digits[int(place * len(digits))]
        lines[at] = f"{lines[at][:digit]}9{lines[at][digit + 1 :]}"
        (path / "metrics.jsonl").write_text("".join(lines))
        config = pt.Config(**CONFIG).as_dict()
        if finished:
            name = "metrics.jsonl:replicate0-ticket-round00"
            with toys.raises(errors.InputError, str(path / name), "Restore it"):
                workdir.WorkDirectory(path, config)
        else:
            workdir.WorkDirectory(path, config)
            assert (path / "metrics.jsonl").read_bytes() == (
                cut / "metrics.jsonl"
            ).read_bytes()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_ticket_is_refused_before_it_is_trained_under(damage, cut, tmp_path):
    shutil.copytree(cut, tmp_path / "run")
    name = "tickets/replicate0-round01.npz"
    DAMAGE[damage](tmp_path / "run" / name)
    directory = workdir.WorkDirectory(tmp_path / "run", pt.Config(**CONFIG).as_dict())
    with toys.raises(errors.InputError, str(tmp_path / "run" / name), "Restore it"):
        directory.load_masks(0, 1)


def test_a_lost_file_of_metrics_is_missed(cut, tmp_path):
    shutil.copytree(cut, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    with toys.raises(errors.InputError, "metrics.jsonl", "Restore it"):
        run(tmp_path / "run")


def test_of_lost_results_all_is_trained_again_to_the_same_bits(cut, whole, tmp_path):
    shutil.copytree(cut, tmp_path / "run")
    assert list((tmp_path / "run").glob("checkpoints/*round01-resume"))
    (tmp_path / "run" / "results.csv").unlink()
    run(tmp_path / "run")
    assert left(tmp_path / "run") == left(whole)


def test_what_a_run_can_do_without_may_be_lost(cut, whole, tmp_path):
    shutil.copytree(cut, tmp_path / "run")
    for name in ("flags.txt", "run.lock", "SHA256SUMS", "environment.json"):
        (tmp_path / "run" / name).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run(tmp_path / "run")
    assert left(tmp_path / "run") == left(whole)
    flags = [(path / "flags.txt").read_text() for path in (tmp_path / "run", whole)]
    assert flags[0] == flags[1]
