"""What is told before a run, against the run itself."""

import io

import pytest
import rich.console

import prunetrain as pt
from prunetrain import dry_run, main
from prunetrain.runs import progress
from tests import tiny

SETTINGS = {
    **{"dataset": "noise", "model": "net", "compile": "graph", "learning_rate": 0.05},
    **{"validation_size": 20, "batch_size": 8, "train_steps": 12, "eval_every": 4},
    **{"rounds": 2, "replicates": 2, "rewind_step": 4},
}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    tiny.register(monkeypatch)
    monkeypatch.setattr(dry_run, "_SECONDS", 0.05)


def settings(**changes):
    return pt.Config(**{**SETTINGS, **changes})


class Counting(progress.Silent):
    def __init__(self):
        super().__init__()
        self.num_steps = self.num_trainings = 0

    def advance(self, replicate, step, num_steps, last_step=None):
        self.num_steps += num_steps

    def begin(self, replicate, branch, round, kept):
        self.num_trainings += 1


@pytest.mark.parametrize(
    "changes",
    [
        {"controls": "reinit:2,supermask", "train_steps": 13, "rewind_step": 3},
        {"test_every": 8, "train_steps": 16, "rewind_step": 8},
        {"test_every": 4, "train_steps": 13, "rewind_step": 3},
        {"sparsities": "0.5,0.9"},
        {"sparsities": "0,0.5", "prune_at": "during", "rewind_step": 0},
    ],
)
def test_the_run_trains_and_prunes_what_the_dry_run_says(changes, tmp_path):
    changes = {**({"rounds": 15} if "sparsities" in changes else {}), **changes}
    config = settings(**changes)
    found, seen = dry_run.forecast(config), Counting()
    rows = pt.run(config, tmp_path, seen).rows
    assert (found.num_steps, found.num_trainings) == (
        seen.num_steps,
        seen.num_trainings,
    )
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert found.num_evaluations == len(lines)
    kept = [sum(layer.kept for layer in level) for level in found.levels]
    tickets = [r for r in rows if r.branch == "ticket" and r.replicate == 0]
    assert kept == [row.weights_remaining for row in tickets]
    assert found.seconds > 0 < found.disk


def test_a_round_that_prunes_nothing_is_told():
    found = dry_run.forecast(settings(prune_rate=0.001))
    assert len(found.levels) == 1
    assert any("no round after 0" in note for note in found.notes)


def test_a_layer_that_is_emptied_is_told():
    config = settings(sparsities="0.99", rounds=15, allocation="global")
    found = dry_run.forecast(config)
    empty = [layer.path for layer in found.levels[-1] if not layer.kept]
    assert empty
    assert any(empty[0] in note for note in found.notes)


def test_it_is_printed_within_80_columns_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = io.StringIO()
    console = rich.console.Console(file=text, width=80)
    dry_run.print_forecast(settings(eval_every=50), console)
    lines = text.getvalue().splitlines()
    assert "net/hidden/kernel" in text.getvalue()
    assert any(line.startswith("Not pruned: 2 variables (") for line in lines)
    assert any(line.startswith("Note: --eval_every=50 is more than") for line in lines)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("word", ["--dry_run=true", "--nodry_run", "-dry_run"])
def test_it_takes_no_value(word, capsys):
    assert main.main(["prunetrain", word]) == 2
    assert f"--dry_run takes no value. Received: {word}" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_line_takes_it_anywhere(tmp_path):
    result = tiny.command("--rounds=1", "--dry_run", "--train_steps=10", cwd=tmp_path)
    assert result.code == 0
    assert "2 trainings, 20 steps" in result.stdout
    assert not list(tmp_path.iterdir())
