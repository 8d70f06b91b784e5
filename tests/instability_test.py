"""Barriers between children, against the run itself and problems that have none."""

import dataclasses
import fcntl
import io
import json
import re
import shutil

import keras
import numpy as np
import pytest
import rich.console
import tensorflow as tf

import prunetrain as pt
from prunetrain import data, instability, main, models, starts
from prunetrain import lab as lab_lib
from prunetrain.core import snapshot
from prunetrain.errors import InputError, RunError
from prunetrain.runs import barriers, files, progress, results
from tests import tiny, toys

SETTINGS = {
    **{"dataset": "noise", "model": "net", "compile": "graph", "learning_rate": 0.05},
    **{"validation_size": 20, "batch_size": 8, "train_steps": 12, "eval_every": 4},
    **{"rounds": 2, "replicates": 2, "rewind_step": 4, "steps_per_loop": 3},
}
STEPS, POINTS = (0, 4, 12), 5


class Labs:
    """Lends a compiled `Lab`, wiped each time, to all measurements of a `Config`.

    Compiling takes seconds.
    """

    def __init__(self):
        self.make, self._labs = lab_lib.Lab, {}

    def __call__(self, config, compile, dataset=None):
        if config not in self._labs:
            self._labs[config] = self.make(config, compile, dataset)
        lab = self.last = self._labs[config]
        for variable in lab.state.variables:
            variable.assign(tf.zeros_like(variable))
        return lab


@pytest.fixture(autouse=True, scope="module")
def labs():
    lender = Labs()
    with pytest.MonkeyPatch.context() as patch:
        tiny.register(patch)
        patch.setattr(lab_lib, "Lab", lender)
        yield lender


def settings(**changes):
    return pt.Config(**{**SETTINGS, **changes})


class Recorder(progress.Silent):
    """Counts steps; stops as a signal would, after so many pairs."""

    def __init__(self, stop_after=None):
        self.expected = self.num_steps = 0
        self.closed, self._stop_after = [], stop_after

    def expect(self, num_steps):
        self.expected = num_steps

    def advance(self, replicate, step, num_steps, last_step=None):
        self.num_steps += num_steps
        if self._stop_after == len(self.closed):
            raise KeyboardInterrupt

    def close(self, replicate, text):
        self.closed.append(text)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run."""
    path = tmp_path_factory.mktemp("run")
    pt.run(settings(), path, progress.Silent())
    return path


@pytest.fixture(scope="module")
def measured(run, tmp_path_factory):
    """Its folder with what was measured, the rows, and the display."""
    path = tmp_path_factory.mktemp("measured")
    shutil.copytree(run, path, dirs_exist_ok=True)
    display = Recorder()
    rows = instability.measure(settings(), path, STEPS, points=POINTS, progress=display)
    return path, rows, display


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run."""
    return shutil.copytree(run, tmp_path / "copy")


def measure(path, **changes):
    arguments = {"steps": STEPS, "points": POINTS, "progress": Recorder(), **changes}
    return instability.measure(settings(), path, **arguments)


def test_there_is_a_row_for_each_replicate_and_step(measured):
    path, rows, display = measured
    assert [row.key for row in rows] == [(n, 0, k) for n in range(2) for k in STEPS]
    assert all(len(row.losses) == len(row.errors) == POINTS for row in rows)
    assert barriers.read_rows(path) == rows
    assert len(display.closed) == len(rows)


def test_the_dense_training_is_gone_through_once(measured):
    # 12 steps, and two children of 12, 8 and no steps.
    assert measured[2].expected == measured[2].num_steps == 2 * (12 + 2 * (12 + 8))


def test_children_of_the_end_are_the_run_s_own_network(measured):
    path, rows, _ = measured
    for row in (row for row in rows if row.step == 12):
        own = next(
            x for x in results.read_rows(path) if x.key == (row.replicate, "ticket", 0)
        )
        assert {*row.losses} == {own.final_test_loss}
        assert {*row.errors} == {1 - own.final_test_accuracy}
        assert row.loss_barrier == row.error_barrier == 0


def test_other_children_differ(measured):
    for row in (row for row in measured[1] if row.step < 12):
        assert len({*row.losses}) == POINTS


def test_replicates_and_steps_have_children_of_their_own(measured):
    ends = [row.losses[0] for row in measured[1]]
    assert len({*ends}) == len(ends)


def test_the_same_again_gives_the_same_bytes(measured, copy):
    measure(copy)
    name = barriers.NAME
    assert (copy / name).read_bytes() == (measured[0] / name).read_bytes()


