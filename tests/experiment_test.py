"""The experiment: train, prune, rewind, repeat; interrupted and gone on with."""

import contextlib
import dataclasses
import functools
import itertools
import json
import re
import signal
import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain import config as config_lib
from prunetrain import errors, experiment, models, plans, starts, training
from prunetrain import lab as lab_lib
from prunetrain.runs import progress, results, signals, workdir
from tests import tiny, toys

# 228 weights in two kernels, 40 examples in 5 batches an epoch.
SETTINGS = {
    **{"dataset": "noise", "model": "net", "compile": "graph", "learning_rate": 0.05},
    **{"validation_size": 20, "batch_size": 8, "train_steps": 12, "eval_every": 4},
    **{"rounds": 3, "steps_per_loop": 3},
}
KERNELS = ["net/hidden/kernel", "net/output/kernel"]
HIDDEN, OUTPUT = 16 * 12, 12 * 3


@pytest.fixture(autouse=True, scope="module")
def registered():
    with pytest.MonkeyPatch.context() as patch:
        tiny.register(patch)
        yield


def settings(**changes):
    return pt.Config(**{**SETTINGS, **changes})


class Labs:
    """Lends one compiled `Lab` to all runs that need no other.

    Compiling takes seconds. It is wiped each time, and thus knows less than a new one:
    what a run needs of an earlier one has to come from the folder.
    """

    def __init__(self):
        self.make, self._labs = lab_lib.Lab, {}

    def __call__(self, config, compile, dataset=None):
        free = {"steps_per_loop": 1, "checkpoint_every": "60s", "rewind_step": 0}
        free |= {"controls": (), "control_rounds": (), "rewind": "late"}
        free |= {"rounds": len(config.sparsities) or 1, "prune_at": "end"}
        free |= {"test_every": 0}
        key = dataclasses.replace(config, compile=compile, **free)
        if key not in self._labs:
            self._labs[key] = self.make(config, compile, dataset)
        lab = self.last = self._labs[key]
        lab.config = config
        for variable in (
            *(v.value for v in lab.pruned.model.variables),
            *(v.value for v in lab.optimizer.variables),
            *lab.pruned.masks,
            *lab.rewind.variables,
            *lab.best.variables,
        ):
            variable.assign(tf.zeros_like(variable))
        return lab


@pytest.fixture(scope="module")
def labs():
    lender = Labs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab_lib, "Lab", lender)
        yield lender


@dataclasses.dataclass(frozen=True)
class Moment:
    """Copies of what is on the device."""

    kernels: list
    others: list
    masks: list
    optimizer: list
    order: int


def moment(lab):
    kernels = {id(kernel) for kernel in lab.pruned.kernels}
    return Moment(
        toys.values(lab.pruned.kernels),
        toys.values(v for v in lab.pruned.model.variables if id(v) not in kernels),
        toys.values(lab.pruned.masks),
        toys.values(lab.optimizer.variables),
        int(lab.loop.seed),
    )


class Recorder(progress.Silent):
    """A display that keeps what it is told and, given labs, what the lab then holds."""

    def __init__(self, labs=None):
        self._labs = labs
        self.expected, self.kept, self.at, self.tested = 0, {}, {}, {}
        self.evaluations, self.rows, self.said = {}, [], []

    def expect(self, num_steps):
        self.expected = num_steps

    def begin(self, replicate, branch, round, kept):
        self._key = replicate, branch, round
        self.kept[self._key] = kept
        self.evaluations[self._key] = []

    def advance(self, replicate, step, num_steps, last_step=None):
        self._look(self.at, (self._key, step))

    def evaluated(self, replicate, evaluation, train_loss):
        self.evaluations[self._key].append(evaluation)

    def finish(self, row):
        self.rows.append(row)
        self._look(self.tested, self._key)

    def say(self, text):
        self.said.append(text)

    def _look(self, moments, key):
        if self._labs:
            lab = self._labs.last
            pt.testing.assert_masks_hold(lab.pruned, lab.optimizer)
            moments[key] = moment(lab)


def perform(config, path, labs=None):
    """Runs an experiment; returns its recorder, with the directory and the results."""
    recorder = Recorder(labs)
    recorder.config = config
    recorder.results = experiment.run(config, path, recorder)
    recorder.directory = experiment.open_directory(config, path)
    return recorder


@pytest.fixture(scope="module")
def wholes(labs, tmp_path_factory):
    """Runs of two replicates with controls, by rewind step; nothing interrupts them."""

    @functools.cache
    def make(rewind_step):
        config = settings(
            **{"rewind_step": rewind_step, "replicates": 2, "controls": "reinit"},
            **{"compile": "xla", "test_every": 8},
        )
        recorder = perform(config, tmp_path_factory.mktemp("whole"), labs)
        recorder.num_traces = labs.last.loop.num_traces
        return recorder

    return make


@pytest.fixture(params=[0, 5], ids=["rewind 0", "rewind 5"])
def whole(request, wholes):
    return wholes(request.param)


def tickets(first_round=1):
    """`(replicate, round)` of the rewound tickets."""
    return itertools.product(range(2), range(first_round, 4))


def lines(path):
    """metrics.jsonl as a list of dicts."""
    return [json.loads(x) for x in (path / "metrics.jsonl").read_text().splitlines()]


# What a run does


def test_trainings_come_by_replicate_and_round_the_ticket_before_its_control(whole):
    keys = [row.key for row in whole.results.rows]
    one = [("ticket", 0)]
    one += [(branch, r) for r in (1, 2, 3) for branch in ("ticket", "reinit")]
    assert keys == [(replicate, *key) for replicate in range(2) for key in one]
    assert whole.rows == whole.results.rows == whole.directory.rows
    assert whole.results.workdir == whole.directory.path


def test_replicates_and_rounds_trace_the_loop_exactly_once(whole):
    assert whole.num_traces == 1


def test_survivors_start_from_the_snapshot_to_the_bit(whole):
    step = whole.config.rewind_step
    for replicate, round in tickets():
        snapshot = whole.at[(replicate, "ticket", 0), step]
        start = whole.at[(replicate, "ticket", round), step]
        expected = [
            np.where(mask, kernel, np.float32(0))
            for mask, kernel in zip(start.masks, snapshot.kernels, strict=True)
        ]
        assert bits(start.kernels) == bits(expected)
        # Biases, the seed of dropout.
        assert bits(start.others) == bits(snapshot.others)


def test_the_optimizer_starts_from_the_snapshot_but_for_what_is_pruned(whole):
    step = whole.config.rewind_step
    for replicate, round in tickets():
        start = whole.at[(replicate, "ticket", round), step]
        snapshot = whole.at[(replicate, "ticket", 0), step]
        masks = {mask.shape: mask for mask in start.masks}
        expected = [
            np.where(masks.get(slot.shape, True), slot, slot.dtype.type(0))
            for slot in snapshot.optimizer
        ]
        assert bits(start.optimizer) == bits(expected)
        # The step counter, which schedules of the learning rate follow.
        assert step in [int(x) for x in snapshot.optimizer if x.dtype == np.int64]


