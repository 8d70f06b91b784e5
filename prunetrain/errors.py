"""What can go wrong, by who can mend it."""

import re
import traceback

# Where TensorFlow and Keras say what is wrong, after such a first line.
_PLACES = {"in user code:": -1, "Graph execution error:": -1}
_KERAS = "Exception encountered when calling"


class InputError(ValueError):
    """The user's input is wrong: one line with value, rule and remedy; exit code 2."""


class RunError(RuntimeError):
    """The run cannot go on: what, where, what is saved; exit code 1."""


def told(error):
    """A failure of code that is not of this package, in one line with its place."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*|\x1b\[\d+m", "", str(error))
    places = re.findall('File "(.+)", line ([0-9]+)', text) or [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("File ", "[["))]
    first = lines[0] if lines else ""
    place = _PLACES.get(first, 1 if first.startswith(_KERAS) else 0)
    what = lines[min(place, len(lines) - 1)] if lines else ""
    kind = type(error).__name__
    what = what if what.startswith(f"{kind}:") else f"{kind}: {what}"
    return f"{what} ({places[-1][0]}, line {places[-1][1]})" if places else what
