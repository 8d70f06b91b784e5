"""`model.fit` as it is: the masks behind Keras constraints.

python scripts/examples/constrain_fit.py --steps=500
"""

import argparse

import keras

import prunetrain as pt


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    steps = parser.parse_args().steps
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, "relu"),
            keras.layers.Dense(10),
        ]
    )
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss_fn, metrics=["accuracy"])
    dataset = pt.load_dataset("mnist")
    pruned = pt.PrunedModel(model)
    pruned.constrain()
    for sparsity in (0.0, 0.5, 0.8, 0.9):
        if sparsity:
            pt.prune(pruned, sparsity=sparsity)
        model.fit(*dataset.train, 64, steps_per_epoch=steps, verbose=0)
        pt.testing.assert_masks_hold(pruned)
        _, accuracy = model.evaluate(*dataset.test, 1000, verbose=0)
        print(f"{pruned.sparsity():.1%} pruned, exactly zero, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
