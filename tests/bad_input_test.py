"""Every flag and every file with values that it cannot have, by the command line.

Whatever is wrong: exit code 2, one line on standard error that names the flag or the
file, what was received, the rule and a remedy; TensorFlow is not even started.
"""

import ast
import dataclasses
import gzip
import json
import os
import pathlib
import re
import struct
import warnings

import numpy as np
import pytest

from prunetrain import config as config_lib
from prunetrain import main
from prunetrain.config import SWITCH, Config
from prunetrain.runs import results, workdir
from tests import tiny, toys

FIELDS = {field.name: field for field in dataclasses.fields(Config)}
SWITCHES = {name for name, x in FIELDS.items() if x.metadata["choices"] is SWITCH}


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Runs a command line, which must be refused; returns the line that says why."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(*words, start=pytest.fail):
        monkeypatch.setattr(main, "_start_quietly", lambda *strategy: start())
        assert main.main(["prunetrain", *words]) == 2
        out, err = capsys.readouterr()
        assert err.startswith("prunetrain: ")
        assert err.endswith("\n")
        assert len(err.splitlines()) == 1
        assert len(err) < 2100
        if start is pytest.fail:
            assert out == ""
            assert not pathlib.Path("runs").exists()
        return err

    return run


# Flags

NO_INTEGERS = {
    "1.5": "must be a whole number",
    "": "must be a whole number",
    "many": "must be a whole number",
    "nan": "must be a whole number",
    "inf": "must be a whole number",
    "-inf": "must be a whole number",
    "1e3": "must be a whole number",
    "0x10": "must be a whole number",
    "-1": "must be a whole number from",
    "True": "must be a whole number",
    "1,000": "must be a whole number",
    "1\n2": "must be a whole number",
    "9" * 5000: "must be a whole number",
}
NO_LINES = {
    "a\nb": "a line of a flagfile",
    "a\x1b[2J": "a line of a flagfile",
    " a": "a line of a flagfile",
    "a\t": "a line of a flagfile",
    "a #b": "a line of a flagfile",
    '"a"': "a line of a flagfile",
    "'a'": "a line of a flagfile",
    "a\udcff": "a line of a flagfile",
    "a\u2028b": "a line of a flagfile",
}
NO_ARGUMENTS = {
    **dict.fromkeys(
        [
            *("0.9", "momentum", "momentum=", "a=1,a=2", "*a", "**a", "a=b.c", "a=b()"),
            *("a=1)+f(b=2", "a=1)(b=2", "a=[x for x in y]", "a=" + "[" * 5000),
            *("a=" + "-" * 50_000 + "1", "a=__import__('os').getcwd()", "a=1 b=2"),
        ],
        "must be name=value",
    ),
    **NO_LINES,
}
NO_PATTERNS = {
    **dict.fromkeys(["hidden_(", "*", "[", "a,(?P<"], "must hold regular expressions"),
    "a,a": "must name each only once",
    **NO_LINES,
}
RATE = "from 0 to below 1 (fraction of the weights that remain), for example 0.2"
# By field: what it cannot be, and how that is told.
VALUES = {
    "workdir": NO_LINES,
    "seed": {**NO_INTEGERS, str(2**32): "from 0 to 4294967295"},
    "replicates": {**NO_INTEGERS, "0": "from 1 to 10000", "10001": "from 1 to 10000"},
    "parallel_replicates": {**NO_INTEGERS, "0": "from 1 (processes)"},
    "checkpoint_every": dict.fromkeys(
        ["", "0", "0s", "-5", "60m", "1.5s", "s", "nan", "9" * 10, "٣"],
        "of seconds as in 60s or of steps",
    ),
    "compile": {"xlaa": "mean 'xla'", "": "must be one of auto, xla"},
    "strategy": {
        **{"mirored": "mean 'mirrored'", "": "must be one of none, mirrored"},
        **{"mirrored:0": "mirrored:N", "mirrored:x": "mirrored:N", "a:b": "one of"},
    },
    "steps_per_loop": {**NO_INTEGERS, "0": "from 1 (steps)"},
    "dataset": {
        **{"mnits": "mean 'mnist'", "": "must be one of", "tfds:": "or tfds:NAME"},
        **{".npz": "or a file *.npz", "a.npy": "or a file *.npz", "../x": "one of"},
    },
    "dataset_args": NO_ARGUMENTS,
    "augment": {"crops": "mean 'crop'", "flip,flip": "only once", **NO_LINES},
    "stream": {"alway": "mean 'always'", "": "must be one of auto"},
    "data_dir": NO_LINES,
    "task": {"class": "mean 'classes", "": "must be one of", "a:b": "must be one of"},
    "accuracy": {"byclass": "mean 'by_class", "": "must be one of", "none": "one of"},
    "scaling": {"units": "mean 'unit'", "": "must be one of unit, standard"},
    "validation_size": {**NO_INTEGERS, "0": "from 1 (examples)"},
    "model": {
        **{"lenet300": "mean 'lenet", "": "must be one of", "../x": "one of"},
        **{".keras": "or a file *.keras", "net.h5": "or a file *.keras"},
    },
    "model_args": NO_ARGUMENTS,
    "optimizer": {"adamm": "mean 'adam", "": "must be one of", "Adam": "mean 'adam'"},
    "precision": {"float23": "mean 'float", "": "must be one of", "int8": "one of"},
    "loss": {"mse": "must be one of", "": "must be one of", "a.b": "must be one of"},
    "loss_args": NO_ARGUMENTS,
    "optimizer_args": NO_ARGUMENTS,
    "learning_rate_schedule": {"consine": "mean 'cosine'", "": "must be one of"},
    "learning_rate_schedule_args": NO_ARGUMENTS,
    "warmup_steps": NO_INTEGERS,
    "learning_rate": dict.fromkeys(
        ["0", "-1", "nan", "inf", "1e999", "", "fast", "1,5"],
        "must be a finite number above 0",
    ),
    "batch_size": {**NO_INTEGERS, "0": "from 1 (examples)"},
    "train_steps": {**NO_INTEGERS, "0": "from 1 (steps)"},
    "eval_every": {**NO_INTEGERS, "0": "from 1 (steps)"},
    "only": dict.fromkeys(["5", "1-0", "a", "0:nothing"], "must "),
    "tensorboard": {"": "must be one of off, on", "true": "must be one of off, on"},
    "test_every": {**NO_INTEGERS, "150": "must be 0 or a multiple of eval_every=100"},
    "rounds": {**NO_INTEGERS, "10001": "from 0 to 10000"},
    "prune_rate": dict.fromkeys(
        ["20", "1", "1.0", "-0.1", "nan", "inf", "", "20%", "a fifth"], RATE
    ),
    "layer_rates": {
        **dict.fromkeys(
            ["output", "=0.1", "output=", "output=x", "output=1", "output=nan"],
            "must be PATTERN=RATE",
        ),
        "a=0.1,a=0.1": "must name each only once",
        "a=0.1,a=0.2": "must name each pattern only once",
        **NO_LINES,
    },
    "criterion": {"magnitud": "mean 'magnitude'", "": "must be one of"},
    "allocation": {"layer": "mean 'layerwise'", "": "must be one of"},
    "criterion_batches": {
        **{**NO_INTEGERS, "0": "from 1 to 1000 (batches)"},
        "1001": "from 1 to 1000 (batches)",
    },
    "pattern": {
        **{"elements": "mean 'element'", "": "must be one of", "2:4:8": "N:M"},
        **{"4:2": "N:M (N below M)", "0:4": "N:M", "block_4": "block_HxW"},
    },
    "prune_iterations": {**NO_INTEGERS, "10001": "from 0 to 10000 (steps)"},
    "min_kept": NO_INTEGERS,
    "prune_include": NO_PATTERNS,
    "prune_exclude": NO_PATTERNS,
    "rewind_step": NO_INTEGERS,
    "sparsities": {
        **dict.fromkeys(
            ["20", "1", "1.0", "-0.1", "nan", "inf", "20%", "half"],
            "from 0 to below 1 (fraction of all prunable weights), for example 0.2",
        ),
        **{"0.5,0.5": "only once", "0.8,0.5": "must rise"},
    },
    "sparsity_schedule": {"cubik": "mean 'cubic'", "": "must be one of", "a": "one of"},
    "mask_updates": {
        "rigll": "mean 'rigl'",
        "": "must be",
        "gradual": "must be one of",
    },
    "drop_fraction": dict.fromkeys(
        ["30", "1", "-0.1", "nan", "inf", "30%", "half", ""],
        "from 0 to below 1 (fraction of the weights that remain), for example 0.2",
    ),
    "update_every": {**NO_INTEGERS, "0": "from 1 (steps)"},
    "update_begin": NO_INTEGERS,
    "update_end": NO_INTEGERS,
    "prune_at": {"ende": "mean 'end'", "": "must be one of end, init"},
    "rewind": {
        **{"lotery": "mean 'lottery'", "": "must begin with one of late", **NO_LINES},
        **dict.fromkeys(
            ["late,weights", "late,weights=now", "late,slots=end,slots=init"],
            "must be PRESET,part=source,… with each part once",
        ),
    },
    "control_rounds": {
        **{x: "a list, each of it a whole number" for x in NO_INTEGERS if x},
        **{"0": "from 1 (round)", "1,1": "only once", "16": "from 1 to rounds=15"},
        "1,000": "from 1 (round)",
    },
    "controls": {
        **{"reinnit": "mean 'reinit'", "reinit,reinit": "only once", **NO_LINES},
        **{"reinit:0": "with 1 to 1000 draws", "reinit:x": "with 1 to 1000 draws"},
        "supermask:2": "the same at each draw",
    },
}
PAIRS = {
    "rewind_step": ["--rewind_step=60", "--train_steps=60"],
    "layer_rates": ["--layer_rates=output=0.1", "--allocation=global"],
    "precision": ["--precision=bfloat16", "--model=net.keras"],
    "rounds": ["--rounds=3", "--sparsities=0.5,0.8"],
    "prune_rate": ["--prune_rate=0.3", "--sparsities=0.5,0.8"],
    "rewind": ["--rewind=finetune", "--prune_at=init"],
    "control_rounds": ["--control_rounds=4", "--rounds=3"],
    "parallel_replicates": ["--parallel_replicates=2", "--strategy=mirrored:2"],
    "workdir": ["--workdir=", "--strategy=multiworker"],
}


