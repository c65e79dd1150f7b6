"""The rows of a sample store: missing samples, claims of writers, commits of complete chunks, and reading as a table, samples or
counts."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.store import repeats
from sage_rlvr.evaluation.store.database import (
    COLUMNS,
    FILE,
    JUDGED,
    NESTED,
    TURNS,
    Database,
    array_of,
    damaged,
    insert,
    stored,
)
from sage_rlvr.evaluation.store.older import has_table
from sage_rlvr.evaluation.store.repeats import Repeat
from sage_rlvr.evaluation.store.sample import (
    ESCAPED,
    LABELS,
    AskedProblem,
    Chunk,
    Identity,
    Sample,
    checked,
    escape,
    natural,
    text_hash,
    turns_unmarked,
    unescape,
    unmarked,
)
from sage_rlvr.evaluation.store.writers import name_of, other_writers, processes, sign_in, sign_out
from sage_rlvr.safe_io import parse_json
from sage_rlvr.tasks.chance import KEY

if TYPE_CHECKING:
    import sqlite3

    import pyarrow as pa

CHOSEN = " FROM temp.chosen c CROSS JOIN samples s ON s.problem = c.problem AND s.sample < :n"
NEWEST = (
    " LEFT JOIN verdicts v ON v.id = s.id AND v.pass = (SELECT max(w.pass) FROM verdicts w WHERE w.id = s.id AND"
    " w.verifier = ifnull(:verifier, w.verifier))"
)
UNSTEADY = ("latency_s",)  # columns that two equal evaluations need not share
ALL = 2**31  # samples of a problem
IMPORTED = "imported"  # the fact that holds the name of the Parquet file
ASKED = ("prompt", "gold")  # columns of a table that are of the problem

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


class SampleRows(Database):
    """The chunks of a store, held, missing and claimed, and what was committed."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._whole = False
        self.identity = Identity.of(self.facts()["identity"], f"{path / FILE}, identity")

    @property
    def columns(self) -> tuple[str, ...]:
        """Of a table of its samples."""
        return (*COLUMNS, TURNS) if self.identity.turns > 1 else COLUMNS

    def close(self) -> None:
        """Release claimed chunks and close the file; a second call does nothing. Reading reopens the file."""
        if self._writer is not None:
            self.release()
            sign_out(self._writer)
            self._writer = None
        with self._mutex:
            if self._db is not None:
                self._db.close()
                self._db = None

    # ---- what lacks, and who works on it

    def missing(self, problem_ids: Iterable[str], n: int) -> list[Chunk]:
        """The missing chunks for n samples of every problem, all first chunks before any second chunk.

        n is rounded up to whole chunks. ConfigError for n > 1 under greedy decoding, whose samples are all the same.
        """
        wanted = self._wanted(problem_ids, n)
        held = self._held({chunk.problem for chunk in wanted})
        return [chunk for chunk in wanted if chunk not in held]

    @property
    def _size(self) -> int:
        assert self.identity.chunk_size is not None
        return self.identity.chunk_size

    def _held(self, problems: Iterable[str]) -> set[Chunk]:
        sql, size = "SELECT sample / ?2 * ?2 FROM samples WHERE problem = ?1 GROUP BY 1 HAVING count(*) = ?2", self._size
        with self.transaction() as db:
            return {Chunk(p, first, size) for p in problems for (first,) in db.execute(sql, (escape(p), size))}

    def _wanted(self, problem_ids: Iterable[str], n: int) -> list[Chunk]:
        problems = list(problem_ids)
        if len(set(problems)) < len(problems):
            twice = sorted(name for name, many in Counter(problems).items() if many > 1)
            raise DataError(f"problem ids {twice[:5]} occur twice in the list; each problem is sampled once")
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigError(f"n = {n!r}: the number of samples per problem must be a whole number >= 1")
        if self.identity.greedy and n > 1:
            raise ConfigError(
                f"n = {n} at temperature 0: greedy decoding gives one completion {n} times; use n = 1, or sample at "
                "a temperature above 0"
            )
        return [Chunk(problem, first, self._size) for first in range(0, n, self._size) for problem in problems]

    def claim(self, problem_ids: Iterable[str], n: int, most: int = 1) -> list[Chunk]:
        """Up to `most` of the missing chunks, which no other live writer works on; [] when none is left to take.

        A claim ends with the chunk's commit, with `release`, `close`, or the end of this process, SIGKILL included. A
        writer that gets [] while `missing` is not empty can wait: others are at work on the rest.
        """
        with self.transaction(write=True) as db:
            if self._writer is None:
                self.verify()
                self._writer = sign_in(self.path)
            writer = name_of(self._writer)
            alive = json.dumps([writer, *other_writers(self.path, self._writer)])
            db.execute("DELETE FROM claims WHERE writer NOT IN (SELECT value FROM json_each(?))", (alive,))
            taken = set(db.execute("SELECT problem, first FROM claims"))
            free = [chunk for chunk in self.missing(problem_ids, n) if chunk.address not in taken][:most]
            db.executemany("INSERT INTO claims (problem, first, writer) VALUES (?, ?, ?)", [(*c.address, writer) for c in free])
        return free

    def claimants(self) -> str:
        """The other processes with claims, as text for a message."""
        own = None if self._writer is None else name_of(self._writer)
        with self.transaction() as db:
            names = {name for (name,) in db.execute("SELECT writer FROM claims")} - {own}
        return f"process {processes(names)}" if names else "another process"

    def release(self) -> None:
        """Release all claimed chunks without committing them."""
        if self._writer is not None:
            with self.transaction(write=True) as db:
                db.execute("DELETE FROM claims WHERE writer = ?", (name_of(self._writer),))

    # ---- written

    def commit(self, samples: Sequence[Sample]) -> list[Chunk]:
        """Store whole chunks, all of them or none; returns those that were not there before.

        A chunk that is there already is dropped when its seeds and tokens (texts, where there are no tokens) are the
        same, else DataError: the sampler is not a function of the seed. DataError also for chunks that are not whole
        and for samples that cannot be used, with nothing written.
        """
        rows, chunks = checked(samples, self._size, self.identity.turns)
        with self.transaction(write=True) as db:
            held = self._held({chunk.problem for chunk in chunks})
            new = [chunk for chunk in chunks if chunk not in held]
            for chunk in new:
                _delete(db, chunk)  # what is left of it, where rows were deleted by hand
            for sample in rows:
                row = self._row_of(sample)
                if Chunk(sample.problem, row["sample"] - row["sample"] % self._size, self._size) in held:
                    self._check_same(db, row)
                else:
                    insert(db, row)
            db.executemany("DELETE FROM claims WHERE problem = ? AND first = ?", [chunk.address for chunk in chunks])
        return new

    def _row_of(self, sample: Sample) -> dict[str, Any]:
        """A sample as it is stored, judged and made under this identity."""
        row = stored(vars(sample))
        row |= {name: None if row[name] is None else escape(row[name]) for name in ESCAPED}
        row |= {"sample": int(sample.sample), "seed": None if sample.seed is None else int(sample.seed)}
        row["latency_s"] = None if sample.latency_s is None else float(sample.latency_s)
        row |= {"text_hash": text_hash(sample.text), "verifier": self.identity.verifier_hash}
        row[TURNS] = None if sample.turns is None else json.dumps(sample.turns)
        return row | {"versions": json.dumps(dict(self.identity.versions), sort_keys=True)}

    def _check_same(self, db: sqlite3.Connection, new: Mapping[str, Any]) -> None:
        sql = "SELECT seed, token_ids, text_hash FROM samples WHERE problem = :problem AND sample = :sample"
        seed, tokens, text = db.execute(sql, new).fetchone()
        known = tokens is not None and new["token_ids"] is not None
        if seed != new["seed"] or (tokens != new["token_ids"] if known else text != new["text_hash"]):
            raise DataError(
                f"{self.path}: problem {unescape(new['problem'])!r}, sample {new['sample']} already exists with "
                "other tokens or another seed: this sampler is not a function of the seed, or two evaluations share "
                "this folder. The existing sample is kept; claim chunks before sampling them, or use another folder"
            )

    def describe(self, questions: Mapping[str, AskedProblem]) -> None:
        """Keep the prompts and golds of problems that have none here yet."""
        if set(questions) <= set(self.questions()):
            return
        with self.transaction(write=True) as db:
            insert_questions(db, questions)

    # ---- read

    def questions(self) -> dict[str, AskedProblem]:
        """Problem id -> its prompt and gold; {} for a store of a version that did not keep them."""
        self.verify()
        with self.transaction() as db:
            kept = not self._older or has_table(db, "problems")
            rows = db.execute("SELECT problem, prompt, gold FROM problems").fetchall() if kept else []
        return {unescape(name): question_of(prompt, gold) for name, prompt, gold in rows}

    def _read(
        self, columns: Sequence[str], problems: Sequence[str] | None, n: int | None, verifier: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Rows as they are stored, by problem in the order chosen and sample."""
        with self.transaction():
            self._choose(problems, n)
            return self._chosen(columns, n, verifier)

    def _choose(self, problems: Sequence[str] | None, n: int | None) -> None:
        """Fill the temporary table of problems that `CHOSEN` reads, all by id where None. DataError where samples lack."""
        self.verify()
        with self.transaction() as db:
            self._check_whole(db)
            names = [unescape(name) for (name,) in db.execute("SELECT DISTINCT problem FROM samples")]
            names = sorted(names, key=natural) if problems is None else list(problems)
            if lacking := self.missing(names, 1 if n is None else n):
                raise DataError(
                    f"{self.path}: {len(lacking)} chunks are missing for n = {n or self._size} samples of every problem, the first "
                    f"being problem {lacking[0].problem!r} from sample {lacking[0].first}; continue the evaluation, or use "
                    "a smaller n"
                )
            db.execute("CREATE TEMP TABLE IF NOT EXISTS chosen (rank INTEGER PRIMARY KEY, problem TEXT NOT NULL)")
            db.execute("DELETE FROM temp.chosen")
            db.executemany("INSERT INTO temp.chosen (problem) VALUES (?)", [(escape(name),) for name in names])

    def _check_whole(self, db: sqlite3.Connection) -> None:
        """Once per process: DataError where a chunk, which was committed whole, has lost a sample."""
        sql = "SELECT problem, sample / :size * :size, count(*) FROM samples GROUP BY 1, 2 HAVING count(*) != :size"
        if not self._whole and (partial := db.execute(sql, {"size": self._size}).fetchone()):
            problem, first, rows = partial
            raise DataError(
                f"{self.path / FILE}: problem {unescape(problem)!r}: of samples {first} to {first + self._size - 1} only {rows} of "
                f"{self._size} exist; {self._advice()}"
            )
        self._whole = True

    def _advice(self) -> str:
        """How a store that lacks samples is completed."""
        source = self.facts().get(IMPORTED)
        if source is None:
            return "run the same eval command again"
        return (
            f"the samples were imported from {source}: import a file with all samples into another folder, or sample what "
            f"is missing with eval --store {self.path} and the policy, task and settings of these"
        )

    def _chosen(self, columns: Sequence[str], n: int | None, verifier: str | None = None) -> list[tuple[Any, ...]]:
        judged = bool(set(columns) & set(JUDGED))
        names = [f"{'v' if name in JUDGED else 's'}.{name}" for name in (*columns, *(("verifier",) * judged))]
        sql = f"SELECT {', '.join(names)}{CHOSEN}{NEWEST if judged else ''} ORDER BY c.rank, s.sample"
        with self.transaction() as db:
            rows = db.execute(sql, {"n": ALL if n is None else n, "verifier": verifier}).fetchall()
            if lacking := sum(row[-1] is None for row in rows) if judged else 0:
                if verifier is None:
                    raise damaged(self.path, f"{lacking} of {len(rows)} samples have lost their verdict")
                known = [name for (name,) in db.execute("SELECT DISTINCT verifier FROM verdicts ORDER BY pass")]
                raise DataError(
                    f"{self.path}: {lacking} of {len(rows)} samples have no verdict of {verifier!r}; "
                    f"run reverify with it, or choose one of {known}"
                )
        return [row[:-1] for row in rows] if judged else rows

    def table(
        self,
        columns: Sequence[str] | None = None,
        *,
        problems: Sequence[str] | None = None,
        n: int | None = None,
        verifier: str | None = None,
    ) -> pa.Table:
        """All samples as an Arrow table of `arrow.SCHEMA`, whose metadata holds the identity. Arguments as in `lists`; None: all
        columns, with turns for episodes, and with the problem's prompt and gold, null where the store does not keep them."""
        from sage_rlvr.evaluation.store.arrow import table_of  # pyarrow, which the base install lacks

        names = list(self.columns if columns is None else columns)
        rows = self._read(self._known(names), problems, n, verifier)
        if columns is None:
            questions, at = self.questions(), names.index("problem")
            names += ASKED
            rows = [(*row, *_texts(questions.get(unescape(row[at])))) for row in rows]
        kept = {name: fact for name, fact in self.facts().items() if name in ("wanted", KEY)}
        about = {"identity": self.identity.tree(), **kept}
        return table_of(names, rows).replace_schema_metadata({"sage_rlvr": json.dumps(about, sort_keys=True)})

    def lists(
        self,
        columns: Sequence[str],
        *,
        problems: Sequence[str] | None = None,
        n: int | None = None,
        verifier: str | None = None,
    ) -> dict[str, list[Any]]:
        """The named columns of all samples, sorted by (problem, sample number): a list each, of arrays for a token-level column.

        problems: which, in this order; None: all, by id, numbers in ids by their value. n: the first n of each, DataError
        where a problem has fewer. verifier: verdicts of this verifier hash; None: the newest of each sample, and the column
        `verifier` says whose that is. Text is `escape`d where it is no UTF-8; `samples` undoes that.
        """
        rows = self._read(self._known(columns), problems, n, verifier)
        values = zip(*rows, strict=True) if rows else [()] * len(columns)
        return {name: [array_of(name, value) for value in column] for name, column in zip(columns, values, strict=True)}

    def _known(self, columns: Sequence[str]) -> Sequence[str]:
        if unknown := sorted(set(columns) - set(self.columns)):
            raise DataError(f"columns {unknown} are not in a sample store; there are {', '.join(self.columns)}")
        return columns

    def samples(
        self, *, problems: Sequence[str] | None = None, n: int | None = None, verifier: str | None = None
    ) -> list[Sample]:
        """All rows as `Sample`s, text as it was."""
        names = tuple(name for name in self.columns if name in Sample.__dataclass_fields__)
        return [_sample_of(dict(zip(names, row, strict=True))) for row in self._read(names, problems, n, verifier)]

    def counts(
        self,
        n: int | None = None,
        *,
        problems: Sequence[str] | None = None,
        verifier: str | None = None,
        check: bool = True,
    ) -> Counts:
        """Right, wrong and undecided samples of each problem: what pass@k and every other score is made from.

        Arguments as in `lists`. DataError where verdicts of several verifiers are mixed (a top-up after `reverify`: run it
        again), and, unless `check` is False, where samples are repeats of each other beyond chance; what only looks
        like it warns. See `evaluation/store/repeats.py`.
        """
        rows = self._read(("problem", "verdict", "verifier", "finish"), problems, n, verifier)
        judges = sorted({judge for _, _, judge, _ in rows})
        if len(judges) > 1:
            raise DataError(f"{self.path}: verdicts of several verifiers are mixed ({judges}); run reverify with one")
        for repeat in self.repeats(problems=problems, n=n) if check else []:
            if repeat.certain:
                raise DataError(f"{self.path}: {repeat.sentence}")
            warnings.warn(f"{self.path}: {repeat.sentence}", stacklevel=2)
        names = list(dict.fromkeys(row[0] for row in rows))
        kinds = ("n", *LABELS, "end length", "end None")
        many = Counter((problem, kind) for problem, label, _, end in rows for kind in ("n", label, f"end {end}"))
        columns = (np.array([many[name, kind] for name in names], dtype=np.int64) for kind in kinds)
        return Counts(tuple(map(unescape, names)), *columns)

    def repeats(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> list[Repeat]:
        """Signs that samples are not independent; [] if there are none. See `evaluation/store/repeats.py`."""
        with self.transaction() as db:
            self._choose(problems, n)
            return repeats.signs_of(db, CHOSEN, ALL if n is None else n, self.identity)

    def digest(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> str:
        """SHA-256 of `table` without `latency_s`: two stores with the same digest have the same report."""
        digest = hashlib.sha256()
        with self.transaction():
            self._choose(problems, n)
            for name in (name for name in self.columns if name not in UNSTEADY):
                rows = self._chosen((name,), n)
                digest.update(f"{name}:{len(rows)}:".encode())
                for (value,) in rows:
                    data = value if isinstance(value, bytes) else repr(value).encode()
                    digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()


def _sample_of(row: dict[str, Any]) -> Sample:
    """A stored row as a `Sample`: token-level columns as arrays, text as it was."""
    row |= {name: array_of(name, row[name]) for name in NESTED}
    if TURNS in row:
        row[TURNS] = turns_unmarked(turns_in(row[TURNS]), row["finish"])
    row |= {name: unescape(row[name]) for name in ESCAPED if row[name] is not None}
    return Sample(**row | {"text": unmarked(row["text"], row["finish"])})  # stores of earlier versions have the mark


def turns_in(text: str) -> tuple[tuple[str, str, int], ...]:
    """Turns as they are stored -> (who, text, tokens) of each."""
    return tuple((str(who), str(words), int(tokens)) for who, words, tokens in parse_json(text, "turns of a sample", None))


def question_of(prompt: str, gold: str | None) -> AskedProblem:
    """Prompt and gold from their stored texts."""
    return AskedProblem(unescape(prompt), None if gold is None else unescape(gold))


def _texts(question: AskedProblem | None) -> tuple[str | None, str | None]:
    """Inverse of `question_of`; nothing without a question."""
    if question is None:
        return None, None
    return escape(question.prompt), None if question.gold is None else escape(question.gold)


def _delete(db: sqlite3.Connection, chunk: Chunk) -> None:
    rows, address = "samples WHERE problem = ? AND sample BETWEEN ? AND ?", (*chunk.address, chunk.samples[-1])
    db.execute(f"DELETE FROM verdicts WHERE id IN (SELECT id FROM {rows})", address)
    db.execute(f"DELETE FROM {rows}", address)


def insert_questions(db: sqlite3.Connection, questions: Mapping[str, AskedProblem]) -> None:
    """Prompts and golds of problems, except those that are there already."""
    rows = [(escape(name), *_texts(question)) for name, question in sorted(questions.items())]
    db.executemany("INSERT OR IGNORE INTO problems (problem, prompt, gold) VALUES (?, ?, ?)", rows)
