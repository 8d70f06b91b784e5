"""What the functions in `dynamic.py` are made of: when, how many, which, from what.

All but what is done when one is made is traced into a loop. Counts are int64 tensors.
"""

import warnings

import tensorflow as tf

from prunetrain.core import mask_updates, pruned_model, steps
from prunetrain.pruning import topk

# When one is made


def scheduled(change, update_every, begin_step, end_step, end_is_due=False, **options):
    """A `MaskUpdate` whose `change` is due every so many steps.

    Args:
        change: as in `MaskUpdate`.
        update_every: steps from one due step to the next.
        begin_step: the first one.
        end_step: where they end; None is nowhere.
        end_is_due: whether `end_step` is the last due step.
        **options: other attributes of `MaskUpdate`.

    Raises:
        ValueError: an argument is out of range.
    """
    steps.check_whole("update_every", update_every, 1, what=" (steps)")
    steps.check_whole("begin_step", begin_step, 0)
    if end_step is not None or end_is_due:
        steps.check_whole("end_step", end_step, begin_step + 1)

    def next_due(step):
        waited = tf.maximum(step - begin_step, 0)
        due = begin_step - -waited // update_every * update_every
        if end_step is None:
            return due
        never = tf.constant(tf.int64.max, tf.int64)
        if end_is_due:
            return tf.where(step <= end_step, tf.minimum(due, end_step), never)
        return tf.where(due < end_step, due, never)

    return mask_updates.MaskUpdate(next_due, change, **options)


def groups(pruned, allocation):
    """Which kernels, by index, compete with each other."""
    indices = range(len(pruned.kernels))
    if allocation == "layerwise":
        return [(index,) for index in indices]
    if allocation == "global":
        return [tuple(indices)]
    raise ValueError(
        f"`allocation` must be layerwise or global. Received: allocation={allocation!r}"
    )


def check_fraction(name, schedule, step):
    """What the schedule gives at that step, or ValueError if it is no fraction."""
    fraction = float(schedule(tf.constant(step, tf.int64)))
    if not 0 <= fraction < 1:
        raise ValueError(
            f"`{name}` must give a fraction from 0 to below 1, for example 0.2 for "
            f"20 %. Received: {fraction} at step {step}"
        )
    return fraction


def check_sparsity(pruned, groups, sparsity, step):
    """Raises ValueError if no weight would be left; warns if a kernel would have none.

    Inside the loop nobody could be told.
    """
    fraction = check_fraction("sparsity", sparsity, step)
    pools = [_pool(pruned.masks, group) for group in groups]
    left = [_size(pool) - int(_target(fraction, pool)) for pool in pools]
    if not any(left):
        raise ValueError(
            f"at least one weight must be left. Received: a `sparsity` of {fraction} "
            f"at step {step}"
        )
    # One of several pools is one kernel.
    emptied = [
        pruned.kernels[group[0]].path
        for group, pool, count in zip(groups, pools, left, strict=True)
        if _size(pool) and not count
    ]
    if emptied:
        warnings.warn(
            f"a sparsity of {fraction} leaves no weight of {', '.join(emptied)}: "
            "nothing will pass through any more",
            stacklevel=3,
        )


def check_unheld(pruned, optimizer):
    """Raises ValueError if something keeps pruned weights from learning."""
    if pruned_model.inner(optimizer).use_ema:
        raise ValueError(
            "`straight_through` has no averages of sparse weights. Received: an "
            "optimizer with use_ema=True"
        )
    if any(
        isinstance(kernel.constraint, pruned_model.MaskConstraint)
        for kernel in pruned.kernels
    ):
        raise ValueError(
            "`straight_through` lets pruned weights move. Received: a model whose "
            "kernels are held by `constrain`"
        )


# Which go and which come


def prune_to(pruned, groups, fraction, scores):
    """Prunes the lowest scores, until a fraction of all weights is pruned."""
    masks = values(pruned.masks)
    for group in groups:
        old = _pool(masks, group)
        missing = _target(fraction, old) - (_size(old) - topk.count(old))
        _select(pruned, group, scores, old, tf.maximum(missing, 0))
    zero_pruned(pruned)


def keep_highest(pruned, groups, fraction, scores):
    """Prunes the lowest scores, whether they were pruned or not.

    A fraction of all weights; None: as many as are pruned now.
    """
    masks = values(pruned.masks)
    for group in groups:
        old = _pool(masks, group)
        every = [tf.ones_like(mask) for mask in old]
        pruned_now = _size(old) - topk.count(old)
        count = pruned_now if fraction is None else _target(fraction, every)
        _select(pruned, group, scores, every, count)


