"""Results by level of sparsity: the mean over replicates of each branch and round."""

import dataclasses
import re
import statistics


@dataclasses.dataclass(frozen=True)
class Level:
    """One branch at one round, over its replicates, and a control's draws.

    `replicates` counts trainings, those of all draws.
    `weights_remaining` is a mean count and `remaining` the same as a fraction;
    `best_step` is a mean. `measure` is "accuracy" (a fraction), or "loss" for a task
    that has no accuracy: `val` and `test` are its means at the step of the lowest
    validation loss, `low` and `high` the extremes of the test one.
    """

    branch: str
    round: int
    replicates: int
    weights_remaining: float
    remaining: float
    best_step: float
    measure: str
    val: float
    test: float
    low: float
    high: float


def by_level(rows):
    """`Level`s from `Row`s, by round, the ticket before its controls."""
    groups = {}
    for row in rows:
        branch = control_of(row.branch)
        groups.setdefault((row.round, branch != "ticket", branch), []).append(row)
    return [_level(key[0], key[2], groups[key]) for key in sorted(groups)]


def control_of(branch):
    """The branch without the number of its draw: reinit_2 is one of reinit."""
    return re.sub("_[0-9]+$", "", branch)


def _level(round, branch, rows):
    def mean(name):
        return statistics.fmean(getattr(row, name) for row in rows)

    measure = "loss" if any(row.test_accuracy is None for row in rows) else "accuracy"
    tests = [getattr(row, f"test_{measure}") for row in rows]
    return Level(
        branch=branch,
        round=round,
        replicates=len(rows),
        weights_remaining=mean("weights_remaining"),
        remaining=1 - mean("sparsity"),
        best_step=mean("best_step"),
        measure=measure,
        val=mean(f"val_{measure}"),
        test=statistics.fmean(tests),
        low=min(tests),
        high=max(tests),
    )
