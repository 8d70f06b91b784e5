"""The work directory: whole files only, exact masks, plain words about damage."""

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import pathlib
import shutil

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from hypothesis.extra import numpy as arrays

from prunetrain import errors
from prunetrain.config import Config
from prunetrain.runs import files, results, workdir
from tests import tiny, toys

SETTINGS = {"rounds": 2, "controls": ["reinit"]}
COLUMNS = [
    *("replicate", "branch", "round", "weights_remaining", "sparsity", "best_step"),
    *("val_loss", "val_accuracy", "test_loss", "test_accuracy", "train_seconds"),
]


@pytest.fixture
def directory(tmp_path):
    return workdir.WorkDirectory(tmp_path / "run", SETTINGS)


def again(directory, settings=None):
    """The same folder, opened as a later process does."""
    return workdir.WorkDirectory(directory.path, settings or SETTINGS)


def evaluated(directory, replicate=0, branch="ticket", round=0, step=0):
    directory.add_metrics(replicate=replicate, branch=branch, round=round, step=step)


def metrics(directory):
    return (directory.path / "metrics.jsonl").read_text()


# Settings


def test_a_new_folder_holds_the_settings_as_json_and_as_flags(directory):
    assert json.loads((directory.path / "config.json").read_text()) == SETTINGS
    flags = (directory.path / "flags.txt").read_text()
    assert flags == "--rounds=2\n--controls=reinit\n"


def test_flags_of_every_setting_are_lines_of_name_and_value():
    lines = workdir.as_flags(Config(layer_rates="a=0.1,b=0").as_dict()).splitlines()
    assert len(lines) == len(dataclasses.fields(Config)) - 1
    assert "--layer_rates=a=0.1,b=0" in lines
    assert "--controls=" in lines


def test_without_a_path_each_run_gets_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The same second for all of them.
    monkeypatch.setattr(workdir.time, "strftime", lambda format: "20260101-120000")
    paths = [workdir.WorkDirectory(path, SETTINGS).path for path in ("", None, "")]
    stem = pathlib.Path("runs") / "20260101-120000"
    assert paths == [stem, pathlib.Path(f"{stem}-2"), pathlib.Path(f"{stem}-3")]


def test_other_settings_are_refused_once_something_was_trained(directory):
    evaluated(directory)
    other = {"rounds": 3, "controls": ["reinit"], "seed": 1}
    with toys.raises(
        errors.InputError,
        str(directory.path),
        "rounds: 2 there, 3 here; seed: None there, 1 here",
        "another --workdir",
        f"--flagfile={directory.path / 'flags.txt'}",
    ):
        again(directory, other)
    assert json.loads((directory.path / "config.json").read_text()) == SETTINGS


def test_settings_that_differ_in_nothing_are_not_listed(directory):
    evaluated(directory)
    with pytest.raises(errors.InputError) as caught:
        again(directory, {**SETTINGS, "rounds": 3})
    assert "controls" not in str(caught.value)


def test_settings_of_a_run_that_never_trained_can_be_corrected(directory):
    # A --batch_size beyond the data is refused after the folder was made.
    again(directory, {"rounds": 3})
    assert json.loads((directory.path / "config.json").read_text()) == {"rounds": 3}
    assert (directory.path / "flags.txt").read_text() == "--rounds=3\n"


def test_what_is_recorded_first_of_the_environment_stays(directory):
    assert directory.environment() == {}
    directory.record_environment({"compile_mode": "xla"})
    evaluated(directory)
    directory.record_environment({"compile_mode": "graph"})
    assert again(directory).environment() == {"compile_mode": "xla"}


def test_the_environment_of_a_run_that_never_trained_is_forgotten(directory):
    directory.record_environment({"compile_mode": "xla"})
    assert again(directory).environment() == {}


def test_a_damaged_environment_is_named(directory):
    (directory.path / "environment.json").write_text("{")
    with toys.raises(errors.InputError, "environment.json", "damaged", "--workdir"):
        directory.environment()


