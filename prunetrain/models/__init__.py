"""Keras model factories.

A factory is a function `(input_shape, num_classes) -> keras.Model` whose outputs are
logits `[batch, num_classes]`. To add one, write it in a module of this package and
register it in `MODELS`; the module is found by itself.
"""

import importlib
import pkgutil

from prunetrain.registry import Registry

MODELS = Registry("model")

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
