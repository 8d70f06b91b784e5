"""Snapshots: what comes back, to the bit, and what the masks keep from coming back."""

import hashlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.core import snapshot
from tests import toys


class Run:
    """A model with dropout and batch normalisation, its optimizer and its loop."""

    def __init__(self, learning_rate=0.05):
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(5, name="dense_1"),
                keras.layers.BatchNormalization(momentum=0.5, name="bn"),
                keras.layers.Dropout(0.5, seed=1, name="dropout"),
                keras.layers.Dense(3, name="dense_2"),
            ],
            name="net",
        )
        self.optimizer = keras.optimizers.Adam(learning_rate)
        self.pruned = pt.PrunedModel(model)
        x, y = toys.dataset()
        self.loop = pt.make_train_loop(
            self.pruned, self.optimizer, toys.cross_entropy(), x, y, 4, compile="graph"
        )

    @property
    def parts(self):
        """The variables that each argument of `restore` stands for."""
        model = self.pruned.model
        trainable = {id(v) for v in model.trainable_variables}
        return {
            "weights": model.trainable_variables,
            "optimizer": self.optimizer.variables,
            "masks": self.pruned.masks,
            "state": [v for v in model.variables if id(v) not in trainable],
        }

    def bits(self):
        return {part: toys.bits(variables) for part, variables in self.parts.items()}


@pytest.fixture(scope="module")
def run():
    """A run that has moved on from its snapshot by 4 steps, and that snapshot."""
    run = Run()
    run.loop(0, 2)
    run.start = pt.Snapshot(run.pruned, run.optimizer)
    run.start_bits = run.bits()
    run.loop(2, 4)
    run.moved = pt.Snapshot(run.pruned, run.optimizer)
    run.moved_bits = run.bits()
    return run


@pytest.mark.parametrize("part", ["weights", "optimizer", "state"])
def test_each_part_is_restored_to_the_bit_and_alone(run, part):
    run.moved.restore()
    nothing = dict.fromkeys(["weights", "optimizer", "state"], False)
    run.start.restore(**{**nothing, part: True})
    found = run.bits()
    assert run.start_bits[part] != run.moved_bits[part]
    assert found == {**run.moved_bits, part: run.start_bits[part]}


@pytest.mark.parametrize("part", ["slots", "schedule"])
def test_slots_and_the_schedule_are_restored_apart(run, part):
    run.moved.restore()
    run.start.restore(
        weights=False,
        state=False,
        optimizer=part == "slots",
        schedule=part == "schedule",
    )
    # Step counter and learning rate, then the moments.
    restored = slice(2, None) if part == "slots" else slice(2)
    expected = list(run.moved_bits["optimizer"])
    expected[restored] = run.start_bits["optimizer"][restored]
    assert run.bits() == {**run.moved_bits, "optimizer": expected}
    assert run.moved_bits["optimizer"][restored] != expected[restored]


@pytest.mark.parametrize(
    ("make", "schedule"),
    [
        (lambda: keras.optimizers.Adam(0.1), 2),
        (lambda: keras.optimizers.Nadam(0.1), 2),
        (lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), 2),
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True), 2),
        (
            lambda: keras.optimizers.SGD(
                keras.optimizers.schedules.CosineDecay(0.1, 10), momentum=0.9
            ),
            1,
        ),
        # That of the wrapper too.
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)), 4),
    ],
)
def test_the_schedule_of_an_optimizer_is_its_counter_and_its_rate(make, schedule):
    optimizer, model = make(), toys.mlp()
    optimizer.build(model.trainable_variables)
    parts = snapshot.by_part(model, optimizer)
    names = {v.name.split(":")[0].rpartition("/")[2] for v in parts["schedule"]}
    assert names <= {"iteration", "learning_rate"}
    assert len(parts["schedule"]) == schedule
    found = [*parts["schedule"], *parts["slots"]]
    assert {id(v) for v in found} == {id(v.value) for v in optimizer.variables}
    assert len(found) == len(optimizer.variables)


