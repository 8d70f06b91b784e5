"""Config: what is refused and in which words, what is converted, what the names are."""

import dataclasses
import fractions
import math
import pickle

import numpy as np
import pytest

from prunetrain import config, data, errors, models, optimizers
from prunetrain.config import Config
from prunetrain.core import steps
from prunetrain.pruning import allocation, criteria, patterns

FIELDS = {field.name: field for field in dataclasses.fields(Config)}


def names(*types):
    return [name for name, field in FIELDS.items() if field.type in types]


INTEGERS, FLOATS, TEXTS = names(int), names(float), names(str)
CHOICES = [name for name in TEXTS if FIELDS[name].metadata["choices"]]
ARGUMENTS = [name for name in TEXTS if name.endswith("_args")]
IMPORTABLE = [name for name in CHOICES if FIELDS[name].metadata["importable"]]
LISTS = names(tuple[str, ...])
NUMBERS = names(tuple[int, ...], tuple[float, ...])


def refused(field, value, *fragments, **others):
    """Asserts that `Config` refuses `value`, naming field, value and the fragments."""
    with pytest.raises(config.ConfigError) as caught:
        Config(**{field: value}, **others)
    assert caught.value.field == field
    message = str(caught.value)
    for fragment in (f"`{field}`", "Received: ", *fragments):
        assert fragment in message
    assert "\n" not in message
    return caught.value


def test_every_field_belongs_to_a_kind_that_is_tested_below():
    assert [
        *("augment", "layer_rates", "prune_include", "prune_exclude", "rewind"),
        "controls",
    ] == LISTS
    assert NUMBERS == ["sparsities", "control_rounds"]
    assert len(FIELDS) == len(INTEGERS + FLOATS + TEXTS + LISTS + NUMBERS)
    assert FLOATS == ["learning_rate", "prune_rate", "drop_fraction"]
    others = {"workdir", "data_dir", "checkpoint_every", "only"}
    assert set(TEXTS) - set(CHOICES) - set(ARGUMENTS) == others


# Wrong values


@pytest.mark.parametrize("value", [True, math.nan, math.inf, -math.inf, "5", None, []])
@pytest.mark.parametrize("field", INTEGERS + FLOATS)
def test_numbers_must_be_finite_numbers(field, value):
    refused(field, value, "must be")


@pytest.mark.parametrize("value", [1.5, fractions.Fraction(3, 2)])
@pytest.mark.parametrize("field", INTEGERS)
def test_whole_numbers_must_be_whole(field, value):
    refused(field, value, "must be a whole number")


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("seed", -1, "from 0 to 4294967295"),
        ("seed", 2**32, "from 0 to 4294967295"),
        ("replicates", 0, "from 1"),
        ("steps_per_loop", 0, "from 1 (steps)"),
        ("validation_size", 0, "from 1 (examples)"),
        ("learning_rate", 0, "above 0"),
        ("learning_rate", -1e-3, "above 0"),
        ("batch_size", 0, "from 1 (examples)"),
        ("batch_size", -5, "from 1 (examples)"),
        ("train_steps", 0, "from 1 (steps)"),
        ("eval_every", 0, "from 1 (steps)"),
        ("rounds", -1, "from 0"),
        ("rewind_step", -1, "from 0 (step)"),
    ],
)
def test_numbers_out_of_range_are_refused_with_the_range(field, value, rule):
    refused(field, value, rule, f"{field}={value}")


def test_a_learning_rate_that_no_float_can_hold_is_refused():
    refused("learning_rate", 10**400, "finite")


@pytest.mark.parametrize("value", [20, 1, 1.0, -0.1, math.nan])
def test_a_rate_of_pruning_is_a_fraction_and_the_message_shows_one(value):
    error = refused("prune_rate", value, "from 0 to below 1", "0.2 for 20 %")
    assert "fraction of the weights that remain" in error.rule


@pytest.mark.parametrize("value", [5, None, ["mnist"], True])
@pytest.mark.parametrize("field", TEXTS)
def test_text_must_be_text(field, value):
    refused(field, value, "must be text")


