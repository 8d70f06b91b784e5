"""Registry: functions by name, and the message for a name that is not there."""

import fractions
import os

import pytest

from prunetrain import registry
from prunetrain.errors import InputError
from prunetrain.registry import Registry, is_import_path, nearest, parse_arguments
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


# Names with numbers in them


@pytest.fixture
def zoo(pets):
    @pets.register_form("N_cats", "([1-9][0-9]?)_cats")
    def cats(number):
        return None if number > 9 else lambda: ["a cat"] * number

    return pets


def test_a_form_makes_the_function_that_a_name_asks_for(zoo):
    assert zoo["3_cats"]() == ["a cat"] * 3
    assert "3_cats" in zoo
    assert zoo["cat"]() == "a cat"


@pytest.mark.parametrize("name", ["0_cats", "_cats", "3_cats ", "12_cats", "N_cats", 3])
def test_a_name_that_no_form_makes_anything_of_is_unknown(name, zoo):
    assert name not in zoo
    with toys.raises(ValueError, "`pet` must be one of cat, hamster, N_cats", "Rec"):
        zoo[name]


def test_forms_are_shown_beside_the_names_and_are_none_of_them(zoo):
    assert list(zoo) == ["cat", "hamster"]
    assert list(registry.shown(zoo)) == ["cat", "hamster", "N_cats"]
    assert registry.shown({"a": 1}) == {"a": 1}


# Functions of the user's own


def test_an_import_path_is_found_without_being_registered(pets):
    assert pets["os.path:join"] is os.path.join
    assert pets["fractions:Fraction.limit_denominator"] is (
        fractions.Fraction.limit_denominator
    )


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no_such_module:function", "No module named 'no_such_module'"),
        ("os.path:no_such_function", "no attribute 'no_such_function'"),
    ],
)
def test_what_cannot_be_imported_is_told_with_the_reason(path, problem, pets):
    with toys.raises(InputError, "`pet`", "package.module:function", problem, path):
        pets[path]


@pytest.mark.parametrize(
    "name", ["", ":", "a:", ":b", "a.b", "a b:c", "a..b:c", "../a:b", "1a:b", "C:\\x"]
)
def test_other_text_with_a_colon_is_no_import_path(name, pets):
    assert not is_import_path(name)
    with toys.raises(ValueError, "`pet` must be one of cat, hamster", "Received"):
        pets[name]


# Arguments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("momentum=0.9", {"momentum": 0.9}),
        ("momentum=.9,nesterov=True", {"momentum": 0.9, "nesterov": True}),
        ("a=-1, b=None,", {"a": -1, "b": None}),
        ("shape=(32, 32, 3)", {"shape": (32, 32, 3)}),
        ("steps=[1,2],rates={'a': 0.5}", {"steps": [1, 2], "rates": {"a": 0.5}}),
        ("loss=cosine,name='a,b=c'", {"loss": "cosine", "name": "a,b=c"}),
    ],
)
def test_arguments_are_literals_or_words(text, expected):
    assert parse_arguments(text) == expected


@pytest.mark.parametrize("word", ["true", "false", "TRUE"])
def test_a_word_that_means_true_or_false_is_answered_with_python_s(word):
    # As a word it would be true in any case.
    with toys.raises(ValueError, "name=value", f"{word} must be {word.title()}"):
        parse_arguments(f"nesterov={word}")


@pytest.mark.parametrize(
    "text",
    [
        *("0.9", "momentum", "=1", "a=", "a=1 b=2", "a=1,a=2", "a=b.c", "**{'a': 1}"),
        *("*[1]", "a=1)(b=2", "a=1)+f(b=2", "a=print(1)", "a=[x for x in y]", "a=1\0"),
        *("a=" + "(" * 10_000 + ")" * 10_000, "a=lambda: 1", "a=(b:=1)", "\n#"),
        "a=1)#b",
    ],
)
def test_what_is_no_list_of_arguments_is_refused_without_being_run(text):
    with toys.raises(ValueError, "name=value"):
        parse_arguments(text)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise RuntimeError('at import')", "RuntimeError: at import"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_fails_is_told_with_the_reason(
    code, problem, tmp_path, monkeypatch
):
    (tmp_path / "fails_at_import.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with toys.raises(InputError, "`pet`", "fails_at_import", problem):
        registry.imported("pet", "fails_at_import:f")
