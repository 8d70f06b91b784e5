"""Controls: what a ticket is compared with, trained beside it in the same rounds.

A control is a function `(masks, ticket, start, rng) -> (masks, weights)`, all but `rng`
lists of arrays aligned with the kernels: `masks` are the ticket's, `ticket` the weights
(unmasked) that the ticket's training starts from, `start` those that the control's own
does; `rng` is a `numpy.random.Generator`. It returns the masks and the weights that are
trained. To add one, write it here and register it.

Everything else (biases, optimizer, batch norm, place in the data) is as where the
ticket starts, or as `rewind` says, the name of a preset in `rewinding`.
"""

import re

import numpy as np

from prunetrain.registry import Registry, nearest

CONTROLS = Registry("control")
# More would be a mistake.
_MOST_DRAWS = 1000


def register(name, rewind=None, trained=True, random=True):
    """Decorator: file a control under `name`.

    Args:
        rewind: preset for where its training starts; None: where the ticket's does.
        trained: whether it is trained, or only evaluated as it starts.
        random: whether another draw gives another control.
    """

    def add(function):
        function.rewind, function.trained, function.random = rewind, trained, random
        return CONTROLS.register(name)(function)

    return add


def draws(items):
    """The branches that a list of NAME or NAME:DRAWS stands for.

    Returns:
        Dict from branch to `(name, draw)`. The first draw's branch is the name, the
        others' end in their number.

    Raises:
        ValueError: a name is unknown or there twice, or a number is none.
    """
    found = {}
    for item in items:
        name, colon, number = item.partition(":")
        if name not in CONTROLS:
            raise ValueError(
                f"must be one of {', '.join(CONTROLS)}{nearest(name, CONTROLS)}, or "
                "several, each also as NAME:DRAWS"
            )
        if name in found:
            raise ValueError(f"must name each only once, as {name}:2 for two draws")
        if colon and not CONTROLS[name].random:
            raise ValueError(f"must have {name} alone, which is the same at each draw")
        _check_number(name, number if colon else "1")
        for draw in range(1, int(number or 1) + 1):
            found[name if draw == 1 else f"{name}_{draw}"] = name, draw
    return found


def _check_number(name, text):
    if not re.fullmatch("[1-9][0-9]{0,3}", text) or int(text) > _MOST_DRAWS:
        raise ValueError(f"must be as {name}:3, with 1 to {_MOST_DRAWS} draws")


@register("reinit", rewind="reinit")
def reinit(masks, ticket, start, rng):
    """The ticket's masks on fresh random weights (Frankle & Carbin 2019, section 2)."""
    del ticket, rng
    return masks, start


@register("random")
def random(masks, ticket, start, rng):
    """Random masks, as many weights in each layer, on the ticket's weights."""
    del ticket
    return [rng.permutation(mask.ravel()).reshape(mask.shape) for mask in masks], start


@register("shuffle")
def shuffle(masks, ticket, start, rng):
    """The ticket's masks with each layer's inputs and outputs permuted, on its weights.

    Every unit's number of weights is one that the ticket has in that layer. The last
    two axes of a kernel are its inputs and outputs.
    """
    del ticket
    for axis in (-2, -1):
        masks = [rng.permutation(mask, axis=axis) for mask in masks]
    return masks, start


@register("same_sign", rewind="reinit")
def same_sign(masks, ticket, start, rng):
    """As reinit, each weight with the sign that the ticket's has (Zhou et al. 2019)."""
    del rng
    return masks, [
        np.where(np.signbit(fresh) == np.signbit(weight), fresh, -fresh)
        for fresh, weight in zip(start, ticket, strict=True)
    ]


@register("inverted", random=False)
def inverted(masks, ticket, start, rng):
    """The weights that the ticket prunes, instead of those it keeps."""
    del ticket, rng
    return [~mask for mask in masks], start


@register("supermask", rewind="lottery", trained=False, random=False)
def supermask(masks, ticket, start, rng):
    """Initial weights under the ticket's masks, untrained (Zhou et al. 2019)."""
    del ticket, rng
    return masks, start


@register("supermask_constant", rewind="lottery", trained=False, random=False)
def supermask_constant(masks, ticket, start, rng):
    """The same, each weight ± the standard deviation of its layer's initial weights."""
    del ticket, rng
    return masks, [
        np.sign(weight) * weight.dtype.type(np.std(weight, dtype=np.float64))
        for weight in start
    ]
