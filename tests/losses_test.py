"""Losses by name, against values worked out by hand."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain import errors, lab, losses, models
from prunetrain.config import ConfigError
from tests import tiny, toys

# Two examples of classes 0 and 2; probabilities, and logits that give them.
Y = np.array([0, 2])
ROWS = np.array([[0.5, 0.25, 0.25], [0.125, 0.625, 0.25]], np.float32)
LOGITS = np.log(ROWS)
ENTROPY = (math.log(2) + math.log(4)) / 2


def value(name, probabilities, outputs, **arguments):
    loss_fn = losses.make_loss(name, "classes", probabilities, 3, **arguments)
    return float(tf.reduce_mean(loss_fn(Y, tf.constant(outputs))))


@pytest.mark.parametrize(
    "name", ["sparse_categorical_crossentropy", "categorical_crossentropy"]
)
def test_crossentropy_is_the_same_of_logits_and_of_probabilities(name):
    for probabilities, outputs in ((True, ROWS), (False, LOGITS)):
        assert value(name, probabilities, outputs) == pytest.approx(ENTROPY, rel=1e-5)


def test_what_is_said_about_logits_counts():
    name = "sparse_categorical_crossentropy"
    found = value(name, True, LOGITS, from_logits=True)
    assert found == pytest.approx(ENTROPY, rel=1e-5)


def test_smoothed_labels_are_rows():
    # 0.3 of each label goes to all three classes: 0.8 and 0.1 twice.
    logs = np.log(ROWS)
    expected = -(logs.sum() * 0.1 + 0.7 * (logs[0, 0] + logs[1, 2])) / 2
    found = value("categorical_crossentropy", True, ROWS, label_smoothing=0.3)
    assert found == pytest.approx(expected, rel=1e-5)


def test_squares_and_hinges_are_of_one_hot_rows():
    squares = (0.5**2 + 2 * 0.25**2 + 0.125**2 + 0.625**2 + 0.75**2) / 6
    assert value("mean_squared_error", True, ROWS) == pytest.approx(squares, rel=1e-5)
    # max(0, 1 + the highest other - that of the label).
    hinge = (1 + 0.25 - 0.5 + 1 + 0.625 - 0.25) / 2
    assert value("categorical_hinge", True, ROWS) == pytest.approx(hinge, rel=1e-5)


def test_a_focal_loss_weighs_what_is_known_less():
    # alpha (1 - p)^gamma -log p
    terms = (0.5 * 0.5**2 * math.log(2), 0.5 * 0.75**2 * math.log(4))
    found = value("categorical_focal_crossentropy", True, ROWS, alpha=0.5, gamma=2)
    assert found == pytest.approx(sum(terms) / 2, rel=1e-4)


def constant(y, outputs):
    del y
    return 0.0 * tf.reduce_sum(outputs) + 3.0


def test_a_loss_may_be_a_function_or_a_class_of_ones_own():
    assert losses.make_loss(f"{__name__}:constant", "classes", True, 3) is constant
    name = "keras.losses:SparseCategoricalCrossentropy"
    assert value(name, True, ROWS) == pytest.approx(ENTROPY, rel=1e-5)
    with toys.raises(errors.InputError, "`loss_args`", "a function takes none", "a"):
        losses.make_loss(f"{__name__}:constant", "classes", True, 3, a=1)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (ROWS, True),
        (ROWS.astype(np.float16), True),
        (LOGITS, False),
        (np.zeros((2, 3)), False),
        (np.full((2, 3), [2.0, -0.5, -0.5]), False),
    ],
)
def test_probabilities_are_told_from_logits(outputs, expected):
    found = losses.are_probabilities("classes", None, tf.constant(outputs))
    assert found is expected


# In an experiment


def settings(**changes):
    numbers = {"batch_size": 12, "validation_size": 12, "train_steps": 8, "rounds": 0}
    return pt.Config(dataset="noise", compile="graph", **{**numbers, **changes})


def with_softmax(input_shape, num_classes):
    model = tiny.network(input_shape, num_classes)
    return keras.Sequential([model, keras.layers.Softmax()])


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    tiny.register(monkeypatch)
    monkeypatch.setitem(models.MODELS, "softmax", with_softmax)


def test_a_network_with_softmax_trains_like_the_one_with_logits(tmp_path):
    rows = [
        pt.run(settings(model=model), tmp_path / model).rows[0]
        for model in ("net", "softmax")
    ]
    for name in ("final_val_loss", "final_test_loss"):
        net, softmax = (getattr(row, name) for row in rows)
        assert softmax == pytest.approx(net, rel=1e-4)


def test_a_loss_of_rows_trains_an_experiment(tmp_path):
    config = settings(
        **{"model": "net", "loss": "categorical_crossentropy", "train_steps": 60},
        loss_args="label_smoothing=0.1",
    )
    (row,) = pt.run(config, tmp_path).rows
    plain = settings(model="net", train_steps=60)
    (other,) = pt.run(plain, tmp_path / "plain").rows
    assert 0 < row.val_loss != other.val_loss


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "none"])
def test_a_loss_of_rows_is_evaluated_like_that_of_indices(reduction, tmp_path):
    config = settings(model="net", loss_args=f"reduction={reduction}", train_steps=1)
    rows = dataclasses.replace(config, loss="categorical_crossentropy")
    (row,) = pt.run(config, tmp_path / "indices").rows
    (other,) = pt.run(rows, tmp_path / "rows").rows
    assert other.val_loss == pytest.approx(row.val_loss, rel=1e-5)


def test_arguments_that_a_loss_does_not_take_are_refused():
    with toys.raises(ConfigError, "`loss_args`", "does not fit", "label_smoothing"):
        lab.Lab(settings(model="net", loss_args="label_smoothing=0.1"), "graph")
