"""Where rounds and controls start from, in experiments; what can be added to a run."""

import dataclasses
import functools
import hashlib
import shutil
import warnings

import keras
import numpy as np
import pytest

import prunetrain as pt
from prunetrain import config as config_lib
from prunetrain import errors, experiment, models, starts
from prunetrain import lab as lab_lib
from prunetrain.core import loops, snapshot
from prunetrain.runs import results
from tests import experiment_test as experiments
from tests import tiny, toys

# Batch norm and dropout; the learning rate falls after steps 3 and 8.
SETTINGS = {
    **{"model": "normed", "optimizer": "sgd", "optimizer_args": "momentum=0.9"},
    **{"learning_rate": 0.1, "learning_rate_schedule": "step"},
    **{"learning_rate_schedule_args": "boundaries=(3,8)", "rounds": 2},
    "checkpoint_every": "100",
}
PARTS = ("weights", "slots", "schedule", "state")
SOME_CONTROLS = "reinit,random,supermask"


def settings(**changes):
    return experiments.settings(**{**SETTINGS, **changes})


def plain(input_shape, num_classes):
    """A network whose training draws nothing: 16-12-3 without dropout."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(12, activation="relu", name="hidden"),
            layers.Dense(num_classes, name="output"),
        ],
        name="net",
    )


@pytest.fixture(autouse=True, scope="module")
def registered():
    with pytest.MonkeyPatch.context() as patch:
        tiny.register(patch)
        patch.setitem(models.MODELS, "normed", experiments.normed)
        patch.setitem(models.MODELS, "plain", plain)
        yield


@pytest.fixture(scope="module")
def labs():
    lender = experiments.Labs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab_lib, "Lab", lender)
        yield lender


handled = experiments.handled


@dataclasses.dataclass(frozen=True)
class Moment:
    """Copies of what is on the device, and where the data stand."""

    parts: dict
    kernels: list
    masks: list
    rate: float
    place: tuple
    rewind: str


class Recorder(experiments.Recorder):
    """Keeps moments by part of the state."""

    def _look(self, moments, key):
        if self._labs and isinstance(key[0], tuple):
            lab, step = self._labs.last, key[1]
            pt.testing.assert_masks_hold(lab.pruned, lab.optimizer)
            parts = snapshot.by_part(lab.pruned.model, lab.optimizer)
            live = {id(mask) for mask in lab.pruned.masks}
            copies = [x for x in lab.rewind.variables if id(x) not in live]
            moments[key] = Moment(
                {part: toys.values(parts[part]) for part in PARTS},
                toys.values(lab.pruned.kernels),
                toys.values(lab.pruned.masks),
                float(lab.optimizer.learning_rate),
                (int(lab.loop.seed), step + lab.data_offset),
                hashlib.sha256(b"".join(toys.bits(copies))).hexdigest(),
            )


def perform(config, path, labs=None):
    recorder = Recorder(labs)
    recorder.config = config
    recorder.rows = experiment.run(config, path, recorder).rows
    recorder.path = path
    return recorder


def files_left(path):
    """What a run left, less the times: rows, metrics, tickets, weights."""
    rows = [dataclasses.replace(r, train_seconds=0) for r in results.read_rows(path)]
    masks = {
        file.name: experiments.directory_masks(file)
        for file in (path / "tickets").glob("*.npz")
    }
    weights = {
        file.name: {name: x.tobytes() for name, x in tiny.arrays(file).items()}
        for file in (path / "checkpoints").glob("*.h5")
    }
    return rows, (path / "metrics.jsonl").read_text(), masks, weights


def under(masks, arrays):
    """Arrays with what the masks prune zeroed, in whatever has a kernel's shape."""
    masks = {mask.shape: mask for mask in masks}
    return [np.where(masks.get(x.shape, True), x, x.dtype.type(0)) for x in arrays]


# What presets start from


@pytest.fixture(scope="module")
def runs(labs, tmp_path_factory):
    """Runs by settings; each is made once."""

    @functools.cache
    def make(**changes):
        return perform(settings(**changes), tmp_path_factory.mktemp("run"), labs)

    return make


