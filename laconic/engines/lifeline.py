"""A process that ends with the one that started it: when its standard input comes to an end, so
does it.

The starter holds the other end of a pipe and never writes. Whatever ends the starter, SIGKILL too,
closes the pipe; that works on every system, and needs no look at process ids, which are used again.
"""

import os
import signal
import stat
import threading
import time

GRACE = 10.0  # seconds to leave in good order


def end_with_stdin(after: float = 0.0, grace: float = GRACE) -> None:
    """From now on the end of standard input is a SIGTERM to this process, and `grace` seconds later
    the end of it.

    `after`: seconds to wait first, for one that others need in order to leave.
    """

    def watch() -> None:
        while os.read(0, 4096):
            pass
        _hush()
        time.sleep(after)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="laconic-lifeline").start()


def _hush() -> None:
    """Where output went to the starter nobody reads it any more, and writing would fail."""
    for handle in (1, 2):
        if stat.S_ISFIFO(os.fstat(handle).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), handle)
