"""Augmentation: what crop and flip do, and that a step's draw is the step's."""

import numpy as np
import pytest
import tensorflow as tf

from prunetrain import data, errors
from prunetrain.core import loops
from prunetrain.data import augmentation
from tests import toys

IMAGES = np.random.default_rng(0).random((64, 6, 5, 2), dtype=np.float32)
CROP, FLIP = augmentation.AUGMENTATIONS["crop"], augmentation.AUGMENTATIONS["flip"]


def seed(step=0):
    return loops.augment_seed(7, step)


def shifts(image):
    """The image at each of the places that a crop may put it."""
    padded = np.pad(image, [(4, 4), (4, 4), (0, 0)])
    height, width, _ = image.shape
    return {
        padded[i : i + height, j : j + width].tobytes(): (i, j)
        for i in range(9)
        for j in range(9)
    }


def test_a_crop_shifts_each_image_by_its_own_up_to_4_pixels():
    moved = CROP(tf.constant(IMAGES), seed()).numpy()
    places = [shifts(a)[b.tobytes()] for a, b in zip(IMAGES, moved, strict=True)]
    assert len(set(places)) > 30
    assert {i for i, _ in places} == set(range(9)) == {j for _, j in places}


def test_a_flip_swaps_left_and_right_of_about_half_the_images():
    flipped = FLIP(tf.constant(IMAGES), seed()).numpy()
    swapped = [
        np.array_equal(b, a[:, ::-1]) for a, b in zip(IMAGES, flipped, strict=True)
    ]
    same = [np.array_equal(b, a) for a, b in zip(IMAGES, flipped, strict=True)]
    assert [a != b for a, b in zip(swapped, same, strict=True)] == [True] * 64
    assert 20 < sum(swapped) < 44


@pytest.mark.parametrize(
    "function", [CROP, FLIP, augmentation.chained(["crop", "flip"])]
)
def test_the_draw_depends_on_the_seed_alone_in_every_compile_mode(function):
    x = tf.constant(IMAGES)
    first = function(x, seed(3)).numpy()
    for compiled in (tf.function(function), tf.function(function, jit_compile=True)):
        np.testing.assert_array_equal(compiled(x, seed(3)), first)
        assert not np.array_equal(compiled(x, seed(4)), first)


def test_augmentations_follow_each_other_with_draws_of_their_own():
    x, both = tf.constant(IMAGES), augmentation.chained(["flip", "crop"])
    own = tf.stack([seed(3)[0], seed(3)[1] * 2])
    flipped = FLIP(x, own)
    expected = CROP(flipped, own + tf.constant([0, 1], tf.int64))
    np.testing.assert_array_equal(both(x, seed(3)), expected)


def test_no_name_is_no_augmentation():
    assert augmentation.chained([]) is None


def halved(x, seed):
    return x[:, ::2]


@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("os:getcwd", ["(x, seed) -> x", "os:getcwd"]),
        ("tests.data.augmentation_test:halved", ["shape and type", "(64, 3, 5, 2)"]),
    ],
)
def test_a_function_of_the_users_own_that_does_not_fit_is_refused(name, fragments):
    with toys.raises(errors.InputError, "`augment`", *fragments):
        augmentation.chained(["flip", name])(tf.constant(IMAGES), seed())


def test_what_are_no_images_is_refused():
    for function in (CROP, FLIP):
        with toys.raises(errors.InputError, "`augment`", "images", "(5,)"):
            function(tf.zeros([3, 5]), seed())


def test_every_augmentation_keeps_a_batch_of_any_dataset():
    x = data.load_dataset("mnist").test[0][:8]
    for function in augmentation.AUGMENTATIONS.values():
        changed = function(tf.constant(x), seed())
        assert (changed.shape, changed.dtype) == (x.shape, x.dtype)
