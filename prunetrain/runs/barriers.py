"""Barriers between pairs of networks: instability.csv, a row for each pair.

Frankle, Dziugaite, Roy & Carbin 2020 ("Linear Mode Connectivity and the Lottery Ticket
Hypothesis", section 2) bring a network to step k, train two children of it under
different SGD noise, and look at the straight line between the two.
"""

import csv
import dataclasses
import io
import math
import pathlib
import statistics

from prunetrain.runs import files, results

NAME = "instability.csv"
# Frankle et al. 2020, section 3: less counts as stable, which allows for noise.
STABLE = 0.02


def barrier(values):
    """The error barrier height: the largest value on the line minus its ends' mean.

    Frankle et al. 2020, section 2. It is never below 0, as the ends lie on the line: 0
    if nothing is above both ends and these are equal, and half their difference if one
    of them is the largest value, as for a convex function.

    Args:
        values: error or loss at equally spaced places on the line, ends included.

    Returns:
        A float; NaN if a value is.
    """
    # Which max would pass over.
    if any(map(math.isnan, values)):
        return math.nan
    return max(values) - (values[0] / 2 + values[-1] / 2)


@dataclasses.dataclass(frozen=True)
class Row:
    """A pair of children: a row of instability.csv.

    Attributes:
        replicate, round, step: the children start from this step of round 0, with the
            masks of this round's ticket (0: dense).
        losses: on the test examples, at equally spaced places on the line from the
            first child to the second; the ends are the children's own.
        errors: 1 - accuracy at the same places, fractions; () for a task that has none.
    """

    replicate: int
    round: int
    step: int
    losses: tuple
    errors: tuple = ()

    @property
    def key(self):
        return self.replicate, self.round, self.step

    @property
    def loss_barrier(self):
        """`barrier` of the losses."""
        return barrier(self.losses)

    @property
    def error_barrier(self):
        """`barrier` of the errors; None if there are none."""
        return barrier(self.errors) if self.errors else None


def first_stable(rows, end):
    """The smallest step from which on the mean error barrier is at most `STABLE`.

    Args:
        rows: `Row`s of one round that have errors; the mean is over replicates.
        end: last step of the training, where children do not differ.

    Returns:
        The step, or None if there is no such one before `end`.
    """
    found = None
    for step in sorted({row.step for row in rows if row.step < end}, reverse=True):
        height = statistics.fmean(x.error_barrier for x in rows if x.step == step)
        if not height <= STABLE:
            break
        found = step
    return found


def as_csv(rows):
    """Rows as the text of the file, in the order of their keys."""
    text = io.StringIO()
    lines = [_line(row) for row in sorted(rows, key=lambda row: row.key)]
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def read_rows(path):
    """The `Row`s of a work directory's instability.csv; none if there is no file.

    Raises:
        InputError: the file is damaged.
    """
    file = pathlib.Path(path) / NAME
    if not file.exists():
        return []
    content = files.read(file.parent, file.name)
    try:
        text = content.decode()
        rows = list(map(_row, csv.DictReader(io.StringIO(text, newline=""))))
        if len({row.key for row in rows}) < len(rows):
            raise ValueError("a pair has two rows")
        # Most of the columns follow from others.
        if as_csv(rows) != text:
            raise ValueError("its numbers do not fit together")
        return rows
    except (ValueError, LookupError, csv.Error) as error:
        raise files.damaged(file, error) from error


_COLUMNS = (
    *("replicate", "round", "step"),
    *("first_loss", "second_loss", "loss_barrier"),
    *("first_error", "second_error", "error_barrier"),
    *("losses", "errors"),
)


def _line(row):
    """The columns of a row, with the figures of both children and the barriers."""
    errors = row.errors or ("",)
    return {
        **{name: getattr(row, name) for name in ("replicate", "round", "step")},
        "first_loss": row.losses[0],
        "second_loss": row.losses[-1],
        "loss_barrier": row.loss_barrier,
        "first_error": errors[0],
        "second_error": errors[-1],
        "error_barrier": row.error_barrier,
        "losses": results.joined(row.losses),
        "errors": results.joined(row.errors),
    }


def _row(line):
    """`Row` from the texts by column, or an error."""
    if None in line.values():
        raise ValueError("a row is shorter than the header")
    row = Row(
        *(int(line[name]) for name in ("replicate", "round", "step")),
        *(tuple(map(float, line[name].split())) for name in ("losses", "errors")),
    )
    sizes = {len(row.losses), len(row.errors or row.losses)}
    if min(row.key) < 0 or len(sizes) > 1 or min(sizes) < 2:
        raise ValueError(f"the row of {row.key} cannot be one")
    if not all(0 <= error <= 1 for error in row.errors):
        raise ValueError(f"the errors of {row.key} must be from 0 to 1")
    return row
