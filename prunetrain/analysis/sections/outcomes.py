"""Sections on what the trainings came to: accuracy, early stop, tables of it."""

import operator

from prunetrain.analysis import levels as levels_lib
from prunetrain.analysis import page, plots

_NO_ROWS = "results.csv has no finished training to show."
_BARS = "Bars reach from the lowest to the highest."


def accuracy(runs):
    """Figure 4 of Frankle & Carbin 2019: accuracy at early stop and at the end."""
    (measure, scale, name), curves = _measured(runs), plots.curves(runs)
    title = f"Test {measure} against weights remaining"
    if not curves:
        return page.Section(title, [page.Missing(_NO_ROWS)])
    figure = plots.new(10, 4.4)
    columns = {
        f"test_{measure}": "early stop",
        f"final_test_{measure}": "the last step",
    }
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (column, when) in zip(panels, columns.items(), strict=True):
        plots.draw_curves(axes, curves, operator.attrgetter(column), scale)
        _draw_dense(axes, curves, operator.attrgetter(column), scale)
        axes.set_title(f"at {when}", fontsize=10)
    panels[0].set_ylabel(f"test {name}")
    plots.legend_below(figure)
    caption = (
        f"Test {measure} of tickets and controls, at the step of the lowest validation "
        f"loss (left) and at the last step of training (right). {averaged(runs)}"
        f"{_dotted(curves)}"
    )
    alt = f"Test {measure} against weights remaining, a line for each of {_all(curves)}"
    return page.Section(title, [page.Picture("accuracy", figure, alt, caption)])


def early_stop(runs):
    """When the validation loss was lowest."""
    title, curves = "Early-stop step against weights remaining", plots.curves(runs)
    if not curves:
        return page.Section(title, [page.Missing(_NO_ROWS)])
    figure = plots.new()
    axes = figure.subplots()
    plots.draw_curves(axes, curves, operator.attrgetter("best_step"))
    _draw_dense(axes, curves, operator.attrgetter("best_step"))
    axes.set_ylabel("step of the lowest validation loss")
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    plots.legend_below(figure)
    caption = (
        "Step (batches trained on) at which the validation loss was lowest; lower is "
        f"faster. {averaged(runs)}{_dotted(curves)} A step can only be one at which "
        f"the run evaluated{_every(runs)}."
    )
    alt = (
        f"Early-stop step against weights remaining, a line for each of {_all(curves)}"
    )
    return page.Section(title, [page.Picture("early-stop", figure, alt, caption)])


def training(runs):
    """Figure 3 of Frankle & Carbin 2019: accuracy along training, by level."""
    measure, scale, name = _measured(runs)
    title = f"{measure.capitalize()} along training"
    split = "test" if all(map(_has_tests, runs)) else "validation"
    drawn = [run for run in runs if _along(run, split, measure)]
    if not drawn:
        missing = "metrics.jsonl has no evaluation of a finished training to show."
        return page.Section(title, [page.Missing(missing)])
    figure, panels = plots.panels(drawn, width=5.6, height=4.4)
    for run, axes in zip(drawn, panels, strict=True):
        _draw_training(axes, run, split, measure, scale)
        axes.set_xlabel("training step")
        axes.set_ylabel(f"{split} {name}")
        axes.grid(alpha=0.3)
        # Long enough to tell dashes from dashes and dots.
        axes.legend(
            fontsize=8, title="weights remaining", title_fontsize=8, handlelength=4
        )
    _share_range(panels)
    why = (
        ""
        if split == "test"
        else " Test accuracy was not logged along training (--test_every), so this is "
        "validation accuracy."
    )
    caption = (
        f"{split.capitalize()} {measure} along training, tickets of some levels "
        "(--levels chooses); broken lines: the controls of the same level, in its "
        "colour. "
        f"{averaged(runs, bars='Bands reach from the lowest to the highest.')} The "
        f"vertical axis leaves out the first steps.{why}"
    )
    alt = f"{split.capitalize()} {measure} against training step, a line per level"
    return page.Section(title, [page.Picture("training", figure, alt, caption)])


