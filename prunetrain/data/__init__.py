"""Datasets as arrays: read, scaled, split, labels as the task has them.

`sources` says where they come from and how to add one.
"""

import dataclasses
import hashlib
import importlib
import math
import numbers
import pkgutil

import numpy as np

from prunetrain.data import labels, sources
from prunetrain.data.labels import TASKS, class_indices
from prunetrain.data.sources import DATASETS, PREFIX, SUFFIX, Raw
from prunetrain.errors import InputError

__all__ = [
    "DATASETS",
    "PREFIX",
    "SCALINGS",
    "SUFFIX",
    "TASKS",
    "Dataset",
    "Raw",
    "class_indices",
    "load_dataset",
    "open_dataset",
]
SCALINGS = {
    "unit": "to [0, 1]: uint8 divided by 255, floats only if they are within already",
    "standard": "to mean 0 and standard deviation 1 over the training set, per channel",
    "none": "as they are",
}
_PIECE = 4096
_HASHED_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Splits of a dataset: `(x, y)` with x float32 `[examples, …]`.

    y is int32 `[examples]` for classes, float32 `[examples, num_classes]` for other
    tasks. `num_classes` is how many outputs a model for them has: one for each class,
    label or number.
    """

    train: tuple
    validation: tuple
    test: tuple
    num_classes: int

    @property
    def input_shape(self):
        """Shape of one example."""
        return self.train[0].shape[1:]

    @property
    def nbytes(self):
        """What the inputs of all splits take as float32, in bytes."""
        splits = self.train, self.validation, self.test
        return sum(4 * math.prod(x.shape) for x, _ in splits)

    def digest(self):
        """SHA-256 of labels and inputs, of large ones of evenly spaced rows only.

        Of the inputs as the source has them: scaling may differ in the last bits
        between machines.
        """
        found = hashlib.sha256()
        for x, y in (self.train, self.validation, self.test):
            found.update(f"{x.shape}".encode())
            found.update(np.ascontiguousarray(y))
            size = max(1, 4 * math.prod(x.shape[1:]))
            step = -(-len(x) * size // _HASHED_BYTES)
            found.update(np.ascontiguousarray(x.unscaled(slice(None, None, step))))
        return found.hexdigest()

    def loaded(self):
        """The same with all inputs as arrays in memory."""
        splits = self.train, self.validation, self.test
        return Dataset(*((x[:], y) for x, y in splits), self.num_classes)


class Scaled:
    """Some rows of an array, as float32 and scaled when they are taken out.

    Has what a stream needs of an array: `shape`, `dtype`, `x[rows]`.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, array, rows, shift, factor):
        self._array, self._rows = array, rows
        self._shift, self._factor = shift, factor
        self.shape = len(rows), *array.shape[1:]

    def __len__(self):
        return len(self._rows)

    def unscaled(self, index):
        """The same rows as the source has them."""
        return self._array[self._rows[index]]

    def __getitem__(self, index):
        x = self.unscaled(index).astype(np.float32)
        # Subtracted and divided as float32, in place: one copy of the inputs.
        x -= self._shift
        x /= self._factor
        return x


def load_dataset(
    name,
    data_dir=None,
    scaling="unit",
    validation_size=5000,
    arguments=None,
    task="classes",
):
    """Reads a dataset, scales it and splits off validation examples.

    Args:
        name: a name in `DATASETS`; a file FILE.npz with x_train, y_train, x_test and
            y_test; tfds:NAME; or package.module:function, which is imported and called
            and returns a `Raw`, or (x_train, y_train), (x_test, y_test), each pair
            arrays or a `tf.data.Dataset`.
        data_dir: folder with the dataset's files in their published format; None reads
            what ships with the package. Nothing is ever fetched by this package; Keras
            and TensorFlow Datasets may.
        scaling: a name in `SCALINGS`; "standard" takes one mean and one deviation per
            channel (the last axis), from the training examples without the validation
            ones.
        validation_size: examples taken out of the training set, drawn at random but
            always the same ones (the paper takes 5,000 of MNIST's 60,000).
        arguments: dict of keyword arguments for what reads the dataset.
        task: a name in `TASKS`, by which labels are read.

    Returns:
        A `Dataset`.

    Raises:
        ValueError: a name or size is out of range, a file is missing or damaged, or
            images and labels differ in number or are of one class only.
    """
    return open_dataset(
        name, data_dir, scaling, validation_size, arguments, task
    ).loaded()


