"""Named alternatives: a flag value, its help and its error message come from here."""

import difflib


def unknown_name(kind, received, names):
    """One line for a name that is not among `names`, nearest ones first."""
    near = difflib.get_close_matches(str(received), names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return (
        f"`{kind}` must be one of {', '.join(sorted(names))}. "
        f"Received: {kind}={received!r}.{hint}"
    )


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
        raise ValueError(unknown_name(self.kind, name, self))

    def help(self):
        """`name: first line of the docstring` for every entry."""
        return "; ".join(
            f"{name}: {function.__doc__.splitlines()[0].rstrip('.')}"
            for name, function in self.items()
        )
