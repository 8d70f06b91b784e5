"""The work directory as workers have it that leave the writing to the first one.

All workers do the same, in step. So what one of them would write, and read again, it
keeps in memory; what is there from before it reads where the first worker does.
"""

import pathlib

import numpy as np

from prunetrain.errors import InputError
from prunetrain.runs import workdir


class Follower(workdir.WorkDirectory):
    """Reads the files of a run that another process writes.

    Args:
        path, settings, free, defaults, keep_ends: as for `WorkDirectory`, which has
            been opened in the first worker.

    Raises:
        InputError: that was in a folder that is not seen here, or with other settings.
    """

    def __init__(self, path, settings, free=(), defaults=(), keep_ends=False):
        self.path, self._keep_ends = pathlib.Path(path).expanduser(), keep_ends
        file = self.path / "config.json"
        if not file.exists():
            raise InputError(
                "`workdir` must be a folder that all workers see. Received: "
                f"workdir={str(self.path)!r}, in which the first worker has written no "
                "config.json"
            )
        known = workdir.read_settings(self.path)
        self._compare({**dict(defaults), **known}, settings, free)
        self._read_rows()
        self._masks, self._ends = {}, {}

    def add_row(self, row):
        self._rows[row.key] = row

    def save_masks(self, replicate, round, paths, masks, branch=None):
        if not branch:
            self._masks[replicate, round] = [np.asarray(mask) for mask in masks]

    def load_masks(self, replicate, round):
        kept = self._masks.get((replicate, round))
        return super().load_masks(replicate, round) if kept is None else kept

    def end_at(self, replicate, round, why):
        self._ends[replicate] = round, why

    def end(self, replicate):
        return self._ends.get(replicate) or super().end(replicate)

    def record_environment(self, values):
        """The first worker does."""

    def add_metrics(self, **values):
        """The first worker does."""

    def tidy_metrics(self):
        """The first worker does."""

    def save_weights(self, model, replicate, branch, round):
        """The first worker does."""

    def save_start(self, model, replicate, name):
        """The first worker does."""

    def save_checkpoint(self, key, state, position):
        """The first worker does."""