def cases(table):
    return [
        pytest.param(name, value, rule, id=f"{name}={value[:20]!r}")
        for name, values in table.items()
        for value, rule in values.items()
    ]


def test_every_setting_has_bad_values_here():
    assert set(VALUES) == set(FIELDS)


@pytest.mark.parametrize(("name", "value", "rule"), cases(VALUES))
def test_a_bad_value_is_told_with_flag_value_rule_and_remedy(
    name, value, rule, refused
):
    line = refused(f"--{name}={value}")
    start = re.split("[,=]", value)[0].encode("unicode_escape").decode()[:20]
    assert f" --{name}=" in line
    assert start in line or not value.isascii() or value == "1e999"
    assert rule in line
    assert "See --help" in line


@pytest.mark.parametrize("name", PAIRS)
def test_values_that_do_not_go_together_are_told_with_both(name, refused):
    one, other = PAIRS[name]
    line = refused(one, other)
    assert one in line
    assert other.split("=")[1] in line


@pytest.mark.parametrize("name", [x for x in FIELDS if x not in SWITCHES])
def test_a_flag_without_a_value_is_told(name, refused):
    assert f"--{name} needs a value" in refused(f"--{name}", "--seed=3")


@pytest.mark.parametrize("name", FIELDS)
def test_a_misspelt_flag_is_answered_with_the_nearest(name, refused):
    line = refused(f"--{name}x=1")
    assert f"'{name}x'" in line
    assert f"mean: {name}" in line


