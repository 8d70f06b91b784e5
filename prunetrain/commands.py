"""Commands that are no run: `prunetrain report …`, by their first word.

A command is a module with `command(words, start)`, which reads its words by a `Parser`
and calls `start` before it loads TensorFlow, if it does. Its docstring is its help.
"""

import argparse
import importlib
import sys

from prunetrain.errors import InputError

# Name: module, and what it does, for --help.
COMMANDS = {
    "instability": (
        "prunetrain.instability",
        "Tells how early the networks of a run can be rewound: a --rewind_step",
    ),
    "merge": ("prunetrain.merge", "Joins what processes with --only have trained"),
    "report": (
        "prunetrain.analysis.report",
        "Draws a report of finished or unfinished runs: WORKDIR …",
    ),
}


def run(words, start):
    """Runs the command that the first word names, if it names one.

    Args:
        words: the command line without the program.
        start: to be called before TensorFlow is loaded.

    Returns:
        Whether it did.

    Raises:
        InputError: the words do not fit the command.
    """
    if not words or words[0] not in COMMANDS:
        return False
    module, _ = COMMANDS[words[0]]
    importlib.import_module(module).command(words[1:], start)
    return True


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line, with exit code 2.

    Args:
        name: the command's first word.
        doc: its module's docstring, the help.
    """

    def __init__(self, name, doc):
        super().__init__(
            prog=f"prunetrain {name}",
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message):
        raise InputError(f"{self.prog}: {message}. See {self.prog} --help")

    def exit(self, status=0, message=None):
        # --help has been printed.
        sys.exit(status)
