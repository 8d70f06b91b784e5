"""Sections on what tickets are: against dense and controls, alike, moved, connected."""

import itertools
import statistics

import numpy as np

from prunetrain.analysis import levels as levels_lib
from prunetrain.analysis import overlap, page, paths, plots, travel, verdict
from prunetrain.analysis.sections import each
from prunetrain.errors import InputError
from prunetrain.runs import barriers

_MOST_PAIRS = 45


def against(runs):
    """Each level's tickets against dense and controls, with intervals."""
    title = "Tickets against dense networks and controls"
    return each.of_runs(title, runs, _against)


def alike(runs):
    """How much of their masks the tickets of different replicates share."""
    return each.of_runs("Overlap of tickets between replicates", runs, _alike)


def moved(runs):
    """Signs that changed and distance travelled of the surviving weights."""
    return each.of_runs("Signs changed and distance travelled", runs, _moved)


def effective(runs):
    """Weights on a path from input to output, and dead units."""
    return each.of_runs("Effective sparsity and dead units", runs, _effective)


def instability(runs):
    """Barriers between children of step k, where they were measured."""
    found = {run: _barriers(run) for run in runs}
    drawn = [run for run in runs if found[run]]
    if not drawn:
        return None
    figure, panels = plots.panels(drawn)
    for run, axes in zip(drawn, panels, strict=True):
        _draw_barriers(axes, found[run])
    plots.legend_below(figure)
    caption = (
        "Two children of the network at step k, trained with different orders of the "
        "data; the barrier is the largest test error (or loss) on the straight line "
        "between them, less the mean of theirs. Means over replicates, bars from the "
        f"lowest to the highest. Dotted: {100 * barriers.STABLE:g} %, below which "
        "Frankle et al. 2020 call a network stable."
    )
    alt = "Barrier between two children against the step at which they part"
    return page.Section(
        "Instability", [page.Picture("instability", figure, alt, caption)]
    )


def _against(run, named):
    if run.verdict.level is None:
        raise InputError(run.verdict.lines[0])
    compared = verdict.comparisons(run.rows)
    names = sorted({name for x in compared for name in x.controls})
    measure = compared[0].measure
    scale, form, unit = {
        "accuracy": (100, "{:+.2f}", "points"),
        "loss": (1, "{:+.4g}", "loss, above 0 is lower"),
    }[measure]
    rows = [
        [
            str(x.round),
            f"{100 * x.remaining:.2f}",
            _gap(x.gap, scale, form),
            *(_gap(x.controls.get(name), scale, form) for name in names),
            f"{x.steps / x.dense_steps:.2f}" if x.dense_steps else "",
        ]
        for x in compared
    ]
    heading = (
        *("round", "weights left %", f"ticket less dense ({unit})"),
        *(f"ticket less {name}" for name in names),
        "early stop ÷ dense's",
    )
    caption = (
        f"{named}Differences of test {measure} at early stop: mean "
        f"[{verdict.LEVEL_OF_CONFIDENCE:.0%} interval], paired by replicate. ▲ and ▼: "
        "0 lies outside. Of many intervals some miss by chance."
    )
    return page.Table(caption, heading, rows)


def _alike(run, named):
    found = _overlaps(run)
    if not found:
        raise InputError(
            "masks are compared between replicates, of which it takes two."
        )
    heading = (
        *("layer", "weights left %", "kept by each", "kept by both"),
        *("by chance", "± deviation", "ratio"),
    )
    caption = (
        f"{named}Weights that the tickets of two replicates have in common, mean over "
        "pairs, beside what random masks with as many weights in each layer would have "
        "(hypergeometric). Replicates differ in initial weights and in the order of "
        "the data. Masks of later rounds lie within those of earlier ones."
    )
    return _by_round(run, caption, heading, found, _overlap_cells)


def _moved(run, named):
    found = _travels(run)
    if not found:
        raise InputError(
            "checkpoints/ lacks initial weights (older runs wrote none) or final ones."
        )
    heading = (
        *("layer", "weights left %", "weights", "signs changed %"),
        *("distance (L2)", "÷ norm at step 0"),
    )
    caption = (
        f"{named}What training, from step 0 to its last step, did to the weights that "
        "a level keeps; means over replicates."
    )
    return _by_round(run, caption, heading, found, _travel_cells)


def _effective(run, named):
    try:
        found = _effective_counts(run)
    except ValueError as error:
        raise InputError(str(error)) from error
    heading = (
        *("layer", "weights left %", "kept", "on a path"),
        *("without a path", "dead units", "of"),
    )
    caption = (
        f"{named}Weights that lie on a path from an input to an output, and outputs of "
        "each layer (units, channels) that no such weight leads to; means over "
        "replicates. What has no path can be removed; a dead unit's bias may still add "
        "a constant."
    )
    return _by_round(run, caption, heading, found, _effective_cells)


def _by_round(run, caption, heading, found, cells):
    """A table with a line per round and layer.

    Args:
        found: `{round: {layer: list}}`.
        cells: from such a list to the cells behind layer and weights left.
    """
    rows, groups = [], []
    for round, layers in found.items():
        groups.append(len(rows))
        left = f"{run.remaining(round):.2f}"
        rows += [[path, left, *cells(of_layer)] for path, of_layer in layers.items()]
    return page.Table(caption, heading, rows, groups=tuple(groups))