@pytest.mark.parametrize(
    "words",
    [
        ["false"],
        ["--rounds=3", "false"],
        ["--rounds=3", "and", "so", "on"],
        ["-", "--rounds=3"],
        ["--"],
        ["--", "--rounds=3"],
        ["---rounds=3"],
        ["--=3"],
        ["--norounds"],
        ["--undefok=rouns", "--rouns=3"],
        ["--undefok", "rouns"],
        ["--" + "x" * 2000 + "=1"],
        ["x" * 2000],
        [""],
    ],
)
def test_what_is_no_flag_is_refused_and_not_passed_over(words, refused):
    assert "--" in refused(*words)


def test_a_number_that_python_does_not_write_is_refused_all_the_same():
    with toys.raises(config_lib.ConfigError, "`seed`", "too long to write"):
        Config(seed=10**5000)


@pytest.mark.parametrize("value", ["run#3", "größe", "a  b", "it's", '"a', "a\u00a0b"])
def test_a_text_that_is_accepted_comes_back_from_a_flagfile(value, tmp_path):
    file = tmp_path / "flags.txt"
    given = Config(data_dir=value)
    file.write_text(workdir.as_flags(given.as_dict()))
    assert main.parse(["prunetrain", f"--flagfile={file}"]) == given


# Folders