@pytest.mark.parametrize("stop_after", [0, 1, 4])
def test_what_was_interrupted_goes_on_to_the_same_bytes(stop_after, measured, copy):
    with pytest.raises(KeyboardInterrupt):
        measure(copy, progress=Recorder(stop_after))
    there = barriers.read_rows(copy)
    # The last pair of a replicate trains nothing.
    assert len(there) >= stop_after
    display = Recorder()
    rows = measure(copy, progress=display)
    assert rows == measured[1]
    assert len(display.closed) == len(rows) - len(there)
    assert display.expected == display.num_steps
    name = barriers.NAME
    assert (copy / name).read_bytes() == (measured[0] / name).read_bytes()


def test_what_is_there_is_not_computed_again(measured, monkeypatch):
    path, rows, _ = measured
    monkeypatch.setattr(lab_lib, "Lab", pytest.fail)
    assert measure(path, start=pytest.fail) == rows
    assert measure(path, steps=[4], replicates=1, start=pytest.fail) == [rows[1]]


def test_another_number_of_places_is_another_measurement(copy):
    (coarse,) = measure(copy, steps=[4], replicates=1, points=3)
    (fine,) = measure(copy, steps=[4], replicates=1, points=5)
    assert coarse.losses == fine.losses[::2]
    assert barriers.read_rows(copy) == [fine]


@pytest.mark.parametrize("round", [0, 1, 2])
def test_with_the_data_of_the_run_a_child_is_the_run_s_own_ticket(
    round, copy, monkeypatch
):
    plain = starts.seed_for

    def same_order(config, purpose, replicate, *rest):
        rest = () if purpose == "child" else rest
        purpose = "data_order" if purpose == "child" else purpose
        return plain(config, purpose, replicate, *rest)

    monkeypatch.setattr(starts, "seed_for", same_order)
    for row in measure(copy, steps=[4], round=round):
        own = next(
            x
            for x in results.read_rows(copy)
            if x.key == (row.replicate, "ticket", round)
        )
        assert {*row.losses} == {own.final_test_loss}


def test_a_ticket_is_not_the_dense_network(copy, measured):
    rows = measure(copy, steps=[4], round=2)
    assert [row.key for row in rows] == [(0, 2, 4), (1, 2, 4)]
    assert rows[0].losses[0] != measured[1][1].losses[0]


def test_nothing_is_traced_twice(copy, labs):
    measure(copy)
    assert labs.last.loop.num_traces == 1
    assert labs.last._evaluate["test"].experimental_get_tracing_count() == 1


def test_the_run_goes_on_as_if_nothing_had_been_measured(measured, run):
    path = measured[0]
    before = {x: (path / x).read_bytes() for x in ("results.csv", "metrics.jsonl")}
    pt.run(settings(), path, progress.Silent())
    for name, content in before.items():
        assert (path / name).read_bytes() == content == (run / name).read_bytes()
    assert len(files.known(path)[barriers.NAME]) == 1


def test_what_was_measured_binds_the_settings(tmp_path):
    config = settings(replicates=1)
    rows = instability.measure(config, tmp_path, [12], points=3, progress=Recorder())
    assert rows[0].loss_barrier == 0
    with toys.raises(InputError, "other settings", "learning_rate"):
        pt.run(settings(replicates=1, learning_rate=0.1), tmp_path)


# What barriers there are


