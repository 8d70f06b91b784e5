"""Sparse training in TensorFlow: train, prune, rewind, repeat, on the device.

The public names load at first use (PEP 562), so that `--help` and a mistyped flag
answer without waiting for TensorFlow.
"""

import importlib

_HOMES = {
    "Config": "config",
    "LayerSparsity": "core.pruned_model",
    "PrunedModel": "core.pruned_model",
    "Snapshot": "core.snapshot",
    "kernels": "core.selection",
    "load_dataset": "data",
    "make_eval_loop": "core.loops",
    "make_eval_step": "core.steps",
    "make_train_loop": "core.loops",
    "make_train_step": "core.steps",
    "prune": "pruning.prune",
    "run": "experiment",
    "testing": None,
}
__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'prunetrain' has no attribute {name!r}")
    home = _HOMES[name]
    if home is None:
        return importlib.import_module(f"prunetrain.{name}")
    value = getattr(importlib.import_module(f"prunetrain.{home}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_HOMES})