def bits(arrays):
    return [array.tobytes() for array in arrays]


def test_masks_are_of_the_trained_weights(whole):
    for replicate, round in tickets():
        before = whole.at[(replicate, "ticket", round - 1), 12]
        masks = whole.directory.load_masks(replicate, round)
        for mask, kernel, old, rate in zip(
            masks, before.kernels, before.masks, (0.2, 0.1), strict=True
        ):
            count = int(rate * old.sum() + 0.5)
            (expected,) = toys.lowest_removed([abs(kernel)], [old], count)
            np.testing.assert_array_equal(mask, expected)


def test_rounds_train_under_the_masks_in_their_files(whole):
    for replicate, round in tickets():
        masks = whole.directory.load_masks(replicate, round)
        for branch in ("ticket", "reinit"):
            for step in (8, 12):
                held = whole.at[(replicate, branch, round), step]
                assert bits(held.masks) == bits(masks)
    for replicate in range(2):
        dense = whole.at[(replicate, "ticket", 0), 12]
        assert all(mask.all() for mask in dense.masks)


def test_weights_remaining_follow_from_the_rates(whole):
    # Of 192: 38, 31, 25 go; of 36 at half the rate: 4, 3, 3.
    expected = {0: 192 + 36, 1: 154 + 32, 2: 123 + 29, 3: 98 + 26}
    for row in whole.results.rows:
        assert row.weights_remaining == expected[row.round]
        assert row.sparsity == (228 - row.weights_remaining) / 228
        assert whole.kept[row.key] == row.weights_remaining / 228


def test_the_control_draws_fresh_weights_in_each_round_and_replicate(whole):
    drawn = [whole.at[(r, "ticket", 0), 0] for r in range(2)]
    drawn += [whole.at[(r, "reinit", round), 0] for r, round in tickets()]
    for first, second in itertools.combinations(drawn, 2):
        for mine, theirs in zip(first.kernels, second.kernels, strict=True):
            live = (mine != 0) & (theirs != 0)
            assert live.any()
            assert not np.any((mine == theirs) & live)


def test_the_control_starts_with_a_fresh_optimizer_and_dropout(whole):
    dense = whole.at[(0, "ticket", 0), 0]
    for replicate, round in tickets():
        start = whole.at[(replicate, "reinit", round), 0]
        assert bits(start.optimizer) == bits(dense.optimizer)


def test_the_order_of_the_data_is_that_of_the_replicate(whole):
    orders = {}
    for (key, _), held in whole.at.items():
        orders.setdefault(key[0], set()).add(held.order)
    assert [len(found) for found in orders.values()] == [1, 1]
    assert orders[0] != orders[1]


def test_steps_start_at_the_rewind_step_for_rewound_tickets_only(whole):
    step = whole.config.rewind_step
    for replicate, branch, round in whole.kept:
        steps = [s for key, s in whole.at if key == (replicate, branch, round)]
        assert steps[0] == (step if round and branch == "ticket" else 0)
        assert steps[-1] == 12
        # A dispatch is 3 steps at most, and ends at evaluations.
        assert max(b - a for a, b in itertools.pairwise(steps)) <= 3
        assert set(range(4, 13, 4)) - set(range(steps[0])) <= set(steps)


def test_the_display_is_told_how_many_steps_will_come(whole):
    rewound = 2 * 3 * (12 - whole.config.rewind_step)
    assert whole.expected == 2 * 12 + rewound + 2 * 3 * 12


# What it writes


def test_the_best_step_is_that_of_the_lowest_validation_loss(whole):
    logged = lines(whole.directory.path)
    for row in whole.results.rows:
        mine = [
            line
            for line in logged
            if (line["replicate"], line["branch"], line["round"]) == row.key
            and line["split"] == "validation"
            and line["phase"] != "pruned"
        ]
        losses = [line["loss"] for line in mine]
        best = mine[int(np.argmin(losses))]
        found = row.best_step, row.val_loss, row.val_accuracy
        assert found == (best["step"], best["loss"], best["accuracy"])
        last = row.final_val_loss, row.final_val_accuracy
        assert last == (mine[-1]["loss"], mine[-1]["accuracy"])
    # Else the last step would do as well.
    assert any(row.best_step < 12 for row in whole.results.rows)


def outcome(moment, split):
    """Loss and accuracy of the network's weights, by NumPy."""
    x, y = split
    hidden_bias, output_bias = (v for v in moment.others if v.dtype == np.float32)
    hidden = np.maximum(x.reshape(len(x), -1) @ moment.kernels[0] + hidden_bias, 0)
    logits = (hidden @ moment.kernels[1] + output_bias).astype(np.float64)
    chosen = logits[np.arange(len(y)), y]
    losses = np.log(np.exp(logits).sum(1)) - chosen
    return losses.mean(), (logits.argmax(1) == y).mean()


def test_tests_are_made_at_the_best_step_and_at_the_last(whole):
    dataset = pt.load_dataset("noise", validation_size=20)
    for row in whole.results.rows:
        for step, split, found in (
            (row.best_step, dataset.test, (row.test_loss, row.test_accuracy)),
            (12, dataset.test, (row.final_test_loss, row.final_test_accuracy)),
            (row.best_step, dataset.validation, (row.val_loss, row.val_accuracy)),
        ):
            expected = outcome(whole.at[row.key, step], split)
            np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_test_examples_are_evaluated_along_the_training_too(whole):
    x = pt.load_dataset("noise", validation_size=20).test
    found = [
        line
        for line in lines(whole.directory.path)
        if (line["split"], line["phase"]) == ("test", "training")
    ]
    assert len(found) >= 2 * 7
    for line in found:
        key = line["replicate"], line["branch"], line["round"]
        expected = outcome(whole.at[key, line["step"]], x)
        np.testing.assert_allclose((line["loss"], line["accuracy"]), expected, 1e-5)


def test_the_weights_that_tickets_are_made_of_are_kept(whole):
    step = whole.config.rewind_step
    for replicate in range(2):
        for name, at in [("initial", 0), ("rewind", step)][: 2 if step else 1]:
            model = tiny.network((4, 4, 1), 3)
            stem = f"replicate{replicate}-{name}.weights.h5"
            model.load_weights(whole.directory.path / "checkpoints" / stem)
            dense = whole.at[(replicate, "ticket", 0), at]
            kernels = [weight for weight in model.weights if len(weight.shape) == 2]
            assert bits(toys.values(kernels)) == bits(dense.kernels)
    names = {file.name for file in (whole.directory.path / "checkpoints").iterdir()}
    assert ("replicate0-rewind.weights.h5" in names) == bool(step)


