"""TensorBoard's events: read back and compared with what the run has written."""

import importlib.util
import json

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

import prunetrain as pt
from prunetrain import errors, main
from prunetrain.runs import events
from tests import tiny

SETTINGS = {
    **{"dataset": "noise", "model": "net", "compile": "graph", "learning_rate": 0.05},
    **{"validation_size": 20, "batch_size": 8, "train_steps": 8, "eval_every": 4},
    **{"test_every": 4, "rounds": 1, "controls": "reinit", "tensorboard": "on"},
}


def read(folder):
    """`{(tag, step): tensor}` of a folder's event files."""
    found = {}
    for file in sorted(folder.iterdir()):
        for record in tf.data.TFRecordDataset([str(file)]):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                found[value.tag, event.step] = tf.make_ndarray(value.tensor)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        tiny.register(patch)
        yield pt.run(pt.Config(**SETTINGS), tmp_path_factory.mktemp("run"))


def test_each_training_has_its_losses_and_accuracies_by_step(run):
    board = run.workdir / "tensorboard"
    text = (run.workdir / "metrics.jsonl").read_text()
    lines = [json.loads(x) for x in text.splitlines()]
    assert len(run.rows) == 3
    for row in run.rows:
        found = read(board / f"replicate0-{row.branch}-round0{row.round}")
        mine = [
            x
            for x in lines
            if (x["branch"], x["round"]) == (row.branch, row.round)
            and x["phase"] in ("start", "training", "end")
            and (x["split"], x["phase"]) != ("test", "end")
        ]
        expected = {}
        for line in mine:
            for name in ("loss", "accuracy"):
                expected[f"{line['split']}/{name}", line["step"]] = line[name]
            if line.get("train_loss") is not None:
                expected["training/loss", line["step"]] = line["train_loss"]
        assert found.keys() == expected.keys()
        assert len(found) == 3 * 2 + 3 * 2 + 2
        for key, value in found.items():
            assert value == pytest.approx(expected[key], rel=1e-6)


def test_outcomes_masks_and_weights_come_by_round(run):
    board = run.workdir / "tensorboard"
    found = read(board / "replicate0-ticket")
    rows = [row for row in run.rows if row.branch == "ticket"]
    for row in rows:
        for name in ("weights_remaining", "best_step", "test_accuracy"):
            assert found[name, row.round] == pytest.approx(getattr(row, name))
    ticket = np.load(run.workdir / "tickets" / "replicate0-round01.npz")
    for index, path in enumerate(ticket["paths"]):
        shape = ticket[f"shape_{index}"]
        bits = np.unpackbits(ticket[f"bits_{index}"], count=np.prod(shape))
        width, height, png = found[f"masks/{path}", 1]
        pixels = tf.io.decode_png(png).numpy()[..., 0]
        assert (int(height), int(width)) == (*shape,)
        assert (pixels.ravel() == 255 * bits).all()
        # The buckets are (left, right, count).
        histogram = found[f"surviving weights/{path}", 1]
        assert histogram[:, 2].sum() == bits.sum()
    at_1 = {key for key in found if key[1] == 1}
    assert read(board / "replicate0-reinit").keys() == at_1


def test_the_numbers_of_the_run_are_as_without(run, tmp_path, monkeypatch):
    tiny.register(monkeypatch)
    plain = pt.run(pt.Config(**{**SETTINGS, "tensorboard": "off"}), tmp_path)
    first, second = ((x.workdir / "metrics.jsonl").read_bytes() for x in (run, plain))
    assert first == second
    assert not (tmp_path / "tensorboard").exists()


def test_large_masks_are_drawn_as_shares_of_blocks():
    mask = np.zeros((1024, 3), bool)
    mask[:4, 0] = mask[5, 1] = mask[-2:, 2] = True
    image = events.as_image(mask)
    assert (image.shape, image.dtype) == ((512, 3), np.uint8)
    assert image[:3].tolist() == [[255, 0, 0], [255, 0, 0], [0, 128, 0]]
    assert image[-1].tolist() == [0, 0, 255]
    assert events.as_image(np.ones((2, 3, 4, 5), bool)).shape == (24, 5)
    assert (events.as_image(np.ones((600, 700), bool)) == 255).all()


def test_without_tensorboard_the_remedy_is_told_and_no_folder_made(
    tmp_path, monkeypatch, capsys
):
    tiny.register(monkeypatch)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda x: None if x == "tensorboard" else find(x)
    )
    with pytest.raises(errors.InputError, match="pip install"):
        pt.run(pt.Config(**SETTINGS), tmp_path / "run")
    assert main.main(["prunetrain", "--tensorboard", f"--workdir={tmp_path}/run"]) == 2
    assert "pip install 'prunetrain[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("word", ["--tensorboard", "-tensorboard", "--tensorboard=on"])
def test_the_flag_alone_switches_it_on(word):
    assert main.parse(["prunetrain", word, "--rounds=3"]).tensorboard == "on"
    assert main.parse(["prunetrain", "--rounds=3"]).tensorboard == "off"
