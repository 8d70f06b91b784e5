"""Two networks, two optimizers, one step: both networks of a GAN sparse.

python scripts/examples/gan.py --steps=2000
"""

import argparse

import keras
import tensorflow as tf

import prunetrain as pt

NOISE = 32


def network(name, inputs, *units):
    layers = [keras.layers.Dense(n, "relu") for n in units[:-1]]
    return keras.Sequential(
        [keras.Input((inputs,)), *layers, keras.layers.Dense(units[-1])], name=name
    )


def make_step(generator, discriminator, generator_optimizer, discriminator_optimizer):
    loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
    # Once, before tracing: each optimizer's slots follow the masks of its network.
    generator.attach_optimizer(generator_optimizer)
    discriminator.attach_optimizer(discriminator_optimizer)

    def update(pruned, optimizer, gradients):
        gradients = pruned.mask_gradients(gradients)
        optimizer.apply(gradients, pruned.trainable_variables)
        pruned.apply_masks()

    @tf.function(jit_compile=True)
    def step(real):
        noise = tf.random.normal([tf.shape(real)[0], NOISE])
        with tf.GradientTape(persistent=True) as tape:
            fake = discriminator(generator(noise, training=True), training=True)
            genuine = discriminator(real, training=True)
            ones, zeros = tf.ones_like(fake), tf.zeros_like(fake)
            generator_loss = loss_fn(ones, fake)
            discriminator_loss = loss_fn(ones, genuine) + loss_fn(zeros, fake)
        for pruned, optimizer, loss in (
            (generator, generator_optimizer, generator_loss),
            (discriminator, discriminator_optimizer, discriminator_loss),
        ):
            gradients = tape.gradient(loss, pruned.trainable_variables)
            update(pruned, optimizer, gradients)
        return generator_loss, discriminator_loss

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    keras.utils.set_random_seed(0)
    generator = pt.PrunedModel(network("generator", NOISE, 128, 256, 784))
    discriminator = pt.PrunedModel(network("discriminator", 784, 256, 128, 1))
    optimizers = keras.optimizers.Adam(2e-4), keras.optimizers.Adam(2e-4)
    for pruned in (generator, discriminator):
        pt.prune(pruned, sparsity=0.8)
    step = make_step(generator, discriminator, *optimizers)
    images = pt.load_dataset("mnist").train[0].reshape(-1, 784)
    batches = tf.data.Dataset.from_tensor_slices(images).shuffle(10_000, seed=0)
    for batch in batches.repeat().batch(64).take(steps):
        losses = step(batch)
    print("generator {:.3f}, discriminator {:.3f}".format(*map(float, losses)))
    for pruned, optimizer in zip((generator, discriminator), optimizers, strict=True):
        pt.testing.assert_masks_hold(pruned, optimizer)
        print(f"{pruned.model.name}: {pruned.sparsity():.1%} pruned, exactly zero")


if __name__ == "__main__":
    main()