def test_a_checkpoint_holds_the_weights_of_the_last_step(whole):
    model = tiny.network((4, 4, 1), 3)
    for replicate, branch, round in whole.kept:
        name = f"replicate{replicate}-{branch}-round{round:02d}.weights.h5"
        model.load_weights(whole.directory.path / "checkpoints" / name)
        last = whole.at[(replicate, branch, round), 12]
        kernels = [weight for weight in model.weights if len(weight.shape) == 2]
        assert bits(toys.values(kernels)) == bits(last.kernels)


def test_every_evaluation_is_a_line_labelled_with_phase_and_split(whole):
    expected = []
    for row in whole.results.rows:
        where = (*row.key, row.weights_remaining)
        steps = [x.step for x in whole.evaluations[row.key]]
        # Before any step of the round and after its last: what pruning cost, what
        # training won back.
        start = whole.config.rewind_step if row.round and row.branch == "ticket" else 0
        assert (steps[0], steps[-1]) == (start, 12)
        phases = ["start", *["training"] * (len(steps) - 2), "end"]
        for phase, step in zip(phases, steps, strict=True):
            expected.append((*where, "validation", phase, step))
            if step % 8 == 0:
                expected.append((*where, "test", "training", step))
        if row.branch == "ticket":
            left = sum(
                mask.sum()
                for mask in whole.directory.load_masks(row.replicate, row.round + 1)
            )
            expected += [(*row.key, left, "validation", "pruned", 12)]
        expected += [(*where, "test", "best", row.best_step)]
        expected += [(*where, "test", "end", 12)]
    names = ("replicate", "branch", "round", "weights_remaining", "split", "phase")
    names += ("step",)
    logged = lines(whole.directory.path)
    assert [tuple(line[name] for name in names) for line in logged] == expected


def test_training_losses_are_means_over_the_steps_since_the_last_evaluation(whole):
    logged = [x for x in lines(whole.directory.path) if "train_loss" in x]
    for first, second in itertools.pairwise(logged):
        same = all(first[x] == second[x] for x in ("replicate", "branch", "round"))
        assert (second["train_loss"] is None) == (not same)
        assert second["train_loss"] is None or 0 < second["train_loss"] < 20


# Interrupted, and gone on with


class Cut(Recorder):
    """Interrupts every run at one kind of moment, each time one training further."""

    def __init__(self, where):
        super().__init__()
        self._where = where

    def evaluated(self, replicate, evaluation, train_loss):
        super().evaluated(replicate, evaluation, train_loss)
        if self._where == "midway" and len(self.rows) == 1 and evaluation.step == 8:
            raise KeyboardInterrupt

    def finish(self, row):
        super().finish(row)
        if self._where == "finish":
            raise KeyboardInterrupt


def cut_before_the_second_row(monkeypatch):
    """Interrupts every run when all of its second training but the row is written."""
    add_row = workdir.WorkDirectory.add_row

    def add(directory, row):
        added = getattr(directory, "added_here", 0)
        if added:
            raise KeyboardInterrupt
        directory.added_here = added + 1
        add_row(directory, row)

    monkeypatch.setattr(workdir.WorkDirectory, "add_row", add)


def left(path):
    """What a run left, less the times: rows, metrics, tickets, weights."""
    rows = [
        dataclasses.replace(row, train_seconds=0) for row in results.read_rows(path)
    ]
    masks, weights = {}, {}
    for file in (path / "tickets").iterdir():
        with np.load(file) as arrays:
            masks[file.name] = {name: arrays[name].tobytes() for name in arrays}
    model = tiny.network((4, 4, 1), 3)
    for file in (path / "checkpoints").iterdir():
        model.load_weights(file)
        weights[file.name] = toys.bits(model.weights)
    return rows, (path / "metrics.jsonl").read_text(), masks, weights


@pytest.mark.parametrize(
    ("rewind_step", "where"),
    [
        (0, "finish"),
        (0, "midway"),
        (5, "finish"),
        (5, "midway"),
        (5, "before the row"),
    ],
)
def test_a_run_cut_in_every_training_equals_one_that_was_not(
    rewind_step, where, wholes, tmp_path, monkeypatch
):
    whole = wholes(rewind_step)
    if where == "before the row":
        cut_before_the_second_row(monkeypatch)
    num_cuts = 0
    while True:
        try:
            experiment.run(whole.config, tmp_path, Cut(where))
            break
        except KeyboardInterrupt:
            num_cuts += 1
            assert len(results.read_rows(tmp_path)) == num_cuts
    assert num_cuts == (14 if where == "finish" else 13)
    assert left(tmp_path) == left(whole.directory.path)


def test_a_run_goes_on_in_a_new_lab(wholes, tmp_path, monkeypatch, labs):
    # The proof that lent labs hide nothing.
    whole = wholes(5)

    class CutAtControl(Recorder):
        def finish(self, row):
            if row.key == (0, "reinit", 1):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run(whole.config, tmp_path, CutAtControl())
    monkeypatch.setattr(lab_lib, "Lab", labs.make)
    experiment.run(whole.config, tmp_path, Recorder())
    assert left(tmp_path) == left(whole.directory.path)


