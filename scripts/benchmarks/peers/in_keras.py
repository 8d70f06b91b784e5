"""Worker of peers.py: Keras `fit`, no pruning."""

import keras
import serve
import tensorflow as tf


def conv_2(x, y):
    keras.utils.set_random_seed(0)
    model = conv2(x.shape[1:], 10)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-4), loss_fn)
    x, y = tf.constant(x), tf.constant(y)

    def epoch():
        history = model.fit(x, y, 60, epochs=1, verbose=0).history
        return history["loss"][0]

    return {"Keras fit, dense": serve.Variant(epoch)}


def conv2(input_shape, num_classes):
    """Conv-2 (Frankle & Carbin 2019, figure 2)."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(num_classes),
        ]
    )


if __name__ == "__main__":
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    serve.main({"conv2": conv_2}, versions)
