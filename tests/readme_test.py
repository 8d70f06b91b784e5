"""The README's Python examples run as they stand."""

import pathlib
import re

import pytest

import prunetrain

_README = pathlib.Path(prunetrain.__file__).parents[1] / "README.md"
_TEXT = _README.read_text()
_EXAMPLES = re.findall(r"^```python\n(.*?)^```", _TEXT, re.M | re.S)


def test_there_are_examples():
    assert len(_EXAMPLES) == 4


def test_what_does_not_get_faster_is_said_before_any_figure():
    """I5: users expect speed from zeros."""
    section = _TEXT.partition("## What gets faster, and what does not\n")[2]
    assert "Zeros alone make nothing faster" in section.partition("|")[0]


def test_files_that_it_names_exist():
    names = re.findall(r"!\[.*?\]\((.*?)\)|`?python (scripts/\S+?\.py)", _TEXT)
    files = {name for pair in names for name in pair if name}
    assert len(files) > 5
    for file in files:
        assert (_README.parent / file).is_file(), file


@pytest.mark.slow
def test_examples_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for source in _EXAMPLES:
        exec(compile(source, str(_README), "exec"), {})
        assert capsys.readouterr().out
