"""Masks that change inside the loop, against NumPy, step by step."""

import functools
import itertools
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.pruning import dynamic, schedules
from tests import toys

NUM_STEPS, BATCH_SIZE, SEED = 24, 4, 3
SIZES = (30, 15)  # of the kernels of `toys.mlp`
SPARSITY = 0.6
cubic = schedules.cubic(0.8, 2, 20)
rising = schedules.linear(0.7, 0, 20, initial=0.3)
drop = schedules.cosine_drop(0.5, 22)
# How each is made, and the steps that are due by hand.
RULES = {
    "gradual": (
        lambda pruned: dynamic.gradual(pruned, cubic, 5, 2, 20),
        [2, 7, 12, 17, 20],
    ),
    "set": (
        lambda pruned: dynamic.sparse_evolution(pruned, drop, 5, 2, 22),
        [2, 7, 12, 17],
    ),
    "rigl": (
        lambda pruned: dynamic.rigl(pruned, drop, 5, 2, 22),
        [2, 7, 12, 17],
    ),
    "straight_through": (
        lambda pruned: dynamic.straight_through(pruned, rising, 3, 1, 20),
        [1, 4, 7, 10, 13, 16, 19],
    ),
}
OPTIMIZERS = {
    "adam": lambda **kw: keras.optimizers.Adam(0.01, **kw),
    "momentum": lambda **kw: keras.optimizers.SGD(0.05, momentum=0.9, **kw),
}
# One for each way to meet the loop: after the update, in its place, with another one.
KINDS = ["gradual", "rigl", "straight_through"]
rules = pytest.mark.parametrize("rule", RULES)
moving = pytest.mark.parametrize("rule", ["set", "rigl"])


class Training:
    """A network, its loop, and all that a training changes, to begin again from."""

    def __init__(self, rule, mode="graph", optimizer="adam", dtype=None, **options):
        self.rule = rule
        self.pruned = pt.PrunedModel(toys.mlp(dtype=dtype))
        if rule in ("set", "rigl"):
            pt.prune(self.pruned, sparsity=SPARSITY)
        make = OPTIMIZERS.get(optimizer, optimizer)
        self.optimizer = make() if callable(make) else make
        self.update = RULES[rule][0](self.pruned)
        self.x, self.y = toys.dataset()
        self.loop = pt.make_train_loop(
            *(self.pruned, self.optimizer, toys.cross_entropy(), self.x, self.y),
            *(BATCH_SIZE, SEED, mode),
            mask_update=self.update,
            **options,
        )
        self.variables = [
            *self.pruned.model.variables,
            *self.optimizer.variables,
            *self.pruned.masks,
            *self.update.variables,
        ]
        self.start = toys.values(self.variables)

    def again(self):
        for variable, value in zip(self.variables, self.start, strict=True):
            variable.assign(value)

    def run(self, *cuts):
        """Trains in dispatches between these steps; the bits of all variables."""
        self.again()
        for first, end in itertools.pairwise(cuts):
            self.loop(first, end - first)
        return toys.bits(self.variables)

    @functools.cached_property
    def history(self):
        """After each step: masks, kernels, slots, and what the update keeps."""
        self.again()
        found = []
        for step in range(NUM_STEPS):
            self.loop(step, 1)
            slots = self.pruned.slots(self.optimizer)
            found.append(
                {
                    "masks": toys.values(self.pruned.masks),
                    "weights": toys.values(self.pruned.model.weights),
                    "slots": [(s.numpy().copy(), m.numpy().copy()) for s, m in slots],
                    "own": toys.values(self.update.variables),
                    "iterations": int(self.optimizer.iterations.value),
                }
            )
        return found


@functools.cache
def built(rule, mode):
    return Training(rule, mode, "momentum" if mode == "hybrid" else "adam")


def training(rule, mode="graph"):
    """Built once for all tests; each begins again."""
    return built(rule, mode)


# Against NumPy


