"""What leaves a process comes back: masks, weights, and the run as it was."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.runs import workdir
from tests import tiny, toys


def dotted():
    """Two layers whose names hold a dot and begin alike, and dropout."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(5, "relu", name="fc.1"),
            keras.layers.Dropout(0.5, seed=4),
            keras.layers.Dense(3, name="fc.2"),
        ],
        name="net",
    )


def save_checkpoint(pruned, folder):
    tf.train.Checkpoint(pruned=pruned).write(str(folder / "checkpoint"))


def load_checkpoint(folder):
    pruned = pt.PrunedModel(dotted())
    tf.train.Checkpoint(pruned=pruned).read(str(folder / "checkpoint"))
    return pruned


def save_run(pruned, folder):
    directory = workdir.WorkDirectory(folder / "run", {})
    paths = [kernel.path for kernel in pruned.kernels]
    directory.save_masks(0, 1, paths, pruned.masks)
    directory.save_weights(pruned.model, 0, "ticket", 1)


def load_run(folder):
    pruned = pt.PrunedModel(dotted())
    pruned.model.load_weights(
        folder / "run" / "checkpoints" / "replicate0-ticket-round01.weights.h5"
    )
    directory = workdir.WorkDirectory(folder / "run", {})
    pruned.set_masks(directory.load_masks(0, 1))
    return pruned


def save_keras(pruned, folder):
    np.savez(folder / "masks.npz", *toys.values(pruned.masks))
    pruned.model.save(folder / "model.keras")


def load_keras(folder):
    pruned = pt.PrunedModel(keras.models.load_model(folder / "model.keras"))
    with np.load(folder / "masks.npz") as masks:
        # In order: the paths of a loaded model lack the model's name.
        pruned.set_masks(masks.values())
    return pruned


ROUTES = {
    "checkpoint": (save_checkpoint, load_checkpoint),
    "run": (save_run, load_run),
    "keras": (save_keras, load_keras),
}
IN_A_PROCESS = """
import pathlib, sys
from tests import saving_test
saving_test.train_on(pathlib.Path(sys.argv[1]))
"""


def train_on(folder):
    """Loads what each route left and trains a step; prints masks and sparsity."""
    for name, (_, load) in ROUTES.items():
        pruned, optimizer = load(folder), keras.optimizers.Adam(0.01)
        before = toys.bits(pruned.kernels)
        step = pt.make_train_step(pruned, optimizer, toys.cross_entropy())
        step(*toys.dataset())
        pt.testing.assert_masks_hold(pruned, optimizer)
        assert toys.bits(pruned.kernels) != before
        masks = b"".join(toys.bits(pruned.masks)).hex()
        weights = b"".join(before).hex()
        print(f"found {name} {masks} {weights} {pruned.sparsity()}")


def halved():
    """A network at half of its weights."""
    pruned = pt.PrunedModel(dotted())
    pt.prune(pruned, sparsity=0.5, allocation="global")
    return pruned


@pytest.mark.slow
def test_masks_saved_by_every_route_hold_in_a_new_process(tmp_path):
    pruned = halved()
    for save, _ in ROUTES.values():
        save(pruned, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tiny.ROOT), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    masks = b"".join(toys.bits(pruned.masks)).hex()
    weights = b"".join(toys.bits(pruned.kernels)).hex()
    found = [x.split() for x in done.stdout.splitlines() if x.startswith("found")]
    # 45 weights: the count is rounded half up.
    sparsity = str(23 / 45)
    assert found == [["found", name, masks, weights, sparsity] for name in ROUTES]


@pytest.mark.parametrize("name", ROUTES)
def test_layers_whose_names_hold_dots_come_back_each_with_its_own(name, tmp_path):
    pruned = halved()
    save, load = ROUTES[name]
    save(pruned, tmp_path)
    loaded = load(tmp_path)
    names = [kernel.path.split("/")[-2] for kernel in loaded.kernels]
    assert names == ["fc.1", "fc.2"]
    assert toys.bits(loaded.masks) == toys.bits(pruned.masks)
    assert toys.bits(loaded.model.weights) == toys.bits(pruned.model.weights)


def trained(folder, save=None):
    """The state after ten steps, with something saved after five."""
    pruned, optimizer = pt.PrunedModel(dotted()), keras.optimizers.Adam(0.01)
    loop = pt.make_train_loop(
        pruned, optimizer, toys.cross_entropy(), *toys.dataset(), 4, compile="graph"
    )
    loop(0, 5)
    pt.prune(pruned, rate=0.5)
    if save:
        save(pruned, folder)
    loop(5, 5)
    return toys.bits(pruned.model.variables, optimizer.variables, pruned.masks)


@pytest.fixture(scope="module")
def unsaved():
    keras.utils.set_random_seed(7)
    return trained(None)


@pytest.mark.parametrize("name", ROUTES)
def test_a_run_that_is_saved_midway_goes_on_as_one_that_is_not(name, unsaved, tmp_path):
    assert trained(tmp_path, ROUTES[name][0]) == unsaved


def test_what_is_saved_within_a_mask_interval_is_as_sparse_as_the_masks(tmp_path):
    pruned, optimizer = pt.PrunedModel(toys.mlp()), toys.Drift()
    loop = pt.make_train_loop(
        pruned,
        optimizer,
        *(toys.cross_entropy(), *toys.dataset(), 4),
        compile="graph",
        mask_interval=10,
    )
    loop(0, 5)
    pt.prune(pruned, sparsity=0.5)
    loop(5, 32)
    pruned.model.save_weights(tmp_path / "saved.weights.h5")
    kept = sum(layer.kept for layer in pruned.layer_sparsity())
    saved = [
        x for x in tiny.arrays(tmp_path / "saved.weights.h5").values() if x.ndim > 1
    ]
    assert len(saved) == len(pruned.kernels)
    assert sum(map(np.count_nonzero, saved)) == kept