@pytest.mark.parametrize("flag", ["--workdir", "--data_dir"])
@pytest.mark.parametrize(
    "folder", ["file", "file/below", "a" * 300, "~nobody-of-this-name/x"]
)
def test_a_folder_that_cannot_be_is_told(flag, folder, refused, tmp_path):
    (tmp_path / "file").touch()
    words = [f"{flag}={folder}"]
    if flag == "--data_dir":
        line = refused(*words, f"--workdir={tmp_path / 'run'}", start=lambda: None)
    else:
        line = refused(*words)
    assert f"`{flag[2:]}` must be a folder" in line
    assert folder in line


# Files of a dataset


def rewrite(name, change):
    """A damage: the dataset's file with its content changed."""

    def damage(folder):
        file = folder / tiny.IDX_NAMES[name]
        file.write_bytes(change(file.read_bytes()))

    return damage


def replaced(name, array):
    return rewrite(name, lambda content: tiny.idx_bytes(np.asarray(array, np.uint8)))


def remove(folder):
    (folder / tiny.IDX_NAMES["x_test"]).unlink()


def make_folder(folder):
    remove(folder)
    (folder / tiny.IDX_NAMES["x_test"]).mkdir()


def pack(change):
    """A damage of a gzipped file."""

    def damage(folder):
        file = folder / tiny.IDX_NAMES["x_train"]
        content = change(file.read_bytes())
        file.unlink()
        file.with_name(f"{file.name}.gz").write_bytes(content)

    return damage


def nothing(folder):
    pass


