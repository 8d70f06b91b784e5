"""Masks that change during training, inside the compiled loop.

A function `(pruned, …, update_every, begin_step, end_step, …)` makes what
`make_train_loop` takes as `mask_update`. Due are the steps `begin_step`,
`begin_step + update_every` and so on, before `end_step`. To add one, write it here, of
the parts in `changes.py`, and register it. What it draws at random has to follow from
the seed and the step.
"""

from prunetrain import lazy
from prunetrain.lazy import tf
from prunetrain.registry import Registry

# It needs TensorFlow, before which the registry is read.
changes = lazy.module("prunetrain.pruning.changes")

MASK_UPDATES = Registry("mask_update")


def magnitude(weights):
    """|w|, not stored while it is counted (`topk.evaluate`)."""
    return tf.abs, (weights,)


@MASK_UPDATES.register("static")
def static(pruned):
    """Masks that stay as they are."""
    del pruned


@MASK_UPDATES.register("gradual")
def gradual(
    pruned,
    sparsity,
    update_every,
    begin_step,
    end_step,
    allocation="layerwise",
    score=magnitude,
):
    """More and more weights go, none comes back (Zhu & Gupta 2017, section 3).

    After the update of the weights at a due step, those of the lowest scores are
    pruned until floor(sparsity · total + 0.5) are. `end_step` is due too, wherever
    `update_every` leads.

    Args:
        pruned: `PrunedModel`.
        sparsity: `step -> fraction` of all weights, for example of
            `schedules.cubic(0.9, begin_step, end_step)`.
        update_every: steps between two updates.
        begin_step, end_step: the first and the last step that is due.
        allocation: "layerwise" prunes each kernel to this sparsity, "global" all of
            them together.
        score: `weights -> scores` of one kernel, a float tensor of its shape, or a pair
            for scores that are not stored (`topk.evaluate`).

    Returns:
        A `core.mask_updates.MaskUpdate`.

    Raises:
        ValueError: steps or the last sparsity are out of range, or it leaves no weight.
    """
    groups = changes.groups(pruned, allocation)

    def change(gradients, step, seed):
        del gradients, seed
        weights = changes.values(pruned.kernels)
        changes.prune_to(pruned, groups, sparsity(step), [score(w) for w in weights])

    update = changes.scheduled(
        change, update_every, begin_step, end_step, end_is_due=True
    )
    changes.check_sparsity(pruned, groups, sparsity, end_step)
    return update


@MASK_UPDATES.register("set")
def sparse_evolution(pruned, drop, update_every, begin_step=0, end_step=None):
    """Some of the smallest weights go, others come at random (Mocanu et al. 2018).

    After the update of the weights at a due step, each kernel loses a fraction of its
    live weights, the smallest in magnitude, and gains as many. Mocanu et al. take the
    smallest positive and the largest negative ones; by magnitude is how Evci et al.
    2020 compare with it. Those that come are drawn from all that were not kept, the
    ones just dropped among them. They begin at 0, as do their slots.

    Args:
        pruned: `PrunedModel`.
        drop: `step -> fraction` of the live weights that move, for example of
            `schedules.constant(0.3)`. No more move than there are free places, so that
            a dense kernel stays as it is.
        update_every: steps between two updates.
        begin_step: the first step that is due.
        end_step: no step is due from this one on. None: updates go on.

    Returns:
        A `core.mask_updates.MaskUpdate`.

    Raises:
        ValueError: steps or the first fraction are out of range.
    """

    def change(gradients, step, seed):
        del gradients
        changes.move(pruned, drop(step), changes.draw(pruned.kernels, step, seed))

    update = changes.scheduled(change, update_every, begin_step, end_step)
    changes.check_fraction("drop", drop, begin_step)
    return update


