"""The report's sections on tickets, on a small run and worked out by hand."""

import dataclasses
import shutil

import numpy as np
import pytest

import prunetrain as pt
from prunetrain import main
from prunetrain.analysis import page, plots, reading, sections
from prunetrain.analysis.sections import outcomes, tickets
from prunetrain.runs import barriers, progress, results
from tests import tiny

SETTINGS = {
    **{"dataset": "noise", "model": "net", "compile": "graph", "learning_rate": 0.05},
    **{"validation_size": 20, "batch_size": 8, "train_steps": 8, "eval_every": 4},
    **{"rounds": 2, "controls": "reinit", "replicates": 3, "prune_rate": 0.5},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        tiny.register(patch)
        path = tmp_path_factory.mktemp("tickets") / "run"
        pt.run(pt.Config(**SETTINGS), path, progress.Silent())
        yield path


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def opened(path):
    return reading.Run(path, levels=(100, 50, 25))


def rows(section):
    (table,) = (x for x in section.blocks if isinstance(x, page.Table))
    return [[cell.replace("\u00a0", " ") for cell in row] for row in table.rows]


def number(text):
    return float(text.replace(",", ""))


def test_the_comparison_has_a_line_for_each_level_with_marks(copied):
    written = [
        dataclasses.replace(row, test_accuracy=value + 0.001 * row.replicate)
        for row in results.read_rows(copied)
        for value in [
            {("ticket", 0): 0.9, ("ticket", 1): 0.95, ("ticket", 2): 0.9}.get(
                (row.branch, row.round), 0.97
            )
        ]
    ]
    (copied / "results.csv").write_text(results.as_csv(written))
    (copied / "SHA256SUMS").unlink()
    first, second = rows(tickets.against([opened(copied)]))
    assert [row[0] for row in (first, second)] == ["1", "2"]
    assert first[2:4] == [
        "+5.00 [+5.00, +5.00] \u25b2",
        "-2.00 [-2.00, -2.00] \u25bc",
    ]
    assert second[2] == "+0.00 [+0.00, +0.00]"


def test_the_overlap_is_that_of_pairs_beside_chance(finished):
    run = opened(finished)
    found = rows(tickets.alike([run]))
    masks = [run.masks(r, 2)[0][1] for r in range(3)]
    both = np.mean([(masks[i] & masks[j]).sum() for i, j in ((0, 1), (0, 2), (1, 2))])
    kept = masks[0].sum()
    (row,) = (x for x in found if "hidden" in x[0] and number(x[1]) < 40)
    assert number(row[2]) == kept
    assert number(row[3]) == pytest.approx(both, abs=0.06)
    assert number(row[4]) == pytest.approx(kept**2 / masks[0].size, abs=0.06)


def test_one_replicate_has_no_overlap(finished):
    run = opened(finished)
    run.rows = [row for row in run.rows if row.replicate == 0]
    (line,) = tickets.alike([run]).blocks
    assert "of which it takes two" in line.text


def test_signs_and_distances_are_of_the_surviving_weights(finished):
    run = opened(finished)
    found = rows(tickets.moved([run]))
    flipped, distance = [], []
    for replicate in range(3):
        mask = run.masks(replicate, 2)[1][1]
        first, last = (
            run.kernels(f"replicate{replicate}-{name}.weights.h5")[1][mask]
            for name in ("initial", "ticket-round02")
        )
        flipped.append(100 * np.mean(first * last < 0))
        distance.append(np.linalg.norm(last - first))
    row = found[-1]
    assert "output" in row[0]
    assert number(row[3]) == pytest.approx(np.mean(flipped), abs=0.006)
    assert number(row[4]) == pytest.approx(np.mean(distance), rel=0.01)


def test_effective_weights_are_those_with_an_input_and_an_output(finished):
    run = opened(finished)
    found = rows(tickets.effective([run]))
    expected, dead = [], []
    for replicate in range(3):
        hidden, output = (mask for _, mask in run.masks(replicate, 2))
        alive = hidden.any(0) & output.any(1)
        expected.append((hidden & alive).sum())
        dead.append((~alive).sum())
    row = found[-2]
    assert "hidden" in row[0]
    assert number(row[3]) == pytest.approx(np.mean(expected), abs=0.5)
    assert number(row[5]) == pytest.approx(np.mean(dead), abs=0.06)
    assert number(row[6]) == 12


def test_barriers_are_drawn_with_units_and_threshold(copied):
    assert tickets.instability([opened(copied)]) is None
    measured = [
        barriers.Row(replicate, 0, step, (1.0, 2.0, 1.0), (0.1, 0.1 + height, 0.1))
        for replicate in range(2)
        for step, height in ((0, 0.3), (100, 0.01))
    ]
    (copied / "instability.csv").write_text(barriers.as_csv(measured))
    (picture,) = tickets.instability([opened(copied)]).blocks
    (axes,) = picture.figure.axes
    assert axes.get_xlabel() == "step k at which the children part"
    assert axes.get_ylabel() == "barrier of the test error (points)"
    line = axes.containers[0].lines[0]
    assert line.get_xydata()[:, 1] == pytest.approx([30, 1])
    assert {text.get_text() for text in picture.figure.legends[0].get_texts()} == {
        *("dense", "stable")
    }


def test_a_damaged_file_of_barriers_is_a_problem_and_no_more(copied):
    (copied / "instability.csv").write_text("replicate,round\n1,x\n")
    run = opened(copied)
    assert tickets.instability([run]) is None
    assert any("instability.csv" in problem for problem in run.problems)


@pytest.mark.parametrize(("prune_at", "rounds"), [("end", 3), ("init", 2)])
def test_a_round_0_that_was_not_trained_is_not_drawn(copied, prune_at, rounds):
    run = opened(copied)
    run.settings = {**run.settings, "prune_at": prune_at}
    (ticket,) = (x for x in plots.curves([run]) if x.branch == "ticket")
    assert len(ticket.rows) == rounds
    axes = outcomes.accuracy([run]).pictures[0].figure.axes[0]
    labels = axes.get_legend_handles_labels()[1]
    assert ("dense (round 0)" in labels) == (prune_at == "end")


def test_a_section_that_fails_says_so_in_its_place(finished, monkeypatch):
    def broken(runs):
        """A section that fails."""
        raise KeyError("nothing like that")

    monkeypatch.setattr(sections, "SECTIONS", [broken, tickets.alike])
    run = opened(finished)
    first, second = sections.of([run])
    assert (first.title, second.title) == (
        "A section that fails",
        "Overlap of tickets between replicates",
    )
    assert "KeyError" in first.blocks[0].text
    assert any("A section that fails" in problem for problem in run.problems)


@pytest.mark.parametrize(
    "words",
    [
        ["~nosuchuser/x"],
        ["{}", "--output=~nosuchuser/x"],
        ["{}", "--levels=x"],
        ["{}", "--levels=0"],
    ],
)
def test_arguments_that_do_not_fit_are_one_line(words, finished, capsys):
    words = [word.format(finished) for word in words]
    assert main.main(["prunetrain", "report", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Traceback" not in line
