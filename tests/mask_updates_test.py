"""Experiments whose masks change in the training: gradual, SET, RigL, latent ones."""

import json
import warnings

import numpy as np
import pytest

import prunetrain as pt
from prunetrain import errors, lab
from prunetrain.config import ConfigError
from prunetrain.runs import progress, tickets
from tests import tiny, toys

SETTINGS = {
    **{"dataset": "noise", "model": "net", "compile": "graph", "learning_rate": 0.05},
    **{"validation_size": 20, "batch_size": 8, "train_steps": 24, "eval_every": 4},
    **{"update_every": 4, "steps_per_loop": 5},
}
SIZES = {"hidden": 16 * 12, "output": 12 * 3}
KINDS = {
    "gradual": {"prune_at": "during", "sparsities": "0.5,0.75"},
    "set": {"mask_updates": "set", "prune_at": "init", "sparsities": "0.5"},
    "rigl": {"mask_updates": "rigl", "prune_at": "init", "sparsities": "0.5"},
    "straight_through": {"mask_updates": "straight_through", "rounds": 1},
}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    tiny.register(monkeypatch)


def settings(kind, **changes):
    return pt.Config(**{**SETTINGS, **KINDS[kind], **changes})


def masks(folder, name):
    return tickets.from_bytes(
        (folder / "tickets" / f"replicate0-{name}.npz").read_bytes()
    )


def lines(folder, round):
    text = (folder / "metrics.jsonl").read_text().splitlines()
    return [x for x in map(json.loads, text) if x["round"] == round]


def test_sparsity_rises_in_the_training_to_that_of_the_round(tmp_path):
    rows = pt.run(settings("gradual"), tmp_path).rows
    assert [row.weights_remaining for row in rows] == [228, 114, 57]
    # Round 0 is only evaluated; updates end at step 18.
    assert rows[0].best_step == 0
    assert all(row.best_step >= 20 for row in rows[1:])
    kept = [x["weights_remaining"] for x in lines(tmp_path, 1) if x["phase"] != "best"]
    assert kept[0] == kept[1] == 228 > kept[2] > kept[3] >= kept[-1] == 114
    assert kept == sorted(kept, reverse=True)
    for round, share in ((1, 0.5), (2, 0.25)):
        ended = masks(tmp_path, f"ticket-end-round0{round}")
        assert [m.sum() for m in ended] == [share * size for size in SIZES.values()]
    # The second round goes on from the masks of the first.
    np.testing.assert_array_equal(
        np.concatenate([m.ravel() for m in masks(tmp_path, "round02")]),
        np.concatenate([m.ravel() for m in masks(tmp_path, "ticket-end-round01")]),
    )


@pytest.mark.parametrize("kind", ["set", "rigl", "straight_through"])
def test_masks_move_and_the_number_of_weights_stays(kind, tmp_path):
    pt.run(settings(kind, controls="reinit"), tmp_path)
    started = masks(tmp_path, "round01")
    for branch in ("ticket", "reinit"):
        ended = masks(tmp_path, f"{branch}-end-round01")
        assert any((old != new).any() for old, new in zip(started, ended, strict=True))
        assert [m.sum() for m in started] == [m.sum() for m in ended]
    # Round 0 of a dense network stays dense.
    for round, kept in ((0, 228), (1, sum(m.sum() for m in started))):
        assert {
            x["weights_remaining"]
            for x in lines(tmp_path, round)
            if x["phase"] != "pruned"
        } == {kept}


@pytest.mark.parametrize("allocation", ["layerwise", "erk", "global"])
def test_straight_through_keeps_what_the_allocation_has_left(allocation, tmp_path):
    config = settings("straight_through", allocation=allocation, prune_rate=0.5)
    pt.run(config, tmp_path)
    before, after = (
        [m.sum() for m in masks(tmp_path, name)]
        for name in ("round01", "ticket-end-round01")
    )
    assert sum(before) == sum(after)
    assert before == after or allocation == "global"
    # Not the same sparsity everywhere, which the update would not be told from.
    assert before[0] / SIZES["hidden"] != before[1] / SIZES["output"]


