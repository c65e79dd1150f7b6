"""The file of a sample store: SQLite, its tables and columns, its transactions, and the hash that every row carries.

    meta: facts as JSON · samples: a row each · verdicts: a row per sample and pass · passes: who judged again · claims

Written ahead into a log and synced at each commit: killed at any instant, a transaction is there or it is not. A row whose
hash is not that of its values is refused by name, as is a file that SQLite finds damaged. Text is `escape`d where it is no
UTF-8; token-level columns are little-endian float32, token ids int32.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import sqlite3
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from filelock import FileLock

from sage_rlvr.errors import DataError, RunLocked
from sage_rlvr.evaluation.store.sample import LABELS, TOKEN_LEVEL
from sage_rlvr.reading import parse_json
from sage_rlvr.runs import replacing
from sage_rlvr.runs.record import now

FILE, FORMAT, EPISODES = "store.sqlite", 2, 3
"""Names of files, and the formats: of completions, and of episodes, whose rows have one column more."""
PATIENCE_S = 600.0  # how long a transaction waits for another process's
_TEXT = pa.large_string()
_KINDS = {
    "problem": _TEXT,
    "sample": pa.int32(),
    "seed": pa.int64(),
    "prompt_hash": _TEXT,
    "text": _TEXT,
    "text_hash": pa.int64(),
    "token_ids": pa.large_list(pa.int32()),
    **dict.fromkeys(TOKEN_LEVEL, pa.large_list(pa.float32())),
    **dict.fromkeys(("finish", "answer", "verdict", "reason", "verifier"), _TEXT),
    "latency_s": pa.float64(),
    "versions": _TEXT,
}
COLUMNS = tuple(_KINDS)
TURNS = "turns"  # JSON: [[who, text, tokens], ...]
_KINDS[TURNS] = _TEXT
NEVER_NULL = ("problem", "sample", "prompt_hash", "text", "text_hash", "verdict", "reason", "verifier", "versions")
SCHEMA = pa.schema([pa.field(name, kind, nullable=name not in NEVER_NULL) for name, kind in _KINDS.items()])
JUDGED = ("verifier", "verdict", "reason", "answer")  # of the newest verdict
NESTED = {"token_ids": np.dtype("<i4"), **dict.fromkeys(TOKEN_LEVEL, np.dtype("<f4"))}
_CHANGED = "problem {0!r}, sample {1} is not what was written", "a verdict of {2!r} is not what was written"
TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, sha INTEGER NOT NULL);
CREATE TABLE samples (id INTEGER PRIMARY KEY, sha INTEGER NOT NULL, problem TEXT NOT NULL, sample INTEGER NOT NULL,
    seed INTEGER, prompt_hash TEXT NOT NULL, text_hash INTEGER NOT NULL, finish TEXT, latency_s REAL, versions TEXT NOT NULL,
    text TEXT NOT NULL, token_ids BLOB, rollout_logps BLOB, base_logps BLOB, entropies BLOB, q BLOB, {turns}
    UNIQUE (problem, sample));
CREATE TABLE verdicts (id INTEGER, pass INTEGER, sha INTEGER NOT NULL, verifier TEXT NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN {labels}), reason TEXT NOT NULL, answer TEXT, PRIMARY KEY (id, pass)) WITHOUT ROWID;
CREATE TABLE passes (pass INTEGER PRIMARY KEY, verifier TEXT NOT NULL, who TEXT NOT NULL, at TEXT NOT NULL);
CREATE TABLE claims (problem TEXT, first INTEGER, writer TEXT NOT NULL, PRIMARY KEY (problem, first));
PRAGMA user_version = {format};
"""


