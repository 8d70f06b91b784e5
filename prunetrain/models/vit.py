"""Vision transformers for small images."""

from prunetrain.lazy import keras
from prunetrain.models import MODELS


@MODELS.register("vit_tiny")
def vit_tiny(
    input_shape, num_classes, patch=4, width=192, depth=12, heads=3, dropout=0.0
):
    """ViT-Ti with patches of 4 × 4, 5.4M weights on CIFAR-10 (Touvron et al. 2021).

    The vision transformer of Dosovitskiy et al. 2021 in the size of Touvron et al.
    (table 1), with the average over the patches in place of a class token (Beyer et al.
    2022, "Better plain ViT baselines for ImageNet-1k").

    Args:
        input_shape, num_classes: as for every model.
        patch: side of a patch, which divides height and width.
        width: length of the vector that stands for a patch; `heads` divides it.
        depth: transformer blocks.
        heads: attention heads in each block.
        dropout: rate after each block's two parts.
    """
    rows, columns, channels = input_shape
    if rows % patch or columns % patch:
        raise ValueError(
            f"patch must divide the image of {rows} × {columns}. Received: "
            f"patch={patch}"
        )
    if width % heads:
        raise ValueError(f"heads must divide width={width}. Received: heads={heads}")
    grid = rows // patch, columns // patch
    inputs = keras.Input(input_shape)
    x = keras.layers.Reshape((grid[0], patch, grid[1], patch, channels), name="cut")(
        inputs
    )
    # All of a patch to `width` numbers; the bias, one vector for each place in the
    # grid, is the learned position.
    x = keras.layers.EinsumDense(
        "bipjqc,pqcd->bijd",
        (*grid, width),
        bias_axes="ijd",
        bias_initializer=keras.initializers.RandomNormal(stddev=0.02),
        name="patches",
    )(x)
    x = keras.layers.Reshape((-1, width), name="sequence")(x)
    for block in range(1, depth + 1):
        x = _block(x, heads, dropout, f"block_{block}")
    x = keras.layers.LayerNormalization(epsilon=1e-6, name="norm")(x)
    x = keras.layers.GlobalAveragePooling1D(name="average")(x)
    outputs = keras.layers.Dense(num_classes, name="output")(x)
    return keras.Model(inputs, outputs, name="vit_tiny")


def _block(x, heads, dropout, name):
    """Attention, then two dense layers, each on what is normalised and added."""
    width = x.shape[-1]
    attention = keras.layers.MultiHeadAttention(
        heads, width // heads, name=f"{name}_attention"
    )
    y = keras.layers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm_1")(x)
    x = _add(x, attention(y, y), dropout, f"{name}_attention")
    y = keras.layers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm_2")(x)
    y = keras.layers.Dense(4 * width, "gelu", name=f"{name}_dense_1")(y)
    y = keras.layers.Dense(width, name=f"{name}_dense_2")(y)
    return _add(x, y, dropout, f"{name}_dense")


def _add(x, y, dropout, name):
    if dropout:
        y = keras.layers.Dropout(dropout, name=f"{name}_dropout")(y)
    return keras.layers.Add(name=f"{name}_add")([x, y])
