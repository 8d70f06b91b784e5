"""Was there a winning ticket? In words, with the uncertainty.

Differences are paired: each replicate's ticket with its own dense network, or with its
own control (the mean over that control's draws). The interval is Student's t over
replicates. A level's measure is the test accuracy at the step of the lowest validation
loss, or minus the test loss for a task without accuracy.

A winning ticket matches the accuracy of the dense network (Frankle & Carbin 2019,
section 1). The verdict names the sparsest level whose mean is not below dense. It
claims nothing with fewer than three replicates, and a difference only where 0 lies
outside the interval.
"""

import collections
import dataclasses
import math
import statistics

from prunetrain.analysis import levels as levels_lib

LEVEL_OF_CONFIDENCE = 0.95
MOST_FEW = 2
_LARGEST = 1e150


@dataclasses.dataclass(frozen=True)
class Gap:
    """A mean of paired differences, with its interval over replicates.

    `low` and `high` are None with one replicate.
    """

    mean: float
    low: float | None
    high: float | None
    replicates: int

    @property
    def sign(self):
        """1 or -1 if 0 lies outside the interval, else 0."""
        if self.low is None or self.low <= 0 <= self.high:
            return 0
        return 1 if self.low > 0 else -1


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A level's tickets against the dense networks and the controls.

    Attributes:
        round, remaining: the level; the fraction of the weights that remain.
        measure: "accuracy" or "loss".
        ticket, dense: mean measures of the replicates that have both.
        gap: `Gap` of the ticket to dense; above 0 the ticket is better.
        controls: by name, `Gap` of the ticket to the control.
        steps, dense_steps: mean steps of the lowest validation loss.
    """

    round: int
    remaining: float
    measure: str
    ticket: float
    dense: float
    gap: Gap
    controls: dict
    steps: float
    dense_steps: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a run has shown.

    Attributes:
        outcome: "winning ticket", "no winning ticket", "too few replicates", or
            "nothing to compare".
        level: the `Comparison` at the sparsest level that is not below dense; with no
            such level the nearest to dense; None if there is nothing to compare.
        lines: sentences for people, the method in the last.
    """

    outcome: str
    level: Comparison | None
    lines: tuple[str, ...]


def of(rows, prune_at="end"):
    """The `Verdict` on a run, from its `Row`s and that setting."""
    every = comparisons(rows)
    finite = [x for x in every if math.isfinite(x.gap.mean)]
    if not finite or prune_at != "end":
        why = "it takes a dense network (round 0) and a ticket"
        if prune_at != "end":
            why = f"with --prune_at={prune_at} no dense network is trained"
        elif every:
            why = "the test losses are not finite"
        return Verdict("nothing to compare", None, (f"Nothing to compare: {why}.",))
    # A replicate that is ahead of the others says nothing yet.
    compared = [x for x in finite if x.gap.replicates > MOST_FEW]
    few = not compared
    compared = compared or finite
    matching = [x for x in compared if x.gap.mean >= 0]
    level = matching[-1] if matching else max(compared, key=lambda x: x.gap.mean)
    outcome = "winning ticket" if matching else "no winning ticket"
    outcome = "too few replicates" if few else outcome
    lines = [_headline(outcome, level), _speed(level)]
    best = max(compared, key=lambda x: x.gap.mean)
    if matching and best is not level:
        lines.append(f"Highest: {_against_dense(best)}.")
    lines += _against_controls(compared, level)
    lines.append(_method(compared, level))
    return Verdict(outcome, level, tuple(lines))


def comparisons(rows):
    """A `Comparison` for each level that has tickets and dense networks, by round."""
    found = collections.defaultdict(dict)
    for row in rows:
        values = found[levels_lib.control_of(row.branch), row.round]
        values.setdefault(row.replicate, []).append(row)
    dense = found.get(("ticket", 0), {})
    rounds = sorted(round for branch, round in found if branch == "ticket" and round)
    names = sorted({branch for branch, _ in found} - {"ticket"})
    compared = []
    for round in rounds:
        ticket = found["ticket", round]
        pairs = sorted(ticket.keys() & dense.keys())
        if not pairs:
            continue
        mine, other = ([x[i][0] for i in pairs] for x in (ticket, dense))
        is_loss = any(row.test_accuracy is None for row in mine + other)
        measure = "loss" if is_loss else "accuracy"
        gaps = {name: _gap(ticket, found[name, round], measure) for name in names}
        compared.append(
            Comparison(
                round=round,
                remaining=1 - statistics.fmean(row.sparsity for row in mine),
                measure=measure,
                ticket=levels_lib.mean(getattr(x, f"test_{measure}") for x in mine),
                dense=levels_lib.mean(getattr(x, f"test_{measure}") for x in other),
                gap=_gap(ticket, dense, measure),
                controls={
                    name: gap
                    for name, gap in gaps.items()
                    if gap and math.isfinite(gap.mean)
                },
                steps=statistics.fmean(row.best_step for row in mine),
                dense_steps=statistics.fmean(row.best_step for row in other),
            )
        )
    return compared


