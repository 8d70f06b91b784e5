"""The README's Python examples run as they stand."""

import pathlib
import re

import pytest

import prunetrain

_README = pathlib.Path(prunetrain.__file__).parents[1] / "README.md"
_EXAMPLES = re.findall(r"^```python\n(.*?)^```", _README.read_text(), re.M | re.S)


def test_there_are_examples():
    assert len(_EXAMPLES) == 3


@pytest.mark.slow
def test_examples_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for source in _EXAMPLES:
        exec(compile(source, str(_README), "exec"), {})
        assert capsys.readouterr().out
