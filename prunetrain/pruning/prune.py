"""Score, find units, allocate, select: the one place where the axes of pruning meet."""

import collections.abc
import contextlib
import itertools
import math
import warnings

import tensorflow as tf

from prunetrain.core import pruned_model, steps
from prunetrain.pruning import counts, criteria, layers, patterns, topk
from prunetrain.pruning import scores as score_lib
from prunetrain.pruning.allocation import ALLOCATIONS, NoWeightLeftError, Stock

__all__ = ["NoWeightLeftError", "check", "new_masks", "prune"]


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
    *,
    iterations=None,
    min_kept=0,
):
    """Removes weights, exactly as many as asked for, and never brings one back.

    The number removed is floor(rate · remaining + 0.5), or what is missing to
    floor(sparsity · total + 0.5), for each kernel (layerwise) or for all together. Ties
    go to the lower index. Under another pattern than single weights it is units
    (channels, blocks, heads) that are counted.

    Args:
        pruned: `PrunedModel` to prune.
        rate: fraction in [0, 1) of the weights that remain.
        sparsity: fraction in [0, 1) of all prunable weights that is pruned afterwards;
            what is already sparser stays as it is. Give exactly one of the two.
        criterion: name in `criteria.CRITERIA`, or a function of that signature.
        allocation: name in `allocation.ALLOCATIONS`, or a function.
        pattern: name in `patterns.PATTERNS`, such as "2:4", or a function.
        initial: weights at initialisation, a list of tensors aligned with
            `pruned.kernels`, for criteria that compare with them.
        data: iterable of batches `(x, y)`, 1,000 at most, for criteria that look at
            examples.
        loss_fn: `(y, outputs) -> loss`, for criteria that need gradients.
        layer_rates: what replaces `rate` (or `sparsity`) for some kernels: a dict from
            regular expression on paths to fraction, the first match counting; or one
            fraction per kernel. Only for layerwise allocation.
        seed: for criteria that draw random numbers.
        iterations: in how many steps to get there, what is left falling by the same
            factor in each, with scores taken anew under the masks so far. None: as the
            criterion has it, 100 for synflow, 1 for the others.
        min_kept: how many weights of each kernel never go (its highest-scored units
            that hold so many, or all it has left). The others lose more where the
            allocation counts for all together.

    Returns:
        How many weights were removed; 0 means that nothing changed.

    Raises:
        ValueError: a fraction is out of range, a name is unknown, something the
            criterion needs is not given, a pattern matches no kernel or does not go
            with it, or a score of a live weight is not finite.
        NoWeightLeftError: (a ValueError) no weight would be left, or more would go than
            the pattern and `min_kept` let go. In each case the masks are unchanged.
    """
    pruned_model.check_pruned(pruned)
    before = sum(layer.kept for layer in pruned.layer_sparsity())
    masks = new_masks(
        pruned, rate, sparsity, criterion, allocation, pattern,
        initial, data, loss_fn, layer_rates, seed,
        iterations=iterations, min_kept=min_kept,
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
    *,
    iterations=None,
    min_kept=0,
):
    """The masks that `prune` would set, without setting them (same arguments)."""
    fractions, num_to_remove = counts.fractions(pruned, rate, sparsity, layer_rates)
    score = _chosen(criteria.CRITERIA, criterion)
    allocate = _chosen(ALLOCATIONS, allocation)
    pattern = _chosen(patterns.PATTERNS, pattern)
    if iterations is None:
        iterations = getattr(score, "iterations", 1)
    steps.check_whole("iterations", iterations, 1)
    steps.check_whole("min_kept", min_kept, 0, what=" (weights)")
    given = {"initial": initial, "data": _again(data), "loss_fn": loss_fn, "seed": seed}
    asked = f"rate={rate}" if sparsity is None else f"sparsity={sparsity}"
    before, start = pruned.layer_sparsity(), None
    with _left_alone(pruned) if iterations > 1 else contextlib.nullcontext():
        for step in range(1, iterations + 1):
            stocks = [
                _stock(*x, pattern, min_kept) for x in _scored(pruned, score, given)
            ]
            start = start or [(stock.kept, stock.total) for stock in stocks]
            share = step / iterations
            due = counts.counter(stocks, start, fractions, num_to_remove, share, asked)
            groups = allocate(stocks, due)
            _check_groups(stocks, groups, asked)
            masks = _without_lowest(stocks, groups)
            if step < iterations:
                _put(pruned, masks)
    _warn_of_emptied(pruned, before, masks)
    return masks


