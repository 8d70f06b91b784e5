"""Checkpoints: whole or not there, damage found, the one before to fall back to."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import tensorflow as tf

from prunetrain import errors
from prunetrain.runs import checkpoints, files
from tests import toys


class Device:
    """Variables of the kinds that a training has."""

    def __init__(self, value, size=50):
        self.variables = [
            tf.Variable(tf.fill([size], np.float32(value))),
            tf.Variable(tf.fill([3], value > 1)),
            tf.Variable(int(value), dtype=tf.int64),
        ]
        self.state = tf.train.Checkpoint(variables=self.variables)

    def fill(self, value):
        for variable, other in zip(
            self.variables, Device(value).variables, strict=True
        ):
            variable.assign(other)

    def bits(self):
        return toys.bits(self.variables)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "resume"


def save(folder, *values):
    """Saves the values one after the other; the position says which."""
    device = Device(0)
    for value in values:
        device.fill(value)
        checkpoints.save(folder, device.state, {"value": value, "loss": 0.1 + 0.2})


def found(folder):
    """What the last checkpoint holds: the position's value, which the state must be."""
    device, position = Device(-7), checkpoints.position(folder)
    checkpoints.restore(folder, device.state)
    assert device.bits() == Device(position["value"]).bits()
    return position["value"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["run [1]", "*", "what?", "{a,b}", "a\\b", "ü 100 %"])
def test_a_folder_of_any_name_can_be_gone_on_from(name, tmp_path):
    (tmp_path / name).mkdir()
    save(tmp_path / name / "resume", 2)
    assert found(tmp_path / name / "resume") == 2


def test_state_and_position_come_back_to_the_bit(folder):
    save(folder, 2)
    assert checkpoints.position(folder) == {"value": 2, "loss": 0.1 + 0.2}
    assert found(folder) == 2


def test_without_a_checkpoint_there_is_no_position(folder):
    assert checkpoints.position(folder) is None


def test_the_last_two_are_kept_and_numbers_go_on(folder):
    save(folder, *range(11))
    assert names(folder) == ["10", "11"]
    assert found(folder) == 10


def test_the_sums_are_those_that_sha256sum_checks(folder):
    save(folder, 1)
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"],
        cwd=folder / "1",
        check=True,
    )


def test_a_whole_checkpoint_is_tidied_without_a_word(folder):
    save(folder, 1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoints.tidy(folder)
    assert names(folder) == ["1", "2"]


# Damage


def flip(file, at):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


DATA = "state.data-00000-of-00001"
FILES = ["state.index", DATA, "position.json", "SHA256SUMS"]
DAMAGE = {
    "flipped": lambda file: flip(file, -1),
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "emptied": lambda file: os.truncate(file, 0),
    "lost": lambda file: file.unlink(),
    "of another save": lambda file: file.write_bytes(
        (file.parents[1] / "2" / file.name).read_bytes()
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_told_and_the_one_before_taken(name, damage, folder):
    save(folder, 1, 2, 3)
    DAMAGE[damage](folder / "3" / name)
    with pytest.warns(UserWarning, match=r"resume/3 is damaged \(.*from the one b.*2$"):
        checkpoints.tidy(folder)
    assert names(folder) == ["2"]
    assert found(folder) == 2


def test_bytes_are_flipped_anywhere_and_it_is_noticed(folder):
    save(folder, 1)
    for name in FILES:
        file = folder / "1" / name
        whole = file.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 40)):
            flip(file, at)
            assert checkpoints._problem(folder / "1"), (name, at)
            file.write_bytes(whole)
    assert checkpoints._problem(folder / "1") is None


def test_if_all_are_damaged_the_training_starts_again_and_that_is_told(folder):
    save(folder, 1, 2)
    for number in "12":
        (folder / number / "position.json").unlink()
    with (
        pytest.warns(UserWarning, match="from the one before, 1"),
        pytest.warns(UserWarning, match="from the training's start"),
    ):
        checkpoints.tidy(folder)
    assert not folder.exists()


def test_a_checkpoint_of_other_variables_is_refused_with_a_remedy(folder):
    save(folder, 1)
    with toys.raises(errors.InputError, str(folder / "1"), "does not fit", "remove"):
        checkpoints.restore(folder, Device(0, size=51).state)


# Cut off


class Killed(BaseException):
    """What no handler of errors may catch."""


@pytest.mark.parametrize("function", ["_sums", "sync", "rename", "remove"])
def test_a_save_that_is_cut_off_leaves_whole_checkpoints_only(
    function, folder, monkeypatch
):
    save(folder, 1, 2)

    def die(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        homes = {"rename": type(folder), "sync": files}
        patch.setattr(homes.get(function, checkpoints), function, die)
        with pytest.raises(Killed):
            save(folder, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoints.tidy(folder)
    assert found(folder) == 2
    assert names(folder) == ["1", "2"]
    save(folder, 4)
    assert found(folder) == 4


SAVING = """
import itertools, pathlib, sys
from prunetrain.runs import checkpoints

class State:
    def write(self, prefix):
        for part in ("index", "data-00000-of-00001"):
            with open(f"{prefix}.{part}", "wb") as file:
                for _ in range(50):
                    file.write(b"%d\\n" % number * 1000)
                    file.flush()

folder = pathlib.Path(sys.argv[1])
last = checkpoints.position(folder) or {"value": 0}
for number in itertools.count(last["value"] + 1):
    print(number, flush=True)
    checkpoints.save(folder, State(), {"value": number})
"""


def test_of_a_process_killed_in_a_save_the_last_whole_checkpoint_is_left(folder):
    rng = random.Random(0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    in_a_save = 0
    while in_a_save < 20:
        process = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(folder)],
            stdout=subprocess.PIPE,
            env=environment,
        )
        with process:
            for _ in range(rng.randint(1, 4)):
                process.stdout.readline()
            time.sleep(rng.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
            begun = process.stdout.read().split()
        in_a_save += (folder / "writing").exists()
        if not folder.exists():
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            checkpoints.tidy(folder)
        if names := sorted(int(path.name) for path in folder.iterdir()):
            value = checkpoints.position(folder)["value"]
            assert not begun or int(begun[-1]) - value in (0, 1)
            for part in ("index", "data-00000-of-00001"):
                file = folder / str(names[-1]) / f"state.{part}"
                assert file.read_bytes() == b"%d\n" % value * 50_000


def test_a_half_removed_old_checkpoint_is_no_damage(folder):
    save(folder, 1, 2)
    (folder / "0").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoints.tidy(folder)
    assert names(folder) == ["1", "2"]


def test_a_full_disk_leaves_what_was_there(folder):
    save(folder, 1)

    class Full:
        def write(self, prefix):
            raise tf.errors.ResourceExhaustedError(
                None, None, os.strerror(errno.ENOSPC)
            )

    with toys.raises(OSError, "No space left"):
        checkpoints.save(folder, Full(), {})
    assert found(folder) == 1
