"""Scores: how much each weight deserves to stay. Higher is kept.

A criterion is a function `(pruned, *, initial, data, loss_fn, seed) -> scores`:
`pruned` is the `PrunedModel` (its weights as trained), `initial` the weights at
initialisation aligned with `pruned.kernels` (or None), `data` an iterable of batches
`(x, y)` (or None), `loss_fn` the loss (or None), `seed` an integer. It returns one
float tensor per kernel, of the kernel's shape. Scores of pruned weights are ignored. To
add one, write it here and register it.

Instead of a tensor it may return a pair `(function, tensors)`, tensors of the kernel's
shape, whose scores `function(*tensors)` are then computed while they are counted and
never stored: pruning needs no memory for them (`topk.evaluate` has the conditions).
"""

from prunetrain.lazy import tf
from prunetrain.registry import Registry

CRITERIA = Registry("criterion")


@CRITERIA.register("magnitude")
def magnitude(pruned, *, initial, data, loss_fn, seed):
    """|w|: the smallest weights go (Frankle & Carbin 2019, section 2)."""
    del initial, data, loss_fn, seed
    return [(tf.abs, (kernel.value,)) for kernel in pruned.kernels]
