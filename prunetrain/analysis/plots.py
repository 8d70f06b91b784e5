"""Pictures of a work directory, by matplotlib."""

import matplotlib.figure
import matplotlib.ticker

# Colours that the colour-blind tell apart (Okabe & Ito), with markers besides.
_STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"))


def by_weights_remaining(levels, file):
    """Draws test accuracy (or loss) against weights remaining into `file`.

    Args:
        levels: `analysis.levels.Level`s. The lines are means over replicates, bars
            reach from the lowest to the highest.
        file: path to write, PNG or SVG.
    """
    # Not pyplot: it would keep the figure and may ask for a display.
    figure = matplotlib.figure.Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    replicates = max((x.replicates for x in levels), default=0)
    has_loss = any(x.measure == "loss" for x in levels)
    scale, name = (1, "test loss") if has_loss else (100, "test accuracy (%)")
    branches = sorted({x.branch for x in levels}, key=lambda b: (b != "ticket", b))
    for branch, (colour, marker) in zip(
        branches, _STYLES * len(branches), strict=False
    ):
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
            color=colour,
            marker=marker,
            capsize=3 if replicates > 1 else 0,
            label={"ticket": "rewound ticket"}.get(branch, f"control: {branch}"),
        )
    dense = next((x for x in levels if x.branch == "ticket" and x.round == 0), None)
    if dense:
        axes.axhline(
            scale * dense.test,
            color="0.5",
            linestyle=":",
            label="dense (round 0)",
        )
    axes.set_xscale("log")
    axes.invert_xaxis()
    ticks = [100 * x.remaining for x in levels if x.branch == "ticket"]
    axes.set_xticks(ticks[:: max(1, len(ticks) // 8)])
    axes.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%.3g"))
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_xlabel("weights remaining (%)")
    axes.set_ylabel(f"{name}\nat the lowest validation loss")
    axes.set_title(
        f"Mean of {replicates} replicates, bars from lowest to highest"
        if replicates > 1
        else "One replicate"
    )
    axes.grid(alpha=0.3)
    if branches:
        axes.legend()
    figure.savefig(file, dpi=150)
