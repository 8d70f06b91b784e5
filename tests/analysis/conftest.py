"""Small real runs, made once."""

import shutil

import pytest

import prunetrain as pt
from tests import tiny

# 228 weights in two kernels (16-12-3), 40 examples in 5 batches an epoch.
SETTINGS = {
    **{"dataset": "noise", "model": "net", "compile": "graph", "learning_rate": 0.05},
    **{"validation_size": 20, "batch_size": 8, "train_steps": 12, "eval_every": 4},
    **{"rounds": 3, "steps_per_loop": 4, "replicates": 2, "controls": "reinit:2"},
}


@pytest.fixture
def registered(monkeypatch):
    """The dataset "noise" and the model "net" are known."""
    tiny.register(monkeypatch)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a finished run, which must stay as it is."""
    path = tmp_path_factory.mktemp("runs") / "finished"
    with pytest.MonkeyPatch.context() as patch:
        tiny.register(patch)
        pt.run(pt.Config(**SETTINGS), workdir=path)
    return path


@pytest.fixture
def copied(finished, registered, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(finished, tmp_path / "run")
