"""Residual networks for small images."""

from prunetrain.lazy import keras
from prunetrain.models import MODELS


@MODELS.register("resnet20")
def resnet20(input_shape, num_classes):
    """ResNet-20, 272K weights on CIFAR-10 (He et al. 2016, section 4.2).

    Where the shape changes, the shortcut is a 1 × 1 convolution with batch norm, as in
    Frankle et al. 2020 ("Linear Mode Connectivity and the Lottery Ticket Hypothesis").
    What Frankle & Carbin 2019 (figure 2) call Resnet-18, with 274K weights, is this
    network.
    """
    return _resnet("resnet20", input_shape, (16, 32, 64), 3, num_classes)


@MODELS.register("resnet18")
def resnet18(input_shape, num_classes):
    """ResNet-18 with a 3 × 3 stem, 11.2M weights on CIFAR-10 (He et al. 2016, table 1).

    For images of about 32 × 32: the 7 × 7 convolution of stride 2 and the pooling after
    it are replaced by a 3 × 3 convolution. Not the Resnet-18 of Frankle & Carbin 2019,
    which is `resnet20`.
    """
    return _resnet("resnet18", input_shape, (64, 128, 256, 512), 2, num_classes)


@MODELS.register("wide_resnet")
def wide_resnet(input_shape, num_classes, depth=28, width=10, dropout=0.0):
    """WRN-28-10, 36.5M weights on CIFAR-10 (Zagoruyko & Komodakis 2016, table 1).

    Args:
        input_shape, num_classes: as for every model.
        depth: convolutions in the longest path plus one; 6n + 4 for a whole n.
        width: how many times as wide as the network of the same depth in He et al.
        dropout: rate between the two convolutions of a block.
    """
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        raise ValueError(f"depth must be 10, 16, 22, 28, … Received: depth={depth}")
    inputs = keras.Input(input_shape)
    x = _conv(inputs, 16, 3, 1, "stem_conv")
    for stage, filters in enumerate((16, 32, 64), start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            name = f"stage_{stage}_block_{block}"
            x = _pre_activated_block(x, filters * width, stride, dropout, name)
    x = _norm_relu(x, "last")
    return _classifier("wide_resnet", inputs, x, num_classes)


def _resnet(name, input_shape, filters, blocks, num_classes):
    inputs = keras.Input(input_shape)
    x = keras.layers.ReLU(name="relu")(_conv_norm(inputs, filters[0], 3, 1, "stem"))
    for stage, width in enumerate(filters, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _block(x, width, stride, f"stage_{stage}_block_{block}")
    return _classifier(name, inputs, x, num_classes)


def _classifier(name, inputs, x, num_classes):
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    outputs = keras.layers.Dense(
        num_classes, kernel_initializer="he_normal", name="output"
    )(x)
    return keras.Model(inputs, outputs, name=name)


def _block(inputs, filters, stride, name):
    x = _conv_norm(inputs, filters, 3, stride, f"{name}_first")
    x = keras.layers.ReLU(name=f"{name}_first_relu")(x)
    x = _conv_norm(x, filters, 3, 1, f"{name}_second")
    if stride > 1:
        inputs = _conv_norm(inputs, filters, 1, stride, f"{name}_shortcut")
    x = keras.layers.Add(name=f"{name}_add")([x, inputs])
    return keras.layers.ReLU(name=f"{name}_relu")(x)


def _pre_activated_block(inputs, filters, stride, dropout, name):
    """Norm and ReLU before each convolution (He et al. 2016b)."""
    active = _norm_relu(inputs, f"{name}_first")
    x = _conv(active, filters, 3, stride, f"{name}_first_conv")
    x = _norm_relu(x, f"{name}_second")
    if dropout:
        x = keras.layers.Dropout(dropout, name=f"{name}_dropout")(x)
    x = _conv(x, filters, 3, 1, f"{name}_second_conv")
    if inputs.shape[-1] != filters or stride > 1:
        inputs = _conv(active, filters, 1, stride, f"{name}_shortcut_conv")
    return keras.layers.Add(name=f"{name}_add")([x, inputs])


def _conv_norm(x, filters, size, stride, name):
    x = _conv(x, filters, size, stride, f"{name}_conv")
    return keras.layers.BatchNormalization(name=f"{name}_norm")(x)


def _norm_relu(x, name):
    x = keras.layers.BatchNormalization(name=f"{name}_norm")(x)
    return keras.layers.ReLU(name=f"{name}_relu")(x)


def _conv(x, filters, size, stride, name):
    return keras.layers.Conv2D(
        filters,
        size,
        stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=name,
    )(x)