# By rewind: the rewind step; the sources of weights, slots, schedule and state; the
# step that rounds start at, the learning rate there, the places in the data.
REWINDS = {
    "late": (5, "rrrr", 5, 0.01, (5, 5)),
    "lottery": (0, "iiii", 0, 0.1, (0, 0)),
    "lr_rewind": (5, "eere", 5, 0.01, (5, 5)),
    "finetune": (5, "eeee", 5, 0.001, (12, 19)),
    "reinit": (0, "ffff", 0, 0.1, (0, 0)),
    "late,slots=init,data=fresh": (5, "rirr", 5, 0.01, (0, 0)),
    "finetune,schedule=init,state=fresh": (0, "eeif", 0, 0.1, (12, 24)),
    "lottery,weights=end,schedule=rewind,data=init": (5, "eiri", 5, 0.01, (0, 0)),
}


@pytest.mark.parametrize("rewind", REWINDS)
@pytest.mark.parametrize("round", [1, 2])
def test_each_part_of_a_start_is_its_source_to_the_bit(rewind, round, runs):
    rewind_step, sources, step, rate, _ = REWINDS[rewind]
    run = runs(rewind=rewind, rewind_step=rewind_step)
    start = run.at[(0, "ticket", round), step]
    first = run.at[(0, "ticket", 0), 0]
    from_source = {
        "i": first,
        "r": run.at[(0, "ticket", 0), rewind_step],
        "e": run.at[(0, "ticket", round - 1), 12],
    }
    for part, source in zip(PARTS, sources, strict=True):
        if source in from_source:
            expected = under(start.masks, from_source[source].parts[part])
            assert experiments.bits(start.parts[part]) == experiments.bits(expected)
    np.testing.assert_allclose(start.rate, rate, rtol=1e-6)
    # Else every source would do.
    assert len({str(x.parts[part]) for x in from_source.values()}) > 1


def test_what_is_drawn_fresh_differs_from_round_to_round_and_from_the_control(runs):
    run = runs(rewind="reinit", controls="reinit")
    drawn = [run.at[(0, "ticket", round), 0] for round in range(3)]
    drawn += [run.at[(0, "reinit", round), 0] for round in (1, 2)]
    for index, one in enumerate(drawn):
        for other in drawn[:index]:
            for mine, theirs in zip(one.kernels, other.kernels, strict=True):
                live = (mine != 0) & (theirs != 0)
                assert live.any()
                assert not np.any((mine == theirs) & live)
            # Dropout's seed.
            assert str(one.parts["state"]) != str(other.parts["state"])
        assert not any(slot.any() for slot in one.parts["slots"])
        assert [int(x) for x in one.parts["schedule"]] == [0]


@pytest.mark.parametrize("rewind", REWINDS)
def test_the_place_in_the_data_is_that_of_its_source(rewind, runs):
    rewind_step, _, step, _, places = REWINDS[rewind]
    run = runs(rewind=rewind, rewind_step=rewind_step)
    order = starts.seed_for(run.config, "data_order", 0)
    for round, place in zip((1, 2), places, strict=True):
        fresh = starts.seed_for(run.config, "data_order", 0, round)
        seed = fresh if "data=fresh" in rewind else order
        assert run.at[(0, "ticket", round), step].place == (seed, place)
        last = run.at[(0, "ticket", round), 12].place
        assert last == (seed, place + 12 - step)
    assert run.at[(0, "ticket", 0), 12].place == (order, 12)


@pytest.mark.parametrize(
    ("rewind", "rewind_step", "places"),
    [
        ("late", 2, (2, 2)),
        ("lottery", 0, (0, 0)),
        ("finetune", 2, (12, 22)),
        ("late,data=fresh", 2, (0, 0)),
    ],
)
def test_the_batch_that_is_seen_first_is_that_of_the_place(
    rewind, rewind_step, places, labs, tmp_path
):
    changes = {"model": "plain", "rewind": rewind, "rewind_step": rewind_step}
    run = perform(settings(**changes, eval_every=1), tmp_path, labs)
    x, y = pt.load_dataset("noise", validation_size=20).train
    logged = experiments.lines(tmp_path)
    for round, place in zip((1, 2), places, strict=True):
        start = run.at[(0, "ticket", round), rewind_step]
        positions = np.arange(place * 8, (place + 1) * 8)
        seed = start.place[0]
        orders = [loops.shuffled(40, seed, epoch).numpy() for epoch in range(6)]
        rows = np.concatenate(orders)[positions]
        hidden, hidden_bias, output, output_bias = start.parts["weights"]
        values = np.maximum(x[rows].reshape(8, -1) @ hidden + hidden_bias, 0)
        logits = (values @ output + output_bias).astype(np.float64)
        expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(8), y[rows]]
        (found,) = (
            line["train_loss"]
            for line in logged
            if (line["round"], line["step"]) == (round, rewind_step + 1)
            and line["phase"] == "training"
        )
        np.testing.assert_allclose(found, expected.mean(), rtol=1e-5)