@pytest.mark.parametrize("field", CHOICES)
def test_a_misspelt_name_is_answered_with_all_names_and_the_nearest(field):
    choices = list(FIELDS[field].metadata["choices"])
    refused(field, choices[0] + "x", ", ".join(choices), f"mean {choices[0]!r}")


@pytest.mark.parametrize("field", CHOICES)
def test_a_name_like_no_other_is_answered_with_all_names(field):
    error = refused(field, "!", *FIELDS[field].metadata["choices"])
    assert "did you mean" not in error.rule


@pytest.mark.parametrize("field", CHOICES)
def test_a_name_must_not_be_empty(field):
    refused(field, "", "must be one of")


@pytest.mark.parametrize("value", [5, None, True, [3], ("reinit", None)])
@pytest.mark.parametrize("field", LISTS)
def test_lists_must_hold_text(field, value):
    refused(field, value, "must be text, separated by commas")


@pytest.mark.parametrize("value", [None, True, math.nan, [None], "x", [[0.5]], -1])
@pytest.mark.parametrize("field", NUMBERS)
def test_lists_of_numbers_must_hold_numbers(field, value):
    refused(field, value, "must be a list, each of it", "from")


def test_a_misspelt_control_is_answered_with_the_nearest():
    refused("controls", "reinnit", "must be one of reinit", "mean 'reinit'")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("controls", "reinit,reinit"),
        ("layer_rates", "output=0.1,output=0.1"),
        ("layer_rates", "output=0.1,output=0.3"),
        ("controls", "reinit,reinit:2"),
        ("sparsities", "0.5,0.50"),
        ("control_rounds", "1,1"),
        ("rewind", "late,late"),
    ],
)
def test_a_thing_named_twice_is_refused(field, value):
    refused(field, value, "only once")


@pytest.mark.parametrize(
    "value",
    ["output", "=0.1", "output=", "output=x", "output=1", "output=-0.1", "output=nan"],
)
def test_layer_rates_must_be_patterns_with_fractions(value):
    refused("layer_rates", value, "PATTERN=RATE", "for example output=0.1", value)


@pytest.mark.parametrize(
    "value",
    ["", "0", "0s", "s", "-5", "1.5s", "60 s", "60m", "1e3", "nan", "٣", "9" * 10],
)
def test_a_checkpoint_interval_is_a_whole_number_of_seconds_or_steps(value):
    refused("checkpoint_every", value, "from 1", "60s", "500")


@pytest.mark.parametrize(
    ("value", "interval"), [("60s", (math.inf, 60)), ("500", (500, math.inf))]
)
def test_a_checkpoint_interval_counts_seconds_with_an_s_else_steps(value, interval):
    assert Config(checkpoint_every=value).checkpoint_interval() == interval


# Values that do not go together


@pytest.mark.parametrize("rewind_step", [10, 11])
def test_the_rewind_step_must_lie_within_the_training(rewind_step):
    refused("rewind_step", rewind_step, "less than train_steps=10", train_steps=10)


def test_a_model_from_a_file_is_a_name_with_its_suffix():
    assert Config(model="nets/a.keras").starts_trained
    assert not Config(model="nets:keras").starts_trained
    refused("model", "net.h5", "or a file *.keras")
    refused("model", ".keras", "or a file *.keras")


def test_a_model_from_a_file_cannot_be_rewound_to_a_later_step():
    refused("rewind_step", 3, "must be 0 for --model=a.keras", model="a.keras")


def test_a_model_from_a_file_has_a_precision_of_its_own():
    refused("precision", "bfloat16", "--model=a.keras", model="a.keras")


@pytest.mark.parametrize("field", ["prune_include", "prune_exclude"])
def test_patterns_must_be_regular_expressions(field):
    refused(field, "hidden_(", "regular expressions", "hidden_(")


def test_the_last_step_but_one_can_be_rewound_to():
    assert Config(rewind_step=9, train_steps=10).rewind_step == 9


def test_layer_rates_need_an_allocation_by_layers():
    refused("layer_rates", "output=0.1", "allocation=layerwise", allocation="global")


