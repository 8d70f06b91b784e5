"""NumPy's .npz files with the arrays x_train, y_train, x_test and y_test."""

import math
import pathlib
import zipfile

import numpy as np

from prunetrain.errors import InputError

NAMES = ("x_train", "y_train", "x_test", "y_test")
# Most bytes that one byte of deflate can become.
_DEFLATE_RATIO = 1032
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path):
    """Reads the four arrays; nothing is unpickled.

    Args:
        path: file, as `np.savez` and `np.savez_compressed` write it.

    Returns:
        dict of the arrays by name.

    Raises:
        InputError: naming the file, what is wrong with it and the remedy.
    """
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"`dataset` {path} must be a file that exists")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive, path.stat().st_size)
            return {name: _read_member(archive, name) for name in NAMES}
    # Damage comes to light as a dozen types, from zipfile, zlib, struct and NumPy.
    except Exception as error:
        raise InputError(
            f"`dataset` {path} must be a whole .npz file that np.savez wrote, with "
            f"{', '.join(NAMES)}: {error or type(error).__name__}"
        ) from error


def _check_sizes(archive, size):
    """Raises ValueError if a file of `size` bytes cannot hold what its list says."""
    announced = sum(member.file_size for member in archive.infolist())
    if announced > _DEFLATE_RATIO * size:
        raise ValueError(
            f"it announces {announced:,} bytes, more than {size:,} can be unpacked to"
        )


def _read_member(archive, name):
    if f"{name}.npy" not in archive.namelist():
        raise ValueError(f"it has no {name}")
    _check_header(archive, name)
    with archive.open(f"{name}.npy") as file:
        return np.lib.format.read_array(file)  # which does not unpickle


def _check_header(archive, name):
    """Raises ValueError unless the member holds what its header announces.

    A damaged header must not make us allocate what it announces.
    """
    size = archive.getinfo(f"{name}.npy").file_size
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{name} has the unknown format version {version}")
        shape, _, dtype = _HEADERS[version](file)
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which need unpickling")
        announced = math.prod(shape) * dtype.itemsize
        if announced != size - file.tell():
            raise ValueError(
                f"{name} announces {announced:,} bytes and holds {size - file.tell():,}"
            )
