"""What every worker of peers.py has in common: train when told to, wait otherwise.

A worker is a process with one framework in it. It builds and warms up its variants,
says so in a line of JSON, and then trains one epoch for each line of its standard input
that names a variant. Needs NumPy only, as each worker has its own virtual environment.
"""

import json
import math
import os
import sys
import time
import typing

import numpy as np

DENSITY = 0.2


class Variant(typing.NamedTuple):
    """One way to train.

    Attributes:
        epoch: `() -> float`, trains an epoch and returns its mean loss; nothing may be
            left to compute when it returns.
        kernels: `() -> list of arrays`, the kernels that the network multiplies by, to
            be checked for their zeros; None if the variant is dense.
    """

    epoch: typing.Callable
    kernels: typing.Callable | None = None


def main(tasks, versions, notes=()):
    """Serves the task that the command line names.

    Args:
        tasks: {task: `(x, y) -> {name: Variant}`}.
        versions: {package: version}, for the report.
        notes: lines for the report.
    """
    # Answers alone go to the pipe: what a library prints goes to the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields):
        print(json.dumps(fields), file=answers, flush=True)

    task, data = sys.argv[1:]
    with np.load(data) as arrays:
        variants = tasks[task](arrays["x"], arrays["y"])
    checks = {name: _Check(variant) for name, variant in variants.items()}
    answer(variants=list(variants), versions=versions, notes=list(notes))
    idle_since = time.process_time()
    for line in sys.stdin:
        name = line.strip()
        idle_cpu = time.process_time() - idle_since
        start = time.perf_counter()
        loss = variants[name].epoch()
        seconds = time.perf_counter() - start
        checks[name](loss)
        answer(seconds=seconds, idle_cpu=idle_cpu, loss=loss)
        idle_since = time.process_time()


class _Check:
    """Warms a variant up by an epoch, and holds later ones against it."""

    def __init__(self, variant):
        self._kernels = variant.kernels
        self._first_loss = variant.epoch()
        self._alive = self._find_alive()
        for alive in self._alive:
            if abs(alive.sum() - DENSITY * alive.size) > 1:
                raise AssertionError(f"{alive.mean():.4f} of a kernel is not zero")

    def __call__(self, loss):
        if not (math.isfinite(loss) and loss < self._first_loss):
            raise AssertionError(f"the loss went from {self._first_loss} to {loss}")
        for alive, before in zip(self._find_alive(), self._alive, strict=True):
            if np.any(alive > before):
                raise AssertionError("a pruned weight is not zero")

    def _find_alive(self):
        kernels = self._kernels() if self._kernels else []
        return [np.asarray(kernel) != 0 for kernel in kernels]
