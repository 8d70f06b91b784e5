"""Settings that turn out not to fit when the first step is made."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain import errors, lab, models
from prunetrain.pruning import criteria
from tests import tiny, toys

HERE = "tests.lab_test"


def of_shape(num_outputs, input_shape):
    return keras.Sequential(
        [keras.Input(input_shape), keras.layers.Dense(num_outputs, name="output")]
    )


def narrow(input_shape):
    return tiny.network(input_shape, 2)


def unflattened(input_shape, num_classes):
    return of_shape(num_classes, input_shape)


def by_name(input_shape, num_classes):
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Flatten()(inputs)
    return keras.Model(inputs, {"a": keras.layers.Dense(num_classes)(hidden)})


def without_gradient(input_shape, num_classes):
    model = tiny.network(input_shape, num_classes)
    return keras.Model(model.inputs[0], keras.ops.stop_gradient(model.outputs[0]))


counter = itertools.count(4)


def growing(input_shape, num_classes):
    return keras.Sequential(
        [
            keras.Input(input_shape),
            keras.layers.Flatten(),
            keras.layers.Dense(next(counter)),
            keras.layers.Dense(num_classes),
        ]
    )


def nothing(*arguments):
    return None


def failing(*arguments):
    raise RuntimeError("no")


class NoOptimizer:
    def __init__(self, learning_rate):
        pass


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    tiny.register(monkeypatch)


def settings(**changes):
    numbers = {"batch_size": 12, "validation_size": 12, "rounds": 0}
    base = {"dataset": "noise", "model": "net", "compile": "graph", **numbers}
    return pt.Config(**{**base, **changes})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": f"{HERE}:narrow"}, "labels from 0 to 2"),
        ({"model": f"{HERE}:narrow", "loss": "mean_squared_error"}, ",3] vs. ["),
        ({"model": f"{HERE}:unflattened"}, "class scores"),
        ({"model": f"{HERE}:by_name"}, "class scores"),
        ({"model": f"{HERE}:without_gradient"}, "No gradients"),
        ({"loss": f"{HERE}:nothing"}, "None"),
        ({"loss": f"{HERE}:failing"}, "RuntimeError: no"),
        ({"loss": "math:pi"}, "math:pi"),
        ({"loss_args": "axis=5"}, "axis=5"),
        ({"augment": f"{HERE}:failing"}, "RuntimeError: no"),
        ({"optimizer": f"{HERE}:NoOptimizer"}, "NoOptimizer"),
        ({"optimizer_args": "beta_1=much"}, "TypeError"),
        ({"optimizer_args": "weight_decay=much"}, "Cast string to float"),
        (
            {
                "learning_rate_schedule": "exponential",
                "learning_rate_schedule_args": "decay_rate=much",
            },
            "Cast string to float",
        ),
    ],
)
def test_what_does_not_go_together_is_told_before_anything_is_written(
    changes, problem, tmp_path
):
    given = [f"--{name}={value}" for name, value in changes.items()]
    with toys.raises(errors.InputError, *given, "--dataset=noise", problem):
        pt.run(settings(**changes), tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_function_that_makes_another_network_at_each_call_is_refused(tmp_path):
    config = settings(model=f"{HERE}:growing")
    with toys.raises(errors.InputError, "the same network at each call", "(16, 5)"):
        pt.run(config, tmp_path)


@pytest.mark.parametrize("function", [f"{HERE}:failing", "operator:add"])
def test_a_model_s_function_that_fails_is_told(function):
    with toys.raises(errors.InputError, function):
        models.make(function, (4, 4, 1), 3, {})


@pytest.mark.parametrize("stream", ["never", "always"])
def test_data_that_have_changed_are_refused(stream, tmp_path, monkeypatch):
    config = settings(train_steps=4, stream=stream)
    pt.run(config, tmp_path)
    (tmp_path / "results.csv").unlink()
    pt.run(config, tmp_path)
    (tmp_path / "results.csv").unlink()
    monkeypatch.setitem(lab.data.DATASETS, "noise", lambda data_dir: tiny.noise(seed=1))
    with toys.raises(errors.InputError, "--dataset=noise", "has changed", "Restore"):
        pt.run(config, tmp_path)


def test_boundaries_that_fall_are_refused():
    arguments = "boundaries=(20,10)"
    config = settings(
        learning_rate_schedule="step", learning_rate_schedule_args=arguments
    )
    with toys.raises(errors.InputError, arguments, "must rise"):
        lab.Lab(config, "graph")


# What criteria are given


@pytest.fixture(scope="module")
def made():
    """A lab, 40 examples in batches of 12; its settings may be replaced."""
    with pytest.MonkeyPatch.context() as patch:
        tiny.register(patch)
        config = settings(validation_size=20, rounds=1)
        return lab.Lab(config, "graph")


@pytest.fixture
def trained(made):
    made.make_dense()
    made.draw_weights(3)
    made.loop.seed.assign(7)
    made.loop(0, 5)
    return made


def with_settings(made, **changes):
    made.config = dataclasses.replace(settings(validation_size=20), **changes)
    return made


@pytest.mark.parametrize("name", criteria.CRITERIA)
def test_every_criterion_gives_masks_that_follow_from_the_seeds(name, trained):
    with_settings(trained, criterion=name, prune_iterations=1)
    state = trained.pruned.model.variables, trained.optimizer.variables
    before = toys.bits(*state, trained.pruned.masks)
    masks, problem = trained.next_masks(1, 3)
    assert problem is None
    # A fifth of 192 and, of the output layer, a tenth of 36.
    assert [int(tf.math.count_nonzero(mask)) for mask in masks] == [154, 32]
    assert toys.bits(*state, trained.pruned.masks) == before
    again, _ = trained.next_masks(1, 3)
    assert toys.bits(again) == toys.bits(masks)
    # Only what it needs counts.
    other, _ = trained.next_masks(2, 3)
    assert (toys.bits(other) == toys.bits(masks)) == (name != "random")
    other, _ = trained.next_masks(1, 4)
    needs = "initial" in criteria.CRITERIA[name].needs
    assert (toys.bits(other) != toys.bits(masks)) == needs


@pytest.fixture
def probe(monkeypatch):
    """A criterion that remembers what it is given."""
    registry, seen = criteria.Criteria("criterion"), []

    def register(**needs):
        @registry.register("probe", **needs)
        def remember(pruned, **given):
            seen.append(given)
            return [kernel.value for kernel in pruned.kernels]

        monkeypatch.setitem(criteria.CRITERIA, "probe", registry["probe"])
        return seen

    return register


def test_data_are_the_first_batches_of_the_training(trained, probe):
    seen = probe(needs=("data", "loss_fn"))
    with_settings(trained, criterion="probe", criterion_batches=3)
    trained.next_masks(1, 3)
    x, y = lab.open_data(trained.config).train
    rows = toys.batch_rows(40, 12, 0, 3, seed=7)
    found = seen[0]["data"]
    for (batch, _), chosen in zip(found, rows, strict=True):
        np.testing.assert_array_equal(batch, x[chosen])
    np.testing.assert_equal([labels.numpy() for _, labels in found], y[rows])
    assert seen[0]["initial"] is None
    # The loss that is trained with.
    loss = seen[0]["loss_fn"](y[rows[0]], trained.pruned(x[rows[0]]))
    assert np.isfinite(loss)


def test_initial_weights_are_those_that_the_training_began_with(trained, probe):
    seen = probe(needs=("initial",))
    with_settings(trained, criterion="probe")
    trained.next_masks(1, 3)
    assert seen[0]["data"] is None
    trained.draw_weights(3)
    assert toys.bits(trained.pruned.kernels) == [
        value.numpy().tobytes() for value in seen[0]["initial"]
    ]


def test_steps_and_floor_are_as_set_and_by_default_the_criterion_s_own(trained, probe):
    seen = probe(iterations=3)
    for iterations, expected in ((0, 3), (5, 5), (1, 1)):
        seen.clear()
        with_settings(trained, criterion="probe", prune_iterations=iterations)
        trained.next_masks(1, 3)
        assert len(seen) == expected
    with_settings(trained, min_kept=35)
    masks, problem = trained.next_masks(1, 3)
    assert masks is None
    assert "net/output/kernel can lose 1 of 36" in problem
    with_settings(trained, min_kept=32)
    assert trained.next_masks(1, 3)[1] is None


def test_scores_that_are_not_finite_end_the_run_with_the_criterion(
    trained, monkeypatch
):
    def undefined(pruned, **_):
        return [kernel.value * np.nan for kernel in pruned.kernels]

    undefined.needs = ()
    monkeypatch.setitem(criteria.CRITERIA, "undefined", undefined)
    with_settings(trained, criterion="undefined")
    with toys.raises(errors.RunError, "--criterion=undefined", "finite", "net/hidden"):
        trained.next_masks(1, 3)


def depthwise(input_shape, num_classes):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.DepthwiseConv2D(2, name="deep"),
            layers.LayerNormalization(),
            layers.Flatten(),
            layers.Dense(num_classes, name="output"),
        ]
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"criterion": "wanda"}, "deep/kernel (DepthwiseConv2D)"),
        ({"criterion": "synflow"}, "linear for positive inputs"),
        ({"pattern": "head"}, "deep/kernel of a DepthwiseConv2D"),
        ({"pattern": "2:4"}, "deep/kernel of a DepthwiseConv2D"),
    ],
)
def test_what_cannot_prune_the_model_is_told_before_anything_is_trained(
    changes, problem, tmp_path
):
    given = [f"--{name}={value}" for name, value in changes.items()]
    with toys.raises(errors.InputError, *given, f"--model={HERE}:depthwise", problem):
        pt.run(settings(model=f"{HERE}:depthwise", rounds=1, **changes), tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()