class StopEvery(Recorder):
    """Sends this process SIGTERM after so many steps of each run."""

    def __init__(self, num_steps):
        super().__init__()
        self._left, self.reached = num_steps, []

    def advance(self, replicate, step, num_steps, last_step=None):
        self._left -= num_steps
        if num_steps and self._left <= 0:
            self.reached.append((*self._key, step))
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def handled():
    before = signal.getsignal(signal.SIGTERM)
    signals.handle(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def stopped(config, path, num_steps):
    """Runs until a signal comes after so many steps; returns the display, or None."""
    display = StopEvery(num_steps)
    with contextlib.suppress(signals.Stopped):
        experiment.run(config, path, display)
        return None
    return display


def until_done(config, path, num_steps):
    """Runs again and again; returns where each run was stopped, and the displays."""
    displays = []
    while display := stopped(config, path, num_steps):
        displays.append(display)
    return displays


@pytest.mark.parametrize("num_steps", [1, 7, 40])
def test_a_run_stopped_by_signals_and_gone_on_with_equals_one_that_was_not(
    num_steps, wholes, tmp_path, handled
):
    whole = wholes(5)
    config = dataclasses.replace(
        whole.config, replicates=2 if num_steps > 1 else 1, steps_per_loop=1
    )
    displays = until_done(config, tmp_path, num_steps)
    total = 12 + 3 * (12 - 5) + 3 * 12
    # A signal after the last step stops the run too.
    assert len(displays) == total * config.replicates // num_steps
    for before, after in itertools.pairwise(displays):
        replicate, branch, round, step = before.reached[0]
        assert after.said == [
            f"goes on at replicate {replicate} round {round} {branch} step {step}"
        ]
        assert after.expected == before.expected - num_steps
    if num_steps > 1:
        assert left(tmp_path) == left(whole.directory.path)
    else:
        rows, metrics, *_ = left(tmp_path)
        assert rows == [
            row for row in left(whole.directory.path)[0] if not row.replicate
        ]
        assert left(whole.directory.path)[1].startswith(metrics)


def test_a_signal_goes_before_a_divergence(labs, tmp_path, handled):
    # The next replicate is not begun.
    config = settings(learning_rate=1e30, replicates=2, eval_every=12)
    display = stopped(config, tmp_path, 6)
    assert display and display.reached[0][:3] == (0, "ticket", 0)


def normed(input_shape, num_classes):
    """With everything that has a state of its own: batch norm and dropout."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(12, name="hidden"),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Dense(num_classes, name="output"),
        ],
        name="net",
    )


@pytest.fixture
def normed_settings(monkeypatch):
    monkeypatch.setitem(models.MODELS, "normed", normed)
    return settings(
        **{"model": "normed", "rewind_step": 5, "rounds": 1, "controls": "reinit"},
        **{"optimizer": "sgd", "optimizer_args": "momentum=0.9", "learning_rate": 0.1},
        **{"learning_rate_schedule": "exponential", "warmup_steps": 3},
        checkpoint_every="100",
    )


@pytest.fixture
def undisturbed(normed_settings, labs, tmp_path):
    """The folder of a run with batch norm, saved only at the end of trainings."""
    perform(normed_settings, tmp_path / "undisturbed", labs)
    return tmp_path / "undisturbed"


def all_left(path):
    """As `left`, but weights as the files have them."""
    weights = {
        file.name: {name: x.tobytes() for name, x in tiny.arrays(file).items()}
        for file in (path / "checkpoints").iterdir()
    }
    rows = [dataclasses.replace(r, train_seconds=0) for r in results.read_rows(path)]
    masks = [directory_masks(file) for file in sorted((path / "tickets").iterdir())]
    return rows, (path / "metrics.jsonl").read_text(), masks, weights


def directory_masks(file):
    with np.load(file) as arrays:
        return {name: arrays[name].tobytes() for name in arrays}


@pytest.mark.parametrize("every", ["1", "5"])
def test_saving_changes_no_bit(every, undisturbed, normed_settings, tmp_path, labs):
    config = dataclasses.replace(normed_settings, checkpoint_every=every)
    perform(config, tmp_path / "saved", labs)
    assert all_left(tmp_path / "saved") == all_left(undisturbed)


def test_a_new_lab_goes_on_to_the_same_bits_with_batch_norm_and_dropout(
    undisturbed, normed_settings, tmp_path, labs, monkeypatch, handled
):
    # In round 1, after the point to rewind to.
    assert stopped(normed_settings, tmp_path / "cut", 16).reached[0][2] == 1
    monkeypatch.setattr(lab_lib, "Lab", labs.make)
    again = perform(normed_settings, tmp_path / "cut")
    assert again.said[0].startswith("goes on at replicate 0 round 1 ticket step ")
    assert all_left(tmp_path / "cut") == all_left(undisturbed)


def test_of_damaged_checkpoints_the_one_before_serves_or_the_training_starts_again(
    undisturbed, normed_settings, tmp_path, labs, handled
):
    config = dataclasses.replace(
        normed_settings, checkpoint_every="2", steps_per_loop=1
    )
    for name, numbers, where in (
        ("one", [4], ["goes on at replicate 0 round 0 ticket step 6"]),
        ("both", [3, 4], []),
    ):
        assert stopped(config, tmp_path / name, 7).reached == [(0, "ticket", 0, 7)]
        folder = tmp_path / name / "checkpoints" / "replicate0-ticket-round00-resume"
        for number in numbers:
            file = folder / str(number) / "state.index"
            file.write_bytes(file.read_bytes()[:-1])
        # Not pytest.warns, which tells again what TensorFlow's own filters keep quiet.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            again = perform(config, tmp_path / name, labs)
        assert len([x for x in caught if "damaged" in str(x.message)]) == len(numbers)
        assert again.said == where
        assert all_left(tmp_path / name) == all_left(undisturbed)


def test_lines_that_were_lost_or_came_after_the_checkpoint_are_mended(
    undisturbed, normed_settings, tmp_path, labs, handled
):
    for name, mend in (
        ("lost", lambda text: ""),
        ("more", lambda text: text + text.splitlines(keepends=True)[-1]),
    ):
        stopped(normed_settings, tmp_path / name, 9)
        file = tmp_path / name / "metrics.jsonl"
        assert len(file.read_text().splitlines()) == 3
        file.write_text(mend(file.read_text()))
        perform(normed_settings, tmp_path / name, labs)
        assert all_left(tmp_path / name) == all_left(undisturbed)


@pytest.mark.parametrize(
    ("every", "saved"),
    [("5", [5, 10, 12]), ("60s", [4, 8, 12]), ("61s", [5, 10, 12]), ("900s", [12])],
)
def test_checkpoints_are_due_by_steps_or_by_the_clock_and_at_the_end(every, saved):
    # A step takes 15 seconds.
    lab = types.SimpleNamespace(config=settings(checkpoint_every=every), state=None)
    lab.clock, lab.is_finite = lambda: 15 * step, lambda: True
    step, found = 0, []
    directory = types.SimpleNamespace(
        save_checkpoint=lambda key, state, position: found.append(position["step"])
    )
    saves = training.Saves(lab, directory, None, training.Progress(0))
    for step in range(13):
        if saves.due(step):
            saves.save(training.Progress(step))
    assert found == saved


def test_a_dispatch_is_as_long_as_the_measured_speed_allows(labs):
    now, asked = 0.0, []

    class Loop:
        def add_losses(self, total, first_step, num_steps):
            nonlocal now
            # The first dispatch compiles.
            now += 0.01 * num_steps + (0 if asked else 5)
            asked.append(num_steps)
            return total

    lab = object.__new__(labs.make)
    lab.config, lab.loop, lab.clock = settings(steps_per_loop=1000), Loop(), lambda: now
    lab._steps_in_time, lab.data_offset = 1, 0
    step = 0
    while step < 250:
        _, step = lab.advance(0.0, step, 250)
    assert asked[:2] == [1, 1]
    assert all(45 <= num_steps <= 50 for num_steps in asked[2:-1])
    assert sum(asked) == 250


def test_progress_round_trips_as_json_to_the_bit():
    best = lab_lib.Evaluation(4, 0.1 + 0.2, 0.7)
    progress = training.Progress(7, best, best, tf.constant(0.1), 3, 1 / 3, [{"a": 1}])
    text = json.dumps(progress.as_dict())
    again = training.Progress.from_dict(json.loads(text))
    assert again == dataclasses.replace(progress, total_loss=float(np.float32(0.1)))
    assert training.Progress.from_dict(training.Progress(0).as_dict()) == (
        training.Progress(0)
    )


@pytest.mark.parametrize(
    "damage",
    [
        {"steps": 5},
        {"best": {"step": 1}},
        {"best": [1, 2]},
        {"last": {"step": 1, "loss": "0.5", "accuracy": 0.5}},
        {"total_loss": None},
        {"num_steps": True},
        {"seconds": [1]},
    ],
)
def test_a_position_with_something_else_in_it_is_refused(damage):
    values = {**training.Progress(7).as_dict(), **damage}
    with pytest.raises((LookupError, TypeError)):
        training.Progress.from_dict(values)
    with pytest.raises(LookupError):
        training.Progress.from_dict({"step": 7})


def test_the_ground_that_a_run_begins_on_is_recorded(whole):
    recorded = json.loads((whole.directory.path / "environment.json").read_text())
    assert recorded == whole.directory.environment()
    assert recorded["compile_mode"] == "xla"
    assert recorded["tensorflow"] == tf.__version__


def begun(path, config, **environment):
    """A folder in which something was trained, on other ground."""
    directory = workdir.WorkDirectory(path, config.as_dict())
    directory.add_metrics(replicate=0, branch="ticket", round=0)
    directory.record_environment(environment)


def test_a_run_keeps_the_compile_mode_that_it_began_with(labs, tmp_path):
    config = settings(compile="auto", rounds=0)
    for name, environment, mode in (
        ("new", {}, "xla"),
        ("begun", {"compile_mode": "hybrid"}, "hybrid"),
    ):
        begun(tmp_path / name, config, **environment)
        perform(config, tmp_path / name, labs)
        assert labs.last.loop.mode == mode


def test_a_run_on_other_ground_is_warned_of_its_bits(labs, tmp_path):
    config = settings(rounds=0)
    begun(tmp_path, config, compile_mode="graph", tensorflow="1.0")
    with pytest.warns(UserWarning, match=r"tensorflow was 1\.0, is 2.*last bits"):
        lab_lib.open_lab(config, workdir.WorkDirectory(tmp_path, config.as_dict()))


@pytest.mark.parametrize("mode", ["warp", None, 5, ["xla"]])
def test_a_compile_mode_that_is_none_is_damage(mode, tmp_path):
    config = settings(rounds=0)
    begun(tmp_path, config, compile_mode=mode)
    directory = workdir.WorkDirectory(tmp_path, config.as_dict())
    with toys.raises(errors.InputError, "environment.json", "damaged", repr(mode)):
        lab_lib.open_lab(config, directory)


def test_xla_is_refused_for_max_pooling():
    config = settings(model="lenet5", dataset="mnist", data_dir="", compile="xla")
    with toys.raises(errors.InputError, "compile", "hybrid", "max pooling"):
        lab_lib.Lab(config, "xla")


@pytest.mark.parametrize(("mode", "binds"), [("xla", False), ("hybrid", True)])
def test_the_number_of_threads_counts_where_bits_depend_on_it(mode, binds, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    assert lab_lib.environment(mode).get("threads") == (3 if binds else None)


def test_a_finished_run_trains_nothing_and_says_so(whole, labs):
    before = left(whole.directory.path)
    again = perform(whole.config, whole.directory.path, labs)
    assert again.said == [
        f"{whole.directory.path}: every round is finished, nothing to train"
    ]
    assert (again.expected, again.kept) == (0, {})
    assert again.results.rows == whole.results.rows
    assert left(whole.directory.path) == before


# How it ends


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prune_rate": 0}, "a rate of 0 prunes none of the 228 weights"),
        ({"prune_rate": 0.002}, "a rate of 0.002 prunes none of the 228 weights"),
        ({"layer_rates": ".*=0.999"}, "at least one weight must be left"),
    ],
)
def test_a_round_that_would_change_nothing_or_leave_nothing_ends_the_run(
    changes, said, tmp_path
):
    config = settings(controls="reinit", train_steps=4, **changes)
    run = perform(config, tmp_path)
    assert [row.key for row in run.rows] == [(0, "ticket", 0)]
    assert len(run.said) == 1
    assert "No round after" in run.said[0]
    assert said in run.said[0]
    again = perform(config, tmp_path)
    assert again.rows == []
    assert "every round is finished" in again.said[0]


def test_pruning_goes_on_until_nothing_is_left_to_prune(tmp_path):
    # 192 and 36 weights, 90 % off: 19 and 4, 2 and 0: 90 % of 2 are both.
    config = settings(rounds=9, train_steps=4, layer_rates=".*=0.9")
    # Not pytest.warns, which tells again what TensorFlow's own filters keep quiet.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        run = perform(config, tmp_path)
    assert [str(warning.message).partition(":")[0] for warning in caught] == [
        "pruning removes every weight of net/output/kernel"
    ]
    assert [row.weights_remaining for row in run.rows] == [228, 23, 2]
    assert "at least one weight must be left" in run.said[0]


@pytest.mark.parametrize("compile", ["xla", "graph"])
def test_a_training_that_diverges_says_what_where_and_leaves_no_results(
    compile, tmp_path
):
    config = settings(learning_rate=1e30, compile=compile)
    with toys.raises(
        errors.RunError,
        *("replicate 0 failed: the training diverged: ", "is not finite at step 2 "),
        *("branch ticket", "round 0", str(tmp_path), "--learning_rate"),
    ):
        perform(config, tmp_path)
    assert not results.read_rows(tmp_path)
    kept = [file.name for file in (tmp_path / "checkpoints").iterdir()]
    assert kept == ["replicate0-initial.weights.h5"]


class Fault(keras.layers.Layer):
    """At training step 8, one number is not finite, if a random draw says so."""

    def __init__(self, place):
        super().__init__(name="fault")
        self._place = place

    def build(self, shape):
        del shape
        names, initializers = (
            ("count", "draw", "statistic"),
            ("zeros", "uniform", "ones"),
        )
        for name, initializer in zip(names, initializers, strict=True):
            weight = self.add_weight((), initializer, trainable=False, name=name)
            setattr(self, name, weight)

    def call(self, x, training=False):
        if not training:
            return x
        self.count.assign_add(1.0)
        now = tf.logical_and(tf.equal(self.count.value, 8), self.draw.value > 0)
        factor = tf.where(now, np.float32(np.inf), np.float32(1))
        if self._place == "the loss":
            return x * factor
        if self._place == "net/fault/statistic":
            self.statistic.assign(self.statistic * factor)
            return x

        @tf.custom_gradient
        def poisoned(x):
            return tf.identity(x), lambda gradient: gradient * factor

        return poisoned(x)


@pytest.mark.parametrize(
    "place", ["the loss", "the gradient of net/hidden/kernel", "net/fault/statistic"]
)
def test_a_training_that_diverges_is_told_to_the_step_and_the_others_go_on(
    place, monkeypatch, tmp_path, labs
):
    # Not one that is lent: the place is no setting.
    monkeypatch.setattr(lab_lib, "Lab", labs.make)

    def faulty(input_shape, num_classes):
        layers = keras.layers
        hidden, output = (
            layers.Dense(units, name=name)
            for units, name in ((4, "hidden"), (num_classes, "output"))
        )
        return keras.Sequential(
            [keras.Input(input_shape), layers.Flatten(), hidden, Fault(place), output],
            name="net",
        )

    monkeypatch.setitem(models.MODELS, "faulty", faulty)
    config = settings(
        **{"model": "faulty", "compile": "graph", "rounds": 1, "rewind_step": 5},
        **{"replicates": 4, "eval_every": 4, "checkpoint_every": "3"},
    )
    recorder = Recorder()
    with pytest.raises(errors.RunError) as caught:
        experiment.run(config, tmp_path, recorder)
    told = str(caught.value)
    assert f"diverged: {place} is not finite at step 8 (branch ticket, round " in told
    failed = [
        int(replicate) for replicate in re.findall(r"replicate (\d) failed", told)
    ]
    assert 0 < len(failed) < 4
    done = {row.replicate for row in results.read_rows(tmp_path) if row.round}
    assert done == {*range(4)} - {*failed}
    kept = sorted((tmp_path / "checkpoints").glob("*-resume/*"))
    assert {file.parent.name[9] for file in kept} == {str(x) for x in failed}
    positions = [json.loads((x / "position.json").read_text()) for x in kept]
    assert {position["step"] for position in positions} == {3, 6}


# Precision


@pytest.mark.parametrize(
    ("precision", "weights", "arithmetic"),
    [
        ("mixed_float16", "float32", "float16"),
        ("mixed_bfloat16", "float32", "bfloat16"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float64", "float64", "float64"),
    ],
)
def test_a_run_in_another_precision_holds_its_masks_and_can_be_cut(
    precision, weights, arithmetic, tmp_path, handled
):
    config = settings(
        **{"precision": precision, "compile": "graph", "rounds": 1, "rewind_step": 5},
        **{"optimizer": "sgd", "optimizer_args": "momentum=0.5", "learning_rate": 0.1},
        **{"checkpoint_every": "100", "controls": "reinit"},
    )
    labs = Labs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab_lib, "Lab", labs)
        whole = perform(config, tmp_path / "whole", labs)
        stopped(config, tmp_path / "cut", 16)
        perform(config, tmp_path / "cut", labs)
    kernel = labs.last.pruned.kernels[0]
    assert (kernel.dtype, labs.last.pruned.model.layers[1].compute_dtype) == (
        weights,
        arithmetic,
    )
    assert keras.config.dtype_policy().name == "float32"
    assert [row.weights_remaining for row in whole.rows] == [228, 186, 186]
    assert all(np.isfinite(row.final_val_loss) for row in whole.rows)
    first, last = (whole.at[(0, "ticket", 0), step].kernels[0] for step in (0, 12))
    assert np.any(np.asarray(first) != np.asarray(last))
    assert all_left(tmp_path / "cut") == all_left(tmp_path / "whole")


# A trained model from a file


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A file with a trained model, what it holds, and a run that began with it."""
    path = tmp_path_factory.mktemp("trained")
    keras.utils.set_random_seed(3)
    model = tiny.network((4, 4, 1), 3)
    model.save(path / "net.keras")
    config = settings(
        model=str(path / "net.keras"), controls="reinit", rounds=1, replicates=2
    )
    labs = Labs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab_lib, "Lab", labs)
        run = perform(config, path / "run", labs)
    run.labs, run.kernels = labs, [model.layers[1].kernel.numpy()]
    return run


