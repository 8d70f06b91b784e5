"""Sections on what survives: layer by layer, by initial weight, by input."""

import math

import matplotlib.colors
import numpy as np

from prunetrain.analysis import page, plots
from prunetrain.analysis.sections import each
from prunetrain.errors import InputError

_MOST_CELLS = 200
_MOST_LAYERS = 9
_NO_TICKETS = "tickets/ has no masks of a finished round to show."


def layers(runs):
    """Weights kept in each layer over the rounds."""
    title, blocks = "Sparsity of each layer", []
    kept = {run: _kept_by_round(run) for run in runs}
    blocks += [
        page.Missing(f"{run.name}: {_NO_TICKETS}") for run in runs if not kept[run]
    ]
    drawn = [run for run in runs if kept[run]]
    if not drawn:
        return page.Section(title, blocks)
    height = 1.6 + 0.34 * max(len(_last(kept[run])) + 1 for run in drawn)
    figure, panels = plots.panels(drawn, 9.5, height, columns=1)
    for run, axes in zip(drawn, panels, strict=True):
        _draw_kept(figure, axes, run, kept[run])
    caption = (
        "Weights kept in each layer (%), that is 100 less its sparsity, on a "
        "logarithmic colour scale; means over "
        f"{_replicates(drawn)}. The last line is all layers together, by counts of "
        "weights, not a mean of percentages."
    )
    alt = "Heat map of the percentage of weights kept, by layer and round"
    blocks.append(page.Picture("layers", figure, alt, caption))
    blocks += [_counts_table(run, kept[run], len(runs) > 1) for run in drawn]
    return page.Section(title, blocks)


def totals(layers):
    """`(kept, total)` of all layers together: sums of counts."""
    return sum(x.kept for x in layers), sum(x.total for x in layers)


def initial_weights(runs):
    """Initial weights of the survivors, as in the appendix of Frankle & Carbin 2019."""

    def draw(run, named):
        values = _initial_weights(run)
        if not values:
            raise InputError(
                "checkpoints/ has no replicate…-initial.weights.h5 with a ticket "
                "(older runs wrote none)."
            )
        return _initial_picture(run, values, named, _suffix(run, runs))

    return each.of_runs("Initial weights of the survivors", runs, draw)


def input_pixels(runs):
    """How many live weights each pixel of the input has."""

    def draw(run, named):
        return _pixel_picture(run, _pixels(run), named, _suffix(run, runs))

    return each.of_runs("Surviving input pixels", runs, draw)


def _kept_by_round(run):
    """`{round: [Layers of each replicate]}` of the finished tickets."""
    rounds = sorted({row.round for row in run.rows if row.branch == "ticket"})
    found = {
        round: [x for r in run.finished(round) if (x := run.layers(r, round))]
        for round in rounds
    }
    found = {round: replicates for round, replicates in found.items() if replicates}
    # Tickets of other networks, or damaged ones, cannot be averaged.
    paths = {tuple(x.path for x in layers) for y in found.values() for layers in y}
    return found if len(paths) == 1 else {}


def _last(kept):
    """The layers of one replicate in the last round."""
    return kept[max(kept)][0]


def _fractions(replicates):
    """Mean percentage kept of each layer, then of all together."""
    shares = [
        [
            *(100 * x.kept / x.total if x.total else math.nan for x in layers),
            100 * totals(layers)[0] / totals(layers)[1],
        ]
        for layers in replicates
    ]
    return np.mean(shares, axis=0)


