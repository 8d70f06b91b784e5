"""The lock of a work directory: one live process, and no lock is left over."""

import os
import pickle
import signal
import subprocess
import sys

import pytest

from prunetrain import errors
from prunetrain.runs import lock
from tests import tiny, toys

HOLD = """
import pathlib, sys, time
from prunetrain.runs import lock
held = lock.acquire(pathlib.Path(sys.argv[1]))
print(flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "run.lock"],
        cwd=tiny.ROOT,
        stdout=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_another_live_process_is_refused_and_named(holder, tmp_path):
    with toys.raises(
        errors.InputError,
        *(str(tmp_path), f"process {holder.pid} on ", "another --workdir"),
    ):
        lock.acquire(tmp_path / "run.lock")
    # Nor does asking leave a mark.
    assert f"process {holder.pid} " in (tmp_path / "run.lock").read_text()


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_dead_process_holds_nothing(name, holder, tmp_path):
    holder.send_signal(getattr(signal, name))
    holder.wait()
    held = lock.acquire(tmp_path / "run.lock")
    assert held
    assert f"process {os.getpid()} on " in (tmp_path / "run.lock").read_text()


def test_one_process_may_open_a_folder_again_also_under_another_name(tmp_path):
    (tmp_path / "a").mkdir()
    held = lock.acquire(tmp_path / "a" / "run.lock")
    (tmp_path / "a").rename(tmp_path / "b")
    assert lock.acquire(tmp_path / "b" / "run.lock") is held


def free(file):
    """Whether another process gets the lock."""
    script = f"import fcntl; fcntl.flock(open({str(file)!r}), fcntl.LOCK_EX | 4)"
    return subprocess.run([sys.executable, "-c", script], stderr=-3).returncode == 0


def test_a_lock_goes_with_the_last_that_refers_to_it(tmp_path):
    file = tmp_path / "run.lock"
    first, second = lock.acquire(file), lock.acquire(file)
    assert first
    del first
    assert not free(file)
    assert pickle.loads(pickle.dumps(second)) is None
    del second
    assert free(file)
