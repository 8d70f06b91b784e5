"""A `tf.GradientTape` with auxiliary losses: two heads, one of them dense.

python scripts/examples/auxiliary_losses.py --steps=500
"""

import argparse

import keras
import tensorflow as tf

import prunetrain as pt


def network():
    inputs = keras.Input((784,))
    code = keras.layers.Dense(
        64, "relu", kernel_regularizer=keras.regularizers.L2(1e-4), name="code"
    )(inputs)
    digit = keras.layers.Dense(10, name="digit")(code)
    image = keras.layers.Dense(784, name="image")(code)
    return keras.Model(inputs, {"digit": digit, "image": image})


def make_step(pruned, optimizer):
    classification = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    reconstruction = keras.losses.MeanSquaredError()
    pruned.attach_optimizer(optimizer)

    @tf.function(jit_compile=True)
    def step(x, y):
        with tf.GradientTape() as tape:
            outputs = pruned(x, training=True)
            loss = classification(y, outputs["digit"])
            loss += 0.5 * reconstruction(x, outputs["image"])
            loss += tf.add_n(pruned.model.losses)  # the regulariser's
        gradients = tape.gradient(loss, pruned.trainable_variables)
        gradients = pruned.mask_gradients(gradients)
        optimizer.apply(gradients, pruned.trainable_variables)
        pruned.apply_masks()
        return loss

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    steps = parser.parse_args().steps
    keras.utils.set_random_seed(0)
    pruned = pt.PrunedModel(network(), pt.kernels(exclude="digit"))
    optimizer = keras.optimizers.Adam(1e-3)
    step = make_step(pruned, optimizer)
    x, y = pt.load_dataset("mnist").train
    batches = tf.data.Dataset.from_tensor_slices((x.reshape(-1, 784), y))
    batches = batches.shuffle(10_000, seed=0).repeat().batch(64, drop_remainder=True)
    for index, (images, labels) in enumerate(batches.take(steps)):
        if index == steps // 2:
            pt.prune(pruned, sparsity=0.9, allocation="global")
        loss = step(images, labels)
    pt.testing.assert_masks_hold(pruned, optimizer)
    print(f"{pruned.sparsity():.1%} pruned, exactly zero, loss {float(loss):.3f}")
    print(pruned.summary())


if __name__ == "__main__":
    main()
