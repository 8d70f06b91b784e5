"""Datasets as arrays.

A reader is a function `data_dir -> Raw`: it reads images and labels, without scaling or
splitting. To add a dataset, write a module in this package that registers its reader in
`DATASETS`; the module is found by itself.
"""

import dataclasses
import importlib
import pkgutil

import numpy as np

from prunetrain.errors import InputError
from prunetrain.registry import Registry

DATASETS = Registry("dataset")
SCALINGS = {
    "unit": "to [0, 1]",
    "standard": "to mean 0 and standard deviation 1 over the training set",
}


@dataclasses.dataclass(frozen=True)
class Raw:
    """What a reader returns.

    Images are uint8 `[examples, height, width, channels]`, labels integers `[examples]`
    or one-hot `[examples, classes]`; `source` names where they come from.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int
    source: str


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Splits of a dataset: `(x, y)` with x float32 `[examples, …]`, y int32 `[examples]`."""  # noqa: E501

    train: tuple
    validation: tuple
    test: tuple
    num_classes: int

    @property
    def input_shape(self):
        """Shape of one example."""
        return self.train[0].shape[1:]


def load_dataset(name, data_dir=None, scaling="unit", validation_size=5000):
    """Reads a dataset, scales it and splits off validation examples.

    Args:
        name: a name in `DATASETS`.
        data_dir: folder with the dataset's files in their published format; None reads
            what ships with the package. Nothing is ever fetched.
        scaling: "unit" or "standard" (one mean and one deviation per channel, from the
            training examples without the validation ones).
        validation_size: examples taken out of the training set, drawn at random but
            always the same ones (the paper takes 5,000 of MNIST's 60,000).

    Returns:
        A `Dataset`.

    Raises:
        ValueError: a name or size is out of range, a file is missing or damaged, or
            images and labels differ in number or are of one class only.
    """
    raw = DATASETS[name](data_dir)
    if scaling not in SCALINGS:
        raise ValueError(
            f"`scaling` must be one of {', '.join(SCALINGS)}. "
            f"Received: scaling={scaling!r}"
        )
    y_train = class_indices(raw.y_train, raw.num_classes, raw.source)
    y_test = class_indices(raw.y_test, raw.num_classes, raw.source)
    _check_splits(raw, y_train, y_test)
    if not 1 <= validation_size < len(y_train):
        raise InputError(
            f"`validation_size` must be from 1 to {len(y_train) - 1}, the training "
            f"examples less one. Received: validation_size={validation_size}"
        )
    order = np.random.default_rng(0).permutation(len(y_train))
    validation, train = np.sort(order[:validation_size]), order[validation_size:]
    train = np.sort(train)
    shift, factor = _scale(raw.x_train[train], scaling)

    def scaled(x, y):
        # Subtracted and divided as float32, in place: one copy of the images.
        x = x.astype(np.float32)
        x -= shift
        x /= factor
        return x, y

    return Dataset(
        train=scaled(raw.x_train[train], y_train[train]),
        validation=scaled(raw.x_train[validation], y_train[validation]),
        test=scaled(raw.x_test, y_test),
        num_classes=raw.num_classes,
    )


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
    if labels.ndim == 2 and labels.shape[1] == num_classes and num_classes > 1:
        is_one_hot = np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all()
        if not is_one_hot:
            raise InputError(
                f"one-hot labels must hold a single 1 in each row. Received: other "
                f"values in {source}"
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
        raise InputError(
            f"labels must be whole numbers from 0 to {num_classes - 1}. Received: "
            f"labels from {low} to {high} in {source}{hint}"
        )
    return labels.astype(np.int32)


def _check_splits(raw, y_train, y_test):
    """Raises InputError for splits that nothing can be learnt or told from.

    One class only is an error and no warning: whatever is pruned, the network answers
    with that class, and a night of training ends in a table of 100 %.
    """
    for split, x, y in (
        ("training", raw.x_train, y_train),
        ("test", raw.x_test, y_test),
    ):
        if len(x) != len(y) or not len(x):
            raise InputError(
                f"{raw.source} must hold as many labels as images, at least one. "
                f"Received: {len(x)} {split} images and {len(y)} labels"
            )
        if 0 in x.shape or x.shape[1:] != raw.x_train.shape[1:]:
            raise InputError(
                f"{raw.source} must hold images that are all of one size. Received: "
                f"{split} images of {x.shape[1:]}, training images of "
                f"{raw.x_train.shape[1:]}"
            )
        if (y == y[0]).all():
            raise InputError(
                f"{raw.source} must hold examples of two classes or more, or accuracy "
                f"says nothing. Received: {len(x)} {split} examples, all of class "
                f"{y[0]}"
            )


def _scale(x, scaling):
    """What to subtract and what to divide by, per channel."""
    if scaling == "unit":
        return np.float32(0), np.float32(255)
    axes = tuple(range(x.ndim - 1))
    mean, deviation = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
    return mean.astype(np.float32), np.maximum(deviation, 1e-6).astype(np.float32)


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
