"""Several devices train what one does; `tests/toy_replicas.py` is where they are."""

import json
import os
import subprocess
import sys

import pytest

from prunetrain.pruning import criteria
from tests import tiny, toy_replicas

QUICK = ("cell", "refusals")
slow = pytest.mark.slow
EPSILON = {
    **{"float32": 2e-6, "float64": 1e-6, "mixed_float16": 4e-3},
    **{"mixed_bfloat16": 2e-2, "bfloat16": 2e-2},
}
CELLS = [
    f"{count} {mode} {precision}"
    for count, modes in ((2, toy_replicas.MODES), (4, ("xla",)))
    for mode in modes
    for precision in toy_replicas.PRECISIONS
]


def found_by(names, tmp_path_factory):
    def make(folder):
        process = subprocess.run(
            [sys.executable, "-m", "tests.toy_replicas", str(folder / "found"), *names],
            cwd=tiny.ROOT,
            env={**os.environ, "PYTHONPATH": str(tiny.ROOT)},
            capture_output=True,
            text=True,
        )
        return tiny.Outcome(process.returncode, process.stdout, process.stderr)

    folder, outcome = tiny.once(tmp_path_factory, f"replicas-{names[0]}", make)
    assert outcome.code == 0, outcome.stderr
    found = json.loads((folder / "found").read_text())
    failed = [text for text in found.values() if isinstance(text, str)]
    assert not failed, failed[0]
    return found


@pytest.fixture(scope="session")
def quick(tmp_path_factory):
    return found_by(QUICK, tmp_path_factory)


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    names = [name for name in toy_replicas.CASES if name not in QUICK]
    return found_by(names, tmp_path_factory)


def assert_alike(cell, tolerance=2e-6):
    """One device and several have come to the same, and all copies are one."""
    assert cell["copies"] == []
    assert cell["unheld"] == 0
    assert cell["masks"] == 0
    assert cell["pruned"] > 0.3
    assert cell["moved"] > 0.1
    assert cell["loss"] <= tolerance
    assert cell["weights"] <= tolerance
    assert cell["traces"] == 1


def test_two_devices_train_what_one_does(quick):
    assert_alike(quick["cell"]["2 graph float32"])


def test_what_does_not_fit_a_strategy_is_refused(quick):
    told = quick["refusals"]
    assert told.keys() == {"outside", "odd", "tuple"}
    assert "created under the scope" in told["outside"]
    assert "dense_1/kernel" in told["outside"]
    assert "a multiple of the strategy's 2 replicas" in told["odd"]
    assert "batch_size=5" in told["odd"]
    assert "must be a list" in told["tuple"]


@slow
@pytest.mark.parametrize("cell", CELLS)
def test_each_strategy_compile_mode_and_precision_runs(found, cell):
    assert_alike(found["table"][cell], EPSILON[cell.split()[-1]])


@slow
@pytest.mark.parametrize("name", toy_replicas.OPTIMIZERS)
def test_every_optimizer_sees_gradients_of_the_whole_batch(found, name):
    assert_alike(found["optimizers"][name])


@slow
def test_an_overflow_on_one_device_skips_the_step_on_all(found):
    assert found["overflow"] == {"scale": 39.0, "moved": 0.0, "copies": []}


@slow
@pytest.mark.parametrize("name", ["penalties", "sum"])
def test_penalties_count_once_and_sums_are_of_the_whole_batch(found, name):
    assert_alike(found["penalties"][name], 5e-6)


@slow
def test_averages_of_batch_norm_are_means_over_the_devices(found):
    averages = found["averages"]
    assert averages["mean"] < 1e-6
    assert averages["variance"] < 1e-6
    assert averages["copies"] == []


@slow
def test_dropout_differs_between_devices_and_its_seeds_do_not(found):
    # Each weight has the mean of two gradients that are 0 or 2.
    assert found["dropout"]["moved"] == [0.0, 1.0, 2.0]
    first, second = found["dropout"]["seeds"]
    assert first == second


@slow
def test_evaluation_counts_every_example_once(found):
    assert len(found["evaluation"]) == 8
    for name, (one, *several) in found["evaluation"].items():
        assert one[2] == float(name.split()[0])
        for sums in several:
            assert sums[1:] == one[1:]
            assert sums[0] == pytest.approx(one[0], rel=1e-6)


@slow
@pytest.mark.parametrize("mode", ["xla", "graph"])
@pytest.mark.parametrize("name", toy_replicas.MASK_UPDATES)
def test_masks_that_change_in_a_training_are_those_of_one_device(found, name, mode):
    assert_alike(found["mask_updates"][f"{name} {mode}"])


@slow
@pytest.mark.parametrize("name", criteria.CRITERIA)
def test_every_criterion_prunes_the_same_weights(found, name):
    scored = found["criteria"][name]
    assert scored["differ"] == 0
    assert scored["pruned"] == pytest.approx(0.4, abs=0.01)
    assert scored["copies"] == []


@slow
def test_streamed_data_and_other_dispatches_give_the_same_bits(found):
    assert found["streams"] is True


@slow
@pytest.mark.parametrize("name", ["checkpoints", "snapshots"])
def test_every_copy_comes_back_to_the_bit(found, name):
    assert found[name] == {"same": True, "copies": []}


@slow
def test_a_divergence_is_found_on_the_first_device(found):
    step, what = found["divergence"]
    assert 1 <= step <= 12
    assert what == "the loss" or "dense" in what
