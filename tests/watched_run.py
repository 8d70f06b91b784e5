"""The command line, with what several devices hold compared at each start and end.

    python -m tests.watched_run --strategy=mirrored:2 …

Ends with exit code 9 where copies differ in a bit, or a pruned weight is not +0.0.
"""

import sys

import numpy as np

from prunetrain import main, starts, training


def check(lab, where):
    held = [
        *(("weights", v.value) for v in lab.pruned.model.variables),
        *(("slots", v.value) for v in lab.optimizer.variables),
        *(("masks", mask) for mask in lab.pruned.masks),
    ]
    for what, variable in held:
        copies = [np.asarray(x) for x in _copies(lab, variable)]
        if len({copy.tobytes() for copy in copies}) > 1:
            fail(f"{what} differ {where}: {variable.name}")
    for kernel, mask in zip(lab.pruned.kernels, lab.pruned.masks, strict=True):
        for copy in _copies(lab, kernel.value):
            pruned = np.asarray(copy)[~mask.numpy()]
            if np.any(pruned != 0) or np.any(np.signbit(pruned)):
                fail(f"{kernel.path} is not held {where}")


def _copies(lab, variable):
    return lab._strategy.experimental_local_results(variable)


def fail(why):
    print(f"watched: {why}", file=sys.stderr)
    sys.exit(9)


def watch():
    begin, train = starts.Starts.begin, training.train

    def checked_begin(self, round, branch):
        begin(self, round, branch)
        check(self._lab, f"at the start of round {round}")

    def checked_train(lab, *arguments):
        found = train(lab, *arguments)
        check(lab, "at the end of a training")
        print("watched: all copies agree", file=sys.stderr)
        return found

    starts.Starts.begin, training.train = checked_begin, checked_train


if __name__ == "__main__":
    watch()
    main.console()
