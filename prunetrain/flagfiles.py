"""Flagfiles: settings as lines of --name=value.

A line that is blank or begins with # or // says nothing. A line --flagfile=FILE stands
for the lines of that file, whose name counts from the folder of the one that names it.
A setting may stand in several files, the last one counts; twice in one is a mistake.
"""

import os
import pathlib
import re

from prunetrain.errors import InputError

# No flag has a longer name, and absl's search for the nearest one is recursive.
_MOST_IN_NAME = 100
_LINE = re.compile(rf"--?(\w{{1,{_MOST_IN_NAME}}})=(.*)")
# Control characters and halves of characters, spaces or quotes around it, a note.
_NOT_HELD = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|^\s|\s$|\s#|^(['\"]).*\1$"
)
_MOST_BYTES = 2**20
_MOST_FILES = 100


def can_hold(value):
    """Whether a text comes back as it is from a line of a flagfile."""
    return not _NOT_HELD.search(value)


def expand(words):
    """`words` with the lines of flagfiles instead of their names, and in front.

    What is typed thus wins over what a file says, wherever the file is named.

    Args:
        words: what stands behind the command.

    Raises:
        InputError: a file cannot be read, or something in it would be misunderstood.
    """
    lines, typed, seen, words = [], [], [], iter(words)
    for word in words:
        name, sign, value = word.partition("=")
        if not sign and re.fullmatch(r"--?\w+", word):
            value = next(words, "")
            _check_value(word, value)
            word = f"{word}={value}"
        if len(name) > _MOST_IN_NAME:
            raise InputError(f"{name[:200]!r} is not a flag; see --help")
        if name.lstrip("-") == "flagfile":
            lines += _lines(value, None, seen)
        else:
            typed.append(word)
    return lines + typed


def _check_value(name, value):
    """Raises InputError where a value was forgotten: the next flag is none."""
    if not value or value.startswith("--"):
        raise InputError(
            f"{name} needs a value: {name}=VALUE. Received: {value or 'nothing'}; see "
            "--help"
        )


def _lines(file, by, seen):
    """The flags in a file and in those that it names, as a list.

    Args:
        file: its name.
        by: path of the flagfile that names it, or None.
        seen: the files read before, to which this one is added.
    """
    if not file:
        place = f". Received: an empty one in {by}" if by else ""
        raise InputError(f"--flagfile needs the name of a file: --flagfile=FILE{place}")
    path = pathlib.Path(by.parent if by else "", os.path.expanduser(file))
    text = _text(path)
    if path.resolve() in seen or len(seen) == _MOST_FILES:
        raise InputError(
            f"--flagfile={path}: a flagfile can be named once, not in a circle either, "
            f"and {_MOST_FILES} in all. Remove a line that names it"
        )
    seen.append(path.resolve())
    flags, names = [], set()
    for line in filter(None, map(str.strip, text.split("\n"))):
        if not line.startswith(("#", "//")):
            name, value = _flag(line, path)
            if name in names and name != "flagfile":
                raise InputError(
                    f"--flagfile={path}: --{name} must stand in it once. Received: "
                    f"{line[:200]!r} as well. Remove one of the lines"
                )
            names.add(name)
            nested = name == "flagfile"
            flags += _lines(value, path, seen) if nested else [line]
    return flags


def _flag(line, path):
    """Name and value in a line, or InputError."""
    found = _LINE.fullmatch(line)
    if not found or not can_hold(found[2]):
        raise InputError(
            f"--flagfile={path}: the line {line[:200]!r} must be --name=value, without "
            "quotes or spaces around the value and without a byte-order mark; a "
            "comment stands on a line of its own, after #"
        )
    return found.groups()


def _text(path):
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode()
    except OSError as error:
        raise InputError(
            f"--flagfile={path}: a flagfile that can be read is needed "
            f"({error.strerror}). Correct the name"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"--flagfile={path}: not a text file in UTF-8 ({error.reason}). Save it as "
            "such"
        ) from None
    if len(content) > _MOST_BYTES:
        raise InputError(
            f"--flagfile={path}: more than {_MOST_BYTES:,} bytes, which no flagfile "
            "has. Correct the name"
        )
    return text
