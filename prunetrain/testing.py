"""The invariants of masked training as assertions, for tests of research code."""

import numpy as np


def assert_masks_hold(pruned, optimizer=None, previous_masks=None):
    """Asserts that pruned weights are exactly +0.0, and what follows from it.

    Args:
        pruned: `PrunedModel`.
        optimizer: if given, its slots must be zero where weights are pruned (not for
            Adafactor, which rebuilds its velocity from sums over rows and columns).
        previous_masks: masks (arrays or variables, aligned with `pruned.kernels`) of an
            earlier moment; the present ones must keep no weight that those pruned.

    Raises:
        AssertionError: naming the variable, how many weights break the rule, and the
            first of them with its value.
    """
    masks = [np.asarray(mask) for mask in pruned.masks]
    for kernel, mask in zip(pruned.kernels, masks, strict=True):
        _assert_zero(np.asarray(kernel.value), mask, f"weights of {kernel.path}")
    if optimizer is not None:
        for slot, mask in pruned.slots(optimizer):
            _assert_zero(
                np.asarray(slot.value), np.asarray(mask), f"values of slot {slot.path}"
            )
    if previous_masks is not None:
        for kernel, mask, previous in zip(
            pruned.kernels, masks, previous_masks, strict=True
        ):
            revived = np.argwhere(mask & ~np.asarray(previous).astype(bool))
            assert not len(revived), (
                f"{len(revived)} pruned weights of {kernel.path} came back, the first "
                f"at {tuple(map(int, revived[0]))}"
            )


def _assert_zero(values, mask, what):
    # The sign bit too: -0.0 equals 0 but is not the same bits.
    values = values.astype(np.float64)
    wrong = np.argwhere(~mask & ((values != 0) | np.signbit(values)))
    assert not len(wrong), (
        f"{len(wrong)} pruned {what} are not +0.0, the first at "
        f"{tuple(map(int, wrong[0]))}: {values[tuple(wrong[0])]}"
    )
