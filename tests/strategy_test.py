"""--strategy: what one device does, done by several, and by several processes."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from prunetrain import errors, lab, strategies
from prunetrain.config import Config, ConfigError
from prunetrain.runs import follower, results, signals, tickets, workdir
from tests import tiny, toys

LAUNCH = tiny.ROOT / "scripts" / "launch_local"
slow = pytest.mark.slow
FLAGS = (
    *("--rounds=3", "--train_steps=100", "--eval_every=20", "--validation_size=5003"),
    *("--rewind_step=10", "--checkpoint_every=10", "--seed=4"),
)
ENDED = "another worker of the cluster has ended or cannot be reached"
ALONE = {"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}


def environment(**more):
    dropped = ("TF_CPP_MIN_LOG_LEVEL", "TF_CONFIG")
    kept = {name: x for name, x in os.environ.items() if name not in dropped}
    return {**kept, "PYTHONPATH": str(tiny.ROOT), **more}


def start(*words, module="prunetrain.main", **more):
    return subprocess.Popen(
        [sys.executable, *(["-m"] if "/" not in module else []), module, *words],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, code=0):
    try:
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == code, err
    return out, err


def masks(path):
    files = sorted((path / "tickets").glob("*.npz"))
    return {file.name: tickets.from_bytes(file.read_bytes()) for file in files}


def assert_same_result(one, other, rel=1e-4):
    """Two folders have the same masks and, but for rounding, the same numbers."""
    first, second = results.read_rows(one), results.read_rows(other)
    assert [row.key for row in first] == [row.key for row in second]
    assert len(first) == 4
    for mine, theirs in zip(first, second, strict=True):
        assert mine.weights_remaining == theirs.weights_remaining
        assert mine.final_val_loss == pytest.approx(theirs.final_val_loss, rel=rel)
        assert mine.final_test_loss == pytest.approx(theirs.final_test_loss, rel=rel)
    found, expected = masks(one), masks(other)
    assert found.keys() == expected.keys()
    for name, arrays in found.items():
        for mask, right in zip(arrays, expected[name], strict=True):
            np.testing.assert_array_equal(mask, right)


# What is refused


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "it is not set"),
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"cluster": {"worker": ["a:1"]}}', "KeyError: 'task'"),
        (json.dumps({**ALONE, "task": {"type": "ps", "index": 0}}), "only tasks"),
        (json.dumps({**ALONE, "task": {"type": "worker", "index": 1}}), "no worker 1"),
        (json.dumps({**ALONE, "cluster": {"chief": ["a:1"]}}), "KeyError: 'worker'"),
    ],
)
def test_a_cluster_that_is_not_described_is_told(text, problem, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with toys.raises(errors.InputError, "TF_CONFIG", problem, "scripts/launch_local"):
        strategies.cluster()


def test_the_first_worker_writes_and_the_others_follow(monkeypatch):
    for index in (0, 1):
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": task}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        assert strategies.follows("multiworker") is bool(index)
        assert not strategies.follows("mirrored")


def test_devices_that_tensorflow_has_started_without_are_told():
    tf.config.list_logical_devices()
    with toys.raises(errors.InputError, "--strategy=mirrored:64", "must be the first"):
        strategies.make("mirrored:64")


def test_a_batch_that_the_devices_cannot_share_is_told(monkeypatch):
    four = types.SimpleNamespace(num_replicas_in_sync=4)
    monkeypatch.setattr(strategies, "make", lambda name: four)
    with toys.raises(ConfigError, "multiple of the 4 devices", "batch_size=30"):
        lab.Lab(Config(batch_size=30, strategy="mirrored:4"), "graph")


@pytest.mark.parametrize(
    ("instead", "strategy"),
    [("dry_run", "multiworker"), ("check_device", "mirrored:2")],
)
def test_what_tells_of_one_is_refused_for_several(instead, strategy, tmp_path):
    words = (f"--{instead}", f"--strategy={strategy}", "--workdir=run")
    outcome = tiny.command(*words, cwd=tmp_path)
    assert outcome.code == 2
    assert f"--{instead} tells of one" in outcome.stderr
    assert f"--strategy={strategy}" in outcome.stderr
    assert not (tmp_path / "run").exists()


def test_a_signal_to_another_worker_stops_this_one():
    stop, sums = signals.Stop(), [0, 30]
    places = types.SimpleNamespace(sum_now=lambda values: [np.int32(sums.pop(0))])
    mine = types.SimpleNamespace(loop=types.SimpleNamespace(places=places))
    assert not lab.Lab.stops(mine, stop)
    assert lab.Lab.stops(mine, stop)
    assert stop.number == signal.SIGTERM


def test_a_signal_that_comes_during_the_exchange_waits_for_the_next():
    stop = signals.Stop()

    def sum_now(values):
        stop.number = signal.SIGTERM
        return values

    places = types.SimpleNamespace(sum_now=sum_now)
    mine = types.SimpleNamespace(loop=types.SimpleNamespace(places=places))
    assert not lab.Lab.stops(mine, stop)
    assert lab.Lab.stops(mine, stop)


# The folder as those see it that do not write


@pytest.fixture
def folder(tmp_path):
    directory = workdir.WorkDirectory(tmp_path, {"seed": 1})
    directory.add_row(tiny.row())
    return directory


def files_of(path):
    return {x.name: x.read_bytes() for x in path.rglob("*") if x.is_file()}


def test_a_follower_reads_what_is_there_and_writes_nothing(folder):
    before = files_of(folder.path)
    mine = follower.Follower(folder.path, {"seed": 1})
    assert mine.rows == folder.rows
    mine.add_row(tiny.row(round=1))
    mine.save_masks(0, 1, ["kernel"], [np.array([True, False])])
    mine.end_at(0, 1, "nothing is left")
    mine.add_metrics(replicate=0, branch="ticket", round=1)
    for write in (mine.save_weights, mine.save_checkpoint, mine.save_start):
        write(None, 0, 0, *([0] if write == mine.save_weights else []))
    mine.record_environment({})
    mine.tidy_metrics()
    assert files_of(folder.path) == before
    assert mine.row((0, "ticket", 1)) == tiny.row(round=1)
    assert mine.load_masks(0, 1)[0].tolist() == [True, False]
    assert mine.ends_at(0, 1)


def test_a_follower_reads_masks_of_before_from_the_file(folder):
    folder.save_masks(0, 1, ["kernel"], [np.array([False, True])])
    mine = follower.Follower(folder.path, {"seed": 1})
    assert mine.load_masks(0, 1)[0].tolist() == [False, True]


def test_a_follower_of_another_run_is_refused(folder, tmp_path):
    with toys.raises(errors.InputError, "other settings", "seed"):
        follower.Follower(folder.path, {"seed": 2})
    with toys.raises(errors.InputError, "all workers see"):
        follower.Follower(tmp_path / "elsewhere", {"seed": 1})


# Runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Makes the folder of a run, once for each strategy."""
    made = {}

    def run(strategy):
        if strategy not in made:
            path = tmp_path_factory.mktemp("runs") / strategy.replace(":", "-")
            watched = "tests.watched_run" if ":" in strategy else "prunetrain.main"
            words = (*FLAGS, f"--strategy={strategy}", f"--workdir={path}")
            _, err = finish(start(*words, module=watched))
            assert err.count("watched: all copies agree") == 4 * (":" in strategy)
            made[strategy] = path
        return made[strategy]

    return run


