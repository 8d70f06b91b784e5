"""Work directories, whole and damaged: what is read of them, and what is told."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from prunetrain.analysis import reading
from prunetrain.errors import InputError
from prunetrain.runs import files, results, workdir
from tests import tiny, toys


@pytest.fixture(autouse=True)
def known(registered):
    """The runs' dataset and model."""


def rewritten(path, name, change):
    """Changes a file, as if the run had written it so."""
    file = path / name
    content = change(file.read_bytes())
    file.write_bytes(content)
    files.record(path, name, files.digest([content]))


def test_a_whole_run_is_read_without_problems(finished):
    run = reading.Run(finished)
    assert run.problems == []
    assert run.name == "finished"
    assert run.rows == results.read_rows(finished)
    assert run.config.as_dict() == run.settings
    assert (
        len(run.metrics)
        == len((finished / "metrics.jsonl").read_text().split("\n")) - 1
    )
    assert run.environment["compile_mode"] == "graph"
    assert run.replicates == [0, 1]
    assert run.finished(3) == [0, 1]


def test_masks_are_those_of_the_tickets_and_round_0_keeps_all(finished):
    run = reading.Run(finished)
    for round, kept in enumerate((228, 154 + 32, 123 + 29, 98 + 26)):
        pairs = run.masks(1, round)
        assert [path for path, _ in pairs] == ["net/hidden/kernel", "net/output/kernel"]
        assert [mask.shape for _, mask in pairs] == [(16, 12), (12, 3)]
        assert sum(np.count_nonzero(mask) for _, mask in pairs) == kept
        assert sum(layer.kept for layer in run.layers(1, round)) == kept
        assert sum(layer.total for layer in run.layers(1, round)) == 228
    assert run.problems == []


def test_masks_that_a_training_ends_with_go_before_those_it_began_with(copied):
    masks = [np.zeros((16, 12), bool), np.ones((12, 3), bool)]
    directory = workdir.WorkDirectory(copied, reading.Run(copied).settings)
    directory.save_masks(0, 2, ["a", "b"], masks, branch="ticket")
    assert [layer.kept for layer in reading.Run(copied).layers(0, 2)] == [0, 36]


def test_nothing_is_written(finished):
    before = {x: x.stat().st_mtime_ns for x in finished.rglob("*")}
    run = reading.Run(finished)
    run.layers(0, 1)
    assert {x: x.stat().st_mtime_ns for x in finished.rglob("*")} == before


