"""The command line, most of it as the process that a user starts."""

import contextlib
import csv
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf

from prunetrain import commands, experiment, main
from prunetrain.config import Config
from prunetrain.errors import InputError
from prunetrain.runs import results, workdir
from tests import tiny, toys

RUN = (
    *("--train_steps=60", "--eval_every=20", "--rounds=2", "--controls=reinit"),
    *("--batch_size=60", "--steps_per_loop=15"),
)
COLUMNS = [
    *("replicate", "branch", "round", "weights_remaining", "sparsity", "best_step"),
    *("val_loss", "val_accuracy", "test_loss", "test_accuracy", "train_seconds"),
]
TRAININGS = [
    ("0", "ticket", "0", "266200"),
    ("0", "ticket", "1", "213060"),
    ("0", "reinit", "1", "213060"),
    ("0", "ticket", "2", "170538"),
    ("0", "reinit", "2", "170538"),
]


def table(path):
    """results.csv as a list of dicts."""
    with open(path / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


def timeless(path):
    """results.csv without the one column that no seed decides."""
    return [{k: v for k, v in x.items() if k != "train_seconds"} for x in table(path)]


def same_arrays(file, other):
    first, second = tiny.arrays(file), tiny.arrays(other)
    return first.keys() == second.keys() and all(
        first[name].tobytes() == second[name].tobytes() for name in first
    )


# A run on MNIST, and what follows from it; each a process of its own


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The work directory of a run, and its `Outcome`."""
    return tiny.once(
        tmp_path_factory,
        "first",
        lambda folder: tiny.command(*RUN, f"--workdir={folder}", cwd=folder),
    )


@pytest.fixture(scope="module")
def rerun(tmp_path_factory, first):
    """The same from its flagfile alone, in a folder that the run names itself."""
    flags = first[0] / "flags.txt"
    folder, outcome = tiny.once(
        tmp_path_factory,
        "rerun",
        lambda folder: tiny.command(f"--flagfile={flags}", cwd=folder),
    )
    (path,) = (folder / "runs").iterdir()
    return path, outcome


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """Round 0 alone."""
    return tiny.once(
        tmp_path_factory,
        "dense",
        lambda folder: tiny.command(
            *RUN, "--rounds=0", f"--workdir={folder}", cwd=folder
        ),
    )


@pytest.fixture(scope="module")
def repeated(tmp_path_factory, first):
    """The command given again on a copy of what the first one left."""

    def repeat(folder):
        shutil.copytree(first[0], folder, dirs_exist_ok=True)
        return tiny.command(*RUN, f"--workdir={folder}", cwd=folder)

    return tiny.once(tmp_path_factory, "repeated", repeat)


@pytest.mark.parametrize("name", ["first", "rerun", "dense", "repeated"])
def test_a_run_exits_with_0_and_a_silent_standard_error(name, request):
    # TensorFlow alone writes several lines there.
    _, outcome = request.getfixturevalue(name)
    lines = outcome.stderr.splitlines()
    if toys.VERSIONS["tensorflow"] < (2, 20):
        # Nothing keeps it from telling its first compilation, and how it tells it.
        lines = [x for x in lines if not re.match("WARNING: All log|I0000 ", x)]
    assert (lines, outcome.code) == ([], 0)


def without_progress(text):
    """The lines but for those that appear when a training takes over ten seconds."""
    return [line for line in text.splitlines() if "  step " not in line]


def test_a_run_says_where_it_writes_and_ends_with_table_and_files(first):
    path, outcome = first
    lines = without_progress(outcome.stdout)
    assert lines[0].endswith(f"settings and results: {path}")
    assert [line.split("of weights")[0].strip() for line in lines[1:6]] == [
        "replicate 0  round  0 ticket 100.00%",
        "replicate 0  round  1 ticket  80.04%",
        "replicate 0  round  1 reinit  80.04%",
        "replicate 0  round  2 ticket  64.06%",
        "replicate 0  round  2 reinit  64.06%",
    ]
    assert lines[6].strip() == "Tickets by round"
    test = [f"{100 * float(row['test_accuracy']):.2f}" for row in table(path)]
    cells = [line.strip("│").replace(" ", "").split("│") for line in lines[10:13]]
    assert [row[1] for row in cells] == ["266,200", "213,060", "170,538"]
    assert [row[5:] for row in cells] == [[test[0], ""], test[1:3], test[3:]]
    assert lines[-1] == (
        f"{path}: accuracy.png, results.csv, metrics.jsonl, tickets/, checkpoints/, "
        "flags.txt"
    )


def test_a_run_echoes_what_differs_from_the_defaults(first):
    echo = first[1].stdout.partition(";")[0].split()
    assert sorted(echo) == sorted(set(RUN) - {"--batch_size=60"})


def test_a_run_leaves_its_files_and_nothing_else(first):
    path, _ = first
    trainings = [f"{branch}-round0{round}" for _, branch, round, _ in TRAININGS]
    assert {str(x.relative_to(path)) for x in path.rglob("*") if x.is_file()} == {
        *("config.json", "flags.txt", "environment.json", "run.lock", "SHA256SUMS"),
        *("metrics.jsonl", "results.csv", "accuracy.png"),
        # The last one is for a round that may be added.
        *(f"tickets/replicate0-round0{round}.npz" for round in (1, 2, 3)),
        *(f"checkpoints/replicate0-{x}.weights.h5" for x in ("initial", *trainings)),
    }


def test_results_hold_the_columns_and_the_trainings_in_order(first):
    path, _ = first
    header = (path / "results.csv").read_text().partition("\n")[0].split(",")
    assert header[: len(COLUMNS)] == COLUMNS
    rows = table(path)
    assert [tuple(row[name] for name in COLUMNS[:4]) for row in rows] == TRAININGS
    for row in rows:
        left = int(row["weights_remaining"]) / 266_200
        assert float(row["sparsity"]) == pytest.approx(1 - left, abs=1e-12)
        assert float(row["train_seconds"]) > 0


def test_the_network_has_learnt_something(first):
    # 60 steps bring some 88 %; a guess brings 10 %.
    tickets = [row for row in table(first[0]) if row["branch"] == "ticket"]
    assert all(float(row["test_accuracy"]) > 0.8 for row in tickets)


def test_metrics_hold_a_line_per_evaluation(first):
    path, _ = first
    lines = [json.loads(x) for x in (path / "metrics.jsonl").read_text().splitlines()]
    for row, (replicate, branch, round, left) in zip(
        table(path), TRAININGS, strict=True
    ):
        mine = [x for x in lines if (x["branch"], x["round"]) == (branch, int(round))]
        pruned = [x for x in mine if x["phase"] == "pruned"]
        assert [x["step"] for x in pruned] == ([60] if branch == "ticket" else [])
        mine = [x for x in mine if x not in pruned]
        assert [x["step"] for x in mine if x["split"] == "validation"] == [
            0,
            20,
            40,
            60,
        ]
        tested = [x["step"] for x in mine if x["split"] == "test"]
        assert tested == [int(row["best_step"]), 60]
        assert {x["weights_remaining"] for x in mine} == {int(left)}
        assert {x["replicate"] for x in mine} == {int(replicate)}
    num_tickets = sum(branch == "ticket" for _, branch, *_ in TRAININGS)
    assert len(lines) == 6 * len(TRAININGS) + num_tickets


def test_checkpoints_are_zero_where_their_tickets_are(first):
    path, _ = first
    settings = json.loads((path / "config.json").read_text())
    directory = workdir.WorkDirectory(path, settings)
    for _, branch, round, left in TRAININGS[1:]:
        masks = directory.load_masks(0, int(round))
        assert sum(int(mask.sum()) for mask in masks) == int(left)
        file = path / "checkpoints" / f"replicate0-{branch}-round0{round}.weights.h5"
        kernels = [x for x in tiny.arrays(file).values() if x.ndim == 2]
        assert len(kernels) == len(masks)
        for kernel in kernels:
            (mask,) = (mask for mask in masks if mask.shape == kernel.shape)
            assert not kernel[~mask].any()
            assert np.count_nonzero(kernel) > 0.99 * mask.sum()


def test_the_flagfile_of_a_run_gives_the_same_bits_in_another_process(first, rerun):
    assert timeless(rerun[0]) == timeless(first[0])
    for name in ("metrics.jsonl", "config.json", "flags.txt"):
        assert (rerun[0] / name).read_bytes() == (first[0] / name).read_bytes()
    files = sorted(x.name for x in (first[0] / "checkpoints").iterdir())
    # And the initial weights.
    assert len(files) == len(TRAININGS) + 1
    for name in files:
        assert same_arrays(*(x / "checkpoints" / name for x in (first[0], rerun[0])))


def test_a_flagfile_alone_prunes_in_a_folder_named_after_the_time(rerun):
    path, outcome = rerun
    assert f"settings and results: runs/{path.name}\n" in outcome.stdout
    left = [int(row["weights_remaining"]) for row in table(path)]
    assert left == [266_200, 213_060, 213_060, 170_538, 170_538]


def test_round_0_alone_is_round_0_of_the_whole_run_to_the_bit(first, dense):
    assert timeless(dense[0]) == timeless(first[0])[:1]
    name = "checkpoints/replicate0-ticket-round00.weights.h5"
    assert same_arrays(first[0] / name, dense[0] / name)


def test_a_repeated_command_trains_nothing_and_shows_the_results(first, repeated):
    path, outcome = repeated
    for name in ("results.csv", "metrics.jsonl", "flags.txt"):
        assert (path / name).read_bytes() == (first[0] / name).read_bytes()
    lines = without_progress(outcome.stdout)
    assert lines[1] == f"{path}: every round is finished, nothing to train"
    assert lines[2:-1] == without_progress(first[1].stdout)[6:-1]


# Help


@pytest.fixture(scope="module")
def help_text(tmp_path_factory):
    outcome = tiny.command("--help", cwd=tmp_path_factory.mktemp("help"))
    assert (outcome.code, outcome.stderr) == (0, "")
    return outcome.stdout


def test_help_tells_every_field_by_group_with_default_and_unit(help_text):
    at, group = 0, None
    for field in main._fields():
        meta = field.metadata
        if meta["group"] != group:
            group = meta["group"]
            at = help_text.index(f"\n{group}:\n", at)
        default = getattr(Config(), field.name)
        default = ",".join(default) if isinstance(default, tuple) else default
        unit = f" [{meta['unit']}]" if meta["unit"] else ""
        at = help_text.index(f"\n  --{field.name}={default}{unit}\n", at)
        own = re.split(r"\n  --|\n\w+:\n", help_text[at + 1 :])[0]
        assert meta["help"].lower() in " ".join(own.split()).lower()
        for choice in meta["choices"] or ():
            assert re.search(rf"^ {{6,8}}(.*, )?{choice}\b", own, re.MULTILINE), choice


def test_help_fits_88_columns_and_names_the_flagfile(help_text):
    assert max(map(len, help_text.splitlines())) <= 88
    assert "--flagfile=FILE" in help_text


def test_help_names_the_commands(help_text):
    for name in commands.COMMANDS:
        assert f"\n  prunetrain {name} …\n" in help_text


@pytest.mark.parametrize("word", ["-h", "-help", "--helpfull", "--helpshort"])
def test_every_way_to_ask_for_help_is_answered(word, capsys):
    assert main.main(["prunetrain", "--train_stpes=5", word]) == 0
    assert "--workdir" in capsys.readouterr().out


# Mistakes: one line, exit code 2, and no waiting for TensorFlow


@pytest.fixture
def busy(tmp_path):
    """A folder that this process writes."""
    held = workdir.WorkDirectory(tmp_path / "busy", Config().as_dict())
    yield held.path


def test_a_folder_that_another_process_writes_is_refused_at_once(busy, tmp_path):
    outcome = tiny.command(f"--workdir={busy}", cwd=tmp_path, trace_imports=True)
    assert_refused(outcome, f"{busy} is in use", f"process {os.getpid()} on ")


def other_run(folder):
    """A folder in which a run of other settings has begun."""
    run = workdir.WorkDirectory(folder / "other", Config(seed=9).as_dict())
    run.add_row(tiny.row())
    return run.path


MISTAKES = {
    "a misspelt flag": (
        ["--train_stpes=5"],
        ["'train_stpes'", "train_steps", "--help"],
    ),
    "an unknown name": (["--dataset=mnits"], ["--dataset=mnits", "mean 'mnist'"]),
    "percent": (["--prune_rate=20"], ["--prune_rate=20", "below 1", "0.2 for 20 %"]),
    "nan": (["--prune_rate=nan"], ["--prune_rate=nan", "below 1", "0.2 for 20 %"]),
    "a stray word": (["quickstart"], ["'quickstart'", "--name=value", "--help"]),
    "a word for a number": (["--seed=one"], ["--seed=one", "--help"]),
    "a missing value": (["--rounds"], ["--rounds", "--help"]),
    "a conflict": (
        ["--rewind_step=60", "--train_steps=60"],
        ["--rewind_step=60", "60"],
    ),
    "a missing flagfile": (["--flagfile=none.flags"], ["none.flags", "flagfile"]),
    "a file as folder": (["--workdir={file}"], ["`workdir`", "{file}", "be written"]),
    "a folder in a file": (["--workdir={file}/run"], ["`workdir`", "{file}/run"]),
    "other settings": (["--workdir={other}"], ["{other}", "seed: 9 there, 0 here"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_answered_at_once_in_one_line(case, tmp_path):
    words, fragments = MISTAKES[case]
    (tmp_path / "file").write_text("")
    places = {"file": str(tmp_path / "file")}
    if case == "other settings":
        places["other"] = str(other_run(tmp_path))
    outcome = tiny.command(
        *(word.format(**places) for word in words), cwd=tmp_path, trace_imports=True
    )
    assert_refused(outcome, *(x.format(**places) for x in fragments))
    assert not (tmp_path / "runs").exists()


def test_another_backend_is_refused_at_once(tmp_path):
    outcome = tiny.command(cwd=tmp_path, backend="jax", trace_imports=True)
    assert_refused(outcome, "KERAS_BACKEND=jax", "Unset")
    assert not (tmp_path / "runs").exists()


def assert_refused(outcome, *fragments):
    assert outcome.code == 2
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("prunetrain: ")
    assert outcome.stderr.count("\n") == 1
    assert outcome.stderr.endswith("\n")
    for fragment in fragments:
        assert fragment in outcome.stderr
    # Not by the clock: a slow machine must not fail this.
    assert "absl.flags" in outcome.modules
    assert not {"tensorflow", "keras", "matplotlib"} & set(outcome.modules)


# Flagfiles


@pytest.fixture
def flagfile(tmp_path):
    """Writes a flagfile; returns the flag that names it."""

    def write(content, name="some.flags"):
        content = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(content)
        return f"--flagfile={tmp_path / name}"

    return write


def parse(*words):
    return main.parse(["prunetrain", *words])


@pytest.mark.parametrize(
    "line",
    [
        "\ufeff--rounds=3",
        "rounds=3",
        "--rounds 3",
        "--rounds",
        "--rounds=3 # a note",
        "--workdir=somewhere # a note",
        "--workdir=somewhere\t#a note",
        "-- rounds=3",
        "and so on",
    ],
)
@pytest.mark.parametrize("before", ["", "--seed=4\n# whole lines of notes\n\n"])
def test_a_line_that_is_no_flag_is_refused_with_a_hint(line, before, flagfile):
    word = flagfile(f"{before}{line}\n--seed=5\n")
    with toys.raises(InputError, word, repr(line), "--name=value", "after #"):
        parse(word)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_flagfile_in_another_encoding_is_refused(encoding, flagfile):
    word = flagfile("--data_dir=Größe\n".encode(encoding))
    with toys.raises(InputError, word, "UTF-8"):
        parse(word)


def test_notes_blank_lines_indents_and_other_ends_of_lines_are_fine(flagfile):
    config = parse(flagfile("# a note\n\n// another\n  --rounds=3  \r\n--seed=4"))
    assert (config.rounds, config.seed) == (3, 4)


def test_a_hash_within_a_value_is_no_note(flagfile):
    assert parse(flagfile("--workdir=run#3\n")).workdir == "run#3"


def test_what_is_typed_wins_over_the_file_wherever_it_stands(flagfile):
    word = flagfile("--rounds=3\n--seed=4\n")
    for words in (["--rounds=2", word], [word, "--rounds=2"]):
        config = parse(*words)
        assert (config.rounds, config.seed) == (2, 4)


def test_of_two_flagfiles_the_later_wins(flagfile):
    words = [flagfile("--rounds=3\n--seed=4\n"), flagfile("--rounds=5\n", "more")]
    assert (parse(*words).rounds, parse(*words).seed) == (5, 4)


def test_a_flagfile_may_name_another(flagfile):
    inner = flagfile("--rounds=3\n", "inner")
    assert parse(flagfile(f"{inner}\n--seed=4\n")).rounds == 3


def test_the_name_of_a_flagfile_may_be_a_word_of_its_own(flagfile):
    word = flagfile("--rounds=3\n")
    assert parse(*word.split("=", 1), "--seed=4") == Config(rounds=3, seed=4)


@pytest.mark.parametrize("words", [["--flagfile="], ["--flagfile"]])
def test_a_flagfile_without_a_name_is_refused(words):
    with toys.raises(InputError, "--flagfile needs", "--flagfile="):
        parse(*words)


def test_values_may_be_words_of_their_own():
    assert parse("--rounds", "3", "-seed=4") == Config(rounds=3, seed=4)


def test_without_flags_every_setting_has_its_default():
    assert parse() == Config()


def test_every_setting_comes_back_from_the_flags_that_a_run_writes(flagfile):
    config = Config(
        controls="reinit",
        layer_rates="output=0.1,.*=0.25",
        learning_rate=1 / 3,
        data_dir="a folder",
        compile="graph",
        rewind_step=7,
    )
    assert parse(flagfile(workdir.as_flags(config.as_dict()))) == config


# In this process: small data


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Runs a command line on a small dataset; returns (code, output, messages)."""
    # What main does to the process's warnings ends with the test.
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    tiny.write_idx_dataset(tmp_path / "data")
    small = (
        *(f"--data_dir={tmp_path / 'data'}", "--validation_size=20", "--batch_size=20"),
        *("--train_steps=4", "--eval_every=2", "--rounds=0", "--compile=graph"),
    )

    def run(*words):
        code = main.main(["prunetrain", *small, *words])
        return code, *capsys.readouterr()

    return run


def test_main_runs_twice_in_one_interpreter_with_the_same_results(call, tmp_path):
    for name in ("a", "b"):
        code, out, err = call(f"--workdir={tmp_path / name}")
        assert (code, err) == (0, "")
        assert f"{tmp_path / name}: accuracy.png" in out
    assert len(timeless(tmp_path / "a")) == 1
    assert timeless(tmp_path / "a") == timeless(tmp_path / "b")


def test_a_training_that_diverges_exits_with_1_and_says_where(call, tmp_path):
    code, _, err = call("--learning_rate=1e30", f"--workdir={tmp_path / 'run'}")
    assert code == 1
    assert err.count("\n") == 1
    for fragment in (
        *("prunetrain: ", "diverged", "replicate 0", "round 0", "step 2"),
        *(str(tmp_path / "run"), "--learning_rate"),
    ):
        assert fragment in err


def test_a_damaged_dataset_exits_with_2_and_names_the_file(call, tmp_path):
    file = tmp_path / "data" / tiny.IDX_NAMES["x_train"]
    file.write_bytes(file.read_bytes()[:1000])
    code, _, err = call(f"--workdir={tmp_path / 'run'}")
    assert code == 2
    assert err.count("\n") == 1
    for fragment in ("prunetrain: ", str(file), "holds 984", "Get it again"):
        assert fragment in err


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["--dataset=nowhere.npz"], ["`data_dir`", "leave it out", "nowhere.npz"]),
        (["--dataset=nowhere.npz", "--data_dir="], ["nowhere.npz", "exists"]),
        (["--dataset=os:getcwd", "--data_dir="], ["must return", "os:getcwd"]),
        (["--dataset=os:nothing", "--data_dir="], ["no attribute 'nothing'"]),
        (["--dataset=cifar10"], ["data_batch_1.bin", "Get it again"]),
        (["--dataset=cifar100", "--data_dir="], ["`data_dir`", "cifar-100-binary"]),
        (["--dataset_args=a=1"], ["`dataset_args`", "'a'"]),
        (["--augment=crop,os:getcwd"], ["`augment`", "(x, seed) -> x"]),
    ],
)
def test_data_that_cannot_be_had_exits_with_2_and_one_line(words, fragments, call):
    code, _, err = call(*words)
    assert (code, err.count("\n")) == (2, 1)
    for fragment in ("prunetrain: ", *fragments):
        assert fragment in err


