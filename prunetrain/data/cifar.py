"""CIFAR-10 and CIFAR-100 in their published binary format.

A record is one label byte (CIFAR-10) or two (CIFAR-100: coarse, fine), then the red,
green and blue planes of 32×32 bytes, row by row. The Python version of the files is
pickled, and unpickling runs what a file says: it is refused.
"""

import pathlib

import numpy as np

from prunetrain import data
from prunetrain.errors import InputError

_SIDE, _CHANNELS = 32, 3
# Records in each file: half a file is a whole number of records too.
_CIFAR10_TRAIN = {f"data_batch_{number}.bin": 10_000 for number in range(1, 6)}
_CIFAR100_TRAIN = {"train.bin": 50_000}
_TEST = 10_000


@data.DATASETS.register("cifar10")
def read_cifar10(data_dir):
    """Objects in 10 classes, 50,000 + 10,000 of 32×32×3, binary version."""
    folder = _folder("cifar10", data_dir, "cifar-10-batches-bin", "data_batch_1")
    test = {"test_batch.bin": _TEST}
    return _read(folder, _CIFAR10_TRAIN, test, label_bytes=1, num_classes=10)


@data.DATASETS.register("cifar100")
def read_cifar100(data_dir):
    """Objects in 100 (fine) classes, 50,000 + 10,000 of 32×32×3, binary version."""
    folder = _folder("cifar100", data_dir, "cifar-100-binary", "train")
    test = {"test.bin": _TEST}
    return _read(folder, _CIFAR100_TRAIN, test, label_bytes=2, num_classes=100)


def _folder(name, data_dir, inner, pickled):
    """The folder with the files: `data_dir`, or the archive's folder in it."""
    if not data_dir or not pathlib.Path(data_dir).expanduser().is_dir():
        raise InputError(
            f"`data_dir` must be a folder that holds {name}'s binary version (the "
            f"unpacked {inner}, or its parent). Received: {data_dir or 'none'}"
        )
    folder = pathlib.Path(data_dir).expanduser()
    folder = folder / inner if (folder / inner).is_dir() else folder
    python = inner.replace("bin", "py") if name == "cifar10" else "cifar-100-python"
    if (folder / pickled).is_file() or (folder / python).is_dir():
        raise InputError(
            f"{folder} holds {name}'s Python version, which is pickled and could run "
            f"anything. Get the binary version ({inner})"
        )
    return folder


def _read(folder, train, test, label_bytes, num_classes):
    x_train, y_train = _read_files(folder, train, label_bytes)
    x_test, y_test = _read_files(folder, test, label_bytes)
    return data.Raw(x_train, y_train, x_test, y_test, num_classes, str(folder))


def _read_files(folder, files, label_bytes):
    """Images uint8 `[examples, 32, 32, 3]` and labels uint8 `[examples]`."""
    record = label_bytes + _CHANNELS * _SIDE * _SIDE
    parts = [_records(folder / name, count, record) for name, count in files.items()]
    records = np.concatenate(parts)
    planes = records[:, label_bytes:].reshape(-1, _CHANNELS, _SIDE, _SIDE)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return images, records[:, label_bytes - 1].copy()


def _records(path, count, record):
    try:
        size = path.stat().st_size
        # Before anything is read: another file may be of any size.
        if size != count * record:
            raise InputError(
                f"{path} must hold {count:,} records of {record:,} bytes, "
                f"{count * record:,} in all. Received: {size:,} bytes. Get it again"
            )
        return np.fromfile(path, np.uint8).reshape(count, record)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {error}. Get it again") from error
