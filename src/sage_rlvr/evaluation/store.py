"""The sample store: every completion of an evaluation is kept, and every number is made from it again.

    store.sqlite   meta: identity, its changes, what was asked for     samples: a row each, token-level columns as float32
                   verdicts: a row per sample and pass; pass 0 is the evaluation's own, the newest counts, none is lost
                   passes: who judged again, and when                  claims: the chunks that a live process works on
    writer-*.lock  held by a live writer; the operating system drops it with the process, SIGKILL included

The unit of work is a chunk, 32 samples of one problem, committed whole or redone:

    with SampleStore.open(folder, identity) as store:
        while chunks := store.claim(problem_ids, n):
            store.commit([... for chunk in chunks for sample in chunk.samples])
        store.counts(n)

A commit is one SQLite transaction (write-ahead log, synced): killed at any instant, what was committed stays and the rest is
missing. What depends on no clock (all columns but `latency_s`) is the same whatever the order, the number of writers and the
interruptions were, if the sampler is a function of the seed. Every row carries a hash of its values, held against them when a
process first reads the store, so that a damaged file is refused and not read. Several processes of one host may write; on a
network file system that several hosts share, SQLite's locks are not safe: give each host a store of its own.
"""

from __future__ import annotations

import contextlib
import datetime
import getpass
import hashlib
import json
import os
import re
import socket
import sqlite3
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
from filelock import FileLock, Timeout
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import ConfigError, DataError, RunLocked
from sage_rlvr.evaluation import repeats
from sage_rlvr.evaluation.columns import COLUMNS, JUDGED, SCHEMA, UNSTEADY, arrow, packed, sample_of
from sage_rlvr.evaluation.repeats import Repeat
from sage_rlvr.evaluation.sample import (
    CHUNK,
    GUIDED,
    LABELS,
    SCORED,
    Chunk,
    Identity,
    Sample,
    checked,
    escape,
    prompt_hash,
    seed_of,
    unescape,
)
from sage_rlvr.runs import differences

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
CHOSEN = " FROM temp.chosen c CROSS JOIN samples s ON s.problem = c.problem AND s.sample < :n"
NEWEST = (
    " LEFT JOIN verdicts v ON v.id = s.id AND v.pass = (SELECT max(w.pass) FROM verdicts w WHERE w.id = s.id AND"
    " w.verifier = ifnull(:verifier, w.verifier))"
)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """Per problem, (P,) each: n samples, of them right, wrong, undecided; truncated: met max_new_tokens.

    finish_unknown: samples of which nobody recorded how they ended. Undecided ones are neither right nor wrong.
    """

    problems: tuple[str, ...]
    n: Ints
    right: Ints
    wrong: Ints
    undecided: Ints
    truncated: Ints
    finish_unknown: Ints


def is_store(path: str | Path) -> bool:
    """Whether a folder holds a sample store, of this version or of the one before, which `SampleStore.open` tells how to
    convert."""
    return (Path(path) / FILE).is_file() or (Path(path) / OLD).is_file()


