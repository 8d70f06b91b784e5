"""Every criterion with every allocation and every pattern."""

import functools
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.pruning import allocation, criteria, patterns, topk
from tests import toys

RATE = 0.18


def mlp():
    return toys.mlp((8, 8, 8))


def conv():
    """Two kernels of 3 × 3 × 4 × 4: one program serves both."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6, 6, 4)),
            layers.Conv2D(4, 3, activation="relu", name="conv_1"),
            layers.BatchNormalization(),
            layers.Conv2D(4, 3, padding="same", activation="relu", name="conv_2"),
            layers.GlobalAveragePooling2D(),
        ]
    )


def attention():
    """Projections of 4 × 2 × 2 (three) and 2 × 2 × 4."""
    inputs = keras.Input((3, 4))
    outputs = keras.layers.MultiHeadAttention(2, 2, name="attention")(inputs, inputs)
    return keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(outputs))


NETWORKS = {"mlp": mlp, "conv": conv, "attention": attention}
PATTERNS = {
    "mlp": ["element", "channel", "2:4", "block_2x2"],
    "conv": ["element", "channel", "2:4", "block_2x2"],
    "attention": ["head"],
}
# What the others are not defined for.
CRITERIA = {
    "mlp": list(criteria.CRITERIA),
    "conv": list(criteria.CRITERIA),
    "attention": [x for x in criteria.CRITERIA if x not in ("wanda", "synflow")],
}


@functools.cache
def network(name):
    """The model, what criteria may need, and its state."""
    keras.utils.set_random_seed(0)
    pruned = pt.PrunedModel(NETWORKS[name]())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, *pruned.model.input_shape[1:])).astype(np.float32)
    given = {
        "initial": [rng.normal(size=k.shape).astype("f") for k in pruned.kernels],
        "data": [(x, rng.integers(4, size=6))],
        "loss_fn": toys.cross_entropy(),
    }
    return pruned, given, pruned.model.get_weights()


def start(name, masks):
    pruned, given, weights = network(name)
    pruned.set_masks(masks, allow_regrowth=True)
    pruned.model.set_weights(weights)
    pruned.apply_masks()
    return pruned, given


@functools.cache
def first_masks(name, pattern):
    """Of a first round, by magnitude."""
    pruned, _ = start(name, [np.ones(k.shape, bool) for k in network(name)[0].kernels])
    pt.prune(pruned, rate=0.2, pattern=pattern)
    return toys.values(pruned.masks)


def num_units(pattern, mask, path):
    """How many units have a weight left, by hand."""
    if pattern == "channel":
        mask = mask.reshape(-1, mask.shape[-1]).any(0)
    elif pattern == "block_2x2":
        *rest, rows, columns = mask.shape
        blocks = mask.reshape(*rest, rows // 2, 2, columns // 2, 2)
        mask = blocks.any((-1, -3))
    elif pattern == "head":
        mask = mask.any((1, 2) if "output" in path else (0, 2))
    return int(mask.sum())


def expected(name, counts):
    """Units lost by kernel if each counts by itself, else in all."""
    if name == "layerwise":
        return [math.floor(RATE * count + 0.5) for count in counts]
    return math.floor(RATE * sum(counts) + 0.5)


CASES = [
    (network, pattern, name)
    for network, known in PATTERNS.items()
    for pattern in known
    for name in allocation.ALLOCATIONS
]


@pytest.fixture
def sorted_selection(monkeypatch):
    """A stable sort selects: it compiles nothing, and `topk_test` compares the two."""

    def remove_lowest(scores, masks, num_remove):
        scores = [topk.evaluate(score).numpy() for score in scores]
        masks = [mask.numpy() for mask in masks]
        assert 0 <= num_remove <= sum(map(np.sum, masks))
        left = toys.lowest_removed(scores, masks, int(num_remove))
        return [tf.constant(mask) for mask in left]

    monkeypatch.setattr(topk, "remove_lowest", remove_lowest)


@pytest.mark.usefixtures("sorted_selection")
@pytest.mark.filterwarnings("ignore:pruning")
@pytest.mark.parametrize(("kind", "pattern", "name"), CASES)
def test_counts_are_exact_masks_shrink_and_a_seed_repeats_them(kind, pattern, name):
    """With every criterion."""
    before = first_masks(kind, pattern)

    def masks_of(criterion, seed=1):
        pruned, given = start(kind, before)
        iterations = 2 if criterion == "synflow" else None
        pt.prune(
            pruned, RATE, None, criterion, name, pattern, **given,
            seed=seed, iterations=iterations,
        )  # fmt: skip
        pt.testing.assert_masks_hold(pruned, previous_masks=before)
        return toys.values(pruned.masks)

    paths = [kernel.path for kernel in network(kind)[0].kernels]

    def count(masks):
        return [num_units(pattern, *one) for one in zip(masks, paths, strict=True)]

    for criterion in CRITERIA[kind]:
        after = masks_of(criterion)
        lost = np.subtract(count(before), count(after))
        lost = lost.tolist() if name == "layerwise" else lost.sum()
        assert lost == expected(name, count(before)), criterion
        np.testing.assert_equal(masks_of(criterion), after, criterion)
    if pattern == "element":
        one, other = masks_of("random"), masks_of("random", seed=2)
        assert any(map(np.any, map(np.logical_xor, one, other)))


def test_every_pattern_is_here():
    known = [pattern for patterns in PATTERNS.values() for pattern in patterns]
    registry = patterns.PATTERNS
    assert set(registry) <= set(known)
    for maker in registry.forms.values():
        assert any(re.fullmatch(maker.expression, pattern) for pattern in known)
