"""The IDX format, and the datasets published in it.

Big-endian: two zero bytes, the type of the elements, the number of dimensions, the
dimensions as uint32, the elements. Files may be gzipped. What a header announces is
held against the file's size before anything is allocated.
"""

import dataclasses
import gzip
import math
import pathlib
import struct
import zlib

import numpy as np

from prunetrain import data
from prunetrain.errors import InputError

_UINT8 = 0x08
# Most that is read from a file, 2 GiB; and most bytes that one of deflate can become.
_MOST_BYTES = 2**31
_DEFLATE_RATIO = 1032
_EMBEDDED = pathlib.Path(__file__).parent / "mnist"


@data.DATASETS.register("mnist")
def read_mnist(data_dir, pad=0):
    """Handwritten digits, 60,000 + 10,000 of 28×28; embedded in the package.

    `pad` adds that many pixels of 0 on each side, for networks that want larger images.
    """
    return _padded(_read_splits(data_dir or _EMBEDDED), pad)


@data.DATASETS.register("fashion_mnist")
def read_fashion_mnist(data_dir, pad=0):
    """Clothes in 10 classes, 60,000 + 10,000 of 28×28; IDX files in --data_dir.

    `pad` as for mnist.
    """
    if not data_dir:
        raise InputError(
            "`data_dir` must be a folder that holds Fashion-MNIST's four IDX files "
            "(Debian's package dataset-fashion-mnist puts them into "
            "/usr/share/datasets/fashion-mnist). Received: none"
        )
    return _padded(_read_splits(data_dir), pad)


def _padded(raw, pad):
    if not isinstance(pad, int) or isinstance(pad, bool) or not 0 <= pad <= 1000:
        raise InputError(
            "`dataset_args` pad must be a whole number from 0 to 1000, of pixels on "
            f"each side. Received: pad={pad!r}"
        )
    if not pad:
        return raw
    widths = (0, 0), (pad, pad), (pad, pad), (0, 0)
    return dataclasses.replace(
        raw, x_train=np.pad(raw.x_train, widths), x_test=np.pad(raw.x_test, widths)
    )


def _read_splits(data_dir):
    try:
        return _read_folder(pathlib.Path(data_dir).expanduser())
    # RuntimeError: ~name of a user that there is not.
    except (OSError, RuntimeError) as error:
        raise InputError(
            "`data_dir` must be a folder that can be read. Received: "
            f"data_dir={str(data_dir)!r} ({error}). Leave --data_dir out to use the "
            "embedded files"
        ) from error


def _read_folder(folder):
    if not folder.is_dir():
        raise InputError(
            f"`data_dir` must be a folder that holds IDX files. Received: {folder}"
        )
    arrays = {
        "x_train": read_idx(_find(folder, "train-images-idx3-ubyte"), 3)[..., None],
        "y_train": read_idx(_find(folder, "train-labels-idx1-ubyte"), 1),
        "x_test": read_idx(_find(folder, "t10k-images-idx3-ubyte"), 3)[..., None],
        "y_test": read_idx(_find(folder, "t10k-labels-idx1-ubyte"), 1),
    }
    return data.Raw(**arrays, num_classes=10, source=str(folder))


def _find(folder, name):
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise InputError(
        f"{folder / name} (or {name}.gz) does not exist, or is no file. Put the "
        "dataset's four IDX files there, or leave --data_dir out to use the embedded "
        "ones (of mnist)"
    )


def read_idx(path, num_dimensions):
    """Reads a file of uint8 elements.

    Args:
        path: file, gzipped if its name ends in ".gz".
        num_dimensions: how many dimensions it must have.

    Returns:
        uint8 array of that many dimensions.

    Raises:
        InputError: naming the file, what is wrong with it and the remedy.
    """
    path = pathlib.Path(path)
    packed = path.suffix == ".gz"
    try:
        with (gzip.open if packed else open)(path, "rb") as file:
            shape = _read_header(file, num_dimensions)
            _check_size(shape, path.stat().st_size, packed)
            return _read_elements(file, math.prod(shape)).reshape(shape)
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise InputError(
            f"{path} is no whole IDX file of {num_dimensions} dimensions of uint8: "
            f"{error or 'it ends too early'}. Get it again"
        ) from error


def _read_header(file, num_dimensions):
    header = file.read(4)
    expected = bytes([0, 0, _UINT8, num_dimensions])
    if header != expected:
        raise ValueError(
            f"it starts with {header.hex() or 'nothing'}, not {expected.hex()}"
        )
    sizes = file.read(4 * num_dimensions)
    if len(sizes) < 4 * num_dimensions:
        raise ValueError("it ends within its header")
    return struct.unpack(f">{num_dimensions}I", sizes)


def _check_size(shape, size, packed):
    """Raises ValueError if a file of `size` bytes cannot hold what it announces."""
    announced, held = math.prod(shape), size - 4 - 4 * len(shape)
    if not packed and announced != held:
        more = "more" if held > announced else f"{held:,}"
        raise ValueError(f"it announces {announced:,} bytes and holds {more}")
    if announced > min(_MOST_BYTES, _DEFLATE_RATIO * size):
        raise ValueError(
            f"it announces {announced:,} bytes, more than {size:,} can be unpacked to "
            f"or than the {_MOST_BYTES:,} that are read at most"
        )


def _read_elements(file, announced):
    """What is announced and nothing else, or ValueError."""
    body, length = np.empty(announced, np.uint8), 0
    while piece := file.read(1 << 20):
        if length + len(piece) > announced:
            raise ValueError(f"it announces {announced:,} bytes and holds more")
        body[length : length + len(piece)] = np.frombuffer(piece, np.uint8)
        length += len(piece)
    if length < announced:
        raise ValueError(f"it announces {announced:,} bytes and holds {length:,}")
    return body
