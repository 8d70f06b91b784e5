"""The report's sections, in order.

A section is a function from a list of `reading.Run` to a `page.Section`, or None where
it does not apply. What it lacks it says in a `page.Missing`, and shows the rest. To add
one, write the function in a module here and name it in SECTIONS.
"""

from prunetrain.analysis import page
from prunetrain.analysis.sections import costs, masks, outcomes, settings, tickets
from prunetrain.errors import told

SECTIONS = [
    outcomes.accuracy,
    outcomes.early_stop,
    outcomes.training,
    outcomes.pruning,
    tickets.against,
    masks.layers,
    tickets.effective,
    masks.initial_weights,
    masks.input_pixels,
    tickets.moved,
    tickets.alike,
    tickets.instability,
    outcomes.table,
    costs.costs,
    settings.settings,
]


def of(runs):
    """The `page.Section`s of some runs.

    Damage takes forms that no section foresees: one that fails says so in its place.
    """
    return [found for section in SECTIONS if (found := _tried(section, runs))]


def _tried(section, runs):
    try:
        return section(runs)
    except Exception as error:
        title = section.__doc__.splitlines()[0].rstrip(".")
        why = f"This cannot be drawn from what is there: {told(error)}."
        for run in runs:
            run.add_problem(f"the section “{title}” is missing: {told(error)}")
        return page.Section(title, [page.Missing(why)])