def open_dataset(
    name,
    data_dir=None,
    scaling="unit",
    validation_size=5000,
    arguments=None,
    task="classes",
):
    """`load_dataset`, but inputs stay as the source has them until rows are taken out.

    Returns:
        A `Dataset` whose inputs are `Scaled`: for data that is to be streamed.
    """
    for argument, value, known in (
        ("scaling", scaling, SCALINGS),
        ("task", task, TASKS),
    ):
        if value not in known:
            raise ValueError(
                f"`{argument}` must be one of {', '.join(known)}. "
                f"Received: {argument}={value!r}"
            )
    raw = sources.read(name, data_dir, arguments)
    raw = _as_arrays(raw)
    x_train, x_test = _inputs(raw.x_train, raw), _inputs(raw.x_test, raw)
    y_train, y_test, num_classes = labels.read(raw, task)
    _check_splits(raw.source, x_train, y_train, x_test, y_test)
    if not 1 <= validation_size < len(y_train):
        raise InputError(
            f"`validation_size` must be from 1 to {len(y_train) - 1}, the training "
            f"examples less one; a tenth would be {max(1, len(y_train) // 10)}. "
            f"Received: validation_size={validation_size}"
        )
    order = np.random.default_rng(0).permutation(len(y_train))
    validation = np.sort(order[:validation_size])
    train = np.sort(order[validation_size:])
    for x in (x_train, x_test):
        _check_scaling(x, scaling, raw.source)
    scale = _scale(x_train, train, scaling)
    return Dataset(
        train=(Scaled(x_train, train, *scale), y_train[train]),
        validation=(Scaled(x_train, validation, *scale), y_train[validation]),
        test=(Scaled(x_test, np.arange(len(x_test)), *scale), y_test),
        num_classes=num_classes,
    )


def _as_arrays(raw):
    """`raw` with arrays, whatever a function of the user's own has put into it."""
    names = ("x_train", "y_train", "x_test", "y_test")
    try:
        arrays = {name: np.asanyarray(getattr(raw, name)) for name in names}
    except (TypeError, ValueError) as error:
        raise InputError(
            f"inputs and labels must be arrays. Received: {error} in {raw.source}"
        ) from error
    count = raw.num_classes
    if count is not None and (not isinstance(count, numbers.Integral) or count < 2):
        raise InputError(
            "`num_classes` must be a whole number from 2, or None. Received: "
            f"num_classes={count!r} in {raw.source}"
        )
    return dataclasses.replace(raw, **arrays)


def _inputs(x, raw):
    """Inputs as an array of numbers `[examples, …]`; images get a channel axis."""
    if x.dtype.kind not in "biuf" or x.ndim < 2:
        raise InputError(
            "inputs must be an array of numbers [examples, …]. Received: "
            f"{x.dtype} of shape {x.shape} in {raw.source}"
        )
    is_gray = x.dtype == np.uint8 and x.ndim == 3
    return x[..., None] if is_gray else x


def _check_splits(source, x_train, y_train, x_test, y_test):
    """Raises InputError for splits that nothing can be learnt or told from.

    Labels that are all the same are an error and no warning: whatever is pruned, the
    network answers with that one, and a night of training ends in a table of 100 %.
    """
    for split, x, y in (("training", x_train, y_train), ("test", x_test, y_test)):
        if len(x) != len(y) or not len(x):
            raise InputError(
                f"{source} must hold as many labels as images, at least one. "
                f"Received: {len(x)} {split} images and {len(y)} labels"
            )
        if 0 in x.shape or x.shape[1:] != x_train.shape[1:]:
            raise InputError(
                f"{source} must hold images that are all of one size. Received: "
                f"{split} images of {x.shape[1:]}, training images of "
                f"{x_train.shape[1:]}"
            )
        if (y == y[0]).all():
            raise InputError(
                f"{source} must hold examples of two classes or more (or labels that "
                f"differ), or results say nothing. Received: {len(x)} {split} "
                f"examples, all of {np.squeeze(y[0])}"
            )


def _check_scaling(x, scaling, source):
    if x.dtype.kind == "f":
        _check_floats(x, scaling, source)
    elif scaling == "unit" and x.dtype not in (np.uint8, np.bool_):
        raise InputError(
            "`scaling` unit needs uint8, or floats within [0, 1]. Received: "
            f"{x.dtype} in {source}. Take standard or none, or convert it"
        )


def _scale(x, rows, scaling):
    """What to subtract and what to divide by: numbers, or one per channel."""
    if scaling == "standard":
        return _moments(x, rows)
    is_image = scaling == "unit" and x.dtype == np.uint8
    return np.float32(0), np.float32(255 if is_image else 1)


def _check_floats(x, scaling, source):
    low, high = float(x.min()), float(x.max())
    largest = float(np.finfo(np.float32).max)
    # False for nan.
    if not -largest <= low <= high <= largest:
        raise InputError(
            f"inputs must be finite as float32. Received: from {low} to {high} in "
            f"{source}"
        )
    if scaling == "unit" and not 0 <= low <= high <= 1:
        raise InputError(
            "`scaling` unit needs uint8, or floats within [0, 1]. Received: floats "
            f"from {low:g} to {high:g} in {source}. Take standard or none, or convert "
            "images of 0 to 255 to uint8"
        )


def _moments(x, rows):
    """Mean and standard deviation per channel over some rows, in float64.

    Piece by piece: there is room for a few thousand rows in float64, not for all.
    """
    axes = tuple(range(x.ndim - 1))
    pieces = [rows[i : i + _PIECE] for i in range(0, len(rows), _PIECE)]
    count = len(rows) * math.prod(x.shape[1:-1])
    mean = sum(x[piece].sum(axes, dtype=np.float64) for piece in pieces) / count
    square = sum(((x[piece] - mean) ** 2).sum(axes) for piece in pieces) / count
    deviation = np.sqrt(square)
    return mean.astype(np.float32), np.maximum(deviation, 1e-6).astype(np.float32)


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
