"""TensorFlow and Keras, imported at first use.

The registries of criteria, models and datasets name what exists; they must be readable
before TensorFlow is loaded, so that a mistyped flag is answered at once.
"""

import importlib
import types


class _LazyModule(types.ModuleType):
    def __getattr__(self, name):
        return getattr(importlib.import_module(self.__name__), name)


def module(name):
    """The module of that name, imported when it is first asked for something."""
    return _LazyModule(name)


tf = module("tensorflow")
keras = module("keras")
