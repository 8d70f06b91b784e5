"""`models.make`: a user's own networks, what they are given, what is refused."""

import functools
import hashlib
import sys
import types

import keras
import numpy as np
import pytest

from prunetrain import models
from prunetrain.errors import InputError
from tests import toys


def net(input_shape, num_classes, units=5):
    """A network as users write it."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            keras.layers.Flatten(),
            keras.layers.Dense(units, "relu"),
            keras.layers.Dense(num_classes),
        ]
    )


@pytest.fixture
def own(monkeypatch):
    """Puts functions into an importable module; returns it."""
    module = types.ModuleType("own_models")
    monkeypatch.setitem(sys.modules, "own_models", module)
    module.net = net
    return module


def make(name="own_models:net", shape=(4, 4, 1), num_classes=3, **arguments):
    return models.make(name, shape, num_classes, arguments)


def refused(*fragments, **arguments):
    """Asserts that `make` answers with one line that holds the fragments."""
    with pytest.raises(InputError) as caught:
        make(**arguments)
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def test_a_function_is_given_shape_and_classes(own):
    model = make()
    assert model.input_shape == (None, 4, 4, 1)
    assert model.output_shape == (None, 3)


def test_arguments_go_to_the_function(own):
    assert make(units=7).layers[1].units == 7


def test_arguments_go_before_the_shape_of_the_data(own):
    model = models.make("own_models:net", (4, 4, 1), 3, {"num_classes": 8})
    assert model.output_shape == (None, 8)


def test_models_of_keras_are_found_by_their_words():
    model = make(
        "keras.applications:MobileNetV2",
        (32, 32, 3),
        7,
        weights=None,
        classifier_activation=None,
        alpha=0.35,
    )
    assert model.output_shape == (None, 7)


def test_our_own_take_arguments_too():
    model = make("wide_resnet", (8, 8, 1), depth=10, width=1)
    assert model.get_layer("stage_3_block_1_first_conv").filters == 64


def test_a_model_by_class_is_made_by_calling_it(own):
    class Net(keras.Model):
        def __init__(self, num_classes):
            super().__init__()
            self.dense = keras.layers.Dense(num_classes)
            self(np.zeros([1, 16]))

        def call(self, inputs):
            return self.dense(keras.ops.reshape(inputs, [-1, 16]))

    own.Net = Net
    assert make("own_models:Net").dense.units == 3


def test_every_call_draws_fresh_weights_that_the_seed_decides(own):
    def kernel(seed):
        keras.utils.set_random_seed(seed)
        return make().weights[0].numpy()

    np.testing.assert_array_equal(kernel(1), kernel(1))
    assert (kernel(1) != kernel(2)).all()


def test_a_model_that_is_handed_out_twice_is_refused(own):
    own.cached = functools.cache(net)
    make("own_models:cached")
    refused("must make a new model at each call", name="own_models:cached")


def test_arguments_that_it_does_not_take_are_answered_with_those_it_takes(own):
    refused(
        "--model_args=unit=7:",
        "(input_shape, num_classes, units=5)",
        "unexpected keyword argument 'unit'",
        unit=7,
    )


def test_an_argument_that_is_missing_is_named(own):
    own.wide = lambda input_shape, num_classes, width: None
    refused("--model_args=:", "width", name="own_models:wide")


def test_a_value_that_the_function_refuses_is_told():
    # Keras's message has several lines.
    refused(
        "--model=keras.applications:MobileNetV2",
        "(32, 32, 3)",
        "--model_args=weights=no_such_file",
        "Received `weights=no_such_file`",
        name="keras.applications:MobileNetV2",
        shape=(32, 32, 3),
        weights="no_such_file",
    )


@pytest.mark.parametrize(
    ("found", "fragments"),
    [
        (3, ["--model=own_models:x must name a function"]),
        (lambda: None, ["must return a Keras 3 model", "NoneType"]),
        (lambda: keras.layers.Dense(3), ["must return a Keras 3 model", "Dense"]),
        (lambda: keras.Sequential([keras.layers.Dense(3)]), ["has its weights"]),
        (lambda: toys.mlp((6, 3)), ["shape (6,)", "(4, 4, 1)"]),
    ],
)
def test_what_is_no_model_for_the_data_is_refused(own, found, fragments):
    own.x = found
    refused(*fragments, name="own_models:x")


def test_a_legacy_model_is_refused_with_the_remedy(own):
    """B9."""
    legacy = type("Sequential", (), {"__module__": "tf_keras.src.engine.sequential"})
    own.legacy = lambda: legacy()
    refused(
        "Keras 3 model (`import keras`, not tf_keras)",
        "Received: tf_keras.src.engine.sequential.Sequential",
        name="own_models:legacy",
    )


def test_a_model_of_several_inputs_is_refused(own):
    def two():
        inputs = [keras.Input((4, 4, 1)), keras.Input((2,))]
        flat = [keras.layers.Flatten()(x) for x in inputs]
        outputs = keras.layers.Dense(3)(keras.layers.Concatenate()(flat))
        return keras.Model(inputs, outputs)

    own.two = two
    refused("(4, 4, 1) and (2,)", name="own_models:two")


@pytest.mark.parametrize("shape", [(4, 4), (4, None, 1), (None, None, 1)])
def test_sizes_that_are_open_and_a_last_axis_of_1_fit(own, shape):
    own.open = lambda: keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Reshape((4, 4)),
            keras.layers.Dense(3),
        ]
    )
    outputs = make("own_models:open")(np.ones((2, 4, 4, 1), np.float32))
    assert outputs.shape == (2, 4, 3)


# Files


@pytest.fixture
def file(tmp_path):
    """A file with a trained model."""
    net((4, 4, 1), 3).save(tmp_path / "net.keras")
    return tmp_path / "net.keras"


def test_a_model_from_a_file_has_the_weights_of_the_file(file):
    first, second = (make(str(file)) for _ in range(2))
    assert toys.bits(first.weights) == toys.bits(second.weights)
    stored = keras.saving.load_model(file)
    assert toys.bits(first.weights) == toys.bits(stored.weights)


def test_a_model_from_a_file_can_be_drawn_afresh_by_the_seed(file):
    def kernel(seed):
        keras.utils.set_random_seed(seed)
        return models.make(str(file), (4, 4, 1), 3, fresh=True).weights[0].numpy()

    np.testing.assert_array_equal(kernel(1), kernel(1))
    for other in (kernel(2), make(str(file)).weights[0].numpy()):
        assert (kernel(1) != other).all()


def test_the_digest_of_a_file_is_its_sha_256(file):
    assert models.digest(str(file)) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_model_from_a_file_takes_no_arguments(file):
    refused("--model_args=units=3: must be empty", name=str(file), units=3)


def test_a_file_that_is_missing_is_refused(tmp_path):
    name = str(tmp_path / "net.keras")
    refused(f"--model={name} cannot be read (No such file", name=name)


def test_a_folder_is_no_model(tmp_path):
    (tmp_path / "net.keras").mkdir()
    refused("cannot be read", name=str(tmp_path / "net.keras"))


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.98])
def test_a_file_that_is_cut_off_is_refused(file, fraction):
    content = file.read_bytes()
    file.write_bytes(content[: int(fraction * len(content))])
    refused(f"--model={file} cannot be loaded", "damaged", name=str(file))


def test_a_file_with_code_is_refused_with_the_remedy(tmp_path):
    name = str(tmp_path / "code.keras")
    inputs = keras.Input((4, 4, 1))
    flat = keras.layers.Flatten()(keras.layers.Lambda(lambda x: 2 * x)(inputs))
    keras.Model(inputs, keras.layers.Dense(3)(flat)).save(name)
    refused("Lambda", "--model=package.module:function", name=name)


def test_a_file_with_a_class_of_the_user_s_is_refused_with_the_remedy(tmp_path):
    class Own(keras.layers.Flatten):
        pass

    name = str(tmp_path / "own.keras")
    layers = [keras.Input((4, 4, 1)), Own(), keras.layers.Dense(3)]
    keras.Sequential(layers).save(name)
    refused("Own", "--model=package.module:function", name=name)


def test_a_model_from_a_file_must_be_for_the_shape_of_the_data(file):
    refused("(4, 4, 1)", "(5, 5, 1)", name=str(file), shape=(5, 5, 1))
