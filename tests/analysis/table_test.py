"""The table at the end of a run, cell by cell."""

import importlib.util
import io

import pytest
import rich.console

from prunetrain.analysis import levels, print_results, table
from prunetrain.runs import workdir
from tests import tiny

ROWS = [
    tiny.row(weights_remaining=266_200, best_step=1200, test_accuracy=0.9812),
    tiny.row(
        round=1, weights_remaining=213_060, sparsity=0.19962, val_accuracy=0.98765
    ),
    tiny.row(branch="reinit", round=1, test_accuracy=0.97),
    tiny.row(branch="other", round=1, test_accuracy=0.96),
    tiny.row(branch="reinit", round=2, test_accuracy=0.95),
    tiny.row(round=2, weights_remaining=5, sparsity=0.999),
]
HEADING = ["round", "weights", "left %", "best step", "val %", "test %"]


def render(renderable, width=100):
    console = rich.console.Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue()


def cells(rows):
    """The table's heading and rows as lists of texts."""
    found = levels.by_level(rows)
    controls = sorted({x.branch for x in found} - {"ticket"})
    lines = render(table.table(found, controls)).splitlines()
    return [
        [cell.strip() for cell in line.replace("┃", "│").strip("│").split("│")]
        for line in lines
        if line.startswith(("┃", "│"))
    ]


def printed(path):
    console = rich.console.Console(file=io.StringIO(), width=100)
    print_results(path, console)
    return console.file.getvalue()


@pytest.fixture
def finished(tmp_path):
    directory = workdir.WorkDirectory(tmp_path / "run", {})
    for row in (*ROWS, tiny.row(replicate=1)):
        directory.add_row(row)
    return directory.path


def test_a_line_per_round_with_the_controls_beside_the_ticket():
    assert cells(ROWS) == [
        [*HEADING, "other test %", "reinit test %"],
        ["0", "266,200", "100.00", "1,200", "75.00", "98.12", "", ""],
        ["1", "213,060", "80.04", "40", "98.77", "50.00", "96.00", "97.00"],
        ["2", "5", "0.10", "40", "75.00", "50.00", "", "95.00"],
    ]


def test_draws_of_a_control_are_one_column():
    rows = [*ROWS, tiny.row(branch="reinit_2", round=1, test_accuracy=0.93)]
    heading, *lines = cells(rows)
    assert heading == [*HEADING, "other test %", "reinit test %"]
    assert lines[1][-1] == "95.00"


def test_many_controls_get_a_table_of_their_own_in_80_columns(tmp_path):
    names = ("reinit", "random", "shuffle", "same_sign", "supermask_constant")
    directory = workdir.WorkDirectory(tmp_path / "run", {})
    for row in (*ROWS[:2], *(tiny.row(branch=x, round=1) for x in names)):
        directory.add_row(row)
    console = rich.console.Console(file=io.StringIO(), width=80)
    print_results(directory.path, console)
    text = console.file.getvalue()
    assert "…" not in text
    tables, _, _ = text.partition("Too few")
    assert tables.count("50.00") == 1 + 1 + len(names)


def test_without_controls_there_are_no_columns_for_them():
    heading, *lines = cells([tiny.row()])
    assert heading == HEADING
    assert lines == [["0", "100", "100.00", "40", "75.00", "50.00"]]


def test_without_results_the_table_is_empty():
    assert len(cells([])) == 1


def test_numbers_are_means_over_replicates():
    rows = [tiny.row(test_accuracy=0.5), tiny.row(replicate=1, test_accuracy=0.75)]
    assert cells(rows)[1][-1] == "62.50"


def test_a_control_whose_ticket_is_unfinished_is_left_out():
    assert len(cells([tiny.row(branch="reinit", round=1)])) == 1


def test_the_files_and_their_place_stand_below_the_table(finished):
    last = printed(finished).splitlines()[-1]
    assert last.startswith(f"{finished}: ")
    assert last.endswith(
        "results.csv, metrics.jsonl, tickets/, checkpoints/, flags.txt"
    )


def test_the_number_of_replicates_is_told(finished, tmp_path):
    assert "mean of 2 replicates." in printed(finished)
    single = workdir.WorkDirectory(tmp_path / "single", {})
    single.add_row(tiny.row())
    assert "mean of 1 replicate." in printed(single.path)


def test_a_picture_is_drawn_where_matplotlib_is_installed(finished):
    assert "accuracy.png, results.csv" in printed(finished)
    assert (finished / "accuracy.png").stat().st_size > 1000


def test_without_matplotlib_the_way_to_a_picture_is_told(finished, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    text = printed(finished)
    assert "pip install 'prunetrain[report]'" in text
    assert "accuracy.png" not in text
    assert not (finished / "accuracy.png").exists()


def test_an_empty_folder_prints_an_empty_table(tmp_path):
    assert "mean of 0 replicates" in printed(tmp_path)