def test_a_layer_that_will_be_emptied_in_training_is_a_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lab.Lab(settings("gradual", sparsities="0.5,0.99"), "graph")
    told = [str(warning.message) for warning in caught]
    assert any("leaves no weight of net/output/kernel" in text for text in told)


class KilledError(Exception):
    pass


class Kill(progress.Silent):
    def __init__(self, round, step):
        super().__init__()
        self._round, self._step = round, step

    def begin(self, replicate, branch, round, kept):
        self._now = round

    def advance(self, replicate, step, num_steps, last_step=None):
        if num_steps and self._now == self._round and step >= self._step:
            raise KilledError


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_cut_goes_on_to_the_same_bits(kind, tmp_path):
    config = settings(
        kind, checkpoint_every="3", optimizer="sgd", optimizer_args="momentum=0.9"
    )
    pt.run(config, tmp_path / "whole")
    for step in (4, 17):
        with pytest.raises(KilledError):
            pt.run(config, tmp_path / "cut", Kill(1, step))
    pt.run(config, tmp_path / "cut")
    whole, cut = (
        {file.name: file.read_bytes() for file in (tmp_path / x).rglob("*.npz")}
        for x in ("whole", "cut")
    )
    assert whole == cut
    assert lines(tmp_path / "whole", 1) == lines(tmp_path / "cut", 1)


def test_latent_weights_of_one_training_are_not_seen_in_the_next(tmp_path):
    """The second replicate alone is what it is after the first."""
    config = settings("straight_through", replicates=2)
    both = pt.run(config, tmp_path / "both").rows
    with pytest.raises(KilledError):
        pt.run(config, tmp_path / "cut", KillReplicate(1))
    rows = pt.run(config, tmp_path / "cut").rows
    assert [r.test_loss for r in rows] == [r.test_loss for r in both]


class KillReplicate(progress.Silent):
    def __init__(self, replicate):
        super().__init__()
        self._replicate = replicate

    def begin(self, replicate, branch, round, kept):
        if replicate == self._replicate:
            raise KilledError


@pytest.mark.parametrize(
    ("changes", "field", "rule"),
    [
        ({"prune_at": "during"}, "prune_at", "needs --sparsities"),
        (
            {"prune_at": "during", "sparsities": "0.5", "criterion": "random"},
            "criterion",
            "must be magnitude with prune_at=during",
        ),
        (
            {"prune_at": "during", "sparsities": "0.5", "mask_updates": "set"},
            "mask_updates",
            "must be static with prune_at=during",
        ),
        (
            {"mask_updates": "set", "update_begin": 20},
            "update_end",
            "must be after update_begin=20",
        ),
        (
            {"mask_updates": "set", "update_end": 24},
            "update_end",
            "before train_steps=24",
        ),
        *(
            (
                {"prune_at": "during", "sparsities": "0.5", name: value},
                name,
                f"must be {rule} with prune_at=during",
            )
            for name, value, rule in [
                ("allocation", "erk", "layerwise or global"),
                ("min_kept", 10, "0"),
                ("prune_iterations", 3, "0"),
                ("controls", "reinit,supermask", "reinit or same_sign"),
            ]
        ),
        (
            {"mask_updates": "rigl", "pattern": "2:4"},
            "pattern",
            "must be element with mask_updates=rigl",
        ),
        (
            {
                "mask_updates": "straight_through",
                "allocation": "global",
                "min_kept": 10,
            },
            "min_kept",
            "must be 0 with mask_updates=straight_through and allocation=global",
        ),
        (
            {"prune_at": "during", "sparsities": "0.5", "rewind_step": 4},
            "rewind_step",
            "must be 0 with prune_at=during",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes, field, rule):
    with toys.raises(ConfigError, f"`{field}`", rule):
        pt.Config(**{**SETTINGS, **changes})


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"rewind": "finetune"}, ["`rewind`", "data elsewhere than its steps"]),
        (
            {
                "mask_updates": "static",
                "prune_at": "during",
                "sparsities": "0.5,0.999",
                "rounds": 2,
            },
            ["--sparsities=0.5,0.999", "at least one weight must be left"],
        ),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_written(changes, parts, tmp_path):
    base = {"mask_updates": "set", "rounds": 1}
    with toys.raises(errors.InputError, *parts):
        pt.run(pt.Config(**{**SETTINGS, **base, **changes}), tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()
