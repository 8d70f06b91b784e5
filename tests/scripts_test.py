"""The two commands and the flagfiles: cheap checks, without running a job."""

import math
import os
import re
import runpy
import subprocess
import sys
import types

import numpy as np
import pytest

from prunetrain import main
from prunetrain.config import Config
from tests import tiny

SCRIPTS = tiny.ROOT / "scripts"
FLAGFILES = {file.stem: file for file in (SCRIPTS / "flagfiles").glob("*.flags")}
SETTINGS = {
    "quickstart": {
        "dataset": "mnist",
        "model": "lenet_300_100",
        "optimizer": "adam",
        "learning_rate": 1.2e-3,
        "batch_size": 60,
        "train_steps": 6000,
        "eval_every": 200,
        "rounds": 8,
        "prune_rate": 0.2,
        "controls": ("reinit",),
    },
    "question": {
        "dataset": "mnist",
        "scaling": "unit",
        "model": "mlp_300_100_50",
        "optimizer": "adam",
        "learning_rate": 1.2e-4,
        "batch_size": 64,
        "train_steps": 10_000,
        "eval_every": 500,
        "rounds": 8,
        "prune_rate": 0.2,
        "controls": ("reinit",),
    },
    # Frankle & Carbin 2019, figure 2 and section 2.
    "lth_mnist_paper": {
        "dataset": "mnist",
        "scaling": "unit",
        "model": "lenet_300_100",
        "optimizer": "adam",
        "learning_rate": 1.2e-3,
        "batch_size": 60,
        "train_steps": 50_000,
        "eval_every": 100,
        "test_every": 500,
        "rounds": 20,
        "prune_rate": 0.2,
        "rewind_step": 0,
        "controls": ("reinit:3",),
        "control_rounds": (3, 7, 9, 12, 15, 18),
        "replicates": 5,
    },
    "rigl": {
        **{"dataset": "mnist", "scaling": "unit", "model": "lenet_300_100"},
        **{"optimizer": "adam", "learning_rate": 1.2e-3, "batch_size": 60},
        **{"train_steps": 3000, "eval_every": 500, "replicates": 5},
        **{"sparsities": (0.95,), "prune_at": "init", "criterion": "random"},
        **{"allocation": "erk", "mask_updates": "rigl"},
    },
    "pruning_at_init": {
        **{"dataset": "mnist", "scaling": "unit", "model": "lenet_300_100"},
        **{"optimizer": "adam", "learning_rate": 1.2e-3, "batch_size": 60},
        **{"train_steps": 3000, "eval_every": 500, "replicates": 3},
        **{"sparsities": (0.9, 0.95, 0.98, 0.99), "prune_at": "init"},
        **{"criterion": "snip", "allocation": "global"},
    },
}
flagfiles = pytest.mark.parametrize("name", FLAGFILES)


def parse(*words):
    return main.parse(["prunetrain", *words])


def command(name):
    """The words of the command in the comments at the top of a flagfile."""
    comments, _, _ = FLAGFILES[name].read_text().partition("\n--")
    paragraphs = re.sub(r"^# *", "", comments, flags=re.MULTILINE).split("\n\n")
    (found,) = (x for x in paragraphs if x.startswith(("python ", "scripts/")))
    return found.replace("\\\n", " ").split()


@flagfiles
def test_a_flagfile_says_what_it_is_known_for(name):
    expected = Config(**SETTINGS[name])
    assert parse(f"--flagfile={FLAGFILES[name]}") == expected


@flagfiles
def test_a_flagfile_leaves_nothing_of_it_to_defaults(name):
    # A default that changes must not change what a published command does.
    written = re.findall(r"^--(\w+)=", FLAGFILES[name].read_text(), re.MULTILINE)
    assert written == list(SETTINGS[name])


def test_every_flagfile_is_known_here():
    assert set(FLAGFILES) == set(SETTINGS)


@flagfiles
def test_a_flagfile_is_headed_by_its_command(name, monkeypatch):
    monkeypatch.chdir(tiny.ROOT)
    file = f"scripts/flagfiles/{name}.flags"
    words = command(name)
    if words == ["scripts/quickstart"]:
        assert file in (SCRIPTS / "quickstart").read_text()
    else:
        assert words[:3] == ["python", "-m", "prunetrain.main"]
        assert words[3:] == [
            f"--flagfile={file}",
            f"--workdir={parse(*words[3:]).workdir}",
        ]
        assert parse(*words[3:]).as_dict() == Config(**SETTINGS[name]).as_dict()


@pytest.mark.parametrize("name", ["quickstart", "test", "publish"])
def test_a_command_is_executable_and_free_of_syntax_errors(name):
    script = SCRIPTS / name
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", script], check=True, capture_output=True)


def test_quickstart_lets_flags_override_its_flagfile():
    words = [f"--flagfile={FLAGFILES['quickstart']}", "--rounds=1", "--train_steps=9"]
    config = parse(*words)
    assert (config.rounds, config.train_steps) == (1, 9)
    assert config.eval_every == SETTINGS["quickstart"]["eval_every"]
    assert (SCRIPTS / "quickstart").read_text().rstrip().endswith('"$@"')