def regression():
    """Numbers that a linear function of the inputs tells exactly."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    y = (x @ rng.normal(size=(4, 2))).astype(np.float32)
    return data.Raw(x[:80], y[:80], x[80:], y[80:], None, "lines")


def line(input_shape, num_classes):
    layers = [keras.Input(input_shape), keras.layers.Dense(num_classes, name="output")]
    return keras.Sequential(layers, name="line")


def test_a_convex_problem_has_no_barrier(tmp_path, monkeypatch):
    monkeypatch.setitem(data.DATASETS, "lines", lambda data_dir: regression())
    monkeypatch.setitem(models.MODELS, "line", line)
    config = settings(
        **{"dataset": "lines", "model": "line", "task": "regression"},
        **{"train_steps": 1500, "steps_per_loop": 1000, "rounds": 0, "replicates": 1},
        **{"rewind_step": 0, "compile": "xla", "optimizer": "sgd", "scaling": "none"},
    )
    rows = instability.measure(config, tmp_path, [0, 500], progress=Recorder())
    for row in rows:
        assert row.errors == ()
        assert max(row.losses) < 1e-9
        assert row.loss_barrier < 1e-9


def test_networks_trained_apart_have_a_barrier():
    """They know the examples by heart, their mean does not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 10)).astype(np.float32)
    y = rng.integers(3, size=60)
    pruned = pt.PrunedModel(toys.mlp((10, 32, 3)))
    optimizer, loss_fn = keras.optimizers.Adam(0.01), toys.cross_entropy()
    loop = pt.make_train_loop(pruned, optimizer, loss_fn, x, y, 20, compile="xla")
    evaluate = pt.make_eval_loop(pruned, loss_fn, x, y)
    fresh, ends = pt.Snapshot(pruned, optimizer), []
    for seed in (1, 2):
        fresh.restore()
        pruned.model.set_weights(toys.mlp((10, 32, 3), seed=10 * seed).get_weights())
        loop(0, 600)
        ends.append(pt.Snapshot(pruned))
    move, errors = snapshot.make_line(*ends), []
    for index in range(11):
        move(index / 10)
        _, correct, count = evaluate()
        errors.append(1 - int(correct) / int(count))
    assert errors[0] == errors[-1] == 0
    assert barriers.barrier(errors) > 0.2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_child_that_diverges_ends_it_and_finished_rows_stay(copy, labs, monkeypatch):
    train = labs.make.advance

    def advance(self, total, step, limit):
        found = train(self, total, step, limit)
        if int(self.loop.seed) == starts.seed_for(self.config, "child", 1, 4, 2):
            kernel = self.pruned.kernels[0]
            kernel.assign(kernel * np.inf)
        return found

    monkeypatch.setattr(labs.make, "advance", advance)
    with toys.raises(RunError, "replicate 1", "step 12", barriers.NAME):
        measure(copy)
    assert [row.key[::2] for row in barriers.read_rows(copy)] == [
        *((0, 0), (0, 4), (0, 12), (1, 0)),
    ]


