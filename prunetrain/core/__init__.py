"""What research code embeds: masks, steps, loops, snapshots."""

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "prunetrain runs on Keras's TensorFlow backend. Received: backend="
        f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow before importing "
        "keras."
    )
