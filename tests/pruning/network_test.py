"""A model as a function of its weights."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.pruning import network
from tests import toys


def test_outputs_are_those_of_the_values_and_the_model_stays_as_it_is():
    model = toys.linear([[1.0], [2.0]])
    before = toys.bits(model.variables)
    x = np.array([[3, 4]], np.float32)
    values = [tf.constant([[10.0], [100.0]])]
    found = network.outputs(model, model.variables, values, x, "float32")
    assert found.numpy().tolist() == [[430]]
    assert toys.bits(model.variables) == before
    assert model(x).numpy().tolist() == [[11]]


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16", "float32", "float64"])
def test_arithmetic_is_as_wide_as_asked_for(policy):
    model = toys.linear([[1.0], [1.0]], dtype=policy)
    values = [tf.constant([[1.0], [2.0**-40]], tf.float64)]
    x = np.ones([1, 2], np.float32)
    found = network.outputs(model, model.variables, values, x, "float64")
    assert found.dtype == tf.float64
    assert found.numpy().item() == 1 + 2.0**-40
    assert model.layers[0].dtype_policy.name == policy


def test_the_precision_is_put_back_after_an_error():
    model = toys.linear([[1.0], [1.0]], dtype="mixed_float16")
    with pytest.raises(ValueError):
        network.outputs(model, (), (), np.ones([1, 3], np.float32), "float64")
    assert model.layers[0].dtype_policy.name == "mixed_float16"
    assert model(np.ones([1, 2], np.float32)).numpy().item() == 2


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        *[("float32", "float32"), ("mixed_float16", "float32")],
        *[("bfloat16", "float32"), ("float64", "float64")],
    ],
)
def test_wide_is_float32_or_the_weights_float64(policy, expected):
    assert network.wide_dtype(toys.linear([[1.0]], dtype=policy)) == expected


def test_what_a_model_assigns_at_inference_is_not_kept():
    class Counter(keras.layers.Layer):
        def build(self, shape):
            self.calls = self.add_weight(shape=(), trainable=False, name="calls")

        def call(self, inputs):
            self.calls.assign(self.calls + 1)
            return inputs

    model = keras.Sequential([keras.Input((2,)), Counter(), keras.layers.Dense(1)])
    before = toys.bits(model.variables)
    network.outputs(model, (), (), np.ones([1, 2], np.float32), "float32")
    assert toys.bits(model.variables) == before


class Thing:
    kind = "class"


def test_an_attribute_is_replaced_for_a_while_only():
    thing = Thing()
    thing.own = 1
    with network.replaced(thing, "own", 2), network.replaced(thing, "kind", "mine"):
        assert (thing.own, thing.kind) == (2, "mine")
    assert vars(thing) == {"own": 1}
    with pytest.raises(RuntimeError), network.replaced(thing, "own", 2):
        raise RuntimeError
    assert thing.own == 1


def test_a_program_is_made_once_and_goes_with_its_model():
    made = []

    def make(model, kernels, part):
        made.append(part)
        return lambda: kernels[0].value * 2

    pruned, part, other = pt.PrunedModel(toys.linear([[3.0]])), object(), object()
    program = network.program(pruned, "double", make, part)
    assert program().numpy() == [[6]]
    assert network.program(pruned, "double", make, part) is program
    assert network.program(pruned, "double", make, other) is not program
    assert network.program(pt.PrunedModel(toys.linear([[3.0]])), "double", make, part)
    assert made == [part, other, part]
    gone = weakref.ref(pruned)
    del pruned, program
    gc.collect()
    assert gone() is None
