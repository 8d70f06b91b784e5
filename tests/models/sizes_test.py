"""The models' sizes, against sums worked out by hand from the papers' layers."""

import numpy as np
import pytest

import prunetrain as pt
from prunetrain.models import MODELS

MNIST, CIFAR = (28, 28, 1), (32, 32, 3)
# 3·3·3·64 + 9·64²; then 9·64·128 + 9·128²; then 9·128·256 + 9·256².
PAIRS = (1_728 + 36_864, 73_728 + 147_456, 294_912 + 589_824)
# The dense layers after the first one: 256² + 256·10.
REST = 65_536 + 2_560
# 9·3·64 + 9·64² + 9·64·128 + 9·128² + (9·128·256 + 3·9·256²)
# + (9·256·512 + 3·9·512²) + 4·9·512².
VGG = 38_592 + 221_184 + 2_064_384 + 8_257_536 + 9_437_184
# The stem 27·64; stages of two blocks of two 3 × 3 convolutions: 4·9·64², then
# 9·c·2c + 3·9·(2c)² and the shortcut c·2c for c = 64, 128, 256; 512·10.
RESNET_18 = (
    1_728
    + 147_456
    + (73_728 + 442_368 + 8_192)
    + (294_912 + 1_769_472 + 32_768)
    + (1_179_648 + 7_077_888 + 131_072)
    + 5_120
)
# The stem 27·16; a stage of four blocks from i to c channels is 9·i·c + 7·9·c² and the
# shortcut i·c, for (16, 160), (160, 320), (320, 640); 640·10.
WIDE = (
    432
    + (23_040 + 1_612_800 + 2_560)
    + (460_800 + 6_451_200 + 51_200)
    + (1_843_200 + 25_804_800 + 204_800)
    + 6_400
)
# Patches 4·4·3·192; twelve blocks of attention 4·192² and dense 2·192·768; 192·10.
VIT = 9_216 + 12 * (147_456 + 294_912) + 1_920

# Name, input, weights of kernels, everything else that is trained: biases, or scale and
# shift of each norm's channels.
SIZES = {
    # 784·300 + 300·100 + 100·10.
    "lenet_300_100": (MNIST, 266_200, 300 + 100 + 10),
    # 784·300 + 300·100 + 100·50 + 50·10.
    "mlp_300_100_50": (MNIST, 270_700, 300 + 100 + 50 + 10),
    # 5·5·20 + 5·5·20·50 + 4·4·50·500 + 500·10.
    "lenet5": (MNIST, 430_500, 20 + 50 + 500 + 10),
    # 16²·64·256, 8²·128·256 and 4²·256·256 into the first dense layer.
    "conv2": (CIFAR, PAIRS[0] + 4_194_304 + REST, 2 * 64 + 522),
    "conv4": (CIFAR, sum(PAIRS[:2]) + 2_097_152 + REST, 2 * (64 + 128) + 522),
    "conv6": (CIFAR, sum(PAIRS) + 1_048_576 + REST, 2 * (64 + 128 + 256) + 522),
    "vgg19": (
        CIFAR,
        VGG + 5_120,
        2 * (2 * 64 + 2 * 128 + 4 * 256 + 8 * 512) + 10,
    ),
    # 27·16 + 6·9·16² + 9·16·32 + 5·9·32² + 9·32·64 + 5·9·64² + 16·32 + 32·64 + 640.
    "resnet20": (CIFAR, 270_896, 2 * (7 * 16 + 7 * 32 + 7 * 64) + 10),
    "resnet18": (CIFAR, RESNET_18, 2 * 5 * (64 + 128 + 256 + 512) + 10),
    # Norms before each convolution but the stem, and one at the end.
    "wide_resnet": (
        CIFAR,
        WIDE,
        2 * (16 + 7 * 160 + 160 + 7 * 320 + 320 + 7 * 640 + 640) + 10,
    ),
    # Positions 64·192; in a block two norms, attention's four biases, dense biases.
    "vit_tiny": (
        CIFAR,
        VIT,
        12_288 + 12 * (4 * 192 + 4 * 192 + 768 + 192) + 2 * 192 + 10,
    ),
}
# Millions of weights that the papers give.
PAPERS = {
    "lenet_300_100": 0.266,
    "lenet5": 0.43,
    "conv2": 4.3,
    "conv4": 2.4,
    "resnet20": 0.27,
    "vgg19": 20.0,
    "wide_resnet": 36.5,
}


def test_every_model_has_its_size_worked_out():
    assert set(SIZES) == set(MODELS)


@pytest.mark.parametrize("name", SIZES)
def test_weights_are_those_of_the_layers_in_the_source(name):
    shape, kernels, others = SIZES[name]
    model = MODELS[name](shape, 10)
    assert sum(x.total for x in pt.PrunedModel(model).layer_sparsity()) == kernels
    trainable = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    assert trainable == kernels + others


@pytest.mark.parametrize("name", PAPERS)
def test_weights_are_as_many_as_the_paper_says(name):
    digits = len(str(PAPERS[name]).partition(".")[2])
    assert round(SIZES[name][1] / 1e6, digits) == PAPERS[name]


def test_lenet_300_100_has_266_610_parameters():
    assert MODELS["lenet_300_100"](MNIST, 10).count_params() == 266_610


@pytest.mark.parametrize(
    ("depth", "width", "millions"), [(16, 8, 11.0), (40, 2, 2.2), (40, 1, 0.6)]
)
def test_wide_resnets_have_the_sizes_of_table_1(depth, width, millions):
    model = MODELS["wide_resnet"](CIFAR, 10, depth=depth, width=width)
    trainable = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    assert round(trainable / 1e6, 1) == millions
