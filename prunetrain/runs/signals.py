"""SIGTERM and SIGINT: they end a run at once, or when what is under way is saved."""

import contextlib
import signal


class Stopped(BaseException):
    """A signal came: like KeyboardInterrupt, not for handlers of errors.

    Attributes: number (of the signal).
    """

    def __init__(self, number):
        super().__init__(number)
        self.number = number


class Stop:
    """The first signal that came while a part of a run was not to be cut off.

    Attributes: number (of the signal), or None.
    """

    number = None

    def __bool__(self):
        return self.number is not None

    def obey(self):
        """Ends the run as the signal would have done."""
        raise Stopped(self.number)


# Signals belong to the process, and so does what is done about them.
_deferred = []


def handle(*numbers):
    """From now on these signals raise `Stopped`, unless they are `deferred`."""
    for number in numbers:
        signal.signal(number, _on_signal)


@contextlib.contextmanager
def deferred():
    """Within it the first signal is only noted; a second one ends the run at once.

    Yields:
        A `Stop`: true when a signal has come, and then to be obeyed soon.
    """
    stop = Stop()
    _deferred.append(stop)
    try:
        yield stop
    finally:
        _deferred.remove(stop)
    if stop:
        stop.obey()


def _on_signal(number, frame):
    del frame
    stop = _deferred[-1] if _deferred else None
    if stop is None or stop:
        raise Stopped(number)
    stop.number = number
