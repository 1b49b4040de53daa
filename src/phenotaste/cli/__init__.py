"""The command line: each command parses, calls the library, and prints."""

import os
import signal
import sys

TYPE_CHECKING = False  # typing takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["main"]

INTERRUPTED = 130
MESSAGE = b"Interrupted; no incomplete files were left.\n"


def main() -> "NoReturn":
    """The `phenotaste` command. Ctrl-C ends it with exit status 130 at any moment, also while it starts and ends."""
    if os.name == "posix":
        sys.unraisablehook = interrupt_again
    try:
        exit_on_interrupt()
        from phenotaste.cli.app import main as run  # takes a second

        if signal.getsignal(signal.SIGINT) is exit_now:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        os.write(2, MESSAGE)
        sys.exit(INTERRUPTED)
    finally:
        exit_on_interrupt()


def exit_on_interrupt() -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a process in the background
        signal.signal(signal.SIGINT, exit_now)


def exit_now(*_: "Any") -> "NoReturn":
    """An exception in the middle of an import, or of Python's own exit, would be printed with a traceback."""
    os.write(2, MESSAGE)
    os._exit(INTERRUPTED)


def interrupt_again(unraisable: "Any") -> None:
    """Python prints and drops an exception that is raised in a callback: repeat an interrupt afterwards."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        import threading

        # Once this callback has returned; to the main thread, whose waiting it ends.
        timer = threading.Timer(
            0.01, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        )
        timer.daemon = True
        timer.start()
    else:
        sys.__unraisablehook__(unraisable)