def test_two_runs_from_one_snapshot_are_equal_to_the_bit(run):
    """F4: dropout's seeds, the statistics and the step counter come back too."""
    run.start.restore()
    first_loss = toys.bits([run.loop(2, 4)])
    first = run.bits()
    run.loop(6, 3)
    run.start.restore()
    assert toys.bits([run.loop(2, 4)]) == first_loss
    assert run.bits() == first
    # Without the seeds, other units drop.
    run.start.restore(state=False)
    assert toys.bits([run.loop(2, 4)]) != first_loss


def test_batch_normalisation_statistics_are_restored(run):
    bn = run.pruned.model.get_layer("bn")
    run.start.restore()
    before = toys.values([bn.moving_mean, bn.moving_variance])
    run.loop(2, 1)
    assert not np.array_equal(before[0], bn.moving_mean.numpy())
    run.start.restore()
    after = toys.values([bn.moving_mean, bn.moving_variance])
    np.testing.assert_array_equal(before, after)


def test_learning_rate_schedule_follows_the_restored_step_counter():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [1.0, 0.25])
    optimizer = keras.optimizers.SGD(schedule)
    pruned = pt.PrunedModel(toys.column(0))
    step = pt.make_train_step(pruned, optimizer, toys.total, compile="graph")
    x = np.ones([1, 1], np.float32)

    def moves(num_steps):
        path = [float(pruned.kernels[0].numpy()[0, 0])]
        for _ in range(num_steps):
            step(x, x)
            path.append(float(pruned.kernels[0].numpy()[0, 0]))
        return np.diff(path).tolist()

    expected = [-1, -1, -1, -1, -0.25]
    start = pt.Snapshot(pruned, optimizer)
    assert moves(5) == expected
    start.restore()
    assert moves(5) == expected
    start.restore(optimizer=False)
    assert moves(1) == [-0.25]


def test_learning_rate_set_by_hand_is_part_of_the_optimizer():
    pruned = pt.PrunedModel(toys.mlp())
    optimizer = keras.optimizers.SGD(0.5)
    start = pt.Snapshot(pruned, optimizer)
    optimizer.learning_rate = 0.125
    start.restore(optimizer=False)
    assert float(optimizer.learning_rate) == 0.125
    start.restore()
    assert float(optimizer.learning_rate) == 0.5


def digest(snapshot, pruned):
    """Hash of the copies: a snapshot's variables but for the live masks."""
    live = {id(mask) for mask in pruned.masks}
    copies = [v for v in snapshot.variables if id(v) not in live]
    return hashlib.sha256(b"".join(toys.bits(copies))).hexdigest()


@pytest.mark.parametrize("rewind_step", [0, 2])
def test_rewinding_leaves_survivors_as_they_were_and_masks_as_trained(rewind_step):
    """F1, F3: 3 rounds, rewound to initialisation and to step 2."""
    run = Run()
    if rewind_step:
        run.loop(0, rewind_step)
    start = pt.Snapshot(run.pruned, run.optimizer)
    early, state = toys.values(run.pruned.kernels), run.bits()["state"]
    hashes = {digest(start, run.pruned)}
    for _ in range(3):
        run.loop(rewind_step, 5)
        old_masks = toys.values(run.pruned.masks)
        expected = [
            toys.lowest_removed([np.abs(w)], [m], int(0.3 * m.sum() + 0.5))[0]
            for w, m in zip(toys.values(run.pruned.kernels), old_masks, strict=True)
        ]
        pt.prune(run.pruned, rate=0.3)
        start.restore()
        masks = toys.values(run.pruned.masks)
        np.testing.assert_equal(masks, expected)
        rewound = [np.where(m, w, 0) for m, w in zip(masks, early, strict=True)]
        # Bits, so that -0.0 would count as different.
        assert toys.bits(run.pruned.kernels) == [w.tobytes() for w in rewound]
        pt.testing.assert_masks_hold(run.pruned, run.optimizer, old_masks)
        assert run.bits()["state"] == state
        hashes.add(digest(start, run.pruned))
    assert len(hashes) == 1


def test_snapshot_is_not_changed_by_what_happens_later(run):
    """F3."""
    run.start.restore()
    before = digest(run.start, run.pruned)
    run.loop(2, 5)
    run.start.restore(weights=False)
    run.loop(2, 1)
    assert digest(run.start, run.pruned) == before
    assert digest(run.moved, run.pruned) != before


