"""Residual networks for small images."""

from prunetrain.lazy import keras
from prunetrain.models import MODELS


@MODELS.register("resnet20")
def resnet20(input_shape, num_classes):
    """ResNet-20, 272K weights on CIFAR-10 (He et al. 2016, section 4.2).

    Where the shape changes, the shortcut is a 1 × 1 convolution with batch norm, as in
    Frankle et al. 2020 ("Linear Mode Connectivity and the Lottery Ticket Hypothesis").
    """
    inputs = keras.Input(input_shape)
    x = keras.layers.ReLU(name="relu")(_conv_norm(inputs, 16, 3, 1, "stem"))
    for stage, filters in enumerate((16, 32, 64), start=1):
        for block in range(1, 4):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _block(x, filters, stride, f"stage_{stage}_block_{block}")
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    outputs = keras.layers.Dense(
        num_classes, kernel_initializer="he_normal", name="output"
    )(x)
    return keras.Model(inputs, outputs, name="resnet20")


def _block(inputs, filters, stride, name):
    x = _conv_norm(inputs, filters, 3, stride, f"{name}_first")
    x = keras.layers.ReLU(name=f"{name}_first_relu")(x)
    x = _conv_norm(x, filters, 3, 1, f"{name}_second")
    if stride > 1:
        inputs = _conv_norm(inputs, filters, 1, stride, f"{name}_shortcut")
    x = keras.layers.Add(name=f"{name}_add")([x, inputs])
    return keras.layers.ReLU(name=f"{name}_relu")(x)


def _conv_norm(x, filters, size, stride, name):
    x = keras.layers.Conv2D(
        filters,
        size,
        stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    return keras.layers.BatchNormalization(name=f"{name}_norm")(x)