def check(pruned, criterion, pattern, initial=None, data=None, loss_fn=None):
    """Raises ValueError unless a criterion and a pattern go with the model.

    What takes a training to find out, such as scores that are not finite, is not
    looked at.
    """
    score = _chosen(criteria.CRITERIA, criterion)
    pattern = _chosen(patterns.PATTERNS, pattern)
    given = {"initial": initial, "data": data, "loss_fn": loss_fn, "seed": 0}
    for kernel, scores, mask in _scored(pruned, score, given):
        pattern(scores, mask, kernel)


def _chosen(registry, choice):
    return choice if callable(choice) else registry[choice]


def _again(data):
    """`data`, or a list of what an iterator has: criteria may go through it twice."""
    if isinstance(data, collections.abc.Iterator):
        # One too many is enough to be refused.
        return list(itertools.islice(data, criteria.MOST_BATCHES + 1))
    return data


@contextlib.contextmanager
def _left_alone(pruned):
    """Whatever happens within, weights and masks are as before afterwards."""
    variables = [*(kernel.value for kernel in pruned.kernels), *pruned.masks]
    before = [tf.convert_to_tensor(variable) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def _put(pruned, masks):
    """Masks for the next scores, not for the optimizer."""
    for variable, mask in zip(pruned.masks, masks, strict=True):
        variable.assign(mask)
    pruned.apply_masks()


def _scored(pruned, score, given):
    """`(kernel, scores, mask)` for each kernel, as the criterion has it."""
    scores = score_lib.checked(score(pruned, **given), pruned)
    kernels = layers.kernels(pruned.model, pruned.kernels)
    masks = [tf.convert_to_tensor(mask) for mask in pruned.masks]
    return list(zip(kernels, scores, masks, strict=True))


def _stock(kernel, scores, mask, pattern, min_kept):
    score_lib.check_values(scores, mask, kernel.path)
    units = patterns.with_floor(pattern(scores, mask, kernel), min_kept)
    kept = _count(units.live)
    removable = kept if units.held is None else _count(units.removable)
    total = math.prod(units.live.shape)
    return Stock(kernel.path, kernel.shape, total, kept, removable, units)


def _check_groups(stocks, groups, asked):
    kept = sum(stock.kept for stock in stocks)
    removed = sum(count for _, count in groups)
    if removed and removed >= kept:
        raise NoWeightLeftError(
            f"at least one weight must be left. Received: {asked}, which removes all "
            f"{kept} that remain"
        )
    for indices, count in groups:
        counts.check_removable(stocks, indices, count, asked)


def _without_lowest(stocks, groups):
    """The kernels' masks without the lowest-scored units of each group."""
    kept = [stock.units.live for stock in stocks]
    for indices, count in groups:
        if count:
            units = [stocks[index].units for index in indices]
            new = topk.remove_lowest(
                [x.scores for x in units],
                [x.removable for x in units],
                tf.constant(count, tf.int64),
            )
            _check_count(new, sum(stocks[i].removable for i in indices) - count)
            for index, x, mask in zip(indices, units, new, strict=True):
                kept[index] = mask if x.held is None else mask | (x.live & x.held)
    return [stock.units.mask_of(mask) for stock, mask in zip(stocks, kept, strict=True)]


def _count(mask):
    # Not count_nonzero, which takes twice the memory. int32: one tensor's weights.
    return int(tf.reduce_sum(tf.cast(mask, tf.int32)))


def _check_count(masks, kept):
    """Raises ValueError unless the masks keep `kept` weights in all."""
    found = sum(map(_count, masks))
    if found != kept:
        raise ValueError(
            "a criterion's pair (function, tensors) must give the same bits at each "
            f"call. Received: one that does not, so that {found} weights would be left "
            f"instead of {kept}. Return the scores themselves"
        )


def _warn_of_emptied(pruned, before, masks):
    """One line on kernels that lose every weight, or keep fewer than outputs."""
    kernels = layers.kernels(pruned.model, pruned.kernels)
    emptied, thin = [], []
    for kernel, layer, mask in zip(kernels, before, masks, strict=True):
        kept = _count(mask)
        if layer.kept and not kept:
            emptied.append(kernel.path)
        elif layer.kept >= kernel.num_outputs > kept:
            thin.append(f"{kernel.path} ({kept} for {kernel.num_outputs})")
    told = []
    if emptied:
        told.append(
            f"pruning removes every weight of {', '.join(emptied)}: nothing passes "
            "through any more"
        )
    if thin:
        told.append(f"pruning leaves fewer weights than outputs in {', '.join(thin)}")
    if told:
        warnings.warn(f"{'; '.join(told)}. min_kept would hold some", stacklevel=4)
