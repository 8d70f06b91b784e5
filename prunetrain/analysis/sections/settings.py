"""The section on settings, environment and files."""

from prunetrain import config
from prunetrain.analysis import page


def settings(runs):
    """What differs from the defaults; all else folded."""
    defaults = config.Config().as_dict()
    names = list(dict.fromkeys([*defaults, *(n for run in runs for n in run.settings)]))
    differing = [
        name
        for name in names
        if any(
            run.settings.get(name, defaults.get(name)) != defaults.get(name)
            for run in runs
        )
    ]
    known = any(run.settings for run in runs)
    blocks = [
        _table("Settings that differ from the defaults.", differing, runs, defaults)
        if differing
        else page.Text("Every setting has its default.")
        if known
        else page.Missing("config.json cannot be read: the settings are not known."),
        page.Folded("All settings", [_table("Settings.", names, runs, defaults)]),
        _environment(runs),
        page.Folded("Files", [_files(runs)]),
    ]
    return page.Section("Settings, environment, files", blocks)


def _table(caption, names, runs, defaults):
    found = [run.settings for run in runs]
    rows = [
        [name, *(_shown(x.get(name, "not set")) for x in (*found, defaults))]
        for name in names
    ]
    heading = ("setting", *_names(runs, "value"), "default")
    return page.Table(caption, heading, rows, words=len(heading))


def _names(runs, single):
    return [run.name for run in runs] if len(runs) > 1 else [single]


def _shown(value):
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text or "(empty)"


def _environment(runs):
    names = list(dict.fromkeys(name for run in runs for name in run.environment))
    if not names:
        return page.Missing("environment.json is missing: versions are not known.")
    rows = [
        [name, *(_shown(run.environment.get(name, "not set")) for run in runs)]
        for name in names
    ]
    heading = ("", *_names(runs, "value"))
    table = page.Table("What the runs began with.", heading, rows, words=len(heading))
    return page.Folded("Environment", [table])


def _files(runs):
    rows = [
        [run.name, *(_count(run.path, x) for x in ("tickets", "checkpoints"))]
        + [_size(run.path / x) for x in ("results.csv", "metrics.jsonl")]
        for run in runs
    ]
    heading = ("folder", "tickets", "checkpoints", "results.csv", "metrics.jsonl")
    return page.Table("Work directories.", heading, rows, words=len(heading))


def _count(path, folder):
    files = [x for x in (path / folder).glob("*") if x.is_file()]
    return f"{len(files)} files"


def _size(file):
    return f"{file.stat().st_size:,} bytes" if file.is_file() else "missing"