def test_late_rewinding_to_step_0_is_that_of_the_lottery(runs):
    late, lottery = (runs(rewind=rewind) for rewind in ("late", "lottery"))
    assert files_left(late.path) == files_left(lottery.path)


def test_streamed_data_go_on_where_those_on_the_device_do(runs):
    held, streamed = (
        runs(rewind="finetune", rewind_step=5, stream=s) for s in ("never", "always")
    )
    assert files_left(held.path) == files_left(streamed.path)


@pytest.mark.parametrize("rewind_step", [0, 5])
def test_the_snapshot_stays_as_it_was_taken(rewind_step, runs):
    """F3, with controls in between."""
    run = runs(rewind_step=rewind_step, controls="reinit,shuffle")
    starts_ = [x for (key, _), x in run.at.items() if key[2]]
    assert len({x.rewind for x in starts_}) == 1
    assert len(starts_) > 20


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_a_schedule_that_ends_at_0_cannot_go_on(schedule, labs):
    config = settings(
        rewind="finetune",
        learning_rate_schedule=schedule,
        learning_rate_schedule_args="",
    )
    with toys.raises(config_lib.ConfigError, "`rewind`", schedule, "above 0"):
        labs.make(config, "graph")
    args = "alpha=0.1" if schedule == "cosine" else "end_learning_rate=0.1"
    labs.make(dataclasses.replace(config, learning_rate_schedule_args=args), "graph")


# Controls


@pytest.fixture(scope="module")
def compared(runs):
    """A run with every control, whose tickets start at step 5."""
    controls = "reinit:2,random:2,shuffle,same_sign,inverted"
    controls += ",supermask,supermask_constant"
    return runs(controls=controls, rewind_step=5)


def test_controls_are_rows_after_their_ticket(compared):
    branches = [row.branch for row in compared.rows if row.round == 1]
    assert branches == [
        *("ticket", "inverted", "random", "random_2", "reinit", "reinit_2"),
        *("same_sign", "shuffle", "supermask", "supermask_constant"),
    ]
    assert len(compared.rows) == 1 + 2 * len(branches)


