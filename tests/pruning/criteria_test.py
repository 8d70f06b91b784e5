"""What the criteria score, by hand."""

import numpy as np
import pytest
import tensorflow as tf

import prunetrain as pt
from prunetrain.pruning import criteria, topk
from tests import toys


def scores(name, pruned, **given):
    arguments = {"initial": None, "data": None, "loss_fn": None, "seed": 0, **given}
    return [
        topk.evaluate(score) for score in criteria.CRITERIA[name](pruned, **arguments)
    ]


def test_magnitude_is_the_absolute_value():
    pruned = pt.PrunedModel(toys.linear([[-5, 0.5]], [[0.0], [-0.25]]))
    first, second = scores("magnitude", pruned)
    assert first.numpy().tolist() == [[5, 0.5]]
    assert second.numpy().tolist() == [[0], [0.25]]


def test_small_weights_go_whatever_their_sign():
    """A6."""
    pruned = pt.PrunedModel(toys.column(-5, 0.1, 0.2, 0.3))
    assert pt.prune(pruned, rate=0.25, criterion="magnitude") == 1
    assert pruned.masks[0].numpy().ravel().tolist() == [True, False, True, True]


@pytest.mark.parametrize("name", criteria.CRITERIA)
def test_every_criterion_scores_every_kernel_finitely_and_repeatably(name):
    """By the signature in the docstring, whichever of the arguments it needs."""
    pruned = pt.PrunedModel(toys.mlp())
    pruned.set_masks(toys.random_masks(pruned))
    given = {
        "initial": [np.ones(k.shape, np.float32) for k in pruned.kernels],
        "data": [toys.dataset()],
        "loss_fn": toys.cross_entropy(),
        "seed": 3,
    }
    before = toys.bits(pruned.model.variables, pruned.masks)
    found = scores(name, pruned, **given)
    assert toys.bits(pruned.model.variables, pruned.masks) == before
    assert [score.shape for score in found] == [k.shape for k in pruned.kernels]
    assert all(np.isfinite(score).all() for score in found)
    again = scores(name, pruned, **given)
    assert [s.numpy().tobytes() for s in again] == [s.numpy().tobytes() for s in found]


@pytest.mark.parametrize("name", criteria.CRITERIA)
def test_every_criterion_says_what_it_does(name):
    """Its first line is the flag's help."""
    assert criteria.CRITERIA[name].__doc__.splitlines()[0].endswith(".")


def test_unknown_criteria_are_refused_with_the_nearest_name():
    with toys.raises(
        ValueError, "`criterion`", "'magnitde'", "did you mean 'magnitude'"
    ):
        pt.prune(pt.PrunedModel(toys.mlp()), rate=0.2, criterion="magnitde")


def test_a_function_is_a_criterion_and_gets_all_arguments():
    pruned = pt.PrunedModel(toys.column(1, 2, 3, 4))
    given = {"initial": ["w"], "data": ["batch"], "loss_fn": len, "seed": 5}

    def largest_first(received_model, **arguments):
        assert received_model is pruned
        assert arguments == given
        return [-tf.abs(kernel.value) for kernel in received_model.kernels]

    assert pt.prune(pruned, rate=0.5, criterion=largest_first, **given) == 2
    assert pruned.masks[0].numpy().ravel().tolist() == [True, True, False, False]
