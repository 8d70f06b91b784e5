"""Experiments that take a moment: small data, a small network, the command line."""

import dataclasses
import fcntl
import json
import os
import pathlib
import struct
import subprocess
import sys

import h5py
import keras
import numpy as np

from prunetrain import data, models
from prunetrain.runs import results

ROOT = pathlib.Path(__file__).resolve().parent.parent
IDX_NAMES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


# Data and a network


def noise(num_train=60, num_test=30, num_classes=3, size=4, seed=0):
    """Random images with random labels: a network overfits them within an epoch."""
    rng = np.random.default_rng(seed)

    def split(count):
        images = rng.integers(256, size=(count, size, size, 1), dtype=np.uint8)
        return images, rng.integers(num_classes, size=count)

    return data.Raw(*split(num_train), *split(num_test), num_classes, "noise")


def network(input_shape, num_classes):
    """16-12-3 with dropout, whose seed is a part of the state."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(12, activation="relu", name="hidden"),
            layers.Dropout(0.2),
            layers.Dense(num_classes, name="output"),
        ],
        name="net",
    )


def register(monkeypatch):
    """Makes the dataset "noise" and the model "net" known."""
    monkeypatch.setitem(data.DATASETS, "noise", lambda data_dir: noise())
    monkeypatch.setitem(models.MODELS, "net", network)


def idx_bytes(array, magic=None):
    """A uint8 array in the IDX format."""
    array = np.asarray(array, np.uint8)
    magic = bytes([0, 0, 8, array.ndim]) if magic is None else magic
    return magic + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx_dataset(folder, num_train=120, num_test=40, size=8):
    """Writes a small dataset of ten classes as four IDX files; returns its `Raw`."""
    raw = noise(num_train, num_test, num_classes=10, size=size)
    folder.mkdir(parents=True, exist_ok=True)
    for field, name in IDX_NAMES.items():
        array = getattr(raw, field)
        array = array[..., 0] if array.ndim == 4 else array
        (folder / name).write_bytes(idx_bytes(array))
    return raw


# Files of results


def arrays(file):
    """Every array of an HDF5 file, by name."""
    found = {}
    with h5py.File(file) as h5:
        h5.visititems(
            lambda name, item: (
                found.update({name: item[()]})
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
    return found


# Rows of results


def row(replicate=0, branch="ticket", round=0, **values):
    """A `Row` with made-up numbers."""
    numbers = {
        "weights_remaining": 100,
        "sparsity": 0.0,
        "best_step": 40,
        "val_loss": 0.5,
        "val_accuracy": 0.75,
        "test_loss": 0.25,
        "test_accuracy": 0.5,
        "train_seconds": 1.5,
        "final_val_loss": 0.625,
        "final_val_accuracy": 0.7,
        "final_test_loss": 0.375,
        "final_test_accuracy": 0.4,
    }
    return results.Row(replicate, branch, round, **{**numbers, **values})


# Processes


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a command line left: exit code, output, messages, and modules it loaded."""

    code: int
    stdout: str
    stderr: str
    modules: tuple = ()


def command(*arguments, cwd, backend=None, trace_imports=False):
    """Runs `python -m prunetrain.main` as a process of its own; returns `Outcome`."""
    # conftest hushes TensorFlow; a user's shell does not.
    dropped = ("TF_CPP_MIN_LOG_LEVEL", "KERAS_BACKEND", "PYTHONPATH")
    environment = {k: v for k, v in os.environ.items() if k not in dropped}
    environment["PYTHONPATH"] = str(ROOT)
    if backend:
        environment["KERAS_BACKEND"] = backend
    options = ["-X", "importtime"] if trace_imports else []
    process = subprocess.run(
        [sys.executable, *options, "-m", "prunetrain.main", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )
    lines = process.stderr.splitlines(keepends=True)
    imports = [line for line in lines if line.startswith("import time:")]
    return Outcome(
        process.returncode,
        process.stdout,
        "".join(line for line in lines if not line.startswith("import time:")),
        tuple(line.rpartition("|")[2].strip() for line in imports),
    )


def once(tmp_path_factory, name, make):
    """The folder that `make(folder) -> Outcome` filled, and its outcome.

    Made by one of the workers that run the tests in parallel, shared by all.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, record = base / name, base / f"{name}.json"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            folder.mkdir()
            record.write_text(json.dumps(dataclasses.asdict(make(folder))))
    return folder, Outcome(**json.loads(record.read_text()))