@MASK_UPDATES.register("rigl")
def rigl(pruned, drop, update_every, begin_step, end_step):
    """Some of the smallest weights go, others come by gradient (Evci et al. 2020).

    Algorithm 1. At a due step the masks change in place of an update of the weights:
    each kernel loses a fraction of its live weights, the smallest in magnitude, and
    gains as many of all that were not kept (the ones just dropped among them), those
    whose gradient in the step's batch is the largest in magnitude. Ties go by the lower
    index. All that come begin at 0, as do their slots; in the code of the authors those
    that were only just dropped keep their value.

    Args:
        pruned: `PrunedModel`.
        drop: `step -> fraction` of the live weights that move, for example of
            `schedules.cosine_drop(0.3, end_step)`. No more move than there are free
            places, so that a dense kernel stays as it is.
        update_every: steps between two updates.
        begin_step: the first step that is due.
        end_step: no step is due from this one on: 75 % of the training, in the paper.

    Returns:
        A `core.mask_updates.MaskUpdate`.

    Raises:
        ValueError: steps or the first fraction are out of range.
    """

    def change(gradients, step, seed):
        del seed
        trained = zip(pruned.trainable_variables, gradients, strict=True)
        found = {id(variable): gradient for variable, gradient in trained}
        dense = [found.get(id(kernel)) for kernel in pruned.kernels]
        scores = [None if g is None else changes.steepest_first(g) for g in dense]
        changes.move(pruned, drop(step), scores)

    update = changes.scheduled(
        change, update_every, begin_step, end_step, replaces_update=True
    )
    changes.check_fraction("drop", drop, begin_step)
    return update


@MASK_UPDATES.register("straight_through")
def straight_through(
    pruned,
    sparsity,
    update_every=1,
    begin_step=0,
    end_step=None,
    allocation="layerwise",
):
    """Pruned weights go on learning unseen, and may come back (Lin et al. 2020).

    The network computes with the largest weights only, and each gradient goes to the
    weight in its place, pruned or not, as if there were no mask: a straight-through
    estimator (Bengio et al. 2013). After the update of the weights at a due step the
    masks keep the largest in magnitude of all.

    The kernels are exactly 0 where pruned after every step. What is learnt there is in
    the `variables` of what is returned, one for each kernel, of which nothing is read
    where weights live; for a new training, set them to 0. Unlike with any other masks,
    the slots of pruned weights live too.

    Args:
        pruned: `PrunedModel`.
        sparsity: `step -> fraction` of all weights that is pruned, for example of
            `schedules.constant(0.9)`. None: each kernel (or all together) keeps as many
            as its mask does.
        update_every: steps between two updates of the masks.
        begin_step: the first step that is due; through it, the masks are as they were.
        end_step: no step is due from this one on. None: updates go on.
        allocation: "layerwise" or "global", as for `gradual`.

    Returns:
        A `core.mask_updates.MaskUpdate`.

    Raises:
        ValueError: steps or the sparsity at the last known one are out of range, or it
            leaves no weight.
    """
    groups = changes.groups(pruned, allocation)
    latents = changes.new_latents(pruned)

    def make_update(optimizer):
        changes.check_unheld(pruned, optimizer)

        def update(gradients):
            changes.assign(pruned.kernels, changes.whole(pruned, latents))
            optimizer.apply(gradients, pruned.trainable_variables)
            changes.split(pruned, latents, changes.values(pruned.kernels))

        return update

    def change(gradients, step, seed):
        del gradients, seed
        weights = changes.whole(pruned, latents)
        fraction = None if sparsity is None else sparsity(step)
        changes.keep_highest(pruned, groups, fraction, [magnitude(w) for w in weights])
        changes.split(pruned, latents, weights)

    update = changes.scheduled(
        *(change, update_every, begin_step, end_step),
        make_update=make_update,
        variables=latents,
    )
    if sparsity is not None:
        last_step = begin_step if end_step is None else end_step
        changes.check_sparsity(pruned, groups, sparsity, last_step)
    return update