def test_streamed_and_augmented_runs_are_the_same_as_from_arrays(call, tmp_path):
    for stream in ("never", "always"):
        place = f"--workdir={tmp_path / stream}"
        code, _, err = call("--augment=crop,flip", f"--stream={stream}", place)
        assert (code, err) == (0, "")
    assert timeless(tmp_path / "never") == timeless(tmp_path / "always")
    code, _, err = call(f"--workdir={tmp_path / 'plain'}")
    assert (code, err) == (0, "")
    assert timeless(tmp_path / "never") != timeless(tmp_path / "plain")


def test_a_refused_setting_can_be_corrected_on_the_same_folder(call, tmp_path):
    place = f"--workdir={tmp_path / 'run'}"
    code, _, err = call("--batch_size=101", place)
    assert (code, err.count("\n")) == (2, 1)
    assert "--batch_size=101" in err
    assert "the 100 training examples" in err
    # Refused again, but not because the folder held other settings.
    code, _, err = call("--batch_size=102", place)
    assert (code, err.count("\n")) == (2, 1)
    assert "--batch_size=102" in err


def test_a_warning_is_a_line_on_the_standard_error(call, monkeypatch, tmp_path):
    def warn(*arguments, start):
        warnings.warn("pruning removes every weight of a/kernel", stacklevel=1)

    monkeypatch.setattr(experiment, "run", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = call(f"--workdir={tmp_path / 'run'}")
    assert code == 0
    assert err == "prunetrain: warning: pruning removes every weight of a/kernel\n"


@pytest.mark.parametrize(
    ("problem", "code", "fragments"),
    [
        (KeyboardInterrupt(), 130, ["interrupted", "--workdir"]),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/results.csv"),
            1,
            ["a/results.csv", "No space left"],
        ),
        # As h5py raises it, without a number.
        (OSError("Can't write data"), 1, ["Can't write data"]),
        (InputError("a file is damaged"), 2, ["a file is damaged"]),
    ],
)
def test_whatever_stops_a_run_is_one_line_and_a_code(
    problem, code, fragments, call, monkeypatch, tmp_path
):
    def stop(*arguments, start):
        raise problem

    monkeypatch.setattr(experiment, "run", stop)
    found, _, err = call(f"--workdir={tmp_path / 'run'}")
    assert found == code
    assert err.startswith("prunetrain: ")
    assert err.count("\n") == 1
    for fragment in fragments:
        assert fragment in err


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_is_one_line_and_the_code_that_shells_know(name, code, tmp_path):
    # A run that does nothing but send itself the signal.
    script = f"""
import signal, sys, types
from prunetrain import main

def run(config, directory, start=None):
    signal.raise_signal(signal.{name})

main.experiment.run = run
tensorflow = types.ModuleType("tensorflow")
tensorflow.config = types.SimpleNamespace(list_logical_devices=list)
sys.modules["tensorflow"] = tensorflow
sys.argv = ["prunetrain", "--workdir={tmp_path / "run"}"]
main.console()
"""
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=tiny.ROOT, capture_output=True, text=True
    )
    assert process.returncode == code
    assert process.stderr.count("\n") == 1
    assert "--workdir" in process.stderr