@pytest.mark.parametrize(
    ("value", "fragments"),
    [
        ("", ["must begin with one of late, lottery"]),
        ("lotery", ["must begin with one of", "mean 'lottery'"]),
        ("weights=end", ["must begin with"]),
        ("late,weights=now", ["PRESET,part=source", "init, rewind, end, fresh"]),
        ("late,bias=end", ["PRESET,part=source", "weights, slots, schedule, state"]),
        ("late,slots", ["PRESET,part=source"]),
        ("late,slots=init,slots=end", ["each part once"]),
    ],
)
def test_a_rewind_is_a_preset_and_parts_with_sources(value, fragments):
    refused("rewind", value, *fragments)


@pytest.mark.parametrize(
    "value", ["lottery", "reinit", "finetune,schedule=init", "late,schedule=fresh"]
)
def test_a_rewind_step_that_nothing_comes_from_is_refused(value):
    if value.startswith("late"):
        assert Config(rewind=value, rewind_step=5)
    else:
        refused("rewind_step", 5, "must be 0", f"rewind={value}", rewind=value)


def test_what_would_come_before_a_training_goes_not_with_pruning_at_initialisation():
    refused("rewind_step", 5, "must be 0 with prune_at=init", prune_at="init")
    for value in ("finetune", "lr_rewind", "lottery,slots=end"):
        refused("rewind", value, "with prune_at=init", "lottery", prune_at="init")
    for value in ("late", "lottery", "reinit", "lottery,data=fresh"):
        assert Config(rewind=value, prune_at="init")


@pytest.mark.parametrize(
    ("value", "fragments"),
    [
        ("reinit:0", ["reinit:3, with 1 to 1000 draws"]),
        ("reinit:", ["reinit:3, with 1 to 1000 draws"]),
        ("shuffle:many", ["shuffle:3"]),
        ("reinit:1001", ["1 to 1000"]),
        ("reinit:2,randm", ["must be one of reinit, random", "mean 'random'"]),
        ("supermask:2", ["supermask alone", "the same at each draw"]),
        ("inverted:1", ["inverted alone"]),
    ],
)
def test_controls_are_names_with_a_number_of_draws(value, fragments):
    refused("controls", value, *fragments)


def test_rounds_with_controls_are_rounds_from_1():
    refused("control_rounds", "1,4", "rounds from 1 to rounds=3", rounds=3)
    refused("control_rounds", 0, "from 1 (round)")


def test_sparsities_rise_and_say_how_many_rounds_there_are():
    assert Config(sparsities=(0.5, 0.8, 0.95)).rounds == 3
    assert Config(sparsities="0.9").sparsities == (0.9,)
    assert Config(sparsities=0.9, rounds=1).rounds == 1
    refused("sparsities", "0.8,0.5", "must rise")
    refused("sparsities", (0.5, 1.0), "from 0 to below 1", "for example 0.2 for 20 %")
    refused("rounds", 2, "the number of sparsities=0.5: 1", sparsities="0.5")


@pytest.mark.parametrize("other", [{"prune_rate": 0.3}, {"layer_rates": "a=0.1"}])
def test_rates_do_not_go_with_sparsities(other):
    ((name, value),) = other.items()
    refused(name, value, "left out with sparsities=0.5", sparsities="0.5")


# Good values


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("learning_rate", 1, 1.0),
        ("learning_rate", np.float32(0.5), 0.5),
        ("prune_rate", 0, 0.0),
        ("batch_size", 60.0, 60),
        ("batch_size", np.int64(60), 60),
        ("seed", 2**32 - 1, 2**32 - 1),
        ("controls", "reinit", ("reinit",)),
        ("controls", "", ()),
        ("controls", ["reinit"], ("reinit",)),
        ("layer_rates", "a=0.1,b=0.2", ("a=0.1", "b=0.2")),
        ("layer_rates", "a=0.1,", ("a=0.1",)),
        ("controls", "reinit:3,shuffle", ("reinit:3", "shuffle")),
        ("sparsities", "0.5,0.8", (0.5, 0.8)),
        ("sparsities", [0, np.float32(0.5)], (0.0, 0.5)),
        ("control_rounds", "1,3", (1, 3)),
        ("control_rounds", 2.0, (2,)),
        ("rewind", "lr_rewind,slots=init", ("lr_rewind", "slots=init")),
    ],
)
def test_good_values_are_converted_to_the_type_of_the_field(field, value, expected):
    converted = getattr(Config(**{field: value}), field)
    assert converted == expected
    assert type(converted) is type(expected)


