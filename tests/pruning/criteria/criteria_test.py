"""What holds for every criterion, and what they say if something is missing."""

import functools
import itertools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.pruning import criteria, topk
from tests import toys

NEEDS = {
    **dict.fromkeys(["magnitude", "random", "large_final", "small_final"], ()),
    **dict.fromkeys(
        [
            *("large_init", "small_init", "large_init_large_final"),
            *("small_init_small_final", "magnitude_increase", "movement"),
            "large_final_same_sign",
        ],
        ("initial",),
    ),
    **dict.fromkeys(["taylor", "snip", "grasp", "fisher"], ("data", "loss_fn")),
    "wanda": ("data",),
    "synflow": (),
}
PRECISIONS = ["float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float64"]


def scores(name, pruned, **given):
    arguments = {"initial": None, "data": None, "loss_fn": None, "seed": 0, **given}
    return [
        topk.evaluate(score) for score in criteria.CRITERIA[name](pruned, **arguments)
    ]


def everything(pruned):
    """What a criterion may need."""
    return {
        "initial": [np.full(k.shape, 0.5, np.float32) for k in pruned.kernels],
        "data": [toys.dataset()],
        "loss_fn": toys.cross_entropy(),
        "seed": 3,
    }


def normed():
    """A network with all that trains otherwise than it infers."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(5, name="first"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.5),
            layers.GaussianNoise(1.0),
            layers.Dense(3, kernel_regularizer="l2", name="last"),
        ]
    )


# By hand


def test_magnitude_is_the_absolute_value():
    pruned = pt.PrunedModel(toys.linear([[-5, 0.5]], [[0.0], [-0.25]]))
    first, second = scores("magnitude", pruned)
    assert first.numpy().tolist() == [[5, 0.5]]
    assert second.numpy().tolist() == [[0], [0.25]]


def test_small_weights_go_whatever_their_sign():
    """A6."""
    pruned = pt.PrunedModel(toys.column(-5, 0.1, 0.2, 0.3))
    assert pt.prune(pruned, rate=0.25, criterion="magnitude") == 1
    assert pruned.masks[0].numpy().ravel().tolist() == [True, False, True, True]


def test_random_scores_follow_from_the_seed_and_are_spread_evenly():
    pruned = pt.PrunedModel(toys.mlp((100, 100, 100)))
    one, again, other = (
        [score.numpy() for score in scores("random", pruned, seed=seed)]
        for seed in (1, 1, 2**32 - 1)
    )
    np.testing.assert_equal(one, again)
    for different in (other[0], one[1]):
        assert np.mean(one[0] == different) < 0.01
    # Its standard error is 0.003.
    assert np.mean(one[0] < 0.25) == pytest.approx(0.25, abs=0.015)


def test_random_takes_from_all_layers_alike():
    pruned = pt.PrunedModel(toys.mlp((100, 100, 100)))
    pt.prune(pruned, rate=0.5, criterion="random", allocation="global")
    kept = [layer.kept for layer in pruned.layer_sparsity()]
    assert sum(kept) == 10_000
    # The standard deviation is 50.
    assert abs(kept[0] - 5000) < 250


# All of them


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", criteria.CRITERIA)
def test_every_criterion_scores_finitely_and_repeatably_and_changes_nothing(
    name, precision, policy
):
    """H1. By the signature in the docstring, whichever of the arguments it needs."""
    policy(precision)
    pruned = pt.PrunedModel(normed())
    pruned.set_masks(toys.random_masks(pruned))
    given = everything(pruned)
    layers = pruned.model.layers
    before = toys.bits(pruned.model.variables, pruned.masks)
    settings = [sorted(map(str, vars(layer))) for layer in layers]
    policies = [layer.dtype_policy.name for layer in layers]
    found = scores(name, pruned, **given)
    assert toys.bits(pruned.model.variables, pruned.masks) == before
    assert [sorted(map(str, vars(layer))) for layer in layers] == settings
    assert [layer.dtype_policy.name for layer in layers] == policies
    assert [score.shape for score in found] == [k.shape for k in pruned.kernels]
    assert all(np.isfinite(tf.cast(score, tf.float64)).all() for score in found)
    again = scores(name, pruned, **given)
    assert [s.numpy().tobytes() for s in again] == [s.numpy().tobytes() for s in found]
    if {"data", "loss_fn"} & set(NEEDS[name]) or name == "synflow":
        assert all(score.dtype.size >= 4 for score in found)
        # They tell the weights apart.
        assert len(np.unique(found[0])) > 5


@pytest.fixture
def policy():
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("name", ["taylor", "snip", "grasp", "fisher", "wanda"])
def test_scores_of_a_mixed_model_are_those_of_the_same_in_float32(
    name, precision, policy
):
    """H2. Whatever the layers compute in, scores are taken in float32."""
    plain = pt.PrunedModel(normed())
    policy(precision)
    mixed = pt.PrunedModel(normed())
    mixed.model.set_weights(plain.model.get_weights())
    given = everything(plain)
    for one, other in zip(
        scores(name, plain, **given), scores(name, mixed, **given), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("name", ["taylor", "snip", "grasp", "fisher"])
def test_gradients_as_small_as_half_precision_cannot_hold_are_no_zeros(name, policy):
    policy("mixed_float16")
    pruned = pt.PrunedModel(toys.mlp())

    def faint(y, outputs):
        return 1e-9 * toys.cross_entropy()(y, outputs)

    given = {**everything(pruned), "loss_fn": faint}
    assert all(np.mean(score != 0) > 0.4 for score in scores(name, pruned, **given))


def test_every_criterion_tells_what_it_needs():
    assert {name: c.needs for name, c in criteria.CRITERIA.items()} == NEEDS
    iterated = {name: c.iterations for name, c in criteria.CRITERIA.items()}
    assert iterated == {**dict.fromkeys(NEEDS, 1), "synflow": 100}


@pytest.mark.parametrize(
    ("name", "missing"), [(name, x) for name, needs in NEEDS.items() for x in needs]
)
def test_what_is_needed_and_missing_is_told_with_the_reason(name, missing):
    pruned = pt.PrunedModel(toys.mlp())
    given = {**everything(pruned), missing: None}
    why = {"initial": "at initialisation", "data": "examples", "loss_fn": "gradients"}
    with toys.raises(
        ValueError, f"`{missing}` must be given", repr(name), why[missing]
    ):
        pt.prune(pruned, rate=0.2, criterion=name, **given)
    assert pruned.sparsity() == 0


def test_nothing_is_needed_by_those_that_need_nothing():
    pruned = pt.PrunedModel(toys.mlp())
    for name in (name for name, needs in NEEDS.items() if not needs):
        assert len(scores(name, pruned)) == 2


@pytest.mark.parametrize("name", criteria.CRITERIA)
def test_every_criterion_says_what_it_does(name):
    """Its first line is the flag's help."""
    assert criteria.CRITERIA[name].__doc__.splitlines()[0].endswith(".")


