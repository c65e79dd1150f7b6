"""A process that ends when the one that started it dies, however that dies."""

from __future__ import annotations

import os
import signal
import threading

PARENT = "SAGE_RLVR_ENDS_WITH_STDIN"
"""Set for a process that a sweep or demo starts: its standard input is a pipe that the parent holds and never writes to."""


def end_with_parent() -> None:
    """Where `PARENT` is set: SIGTERM to this process when its standard input ends. A run then finishes its step, saves, and leaves
    its lock to the next call."""
    if os.environ.pop(PARENT, None) is None:
        return

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="parent").start()
