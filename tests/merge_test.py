"""Runs in parts: processes of their own train them, merged they are one run."""

import concurrent.futures

import pytest

import prunetrain as pt
from prunetrain import errors, experiment, main, merge
from prunetrain.runs import progress, results
from tests import tiny, toys
from tests.worker_test import left

SETTINGS = {
    **{"dataset": "noise", "model": "net", "compile": "graph", "learning_rate": 0.05},
    **{"validation_size": 20, "batch_size": 8, "train_steps": 8, "eval_every": 4},
    **{"rounds": 2, "controls": "reinit:2", "replicates": 2, "rewind_step": 3},
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    with pytest.MonkeyPatch.context() as patch:
        tiny.register(patch)
        yield


def train(path, **changes):
    return pt.run(pt.Config(**{**SETTINGS, **changes}), path, progress.Silent())


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    path = tmp_path_factory.mktemp("serial")
    train(path)
    return path


def whole(path):
    """What is in the folder itself, less its settings' place."""
    return {name: x for name, x in left(path).items() if not name.startswith("parts")}


PARTS = {
    "replicates": ["0", "1"],
    "branches": ["0:ticket", "0:reinit", "0:reinit_2", "1:ticket", "1"],
    "tickets first": ["0-1:ticket", "0-1"],
}


@pytest.mark.parametrize("only", PARTS.values(), ids=PARTS)
def test_parts_merged_are_the_files_of_one_process(only, serial, tmp_path):
    added = 0
    for part in only:
        train(tmp_path, only=part)
        more, _ = merge.merge(tmp_path)
        added += more
    assert added == len(results.read_rows(serial)) == 14
    assert merge.merge(tmp_path) == (0, 0)
    assert whole(tmp_path) == left(serial)
    # A run like any other: nothing is left to train.
    assert len(train(tmp_path).rows) == 14


def test_a_part_trains_only_what_is_its_own(tmp_path):
    rows = train(tmp_path, only="1:ticket").rows
    assert [row.key for row in rows] == [(1, "ticket", round) for round in range(3)]
    rows = train(tmp_path, only="1:reinit_2").rows
    assert [row.key for row in rows] == [(1, "reinit_2", round) for round in (1, 2)]
    folders = {file.name for file in (tmp_path / "parts").iterdir()}
    assert folders == {"1-ticket", "1-reinit_2"}
    assert merge.merge(tmp_path) == (5, 9)
    written = [row.key for row in results.read_rows(tmp_path)]
    assert written == [
        *((1, "ticket", 0), (1, "ticket", 1), (1, "reinit_2", 1)),
        *((1, "ticket", 2), (1, "reinit_2", 2)),
    ]


def test_a_part_that_was_cut_off_goes_on(serial, tmp_path):
    class Cut(progress.Silent):
        def evaluated(self, replicate, evaluation, train_loss):
            if evaluation.step == 8:
                raise KeyboardInterrupt

    train(tmp_path, only="0:ticket")
    for display in (Cut(), Cut(), progress.Silent()):
        config = pt.Config(**{**SETTINGS, "only": "0:reinit", "checkpoint_every": "4"})
        try:
            pt.run(config, tmp_path, display)
        except KeyboardInterrupt:
            # The checkpoint of a control, whose ticket's rows are elsewhere, is kept.
            assert list((tmp_path / "parts").glob("*/checkpoints/*resume/*"))
    merge.merge(tmp_path)
    expected = [x for x in results.read_rows(serial) if x.key[:2] == (0, "reinit")]
    found = [x for x in results.read_rows(tmp_path) if x.key[:2] == (0, "reinit")]
    for row, other in zip(expected, found, strict=True):
        assert row.key == other.key
        assert row.test_loss == other.test_loss


def test_a_control_without_its_ticket_says_what_to_train_first(tmp_path):
    with toys.raises(
        errors.InputError, "tickets/replicate0-round01.npz", "--only=0:ticket"
    ):
        train(tmp_path, only="0:reinit")


def test_parts_of_two_runs_are_refused_before_they_leave_anything(tmp_path):
    train(tmp_path, only="0", rounds=1)
    with toys.raises(
        errors.InputError, "parts/0 holds a run of other settings", "learning_rate: "
    ):
        train(tmp_path, only="1", rounds=1, learning_rate=0.01)
    assert not (tmp_path / "parts" / "1").exists()


def test_parts_with_other_rounds_are_not_joined(tmp_path):
    train(tmp_path, only="0", rounds=1)
    train(tmp_path, only="1", rounds=2)
    with toys.raises(errors.InputError, "parts/1 is a part of another run", "rounds: "):
        merge.merge(tmp_path)
    assert not (tmp_path / "results.csv").exists()


def damage_lines(part):
    file = part / "metrics.jsonl"
    file.write_text(file.read_text().replace('"loss": ', '"loss": 1', 1))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (damage_lines, "metrics.jsonl"),
        (lambda part: (part / "metrics.jsonl").write_bytes(b"\xff\n"), "metrics"),
        (lambda part: (part / "metrics.jsonl").write_text("[]\n"), "metrics"),
        (lambda part: (part / "metrics.jsonl").write_text("{}\n"), "metrics"),
        (lambda part: (part / "metrics.jsonl").write_text(""), "metrics"),
        (lambda part: (part / "metrics.jsonl").unlink(), "metrics"),
        (lambda part: (part / "tickets/replicate0-round01.npz").unlink(), "tickets"),
        (
            lambda part: (
                part / "checkpoints/replicate0-reinit-round01.weights.h5"
            ).unlink(),
            "reinit-round01",
        ),
        (lambda part: (part / "environment.json").write_text("{"), "environment"),
        (lambda part: (part / "config.json").write_text("[]"), "config.json"),
    ],
)
def test_what_a_part_has_lost_is_named_and_not_taken(damage, named, tmp_path):
    train(tmp_path, only="0", rounds=1)
    damage(tmp_path / "parts" / "0")
    with toys.raises(errors.InputError, named, "damaged"):
        merge.merge(tmp_path)
    assert not results.read_rows(tmp_path)