@pytest.mark.parametrize("module", ["prunetrain", "prunetrain.main"])
def test_ctrl_c_while_modules_load_shows_no_traceback(module, tmp_path):
    # The signal comes while absl is being imported.
    (tmp_path / "absl").mkdir()
    (tmp_path / "absl" / "__init__.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\n"
    )
    process = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{tiny.ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    # Killed by the signal, which shells tell as 130.
    assert process.returncode == -signal.SIGINT
    assert process.stderr == ""


@pytest.mark.parametrize(
    ("problem", "shown"), [(KeyboardInterrupt, False), (ImportError, True)]
)
def test_what_tensorflow_says_while_it_starts_is_shown_only_if_it_fails(
    problem, shown, monkeypatch, tmp_path, capfd
):
    def fail():
        os.write(2, b"noise of the start\n")
        raise problem

    monkeypatch.setattr(tf.config, "list_logical_devices", fail)
    with contextlib.suppress(ImportError):
        main.main(["prunetrain", f"--workdir={tmp_path / 'run'}"])
    assert ("noise of the start" in capfd.readouterr().err) is shown


def test_a_mistake_in_the_code_is_shown_with_its_traceback(call, monkeypatch, tmp_path):
    def stop(*arguments, start):
        raise ZeroDivisionError

    monkeypatch.setattr(experiment, "run", stop)
    with pytest.raises(ZeroDivisionError):
        call(f"--workdir={tmp_path / 'run'}")


def test_the_command_without_a_module_exits_with_the_code_of_main(monkeypatch):
    monkeypatch.setattr("sys.argv", ["prunetrain", "--rounds=-1"])
    with contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as caught:
        main.console()
    assert caught.value.code == 2


def test_a_console_without_our_characters_gets_help_all_the_same():
    outcome = subprocess.run(
        [sys.executable, "-m", "prunetrain.main", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0
    assert "--prune_rate" in outcome.stdout
    assert outcome.stderr == ""


def as_the_installed_command(folder, *arguments):
    """Runs a script like the one that pip makes, from `folder`; returns the process."""
    script = folder / "bin" / "prunetrain"
    script.parent.mkdir()
    script.write_text("from prunetrain.__main__ import console\n\nconsole()\n")
    (folder / "my_models.py").write_text(
        """
import keras


def net(input_shape, num_classes, units):
    layers = [keras.Input(input_shape), keras.layers.Flatten()]
    layers += [keras.layers.Dense(units, "relu"), keras.layers.Dense(num_classes)]
    return keras.Sequential(layers)
"""
    )
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(tiny.ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_network_in_the_present_folder_is_found(processes, tmp_path):
    tiny.write_idx_dataset(tmp_path / "data")
    done = as_the_installed_command(
        tmp_path,
        *("--workdir=run", "--data_dir=data", "--validation_size=20", "--rounds=1"),
        *("--model=my_models:net", "--model_args=units=5", "--train_steps=3"),
        *("--replicates=2", f"--parallel_replicates={processes}"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = results.read_rows(tmp_path / "run")
    assert [row.weights_remaining for row in rows if not row.round] == [64 * 5 + 50] * 2


def test_wrong_arguments_of_a_network_are_one_line(tmp_path):
    tiny.write_idx_dataset(tmp_path / "data")
    done = as_the_installed_command(
        tmp_path,
        *("--workdir=run", "--data_dir=data", "--validation_size=20"),
        *("--model=my_models:net", "--model_args=unit=5"),
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    for fragment in ("--model_args=unit=5", "(input_shape, num_classes, units)"):
        assert fragment in done.stderr
