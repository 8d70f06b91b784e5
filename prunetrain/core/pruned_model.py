"""A Keras model together with its masks, which live on the device."""

import dataclasses
import weakref

import keras
import numpy as np
import tensorflow as tf

from prunetrain.core import selection


@dataclasses.dataclass(frozen=True)
class LayerSparsity:
    """Counts of one prunable variable.

    `kept` and `total` are numbers of weights; `sparsity` is their pruned fraction.
    """

    path: str
    shape: tuple
    kept: int
    total: int

    @property
    def sparsity(self):
        # A kernel may be empty: no input, no weights.
        return (self.total - self.kept) / max(self.total, 1)


class PrunedModel(tf.Module):
    """A Keras model and one boolean mask per prunable variable.

    True keeps a weight, False prunes it. What is pruned is read from the masks, never
    from zeros among the weights. Masks are non-trainable `tf.Variable`s, one byte a
    weight, so pruning needs neither a retrace nor a copy through the host.

    Args:
        model: any built Keras 3 model.
        prunable: rule that selects the prunable variables (see
            `prunetrain.core.selection`); None means `prunetrain.kernels()`.

    Raises:
        TypeError: `model` is not a Keras 3 model.
        ValueError: `model` is not built, or has nothing to prune.
    """

    def __init__(self, model, prunable=None):
        super().__init__(name="pruned_model")
        _check_model(model)
        prunable = selection.kernels() if prunable is None else prunable
        if not callable(prunable):
            raise TypeError(
                "`prunable` must be a rule, for example pt.kernels(exclude='head'). "
                f"Received: prunable={prunable!r}"
            )
        self.model = model
        self.choices = tuple(prunable(model))
        self._kernels = tuple(c.variable for c in self.choices if c.prunable)
        if not self._kernels:
            raise ValueError(
                "`model` must have at least one prunable variable. Received: "
                f"model={model.name!r} with {_reasons(self.choices)}"
            )
        self._masks = tuple(
            tf.Variable(
                tf.ones(kernel.shape, tf.bool), trainable=False, name=f"mask_{index}"
            )
            for index, kernel in enumerate(self._kernels)
        )
        self._optimizers = weakref.WeakSet()

    @property
    def kernels(self):
        """The prunable `keras.Variable`s, in model order."""
        return tuple(self._kernels)

    @property
    def masks(self):
        """One boolean `tf.Variable` per kernel, of the kernel's shape."""
        return tuple(self._masks)

    @property
    def trainable_variables(self):
        """The model's trainable `keras.Variable`s."""
        return self.model.trainable_variables

    def __call__(self, inputs, training=False):
        """The pruned model's outputs for `inputs`.

        Called eagerly, it applies the masks first: weights may have been loaded since.
        """
        if tf.executing_eagerly():
            self.apply_masks()
        return self.model(inputs, training=training)

    def mask_gradients(self, gradients):
        """Gradients with those of pruned weights set to zero.

        Args:
            gradients: sequence aligned with `trainable_variables`; None passes through.

        Returns:
            A list of the same length.

        Raises:
            ValueError: the lengths differ.
        """
        gradients, variables = list(gradients), self.trainable_variables
        if len(gradients) != len(variables):
            raise ValueError(
                "`gradients` must be aligned with `trainable_variables`, "
                f"{len(variables)} of them. Received: {len(gradients)} gradients."
            )
        masks = self._masks_by_id()
        return [
            gradient
            if gradient is None or id(variable) not in masks
            else masked(gradient, masks[id(variable)])
            for gradient, variable in zip(gradients, variables, strict=True)
        ]

    def apply_masks(self):
        """Sets every pruned weight to exactly +0.0, on the device.

        Works eagerly, inside a `tf.function` and inside a Keras callback.
        """
        for kernel, mask in zip(self._kernels, self._masks, strict=True):
            kernel.assign(masked(kernel, mask))

    def set_masks(self, masks, allow_regrowth=False):
        """Validates new masks, assigns them and zeroes what they prune.

        Weights and the slots of every optimizer known to this model (see
        `attach_optimizer`) are zeroed, so that no momentum revives a pruned weight.

        Args:
            masks: sequence aligned with `kernels`, or a dict from kernel path to
                array; boolean, or numbers that are all 0 or 1.
            allow_regrowth: whether a pruned weight may come back (it starts at 0).

        Raises:
            ValueError: a mask is missing, unknown, of another shape, neither 0 nor 1
                somewhere, or revives a pruned weight. Nothing is assigned then.
        """
        masks = [
            _as_mask(mask, kernel)
            for mask, kernel in zip(self._aligned(masks), self._kernels, strict=True)
        ]
        if not allow_regrowth:
            for new, old, kernel in zip(masks, self._masks, self._kernels, strict=True):
                if tf.reduce_any(new & ~old):
                    raise ValueError(
                        "`masks` must only remove weights unless allow_regrowth=True. "
                        f"Received: a mask that revives pruned weights of {kernel.path}"
                    )
        for new, old in zip(masks, self._masks, strict=True):
            old.assign(new)
        self.apply_masks()
        self.mask_slots()

    def attach_optimizer(self, optimizer):
        """Builds `optimizer` for this model and keeps its slots pruned from now on.

        The slots of pruned weights are zeroed now and at each change of the masks;
        in between they stay zero by themselves, because masked gradients are zero.

        Raises:
            TypeError: `optimizer` is not a Keras 3 optimizer.
            ValueError: it was built for other variables.
        """
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(
                "`optimizer` must be a Keras 3 optimizer, for example "
                f"keras.optimizers.Adam(1e-3). Received: {type(optimizer).__name__}"
            )
        variables = self.trainable_variables
        if not optimizer.built:
            optimizer.build(variables)
        known = inner(optimizer)._trainable_variables
        if [id(v) for v in known] != [id(v) for v in variables]:
            raise ValueError(
                "`optimizer` was built for the variables of another model (or for some "
                f"of this one's only). Received: {optimizer.name!r} holding "
                f"{len(known)} variables, model {self.model.name!r} has "
                f"{len(variables)} trainable ones. Make a new optimizer for each model."
            )
        self._optimizers.add(optimizer)
        self.mask_slots(optimizer)

    def mask_slots(self, optimizer=None):
        """Zeroes slots (moments, accumulators, averages) where pruned.

        Args:
            optimizer: whose slots; None means every optimizer known to this model.
        """
        for known in list(self._optimizers) if optimizer is None else [optimizer]:
            for slot, mask in self.slots(known):
                slot.assign(masked(slot, mask))

    def slots(self, optimizer):
        """`(slot, mask)` for every variable that `optimizer` keeps per kernel.

        A slot is found by its position beside its kernel and its shape, not by a name
        or by looping over `optimizer.variables`, which also holds the learning rate
        and the step counter.
        """
        masks, pairs = self._masks_by_id(), []
        optimizer = inner(optimizer)
        variables = optimizer._trainable_variables
        for attribute in vars(optimizer).values():
            if not isinstance(attribute, (list, tuple)) or attribute is variables:
                continue
            if len(attribute) != len(variables):
                continue
            for slot, variable in zip(attribute, variables, strict=True):
                mask = masks.get(id(variable))
                if (
                    mask is not None
                    # Not keras.Variable: older releases export another class so.
                    and isinstance(getattr(slot, "value", None), tf.Variable)
                    and slot is not variable
                    and slot.shape == variable.shape
                ):
                    pairs.append((slot, mask))
        return pairs

    def layer_sparsity(self):
        """List of `LayerSparsity`, one per kernel."""
        # Not count_nonzero, which takes twice the memory. int32: one tensor's weights.
        kept = [tf.reduce_sum(tf.cast(mask, tf.int32)) for mask in self._masks]
        return [
            LayerSparsity(k.path, tuple(k.shape), int(n), int(np.prod(k.shape)))
            for k, n in zip(self._kernels, kept, strict=True)
        ]

    def sparsity(self):
        """Fraction of the prunable weights that are pruned, from integer counts."""
        layers = self.layer_sparsity()
        kept, total = sum(x.kept for x in layers), sum(x.total for x in layers)
        return (total - kept) / total

    def summary(self):
        """Table of every weight: pruned how far, or skipped and why (a string)."""
        counts = iter(self.layer_sparsity())
        rows = [("variable", "shape", "kept", "total", "sparsity", "why")]
        for choice in self.choices:
            variable = choice.variable
            shape = "×".join(map(str, variable.shape)) or "scalar"
            total = int(np.prod(variable.shape))
            if choice.prunable:
                count = next(counts)
                numbers = (f"{count.kept:,}", f"{total:,}", f"{count.sparsity:.2%}")
            else:
                numbers = ("", f"{total:,}", "skipped")
            rows.append((variable.path, shape, *numbers, choice.reason))
        total = sum(x.total for x in self.layer_sparsity())
        kept = sum(x.kept for x in self.layer_sparsity())
        sums = (f"{kept:,}", f"{total:,}", f"{1 - kept / total:.2%}", "")
        return _table([*rows, ("prunable in all", "", *sums)])

    def constrain(self):
        """Puts the masks behind Keras constraints.

        Code that calls `optimizer.apply` or `model.fit` then keeps the zeros. Only the
        weights are held: gradients and slots are not masked there, so clipping by norm
        sees the gradients of pruned weights. A constraint that a kernel already has is
        applied first. Calling it again changes nothing. Call it before a step of your
        own is traced.

        Raises:
            ValueError: the model is compiled with an optimizer that averages weights
                (`use_ema`): the averages go around constraints.
        """
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None and inner(optimizer).use_ema:
            raise ValueError(
                "`constrain` cannot hold averages of weights, which Keras takes before "
                "and puts back after constraints. Received: a model compiled with "
                "use_ema=True. Leave it off, or train with pt.make_train_step"
            )
        for kernel, mask in zip(self._kernels, self._masks, strict=True):
            if getattr(kernel.constraint, "mask", None) is not mask:
                kernel.constraint = MaskConstraint(mask, kernel.constraint)
                # What `fit` has traced without the constraint would go on without it.
                self.model.train_function = None
        self.apply_masks()

    def _masks_by_id(self):
        # By identity: every kernel is named "kernel", and paths can repeat too.
        return {id(k): m for k, m in zip(self._kernels, self._masks, strict=True)}

    def _aligned(self, masks):
        """`masks` as a list in the order of the kernels."""
        paths = [kernel.path for kernel in self._kernels]
        if not isinstance(masks, dict):
            masks = list(masks)
            if len(masks) != len(paths):
                raise ValueError(
                    f"`masks` must be aligned with the {len(paths)} kernels "
                    f"{', '.join(paths)}. Received: {len(masks)} masks."
                )
            return masks
        repeated = sorted({path for path in paths if paths.count(path) > 1})
        if repeated:
            raise ValueError(
                "`masks` must be a sequence, not a dict, for a model in which several "
                f"kernels share a path. Received: a dict; shared: {repeated}"
            )
        for problem, names in (
            ("misses", [path for path in paths if path not in masks]),
            ("has unknown", [path for path in masks if path not in paths]),
        ):
            if names:
                raise ValueError(
                    f"`masks` must have the keys {', '.join(paths)}. Received: a dict "
                    f"that {problem} {', '.join(map(str, names))}"
                )
        return [masks[path] for path in paths]


