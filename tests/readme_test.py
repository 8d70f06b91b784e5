"""The README's Python examples run as they stand."""

import pathlib
import re

import pytest

import prunetrain

_README = pathlib.Path(prunetrain.__file__).parents[1] / "README.md"
_EXAMPLES = re.findall(r"^```python\n(.*?)^```", _README.read_text(), re.M | re.S)


def test_there_are_examples():
    assert len(_EXAMPLES) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("source", _EXAMPLES, ids=["run", "embedding"])
def test_example_runs(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(source, str(_README), "exec"), {})
    assert capsys.readouterr().out
