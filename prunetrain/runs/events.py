"""TensorBoard's events of a run: `tensorboard --logdir=WORKDIR/tensorboard`.

    replicate0-ticket-round02/   by step: loss and accuracy of each split
    replicate0-ticket/           by round: what results.csv has, the masks as images
                                 (white is kept) and the surviving weights as histograms

A training that is gone on with writes once more what came after its checkpoint, the
same numbers at the same steps.
"""

import importlib.util

import numpy as np

from prunetrain.errors import InputError
from prunetrain.lazy import tf

# Pixels of an image's longer side. Beyond, a pixel is the share kept of a block.
_MOST_PIXELS = 512
_OF_ROW = (
    *("weights_remaining", "sparsity", "best_step", "val_loss", "val_accuracy"),
    *("test_loss", "test_accuracy", "final_test_loss", "final_test_accuracy"),
)


def check():
    """Raises InputError unless TensorBoard is installed, which tf.summary needs."""
    if not importlib.util.find_spec("tensorboard"):
        raise InputError(
            "--tensorboard=on needs TensorBoard, which is not installed. Install it "
            "with: pip install 'prunetrain[tensorboard]'; or leave the flag out: "
            "metrics.jsonl and `prunetrain report` have the same numbers"
        )


class Events:
    """Writes the events of one training.

    Args:
        folder: `pathlib.Path` of the run's events.
        replicate, branch, round: which training.
    """

    def __init__(self, folder, replicate, branch, round):
        self._round = round
        self._rounds = folder / f"replicate{replicate}-{branch}"
        name = f"replicate{replicate}-{branch}-round{round:02d}"
        self._steps = tf.summary.create_file_writer(str(folder / name))

    def evaluated(self, split, evaluation, train_loss=None):
        """Loss and accuracy at a step of the training."""
        values = {f"{split}/loss": evaluation.loss, "training/loss": train_loss}
        values[f"{split}/accuracy"] = evaluation.accuracy
        with self._steps.as_default(evaluation.step):
            _write_scalars(values)
        self._steps.flush()

    def finished(self, row, pruned):
        """The outcome, by round.

        Args:
            row: `results.Row`.
            pruned: `PrunedModel` that holds the weights of the outcome.
        """
        writer = tf.summary.create_file_writer(str(self._rounds))
        with writer.as_default(self._round):
            _write_scalars({name: getattr(row, name) for name in _OF_ROW})
            for kernel, mask in zip(pruned.kernels, pruned.masks, strict=True):
                mask = mask.numpy()
                image = as_image(mask)[None, ..., None]
                surviving = kernel.value.numpy()[mask].astype(np.float32)
                tf.summary.image(f"masks/{kernel.path}", image)
                tf.summary.histogram(f"surviving weights/{kernel.path}", surviving)
        writer.close()
        self._steps.close()


def _write_scalars(values):
    for name, value in values.items():
        if value is not None:
            tf.summary.scalar(name, value)


def as_image(mask):
    """A mask as a picture: a row per input, a column per output.

    Args:
        mask: boolean, outputs along the last axis.

    Returns:
        uint8, 255 where all is kept, at most 512 on a side.
    """
    share = 255.0 * mask.reshape(-1, mask.shape[-1])
    for axis in (0, 1):
        size = share.shape[axis]
        if size > _MOST_PIXELS:
            starts = np.arange(_MOST_PIXELS) * size // _MOST_PIXELS
            counts = np.expand_dims(np.diff([*starts, size]), 1 - axis)
            share = np.add.reduceat(share, starts, axis) / counts
    return np.rint(share).astype(np.uint8)
