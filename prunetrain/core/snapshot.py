"""Copies of a model's and an optimizer's state on the device, to rewind to."""

import tensorflow as tf

from prunetrain.core import pruned_model, tracing


class Snapshot(tf.Module):
    """Everything that a run continues from, as it was at one step.

    Copied on the device: weights, masks, the optimizer's variables (slots, step
    counter, learning rate) and the rest of the model's state (batch-norm statistics,
    the seeds of dropout). Later training and pruning do not touch the copies.

    Args:
        pruned: `PrunedModel`.
        optimizer: Keras 3 optimizer, built here if it is not yet; None leaves the
            optimizer out.
    """

    def __init__(self, pruned, optimizer=None):
        super().__init__(name="snapshot")
        pruned_model.check_pruned(pruned)
        if optimizer is not None:
            pruned.attach_optimizer(optimizer)
        self._pruned = pruned
        # Settled now: which variables are trainable may change later.
        live = _live_variables(pruned, optimizer)
        self._copies = {
            part: [tf.Variable(v, trainable=False) for v in variables]
            for part, variables in live.items()
        }

        def copy_in():
            for part, copies in self._copies.items():
                for copy, variable in zip(copies, live[part], strict=True):
                    copy.assign(variable)

        def copy_out(parts):
            for part in parts:
                for copy, variable in zip(self._copies[part], live[part], strict=True):
                    variable.assign(copy)
            pruned.apply_masks()

        self._copy_in = tracing.unwarned(tf.function(copy_in))
        self._copy_out = tracing.unwarned(tf.function(copy_out))

    def update(self):
        """Takes the snapshot anew from the present state."""
        self._copy_in()

    def restore(self, weights=True, optimizer=True, masks=False, state=True):
        """Puts parts of the state back. What the masks prune stays exactly zero.

        Args:
            weights: the trainable variables.
            optimizer: slots, step counter (which the learning-rate schedule follows)
                and learning rate; nothing if the snapshot has no optimizer.
            masks: the masks too; otherwise the present masks are kept and apply.
            state: the model's other variables: batch-norm statistics and seeds.
        """
        wanted = {
            "weights": weights,
            "optimizer": optimizer,
            "masks": masks,
            "state": state,
        }
        self._copy_out(tuple(part for part, want in wanted.items() if want))
        # Not in the traced copy: optimizers may be attached after it is traced.
        self._pruned.mask_slots()


def _live_variables(pruned, optimizer):
    """The `tf.Variable`s that a snapshot copies, by part."""
    model = pruned.model
    trainable = {id(v) for v in model.trainable_variables}
    return {
        "weights": [v.value for v in model.trainable_variables],
        # model.variables, not model.weights: only the former has dropout's seeds.
        "state": [v.value for v in model.variables if id(v) not in trainable],
        "optimizer": []
        if optimizer is None
        else [v.value for v in optimizer.variables],
        "masks": list(pruned.masks),
    }
