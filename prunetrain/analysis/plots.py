"""Pictures of a work directory, by matplotlib."""

import dataclasses
import functools
import math

import matplotlib.figure
import matplotlib.font_manager
import matplotlib.ft2font
import matplotlib.ticker

from prunetrain.analysis import levels as levels_lib

# Colours that the colour-blind tell apart (Okabe & Ito), with markers besides.
_STYLES = (
    *(("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D")),
    *(("#E69F00", "v"), ("#56B4E9", "P"), ("#444444", "X")),
)
_MOST_TICKS = 9
_CHARACTERS_AN_INCH = 14
_MOST_CHARACTERS = 40


@dataclasses.dataclass(frozen=True)
class Curve:
    """What one branch of one run gives, round by round.

    Attributes:
        label: for the legend.
        style: colour, marker and line style, as matplotlib's keyword arguments.
        branch: the ticket, or a control.
        rows: a list of `Row`s for each of its rounds.
    """

    label: str
    style: dict
    branch: str
    rows: list

    def points(self, value):
        """`(percentage of weights remaining, Spread)` of `value(row)` by round."""
        pairs = [
            (100 * (1 - _mean([x.sparsity for x in rows])), map(value, rows))
            for rows in self.rows
        ]
        found = [(x, levels_lib.spread(values)) for x, values in pairs]
        return [(x, spread) for x, spread in found if spread and x > 0]


def style(index, dashed=False):
    """The `index`-th way to draw a line, told by colour and marker."""
    colour, marker = _STYLES[index % len(_STYLES)]
    linestyle = "--" if dashed else "-"
    return {"color": colour, "marker": marker, "linestyle": linestyle}


def curves(runs):
    """A `Curve` for each branch of each run, controls dashed."""
    found = []
    for run in runs:
        groups = levels_lib.grouped(run.trained_rows)
        branches = sorted({b for _, b in groups}, key=lambda b: (b != "ticket", b))
        for branch in branches:
            rows = [rows for (_, name), rows in groups.items() if name == branch]
            label = branch_label(branch)
            if len(runs) > 1:
                label += f" ({plain(run.name)})"
            look = style(len(found), dashed=branch != "ticket")
            found.append(Curve(label, look, branch, rows))
    return found


def branch_label(branch):
    """What a branch is called in a legend."""
    return {"ticket": "rewound ticket"}.get(branch, f"control: {branch}")


def plain(text):
    """Text that stands in a figure as it is, whatever is in it.

    A $ would begin a formula; what the font lacks becomes an empty square. The middle
    of a long one is left out.
    """
    known = _characters()
    if len(text) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        text = f"{text[:half]}…{text[-half:]}"
    shown = "".join(x if ord(x) in known else "\u25a1" for x in text)
    return shown.replace("$", r"\$")


@functools.cache
def _characters():
    file = matplotlib.font_manager.findfont("DejaVu Sans")
    return matplotlib.ft2font.FT2Font(file).get_charmap().keys()


def new(width=7.5, height=4.2):
    """An empty figure; sizes in inches."""
    # Not pyplot: it would keep the figure and may ask for a display.
    return matplotlib.figure.Figure(figsize=(width, height), layout="constrained")


def panels(runs, width=5.0, height=4.0, columns=2):
    """A figure with axes for each run, side by side, and the axes by run."""
    columns = min(len(runs), columns)
    lines = -(-len(runs) // columns)
    figure = new(max(7.5, width * columns), height * lines)
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for each in axes[len(runs) :]:
        each.remove()
    if len(runs) > 1:
        for each, run in zip(axes, runs, strict=False):
            each.set_title(plain(run.name), fontsize=10)
    return figure, list(axes[: len(runs)])


def legend_below(figure, title=None):
    """One legend for all axes, where it hides nothing."""
    found = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    # As many columns as there is room for.
    room = _CHARACTERS_AN_INCH * figure.get_figwidth()
    most = int(room / (8 + max(map(len, found), default=0)))
    figure.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=max(1, min(most, len(found))),
        fontsize=9,
        title=title,
        title_fontsize=9,
        frameon=False,
    )


def draw_curves(axes, found, value, scale=1):
    """Draws `scale * value(row)` of `Curve`s against weights remaining, with bars."""
    for curve in found:
        points = curve.points(value)
        several = any(spread.count > 1 for _, spread in points)
        axes.errorbar(
            [x for x, _ in points],
            [scale * spread.mean for _, spread in points],
            [
                [scale * (spread.mean - spread.low) for _, spread in points],
                [scale * (spread.high - spread.mean) for _, spread in points],
            ],
            **curve.style,
            markersize=5,
            capsize=3 if several else 0,
            label=curve.label,
        )
    tickets = [x for curve in found for x, _ in curve.points(value)]
    remaining_axis(axes, tickets)


def remaining_axis(axes, percentages):
    """Makes x the percentage of weights remaining, sparser further right."""
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_xticks(_spaced(sorted(set(percentages), reverse=True)))
    axes.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%.3g"))
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_xlabel("weights remaining (%)")
    axes.grid(alpha=0.3)


def _spaced(percentages):
    """Those of the falling numbers that have room for a tick each on a log axis."""
    if not percentages:
        return []
    span = math.log(percentages[0] / percentages[-1]) or 1
    kept = percentages[:1]
    for x in percentages[1:]:
        if math.log(kept[-1] / x) >= span / _MOST_TICKS:
            kept.append(x)
    return kept


def _mean(values):
    return sum(values) / len(values)


def by_weights_remaining(levels, file):
    """Draws test accuracy (or loss) against weights remaining into `file`.

    Args:
        levels: `analysis.levels.Level`s. The lines are means over replicates, bars
            reach from the lowest to the highest.
        file: path to write, PNG or SVG.
    """
    figure = new(7, 4.2)
    axes = figure.subplots()
    replicates = max((x.replicates for x in levels), default=0)
    has_loss = any(x.measure == "loss" for x in levels)
    scale, name = (1, "test loss") if has_loss else (100, "test accuracy (%)")
    branches = sorted({x.branch for x in levels}, key=lambda b: (b != "ticket", b))
    for index, branch in enumerate(branches):
        points = [x for x in levels if x.branch == branch]
        means = [scale * x.test for x in points]
        # The mean of equal numbers can miss them by a rounding; bars must not be < 0.
        spread = [
            [scale * max(0.0, x.test - x.low) for x in points],
            [scale * max(0.0, x.high - x.test) for x in points],
        ]
        axes.errorbar(
            [100 * x.remaining for x in points],
            means,
            spread,
            **style(index),
            capsize=3 if replicates > 1 else 0,
            label=branch_label(branch),
        )
    dense = next((x for x in levels if x.branch == "ticket" and x.round == 0), None)
    if dense:
        axes.axhline(
            scale * dense.test,
            color="0.5",
            linestyle=":",
            label="dense (round 0)",
        )
    remaining_axis(axes, [100 * x.remaining for x in levels if x.branch == "ticket"])
    axes.set_ylabel(f"{name}\nat the lowest validation loss")
    axes.set_title(
        f"Mean of {replicates} replicates, bars from lowest to highest"
        if replicates > 1
        else "One replicate"
    )
    if branches:
        axes.legend()
    figure.savefig(file, dpi=150)