def test_round_0_of_a_model_from_a_file_evaluates_it_and_trains_nothing(trained):
    rows = [row for row in trained.rows if row.round == 0]
    assert [(row.replicate, row.best_step) for row in rows] == [(0, 0), (1, 0)]
    assert [x.step for x in trained.evaluations[0, "ticket", 0]] == [0]
    assert rows[0].val_loss == rows[1].val_loss
    # Two replicates, ticket and control, of 12 steps each.
    assert trained.expected == 2 * 2 * 12


def test_tickets_of_a_model_from_a_file_are_of_its_weights_and_start_from_them(trained):
    (dense,) = trained.kernels
    for replicate in range(2):
        (mask, _) = trained.directory.load_masks(replicate, 1)
        (expected,) = toys.lowest_removed([abs(dense)], [mask | True], 38)
        np.testing.assert_array_equal(mask, expected)
        start = trained.at[(replicate, "ticket", 1), 0].kernels[0]
        np.testing.assert_array_equal(start, np.where(mask, dense, 0))
        end = trained.at[(replicate, "ticket", 1), 12].kernels[0]
        assert (end[mask] != dense[mask]).mean() > 0.5


def test_the_control_of_a_model_from_a_file_has_weights_of_its_own(trained):
    first, second = (
        trained.at[(replicate, "reinit", 1), 0].kernels[0] for replicate in range(2)
    )
    live = first != 0
    assert live.sum() == HIDDEN - 38
    for other in (second, trained.kernels[0]):
        assert (first[live] != other[live]).all()


