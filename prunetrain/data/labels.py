"""Labels as a task has them: what is accepted, and what a `Dataset` then holds."""

import math

import numpy as np

from prunetrain.errors import InputError

TASKS = {
    "classes": "one of several classes: indices, or one-hot rows",
    "binary": "0 or 1, for a model with one output",
    "multilabel": "several labels, each 0 or 1, in a row",
    "regression": "numbers, one or a row of them",
}


def read(raw, task):
    """The labels of both splits for a task.

    Args:
        raw: `sources.Raw` with arrays.
        task: a name in `TASKS`.

    Returns:
        `(y_train, y_test, width)`: int32 `[examples]` for classes, otherwise float32
        `[examples, width]`; width is how many outputs a model for them has.

    Raises:
        InputError: they are something else.
    """
    if task == "classes":
        width = raw.num_classes or _count_classes(raw)
        train, test = (
            class_indices(y, width, raw.source) for y in (raw.y_train, raw.y_test)
        )
        return train, test, width
    train, test = (_rows(y, task, raw.source) for y in (raw.y_train, raw.y_test))
    if train.shape[1] != test.shape[1]:
        raise InputError(
            "training and test labels must be rows of one width. Received: "
            f"{train.shape[1]} and {test.shape[1]} in {raw.source}"
        )
    return train, test, train.shape[1]


def class_indices(labels, num_classes, source="labels"):
    """Labels as int32 class indices `[examples]`.

    Args:
        labels: numbers `[examples]` or `[examples, 1]` in 0 … num_classes - 1, of any
            integer or float type, or one-hot `[examples, num_classes]`.
        num_classes: number of classes.
        source: where the labels come from, for the error message.

    Raises:
        InputError: another shape, or labels outside the range.
    """
    labels = np.asarray(labels)
    _check_numbers(labels, source)
    if labels.ndim == 2 and labels.shape[1] == num_classes and num_classes > 1:
        is_one_hot = np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all()
        if not is_one_hot:
            raise InputError(
                f"one-hot labels must hold a single 1 in each row. Received: other "
                f"values in {source}. For several labels in a row take task=multilabel,"
                " for numbers task=regression"
            )
        return labels.argmax(1).astype(np.int32)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise InputError(
            "labels must be class indices (n,) or (n, 1), or one-hot "
            f"(n, {num_classes}). Received: shape {labels.shape} in {source}"
        )
    whole = np.equal(labels, np.floor(labels)).all()
    low, high = (labels.min(), labels.max()) if len(labels) else (0, 0)
    if not whole or low < 0 or high >= num_classes:
        hint = "; subtract 1" if whole and (low, high) == (1, num_classes) else ""
        hint = hint if whole else ". For numbers take task=regression"
        raise InputError(
            f"labels must be whole numbers from 0 to {num_classes - 1}. Received: "
            f"labels from {low} to {high} in {source}{hint}"
        )
    return labels.astype(np.int32)


def _rows(labels, task, source):
    """Labels `[examples]` or `[examples, width]` as float32 rows."""
    _check_numbers(labels, source)
    rows = labels[:, None] if labels.ndim == 1 else labels
    if rows.ndim != 2 or not rows.shape[1] or (task == "binary" and rows.shape[1] > 1):
        shapes = "(n,) or (n, 1)" if task == "binary" else "(n,) or (n, width)"
        raise InputError(
            f"labels for task={task} must have the shape {shapes}. Received: shape "
            f"{labels.shape} in {source}"
        )
    if task == "regression":
        with np.errstate(over="ignore"):
            rows = rows.astype(np.float32)
        if not np.isfinite(rows).all():
            raise InputError(
                "labels for task=regression must be finite as float32. Received: "
                f"infinite, or no numbers, in {source}"
            )
    elif not np.isin(rows, (0, 1)).all():
        raise InputError(
            f"labels for task={task} must be 0 or 1. Received: labels from "
            f"{rows.min()} to {rows.max()} in {source}"
        )
    return rows.astype(np.float32)


def _check_numbers(labels, source):
    if labels.dtype.kind not in "biuf":
        raise InputError(
            f"labels must be numbers. Received: {labels.dtype} in {source}"
        )


def _count_classes(raw):
    """How many classes the labels tell: the width of one-hot rows, or highest + 1."""
    y_train, y_test = raw.y_train, raw.y_test
    if y_train.ndim == 2 and y_train.shape[1] > 1:
        return y_train.shape[1]
    highest = _highest(y_train, raw), _highest(y_test, raw)
    num_classes = max(highest) + 1
    if not 2 <= num_classes <= max(2, len(y_train)):
        raise InputError(
            "labels must be the numbers of the classes from 0, at least two classes "
            f"and no more than training examples ({len(y_train)}). Received: labels up "
            f"to {max(highest)} in {raw.source}. For numbers take task=regression"
        )
    return num_classes


def _highest(labels, raw):
    highest = labels.max(initial=0) if labels.dtype.kind in "biuf" else math.nan
    if not math.isfinite(highest):
        raise InputError(
            f"labels must be whole numbers from 0. Received: {labels.dtype}, highest "
            f"{highest}, in {raw.source}"
        )
    return int(highest)
