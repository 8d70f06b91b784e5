"""How many weights two tickets share, beside what chance would give."""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Overlap:
    """The weights that two masks keep, in one kernel or in several.

    Attributes:
        kept_first, kept_second: how many each keeps.
        both: how many both keep.
        expected, deviation: mean and standard deviation of `both` if the second mask
            were drawn at random, with as many weights in each kernel.
        total: how many weights there are.
    """

    kept_first: int
    kept_second: int
    both: int
    expected: float
    deviation: float
    total: int


def overlap(first, second):
    """The overlap of two tickets in each kernel.

    `both` of a uniformly random second mask is hypergeometric: of N weights the first
    keeps K and the second n, so its mean is nK/N and its variance
    n (K/N) (1 - K/N) (N - n) / (N - 1).

    Args:
        first, second: lists of boolean arrays, one per kernel, aligned.

    Returns:
        List of `Overlap`, one per kernel.

    Raises:
        ValueError: they are not aligned.
    """
    return [_of_kernel(*masks) for masks in zip(first, second, strict=True)]


def combined(overlaps):
    """The `Overlap` of several kernels together, each drawn independently.

    Counts and means add up, and so do variances.
    """

    def sum_of(name):
        return sum(getattr(x, name) for x in overlaps)

    return Overlap(
        kept_first=sum_of("kept_first"),
        kept_second=sum_of("kept_second"),
        both=sum_of("both"),
        expected=math.fsum(x.expected for x in overlaps),
        deviation=math.hypot(*(x.deviation for x in overlaps)),
        total=sum_of("total"),
    )


def _of_kernel(first, second):
    first, second = np.asarray(first, bool), np.asarray(second, bool)
    if first.shape != second.shape:
        raise ValueError(
            "masks must be of the same shape to be compared. Received: shapes "
            f"{first.shape} and {second.shape}"
        )
    # Python's integers: the products below are beyond 64 bits.
    total, kept = first.size, int(np.count_nonzero(first))
    drawn = int(np.count_nonzero(second))
    spread = drawn * kept * (total - kept) * (total - drawn)
    return Overlap(
        kept_first=kept,
        kept_second=drawn,
        both=int(np.count_nonzero(first & second)),
        expected=drawn * kept / total if total else 0.0,
        # Of one weight or none there is no choice.
        deviation=math.sqrt(spread / (total**2 * (total - 1))) if total > 1 else 0.0,
        total=total,
    )
