"""SynFlow: against NumPy, where it is defined, and that it empties no layer."""

import math
import warnings

import keras
import numpy as np
import pytest

import prunetrain as pt
from prunetrain.models import MODELS
from prunetrain.pruning import criteria
from prunetrain.pruning.criteria import synflow as synflow_lib
from tests import toys

L = keras.layers


def scores(pruned):
    found = criteria.CRITERIA["synflow"](
        pruned, initial=None, data=None, loss_fn=None, seed=0
    )
    return [score.numpy() for score in found]


def flow(kernels):
    """|w| times the sum of all that passes through it, for a chain of matrices."""
    sizes = [np.abs(np.asarray(kernel, np.float64)) for kernel in kernels]
    found = []
    for index, size in enumerate(sizes):
        coming = np.ones(sizes[0].shape[0])
        for before in sizes[:index]:
            coming = coming @ before
        going = np.ones(sizes[-1].shape[1])
        for after in reversed(sizes[index + 1 :]):
            going = after @ going
        found.append(coming[:, np.newaxis] * size * going)
    return found


def kept(pruned):
    return [layer.kept for layer in pruned.layer_sparsity()]


def test_scores_by_hand():
    """Paths 1 → 2 · 3 and 1 → 1 · 5, twice over the first."""
    pruned = pt.PrunedModel(toys.linear([[-2, 1], [0, 4]], [[3], [-5]]))
    first, second = scores(pruned)
    assert first.tolist() == [[6, 5], [0, 20]]
    assert second.tolist() == [[6], [25]]


@pytest.mark.parametrize("activation", [None, "relu", "tanh", "sigmoid"])
def test_scores_are_those_of_the_linear_network_of_magnitudes(activation):
    """Whatever the activations are, also a softmax at the end; biases are left out."""
    layers = [
        keras.Input((6,)),
        L.Dense(5, activation, bias_initializer="random_normal"),
        L.Dropout(0.5),
        L.Dense(4, activation, bias_initializer="random_normal"),
        L.Dense(3, "softmax", bias_initializer="random_normal"),
    ]
    pruned = pt.PrunedModel(keras.Sequential(layers))
    masks = toys.random_masks(pruned, keep=0.7)
    pruned.set_masks(masks)
    found = scores(pruned)
    for score, want in zip(found, flow(toys.values(pruned.kernels)), strict=True):
        assert score.dtype == np.float64
        np.testing.assert_allclose(score, want, rtol=1e-12)


def test_what_flows_into_a_unit_flows_out_of_it():
    """Tanaka et al. 2020, theorem 1."""
    first, second = scores(pt.PrunedModel(toys.mlp((6, 7, 3))))
    np.testing.assert_allclose(first.sum(0), second.sum(1), rtol=1e-12)


def test_batch_norm_scales_and_shifts_nothing():
    norm = L.BatchNormalization(epsilon=0)
    layers = [keras.Input((6,)), L.Dense(5), norm, L.ReLU(), L.Dense(3)]
    pruned = pt.PrunedModel(keras.Sequential(layers))
    gamma = np.array([1, -2, 3, 0.5, 1], np.float32)
    variance = np.array([4, 1, 0.25, 1, 1], np.float32)
    norm.set_weights([gamma, -np.ones(5), 7 * np.ones(5), variance])
    before = toys.bits(pruned.model.variables)
    first, second = scores(pruned)
    one, two = toys.values(pruned.kernels)
    scaled = one * gamma / np.sqrt(variance)
    for score, want in zip((first, second), flow([scaled, two]), strict=True):
        np.testing.assert_allclose(score, want, rtol=1e-6)
    assert toys.bits(pruned.model.variables) == before


def test_kernels_that_are_not_pruned_count_by_their_magnitude():
    model = toys.linear([[1, -2]], [[-3], [4]])
    pruned = pt.PrunedModel(model, pt.kernels(exclude="dense_2"))
    assert scores(pruned)[0].tolist() == [[3, 8]]


def test_a_convolution_with_pooling_and_a_shortcut_is_scored():
    inputs = keras.Input((4, 4, 2))
    x = L.Conv2D(3, 3, padding="same", activation="relu", name="one")(inputs)
    x = L.MaxPooling2D()(L.Add()([x, L.Conv2D(3, 1, name="side")(inputs)]))
    pruned = pt.PrunedModel(keras.Model(inputs, L.Flatten()(x)))
    found = dict(zip([k.path for k in pruned.kernels], scores(pruned), strict=True))
    # Of each window the place with most neighbours: the four in the middle.
    sizes = {kernel.path: np.abs(kernel.numpy()) for kernel in pruned.kernels}
    for path, size in sizes.items():
        np.testing.assert_allclose(found[path], 4 * size, rtol=1e-6)


class Subclass(keras.Model):
    def __init__(self):
        super().__init__()
        self.one, self.two = L.Dense(4, "relu"), L.Dense(2)

    def call(self, inputs):
        return self.two(self.one(inputs))


def test_a_subclassed_model_tells_its_shape_once_it_was_called():
    model = Subclass()
    model(np.ones([7, 3], np.float32))
    pruned = pt.PrunedModel(model)
    for score, want in zip(
        scores(pruned), flow(toys.values(pruned.kernels)), strict=True
    ):
        np.testing.assert_allclose(score, want, rtol=1e-12)


