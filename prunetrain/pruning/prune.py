"""Score, allocate, select: the one place where the axes of pruning meet."""

import math
import numbers
import warnings

import tensorflow as tf

from prunetrain.core import pruned_model, selection
from prunetrain.pruning import patterns, topk
from prunetrain.pruning.allocation import ALLOCATIONS
from prunetrain.pruning.criteria import CRITERIA


class NoWeightLeftError(ValueError):
    """Pruning would remove every weight that remains."""


def prune(
    pruned,
    rate=None,
    sparsity=None,
    criterion="magnitude",
    allocation="layerwise",
    pattern="element",
    initial=None,
    data=None,
    loss_fn=None,
    layer_rates=None,
    seed=0,
):
    """Removes weights, exactly as many as asked for, and never brings one back.

    The number removed is floor(rate · remaining + 0.5), or what is missing to
    floor(sparsity · total + 0.5), for each kernel (layerwise) or for all together
    (global). Ties go to the lower index.

    Args:
        pruned: `PrunedModel` to prune.
        rate: fraction in [0, 1) of the weights that remain.
        sparsity: fraction in [0, 1) of all prunable weights that is pruned afterwards;
            what is already sparser stays as it is. Give exactly one of the two.
        criterion: name in `criteria.CRITERIA`, or a function of that signature.
        allocation: name in `allocation.ALLOCATIONS`, or a function.
        pattern: name in `patterns.PATTERNS`, or a function.
        initial: weights at initialisation, a list of tensors aligned with
            `pruned.kernels`, for criteria that compare with them.
        data: iterable of batches `(x, y)`, for criteria that need gradients.
        loss_fn: `(y, outputs) -> loss`, for criteria that need gradients.
        layer_rates: what replaces `rate` (or `sparsity`) for some kernels: a dict from
            regular expression on paths to fraction, the first match counting; or one
            fraction per kernel. Only for layerwise allocation.
        seed: for criteria that draw random numbers.

    Returns:
        How many weights were removed; 0 means that nothing changed.

    Raises:
        ValueError: a fraction is out of range, a name is unknown, a pattern matches no
            kernel, a score of a live weight is not finite, or no weight would be left.
            The masks are unchanged then.
    """
    pruned_model.check_pruned(pruned)
    before = sum(layer.kept for layer in pruned.layer_sparsity())
    masks = new_masks(
        pruned, rate, sparsity, criterion, allocation, pattern,
        initial, data, loss_fn, layer_rates, seed,
    )  # fmt: skip
    pruned.set_masks(masks)
    return before - sum(layer.kept for layer in pruned.layer_sparsity())


def new_masks(
    pruned,
    rate=None,
    sparsity=None,
    criterion="magnitude",
    allocation="layerwise",
    pattern="element",
    initial=None,
    data=None,
    loss_fn=None,
    layer_rates=None,
    seed=0,
):
    """The masks that `prune` would set, without setting them (same arguments)."""
    fractions, num_to_remove = _fractions(pruned, rate, sparsity, layer_rates)
    layers = pruned.layer_sparsity()
    groups = _lookup(ALLOCATIONS, allocation)(
        [x.kept for x in layers], [x.total for x in layers], fractions, num_to_remove
    )
    _check_survivors(layers, groups, rate, sparsity)
    score = _lookup(CRITERIA, criterion)
    pattern = _lookup(patterns.PATTERNS, pattern)
    scores = _checked_scores(
        score(pruned, initial=initial, data=data, loss_fn=loss_fn, seed=seed), pruned
    )
    masks = [tf.convert_to_tensor(mask) for mask in pruned.masks]
    for indices, count in groups:
        pool, old = [scores[i] for i in indices], [masks[i] for i in indices]
        for index in indices:
            _check_values(scores[index], masks[index], layers[index].path)
        if count:
            pool = [_with_pattern(pattern, score) for score in pool]
            new = topk.remove_lowest(pool, old, tf.constant(count, tf.int64))
            _check_count(new, sum(layers[i].kept for i in indices) - count)
            for index, mask in zip(indices, new, strict=True):
                masks[index] = mask
    _warn_of_emptied(layers, masks)
    return masks


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