def test_the_last_equals_sign_parts_pattern_and_rate():
    given = Config(layer_rates=("(?=h).*=0.25", "output=0"))
    assert given.rates_by_pattern() == {"(?=h).*": 0.25, "output": 0.0}


@pytest.mark.parametrize("field", ARGUMENTS)
@pytest.mark.parametrize("text", ["0.9", "momentum", "a=1,a=2", "a=print(1)", "a=b c"])
def test_arguments_must_be_names_with_literals(field, text):
    refused(field, text, "name=value", "for example")


@pytest.mark.parametrize("field", ARGUMENTS)
def test_arguments_are_taken_apart_when_they_are_asked_for(field):
    assert Config().arguments(field) == {}
    given = Config(**{field: "a=1e-3,b=(1,2),c=word"})
    assert given.arguments(field) == {"a": 1e-3, "b": (1, 2), "c": "word"}


@pytest.mark.parametrize("field", IMPORTABLE)
def test_a_function_of_the_users_own_may_be_named_by_its_import_path(field):
    assert getattr(Config(**{field: "my_module.part:make"}), field)
    refused(field, "my_module.make", "must be one of", "or package.module:function")


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"controls": "reinit", "layer_rates": "a=0.1,b=0.2", "learning_rate": 1},
        {"allocation": "global", "rewind_step": 500, "compile": "graph"},
        {"sparsities": "0.5,0.8", "control_rounds": (1,), "rewind": "finetune"},
    ],
)
def test_as_dict_gives_the_same_config_again(settings):
    given = Config(**settings)
    assert Config(**given.as_dict()) == given


def test_as_dict_holds_every_field_but_the_folder_that_a_run_lies_in():
    # A run must be the same run after its folder was moved.
    held = Config(workdir="somewhere").as_dict()
    assert set(held) == set(FIELDS) - {"workdir"}


def test_a_refusal_is_an_input_error_that_keeps_field_value_and_rule():
    error = refused("batch_size", 0)
    assert isinstance(error, errors.InputError)
    assert error.received == 0
    assert error.rule == "must be a whole number from 1 (examples)"


def test_a_refusal_survives_the_way_from_a_worker_process():
    error = refused("batch_size", 0)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_what_changes_nothing_about_a_training_is_free():
    assert config.free_settings() == {
        *("workdir", "parallel_replicates", "steps_per_loop", "checkpoint_every"),
        *("stream", "rounds", "controls", "control_rounds", "tensorboard", "only"),
    }


# The names are those of what exists


@pytest.mark.parametrize(
    ("field", "registry"),
    [
        ("dataset", data.DATASETS),
        ("scaling", data.SCALINGS),
        ("learning_rate_schedule", optimizers.SCHEDULES),
        ("model", models.MODELS),
        ("criterion", criteria.CRITERIA),
        ("allocation", allocation.ALLOCATIONS),
        ("pattern", patterns.PATTERNS),
    ],
)
def test_a_name_that_is_registered_is_at_once_a_setting(field, registry, monkeypatch):
    refused(field, "newcomer")
    monkeypatch.setitem(registry, "newcomer", lambda: None)
    assert getattr(Config(**{field: "newcomer"}), field) == "newcomer"


def test_compile_modes_are_those_of_the_steps():
    assert tuple(config.COMPILE_MODES) == steps.COMPILE_MODES


@pytest.mark.parametrize("item", ["a{1,2}", ""])
def test_what_would_be_another_list_as_a_flag_is_refused(item):
    refused("prune_include", ["kernel", item], "separated by commas")