def test_free_settings_may_change_while_a_run_goes_on(directory):
    evaluated(directory)
    changed = workdir.WorkDirectory(
        directory.path, {**SETTINGS, "processes": 2}, free={"processes"}
    )
    # What the command was given last, to repeat it.
    assert (changed.path / "flags.txt").read_text().endswith("--processes=2\n")
    with toys.raises(errors.InputError, "(rounds: 2 there, 3 here). "):
        workdir.WorkDirectory(
            directory.path, {**SETTINGS, "rounds": 3}, free={"processes"}
        )


def test_a_run_of_an_older_release_has_the_defaults_of_what_is_new(directory):
    evaluated(directory)
    new, defaults = {**SETTINGS, "precision": 32}, {**SETTINGS, "precision": 32}
    opened = workdir.WorkDirectory(directory.path, new, defaults=defaults)
    assert json.loads((opened.path / "config.json").read_text()) == new
    del opened
    for other in ({**new, "precision": 16}, {**new, "rounds": 3}):
        with toys.raises(errors.InputError, "there, "):
            workdir.WorkDirectory(directory.path, other, defaults=defaults)


def test_the_same_settings_open_the_same_run(directory):
    directory.add_row(tiny.row())
    assert again(directory).rows == [tiny.row()]


# Folders that cannot be


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with toys.raises(
            errors.InputError,
            "`workdir` must be a folder that can be written",
            str(path),
        ):
            workdir.WorkDirectory(path, SETTINGS)


