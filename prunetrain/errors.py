"""What can go wrong, by who can mend it."""


class InputError(ValueError):
    """The user's input is wrong: one line with value, rule and remedy; exit code 2."""


class RunError(RuntimeError):
    """The run cannot go on: what, where, what is saved; exit code 1."""
