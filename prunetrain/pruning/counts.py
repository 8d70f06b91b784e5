"""How many units are to go, by rate or by sparsity, at once or in steps."""

import math
import numbers

from prunetrain.core import selection
from prunetrain.pruning.allocation import NoWeightLeftError


def num_to_remove_by_rate(rate, kept, total):
    """floor(rate · remaining + 0.5)."""
    del total
    return math.floor(rate * kept + 0.5)


def num_to_remove_by_sparsity(sparsity, kept, total):
    """What is missing to floor(sparsity · total + 0.5); 0 if nothing is."""
    return max(0, math.floor(sparsity * total + 0.5) - (total - kept))


def check_fraction(name, value):
    """Raises ValueError unless `value` is a number in [0, 1)."""
    valid = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (valid and 0 <= value < 1):
        raise ValueError(
            f"`{name}` must be a fraction from 0 to below 1, for example 0.2 for 20 %. "
            f"Received: {name}={value!r}"
        )


def fractions(pruned, rate, sparsity, layer_rates):
    """One fraction per kernel, and the counting rule that goes with it.

    Args:
        pruned, rate, sparsity, layer_rates: as for `prune.prune`.
    """
    if (rate is None) == (sparsity is None):
        raise ValueError(
            "exactly one of `rate` (of what remains) and `sparsity` (of all weights) "
            f"must be given. Received: rate={rate}, sparsity={sparsity}"
        )
    name = "sparsity" if rate is None else "rate"
    value = sparsity if rate is None else rate
    check_fraction(name, value)
    rule = num_to_remove_by_sparsity if rate is None else num_to_remove_by_rate
    paths = [kernel.path for kernel in pruned.kernels]
    if layer_rates is None:
        return [value] * len(paths), rule
    if not isinstance(layer_rates, dict):
        found = list(layer_rates)
        if len(found) != len(paths):
            raise ValueError(
                f"`layer_rates` must be a dict or one fraction for each of the "
                f"{len(paths)} kernels. Received: {len(found)} fractions"
            )
    else:
        found = fractions_by_path(paths, layer_rates, value)
    for fraction in found:
        check_fraction("layer_rates", fraction)
    return found, rule


def fractions_by_path(paths, layer_rates, default):
    """One fraction per path: that of the first pattern that matches, or `default`.

    Raises:
        ValueError: a pattern is no regular expression or matches no path.
    """
    expressions = []
    for text, fraction in layer_rates.items():
        expression = selection.compile_pattern(text, "layer_rates")
        if not any(expression.search(path) for path in paths):
            raise selection.no_match(text, "layer_rates", paths)
        expressions.append((expression, fraction))
    return [
        next((f for expression, f in expressions if expression.search(path)), default)
        for path in paths
    ]


def counter(stocks, start, fractions, num_to_remove, share, asked):
    """The `due` of an allocation: what is to be gone by now, less what has gone.

    Args:
        stocks: what each kernel has left.
        start: `(kept, total)` of each before the first step.
        fractions, num_to_remove: as `fractions` gives them.
        share: which share of the steps there will be is done after this one.
        asked: rate or sparsity as it was given, for messages.
    """

    def due(*indices):
        different = {fractions[index] for index in indices}
        if len(different) > 1:
            raise ValueError(
                "`layer_rates` needs allocation='layerwise'. Received: an allocation "
                "that counts for several kernels together"
            )
        kept, total = (sum(start[i][part] for i in indices) for part in (0, 1))
        left = kept - num_to_remove(*different, kept, total)
        count = sum(stocks[i].kept for i in indices) - _left_at(share, kept, left)
        check_removable(stocks, indices, count, asked)
        return max(0, count)

    return due


def _left_at(share, kept, left):
    """How many are left after a share of the steps from `kept` to `left`.

    Falling by the same factor in each step (Tanaka et al. 2020, algorithm 1).
    """
    if share == 1 or not kept:
        return left
    # As if half a one were left at the end, lest the first step remove all.
    return math.floor(kept * (max(left, 0.5) / kept) ** share + 0.5)


def check_removable(stocks, indices, count, asked):
    """Raises NoWeightLeftError if so many units may not go from these kernels."""
    removable = sum(stocks[index].removable for index in indices)
    if count > removable:
        paths = [stocks[index].path for index in indices]
        named = ", ".join(paths) if len(paths) < 4 else f"the {len(paths)} kernels"
        raise NoWeightLeftError(
            f"{named} can lose {removable} of {sum(stocks[i].kept for i in indices)} "
            f"units; the pattern or min_kept holds the rest. Received: {asked}, which "
            f"removes {count}. Ask for less, or leave kernels out (prune_exclude)"
        )
