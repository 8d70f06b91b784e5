"""A section that shows the same of each run, one after the other."""

from prunetrain.analysis import page
from prunetrain.errors import InputError


def of_runs(title, runs, make):
    """A `page.Section` with what `make` gives for each run.

    Args:
        title: heading of the section.
        runs: list of `reading.Run`.
        make: `(run, named) -> block`, where `named` is what a caption begins with: the
            run's name if there are several. InputError says what it lacks, which
            stands in its place.
    """
    return page.Section(title, [_block(run, _named(run, runs), make) for run in runs])


def _named(run, runs):
    return f"{run.name}. " if len(runs) > 1 else ""


def _block(run, named, make):
    try:
        return make(run, named)
    except InputError as error:
        return page.Missing(f"{named}{error}")