TWO = np.arange(120) % 2
DATASETS = {
    "missing": (remove, ["t10k-images-idx3-ubyte", "does not exist", "--data_dir"]),
    "a folder": (make_folder, ["t10k-images-idx3-ubyte", "is no file"]),
    "empty": (rewrite("x_train", lambda x: b""), ["train-images", "nothing"]),
    "half": (
        rewrite("x_train", lambda x: x[: len(x) // 2]),
        ["train-images", "announces 7,680 bytes", "holds 3,832", "Get it again"],
    ),
    "longer": (rewrite("y_test", lambda x: x + b"0"), ["t10k-labels", "holds more"]),
    "no magic": (
        rewrite("x_test", lambda x: b"GIF8" + x[4:]),
        ["starts with 47494638"],
    ),
    "floats": (
        rewrite("x_test", lambda x: b"\0\0\x0d\3" + x[4:]),
        ["starts with 00000d03, not 00000803"],
    ),
    "labels for images": (replaced("x_test", TWO), ["starts with 00000801"]),
    "images for labels": (
        replaced("y_test", np.zeros((40, 8, 8))),
        ["t10k-labels", "starts with 00000803, not 00000801"],
    ),
    "a header beyond all": (
        rewrite("x_test", lambda x: x[:4] + struct.pack(">3I", *[2**32 - 1] * 3)),
        ["t10k-images", "holds 0"],
    ),
    "a header of nothing times all": (
        rewrite(
            "x_test", lambda x: x[:4] + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 0)
        ),
        ["t10k-images", "Get it again"],
    ),
    "no gzip": (pack(lambda x: x), ["train-images-idx3-ubyte.gz", "gzip"]),
    "half a gzip": (pack(lambda x: gzip.compress(x)[:2000]), [".gz", "Get it again"]),
    "a bomb": (
        pack(lambda x: gzip.compress(x[:4] + struct.pack(">3I", *[2**11] * 3))),
        [".gz", "announces 8,589,934,592 bytes"],
    ),
    "fewer labels": (
        replaced("y_train", TWO[:119]),
        ["as many labels as images", "120 training images and 119 labels"],
    ),
    "fewer images": (
        replaced("x_test", np.zeros((39, 8, 8))),
        ["39 test images and 40 labels"],
    ),
    "no examples": (
        lambda folder: [
            replaced("x_test", np.zeros((0, 8, 8)))(folder),
            replaced("y_test", np.zeros(0))(folder),
        ],
        ["at least one", "0 test images"],
    ),
    "images of no size": (
        replaced("x_train", np.zeros((120, 8, 0))),
        ["images", "(8, 0, 1)"],
    ),
    "images of two sizes": (
        replaced("x_test", np.zeros((40, 8, 9))),
        ["all of one size", "test images of (8, 9, 1)", "(8, 8, 1)"],
    ),
    "labels too high": (
        replaced("y_train", TWO + 9),
        ["from 0 to 9", "labels from 9 to 10"],
    ),
    "labels from one": (replaced("y_train", 1 + np.arange(120) % 10), ["subtract 1"]),
    "one class": (
        replaced("y_train", np.full(120, 3)),
        ["two classes", "results say nothing", "120 training examples", "all of 3"],
    ),
    "one class to test": (replaced("y_test", np.zeros(40)), ["40 test examples"]),
    "fewer than a batch": (nothing, ["--batch_size=101", "100 training examples"]),
}


@pytest.mark.parametrize("case", DATASETS)
def test_a_bad_dataset_is_told_with_the_file_and_what_is_wrong(case, refused, tmp_path):
    damage, fragments = DATASETS[case]
    tiny.write_idx_dataset(tmp_path / "data")
    damage(tmp_path / "data")
    line = refused(
        *(f"--data_dir={tmp_path / 'data'}", f"--workdir={tmp_path / 'run'}"),
        *("--validation_size=20", "--batch_size=101", "--train_steps=1"),
        start=lambda: None,
    )
    for fragment in fragments:
        assert fragment in line
    assert str(tmp_path / "data") in line or "--batch_size" in line


@pytest.mark.parametrize("size", [120, 10**6])
def test_no_example_left_to_train_on_is_told(size, refused, tmp_path):
    tiny.write_idx_dataset(tmp_path / "data")
    line = refused(
        *(f"--data_dir={tmp_path / 'data'}", f"--workdir={tmp_path / 'run'}"),
        f"--validation_size={size}",
        start=lambda: None,
    )
    assert "from 1 to 119, the training examples less one; a tenth would be 12" in line


@pytest.mark.parametrize("method", ["is_dir", "is_file"])
def test_a_dataset_that_may_not_be_read_is_told(method, refused, tmp_path, monkeypatch):
    # By a patch, since nothing is forbidden to root.
    tiny.write_idx_dataset(tmp_path / "data")
    own = getattr(pathlib.Path, method)

    def refuse(path):
        if path.is_relative_to(tmp_path / "data"):
            raise PermissionError(13, "Permission denied", str(path))
        return own(path)

    monkeypatch.setattr(pathlib.Path, method, refuse)
    line = refused(
        *(f"--data_dir={tmp_path / 'data'}", f"--workdir={tmp_path / 'run'}"),
        start=lambda: None,
    )
    assert "Permission denied" in line
    assert str(tmp_path / "data") in line


# Files of a work directory

HEADER = ",".join(field.name for field in dataclasses.fields(results.Row))
ROW = ",".join(map(str, dataclasses.astuple(tiny.row())))
DEEP = b"[" * 100_000
LONG = b"9" * 5000
RUN_FILES = {
    "config.json": [
        *(b"", b"{", b"[1]", b"null", b"\xff\xfe{}", b'{"seed": ' + DEEP, DEEP),
        *(b'{"seed": ' + LONG + b"}", b'{"seed": 1e999}', b"\0" * 100, b"{" * 10**6),
    ],
    "results.csv": [
        *(b"", b"\xff\xfe", b"replicate,branch\n0,ticket\n", b"\0\0\0\n"),
        f"{HEADER}\n{ROW[:30]}\n".encode(),
        f"{HEADER}\n{ROW},1\n".encode(),
        f"{HEADER}\n{ROW}\n{ROW}\n".encode(),
        f"{HEADER}\n{ROW.replace('ticket', '../ticket')}\n".encode(),
        f"{HEADER}\n{ROW.replace('100', '-1')}\n".encode(),
        f"{HEADER}\n{ROW.replace('100', '9' * 30)}\n".encode(),
        f"{HEADER}\n{ROW.replace('0.75', 'nan')}\n".encode(),
        f"{HEADER}\n{ROW.replace('0.75', '75')}\n".encode(),
        f"{HEADER}\n{ROW.replace('ticket', 't' * 10**6)}\n".encode(),
    ],
    "metrics.jsonl": [
        *(b"{\n", b"\n", b"[1]\n", b"{}\n", b"\xff\n", DEEP + b"\n", LONG + b"\n"),
        b'{"replicate": "0", "branch": "ticket", "round": 0}\n',
        b'{"replicate": true, "branch": "ticket", "round": 0}\n',
        b'{"replicate": 0, "branch": ["ticket"], "round": 0}\n',
        b'{"replicate": 0, "branch": "ticket", "round": 0.5}\n',
        b'{"replicate": 0, "branch": "ticket", "round": ' + LONG + b"}\n",
    ],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param(name, content, id=f"{name}-{number}")
        for name, contents in RUN_FILES.items()
        for number, content in enumerate(contents)
    ],
)
def test_a_bad_file_in_a_work_directory_is_told(name, content, refused, tmp_path):
    directory = workdir.WorkDirectory(tmp_path / "run", Config().as_dict())
    directory.add_row(tiny.row())
    directory.add_metrics(replicate=0, branch="ticket", round=0)
    (tmp_path / "run" / name).write_bytes(content)
    # Else it would be refused unread.
    (tmp_path / "run" / "SHA256SUMS").unlink()
    line = refused(f"--workdir={tmp_path / 'run'}")
    if b"1e999" in content:
        assert "seed: inf there, 0 here" in line
    else:
        assert f"{tmp_path / 'run' / name} is missing or damaged" in line
    assert "another --workdir" in line


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_folder_where_a_file_should_be_is_told(name, refused, tmp_path):
    directory = workdir.WorkDirectory(tmp_path / "run", Config().as_dict())
    directory.add_row(tiny.row())
    directory.add_metrics(replicate=0, branch="ticket", round=0)
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / name).mkdir()
    line = refused(f"--workdir={tmp_path / 'run'}")
    assert str(tmp_path / "run") in line


