"""Copies of a model's and an optimizer's state on the device, to rewind to."""

import tensorflow as tf

from prunetrain.core import pruned_model, tracing

# Attributes of an optimizer. `iterations` may be computed from the first.
_SCHEDULE = ("_iterations", "_learning_rate")


class Snapshot(tf.Module):
    """Everything that a run continues from, as it was at one step.

    Copied on the device: weights, masks, the optimizer's variables (slots; step counter
    and learning rate) and the rest of the model's state (batch-norm statistics, the
    seeds of dropout). Later training and pruning do not touch the copies.

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
        live = {**by_part(pruned.model, optimizer), "masks": list(pruned.masks)}
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

    def restore(
        self, weights=True, optimizer=True, masks=False, state=True, schedule=None
    ):
        """Puts parts of the state back. What the masks prune stays exactly zero.

        Args:
            weights: the trainable variables.
            optimizer: the optimizer's variables; nothing if the snapshot has none.
            masks: the masks too; otherwise the present masks are kept and apply.
            state: the model's other variables: batch-norm statistics and seeds.
            schedule: of the optimizer, the step counter (which the learning-rate
                schedule follows) and the learning rate; None: as `optimizer`, which
                otherwise stands for the slots alone.
        """
        wanted = {
            "weights": weights,
            "slots": optimizer,
            "schedule": optimizer if schedule is None else schedule,
            "masks": masks,
            "state": state,
        }
        self._copy_out(tuple(part for part, want in wanted.items() if want))
        # Not in the traced copy: optimizers may be attached after it is traced.
        self._pruned.mask_slots()


def make_line(first, second):
    """Builds the function that puts a model on the line between two of its snapshots.

    On the line lie the trainable variables and what else is a floating-point number,
    such as batch-norm statistics. Other state (counters, seeds) is the first
    snapshot's; the masks keep what either keeps; the optimizer stays as it is.

    Args:
        first, second: `Snapshot`s of one `PrunedModel`.

    Returns:
        A function of a number from 0 (`first`) to 1 (`second`). At the ends the values
        are exactly theirs, and where both have the same they are so all the way.
    """
    pruned = first._pruned
    live = by_part(pruned.model)

    def triples(part, variables):
        return zip(variables, first._copies[part], second._copies[part], strict=True)

    def move(place):
        for part in ("weights", "state"):
            for variable, start, end in triples(part, live[part]):
                variable.assign(_between(start, end, place))
        for mask, start, end in triples("masks", pruned.masks):
            mask.assign(start | end)
        pruned.apply_masks()

    move = tracing.unwarned(tf.function(move, autograph=False))
    return lambda place: move(tf.constant(place, tf.float64))


def _between(start, end, place):
    """The value at a place on the line, from the end that is nearer."""
    if not start.dtype.is_floating:
        return start.value()
    there, back = tf.cast(place, start.dtype), tf.cast(1 - place, start.dtype)
    return tf.where(
        place < 0.5, start + there * (end - start), end - back * (end - start)
    )


def by_part(model, optimizer=None):
    """The `tf.Variable`s of a model and its optimizer: dict from part to list.

    Parts: "weights" (trainable), "state" (the model's others), "schedule" (step counter
    and learning rate), "slots" (the optimizer's others, such as moments and averages).
    """
    trainable = {id(v) for v in model.trainable_variables}
    optimizers = () if optimizer is None else (optimizer, pruned_model.inner(optimizer))
    # A learning rate that follows a schedule is no variable.
    schedule = {id(getattr(x, name)) for x in optimizers for name in _SCHEDULE}
    variables = [] if optimizer is None else optimizer.variables
    return {
        "weights": [v.value for v in model.trainable_variables],
        # model.variables, not model.weights: only the former has dropout's seeds.
        "state": [v.value for v in model.variables if id(v) not in trainable],
        "schedule": [v.value for v in variables if id(v) in schedule],
        "slots": [v.value for v in variables if id(v) not in schedule],
    }
