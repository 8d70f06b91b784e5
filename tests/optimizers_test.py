"""Optimizers and learning-rate schedules, against values worked out by hand."""

import inspect
import math

import keras
import numpy as np
import pytest

import prunetrain as pt
from prunetrain import errors, lab, optimizers
from prunetrain.config import ConfigError
from tests import tiny, toys

INSTALLED = [
    name
    for name in optimizers.OPTIMIZERS
    if name in {key.lower() for key in vars(keras.optimizers)}
]


@pytest.mark.parametrize("name", INSTALLED)
def test_every_optimizer_that_is_named_exists(name):
    optimizer = optimizers.make_optimizer(name, 0.25)
    assert type(optimizer).__name__.lower() == name
    assert float(optimizer.learning_rate) == 0.25


def test_every_optimizer_of_keras_is_named():
    classes = {
        name.lower()
        for name, value in vars(keras.optimizers).items()
        if inspect.isclass(value) and issubclass(value, keras.optimizers.Optimizer)
    }
    # These hold other optimizers, or are the base of all.
    classes -= {"optimizer", "lossscaleoptimizer", "multioptimizer", "optimizermap"}
    assert set(INSTALLED) == classes
    # Each that an older Keras lacks is one that came later.
    later = {"muon", "schedulefreeadamw"}
    assert set(optimizers.OPTIMIZERS) - classes <= later


def test_an_optimizer_that_this_keras_lacks_is_refused(monkeypatch):
    monkeypatch.delattr(keras.optimizers, "Lamb")
    with toys.raises(errors.InputError, "`optimizer`", "lamb", keras.__version__):
        optimizers.make_optimizer("lamb", 0.1)


def test_an_optimizer_may_be_named_by_its_import_path_and_takes_arguments():
    optimizer = optimizers.make_optimizer("keras.optimizers:SGD", 0.5, momentum=0.75)
    assert isinstance(optimizer, keras.optimizers.SGD)
    assert optimizer.momentum == 0.75


# Learning rates


def rates(schedule, steps):
    """The learning rates that an optimizer trains at, by step."""
    optimizer = keras.optimizers.SGD(schedule)
    found = []
    for step in steps:
        optimizer.iterations.assign(step)
        found.append(float(optimizer.learning_rate))
    return found


def made(name, learning_rate=0.8, train_steps=100, **arguments):
    return optimizers.SCHEDULES[name](learning_rate, train_steps, **arguments)


@pytest.mark.parametrize(
    ("schedule", "steps", "expected"),
    [
        (lambda: made("constant"), [0, 99], [0.8, 0.8]),
        (lambda: made("exponential"), [0, 50, 100], [0.8, 0.8 / 10**0.5, 0.08]),
        (
            lambda: made("exponential", decay_steps=10, decay_rate=0.5),
            [0, 10, 15],
            [0.8, 0.4, 0.4 / 2**0.5],
        ),
        (
            lambda: made("exponential", decay_steps=10, decay_rate=0.5, staircase=True),
            [9, 10, 15],
            [0.8, 0.4, 0.4],
        ),
        (lambda: made("step"), [0, 49, 50, 74, 75], [0.8, 0.8, 0.08, 0.08, 0.008]),
        (
            lambda: made("step", boundaries=[3], factor=0.25),
            [2, 3, 99],
            [0.8, 0.2, 0.2],
        ),
        (lambda: made("cosine"), [0, 50, 100], [0.8, 0.4, 0]),
        (
            lambda: made("cosine", alpha=0.1),
            [0, 25, 100],
            [0.8, 0.08 + 0.72 * (1 + math.cos(math.pi / 4)) / 2, 0.08],
        ),
        (lambda: made("linear"), [0, 25, 100], [0.8, 0.6, 0]),
        (lambda: made("linear", end_learning_rate=0.2), [50, 200], [0.5, 0.2]),
    ],
)
def test_a_schedule_gives_the_rates_of_its_definition(schedule, steps, expected):
    np.testing.assert_allclose(rates(schedule(), steps), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["constant", "step"])
def test_a_warmup_multiplies_what_would_be_by_a_straight_line(name):
    warm = optimizers.with_warmup(made(name), 4)
    np.testing.assert_allclose(
        rates(warm, [0, 1, 3, 4, 49]), [0.2, 0.4, 0.8, 0.8, 0.8], rtol=1e-6
    )


def test_without_a_warmup_the_rate_stays_what_it_is():
    assert optimizers.with_warmup(0.1, 0) == 0.1


# From the settings


@pytest.mark.parametrize(
    ("field", "text", "problem"),
    [
        ("optimizer_args", "momentun=0.9", "momentun"),
        ("optimizer_args", "learning_rate=0.1", "learning_rate"),
        ("learning_rate_schedule_args", "decay=0.9", "decay"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(field, text, problem, monkeypatch):
    tiny.register(monkeypatch)
    config = pt.Config(
        **{"dataset": "noise", "model": "net", "validation_size": 12, field: text},
        batch_size=12,
    )
    with toys.raises(ConfigError, f"`{field}`", "does not fit", problem, text):
        lab.Lab(config, "graph")
