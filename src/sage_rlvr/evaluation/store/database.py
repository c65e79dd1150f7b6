"""The file of a sample store: its SQLite connection, its transactions, and its errors. The tables are in schema.py.

Written ahead into a log and synced at each commit: killed at any instant, a transaction is there or it is not.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sage_rlvr.errors import DataError, RunLocked
from sage_rlvr.evaluation.store.connections import connect
from sage_rlvr.evaluation.store.log import first_id, next_id
from sage_rlvr.evaluation.store.older import OLDER, changed_row, convert
from sage_rlvr.evaluation.store.schema import FILE, FORMAT, TABLES, note
from sage_rlvr.evaluation.store.writers import other_writers, processes
from sage_rlvr.runs import replacing
from sage_rlvr.runs.record import now
from sage_rlvr.safe_io import parse_json

PATIENCE_S = 600.0  # how long a transaction waits for another process's
NOTICE_S = 3.0  # after which a warning says that it waits
_SHARED = 1 << 16  # bytes, and a few more, of the file that the processes of a write-ahead log share
_FACTS = ("identity", "created", "changes", "wanted")


class Database:
    """A connection that is opened when it is needed. `transaction` may be nested, and may be entered by several threads."""

    def __init__(self, path: Path):
        self.path = path
        self._mutex = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._writer: FileLock | None = None
        self._verified = False
        self._older = False

    @contextlib.contextmanager
    def transaction(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A snapshot to read, or the right to write; all of it is committed or nothing. The first write to an older store converts
        it."""
        with self._mutex, explained(self.path):
            if self._db is None:
                self._db = connect(self.path / FILE, NOTICE_S)
                weakref.finalize(self, self._db.close)
            if self._db.in_transaction:
                yield self._db
                return
            try:
                self._patiently("BEGIN IMMEDIATE" if write else "BEGIN")
                # BEGIN takes no lock before the first read, and keeps the tables of before another process's conversion in mind
                self._patiently("SELECT count(*) FROM sqlite_master")
                if write:
                    next_id(self._db)
                self._check_format(self._db, write)
                yield self._db
                self._patiently("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _check_format(self, db: sqlite3.Connection, write: bool) -> None:
        """DataError for a format that this version does not read; the first write converts an older one."""
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version not in (*OLDER, FORMAT):
            raise DataError(
                f"{self.path / FILE}: a sample store of format {version}, this version of sage-rlvr reads {OLDER[0]} to {FORMAT}; "
                "read it with the version that wrote it, or sample into another folder"
            )
        self._older = version in OLDER
        if self._older and write:
            self._convert(db, version)
            self._older = False

    def _convert(self, db: sqlite3.Connection, version: int) -> None:
        """Bring an older store into today's format, where no earlier version writes to it and no row was changed."""
        if writers := other_writers(self.path, self._writer):
            raise RunLocked(
                f"{self.path / FILE}: an earlier version of sage-rlvr is writing to this store (process {processes(writers)}), "
                f"in format {version}; when it has ended, run the same command again, which converts the store to {FORMAT}"
            )
        if changed := changed_row(db):
            raise damaged(self.path, f"{changed} was changed after it was written")
        try:
            convert(db, TABLES)
        except sqlite3.IntegrityError as error:
            raise damaged(self.path, str(error)) from error
        db.execute(f"PRAGMA user_version = {FORMAT}")

    def _patiently(self, sql: str) -> None:
        """A statement that may wait for a lock of another process. A warning says so, and the wait ends after PATIENCE_S."""
        assert self._db is not None
        began, warned = time.monotonic(), False
        while True:
            try:
                self._db.execute(sql)
                return
            except sqlite3.OperationalError as error:
                waited = time.monotonic() - began
                if not _is_busy(error) or waited >= PATIENCE_S:
                    raise
            if not warned:
                warned = True
                warnings.warn(
                    f"{self.path / FILE}: another process holds its lock{_writers(self.path)}; this process waits up to "
                    f"{PATIENCE_S:.0f} s. {_FREE}",
                    stacklevel=4,
                )

    def facts(self) -> dict[str, Any]:
        """identity, created, changes (of versions and verifiers) and wanted, as trees of JSON values."""
        with self.transaction() as db:
            odd = db.execute("SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone()
            if odd is not None:  # a view is a program, which may never end
                raise damaged(self.path, f"the {odd[0]} {odd[1]!r} is not part of a sample store")
            rows = dict(db.execute("SELECT key, value FROM meta").fetchall())
        if missing := [name for name in _FACTS if name not in rows]:
            raise damaged(self.path, f"the entry {missing[0]!r} is missing in the table meta")
        return {key: parse_json(str(value), f"{self.path / FILE}, {key}", None) for key, value in rows.items()}

    def note(self, **facts: Any) -> None:
        """Store facts, which are JSON values; earlier ones of the same names are replaced."""
        with self.transaction(write=True) as db:
            note(db, facts)

    def verify(self) -> None:
        """Once per process: SQLite's check of the file and of its constraints. DataError where it fails."""
        if not self._verified:
            with self.transaction() as db:
                (result,) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if result != "ok":
                raise damaged(self.path, result)
            self._verified = True


def create(path: Path, identity: Mapping[str, Any], fill: Callable[[sqlite3.Connection], None] = lambda db: None) -> bool:
    """Create a store in a temporary place, in one transaction, and move it into place. Returns False, and creates none, where
    another process was first. fill: writes its first rows."""
    with explained(path):
        path.mkdir(parents=True, exist_ok=True)
        with _only_maker(path):
            if (path / FILE).exists():
                return False
            with replacing(path / FILE) as half, contextlib.closing(_new(half)) as db:
                db.execute("BEGIN")
                for name, columns in TABLES.items():
                    db.execute(f"CREATE TABLE {name} {columns}")
                db.execute(f"PRAGMA user_version = {FORMAT}")
                first_id(db)
                note(db, {"identity": identity, "created": now(), "changes": [], "wanted": {}})
                fill(db)
                db.execute("COMMIT")  # through a rollback journal: no log is left that would have to be moved with the file
                _log_ahead(path, db)
    return True


def _new(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=NOTICE_S, isolation_level=None)


@contextlib.contextmanager
def _only_maker(path: Path) -> Iterator[None]:
    """The lock under which a store is made in a folder."""
    lock, held = FileLock(path / "lock"), f"{path / 'lock'}: another process is creating a store here"
    try:
        try:
            lock.acquire(timeout=NOTICE_S)
        except Timeout:
            warnings.warn(f"{held}; this process waits up to {PATIENCE_S:.0f} s. {_FREE}", stacklevel=5)
            lock.acquire(timeout=PATIENCE_S)
    except Timeout:
        raise RunLocked(f"{held} and has not ended in {PATIENCE_S:.0f} s. {_FREE}, then run the same command again") from None
    try:
        yield
    finally:
        lock.release()


def _log_ahead(path: Path, db: sqlite3.Connection) -> None:
    """SQLite's write-ahead log, or its rollback journal with a warning where the file system cannot share memory."""
    try:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError as error:
        if _is_full(path):
            raise
        mode = f"{error}"
    if mode != "wal":
        db.execute("PRAGMA journal_mode = DELETE")
        warnings.warn(
            f"{path}: no write-ahead log on this file system ({mode}), so one process at a time reads or writes, and "
            "slower; if several hosts share it, use a separate store on each"
        )


# ------------------------------------------------------------------------------------------------------------------
# errors


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and of the file system to errors with the state of the data and the next step."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise damaged(path, str(error)) from error
    except sqlite3.Error as error:
        kind = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_")
        undecodable = not kind and isinstance(error, sqlite3.OperationalError)  # Python's, of text that is not UTF-8
        if undecodable or kind.startswith(("CORRUPT", "NOTADB", "FORMAT")):
            raise damaged(path, str(error)) from error
        if _is_busy(error):
            raise RunLocked(
                f"{path / FILE}: another process has held its lock for {PATIENCE_S:.0f} s{_writers(path)}. {_FREE}, then run the "
                "same command again"
            ) from error
        raise _unwritable(path, f"{error} ({kind})", kind.startswith("FULL") or _is_full(path)) from error
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error), error.errno in (errno.ENOSPC, errno.EDQUOT)) from error


_FREE = "If it is stopped, continue it (kill -CONT PID) or end it"


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _is_full(path: Path) -> bool:
    """Whether the disk has no room for what SQLite keeps beside the file, which it reports as an error of input and output."""
    return path.exists() and shutil.disk_usage(path).free < _SHARED


def _writers(path: Path) -> str:
    """The processes that have signed in as writers, as the names of their locks say; "" without any."""
    names = [lock.name for lock in path.glob("writer-*-*.lock")]
    return f" (writers of this store: process {processes(names)})" if names else ""


def _unwritable(path: Path, trouble: str, full: bool) -> DataError:
    return DataError(
        f"{path}: cannot be read or written: {trouble}; every committed chunk is unchanged. "
        f"{'Free some space' if full else 'Fix this'}, then run the same command again to continue"
    )


def damaged(path: Path, harm: str) -> DataError:
    """The error for a store whose bytes are not whole. harm: what does not fit, as SQLite or a check says it."""
    return DataError(
        f"{path / FILE}: damaged: {harm}. Nothing was changed. Restore it from a copy: move {FILE}, {FILE}-wal and {FILE}-shm out "
        f"of the folder (those that exist), then put the copy there. Or sample again into another folder"
    )
