"""The networks for images: shapes within, compile mode, one masked step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.core import steps
from prunetrain.models import MODELS
from tests import toys

MNIST, CIFAR = (28, 28, 1), (32, 32, 3)
# Whole, or small ones of their kind.
NETWORKS = {
    "lenet5": (MNIST, {}),
    "conv2": (CIFAR, {}),
    "resnet20": (CIFAR, {}),
    "wide_resnet": (CIFAR, {"depth": 10, "width": 1, "dropout": 0.3}),
    "vit_tiny": (MNIST, {"width": 12, "depth": 1, "dropout": 0.1}),
}
networks = pytest.mark.parametrize("name", NETWORKS)


def build(name):
    shape, arguments = NETWORKS[name]
    return MODELS[name](shape, 10, **arguments)


@networks
def test_auto_compiles_only_the_update_of_convolutions_on_a_cpu(name):
    mode = "xla" if name == "vit_tiny" else "hybrid"
    assert steps.pick_mode("auto", build(name)) == mode


@pytest.mark.parametrize(("name", "mode"), [("conv2", "hybrid"), ("resnet20", "xla")])
def test_auto_on_a_gpu_leaves_only_max_pooling_uncompiled(name, mode, monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["a GPU"])
    assert steps.pick_mode("auto", MODELS[name](CIFAR, 10)) == mode


def test_resnet_halves_the_image_twice():
    model = MODELS["resnet20"](CIFAR, 10)
    sizes = [x.output.shape[1:3] for x in model.layers if x.name.endswith("_add")]
    assert sizes == [(32, 32)] * 3 + [(16, 16)] * 3 + [(8, 8)] * 3


def test_a_patch_s_position_is_learned():
    biases = {w.path: w.shape for w in build("vit_tiny").weights}
    assert biases["patches/kernel"] == (4, 4, 1, 12)
    assert biases["patches/bias"] == (7, 7, 12)


def test_patches_are_cut_from_the_image_in_order():
    model = MODELS["vit_tiny"]((4, 6, 1), 10, patch=2, width=4, depth=1, heads=1)
    # A patch of four pixels becomes those four numbers.
    model.get_layer("patches").set_weights(
        [np.eye(4, dtype=np.float32).reshape(2, 2, 1, 4), np.zeros((2, 3, 4))]
    )
    sequence = keras.Model(model.input, model.get_layer("sequence").output)
    image = np.arange(24, dtype=np.float32).reshape(1, 4, 6, 1)
    np.testing.assert_array_equal(
        sequence(image).numpy()[0, [0, 1, 3]],
        [[0, 1, 6, 7], [2, 3, 8, 9], [12, 13, 18, 19]],
    )


@pytest.mark.parametrize(
    ("name", "arguments", "fragments"),
    [
        ("vit_tiny", {"patch": 5}, ["32 × 32", "patch=5"]),
        ("vit_tiny", {"heads": 5}, ["width=192", "heads=5"]),
        ("wide_resnet", {"depth": 20}, ["10, 16, 22, 28", "depth=20"]),
        ("wide_resnet", {"depth": 4}, ["depth=4"]),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, arguments, fragments):
    with toys.raises(ValueError, *fragments):
        MODELS[name](CIFAR, 10, **arguments)


@networks
def test_a_masked_step_keeps_its_zeros(name):
    model = build(name)
    pruned = pt.PrunedModel(model)
    pt.prune(pruned, sparsity=0.8)
    optimizer = keras.optimizers.Adam(1e-3)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = pt.make_train_step(pruned, optimizer, loss_fn, compile="graph")
    before = [kernel.numpy() for kernel in pruned.kernels]
    step(np.ones((2, *NETWORKS[name][0]), np.float32), np.array([1, 2]))
    pt.testing.assert_masks_hold(pruned, optimizer)
    assert all(
        (kernel.numpy() != old).any()
        for kernel, old in zip(pruned.kernels, before, strict=True)
    )
