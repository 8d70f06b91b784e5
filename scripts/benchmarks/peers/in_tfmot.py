"""Worker of peers.py: tensorflow-model-optimization, `prune_low_magnitude` in `fit`."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # read when tfmot is imported

import serve
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

sparsity = tfmot.sparsity.keras
BATCH_SIZE = 64


def mlp(x, y):
    name, num_steps = "tfmot, fit", len(x) // BATCH_SIZE
    x, y = tf.constant(x), tf.constant(y)
    return {
        name: _variant(x, y, num_steps, 1),
        f"{name}, steps_per_execution": _variant(x, y, num_steps, num_steps),
    }


def _variant(x, y, num_steps, steps_per_execution):
    keras.utils.set_random_seed(0)
    dense = [keras.layers.Dense(units, "relu") for units in (300, 100, 50)]
    model = keras.Sequential([keras.Input(x.shape[1:]), *dense, keras.layers.Dense(10)])
    # Masks once, at the first step (its count begins at 1), instead of every 100.
    schedule = sparsity.ConstantSparsity(
        1 - serve.DENSITY, begin_step=1, end_step=1, frequency=1
    )
    model = sparsity.prune_low_magnitude(model, pruning_schedule=schedule)
    model.compile(
        keras.optimizers.Adam(1.2e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps_per_execution,
    )

    def epoch():
        history = model.fit(
            x,
            y,
            BATCH_SIZE,
            epochs=1,
            steps_per_epoch=num_steps,
            verbose=0,
            callbacks=[sparsity.UpdatePruningStep()],
        ).history
        return history["loss"][0]

    def kernels():
        return [wrapper.layer.kernel.numpy() for wrapper in model.layers]

    return serve.Variant(epoch, kernels)


if __name__ == "__main__":
    versions = {
        "tensorflow-model-optimization": tfmot.__version__,
        "tf_keras": keras.__version__,
        "its tensorflow": tf.__version__,
    }
    serve.main({"mlp": mlp}, versions)
