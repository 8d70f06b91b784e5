"""Which variables are prunable, over the kinds of layers and of models."""

import re

import keras
import numpy as np
import pytest

import prunetrain as pt
from tests import toys

layers = keras.layers


def chosen(model, **patterns):
    """Paths of the prunable variables, without the model's own name."""
    choices = pt.kernels(**patterns)(model)
    return [c.variable.path.removeprefix("net/") for c in choices if c.prunable]


def reasons(model, **patterns):
    """{path: why it is prunable or not} for every weight."""
    choices = pt.kernels(**patterns)(model)
    return {c.variable.path.removeprefix("net/"): c.reason for c in choices}


def alone(layer, shape):
    """A model of one layer."""
    return keras.Sequential([keras.Input(shape), layer], name="net")


def words():
    """An embedding and the logits after it."""
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(7, 3, name="words"),
            layers.Flatten(),
            layers.Dense(3, name="logits"),
        ],
        name="net",
    )


KERNEL = ["kernel"]
SEPARABLE = ["depthwise_kernel", "pointwise_kernel"]
RECURRENT = ["kernel", "recurrent_kernel"]


LAYERS = {
    "Dense": (lambda: layers.Dense(4), (3,), KERNEL),
    "Dense, no bias": (lambda: layers.Dense(4, use_bias=False), (3,), KERNEL),
    "TimeDistributed": (
        lambda: layers.TimeDistributed(layers.Dense(4)),
        (5, 3),
        KERNEL,
    ),
    "Conv1D": (lambda: layers.Conv1D(2, 3), (8, 2), KERNEL),
    "Conv2D": (lambda: layers.Conv2D(2, 3), (6, 6, 2), KERNEL),
    "Conv1DTranspose": (lambda: layers.Conv1DTranspose(2, 3), (8, 2), KERNEL),
    "Conv2DTranspose": (lambda: layers.Conv2DTranspose(2, 3), (6, 6, 2), KERNEL),
    "DepthwiseConv1D": (lambda: layers.DepthwiseConv1D(3), (8, 2), KERNEL),
    "DepthwiseConv2D": (lambda: layers.DepthwiseConv2D(3), (6, 6, 2), KERNEL),
    "SeparableConv1D": (lambda: layers.SeparableConv1D(2, 3), (8, 2), SEPARABLE),
    "SeparableConv2D": (lambda: layers.SeparableConv2D(2, 3), (6, 6, 2), SEPARABLE),
    "EinsumDense": (
        lambda: layers.EinsumDense("abc,cde->abde", (None, 4, 2), bias_axes="de"),
        (5, 3),
        KERNEL,
    ),
    # Its bias has rank 2, one row for the input and one for the state.
    "GRU": (lambda: layers.GRU(3), (4, 2), RECURRENT),
    "LSTM": (lambda: layers.LSTM(3), (4, 2), RECURRENT),
    "Bidirectional": (
        lambda: layers.Bidirectional(layers.GRU(3)),
        (4, 2),
        RECURRENT * 2,
    ),
    "BatchNormalization": (lambda: layers.BatchNormalization(), (3,), []),
    "LayerNormalization": (
        lambda: layers.LayerNormalization(axis=[1, 2]),
        (3, 4),
        [],
    ),
    "GroupNormalization": (lambda: layers.GroupNormalization(2), (4, 4), []),
    "PReLU": (lambda: layers.PReLU(), (3, 4), []),
    "Embedding": (lambda: layers.Embedding(7, 3), (4,), []),
    "Rescaling": (lambda: layers.Rescaling(2.0), (3,), []),
    "Dropout": (lambda: layers.Dropout(0.5), (3,), []),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_kernels_are_prunable_and_nothing_else(kind):
    """B6, B8."""
    make_layer, shape, expected = LAYERS[kind]
    paths = chosen(alone(make_layer(), shape))
    assert [path.rsplit("/", 1)[-1] for path in paths] == expected


def test_attention_kernels_are_prunable_but_not_their_matrix_biases():
    inputs = keras.Input((4, 6))
    outputs = layers.MultiHeadAttention(2, 3, name="attention")(inputs, inputs)
    model = keras.Model(inputs, outputs)
    assert chosen(model) == [
        f"attention/{part}/kernel"
        for part in ("query", "key", "value", "attention_output")
    ]
    biases = [w for w in model.weights if w.name == "bias"]
    assert [len(bias.shape) for bias in biases] == [2, 2, 2, 1]


def test_every_weight_is_shown_with_a_reason():
    model = keras.Sequential(
        [
            keras.Input((3, 4)),
            layers.Dense(4, name="dense"),
            layers.BatchNormalization(name="bn"),
            layers.PReLU(name="prelu"),
        ],
        name="net",
    )
    never = "biases and normalisation are never pruned"
    assert reasons(model) == {
        "dense/kernel": "kernel",
        "dense/bias": f"bias: {never}",
        "bn/gamma": f"gamma: {never}",
        "bn/beta": f"beta: {never}",
        "bn/moving_mean": "not trainable",
        "bn/moving_variance": "not trainable",
        "prelu/alpha": "matrix named 'alpha', not a kernel: name it in `include`",
    }


def test_a_vector_is_no_kernel_whatever_its_name():
    class Scale(keras.Layer):
        def build(self, input_shape):
            self.kernel = self.add_weight(shape=input_shape[-1:], name="kernel")

        def call(self, inputs):
            return inputs * self.kernel

    model = alone(Scale(name="scale"), (3,))
    assert chosen(model) == []
    assert reasons(model) == {"scale/kernel": "vector"}


# Kinds of models


def test_kernels_of_nested_models_are_found_once():
    """B1: Sequential inside Functional inside Sequential."""
    inner = keras.Sequential(
        [keras.Input((3,)), layers.Dense(4, name="inner")], name="sequential"
    )
    inputs = keras.Input((3,))
    outputs = layers.Dense(5, name="middle")(inner(inputs))
    functional = keras.Model(inputs, outputs, name="functional")
    model = keras.Sequential(
        [keras.Input((3,)), functional, layers.Dense(2, name="outer")], name="net"
    )
    names = [path.split("/")[-2] for path in chosen(model)]
    assert names == ["inner", "middle", "outer"]


class Subclassed(keras.Model):
    """Layers held as attribute, in a list and in a dict."""

    def __init__(self):
        super().__init__(name="net")
        self.first = layers.Dense(4, name="attribute")
        self.several = [layers.Dense(4, name=f"list_{i}") for i in range(2)]
        self.named = {"last": layers.Dense(2, name="dict")}

    def call(self, inputs):
        x = self.first(inputs)
        for layer in self.several:
            x = layer(x)
        return self.named["last"](x)


def test_layers_in_attributes_lists_and_dicts_are_all_found():
    """B2."""
    model = Subclassed()
    model(np.zeros([1, 3]))
    assert chosen(model) == [
        f"{name}/kernel" for name in ("attribute", "list_0", "list_1", "dict")
    ]


def test_a_shared_layer_is_one_kernel():
    """B7: a siamese network."""
    shared = layers.Dense(3, name="shared")
    left, right = keras.Input((2,)), keras.Input((2,))
    outputs = layers.Concatenate()([shared(left), shared(right)])
    model = keras.Model([left, right], outputs)
    assert chosen(model) == ["shared/kernel"]


def test_frozen_layers_are_skipped_with_the_reason():
    """A13."""
    model = toys.mlp()
    model.layers[0].trainable = False
    assert chosen(model) == ["dense_2/kernel"]
    assert reasons(model)["dense_1/kernel"] == "not trainable"


def test_two_layers_that_share_a_path_stay_two():
    class Twins(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.one = layers.Dense(3, name="same")
            self.two = layers.Dense(3, name="same")

        def call(self, inputs):
            return self.two(self.one(inputs))

    model = Twins()
    model(np.zeros([1, 3]))
    choices = [c for c in pt.kernels()(model) if c.prunable]
    assert [c.variable.path for c in choices] == ["net/same/kernel"] * 2
    assert [c.variable for c in choices] == [model.one.kernel, model.two.kernel]


# Patterns


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ({}, ["logits"]),
        ({"include": "embeddings"}, ["words"]),
        ({"include": ["kernel", "embeddings"]}, ["words", "logits"]),
        ({"include": ".", "exclude": "logits"}, ["words"]),
        ({"include": [".", "nothing|logits"], "exclude": ["words"]}, ["logits"]),
        ({"exclude": r"words/"}, None),
    ],
)
def test_patterns_search_the_paths_of_matrices(patterns, expected):
    if expected is None:
        # Embeddings are no candidates unless they are included: nothing to exclude.
        with toys.raises(ValueError, "`exclude`", "words/"):
            chosen(words(), **patterns)
    else:
        paths = chosen(words(), **patterns)
        assert [path.split("/")[0] for path in paths] == expected


