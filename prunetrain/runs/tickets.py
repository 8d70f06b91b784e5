"""Tickets: the masks of a round as the bytes of an .npz file, one bit a weight.

    paths            the kernels' paths
    bits_<i>         the i-th mask, packed
    shape_<i>        its shape

A file is data and is believed nothing: whatever a header announces is held against the
bytes that are there before anything is allocated. Members are stored as they are, never
compressed, so that none can be larger than the file.
"""

import io
import math
import zipfile

import numpy as np


def to_bytes(paths, masks):
    """A ticket as bytes.

    Args:
        paths: the kernels' paths.
        masks: boolean arrays aligned with them.
    """
    arrays = {"paths": np.array(paths, str)}
    for index, mask in enumerate(map(np.asarray, masks)):
        arrays[f"bits_{index}"] = np.packbits(mask)
        arrays[f"shape_{index}"] = np.array(mask.shape)
    data = io.BytesIO()
    np.savez(data, **arrays)
    return data.getvalue()


def from_bytes(content):
    """The masks in a ticket, a list of boolean arrays; see `named`."""
    return [mask for _, mask in named(content)]


def named(content):
    """The kernels' paths and masks in a ticket: a list of pairs.

    The memory it takes is in proportion to `content`: a byte a weight, eight times the
    bits.

    Raises:
        ValueError: it is no whole ticket.
    """
    arrays = _arrays(content)
    paths = arrays.pop("paths", None)
    if paths is None or paths.dtype.kind != "U":
        raise ValueError("it names no kernels")
    pairs = [(str(path), _mask(arrays, index)) for index, path in enumerate(paths)]
    if arrays:
        raise ValueError(f"it holds {', '.join(arrays)} besides its masks")
    return pairs


def _mask(arrays, index):
    """Takes the `index`-th mask out of `arrays`."""
    bits, shape = (arrays.pop(f"{part}_{index}", None) for part in ("bits", "shape"))
    if bits is None or bits.dtype != np.uint8 or shape is None or shape.dtype != "<i8":
        raise ValueError(f"it lacks bits or shape of mask {index}")
    # Python's integers: a product of int64 could wrap around to what fits.
    shape = tuple(map(int, shape))
    size = math.prod(shape)
    if min(shape, default=0) < 0 or len(bits) != -(-size // 8):
        raise ValueError(f"mask {index} has {len(bits)} bytes for the shape {shape}")
    return np.unpackbits(bits, count=size).view(bool).reshape(shape)


def _arrays(content):
    """The arrays of an uncompressed .npz file, by name."""
    if not content.startswith(b"PK\3\4"):
        raise ValueError("it is no .npz file")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            _check_members(members, len(content))
            return {
                member.filename.removesuffix(".npy"): _array(archive.read(member))
                for member in members
            }
    except ValueError:
        raise
    # Damage comes to light as a dozen types, from zipfile, struct and NumPy.
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _check_members(members, size):
    """Raises ValueError for what cannot lie side by side in `size` bytes."""
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("its members are compressed")
    if len({member.filename for member in members}) < len(members):
        raise ValueError("two members have the same name")
    if sum(max(x.file_size, x.compress_size) for x in members) > size:
        raise ValueError("its members are larger than the file")


def _array(content):
    """A one-dimensional array of plain numbers or text in the .npy format."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("it is in another version of the .npy format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    body = memoryview(content)[stream.tell() :]
    # No object dtype: those are pickled, and running a pickle is running code.
    if dtype.kind not in "uiU" or not dtype.itemsize or len(shape) != 1:
        raise ValueError(f"it holds an array of {dtype} with the shape {shape}")
    if shape[0] < 0 or shape[0] * dtype.itemsize != len(body):
        raise ValueError(f"an array announces {shape[0]} × {dtype}: {len(body)} bytes")
    return np.frombuffer(body, dtype)
