"""CIFAR's binary version, written here as it is published, byte for byte."""

import numpy as np
import pytest

from prunetrain import data, errors
from prunetrain.data import cifar
from tests import toys

LABEL_BYTES = {"cifar10": 1, "cifar100": 2}
FOLDERS = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
TEST_FILES = {"cifar10": "test_batch.bin", "cifar100": "test.bin"}
names = pytest.mark.parametrize("name", LABEL_BYTES)


def files(name):
    """How many records the published files have."""
    if name == "cifar10":
        return {
            **{f"data_batch_{i}.bin": 10_000 for i in range(1, 6)},
            "test_batch.bin": 10_000,
        }
    return {"train.bin": 50_000, "test.bin": 10_000}


def write(folder, name, share=1):
    """Writes files of noise; returns the images and labels of each."""
    folder.mkdir(parents=True)
    rng, written = np.random.default_rng(0), {}
    for file, count in files(name).items():
        count //= share
        images = rng.integers(256, size=(count, 32, 32, 3), dtype=np.uint8)
        labels = np.arange(count) % int(name.removeprefix("cifar"))
        written[file] = images, labels
        with open(folder / file, "wb") as out:
            for image, label in zip(images, labels, strict=True):
                # CIFAR-100's first byte is the coarse class.
                coarse = [label // 5] if name == "cifar100" else []
                out.write(bytes([*coarse, label]))
                for channel in range(3):
                    out.write(image[:, :, channel].tobytes())
    return written


@pytest.fixture
def small(monkeypatch):
    """Files of a thousandth of the published size."""
    ten = {file: count // 1000 for file, count in cifar._CIFAR10_TRAIN.items()}
    monkeypatch.setattr(cifar, "_CIFAR10_TRAIN", ten)
    monkeypatch.setattr(cifar, "_CIFAR100_TRAIN", {"train.bin": 50})
    monkeypatch.setattr(cifar, "_TEST", 10)


def check(raw, written):
    *train, test = written.values()
    expected = [np.concatenate(part) for part in zip(*train, strict=True)]
    for array, wanted in zip(
        (raw.x_train, raw.y_train, raw.x_test, raw.y_test),
        (*expected, *test),
        strict=True,
    ):
        np.testing.assert_array_equal(array, wanted)


@names
@pytest.mark.slow
def test_files_of_the_published_size_are_read_to_the_same_arrays(name, tmp_path):
    written = write(tmp_path / "data", name)
    raw = data.DATASETS[name](tmp_path / "data")
    assert raw.x_train.shape == (50_000, 32, 32, 3)
    assert raw.num_classes == int(name.removeprefix("cifar"))
    check(raw, written)


@names
@pytest.mark.parametrize("inner", [True, False])
def test_the_folder_or_its_parent_is_named(name, inner, small, tmp_path):
    folder = tmp_path / FOLDERS[name]
    written = write(folder, name, share=1000)
    check(data.DATASETS[name](str(folder if inner else tmp_path)), written)


@names
def test_it_loads_as_a_dataset(name, small, tmp_path):
    written = write(tmp_path / "data", name, share=1000)
    dataset = data.load_dataset(name, tmp_path / "data", validation_size=5)
    assert dataset.input_shape == (32, 32, 3)
    images, labels = written[TEST_FILES[name]]
    np.testing.assert_array_equal(dataset.test[1], labels)
    np.testing.assert_array_equal(
        dataset.test[0], images.astype(np.float32) / np.float32(255)
    )


@names
@pytest.mark.parametrize(
    "change", ["half", "one record less", "one byte more", "empty"]
)
def test_a_file_of_another_size_is_named(name, change, small, tmp_path):
    """C1: half a file is a whole number of records."""
    folder = tmp_path / "data"
    write(folder, name, share=1000)
    path = folder / TEST_FILES[name]
    content, record = path.read_bytes(), LABEL_BYTES[name] + 3072
    path.write_bytes(
        {
            "half": content[: len(content) // 2],
            "one record less": content[:-record],
            "one byte more": content + b"\0",
            "empty": b"",
        }[change]
    )
    with toys.raises(errors.InputError, str(path), "10 records", "Get it again"):
        data.DATASETS[name](folder)


@names
def test_a_missing_file_is_named(name, small, tmp_path):
    write(tmp_path / "data", name, share=1000)
    path = tmp_path / "data" / TEST_FILES[name]
    path.unlink()
    with toys.raises(errors.InputError, str(path), "Get it again"):
        data.DATASETS[name](tmp_path / "data")


@names
@pytest.mark.parametrize("folder", [None, "", "nowhere"])
def test_a_missing_folder_is_answered_with_what_belongs_there(name, folder):
    with toys.raises(errors.InputError, "`data_dir`", "binary", FOLDERS[name]):
        data.DATASETS[name](folder)


@pytest.mark.parametrize(
    ("name", "pickled"),
    [
        ("cifar10", "data_batch_1"),
        ("cifar10", "cifar-10-batches-py/data_batch_1"),
        ("cifar100", "train"),
        ("cifar100", "cifar-100-python/train"),
    ],
)
def test_the_pickled_version_is_refused_with_the_remedy(name, pickled, tmp_path):
    path = tmp_path / pickled
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"cos\nsystem\n")
    with toys.raises(errors.InputError, "pickled", "binary version", FOLDERS[name]):
        data.DATASETS[name](tmp_path)


@names
def test_a_label_beyond_the_classes_is_refused_with_its_range(name, small, tmp_path):
    folder = tmp_path / "data"
    write(folder, name, share=1000)
    path = folder / TEST_FILES[name]
    content = bytearray(path.read_bytes())
    content[LABEL_BYTES[name] - 1] = 200
    path.write_bytes(content)
    with toys.raises(errors.InputError, "labels from", "to 200", str(folder)):
        data.load_dataset(name, folder, validation_size=5)
