"""Labels by task: what is taken and what is refused."""

import numpy as np
import pytest

from prunetrain import data
from prunetrain.data import labels
from prunetrain.errors import InputError
from tests import toys


def raw(y_train, y_test=None, num_classes=None):
    y_train = np.asarray(y_train)
    y_test = y_train if y_test is None else np.asarray(y_test)
    x = np.zeros([len(y_train), 2], np.float32)
    return data.Raw(x, y_train, x[: len(y_test)], y_test, num_classes, "here")


@pytest.mark.parametrize("values", [[0, 1, 1], [[0], [1], [1]], [False, True, True]])
def test_two_classes_for_one_output_are_a_column(values):
    train, _, width = labels.read(raw(values), "binary")
    np.testing.assert_array_equal(train, [[0], [1], [1]])
    assert (train.dtype, width) == (np.float32, 1)


def test_several_labels_stay_rows():
    rows = [[1, 0, 1], [0, 0, 0]]
    train, test, width = labels.read(raw(rows), "multilabel")
    np.testing.assert_array_equal(train, rows)
    np.testing.assert_array_equal(test, rows)
    assert width == 3


@pytest.mark.parametrize("values", [[0.5, -2], [[0.5, 1], [3, -4]], [7, 9]])
def test_numbers_are_targets(values):
    train, _, width = labels.read(raw(values), "regression")
    expected = np.asarray(values, np.float32).reshape(2, -1)
    np.testing.assert_array_equal(train, expected)
    assert width == expected.shape[1]


@pytest.mark.parametrize(
    ("task", "values", "parts"),
    [
        ("binary", [0, 2], ["task=binary", "0 or 1", "from 0 to 2"]),
        ("binary", [[0, 1], [1, 0]], ["(n,) or (n, 1)", "shape (2, 2)"]),
        ("multilabel", [[0, 1], [0.5, 0]], ["task=multilabel", "0 or 1"]),
        ("multilabel", [[[0]], [[1]]], ["(n,) or (n, width)", "shape (2, 1, 1)"]),
        ("regression", [1.0, np.nan], ["finite"]),
        ("regression", [1.0, 1e39], ["finite as float32"]),
        ("regression", ["a", "b"], ["labels must be numbers"]),
        ("classes", [[1, 1], [0, 1]], ["task=multilabel", "task=regression"]),
        ("classes", [0.5, 1.0], ["whole numbers", "task=regression"]),
    ],
)
def test_other_labels_are_refused(task, values, parts):
    with toys.raises(InputError, *parts):
        labels.read(raw(values, num_classes=2), task)


def test_rows_of_two_widths_are_refused():
    with toys.raises(InputError, "one width", "2 and 1"):
        labels.read(raw([[1, 2], [3, 4]], [[1], [2]]), "regression")


def test_an_unknown_task_is_refused():
    with toys.raises(ValueError, "`task`", "binary, multilabel", "'ranking'"):
        data.load_dataset("mnist", task="ranking")
