"""Schedules of sparsity against numbers worked out by hand."""

import inspect
import math

import numpy as np
import pytest
import tensorflow as tf

from prunetrain.pruning import schedules
from tests import toys

names = pytest.mark.parametrize("name", schedules.SCHEDULES)


def at(schedule, *steps):
    """The schedule's values at these steps, as floats."""
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


def test_cubic_by_hand():
    """Zhu & Gupta 2017, equation 1: 1, 3/4, 1/2 and 1/4 of the time left."""
    schedule = schedules.cubic(0.8, 10, 30)
    expected = [0, 0.8 * (1 - 27 / 64), 0.8 * (1 - 1 / 8), 0.8 * (1 - 1 / 64), 0.8]
    np.testing.assert_allclose(at(schedule, 10, 15, 20, 25, 30), expected, rtol=1e-15)
    schedule = schedules.cubic(0.8, 10, 30, initial=0.2)
    np.testing.assert_allclose(at(schedule, 10, 20, 30), [0.2, 0.725, 0.8], rtol=1e-15)


def test_linear_by_hand():
    schedule = schedules.linear(0.8, 10, 30, initial=0.4)
    np.testing.assert_allclose(at(schedule, 10, 15, 20, 30), [0.4, 0.5, 0.6, 0.8])


def test_constant_by_hand():
    assert at(schedules.constant(0.7), 0, 1, 2**40) == [0.7] * 3


def test_the_drop_fraction_falls_by_half_a_cosine():
    """Evci et al. 2020, equation 1."""
    drop = schedules.cosine_drop(0.3, 100)
    expected = [0.3, 0.15 * (1 + math.sqrt(0.5)), 0.15, 0.15 * (1 - math.sqrt(0.5)), 0]
    found = at(drop, 0, 25, 50, 75, 100)
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert at(drop, 100, 101, 2**40) == [0, 0, 0]


@names
def test_a_schedule_starts_as_told_and_ends_at_exactly_the_final_sparsity(name):
    """However little 0.9 is a number in binary: no weight more or less."""
    schedule = schedules.SCHEDULES[name](0.9, 7, 43)
    assert at(schedule, 43, 44, 10**9) == [0.9] * 3
    assert at(schedule, 7) == at(schedule, 0) == ([0.9] if name == "constant" else [0])


@names
def test_a_schedule_never_falls(name):
    found = at(schedules.SCHEDULES[name](0.95, 3, 40), *range(50))
    assert found == sorted(found)


@pytest.mark.parametrize("mode", toys.MODES)
def test_schedules_are_traced_and_take_several_steps_at_once(mode):
    steps = tf.range(50, dtype=tf.int64)
    made = [make(0.95, 3, 40) for make in schedules.SCHEDULES.values()]
    made.append(schedules.cosine_drop(0.3, 40))

    @tf.function(jit_compile=mode == "xla")
    def compiled(steps):
        return [schedule(steps) for schedule in made]

    for schedule, found in zip(made, compiled(steps), strict=True):
        assert found.dtype == tf.float64
        # Cosines differ in the last bit.
        np.testing.assert_allclose(found, at(schedule, *range(50)), rtol=1e-14)


@names
def test_a_schedule_has_the_arguments_that_the_registry_promises(name):
    make = schedules.SCHEDULES[name]
    assert [*inspect.signature(make).parameters][:3] == [
        "final",
        "begin_step",
        "end_step",
    ]


@pytest.mark.parametrize("make", [schedules.linear, schedules.cubic])
@pytest.mark.parametrize("end", [4, 5])
def test_an_end_before_the_beginning_is_refused(make, end):
    with toys.raises(ValueError, "`end_step`", "begin_step=5", f"end_step={end}"):
        make(0.5, 5, end)