class MaskConstraint(keras.constraints.Constraint):
    """Keras constraint that applies an inner constraint, then a mask."""

    def __init__(self, mask, inner=None):
        self.mask = mask
        self.inner = inner

    def __call__(self, w):
        if self.inner is not None:
            w = self.inner(w)
        return masked(w, self.mask)


def check_pruned(pruned):
    """Raises TypeError unless `pruned` is a `PrunedModel`."""
    if not isinstance(pruned, PrunedModel):
        raise TypeError(
            "`pruned` must be a PrunedModel: wrap the Keras model, "
            f"pt.PrunedModel(model). Received: {type(pruned).__name__}"
        )


def masked(tensor, mask):
    """`tensor` where `mask` holds, +0.0 elsewhere.

    A selection rather than a product: a product leaves -0.0 and NaN behind.
    """
    tensor = tf.convert_to_tensor(tensor)
    return tf.where(mask, tensor, tf.zeros((), tensor.dtype))


def inner(optimizer):
    """The optimizer that holds the slots (a loss-scaling one wraps it)."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _check_model(model):
    if isinstance(model, PrunedModel):
        raise TypeError(
            "`model` must be a Keras model. Received: a PrunedModel; it already has "
            "masks, use it as it is or wrap its `.model`."
        )
    if not isinstance(model, keras.Model):
        kind = type(model)
        hint = (
            " It comes from the legacy tf_keras package, which is Keras 2: build it "
            "with Keras 3 (`import keras`)."
            if kind.__module__.startswith("tf_keras")
            or any(base.__module__.startswith("tf_keras") for base in kind.__mro__)
            else ""
        )
        raise TypeError(
            "`model` must be a Keras 3 model. Received: "
            f"{kind.__module__}.{kind.__qualname__}.{hint}"
        )
    if not model.built:
        raise ValueError(
            "`model` must be built, so that its weights exist. Received: "
            f"model={model.name!r} without weights. Start it with "
            "keras.Input(shape=…), or call it once on a batch of data."
        )


def _as_mask(mask, kernel):
    """`mask` as a boolean tensor of the kernel's shape."""
    values = tf.convert_to_tensor(mask)
    if values.shape != kernel.shape:
        raise ValueError(
            f"`masks` must have the shape of their kernels: {tuple(kernel.shape)} for "
            f"{kernel.path}. Received: shape {tuple(values.shape)}"
        )
    if values.dtype == tf.bool:
        return values
    if not tf.reduce_all((values == 0) | (values == 1)):
        raise ValueError(
            "`masks` must be boolean, or 0 and 1. Received: other values for "
            f"{kernel.path}"
        )
    return values == 1


def _reasons(choices):
    if not choices:
        return "no weights; if it has layers, call it once on a batch of data"
    return "; ".join(f"{c.variable.path} ({c.reason})" for c in choices)


def _table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = {2, 3, 4}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
