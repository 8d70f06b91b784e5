"""How many units each kernel loses.

An allocation is a function `(stocks, due) -> groups`. `stocks` has a `Stock` for each
kernel: its shape, how many units it has, and their scores. `due(*indices)` is how many
units have to go from these kernels together, as the rate or the sparsity says. It
returns a list of `(kernel indices, number to remove)`: within a group, the lowest
scores go, wherever they are. To add one, write it here and register it.

Those that follow from shapes (uniform, uniform_plus, erk) give each kernel a share of
what is to be left in all, exact to the unit: shares are rounded by largest remainder
(the first kernel first among equals). A kernel whose share is more than it has left
keeps what it has; one that may not lose so much (a pattern or `min_kept` holds some)
keeps those; the others make up for it in proportion.
"""

import dataclasses
import math

import numpy as np

from prunetrain.lazy import tf
from prunetrain.registry import Registry

ALLOCATIONS = Registry("allocation")


class NoWeightLeftError(ValueError):
    """Pruning would remove every weight that remains, or some that have to stay."""


@dataclasses.dataclass(frozen=True)
class Stock:
    """What a kernel has left.

    Attributes:
        path, shape: of the kernel.
        total, kept, removable: how many units it has, are live, and may go of those.
        units: its `patterns.Units`, with the scores.
    """

    path: str
    shape: tuple
    total: int
    kept: int
    removable: int
    units: object

    @property
    def least(self):
        """How many units have to stay."""
        return self.kept - self.removable


@ALLOCATIONS.register("layerwise")
def layerwise(stocks, due):
    """Each kernel loses its own fraction (Frankle & Carbin 2019, section 2)."""
    return [((index,), due(index)) for index in range(len(stocks))]


@ALLOCATIONS.register("global")
def pooled(stocks, due):
    """All kernels compete in one pool (Frankle & Carbin 2019, section 4)."""
    every = tuple(range(len(stocks)))
    return [(every, due(*every))]


@ALLOCATIONS.register("uniform")
def uniform(stocks, due):
    """Every kernel to the same sparsity, the total exact (Gale et al. 2019).

    Where all are equally sparse already, layerwise without `layer_rates` is the same
    but for rounding, which it does in each kernel.
    """
    return _shared(stocks, due, [stock.total for stock in stocks])


@ALLOCATIONS.register("uniform_plus")
def uniform_plus(stocks, due):
    """Uniform, but the first kernel dense and the last at most 80 % sparse.

    Gale et al. 2019 ("The State of Sparsity in Deep Neural Networks", section 3), as
    Lee et al. 2021 name it. What they keep the others lose too.
    """
    least = [stock.least for stock in stocks]
    least[-1] = max(least[-1], min(stocks[-1].kept, math.ceil(stocks[-1].total / 5)))
    least[0] = stocks[0].kept
    return _shared(stocks, due, [stock.total for stock in stocks], least)


@ALLOCATIONS.register("erk")
def erk(stocks, due):
    """Densities in proportion to the sum over the product of a kernel's sizes.

    Erdős-Rényi-Kernel (Evci et al. 2020, "Rigging the Lottery", section 3): small
    kernels stay denser, up to dense.
    """
    weights = [
        stock.total * sum(stock.shape) / max(1, math.prod(stock.shape))
        for stock in stocks
    ]
    return _shared(stocks, due, weights)


@ALLOCATIONS.register("lamp")
def lamp(stocks, due):
    """Global, of scores² over the sum of those not smaller in the kernel.

    Lee et al. 2021 ("Layer-adaptive Sparsity for the Magnitude-based Pruning", equation
    4). With another criterion than magnitude likewise: the square of its scores, which
    are first moved up to 0 in a kernel that has some below. Equal scores count in the
    order in which they would go. Within a kernel the order is that of the scores, so
    this decides only how many each loses.
    """
    from prunetrain.pruning import topk

    count = tf.constant(due(*range(len(stocks))), tf.int64)
    scores, removable = zip(
        *(_lamp_scores(topk.evaluate(x.units.scores), x.units) for x in stocks),
        strict=True,
    )
    left = topk.remove_lowest(list(scores), list(removable), count)
    return [
        ((index,), stocks[index].removable - int(np.sum(mask)))
        for index, mask in enumerate(left)
    ]


def _lamp_scores(scores, units):
    """LAMP scores in the order in which units go, and which may go; both flat."""
    scores = np.asarray(scores, np.float64).ravel()
    live = np.asarray(units.live).ravel()
    scores = np.where(live, scores, 0)
    scores = scores - min(scores.min(initial=0), 0)
    order = np.argsort(scores, kind="stable")
    # Near 1, so that no square overflows; by a power of two, which rounds nothing.
    _, exponent = np.frexp(scores.max(initial=0, where=live))
    squares = np.square(np.where(live, np.ldexp(scores, -exponent), 0))[order]
    sums = np.cumsum(squares[::-1])[::-1]
    shares = np.divide(squares, sums, out=np.zeros_like(squares), where=sums > 0)
    return tf.constant(shares), tf.constant(np.asarray(units.removable).ravel()[order])


def _shared(stocks, due, weights, least=None):
    """Groups that leave each kernel a share in proportion to its weight."""
    least = [stock.least for stock in stocks] if least is None else least
    kept = [stock.kept for stock in stocks]
    total = sum(kept) - due(*range(len(stocks)))
    if total < sum(least):
        raise NoWeightLeftError(
            f"this allocation keeps {sum(least)} of the {sum(kept)} units that remain. "
            f"Received: a rate or sparsity that would leave {total}. Ask for less, or "
            "take another allocation"
        )
    shares = _shares(weights, least, kept, total)
    return [((index,), kept[index] - share) for index, share in enumerate(shares)]


def _shares(weights, least, most, total):
    """Whole numbers that sum to `total`, in proportion to `weights` within bounds.

    The bounds allow it: `total` is between the sum of `least` and that of `most`.
    """

    def within(scale):
        return [
            min(max(scale * weight, low), high)
            for weight, low, high in zip(weights, least, most, strict=True)
        ]

    below = 0.0
    above = max(
        high / weight if weight else 0
        for high, weight in zip(most, weights, strict=True)
    )
    for _ in range(100):
        middle = (below + above) / 2
        if math.fsum(within(middle)) <= total:
            below = middle
        else:
            above = middle
    exact = within(below)
    shares = [math.floor(share) for share in exact]
    # Rounded: what are equal remainders may differ in the last bits.
    by_remainder = sorted(
        range(len(shares)), key=lambda index: round(shares[index] - exact[index], 9)
    )
    while sum(shares) < total:
        for index in by_remainder:
            if sum(shares) < total and shares[index] < most[index]:
                shares[index] += 1
    return shares
