"""The IDX format, and the datasets published in it.

Big-endian: two zero bytes, the type of the elements, the number of dimensions, the
dimensions as uint32, the elements. Files may be gzipped.
"""

import gzip
import pathlib
import struct
import zlib

import numpy as np

from prunetrain import data
from prunetrain.errors import InputError

_UINT8 = 0x08
_EMBEDDED = pathlib.Path(__file__).parent / "mnist"


@data.DATASETS.register("mnist")
def read_mnist(data_dir):
    """Handwritten digits, 60,000 + 10,000 of 28×28; embedded in the package."""
    return _read_splits(pathlib.Path(data_dir or _EMBEDDED).expanduser())


def _read_splits(folder):
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
        f"{folder / name} (or {name}.gz) does not exist. Put the dataset's four IDX "
        "files there, or leave --data_dir out to use the embedded ones"
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
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            return _parse(file, num_dimensions)
    except (EOFError, OSError, zlib.error, _FormatError) as error:
        raise InputError(
            f"{path} is no whole IDX file of {num_dimensions} dimensions of uint8: "
            f"{error or 'it ends too early'}. Get it again"
        ) from error


class _FormatError(Exception):
    pass


def _parse(file, num_dimensions):
    header = file.read(4)
    expected = bytes([0, 0, _UINT8, num_dimensions])
    if header != expected:
        raise _FormatError(
            f"it starts with {header.hex() or 'nothing'}, not {expected.hex()}"
        )
    sizes = file.read(4 * num_dimensions)
    if len(sizes) < 4 * num_dimensions:
        raise _FormatError("it ends within its header")
    shape = struct.unpack(f">{num_dimensions}I", sizes)
    announced = int(np.prod(shape, dtype=object))
    # Read in pieces: a damaged header must not make us allocate what it announces.
    body = bytearray()
    while len(body) <= announced and (piece := file.read(1 << 20)):
        body += piece
    if len(body) != announced:
        more = "more" if len(body) > announced else f"{len(body):,}"
        raise _FormatError(f"it announces {announced:,} bytes and holds {more}")
    return np.frombuffer(body, np.uint8).reshape(shape)
