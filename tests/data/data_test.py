"""Datasets: splits, scaling, labels, and that nothing is ever fetched."""

import ast
import dataclasses
import socket

import numpy as np
import pytest

import prunetrain as pt
from prunetrain import data, errors
from tests import tiny, toys


@pytest.fixture(scope="module")
def mnist():
    return data.load_dataset("mnist")


@pytest.fixture
def raw(monkeypatch):
    """Makes the dataset "given", a `Raw` with fields replaced; returns a loader."""

    def load(scaling="unit", validation_size=10, **fields):
        changed = dataclasses.replace(tiny.noise(), **fields)
        monkeypatch.setitem(data.DATASETS, "given", lambda data_dir: changed)
        return data.load_dataset(
            "given", scaling=scaling, validation_size=validation_size
        )

    return load


def splits(dataset):
    return dataset.train, dataset.validation, dataset.test


# MNIST


def test_mnist_is_split_as_in_the_paper(mnist):
    assert [len(x) for x, _ in splits(mnist)] == [55_000, 5_000, 10_000]
    assert [len(y) for _, y in splits(mnist)] == [55_000, 5_000, 10_000]
    assert mnist.input_shape == (28, 28, 1)
    assert mnist.num_classes == 10


def test_mnist_holds_every_digit_in_every_split(mnist):
    for x, y in splits(mnist):
        assert x.dtype == np.float32
        assert y.dtype == np.int32
        counts = np.bincount(y, minlength=10)
        assert len(counts) == 10
        assert counts.min() > 0.07 * len(y)


def test_mnist_in_unit_scaling_lies_between_0_and_1(mnist):
    for x, _ in splits(mnist):
        assert (x.min(), x.max()) == (0, 1)
    # What everybody measures on MNIST's 60,000.
    np.testing.assert_allclose(mnist.train[0].mean(), 0.1307, atol=5e-4)
    np.testing.assert_allclose(mnist.train[0].std(), 0.3081, atol=5e-4)


def test_the_first_test_image_is_the_well_known_seven(mnist):
    x, y = mnist.test
    assert y[:5].tolist() == [7, 2, 1, 0, 4]
    assert round(float(x[0].sum() * 255)) == 18_454


# Splits


def images_of(dataset):
    """Every image's bytes, as sets by split."""
    return [{image.tobytes() for image in x} for x, _ in splits(dataset)]


def test_splits_are_disjoint_and_leave_nothing_out(raw):
    train, validation, test = images_of(raw())
    assert [len(train), len(validation), len(test)] == [50, 10, 30]
    assert len(train | validation | test) == 90
    expected = tiny.noise().x_train.astype(np.float32) / np.float32(255)
    assert train | validation == {image.tobytes() for image in expected}


def test_labels_stay_with_their_images(raw):
    given = tiny.noise()
    images = given.x_train.astype(np.float32) / np.float32(255)
    known = {x.tobytes(): y for x, y in zip(images, given.y_train, strict=True)}
    dataset = raw()
    for x, y in (dataset.train, dataset.validation):
        assert [known[image.tobytes()] for image in x] == y.tolist()


def test_the_split_is_always_the_same_and_drawn_at_random(raw):
    assert images_of(raw()) == images_of(raw())
    # Not the head and not the tail of the data.
    taken = raw(
        x_train=np.arange(60, dtype=np.uint8).reshape(60, 1, 1, 1),
        x_test=np.zeros((30, 1, 1, 1), np.uint8),
    )
    positions = np.rint(taken.validation[0].ravel() * 255).astype(int).tolist()
    assert positions == sorted(positions)
    assert positions not in (list(range(10)), list(range(50, 60)))


@pytest.mark.parametrize("size", [1, 59])
def test_the_validation_split_may_have_any_size_that_leaves_an_example(size, raw):
    dataset = raw(validation_size=size)
    assert len(dataset.validation[1]) == size
    assert len(dataset.train[1]) == 60 - size


@pytest.mark.parametrize("size", [0, -1, 60, 5000])
def test_a_validation_split_of_another_size_is_refused_with_the_range(size, raw):
    with toys.raises(
        errors.InputError,
        "`validation_size`",
        "from 1 to 59",
        f"validation_size={size}",
    ):
        raw(validation_size=size)


# Scaling