def test_reasons_name_the_pattern():
    model = toys.mlp((6, 5, 4, 3))
    found = reasons(model, include="dense_[12]", exclude="2/")
    assert found["dense_1/kernel"] == "kernel"
    assert found["dense_2/kernel"] == "excluded by '2/'"
    assert found["dense_3/kernel"] == "matches no `include` pattern"
    assert reasons(words(), include="words")["words/embeddings"] == "included"


def test_biases_are_not_prunable_even_if_included():
    """Whatever their rank: a GRU's bias is a matrix."""
    model = alone(layers.GRU(3, name="gru"), (4, 2))
    assert len(chosen(model, include="gru")) == 2
    with toys.raises(ValueError, "`include`", "include='/bias'", "recurrent_kernel"):
        chosen(model, include="/bias")


@pytest.mark.parametrize("argument", ["include", "exclude"])
def test_a_pattern_that_matches_nothing_lists_the_paths(argument):
    """B12."""
    fragments = [
        f"`{argument}`",
        f"{argument}='dense_9'",
        "net/dense_1/kernel, net/dense_2/kernel",
    ]
    with toys.raises(ValueError, *fragments):
        chosen(toys.mlp(), **{argument: ["dense_1", "dense_9"]})


@pytest.mark.parametrize("argument", ["include", "exclude"])
@pytest.mark.parametrize("pattern", ["dense_(", 3])
def test_a_pattern_must_be_a_regular_expression(argument, pattern):
    with toys.raises(ValueError, f"`{argument}`", f"{argument}={pattern!r}"):
        pt.kernels(**{argument: [pattern]})


def test_names_with_dots_are_told_apart_by_escaping_them():
    """E7: a dot in a pattern is any character."""
    model = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(3, name="fc.1"),
            layers.Dense(3, name="fc.2"),
        ],
        name="net",
    )
    assert chosen(model) == ["fc.1/kernel", "fc.2/kernel"]
    assert chosen(model, include=r"fc\.2") == ["fc.2/kernel"]


def test_a_compiled_pattern_is_a_pattern():
    pruned = pt.PrunedModel(toys.mlp(), pt.kernels(exclude=re.compile("dense_2")))
    assert [kernel.path for kernel in pruned.kernels] == ["net/dense_1/kernel"]
