"""A worker process: `experiment.find_tickets` for the replicates that its parent names.

`runs.workers` starts it; there is nothing to start by hand.
"""

from prunetrain import experiment
from prunetrain import lab as labs
from prunetrain.config import Config, ConfigError
from prunetrain.runs import workers


def prepare(job, remote):
    """The function that trains a replicate; what it compiles serves all of them."""
    settings, directory = job
    config, display = _config(settings), remote("display")
    directory = Directory(directory, remote("directory"))
    lab = labs.open_lab(config, directory)

    def train(replicate):
        experiment.find_tickets(lab, config, replicate, directory, display)

    return train


def _config(settings):
    try:
        return Config(**settings)
    except ConfigError as error:
        raise ConfigError(
            error.field,
            error.received,
            f"{error.rule}. What a script registers is not known to worker processes: "
            "leave parallel_replicates at 1",
        ) from error


class Directory:
    """The work directory, but that the parent writes what all replicates share."""

    def __init__(self, directory, remote):
        self._directory, self._remote = directory, remote
        self._rows = {}

    def __getattr__(self, name):
        return getattr(self._directory, name)

    def row(self, key):
        return self._rows.get(key) or self._directory.row(key)

    def record_environment(self, values):
        self._remote.record_environment(values)

    def add_row(self, row):
        self._rows[row.key] = row
        self._remote.add_row(row)

    def add_metrics(self, **values):
        self._remote.add_metrics(**values)


if __name__ == "__main__":
    workers.serve(prepare)