def _gap(gap, scale, form):
    if gap is None:
        return ""
    mean, *ends = (
        form.format(scale * x) for x in (gap.mean, gap.low or 0, gap.high or 0)
    )
    if gap.low is None:
        return mean
    # Broken, if at all, before the bracket.
    mark = {1: "\u00a0▲", -1: "\u00a0▼", 0: ""}[gap.sign]
    interval = ",\u00a0".join(ends)
    return f"{mean} [{interval}]{mark}"


def _overlaps(run):
    """`{round: {layer: [Overlap of each pair]}}` at the chosen levels."""
    found = {}
    for round in (x for x in run.chosen if x):
        every = [x for r in run.finished(round) if (x := run.masks(r, round))]
        pairs = list(itertools.combinations(every, 2))[:_MOST_PAIRS]
        layers = {}
        for first, second in pairs:
            masks = ([mask for _, mask in x] for x in (first, second))
            parts = overlap.overlap(*masks)
            for (path, _), part in zip(first, parts, strict=True):
                layers.setdefault(path, []).append(part)
            layers.setdefault("all layers", []).append(overlap.combined(parts))
        if layers:
            found[round] = layers
    return found


def _overlap_cells(pairs):
    kept, both, expected, deviation = (
        statistics.fmean(getattr(x, name) for x in pairs)
        for name in ("kept_first", "both", "expected", "deviation")
    )
    ratio = f"{both / expected:.2f}" if expected else ""
    return [
        f"{kept:,.0f}",
        f"{both:,.1f}",
        f"{expected:,.1f}",
        f"{deviation:,.1f}",
        ratio,
    ]


def _travels(run):
    """`{round: {layer: [Travel of each replicate]}}` at the chosen levels."""
    found = {}
    for replicate in run.replicates:
        initial = run.kernels(f"replicate{replicate}-initial.weights.h5")
        for round in run.chosen if initial else ():
            if replicate not in run.finished(round):
                continue
            name = f"replicate{replicate}-ticket-round{round:02d}.weights.h5"
            final, pairs = run.kernels(name), run.masks(replicate, round)
            if not final or not pairs:
                continue
            layers = found.setdefault(round, {})
            parts = travel.travel(initial, final, [mask for _, mask in pairs])
            for (path, _), part in zip(pairs, parts, strict=True):
                layers.setdefault(path, []).append(part)
    return {round: found[round] for round in sorted(found)}


def _travel_cells(travels):
    kept, flipped, distance, relative = (
        statistics.fmean(getattr(x, name) for x in travels)
        for name in ("kept", "flipped_share", "distance", "relative_distance")
    )
    return [
        f"{kept:,.0f}",
        f"{100 * flipped:.2f}",
        f"{distance:.3g}",
        f"{relative:.3g}",
    ]


def _effective_counts(run):
    """`{round: {layer: [(kept, on a path, dead units, units) of each replicate]}}`."""
    axes, found = paths.output_axes(run.pruned), {}
    for round in run.chosen:
        every = [x for r in run.finished(round) if (x := run.masks(r, round))]
        for pairs in every:
            masks = [mask for _, mask in pairs]
            alive = paths.effective_masks(run.pruned, masks)
            dead = paths.dead_units(alive, axes)
            units = paths.dead_units([np.zeros_like(mask) for mask in masks], axes)
            counts = [[int(x.sum()) for x in part] for part in (masks, alive)]
            for (path, _), *numbers in zip(pairs, *counts, dead, units, strict=True):
                found.setdefault(round, {}).setdefault(path, []).append(numbers)
    return found


def _effective_cells(counts):
    kept, left, dead, units = map(statistics.fmean, zip(*counts, strict=True))
    cells = [f"{kept:,.0f}", f"{left:,.0f}", f"{kept - left:,.1f}"]
    return [*cells, f"{dead:,.1f}", f"{units:,.0f}"]


def _barriers(run):
    """`{round: [Rows]}` of instability.csv."""
    found = {}
    for row in run.barriers:
        found.setdefault(row.round, []).append(row)
    return found


def _draw_barriers(axes, found):
    has_error = all(row.errors for rows in found.values() for row in rows)
    steps = set()
    for index, (round, rows) in enumerate(sorted(found.items())):
        points = []
        for step in sorted({row.step for row in rows}):
            mine = [row for row in rows if row.step == step]
            heights = [
                100 * x.error_barrier if has_error else x.loss_barrier for x in mine
            ]
            points.append((step, levels_lib.spread(heights)))
        steps |= {step for step, _ in points}
        axes.errorbar(
            [step for step, _ in points],
            [spread.mean for _, spread in points],
            [
                [spread.mean - spread.low for _, spread in points],
                [spread.high - spread.mean for _, spread in points],
            ],
            **plots.style(index),
            capsize=3,
            markersize=5,
            label=f"ticket of round {round}" if round else "dense",
        )
    if has_error:
        axes.axhline(100 * barriers.STABLE, color="0.5", linestyle=":", label="stable")
    near = max(1, min(steps - {0}, default=1))
    axes.set_xscale("symlog", linthresh=near)
    axes.set_xlim(-near / 4, 1.3 * max(*steps, near))
    axes.set_xticks(sorted(steps), [f"{step:,}" for step in sorted(steps)])
    axes.minorticks_off()
    axes.set_xlabel("step k at which the children part")
    what = "test error (points)" if has_error else "test loss"
    axes.set_ylabel(f"barrier of the {what}")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
