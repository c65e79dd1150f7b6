"""The file of a sample store: SQLite, its tables, its transactions, and the hash that every row carries.

    meta: facts as JSON · samples: a row each · verdicts: a row per sample and pass · passes: who judged again · claims

Written ahead into a log and synced at each commit: killed at any instant, a transaction is there or it is not. A row whose
hash is not that of its values is refused by name, as is a file that SQLite finds damaged.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import json
import os
import sqlite3
import threading
import uuid
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from sage_rlvr.errors import DataError, RunLocked
from sage_rlvr.evaluation.store.columns import COLUMNS, JUDGED
from sage_rlvr.evaluation.store.sample import LABELS

FILE, OLD, FORMAT = "store.sqlite", "store.json", 2
PATIENCE_S = 600.0  # how long a transaction waits for another process's
STORED = tuple(name for name in COLUMNS if name not in JUDGED)
TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, sha INTEGER NOT NULL);
CREATE TABLE samples (id INTEGER PRIMARY KEY, sha INTEGER NOT NULL, problem TEXT NOT NULL, sample INTEGER NOT NULL,
    seed INTEGER, prompt_hash TEXT NOT NULL, text_hash INTEGER NOT NULL, finish TEXT, latency_s REAL, versions TEXT NOT NULL,
    text TEXT NOT NULL, token_ids BLOB, rollout_logps BLOB, base_logps BLOB, entropies BLOB, q BLOB, UNIQUE (problem, sample));
CREATE TABLE verdicts (id INTEGER, pass INTEGER, sha INTEGER NOT NULL, verifier TEXT NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN {LABELS}), reason TEXT NOT NULL, answer TEXT, PRIMARY KEY (id, pass)) WITHOUT ROWID;
CREATE TABLE passes (pass INTEGER PRIMARY KEY, verifier TEXT NOT NULL, who TEXT NOT NULL, at TEXT NOT NULL);
CREATE TABLE claims (problem TEXT, first INTEGER, writer TEXT NOT NULL, PRIMARY KEY (problem, first));
PRAGMA user_version = {FORMAT};
"""


