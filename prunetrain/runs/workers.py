"""Tasks side by side, in worker processes of one task at a time.

Parent and worker hold the two ends of a pipe. The parent sends the job, then a task
whenever the worker has done one; the worker sends the calls that the parent is to make
for it, in order. The pipe is also what ties them together: when the parent is gone,
however it went, the worker reads the end of the pipe and ends itself.

A worker is started as `python -m MODULE`: multiprocessing would import the script that
the user has started, and start that over again if it is not guarded.
"""

import collections
import contextlib
import functools
import multiprocessing
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from multiprocessing import connection as connections

from prunetrain.errors import InputError, RunError
from prunetrain.runs import signals

# How long workers may take to save what they are at.
_STOP_SECONDS = 20
# A signal that is only noted does not end a wait.
_POLL_SECONDS = 0.1


def run(module, job, logs, num_workers, targets, on_failure):
    """Has tasks done by worker processes, which share the cores evenly.

    Args:
        module: name of the module that workers run; it calls `serve`.
        job: what all tasks have in common.
        logs: dict from task to the file for what a worker writes during it; the file
            stays if the task fails and something was written.
        num_workers: most workers at a time.
        targets: dict from name to the object whose methods workers call.
        on_failure: called with a task that failed and why; the others go on.

    Returns:
        List of `(task, why)` of the tasks that failed.

    Raises:
        InputError: a worker found the user's input wrong; all workers are ended.
        signals.Stopped: a signal came; the workers have been told, and have ended.
    """
    num_workers = min(num_workers, len(logs))
    start = functools.partial(Worker, module, job, max(1, num_cores() // num_workers))
    targets = {**targets, "warnings": warnings}
    waiting, busy, failures = collections.deque(logs.items()), {}, []
    try:
        # A message that is being read must not be cut off by a signal.
        with signals.deferred() as stop:
            while waiting or busy:
                while waiting and len(busy) < num_workers:
                    worker = start(*waiting.popleft())
                    busy[worker.pipe] = worker
                pipes = connections.wait(busy, timeout=_POLL_SECONDS)
                if stop:
                    _stop(busy, targets)
                    stop.obey()
                for pipe in pipes:
                    worker = busy[pipe]
                    ended, problem = worker.attend(targets)
                    if ended and waiting and not problem:
                        worker.begin(*waiting.popleft())
                    elif ended:
                        del busy[pipe]
                        problem = worker.end(problem)
                        if problem:
                            failures.append((worker.task, problem))
                            on_failure(*failures[-1])
    finally:
        for worker in busy.values():
            worker.end()
    return failures


def _stop(busy, targets):
    """Has the workers save what they are at, and do what they ask for meanwhile."""
    for worker in busy.values():
        worker.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    while busy and time.monotonic() < deadline:
        for pipe in connections.wait(busy, timeout=_POLL_SECONDS):
            ended, _ = busy[pipe].attend(targets)
            if ended:
                busy.pop(pipe).end()


def num_cores():
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_threads():
    """The threads that TensorFlow's kernels share in this process."""
    given = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    # What is no number, and 0, TensorFlow takes as all cores.
    return int(given) if given.isdigit() and int(given) else num_cores()


class Worker:
    """The parent's side of a worker process, which begins with its first task.

    Attributes: pipe (the parent's end), task (the present or the last one).
    """

    def __init__(self, module, job, num_threads, task, log):
        self._log = None
        self.pipe, theirs = multiprocessing.Pipe()
        with theirs, _emptied(log).open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                env=_environment(num_threads),
            )
        self._send(job)
        self.begin(task, log)

    def begin(self, task, log):
        """Has the worker do its next task."""
        if self._log:
            self._forget_log()
            _emptied(log)
        self.task, self._log = task, log
        self._send((task, log))

    def _send(self, message):
        # That a worker has died is noticed where it is read from.
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def attend(self, targets):
        """Does what the worker's next message asks for.

        Returns:
            `(ended, problem)`: whether its task has ended, and what went wrong or None.
        """
        kind, *content = self._receive()
        if kind == "wrong input":
            raise content[0]
        if kind == "call":
            target, method, arguments, options = content
            getattr(targets[target], method)(*arguments, **options)
            return False, None
        return True, content[0] if kind == "failed" else None

    def _receive(self):
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            return "failed", f"its process ended unexpectedly ({how})"

    def terminate(self):
        """Has the process save what it is at, and end."""
        self._process.terminate()

    def end(self, problem=None):
        """Ends the process; returns the problem, if any, with the log to read."""
        self._process.kill()
        self._process.wait()
        self.pipe.close()
        if problem and self._log.exists() and self._log.stat().st_size:
            return f"{problem} (log: {self._log})"
        self._forget_log()
        return problem

    def _forget_log(self):
        self._log.unlink(missing_ok=True)
        # Other logs may be there.
        with contextlib.suppress(OSError):
            self._log.parent.rmdir()


def _emptied(log):
    """The path of a log, in a folder that exists, without what an older run left."""
    log.parent.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    return log


def _environment(num_threads):
    """For a worker: the same modules as here, its share of threads, few words."""
    # What is no text Python ignores; what holds a separator cannot be passed on.
    folders = [path or os.getcwd() for path in sys.path if isinstance(path, str)]
    folders = [path for path in folders if os.pathsep not in path]
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # A crash in native code leaves a trace in the log.
        "PYTHONFAULTHANDLER": "1",
        "TF_NUM_INTRAOP_THREADS": str(num_threads),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        # Not the present folder before the others, as -m would have it.
        "PYTHONSAFEPATH": "1",
    }