@slow
@pytest.mark.parametrize("strategy", ["mirrored:2", "mirrored:4"])
def test_three_rounds_on_several_devices_end_as_on_one(strategy, runs):
    assert_same_result(runs(strategy), runs("none"))


@slow
def test_an_interrupted_run_on_two_devices_goes_on_to_the_same_bits(runs, tmp_path):
    words = (*FLAGS, "--strategy=mirrored:2", f"--workdir={tmp_path / 'run'}")
    process = start(*words)
    wait_for_lines(tmp_path / "run", 12, process)
    process.send_signal(signal.SIGTERM)
    finish(process, 143)
    out, _ = finish(start(*words))
    assert "goes on at" in out
    whole = runs("mirrored:2")
    assert_same_result(tmp_path / "run", whole, rel=0)
    for file in (whole / "checkpoints").glob("*.h5"):
        found = tiny.arrays(tmp_path / "run" / "checkpoints" / file.name)
        for name, array in tiny.arrays(file).items():
            np.testing.assert_array_equal(found[name], array)


@slow
def test_a_tpu_that_is_not_there_is_told(tmp_path):
    outcome = tiny.command("--strategy=tpu", cwd=tmp_path)
    assert outcome.code == 2
    assert "needs a TPU" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


# Several processes


def wait_for_lines(path, count, *processes):
    """Until the run has made so many evaluations."""
    file = path / "metrics.jsonl"
    while not file.exists() or len(file.read_bytes().splitlines()) < count:
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)


def workers(path, *words):
    """The two processes of a cluster."""
    launch = runpy.run_path(str(LAUNCH))
    addresses = [f"127.0.0.1:{port}" for port in launch["free_ports"](2)]
    cluster = {"worker": addresses}
    return [
        start(
            *(*FLAGS, "--strategy=multiworker", f"--workdir={path}", *words),
            TF_CONFIG=json.dumps(
                {"cluster": cluster, "task": {"type": "worker", "index": index}}
            ),
        )
        for index in (0, 1)
    ]


def launched(path):
    return start("--workers=2", *FLAGS, f"--workdir={path}", module=str(LAUNCH))


@slow
def test_two_processes_end_as_one_device(runs, tmp_path):
    out, _ = finish(launched(tmp_path / "run"))
    lines = out.splitlines()
    assert all(line.startswith(("[0] ", "[1] ")) for line in lines)
    assert any("Tickets by round" in line for line in lines)
    assert_same_result(tmp_path / "run", runs("none"))


@slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_ends_the_other_and_a_restart_the_run(victim, runs, tmp_path):
    path = tmp_path / "run"
    processes = workers(path)
    wait_for_lines(path, 12, *processes)
    processes[victim].kill()
    killed = time.monotonic()
    _, err = finish(processes[1 - victim], 1)
    assert time.monotonic() - killed < 60
    assert ENDED in err
    assert len(err.splitlines()) == 1
    finish(processes[victim], -signal.SIGKILL)
    out, _ = finish(launched(path))
    assert "goes on at" in out
    assert_same_result(path, runs("none"))


@slow
def test_a_signal_to_one_worker_stops_both_with_a_checkpoint(runs, tmp_path):
    path = tmp_path / "run"
    processes = workers(path)
    wait_for_lines(path, 12, *processes)
    processes[1].send_signal(signal.SIGTERM)
    for process in processes:
        finish(process, 143)
    out, _ = finish(launched(path))
    assert "goes on at" in out
    assert_same_result(path, runs("none"))


@slow
def test_what_one_worker_refuses_ends_all_that_are_launched(tmp_path):
    process = start(
        *("--workers=2", *FLAGS, "--batch_size=7", f"--workdir={tmp_path / 'run'}"),
        module=str(LAUNCH),
    )
    out, _ = finish(process, 2)
    assert "must be a multiple of the 2 devices" in out
