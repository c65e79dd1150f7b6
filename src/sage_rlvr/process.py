"""Terminate this process when its parent exits."""

from __future__ import annotations

import os
import signal
import threading

PARENT = "SAGE_RLVR_ENDS_WITH_STDIN"
"""Set for a process started by a sweep or demo: its standard input is a pipe that the parent keeps open and never writes to."""


def end_with_parent() -> None:
    """If `PARENT` is set, send SIGTERM to this process when its standard input ends. A run then finishes its step, saves and
    releases its lock."""
    if os.environ.pop(PARENT, None) is None:
        return

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="parent").start()