def test_a_model_file_that_has_changed_is_refused(trained, tmp_path):
    file = tmp_path / "net.keras"
    model = tiny.network((4, 4, 1), 3)
    model.save(file)
    config = settings(model=str(file), rounds=0)
    directory = workdir.WorkDirectory(tmp_path / "run", config.as_dict())
    lab_lib.open_lab(config, directory)
    lab_lib.open_lab(config, directory)
    model.layers[1].kernel.assign_add(tf.ones([16, 12]))
    model.save(file)
    with toys.raises(errors.InputError, str(file), "has changed", "SHA-256 was"):
        lab_lib.open_lab(config, directory)


# Settings


@pytest.mark.parametrize(
    ("changes", "paths", "left"),
    [
        ({"prune_include": "hidden"}, KERNELS[:1], [HIDDEN - 38]),
        # Half the rate is for the output layer, not for the last one that is left.
        ({"prune_exclude": "output"}, KERNELS[:1], [HIDDEN - 38]),
        ({"prune_exclude": "hidden"}, KERNELS[1:], [OUTPUT - 4]),
    ],
)
def test_what_is_pruned_can_be_included_and_excluded(changes, paths, left, tmp_path):
    run = perform(settings(rounds=1, train_steps=1, **changes), tmp_path)
    assert [mask.sum() for mask in run.directory.load_masks(0, 1)] == left
    with np.load(tmp_path / "tickets" / "replicate0-round01.npz") as ticket:
        assert list(ticket["paths"]) == paths


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        ({"prune_include": "hiden"}, ["--prune_include=hiden", *KERNELS]),
        ({"prune_exclude": "hidden,last"}, ["exclude='last'", *KERNELS]),
        ({"prune_exclude": "kernel"}, ["at least one prunable"]),
    ],
)
def test_patterns_that_select_nothing_are_refused(changes, fragments, tmp_path):
    with toys.raises(errors.InputError, *fragments):
        experiment.run(settings(**changes), tmp_path, Recorder())


