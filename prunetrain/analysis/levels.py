"""Results by level of sparsity: the mean over replicates of each branch and round."""

import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Level:
    """One branch at one round, over its replicates.

    `weights_remaining` is a mean count and `remaining` the same as a fraction;
    accuracies are mean fractions at the step of the lowest validation loss, `low` and
    `high` the extremes of the test accuracy; `best_step` is a mean.
    """

    branch: str
    round: int
    replicates: int
    weights_remaining: float
    remaining: float
    best_step: float
    val_accuracy: float
    test_accuracy: float
    low: float
    high: float
    final_test_accuracy: float


def by_level(rows):
    """`Level`s from `Row`s, by round, the ticket before its controls."""
    groups = {}
    for row in rows:
        groups.setdefault((row.round, row.branch != "ticket", row.branch), []).append(
            row
        )
    return [_level(key[0], key[2], groups[key]) for key in sorted(groups)]


def _level(round, branch, rows):
    def mean(name):
        return statistics.fmean(getattr(row, name) for row in rows)

    tests = [row.test_accuracy for row in rows]
    return Level(
        branch=branch,
        round=round,
        replicates=len(rows),
        weights_remaining=mean("weights_remaining"),
        remaining=1 - mean("sparsity"),
        best_step=mean("best_step"),
        val_accuracy=mean("val_accuracy"),
        test_accuracy=mean("test_accuracy"),
        low=min(tests),
        high=max(tests),
        final_test_accuracy=mean("final_test_accuracy"),
    )