def _draw_kept(figure, axes, run, kept):
    grid = np.stack([_fractions(kept[round]) for round in kept], axis=1)
    alive = grid[grid > 0]
    low = min(alive.min(), 99.0) if alive.size else 1
    norm = matplotlib.colors.LogNorm(low, 100)
    shown = np.ma.masked_where(~(grid > 0), grid)
    image = axes.imshow(shown, cmap="cividis", norm=norm, aspect="auto")
    names = [plots.plain(x.path) for x in _last(kept)]
    axes.set_yticks(range(len(names) + 1), [*names, "all layers"], fontsize=8)
    rounds = [f"{round}\n{run.remaining(round):.3g}" for round in kept]
    every = max(1, len(rounds) // 16)
    axes.set_xticks(range(len(rounds))[::every], rounds[::every], fontsize=8)
    axes.set_xlabel("round, and weights remaining (%)")
    axes.axhline(len(names) - 0.5, color="white", linewidth=2)
    if grid.size <= _MOST_CELLS:
        for (y, x), value in np.ndenumerate(grid):
            dark = value > 0 and norm(value) < 0.5
            colour = "white" if dark else "black"
            text = f"{value:.3g}"
            axes.text(x, y, text, ha="center", va="center", color=colour, fontsize=8)
    bar = figure.colorbar(image, ax=axes, label="weights kept (%)", pad=0.01)
    ticks = [x for x in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= x]
    bar.set_ticks(ticks, labels=[f"{x:g}" for x in ticks])
    bar.minorticks_off()


def _counts_table(run, kept, named):
    """Exact counts of the last round."""
    last = max(kept)
    per_layer = list(zip(*kept[last], strict=True))
    sums = [totals(layers) for layers in kept[last]]
    rows = [
        [x[0].path, "×".join(map(str, x[0].shape)), *_counts(_pairs(x))]
        for x in per_layer
    ]
    rows.append(["all layers", "", *_counts(sums)])
    caption = (
        f"{_of(run, named)}Weights kept in round {last}, the last "
        f"({len(sums)} of its replicates; where they differ, lowest to highest)."
    )
    heading = ("layer", "shape", "kept", "of", "pruned %")
    return page.Table(caption, heading, rows, words=2, groups=(len(rows) - 1,))


def _pairs(layers):
    return [(x.kept, x.total) for x in layers]


def _counts(pairs):
    """Cells: kept, of how many, and the pruned percentage, over replicates."""
    kept = sorted({k for k, _ in pairs})
    total = pairs[0][1]
    ends = sorted({kept[0], kept[-1]})
    return [
        " to ".join(f"{x:,}" for x in ends),
        f"{total:,}",
        " to ".join(f"{100 * (total - x) / total:.2f}" for x in reversed(ends))
        if total
        else "none",
    ]


def _initial_weights(run):
    """`{round: {path: values of all replicates together}}` at the chosen levels."""
    found = {}
    for replicate in run.replicates:
        kernels = run.kernels(f"replicate{replicate}-initial.weights.h5")
        for round in run.chosen if kernels else ():
            is_there = replicate in run.finished(round)
            pairs = run.masks(replicate, round) if is_there else None
            pairs = pairs or []
            fits = [m.shape for _, m in pairs] == [k.shape for k in kernels]
            for kernel, (path, mask) in (
                zip(kernels, pairs, strict=True) if fits else ()
            ):
                by_path = found.setdefault(round, {})
                by_path.setdefault(path, []).append(kernel[mask])
    return {
        round: {path: np.concatenate(parts) for path, parts in by_path.items()}
        for round, by_path in found.items()
    }


def _initial_picture(run, values, named, suffix):
    paths = list(next(iter(values.values())))
    picked = _spread_out(paths, _MOST_LAYERS)
    columns = min(3, len(picked))
    lines = -(-len(picked) // columns)
    figure = plots.new(3.4 * max(columns, 2), 2.9 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in panels[len(picked) :]:
        axes.remove()
    for axes, path in zip(panels, picked, strict=False):
        _draw_distribution(axes, run, path, values)
    plots.legend_below(figure, title="weights remaining")
    left_out = len(paths) - len(picked)
    caption = (
        f"{named}Initial weights (at step 0 of round 0) of "
        "the weights that the masks of a level keep, as density; all replicates "
        "together. Each curve has an area of 1, however few weights are left."
        + (f" {left_out} more layers are left out." if left_out else "")
    )
    alt = "Distribution of the surviving weights' initial values, by layer and level"
    return page.Picture(f"initial-weights{suffix}", figure, alt, caption)


def _draw_distribution(axes, run, path, values):
    every = [x[path] for x in values.values()]
    ends = (
        min(map(np.min, filter(len, every)), default=-1),
        max(map(np.max, filter(len, every)), default=1),
    )
    bins = np.linspace(ends[0], ends[1] if ends[1] > ends[0] else ends[0] + 1, 41)
    for index, round in enumerate(values):
        found = values[round][path]
        if not len(found):
            continue
        density, _ = np.histogram(found, bins, density=True)
        look = {**plots.style(index), "marker": ""}
        look["linestyle"] = ("-", "--", "-.", ":")[index % 4]
        label = f"{run.remaining(round):.3g} %"
        axes.stairs(
            density,
            bins,
            color=look["color"],
            linestyle=look["linestyle"],
            linewidth=1.3,
            label=label,
        )
    axes.set_title(plots.plain(path), fontsize=9)
    axes.set_xlabel("initial weight", fontsize=8)
    axes.set_ylabel("density", fontsize=8)
    axes.tick_params(labelsize=8)


def _spread_out(items, most):
    """At most so many of the items, the first, the last and evenly in between."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _pixels(run):
    """`{round: mean live weights of the first kernel for each pixel}`.

    Raises:
        InputError: the first kernel is not that of a dense layer on an image, or a
            piece is missing.
    """
    levels = [round for round in run.chosen if round] or run.chosen
    first = {
        round: [
            pairs[0][1] for r in run.finished(round) if (pairs := run.masks(r, round))
        ]
        for round in levels
    }
    first = {round: masks for round, masks in first.items() if masks}
    if not first:
        raise InputError(_NO_TICKETS)
    shape, (kernel, *_) = run.shapes[0], next(iter(first.values()))
    if len(shape) not in (2, 3):
        sizes = "×".join(map(str, shape))
        raise InputError(f"the inputs are no images (of shape {sizes}).")
    if kernel.ndim != 2 or len(kernel) != math.prod(shape):
        raise InputError(
            "the first kernel is not that of a Dense layer on all pixels, but of shape "
            f"{'×'.join(map(str, kernel.shape))}."
        )
    return {
        round: np.mean(
            [mask.sum(1).reshape(*shape[:2], -1).sum(2) for mask in masks], axis=0
        )
        for round, masks in first.items()
    }


def _pixel_picture(run, found, named, suffix):
    columns = min(3, len(found))
    lines = -(-len(found) // columns)
    figure = plots.new(3.4 * max(columns, 2), 2.9 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in panels[len(found) :]:
        axes.remove()
    for axes, (round, counts) in zip(panels, found.items(), strict=False):
        image = axes.imshow(counts, cmap="cividis", vmin=0, vmax=max(counts.max(), 1))
        axes.set_title(f"{run.remaining(round):.3g} % of weights", fontsize=9)
        axes.set_xlabel("pixel", fontsize=8)
        axes.tick_params(labelsize=8)
        bar = figure.colorbar(image, ax=axes)
        bar.set_label("live weights per pixel", fontsize=8)
        bar.ax.tick_params(labelsize=8)
    dead = ", ".join(
        f"{100 * np.mean(counts == 0):.0f} % at {run.remaining(round):.3g} %"
        for round, counts in found.items()
    )
    most = max(len(run.finished(round)) for round in found)
    over = "one replicate" if most == 1 else f"{most} replicates"
    caption = (
        f"{named}Weights of the first layer that are left "
        f"for each input pixel (channels together), mean of {over}; each panel has "
        f"its own scale. Pixels without any: {dead}."
    )
    alt = "Images of the number of live weights for each input pixel, by level"
    return page.Picture(f"input-pixels{suffix}", figure, alt, caption)


def _replicates(runs):
    counts = {run.name: len(run.replicates) for run in runs}
    return ", ".join(
        f"{n} replicate{'s' if n != 1 else ''}"
        + (f" of {name}" if len(runs) > 1 else "")
        for name, n in counts.items()
    )


def _of(run, named):
    return f"{run.name}. " if named else ""


def _suffix(run, runs):
    """What tells a run's figures from those of others, as a part of a file's name."""
    if len(runs) == 1:
        return ""
    # Names of folders may differ in what no name of a file should hold.
    name = "".join(x if x.isascii() and x.isalnum() else "-" for x in run.name[-40:])
    return f"-{1 + runs.index(run)}-{name}"