class SampleStore:
    """The samples of one policy on one task under one set of decoding settings. Open it with `SampleStore.open`."""

    def __init__(self, path: Path):
        self.path = path
        self._mutex = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._writer: FileLock | None = None
        self._verified = False
        self.identity = Identity.of(self.facts()["identity"])

    # ---- opening and closing

    @classmethod
    def open(cls, path: str | Path, identity: Identity | None = None) -> SampleStore:
        """Create a store, or reopen one to read it, to continue it, or to top it up.

        identity: None opens what is there, for reading or re-verifying. Nothing is locked between calls, so several
        processes may have the store open and write to it. ConfigError with every difference when the folder holds
        samples of another identity (other versions are noted and warned about; another verifier is noted where all samples
        have its verdicts by now; all else is refused); DataError when there is no store, or one of another format.
        """
        path = Path(path)
        if not (path / FILE).is_file():
            if (path / OLD).is_file():
                raise DataError(
                    f"{path}: a sample store of version 0.1 (Parquet parts); make it one of this version, beside the old "
                    f"files, with: sage-rlvr samples {path} --convert"
                )
            if identity is None:
                raise DataError(f"{path}: there is no sample store ({FILE} is missing); name the folder that has one")
            _create(path, identity)
        store = cls(path)
        if identity is not None:
            store._agree(identity)
        return store

    def close(self) -> None:
        """Give claimed chunks back and close the file; a second call does nothing. Reading opens it again."""
        with self._mutex:
            if self._writer is not None:
                self.release()
                self._writer.release()
                Path(self._writer.lock_file).unlink(missing_ok=True)
                self._writer = None
            if self._db is not None:
                self._db.close()
                self._db = None

    def __enter__(self) -> SampleStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self, write: bool = False) -> Iterator[sqlite3.Connection]:
        """A snapshot to read, or the right to write; all of it is committed or nothing."""
        with self._mutex, _said(self.path):
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

    def writing(self) -> contextlib.AbstractContextManager[Any]:
        """All writing within is one commit."""
        return self._transaction(write=True)

    def facts(self) -> dict[str, Any]:
        """identity, created, changes (of versions and verifiers) and wanted, as trees of JSON values."""
        with self._transaction() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version != FORMAT:
                raise DataError(
                    f"{self.path / FILE}: a sample store of format {version}, this version of sage-rlvr reads format {FORMAT}; "
                    "read it with the version that wrote it, or sample into another folder"
                )
            rows = db.execute("SELECT sha, key, value FROM meta").fetchall()
        if "identity" not in {key for _, key, _ in rows} or any(sha != _seal(row) for sha, *row in rows):
            raise _damaged(self.path, "its facts are not those that were written")
        return {key: json.loads(value) for _, key, value in rows}

    def note(self, **facts: Any) -> None:
        with self._transaction(write=True) as db:
            for key, value in facts.items():
                row = (key, json.dumps(value))
                db.execute("INSERT OR REPLACE INTO meta (key, value, sha) VALUES (?, ?, ?)", (*row, _seal(row)))

    def _verify(self) -> None:
        """Once per process: the file's structure, and the hash of every row. DataError where one is not what was written."""
        if self._verified:
            return
        with self._transaction() as db:
            (said,) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if said != "ok":
                raise _damaged(self.path, said)
            for sha, *row in db.execute(f"SELECT sha, {', '.join(STORED)} FROM samples"):
                if sha != _seal(row):
                    raise _damaged(self.path, f"problem {row[0]!r}, sample {row[1]} is not what was written")
            for sha, *row in db.execute("SELECT sha, id, pass, verifier, verdict, reason, answer FROM verdicts"):
                if sha != _seal(row):
                    raise _damaged(self.path, f"a verdict of {row[2]!r} is not what was written")
        self._verified = True

    def _agree(self, identity: Identity) -> None:
        """ConfigError where the samples here were made otherwise; what is only noted is noted."""
        facts = self.facts()
        noted = _differences(self.path, self.identity.tree(), identity.tree(), self._judges())
        self.identity = identity
        if not noted:
            return
        first = {f"versions.{name}" for name in (SCORED, GUIDED) if noted.get(f"versions.{name}", "?")[0] == "(absent)"}
        versions = {place: pair for place, pair in noted.items() if place not in {"verifier_hash", *first}}
        if versions:
            listed = ", ".join(f"{place} {old} -> {new}" for place, (old, new) in versions.items())
            warnings.warn(f"{self.path}: continued under other versions ({listed}); samples may differ from one version's alone")
        change = {"at": _now(), "changed": {place: list(pair) for place, pair in noted.items()}}
        self.note(identity=identity.tree(), changes=[*facts["changes"], change])

    # ---- what is there

    def missing(self, problem_ids: Iterable[str], n: int) -> list[Chunk]:
        """The chunks that still lack until every problem has n samples, all first chunks before any second one.

        n is rounded up to whole chunks. ConfigError for n > 1 under greedy decoding, whose samples are all the same.
        """
        wanted = self._wanted(problem_ids, n)
        with self._transaction():
            held = self._held({chunk.problem for chunk in wanted})
        return [chunk for chunk in wanted if chunk not in held]

    @property
    def _size(self) -> int:
        assert self.identity.chunk_size is not None
        return self.identity.chunk_size

    def _held(self, problems: Iterable[str]) -> set[Chunk]:
        with self._transaction() as db:
            sql = "SELECT sample FROM samples WHERE problem = ? AND sample % ? = 0"
            return {Chunk(p, first, self._size) for p in problems for (first,) in db.execute(sql, (escape(p), self._size))}

    def _wanted(self, problem_ids: Iterable[str], n: int) -> list[Chunk]:
        problems = list(problem_ids)
        twice = {p for p in problems if problems.count(p) > 1} if len(set(problems)) < len(problems) else set()
        if twice:
            raise DataError(f"problem ids {sorted(twice)[:5]} stand twice in the list; each problem is sampled once")
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigError(f"n = {n!r}: the number of samples per problem is a whole number from 1 on")
        if self.identity.greedy and n > 1:
            raise ConfigError(
                f"n = {n} at temperature 0: greedy decoding gives one completion {n} times; ask for n = 1, or sample at "
                "a temperature above 0"
            )
        return [Chunk(problem, first, self._size) for first in range(0, n, self._size) for problem in problems]

    def want(self, problem_ids: Sequence[str], n: int) -> None:
        """Note what an evaluation is going to fill, so that a store that it did not finish can be told from a whole one."""
        with self._transaction(write=True):
            asked, known = {"problems": len(problem_ids), "n": n}, self.wanted()
            self.note(wanted={key: max(value, known.get(key, 0)) for key, value in asked.items()})

    def wanted(self) -> dict[str, int]:
        """What the largest evaluation asked for, as `want` noted it: problems, n; {} where nobody did."""
        return dict(self.facts()["wanted"])

    def lacking(self, counts: Counts) -> str:
        """Which problems an evaluation asked for and `counts` has no samples of, in words; "" where none lacks."""
        wanted, have = self.wanted().get("problems", 0), len(counts.problems)
        return f"samples of {have} of {wanted} problems; give the same eval command again" if have < wanted else ""

    # ---- writing

    def claim(self, problem_ids: Iterable[str], n: int, most: int = 1) -> list[Chunk]:
        """Up to `most` of the missing chunks, which no other live writer works on; [] when none is left to take.

        A claim ends with the chunk's commit, with `release`, `close`, or the end of this process, SIGKILL included. A
        writer that gets [] while `missing` is not empty can wait: others are at work on the rest.
        """
        wanted = self._wanted(problem_ids, n)
        with self._transaction(write=True) as db:
            writer = self._sign_in()
            self._bury()
            taken = {Chunk(unescape(p), first, self._size) for p, first in db.execute("SELECT problem, first FROM claims")}
            gone = taken | self._held({chunk.problem for chunk in wanted})
            free = [chunk for chunk in wanted if chunk not in gone][:most]
            db.executemany("INSERT INTO claims VALUES (?, ?, ?)", [(*_address(c), writer) for c in free])
        return free

    def release(self, chunks: Iterable[Chunk] | None = None) -> None:
        """Give claimed chunks back without committing them; None gives all back."""
        if self._writer is None:
            return
        with self._transaction(write=True) as db:
            mine = Path(self._writer.lock_file).name
            given = db.execute("SELECT problem, first FROM claims WHERE writer = ?", (mine,)).fetchall()
            given = given if chunks is None else [_address(chunk) for chunk in chunks]
            db.executemany("DELETE FROM claims WHERE problem = ? AND first = ? AND writer = ?", [(*c, mine) for c in given])

    def _sign_in(self) -> str:
        """The name of this writer, whose lock is held from its first use on. In a transaction, as `_bury` is."""
        if self._writer is None:
            self._verify()
            lock = FileLock(self.path / f"writer-{uuid.uuid4().hex[:12]}.lock", timeout=0, thread_local=False)
            try:
                lock.acquire()
            except (OSError, NotImplementedError) as error:
                raise RunLocked(f"{self.path}: cannot take a lock here ({error}); put the store on a local disk") from error
            self._writer = lock
        return Path(self._writer.lock_file).name

    def _bury(self) -> None:
        """Free the claims of dead writers: those whose lock can be taken."""
        alive = {self._sign_in()}
        for path in self.path.glob("writer-*.lock"):
            if path.name in alive:
                continue
            lock = FileLock(path, timeout=0, thread_local=False)
            try:
                lock.acquire()
            except Timeout:
                alive.add(path.name)
                continue
            lock.release()
            path.unlink(missing_ok=True)
        with self._transaction(write=True) as db:
            dead = {writer for (writer,) in db.execute("SELECT DISTINCT writer FROM claims")} - alive
            db.executemany("DELETE FROM claims WHERE writer = ?", [(writer,) for writer in dead])

    def commit(self, samples: Sequence[Sample]) -> list[Chunk]:
        """Store whole chunks, all of them or none; returns those that were not there before.

        A chunk that is there already is dropped when its seeds and tokens (texts, where there are no tokens) are the
        same, else DataError: the sampler is not a function of the seed. DataError also for chunks that are not whole
        and for samples that cannot be used, with nothing written.
        """
        rows, chunks = checked(samples, self._size)
        with self._transaction(write=True) as db:
            held = self._held({chunk.problem for chunk in chunks})
            new = [chunk for chunk in chunks if chunk not in held]
            fresh, fit = set(new), packed(rows, self.identity)
            for row, sample in zip(fit, rows, strict=True):
                if Chunk(sample.problem, row["sample"] - row["sample"] % self._size, self._size) in fresh:
                    self.insert(row)
                else:
                    self._check_same(row)
            db.executemany("DELETE FROM claims WHERE problem = ? AND first = ?", [_address(chunk) for chunk in chunks])
        return new

    def insert(self, row: Mapping[str, Any]) -> int:
        """One row of `columns.COLUMNS`, its verdict as that of pass 0; returns the sample's id."""
        with self._transaction(write=True) as db:
            values = [row[name] for name in STORED]
            marks = ", ".join("?" * len(values))
            sql = f"INSERT INTO samples (sha, {', '.join(STORED)}) VALUES (?, {marks})"
            where = int(db.execute(sql, (_seal(values), *values)).lastrowid or 0)
            self._judge(where, 0, *(row[name] for name in JUDGED))
        return where

    def _judge(self, sample: int, number: int, *said: Any) -> None:
        """said: verifier, verdict, reason, answer."""
        with self._transaction(write=True) as db:
            row = (sample, number, *said)
            db.execute("INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?)", (*row[:2], _seal(row), *row[2:]))

    def _check_same(self, new: Mapping[str, Any]) -> None:
        with self._transaction() as db:
            sql = "SELECT seed, token_ids, text_hash FROM samples WHERE problem = ? AND sample = ?"
            seed, tokens, text = db.execute(sql, (new["problem"], new["sample"])).fetchone()
        known = tokens is not None and new["token_ids"] is not None
        if seed != new["seed"] or (tokens != new["token_ids"] if known else text != new["text_hash"]):
            raise DataError(
                f"{self.path}: problem {unescape(new['problem'])!r}, sample {new['sample']} is there already with "
                "other tokens or another seed: this sampler is not a function of the seed, or two evaluations share "
                "this folder. What is there stays; claim chunks before sampling them, or name another folder"
            )

    def score(
        self,
        function: Callable[[list[Sample]], Sequence[ArrayLike]],
        stamp: tuple[str, str],
        *,
        batch: int = 1024,
        progress: Callable[[int], None] = lambda n: None,
    ) -> int:
        """Log-probs under a base of the samples that have none under this one; returns how many were scored, nothing drawn.

        function: the samples of a chunk -> (T,) log-probs of each, nats. stamp: (key, value) of the rows' versions that says
        which base it is. Every `batch` samples are committed together: interrupted, the same call goes on. progress(m): m
        more are scored. Chunks of which not all token ids are known stay as they are, with a warning. DataError where one
        number per token is not what `function` gave.
        """
        lacking = self.unscored(stamp)
        at_once = max(1, batch // self._size)
        for start in range(0, len(lacking), at_once):
            made = []
            for chunk in lacking[start : start + at_once]:
                rows = [s for s in self.samples(problems=[chunk.problem]) if s.sample in chunk.samples]
                made += list(zip(rows, _fitting(rows, function(rows)), strict=True))
                progress(self._size)
            with self._transaction(write=True):
                for row, values in made:
                    self._rescore(row, values, stamp)
        return len(lacking) * self._size

    def unscored(self, stamp: tuple[str, str]) -> list[Chunk]:
        """The chunks that `score` would score, in the order of the table."""
        with self._transaction() as db:
            said = [text for (text,) in db.execute("SELECT DISTINCT versions FROM samples")]
            fine = json.dumps([text for text in said if json.loads(text).get(stamp[0]) == stamp[1]])
            rows = db.execute(
                "SELECT problem, sample / :size * :size, min(token_ids IS NOT NULL) FROM samples GROUP BY 1, 2 HAVING"
                " max(base_logps IS NULL OR versions NOT IN (SELECT value FROM json_each(:fine)))",
                {"size": self._size, "fine": fine},
            ).fetchall()
        if lost := sum(self._size for *_, known in rows if not known):
            warnings.warn(f"{self.path}: {lost} samples have no token ids, so {stamp[1]} cannot score them", stacklevel=2)
        chunks = [Chunk(unescape(problem), first, self._size) for problem, first, known in rows if known]
        return sorted(chunks, key=lambda chunk: (_natural(chunk.problem), chunk.first))

    def _rescore(self, sample: Sample, values: NDArray[np.float32], stamp: tuple[str, str]) -> None:
        with self._transaction(write=True) as db:
            where = {"problem": escape(sample.problem), "sample": sample.sample}
            at = " WHERE problem = :problem AND sample = :sample"
            row = dict(zip(STORED, db.execute(f"SELECT {', '.join(STORED)} FROM samples{at}", where).fetchone(), strict=True))
            row["versions"] = json.dumps(json.loads(row["versions"]) | {stamp[0]: stamp[1]}, sort_keys=True)
            row["base_logps"] = values.tobytes()
            sql = "UPDATE samples SET base_logps = :base_logps, versions = :versions, sha = :sha" + at
            db.execute(sql, row | {"sha": _seal(row.values())})

    # ---- reading

    def _read(
        self, columns: Sequence[str], problems: Sequence[str] | None, n: int | None, verifier: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Rows as they are stored, by problem in the order chosen and sample."""
        judged = bool(set(columns) & set(JUDGED))
        names = [f"{'v' if name in JUDGED else 's'}.{name}" for name in ("verifier", *columns) if judged or name in columns]
        with self._transaction() as db:
            self._choose(problems, n)
            asked = {"n": 2**31 if n is None else n, "verifier": verifier}
            sql = f"SELECT {', '.join(names)}{CHOSEN}{NEWEST if judged else ''} ORDER BY c.place, s.sample"
            rows = db.execute(sql, asked).fetchall()
        if not judged:
            return rows
        if lacking := sum(row[0] is None for row in rows):
            raise DataError(
                f"{self.path}: {lacking} of {len(rows)} samples have no verdict of {verifier!r}; "
                f"run reverify with it, or choose one of {[entry['verifier_hash'] for entry in self.verifiers()]}"
            )
        return [row[1:] for row in rows]

    def _choose(self, problems: Sequence[str] | None, n: int | None) -> None:
        """Fill the temporary table of problems that `CHOSEN` reads, all by id where None. DataError where samples lack."""
        self._verify()
        with self._transaction() as db:
            names = [unescape(name) for (name,) in db.execute("SELECT DISTINCT problem FROM samples")]
            names = sorted(names, key=_natural) if problems is None else list(problems)
            if lacking := self.missing(names, 1 if n is None else n):
                raise DataError(
                    f"{self.path}: {len(lacking)} chunks lack until every problem has n = {n or self._size} samples, first of "
                    f"them problem {lacking[0].problem!r} from sample {lacking[0].first} on; continue the evaluation, or ask "
                    "for a smaller n"
                )
            db.execute("CREATE TEMP TABLE IF NOT EXISTS chosen (place INTEGER PRIMARY KEY, problem TEXT NOT NULL)")
            db.execute("DELETE FROM temp.chosen")
            db.executemany("INSERT INTO temp.chosen (problem) VALUES (?)", [(escape(name),) for name in names])

    def table(
        self,
        columns: Sequence[str] | None = None,
        *,
        problems: Sequence[str] | None = None,
        n: int | None = None,
        verifier: str | None = None,
    ) -> pa.Table:
        """All samples, sorted by (problem, sample number), as an Arrow table of `columns.SCHEMA`.

        columns: a few of them. problems: which, in this order; None: all, by id, numbers in ids by their value. n: the
        first n of each, DataError where a problem has fewer. verifier: verdicts of this verifier hash; None: the newest
        of each sample, and the column `verifier` says whose that is. The schema's metadata holds the identity.
        Text is `escape`d where it is no UTF-8; `samples` undoes that.
        """
        names = list(COLUMNS if columns is None else columns)
        if unknown := sorted(set(names) - set(COLUMNS)):
            raise DataError(f"columns {unknown} are not in a sample store; there are {', '.join(COLUMNS)}")
        rows = self._read(names, problems, n, verifier)
        about = {"sage_rlvr": json.dumps({"identity": self.identity.tree(), "wanted": self.wanted()}, sort_keys=True)}
        return arrow(names, rows).replace_schema_metadata(about)

    def samples(
        self, *, problems: Sequence[str] | None = None, n: int | None = None, verifier: str | None = None
    ) -> list[Sample]:
        """The rows of `table` as `Sample`s, text as it was."""
        names = tuple(name for name in COLUMNS if name in Sample.__dataclass_fields__)
        return [sample_of(names, row) for row in self._read(names, problems, n, verifier)]

    def counts(
        self,
        n: int | None = None,
        *,
        problems: Sequence[str] | None = None,
        verifier: str | None = None,
        check: bool = True,
    ) -> Counts:
        """Right, wrong and undecided samples of each problem: what pass@k and every other score is made from.

        Arguments as in `table`. DataError where verdicts of several verifiers are mixed (a top-up after `reverify`: run it
        again), and, unless `check` is False, where samples are repeats of each other beyond chance; what only looks
        like it warns. See `evaluation/repeats.py`.
        """
        rows = self._read(("problem", "verdict", "verifier", "finish"), problems, n, verifier)
        judges = sorted({judge for _, _, judge, _ in rows})
        if len(judges) > 1:
            raise DataError(f"{self.path}: verdicts of several verifiers are mixed ({judges}); run reverify with one")
        for repeat in self.repeats(problems=problems, n=n) if check else []:
            if repeat.certain:
                raise DataError(f"{self.path}: {repeat.sentence}")
            warnings.warn(f"{self.path}: {repeat.sentence}", stacklevel=2)
        order = {name: place for place, name in enumerate(dict.fromkeys(row[0] for row in rows))}
        where = np.array([order[row[0]] for row in rows], dtype=np.int64)

        def tally(hits: Iterable[bool]) -> Ints:
            mask = np.fromiter(hits, dtype=bool, count=len(rows))
            return np.bincount(where[mask], minlength=len(order)).astype(np.int64)

        return Counts(
            tuple(map(unescape, order)),
            tally(True for _ in rows),
            *(tally(row[1] == label for row in rows) for label in LABELS),
            *(tally(row[3] == end for row in rows) for end in ("length", None)),
        )

    def repeats(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> list[Repeat]:
        """Signs that samples are not independent draws; [] is the good answer. See `evaluation/repeats.py`."""
        with self._transaction() as db:
            self._choose(problems, n)
            identity = self.identity
            return repeats.found(db, CHOSEN, 2**31 if n is None else n, identity.greedy, identity.truncated_sampling)

    def digest(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> str:
        """SHA-256 of what `table` says, but for `latency_s`: two stores with one digest give the same report."""
        digest = hashlib.sha256()
        for name in (name for name in COLUMNS if name not in UNSTEADY):
            rows = self._read((name,), problems, n)
            digest.update(f"{name}:{len(rows)}:".encode())
            for (value,) in rows:
                data = value if isinstance(value, bytes) else repr(value).encode()
                digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    # ---- verdicts

    def verifiers(self) -> list[dict[str, Any]]:
        """Who judged: verifier_hash, by, at, rows of every pass, oldest first; first those of the evaluation itself, of which
        there are several where a store was judged again and then topped up."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT v.verifier, p.who, p.at, count(*) FROM verdicts v LEFT JOIN passes p ON p.pass = v.pass"
                " GROUP BY v.pass, v.verifier ORDER BY v.pass, min(v.id)"
            ).fetchall()
        rows = rows or [(self.identity.verifier_hash, None, None, 0)]
        return [dict(zip(("verifier_hash", "by", "at", "rows"), row, strict=True)) for row in rows]

    def _judges(self) -> set[str]:
        """The verifiers of the samples' newest verdicts."""
        with self._transaction() as db:
            newest = "SELECT verifier, max(pass) FROM verdicts GROUP BY id"
            return {name for (name,) in db.execute(f"SELECT DISTINCT verifier FROM ({newest})")}

    def reverify(
        self,
        function: Callable[[list[str], list[str]], Sequence[Any]],
        verifier_hash: str,
        *,
        by: str | None = None,
        batch: int = 4096,
    ) -> int:
        """Judge all samples again; returns how many were judged, not counting those whose verdict it already is.

        function: problem ids and texts, in step -> one verdict each, with `label` ("right", "wrong", "undecided"),
        `reason`, and `answer` if it has one. verifier_hash: of the verifier and its limits. by: who, default user and
        host. Each batch is committed by itself: interrupted, the same call goes on. Older verdicts stay readable
        (`table(verifier=...)`).
        """
        if not verifier_hash:
            raise ConfigError("reverify: verifier_hash is empty; name the verifier and its limits by a hash")
        rows = self._read(("problem", "sample", "text", "verifier"), None, None)
        others = [row[:3] for row in rows if row[3] != verifier_hash]
        for start in range(0, len(others), batch):
            some = others[start : start + batch]
            problems = [unescape(row[0]) for row in some]
            said = function(problems, [unescape(row[2]) for row in some])
            self.overlay(some, _judged(said, problems, [row[1] for row in some]), verifier_hash, by or _somebody())
        return len(others)

    def overlay(
        self, rows: Sequence[tuple[Any, ...]], said: Sequence[tuple[Any, ...]], verifier: str, who: str, at: str | None = None
    ) -> None:
        """A pass of verdicts (label, reason, answer) over rows that begin with their address."""
        with self._transaction(write=True) as db:
            sql = "INSERT INTO passes (verifier, who, at) VALUES (?, ?, ?)"
            number = int(db.execute(sql, (verifier, who, at or _now())).lastrowid or 0)
            for (problem, sample, *_), verdict in zip(rows, said, strict=True):
                sql = "SELECT id FROM samples WHERE problem = ? AND sample = ?"
                self._judge(*db.execute(sql, (problem, sample)).fetchone(), number, verifier, *verdict)


# ------------------------------------------------------------------------------------------------------------------
# the file


def _create(path: Path, identity: Identity) -> None:
    """A store without samples, made beside its place and moved there whole, unless another process was first."""
    half = path / f".tmp-{uuid.uuid4().hex[:8]}.sqlite"
    with _said(path):
        path.mkdir(parents=True, exist_ok=True)
        with FileLock(path / "lock", timeout=PATIENCE_S):
            if (path / FILE).exists():
                return
            try:
                with contextlib.closing(sqlite3.connect(half, isolation_level=None)) as db:
                    _log_ahead(path, db)
                    db.executescript(f"BEGIN; {TABLES}")
                    facts = {"identity": identity.tree(), "created": _now(), "changes": [], "wanted": {}}
                    rows = [(key, json.dumps(value)) for key, value in facts.items()]
                    db.executemany("INSERT INTO meta VALUES (?, ?, ?)", [(*row, _seal(row)) for row in rows])
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
def _said(path: Path) -> Iterator[None]:
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
        raise _unwritable(path, error.strerror or str(error), error.errno == 28) from error


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


def _seal(values: Iterable[Any]) -> int:
    """63 bits of SHA-256 of a row's values as they are stored."""
    digest = hashlib.sha256()
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def _differences(path: Path, old: dict[str, Any], new: dict[str, Any], judges: set[str]) -> dict[str, tuple[Any, Any]]:
    """Differences that are only noted; ConfigError when there are others.

    Versions are noted, and another verifier where it is whose verdicts all samples have by now. judges: the verifiers of the
    samples' newest verdicts; where they are not the new identity's alone, samples judged by it would be mixed with theirs.
    """
    noted = differences(old.pop("versions"), new.pop("versions"), "versions")
    binding = differences(old, new)
    changed = binding.pop("verifier_hash", None)
    if judges - {new["verifier_hash"]}:
        binding["verifier_hash"] = (", ".join(sorted(judges)), new["verifier_hash"])
    elif changed:
        noted["verifier_hash"] = changed
    if not binding:
        return noted
    lines, also = (
        "".join(f"\n  {place}: {json.dumps(a)} -> {json.dumps(b)}" for place, (a, b) in found.items())
        for found in (binding, noted)
    )
    also = f"\nThese differ too, and would only be noted:{also}" if also else ""
    judge = "Verdicts of another verifier: run reverify (the same eval command with --reverify), after which the samples can be "
    judge = f"{judge}topped up. " if "verifier_hash" in binding else ""
    raise ConfigError(
        f"{path}: this folder holds samples that were made otherwise; these differences change what they mean:{lines}{also}\n"
        f"{judge}Give the settings they were made with, or name another folder."
    )


def _fitting(rows: Sequence[Sample], said: Sequence[ArrayLike]) -> list[NDArray[np.float32]]:
    """Log-probs (T,) of each row. DataError where one does not fit."""
    values = [np.asarray(one, np.float32) for one in said]
    lengths = [len(np.asarray(row.token_ids)) for row in rows]
    if [one.shape for one in values] != [(length,) for length in lengths]:
        raise DataError(
            f"score: problem {rows[0].problem!r}: shapes {[one.shape for one in values][:3]}... for samples of {lengths[:3]}... "
            "tokens; one number per token is wanted"
        )
    return values


def _judged(verdicts: Sequence[Any], problems: list[str], samples: list[int]) -> list[tuple[str, str, str | None]]:
    """(label, reason, answer) of each as it is stored."""
    if len(verdicts) != len(problems):
        raise DataError(f"reverify: the verifier gave {len(verdicts)} verdicts for {len(problems)} samples")
    for verdict, problem, sample in zip(verdicts, problems, samples, strict=True):
        if getattr(verdict, "label", None) not in LABELS:
            raise DataError(f"reverify: problem {problem!r}, sample {sample}: {verdict!r} has no label of {LABELS}")
    answers = [getattr(verdict, "answer", None) for verdict in verdicts]
    kept = [None if answer is None else escape(str(answer)) for answer in answers]
    return [(verdict.label, escape(str(verdict.reason)), answer) for verdict, answer in zip(verdicts, kept, strict=True)]


def _address(chunk: Chunk) -> tuple[str, int]:
    return escape(chunk.problem), chunk.first


def _now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _somebody() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container whose user has no name
        return f"somebody@{socket.gethostname()}"


def _natural(name: str) -> tuple[tuple[tuple[int, int | str], ...], str]:
    """Order of ids in which "aime-2" comes before "aime-10"."""
    pieces = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(piece)) if "0" <= piece[0] <= "9" else (1, piece) for piece in pieces), name


__all__ = [
    "CHUNK", "SCHEMA", "Chunk", "Counts", "Identity", "Repeat", "Sample", "SampleStore", "is_store", "prompt_hash", "seed_of"
]  # fmt: skip