POSITIONS = [
    *(None, [], {}, {"step": 1}, {"step": "1", "metrics": []}),
    *({"step": 1, "metrics": 5}, {"step": 1, "metrics": [5]}),
    {"step": 1, "metrics": [{"replicate": 1, "branch": "ticket", "round": 0}]},
]


@pytest.mark.parametrize("position", POSITIONS)
def test_a_position_that_sums_vouch_for_is_believed_no_more(
    position, refused, tmp_path
):
    directory = workdir.WorkDirectory(tmp_path / "run", Config().as_dict())
    directory.add_metrics(replicate=0, branch="ticket", round=0)
    key = 0, "ticket", 0
    directory.save_checkpoint(key, Nothing(), position)
    line = refused(f"--workdir={tmp_path / 'run'}")
    assert "replicate0-ticket-round00-resume is missing or damaged" in line


class Nothing:
    """A state that writes no file."""

    def write(self, prefix):
        pass


@pytest.mark.parametrize("content", [b"", b"one\n", b"\xff", LONG, b"1.5\n"])
def test_a_bad_end_of_a_replicate_is_told(content, refused, tmp_path):
    run = tmp_path / "run"
    workdir.WorkDirectory(run, Config().as_dict())
    (run / "tickets" / "replicate0-ends.txt").write_bytes(content)
    line = refused(f"--workdir={run}", start=lambda: None)
    assert f"{run / 'tickets' / 'replicate0-ends.txt'} is missing or damaged" in line


