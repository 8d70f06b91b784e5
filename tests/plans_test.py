"""Which trainings there are, from where to where: plain functions of the settings."""

import pytest

import prunetrain as pt
from prunetrain import plans, rewinding


def settings(**changes):
    return pt.Config(**{"train_steps": 100, "rounds": 4, **changes})


def sources(config, branch="ticket"):
    """The sources' first letters, in the order of the parts."""
    found = plans.sources(config, branch)
    return "".join(found[part][0] for part in rewinding.PARTS)


# By preset: sources of weights, slots, schedule, state and data; the step that a round
# starts at and the places in the data of rounds 1, 2 and 3, after a rewind to step 30.
@pytest.mark.parametrize(
    ("rewind", "expected", "step", "places"),
    [
        ("late", "rrrrr", 30, [30, 30, 30]),
        ("lr_rewind", "eerer", 30, [30, 30, 30]),
        ("lr_rewind,slots=init", "eirer", 30, [30, 30, 30]),
        ("finetune", "eeeee", 30, [100, 170, 240]),
        ("finetune,schedule=init", "eeiee", 0, [100, 200, 300]),
        ("late,data=init", "rrrri", 30, [0, 0, 0]),
        ("late,data=fresh", "rrrrf", 30, [0, 0, 0]),
        ("late,schedule=fresh", "rrfrr", 0, [30, 30, 30]),
        ("lottery", "iiiii", 0, [0, 0, 0]),
        ("reinit", "ffffi", 0, [0, 0, 0]),
        ("lottery,data=end", "iiiie", 0, [100, 200, 300]),
    ],
)
def test_a_preset_says_where_each_part_comes_from(rewind, expected, step, places):
    alone = rewind.startswith(("lottery", "reinit", "finetune,s"))
    config = settings(rewind=rewind, rewind_step=0 if alone else 30)
    assert sources(config) == expected
    assert [plans.first_step(config, round) for round in (0, 1, 3)] == [0, step, step]
    assert [plans.data_place(config, round) for round in (1, 2, 3)] == places
    assert plans.data_place(config, 0) == 0
    assert plans.needs_ends(config) == ("e" in expected)


@pytest.mark.parametrize(
    ("control", "rewind", "expected", "step"),
    [
        ("reinit", "late", "ffffi", 0),
        ("reinit", "finetune", "ffffe", 0),
        ("same_sign", "lr_rewind,data=fresh", "fffff", 0),
        ("random", "late", "rrrrr", 30),
        ("shuffle", "finetune", "eeeee", 30),
        ("inverted", "lr_rewind", "eerer", 30),
        ("supermask", "late", "iiiii", 0),
        ("supermask_constant", "finetune", "iiiie", 0),
    ],
)
def test_controls_start_with_the_ticket_or_by_a_preset_of_their_own(
    control, rewind, expected, step
):
    config = settings(controls=control, rewind=rewind, rewind_step=30)
    assert sources(config, control) == expected
    assert plans.first_step(config, 2, control) == step


@pytest.mark.parametrize("control", ["reinit", "shuffle", "same_sign"])
def test_a_trained_control_ends_with_its_ticket(control):
    config = settings(controls=control, rewind_step=30)
    assert plans.last_step(config, 2, control) == plans.last_step(config, 2) == 100


@pytest.mark.parametrize("control", ["supermask", "supermask_constant"])
def test_a_supermask_ends_where_it_starts(control):
    config = settings(controls=control, rewind_step=30)
    assert plans.last_step(config, 2, control) == 0


@pytest.mark.parametrize("changes", [{"model": "a.keras"}, {"prune_at": "init"}])
def test_round_0_may_train_nothing(changes):
    config = settings(**changes)
    assert [plans.last_step(config, round) for round in range(3)] == [0, 100, 100]
    assert plans.last_step(settings(), 0) == 100


def test_data_that_go_on_go_on_from_a_round_0_that_trained_nothing():
    config = settings(model="a.keras", rewind="finetune")
    assert [plans.data_place(config, round) for round in (1, 2, 3)] == [0, 100, 200]


def test_controls_come_after_the_ticket_in_the_rounds_that_are_named():
    config = settings(controls="shuffle,reinit:2", control_rounds="1,3")
    every = ("ticket", "shuffle", "reinit", "reinit_2")
    found = [plans.branches(config, round) for round in range(5)]
    assert found == [("ticket",), every, ("ticket",), every, ("ticket",)]
    config = settings(controls="shuffle")
    found = [plans.branches(config, round) for round in range(3)]
    assert found == [("ticket",), ("ticket", "shuffle"), ("ticket", "shuffle")]
