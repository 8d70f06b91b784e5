"""What evaluation counts for each task, by class: how many are right, and of how many.

A sum over the groups divided by theirs is the accuracy. Regression has no groups.
"""

import numpy as np

from prunetrain.lazy import tf


def make_tally(task, probabilities, width):
    """`(y, outputs) -> right`: int32 `[groups]`, for one batch.

    Args:
        task: a name in `data.TASKS`.
        probabilities: whether 0.5 decides, not 0, for binary and multi-label.
        width: how many outputs the model has.

    Returns:
        A function of labels as a `data.Dataset` has them. Groups are the classes (0
        and 1 for binary: accuracy by class is the recall of each), or the labels of a
        multi-label task.
    """

    def decided(outputs):
        return outputs > tf.cast(0.5 if probabilities else 0.0, outputs.dtype)

    def of_classes(y, outputs):
        hits = tf.equal(tf.argmax(outputs, -1, output_type=y.dtype), y)
        return _count(tf.one_hot(y, width, True, False, dtype=tf.bool) & hits[:, None])

    def of_two(y, outputs):
        is_one = y > 0.5
        hits = tf.equal(decided(outputs), is_one)
        return _count(tf.concat([hits & ~is_one, hits & is_one], 1))

    def of_labels(y, outputs):
        return _count(tf.equal(decided(outputs), y > 0.5))

    def of_none(y, outputs):
        del y, outputs
        return tf.zeros([0], tf.int32)

    return {
        "classes": of_classes,
        "binary": of_two,
        "multilabel": of_labels,
        "regression": of_none,
    }[task]


def group_sizes(task, y, width):
    """How many there are in each group: int64 `[groups]`, of all labels of a split."""
    if task == "classes":
        return np.bincount(y, minlength=width)
    if task == "binary":
        return np.bincount(y[:, 0].astype(int), minlength=2)
    return np.full(width if task == "multilabel" else 0, len(y))


def accuracy(correct, size):
    """Their ratio, None for a group that is empty."""
    return int(correct) / int(size) if size else None


def _count(hits):
    return tf.reduce_sum(tf.cast(hits, tf.int32), 0)