def pruning(runs):
    """Accuracy before pruning, after it, and after training again."""
    title = "What pruning costs and training wins back"
    measure, scale, name = _measured(runs)
    found = {run: _pruned(run, measure) for run in runs}
    drawn = [run for run in runs if found[run]]
    blocks = [
        page.Missing(f"{run.name}: {_why_not_pruned(run)}")
        for run in runs
        if not found[run]
    ]
    if not drawn:
        return page.Section(title, blocks)
    figure, panels = plots.panels(drawn)
    for run, axes in zip(drawn, panels, strict=True):
        for index, label in enumerate(_MOMENTS):
            points = [(x, spreads[index]) for _, x, spreads in found[run]]
            _draw_points(axes, points, plots.style(index), label, scale)
        plots.remaining_axis(axes, [x for _, x, _ in found[run]])
        axes.set_xlabel("weights remaining after pruning (%)")
        axes.set_ylabel(f"validation {name}")
    plots.legend_below(figure)
    caption = (
        "At each pruning: the trained ticket before it; the same weights under the "
        "next round's masks, before anything is rewound; and the next round's ticket "
        f"at the end of its training. Validation examples. {averaged(runs, False)}"
    )
    alt = f"Validation {measure} before pruning, after it and after training again"
    rows = [
        [
            *([run.name] if len(runs) > 1 else []),
            f"{round} → {round + 1}",
            f"{remaining:.2f}",
            *(_shown(spread, measure) for spread in spreads),
        ]
        for run in drawn
        for round, remaining, spreads in found[run]
    ]
    heading = (
        *(["run"] if len(runs) > 1 else []),
        *("rounds", "weights left %"),
        *(f"{label} ({_unit(measure)})" for label in _MOMENTS),
    )
    table = page.Table("The same as numbers: mean (lowest to highest).", heading, rows)
    blocks += [page.Picture("pruning", figure, alt, caption)]
    return page.Section(title, [*blocks, page.Folded("As a table", [table])])


_MOMENTS = ("before pruning", "after pruning", "trained again")


def table(runs):
    """Everything of results.csv by level."""
    title, blocks = "Table of rounds", []
    measure, _, _ = _measured(runs)
    unit = _unit(measure)
    heading = (
        *("round", "branch", "trainings", "weights", "left %", "early-stop step"),
        *(f"val {unit}, early stop", f"test {unit}, early stop"),
        *(f"test {unit}, last step", "seconds"),
    )
    for run in runs:
        found = levels_lib.grouped(run.rows)
        rows = [_cells(*key, of_level, measure) for key, of_level in found.items()]
        if not rows:
            blocks.append(page.Missing(f"{run.name}: {_NO_ROWS}"))
            continue
        caption = (
            f"{run.name + '. ' if len(runs) > 1 else ''}Means over replicates (and a "
            "control's draws together) ± sample standard deviation, with the lowest to "
            "highest in parentheses; single numbers where there is one training. "
            "Seconds are the mean of one training."
        )
        groups = tuple(i for i, row in enumerate(rows) if row[1] == "ticket")
        blocks.append(page.Table(caption, heading, rows, words=2, groups=groups))
    return page.Section(title, blocks)


def averaged(runs, controls=True, bars=_BARS):
    """What the figures' points are means of, and what the bars are."""
    parts, several = [], False
    for run in runs:
        counts = {}
        for row in run.rows:
            name = levels_lib.control_of(row.branch)
            counts.setdefault(name, {}).setdefault(row.round, []).append(row)
        most = {name: max(map(len, x.values())) for name, x in counts.items()}
        several |= any(number > 1 for number in most.values())
        text = _plural(most.pop("ticket", 0), "replicate")
        if controls and most:
            text += ", " + ", ".join(
                f"{_plural(number, 'training')} of {name}"
                for name, number in sorted(most.items())
            )
        parts.append(text if len(runs) == 1 else f"{run.name}: {text}")
    counted = "; ".join(parts)
    if not several:
        return f"One training each ({counted}): no means, no bars."
    draws = ", draws of a control together" if controls else ""
    return f"Means over replicates{draws} ({counted}). {bars}"


def _plural(number, word):
    return f"{number} {word}{'' if number == 1 else 's'}"


def _all(curves):
    return ", ".join(curve.label for curve in curves)


def _every(runs):
    """How often the runs evaluate, where they agree."""
    found = {run.settings.get("eval_every") for run in runs}
    (every,) = found if len(found) == 1 else (None,)
    return f", every {every} steps" if every else ""


def _measured(runs):
    """What the runs are compared by, its scale, and its name on an axis."""
    measure = levels_lib.measure([row for run in runs for row in run.rows])
    return (measure, 1, "loss") if measure == "loss" else (measure, 100, "accuracy (%)")


def _unit(measure):
    return "%" if measure == "accuracy" else "loss"


def _dotted(curves):
    has_dense = any(not rows[0].round for curve in curves for rows in curve.rows)
    return " Dotted: the dense network." if has_dense else ""


def _draw_dense(axes, curves, value, scale=1):
    """A line across for each run's dense network."""
    tickets = [curve for curve in curves if curve.branch == "ticket"]
    for curve in tickets:
        dense = [rows for rows in curve.rows if not rows[0].round]
        spread = dense and levels_lib.spread(map(value, dense[0]))
        if spread:
            colour = curve.style["color"] if len(tickets) > 1 else "0.5"
            label = "dense (round 0)" if curve is tickets[0] else None
            y = scale * spread.mean
            axes.axhline(y, color=colour, linestyle=":", label=label)


def _draw_points(axes, points, style, label, scale):
    """A line with bars through `(x, Spread)`; what is None is left out."""
    points = [(x, spread) for x, spread in points if spread]
    below = [scale * (spread.mean - spread.low) for _, spread in points]
    above = [scale * (spread.high - spread.mean) for _, spread in points]
    capsize = 3 if any(spread.count > 1 for _, spread in points) else 0
    means = [scale * spread.mean for _, spread in points]
    x = [x for x, _ in points]
    axes.errorbar(x, means, [below, above], **style, capsize=capsize, label=label)


