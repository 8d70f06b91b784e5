"""Worker of peers.py: Keras `fit`, no pruning."""

import keras
import serve
import tensorflow as tf

from prunetrain.models import MODELS


def conv_2(x, y):
    keras.utils.set_random_seed(0)
    model = MODELS["conv2"](x.shape[1:], 10)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-4), loss_fn)
    x, y = tf.constant(x), tf.constant(y)

    def epoch():
        history = model.fit(x, y, 60, epochs=1, verbose=0).history
        return history["loss"][0]

    return {"Keras fit, dense": serve.Variant(epoch)}


if __name__ == "__main__":
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    serve.main({"conv2": conv_2}, versions)