def test_arguments_reach_the_model(tmp_path, monkeypatch):
    def sized(input_shape, num_classes, units):
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input(input_shape),
                layers.Flatten(),
                layers.Dense(units, name="hidden"),
                layers.Dense(num_classes, name="output"),
            ]
        )

    monkeypatch.setitem(models.MODELS, "sized", sized)
    config = settings(model="sized", model_args="units=5", rounds=0, train_steps=1)
    run = perform(config, tmp_path)
    assert run.rows[0].weights_remaining == 16 * 5 + 5 * 3


def test_global_allocation_takes_the_lowest_of_all_layers(labs, tmp_path):
    run = perform(settings(allocation="global", rounds=1), tmp_path, labs)
    # 0.2 of 228, rounded.
    assert [row.weights_remaining for row in run.rows] == [228, 228 - 46]
    trained = run.at[(0, "ticket", 0), 12]
    expected = toys.lowest_removed(
        [abs(kernel) for kernel in trained.kernels], trained.masks, 46
    )
    assert bits(run.directory.load_masks(0, 1)) == bits(expected)


def test_what_has_moved_farthest_since_initialisation_stays(labs, tmp_path):
    """The weights of step 0 of round 0, drawn once more in every round."""
    config = settings(criterion="movement", rounds=2, rewind_step=3)
    run = perform(config, tmp_path, labs)
    initial = run.at[(0, "ticket", 0), 0].kernels
    for round in (1, 2):
        trained = run.at[(0, "ticket", round - 1), 12]
        for index, rate in enumerate((0.2, 0.1)):
            old = trained.masks[index]
            moved = abs(trained.kernels[index] - initial[index])
            (expected,) = toys.lowest_removed(
                [moved], [old], int(rate * old.sum() + 0.5)
            )
            found = run.directory.load_masks(0, round)[index]
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("criterion", ["snip", "random"])
def test_streamed_data_give_the_same_masks(criterion, tmp_path):
    bits_of = []
    for stream in ("never", "always"):
        changes = {"criterion": criterion, "criterion_batches": 3, "stream": stream}
        config = settings(rounds=1, train_steps=4, seed=5, **changes)
        run = perform(config, tmp_path / stream)
        bits_of.append(bits(run.directory.load_masks(0, 1)))
    assert bits_of[0] == bits_of[1]


def test_rounds_end_where_n_of_m_is_reached(tmp_path):
    """192 weights by 0.2 and 36 by 0.1; half of them may go."""
    config = settings(rounds=9, train_steps=4, pattern="2:4")
    run = perform(config, tmp_path)
    hidden = [192, 154, 123, 98]
    assert [row.weights_remaining for row in run.rows] == [
        sum(both) for both in zip(hidden, [36, 32, 29, 26], strict=True)
    ]
    (said,) = run.said
    assert "No round after 3: net/hidden/kernel can lose 2 of 98" in said
    for mask in run.directory.load_masks(0, 3):
        groups = mask.T.reshape(-1, 4)
        assert (groups.sum(1) >= 2).all()


def test_layer_rates_replace_the_rate_where_they_match(tmp_path):
    config = settings(layer_rates="output=0.5", rounds=1, train_steps=4)
    run = perform(config, tmp_path)
    hidden, output = run.directory.load_masks(0, 1)
    assert (hidden.sum(), output.sum()) == (HIDDEN - 38, OUTPUT - 18)


@pytest.mark.parametrize(
    ("changes", "field", "fragments"),
    [
        ({"layer_rates": "ouput=0.5"}, "layer_rates", ["ouput", *KERNELS]),
        ({"layer_rates": "[=0.5"}, "layer_rates", ["regular expression"]),
        ({"batch_size": 41}, "batch_size", ["at most the 40 training examples"]),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_any_training(
    changes, field, fragments, tmp_path
):
    display = Recorder()
    with toys.raises(config_lib.ConfigError, f"`{field}`", *fragments):
        experiment.run(settings(**changes), tmp_path, display)
    assert display.kept == {}
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_validation_size_beyond_the_data_is_refused_before_any_training(tmp_path):
    with toys.raises(errors.InputError, "`validation_size`", "from 1 to 59"):
        experiment.run(settings(validation_size=60), tmp_path, Recorder())


def test_one_batch_may_be_all_the_data(tmp_path):
    run = perform(settings(batch_size=40, rounds=0, train_steps=2), tmp_path)
    assert len(run.rows) == 1


def test_slots_that_start_above_zero_are_pruned_in_a_control_too(labs, tmp_path):
    # Adagrad's accumulators start at 0.1; the recorder asserts the invariants.
    config = settings(optimizer="adagrad", controls="reinit", rounds=1, train_steps=4)
    run = perform(config, tmp_path, labs)
    start = run.at[(0, "reinit", 1), 0]
    assert sum(np.count_nonzero(slot == np.float32(0.1)) for slot in start.optimizer)


def test_another_seed_gives_other_weights_in_another_order(labs, tmp_path):
    starts = [
        perform(
            settings(seed=seed, rounds=0, train_steps=2), tmp_path / str(seed), labs
        )
        for seed in (1, 2)
    ]
    first, second = (run.at[(0, "ticket", 0), 0] for run in starts)
    assert first.order != second.order
    assert not np.any(first.kernels[0] == second.kernels[0])


def test_the_folder_of_the_config_serves_when_none_is_given(tmp_path, monkeypatch):
    started = []

    class StopError(Exception):
        pass

    def stop(config, compile, dataset):
        started.append(config)
        raise StopError

    monkeypatch.setattr(lab_lib, "Lab", stop)
    monkeypatch.chdir(tmp_path)
    for workdir_, given, expected in (
        ("", None, "runs"),
        ("a", None, "a"),
        ("a", "b", "b"),
    ):
        with pytest.raises(StopError):
            pt.run(settings(workdir=workdir_), given, Recorder())
        assert (tmp_path / expected).is_dir()
    assert len(started) == 3


# The pieces, worked out by hand


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({}, [8, 12, 16, 24, 25]),
        ({"checkpoint_every": "10"}, [8, 10, 12, 16, 20, 24, 25]),
        ({"checkpoint_every": "10s"}, [8, 12, 16, 24, 25]),
        ({"rewind_step": 0}, [8, 16, 24, 25]),
        ({"eval_every": 100}, [12, 25]),
    ],
)
def test_dispatches_end_where_something_is_to_be_done(changes, stops):
    config = pt.Config(
        **{"train_steps": 25, "eval_every": 8, "rewind_step": 12, **changes}
    )
    found, step = [], 0
    while step < 25:
        step = training.next_stop(config, step)
        found.append(step)
    assert found == stops


