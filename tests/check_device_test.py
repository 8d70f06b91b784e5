"""--check_device: what it counts is there to be found."""

import io
import os

import pytest
import rich.console
import tensorflow as tf

import prunetrain as pt
from prunetrain import check_device, main
from prunetrain.core import loops
from tests import tiny

SETTINGS = {
    **{"dataset": "noise", "model": "net", "compile": "graph", "learning_rate": 0.05},
    **{"validation_size": 20, "batch_size": 8, "train_steps": 8, "eval_every": 4},
}
GOOD = {
    **{"environment": {"devices": "CPU"}, "devices": {"device:CPU:0": 9}},
    **{"transfers": 0.0, "reads": 0, "traces": 1, "programs": 3, "more_programs": 0},
    **{"masked_ms": 1.0, "dense_ms": 1.0, "holds": True},
}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    tiny.register(monkeypatch)
    monkeypatch.setattr(check_device, "_SECONDS", 0.01)


def printed(path, **changes):
    console = rich.console.Console(file=io.StringIO(), width=200)
    config = pt.Config(**{**SETTINGS, **changes})
    good = check_device.print_check(config, path, console)
    return good, console.file.getvalue()


def test_a_loop_as_it_is_makes_no_transfers_reads_or_further_programs(tmp_path):
    _, text = printed(tmp_path)
    for line in (
        "transfers between host and device: 0 per step",
        "numbers that Python reads in a dispatch: 0",
        "traces: 1; programs compiled: 0, and 0 after the first dispatch",
        "pruned weights are exactly 0: yes",
        "variables and masks: ",
    ):
        assert line in text
    assert "ms masked" in text


def test_a_loop_that_reads_a_number_is_found(tmp_path, monkeypatch):
    call = loops.TrainLoop.__call__

    def reading(loop, *arguments):
        total = call(loop, *arguments)
        total.numpy()
        return total

    monkeypatch.setattr(loops.TrainLoop, "__call__", reading)
    good, text = printed(tmp_path)
    assert not good
    assert "Python reads in a dispatch: 1" in text
    assert "Python reads numbers within a dispatch" in text


@pytest.mark.parametrize(
    "read", [float, int, bool, lambda x: x.numpy(), lambda x: x.numpy().item()]
)
def test_reads_are_counted_however_they_are_made(read):
    tensor = tf.constant(1.0)
    with check_device._counted_reads() as reads:
        read(tensor)
    assert len(reads) == 1
    read(tensor)
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"devices": {"device:CPU:0": 8, "device:GPU:0": 1}}, "on 2 devices"),
        ({"transfers": 0.5}, "cross between host and device"),
        ({"transfers": None}, None),
        ({"reads": 1}, "Python reads"),
        ({"traces": 2}, "traced 2 times"),
        ({"more_programs": 1}, "compiled after the first"),
        ({"masked_ms": 1.3}, "masks cost 30% of a step"),
        ({"holds": False}, "not 0"),
    ],
)
def test_each_problem_has_its_line(change, problem):
    found = check_device.Check(**{**GOOD, **change}).problems
    assert len(found) == (problem is not None)
    assert problem is None or problem in found[0]


def test_the_folder_of_programs_is_asked_for_and_then_no_more(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    with check_device.dumped_programs() as folder:
        assert os.environ["XLA_FLAGS"] == f"--xla_a=1 --xla_dump_to={folder}"
    assert os.environ["XLA_FLAGS"] == "--xla_a=1"
    monkeypatch.delenv("XLA_FLAGS")
    with check_device.dumped_programs():
        pass
    assert "XLA_FLAGS" not in os.environ


@pytest.mark.slow
def test_from_the_command_line_xla_programs_are_counted(tmp_path):
    words = ["--check_device", "--validation_size=55000"]
    outcome = tiny.command(*words, cwd=tmp_path)
    assert "traces: 1; programs compiled: 4, and 0 after" in outcome.stdout
    assert "transfers between host and device: 0 per step" in outcome.stdout
    assert outcome.code in (0, 1), outcome.stderr
    assert not list(tmp_path.iterdir())


def test_it_stands_instead_of_another(capsys):
    words = ["prunetrain", "--check_device", "--dry_run"]
    assert main.main(words) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert main.main(["prunetrain", "--check_device=yes"]) == 2
    assert "--check_device takes no value" in capsys.readouterr().err
