"""Fully connected networks."""

from prunetrain.lazy import keras
from prunetrain.models import MODELS


@MODELS.register("lenet_300_100")
def lenet_300_100(input_shape, num_classes):
    """LeNet-300-100 with Glorot-normal kernels (Frankle & Carbin 2019, section 2)."""
    return _mlp("lenet_300_100", input_shape, (300, 100), num_classes, "glorot_normal")


@MODELS.register("mlp_300_100_50")
def mlp_300_100_50(input_shape, num_classes):
    """784-300-100-50-10 on MNIST, with Keras's default initialisation."""
    return _mlp(
        "mlp_300_100_50", input_shape, (300, 100, 50), num_classes, "glorot_uniform"
    )


def _mlp(name, input_shape, hidden, num_classes, kernel_initializer):
    def dense(units, layer_name, activation=None):
        return keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=kernel_initializer,
            name=layer_name,
        )

    return keras.Sequential(
        [
            keras.Input(input_shape),
            keras.layers.Flatten(name="flatten"),
            *(
                dense(units, f"hidden_{index}", "relu")
                for index, units in enumerate(hidden, start=1)
            ),
            dense(num_classes, "output"),
        ],
        name=name,
    )