def _select(pruned, group, scores, masks, count):
    new = topk.remove_lowest(_pool(scores, group), masks, count)
    assign(_pool(pruned.masks, group), new)


def move(pruned, fraction, scores):
    """Drops the smallest live weights of each kernel, and grows as many.

    Args:
        pruned: `PrunedModel`.
        fraction: how many of the live weights.
        scores: for each kernel what `topk` takes; of what is not kept, the lowest
            grow. None leaves a kernel as it is.
    """
    kept, grown = values(pruned.masks), values(pruned.masks)
    for index, kernel in enumerate(pruned.kernels):
        if scores[index] is not None:
            weights = tf.abs, (tf.convert_to_tensor(kernel),)
            kept[index], grown[index] = _moved(
                kept[index], fraction, weights, scores[index]
            )
    assign(pruned.masks, kept)
    # In between, for what is dropped and comes back at once.
    zero_pruned(pruned)
    assign(pruned.masks, grown)


def _moved(mask, fraction, drop_scores, grow_scores):
    """The mask without what is dropped, and then with what is grown."""
    live = topk.count([mask])
    count = tf.minimum(_rounded(fraction, live), _size([mask]) - live)
    (kept,) = topk.remove_lowest([drop_scores], [mask], count)
    (rest,) = topk.remove_lowest([grow_scores], [~kept], count)
    return kept, ~rest


def steepest_first(gradient):
    """Scores that are lowest where the gradient is largest in magnitude."""
    return _negative_magnitude, (tf.convert_to_tensor(gradient),)


def _negative_magnitude(gradient):
    # Scaled for float16, it may have overflowed; what is unknown grows last.
    finite = tf.math.is_finite(gradient)
    return tf.where(finite, -tf.abs(gradient), tf.zeros([], gradient.dtype))


def draw(kernels, step, seed):
    """Random scores for each kernel, a function of step and seed."""
    first = step * len(kernels)
    return [
        # No epoch's or augmentation's seed: theirs are not below 0 in the second place.
        (_as_floats, (_draw_bits(kernel.shape, tf.stack([seed, -1 - first - index])),))
        for index, kernel in enumerate(kernels)
    ]


def _draw_bits(shape, seed):
    # Integers, since XLA and TensorFlow make other floats of the same bits; "philox",
    # since "auto_select" depends on the device.
    return tf.random.stateless_uniform(
        shape, seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )


def _as_floats(bits):
    # As many bits as a float holds.
    return tf.cast(tf.bitwise.right_shift(bits, 8), tf.float32)


def _target(fraction, masks):
    """How many weights of the pool are to be pruned at this sparsity."""
    return _rounded(fraction, tf.constant(_size(masks), tf.int64))


def _rounded(fraction, count):
    exact = fraction * tf.cast(count, tf.float64)
    return tf.cast(tf.floor(exact + 0.5), tf.int64)


def _size(masks):
    return sum(mask.shape.num_elements() for mask in masks)


def _pool(tensors, group):
    return [tensors[index] for index in group]


# What they become


def zero_pruned(pruned):
    """Zeroes weights, and slots of every known optimizer, where pruned."""
    pruned.apply_masks()
    pruned.mask_slots()


def new_latents(pruned):
    """A variable for each kernel, for what its pruned weights have become.

    In a list, since each device may put its copies there (`core.distributed`).
    """
    return [
        tf.Variable(
            tf.zeros(kernel.shape, kernel.dtype),
            trainable=False,
            name=f"latent/{kernel.path}",
        )
        for kernel in pruned.kernels
    ]


def whole(pruned, latents):
    """All weights: where they live, of the kernels, so that these may be set."""
    parts = values(pruned.masks), values(pruned.kernels), values(latents)
    return [tf.where(*part) for part in zip(*parts, strict=True)]


def split(pruned, latents, weights):
    """Takes weights apart again."""
    # All of them, though only pruned ones are read: one more mask costs 8 % of a step.
    assign(latents, weights)
    masks = values(pruned.masks)
    assign(pruned.kernels, map(pruned_model.masked, weights, masks))


def assign(variables, values):
    """Assigns each its value."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def values(variables):
    """Their tensors, which `topk` needs: its trace would keep the first variables."""
    return [tf.convert_to_tensor(variable) for variable in variables]
