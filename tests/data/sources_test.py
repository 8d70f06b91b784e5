"""Datasets by import path, as tf.data, from TensorFlow Datasets; what is refused."""

import dataclasses
import importlib
import pathlib
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from prunetrain import data, errors
from prunetrain.data import sources
from tests import tiny, toys

HERE = "tests.data.sources_test"
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")


def pairs(**changes):
    """What keras.datasets give: (x_train, y_train), (x_test, y_test)."""
    raw = {**vars(tiny.noise()), **changes}
    return (raw["x_train"], raw["y_train"]), (raw["x_test"], raw["y_test"])


def as_raw():
    return tiny.noise()


def as_datasets(batch=0):
    sets = [tf.data.Dataset.from_tensor_slices(pair) for pair in pairs()]
    return [s.batch(batch) for s in sets] if batch else sets


def infinite():
    return [s.repeat() for s in as_datasets()]


def dicts():
    return [s.map(lambda x, y: {"x": x, "y": y}) for s in as_datasets()]


def empty():
    return [s.take(0) for s in as_datasets()]


def nothing():
    return None


def broken():
    raise OSError("the disk\nis gone")


def check_noise(dataset):
    expected = tiny.noise()
    assert dataset.num_classes == 3
    assert len(dataset.train[1]) == 50
    scaled = expected.x_test.astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(dataset.test[0], scaled)
    np.testing.assert_array_equal(dataset.test[1], expected.y_test)


@pytest.mark.parametrize("function", ["pairs", "as_raw", "as_datasets"])
def test_a_function_of_the_users_own_gives_the_dataset(function):
    check_noise(data.load_dataset(f"{HERE}:{function}", validation_size=10))


def test_arguments_go_to_the_function():
    check_noise(
        data.load_dataset(
            f"{HERE}:as_datasets", validation_size=10, arguments={"batch": 7}
        )
    )


def test_keras_gives_the_dataset_that_its_cache_holds(tmp_path, monkeypatch):
    """Keras alone fetches and keeps; here its cache answers at once."""
    x, y = np.full((20, 28, 28), 255, np.uint8), np.arange(20) % 10
    file = tmp_path / "mnist.npz"
    np.savez(file, x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    home = importlib.import_module(keras.datasets.mnist.load_data.__module__)
    monkeypatch.setattr(home, "get_file", lambda *_, **__: str(file))
    dataset = data.load_dataset("keras.datasets.mnist:load_data", validation_size=5)
    assert dataset.num_classes == 10
    assert dataset.input_shape == (28, 28, 1)
    assert dataset.test[1].tolist() == list(range(10))


@pytest.mark.parametrize(
    ("function", "fragments"),
    [
        ("nothing", ["must return", "NoneType"]),
        ("infinite", ["must end", "repeat"]),
        ("dicts", ["one tensor each"]),
        ("empty", ["holds no example"]),
        ("broken", ["cannot be read", "OSError: the disk (", "sources_test.py, line"]),
        ("no_such", ["no attribute 'no_such'"]),
    ],
)
def test_what_a_function_gives_is_refused_in_one_line(function, fragments):
    with pytest.raises(errors.InputError) as caught:
        data.load_dataset(f"{HERE}:{function}")
    for fragment in (f"{HERE}:{function}", *fragments):
        assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [f"{HERE}:pairs", "some.npz"])
def test_a_folder_with_a_file_or_a_function_is_refused(name):
    with toys.raises(errors.InputError, "`data_dir`", "leave it out", name):
        data.load_dataset(name, "folder")


def test_arguments_that_do_not_fit_are_refused():
    for name in (f"{HERE}:nothing", "mnist"):
        with toys.raises(errors.InputError, "`dataset_args`", "'batch'", name):
            data.load_dataset(name, arguments={"batch": 1})


# TensorFlow Datasets