@pytest.mark.parametrize("content", [b"", b"{", b"[]", DEEP, b'{"compile_mode": 5}'])
def test_a_bad_environment_is_told(content, refused, tmp_path):
    directory = workdir.WorkDirectory(tmp_path / "run", Config().as_dict())
    directory.add_metrics(replicate=0, branch="ticket", round=0)
    file = tmp_path / "run" / "environment.json"
    file.write_bytes(content)
    line = refused(f"--workdir={tmp_path / 'run'}", start=lambda: None)
    assert f"{file} is" in line
    assert "damaged" in line


def test_names_in_checkpoints_that_only_look_like_numbers_are_left_alone(tmp_path):
    run = tmp_path / "run"
    directory = workdir.WorkDirectory(run, Config().as_dict())
    directory.add_metrics(replicate=0, branch="ticket", round=0)
    for name in ("²", "٣", "007", "0"):
        folder = run / "checkpoints" / "replicate0-ticket-round00-resume" / name
        folder.mkdir(parents=True)
    again = workdir.WorkDirectory(run, Config().as_dict())
    assert again.position((0, "ticket", 0)) is None


# Flagfiles


FLAGFILES = {
    "a byte-order mark": "\ufeff--rounds=3\n",
    "utf-16": "--rounds=3\n".encode("utf-16"),
    "latin-1": "--data_dir=Größe\n".encode("latin-1"),
    "no dashes": "rounds=3\n",
    "value as a word": "--rounds 3\n",
    "a boolean and a word": "--some_bool false\n",
    "a note": "--rounds=3 # a note\n",
    "a note after a tab": "--rounds=3\t# a note\n",
    "double quotes": '--data_dir="a folder"\n',
    "single quotes": "--data_dir='a folder'\n",
    "a space before the value": "--rounds= 3\n",
    "a null": "--data_dir=a\0\n",
    "old ends of lines": "--rounds=3\r--seed=4\r",
    "a flag twice": "--rounds=3\n--seed=4\n--rounds=3\n",
    "undefok": "--undefok=rouns\n--rouns=3\n",
    "an unknown flag": "--rouns=3\n",
    "a bad value": "--rounds=-3\n",
    "itself": "--flagfile=some.flags\n",
    "a circle": "--flagfile=other.flags\n",
    "nothing": "--flagfile=\n",
    "a missing one": "--flagfile=none.flags\n",
    "a folder": "--flagfile=.\n",
    "a long line": "x" * 10**5,
    "a long name": f"--{'x' * 2000}=1\n",
    "a long value": f"--rounds={'9' * 10**5}\n",
    "too much": "#" * (2**20 + 1),
    "a device": "--flagfile=/dev/zero\n",
}


@pytest.mark.parametrize("case", FLAGFILES)
def test_a_bad_flagfile_is_told(case, refused, tmp_path):
    content = FLAGFILES[case]
    content = content.encode() if isinstance(content, str) else content
    (tmp_path / "some.flags").write_bytes(content)
    (tmp_path / "other.flags").write_text("--flagfile=some.flags\n")
    line = refused(f"--flagfile={tmp_path / 'some.flags'}")
    if case not in ("undefok", "an unknown flag", "a bad value", "a long value"):
        assert "--flagfile" in line
        assert str(tmp_path) in line or case == "a device"


@pytest.mark.parametrize("name", ["", ".", "none.flags", "a" * 300, "/dev/zero"])
def test_what_is_no_flagfile_is_told(name, refused):
    assert "--flagfile" in refused(f"--flagfile={name}")