def test_standard_scaling_has_mean_0_and_deviation_1_over_the_training_split(raw):
    dataset = raw("standard", x_train=three_channels(60), x_test=three_channels(30))
    x = dataset.train[0].astype(np.float64)
    np.testing.assert_allclose(x.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(x.std((0, 1, 2)), 1, rtol=1e-5)
    # The same numbers serve the other splits, which are thus a little off.
    assert np.all(dataset.validation[0].mean((0, 1, 2)) != 0)
    assert dataset.test[0].dtype == np.float32


def three_channels(count):
    """Images whose channels have means and deviations of their own."""
    rng = np.random.default_rng(count)
    return np.stack(
        [rng.integers(low, high, (count, 4, 4)) for low, high in ((0, 9), (90, 200))]
        + [rng.integers(250, 256, (count, 4, 4))],
        axis=-1,
    ).astype(np.uint8)


def test_standard_scaling_of_mnist_undoes_to_unit_scaling(mnist):
    standard = data.load_dataset("mnist", scaling="standard")
    np.testing.assert_allclose(standard.train[0].mean(), 0, atol=1e-4)
    np.testing.assert_allclose(standard.train[0].std(), 1, rtol=1e-4)
    undone = standard.test[0][:9] * 0.3081 + 0.1307
    np.testing.assert_allclose(undone, mnist.test[0][:9], atol=2e-3)


def test_standard_scaling_of_a_constant_channel_stays_finite(raw):
    dataset = raw("standard", x_train=np.full((60, 4, 4, 1), 7, np.uint8))
    assert not dataset.train[0].any()


def test_an_unknown_scaling_is_refused_with_the_names(raw):
    with toys.raises(ValueError, "`scaling`", "unit, standard", "scaling='units'"):
        raw("units")


def test_an_unknown_dataset_is_refused_with_the_nearest_name():
    with toys.raises(ValueError, "`dataset`", "did you mean 'mnist'", "'mnits'"):
        pt.load_dataset("mnits")


# Labels

LABELS = np.array([0, 2, 1, 2])


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        LABELS.tolist(),
        LABELS[:, None],
        LABELS.astype(np.uint8),
        LABELS.astype(np.float32),
        LABELS.astype(np.float64)[:, None],
        np.eye(3)[LABELS],
        np.eye(3, dtype=np.uint8)[LABELS],
    ],
    ids=["indices", "list", "column", "uint8", "float32", "floats", "hot", "hot8"],
)
def test_labels_in_all_their_forms_are_the_same_indices(labels):
    indices = data.class_indices(labels, 3)
    assert indices.dtype == np.int32
    assert indices.tolist() == LABELS.tolist()


def test_labels_counted_from_one_are_refused_with_the_range_and_a_remedy():
    labels = np.arange(1, 11)
    with toys.raises(
        errors.InputError, "from 0 to 9", "from 1 to 10", "in here", "subtract 1"
    ):
        data.class_indices(labels, 10, "here")


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([0, 3], "labels from 0 to 3"),
        ([-1, 2], "labels from -1 to 2"),
        ([0.5, 1], "labels from 0.5 to 1.0"),
        ([0, np.nan], "whole numbers from 0 to 2"),
        ([[1, 1, 0]], "a single 1 in each row"),
        ([[0, 0, 0]], "a single 1 in each row"),
        ([[0.2, 0.8, 0]], "a single 1 in each row"),
        ([[0, 1]], "shape (1, 2)"),
        ([[[0]]], "shape (1, 1, 1)"),
        (1, "shape ()"),
    ],
)
def test_other_labels_are_refused_with_what_is_wrong(labels, problem):
    with toys.raises(errors.InputError, problem, "in here"):
        data.class_indices(labels, 3, "here")


def test_no_hint_to_subtract_where_that_would_not_help():
    with pytest.raises(errors.InputError) as caught:
        data.class_indices([0, 10], 10)
    assert "subtract" not in str(caught.value)


@pytest.mark.parametrize("form", ["column", "one-hot"])
def test_a_dataset_may_have_its_labels_in_another_form(form, raw):
    labels = tiny.noise().y_train
    labels = labels[:, None] if form == "column" else np.eye(3)[labels]
    for (_, got), (_, expected) in zip(
        splits(raw(y_train=labels)), splits(raw()), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"y_train": np.zeros(59, int)}, "60 training images and 59 labels"),
        ({"x_test": np.zeros((4, 4, 4, 1), np.uint8)}, "4 test images and 30 labels"),
        (
            {"x_test": np.zeros((0, 4, 4, 1), np.uint8), "y_test": np.zeros(0, int)},
            "0 test images and 0 labels",
        ),
    ],
)
def test_images_and_labels_that_differ_in_number_are_refused(fields, counts, raw):
    with toys.raises(errors.InputError, "noise must hold", counts):
        raw(**fields)


# No network


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_nothing_is_fetched_when_the_files_are_there(no_network, tmp_path):
    tiny.write_idx_dataset(tmp_path)
    dataset = data.load_dataset("mnist", tmp_path, validation_size=20)
    assert len(dataset.train[1]) == 100


def test_nothing_is_fetched_when_the_files_are_missing(no_network, tmp_path):
    with toys.raises(errors.InputError, "does not exist"):
        data.load_dataset("mnist", tmp_path)


def test_no_file_of_the_package_imports_a_way_to_the_network():
    imported = set()
    for file in (tiny.ROOT / "prunetrain").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
    assert "gzip" in imported
    assert not {"ftplib", "http", "requests", "socket", "ssl", "urllib"} & imported
