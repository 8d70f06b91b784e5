"""Scores: how much each weight deserves to stay. Higher is kept.

A criterion is a function `(pruned, *, initial, data, loss_fn, seed) -> scores`:
`pruned` is the `PrunedModel` (its weights as trained), `initial` the weights at
initialisation aligned with `pruned.kernels` (or None), `data` an iterable of batches
`(x, y)` (or None), `loss_fn` the loss (or None), `seed` an integer. It returns one
float tensor per kernel, of the kernel's shape. Scores of pruned weights are ignored. To
add one, write it here, or in a module of this package, and register it:

    @CRITERIA.register("small", needs=("initial",))

`needs` names what may not be None. `iterations` is in how many steps it prunes, by
default one; in each it is asked for scores again, under the masks so far. Both are
attributes of the function that is registered.

Instead of a tensor it may return a pair `(function, tensors)`, tensors of the kernel's
shape, whose scores `function(*tensors)` are then computed while they are counted and
never stored: pruning needs no memory for them (`topk.evaluate` has the conditions).
"""

import functools
import importlib
import pkgutil

from prunetrain.lazy import tf
from prunetrain.registry import Registry

_WHY = {
    "initial": "which looks at the weights at initialisation: give a list of tensors "
    "aligned with the kernels",
    "data": "which looks at examples: give an iterable of batches (x, y), for example "
    "dataset.take(10)",
    "loss_fn": "which takes gradients of the loss: give (y, outputs) -> loss",
}


class Criteria(Registry):
    """Criteria by name, each of which says what it needs."""

    def register(self, name, needs=(), iterations=1):
        """Decorator: file the criterion under `name`.

        Args:
            name: value of `criterion`.
            needs: which of "initial", "data" and "loss_fn" may not be None.
            iterations: in how many steps it prunes unless told otherwise.
        """

        def add(function):
            checked = _checked(name, needs, function)
            checked.needs, checked.iterations = tuple(needs), iterations
            return super(Criteria, self).register(name)(checked)

        return add


def _checked(name, needs, function):
    """`function`, which then raises ValueError if one of its needs is None."""

    @functools.wraps(function)
    def checked(pruned, **given):
        for argument in needs:
            if given.get(argument) is None:
                raise ValueError(
                    f"`{argument}` must be given for criterion={name!r}, "
                    f"{_WHY[argument]}. Received: {argument}=None"
                )
        return function(pruned, **given)

    return checked


CRITERIA = Criteria("criterion")
# More would hardly be meant, and an endless pipeline would never be answered.
MOST_BATCHES = 1000


def batches(data):
    """Yields the batches `(x, y)` of `data`.

    Raises:
        ValueError: there is none, or too many, or something else in it.
    """
    count = 0
    for count, batch in enumerate(data, start=1):
        if count > MOST_BATCHES:
            raise ValueError(
                f"`data` must hold at most {MOST_BATCHES:,} batches: scores need few. "
                "Received: more. Take some, for example dataset.take(10)"
            )
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError(
                "`data` must be an iterable of batches (x, y). Received: a batch that "
                f"is a {type(batch).__name__}"
            )
        yield batch
    if not count:
        raise ValueError(
            "`data` must hold at least one batch (x, y). Received: none. An iterator "
            "that has been gone through is empty"
        )


@CRITERIA.register("magnitude")
def magnitude(pruned, *, initial, data, loss_fn, seed):
    """|w|: the smallest weights go (Frankle & Carbin 2019, section 2)."""
    del initial, data, loss_fn, seed
    return [(tf.abs, (kernel.value,)) for kernel in pruned.kernels]


@CRITERIA.register("random")
def random(pruned, *, initial, data, loss_fn, seed):
    """Uniform random numbers that follow from the seed: the control for all others."""
    del initial, data, loss_fn
    return [
        tf.random.stateless_uniform(
            kernel.shape,
            tf.constant([seed, index], tf.int64),
            alg="philox",  # fixed, since "auto_select" depends on the device
        )
        for index, kernel in enumerate(pruned.kernels)
    ]


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
