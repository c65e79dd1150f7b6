"""Reading a sample store: what is there and what is missing, as tables, samples or counts."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.store import repeats
from sage_rlvr.evaluation.store.database import Database, damaged
from sage_rlvr.evaluation.store.identity import Identity, is_count, requested
from sage_rlvr.evaluation.store.older import VERDICTS, has_table
from sage_rlvr.evaluation.store.repeats import Repeat
from sage_rlvr.evaluation.store.sample import (
    ESCAPED,
    Chunk,
    PromptAndGold,
    Sample,
    escape,
    natural,
    turns_in,
    turns_unmarked,
    unescape,
    unmarked,
)
from sage_rlvr.evaluation.store.schema import (
    COLUMNS,
    FILE,
    JUDGED,
    NESTED,
    TURNS,
    array_of,
    question_of,
    question_texts,
)
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


class StoredSamples(Database):
    """A store as it is read. `SampleStore` also writes."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._whole = False
        self.identity = Identity.of(self.facts()["identity"], f"{path / FILE}, identity")

    @property
    def columns(self) -> tuple[str, ...]:
        """Of a table of its samples."""
        return (*COLUMNS, TURNS) if self.identity.turns > 1 else COLUMNS

    # ---- what is recorded of the store

    def wanted(self) -> dict[str, int]:
        """The requested size of the largest evaluation as recorded by `want`: problems, n; {} without a record."""
        return requested(self.facts()["wanted"], str(self.path / FILE))

    def policy_name_or_path(self) -> str | None:
        """The folder or name of the policy as recorded by `keep_policy_name_or_path`; None without a record."""
        model = self.facts().get("place")
        return None if model is None else str(model)

    def lacking(self, counts: Counts) -> str:
        """A text about requested problems without samples in `counts`; "" if there are none."""
        wanted, present = self.wanted().get("problems", 0), len(counts.problems)
        return f"samples of {present} of {wanted} problems; {self._advice()}" if present < wanted else ""

    def verifiers(self) -> list[dict[str, Any]]:
        """Who judged: verifier_hash, by, at, rows of every pass, oldest first; first those of the evaluation itself, of which
        there are several where a store was judged again and then topped up."""
        with self.transaction() as db:
            table = VERDICTS if self._older else "verdicts"
            sql = f"SELECT verifier, who, at, count(*) FROM {table} GROUP BY pass, verifier ORDER BY pass, min(id)"
            rows = db.execute(sql).fetchall()
        if not rows:
            rows = [(self.identity.verifier_hash, None, None, 0)]
        return [{"verifier_hash": verifier, "by": who, "at": at, "rows": count} for verifier, who, at, count in rows]

    def under(self, key: str) -> set[str | None]:
        """What the samples' versions say of `key` (`SCORED`, `GUIDED`), each once; None is of those that say nothing."""
        return {versions.get(key) for versions in self._all_versions().values()}

    def _all_versions(self) -> dict[str, dict[str, Any]]:
        """The versions that samples have, as they are stored -> as they are read."""
        with self.transaction() as db:
            texts = [text for (text,) in db.execute("SELECT DISTINCT versions FROM samples")]
        return {text: self._versions(text) for text in texts}

    def _versions(self, text: str) -> dict[str, Any]:
        return dict(parse_json(text, f"{self.path / FILE}, versions of a sample"))

    def questions(self) -> dict[str, PromptAndGold]:
        """Problem id -> its prompt and gold; {} for a store of a version that did not keep them."""
        self.verify()
        with self.transaction() as db:
            kept = not self._older or has_table(db, "problems")
            rows = db.execute("SELECT problem, prompt, gold FROM problems").fetchall() if kept else []
        return {unescape(name): question_of(prompt, gold) for name, prompt, gold in rows}

    # ---- what is missing

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
        """All chunks for n samples of every problem, all first chunks before any second one."""
        problems = list(problem_ids)
        if len(set(problems)) < len(problems):
            twice = sorted(name for name, many in Counter(problems).items() if many > 1)
            raise DataError(f"problem ids {twice[:5]} occur twice in the list; each problem is sampled once")
        if not is_count(n):
            raise ConfigError(f"n = {n!r}: the number of samples per problem must be a whole number >= 1")
        if self.identity.greedy and n > 1:
            raise ConfigError(
                f"n = {n} at temperature 0: greedy decoding gives one completion {n} times; use n = 1, or sample at "
                "a temperature above 0"
            )
        return [Chunk(problem, first, self._size) for first in range(0, n, self._size) for problem in problems]

    # ---- samples

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
            if problems is None:
                stored = db.execute("SELECT DISTINCT problem FROM samples").fetchall()
                problems = sorted((unescape(name) for (name,) in stored), key=natural)
            if missing := self.missing(problems, 1 if n is None else n):
                raise DataError(
                    f"{self.path}: {len(missing)} chunks are missing for n = {n or self._size} samples of every problem, the first "
                    f"being problem {missing[0].problem!r} from sample {missing[0].first}; continue the evaluation, or use "
                    "a smaller n"
                )
            db.execute("CREATE TEMP TABLE IF NOT EXISTS chosen (rank INTEGER PRIMARY KEY, problem TEXT NOT NULL)")
            db.execute("DELETE FROM temp.chosen")
            db.executemany("INSERT INTO temp.chosen (problem) VALUES (?)", [(escape(name),) for name in problems])

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
        """Rows of the problems that `_choose` has listed. DataError for a sample without a verdict where one is read."""
        parameters = {"n": ALL if n is None else n, "verifier": verifier}
        names = [f"v.{name}" if name in JUDGED else f"s.{name}" for name in columns]
        order = "ORDER BY c.rank, s.sample"
        with self.transaction() as db:
            if not set(columns) & set(JUDGED):
                return db.execute(f"SELECT {', '.join(names)}{CHOSEN} {order}", parameters).fetchall()
            sql = f"SELECT {', '.join(names)}, v.verifier{CHOSEN}{NEWEST} {order}"
            rows = db.execute(sql, parameters).fetchall()
            unjudged = sum(row[-1] is None for row in rows)
            if unjudged and verifier is None:
                raise damaged(self.path, f"{unjudged} of {len(rows)} samples have lost their verdict")
            if unjudged:
                known = [name for (name,) in db.execute("SELECT DISTINCT verifier FROM verdicts ORDER BY pass")]
                raise DataError(
                    f"{self.path}: {unjudged} of {len(rows)} samples have no verdict of {verifier!r}; "
                    f"run reverify with it, or choose one of {known}"
                )
        return [row[:-1] for row in rows]

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
            rows = [(*row, *question_texts(questions.get(unescape(row[at])))) for row in rows]
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
        judges = sorted({judge for _, _, judge, _ in rows})  # of the newest verdicts
        if len(judges) > 1:
            raise DataError(f"{self.path}: verdicts of several verifiers are mixed ({judges}); run reverify with one")
        for repeat in self.repeats(problems=problems, n=n) if check else []:
            if repeat.certain:
                raise DataError(f"{self.path}: {repeat.sentence}")
            warnings.warn(f"{self.path}: {repeat.sentence}", stacklevel=2)
        of_problem = Counter(problem for problem, _, _, _ in rows)
        labels = Counter((problem, label) for problem, label, _, _ in rows)
        finishes = Counter((problem, finish) for problem, _, _, finish in rows)
        names = list(of_problem)
        return Counts(
            problems=tuple(unescape(name) for name in names),
            n=_ints(of_problem[name] for name in names),
            right=_ints(labels[name, "right"] for name in names),
            wrong=_ints(labels[name, "wrong"] for name in names),
            undecided=_ints(labels[name, "undecided"] for name in names),
            truncated=_ints(finishes[name, "length"] for name in names),
            finish_unknown=_ints(finishes[name, None] for name in names),
        )

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
            for name in self.columns:
                if name in UNSTEADY:
                    continue
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


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)
