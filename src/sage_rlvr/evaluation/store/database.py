"""The file of a sample store: SQLite, its tables and columns, its transactions, and the hash that every row carries.

    meta: facts as JSON · samples: a row each · verdicts: a row per sample and pass · passes: who judged again · claims
    problems: prompt and gold of each

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
import shlex
import shutil
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from sage_rlvr.errors import DataError, RunLocked
from sage_rlvr.evaluation.store.log import SUFFIXES, check_log, first_id, next_id
from sage_rlvr.evaluation.store.sample import LABELS, TOKEN_LEVEL
from sage_rlvr.runs import replacing
from sage_rlvr.runs.record import now
from sage_rlvr.safe_io import parse_json

FILE, FORMAT, EPISODES = "store.sqlite", 2, 3
"""Names of files, and the formats: of completions, and of episodes, whose rows have one column more."""
PATIENCE_S = 600.0  # how long a transaction waits for another process's
NOTICE_S = 3.0  # after which a warning says that it waits
_SHARED = 1 << 16  # bytes of the file that the processes of a write-ahead log share, and some
COLUMNS = (
    "problem", "sample", "seed", "prompt_hash", "text", "text_hash", "token_ids", *TOKEN_LEVEL,
    "finish", "answer", "verdict", "reason", "verifier", "latency_s", "versions",
)  # fmt: skip
TURNS = "turns"  # JSON: [[who, text, tokens], ...]
JUDGED = ("verifier", "verdict", "reason", "answer")  # of the newest verdict
NESTED = {"token_ids": np.dtype("<i4"), **dict.fromkeys(TOKEN_LEVEL, np.dtype("<f4"))}
_FACTS = ("identity", "created", "changes", "wanted")
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
PROBLEMS = (  # stores of before have no such table; the next evaluation into one adds it
    "CREATE TABLE IF NOT EXISTS problems (problem TEXT PRIMARY KEY, sha INTEGER NOT NULL, prompt TEXT NOT NULL, gold TEXT)"
)


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
        """The columns of the table of samples, in the order of a row's hash."""
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
            try:
                self._patiently("BEGIN IMMEDIATE" if write else "BEGIN")
                if write:
                    next_id(self._db)
                else:  # BEGIN takes no lock before the first read
                    self._patiently("SELECT count(*) FROM sqlite_master")
                yield self._db
                self._patiently("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

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
        if lost := [name for name in _FACTS if name not in {key for _, key, _ in rows}]:
            raise _damaged(self.path, f"the entry {lost[0]!r} is missing in the table meta")
        if any(sha != seal(row) for sha, *row in rows):
            raise _damaged(self.path, "its metadata were changed")
        return {key: parse_json(str(value), f"{self.path / FILE}, {key}", None) for _, key, value in rows}

    def note(self, **facts: Any) -> None:
        """Facts in the place of those of the same names."""
        with self.transaction(write=True) as db:
            _note(db, facts)

    def verify(self) -> None:
        """Once per process: the file's structure, and the hash of every row. DataError where one is not what was written."""
        if self._verified:
            return
        size = int(self.facts()["identity"]["chunk_size"])
        with self.transaction() as db:
            (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise _damaged(self.path, found)
            if (problem := _changed_problem(db)) is not None:
                advice = shlex.join(["sqlite3", str(self.path / FILE), "DROP TABLE problems"])
                what = f"prompt or gold of problem {problem!r} was changed after it was written"
                raise _damaged(self.path, what, f"Or remove the prompts, which the same eval command then writes again: {advice}")
            harm = _changed_sample(db, self.stored) or _changed_verdict(db) or _lost_row(db, size)
        if harm is not None:
            what, problem, sample = harm
            raise _damaged(self.path, what, _drawn_again(self.path, problem, sample, size))
        self._verified = True


    def checkpoint(self) -> None:
        """Move what was committed from the log into the file. DataError where the disk or another process does not let that happen;
        the same at the last close happens without a report."""
        with self._mutex, said(self.path):
            if self._db is not None:
                busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if busy:
                    raise _unwritable(self.path, "another process reads the new store", full=False)


def create(path: Path, identity: Mapping[str, Any]) -> None:
    """Create an empty store in a temporary place and move it into place, unless another process was first."""
    with said(path):
        path.mkdir(parents=True, exist_ok=True)
        with _only_maker(path):
            if (path / FILE).exists():
                return
            with replacing(path / FILE) as half:
                with contextlib.closing(sqlite3.connect(half, isolation_level=None)) as db:
                    kind = (EPISODES, f"{TURNS} TEXT NOT NULL, ") if identity.get("turns", 1) > 1 else (FORMAT, "")
                    tables = TABLES.format(format=kind[0], turns=kind[1], labels=LABELS)
                    db.executescript(f"BEGIN; {tables} {PROBLEMS};")
                    first_id(db)
                    _note(db, {"identity": identity, "created": now(), "changes": [], "wanted": {}})
                    db.execute("COMMIT")
                    _log_ahead(path, db)
                whole_without_log(half)


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


def whole_without_log(file: Path) -> None:
    """DataError unless all that was written stands in the file itself, which can then be moved without its log.

    SQLite moves the log into the file at the last close, and does not report a failure (a full disk, another reader).
    """
    for log in (Path(f"{file}{end}") for end in SUFFIXES):
        size = log.stat().st_size if log.exists() else 0
        log.unlink(missing_ok=True)
        if size:
            raise _unwritable(file.parent, f"{size:,} bytes of a new store could not be moved into its file", full=True)


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
        if _is_full(path):
            raise
        mode = f"{error}"
    if mode != "wal":
        db.execute("PRAGMA journal_mode = DELETE")
        warnings.warn(
            f"{path}: no write-ahead log on this file system ({mode}), so one process at a time reads or writes, and "
            "slower; if several hosts share it, use a separate store on each"
        )


def _connect(file: Path) -> sqlite3.Connection:
    """A connection; read-only where the folder cannot be written and no other process has left a log there."""
    check_log(file)
    fixed = not os.access(file.parent, os.W_OK) and not Path(f"{file}-wal").exists()
    place = f"{file.resolve().as_uri()}?{'immutable=1' if fixed else 'mode=rw'}"
    db = sqlite3.connect(place, uri=True, timeout=NOTICE_S, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA synchronous = FULL")
    return db


@contextlib.contextmanager
def said(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and of the file system to errors with the state of the data and the next step."""
    try:
        yield
    except sqlite3.Error as error:
        kind = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_")
        if kind.startswith(("CORRUPT", "NOTADB", "FORMAT")):
            raise _damaged(path, str(error)) from error
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


def pid_of(lock: str) -> str:
    """The process number in the name of a writer's lock, "writer-PID-...lock"."""
    return lock.split("-")[1]


def _writers(path: Path) -> str:
    """The processes that have signed in as writers, as the names of their locks say; "" without any."""
    pids = sorted(pid_of(lock.name) for lock in path.glob("writer-*-*.lock"))
    return f" (writers of this store: process {', '.join(pids)})" if pids else ""


def _unwritable(path: Path, trouble: str, full: bool) -> DataError:
    return DataError(
        f"{path}: cannot be read or written: {trouble}; every committed chunk is unchanged. "
        f"{'Free some space' if full else 'Fix this'}, then run the same command again to continue"
    )


def _damaged(path: Path, what: str, again: str | None = None) -> DataError:
    """again: how the damaged part alone can be drawn again."""
    return DataError(
        f"{path / FILE}: damaged: {what}. Nothing was changed. Restore it from a copy: move {FILE}, {FILE}-wal and {FILE}-shm out "
        f"of the folder (what there is of them), then put the copy there. {again or 'Or sample again into another folder'}"
    )


Harm = tuple[str, str | None, int]
"""What is damaged, in words, and where: problem (None: no sample is left) and sample."""


def _changed_sample(db: sqlite3.Connection, stored: Sequence[str]) -> Harm | None:
    at = stored.index("problem"), stored.index("sample")
    for sha, *row in db.execute(f"SELECT sha, {', '.join(stored)} FROM samples"):
        if sha != seal(row):
            return f"problem {row[at[0]]!r}, sample {row[at[1]]} was changed after it was written", row[at[0]], row[at[1]]
    return None


def has_problems(db: sqlite3.Connection) -> bool:
    """Whether the store keeps prompts and golds."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'problems'").fetchone() is not None


def _changed_problem(db: sqlite3.Connection) -> str | None:
    rows = db.execute("SELECT sha, problem, prompt, gold FROM problems") if has_problems(db) else ()
    return next((str(row[0]) for sha, *row in rows if sha != seal(row)), None)


def _changed_verdict(db: sqlite3.Connection) -> Harm | None:
    for sha, *row in db.execute(f"SELECT sha, id, pass, {', '.join(JUDGED)} FROM verdicts"):
        if sha != seal(row):
            place = db.execute("SELECT problem, sample FROM samples WHERE id = ?", row[:1]).fetchone() or (None, 0)
            return f"a verdict of {row[2]!r} was changed after it was written", *place
    return None


def _lost_row(db: sqlite3.Connection, size: int) -> Harm | None:
    """A row that lacks in a chunk, which was committed whole, or the first verdict of a sample."""
    sql = "SELECT problem, sample / ? * ?, count(*) FROM samples GROUP BY 1, 2 HAVING count(*) != ?"
    if found := db.execute(sql, (size, size, size)).fetchone():
        problem, first, there = found
        return f"problem {problem!r}: of samples {first} to {first + size - 1} only {there} of {size} exist", problem, first
    sql = "SELECT problem, sample FROM samples s WHERE NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.id = s.id AND v.pass = 0)"
    if found := db.execute(sql).fetchone():
        return f"problem {found[0]!r}, sample {found[1]} has lost its verdict", *found
    if found := db.execute("SELECT id FROM verdicts WHERE id NOT IN (SELECT id FROM samples)").fetchone():
        return f"verdict {found[0]} has lost its sample", None, 0
    return None


def _drawn_again(path: Path, problem: str | None, sample: int, size: int) -> str:
    """The advice to remove one chunk, which the same command then draws again; without a problem, verdicts of no sample."""
    sql, what = "DELETE FROM verdicts WHERE id NOT IN (SELECT id FROM samples)", "the verdicts without a sample"
    if problem is not None:
        quoted, first = problem.replace("'", "''"), sample - sample % size
        sql = f"DELETE FROM samples WHERE problem = '{quoted}' AND sample BETWEEN {first} AND {first + size - 1}; {sql}"
        what = f"these {size} samples, which the same eval command then samples again"
    return f"Or remove {what}: {shlex.join(['sqlite3', str(path / FILE), sql])}"


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
# token-level columns, and back


def arrays(name: str, values: Sequence[Any]) -> list[Any]:
    """Stored values of a column: of a token-level one an array (T_i,) each, None where a sample has none; else as they are."""
    if name not in NESTED:
        return list(values)
    return [None if value is None else np.frombuffer(value, NESTED[name]) for value in values]


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its token-level columns as they are stored."""
    nested = {name: row[name] for name in NESTED}
    return {**row, **{k: v if v is None else np.asarray(v).astype(NESTED[k]).tobytes() for k, v in nested.items()}}