def test_inputs_of_unknown_shape_are_refused():
    inputs = keras.Input((None, 3))
    pruned = pt.PrunedModel(keras.Model(inputs, L.Dense(2)(inputs)))
    with toys.raises(ValueError, "synflow", "known shape", "(None, None, 3)"):
        scores(pruned)


class Attending(L.Layer):
    def build(self, shape):
        self.attention = L.MultiHeadAttention(2, 2)
        self.attention.build(shape, shape)

    def call(self, inputs):
        return self.attention(inputs * [[1.0], [3.0]], inputs)


NOT_LINEAR = {
    "layer normalisation": [L.LayerNormalization],
    "softmax layer": [L.Softmax],
    "a maximum": [lambda: L.ReLU(max_value=0.1)],
    "recurrent": [lambda: L.Reshape((1, 4)), lambda: L.LSTM(3)],
    "attention": [lambda: L.Reshape((2, 2)), Attending],
}


@pytest.mark.parametrize("kind", NOT_LINEAR)
def test_a_network_that_is_not_linear_is_refused(kind):
    layers = [keras.Input((6,)), L.Dense(4), *(make() for make in NOT_LINEAR[kind])]
    pruned = pt.PrunedModel(keras.Sequential(layers))
    before = toys.bits(pruned.model.variables)
    with toys.raises(
        ValueError, "synflow", "linear for positive inputs", "for inputs of 2"
    ):
        pt.prune(pruned, rate=0.2, criterion="synflow")
    assert toys.bits(pruned.model.variables) == before


def test_an_embedding_without_such_a_row_is_refused():
    """A lookup beyond its rows is an error of TensorFlow's on a CPU, else a 0."""
    layers = [keras.Input((3,)), L.Embedding(2, 4), L.Flatten(), L.Dense(2)]
    with toys.raises(ValueError, "synflow", "no embedding"):
        pt.prune(
            pt.PrunedModel(keras.Sequential(layers)), rate=0.5, criterion="synflow"
        )


def test_a_network_through_which_nothing_flows_is_refused():
    pruned = pt.PrunedModel(toys.mlp())
    masks = toys.values(pruned.masks)
    pruned.set_masks([np.zeros_like(masks[0]), masks[1]])
    with toys.raises(ValueError, "synflow", "something flows", "sum to 0 for"):
        scores(pruned)


def test_deep_networks_do_not_overflow():
    """In float32 they would: 60 layers of width 50 multiply by some 40 each."""
    pruned = pt.PrunedModel(
        toys.linear(*np.random.default_rng(0).normal(size=[60, 50, 50]))
    )
    found = scores(pruned)
    assert found[0].max() > 1e90
    assert all(np.isfinite(score).all() for score in found)
    sums = [score.sum() for score in found]
    np.testing.assert_allclose(sums, sums[0], rtol=1e-9)


def test_too_much_for_float64_is_told():
    pruned = pt.PrunedModel(toys.linear(*(1e30 * np.ones([12, 1, 1]))))
    with toys.raises(ValueError, "synflow", "sum to inf for"):
        scores(pruned)


def pruned_lenet(sparsity, **arguments):
    keras.utils.set_random_seed(0)
    pruned = pt.PrunedModel(MODELS["lenet_300_100"]((28, 28, 1), 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pt.prune(pruned, sparsity=sparsity, allocation="global", **arguments)
    return pruned


def test_no_layer_of_lenet_is_emptied_at_a_thousandth_of_the_weights():
    """At initialisation; magnitude empties the first layer, one step of SynFlow two."""
    pruned = pruned_lenet(0.999, criterion="synflow")
    assert sum(kept(pruned)) == 266_200 - math.floor(0.999 * 266_200 + 0.5)
    assert min(kept(pruned)) > 30
    # Something still flows.
    assert scores(pruned)[0].sum() > 0
    assert kept(pruned_lenet(0.999, criterion="synflow", iterations=1))[:2] == [0, 0]


def test_magnitude_empties_the_first_layer_of_lenet_at_a_fiftieth_of_the_weights():
    """Its weights are the smallest at initialisation: it has the most inputs."""
    first = [kept(pruned_lenet(sparsity))[0] for sparsity in (0.975, 0.98, 0.999)]
    assert first[0] > first[1] == first[2] == 0


def test_steps_are_as_many_as_asked_for_and_take_scores_anew(monkeypatch):
    seen = []
    plain = synflow_lib._check_flow

    def counted(once, twice):
        seen.append(once)
        plain(once, twice)

    monkeypatch.setattr(synflow_lib, "_check_flow", counted)
    pruned = pt.PrunedModel(toys.mlp())
    pt.prune(pruned, rate=0.5, criterion="synflow", iterations=5)
    assert len(seen) == 5
    # Each under the masks of the last.
    assert seen == sorted(seen, reverse=True)
    pt.prune(pruned, rate=0.1, criterion="synflow")
    assert len(seen) == 105


def test_one_program_serves_all_steps():
    traces = []

    class Counted(L.Layer):
        def call(self, inputs):
            traces.append(1)
            return inputs

    model = keras.Sequential([keras.Input((6,)), Counted(), L.Dense(3)])
    traces.clear()
    pt.prune(pt.PrunedModel(model), rate=0.5, criterion="synflow", iterations=7)
    # Once for inputs of 1, once for 2.
    assert len(traces) == 2