@pytest.mark.parametrize("make", [None, "empty", "other"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, make):
    path = tmp_path / "x"
    if make:
        path.mkdir()
    if make == "other":
        (path / "notes.txt").write_text("x")
    with toys.raises(InputError, str(path), "not the folder of a run", "--workdir"):
        reading.Run(path)


# What the file holds, or None if it is gone, and what is told if that is on record.
DAMAGE = {
    "config gone": ("config.json", None, "config.json is missing"),
    "config damaged": ("config.json", lambda x: x[:-9], "missing or damaged"),
    "config no object": ("config.json", lambda x: b"[]", "no JSON object"),
    "config of another version": (
        "config.json",
        lambda x: x.replace(b'"seed"', b'"grain"'),
        "another version",
    ),
    "setting out of range": (
        "config.json",
        lambda x: x.replace(b'"rounds": 3', b'"rounds": -3'),
        "another version",
    ),
    "results gone": ("results.csv", None, "unfinished"),
    "results damaged": ("results.csv", lambda x: x[:-9], "results.csv is missing or"),
    "metrics gone": ("metrics.jsonl", None, "metrics.jsonl cannot be read"),
    "metrics cut": ("metrics.jsonl", lambda x: x[:-9], "last line is cut off"),
    "metrics garbled": (
        "metrics.jsonl",
        lambda x: x.replace(b'{"replicate": 1', b'{"replicate: 1', 1),
        "metrics.jsonl: 1 of",
    ),
    "metrics of no evaluation": (
        "metrics.jsonl",
        lambda x: b'{"step": "x"}\n[]\n' + x,
        "metrics.jsonl: 2 of",
    ),
    "metrics changed": (
        "metrics.jsonl",
        lambda x: x.replace(b'"phase": "pruned"', b'"phase": "pruner"', 1),
        "metrics.jsonl:replicate0-ticket-round00 is damaged",
    ),
    "environment damaged": ("environment.json", lambda x: b"x", "environment.json is"),
    "ticket gone": ("tickets/replicate0-round02.npz", None, "round02.npz is missing"),
    "ticket damaged": (
        "tickets/replicate0-round02.npz",
        lambda x: x[:-1],
        "replicate0-round02.npz is missing or damaged",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
@pytest.mark.parametrize("on_record", [False, True], ids=["unnoticed", "on record"])
def test_damage_is_a_line_and_the_rest_is_read(copied, case, on_record):
    name, change, told = DAMAGE[case]
    if change is None:
        (copied / name).unlink()
    elif on_record:
        rewritten(copied, name, change)
    else:
        (copied / name).write_bytes(change((copied / name).read_bytes()))
        if name != "metrics.jsonl":
            told = f"{name} is damaged or was changed"
    run = reading.Run(copied)
    run.layers(0, 2)
    run.layers(0, 3)
    assert any(told in line for line in run.problems), run.problems
    assert all("\n" not in line for line in run.problems)
    rest = [run.settings, run.rows, run.metrics, run.environment, run.layers(0, 3)]
    assert sum(map(bool, rest)) >= 4


def test_a_problem_is_told_once(copied):
    (copied / "tickets" / "replicate0-round02.npz").unlink()
    run = reading.Run(copied)
    for _ in range(3):
        assert run.masks(0, 2) is None
        assert run.layers(0, 2) is None
    assert run.problems == ["tickets/replicate0-round02.npz is missing"]


def test_what_is_still_to_come_is_counted_from_the_settings(copied):
    def without(content):
        lines = content.splitlines(keepends=True)
        # Of replicate 1: the last ticket and its two controls.
        return b"".join(lines[:-3])

    rewritten(copied, "results.csv", without)
    (problem,) = reading.Run(copied).problems
    assert problem == (
        "replicate 1 is unfinished: 3 trainings are to come, the first is ticket of "
        "round 3"
    )


def test_a_replicate_with_nothing_left_to_prune_is_finished(copied):
    lines = (copied / "results.csv").read_bytes().splitlines(keepends=True)
    rewritten(copied, "results.csv", lambda _: b"".join(lines[:-3]))
    name = "tickets/replicate1-ends.txt"
    (copied / name).write_bytes(b"")
    rewritten(copied, name, lambda _: b"2\nnothing is left\n")
    assert reading.Run(copied).problems == []


def test_levels_are_the_nearest_there_are(finished):
    run = reading.Run(finished, levels=(100, 66, 1))
    # 100, 81.6, 66.7 and 54.4 %.
    assert run.chosen == [0, 2, 3]
    assert [round(run.remaining(x), 1) for x in run.chosen] == [100, 66.7, 54.4]


def test_levels_without_results_are_none(copied):
    (copied / "results.csv").unlink()
    assert reading.Run(copied).chosen == []


def test_the_network_is_the_runs(finished):
    run = reading.Run(finished)
    assert run.shapes == ((4, 4, 1), 3)
    assert [kernel.path for kernel in run.pruned.kernels] == [
        "net/hidden/kernel",
        "net/output/kernel",
    ]
    kernels = run.kernels("replicate1-ticket-round03.weights.h5")
    masks = [mask for _, mask in run.masks(1, 3)]
    assert all((k != 0).sum() <= m.sum() for k, m in zip(kernels, masks, strict=True))
    assert all(not k[~m].any() for k, m in zip(kernels, masks, strict=True))


def test_weights_that_are_not_there_or_damaged_are_none(copied):
    file = copied / "checkpoints" / "replicate0-ticket-round00.weights.h5"
    run = reading.Run(copied)
    assert run.kernels("no.weights.h5") is None
    assert run.problems == []
    file.write_bytes(file.read_bytes()[:-100])
    assert run.kernels(file.name) is None
    rewritten(copied, f"checkpoints/{file.name}", lambda x: x[:1000])
    assert run.kernels(file.name) is None
    assert len(run.problems) == 2
    assert all(file.name in problem for problem in run.problems)


@pytest.mark.parametrize("field", ["model", "dataset"])
def test_code_that_settings_name_runs_only_if_it_is_allowed(copied, field, monkeypatch):
    name = f'"{field}": "tests.tiny:code"'.encode()
    old = {"model": b'"model": "net"', "dataset": b'"dataset": "noise"'}[field]
    rewritten(copied, "config.json", lambda x: x.replace(old, name))
    called = []
    monkeypatch.setattr(tiny, "code", lambda *_, **__: called.append(1), raising=False)
    run = reading.Run(copied)
    with toys.raises(InputError, "--import_code", f"{field}=tests.tiny:code"):
        _ = run.pruned
    assert not called
    with pytest.raises(InputError):
        _ = reading.Run(copied, import_code=True).pruned
    assert called


def test_runs_are_named_apart(finished, tmp_path):
    paths = [tmp_path / x for x in ("a/run", "b/run", "b/other")]
    for path in paths:
        shutil.copytree(finished, path)
    assert [run.name for run in reading.open_runs(paths[1:])] == ["run", "other"]
    names = [run.name for run in reading.open_runs(paths)]
    assert names == ["a/run", "b/run", "b/other"]
    with toys.raises(InputError, "twice"):
        reading.open_runs([paths[0], tmp_path / "b" / ".." / "a" / "run"])


def test_a_folder_is_named_wherever_one_stands(finished, monkeypatch):
    monkeypatch.chdir(finished)
    (run,) = reading.open_runs([pathlib.Path(".")])
    assert run.name == "finished"


def test_settings_of_an_older_run_have_todays_defaults(copied):
    def older(content):
        values = json.loads(content)
        del values["accuracy"]
        return json.dumps(values).encode()

    rewritten(copied, "config.json", older)
    run = reading.Run(copied)
    assert run.problems == []
    assert run.config.accuracy == "overall"
