"""The `prunetrain` command, also `python -m prunetrain`."""

import signal


def console():
    """Starts the command line of `prunetrain.main`."""
    # While it is loaded, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from prunetrain import main

    main.console()


if __name__ == "__main__":
    console()
