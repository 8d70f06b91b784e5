"""Experiments of every task: what results.csv and metrics.jsonl say of each."""

import csv
import dataclasses
import json

import keras
import numpy as np
import pytest

import prunetrain as pt
from prunetrain import data, errors, losses, models
from prunetrain.config import ConfigError
from prunetrain.runs import progress
from tests import tiny, toys

TASKS = ("binary", "multilabel", "regression")
HERE = __name__
WIDTHS = {"binary": 1, "multilabel": 3, "regression": 2}


def dataset(task):
    """Labels that a linear function of the inputs tells."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(260, 6)).astype(np.float32)
    values = x @ rng.normal(size=(6, WIDTHS[task]))
    y = values if task == "regression" else values > 0
    y = y[:, 0] if task == "binary" else y
    return data.Raw(x[:180], y[:180], x[180:], y[180:], None, task)


def last_activation(name):
    def make(input_shape, num_classes):
        layers = [keras.Input(input_shape), keras.layers.Dense(16, "relu")]
        output = keras.layers.Dense(num_classes, name, name="output")
        return keras.Sequential([*layers, output], name=f"with_{name}")

    return make


linear, sigmoid = last_activation("linear"), last_activation("sigmoid")


class Untold(keras.Model):
    """Outputs between 0 and 1 from a layer that does not tell what they are."""

    def __init__(self, num_classes):
        super().__init__()
        self.dense = keras.layers.Dense(num_classes)

    def call(self, x):
        return keras.ops.sigmoid(self.dense(x))


def untold(input_shape, num_classes):
    model = Untold(num_classes)
    model(np.zeros((1, *input_shape), np.float32))
    return model


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for task in TASKS:
        monkeypatch.setitem(data.DATASETS, task, lambda _, task=task: dataset(task))
    for name, make in (("linear", linear), ("sigmoid", sigmoid), ("untold", untold)):
        monkeypatch.setitem(models.MODELS, name, make)
    tiny.register(monkeypatch)


def settings(task, **changes):
    base = {
        **{"dataset": task, "task": task, "model": "linear", "scaling": "none"},
        **{"batch_size": 30, "validation_size": 30, "train_steps": 300, "rounds": 1},
        **{"eval_every": 100, "learning_rate": 0.01, "compile": "graph"},
    }
    return pt.Config(**{**base, **changes})


def outcome(folder, config):
    """The last row, and what the kept network gives for the test examples."""
    row = pt.run(config, folder).rows[-1]
    raw = dataset(config.task)
    model = models.make(config.model, (6,), WIDTHS[config.task])
    (file,) = (folder / "checkpoints").glob("*round01*.weights.h5")
    model.load_weights(file)
    return row, model.predict(raw.x_test, verbose=0), raw.y_test


def test_numbers_are_fitted_and_have_a_loss_only(tmp_path):
    row, outputs, y = outcome(tmp_path, settings("regression"))
    np.testing.assert_allclose(
        row.final_test_loss, np.mean((outputs - y) ** 2), rtol=1e-5
    )
    assert row.final_test_loss < 0.1 * np.mean(y**2)
    assert row.test_accuracy is None
    with open(tmp_path / "results.csv", newline="") as file:
        assert [line["test_accuracy"] for line in csv.DictReader(file)] == ["", ""]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert not any("accuracy" in json.loads(line) for line in lines)


@pytest.mark.parametrize("model", ["linear", "sigmoid"])
@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_decisions_are_counted_of_logits_and_of_probabilities(task, model, tmp_path):
    row, outputs, y = outcome(tmp_path, settings(task, model=model))
    line = 0 if model == "linear" else 0.5
    right = (outputs > line) == y.reshape(outputs.shape)
    assert row.final_test_accuracy == right.mean() > 0.9
    probabilities = outputs if line else 1 / (1 + np.exp(-outputs))
    expected = keras.losses.BinaryCrossentropy()(
        y.reshape(outputs.shape), probabilities
    )
    np.testing.assert_allclose(row.final_test_loss, expected, rtol=1e-3)


def test_accuracy_by_class_says_what_one_number_hides(tmp_path):
    """A constant answer gets 90 % right if there are 90 % of class 0."""
    y = (np.arange(200) % 10 == 0).astype(int)
    x = np.zeros([200, 4], np.float32)
    raw = data.Raw(x, y, x, y, 2, "constant")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(data.DATASETS, "constant", lambda _: raw)
        config = settings(
            **{"task": "classes", "dataset": "constant", "accuracy": "by_class"},
            **{"train_steps": 100, "rounds": 0},
        )
        (row,) = pt.run(config, tmp_path).rows
    assert (row.test_accuracy, row.test_class_accuracy) == (0.9, "1.0 0.0")
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert {tuple(x["class_accuracy"]) for x in lines if x["step"] == 100} == {(1, 0)}


class KilledError(Exception):
    pass


class Kill(progress.Silent):
    """Ends the process, as it were, at a step."""

    def __init__(self, step):
        super().__init__()
        self._step = step

    def advance(self, replicate, step, num_steps, last_step=None):
        if step >= self._step:
            raise KilledError


@pytest.mark.parametrize("task", TASKS)
def test_a_run_that_is_cut_goes_on_to_the_same_bits(task, tmp_path):
    config = settings(task, accuracy="by_class", checkpoint_every="50")
    whole = pt.run(config, tmp_path / "whole").rows
    with pytest.raises(KilledError):
        pt.run(config, tmp_path / "cut", Kill(180))
    assert list(map(without_seconds, pt.run(config, tmp_path / "cut").rows)) == list(
        map(without_seconds, whole)
    )
    files = [tmp_path / name / "metrics.jsonl" for name in ("whole", "cut")]
    assert files[0].read_text() == files[1].read_text()
    assert bool(whole[0].test_class_accuracy) == (task != "regression")


def without_seconds(row):
    return dataclasses.replace(row, train_seconds=0.0)


def test_what_the_outputs_are_is_asked_if_the_model_does_not_tell(tmp_path):
    with toys.raises(errors.InputError, "from_logits=True or from_logits=False"):
        pt.run(settings("binary", model="untold"), tmp_path)
    said = settings("binary", model="untold", loss_args="from_logits=False")
    row = pt.run(said, tmp_path / "said").rows[-1]
    assert row.test_accuracy > 0.8


@pytest.mark.parametrize(
    "name", [x for x in losses.LOSSES["regression"] if "logarithmic" not in x]
)
def test_every_loss_for_numbers_trains(name, tmp_path):
    row = pt.run(settings("regression", loss=name, rounds=0), tmp_path).rows[0]
    assert 0 < row.final_val_loss < np.inf


@pytest.mark.parametrize("name", losses.LOSSES["binary"])
def test_every_loss_for_two_classes_learns_them(name, tmp_path):
    row = pt.run(settings("binary", loss=name, rounds=0), tmp_path).rows[0]
    assert row.final_test_accuracy > 0.85


def test_outputs_of_another_width_are_refused(tmp_path):
    config = settings("regression", model=f"{HERE}:of_one")
    parts = "--task=regression", "[batch, 2] for task=regression", "(64, 1)"
    with toys.raises(errors.InputError, *parts):
        pt.run(config, tmp_path)


def of_one(input_shape):
    return linear(input_shape, 1)


def test_a_loss_of_another_task_is_refused():
    with toys.raises(ConfigError, "`loss`", "huber", "task=regression", "hinge"):
        settings("regression", loss="hinge")
