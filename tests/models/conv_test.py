"""The small convolutional networks: sizes of the papers, compile mode."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.core import steps
from prunetrain.models import MODELS

MNIST, CIFAR = (28, 28, 1), (32, 32, 3)
# Weights of the kernels by hand: 5·5·20 + 5·5·20·50 + 4·4·50·500 + 500·10, and
# 3·3·3·64 + 3·3·64·64 + 16·16·64·256 + 256·256 + 256·10, and
# 27·16 + 6·9·16² + 9·16·32 + 5·9·32² + 9·32·64 + 5·9·64² + 16·32 + 32·64 + 640.
KERNELS = {
    ("lenet5", MNIST): 430_500,
    ("conv2", CIFAR): 4_300_992,
    ("resnet20", CIFAR): 270_896,
}
# With biases, or with the scale and shift of the norms, and ten biases of the output.
TRAINABLE = {
    ("lenet5", MNIST): 430_500 + 20 + 50 + 500 + 10,
    ("conv2", CIFAR): 4_300_992 + 64 + 64 + 256 + 256 + 10,
    ("resnet20", CIFAR): 270_896 + 2 * (7 * 16 + 7 * 32 + 7 * 64) + 10,
}
networks = pytest.mark.parametrize(("name", "shape"), KERNELS)


@networks
def test_sizes_are_those_of_the_paper(name, shape):
    model = MODELS[name](shape, 10)
    layers = pt.PrunedModel(model).layer_sparsity()
    assert sum(layer.total for layer in layers) == KERNELS[name, shape]
    trainable = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    assert trainable == TRAINABLE[name, shape]


@networks
def test_auto_compiles_only_the_update_on_a_cpu(name, shape):
    assert steps.pick_mode("auto", MODELS[name](shape, 10)) == "hybrid"


@pytest.mark.parametrize(("name", "mode"), [("conv2", "hybrid"), ("resnet20", "xla")])
def test_auto_on_a_gpu_leaves_only_max_pooling_uncompiled(name, mode, monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["a GPU"])
    assert steps.pick_mode("auto", MODELS[name](CIFAR, 10)) == mode


def test_resnet_halves_the_image_twice():
    model = MODELS["resnet20"](CIFAR, 10)
    sizes = [x.output.shape[1:3] for x in model.layers if x.name.endswith("_add")]
    assert sizes == [(32, 32)] * 3 + [(16, 16)] * 3 + [(8, 8)] * 3


@networks
def test_a_masked_step_keeps_its_zeros(name, shape):
    model = MODELS[name](shape, 10)
    pruned = pt.PrunedModel(model)
    pt.prune(pruned, sparsity=0.8)
    optimizer = keras.optimizers.Adam(1e-3)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = pt.make_train_step(pruned, optimizer, loss_fn)
    before = [kernel.numpy() for kernel in pruned.kernels]
    step(np.ones((2, *shape), np.float32), np.array([1, 2]))
    pt.testing.assert_masks_hold(pruned, optimizer)
    assert all(
        (kernel.numpy() != old).any()
        for kernel, old in zip(pruned.kernels, before, strict=True)
    )
