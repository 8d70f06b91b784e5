"""A worker process without TensorFlow, whose tasks say what is to happen in them."""

import os
import signal
import sys
import time
import warnings

from prunetrain.config import ConfigError
from prunetrain.errors import RunError
from prunetrain.runs import workers


def prepare(job, remote):
    note = remote("notes").note
    print("noise of the start", flush=True)

    def do(task):
        note(task, "begins", os.getpid(), job)
        ACTIONS[task[1:]]()
        for count in range(3):
            note(task, count, value=os.environ["TF_NUM_INTRAOP_THREADS"])

    return do


def refuse():
    raise ConfigError("rounds", -1, "must not be below 0")


def diverge():
    raise RunError("the training diverged: try less")


def stumble():
    raise ZeroDivisionError("by nothing\nat all")


def wait():
    time.sleep(600)


# A task is a digit and one of these words.
ACTIONS = {
    "": lambda: None,
    "prints": lambda: print("something to read"),
    "warns": lambda: warnings.warn("a kernel is empty", stacklevel=1),
    "refuses": refuse,
    "diverges": diverge,
    "stumbles": stumble,
    "waits": wait,
    "exits": lambda: os._exit(5),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "writes, killed": lambda: (
        os.write(sys.stderr.fileno(), b"last words\n"),
        os.kill(os.getpid(), signal.SIGKILL),
    ),
}

if __name__ == "__main__":
    workers.serve(prepare)
