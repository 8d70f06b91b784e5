"""Failures of other code, told in one line."""

import keras
import pytest
import tensorflow as tf

from prunetrain import errors


def fail(x):
    raise RuntimeError("no")


@pytest.mark.parametrize("function", [fail, tf.function(fail)])
def test_a_failure_is_told_in_one_line_with_its_place(function):
    with pytest.raises(RuntimeError) as caught:
        function(tf.constant(1))
    assert errors.told(caught.value) == f"RuntimeError: no ({__file__}, line 11)"


def test_a_failure_in_a_graph_is_told_without_the_graph():
    with pytest.raises(tf.errors.OpError) as caught:
        tf.function(lambda x: tf.cast(x, tf.float32))(tf.constant("a"))
    told = errors.told(caught.value)
    assert told.startswith("UnimplementedError: Cast string to float is not supported")
    assert "{{" not in told and "\n" not in told


class Fails(keras.layers.Layer):
    def call(self, x):
        raise ValueError("no\nnot at all")


def test_a_failure_in_a_layer_is_told_by_what_it_says():
    with pytest.raises(ValueError, match="encountered") as caught:
        Fails()(tf.constant([[1.0]]))
    told = errors.told(caught.value)
    assert told.startswith(f"ValueError: no ({__file__}, line ")


def test_a_failure_without_words_or_place_is_told_by_its_kind():
    assert errors.told(ValueError()) == "ValueError: "
