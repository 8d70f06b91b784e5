"""A work directory as it is found: read, never written, whole or in part.

What is missing or damaged is one line in `Run.problems`, and the rest goes on. Nothing
is locked, since files are written beside and renamed: a run may be writing meanwhile.
"""

import dataclasses
import functools
import json
import math
import pathlib

import numpy as np

from prunetrain import build, config, experiment, lab
from prunetrain.analysis import levels as levels_lib
from prunetrain.analysis import verdict
from prunetrain.errors import InputError, told
from prunetrain.registry import is_import_path
from prunetrain.runs import barriers, files, results, tickets
from prunetrain.runs import workdir as workdirs

# Frankle & Carbin 2019, figure 3.
LEVELS = (100.0, 51.3, 21.1, 7.0, 3.6, 1.9)
_SIGNS = ("config.json", "results.csv", "metrics.jsonl")


@dataclasses.dataclass(frozen=True)
class Layer:
    """How many weights of a kernel a mask keeps."""

    path: str
    shape: tuple
    kept: int
    total: int


class Run:
    """What there is of one run.

    Args:
        path: its work directory.
        name: what it is called; None takes the folder's name.
        levels: percentages of weights remaining to look at, where they can be chosen.
        import_code: whether modules that the settings name may be imported, which runs
            their code.

    Attributes:
        path, name: as given.
        settings: dict of the settings, {} if they cannot be read.
        config: `Config` of them, or None.
        rows: finished trainings, `results.Row`s.
        barriers: pairs of children, `runs.barriers.Row`s.
        metrics: the lines of metrics.jsonl, dicts.
        environment: dict.
        problems: lines about what is missing or damaged.

    Raises:
        InputError: the folder is not that of a run.
    """

    def __init__(self, path, name=None, levels=LEVELS, import_code=False):
        self.path = pathlib.Path(path)
        self.name = name or self.path.resolve().name
        self.problems, self._layers = [], {}
        self._levels, self._import_code = levels, import_code
        if not any((self.path / sign).is_file() for sign in _SIGNS):
            raise InputError(
                f"{self.path} is not the folder of a run: it has none of "
                f"{', '.join(_SIGNS)}. Give the --workdir of one"
            )
        self.settings = self._json("config.json", needed=True)
        self.config = self._config()
        self.environment = self._json("environment.json")
        self.rows = self._tried(lambda: results.read_rows(self.path), [])
        self.barriers = self._tried(lambda: barriers.read_rows(self.path), [])
        self._by_key = {row.key: row for row in self.rows}
        self.metrics = self._metrics()
        self._check_rows()

    def row(self, key):
        """The row of (replicate, branch, round), or None."""
        return self._by_key.get(key)

    def ends_at(self, replicate, round):
        """Whether it was recorded that the replicate has no round after that one."""
        end = self._end(replicate)
        return end is not None and end[0] == round

    @property
    def verdict(self):
        """The `verdict.Verdict` on the run."""
        return verdict.of(self.rows, self.settings.get("prune_at", "end"))

    @property
    def evaluations(self):
        """The lines of metrics.jsonl that are of finished trainings."""
        names = ("replicate", "branch", "round")
        return [x for x in self.metrics if self.row(tuple(x[n] for n in names))]

    @property
    def trained_rows(self):
        """The rows of what was trained: not of a round 0 that is only evaluated."""
        untrained = self.settings.get("prune_at", "end") != "end"
        return [row for row in self.rows if row.round or not untrained]

    @property
    def replicates(self):
        """The replicates of which a training is finished."""
        return sorted({row.replicate for row in self.rows})

    @property
    def chosen(self):
        """The rounds whose tickets come nearest to the levels asked for, in order."""
        found = {
            x.round: x.remaining
            for x in levels_lib.by_level(self.rows)
            if x.branch == "ticket" and x.remaining > 0
        }
        nearest = {
            min(found, key=lambda r: abs(math.log(100 * found[r] / level)))
            for level in self._levels
            if found
        }
        return sorted(nearest)

    def remaining(self, round):
        """The mean percentage of weights that the tickets of a round have."""
        rows = [x for x in self.rows if (x.branch, x.round) == ("ticket", round)]
        return 100 * (1 - sum(row.sparsity for row in rows) / len(rows))

    def masks(self, replicate, round):
        """The masks of a ticket: a list of (path, boolean array), or None.

        Where masks change in a training, those that it has ended with.
        """
        name = workdirs.ticket(replicate, round, "ticket")
        if not (self.path / name).exists():
            name = workdirs.ticket(replicate, round or 1)
        pairs = self._ticket(name)
        if pairs and not round:
            return [(path, np.ones_like(mask)) for path, mask in pairs]
        return pairs

    def layers(self, replicate, round):
        """`Layer`s of a ticket, in the model's order, or None."""
        key = replicate, round
        if key not in self._layers:
            pairs = self.masks(*key)
            self._layers[key] = pairs and [
                Layer(path, mask.shape, int(np.count_nonzero(mask)), mask.size)
                for path, mask in pairs
            ]
        return self._layers[key]

    def finished(self, round):
        """The replicates whose ticket of that round is finished."""
        return [r for r in self.replicates if self.row((r, "ticket", round))]

    @functools.cached_property
    def shapes(self):
        """The data's `(input shape, number of outputs)`.

        Raises:
            InputError: the data cannot be read, or not without running code.
        """
        self._check_code("dataset")
        dataset = lab.open_data(self.config)
        return dataset.input_shape, dataset.num_classes

    @functools.cached_property
    def pruned(self):
        """The run's network, a `PrunedModel` with weights of no meaning.

        Raises:
            InputError: it cannot be made, or not without running code.
        """
        self._check_code("model")
        return build.make_pruned(
            self.config, build.make_model(self.config, self.shapes)
        )

    def kernels(self, name):
        """The kernels in a file of weights: a list of arrays, or None.

        Args:
            name: file in checkpoints/.

        Raises:
            InputError: the network cannot be made; see `pruned`.
        """
        file = f"checkpoints/{name}"
        if not (self.path / file).exists():
            return None
        pruned = self.pruned
        try:
            files.check(self.path, {file: files.digest_of(self.path / file)})
            pruned.model.load_weights(self.path / file)
        # A damaged file fails in HDF5 or in Keras, in many ways.
        except Exception as error:
            text = str(error) if isinstance(error, InputError) else told(error)
            self.add_problem(text if file in text else f"{file} cannot be read: {text}")
            return None
        return [kernel.value.numpy() for kernel in pruned.kernels]

    def _check_code(self, field):
        """Raises InputError if the settings are not there, or name code."""
        if self.config is None:
            raise InputError("the settings of the run cannot be read")
        name = getattr(self.config, field)
        if is_import_path(name) and not self._import_code:
            raise InputError(
                f"{field}={name} is code, which --import_code imports and runs: only "
                "for runs that you trust"
            )

    def add_problem(self, problem):
        """Notes a line, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def _tried(self, read, otherwise=None):
        """What `read()` gives; if it is refused, a problem and `otherwise`."""
        try:
            try:
                return read()
            except InputError:
                # Perhaps replaced between the file and the list of its sums.
                return read()
        except InputError as error:
            # The remedy is for whoever goes on with the run.
            text = str(error).partition(". Restore it")[0]
            self.add_problem(text.replace(f"{self.path}/", ""))
            return otherwise

    def _json(self, name, needed=False):
        file = self.path / name
        if not file.exists():
            if needed:
                self.add_problem(f"{name} is missing: the settings are not known")
            return {}
        return self._tried(
            lambda: workdirs.parse_json(files.read(self.path, name), file), {}
        )

    def _config(self):
        try:
            return config.Config(**self.settings) if self.settings else None
        except (TypeError, InputError) as error:
            self.add_problem(
                f"config.json is of another version of prunetrain: {error}"
            )
            return None

    def _metrics(self):
        """The lines of metrics.jsonl that can be read."""
        file = self.path / "metrics.jsonl"
        try:
            lines = file.read_bytes().splitlines(keepends=True)
        except OSError as error:
            self.add_problem(f"metrics.jsonl cannot be read: {error.strerror}")
            return []
        if lines and not lines[-1].endswith(b"\n"):
            self.add_problem("metrics.jsonl: its last line is cut off")
            lines.pop()
        found = [(line, _values(line)) for line in lines]
        bad = sum(values is None for _, values in found)
        if bad:
            self.add_problem(
                f"metrics.jsonl: {bad} of {len(found)} lines cannot be read"
            )
        found = [(line, values) for line, values in found if values]
        self._check_lines(found)
        return [values for _, values in found]

    def _check_lines(self, found):
        """Compares the lines of finished trainings with their sums."""
        lines = {}
        for line, values in found:
            key = tuple(values[name] for name in ("replicate", "branch", "round"))
            lines.setdefault(key, []).append(line)
        known = files.known(self.path)
        for row in self.rows:
            sum = files.digest(lines.get(row.key, []))
            name = workdirs.lines_of(row.key)
            if sum not in known.get(name, [sum]):
                self.add_problem(f"{name} is damaged or was changed")

    def _check_rows(self):
        """Adds a problem for each replicate that has not all of its trainings."""
        if self.config is None:
            return
        for replicate in range(self.config.replicates):
            missing = list(experiment.unfinished(self.config, replicate, self))
            if missing:
                round, branch = missing[0]
                self.add_problem(
                    f"replicate {replicate} is unfinished: {len(missing)} trainings "
                    f"are to come, the first is {branch} of round {round}"
                )

    def _end(self, replicate):
        return self._tried(lambda: workdirs.read_end(self.path, replicate))

    def _ticket(self, name):
        if not (self.path / name).exists():
            self.add_problem(f"{name} is missing")
            return None

        def read():
            try:
                return tickets.named(files.read(self.path, name))
            except InputError:
                raise
            except ValueError as error:
                raise files.damaged(self.path / name, error) from error

        return self._tried(read)


def expanded(path):
    """A path with the ~ of a home folder replaced.

    Raises:
        InputError: there is no such user.
    """
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(
            f"{path} is in no home folder that there is: {error}"
        ) from error


def open_runs(paths, **options):
    """A `Run` for each folder, with names that tell them apart.

    Raises:
        InputError: a folder is not that of a run, or is there twice.
    """
    paths = [expanded(path) for path in paths]
    resolved = [path.resolve() for path in paths]
    for path in resolved:
        if resolved.count(path) > 1:
            raise InputError(f"{path} is there twice. Name each folder once")
    names = _distinct(resolved)
    return [Run(path, name, **options) for path, name in zip(paths, names, strict=True)]


def _distinct(paths):
    """The last parts of the paths, as many as tell them apart."""
    names, most = [], max(len(path.parts) for path in paths)
    for count in range(1, most + 1):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def _values(line):
    """The values in a line of metrics.jsonl, or None if they are not an evaluation."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    kinds = {"replicate": int, "branch": str, "round": int, "split": str}
    kinds |= {"phase": str, "step": int}
    if not isinstance(values, dict) or any(
        type(values.get(name)) is not kind for name, kind in kinds.items()
    ):
        return None
    numbers = (values.get(name) for name in ("loss", "accuracy"))
    known = all(x is None or type(x) in (int, float) for x in numbers)
    return values if known else None