@pytest.fixture
def tfds(monkeypatch):
    """Stands in for the package: records what it is called with."""
    calls = []

    def load(name, *, split, data_dir, as_supervised, with_info, download=True):
        calls.append((name, split, data_dir, as_supervised, with_info, download))
        label = types.SimpleNamespace(num_classes=4)
        info = types.SimpleNamespace(
            features={"image": None, "label": label}, supervised_keys=("image", "label")
        )
        return as_datasets(), info

    module = types.ModuleType("tensorflow_datasets")
    module.load = load
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    return calls


def test_tensorflow_datasets_are_loaded_whole(tfds):
    raw = sources.read("tfds:noise", "folder", {"download": False})
    assert tfds == [("noise", ["train", "test"], "folder", True, True, False)]
    assert raw.num_classes == 4
    np.testing.assert_array_equal(raw.x_test, tiny.noise().x_test)


def test_tensorflow_datasets_that_are_missing_are_answered_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with toys.raises(errors.InputError, "prunetrain[tfds]", "'tfds:mnist'"):
        sources.read("tfds:mnist")


# Inputs


def load(scaling="unit", **changes):
    data.DATASETS["given"] = lambda data_dir: sources._as_raw(pairs(**changes), "given")
    try:
        return data.load_dataset("given", scaling=scaling, validation_size=10)
    finally:
        del data.DATASETS["given"]


def inputs(count, dtype, high, shape=(5,)):
    rng = np.random.default_rng(count)
    return (rng.random((count, *shape)) * high).astype(dtype)


def both(dtype, high=1, shape=(5,)):
    return {
        "x_train": inputs(60, dtype, high, shape),
        "x_test": inputs(30, dtype, high, shape),
    }


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("scaling", ["unit", "none"])
def test_floats_within_0_and_1_stay_as_they_are(dtype, scaling):
    given = both(dtype)
    dataset = load(scaling, **given)
    assert dataset.input_shape == (5,)
    assert dataset.test[0].dtype == np.float32
    np.testing.assert_array_equal(dataset.test[0], given["x_test"].astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint16"])
def test_what_unit_scaling_cannot_know_is_refused(dtype):
    with toys.raises(errors.InputError, "`scaling`", "uint8", dtype[:5], "none"):
        load(**both(dtype, 200))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_without_scaling_numbers_stay_as_they_are(dtype):
    given = both(dtype, 200)
    np.testing.assert_array_equal(
        load("none", **given).test[0], given["x_test"].astype(np.float32)
    )


@pytest.mark.parametrize("shape", [(5,), (3, 4, 5)])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_standard_scaling_takes_inputs_of_any_type_and_rank(dtype, shape):
    x = load("standard", **both(dtype, 200, shape)).train[0].astype(np.float64)
    axes = tuple(range(len(shape)))
    np.testing.assert_allclose(x.mean(axes), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axes), 1, rtol=1e-5)


def test_gray_images_get_a_channel():
    assert load(**both("uint8", 200, (6, 7))).input_shape == (6, 7, 1)
    assert load(**both("float32", 1, (6, 7))).input_shape == (6, 7)


def test_statistics_do_not_depend_on_how_rows_are_cut(monkeypatch):
    x = inputs(60, "uint8", 255, (4, 4, 2))
    whole = data._moments(x, np.arange(60))
    monkeypatch.setattr(data, "_PIECE", 7)
    np.testing.assert_allclose(data._moments(x, np.arange(60)), whole, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        ({"x_train": np.full((60, 4, 4, 1), np.nan)}, ["finite", "nan"]),
        ({"x_test": np.full((30, 4, 4, 1), np.inf)}, ["finite", "inf"]),
        ({"x_train": np.array(["a"] * 60)}, ["array of numbers", "<U1"]),
        ({"x_train": np.zeros(60)}, ["[examples, …]", "(60,)"]),
        ({"x_train": np.zeros((60, 4))}, ["of one size", "(4,)", "(4, 4, 1)"]),
        ({"y_train": np.array(["a"] * 60)}, ["whole numbers", "<U1"]),
        ({"y_train": np.full(60, np.nan)}, ["whole numbers", "nan"]),
        ({"y_train": np.zeros(60, int), "y_test": np.zeros(30, int)}, ["two classes"]),
        ({"y_train": np.full(60, 10**9)}, ["no more than training examples (60)"]),
        ({"y_train": np.arange(60) / 7}, ["whole numbers"]),
        ({"y_train": np.arange(60) - 1}, ["labels from -1"]),
    ],
)
def test_arrays_that_cannot_be_learnt_are_refused(changes, fragments):
    with toys.raises(errors.InputError, "given", *fragments):
        load("none", **changes)