class Database:
    """A connection that is opened when it is needed. `transaction` may be nested, and may be entered by several threads."""

    def __init__(self, path: Path):
        self.path = path
        self._mutex = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._verified = False

    def disconnect(self) -> None:
        """Close the file; the next transaction opens it again."""
        with self._mutex:
            if self._db is not None:
                self._db.close()
                self._db = None

    @contextlib.contextmanager
    def transaction(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A snapshot to read, or the right to write; all of it is committed or nothing."""
        with self._mutex, said(self.path):
            if self._db is None:
                self._db = _connect(self.path / FILE)
                weakref.finalize(self, self._db.close)
            if self._db.in_transaction:
                yield self._db
                return
            self._db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def facts(self) -> dict[str, Any]:
        """identity, created, changes (of versions and verifiers) and wanted, as trees of JSON values."""
        with self.transaction() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version != FORMAT:
                raise DataError(
                    f"{self.path / FILE}: a sample store of format {version}, this version of sage-rlvr reads format {FORMAT}; "
                    "read it with the version that wrote it, or sample into another folder"
                )
            rows = db.execute("SELECT sha, key, value FROM meta").fetchall()
        if "identity" not in {key for _, key, _ in rows} or any(sha != seal(row) for sha, *row in rows):
            raise _damaged(self.path, "its facts are not those that were written")
        return {key: json.loads(value) for _, key, value in rows}

    def note(self, **facts: Any) -> None:
        with self.transaction(write=True) as db:
            for key, value in facts.items():
                row = (key, json.dumps(value))
                db.execute("INSERT OR REPLACE INTO meta (key, value, sha) VALUES (?, ?, ?)", (*row, seal(row)))

    def verify(self) -> None:
        """Once per process: the file's structure, and the hash of every row. DataError where one is not what was written."""
        if self._verified:
            return
        with self.transaction() as db:
            (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise _damaged(self.path, found)
            for sha, *row in db.execute(f"SELECT sha, {', '.join(STORED)} FROM samples"):
                if sha != seal(row):
                    raise _damaged(self.path, f"problem {row[0]!r}, sample {row[1]} is not what was written")
            for sha, *row in db.execute("SELECT sha, id, pass, verifier, verdict, reason, answer FROM verdicts"):
                if sha != seal(row):
                    raise _damaged(self.path, f"a verdict of {row[2]!r} is not what was written")
        self._verified = True


def create(path: Path, identity: Mapping[str, Any]) -> None:
    """A store without samples, made beside its place and moved there whole, unless another process was first."""
    half = path / f".tmp-{uuid.uuid4().hex[:8]}.sqlite"
    with said(path):
        path.mkdir(parents=True, exist_ok=True)
        with FileLock(path / "lock", timeout=PATIENCE_S):
            if (path / FILE).exists():
                return
            try:
                with contextlib.closing(sqlite3.connect(half, isolation_level=None)) as db:
                    _log_ahead(path, db)
                    db.executescript(f"BEGIN; {TABLES}")
                    facts = {"identity": identity, "created": now(), "changes": [], "wanted": {}}
                    rows = [(key, json.dumps(value)) for key, value in facts.items()]
                    db.executemany("INSERT INTO meta VALUES (?, ?, ?)", [(*row, seal(row)) for row in rows])
                    db.execute("COMMIT")
                os.replace(half, path / FILE)
            finally:
                half.unlink(missing_ok=True)


def _log_ahead(path: Path, db: sqlite3.Connection) -> None:
    """SQLite's write-ahead log, or its rollback journal with a warning where the file system cannot share memory."""
    try:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError as error:
        mode = f"{error}"
    if mode != "wal":
        db.execute("PRAGMA journal_mode = DELETE")
        warnings.warn(
            f"{path}: no write-ahead log on this file system ({mode}), so one process at a time reads or writes, and "
            "slower; where several hosts share it, give each a store of its own"
        )


def _connect(file: Path) -> sqlite3.Connection:
    """A connection; read-only where the folder cannot be written and no other process has left a log there."""
    options = "mode=rw"
    if not os.access(file.parent, os.W_OK) and not Path(f"{file}-wal").exists():
        options = "immutable=1"
    place = f"{file.resolve().as_uri()}?{options}"
    db = sqlite3.connect(place, uri=True, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA synchronous = FULL")
    return db


@contextlib.contextmanager
def said(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the file system as errors that say what is safe and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        kind = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_")
        if kind.startswith(("CORRUPT", "NOTADB", "FORMAT")):
            raise _damaged(path, str(error)) from error
        if kind.startswith(("BUSY", "LOCKED")):
            raise RunLocked(
                f"{path}: another process has held the lock for {PATIENCE_S:.0f} seconds; end it, then go on"
            ) from error
        raise _unwritable(path, f"{error} ({kind})", kind.startswith("FULL")) from error
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error), error.errno in (errno.ENOSPC, errno.EDQUOT)) from error


def _unwritable(path: Path, trouble: str, full: bool) -> DataError:
    return DataError(
        f"{path}: cannot be read or written: {trouble}; every chunk that was committed is untouched. "
        f"{'Free some space' if full else 'Mend that'}, then give the same command again to continue"
    )


def _damaged(path: Path, what: str) -> DataError:
    return DataError(
        f"{path / FILE}: damaged: {what}. Nothing was changed. Restore it from a copy, or sample again into another folder "
        f"(what can be read: sqlite3 {path / FILE} .recover)"
    )


def feed(digest: Any, values: Iterable[Any]) -> None:
    """Stored values into a hash, each behind its length."""
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(len(data).to_bytes(8, "little") + data)


def seal(values: Iterable[Any]) -> int:
    """63 bits of SHA-256 of a row's values as they are stored."""
    digest = hashlib.sha256()
    feed(digest, values)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
