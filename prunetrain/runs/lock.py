"""One process at a time may write a work directory.

The lock is the system's (`flock`): it goes with the process that holds it, however that
ends, so that none is ever left over. What stands in the file only tells who it is.
"""

import fcntl
import os
import platform
import weakref

from prunetrain.errors import InputError

# What this process holds, by device and inode: a folder may be moved, and one process
# may open it twice.
_held = weakref.WeakValueDictionary()


class Lock:
    """Held for as long as it is referred to."""

    def __init__(self, descriptor):
        weakref.finalize(self, os.close, descriptor)

    def __reduce__(self):
        # A copy in another process holds nothing.
        return type(None), ()


def acquire(file):
    """Takes the lock that `file` stands for.

    Returns:
        A `Lock`, the same one if this process holds it already.

    Raises:
        InputError: another live process holds it.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    status = os.fstat(descriptor)
    key = status.st_dev, status.st_ino
    if held := _held.get(key):
        os.close(descriptor)
        return held
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 1000).decode(errors="replace").strip()
        os.close(descriptor)
        raise InputError(
            f"`workdir` {file.parent} is in use by another run "
            f"({holder or 'a process'}). Wait for it to end, or choose another "
            "--workdir"
        ) from None
    _held[key] = held = Lock(descriptor)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {platform.node()}\n".encode())
    return held
