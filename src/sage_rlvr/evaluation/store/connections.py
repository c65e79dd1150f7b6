"""Connections to the SQLite files of stores, as many as this process opens, and the one trap in having several.

Closing *any* file descriptor of a file drops all locks that the process has on that file (POSIX, `man 2 fcntl`). SQLite knows
its own connections and waits; a plain `open` of `store.sqlite` is unknown to it. While a connection of this process is open,
closing such a file lets another process believe that it is the last: it then deletes the log that this process still writes to,
and what is committed after that is lost. So the descriptor by which `check_log` reads the file stays open as long as the
connections do.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from dataclasses import dataclass, field
from pathlib import Path

from sage_rlvr.evaluation.store.log import check_log

Inode = tuple[int, int]
"""Device and number of a file: what locks belong to, whatever its name."""


@dataclass
class _File:
    """A file that this process has open: descriptors to read it by, and the number of SQLite's connections."""

    descriptors: list[int] = field(default_factory=list)
    connections: int = 0


_guard = threading.RLock()  # reentrant: a finalizer may close a connection while this thread opens one
_files: dict[Inode, _File] = {}


class CountedConnection(sqlite3.Connection):
    """A connection that is counted in `_files` until it is closed."""

    inode: Inode | None = None

    def close(self) -> None:
        with _guard:
            super().close()
            if self.inode is not None and self.inode in _files:
                _files[self.inode].connections -= 1
                _release(self.inode)
            self.inode = None


def connect(file: Path, patience_s: float) -> sqlite3.Connection:
    """A connection; read-only where the folder cannot be written and no other process has left a log there. DataError for a log
    that was not written for the file.

    patience_s: a statement that waits longer for a lock raises sqlite3.OperationalError.
    """
    with _guard:
        inode = _hold(file)
        try:
            check_log(file, _files[inode].descriptors[0])
            fixed = not os.access(file.parent, os.W_OK) and not Path(f"{file}-wal").exists()
            address = f"{file.resolve().as_uri()}?{'immutable=1' if fixed else 'mode=rw'}"
            db = sqlite3.connect(
                address, uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False, factory=CountedConnection
            )
            db.inode = inode
            _files[inode].connections += 1
        finally:
            _release(inode)
    try:
        db.execute("PRAGMA synchronous = FULL")
    except BaseException:
        db.close()
        raise
    return db


def _hold(file: Path) -> Inode:
    """Open a file unless this process has it open."""
    inode = _inode(os.stat(file))
    if inode in _files:
        return inode
    descriptor = os.open(file, os.O_RDONLY)
    inode = _inode(os.fstat(descriptor))  # another file may have been moved here meanwhile, one that this process has open too
    _files.setdefault(inode, _File()).descriptors.append(descriptor)
    return inode


def _inode(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


def _release(inode: Inode) -> None:
    """Close a file to which no connection is left."""
    if _files[inode].connections == 0:
        for descriptor in _files.pop(inode).descriptors:
            os.close(descriptor)


def _forget() -> None:
    """In a forked process: its parent's connections are not its own, nor are the locks, and another thread may hold the guard."""
    global _guard
    _guard = threading.RLock()
    _files.clear()


os.register_at_fork(after_in_child=_forget)
