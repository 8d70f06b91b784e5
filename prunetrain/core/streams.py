"""Data that stays on the host: gathered by tf.data while the device works.

A chunk is what some rows of x and y hold. Chunks are numbered, and which rows chunk i
takes is a function of i, so a stream can begin anywhere and always gives the same.
"""

import functools
import os

import numpy as np
import tensorflow as tf

# Chunks that are made while one is used: one ready, one in the making.
_AHEAD = 1
_CHUNK_BYTES = 1 << 24
_CHUNK_STEPS = 100


def chunks(x, y, rows_of, first=0, last=2**62):
    """Yields `(x[rows], y[rows])` as tensors for `rows = rows_of(i)`, first ≤ i < last.

    Args:
        x, y: arrays, or anything with `shape`, `dtype` and `x[rows]`.
        rows_of: function of the chunk's number, an int; called in another thread.
        first, last: numbers of the first chunk and of the one after the last.
    """

    def gather(index):
        rows = rows_of(int(index))
        return x[rows], y[rows]

    def load(index):
        return tf.numpy_function(gather, [index], (x.dtype, y.dtype))

    return iter(tf.data.Dataset.range(first, last).map(load).prefetch(_AHEAD))


def steps_per_chunk(x, batch_size):
    """How many batches of `x` make a chunk: few enough to be ready soon."""
    example = np.dtype(x.dtype).itemsize * int(np.prod(x.shape[1:]))
    return min(max(1, _CHUNK_BYTES // max(1, batch_size * example)), _CHUNK_STEPS)


def visits(shuffled, num_examples, seed):
    """`(first, count) -> rows` at these positions of the epochs laid end to end.

    Args:
        shuffled: `(num_examples, seed, epoch) -> order`, as in `loops`.
        num_examples, seed: its arguments.
    """

    @functools.lru_cache(maxsize=2)
    def order(epoch):
        with tf.device("CPU:0"):
            return shuffled(num_examples, seed, epoch).numpy()

    def rows(first, count):
        epochs, places = np.divmod(np.arange(first, first + count), num_examples)
        parts = [
            order(epoch)[places[epochs == epoch]]
            for epoch in range(epochs[0], epochs[-1] + 1)
        ]
        return np.concatenate(parts)

    return rows


def device_memory():
    """Bytes of memory of the device that trains: the first GPU, or the machine."""
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # tf.config has no call that tells how large a GPU's memory is.
    from tensorflow.python.client import device_lib

    return min(
        device.memory_limit
        for device in device_lib.list_local_devices()
        if device.device_type == "GPU"
    )
