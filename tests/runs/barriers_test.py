"""Barriers and the file that holds them."""

import dataclasses
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from prunetrain.errors import InputError
from prunetrain.runs import barriers, files
from tests import toys

ROWS = [
    barriers.Row(0, 0, 0, (0.5, 0.75, 0.25), (0.1, 0.5, 0.2)),
    barriers.Row(0, 0, 100, (0.5, math.nan, 0.1), (0.1, 1 / 3, 0.0)),
    barriers.Row(0, 2, 0, (1e-9, math.inf, 2e30), (1.0, 0.5, 1.0)),
    barriers.Row(1, 0, 0, (0.125, 0.125, 0.125)),
]


@pytest.mark.parametrize(
    ("values", "height"),
    [
        ((1, 1), 0),
        ((1, 4, 2), 2.5),
        ((2, 0, 0, 2), 0),
        ((3, 1, 1), 1),
        ((0, 0, 5), 2.5),
    ],
)
def test_a_barrier_is_the_top_of_the_line_less_the_mean_of_its_ends(values, height):
    assert barriers.barrier(values) == height


def test_a_convex_quadratic_between_points_of_one_height_has_none():
    rng = np.random.default_rng(0)
    for _ in range(20):
        root = rng.normal(size=(4, 4))
        start = rng.normal(size=4)
        # The other side of the minimum is as high.
        places = np.linspace(0, 1, 11)[:, np.newaxis]
        points = start + places * (-2 * start)
        values = ((points @ root) ** 2).sum(1)
        assert barriers.barrier(values) == pytest.approx(0, abs=1e-12)
        assert barriers.barrier(values[:6]) == pytest.approx(values[0] / 2)


@hypothesis.given(strategies.lists(strategies.floats(0, 1e6), min_size=2))
def test_a_barrier_is_never_below_0_and_the_same_both_ways(values):
    height = barriers.barrier(values)
    assert 0 <= height <= max(values)
    assert barriers.barrier(values[::-1]) == height


def test_a_value_that_is_no_number_is_not_passed_over():
    assert math.isnan(barriers.barrier((0.5, math.nan, 0.5)))
    assert barriers.barrier((0.5, math.inf, 0.5)) == math.inf


def pairs(**heights):
    """Rows with these error barriers: a list of replicates by step (as k100)."""
    return [
        barriers.Row(number, 0, int(name[1:]), (1.0,) * 3, (0.0, height, 0.0))
        for name, found in heights.items()
        for number, height in enumerate(found)
    ]


@pytest.mark.parametrize(
    ("heights", "step"),
    [
        ({"k0": [0.5], "k100": [0.1], "k500": [0.01]}, 500),
        ({"k0": [0.01], "k100": [0.01]}, 0),
        # Only from where on it stays low.
        ({"k0": [0.01], "k100": [0.3], "k200": [0.02], "k300": [0]}, 200),
        ({"k0": [0.01], "k100": [0.021]}, None),
        # The mean counts.
        ({"k0": [0.03, 0.01], "k100": [0.05, 0.0]}, None),
        ({"k0": [0.3, 0.3], "k100": [0.03, 0.005]}, 100),
        ({"k0": [0.3], "k100": [math.nan]}, None),
        # At the end there is nothing left to differ.
        ({"k0": [0.3], "k1000": [0.0]}, None),
    ],
)
def test_the_first_stable_step_is_that_from_which_on_barriers_stay_low(heights, step):
    assert barriers.first_stable(pairs(**heights), end=1000) == step


def test_rows_come_back_as_they_were_written_and_in_order(tmp_path):
    (tmp_path / barriers.NAME).write_text(barriers.as_csv(ROWS[::-1]))
    found = barriers.read_rows(tmp_path)
    assert list(map(repr, found)) == list(map(repr, ROWS))
    assert found[3].error_barrier is None


def test_the_columns_name_both_children_and_the_barriers():
    header, first, *_, last = barriers.as_csv(ROWS).splitlines()
    assert header == (
        "replicate,round,step,first_loss,second_loss,loss_barrier,first_error,"
        "second_error,error_barrier,losses,errors"
    )
    assert first == "0,0,0,0.5,0.25,0.375,0.1,0.2,0.35,0.5 0.75 0.25,0.1 0.5 0.2"
    assert last == "1,0,0,0.125,0.125,0.0,,,,0.125 0.125 0.125,"


def test_a_folder_without_the_file_has_no_rows(tmp_path):
    assert barriers.read_rows(tmp_path) == []


TEXT = barriers.as_csv(ROWS)
DAMAGE = {
    "nothing": "",
    "another header": TEXT.replace("first_loss", "loss"),
    "a row cut off": TEXT[:-20],
    "a row twice": TEXT + TEXT.splitlines(keepends=True)[-1],
    "out of order": "".join(sorted(TEXT.splitlines(keepends=True), reverse=True)),
    "a number changed": TEXT.replace("0.375", "0.376"),
    "a value changed": TEXT.replace("0.5 0.75 0.25", "0.5 0.85 0.25"),
    "no number": TEXT.replace("0.75", "x"),
    "an error above 1": TEXT.replace("0.1 0.5 0.2", "0.1 1.5 0.2"),
    "a negative step": TEXT.replace("1,0,0,", "1,0,-5,"),
    "one place": TEXT.replace("0.125 0.125 0.125", "0.125"),
    "no place": TEXT.replace("0.125 0.125 0.125", ""),
    "fewer errors": TEXT.replace("0.1 0.5 0.2", "0.1 0.2"),
    "binary": "\0\1\2",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_refused_by_name(kind, tmp_path):
    (tmp_path / barriers.NAME).write_text(DAMAGE[kind])
    with toys.raises(InputError, barriers.NAME, "missing or damaged"):
        barriers.read_rows(tmp_path)


def test_another_content_than_the_one_on_record_is_refused(tmp_path):
    files.write(tmp_path, barriers.NAME, TEXT)
    assert len(barriers.read_rows(tmp_path)) == 4
    other = dataclasses.replace(ROWS[3], losses=(0.25, 0.25))
    (tmp_path / barriers.NAME).write_text(barriers.as_csv([*ROWS[:3], other]))
    with toys.raises(InputError, barriers.NAME, "SHA256SUMS"):
        barriers.read_rows(tmp_path)
