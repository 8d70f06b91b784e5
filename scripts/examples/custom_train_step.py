"""A Keras model with its own `train_step`, trained by `model.fit`, sparse.

python scripts/examples/custom_train_step.py --steps=500
"""

import argparse

import keras
import tensorflow as tf

import prunetrain as pt


class Classifier(keras.Model):
    """Adds the norm of its logits to the loss, in a step of its own."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(128, "relu")
        self.logits = keras.layers.Dense(10)
        self.pruned = None

    def call(self, x):
        return self.logits(self.hidden(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=logits)
            loss += 1e-3 * tf.reduce_mean(tf.square(logits))
        gradients = tape.gradient(loss, self.trainable_variables)
        # The three lines that make a step sparse: before, instead of, and after.
        gradients = self.pruned.mask_gradients(gradients)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.pruned.apply_masks()
        return {"total_loss": loss}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    steps = parser.parse_args().steps
    keras.utils.set_random_seed(0)
    x, y = pt.load_dataset("mnist").train
    x = x.reshape(-1, 784)
    model = Classifier()
    model(x[:1])
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    model.compile(
        optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.pruned = pruned = pt.PrunedModel(model)
    pruned.attach_optimizer(optimizer)
    # From now on masks change without a retrace, whenever you prune.
    for sparsity in (0.5, 0.8):
        pt.prune(pruned, sparsity=sparsity)
        history = model.fit(x, y, 64, steps_per_epoch=steps, verbose=0)
        pt.testing.assert_masks_hold(pruned, optimizer)
        loss = history.history["total_loss"][0]
        print(f"{pruned.sparsity():.1%} pruned, exactly zero, loss {loss:.3f}")


if __name__ == "__main__":
    main()
