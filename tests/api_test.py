"""The public names, and that importing them costs nothing until they are used."""

import subprocess
import sys

import pytest

import prunetrain as pt
from tests import tiny, toys

PUBLIC = (
    "Config",
    "LayerSparsity",
    "PrunedModel",
    "Snapshot",
    "kernels",
    "load_dataset",
    "make_eval_loop",
    "make_eval_step",
    "make_train_loop",
    "make_train_step",
    "prune",
    "run",
    "testing",
)


def fresh(code):
    """What `code` prints in an interpreter of its own."""
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tiny.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout.split()


def test_public_names_are_those_of_the_contract():
    assert tuple(pt.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves_to_the_same_thing_each_time(name):
    value = getattr(pt, name)
    assert value is getattr(pt, name)
    assert callable(value) or name == "testing"


def test_testing_holds_the_invariants_as_assertions():
    assert callable(pt.testing.assert_masks_hold)


def test_dir_lists_the_public_names_before_they_are_loaded():
    assert set(PUBLIC) <= set(fresh("import prunetrain; print(*dir(prunetrain))"))


def test_a_star_import_brings_the_public_names():
    code = (
        "from prunetrain import *; print(*(name for name in dir() if name[0] != '_'))"
    )
    assert set(fresh(code)) == set(PUBLIC)


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with toys.raises(AttributeError, "'prunetrain'", "'prunne'"):
        _ = pt.prunne


@pytest.mark.parametrize(
    "module",
    [
        *("prunetrain", "prunetrain.config", "prunetrain.main"),
        # What the parent of workers imports.
        "prunetrain.experiment",
        # Registries.
        *("prunetrain.pruning.dynamic", "prunetrain.pruning.schedules"),
    ],
)
def test_settings_and_command_line_are_imported_without_tensorflow(module):
    modules = set(fresh(f"import sys, {module}; print(*sys.modules)"))
    assert module in modules
    assert not {"tensorflow", "keras", "matplotlib"} & modules
