"""Small convolutional networks."""

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
    return _network(
        "conv2",
        input_shape,
        [_conv("conv_1", 64), _conv("conv_2", 64), _pool("pool")],
        [256, 256],
        num_classes,
    )


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


def _pool(name):
    return keras.layers.MaxPooling2D(2, name=name)


def _dense(name, units, activation=None):
    return keras.layers.Dense(
        units, activation, kernel_initializer="glorot_normal", name=name
    )
