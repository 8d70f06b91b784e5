"""Results by level of sparsity: the mean over replicates of each branch and round."""

import dataclasses
import math
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


@dataclasses.dataclass(frozen=True)
class Spread:
    """Numbers of replicates: how many, mean, extremes, and the sample deviation.

    `deviation` is None for a single one.
    """

    count: int
    mean: float
    low: float
    high: float
    deviation: float | None


def spread(values):
    """The `Spread` of what is finite among values, or None if nothing is."""
    values = [x for x in values if x is not None and math.isfinite(x)]
    if not values:
        return None
    low, high = min(values), max(values)
    # The mean of equal numbers can miss them by a rounding.
    mean = min(max(statistics.fmean(values), low), high)
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(len(values), mean, low, high, deviation)


def mean(values):
    """The mean; NaN where there is none, of infinities or beyond all floats."""
    try:
        return statistics.fmean(values)
    except (ValueError, OverflowError):
        return math.nan


def by_level(rows):
    """`Level`s from `Row`s, by round, the ticket before its controls."""
    return [_level(*key, found) for key, found in grouped(rows).items()]


def grouped(rows):
    """Rows by (round, branch), the draws of a control together, in that order."""
    groups = {}
    for row in rows:
        branch = control_of(row.branch)
        groups.setdefault((row.round, branch != "ticket", branch), []).append(row)
    return {(key[0], key[2]): groups[key] for key in sorted(groups)}


def control_of(branch):
    """What a branch is a draw of: reinit_2 is the second of reinit."""
    return re.sub("_[0-9]+$", "", branch)


def measure(rows):
    """What rows are compared by: "accuracy", or "loss" if a task has none."""
    return "loss" if any(row.test_accuracy is None for row in rows) else "accuracy"


def _level(round, branch, rows):
    def mean_of(column):
        return mean(getattr(row, column) for row in rows)

    name = measure(rows)
    tests = [getattr(row, f"test_{name}") for row in rows]
    return Level(
        branch=branch,
        round=round,
        replicates=len(rows),
        weights_remaining=mean_of("weights_remaining"),
        remaining=1 - mean_of("sparsity"),
        best_step=mean_of("best_step"),
        measure=name,
        val=mean_of(f"val_{name}"),
        test=mean(tests),
        low=min(tests),
        high=max(tests),
    )