def serve(prepare):
    """The worker's side: does one task after the other, until the parent ends it.

    Args:
        prepare: a function `(job, remote) -> (task -> None)`, called once; the methods
            of `remote(target)` are those of the parent's target, and return nothing.
    """
    # Ctrl-C reaches every process of a terminal; it is for the parent to end this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.handle(signal.SIGTERM)
    pipe = connections.Connection(int(sys.argv[1]))
    inbox = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, inbox), daemon=True).start()
    remote = functools.partial(Remote, pipe)
    warnings.showwarning = functools.partial(_pass_on_warning, remote("warnings"))
    try:
        do = prepare(inbox.get(), remote)
        while True:
            task, log = inbox.get()
            _write_to(log)
            do(task)
            pipe.send(("done",))
    except signals.Stopped as stopped:
        sys.exit(128 + stopped.number)
    except InputError as error:
        pipe.send(("wrong input", error))
    except RunError as error:
        pipe.send(("failed", str(error)))
    except Exception as error:
        # The log may be what there was no room for.
        with contextlib.suppress(OSError):
            traceback.print_exc()
            sys.stderr.flush()
        pipe.send(("failed", f"{type(error).__name__}: {error}".splitlines()[0]))


class Remote:
    """A target of the parent's: whatever is called is sent there."""

    def __init__(self, pipe, target):
        self._pipe, self._target = pipe, target

    def __getattr__(self, method):
        return functools.partial(self._call, method)

    def _call(self, method, *arguments, **options):
        self._pipe.send(("call", self._target, method, arguments, options))


def _receive(pipe, inbox):
    """Fills the inbox; ends the process when the parent has gone."""
    try:
        while True:
            inbox.put(pipe.recv())
    finally:
        # Whatever the other thread is at; files are written whole or not at all.
        os._exit(1)


def _pass_on_warning(remote, message, category, *_, **__):
    known = category.__module__ == "builtins"
    remote.warn(str(message), category if known else UserWarning)


def _write_to(log):
    """From now on standard output and error go to `log`.

    What stands there is from a start that went well: TensorFlow is never silent.
    """
    with pathlib.Path(log).open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
