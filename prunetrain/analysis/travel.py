"""How far the weights of a ticket have come from where they started."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Travel:
    """What training did to the surviving weights of one kernel.

    Attributes:
        kept: how many there are.
        flipped: how many of them went from positive to negative or the other way; from
            or to 0 does not count.
        distance: L2 norm of final - initial.
        norm: L2 norm of the initial values.
    """

    kept: int
    flipped: int
    distance: float
    norm: float

    @property
    def flipped_share(self):
        """`flipped` as a fraction of `kept`; 0 if none is kept."""
        return self.flipped / self.kept if self.kept else 0.0

    @property
    def relative_distance(self):
        """`distance` ÷ `norm`; 0 if nothing moved, infinite if all started at 0."""
        if not self.norm:
            return float("inf") if self.distance else 0.0
        return self.distance / self.norm


def travel(initial, final, masks):
    """The way of the surviving weights in each kernel, computed in float64.

    Zhou et al. 2019 ("Deconstructing Lottery Tickets", section 4) ask for the signs.

    Args:
        initial, final: lists of arrays, the kernels' weights at both times.
        masks: list of boolean arrays aligned with them; what they prune is left out.

    Returns:
        List of `Travel`, one per kernel.

    Raises:
        ValueError: they are not aligned.
    """
    return [_of_kernel(*kernel) for kernel in zip(initial, final, masks, strict=True)]


def _of_kernel(initial, final, mask):
    mask = np.asarray(mask, bool)
    shapes = [np.shape(initial), np.shape(final), mask.shape]
    if len(set(shapes)) > 1:
        raise ValueError(
            "weights and mask of a kernel must be of one shape. Received: shapes "
            f"{', '.join(map(str, shapes))}"
        )
    first, last = (np.asarray(x)[mask].astype(np.float64) for x in (initial, final))
    return Travel(
        kept=int(np.count_nonzero(mask)),
        # Signs, as a product of small values may be 0.
        flipped=int(np.count_nonzero(np.sign(first) * np.sign(last) < 0)),
        distance=float(np.linalg.norm(last - first)),
        norm=float(np.linalg.norm(first)),
    )
