"""Named alternatives: a flag value, its help and its error message come from here."""

import difflib


def nearest(received, names):
    """` (did you mean 'x'?)` for a name that is not among `names`, or nothing."""
    near = difflib.get_close_matches(str(received), names, n=2, cutoff=0.5)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


class Registry(dict):
    """Functions by name.

    Args:
        kind: what the functions are, as the argument that selects one is called.
    """

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def register(self, name):
        """Decorator: file the function under `name`."""

        def add(function):
            self[name] = function
            return function

        return add

    def __missing__(self, name):
        raise ValueError(
            f"`{self.kind}` must be one of {', '.join(self)}{nearest(name, self)}. "
            f"Received: {self.kind}={name!r}"
        )
