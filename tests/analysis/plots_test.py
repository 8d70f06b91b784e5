"""The picture: whole for every shape of results, and what it shows."""

import matplotlib.figure
import matplotlib.image
import numpy as np
import pytest

from prunetrain.analysis import levels, plots
from tests import tiny


def rows(num_replicates=1, branches=("ticket",), num_rounds=3):
    return [
        tiny.row(
            replicate,
            branch,
            round,
            sparsity=1 - 0.8**round,
            test_accuracy=0.9 - 0.01 * round - 0.001 * replicate,
        )
        for replicate in range(num_replicates)
        for round in range(num_rounds)
        for branch in branches
        if round or branch == "ticket"
    ]


CASES = {
    "one replicate": rows(),
    "several replicates": rows(3),
    "a control": rows(2, ("ticket", "reinit")),
    "many controls": rows(1, ("ticket", *"abcdef")),
    "one round": rows(num_rounds=1),
    "many rounds": rows(num_rounds=31),
    "a control alone": [tiny.row(branch="reinit", round=1)],
    # Their mean is less than each of them, by a rounding.
    "replicates that agree": [tiny.row(x, test_accuracy=0.9008) for x in range(3)],
    "nothing": [],
}


@pytest.mark.parametrize("case", CASES)
def test_a_picture_is_drawn_of_any_results(case, tmp_path):
    file = tmp_path / "accuracy.png"
    plots.by_weights_remaining(levels.by_level(CASES[case]), file)
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    # Reading checks every chunk's sum.
    pixels = matplotlib.image.imread(file)
    assert pixels.shape == (630, 1050, 4)
    assert len(np.unique(pixels)) > 2


@pytest.fixture
def axes(monkeypatch, tmp_path):
    """A function that draws rows and returns matplotlib's axes."""
    figures = []

    def keep(figure, file, **options):
        figures.append(figure)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)

    def draw(rows):
        plots.by_weights_remaining(levels.by_level(rows), tmp_path / "unwritten.png")
        (drawn,) = figures.pop().axes
        return drawn

    return draw


def test_lines_are_test_accuracies_in_percent_against_weights_remaining(axes):
    drawn = axes(rows(2, ("ticket", "reinit")))
    lines = {container.get_label(): container[0] for container in drawn.containers}
    assert list(lines) == ["rewound ticket", "control: reinit"]
    ticket = [[100, 89.95], [80, 88.95], [64, 87.95]]
    np.testing.assert_allclose(lines["rewound ticket"].get_xydata(), ticket)
    np.testing.assert_allclose(lines["control: reinit"].get_xydata(), ticket[1:])


def test_bars_reach_from_the_lowest_replicate_to_the_highest(axes):
    drawn = axes(rows(3, num_rounds=1))
    (bars,) = drawn.containers[0][2]
    (ends,) = bars.get_segments()
    np.testing.assert_allclose(ends, [[100, 89.8], [100, 90.0]])


def test_the_dense_network_is_a_line_across(axes):
    drawn = axes(rows())
    dense = [line for line in drawn.get_lines() if line.get_label().startswith("dense")]
    assert [set(line.get_ydata()) for line in dense] == [{90.0}]


def test_sparser_is_further_right(axes):
    left, right = axes(rows()).get_xlim()
    assert left > right