def test_a_stopped_part_tells_the_folder_in_common(tmp_path, monkeypatch, capsys):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run", stop)
    words = [f"--{name}={value}" for name, value in SETTINGS.items()]
    words += ["--only=0:ticket", f"--workdir={tmp_path / 'run'}"]
    assert main.main(["prunetrain", *words]) == 130
    told = capsys.readouterr().err
    flagfile = tmp_path / "run" / "parts" / "0-ticket" / "flags.txt"
    assert told.rstrip().endswith(f"--flagfile={flagfile} --workdir={tmp_path / 'run'}")
    assert "--only=0:ticket" in flagfile.read_text()


def test_a_damaged_part_is_named_and_nothing_of_it_is_taken(tmp_path):
    train(tmp_path, only="0", rounds=1)
    file = tmp_path / "parts" / "0" / "tickets" / "replicate0-round01.npz"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with toys.raises(errors.InputError, str(file), "damaged"):
        merge.merge(tmp_path)
    assert not results.read_rows(tmp_path)


@pytest.mark.parametrize(
    ("only", "fragments"),
    [
        ("2", ["below replicates=2"]),
        ("1-0", ["below replicates=2"]),
        ("0-2", ["below replicates=2"]),
        ("a", ["below replicates=2", "0-4"]),
        ("-1", ["below replicates=2"]),
        ("0:", ["below replicates=2"]),
        ("0:other", ["ticket, reinit, reinit_2"]),
    ],
)
def test_what_is_no_part_is_told(only, fragments):
    with toys.raises(errors.InputError, f"only={only!r}", *fragments):
        pt.Config(**{**SETTINGS, "only": only})


def test_a_finished_part_says_how_to_join_them(tmp_path, capsys):
    words = [f"--{name}={value}" for name, value in SETTINGS.items()]
    words += ["--only=0:ticket", f"--workdir={tmp_path}"]
    assert main.main(["prunetrain", *words]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"A part of {tmp_path}; to join them: prunetrain merge {tmp_path}"


def test_a_part_needs_a_folder_in_common(capsys):
    assert main.main(["prunetrain", "--only=0"]) == 2
    assert "--only=0: needs a --workdir" in capsys.readouterr().err


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: (path / "parts").mkdir()]
)
def test_nothing_to_merge_is_told(make, tmp_path, capsys):
    make(tmp_path)
    assert main.main(["prunetrain", "merge", str(tmp_path)]) == 2
    assert "has no parts to merge" in capsys.readouterr().err
    assert not (tmp_path / "config.json").exists()


@pytest.mark.slow
def test_four_processes_at_once_leave_the_rows_of_one(tmp_path):
    words = ["--train_steps=40", "--eval_every=20", "--rounds=2", "--controls=reinit"]
    words += ["--replicates=4", "--validation_size=58000"]
    outcome = tiny.command(*words, f"--workdir={tmp_path}/serial", cwd=tmp_path)
    assert outcome.code == 0, outcome.stderr
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        run = [
            pool.submit(
                tiny.command,
                *(*words, f"--workdir={tmp_path}/parts", f"--only={replicate}"),
                cwd=tmp_path,
            )
            for replicate in range(4)
        ]
    assert [x.result().code for x in run] == [0] * 4, [x.result().stderr for x in run]
    assert main.main(["prunetrain", "merge", f"{tmp_path}/parts"]) == 0
    ours, theirs = (
        [{**vars(row), "train_seconds": 0} for row in results.read_rows(folder)]
        for folder in (tmp_path / "parts", tmp_path / "serial")
    )
    assert len(theirs) == 4 * 5
    assert ours == theirs
