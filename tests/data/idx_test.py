"""The IDX reader: what it reads, and what it says of files that are not whole."""

import gzip
import hashlib
import struct
import tracemalloc

import numpy as np
import pytest

from prunetrain import data, errors
from prunetrain.data import idx
from tests import tiny, toys

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
WHOLE = tiny.idx_bytes(IMAGES)

# The published distribution's; see prunetrain/data/mnist/README.md.
MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def write(folder, content, name="images"):
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("shape", [(5,), (1,), (2, 3, 4), (1, 28, 28), (0, 4, 4)])
def test_reads_what_was_written(shape, tmp_path):
    array = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    path = write(tmp_path, tiny.idx_bytes(array))
    read = idx.read_idx(path, len(shape))
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, array)


def test_plain_and_gzipped_files_are_read_alike(tmp_path):
    plain = idx.read_idx(write(tmp_path, WHOLE), 3)
    packed = idx.read_idx(write(tmp_path, gzip.compress(WHOLE), "images.gz"), 3)
    np.testing.assert_array_equal(plain, IMAGES)
    np.testing.assert_array_equal(packed, IMAGES)


def test_a_file_longer_than_one_piece_is_read_whole(tmp_path):
    array = np.random.default_rng(0).integers(256, size=3_000_000, dtype=np.uint8)
    read = idx.read_idx(write(tmp_path, tiny.idx_bytes(array)), 1)
    np.testing.assert_array_equal(read, array)


