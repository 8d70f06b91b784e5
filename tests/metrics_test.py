"""What evaluation counts, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from prunetrain import metrics


def counted(task, y, outputs, probabilities=False):
    tally = metrics.make_tally(task, probabilities, outputs.shape[1])
    for compiled in (False, True):
        right = tf.function(tally, jit_compile=compiled)(
            tf.constant(y), tf.constant(outputs)
        )
    return right.numpy().tolist()


def test_classes_are_counted_one_by_one():
    y = np.array([0, 0, 1, 2, 2], np.int32)
    outputs = np.eye(3, dtype=np.float32)[[0, 1, 1, 2, 2]]
    assert counted("classes", y, outputs) == [1, 1, 2]
    assert metrics.group_sizes("classes", y, 4).tolist() == [2, 1, 2, 0]


def test_spare_outputs_of_a_model_are_wrong_answers():
    tally = metrics.make_tally("classes", False, 2)
    outputs = tf.constant([[1.0, 0, 0], [0, 0, 1.0]])
    assert tally(tf.constant([0, 1]), outputs).numpy().tolist() == [1, 0]


@pytest.mark.parametrize(("probabilities", "line"), [(False, 0.0), (True, 0.5)])
def test_one_output_decides_between_two_classes(probabilities, line):
    y = np.array([[0], [0], [1], [1], [1]], np.float32)
    offsets = np.array([[-0.1], [0.1], [-0.1], [0.1], [0.2]], np.float32)
    outputs = (line + offsets).astype(np.float32)
    assert counted("binary", y, outputs, probabilities) == [1, 2]
    assert metrics.group_sizes("binary", y, 1).tolist() == [2, 3]


def test_labels_are_counted_each_for_itself():
    y = np.array([[1, 0, 1], [0, 0, 1]], np.float32)
    outputs = np.array([[2, 3, -1], [-1, -2, 0.5]], np.float32)
    assert counted("multilabel", y, outputs) == [2, 1, 1]
    assert metrics.group_sizes("multilabel", y, 3).tolist() == [2, 2, 2]


def test_numbers_have_no_accuracy():
    y = np.ones([4, 2], np.float32)
    assert counted("regression", y, y) == []
    assert metrics.group_sizes("regression", y, 2).tolist() == []
    assert metrics.accuracy(0, 0) is None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_the_groups_add_up_to_what_numpy_counts(seed, width):
    rng = np.random.default_rng(seed)
    y = rng.integers(width, size=40).astype(np.int32)
    outputs = rng.normal(size=(40, width)).astype(np.float32)
    right = metrics.make_tally("classes", False, width)(y, tf.constant(outputs))
    assert right.numpy().sum() == (outputs.argmax(1) == y).sum()
    assert metrics.group_sizes("classes", y, width).sum() == 40
