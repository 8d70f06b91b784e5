"""Convolutional networks without shortcuts."""

from prunetrain.lazy import keras
from prunetrain.models import MODELS


@MODELS.register("lenet5")
def lenet5(input_shape, num_classes):
    """LeNet-5 with 431K weights on MNIST (Han et al. 2015, section 4.1)."""
    return _network(
        "lenet5",
        input_shape,
        [
            _conv("conv_1", 20, 5, "valid"),
            _pool("pool_1"),
            _conv("conv_2", 50, 5, "valid"),
            _pool("pool_2"),
        ],
        [500],
        num_classes,
    )


@MODELS.register("conv2")
def conv2(input_shape, num_classes):
    """Conv-2, 4.3M weights on CIFAR-10 (Frankle & Carbin 2019, figure 2)."""
    return _conv_network("conv2", input_shape, (64,), num_classes)


@MODELS.register("conv4")
def conv4(input_shape, num_classes):
    """Conv-4, 2.4M weights on CIFAR-10 (Frankle & Carbin 2019, figure 2)."""
    return _conv_network("conv4", input_shape, (64, 128), num_classes)


@MODELS.register("conv6")
def conv6(input_shape, num_classes):
    """Conv-6, 2.3M weights on CIFAR-10 (Frankle & Carbin 2019, figure 2).

    The figure gives 1.7M weights, 1.1M of them in convolutions. The layers that it
    names have 1,144,512 in convolutions and, after three poolings of 32 × 32, 256 · 4²
    inputs to 256 units: 2,261,184 in all.
    """
    return _conv_network("conv6", input_shape, (64, 128, 256), num_classes)


@MODELS.register("vgg19")
def vgg19(input_shape, num_classes):
    """VGG-19 with batch norm, 20.0M weights on CIFAR-10 (Frankle & Carbin 2019).

    Simonyan & Zisserman 2015 (table 1, E) with one dense layer after the average of the
    last convolutions, as in the lottery-ticket papers.
    """
    layers = []
    stages = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
    for stage, (filters, count) in enumerate(stages, start=1):
        if stage > 1:
            layers.append(_pool(f"pool_{stage - 1}"))
        for index in range(1, count + 1):
            layers += _conv_norm(f"conv_{stage}_{index}", filters)
    return keras.Sequential(
        [
            keras.Input(input_shape),
            *layers,
            keras.layers.GlobalAveragePooling2D(name="average"),
            _dense("output", num_classes),
        ],
        name="vgg19",
    )


def _conv_network(name, input_shape, filters, num_classes):
    """Pairs of convolutions with a pooling each, then 256, 256 and the classes."""
    features = []
    for pair, width in enumerate(filters, start=1):
        features += [
            _conv(f"conv_{2 * pair - 1}", width),
            _conv(f"conv_{2 * pair}", width),
            _pool(f"pool_{pair}"),
        ]
    return _network(name, input_shape, features, [256, 256], num_classes)


def _network(name, input_shape, features, hidden, num_classes):
    return keras.Sequential(
        [
            keras.Input(input_shape),
            *features,
            keras.layers.Flatten(name="flatten"),
            *(
                _dense(f"hidden_{index}", units, "relu")
                for index, units in enumerate(hidden, start=1)
            ),
            _dense("output", num_classes),
        ],
        name=name,
    )


def _conv(name, filters, size=3, padding="same"):
    return keras.layers.Conv2D(
        filters,
        size,
        padding=padding,
        activation="relu",
        kernel_initializer="glorot_normal",
        name=name,
    )


def _conv_norm(name, filters):
    return [
        keras.layers.Conv2D(
            filters,
            3,
            padding="same",
            use_bias=False,
            kernel_initializer="glorot_normal",
            name=name,
        ),
        keras.layers.BatchNormalization(name=f"{name}_norm"),
        keras.layers.ReLU(name=f"{name}_relu"),
    ]


def _pool(name):
    return keras.layers.MaxPooling2D(2, name=name)


def _dense(name, units, activation=None):
    return keras.layers.Dense(
        units, activation, kernel_initializer="glorot_normal", name=name
    )
