"""Settings that turn out not to fit when the first step is made."""

import itertools

import keras
import pytest

import prunetrain as pt
from prunetrain import errors, lab, models
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