# The command


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command; returns code, output and messages."""

    def run(*words, start=lambda: None):
        monkeypatch.setattr(main, "_start_quietly", start)
        code = main.main(["prunetrain", "instability", *map(str, words)])
        return code, *capsys.readouterr()

    return run


def test_the_command_prints_what_it_has_measured(measured, command):
    path, rows, _ = measured
    code, out, err = command(path, "--steps=0,4,12", "--points=5", start=pytest.fail)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    for step in STEPS:
        heights = [100 * row.error_barrier for row in rows if row.step == step]
        shown = [f"{np.mean(heights):.2f}", f"({min(heights):.2f}"]
        (cells,) = (cells for cells in lines if cells[:1] == [str(step)])
        assert cells[2:4] == shown
    assert "2 replicates" in out


def test_the_command_measures_in_the_folder_of_a_run(copy, measured, command):
    started = []
    code, out, _ = command(
        *(copy, "--steps", "4", "--points=5", "--replicates=1", "--round=0"),
        start=lambda: started.append(1),
    )
    assert (code, started) == (0, [1])
    assert barriers.read_rows(copy) == [measured[1][1]]
    assert re.search(r"replicate 0  round  0 k=4 +error barrier [0-9.]+%", out)


BAD = {
    "--steps=13": "--steps=13: must be whole numbers from 0 to train_steps=12",
    "--steps=-1": "--steps=-1: must be whole numbers from 0",
    "--steps=1.5": "argument --steps: must be whole numbers with commas in between, "
    "for example 0,100,500. Received: '1.5'",
    "--steps=": "Received: ''",
    "--steps=0,,4": "Received: '0,,4'",
    "--round=4": "--round=4: replicate 0 has no ticket of that round",
    "--round=-1": "--round=-1: must be a whole number from 0",
    "--round=one": "--round: invalid int value: 'one'",
    "--points=2": "--points=2: must be a whole number from 3 to 1001",
    "--points=2000": "--points=2000: must be",
    "--replicates=3": "--replicates=3: must be a whole number from 1 to 2",
    "--replicates=0": "--replicates=0: must be",
    "--rounds=1": "unrecognized arguments: --rounds=1",
    "more": "unrecognized arguments: more",
}


@pytest.mark.parametrize("word", BAD)
def test_what_does_not_fit_is_one_line_and_exit_code_2(word, copy, command):
    before = sorted(copy.rglob("*"))
    code, out, err = command(copy, word, start=pytest.fail)
    assert (code, out) == (2, "")
    assert err.startswith("prunetrain: ")
    assert BAD[word] in err
    assert err.count("\n") == 1
    assert sorted(copy.rglob("*")) == before


def test_a_folder_that_is_no_run_is_refused(tmp_path, command):
    for path in (tmp_path / "none", tmp_path, tmp_path / "file"):
        (tmp_path / "file").write_text("")
        code, _, err = command(path, start=pytest.fail)
        assert code == 2
        assert f"{path} must be the work directory of a run" in err
    assert [x.name for x in tmp_path.iterdir()] == ["file"]
    code, _, err = command(start=pytest.fail)
    assert (code, "the following arguments are required: WORKDIR" in err) == (2, True)


@pytest.mark.parametrize(
    "change", [{"model": "unknown"}, {"colour": 3}, {"batch_size": -1}]
)
def test_settings_that_do_not_fit_are_told_with_their_file(change, tmp_path, command):
    values = {**settings().as_dict(), **change}
    (tmp_path / "config.json").write_text(json.dumps(values))
    code, _, err = command(tmp_path, start=pytest.fail)
    assert code == 2
    assert str(tmp_path / "config.json") in err
    assert next(iter(change)) in err


def test_damaged_settings_are_told(tmp_path, command):
    (tmp_path / "config.json").write_text('{"seed": ')
    code, _, err = command(tmp_path, start=pytest.fail)
    assert (code, "config.json is missing or damaged" in err) == (2, True)


def test_a_folder_that_another_process_writes_is_refused(copy, command):
    with open(copy / "run.lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, _, err = command(copy, start=pytest.fail)
    assert (code, "in use by another run" in err) == (2, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"mask_updates": "set"},
        {"prune_at": "during", "sparsities": "0.5", "rounds": 15, "rewind_step": 0},
    ],
)
def test_masks_that_change_are_refused(changes, tmp_path):
    with toys.raises(InputError, "masks that stay", f"--{next(iter(changes))}="):
        instability.measure(settings(**changes), tmp_path / "new", [0])
    assert not (tmp_path / "new").exists()


def test_another_backend_is_refused_before_tensorflow(copy, monkeypatch, capsys):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert main.main(["prunetrain", "instability", str(copy), "--steps=0"]) == 2
    assert "KERAS_BACKEND=jax" in capsys.readouterr().err


def test_the_help_says_what_it_does(capsys):
    with pytest.raises(SystemExit) as caught:
        main.main(["prunetrain", "instability", "--help"])
    assert caught.value.code == 0
    assert "Linear Mode Connectivity" in capsys.readouterr().out


# What is printed


def printed(rows, config=None):
    text = io.StringIO()
    console = rich.console.Console(file=text, width=80)
    instability.print_rows(rows, config or settings(train_steps=1000), console)
    return text.getvalue()


def pair(step, height, replicate=0, round=0):
    return barriers.Row(
        replicate, round, step, (0.5, 1.5, 1.0), (0.2, 0.2 + height, 0.2)
    )


def test_the_step_to_rewind_to_is_told():
    text = printed([pair(0, 0.5), pair(100, 0.01), pair(1000, 0.0)])
    assert text.splitlines()[-1] == (
        "Stable from k=100 on (mean error barrier of at most 2 %, Frankle et al. "
        "2020): --rewind_step=100"
    )
    assert "Dense" in text


def test_no_step_is_told_where_none_is_stable():
    text = printed([pair(0, 0.5, round=3), pair(1000, 0.0, round=3)])
    assert text.splitlines()[-1].startswith("No k of these is stable")
    assert "Ticket of round 3" in text


def test_figures_are_means_with_the_extremes_of_barriers():
    text = printed([pair(0, 0.25), pair(0, 0.75, replicate=1)])
    (cells,) = (x.split() for x in text.splitlines() if x.split()[:1] == ["0"])
    assert cells == [
        *("0", "20.00", "50.00", "(25.00", "to", "75.00)"),
        *("0.75", "0.75", "(0.75", "to", "0.75)"),
    ]


def test_without_an_error_there_is_only_the_loss():
    text = printed([dataclasses.replace(pair(0, 0.1), errors=())])
    assert "error %" not in text
    assert "Without an error there is no threshold" in text


def test_the_default_steps_are_those_of_the_training(tmp_path):
    rows = instability.measure(
        settings(replicates=1), tmp_path, points=3, progress=Recorder()
    )
    assert [row.step for row in rows] == [0]
