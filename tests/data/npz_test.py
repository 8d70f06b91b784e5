"""The .npz reader: what it reads, what it refuses, and that nothing is unpickled."""

import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from prunetrain import data, errors
from prunetrain.data import npz
from tests import tiny, toys


def arrays():
    return {name: getattr(tiny.noise(), name) for name in npz.NAMES}


def write(path, save=np.savez, **changes):
    save(path, **{**arrays(), **changes})
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_they_were_saved(save, tmp_path):
    read = npz.read_npz(write(tmp_path / "noise.npz", save))
    assert list(read) == list(npz.NAMES)
    for name, array in arrays().items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype


def test_columns_first_is_read_like_rows_first(tmp_path):
    x = np.asfortranarray(arrays()["x_train"])
    read = npz.read_npz(write(tmp_path / "noise.npz", x_train=x))
    np.testing.assert_array_equal(read["x_train"], x)


def test_a_file_is_a_dataset_by_its_name(tmp_path):
    dataset = data.load_dataset(
        str(write(tmp_path / "noise.npz")), scaling="unit", validation_size=10
    )
    expected = tiny.noise()
    assert dataset.num_classes == 3
    np.testing.assert_array_equal(dataset.test[1], expected.y_test)
    scaled = expected.x_test.astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(dataset.test[0], scaled)


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


def test_objects_are_refused_without_being_unpickled(tmp_path):
    bomb = np.array([Bomb()], object)
    with pytest.raises(SystemExit):
        pickle.loads(pickle.dumps(Bomb()))
    path = write(tmp_path / "bomb.npz", y_train=bomb)
    with toys.raises(errors.InputError, str(path), "y_train", "unpickling"):
        npz.read_npz(path)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_named(share, tmp_path):
    path = write(tmp_path / "noise.npz")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with toys.raises(errors.InputError, str(path), "np.savez"):
        npz.read_npz(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_byte_of_an_array_is_noticed(save, tmp_path):
    path = write(tmp_path / "noise.npz", save)
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    with toys.raises(errors.InputError, str(path)):
        npz.read_npz(path)


def test_a_missing_array_is_named(tmp_path):
    path = tmp_path / "half.npz"
    np.savez(path, x_train=np.zeros((2, 2)), y_train=np.zeros(2))
    with toys.raises(errors.InputError, str(path), "it has no x_test"):
        npz.read_npz(path)


def test_a_missing_file_is_named(tmp_path):
    with toys.raises(errors.InputError, "nowhere.npz", "exists"):
        npz.read_npz(tmp_path / "nowhere.npz")


def npy(shape):
    """The header of a .npy file of bytes."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (npy("(1099511627776, 3)") + bytes(24), "bytes and holds 24"),
        (npy("(20,)") + bytes(24), "announces 20 bytes and holds 24"),
        (b"\x93NUMPY\7\0" + npy("(1,)")[8:], "version (7, 0)"),
        (b"no array at all", "magic"),
        (b"", "EOF"),
    ],
)
def test_what_a_header_announces_is_checked_before_it_is_allocated(
    content, problem, tmp_path
):
    path = tmp_path / "noise.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", content)
    tracemalloc.start()
    try:
        with toys.raises(errors.InputError, str(path), problem):
            npz.read_npz(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