class Reference(toys.MaskedAdam):
    """What each rule does, in NumPy and float64."""

    def __init__(self, training):
        training.again()
        super().__init__(toys.values(training.pruned.model.weights), 0.01)
        self.masks[::2] = toys.values(training.pruned.masks)
        # With what the masks hide.
        self.whole = [weight.copy() for weight in self.weights]

    def step_of(self, rule, step, x, y):
        """One step of a training under the rule; returns the loss."""
        due, now = step in RULES[rule][1], tf.constant(step, tf.int64)
        if rule == "rigl" and due:
            return self.grow_by_gradient(float(drop(now)), x, y)
        if rule == "straight_through":
            loss = self.pass_straight_through(x, y)
            if due:
                self.keep_largest(float(rising(now)))
            return loss
        loss = self.step(x, y)
        if rule == "gradual" and due:
            self.prune_to(float(cubic(now)))
        if rule == "set" and due:
            self.move(float(drop(now)), random_scores(step))
        return loss

    def prune_to(self, fraction):
        for index in (0, 2):
            mask, scores = self.masks[index], np.abs(self.weights[index])
            count = math.floor(fraction * mask.size + 0.5) - (~mask).sum()
            (new,) = toys.lowest_removed([scores], [mask], max(0, count))
            self.set_mask(index, new)

    def move(self, fraction, grow_scores):
        """The smallest go, those of the highest scores come."""
        for index, scores in zip((0, 2), grow_scores, strict=True):
            mask, weights = self.masks[index], self.weights[index]
            count = math.floor(fraction * mask.sum() + 0.5)
            count = min(count, int((~mask).sum()))
            (kept,) = toys.lowest_removed([np.abs(weights)], [mask], count)
            self.set_mask(index, kept)
            (free,) = toys.lowest_removed([-scores], [~kept], count)
            self.set_mask(index, ~free)

    def grow_by_gradient(self, fraction, x, y):
        loss, gradients = self.gradients(x, y)
        self.move(fraction, [np.abs(gradient) for gradient in gradients[::2]])
        self.iterations += 1
        return loss

    def pass_straight_through(self, x, y):
        """Gradients at the sparse weights move all the whole ones."""
        loss, gradients = self.gradients(x, y)
        masks, self.masks = self.masks, [np.ones_like(mask) for mask in self.masks]
        self.weights = self.whole
        self.apply(gradients)
        self.masks = masks
        self.hide()
        return loss

    def keep_largest(self, fraction):
        for index in (0, 2):
            scores = np.abs(self.whole[index])
            count = math.floor(fraction * scores.size + 0.5)
            every = np.ones(scores.shape, bool)
            (self.masks[index],) = toys.lowest_removed([scores], [every], count)
        self.hide()

    def hide(self):
        pairs = zip(self.whole, self.masks, strict=True)
        self.weights = [weight * mask for weight, mask in pairs]