def test_update_takes_the_snapshot_anew():
    run = Run()
    snapshot = pt.Snapshot(run.pruned, run.optimizer)
    run.loop(0, 3)
    snapshot.update()
    then = run.bits()
    run.loop(3, 3)
    assert run.bits() != then
    snapshot.restore()
    assert run.bits() == then


# Masks


@pytest.fixture
def column():
    """Weights 1, 2, 3 under an optimizer whose momentum is 7 everywhere."""
    pruned = pt.PrunedModel(toys.column(1, 2, 3))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    pruned.attach_optimizer(optimizer)
    optimizer.momentums[0].assign(7 * np.ones([3, 1]))
    return pruned, optimizer


def keep(*flags):
    return [np.array(flags, bool)[:, None]]


def flat(variable):
    return variable.numpy().ravel().tolist()


def test_present_masks_apply_to_restored_weights_and_slots(column):
    pruned, optimizer = column
    snapshot = pt.Snapshot(pruned, optimizer)
    pruned.set_masks(keep(1, 0, 1))
    snapshot.restore()
    assert flat(pruned.kernels[0]) == [1, 0, 3]
    assert flat(optimizer.momentums[0]) == [7, 0, 7]
    assert flat(pruned.masks[0]) == [True, False, True]


def test_masks_come_back_if_asked_for(column):
    pruned, optimizer = column
    pruned.set_masks(keep(1, 0, 1))
    snapshot = pt.Snapshot(pruned, optimizer)
    pruned.set_masks(keep(0, 0, 1))
    snapshot.restore(masks=True)
    assert flat(pruned.masks[0]) == [True, False, True]
    assert flat(pruned.kernels[0]) == [1, 0, 3]
    assert flat(optimizer.momentums[0]) == [7, 0, 7]


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_restored_masks_zero_the_slots_of_every_optimizer(column, with_optimizer):
    """A sparser mask that comes back prunes again, momentum included."""
    pruned, optimizer = column
    pruned.set_masks(keep(1, 0, 1))
    snapshot = pt.Snapshot(pruned, optimizer if with_optimizer else None)
    pruned.set_masks(keep(1, 1, 1), allow_regrowth=True)
    optimizer.momentums[0].assign(7 * np.ones([3, 1]))
    pruned.kernels[0].assign(5 * np.ones([3, 1]))
    snapshot.restore(weights=False, optimizer=False, masks=True)
    assert flat(pruned.kernels[0]) == [5, 0, 5]
    assert flat(optimizer.momentums[0]) == [7, 0, 7]
    # One that is attached after the first restore as well.
    late = keras.optimizers.SGD(0.1, momentum=0.9)
    pruned.attach_optimizer(late)
    late.momentums[0].assign(7 * np.ones([3, 1]))
    snapshot.restore(weights=False, optimizer=False, masks=True)
    assert flat(late.momentums[0]) == [7, 0, 7]


def test_without_an_optimizer_its_state_stays(column):
    pruned, optimizer = column
    snapshot = pt.Snapshot(pruned)
    pruned.kernels[0].assign(np.zeros([3, 1]))
    optimizer.momentums[0].assign(8 * np.ones([3, 1]))
    snapshot.restore()
    assert flat(pruned.kernels[0]) == [1, 2, 3]
    assert flat(optimizer.momentums[0]) == [8, 8, 8]


def test_snapshot_builds_the_optimizer_and_attaches_it():
    pruned = pt.PrunedModel(toys.column(1, 2, 3))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    pt.Snapshot(pruned, optimizer)
    optimizer.momentums[0].assign(7 * np.ones([3, 1]))
    pruned.set_masks(keep(1, 0, 1))
    assert flat(optimizer.momentums[0]) == [7, 0, 7]


def test_loss_scale_is_restored():
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=2)
    pruned = pt.PrunedModel(toys.mlp())
    start = pt.Snapshot(pruned, optimizer)
    step = pt.make_train_step(pruned, optimizer, toys.cross_entropy(), compile="graph")
    before = toys.bits(optimizer.variables)
    for _ in range(4):
        step(*toys.dataset())
    assert float(optimizer.dynamic_scale) == 4 * 2.0**15
    start.restore()
    assert toys.bits(optimizer.variables) == before


