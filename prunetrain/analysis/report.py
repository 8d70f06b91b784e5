"""Draws a report of one or more runs: an HTML file, and its figures as PNG.

    prunetrain report runs/paper
    prunetrain report runs/a runs/b --output=compared

The page needs no network and no other file. Of a run that is not finished, or whose
folder is damaged, it shows what there is and says what is missing. A run may go on
meanwhile: nothing is written outside of the report's folder.
"""

import argparse
import importlib.util
import math
import pathlib

from prunetrain import commands
from prunetrain.analysis import levels as levels_lib
from prunetrain.analysis import reading
from prunetrain.errors import InputError
from prunetrain.runs import files
from prunetrain.runs import workdir as workdirs


def command(words, start):
    """`prunetrain report WORKDIR …`: see the module's docstring."""
    parser = commands.Parser("report", __doc__)
    parser.add_argument("workdir", nargs="+", help="work directory of a run")
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        help="where to write; default: report/ in the work directory, or in the "
        "present folder if there are several",
    )
    parser.add_argument(
        "--levels",
        type=_levels,
        default=reading.LEVELS,
        metavar="PERCENT,…",
        help="weights remaining, where some levels are shown; the nearest there are. "
        "Default: 100,51.3,21.1,7,3.6,1.9",
    )
    parser.add_argument(
        "--import_code",
        action="store_true",
        help="import the modules that a run's settings name (package.module:function), "
        "which runs their code: only for runs that you trust",
    )
    given = parser.parse_args(words)
    if not importlib.util.find_spec("matplotlib"):
        raise InputError(
            "the report needs matplotlib, which is not installed: pip install "
            "'prunetrain[report]'"
        )
    runs = reading.open_runs(
        given.workdir, levels=given.levels, import_code=given.import_code
    )
    start()
    output = given.output or (runs[0].path if len(runs) == 1 else pathlib.Path())
    output = pathlib.Path(output) / ("" if given.output else "report")
    file = write(runs, reading.expanded(output))
    for run in runs:
        for problem in run.problems:
            print(f"{run.name}: {problem}")
        for line in run.verdict.lines:
            print(f"{run.name}: {line}" if len(runs) > 1 else line)
    print(file)


def write(runs, output):
    """Writes report.html and the figures' PNG files.

    Args:
        runs: `reading.Run`s.
        output: folder, made if it is not there.

    Returns:
        The path of the HTML file.

    Raises:
        RunError: a file cannot be written.
    """
    # Here: it imports matplotlib, which may not be installed.
    from prunetrain.analysis import page, sections

    found = sections.of(runs)
    # Last, as sections may meet with more problems.
    head = _head(runs, page)
    names = ", ".join(run.name for run in runs)
    html = page.page(f"prunetrain report: {names}", head, found)
    with workdirs.told(output):
        output.mkdir(parents=True, exist_ok=True)
    for picture in (x for section in found for x in section.pictures):
        _write(output / f"{picture.name}.png", picture.as_png())
    _write(output / "report.html", html.encode())
    return output / "report.html"


def _write(file, content):
    with workdirs.told(file):
        files.replace(file, content)


def _head(runs, page):
    """What was run, what is missing, and the verdict."""
    several = len(runs) > 1
    blocks = []
    for run in runs:
        named = f"{run.name}: " if several else ""
        blocks.append(page.Text(named + described(run)))
    problems = [
        f"{run.name}: {problem}" if several else problem
        for run in runs
        for problem in run.problems
    ]
    if problems:
        blocks.append(page.Lines("problems", ["Missing or damaged:", *problems]))
    for run in runs:
        named = [run.name] if several else []
        blocks.append(page.Lines("verdict", [*named, *run.verdict.lines]))
    return blocks


def described(run):
    """What was run, in one sentence."""
    levels = [x for x in levels_lib.by_level(run.rows) if x.branch == "ticket"]
    done = (
        f"{len(levels)} levels from {100 * levels[0].remaining:.3g} % to "
        f"{100 * levels[-1].remaining:.3g} % of the weights"
        if levels
        else "no finished training"
    )
    replicates = len(run.replicates)
    text = f"{done}, {replicates} replicate{'s' if replicates != 1 else ''}"
    if run.config is None:
        return f"Settings unknown; {text}."
    config = run.config
    controls = ", ".join(config.controls) or "none"
    return (
        f"{config.model} on {config.dataset}: {text}, {config.train_steps:,} steps a "
        f"training; controls: {controls}."
    )


def _levels(text):
    """Percentages, from a text."""
    try:
        values = tuple(map(float, text.split(",")))
    except ValueError:
        values = (math.nan,)
    if not all(math.isfinite(x) and 0 < x <= 100 for x in values):
        raise argparse.ArgumentTypeError(
            f"must be percentages above 0, for example 100,21,3.6. Received: {text!r}"
        )
    return values