@pytest.mark.parametrize(
    ("round", "branch", "step"),
    [(0, "ticket", 0), (1, "ticket", 7), (9, "ticket", 7), (1, "reinit", 0)],
)
def test_only_rewound_tickets_start_at_the_rewind_step(round, branch, step):
    config = settings(rewind_step=7, controls="reinit")
    assert plans.first_step(config, round, branch) == step


def test_seeds_differ_by_purpose_replicate_round_and_the_seed_of_the_run():
    seeds = [
        starts.seed_for(settings(seed=seed), purpose, replicate, round)
        for seed in (0, 1, 2**32 - 1)
        for purpose in ("weights", "data_order", "reinit")
        for replicate in range(4)
        for round in range(4)
    ]
    assert len(set(seeds)) == len(seeds)
    # What keras.utils.set_random_seed takes.
    assert all(isinstance(x, int) and 0 <= x < 2**32 for x in seeds)


def test_seeds_stay_what_they_are():
    # Runs published with one version can be repeated with the next.
    assert starts.seed_for(settings(), "weights", 0) == starts.seed_for(
        settings(), "weights", 0, round=0
    )
    expected = np.random.SeedSequence([3, 1, 2, 0]).generate_state(1)[0]
    assert starts.seed_for(settings(seed=3), "data_order", 2) == expected


def plan(directory, **changes):
    config = settings(rounds=2, controls="reinit", **changes)
    return list(experiment.unfinished(config, 0, directory))


ALL = [(0, "ticket"), (1, "ticket"), (1, "reinit"), (2, "ticket"), (2, "reinit")]


@pytest.mark.parametrize(
    ("done", "last", "expected"),
    [
        ([], None, ALL),
        ([(0, "ticket")], None, ALL[1:]),
        ([(0, "ticket"), (1, "ticket")], None, ALL[2:]),
        # A control that was added last is caught up with.
        ([(0, "ticket"), (1, "ticket"), (2, "ticket")], None, [ALL[2], ALL[4]]),
        # Round 0 left nothing to prune.
        ([(0, "ticket")], 0, []),
        # Round 1 left nothing to prune, its control is still to come.
        ([(0, "ticket"), (1, "ticket")], 1, [(1, "reinit")]),
        (ALL, None, []),
    ],
)
def test_what_is_unfinished_follows_from_rows_and_the_recorded_end(
    done, last, expected, tmp_path
):
    directory = workdir.WorkDirectory(tmp_path, {})
    for round, branch in done:
        directory.add_row(tiny.row(branch=branch, round=round))
    if last is not None:
        directory.end_at(0, last, "nothing to prune")
    assert plan(directory) == expected


def test_a_lost_ticket_is_an_error_not_the_end_of_the_run(tmp_path):
    config = settings(controls="reinit", train_steps=4)
    perform(config, tmp_path)
    (tmp_path / "tickets" / "replicate0-round02.npz").unlink()
    lines = (tmp_path / "results.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if ",2," not in line[:12]]
    (tmp_path / "results.csv").write_text("".join(kept))
    # As who changes a file on purpose is told to do.
    (tmp_path / "SHA256SUMS").unlink()
    with toys.raises(errors.InputError, "replicate0-round02.npz", "missing"):
        perform(config, tmp_path)
    assert (tmp_path / "results.csv").read_text() == "".join(kept)


def test_a_ticket_of_another_network_is_named_and_the_first_kernel_that_misfits(
    tmp_path,
):
    config = settings(train_steps=4, rounds=1)
    perform(config, tmp_path)
    directory = workdir.WorkDirectory(tmp_path, config.as_dict())
    hidden, output = directory.load_masks(0, 1)
    wider = np.ones((output.shape[0], output.shape[1] + 1), bool)
    directory.save_masks(0, 1, ["hidden", "output"], [hidden, wider])
    lines = (tmp_path / "results.csv").read_text().splitlines(keepends=True)
    (tmp_path / "results.csv").write_text("".join(lines[:2]))
    # As who changes a file on purpose is told to do.
    (tmp_path / "SHA256SUMS").unlink()
    with toys.raises(
        errors.InputError,
        *("replicate 0, round 1", str(tmp_path), "output/kernel", str(wider.shape)),
        "another --workdir",
    ):
        perform(config, tmp_path)


def test_rows_of_other_replicates_do_not_count(tmp_path):
    directory = workdir.WorkDirectory(tmp_path, {})
    directory.add_row(tiny.row(replicate=1))
    assert plan(directory) == ALL


class Curve:
    """A lab whose validation losses are given, by step."""

    def __init__(self, losses, **changes):
        self.config = settings(train_steps=len(losses) - 1, eval_every=1, **changes)
        self._losses, self.calls, self.step = losses, [], 0
        self.settled_at = 0
        self.clock, self.stops = (lambda: 0.0), bool
        self.rewind, self.best = (
            types.SimpleNamespace(update=lambda name=name: self._note(name))
            for name in ("rewind", "best")
        )

    def _note(self, name):
        self.calls.append((name, self.step))

    def advance(self, total, step, limit):
        assert step == self.step
        self.step = limit
        return total, limit

    def evaluate(self, split, step):
        assert (split, step) == ("validation", self.step)
        return lab_lib.Evaluation(step, self._losses[step], 0.5)


class Ignore:
    """A log or a keeper of checkpoints that ignores what it is told."""

    def __getattr__(self, name):
        return lambda *arguments: None


def train(lab, round):
    progress = training.Progress(0)
    return training.train(lab, progress, Ignore(), Ignore(), round)


@pytest.mark.parametrize(
    ("losses", "best", "updates"),
    [
        ([3.0, 2.0, 1.0], 2, [0, 1, 2]),
        ([1.0, 2.0, 3.0], 0, [0]),
        ([3.0, 1.0, 2.0, 1.0], 1, [0, 1]),
        ([2.0, 3.0, 1.0, 4.0], 2, [0, 2]),
    ],
)
def test_the_first_of_the_lowest_losses_is_the_best(losses, best, updates):
    lab = Curve(losses)
    found, last = train(lab, round=1)
    assert (found.step, found.loss) == (best, losses[best])
    assert last.step == len(losses) - 1
    assert lab.calls == [("best", step) for step in updates]


@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_point_to_rewind_to_is_taken_once_and_in_time(step):
    lab = Curve([4.0, 3.0, 2.0, 1.0], rewind_step=step)
    train(lab, round=0)
    assert [call for call in lab.calls if call[0] == "rewind"] == [("rewind", step)]
