"""Where datasets come from: registered readers, files, TensorFlow Datasets, functions.

A reader is a function `(data_dir, **arguments) -> Raw`: it reads inputs and labels,
without scaling or splitting. To add a dataset, write a module in this package that
registers its reader in `DATASETS`; the module is found by itself.
"""

import dataclasses
import inspect

import numpy as np

from prunetrain.data import npz
from prunetrain.errors import InputError, told
from prunetrain.registry import Registry, is_import_path

DATASETS = Registry("dataset")
SUFFIX, PREFIX = ".npz", "tfds:"


@dataclasses.dataclass(frozen=True)
class Raw:
    """What a reader returns.

    Inputs are numbers `[examples, …]`, images uint8 `[examples, height, width,
    channels]` or without channels; labels integers `[examples]` or `[examples, 1]`, or
    one-hot `[examples, classes]`. `num_classes` None: as many as the labels tell;
    `source` names where they come from.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int | None
    source: str


def read(name, data_dir=None, arguments=None):
    """Reads a dataset by its name, its file, or the function that makes it.

    Args:
        name: a name in `DATASETS`, FILE.npz, tfds:NAME or package.module:function.
        data_dir: folder, for names in `DATASETS` and tfds:NAME.
        arguments: dict of keyword arguments for the reader or the function.

    Returns:
        `Raw`.

    Raises:
        InputError: what is wrong with the name, the files or what the function gave.
    """
    arguments = arguments or {}
    if name.startswith(PREFIX):
        return _from_tfds(name, data_dir, arguments)
    if name in DATASETS:
        return _called(name, DATASETS[name], data_dir, **arguments)
    if data_dir:
        raise InputError(
            "`data_dir` goes with a registered dataset or tfds:NAME; with a file or a "
            f"function leave it out. Received: data_dir={str(data_dir)!r} with "
            f"dataset={name!r}"
        )
    if name.endswith(SUFFIX):
        return _called(name, lambda: Raw(**npz.read_npz(name), **_unknown(name)))
    function = DATASETS[name]
    if not is_import_path(name):
        return _called(name, function, data_dir, **arguments)
    return _as_raw(_called(name, function, **arguments), name)


def _unknown(name):
    return {"num_classes": None, "source": name}


def _called(name, function, /, *args, **arguments):
    """What `function` returns; its failure is told in one line, with its place."""
    try:
        inspect.signature(function).bind(*args, **arguments)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"`dataset_args` must fit what {name} takes: {error}. "
            f"Received: dataset_args={arguments}"
        ) from error
    try:
        return function(*args, **arguments)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"`dataset` {name} cannot be read: {told(error)}") from error


def _as_raw(value, name):
    """A `Raw` from what a function of the user's own returns."""
    if isinstance(value, Raw):
        return value
    try:
        (x_train, y_train), (x_test, y_test) = (_pair(part, name) for part in value)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"`dataset` {name} must return a prunetrain.data.Raw, or (x_train, "
            "y_train), (x_test, y_test), or two tf.data.Datasets. Received: "
            f"{type(value).__name__}"
        ) from error
    return Raw(x_train, y_train, x_test, y_test, **_unknown(name))


def _pair(part, name):
    return _collected(part, name) if hasattr(part, "element_spec") else part


def _collected(dataset, name):
    """`(x, y)` with all that a finite `tf.data.Dataset` holds.

    Elements are single examples, or batches if x and y begin with the same dimension.
    """
    spec = dataset.element_spec
    one_each = isinstance(spec, tuple) and len(spec) == 2
    if not one_each or not all(hasattr(part, "shape") for part in spec):
        raise InputError(
            f"`dataset` {name} must give (x, y), one tensor each. Received: {spec}"
        )
    if dataset.cardinality() == -1:
        raise InputError(
            f"`dataset` {name} must end: leave out .repeat(). Received: an infinite "
            "tf.data.Dataset"
        )
    xs, ys = [], []
    for x, y in dataset.as_numpy_iterator():
        xs.append(x)
        ys.append(y)
    if not xs:
        raise InputError(f"`dataset` {name} holds no example")
    x, y = (part.shape for part in spec)
    batched = len(x) > 1 and len(y) > 0 and x[0] == y[0]
    join = np.concatenate if batched else np.stack
    return join(xs), join(ys)


def _from_tfds(name, data_dir, arguments):
    """A set of TensorFlow Datasets, which keeps (and fetches) its files itself."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise InputError(
            "`dataset` tfds:NAME needs TensorFlow Datasets: "
            f"pip install 'prunetrain[tfds]' ({error}). Received: dataset={name!r}"
        ) from error
    options = {"split": ["train", "test"], "data_dir": data_dir, **arguments}
    splits, info = _called(
        name,
        tfds.load,
        name.removeprefix(PREFIX),
        **options,
        as_supervised=True,
        with_info=True,
    )
    raw = _as_raw(splits, name)
    label = info.features[info.supervised_keys[1]]
    return dataclasses.replace(raw, num_classes=getattr(label, "num_classes", None))