def _has_tests(run):
    return any(
        (x["split"], x["phase"]) == ("test", "training") for x in run.evaluations
    )


def _along(run, split, measure):
    """`{(round, branch): {step: [value, …]}}` along training, at the chosen levels."""
    found, chosen = {}, run.chosen
    for line in run.evaluations:
        value = line.get(measure)
        if (
            line["split"] == split
            and line["phase"] in ("start", "training", "end")
            and value is not None
            and line["round"] in chosen
        ):
            key = line["round"], levels_lib.control_of(line["branch"])
            found.setdefault(key, {}).setdefault(line["step"], []).append(value)
    return found


def _draw_training(axes, run, split, measure, scale):
    """A line for each chosen level, with a band, and its controls dashed."""
    found = _along(run, split, measure)
    for index, round in enumerate(run.chosen):
        branches = sorted({b for r, b in found if r == round} - {"ticket"})
        for number, branch in enumerate(["ticket", *branches]):
            values = found.get((round, branch), {})
            points = [(s, levels_lib.spread(values[s])) for s in sorted(values)]
            points = [(step, spread) for step, spread in points if spread]
            if not points:
                continue
            label = f"{run.remaining(round):.3g} %"
            dashes = ("-", "--", "-.", ":")[min(number, 3)]
            look = {**plots.style(index), "linestyle": dashes}
            steps = [step for step, _ in points]
            axes.plot(
                steps,
                [scale * spread.mean for _, spread in points],
                **look,
                markevery=max(1, len(points) // 8),
                markersize=4,
                linewidth=1.2,
                label=label if branch == "ticket" else f"{label}, {branch}",
            )
            if branch == "ticket":
                low = [scale * spread.low for _, spread in points]
                high = [scale * spread.high for _, spread in points]
                axes.fill_between(steps, low, high, color=look["color"], alpha=0.15)


def _share_range(panels):
    """The same vertical range for all, in which the first steps do not count."""
    lines = [line.get_xydata() for axes in panels for line in axes.get_lines()]
    shown = [y for line in lines for x, y in line if 10 * x >= line[-1][0]]
    low, high = min(shown), max(shown)
    margin = 0.05 * (high - low) or 1
    for axes in panels:
        axes.set_ylim(low - margin, high + margin)


def _pruned(run, measure):
    """`(round, weights remaining %, Spreads by moment)` of each pruning on record."""
    found = {}
    for line in run.evaluations:
        if (line["branch"], line["split"]) == ("ticket", "validation"):
            key = line["round"], line["phase"]
            found.setdefault(key, []).append(line.get(measure))
    return [
        (round, run.remaining(round + 1), spreads)
        for round in sorted({r for r, phase in found if phase == "pruned"})
        if run.finished(round + 1)
        and all(
            spreads := [
                levels_lib.spread(found.get(key, []))
                for key in (
                    *((round, "end"), (round, "pruned")),
                    (round + 1, "end"),
                )
            ]
        )
    ]


def _why_not_pruned(run):
    at = run.settings.get("prune_at", "end")
    if at != "end":
        return f"masks are not made from trained weights (prune_at={at})."
    return 'metrics.jsonl has no lines of the phase "pruned" with a round after them.'


def _cells(round, branch, rows, measure):
    """The cells of one line of the table."""
    weights = levels_lib.spread(row.weights_remaining for row in rows)
    left = levels_lib.spread(100 * (1 - row.sparsity) for row in rows)
    steps = levels_lib.spread(row.best_step for row in rows)
    seconds = levels_lib.spread(row.train_seconds for row in rows)
    columns = (f"val_{measure}", f"test_{measure}", f"final_test_{measure}")
    return [
        str(round),
        branch,
        str(len(rows)),
        f"{weights.mean:,.0f}",
        f"{left.mean:.2f}",
        _with_range(steps, "{:,.0f}"),
        *(
            _shown(levels_lib.spread(getattr(row, x) for row in rows), measure)
            for x in columns
        ),
        f"{seconds.mean:,.1f}",
    ]


def _shown(spread, measure):
    """Mean ± deviation (low to high), in per cent for an accuracy."""
    if measure == "accuracy":
        return _with_range(spread, "{:.2f}", 100)
    return _with_range(spread, "{:.4g}")


def _with_range(spread, form, scale=1):
    if spread is None:
        return "none"
    mean, low, high = (
        form.format(scale * x) for x in (spread.mean, spread.low, spread.high)
    )
    if spread.count == 1:
        return mean
    # Broken, if at all, before the parenthesis.
    deviation = form.format(scale * spread.deviation)
    return f"{mean}\u00a0±\u00a0{deviation} ({low}\u00a0to\u00a0{high})"
