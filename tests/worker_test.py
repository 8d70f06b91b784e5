"""Replicates side by side: the files of the serial run, whatever happens on the way."""

import csv
import dataclasses
import io
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import prunetrain as pt
from prunetrain import config as config_lib
from prunetrain import errors, experiment
from prunetrain.runs import progress, results, workdir, workers
from tests import tiny, toys

SETTINGS = {
    **{"validation_size": 20, "batch_size": 20, "train_steps": 20, "eval_every": 5},
    **{"rounds": 2, "controls": "reinit", "rewind_step": 3, "replicates": 3},
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tiny.write_idx_dataset(folder)
    return str(folder)


@pytest.fixture
def settings(data_dir):
    def make(parallel_replicates=1, compile="graph", **changes):
        return pt.Config(
            data_dir=data_dir,
            compile=compile,
            parallel_replicates=parallel_replicates,
            **{**SETTINGS, **changes},
        )

    return make


def run(config, path, display=None):
    return experiment.run(config, path, display or progress.Silent())


def left(path):
    """The files of a run by name: their bytes, less the times and the settings."""
    found = {}
    for file in path.rglob("*"):
        name = str(file.relative_to(path))
        if file.suffix == ".npz":
            with np.load(file) as arrays:
                found[name] = {key: arrays[key].tobytes() for key in arrays}
        elif file.suffix == ".h5":
            arrays = tiny.arrays(file)
            found[name] = {key: arrays[key].tobytes() for key in arrays}
        elif name == "results.csv":
            rows = list(csv.DictReader(io.StringIO(file.read_text())))
            found[name] = [{**row, "train_seconds": ""} for row in rows]
        # Settings that bind nobody, and threads, may differ.
        elif name not in (
            *("config.json", "flags.txt", "environment.json", "SHA256SUMS"),
        ):
            found[name] = file.is_file() and file.read_bytes()
    return found


class Cut(progress.Silent):
    """Ends a run when its first training is finished."""

    def finish(self, row):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_begun_serially_and_gone_on_with_side_by_side_has_the_same_files(
    settings, tmp_path
):
    serial, parallel = tmp_path / "serial", tmp_path / "parallel"
    run(settings(compile="xla"), serial)
    with pytest.raises(KeyboardInterrupt):
        run(settings(compile="xla"), parallel, Cut())
    found = run(settings(2, compile="xla"), parallel)
    assert [row.key for row in found.rows] == [
        row.key for row in results.read_rows(serial)
    ]
    assert left(parallel) == left(serial)


@pytest.mark.slow
def test_rounds_that_start_from_ends_have_the_same_files_side_by_side(
    settings, tmp_path
):
    serial, parallel = tmp_path / "serial", tmp_path / "parallel"
    changes = {"compile": "xla", "replicates": 2, "rewind": "lr_rewind,data=end"}
    changes["controls"] = "shuffle:2,reinit,supermask"
    run(settings(**changes), serial)
    with pytest.raises(KeyboardInterrupt):
        run(settings(**changes, rounds=1), parallel, Cut())
    run(settings(2, **changes), parallel)
    files = [
        {name: x for name, x in left(path).items() if "-resume" not in name}
        for path in (serial, parallel)
    ]
    assert files[0] == files[1]
    # Rounds 1 and 2 of both are kept to go on from.
    ends = [sorted(x.glob("checkpoints/*-resume/*")) for x in (serial, parallel)]
    assert [len(x) for x in ends] == [4, 4]


class Failures(progress.Silent):
    """Keeps which replicates failed, and why."""

    def __init__(self):
        self.told = {}

    def fail(self, replicate, why):
        self.told[replicate] = why


@pytest.mark.slow
def test_failed_replicates_are_told_the_others_kept_and_a_repetition_does_the_rest(
    settings, tmp_path, monkeypatch
):
    display, whole, path = Failures(), tmp_path / "whole", tmp_path / "path"
    # A folder where the file should be: its weights cannot be written.
    blocked = path / "checkpoints" / "replicate1-ticket-round01.weights.h5"
    workdir.WorkDirectory(path, settings(2).as_dict())
    blocked.mkdir()
    with monkeypatch.context() as patch:
        kill_worker_of(0, patch)
        with toys.raises(
            errors.RunError,
            *("replicate 0 failed", "killed by signal 9"),
            *("replicate 1 failed", f"{blocked} could not be written"),
            "repeat the command",
        ):
            run(settings(2), path, display)
    assert display.told.keys() == {0, 1}
    keys = [row.key for row in results.read_rows(path)]
    assert keys[0] == (1, "ticket", 0)
    assert [replicate for replicate, _, _ in keys[1:]] == [2] * 5
    blocked.rmdir()
    run(settings(2), path)
    run(settings(), whole)
    assert left(path) == left(whole)


def kill_worker_of(replicate, monkeypatch):
    """Has the worker of a replicate killed as soon as it is to begin."""
    begin = workers.Worker.begin

    def kill(worker, task, log):
        begin(worker, task, log)
        if task == replicate:
            worker._process.kill()

    monkeypatch.setattr(workers.Worker, "begin", kill)


def test_a_worker_that_does_not_know_a_name_says_why(settings, tmp_path, monkeypatch):
    tiny.register(monkeypatch)
    with toys.raises(config_lib.ConfigError, "'net'", "script", "parallel_replicates"):
        run(settings(2, model="net"), tmp_path)


# The command line


@pytest.fixture
def words(settings, tmp_path):
    """The words of a command line that trains side by side."""
    flags = workdir.as_flags(settings(2, replicates=2).as_dict()).splitlines()
    return [*flags, f"--workdir={tmp_path / 'run'}"]


def test_settings_that_do_not_fit_exit_with_2_and_the_line_of_a_serial_run(
    words, tmp_path
):
    outcome = tiny.command(*words, "--batch_size=101", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.stderr == (
        "prunetrain: --batch_size=101: must be at most the 100 training examples there "
        "are. See --help\n"
    )
    assert outcome.stdout.count("\n") == 1
    assert not (tmp_path / "run" / "logs").exists()


def test_trainings_that_diverge_exit_with_1_and_one_line(words, tmp_path):
    outcome = tiny.command(*words, "--learning_rate=1e30", cwd=tmp_path)
    assert outcome.code == 1
    assert outcome.stderr.count("\n") == 1
    for replicate in (0, 1):
        assert f"replicate {replicate} failed: the training diverged" in outcome.stderr
        assert f"replicate {replicate}  failed: the training div" in outcome.stdout
    # The line says it all.
    assert not (tmp_path / "run" / "logs").exists()


def signalled(words, folder, signals):
    """Runs a command line, signalled once it trains: code, output, messages."""
    with subprocess.Popen(
        [sys.executable, "-m", "prunetrain.main", *words],
        env={**os.environ, "PYTHONPATH": str(tiny.ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for(folder / "metrics.jsonl", process)
        for number in signals:
            process.send_signal(number)
        # Ends when nobody holds the output open any more.
        out, err = process.communicate()
    return process.returncode, out, err


def wait_for(file, process):
    deadline = time.monotonic() + 120
    while not file.exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_run_is_terminated_with_its_workers_which_save_before(words, tmp_path):
    words = [*words, "--train_steps=1000000"]
    code, out, err = signalled(words, tmp_path / "run", [signal.SIGTERM])
    assert code == 143
    assert re.fullmatch("prunetrain: terminated; to go on: .*--workdir=.*\n", err)
    assert out.count("\n") == 1
    assert not (tmp_path / "run" / "logs").exists()
    # The other worker may not have begun to train.
    assert list((tmp_path / "run" / "checkpoints").glob("replicate*-resume/1"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "name", "code"), [(1, "SIGINT", 130), (2, "SIGTERM", 143)]
)
def test_a_signalled_run_goes_on_to_the_bits_of_one_that_was_left_alone(
    parallel, name, code, settings, tmp_path
):
    config = settings(parallel, compile="xla", replicates=2, train_steps=2000)
    flags = workdir.as_flags(config.as_dict()).splitlines()
    words = [*flags, f"--workdir={tmp_path / 'run'}"]
    found, _, err = signalled(words, tmp_path / "run", [getattr(signal, name)])
    assert (found, err.count("\n")) == (code, 1)
    outcome = tiny.command(*words, cwd=tmp_path)
    assert (outcome.code, outcome.stderr) == (0, "")
    # With workers, one of them may not have begun to train.
    assert re.search(r"goes on at replicate \d round 0 ticket step ", outcome.stdout)
    (tmp_path / "run" / "accuracy.png").unlink()
    (tmp_path / "run" / "run.lock").unlink()
    run(dataclasses.replace(config, parallel_replicates=1), tmp_path / "whole")
    (tmp_path / "whole" / "run.lock").unlink()
    assert left(tmp_path / "run") == left(tmp_path / "whole")