def _fractions(pruned, rate, sparsity, layer_rates):
    """One fraction per kernel, and the counting rule that goes with it."""
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
        fractions = list(layer_rates)
        if len(fractions) != len(paths):
            raise ValueError(
                f"`layer_rates` must be a dict or one fraction for each of the "
                f"{len(paths)} kernels. Received: {len(fractions)} fractions"
            )
    else:
        fractions = fractions_by_path(paths, layer_rates, value)
    for fraction in fractions:
        check_fraction("layer_rates", fraction)
    return fractions, rule


def fractions_by_path(paths, layer_rates, default):
    """One fraction per path: that of the first pattern that matches, or `default`.

    Raises:
        ValueError: a pattern is no regular expression or matches no path.
    """
    patterns = []
    for text, fraction in layer_rates.items():
        pattern = selection.compile_pattern(text, "layer_rates")
        if not any(pattern.search(path) for path in paths):
            raise selection.no_match(text, "layer_rates", paths)
        patterns.append((pattern, fraction))
    return [
        next((f for pattern, f in patterns if pattern.search(path)), default)
        for path in paths
    ]


def _lookup(registry, choice):
    return choice if callable(choice) else registry[choice]


def _check_survivors(layers, groups, rate, sparsity):
    kept = sum(layer.kept for layer in layers)
    removed = sum(count for _, count in groups)
    if removed and removed >= kept:
        asked = f"rate={rate}" if sparsity is None else f"sparsity={sparsity}"
        raise NoWeightLeftError(
            f"at least one weight must be left. Received: {asked}, which removes all "
            f"{kept} that remain"
        )


def _checked_scores(scores, pruned):
    """A tensor or a pair of function and tensors for each kernel."""
    num_kernels = len(pruned.kernels)
    if not isinstance(scores, (list, tuple)) or len(scores) != num_kernels:
        raise _wrong_scores(f"{type(scores).__name__} for {num_kernels} kernels")
    return [_checked_score(score) for score in scores]


def _checked_score(score):
    if isinstance(score, list):
        raise _wrong_scores("a list in place of a tensor")
    if not isinstance(score, tuple):
        return tf.convert_to_tensor(score)
    if len(score) != 2 or not callable(score[0]) or not score[1]:
        raise _wrong_scores("a tuple that is no pair (function, tensors)")
    function, tensors = score
    return function, tuple(tf.convert_to_tensor(tensor) for tensor in tensors)


def _check_values(score, mask, path):
    """Raises ValueError unless scores are floats of the mask's shape and finite."""
    values = topk.evaluate(score)
    if not tf.is_tensor(values) or not values.dtype.is_floating:
        kind = values.dtype.name if tf.is_tensor(values) else type(values).__name__
        raise _wrong_scores(f"{kind} for {path}")
    if values.shape != mask.shape:
        raise _wrong_scores(
            f"shape {tuple(values.shape)} for {path} of shape {tuple(mask.shape)}"
        )
    if not topk.all_finite(values, mask):
        raise ValueError(
            "scores must be finite to be ranked. Received: NaN or infinity among "
            f"the live weights of {path}"
        )


def _wrong_scores(received):
    return ValueError(
        "`criterion` must return a list with a float tensor of the kernel's shape, or "
        "a pair (function, tensors) that gives it, for each kernel. Received: "
        f"{received}"
    )


def _check_count(masks, kept):
    """Raises ValueError unless the masks keep `kept` weights in all."""
    found = sum(int(tf.reduce_sum(tf.cast(mask, tf.int32))) for mask in masks)
    if found != kept:
        raise ValueError(
            "a criterion's pair (function, tensors) must give the same bits at each "
            f"call. Received: one that does not, so that {found} weights would be left "
            f"instead of {kept}. Return the scores themselves"
        )


def _with_pattern(pattern, score):
    """Scores under a pattern, which sees whole tensors; single weights need none."""
    return score if pattern is patterns.element else pattern(topk.evaluate(score))


def _warn_of_emptied(layers, masks):
    emptied = [
        layer.path
        for layer, mask in zip(layers, masks, strict=True)
        if layer.kept and not tf.reduce_any(mask)
    ]
    if emptied:
        warnings.warn(
            f"pruning removes every weight of {', '.join(emptied)}: nothing passes "
            "through any more",
            stacklevel=4,
        )