def test_frozen_weights_are_restored_too():
    model = toys.mlp()
    model.layers[0].trainable = False
    snapshot = pt.Snapshot(pt.PrunedModel(model))
    before = toys.bits(model.variables)
    for variable in model.variables:
        variable.assign(tf.zeros_like(variable))
    snapshot.restore()
    assert toys.bits(model.variables) == before


def test_snapshot_survives_a_checkpoint(tmp_path):
    """E1: the copies are tracked, so an interrupted run still knows where to rewind."""
    pruned = pt.PrunedModel(toys.mlp())
    pt.prune(pruned, rate=0.5)
    snapshot = pt.Snapshot(pruned, keras.optimizers.Adam(0.01))
    other_pruned = pt.PrunedModel(toys.mlp(seed=9))
    other = pt.Snapshot(other_pruned, keras.optimizers.Adam(0.01))
    assert digest(other, other_pruned) != digest(snapshot, pruned)
    path = tf.train.Checkpoint(snapshot=snapshot).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(snapshot=other).read(path).assert_consumed()
    assert digest(other, other_pruned) == digest(snapshot, pruned)


def test_restoring_follows_variables_not_what_is_trainable_by_then():
    """Progressive freezing must not hand one layer the weights of another."""
    model = toys.mlp((4, 4, 4))
    first, second = model.layers
    second.trainable = False
    pruned = pt.PrunedModel(model)
    before = [layer.kernel.numpy() for layer in (first, second)]
    snapshot = pt.Snapshot(pruned)
    first.trainable, second.trainable = False, True
    for layer in (first, second):
        layer.kernel.assign(np.zeros((4, 4)))
    snapshot.restore()
    for layer, kernel in zip((first, second), before, strict=True):
        np.testing.assert_array_equal(layer.kernel, kernel)


# The line between two


def test_the_ends_of_a_line_are_the_snapshots_to_the_bit(run):
    move = snapshot.make_line(run.start, run.moved)
    optimizer = toys.bits(run.optimizer.variables)
    for place, end in ((0, run.start), (1, run.moved)):
        end.restore(optimizer=False, masks=True)
        wanted = toys.bits(run.pruned.model.trainable_variables, run.pruned.masks)
        move(0.5)
        move(place)
        found = toys.bits(run.pruned.model.trainable_variables, run.pruned.masks)
        assert found == wanted
    assert toys.bits(run.optimizer.variables) == optimizer


def test_between_lie_weights_and_statistics_and_the_seeds_of_the_first(run):
    variables = run.pruned.model.variables
    ends = []
    for end in (run.start, run.moved):
        end.restore(optimizer=False)
        ends.append(toys.values(variables))
    move = snapshot.make_line(run.start, run.moved)
    for place in (0.25, 0.5, 0.75):
        move(place)
        for variable, first, second in zip(variables, *ends, strict=True):
            if first.dtype.kind == "f":
                wanted = (1 - place) * first + place * second
                np.testing.assert_allclose(variable.numpy(), wanted, rtol=1e-5)
                assert not np.array_equal(variable.numpy(), first)
            else:
                assert np.array_equal(variable.numpy(), first)
    assert any(first.dtype.kind != "f" for first in ends[0])


def test_a_line_between_equals_stays_where_it_is(run):
    move = snapshot.make_line(run.moved, run.moved)
    run.moved.restore()
    wanted = run.bits()
    for place in np.linspace(0, 1, 7):
        move(place)
        assert run.bits() == wanted


def test_on_a_line_lives_what_lives_at_either_end():
    pruned = pt.PrunedModel(toys.column(1, 2, 3, 4))
    ends = []
    for mask in ([1, 1, 0, 0], [1, 0, 1, 0]):
        pruned.model.set_weights([np.float32([[1], [2], [3], [4]])])
        pruned.set_masks([np.array(mask, bool)[:, np.newaxis]], allow_regrowth=True)
        ends.append(snapshot.Snapshot(pruned))
    snapshot.make_line(*ends)(0.5)
    assert pruned.kernels[0].numpy().ravel().tolist() == [1, 1, 1.5, 0]
    assert pruned.masks[0].numpy().ravel().tolist() == [True, True, True, False]
