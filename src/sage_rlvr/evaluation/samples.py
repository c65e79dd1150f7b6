"""The sample store: every completion of an evaluation is kept, and every number is made from it again.

    store.json            format, identity (what all samples share), and later changes of versions
    parts/part-*.parquet  rows, named by their SHA-256; a part is never changed
    journal.jsonl         one line a part: file, SHA-256, size, chunks; a part without its line is not there. `supersedes` names
                          the columns that a part has anew: its chunks are read from it and no longer from an older part
    verdicts/*.parquet    verdicts of later verifiers, one file a pass, journaled too: the newest wins, none is lost
    wanted.json           how many problems of how many samples the largest evaluation asked for
    writers/, lock        which chunks a live process has claimed, held by the operating system's locks

The unit of work is a chunk, 32 samples of one problem, committed whole or redone:

    with SampleStore.open(folder, identity) as store:
        while chunks := store.claim(problem_ids, n):
            store.commit([... for chunk in chunks for sample in chunk.samples])
        store.counts(n)

A part is written beside its place, synced and renamed; then its line is appended and synced. Killed at any instant,
what was committed stays and the rest is missing: a torn last line and a part without a line are swept by the next
writer. What depends on no clock (all columns but `latency_s`) is the same whatever the order, the number of writers
and the interruptions were, if the sampler is a function of the seed. No pickle is written or read.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import re
import socket
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation import repeats
from sage_rlvr.evaluation.repeats import Repeat
from sage_rlvr.evaluation.sample_claims import Writer, exclusive
from sage_rlvr.evaluation.sample_files import (
    JOURNAL,
    OVERLAYS,
    PARTS,
    STORE,
    WANTED,
    Beside,
    Journal,
    agree,
    create_facts,
    is_ours,
    note_changes,
    now,
    read_facts,
    read_parquet,
    storing,
)
from sage_rlvr.evaluation.sample_rows import (
    CHUNK,
    LABELS,
    SCHEMA,
    Chunk,
    Identity,
    Sample,
    chunks_of,
    escape,
    prompt_hash,
    samples_of,
    seed_of,
    table_of,
    unescape,
)
from sage_rlvr.runs import file_sha256, write_json_atomic

__all__ = [
    "CHUNK",
    "Chunk",
    "Counts",
    "Identity",
    "Repeat",
    "Sample",
    "SampleStore",
    "is_store",
    "prompt_hash",
    "seed_of",
]

UNSTEADY = ("latency_s",)  # columns that two equal evaluations need not share
_OVERLAID = ("answer", "verdict", "reason", "verifier")
_OVERLAY = pa.schema([SCHEMA.field(name) for name in ("problem", "sample", "text_hash", "answer", "verdict", "reason")])

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


@dataclass(frozen=True)
class _State:
    """What the journal says is there. chunks: the part that holds each. overlays: entries, oldest first."""

    chunks: dict[Chunk, str]
    overlays: list[dict[str, Any]]
    files: set[str]
    damaged: bool


def is_store(path: str | Path) -> bool:
    """Whether a folder holds a sample store."""
    return (Path(path) / STORE).is_file()


# ------------------------------------------------------------------------------------------------------------------
# the store


class SampleStore:
    """The samples of one policy on one task under one set of decoding settings. Open it with `SampleStore.open`."""

    def __init__(self, path: Path, identity: Identity):
        self.path = path
        self.identity = identity
        self._journal = Journal(path / JOURNAL)
        self._sound_files: dict[tuple[str, str], tuple[int, int]] = {}
        self._told: set[tuple[str, str]] = set()
        self._writer: Writer | None = None
        self._mutex = threading.RLock()

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
        store = cls(path, identity) if identity is not None else None
        if (path / STORE).exists():
            facts = read_facts(path / STORE)
        elif store is None:
            raise DataError(f"{path}: there is no sample store ({STORE} is missing); name the folder that has one")
        else:
            with storing(path):
                path.mkdir(parents=True, exist_ok=True)
            with exclusive(path):
                facts = create_facts(path, store.identity)
        if store is None:
            return cls(path, Identity.of(facts["identity"]))
        changed = agree(path, facts, store.identity, cls(path, Identity.of(facts["identity"]))._judges(facts))
        if changed:
            with exclusive(path):
                note_changes(path, store.identity, changed)
        return store

    def close(self) -> None:
        """Give claimed chunks back; a second call does nothing. Reading still works."""
        with self._mutex:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.leave()

    def __enter__(self) -> SampleStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what is there

    def _state(self) -> _State:
        entries, damaged = self._journal.read()
        chunks: dict[Chunk, str] = {}
        overlays = []
        for entry in entries:
            if not self._sound(entry):
                continue
            if "chunks" not in entry:
                overlays.append(entry)
            for problem, first in entry.get("chunks", []):
                chunk = Chunk(unescape(problem), first, self._size)
                chunks[chunk] = entry["file"] if "supersedes" in entry else chunks.get(chunk, entry["file"])
        return _State(chunks, overlays, {entry["file"] for entry in entries}, damaged)

    @property
    def _size(self) -> int:
        assert self.identity.chunk_size is not None
        return self.identity.chunk_size

    def _sound(self, entry: Mapping[str, Any]) -> bool:
        """Whether a file is what the journal says; what is not is reported once."""
        trouble = self._trouble(entry)
        key = (entry["file"], entry["sha256"])
        if trouble and key not in self._told:
            self._told.add(key)
            lost = "its verdicts do not count, run reverify again"
            if "chunks" in entry:
                lost = f"its {len(entry['chunks'])} chunks count as missing and will be sampled again"
            if "supersedes" in entry:
                lost = f"its chunks count as the older parts have them, without its {entry['supersedes']}"
            warnings.warn(f"{self.path / entry['file']}: {trouble}; {lost}", stacklevel=5)
        return not trouble

    def _trouble(self, entry: Mapping[str, Any]) -> str:
        """What is wrong with a file, "" for nothing; it is hashed once, and again when its size or time changed."""
        key = (entry["file"], entry["sha256"])
        path = self.path / entry["file"]
        try:
            stat = path.stat()
            if stat.st_size != entry["bytes"]:
                return f"{stat.st_size} bytes, the journal says {entry['bytes']} (truncated?)"
            facts = (stat.st_size, stat.st_mtime_ns)
            if self._sound_files.get(key) != facts:
                if file_sha256(path) != entry["sha256"]:
                    return "its SHA-256 is not the journal's, so its content was changed or damaged"
                self._sound_files[key] = facts
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def missing(self, problem_ids: Iterable[str], n: int) -> list[Chunk]:
        """The chunks that still lack until every problem has n samples, all first chunks before any second one.

        n is rounded up to whole chunks. ConfigError for n > 1 under greedy decoding, whose samples are all the same.
        """
        state = self._state()
        return [chunk for chunk in self._wanted(problem_ids, n) if chunk not in state.chunks]

    def _wanted(self, problem_ids: Iterable[str], n: int) -> list[Chunk]:
        problems = list(problem_ids)
        twice = {p for p in problems if problems.count(p) > 1} if len(set(problems)) < len(problems) else set()
        if twice:
            raise DataError(f"problem ids {sorted(twice)[:5]} stand twice in the list; each problem is sampled once")
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigError(f"n = {n!r}: the number of samples a problem is a whole number from 1 on")
        if self.identity.greedy and n > 1:
            raise ConfigError(
                f"n = {n} at temperature 0: greedy decoding gives one completion {n} times; ask for n = 1, or sample at "
                "a temperature above 0"
            )
        return [Chunk(problem, first, self._size) for first in range(0, n, self._size) for problem in problems]

    # ---- writing

    def want(self, problem_ids: Sequence[str], n: int) -> None:
        """Note what an evaluation is going to fill, so that a store that it did not finish can be told from a whole one."""
        with exclusive(self.path):
            asked = {"problems": len(problem_ids), "n": n}
            known = self.wanted()
            most = {key: max(value, known.get(key, 0)) for key, value in asked.items()}
            if most != known:
                with storing(self.path / WANTED):
                    write_json_atomic(self.path / WANTED, most)

    def lacking(self, counts: Counts) -> str:
        """Which problems an evaluation asked for and `counts` has no samples of, in words; "" where none lacks."""
        wanted = self.wanted().get("problems", 0)
        have = len(counts.problems)
        return f"samples of {have} of {wanted} problems; give the same eval command again" if have < wanted else ""

    def wanted(self) -> dict[str, int]:
        """What the largest evaluation asked for, as `want` noted it: problems, n; {} where nobody did."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.path / WANTED).read_text(encoding="utf-8"))
            return {key: int(found[key]) for key in ("problems", "n") if isinstance(found.get(key), int)}
        return {}

    def claim(self, problem_ids: Iterable[str], n: int, most: int = 1) -> list[Chunk]:
        """Up to `most` of the missing chunks, which no other live writer works on; [] when none is left to take.

        A claim ends with the chunk's commit, with `release`, `close`, or the end of this process, SIGKILL included. A
        writer that gets [] while `missing` is not empty can wait: others are at work on the rest.
        """
        wanted = self._wanted(problem_ids, n)
        with self._mutex:
            writer = self._sign_in()
            with exclusive(self.path):
                state = self._state()
                taken = writer.chunks | writer.claims_of_others(self._size)
                free = [chunk for chunk in wanted if chunk not in state.chunks and chunk not in taken][:most]
                writer.chunks |= set(free)
                writer.sign()
        return free

    def release(self, chunks: Iterable[Chunk] | None = None) -> None:
        """Give claimed chunks back without committing them; None gives all back."""
        with self._mutex:
            if self._writer is not None:
                self._writer.chunks -= set(self._writer.chunks if chunks is None else chunks)
                self._writer.sign()

    def commit(self, samples: Sequence[Sample]) -> list[Chunk]:
        """Store whole chunks, all of them or none; returns those that were not there before.

        A chunk that is there already is dropped when its seeds and tokens (texts, where there are no tokens) are the
        same, else DataError: the sampler is not a function of the seed. DataError also for chunks that are not whole
        and for samples that cannot be used, with nothing written.
        """
        if not samples:
            return []
        table = table_of(samples, self.identity)
        chunks = chunks_of(table, self._size)
        with self._mutex:
            writer = self._sign_in()
            with self._beside(writer, table, PARTS) as beside, exclusive(self.path):
                state = self._state()
                new = [chunk for chunk in chunks if chunk not in state.chunks]
                self._check_same(state, table, [chunk for chunk in chunks if chunk in state.chunks])
                if len(new) < len(chunks):
                    beside.replace(_rows_of(table, new, self._size))
                if new:
                    listed = [[escape(chunk.problem), chunk.first] for chunk in new]
                    self._journal.append(beside.settle("part") | {"chunks": listed})
            if writer.chunks & set(chunks):
                writer.chunks -= set(chunks)
                writer.sign()
        return new

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
        which base it is. Every `batch` samples are committed as a part that supersedes older ones: interrupted, the same
        call goes on. progress(m): m more are scored. Chunks of which not all token ids are known stay as they are, with a
        warning. DataError where a number a token is not what `function` gave.
        """
        lacking = self.unscored(stamp)
        at_once = max(1, batch // self._size)
        for start in range(0, len(lacking), at_once):
            state, chunks = self._state(), lacking[start : start + at_once]
            made = []
            for chunk in chunks:
                rows = self._gather(state, [chunk], None)
                said = [np.asarray(values, np.float32) for values in function(samples_of(rows))]
                made.append(_scored(rows, said, stamp))
                progress(self._size)
            self._supersede({chunk: state.chunks[chunk] for chunk in chunks}, pa.concat_tables(made))
        return len(lacking) * self._size

    def unscored(self, stamp: tuple[str, str]) -> list[Chunk]:
        """The chunks that `score` would score, in the order of the table."""
        state, open_, lost = self._state(), [], 0
        names = ("base_logps", "token_ids", "versions")
        for file in dict.fromkeys(state.chunks.values()):
            held = sorted(chunk for chunk, home in state.chunks.items() if home == file)
            rows = self._gather(state, held, names)
            for place, chunk in enumerate(held):
                some = rows.slice(place * self._size, self._size)
                versions = map(json.loads, some["versions"].to_pylist())
                if some["base_logps"].null_count or any(v.get(stamp[0]) != stamp[1] for v in versions):
                    known = not some["token_ids"].null_count
                    open_ += [chunk] * known
                    lost += not known
        if lost:
            warnings.warn(
                f"{self.path}: {lost * self._size} samples have no token ids, so {stamp[1]} cannot score them",
                stacklevel=2,
            )
        return sorted(open_, key=lambda chunk: (_natural(chunk.problem), chunk.first))

    def _supersede(self, homes: Mapping[Chunk, str], rows: pa.Table) -> None:
        """Commit the rows of some chunks anew, but for those that were replaced since they stood in the part that `homes`
        names: another process does the same work."""
        with self._mutex:
            writer = self._sign_in()
            with self._beside(writer, rows, PARTS) as beside, exclusive(self.path):
                now_in = self._state().chunks
                mine = [chunk for chunk, home in homes.items() if now_in.get(chunk) == home]
                if mine:
                    if len(mine) < len(homes):
                        beside.replace(_rows_of(rows, mine, self._size))
                    listed = [[escape(chunk.problem), chunk.first] for chunk in mine]
                    self._journal.append(beside.settle("part") | {"chunks": listed, "supersedes": "base_logps"})

    @contextlib.contextmanager
    def _beside(self, writer: Writer, table: pa.Table, folder: str) -> Iterator[Beside]:
        """A file beside its place, gone at the end unless it was moved there."""
        beside = Beside(self.path, folder, writer.name)
        try:
            beside.replace(table)
            yield beside
        finally:
            beside.temporary.unlink(missing_ok=True)

    def _check_same(self, state: _State, table: pa.Table, chunks: list[Chunk]) -> None:
        if not chunks:
            return
        old = self._gather(state, chunks, ("problem", "sample", "seed", "token_ids", "text_hash"))
        new = _rows_of(table, chunks, self._size).select(old.column_names)
        for before, after in zip(old.to_pylist(), new.to_pylist(), strict=True):
            tokens = before["token_ids"], after["token_ids"]
            same = tokens[0] == tokens[1] if None not in tokens else before["text_hash"] == after["text_hash"]
            if before["seed"] != after["seed"] or not same:
                raise DataError(
                    f"{self.path}: problem {unescape(after['problem'])!r}, sample {after['sample']} is there already with "
                    "other tokens or another seed: this sampler is not a function of the seed, or two evaluations share "
                    "this folder. What is there stays; claim chunks before sampling them, or name another folder"
                )

    def _sign_in(self) -> Writer:
        """This store's own entry in writers/; at its first use, what killed writers left behind is swept."""
        if self._writer is None:
            with storing(self.path):
                for folder in (PARTS, OVERLAYS):
                    (self.path / folder).mkdir(exist_ok=True)
            with exclusive(self.path):
                self._writer = Writer(self.path)
                self._sweep(self._writer)
        return self._writer

    def _sweep(self, writer: Writer) -> None:
        """Under the lock: remove half-written files of dead writers, and files that never got their line.

        A renamed file gets its line under the same lock, so one without a line has lost its writer. Where a line is
        damaged nothing is known about its file, and nothing is removed.
        """
        alive = {*writer.others(), writer.name}
        state = self._state()
        for folder in (PARTS, OVERLAYS):
            for path in (self.path / folder).iterdir():
                beside = re.fullmatch(r"\.tmp-([0-9a-f]+)-.*", path.name)
                unlisted = is_ours(f"{folder}/{path.name}") and f"{folder}/{path.name}" not in state.files
                if (beside and beside[1] not in alive) or (unlisted and not state.damaged):
                    path.unlink(missing_ok=True)

    # ---- reading

    def _gather(self, state: _State, chunks: Iterable[Chunk], columns: Sequence[str] | None) -> pa.Table:
        """The rows of some chunks in the order of the chunks, from the part that the journal names for each."""
        order = {chunk: place for place, chunk in enumerate(chunks)}
        names = [name for name in SCHEMA.names if columns is None or name in columns]
        wanted = list(dict.fromkeys(["problem", "sample", *names]))
        pieces, places = [], []
        for file in dict.fromkeys(state.chunks[chunk] for chunk in order):
            part = read_parquet(self.path / file, wanted)
            kept = [
                (order[chunk] * self._size + sample % self._size, row)
                for row, (problem, sample) in enumerate(_addresses(part))
                if (chunk := Chunk(problem, sample - sample % self._size, self._size)) in order
                and state.chunks[chunk] == file
            ]
            whole = len(kept) == len(part)
            pieces.append(part if whole else part.take(pa.array([row for _, row in kept], pa.int64())))
            places += [place for place, _ in kept]
        schema = pa.schema([SCHEMA.field(name) for name in wanted])
        rows = pa.concat_tables([piece.cast(schema) for piece in pieces]) if pieces else schema.empty_table()
        if sorted(places) != list(range(len(order) * self._size)):
            raise DataError(
                f"{self.path}: parts and journal disagree on which samples there are; restore it from a copy"
            )
        return rows.take(pa.array(np.argsort(places, kind="stable"), pa.int64())).select(names)

    def table(
        self,
        columns: Sequence[str] | None = None,
        *,
        problems: Sequence[str] | None = None,
        n: int | None = None,
        verifier: str | None = None,
    ) -> pa.Table:
        """All samples, sorted by (problem, sample number), as an Arrow table of `sample_rows.SCHEMA`.

        columns: a few of them. problems: which, in this order; None: all, by id, numbers in ids by their value. n: the
        first n of each, DataError where a problem has fewer. verifier: verdicts of this verifier hash; None: the newest
        of each sample, and the column `verifier` says whose that is. The schema's metadata holds the identity.
        Text is `escape`d where it is no UTF-8; `samples` undoes that.
        """
        names = list(SCHEMA.names if columns is None else columns)
        unknown = sorted(set(names) - set(SCHEMA.names))
        if unknown:
            raise DataError(f"columns {unknown} are not in a sample store; there are {', '.join(SCHEMA.names)}")
        state = self._state()
        chunks = self._chosen(state, problems, n)
        judged = bool(set(names) & set(_OVERLAID))
        needed = [*names, *(("problem", "sample", "text_hash", *_OVERLAID) if judged else ("sample",))]
        rows = self._gather(state, chunks, needed)
        if n is not None and n % self._size:
            rows = rows.filter(pa.array(np.asarray(rows["sample"]) < n))
        if judged:
            rows = self._overlaid(state, rows, verifier)
        about = {"sage_rlvr": json.dumps({"identity": self.identity.tree()}, sort_keys=True)}
        return rows.select(names).combine_chunks().replace_schema_metadata(about)

    def _chosen(self, state: _State, problems: Sequence[str] | None, n: int | None) -> list[Chunk]:
        have: dict[str, list[Chunk]] = {}
        for chunk in sorted(state.chunks):
            have.setdefault(chunk.problem, []).append(chunk)
        names = sorted(have, key=_natural) if problems is None else list(problems)
        wanted = self._wanted(names, 1 if n is None else n)  # without n: at least one chunk of each that was named
        if lacking := [chunk for chunk in wanted if chunk not in state.chunks]:
            raise DataError(
                f"{self.path}: {len(lacking)} chunks lack until every problem has n = {n or self._size} samples, first of "
                f"them problem {lacking[0].problem!r} from sample {lacking[0].first} on; continue the evaluation, or ask "
                "for a smaller n"
            )
        return [chunk for name in names for chunk in have[name] if n is None or chunk.first < n]

    def _overlaid(self, state: _State, rows: pa.Table, verifier: str | None) -> pa.Table:
        """Rows with the verdicts of later passes over the first ones; a pass speaks of the text that it has seen."""
        columns = {name: rows[name].to_pylist() for name in _OVERLAID}
        place = {address: row for row, address in enumerate(_addresses(rows))}
        texts = rows["text_hash"].to_pylist()
        decided = [verifier in (None, name) for name in columns["verifier"]]
        for entry in state.overlays:
            if verifier not in (None, entry["verifier_hash"]):
                continue
            said = read_parquet(self.path / entry["file"])
            for address, verdict in zip(_addresses(said), said.to_pylist(), strict=True):
                row = place.get(address)
                if row is not None and texts[row] == verdict["text_hash"]:
                    verdict["verifier"], decided[row] = entry["verifier_hash"], True
                    for name in _OVERLAID:
                        columns[name][row] = verdict[name]
        if not all(decided):
            raise DataError(
                f"{self.path}: {decided.count(False)} of {len(decided)} samples have no verdict of {verifier!r}; "
                f"run reverify with it, or choose one of {[entry['verifier_hash'] for entry in self.verifiers()]}"
            )
        for name in _OVERLAID:
            field_ = SCHEMA.field(name)
            rows = rows.set_column(rows.column_names.index(name), field_, pa.array(columns[name], field_.type))
        return rows

    def samples(
        self, *, problems: Sequence[str] | None = None, n: int | None = None, verifier: str | None = None
    ) -> list[Sample]:
        """The rows of `table` as `Sample`s, text as it was."""
        return samples_of(self.table(problems=problems, n=n, verifier=verifier))

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
        rows = self.table(("problem", "verdict", "verifier", "finish"), problems=problems, n=n, verifier=verifier)
        judges = sorted(set(rows["verifier"].to_pylist()))
        if len(judges) > 1:
            raise DataError(f"{self.path}: verdicts of several verifiers are mixed ({judges}); run reverify with one")
        if check:
            for repeat in self.repeats(problems=problems, n=n):
                if repeat.certain:
                    raise DataError(f"{self.path}: {repeat.sentence}")
                warnings.warn(f"{self.path}: {repeat.sentence}", stacklevel=2)
        names = [unescape(name) for name in rows["problem"].to_pylist()]
        order = {name: place for place, name in enumerate(dict.fromkeys(names))}
        where = np.array([order[name] for name in names], dtype=np.int64)

        def tally(column: str, value: str | None) -> Ints:
            hits = np.array([found == value for found in rows[column].to_pylist()], dtype=bool)
            return np.bincount(where[hits], minlength=len(order)).astype(np.int64)

        return Counts(
            problems=tuple(order),
            n=np.bincount(where, minlength=len(order)).astype(np.int64),
            right=tally("verdict", "right"),
            wrong=tally("verdict", "wrong"),
            undecided=tally("verdict", "undecided"),
            truncated=tally("finish", "length"),
            finish_unknown=tally("finish", None),
        )

    def repeats(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> list[Repeat]:
        """Signs that samples are not independent draws; [] is the good answer. See `evaluation/repeats.py`."""
        rows = self.table(("problem", "sample", "seed", "text_hash"), problems=problems, n=n).to_pydict()
        names, numbers = [unescape(name) for name in rows["problem"]], rows["sample"]
        found = [repeats.repeated_seed(names, numbers, rows["seed"])]
        if self.identity.greedy:
            return [repeat for repeat in found if repeat]
        if next(repeats.equal_groups(names, rows["text_hash"]), None):
            more = self.table(("token_ids", "rollout_logps"), problems=problems, n=n)
            tokens, logps = (_arrays(more[name]) for name in more.column_names)
            cut = self.identity.truncated_sampling
            found.append(repeats.impossible_repeat(names, numbers, tokens, logps, cut))
            found.append(repeats.all_the_same(names, rows["text_hash"]))
        return [repeat for repeat in found if repeat]

    def digest(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> str:
        """SHA-256 of what `table` says, but for `latency_s`: two stores with one digest give the same report."""
        rows = self.table(problems=problems, n=n).drop_columns(list(UNSTEADY))
        digest = hashlib.sha256()
        for name in rows.column_names:
            digest.update(f"{name}:{len(rows)}:".encode())
            for value in rows[name]:
                nested = isinstance(value, pa.LargeListScalar) and value.is_valid
                data = value.values.to_numpy(zero_copy_only=False).tobytes() if nested else repr(value.as_py()).encode()
                digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    # ---- verdicts

    def verifiers(self) -> list[dict[str, Any]]:
        """Who judged: verifier_hash, by, at, rows of every pass, oldest first; first those of the evaluation itself, of which
        there are several where a store was judged again and then topped up."""
        state = self._state()
        drawn = Counter(self._gather(state, sorted(state.chunks), ("verifier",))["verifier"].to_pylist())
        first = drawn or {self.identity.verifier_hash: 0}
        found = [{"verifier_hash": name, "by": None, "at": None, "rows": rows} for name, rows in first.items()]
        later = [{key: entry[key] for key in ("verifier_hash", "by", "at", "rows")} for entry in state.overlays]
        return [*found, *later]

    def _judges(self, facts: Mapping[str, Any]) -> set[str]:
        """The verifiers of the samples' newest verdicts. facts: store.json; where it and the journal know of one verifier
        alone, the rows need not be read."""
        state = self._state()
        several = state.overlays or any("verifier_hash" in change["changed"] for change in facts.get("changes", []))
        if not state.chunks or not several:
            return {self.identity.verifier_hash} if state.chunks else set()
        return set(self.table(("verifier",))["verifier"].to_pylist())

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
        host. Each batch is committed by itself: interrupted, the same call goes on. The parts are not touched, older
        verdicts stay readable (`table(verifier=...)`).
        """
        if not verifier_hash:
            raise ConfigError("reverify: verifier_hash is empty; name the verifier and its limits by a hash")
        rows = self.table(("problem", "sample", "text", "text_hash", "verifier"))
        others = [i for i, name in enumerate(rows["verifier"].to_pylist()) if name != verifier_hash]
        rows = rows.take(pa.array(others, pa.int64())).drop_columns(["verifier"])
        for start in range(0, len(rows), batch):
            some = rows.slice(start, batch)
            problems, texts = ([unescape(text) for text in some[name].to_pylist()] for name in ("problem", "text"))
            said = _judged(function(problems, texts), problems, some["sample"].to_pylist())
            self._commit_verdicts(some.drop_columns(["text"]), said, verifier_hash, by or _somebody())
        return len(rows)

    def _commit_verdicts(self, rows: pa.Table, said: Mapping[str, list[Any]], verifier_hash: str, by: str) -> None:
        columns = {name: rows[name].combine_chunks() for name in rows.column_names}
        columns |= {name: pa.array(values, SCHEMA.field(name).type) for name, values in said.items()}
        overlay = pa.table({name: columns[name] for name in _OVERLAY.names}, _OVERLAY)
        about = {"verifier_hash": verifier_hash, "by": by, "at": now(), "rows": len(rows)}
        overlay = overlay.replace_schema_metadata({"sage_rlvr": json.dumps(about)})
        with self._mutex:
            writer = self._sign_in()
            with self._beside(writer, overlay, OVERLAYS) as beside, exclusive(self.path):
                self._journal.append(beside.settle("verdicts") | about)


def _scored(rows: pa.Table, said: Sequence[NDArray[np.float32]], stamp: tuple[str, str]) -> pa.Table:
    """Rows with these base log-probs, their versions stamped with whose they are. DataError where one does not fit."""
    lengths = [len(ids) for ids in _arrays(rows["token_ids"])]
    if [values.shape for values in said] != [(length,) for length in lengths]:
        raise DataError(
            f"score: shapes {[values.shape for values in said][:3]}... for samples of {lengths[:3]}... tokens; one number a "
            "token is wanted"
        )
    versions = [json.dumps(json.loads(v) | {stamp[0]: stamp[1]}, sort_keys=True) for v in rows["versions"].to_pylist()]
    for name, values in (("base_logps", list(said)), ("versions", versions)):
        field_ = SCHEMA.field(name)
        rows = rows.set_column(rows.column_names.index(name), field_, pa.array(values, field_.type))
    return rows


def _judged(verdicts: Sequence[Any], problems: list[str], samples: list[int]) -> dict[str, list[Any]]:
    if len(verdicts) != len(problems):
        raise DataError(f"reverify: the verifier gave {len(verdicts)} verdicts for {len(problems)} samples")
    for verdict, problem, sample in zip(verdicts, problems, samples, strict=True):
        if getattr(verdict, "label", None) not in LABELS:
            raise DataError(f"reverify: problem {problem!r}, sample {sample}: {verdict!r} has no label of {LABELS}")
    answers = [getattr(verdict, "answer", None) for verdict in verdicts]
    return {
        "answer": [None if answer is None else escape(str(answer)) for answer in answers],
        "verdict": [verdict.label for verdict in verdicts],
        "reason": [escape(str(verdict.reason)) for verdict in verdicts],
    }


def _somebody() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container whose user has no name
        return f"somebody@{socket.gethostname()}"


def _addresses(rows: pa.Table) -> list[tuple[str, int]]:
    return [
        (unescape(problem), sample)
        for problem, sample in zip(rows["problem"].to_pylist(), rows["sample"].to_pylist(), strict=True)
    ]


def _rows_of(table: pa.Table, chunks: Sequence[Chunk], size: int) -> pa.Table:
    """The rows of some chunks, in the table's order."""
    wanted = set(chunks)
    kept = [row for row, (p, s) in enumerate(_addresses(table)) if Chunk(p, s - s % size, size) in wanted]
    return table.take(pa.array(kept, pa.int64()))


def _arrays(column: pa.ChunkedArray) -> list[Any]:
    return [value.values.to_numpy(zero_copy_only=False) if value.is_valid else None for value in column]


def _natural(name: str) -> tuple[tuple[tuple[int, int | str], ...], str]:
    """Order of ids in which "aime-2" comes before "aime-10"."""
    pieces = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(piece)) if "0" <= piece[0] <= "9" else (1, piece) for piece in pieces), name
