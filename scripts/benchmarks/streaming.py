"""Data handed to the device while it works, against data that lies on it.

    python scripts/benchmarks/streaming.py [--model=conv2] [--steps=40] [--rounds=5]

Two networks of the same initial weights train on the same 20,000 random images in the
same order, in turn. Prints the median milliseconds a step of each, the ratio of their
speeds, and whether their weights are the same to the bit at the end. Two minutes for
conv2 on a CPU; nothing else should run meanwhile.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import prunetrain as pt
from prunetrain import data
from prunetrain.models import MODELS

SHAPES = {"conv2": (32, 32, 3), "lenet_300_100": (28, 28, 1)}


def main():
    arguments = _arguments()
    tf.config.experimental.enable_op_determinism()
    data.DATASETS["random"] = lambda data_dir: random_images(SHAPES[arguments.model])
    dataset = data.open_dataset("random", validation_size=1000)
    trainings = {
        "arrays": training(arguments.model, dataset.loaded(), stream=False),
        "stream": training(arguments.model, dataset, stream=True),
    }
    ms = {name: [] for name in trainings}
    for round in range(arguments.rounds + 1):  # the first compiles
        for name, (loop, _) in trainings.items():
            start = time.perf_counter()
            loop(round * arguments.steps, arguments.steps).numpy()
            if round:
                seconds = time.perf_counter() - start
                ms[name].append(1000 * seconds / arguments.steps)
    arrays, stream = (statistics.median(values) for values in ms.values())
    print(f"arrays {arrays:.3f} ms, stream {stream:.3f} ms a step")
    print(f"speed of the stream ÷ that of arrays: {arrays / stream:.2f}")
    weights = [pruned.model.get_weights() for _, pruned in trainings.values()]
    print("same bits:", all(map(np.array_equal, *weights)))


def random_images(shape):
    rng = np.random.default_rng(0)

    def split(count):
        images = rng.integers(256, size=(count, *shape), dtype=np.uint8)
        return images, rng.integers(10, size=count)

    return data.Raw(*split(20_000), *split(100), 10, "random")


def training(name, dataset, stream):
    """`(loop, pruned)` with batches of 60."""
    keras.utils.set_random_seed(1)
    pruned = pt.PrunedModel(MODELS[name](SHAPES[name], 10))
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-3)
    loop = pt.make_train_loop(
        pruned, optimizer, loss_fn, *dataset.train, 60, stream=stream
    )
    return loop, pruned


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="conv2")
    parser.add_argument("--steps", type=int, default=40, help="in a round")
    parser.add_argument("--rounds", type=int, default=5, help="after one that compiles")
    return parser.parse_args()


if __name__ == "__main__":
    main()
