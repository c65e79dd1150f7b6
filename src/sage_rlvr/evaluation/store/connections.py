"""Connections to the SQLite files of stores, as many as this process opens, and the one trap in having several.

Closing *any* file descriptor of a file drops all locks that the process has on that file (POSIX, `man 2 fcntl`). SQLite knows
its own connections and waits; a plain `open` of `store.sqlite` is unknown to it. While a connection of this process is open,
such an `open` lets another process believe that it is the last: on closing it deletes the log that this process still writes
to, and what is committed after that is lost. So a store's file is read past SQLite here only, and only while no connection
to it is open.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from pathlib import Path

from sage_rlvr.evaluation.store.log import check_log

_guard = threading.RLock()  # reentrant: a finalizer may close a connection while this thread opens one
_open: Counter[tuple[int, int]] = Counter()  # (device, inode) -> connections of this process


class CountedConnection(sqlite3.Connection):
    """A connection that is in `_open` until it is closed."""

    file: tuple[int, int] | None = None

    def close(self) -> None:
        with _guard:
            super().close()
            if self.file is not None:
                _open.subtract([self.file])
                self.file = None


def connect(file: Path, patience_s: float) -> sqlite3.Connection:
    """A connection; read-only where the folder cannot be written and no other process has left a log there. The first one of
    this process raises DataError for a log that was not written for the file.

    patience_s: a statement that waits longer for a lock raises sqlite3.OperationalError.
    """
    with _guard:
        stat = os.stat(file)
        key = (stat.st_dev, stat.st_ino)
        if not _open[key]:
            check_log(file)
        fixed = not os.access(file.parent, os.W_OK) and not Path(f"{file}-wal").exists()
        address = f"{file.resolve().as_uri()}?{'immutable=1' if fixed else 'mode=rw'}"
        db = sqlite3.connect(
            address, uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False, factory=CountedConnection
        )
        db.file = key
        _open.update([key])
    try:
        db.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        db.close()
        raise
    return db
