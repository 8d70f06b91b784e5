"""The table at the end of a run: a line per round, the controls beside the ticket."""

import importlib.util
import pathlib

import rich.console
import rich.table

from prunetrain.analysis import levels as levels_lib
from prunetrain.analysis import verdict
from prunetrain.runs import results
from prunetrain.runs import workdir as workdirs

# More make the table too wide for a terminal.
_MOST_BESIDE = 2


def print_results(path, console=None):
    """Prints the table of a work directory and says where its files are.

    Draws `accuracy.png` there too (or `loss.png`), if matplotlib is installed.
    """
    path = pathlib.Path(path)
    console = console or rich.console.Console()
    rows = results.read_rows(path)
    levels = levels_lib.by_level(rows)
    controls = sorted({x.branch for x in levels if x.branch != "ticket"})
    if len(controls) <= _MOST_BESIDE:
        console.print(table(levels, controls))
    else:
        console.print(table(levels))
        console.print(controls_table(levels, controls))
    tickets = [x.replicates for x in levels if x.branch == "ticket"]
    replicates = max(tickets, default=0)
    console.print(
        f"{_measure(levels).title()} at the step of the lowest validation loss, mean "
        f"of {replicates} replicate{'s' if replicates != 1 else ''}.",
        highlight=False,
    )
    prune_at = _prune_at(path)
    for line in verdict.of(rows, prune_at).lines:
        console.print(line, highlight=False, markup=False)
    files = ["results.csv", "metrics.jsonl", "tickets/", "checkpoints/", "flags.txt"]
    if importlib.util.find_spec("matplotlib"):
        from prunetrain.analysis import plots

        picture = f"{_measure(levels)}.png"
        with workdirs.told(path / picture) as file:
            trained = [x for x in levels if x.round or prune_at == "end"]
            plots.by_weights_remaining(trained, file)
        files.insert(0, picture)
    else:
        console.print("For a plot: pip install 'prunetrain[report]'", markup=False)
    console.print(f"{path}: {', '.join(files)}", highlight=False, soft_wrap=True)


def _prune_at(path):
    """The setting, or its default for a folder without settings."""
    file = path / "config.json"
    settings = workdirs.read_settings(path) if file.exists() else {}
    return settings.get("prune_at", "end")


def controls_table(levels, controls):
    """`rich` table with a line per round, the ticket and each control in a column."""
    result = rich.table.Table(title=f"Test {_measure(levels)} of tickets and controls")
    result.add_column("round", justify="right")
    by_key = {(x.branch, x.round): x for x in levels}
    for name in ("ticket", *controls):
        result.add_column(name.replace("_", " "), justify="right")
    for round in sorted({x.round for x in levels}):
        found = [by_key.get((name, round)) for name in ("ticket", *controls)]
        result.add_row(
            str(round), *("" if x is None else _shown(x, x.test) for x in found)
        )
    return result


def table(levels, controls=()):
    """`rich` table of `Level`s, the controls named beside the ticket."""
    unit = "%" if _measure(levels) == "accuracy" else "loss"
    result = rich.table.Table(title="Tickets by round")
    for name in (
        "round",
        "weights",
        "left %",
        "best step",
        f"val {unit}",
        f"test {unit}",
        *(f"{control} test {unit}" for control in controls),
    ):
        result.add_column(name, justify="right")
    by_key = {(x.branch, x.round): x for x in levels}
    for ticket in (x for x in levels if x.branch == "ticket"):
        others = [by_key.get((control, ticket.round)) for control in controls]
        result.add_row(
            str(ticket.round),
            f"{ticket.weights_remaining:,.0f}",
            f"{100 * ticket.remaining:.2f}",
            f"{ticket.best_step:,.0f}",
            _shown(ticket, ticket.val),
            _shown(ticket, ticket.test),
            *("" if x is None else _shown(x, x.test) for x in others),
        )
    return result


def _measure(levels):
    return levels[0].measure if levels else "accuracy"


def _shown(level, value):
    return f"{100 * value:.2f}" if level.measure == "accuracy" else f"{value:.4g}"
