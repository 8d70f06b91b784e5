"""Registry: functions by name, and the message for a name that is not there."""

import pytest

from prunetrain.registry import Registry, nearest
from tests import toys


@pytest.fixture
def pets():
    pets = Registry("pet")
    for name in ("cat", "hamster"):
        pets.register(name)(lambda name=name: f"a {name}")
    return pets


def test_registered_functions_are_found_by_name_in_order(pets):
    assert list(pets) == ["cat", "hamster"]
    assert pets["hamster"]() == "a hamster"


def test_register_leaves_the_function_as_it_is(pets):
    def dog():
        return "woof"

    assert pets.register("dog")(dog) is dog
    assert pets["dog"] is dog


def test_an_unknown_name_is_answered_with_kind_names_and_nearest(pets):
    with toys.raises(ValueError, "`pet`", "cat, hamster", "'hamster'?", "pet='hamstr'"):
        pets["hamstr"]


def test_asking_whether_a_name_is_there_raises_nothing(pets):
    assert "dog" not in pets
    assert pets.get("dog") is None


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        ("hamstr", " (did you mean 'hamster'?)"),
        ("ca", " (did you mean 'cat'?)"),
        ("xyz", ""),
        (3, ""),
    ],
)
def test_nearest_suggests_only_what_is_near(received, expected):
    assert nearest(received, ["cat", "hamster"]) == expected


def test_nearest_suggests_two_names_at_most():
    text = nearest("adam", ["adam1", "adam2", "adam3"])
    assert text.count("'adam") == 2