DAMAGED = {
    "empty": (b"", "starts with nothing, not 00000803"),
    "cut within the magic number": (WHOLE[:3], "starts with 000008, not 00000803"),
    "cut within the header": (WHOLE[:10], "ends within its header"),
    "cut after the header": (WHOLE[:16], "announces 24 bytes and holds 0"),
    "cut within the body": (WHOLE[:-1], "announces 24 bytes and holds 23"),
    "longer than announced": (WHOLE + b"\0", "announces 24 bytes and holds more"),
    "another format": (b"\x89PNG" + WHOLE[4:], "starts with 89504e47"),
    "elements of another type": (b"\0\0\x0d\3" + WHOLE[4:], "starts with 00000d03"),
    "another number of dimensions": (b"\0\0\x08\1" + WHOLE[4:], "with 00000801"),
    "a header beyond all memory": (
        WHOLE[:4] + struct.pack(">3I", 2**14, 2**13, 2**13) + WHOLE[16:],
        "announces 1,099,511,627,776 bytes and holds 24",
    ),
}
PACKED_DAMAGED = {
    "gzip cut in half": gzip.compress(WHOLE)[: len(gzip.compress(WHOLE)) // 2],
    "gzip without its end": gzip.compress(WHOLE)[:-4],
    "gzip with garbage behind": gzip.compress(WHOLE) + b"garbage",
    "gzip with a flipped bit": bytes(
        byte ^ (index == 20) for index, byte in enumerate(gzip.compress(WHOLE))
    ),
    "no gzip at all": WHOLE,
    "gzip of nothing": gzip.compress(b""),
    "an empty gzip file": b"",
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_named_with_what_is_wrong_and_a_remedy(case, tmp_path):
    content, problem = DAMAGED[case]
    path = write(tmp_path, content)
    with toys.raises(errors.InputError, str(path), problem, "Get it again"):
        idx.read_idx(path, 3)


@pytest.mark.parametrize("case", PACKED_DAMAGED)
def test_a_damaged_gzip_file_is_named_with_a_remedy(case, tmp_path):
    path = write(tmp_path, PACKED_DAMAGED[case], "images.gz")
    with toys.raises(errors.InputError, str(path), "Get it again"):
        idx.read_idx(path, 3)


def test_every_cut_of_a_file_is_noticed(tmp_path):
    for length in range(len(WHOLE)):
        with pytest.raises(errors.InputError):
            idx.read_idx(write(tmp_path, WHOLE[:length]), 3)


def test_what_a_header_announces_is_not_allocated(tmp_path):
    path = write(tmp_path, DAMAGED["a header beyond all memory"][0])
    tracemalloc.start()
    try:
        with pytest.raises(errors.InputError):
            idx.read_idx(path, 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24


def test_no_more_is_unpacked_than_a_header_announces(tmp_path):
    bomb = gzip.compress(WHOLE + bytes(2**26))
    path = write(tmp_path, bomb, "images.gz")
    tracemalloc.start()
    try:
        with toys.raises(errors.InputError, "holds more"):
            idx.read_idx(path, 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24


def packed_with_header(*sizes):
    """A gzipped file of three dimensions that holds less than it announces."""
    return gzip.compress(WHOLE[:4] + struct.pack(">3I", *sizes) + WHOLE[16:])


@pytest.mark.parametrize("sizes", [(2**11,) * 3, (2**32 - 1,) * 3, (1, 1, 2**18)])
def test_what_packed_bytes_cannot_become_is_not_allocated(sizes, tmp_path):
    path = write(tmp_path, packed_with_header(*sizes), "images.gz")
    tracemalloc.start()
    try:
        with toys.raises(errors.InputError, "announces", "can be unpacked to"):
            idx.read_idx(path, 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**17


def test_a_packed_file_that_is_smaller_than_most_is_read(tmp_path):
    # Zeros: packed as tightly as gzip can.
    zeros = np.zeros((100, 100, 100), np.uint8)
    path = write(tmp_path, gzip.compress(tiny.idx_bytes(zeros)), "images.gz")
    assert path.stat().st_size < zeros.size / 900
    assert idx.read_idx(path, 3).shape == zeros.shape


def test_sizes_whose_product_is_0_are_no_way_around(tmp_path):
    content = WHOLE[:4] + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 0)
    with toys.raises(errors.InputError, "Get it again"):
        idx.read_idx(write(tmp_path, content), 3)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with toys.raises(errors.InputError, str(tmp_path / "nowhere")):
        idx.read_idx(tmp_path / "nowhere", 3)


# Folders


def test_a_folder_of_four_files_is_a_dataset(tmp_path):
    expected = tiny.write_idx_dataset(tmp_path)
    raw = data.DATASETS["mnist"](str(tmp_path))
    assert raw.num_classes == 10
    assert raw.source == str(tmp_path)
    for field in tiny.IDX_NAMES:
        np.testing.assert_array_equal(getattr(raw, field), getattr(expected, field))


def test_images_can_be_padded(tmp_path):
    raw = tiny.write_idx_dataset(tmp_path)
    read = data.DATASETS["mnist"](tmp_path, pad=2)
    assert read.x_train.shape == (120, 12, 12, 1)
    np.testing.assert_array_equal(read.x_train[:, 2:-2, 2:-2], raw.x_train)
    assert read.x_test.sum() == raw.x_test.sum()


@pytest.mark.parametrize("pad", [-1, 1.5, "two", True, 10**9])
def test_a_padding_that_is_none_is_refused(pad, tmp_path):
    tiny.write_idx_dataset(tmp_path)
    with toys.raises(errors.InputError, "`dataset_args` pad", f"pad={pad!r}"):
        data.DATASETS["mnist"](tmp_path, pad=pad)


def test_plain_and_gzipped_files_may_lie_side_by_side(tmp_path):
    expected = tiny.write_idx_dataset(tmp_path)
    plain = tmp_path / tiny.IDX_NAMES["x_test"]
    (tmp_path / f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    raw = data.DATASETS["mnist"](tmp_path)
    np.testing.assert_array_equal(raw.x_test, expected.x_test)


def test_a_missing_folder_is_named(tmp_path):
    folder = tmp_path / "nowhere"
    with toys.raises(errors.InputError, "`data_dir`", "must be a folder", str(folder)):
        data.DATASETS["mnist"](folder)


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    path = write(tmp_path, WHOLE)
    with toys.raises(errors.InputError, "`data_dir`", str(path)):
        data.DATASETS["mnist"](path)


@pytest.mark.parametrize("name", tiny.IDX_NAMES.values())
def test_a_missing_file_is_named_with_the_remedy(name, tmp_path):
    tiny.write_idx_dataset(tmp_path)
    (tmp_path / name).unlink()
    path = str(tmp_path / name)
    with toys.raises(errors.InputError, path, f"{name}.gz", "--data_dir"):
        data.DATASETS["mnist"](tmp_path)


@pytest.mark.parametrize("name", tiny.IDX_NAMES.values())
def test_a_file_cut_in_half_is_named_wherever_it_is(name, tmp_path):
    tiny.write_idx_dataset(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with toys.raises(errors.InputError, str(path), "Get it again"):
        data.DATASETS["mnist"](tmp_path)


# MNIST itself


@pytest.mark.parametrize("name", MNIST_MD5)
def test_embedded_mnist_is_the_published_one_to_the_bit(name):
    path = tiny.ROOT / "prunetrain" / "data" / "mnist" / f"{name}.gz"
    content = gzip.decompress(path.read_bytes())
    assert hashlib.md5(content).hexdigest() == MNIST_MD5[name]


def test_the_readme_beside_mnist_tells_those_sums_and_the_licence():
    text = (tiny.ROOT / "prunetrain" / "data" / "mnist" / "README.md").read_text()
    for name, md5 in MNIST_MD5.items():
        assert f"{md5}  {name}" in text
    assert "CC BY-SA 3.0" in text
