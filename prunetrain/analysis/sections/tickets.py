"""Sections on what tickets are: against dense and controls, alike, moved, connected."""

import itertools
import statistics

import numpy as np

from prunetrain.analysis import levels as levels_lib
from prunetrain.analysis import overlap, page, paths, plots, travel, verdict
from prunetrain.errors import InputError
from prunetrain.runs import barriers

_MOST_PAIRS = 45


def against(runs):
    """Each level's tickets against dense and controls, with intervals."""
    blocks = []
    for run in runs:
        named = f"{run.name}. " if len(runs) > 1 else ""
        compared = verdict.comparisons(run.rows)
        if run.verdict.level is None:
            blocks.append(page.Missing(f"{named}{run.verdict.lines[0]}"))
            continue
        names = sorted({name for x in compared for name in x.controls})
        scale, form = (
            (100, "{:+.2f}") if compared[0].measure == "accuracy" else (1, "{:+.4g}")
        )
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
        unit = (
            "points" if compared[0].measure == "accuracy" else "loss, above 0 is lower"
        )
        heading = (
            *("round", "weights left %", f"ticket less dense ({unit})"),
            *(f"ticket less {name}" for name in names),
            "early stop ÷ dense's",
        )
        caption = (
            f"{named}Differences of test {compared[0].measure} at early stop: mean "
            f"[{verdict.LEVEL_OF_CONFIDENCE:.0%} interval], paired by replicate. ▲ and "
            "▼: 0 lies outside. Of many intervals some miss by chance."
        )
        blocks.append(page.Table(caption, heading, rows))
    return page.Section("Tickets against dense networks and controls", blocks)


def alike(runs):
    """How much of their masks the tickets of different replicates share."""
    blocks = []
    for run in runs:
        named = f"{run.name}. " if len(runs) > 1 else ""
        found = _overlaps(run)
        if not found:
            why = "masks are compared between replicates, of which it takes two."
            blocks.append(page.Missing(f"{named}{why}"))
            continue
        rows, groups = [], []
        for round, layers in found.items():
            groups.append(len(rows))
            for path, pairs in layers.items():
                rows.append(_overlap_cells(run, round, path, pairs))
        heading = (
            *("layer", "weights left %", "kept by each", "kept by both"),
            *("by chance", "± deviation", "ratio"),
        )
        caption = (
            f"{named}Weights that the tickets of two replicates have in common, mean "
            "over pairs, beside what random masks with as many weights in each layer "
            "would have (hypergeometric). Replicates differ in initial weights and in "
            "the order of the data, so there is no reason why the same weights of "
            "hidden layers should stay; of the first layer some inputs matter more. "
            "Masks of later rounds lie within those of earlier ones."
        )
        blocks.append(page.Table(caption, heading, rows, groups=tuple(groups)))
    return page.Section("Overlap of tickets between replicates", blocks)


def moved(runs):
    """Signs that changed and distance travelled of the surviving weights."""
    blocks = []
    for run in runs:
        named = f"{run.name}. " if len(runs) > 1 else ""
        try:
            found = _travels(run)
        except InputError as error:
            blocks.append(page.Missing(f"{named}{error}"))
            continue
        if not found:
            why = "checkpoints/ lacks initial weights (older runs wrote none) or final."
            blocks.append(page.Missing(f"{named}{why}"))
            continue
        rows, groups = [], []
        for round, layers in found.items():
            groups.append(len(rows))
            rows += [
                [
                    path,
                    f"{run.remaining(round):.2f}",
                    f"{statistics.fmean(x.kept for x in each):,.0f}",
                    f"{100 * statistics.fmean(x.flipped_share for x in each):.2f}",
                    f"{statistics.fmean(x.distance for x in each):.3g}",
                    f"{statistics.fmean(x.relative_distance for x in each):.3g}",
                ]
                for path, each in layers.items()
            ]
        heading = (
            *("layer", "weights left %", "weights", "signs changed %"),
            *("distance (L2)", "÷ norm at step 0"),
        )
        caption = (
            f"{named}What training, from step 0 to its last step, did to the weights "
            "that a level keeps; means over replicates."
        )
        blocks.append(page.Table(caption, heading, rows, groups=tuple(groups)))
    return page.Section("Signs changed and distance travelled", blocks)


def effective(runs):
    """Weights on a path from input to output, and dead units."""
    blocks = []
    for run in runs:
        named = f"{run.name}. " if len(runs) > 1 else ""
        try:
            rows, groups = _effective_rows(run)
        except (InputError, ValueError) as error:
            blocks.append(page.Missing(f"{named}{error}"))
            continue
        heading = (
            *("layer", "weights left %", "kept", "on a path"),
            *("without a path", "dead units", "of"),
        )
        caption = (
            f"{named}Weights that lie on a path from an input to an output, and "
            "outputs of each layer (units, channels) that no such weight leads to; "
            "means over replicates. What has no path can be removed; a dead unit's "
            "bias may still add a constant."
        )
        blocks.append(page.Table(caption, heading, rows, groups=groups))
    return page.Section("Effective sparsity and dead units", blocks)


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
        each = [x for r in run.finished(round) if (x := run.masks(r, round))]
        pairs = list(itertools.combinations(each, 2))[:_MOST_PAIRS]
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


def _overlap_cells(run, round, path, pairs):
    both, expected, deviation = (
        statistics.fmean(getattr(x, name) for x in pairs)
        for name in ("both", "expected", "deviation")
    )
    return [
        path,
        f"{run.remaining(round):.2f}",
        f"{statistics.fmean(x.kept_first for x in pairs):,.0f}",
        f"{both:,.1f}",
        f"{expected:,.1f}",
        f"{deviation:,.1f}",
        f"{both / expected:.2f}" if expected else "",
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


def _effective_rows(run):
    pruned, rows, groups = run.pruned, [], []
    axes = paths.output_axes(pruned)
    for round in run.chosen:
        layers = {}
        for replicate in run.finished(round):
            pairs = run.masks(replicate, round)
            if not pairs:
                continue
            masks = [mask for _, mask in pairs]
            alive = paths.effective_masks(pruned, masks)
            units = paths.dead_units([np.zeros_like(mask) for mask in masks], axes)
            for (path, mask), left, dead, all in zip(
                pairs, alive, paths.dead_units(alive, axes), units, strict=True
            ):
                counts = int(mask.sum()), int(left.sum()), dead, all
                layers.setdefault(path, []).append(counts)
        groups.append(len(rows))
        for path, counts in layers.items():
            kept, left, dead, all = map(statistics.fmean, zip(*counts, strict=True))
            rows.append(
                [
                    *(path, f"{run.remaining(round):.2f}", f"{kept:,.0f}"),
                    *(f"{left:,.0f}", f"{kept - left:,.1f}", f"{dead:,.1f}"),
                    f"{all:,.0f}",
                ]
            )
    return rows, tuple(groups)


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
