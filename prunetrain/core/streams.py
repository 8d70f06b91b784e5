"""Data that stays on the host: gathered by a thread while the device works.

A chunk is what some rows of x and y hold. Chunks are numbered, and which rows chunk i
takes is a function of i, so a stream can begin anywhere and always gives the same.
"""

import concurrent.futures
import functools
import os

import numpy as np
import tensorflow as tf

_CHUNK_BYTES = 1 << 24
_CHUNK_STEPS = 100


def chunks(x, y, rows_of, first=0, last=2**62):
    """Yields `(x[rows], y[rows])` as tensors for `rows = rows_of(i)`, first ≤ i < last.

    The next one is made while one is used.

    Args:
        x, y: arrays, or anything with `shape`, `dtype` and `x[rows]`.
        rows_of: function of the chunk's number, an int; called in another thread.
        first, last: numbers of the first chunk and of the one after the last.
    """

    def gather(index):
        rows = rows_of(index)
        return tf.convert_to_tensor(x[rows]), tf.convert_to_tensor(y[rows])

    # Not tf.data: a process that ends while it calls back into Python waits for ever.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(gather, first)
        for index in range(first, last):
            chunk = ahead
            if index + 1 < last:
                ahead = pool.submit(gather, index + 1)
            yield chunk.result()


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
