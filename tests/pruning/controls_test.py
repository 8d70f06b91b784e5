"""Controls, on arrays whose answer can be counted."""

import numpy as np
import pytest

from prunetrain import rewinding
from prunetrain.pruning import controls
from tests import toys

SHAPES = [(6, 5), (3, 3, 4, 7)]


@pytest.fixture
def arguments():
    """Masks, the ticket's weights and those of the control's start."""
    rng = np.random.default_rng(0)
    masks = [rng.random(shape) < 0.4 for shape in SHAPES]
    ticket, start = (
        [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
        for _ in range(2)
    )
    return masks, ticket, start


def made(name, arguments, seed=1):
    return controls.CONTROLS[name](*arguments, np.random.default_rng(seed))


def same(first, second):
    return all(map(np.array_equal, first, second))


@pytest.mark.parametrize("name", controls.CONTROLS)
def test_a_control_gives_masks_and_weights_of_their_kind_and_keeps_its_arguments(
    name, arguments
):
    before = [[array.copy() for array in arrays] for arrays in arguments]
    masks, weights = made(name, arguments)
    assert [(x.shape, x.dtype) for x in masks] == [(s, np.bool_) for s in SHAPES]
    assert [(x.shape, x.dtype) for x in weights] == [(s, np.float32) for s in SHAPES]
    assert all(map(same, before, arguments))


@pytest.mark.parametrize("name", controls.CONTROLS)
def test_draws_differ_where_a_control_is_random_and_repeat_with_their_seed(
    name, arguments
):
    (first, _), (again, _), (other, _) = (made(name, arguments, s) for s in (1, 1, 2))
    assert same(first, again)
    # Those on fresh weights are random by these.
    by_masks = controls.CONTROLS[name].random and not controls.CONTROLS[name].rewind
    assert same(first, other) != by_masks


def test_random_masks_keep_the_count_of_each_layer(arguments):
    masks, weights = made("random", arguments)
    assert [x.sum() for x in masks] == [x.sum() for x in arguments[0]]
    assert not same(masks, arguments[0])
    assert same(weights, arguments[2])


def test_shuffled_masks_keep_the_counts_of_units_on_both_sides(arguments):
    masks, weights = made("shuffle", arguments)
    for mask, old in zip(masks, arguments[0], strict=True):
        for axis in (mask.ndim - 2, mask.ndim - 1):
            others = tuple(x for x in range(mask.ndim) if x != axis)
            counts = [x.sum(others) for x in (mask, old)]
            assert sorted(counts[0]) == sorted(counts[1])
            assert not np.array_equal(*counts)
    # Filters move as a whole: places within them stay.
    np.testing.assert_array_equal(masks[1].sum((2, 3)), arguments[0][1].sum((2, 3)))
    assert same(weights, arguments[2])


def test_weights_of_the_same_sign_have_fresh_magnitudes(arguments):
    arguments[1][0][0, 0] = 0
    masks, weights = made("same_sign", arguments)
    assert same(masks, arguments[0])
    assert same(map(np.abs, weights), map(np.abs, arguments[2]))
    assert same(map(np.signbit, weights), map(np.signbit, arguments[1]))


def test_the_inverted_masks_keep_the_rest(arguments):
    masks, weights = made("inverted", arguments)
    assert same(masks, [~mask for mask in arguments[0]])
    assert same(weights, arguments[2])


def test_a_supermask_is_the_ticket_on_the_weights_it_is_given(arguments):
    masks, weights = made("supermask", arguments)
    assert same(masks, arguments[0])
    assert same(weights, arguments[2])


def test_a_supermask_s_constant_is_the_deviation_of_all_initial_weights():
    start = [np.array([[-3, 1], [1, 1]], np.float32)]
    masks, weights = made("supermask_constant", ([start[0] > 0], start, start))
    # Mean 0, variance (9 + 1 + 1 + 1) / 4.
    constant = np.float32(3**0.5)
    np.testing.assert_array_equal(weights[0], constant * np.sign(start[0]))
    np.testing.assert_array_equal(masks[0], start[0] > 0)


def test_the_first_draw_s_branch_is_the_name_the_others_end_in_their_number():
    assert controls.draws(("reinit:3", "random")) == {
        "reinit": ("reinit", 1),
        "reinit_2": ("reinit", 2),
        "reinit_3": ("reinit", 3),
        "random": ("random", 1),
    }
    assert controls.draws(()) == {}
    assert list(controls.draws(["shuffle:1"])) == ["shuffle"]


def test_a_control_is_added_by_one_function(monkeypatch):
    registry = controls.Registry("control")
    monkeypatch.setattr(controls, "CONTROLS", registry)

    @controls.register("all", rewind="lottery", trained=False)
    def everything(masks, ticket, start, rng):
        return [mask | True for mask in masks], start

    assert registry == {"all": everything}
    assert list(controls.draws(["all:2"])) == ["all", "all_2"]
    with toys.raises(ValueError, "one of all"):
        controls.draws(["reinit"])


def test_controls_start_by_presets_that_there_are():
    named = {control.rewind for control in controls.CONTROLS.values()} - {None}
    assert named <= set(rewinding.PRESETS)
