"""Files of a folder: written whole, and known again when they are read.

A file is written beside and renamed: a reader sees the old content or the new one.
SHA256SUMS in the folder holds the sum of each content, as lines that `sha256sum` reads.
A sum is on the disk before the file gets that content, so that whenever the process is
killed, a file's content is one of those on record. A file without a record is taken as
it is: older releases wrote none.
"""

import contextlib
import hashlib
import os
import re

from prunetrain.errors import InputError

SUMS = "SHA256SUMS"
# A line that was cut off, with the next one behind it, hides only itself.
_LINE = re.compile(rb"([0-9a-f]{64})  (\S+)\n")
_BLOCK = 1 << 20


def write(folder, name, content):
    """Writes bytes or text to the file `name` of the folder, on record."""
    content = content if isinstance(content, bytes) else content.encode()
    record(folder, name, digest([content]))
    replace(folder / name, content)


def move(beside, folder, name):
    """Makes a file that is written the file `name` of the folder, on record."""
    record(folder, name, digest_of(beside))
    sync(beside)
    os.replace(beside, folder / name)


def read(folder, name):
    """The bytes of a file that has to be there.

    Raises:
        InputError: it cannot be read, or they are not on record, though others are.
    """
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise damaged(folder / name, error) from error
    check(folder, {name: digest([content])})
    return content


def damaged(file, error):
    """`InputError` for a file that cannot be what the run has written."""
    return InputError(
        f"{file} is missing or damaged ({type(error).__name__}: {error}). Restore it, "
        "or start again in another --workdir"
    )


def check(folder, found):
    """Raises InputError if other sums are on record than those found.

    Args:
        found: dict from name to sum.
    """
    sums = known(folder)
    for name, sum in found.items():
        if sum not in sums.get(name, [sum]):
            raise InputError(
                f"{folder / name} is damaged or was changed: it is not what the run "
                "has written. Restore it, or start again in another --workdir; if it "
                f"is right as it is, remove the lines with {name} from {folder / SUMS}"
            )


def record(folder, name, found):
    """Records the sum of a content that `name` is about to get."""
    with open(folder / SUMS, "ab") as stream:
        stream.write(_line(found, name))
        stream.flush()
        os.fsync(stream.fileno())


def known(folder):
    """The sums on record: dict from name to list, the last one last."""
    sums = {}
    for found, name in _LINE.findall(_content(folder)):
        sums.setdefault(os.fsdecode(name), []).append(found.decode())
    return sums


def compact(folder, present):
    """Leaves the sums of contents that are there, as far as they are known.

    Args:
        present: dict from name to sum. Other names keep what is on record.
    """
    wanted = {**known(folder), **{name: [found] for name, found in present.items()}}
    lines = [_line(x, name) for name, found in wanted.items() for x in found]
    content = b"".join(dict.fromkeys(lines))
    if content != _content(folder):
        replace(folder / SUMS, content)


def digest(blocks):
    """The SHA-256 sum of blocks of bytes, in hexadecimal digits."""
    found = hashlib.sha256()
    for block in blocks:
        found.update(block)
    return found.hexdigest()


def digest_of(file):
    """The same of a file, of which only a block is in memory."""
    with open(file, "rb") as stream:
        return digest(iter(lambda: stream.read(_BLOCK), b""))


def sync(path):
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _content(folder):
    """The bytes of SHA256SUMS, none if there is no such file."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / SUMS).read_bytes()
    return b""


def _line(found, name):
    return os.fsencode(f"{found}  {name}\n")


def replace(file, content):
    """Writes bytes to a file that keeps no record."""
    beside = file.with_name(f"{file.name}.writing")
    with open(beside, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(beside, file)