def random_scores(step):
    """The draw that goes with a step: a seed for each kernel; the lowest grow first."""
    drawn = [
        tf.random.stateless_uniform(
            shape,
            tf.constant([SEED, -1 - (2 * step + index)], tf.int64),
            **{"minval": None, "maxval": None, "dtype": tf.int32, "alg": "philox"},
        )
        for index, shape in enumerate([(6, 5), (5, 3)])
    ]
    return [-(bits.numpy() // 2**8) for bits in drawn]


@rules
def test_every_rule_agrees_with_numpy_at_every_step(rule):
    run = training(rule, "xla")
    reference = Reference(run)
    rows = toys.batch_rows(len(run.x), BATCH_SIZE, 0, NUM_STEPS, SEED)
    masks = []
    for step, (batch, found) in enumerate(zip(rows, run.history, strict=True)):
        reference.step_of(rule, step, run.x[batch], run.y[batch])
        for mask, want in zip(found["masks"], reference.masks[::2], strict=True):
            np.testing.assert_array_equal(mask, want, err_msg=f"step {step}")
        for weight, want in zip(found["weights"], reference.weights, strict=True):
            np.testing.assert_allclose(weight, want, rtol=1e-4, atol=1e-6)
        masks.append(b"".join(mask.tobytes() for mask in found["masks"]))
    if rule == "straight_through":
        for latent, mask, want in zip(
            found["own"], found["masks"], reference.whole[::2], strict=True
        ):
            np.testing.assert_allclose(latent[~mask], want[~mask], 1e-4, 1e-6)
    changed = [step for step in range(1, NUM_STEPS) if masks[step] != masks[step - 1]]
    # But for where nothing is missing yet, or nothing changes places.
    assert len(changed) >= 3
    assert set(changed) <= set(RULES[rule][1])


@rules
def test_the_loss_of_a_loop_is_that_of_numpy(rule):
    """Also of the steps whose update is replaced."""
    run = training(rule, "xla")
    reference = Reference(run)
    rows = toys.batch_rows(len(run.x), BATCH_SIZE, 0, NUM_STEPS, SEED)
    losses = [
        reference.step_of(rule, step, run.x[batch], run.y[batch])
        for step, batch in enumerate(rows)
    ]
    run.again()
    np.testing.assert_allclose(run.loop(0, NUM_STEPS), np.mean(losses), rtol=1e-5)


# After every step


@rules
@pytest.mark.parametrize("mode", toys.MODES)
def test_pruned_weights_are_exactly_zero_after_every_step(rule, mode):
    run = training(rule, mode)
    for state in run.history:
        for kernel, mask in zip(state["weights"][::2], state["masks"], strict=True):
            assert not kernel[~mask].view(np.int32).any()
        if rule != "straight_through":
            for slot, mask in state["slots"]:
                assert not slot[~mask].view(np.int32).any()
    assert run.loop.num_traces == 1


@rules
def test_counts_are_those_of_the_schedule_to_the_weight(rule):
    """And constant for those rules that move weights."""
    due = RULES[rule][1]
    for step, state in enumerate(training(rule).history):
        counts = [int(mask.sum()) for mask in state["masks"]]
        passed = [s for s in due if s <= step]
        fraction = SPARSITY if rule in ("set", "rigl") else 0.0
        if passed and not fraction:
            schedule = rising if rule == "straight_through" else cubic
            fraction = float(schedule(tf.constant(passed[-1])))
        gone = [math.floor(fraction * size + 0.5) for size in SIZES]
        assert counts == [size - n for size, n in zip(SIZES, gone, strict=True)], step


def test_gradual_pruning_brings_no_weight_back():
    masks = [state["masks"] for state in training("gradual").history]
    for before, after in itertools.pairwise(masks):
        assert not any(
            (new & ~old).any() for old, new in zip(before, after, strict=True)
        )


@moving
def test_the_moved_fraction_follows_the_cosine(rule):
    """All that came are at 0, with slots of 0, also what was dropped just before."""
    run, back_at_once = training(rule), 0
    for step in RULES[rule][1]:
        before, state = run.history[step - 1], run.history[step]
        fraction = 0.25 * (1 + math.cos(math.pi * step / 22))
        for index, mask in enumerate(state["masks"]):
            came = mask & (state["weights"][2 * index] == 0)
            assert came.sum() == math.floor(fraction * mask.sum() + 0.5)
            back_at_once += (came & before["masks"][index]).sum()
            for slot, of in state["slots"]:
                if of.shape == mask.shape:
                    assert not slot[came].view(np.int32).any()
    assert back_at_once


def test_rigl_replaces_the_update_of_the_weights():
    run = training("rigl")
    for step in RULES["rigl"][1]:
        before, state = run.history[step - 1], run.history[step]
        for old, new in zip(before["weights"], state["weights"], strict=True):
            np.testing.assert_array_equal(new[new != 0], old[new != 0])
        for (old, _), (new, _) in zip(before["slots"], state["slots"], strict=True):
            np.testing.assert_array_equal(new[new != 0], old[new != 0])
    # The learning rate goes by the steps, all of them.
    assert [state["iterations"] for state in run.history] == [*range(1, NUM_STEPS + 1)]


@rules
@pytest.mark.parametrize("mode", toys.MODES)
def test_where_a_dispatch_ends_changes_no_bit(rule, mode):
    run = training(rule, mode)
    whole = run.run(0, NUM_STEPS)
    assert run.run(*range(0, NUM_STEPS, 7), NUM_STEPS) == whole
    assert run.run(*range(NUM_STEPS + 1)) == whole
    assert run.loop.num_traces == 1


@rules
def test_a_training_goes_on_from_its_variables(rule):
    run = training(rule)
    whole = run.run(0, NUM_STEPS)
    for stop in (7, 8, 13):
        run.run(0, stop)
        saved = toys.values(run.variables)
        run.run(0, 3)
        for variable, value in zip(run.variables, saved, strict=True):
            variable.assign(value)
        run.loop(stop, NUM_STEPS - stop)
        assert toys.bits(run.variables) == whole


@pytest.mark.parametrize(
    ("rule", "mode"),
    [*zip(RULES, ["graph"] * len(RULES), strict=True), ("rigl", "xla")],
)
def test_streamed_data_give_the_same_bits(rule, mode, monkeypatch):
    """In chunks of five steps: due steps come first, last and within."""
    monkeypatch.setattr("prunetrain.core.streams._CHUNK_STEPS", 5)
    run = Training(rule, mode, stream=True)
    assert run.run(0, 9, NUM_STEPS) == training(rule, mode).run(0, NUM_STEPS)
    assert run.loop.num_traces == 1


@pytest.mark.parametrize("rule", KINDS)
def test_the_checked_repeat_makes_the_same_updates(rule):
    run = training(rule)
    state = run.history[-1]
    run.again()
    assert run.loop.first_nonfinite(0, NUM_STEPS) is None
    for mask, want in zip(run.pruned.masks, state["masks"], strict=True):
        np.testing.assert_array_equal(mask, want)
    for weight, want in zip(run.pruned.model.weights, state["weights"], strict=True):
        np.testing.assert_allclose(weight, want, rtol=1e-4, atol=1e-6)


def test_hidden_weights_that_are_not_finite_are_found():
    run = training("straight_through")
    run.run(0, 20)
    mask, latent = run.pruned.masks[0], run.update.variables[0]
    assert not mask.numpy().all()
    latent.assign(np.where(mask, 0, np.nan))
    # Step 20 is not due: what is hidden is not seen yet.
    assert run.loop.first_nonfinite(20, 1) == (21, latent.name)


# Precision, other optimizers


def test_mixed_precision_moves_as_many_weights():
    run = Training("rigl", "hybrid", "momentum", dtype="mixed_bfloat16")
    exact = training("rigl", "hybrid")
    for state, expected in zip(run.history, exact.history, strict=True):
        for mask, same in zip(state["masks"], expected["masks"], strict=True):
            assert mask.sum() == same.sum()
        for kernel, mask in zip(state["weights"][::2], state["masks"], strict=True):
            assert not kernel[~mask].view(np.int32).any()
            assert np.isfinite(kernel).all()
            assert kernel.dtype == np.float32


@pytest.mark.parametrize(
    ("rule", "option"), [("set", "use_ema"), ("rigl", "gradient_accumulation_steps")]
)
def test_averages_and_accumulators_are_zeroed_too(rule, option):
    optimizer = OPTIMIZERS["momentum"](**{option: True if option == "use_ema" else 2})
    run = Training(rule, "graph", optimizer)
    for step in range(NUM_STEPS):
        run.loop(step, 1)
        pt.testing.assert_masks_hold(run.pruned, optimizer)
        if step not in RULES[rule][1]:
            continue
        for kernel, mask in zip(run.pruned.kernels, run.pruned.masks, strict=True):
            came = mask.numpy() & (kernel.numpy() == 0)
            slots = [s for s, m in run.pruned.slots(optimizer) if m is mask]
            assert len(slots) == 2
            assert not any(slot.numpy()[came].any() for slot in slots)


def test_another_optimizer_of_the_model_is_zeroed_too():
    run = Training("rigl")
    other = OPTIMIZERS["momentum"]()
    run.pruned.attach_optimizer(other)
    for slot, _ in run.pruned.slots(other):
        slot.assign(tf.ones_like(slot))
    run.pruned.mask_slots()
    run.loop(0, NUM_STEPS)
    pt.testing.assert_masks_hold(run.pruned, other)


# Memory


def test_a_change_copies_no_weights_under_xla():
    """As it would if it stood behind a condition: kernel and both moments."""
    pruned = pt.PrunedModel(toys.mlp((64, 48, 3)))
    loop = pt.make_train_loop(
        *(pruned, OPTIMIZERS["adam"](), toys.cross_entropy()),
        *(*toys.dataset(num_features=64), BATCH_SIZE),
        mask_update=RULES["gradual"][0](pruned),
    )
    zero = tf.constant(0, tf.int64)
    compiled = loop._run.experimental_get_compiler_ir(zero, zero + 1, 0.0)
    text = compiled(stage="optimized_hlo")
    assert re.search(r"f32\[64,48\]\S* fusion\(", text)
    assert not re.search(r"f32\[64,48\]\S* copy\(", text)


# By hand


def after_rigl(gradient, weights=(5, -1, 0, 0, 0, 0), live=2):
    """Masks and weights after half of the first `live` weights have moved."""
    pruned = pt.PrunedModel(toys.column(*weights))
    pruned.set_masks([np.arange(len(weights))[:, None] < live])
    change = dynamic.rigl(pruned, schedules.constant(0.5), 1, 0, 9).change
    gradient = np.array(gradient, np.float32)[:, None]
    change([tf.constant(gradient)], tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    return [
        value.numpy().astype(int).ravel().tolist()
        for value in (pruned.masks[0], pruned.kernels[0])
    ]


@pytest.mark.parametrize(
    ("gradient", "masks", "weights"),
    [
        # The smaller weight goes; of the two steepest places the lower one comes.
        ([9, 1, 2, -3, 3, 1], [1, 0, 0, 1, 0, 0], [5, 0, 0, 0, 0, 0]),
        # What was just dropped comes back, from 0.
        ([9, 8, 2, -3, 3, 1], [1, 1, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0]),
        # What has overflowed, as scaled gradients may, grows last.
        ([9, 1, np.nan, np.inf, -2, -np.inf], [1, 0, 0, 0, 1, 0], [5, 0, 0, 0, 0, 0]),
    ],
)
def test_rigl_by_hand(gradient, masks, weights):
    assert after_rigl(gradient) == [masks, weights]


@pytest.mark.parametrize(("live", "moved"), [(6, 0), (5, 1), (4, 2), (2, 1)])
def test_no_more_weights_move_than_there_are_free_places(live, moved):
    """A dense kernel stays as it is."""
    masks, weights = after_rigl(np.ones(6), weights=range(6, 0, -1), live=live)
    assert sum(masks) == live
    assert sum(m and not w for m, w in zip(masks, weights, strict=True)) == moved


def test_a_kernel_that_the_loss_does_not_reach_stays_as_it_is():
    pruned = pt.PrunedModel(toys.linear(np.eye(3), np.eye(3)))
    pruned.set_masks([np.eye(3, dtype=bool)] * 2)
    change = dynamic.rigl(pruned, schedules.constant(0.5), 1, 0, 9).change
    zero = tf.constant(0, tf.int64)
    change([None, tf.constant(1 - np.eye(3), tf.float32)], zero, zero)
    same = [np.array_equal(mask, np.eye(3)) for mask in pruned.masks]
    assert same == [True, False]


def test_every_free_place_is_as_likely_to_be_drawn():
    pruned = pt.PrunedModel(toys.column(5, -1, 0, 0, 0, 0))
    mask, kernel = pruned.masks[0], pruned.kernels[0]
    change = dynamic.sparse_evolution(pruned, schedules.constant(0.5), 1).change
    counts = np.zeros(6)
    for step in range(100):
        mask.assign(np.arange(6)[:, None] < 2)
        kernel.assign(np.array([[5], [-1], [0], [0], [0], [0]], np.float32))
        change(None, tf.constant(step, tf.int64), tf.constant(SEED, tf.int64))
        counts += mask.numpy().ravel()
    assert counts[0] == 100
    assert counts.sum() == 200
    # 20 each; the standard deviation is 4.
    assert counts[1:].min() > 8 and counts[1:].max() < 32


def test_growth_at_random_follows_from_step_and_seed_and_differs_by_kernel():
    model = toys.linear(np.eye(6), np.eye(6))
    pruned = pt.PrunedModel(model)
    pruned.set_masks([np.eye(6, dtype=bool)] * 2)
    change = dynamic.sparse_evolution(pruned, schedules.constant(0.5), 1).change
    found = []
    for step, seed in ((0, 0), (0, 1), (1, 0), (0, 0)):
        for mask, kernel in zip(pruned.masks, pruned.kernels, strict=True):
            mask.assign(np.eye(6))
            kernel.assign(np.eye(6))
        change(None, tf.constant(step, tf.int64), tf.constant(seed, tf.int64))
        found.append(toys.bits(pruned.masks))
    assert found[0] == found[3]
    assert len({bits for pair in found[:3] for bits in pair}) == 6


def test_pruning_happens_at_exactly_the_steps_that_it_is_told():
    """K3: one step an epoch, at epochs 5 and 13 of 15."""
    pruned = pt.PrunedModel(toys.mlp())
    x, y = toys.dataset()
    schedule = schedules.linear(0.8, 5, 13, initial=0.4)
    loop = pt.make_train_loop(
        *(pruned, keras.optimizers.Adam(0.01), toys.cross_entropy(), x, y, len(x)),
        compile="graph",
        mask_update=dynamic.gradual(pruned, schedule, 8, 5, 13),
    )
    found = []
    for epoch in range(15):
        loop(epoch, 1)
        found.append(pruned.sparsity())
    assert found == [0.0] * 5 + [0.4] * 8 + [0.8] * 2


def test_any_score_of_the_weights_may_decide():
    """By their value: the negative ones go, however large."""
    pruned = pt.PrunedModel(toys.column(-5, 1, -2, 0.5))
    change = dynamic.gradual(
        pruned, schedules.constant(0.5), 1, 0, 9, score=lambda weights: weights
    ).change
    change(None, tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    assert pruned.kernels[0].numpy().ravel().tolist() == [0, 1, 0, 0.5]


def test_all_kernels_compete_in_one_pool_if_they_are_told_to():
    pruned = pt.PrunedModel(toys.linear([[1], [-7]], [[6]]))
    schedule = schedules.constant(2 / 3)
    change = dynamic.gradual(pruned, schedule, 1, 0, 9, "global").change
    change(None, tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    assert [k.numpy().ravel().tolist() for k in pruned.kernels] == [[0, -7], [0]]


def test_a_network_that_is_sparser_than_the_schedule_stays_as_it_is():
    pruned = pt.PrunedModel(toys.column(-5, 1, -2, 0.5))
    pt.prune(pruned, sparsity=0.75)
    change = dynamic.gradual(pruned, schedules.constant(0.5), 1, 0, 9).change
    change(None, tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    assert pruned.kernels[0].numpy().ravel().tolist() == [-5, 0, 0, 0]


def test_hidden_weights_learn_and_come_back():
    """Gradients are -1: what starts low is hidden, grows, and takes its place again."""
    pruned = pt.PrunedModel(toys.column(1.0, 2.0, -4.0))
    x = np.ones([1, 3], np.float32)
    loop = pt.make_train_loop(
        *(pruned, keras.optimizers.SGD(1.0), lambda y, o: -toys.total(y, o)),
        *(x, x[:, 0], 1),
        compile="graph",
        mask_update=dynamic.straight_through(pruned, schedules.constant(1 / 3)),
    )
    found = []
    for step in range(4):
        loop(step, 1)
        found.append(pruned.kernels[0].numpy().ravel().tolist())
    # Whole: 2 3 -3; 3 4 -2; 4 5 -1; 5 6 0.
    assert found == [[0, 3, -3], [3, 4, 0], [4, 5, 0], [5, 6, 0]]
    assert toys.values(loop._mask_update.variables)[0].ravel()[2] == 0


def test_hidden_weights_compete_with_all_others_if_they_are_told_to():
    pruned = pt.PrunedModel(toys.linear([[1], [-7]], [[6]]))
    pruned.set_masks([[[True], [False]], [[True]]])
    update = dynamic.straight_through(
        pruned, schedules.constant(2 / 3), allocation="global"
    )
    update.variables[0].assign([[9], [-7]])
    update.change(None, tf.constant(0, tf.int64), tf.constant(0, tf.int64))
    assert [k.numpy().ravel().tolist() for k in pruned.kernels] == [[0, -7], [0]]


def test_weights_that_are_set_from_outside_count():
    """A rewind, or another replicate: nothing older comes back where weights live."""
    pruned = pt.PrunedModel(toys.column(1.0, 2.0, 3.0))
    x = np.zeros([1, 3], np.float32)
    loop = pt.make_train_loop(
        *(pruned, keras.optimizers.SGD(1.0), toys.total, x, x[:, 0], 1),
        compile="graph",
        mask_update=dynamic.straight_through(pruned, schedules.constant(1 / 3)),
    )
    loop(0, 2)
    pruned.kernels[0].assign([[0], [7], [8]])
    loop(2, 1)
    assert pruned.kernels[0].numpy().ravel().tolist() == [0, 7, 8]


def test_static_masks_need_no_update():
    assert dynamic.MASK_UPDATES["static"](None) is None


# Refusals


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ((0, 0, 9), ["`update_every`", "update_every=0"]),
        ((1.5, 0, 9), ["`update_every`", "update_every=1.5"]),
        ((1, -1, 9), ["`begin_step`", "begin_step=-1"]),
        ((1, 9, 9), ["`end_step`", "from 10", "end_step=9"]),
    ],
)
@pytest.mark.parametrize("name", ["gradual", "set", "rigl", "straight_through"])
def test_steps_out_of_range_are_refused(name, arguments, fragments):
    pruned = pt.PrunedModel(toys.column(1, 2, 3))
    with toys.raises(ValueError, *fragments):
        dynamic.MASK_UPDATES[name](pruned, schedules.constant(0.3), *arguments)


def test_gradual_pruning_needs_an_end():
    pruned = pt.PrunedModel(toys.column(1, 2, 3))
    with toys.raises(ValueError, "`end_step`", "end_step=None"):
        dynamic.gradual(pruned, schedules.constant(0.3), 1, 0, None)


def test_the_last_sparsity_counts_not_the_first():
    pruned = pt.PrunedModel(toys.column(1, 2, 3))
    with toys.raises(ValueError, "`sparsity`", "0.9", "at step 5"):
        dynamic.straight_through(pruned, schedules.linear(0.9, 0, 5), 1, 0, 5)


@pytest.mark.parametrize("name", ["gradual", "straight_through"])
@pytest.mark.parametrize("sparsity", [1.0, -0.1, math.nan, 0.9])
def test_a_sparsity_that_leaves_no_weight_is_refused(name, sparsity):
    """Of three weights, 0.9 would remove all."""
    pruned = pt.PrunedModel(toys.column(1, 2, 3))
    with toys.raises(ValueError, "`sparsity`", str(sparsity), "at step"):
        dynamic.MASK_UPDATES[name](pruned, schedules.constant(sparsity), 1, 0, 9)


@pytest.mark.parametrize("name", ["set", "rigl"])
@pytest.mark.parametrize("drop", [1.0, -0.1, math.nan])
def test_a_drop_that_is_no_fraction_is_refused(name, drop):
    pruned = pt.PrunedModel(toys.column(1, 2, 3))
    with toys.raises(ValueError, "`drop`", str(drop), "at step 4"):
        dynamic.MASK_UPDATES[name](pruned, schedules.constant(drop), 1, 4, 9)


def test_a_kernel_that_loses_all_weights_is_named_in_advance():
    pruned = pt.PrunedModel(toys.linear(np.ones([6, 3]), np.ones([3, 1])))
    with pytest.warns(UserWarning, match="no weight of net/dense_2/kernel"):
        dynamic.gradual(pruned, schedules.constant(0.9), 1, 0, 9)


def test_an_unknown_allocation_is_refused():
    pruned = pt.PrunedModel(toys.column(1, 2, 3))
    with toys.raises(ValueError, "`allocation`", "layerwise or global", "'erk'"):
        dynamic.gradual(pruned, schedules.constant(0.3), 1, 0, 9, "erk")


@pytest.mark.parametrize("held", ["use_ema", "constrain"])
def test_what_would_keep_hidden_weights_from_learning_is_refused(held):
    pruned = pt.PrunedModel(toys.mlp())
    if held == "constrain":
        pruned.constrain()
    with toys.raises(ValueError, "`straight_through`", held):
        pt.make_train_loop(
            *(pruned, keras.optimizers.SGD(0.1, use_ema=held == "use_ema")),
            *(toys.cross_entropy(), *toys.dataset(), 4),
            mask_update=dynamic.straight_through(pruned, schedules.constant(0.3)),
        )
