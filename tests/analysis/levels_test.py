"""Results by level: worked out by hand."""

import pytest

from prunetrain.analysis import levels
from tests import tiny


def test_levels_come_by_round_and_the_ticket_before_its_controls():
    rows = [
        tiny.row(branch=branch, round=round)
        for branch, round in (
            ("zeta", 1),
            ("reinit", 2),
            ("ticket", 2),
            ("alpha", 1),
            ("ticket", 0),
            ("ticket", 1),
        )
    ]
    assert [(x.round, x.branch) for x in levels.by_level(rows)] == [
        (0, "ticket"),
        (1, "ticket"),
        (1, "alpha"),
        (1, "zeta"),
        (2, "ticket"),
        (2, "reinit"),
    ]


def test_a_level_is_the_mean_over_replicates_with_the_extremes():
    rows = [
        tiny.row(
            replicate=replicate,
            weights_remaining=weights,
            sparsity=sparsity,
            best_step=step,
            val_accuracy=val,
            test_accuracy=test,
        )
        for replicate, weights, sparsity, step, val, test in (
            (0, 80, 0.25, 100, 0.5, 0.25),
            (1, 90, 0.75, 300, 0.75, 0.75),
            (2, 100, 0.5, 500, 1.0, 0.5),
        )
    ]
    (level,) = levels.by_level(rows)
    assert level == levels.Level(
        branch="ticket",
        round=0,
        replicates=3,
        weights_remaining=90,
        remaining=0.5,
        best_step=300,
        measure="accuracy",
        val=0.75,
        test=0.5,
        low=0.25,
        high=0.75,
    )


def test_a_task_without_accuracy_is_measured_by_its_loss():
    rows = [
        tiny.row(replicate=r, val_accuracy=None, test_accuracy=None, test_loss=loss)
        for r, loss in enumerate((0.25, 0.75))
    ]
    (level,) = levels.by_level(rows)
    assert (level.measure, level.test) == ("loss", 0.5)
    assert (level.low, level.high) == (0.25, 0.75)


def test_replicates_of_which_some_are_unfinished_are_counted_by_level():
    rows = [tiny.row(), tiny.row(replicate=1), tiny.row(round=1)]
    assert [x.replicates for x in levels.by_level(rows)] == [2, 1]


@pytest.mark.parametrize("accuracy", [0.9008, 0.1, 1.0])
def test_one_replicate_is_its_own_mean_and_extremes(accuracy):
    (level,) = levels.by_level([tiny.row(test_accuracy=accuracy)])
    assert level.test == level.low == level.high == accuracy


def test_no_rows_give_no_levels():
    assert levels.by_level([]) == []