def _serve():
    return runpy.run_path(str(SCRIPTS / "benchmarks" / "peers" / "serve.py"))


def test_the_benchmark_against_peers_answers_for_help():
    script = str(SCRIPTS / "benchmarks" / "peers.py")
    done = subprocess.run(
        [sys.executable, script, "--help"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tiny.ROOT)},
    )
    assert "--setup" in done.stdout


@pytest.mark.parametrize(
    ("second_loss", "revived", "message"),
    [
        (2.0, False, "the loss went from 2.0 to 2.0"),
        (math.nan, False, "the loss went from 2.0 to nan"),
        (1.0, True, "a pruned weight is not zero"),
    ],
)
def test_the_benchmark_refuses_a_peer_that_does_not_train_what_it_claims(
    second_loss, revived, message
):
    serve, kernel = _serve(), np.array([1.0, 0, 0, 0, 0])
    check = serve["_Check"](serve["Variant"](lambda: 2.0, lambda: [kernel]))
    check(1.0)
    kernel[1] = 0.5 * revived
    with pytest.raises(AssertionError, match=message):
        check(second_loss)


def test_the_benchmark_refuses_a_peer_that_keeps_too_many_weights():
    serve = _serve()
    variant = serve["Variant"](lambda: 2.0, lambda: [np.ones(10)])
    with pytest.raises(AssertionError, match=r"1\.0000 of a kernel is not zero"):
        serve["_Check"](variant)


@pytest.mark.slow
def test_a_run_killed_at_random_moments_leaves_the_files_of_one_that_was_not():
    outcome = subprocess.run(
        [sys.executable, SCRIPTS / "torture.py", "--kills=3"],
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.splitlines()[-1].startswith("3 kills in ")
    assert outcome.stdout.splitlines()[-1].endswith("; 0 differ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    sorted(
        file.stem
        for file in (SCRIPTS / "examples").glob("*.py")
        if not file.stem.startswith("sweep")
    ),
)
def test_an_example_trains_and_holds_its_zeros(name):
    outcome = subprocess.run(
        [sys.executable, SCRIPTS / "examples" / f"{name}.py", "--steps=20"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tiny.ROOT)},
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "pruned, exactly zero" in outcome.stdout
    assert "WARNING:tensorflow" not in outcome.stderr


def test_the_sweep_for_slurm_queues_parts_that_there_are(tmp_path):
    queue = tmp_path / "sbatch"
    queue.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/queued\necho 7\n')
    queue.chmod(0o755)
    subprocess.run(
        [SCRIPTS / "examples" / "sweep_slurm.sh"],
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tiny.ROOT,
    )
    tickets, controls, last = (tmp_path / "queued").read_text().splitlines()
    assert "--dependency=aftercorr:7" in controls
    assert last.endswith("prunetrain merge runs/sweep && prunetrain report runs/sweep")
    replicates = set()
    for task in range(5):
        for line, branch in ((tickets, "ticket"), (controls, "")):
            words = line.replace("$SLURM_ARRAY_TASK_ID", str(task)).split()
            config = parse(*words[words.index("prunetrain.main") + 1 :])
            assert config.part() == (range(task, task + 1), branch)
        replicates.add(task)
    assert replicates == set(range(config.replicates))


def test_the_sweep_for_ray_trains_each_replicate_and_merges(monkeypatch):
    ran = []
    ray = types.SimpleNamespace(
        init=lambda: None,
        remote=lambda **options: lambda f: types.SimpleNamespace(remote=f),
        get=list,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(subprocess, "run", lambda words, check: ran.append(words[3:]))
    sweep = runpy.run_path(str(SCRIPTS / "examples" / "sweep_ray.py"))
    sweep["main"]("runs/a", "--rounds=3")
    assert ran.pop() == ["merge", "runs/a"]
    parts = [parse(*words) for words in ran]
    assert [x.part()[0] for x in parts] == [range(i, i + 1) for i in range(5)]
    assert {(x.replicates, x.rounds, x.workdir) for x in parts} == {(5, 3, "runs/a")}


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_mutated_files_bring_nothing_but_clean_errors():
    outcome = subprocess.run(
        [sys.executable, SCRIPTS / "fuzz.py", "--inputs=330", "--seed=1"],
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    name, inputs, refused, accepted, crashes = outcome.stdout.splitlines()[-2].split()
    assert (name, inputs, crashes) == ("all", "330", "0")
    assert int(refused) > 100
    assert int(accepted) > 30


@pytest.mark.slow
def test_a_disk_that_is_full_when_weights_are_written_ends_a_run_as_it_should():
    fault = "a file-size limit: weights"
    outcome = subprocess.run(
        [sys.executable, SCRIPTS / "torture.py", "--faults", f"--only={fault}"],
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert f"{fault} 1 same bits holds" in outcome.stdout