class Database:
    """A connection that is opened when it is needed. `transaction` may be nested, and may be entered by several threads."""

    def __init__(self, path: Path):
        self.path = path
        self._mutex = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._verified = False
        self._format = FORMAT

    @property
    def columns(self) -> tuple[str, ...]:
        """Of a table of its samples."""
        return (*COLUMNS, *((TURNS,) * (self._format == EPISODES)))

    @property
    def stored(self) -> tuple[str, ...]:
        """Those that stand in the table of samples, in the order of a row's hash."""
        return tuple(name for name in self.columns if name not in JUDGED)

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
            if version not in (FORMAT, EPISODES):
                raise DataError(
                    f"{self.path / FILE}: a sample store of format {version}, this version of sage-rlvr reads {FORMAT} and "
                    f"{EPISODES}; read it with the version that wrote it, or sample into another folder"
                )
            self._format = version
            odd = db.execute("SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone()
            if odd is not None:  # a view is a program, which may never end
                raise _damaged(self.path, f"the {odd[0]} {odd[1]!r} is none of a sample store's")
            rows = db.execute("SELECT sha, key, value FROM meta").fetchall()
        if "identity" not in {key for _, key, _ in rows} or any(sha != seal(row) for sha, *row in rows):
            raise _damaged(self.path, "its facts are not those that were written")
        return {key: parse_json(str(value), f"{self.path / FILE}, {key}", None) for _, key, value in rows}

    def note(self, **facts: Any) -> None:
        """Facts in the place of those of the same names."""
        with self.transaction(write=True) as db:
            _note(db, facts)

    def verify(self) -> None:
        """Once per process: the file's structure, and the hash of every row. DataError where one is not what was written."""
        if self._verified:
            return
        with self.transaction() as db:
            (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise _damaged(self.path, found)
            sealed = (("samples", self.stored), ("verdicts", ("id", "pass", *JUDGED)))
            for (table, names), words in zip(sealed, _CHANGED, strict=True):
                for sha, *row in db.execute(f"SELECT sha, {', '.join(names)} FROM {table}"):
                    if sha != seal(row):
                        raise _damaged(self.path, words.format(*row))
        self._verified = True


def create(path: Path, identity: Mapping[str, Any]) -> None:
    """A store without samples, made beside its place and moved there whole, unless another process was first."""
    with said(path):
        path.mkdir(parents=True, exist_ok=True)
        with FileLock(path / "lock", timeout=PATIENCE_S):
            if (path / FILE).exists():
                return
            with replacing(path / FILE) as half, contextlib.closing(sqlite3.connect(half, isolation_level=None)) as db:
                _log_ahead(path, db)
                kind = (EPISODES, f"{TURNS} TEXT NOT NULL, ") if identity.get("turns", 1) > 1 else (FORMAT, "")
                tables = TABLES.format(format=kind[0], turns=kind[1], labels=LABELS)
                db.executescript(f"BEGIN; {tables}")
                _note(db, {"identity": identity, "created": now(), "changes": [], "wanted": {}})
                db.execute("COMMIT")


def put(db: sqlite3.Connection, table: str, row: Mapping[str, Any], instead: bool = False) -> int:
    """A row with its hash, `instead` of one with its key; returns its id."""
    names, marks = ", ".join(("sha", *row)), ", ".join("?" * (len(row) + 1))
    verb = "INSERT OR REPLACE" if instead else "INSERT"
    done = db.execute(f"{verb} INTO {table} ({names}) VALUES ({marks})", (seal(row.values()), *row.values()))
    return int(done.lastrowid or 0)


def _note(db: sqlite3.Connection, facts: Mapping[str, Any]) -> None:
    for key, value in facts.items():
        put(db, "meta", {"key": key, "value": json.dumps(value)}, instead=True)


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
    fixed = not os.access(file.parent, os.W_OK) and not Path(f"{file}-wal").exists()
    place = f"{file.resolve().as_uri()}?{'immutable=1' if fixed else 'mode=rw'}"
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


# ------------------------------------------------------------------------------------------------------------------
# rows as tables of Arrow, and back


def arrow(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Stored rows of these columns as a table of `SCHEMA`."""
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    made = [_array(name, list(values)) for name, values in zip(names, columns, strict=True)]
    return pa.table(made, schema=pa.schema([SCHEMA.field(name) for name in names]))


def _array(name: str, values: list[Any]) -> pa.Array:
    if name not in NESTED:
        return pa.array(values, _KINDS[name])
    ends = np.cumsum([0, *(len(value or b"") // 4 for value in values)])
    flat = pa.array(np.frombuffer(b"".join(value or b"" for value in values), NESTED[name]))
    return pa.LargeListArray.from_arrays(pa.array(ends), flat, mask=pa.array([value is None for value in values], pa.bool_()))


def arrays(column: Any) -> list[np.ndarray[Any, Any]]:
    """One array (T_i,) a row of a token-level column without gaps."""
    return [row.values.to_numpy(zero_copy_only=False) for row in column]


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its token-level columns as they are stored."""
    nested = {name: row[name] for name in NESTED}
    return {**row, **{k: v if v is None else np.asarray(v).astype(NESTED[k]).tobytes() for k, v in nested.items()}}


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """A table of `SCHEMA` as rows of `COLUMNS`, and `TURNS` where it has them, as they are stored."""
    names = [*COLUMNS, *((TURNS,) * (TURNS in table.column_names))]
    for batch in table.select(names).to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            yield flat(row)