@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_folder_that_may_not_be_written_is_refused(call, tmp_path, monkeypatch):
    # By a patch, since nothing is forbidden to root.
    def refuse(path, *arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    if call == "mkdir":
        monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
    else:
        monkeypatch.setattr(files, "open", refuse, raising=False)
    with toys.raises(
        errors.InputError, "`workdir`", str(tmp_path), "Permission denied"
    ):
        workdir.WorkDirectory(tmp_path, SETTINGS)


# Results


def test_results_begin_with_the_columns_of_the_contract(directory):
    directory.add_row(tiny.row())
    header, line = (directory.path / "results.csv").read_text().splitlines()
    assert header.split(",")[: len(COLUMNS)] == COLUMNS
    assert line.startswith("0,ticket,0,100,0.0,40,0.5,0.75,0.25,0.5,1.5,")


def test_rows_come_back_to_the_bit_the_ticket_before_its_controls(directory):
    rows = [
        tiny.row(val_loss=0.1 + 0.2, sparsity=1 / 3),
        tiny.row(branch="reinit", round=1, test_loss=1e-300),
        tiny.row(round=1, val_accuracy=np.nextafter(0.5, 1)),
    ]
    for row in rows:
        directory.add_row(row)
    assert directory.rows == [rows[0], rows[2], rows[1]]
    assert results.read_rows(directory.path) == directory.rows
    assert again(directory).row((0, "reinit", 1)) == rows[1]
    assert again(directory).row((1, "reinit", 1)) is None


def test_rows_stand_by_replicate_whichever_came_first(directory):
    rows = {n: tiny.row(*n) for n in [(1, "ticket", 0), (0, "ticket", 0)]}
    rows |= {n: tiny.row(*n) for n in [(1, "ticket", 1), (0, "reinit", 1)]}
    for row in rows.values():
        directory.add_row(row)
    expected = [(0, "ticket", 0), (0, "reinit", 1), (1, "ticket", 0), (1, "ticket", 1)]
    assert [row.key for row in directory.rows] == expected
    assert results.read_rows(directory.path) == directory.rows


def test_a_folder_without_results_has_no_rows(tmp_path):
    assert results.read_rows(tmp_path) == []


# Metrics


def test_what_is_not_finite_is_null_in_the_metrics(directory):
    directory.add_metrics(replicate=0, branch="ticket", round=0, loss=float("nan"))
    (line,) = (directory.path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["loss"] is None


def test_metrics_are_a_line_per_evaluation(directory):
    for step in (0, 10):
        evaluated(directory, step=step)
    lines = [json.loads(line) for line in metrics(directory).splitlines()]
    assert [line["step"] for line in lines] == [0, 10]


def test_lines_of_trainings_that_did_not_finish_are_dropped(directory):
    directory.add_row(tiny.row())
    evaluated(directory, step=1)
    finished = metrics(directory)
    evaluated(directory, round=1)
    evaluated(directory, replicate=1)
    evaluated(directory, branch="reinit")
    again(directory)
    assert metrics(directory) == finished


def test_lines_are_put_in_order_by_replicate_and_none_is_lost(directory, monkeypatch):
    for replicate, step in [(1, 5), (0, 3), (1, 4), (0, 8)]:
        evaluated(directory, replicate=replicate, step=step)
    for replicate in (0, 1):
        directory.add_row(tiny.row(replicate=replicate))
    before = metrics(directory)

    def die(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", die)
        with pytest.raises(Killed):
            directory.tidy_metrics()
    assert metrics(directory) == before
    again(directory)
    lines = [json.loads(line) for line in metrics(directory).splitlines()]
    assert [(x["replicate"], x["step"]) for x in lines] == [
        *((0, 3), (0, 8), (1, 5), (1, 4)),
    ]


@pytest.mark.parametrize("torn", ["{", '{"replicate": 0, "branch": "tick', "\xff"])
def test_a_torn_last_line_is_dropped(torn, directory):
    directory.add_row(tiny.row())
    evaluated(directory)
    whole = metrics(directory)
    with open(directory.path / "metrics.jsonl", "ab") as file:
        file.write(torn.encode("latin-1"))
    again(directory)
    assert metrics(directory) == whole
    evaluated(directory, step=1)
    assert len(metrics(directory).splitlines()) == 2


def test_a_last_line_that_lacks_only_its_end_is_dropped_too(directory):
    directory.add_row(tiny.row())
    evaluated(directory)
    whole = metrics(directory)
    (directory.path / "metrics.jsonl").write_text(whole + whole.rstrip("\n"))
    again(directory)
    assert metrics(directory) == whole


# Masks


@hypothesis.settings(deadline=None, derandomize=True, max_examples=60)
@hypothesis.given(
    strategies.lists(
        arrays.arrays(bool, arrays.array_shapes(max_dims=4, max_side=9)),
        min_size=1,
        max_size=3,
    )
)
def test_masks_of_any_shape_round_trip(tmp_path_factory, masks):
    # Once for all examples: a fixture of the function is not renewed for each.
    path = tmp_path_factory.getbasetemp() / "masks"
    directory = workdir.WorkDirectory(path, SETTINGS)
    paths = [f"net/layer_{index}/kernel" for index in range(len(masks))]
    directory.save_masks(3, 12, paths, masks)
    loaded = directory.load_masks(3, 12)
    assert len(loaded) == len(masks)
    for mask, expected in zip(loaded, masks, strict=True):
        assert mask.dtype == bool
        np.testing.assert_array_equal(mask, expected)
    with np.load(path / "tickets" / "replicate3-round12.npz") as file:
        assert file["paths"].tolist() == paths


def test_masks_take_one_bit_a_weight(directory):
    directory.save_masks(0, 1, ["k"], [np.ones((784, 300), bool)])
    (file,) = (directory.path / "tickets").iterdir()
    assert 784 * 300 / 8 < file.stat().st_size < 784 * 300 / 8 + 2000


def test_masks_that_were_not_written_are_not_there(directory):
    directory.save_masks(0, 1, ["k"], [np.ones((2, 2), bool)])
    with toys.raises(errors.InputError, "replicate0-round02.npz", "--workdir"):
        directory.load_masks(0, 2)


# Damage


def flip(content, index):
    return bytes(byte ^ (at == index) for at, byte in enumerate(content))


TICKET_DAMAGE = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "tail lost": lambda content: content[:-10],
    "garbage": lambda content: b"garbage" * 20,
    "bit flipped": lambda content: flip(content, content.index(b"k\0\0\0")),
    "another array": lambda content: np.lib.format.magic(1, 0) + content,
}


@pytest.mark.parametrize("damage", TICKET_DAMAGE)
def test_a_damaged_ticket_is_named_with_a_remedy(damage, directory):
    directory.save_masks(0, 1, ["k"], [np.ones((30, 40), bool)])
    (file,) = (directory.path / "tickets").iterdir()
    file.write_bytes(TICKET_DAMAGE[damage](file.read_bytes()))
    with toys.raises(errors.InputError, str(file), "damaged", "--workdir"):
        directory.load_masks(0, 1)


ROW = ",".join(map(str, dataclasses.astuple(tiny.row())))
HEADER = ",".join(field.name for field in dataclasses.fields(results.Row))
FILE_DAMAGE = [
    ("config.json", b""),
    ("config.json", b"{"),
    ("config.json", b"[1]"),
    ("config.json", b"\xff\xfe{}"),
    ("config.json", None),
    ("results.csv", b""),
    ("results.csv", b"\xff\xfe"),
    ("results.csv", b"replicate,branch\n0,ticket\n"),
    ("results.csv", f"{HEADER}\n{ROW[:30]}\n".encode()),
    ("results.csv", f"{HEADER}\n{ROW.replace('100', 'many')}\n".encode()),
    ("metrics.jsonl", b"{\n"),
    ("metrics.jsonl", b"\n"),
    ("metrics.jsonl", b"[1]\n"),
    ("metrics.jsonl", b"{}\n"),
    ("metrics.jsonl", b"\xff\n"),
]


@pytest.mark.parametrize(("name", "content"), FILE_DAMAGE)
def test_a_damaged_file_is_named_with_a_remedy(name, content, directory):
    evaluated(directory)
    directory.add_row(tiny.row())
    file = directory.path / name
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with toys.raises(errors.InputError, str(file), "damaged", "--workdir"):
        again(directory)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("…")
    with toys.raises(errors.InputError, "`workdir`", str(tmp_path), "other files"):
        workdir.WorkDirectory(tmp_path, SETTINGS)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert workdir.WorkDirectory("~/run", SETTINGS).path == tmp_path / "run"


def test_the_end_of_a_replicate_is_recorded(directory):
    assert not directory.ends_at(1, 3)
    directory.end_at(1, 3, "nothing to prune")
    found = again(directory)
    assert [found.ends_at(1, 3), found.ends_at(1, 2), found.ends_at(0, 3)] == [
        *(True, False, False)
    ]


# Whole files only


class Killed(BaseException):
    """What no handler of errors may catch."""


@pytest.fixture(
    params=[("write", 0), ("fsync", 0), ("write", 1), ("fsync", 1), ("replace", 0)],
    ids=lambda pair: "{} {}".format(*pair),
)
def cut_off(request, monkeypatch):
    """A function after whose call writing is cut off: at a sum, or at its file."""
    stage, place = request.param

    def tear(file, mode):
        @contextlib.contextmanager
        def torn():
            with open(file, mode) as stream:
                write_whole = stream.write

                def write(content):
                    write_whole(content[: len(content) // 2])
                    stream.flush()
                    raise Killed

                stream.write = write
                yield stream

        return torn() if next(calls) == place else open(file, mode)

    def die(*arguments):
        if next(calls) == place:
            raise Killed
        return whole(*arguments)

    def start():
        if stage == "write":
            monkeypatch.setattr(files, "open", tear, raising=False)
        else:
            monkeypatch.setattr(files.os, stage, die)

    calls, whole = itertools.count(), getattr(os, stage)
    return start


@pytest.mark.parametrize("name", ["results.csv", "tickets/replicate0-round01.npz"])
def test_a_write_that_is_cut_off_leaves_the_old_file_whole(name, directory, cut_off):
    def write(value):
        if name == "results.csv":
            directory.add_row(tiny.row(best_step=value))
        else:
            directory.save_masks(0, 1, ["k"], [np.full((9, 9), value > 1)])

    write(1)
    before = (directory.path / name).read_bytes()
    cut_off()
    with pytest.raises(Killed):
        write(2)
    assert (directory.path / name).read_bytes() == before


def test_a_write_that_is_cut_off_is_no_damage(directory, cut_off, monkeypatch):
    directory.add_row(tiny.row())
    cut_off()
    with pytest.raises(Killed):
        directory.add_row(tiny.row(round=1))
    monkeypatch.undo()
    assert again(directory).rows == [tiny.row()]


def test_a_run_goes_on_from_what_a_cut_off_write_left(directory, monkeypatch):
    directory.add_row(tiny.row())

    def die(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", die)
        with pytest.raises(Killed):
            directory.add_row(tiny.row(round=1))
    reopened = again(directory)
    assert reopened.rows == [tiny.row()]
    reopened.add_row(tiny.row(round=1))
    assert again(directory).rows == [tiny.row(), tiny.row(round=1)]


def test_no_reader_sees_half_a_file(directory, monkeypatch):
    seen = []
    replace = os.replace

    def watch(beside, file):
        # The two moments that a reader can come by: just before, just after.
        seen.append(results.read_rows(directory.path))
        replace(beside, file)
        seen.append(results.read_rows(directory.path))

    monkeypatch.setattr(files.os, "replace", watch)
    rows = [tiny.row(round=round) for round in range(3)]
    for row in rows:
        directory.add_row(row)
    assert seen == [[], rows[:1], rows[:1], rows[:2], rows[:2], rows]


class Model:
    """A model that writes its weights in two halves, and fails in between if told."""

    weights = ()

    def __init__(self, content, fails=False):
        self._content, self._fails = content, fails

    def save_weights(self, path):
        assert path.name.endswith(".weights.h5")
        path.write_text(self._content[:2])
        if self._fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        path.write_text(self._content)


def test_weights_are_written_whole_or_not_at_all(directory):
    file = directory.path / "checkpoints" / "replicate0-ticket-round01.weights.h5"
    directory.save_weights(Model("old weights"), 0, "ticket", 1)
    with pytest.raises(errors.RunError):
        directory.save_weights(Model("new weights", fails=True), 0, "ticket", 1)
    assert file.read_text() == "old weights"
    directory.save_weights(Model("new weights"), 0, "ticket", 1)
    assert file.read_text() == "new weights"
    assert [x.name for x in file.parent.iterdir()] == [file.name]


WRITERS = {
    "results.csv": lambda directory: directory.add_row(tiny.row()),
    "metrics.jsonl": evaluated,
    "replicate0-round01.npz": lambda directory: directory.save_masks(
        0, 1, ["k"], [np.ones((2, 2), bool)]
    ),
    "replicate0-ticket-round00.weights.h5": lambda directory: directory.save_weights(
        Model("weights", fails=True), 0, "ticket", 0
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_ends_the_run_with_file_cause_and_remedy(
    name, directory, monkeypatch
):
    def fill(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for module in (files, workdir):
        monkeypatch.setattr(module, "open", fill, raising=False)
    with toys.raises(
        errors.RunError, str(directory.path), name, "No space left", "--workdir"
    ):
        WRITERS[name](directory)


def test_a_folder_may_be_moved(directory, tmp_path):
    evaluated(directory)
    directory.add_row(tiny.row())
    shutil.move(directory.path, tmp_path / "elsewhere")
    assert workdir.WorkDirectory(tmp_path / "elsewhere", SETTINGS).rows == [tiny.row()]
