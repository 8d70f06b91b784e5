"""What all tests share: a quiet, deterministic TensorFlow, fixed seeds."""

import os

# Before TensorFlow is imported, which reads it once.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hypothesis
import keras
import pytest
import tensorflow as tf

tf.config.experimental.enable_op_determinism()
# The same examples in every run; a first call compiles, which no deadline foresees.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None
)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def fixed_seeds():
    """Layers draw their default seeds from Python's generator: no test may flake."""
    keras.utils.set_random_seed(7)