def test_unknown_criteria_are_refused_with_the_nearest_name():
    with toys.raises(
        ValueError, "`criterion`", "'magnitde'", "did you mean 'magnitude'"
    ):
        pt.prune(pt.PrunedModel(toys.mlp()), rate=0.2, criterion="magnitde")


def test_a_function_is_a_criterion_and_gets_all_arguments():
    pruned = pt.PrunedModel(toys.column(1, 2, 3, 4))
    given = {"initial": ["w"], "data": ["batch"], "loss_fn": len, "seed": 5}

    def largest_first(received_model, **arguments):
        assert received_model is pruned
        assert arguments == given
        return [-tf.abs(kernel.value) for kernel in received_model.kernels]

    assert pt.prune(pruned, rate=0.5, criterion=largest_first, **given) == 2
    assert pruned.masks[0].numpy().ravel().tolist() == [True, True, False, False]


def test_a_criterion_is_registered_with_what_it_needs(monkeypatch):
    registry = criteria.Criteria("criterion")

    @registry.register("mine", needs=("initial",), iterations=3)
    def mine(pruned, *, initial, data, loss_fn, seed):
        """What was there."""
        return list(initial)

    assert registry["mine"] is mine
    assert (mine.needs, mine.iterations) == (("initial",), 3)
    assert mine.__doc__ == "What was there."
    assert mine(None, initial=[1], data=None, loss_fn=None, seed=0) == [1]
    with toys.raises(ValueError, "`initial`", "criterion='mine'"):
        mine(None, initial=None, data=None, loss_fn=None, seed=0)


# Batches


def test_batches_are_those_of_the_data_one_after_the_other():
    data = [(1, 2), [3, 4]]
    assert list(criteria.batches(data)) == data


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "at least one batch"),
        ([np.ones([4, 6])], "a batch that is a ndarray"),
        ([(np.ones([4, 6]),)], "a batch that is a tuple"),
        (itertools.repeat((np.ones([1, 6]), np.zeros([1], int))), "at most 1,000"),
    ],
)
def test_what_is_no_data_is_refused(data, problem):
    pruned = pt.PrunedModel(toys.mlp())
    given = {**everything(pruned), "data": data}
    with toys.raises(ValueError, "`data` must", problem, "Received"):
        pt.prune(pruned, rate=0.2, criterion="wanda", **given)


@pytest.mark.parametrize("name", ["grasp", "snip"])
def test_an_iterator_serves_as_well_as_a_list(name):
    """GraSP goes through it twice, and every step of several anew."""
    x, y = toys.dataset(8)
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]

    def masks_of(data):
        pruned = pt.PrunedModel(toys.mlp())
        given = {**everything(pruned), "data": data}
        pt.prune(pruned, rate=0.5, criterion=name, iterations=2, **given)
        return toys.bits(pruned.masks)

    pipeline = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    assert masks_of(batches) == masks_of(iter(batches)) == masks_of(pipeline)


@functools.cache
def shared():
    return pt.PrunedModel(toys.mlp())


@pytest.mark.parametrize("name", ["taylor", "snip", "grasp", "fisher", "wanda"])
def test_scores_are_compiled_once_for_a_model_and_a_loss(name):
    pruned = shared()
    traces = []

    def loss_fn(y, outputs):
        traces.append(name)
        return toys.cross_entropy()(y, outputs)

    def counted(x):
        traces.append(name)
        return tf.identity(x)

    pruned.model.layers[0].activation = counted
    given = {**everything(pruned), "loss_fn": loss_fn}
    before = scores(name, pruned, **given)
    first = len(traces)
    pruned.kernels[0].assign(pruned.kernels[0] * 2)
    after = scores(name, pruned, **given)
    assert len(traces) == first > 0
    assert not np.array_equal(before[1], after[1])
    other = {**given, "loss_fn": toys.cross_entropy()}
    scores(name, pruned, **other)
    assert len(traces) > first or name == "wanda"


def test_many_models_are_scored_without_a_word_of_tensorflow_s():
    """It warns of what it takes for the same function, traced too often."""
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("tensorflow")
    logger.addHandler(handler)
    try:
        for width in range(3, 12):
            pruned = pt.PrunedModel(toys.mlp((6, width, 3)))
            scores("wanda", pruned, **everything(pruned))
    finally:
        logger.removeHandler(handler)
    assert heard == []
