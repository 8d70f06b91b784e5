"""Kills a small run at random moments, again and again, and compares what is left.

    python scripts/torture.py --kills=100

The run is made once undisturbed, then in other folders with SIGKILL after a random
time, resumed each time until it is done, until there have been so many kills. Metrics,
results (less the seconds), tickets and weights must be the same to the bit. Exit code 1
if not. With --faults, other faults than death: see faults.py.
"""

import argparse
import collections
import csv
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUN = (
    *("--train_steps=300", "--eval_every=50", "--rounds=2", "--controls=reinit"),
    *("--rewind_step=20", "--checkpoint_every=10", "--compile=graph"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--faults", action="store_true", help="runs faults.py instead")
    options, flags = parser.parse_known_args()
    if options.faults:
        script = pathlib.Path(__file__).with_name("faults.py")
        sys.exit(subprocess.run([sys.executable, script, *flags]).returncode)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(torture(pathlib.Path(folder), options.kills, options.seed, flags))


def torture(folder, kills, seed, flags):
    """Returns how many of the tortured runs differ from the undisturbed one."""
    whole, rng = folder / "whole", random.Random(seed)
    began = time.monotonic()
    command(whole, flags).wait()
    seconds, expected = time.monotonic() - began, left(whole)
    print(f"undisturbed: {seconds:.1f} s", flush=True)
    moments, differences, runs = collections.Counter(), 0, 0
    while moments.total() < kills:
        path, runs = folder / f"run{runs}", runs + 1
        run_killed(path, flags, rng, seconds, kills, moments)
        names = different(expected, left(path))
        differences += bool(names)
        outcome = f"differs: {', '.join(sorted(names))}" if names else "same"
        print(f"{moments.total()} kills, run {runs}: {outcome}", flush=True)
    told = ", ".join(f"{number} in {moment}" for moment, number in moments.items())
    print(f"{moments.total()} kills in {runs} runs ({told}); {differences} differ")
    return min(differences, 1)


def run_killed(path, flags, rng, seconds, kills, moments):
    """Repeats the command, killed after a random time, until it is done."""
    while True:
        process = command(path, flags)
        if moments.total() >= kills:
            process.wait()
        try:
            code = process.wait(rng.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            moments[moment(path)] += 1
            continue
        if code:
            raise SystemExit(f"the run ended with exit code {code}:\n{told(path)}")
        return


def command(path, flags):
    """The run as a process; what it says goes to a file beside its folder."""
    words = *RUN, *flags, f"--workdir={path}"
    with open(f"{path}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "prunetrain.main", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
        )


def told(path):
    return pathlib.Path(f"{path}.log").read_text()[-2000:]


def moment(path):
    """What the run was at when it was killed, by what it has left."""
    if list(path.rglob("*-resume/writing")):
        return "a save"
    if list(path.rglob("*writing*")):
        return "writing another file"
    return "a training" if list(path.rglob("*-resume/*")) else "anything else"


def left(path):
    """What a run has left, less the times, by file."""
    found = {"metrics.jsonl": (path / "metrics.jsonl").read_bytes()}
    found["results.csv"] = [{**row, "train_seconds": ""} for row in rows(path)]
    for file in (path / "tickets").iterdir():
        if file.suffix == ".txt":
            found[file.name] = file.read_bytes()
            continue
        with np.load(file) as arrays:
            found[file.name] = {name: arrays[name].tobytes() for name in arrays}
    for file in (path / "checkpoints").iterdir():
        found[file.name] = weights(file) if file.is_file() else "left over"
    return found


def rows(path):
    with open(path / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


def different(expected, found):
    """The names under which two runs have left different things."""
    names = expected.keys() | found.keys()
    return {name for name in names if expected.get(name) != found.get(name)}


def weights(file):
    """Every array of an HDF5 file, by name, as bytes."""
    found = {}

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()].tobytes()

    try:
        with h5py.File(file) as h5:
            h5.visititems(add)
    except OSError:
        return "cannot be read"
    return found


if __name__ == "__main__":
    main()