@pytest.mark.parametrize("form", ["column", "one-hot", "floats"])
def test_the_number_of_classes_is_found_from_labels_in_all_forms(form):
    forms = {
        "column": lambda y: y[:, None],
        "one-hot": lambda y: np.eye(3)[y],
        "floats": lambda y: y.astype(np.float64),
    }
    raw = tiny.noise()
    labels = {n: forms[form](getattr(raw, n)) for n in ("y_train", "y_test")}
    dataset = load(**labels)
    assert dataset.num_classes == 3
    np.testing.assert_array_equal(dataset.test[1], raw.y_test)


# Rows taken out when they are needed


def test_inputs_that_stay_at_their_source_are_the_same_bits():
    for scaling in data.SCALINGS:
        x = both("uint8", 255, (4, 4, 2))
        data.DATASETS["given"] = lambda _, x=x: sources._as_raw(pairs(**x), "given")
        try:
            opened = data.open_dataset("given", scaling=scaling, validation_size=10)
            loaded = data.load_dataset("given", scaling=scaling, validation_size=10)
        finally:
            del data.DATASETS["given"]
        rows = np.array([3, 3, 49, 0])
        assert opened.train[0].shape == loaded.train[0].shape
        assert opened.nbytes == 4 * 32 * 90
        np.testing.assert_array_equal(opened.train[0][rows], loaded.train[0][rows])
        np.testing.assert_array_equal(opened.test[0][2:5], loaded.test[0][2:5])


# Fashion-MNIST itself


def test_fashion_mnist_without_a_folder_is_answered_with_where_to_get_it():
    with toys.raises(errors.InputError, "`data_dir`", "dataset-fashion-mnist"):
        data.load_dataset("fashion_mnist")


@pytest.mark.slow
@pytest.mark.skipif(
    not FASHION.is_dir(),
    reason="real Fashion-MNIST is missing: apt-get install dataset-fashion-mnist",
)
def test_real_fashion_mnist_loads():
    dataset = data.load_dataset("fashion_mnist", FASHION)
    assert [len(y) for _, y in (dataset.train, dataset.validation, dataset.test)] == [
        *(55_000, 5_000, 10_000)
    ]
    # What everybody measures on its 60,000; the first test image is an ankle boot.
    np.testing.assert_allclose(dataset.train[0].mean(), 0.2860, atol=1e-3)
    np.testing.assert_allclose(dataset.train[0].std(), 0.3530, atol=1e-3)
    assert dataset.test[1][:5].tolist() == [9, 2, 1, 1, 6]


def ragged():
    (x, y), test = pairs()
    return (x, [[0], [1, 2]] * (len(y) // 2)), test


def three_and_a_half():
    return dataclasses.replace(tiny.noise(), num_classes=3.5)


def beyond_float32():
    (x, y), test = pairs()
    return (x * 1e300, y), test


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("beyond_float32", "finite as float32"),
        ("ragged", "must be arrays"),
        ("three_and_a_half", "num_classes=3.5"),
    ],
)
def test_what_makes_no_dataset_is_refused(function, problem):
    with toys.raises(errors.InputError, problem):
        data.open_dataset(f"{HERE}:{function}", None, "none", validation_size=10)


@pytest.mark.parametrize("word", ["name", "function"])
def test_no_argument_gets_in_the_way_of_ours(word):
    with toys.raises(errors.InputError, "`dataset_args`", word):
        data.open_dataset(f"{HERE}:as_raw", arguments={word: 1})