@pytest.mark.parametrize("round", [1, 2])
def test_controls_have_their_masks_and_weights(round, compared):
    ticket = compared.at[(0, "ticket", round), 5]
    late, first = (compared.at[(0, "ticket", 0), step] for step in (5, 0))
    counts = [mask.sum() for mask in ticket.masks]

    def at(branch, step):
        return compared.at[(0, branch, round), step]

    for branch in ("random", "random_2", "shuffle", "inverted"):
        start = at(branch, 5)
        assert experiments.bits(start.masks) != experiments.bits(ticket.masks)
        for part in PARTS:
            expected = under(start.masks, late.parts[part])
            assert experiments.bits(start.parts[part]) == experiments.bits(expected)
        if branch == "inverted":
            assert all(map(np.array_equal, start.masks, [~m for m in ticket.masks]))
        else:
            assert [mask.sum() for mask in start.masks] == counts
    for branch, expected in (
        ("supermask", first.kernels),
        ("supermask_constant", [np.sign(x) * np.std(x) for x in first.kernels]),
    ):
        start = at(branch, 0)
        assert experiments.bits(start.masks) == experiments.bits(ticket.masks)
        expected = under(ticket.masks, expected)
        for mine, theirs in zip(start.kernels, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    fresh, signed = at("reinit", 0), at("same_sign", 0)
    assert experiments.bits(signed.masks) == experiments.bits(ticket.masks)
    for mine, theirs, weights in zip(
        signed.kernels, fresh.kernels, ticket.kernels, strict=True
    ):
        np.testing.assert_array_equal(abs(mine), abs(theirs))
        assert np.all((mine < 0) == (weights < 0))
        assert np.any(mine != theirs)


def test_controls_see_the_data_of_their_ticket(compared):
    """The same order; from its place, or from the begin if they start there."""
    order = starts.seed_for(compared.config, "data_order", 0)
    for (_, branch, round), step in compared.at:
        place = compared.at[(0, branch, round), step].place
        assert place == (order, step)


def test_draws_differ(compared):
    for first, second, step in (("random", "random_2", 5), ("reinit", "reinit_2", 0)):
        one, other = (compared.at[(0, x, 1), step] for x in (first, second))
        assert experiments.bits(one.kernels) != experiments.bits(other.kernels)


def test_supermasks_are_evaluated_and_not_trained(compared):
    for row in compared.rows:
        if row.branch.startswith("supermask"):
            assert row.best_step == 0
            assert row.val_loss == row.final_val_loss
            assert row.test_loss == row.final_test_loss
            assert [x.step for x in compared.evaluations[row.key]] == [0]
    # Dense, two tickets, four controls from there and three from step 0, two rounds.
    assert compared.expected == 12 + 2 * (5 * 7 + 3 * 12)


def test_more_draws_and_controls_change_nothing_of_the_first(compared, runs):
    rows, _, masks, weights = files_left(runs(controls="reinit", rewind_step=5).path)
    more = files_left(compared.path)
    assert masks == more[2]
    assert set(rows) < set(more[0])
    assert weights.items() <= more[3].items()


def test_a_control_without_a_weight_in_some_layer_is_a_warning(labs, tmp_path):
    config = settings(controls="inverted", layer_rates="output=0", rounds=1)
    # Not pytest.warns, which tells again what TensorFlow's own filters keep quiet.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        run = perform(config, tmp_path)
    assert [str(warning.message) for warning in caught] == [
        "the control inverted of round 1 has no weight of net/output/kernel: nothing "
        "passes through"
    ]
    assert [row.weights_remaining for row in run.rows] == [228, 190, 38]


# Cut off, and gone on with


@pytest.mark.parametrize(
    ("rewind", "num_steps"),
    [("lr_rewind", 5), ("lr_rewind", 13), ("finetune,data=fresh", 8)],
)
def test_a_run_that_starts_from_ends_can_be_cut_anywhere(
    rewind, num_steps, runs, labs, tmp_path, handled
):
    whole = runs(rewind=rewind, rewind_step=5, controls=SOME_CONTROLS)
    config = dataclasses.replace(whole.config, steps_per_loop=1)
    displays = experiments.until_done(config, tmp_path, num_steps)
    # Dense, and twice ticket, reinit and random.
    assert len(displays) == (12 + 2 * (7 + 12 + 7)) // num_steps
    assert files_left(tmp_path) == files_left(whole.path)


def test_ends_are_kept_for_the_next_round_and_no_longer(runs):
    whole = runs(rewind="lr_rewind", rewind_step=5, controls=SOME_CONTROLS)
    kept = sorted(x.name for x in (whole.path / "checkpoints").glob("*-resume"))
    # Round 3 may come, and controls of round 2.
    assert kept == [f"replicate0-ticket-round0{round}-resume" for round in (1, 2)]
    late = runs(controls="reinit", rewind_step=5)
    assert not list((late.path / "checkpoints").glob("*-resume"))


@pytest.mark.parametrize("which", ["one", "both", "all rounds"])
def test_an_end_that_is_lost_is_trained_again(which, runs, labs, tmp_path):
    whole = runs(rewind="finetune", rewind_step=5, rounds=3, checkpoint_every="2")
    path = tmp_path / "run"
    perform(dataclasses.replace(whole.config, rounds=1), path, labs)
    folders = sorted((path / "checkpoints").glob("*-resume"))
    assert [sorted(x.name for x in folder.iterdir()) for folder in folders] == [
        ["5", "6"],
        ["3", "4"],
    ]
    if which == "all rounds":
        for folder in folders:
            shutil.rmtree(folder)
    else:
        for number in ("4",) if which == "one" else ("3", "4"):
            file = folders[1] / number / "state.index"
            file.write_bytes(file.read_bytes()[:-1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        again = perform(whole.config, path, labs)
    assert len(caught) == {"one": 1, "both": 2, "all rounds": 0}[which]
    told = [text for text in again.said if "is trained again" in text]
    # Round 0 first, which round 1 starts from.
    steps = {"one": [(1, 10)], "both": [(1, 5)], "all rounds": [(0, 0), (1, 5)]}
    assert told == [
        f"replicate 0 round {round} ticket is trained again from step {step}, as its "
        "last checkpoint is not there any more"
        for round, step in steps[which]
    ]
    assert files_left(path) == files_left(whole.path)


def test_a_training_that_diverges_where_data_go_on_is_told_to_the_step(
    labs, tmp_path, monkeypatch
):
    def faulty(input_shape, num_classes):
        layers = keras.layers
        flat, output = layers.Flatten(), layers.Dense(num_classes, name="output")
        fault = experiments.Fault("the loss")
        return keras.Sequential([keras.Input(input_shape), flat, fault, output])

    monkeypatch.setattr(lab_lib, "Lab", labs.make)
    monkeypatch.setitem(models.MODELS, "faulty", faulty)
    # It counts its steps: after the 6 of round 0, the 8th is the second of round 1.
    config = settings(
        **{"model": "faulty", "rewind": "finetune", "train_steps": 6, "rounds": 1},
        **{"learning_rate_schedule_args": "", "replicates": 4},
    )
    with toys.raises(
        errors.RunError, "the loss is not finite at step 2 (branch ticket, round 1)"
    ):
        experiment.run(config, tmp_path, Recorder())


# What can be added to a run


@pytest.mark.parametrize("rewind", ["late", "lr_rewind"])
def test_rounds_and_controls_can_be_added_to_a_finished_run(
    rewind, runs, labs, tmp_path
):
    changes = {"rewind": rewind, "rewind_step": 5}
    perform(settings(**changes, rounds=0), tmp_path, labs)
    perform(settings(**changes, controls="supermask"), tmp_path, labs)
    before = files_left(tmp_path)
    config = settings(**changes, controls=SOME_CONTROLS)
    added = perform(config, tmp_path, labs)
    whole = runs(**changes, controls=SOME_CONTROLS)
    assert files_left(tmp_path) == files_left(whole.path)
    assert set(before[0]) < set(files_left(tmp_path)[0])
    assert [row.key for row in added.rows] == [row.key for row in whole.rows]
    for name in ("config.json", "flags.txt"):
        assert (tmp_path / name).read_text() == (whole.path / name).read_text()
    again = perform(config, tmp_path, labs)
    assert again.said == [f"{tmp_path}: every round is finished, nothing to train"]


def test_fewer_rounds_and_controls_leave_what_is_there(labs, tmp_path):
    perform(settings(controls="shuffle", rounds=1), tmp_path, labs)
    before = files_left(tmp_path)
    perform(settings(rounds=0), tmp_path, labs)
    assert files_left(tmp_path) == before


def test_a_training_that_was_cut_off_waits_for_controls_that_come_before_it(
    runs, labs, tmp_path, handled
):
    config = settings(rewind_step=5)
    # 12 steps dense, 7 of round 1, 3 of round 2.
    assert experiments.stopped(config, tmp_path, 22).reached[0][:3] == (0, "ticket", 2)
    config = settings(rewind_step=5, controls="shuffle")
    added = perform(config, tmp_path, labs)
    assert added.said == ["goes on at replicate 0 round 2 ticket step 8"]
    whole = runs(rewind_step=5, controls="shuffle")
    assert files_left(tmp_path) == files_left(whole.path)


def test_rounds_beyond_an_end_are_refused_with_the_reason(labs, tmp_path):
    changes = {"prune_rate": 0.0, "rounds": 0}
    run = perform(settings(**changes), tmp_path, labs)
    assert run.said == []
    again = perform(settings(prune_rate=0.0, rounds=2), tmp_path, labs)
    assert again.said[1:] == [
        "replicate 0 has no round after 0: a rate of 0 prunes none of the 228 weights"
    ]


def test_other_settings_bind_as_before(labs, tmp_path):
    perform(settings(rounds=0), tmp_path, labs)
    with toys.raises(errors.InputError, "rewind: ['late'] there, ['lottery'] here"):
        perform(settings(rounds=0, rewind="lottery"), tmp_path, labs)


# When and how sparse


def test_sparsities_are_reached_in_each_layer(labs, tmp_path):
    run = perform(settings(rounds=15, sparsities="0.5,0.8"), tmp_path, labs)
    # 192 and 36, without half a rate for the output.
    assert [row.weights_remaining for row in run.rows] == [228, 96 + 18, 38 + 7]
    assert not (tmp_path / "tickets" / "replicate0-round03.npz").exists()


def test_one_shot_is_a_list_of_one_and_may_be_global(labs, tmp_path):
    run = perform(settings(rounds=1, sparsities=0.9, allocation="global"), tmp_path)
    assert [row.weights_remaining for row in run.rows] == [228, 228 - 205]


def test_a_sparsity_that_is_there_already_ends_the_run(labs, tmp_path):
    run = perform(settings(rounds=1, sparsities=0), tmp_path)
    assert run.said == [
        "No round after 0: a sparsity of 0 prunes none of the 228 weights"
    ]


@pytest.fixture(scope="module")
def pruned_at_first(runs):
    return runs(prune_at="init", controls="reinit,shuffle")


def test_pruned_at_initialisation_round_0_is_only_evaluated(pruned_at_first):
    run = pruned_at_first
    row = run.rows[0]
    assert (row.round, row.best_step, row.val_loss) == (0, 0, row.final_val_loss)
    assert [x.step for x in run.evaluations[0, "ticket", 0]] == [0]
    assert run.expected == 2 * 3 * 12
    logged = experiments.lines(run.path)
    assert {line["phase"] for line in logged} == {"start", "training", "end", "best"}


def test_pruned_at_initialisation_masks_are_of_the_initial_weights(pruned_at_first):
    run = pruned_at_first
    initial = run.at[(0, "ticket", 0), 0].kernels
    masks = [np.ones(kernel.shape, bool) for kernel in initial]
    for round in (1, 2):
        start = run.at[(0, "ticket", round), 0]
        for kernel, old, mask, rate in zip(
            initial, masks, start.masks, (0.2, 0.1), strict=True
        ):
            count = int(rate * old.sum() + 0.5)
            (expected,) = toys.lowest_removed([abs(kernel)], [old], count)
            np.testing.assert_array_equal(mask, expected)
        assert experiments.bits(start.kernels) == experiments.bits(
            under(start.masks, initial)
        )
        masks = start.masks


def test_pruned_at_initialisation_a_run_can_be_cut(
    pruned_at_first, labs, tmp_path, handled
):
    config = dataclasses.replace(pruned_at_first.config, steps_per_loop=1)
    assert len(experiments.until_done(config, tmp_path, 9)) == 2 * 3 * 12 // 9
    assert files_left(tmp_path) == files_left(pruned_at_first.path)


# Metrics


def test_accuracy_is_logged_before_and_after_pruning_and_after_training(runs):
    """F6: of round 0's weights, of the same under round 1's masks, and of round 1's."""
    run = runs(model="plain", controls="reinit", rounds=1)
    logged = experiments.lines(run.path)
    tickets = [line for line in logged if line["branch"] == "ticket"]
    found = [
        (line["round"], line["phase"], line["weights_remaining"])
        for line in tickets
        if line["phase"] in ("end", "pruned") and line["split"] == "validation"
    ]
    dense, pruned = 228, 154 + 32
    assert found == [
        *((0, "end", dense), (0, "pruned", pruned)),
        *((1, "end", pruned), (1, "pruned", 123 + 29)),
    ]
    x, y = pt.load_dataset("noise", validation_size=20).validation
    masks = run.at[(0, "ticket", 1), 0].masks
    weights = under(masks, run.at[(0, "ticket", 0), 12].parts["weights"])
    hidden, hidden_bias, output, output_bias = weights
    values = np.maximum(x.reshape(20, -1) @ hidden + hidden_bias, 0)
    logits = values @ output + output_bias
    (line,) = (x for x in tickets if (x["round"], x["phase"]) == (0, "pruned"))
    assert (line["split"], line["step"]) == ("validation", 12)
    assert line["accuracy"] == (logits.argmax(1) == y).mean()
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(20), y]
    np.testing.assert_allclose(line["loss"], losses.mean(), rtol=1e-5)
    assert not any(x["phase"] == "pruned" for x in logged if x["branch"] == "reinit")
