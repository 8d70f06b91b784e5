"""What changes the masks while a loop runs."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from prunetrain.core import pruned_model, steps


@dataclasses.dataclass(frozen=True)
class MaskUpdate:
    """Changes of the masks at some of a loop's steps, which are due.

    All of it is traced into the loop, and has to follow from the step, the seed and
    variables: then neither the length of a dispatch nor an interruption changes a bit.
    Steps and seed (the loop's) are int64 tensors.

    Attributes:
        next_due: `step -> step`, the first due step from this one on.
        change: `(gradients, step, seed) -> None`, called at due steps, after the update
            of the weights: assigns the masks and zeroes the weights and slots that must
            not stay. Gradients are None.
        replaces_update: at due steps `change` takes the place of the update of the
            weights. Gradients are those of `pruned.trainable_variables` then, not
            masked, and scaled as the optimizer expects.
        make_update: `optimizer -> update`, where `update(gradients)` is how weights are
            updated, in place of: mask the gradients, let the optimizer apply them, mask
            the weights.
        variables: `tf.Variable`s of its own. A checkpoint has to hold them. For several
            devices it must be a list that the functions read them from: each puts its
            copies there while it is traced.
    """

    next_due: Callable
    change: Callable
    replaces_update: bool = False
    make_update: Callable | None = None
    variables: list | tuple = ()


def check(mask_update, mask_interval):
    """Raises TypeError or ValueError unless a loop can be given the two."""
    if mask_update is None:
        return
    if not isinstance(mask_update, MaskUpdate):
        raise TypeError(
            "`mask_update` must be a MaskUpdate, for example "
            "prunetrain.pruning.dynamic.rigl(pruned, …). "
            f"Received: mask_update={mask_update!r}"
        )
    if mask_interval != 1:
        raise ValueError(
            "`mask_interval` must be 1 with a `mask_update`. "
            f"Received: mask_interval={mask_interval}"
        )


def make_update(mask_update, pruned, optimizer, mask_interval):
    """Builds `gradients -> None`, the update of the weights with `mask_update`."""
    if mask_update is None or mask_update.make_update is None:
        return steps.make_update(pruned, optimizer, mask_interval)
    return mask_update.make_update(optimizer)


def make_replacement(mask_update, optimizer):
    """Builds `(gradients, step, seed)`, which changes masks in place of an update."""

    def replacement(gradients, step, seed):
        mask_update.change(gradients, step, seed)
        inner = pruned_model.inner(optimizer)
        # The learning rate follows the steps that are made. But an accumulated gradient
        # is the sum of as many as ever.
        if not inner.gradient_accumulation_steps:
            inner.iterations.assign_add(1)

    return replacement


def make_either(mask_update, pruned, optimizer, mask_interval):
    """Builds `(gradients, step, seed)`: what is to be done at that step, due or not.

    A loop that trains does not choose at each step, which is slow under XLA.
    """
    update = make_update(mask_update, pruned, optimizer, mask_interval)
    if mask_update is None:
        return lambda gradients, step, seed: update(gradients)
    replacement = make_replacement(mask_update, optimizer)

    def either(gradients, step, seed):
        due = tf.equal(step, mask_update.next_due(step))
        if not mask_update.replaces_update:
            update(gradients)
            if due:
                mask_update.change(None, step, seed)
        elif due:
            replacement(gradients, step, seed)
        else:
            # Keras does not apply what is made outside of the branch.
            update([None if x is None else tf.identity(x) for x in gradients])

    return either
