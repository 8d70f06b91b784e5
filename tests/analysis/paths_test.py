"""Effective sparsity, against reachability in NumPy and networks worked out by hand."""

import keras
import numpy as np
import pytest

import prunetrain as pt
from prunetrain.analysis import paths
from prunetrain.models import MODELS
from tests import toys

L = keras.layers


def reachable(masks):
    """The weights on a path of a chain of matrices: breadth first, both ways."""
    forward = [np.ones(masks[0].shape[0], bool)]
    for mask in masks:
        forward.append((mask & forward[-1][:, np.newaxis]).any(0))
    backward = [np.ones(masks[-1].shape[1], bool)]
    for mask in reversed(masks):
        backward.insert(0, (mask & backward[0]).any(1))
    return [
        mask & forward[i][:, np.newaxis] & backward[i + 1]
        for i, mask in enumerate(masks)
    ]


def same(found, wanted):
    return all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def masks_of(pruned, **changes):
    """Masks that keep all, but for those of the layers named."""
    return [
        np.asarray(changes.get(kernel.path.split("/")[-2], np.ones(kernel.shape)), bool)
        for kernel in pruned.kernels
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("keep", [0.1, 0.3, 0.8])
def test_a_chain_has_the_paths_that_a_search_finds(keep, seed):
    pruned = pt.PrunedModel(toys.mlp((7, 9, 8, 6, 4), seed))
    masks = toys.random_masks(pruned, keep, seed)
    found = paths.effective_masks(pruned, masks)
    assert same(found, reachable(masks))
    assert all(mask.dtype == bool for mask in found)


def test_weights_values_activations_and_present_masks_do_not_matter():
    layers = [
        keras.Input((6,)),
        L.Dense(5, "tanh", bias_initializer="random_normal"),
        L.BatchNormalization(gamma_initializer="zeros"),
        L.Dropout(0.5),
        L.Dense(3, "softmax", kernel_initializer="zeros"),
    ]
    pruned = pt.PrunedModel(keras.Sequential(layers))
    masks = toys.random_masks(pruned, 0.4)
    pruned.set_masks([np.zeros(kernel.shape, bool) for kernel in pruned.kernels])
    before = toys.bits(pruned.model.variables, pruned.masks)
    assert same(paths.effective_masks(pruned, masks), reachable(masks))
    assert toys.bits(pruned.model.variables, pruned.masks) == before


def test_a_shortcut_keeps_alive_what_comes_before_and_after():
    inputs = keras.Input((3,))
    x = L.Dense(3, name="first")(inputs)
    y = L.Dense(3, name="second")(L.Dense(3, name="inner")(x))
    pruned = pt.PrunedModel(keras.Model(inputs, L.Dense(2, name="last")(x + y)))
    # Unit 1 of the first and unit 2 of the sum are not used further on.
    last = [[1, 1], [1, 1], [0, 0]]
    cut = masks_of(pruned, inner=np.zeros([3, 3]), last=last)
    first, inner, second, final = paths.effective_masks(pruned, cut)
    assert first.tolist() == [[True, True, False]] * 3
    assert not inner.any()
    assert not second.any()
    assert np.array_equal(final, np.array(last, bool))
    # Through the branch, unit 2 of the first layer has a way on.
    kept = masks_of(pruned, inner=[[0, 0, 0], [0, 0, 0], [0, 1, 0]], last=last)
    first, inner, second, _ = paths.effective_masks(pruned, kept)
    assert first.all()
    assert inner[2].tolist() == [False, True, False]
    assert second.tolist() == [[False] * 3, [True, True, False], [False] * 3]


@pytest.mark.parametrize("pooling", [L.MaxPooling2D, L.AveragePooling2D])
def test_a_convolution_has_paths_by_channel_and_place(pooling):
    """At 2 × 2 with a border of 0 each tap of 3 × 3 meets an input from some place."""
    inputs = keras.Input((2, 2, 2))
    x = L.Conv2D(3, 3, padding="same", name="one")(inputs)
    x = L.Flatten()(pooling(2)(x))
    pruned = pt.PrunedModel(keras.Model(inputs, L.Dense(2, name="two")(x)))
    two = np.array([[1, 0], [0, 0], [0, 1]], bool)
    one, out = paths.effective_masks(pruned, masks_of(pruned, two=two))
    assert one[..., [0, 2]].all()
    assert not one[..., 1].any()
    assert np.array_equal(out, two)


def test_taps_that_meet_only_padding_have_no_path():
    inputs = keras.Input((1, 1, 2))
    x = L.Conv2D(3, 3, padding="same")(inputs)
    pruned = pt.PrunedModel(keras.Model(inputs, L.Flatten()(x)))
    (found,) = paths.effective_masks(pruned, masks_of(pruned))
    assert found[1, 1].all()
    assert np.count_nonzero(found) == 2 * 3


@pytest.mark.parametrize("pooling", [L.GlobalMaxPooling2D, L.GlobalAveragePooling2D])
def test_pooling_over_all_places_lets_each_through(pooling):
    inputs = keras.Input((3, 3, 1))
    x = pooling()(L.Conv2D(2, 3, padding="same", name="one")(inputs))
    pruned = pt.PrunedModel(keras.Model(inputs, L.Dense(2, name="two")(x)))
    # The corner taps: none of the other ones is there to make a place the largest.
    corners = np.zeros([3, 3, 1, 2], bool)
    corners[[0, 2], [0, 2]] = True
    (one, _) = paths.effective_masks(pruned, masks_of(pruned, one=corners))
    assert np.array_equal(one, corners)


def one_path(pruned):
    """Masks with a single weight each, one behind the other."""
    masks = [np.zeros(kernel.shape, bool) for kernel in pruned.kernels]
    for mask in masks:
        mask[tuple(size // 2 if i < mask.ndim - 2 else 0 for i, size in
                   enumerate(mask.shape))] = True  # fmt: skip
    return masks


@pytest.mark.slow
def test_one_path_through_vgg19_is_found_and_all_of_it():
    pruned = pt.PrunedModel(MODELS["vgg19"]((32, 32, 3), 10))
    masks = one_path(pruned)
    assert same(paths.effective_masks(pruned, masks), masks)
    dense = [np.ones(kernel.shape, bool) for kernel in pruned.kernels]
    assert same(paths.effective_masks(pruned, dense), dense)
    # The wide layers as they are: a path through them is one of 4,608 at each.
    wide = [one if i % 2 else all for i, (one, all) in enumerate(zip(masks, dense))]  # noqa: B905
    assert all(mask.any() for mask in paths.effective_masks(pruned, wide))


@pytest.mark.parametrize("keep", [0.03, 0.1, 1.0])
def test_deep_networks_neither_overflow_nor_underflow(keep):
    """A count of paths would be up to 30^100; float64 ends at 10^308."""
    pruned = pt.PrunedModel(toys.linear(*np.ones([100, 30, 30])))
    masks = toys.random_masks(pruned, keep)
    # So that something comes through.
    for mask in masks:
        mask[np.arange(30), np.arange(30)] |= np.arange(30) < 3
    found = paths.effective_masks(pruned, masks)
    assert same(found, reachable(masks))
    assert found[0].any()


def test_a_unit_among_many_keeps_its_path_through_many_layers():
    """One weight of 200 leads on in each of 60 layers, the rest nowhere: 200^-60."""
    pruned = pt.PrunedModel(toys.linear(*np.ones([60, 200, 200])))
    masks = [np.zeros([200, 200], bool) for _ in pruned.kernels]
    for mask in masks:
        mask[:, 0] = True
    found = paths.effective_masks(pruned, masks)
    assert same(found, reachable(masks))
    assert [mask.sum() for mask in found] == [200] + [1] * 59


def test_masks_without_a_path_are_no_error():
    pruned = pt.PrunedModel(toys.mlp())
    masks = masks_of(pruned, dense_1=np.zeros([6, 5]))
    assert not any(mask.any() for mask in paths.effective_masks(pruned, masks))


def test_depthwise_and_transposed_layers_have_outputs_of_their_own():
    inputs = keras.Input((4, 4, 2))
    x = L.DepthwiseConv2D(2, depth_multiplier=2, name="depth")(inputs)
    x = L.Conv2DTranspose(3, 2, name="back")(x)
    pruned = pt.PrunedModel(keras.Model(inputs, L.Flatten()(x)))
    axes = paths.output_axes(pruned)
    depth = np.zeros([2, 2, 2, 2])
    depth[0, 0, 1, 1] = 1
    back = np.ones([2, 2, 3, 4])
    back[:, :, 1] = 0
    found = paths.effective_masks(pruned, masks_of(pruned, depth=depth, back=back))
    # Of four channels one passes; of three outputs one has no weights.
    assert paths.dead_units(found, axes) == [3, 1]
    assert found[1][..., 3].sum() == 2 * 2 * 2
    assert not found[1][..., :3].any()


def test_dead_units_are_outputs_without_a_weight():
    masks = [np.array([[1, 0, 0], [1, 0, 1]], bool), np.zeros([3, 2], bool)]
    assert paths.dead_units(masks) == [1, 2]
    assert paths.dead_units(masks, [(0,), (0, 1)]) == [0, 6]


def test_a_dead_unit_is_dead_even_if_its_bias_is_not():
    pruned = pt.PrunedModel(toys.mlp((4, 3, 2), bias_initializer="ones"))
    masks = masks_of(pruned, dense_1=[[0, 1, 1]] * 4)
    found = paths.effective_masks(pruned, masks)
    assert paths.dead_units(found) == [1, 0]
    assert not found[1][0].any()


def test_kernels_that_are_not_pruned_let_everything_through():
    rule = pt.kernels(exclude="dense_2")
    pruned = pt.PrunedModel(toys.mlp((4, 3, 5, 2)), rule)
    masks = [np.zeros([4, 3], bool), np.ones([5, 2], bool)]
    masks[0][1, 2] = True
    assert same(paths.effective_masks(pruned, masks), masks)


class Normalised(L.Layer):
    """x + f(norm(x)), as in transformers; equal weights make the second term 0."""

    def build(self, shape):
        self.norm, self.dense = L.LayerNormalization(), L.Dense(shape[-1])
        self.norm.build(shape)
        self.dense.build(shape)

    def call(self, inputs):
        return inputs + self.dense(self.norm(inputs))


@pytest.mark.parametrize(
    "layers",
    [
        [lambda: L.Reshape((1, 4)), lambda: L.LSTM(3)],
        [L.LayerNormalization],
        [lambda: L.ReLU(max_value=0.1)],
        [Normalised],
    ],
)
def test_a_network_whose_paths_cannot_be_counted_is_refused(layers):
    model = keras.Sequential(
        [keras.Input((6,)), L.Dense(4), *(make() for make in layers)]
    )
    pruned = pt.PrunedModel(model)
    with toys.raises(ValueError, "effective sparsity needs", "for inputs of 2"):
        paths.effective_masks(pruned, masks_of(pruned))


def test_masks_of_other_shapes_are_refused():
    pruned = pt.PrunedModel(toys.mlp((4, 3)))
    with toys.raises(ValueError, "(4, 3)", "(3, 4)"):
        paths.effective_masks(pruned, [np.ones([3, 4], bool)])


def test_one_program_serves_all_masks():
    traces = []

    class Counted(L.Layer):
        def call(self, inputs):
            traces.append(1)
            return inputs

    model = keras.Sequential([keras.Input((6,)), Counted(), L.Dense(3)])
    pruned = pt.PrunedModel(model)
    traces.clear()
    for seed in range(3):
        paths.effective_masks(pruned, toys.random_masks(pruned, seed=seed))
    assert len(traces) == 1
