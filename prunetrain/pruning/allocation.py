"""How many weights each tensor loses.

An allocation is a function `(kept, total, fractions, num_to_remove) -> groups`:
`kept` and `total` are lists of counts per kernel, `fractions` the list of rates or
sparsities per kernel, `num_to_remove(fraction, kept, total)` the counting rule. It
returns a list of `(kernel indices, number to remove)`: within a group, the lowest
scores go, wherever they are. To add one, write it here and register it.
"""

from prunetrain.registry import Registry

ALLOCATIONS = Registry("allocation")


@ALLOCATIONS.register("layerwise")
def layerwise(kept, total, fractions, num_to_remove):
    """Each kernel loses its own fraction (Frankle & Carbin 2019, section 2)."""
    counts = map(num_to_remove, fractions, kept, total)
    return [((index,), count) for index, count in enumerate(counts)]


@ALLOCATIONS.register("global")
def pooled(kept, total, fractions, num_to_remove):
    """All kernels compete in one pool (Frankle & Carbin 2019, section 4)."""
    if len(set(fractions)) > 1:
        raise ValueError(
            "`layer_rates` needs allocation='layerwise'. Received: "
            "allocation='global', which draws no line between layers."
        )
    count = num_to_remove(fractions[0], sum(kept), sum(total))
    return [(tuple(range(len(kept))), count)]