@pytest.mark.parametrize("words", [[], ["--seed=5"]])
def test_a_flagfile_may_name_others_beside_it(words, tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "a.flags").write_text("--rounds=3\n--flagfile=b.flags\n")
    (tmp_path / "base" / "b.flags").write_text("--seed=4\n--train_steps=7\r\n")
    (tmp_path / "my.flags").write_text(
        "\t--flagfile=base/a.flags\n\n// note\n--rounds=2"
    )
    monkeypatch.chdir(tmp_path / "base")
    parsed = main.parse(["prunetrain", *words, "--flagfile", "../my.flags"])
    seed = 5 if words else 4
    assert parsed == Config(rounds=2, seed=seed, train_steps=7)


def test_a_hundred_flagfiles_are_read_and_not_more(tmp_path):
    for number in range(101):
        file = tmp_path / f"{number}.flags"
        file.write_text(f"--flagfile={number - 1}.flags\n" if number else "--seed=4\n")
    assert main.parse(["", f"--flagfile={tmp_path / '99.flags'}"]).seed == 4
    with toys.raises(main.InputError, "100 in all"):
        main.parse(["", f"--flagfile={tmp_path / '100.flags'}"])


# Data is never code


RUNS_CODE = {
    *("pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"),
    *("tarfile", "yaml", "eval", "exec", "__import__", "extractall", "unpack_archive"),
    *("load_model", "allow_pickle", "enable_unsafe_deserialization", "system"),
}
# What a user names as package.module:function runs by design; the others are ours.
IMPORTERS = {
    *(
        "__init__.py",
        "registry.py",
        "lazy.py",
        "commands.py",
        "data/__init__.py",
        "models/__init__.py",
        "pruning/criteria/__init__.py",
    ),
}


def names_in(file):
    """Every name that a file imports, calls or passes by."""
    for node in ast.walk(ast.parse(file.read_text())):
        for field in ("id", "attr", "arg", "module", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield from name.split(".")


def test_nothing_in_the_package_runs_what_a_file_holds():
    package = tiny.ROOT / "prunetrain"
    found = {
        str(x.relative_to(package)): set(names_in(x)) for x in package.rglob("*.py")
    }
    assert "frombuffer" in found["runs/tickets.py"]
    # In Keras's safe mode, which loads no function and no class of somebody else's.
    found["models/__init__.py"].remove("load_model")
    assert "safe_mode=True" in (package / "models" / "__init__.py").read_text()
    assert not {name: x & RUNS_CODE for name, x in found.items() if x & RUNS_CODE}
    importers = {name for name, x in found.items() if "import_module" in x}
    assert importers <= IMPORTERS


# As a user meets them: processes of their own


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["--seed=9" + "9" * 5000], ["--seed=9", "from 0 to 4294967295"]),
        (["--data_dir=a\nb"], ["--data_dir=a\\nb", "a line of a flagfile"]),
        (["--flagfile=/dev/zero"], ["--flagfile=/dev/zero", "1,048,576"]),
        ([os.fsdecode(b"--data_dir=\xff")], ["--data_dir=\\udcff"]),
        (["--rounds=3", "false"], ["'false'", "--name=value"]),
    ],
)
def test_a_process_answers_at_once_in_one_line(words, fragments, tmp_path):
    outcome = tiny.command(*words, cwd=tmp_path, trace_imports=True)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("prunetrain: ")
    assert outcome.stderr.count("\n") == 1
    for fragment in fragments:
        assert fragment in outcome.stderr
    assert "tensorflow" not in outcome.modules
    assert json.dumps(os.listdir(tmp_path)) == "[]"


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["--data_dir=nowhere"], ["`data_dir`", "nowhere"]),
        (["--batch_size=60000"], ["--batch_size=60000", "55000 training examples"]),
        (["--validation_size=60000"], ["validation_size=60000", "1 to 59999"]),
        (["--dataset=none.npz", "--parallel_replicates=2"], ["none.npz"]),
    ],
)
def test_a_mistake_about_the_data_is_told_before_tensorflow_is_loaded(
    words, fragments, tmp_path
):
    outcome = tiny.command(*words, cwd=tmp_path, trace_imports=True)
    assert (outcome.code, outcome.stderr.count("\n")) == (2, 1)
    for fragment in fragments:
        assert fragment in outcome.stderr
    assert not {"tensorflow", "keras"} & set(outcome.modules)
