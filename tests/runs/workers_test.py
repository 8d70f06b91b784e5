"""Worker processes: every task once, each failure told, none left behind."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from prunetrain import config, errors
from prunetrain.runs import workers
from tests import tiny, toys


class Notes:
    """What the workers noted, in the order in which it came."""

    def __init__(self):
        self.all, self.pids, self.failed = [], {}, []

    def note(self, task, what, pid=None, job=None, value=None):
        if what == "begins":
            self.pids[task] = pid
        self.all.append((task, what, job or value))

    def fail(self, task, why):
        self.failed.append((task, why))

    def of(self, task):
        return [what for name, what, _ in self.all if name == task]


def perform(tasks, folder, num_workers=2):
    """Runs toy tasks; returns `Notes`, with the failures that were returned."""
    notes = Notes()
    logs = {task: folder / "logs" / f"{task}.log" for task in tasks}
    try:
        notes.returned = workers.run(
            *("tests.toy_worker", "the job", logs, num_workers),
            {"notes": notes},
            on_failure=notes.fail,
        )
    finally:
        assert not any(exists(pid) for pid in notes.pids.values())
    return notes


def exists(pid):
    """Whether the process runs: one that only waits to be noticed (Z) does not."""
    try:
        os.kill(pid, 0)
        if sys.platform != "linux":
            return True
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


WHOLE = ["begins", 0, 1, 2]


@pytest.mark.parametrize("num_workers", [1, 2, 9])
def test_every_task_is_done_once_and_its_calls_come_in_order(num_workers, tmp_path):
    tasks = ["0", "1", "2", "3"]
    notes = perform(tasks, tmp_path, num_workers)
    assert all(notes.of(task) == WHOLE for task in tasks)
    assert notes.returned == notes.failed == []
    assert {extra for _, what, extra in notes.all if what == "begins"} == {"the job"}


def test_a_worker_is_started_once_and_takes_the_next_task(tmp_path):
    notes = perform([str(number) for number in range(5)], tmp_path)
    assert len(set(notes.pids.values())) == 2


@pytest.mark.parametrize(("num_tasks", "share"), [(1, "6"), (2, "3"), (4, "1")])
def test_workers_share_the_cores(num_tasks, share, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "num_cores", lambda: 6)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    notes = perform([str(number) for number in range(num_tasks)], tmp_path, 5)
    assert {value for _, what, value in notes.all if what == 0} == {share}


def test_there_is_a_core_at_least():
    assert 1 <= workers.num_cores() <= os.cpu_count()


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("diverges", "the training diverged: try less"),
        ("stumbles", "ZeroDivisionError: by nothing"),
        ("exits", "its process ended unexpectedly (exit code 5)"),
        ("killed", "its process ended unexpectedly (killed by signal 9)"),
        ("writes, killed", "its process ended unexpectedly (killed by signal 9)"),
    ],
)
def test_a_task_that_fails_is_told_with_its_log_and_the_others_go_on(
    action, why, tmp_path
):
    failing, others = f"1{action}", ["0", "2", "3"]
    notes = perform(["0", failing, "2", "3"], tmp_path)
    assert all(notes.of(task) == WHOLE for task in others)
    log = tmp_path / "logs" / f"{failing}.log"
    # A log only where there is something to read.
    assert log.exists() == (action not in ("diverges", "exits", "killed"))
    text = f"{why} (log: {log})" if log.exists() else why
    assert notes.returned == notes.failed == [(failing, text)]
    assert [file.name for file in tmp_path.rglob("*.log")] == [log.name] * log.exists()


def test_the_log_tells_where_in_the_code_it_happened(tmp_path):
    perform(["0prints", "1stumbles"], tmp_path, 1)
    text = (tmp_path / "logs" / "1stumbles.log").read_text()
    assert "Traceback" in text
    assert "at all" in text
    assert "something to read" not in text


def test_tasks_that_succeed_leave_no_log_nor_that_of_an_older_failure(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "0prints.log").write_text("an older failure")
    (tmp_path / "logs" / "1.log").write_text("an older failure")
    perform(["0prints", "1"], tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_when_all_fail_each_gets_a_worker_of_its_own(tmp_path):
    tasks = ["0killed", "1exits", "2diverges", "3killed"]
    notes = perform(tasks, tmp_path)
    assert sorted(task for task, _ in notes.failed) == tasks
    assert len(set(notes.pids.values())) == 4


def test_wrong_input_is_raised_as_it_is_and_ends_all_workers_at_once(tmp_path):
    # Were the others not ended, this would wait ten minutes.
    with toys.raises(
        config.ConfigError, "`rounds` must not be below 0. Received: rounds=-1"
    ):
        perform(["0waits", "1refuses", "2"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_error_here_ends_all_workers(tmp_path, monkeypatch):
    def fill(*arguments, **options):
        raise errors.RunError("the disk is full")

    monkeypatch.setattr(Notes, "note", fill)
    with toys.raises(errors.RunError, "the disk is full"):
        perform(["0waits", "1"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_warning_there_is_a_warning_here(tmp_path):
    with pytest.warns(UserWarning, match="^a kernel is empty$"):
        perform(["0warns"], tmp_path)


# Not guarded by __name__: a worker must not run it once more.
SCRIPT = """
import pathlib, sys
from prunetrain.runs import workers

class Notes:
    def note(self, task, what, pid, job):
        print(pid, flush=True)

logs = {task: pathlib.Path(sys.argv[1]) / task for task in ("0waits", "1waits")}
workers.run("tests.toy_worker", None, logs, 2, {"notes": Notes()}, print)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_no_worker_outlives_its_parent(name, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, script, tmp_path / "logs"],
        env={**os.environ, "PYTHONPATH": str(tiny.ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(map(exists, pids))
        parent.send_signal(getattr(signal, name))
        # Waits for the end of the output, which workers do not hold open.
        assert parent.stdout.read() == ""
    deadline = time.monotonic() + 30
    while any(map(exists, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