def _gap(first, second, measure):
    """`Gap` between rows by replicate, the better is above; None without a pair."""
    sign = -1 if measure == "loss" else 1

    def mean(rows):
        values = [getattr(row, f"test_{measure}") for row in rows]
        return math.nan if None in values else levels_lib.mean(values)

    pairs = sorted(first.keys() & second.keys())
    return interval([sign * (mean(first[i]) - mean(second[i])) for i in pairs])


def interval(values):
    """`Gap` of a mean with its interval by Student's t; None if there are no values.

    The mean is NaN if a value is not finite.
    """
    if not values:
        return None
    # Beyond, squares are not finite either.
    if not all(abs(x) < _LARGEST for x in values):
        return Gap(math.nan, None, None, len(values))
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Gap(mean, None, None, 1)
    half = t_quantile(count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Gap(mean, mean - half, mean + half, count)


def t_quantile(degrees, confidence=LEVEL_OF_CONFIDENCE):
    """What |t| stays below with this probability, for so many degrees of freedom."""
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        below = _t_within(middle, degrees) < confidence
        low, high = (middle, high) if below else (low, middle)
    return low


def _t_within(t, degrees):
    """The probability that |t| is lower, by its finite sum over powers of a cosine.

    Abramowitz & Stegun 1964, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for power in range(2 + odd, degrees + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power - 1) / power
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def _headline(outcome, level):
    if outcome == "too few replicates":
        count = level.gap.replicates
        return (
            f"Too few replicates to say ({count}; it takes {MOST_FEW + 1} or more). "
            f"What was seen: {_against_dense(level)}."
        )
    if outcome == "no winning ticket":
        return (
            "No winning ticket found: every level's mean is below dense. The nearest: "
            f"{_against_dense(level)}."
        )
    if level.gap.sign > 0:
        return f"Winning ticket: {_against_dense(level)}."
    return (
        f"Winning ticket by its mean: {_against_dense(level)}. The interval holds 0: "
        "neither better nor worse than dense is shown."
    )


def _against_dense(level):
    return (
        f"{_place(level)} the ticket's mean test {level.measure} is "
        f"{_shown(level.ticket, level)}, dense {_shown(level.dense, level)}: "
        f"{_told(level.gap, level)}"
    )


def _speed(level):
    if not level.dense_steps:
        return "Dense is at its best before the first step."
    ratio = level.steps / level.dense_steps
    return (
        f"Its lowest validation loss comes after {level.steps:,.0f} steps, dense's "
        f"after {level.dense_steps:,.0f}: {ratio:.2f} times as many."
    )


def _against_controls(compared, level):
    """A sentence for each control, at the level or the nearest that has it."""
    names = sorted({name for x in compared for name in x.controls})
    if not names:
        return ["No control to compare with: whether the weights matter is not told."]
    return [_against_control(name, compared, level) for name in names]


def _against_control(name, compared, level):
    at = min(
        (x for x in compared if name in x.controls),
        key=lambda x: abs(_log(x.remaining) - _log(level.remaining)),
    )
    gap = at.controls[name]
    where = _place(at) if at is level else f"{_place(at)} (the nearest that has it)"
    what = {1: "the ticket is better", 0: "no difference shown", -1: "it is better"}
    said = f" ({what[gap.sign]})" if gap.replicates > MOST_FEW else ""
    return f"Against {name} {where}: {_told(gap, at)}{said}."


def _log(remaining):
    return math.log(max(remaining, 1e-300))


def _method(compared, level):
    return (
        f"Method: test {level.measure} at the step of the lowest validation "
        "loss; differences paired by replicate, a control's draws averaged; "
        f"{LEVEL_OF_CONFIDENCE:.0%} intervals by Student's t over replicates. The "
        f"level is the sparsest of {len(compared)} whose mean is not below dense: of "
        "so many, one may be so by chance."
    )


def _place(level):
    return f"at {100 * level.remaining:.3g} % of the weights (round {level.round})"


def _shown(value, level):
    return f"{100 * value:.2f} %" if level.measure == "accuracy" else f"{value:.4g}"


def _told(gap, level):
    """A gap in points of accuracy, or in units of the loss, with its interval."""
    points = level.measure == "accuracy"

    def number(value):
        return f"{100 * value:+.2f}" if points else f"{value:+.4g}"

    text = number(gap.mean) + (" points" if points else " (above 0: lower loss)")
    if gap.low is not None:
        text += f" [{number(gap.low)}, {number(gap.high)}]"
    return f"{text}, {gap.replicates} replicate{'s' if gap.replicates != 1 else ''}"
