"""The rows of a sample store: committed by whole chunks, read as a table, as samples, as counts."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.store import repeats
from sage_rlvr.evaluation.store.claims import Claims
from sage_rlvr.evaluation.store.columns import COLUMNS, JUDGED, UNSTEADY, arrow, packed, sample_of
from sage_rlvr.evaluation.store.database import STORED, feed, seal
from sage_rlvr.evaluation.store.repeats import Repeat
from sage_rlvr.evaluation.store.sample import LABELS, Chunk, Sample, checked, escape, natural, unescape

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


class Rows(Claims):
    """What was committed."""

    def commit(self, samples: Sequence[Sample]) -> list[Chunk]:
        """Store whole chunks, all of them or none; returns those that were not there before.

        A chunk that is there already is dropped when its seeds and tokens (texts, where there are no tokens) are the
        same, else DataError: the sampler is not a function of the seed. DataError also for chunks that are not whole
        and for samples that cannot be used, with nothing written.
        """
        rows, chunks = checked(samples, self._size)
        with self.transaction(write=True) as db:
            held = self._held({chunk.problem for chunk in chunks})
            new = [chunk for chunk in chunks if chunk not in held]
            fresh, fit = set(new), packed(rows, self.identity)
            for row, sample in zip(fit, rows, strict=True):
                if Chunk(sample.problem, row["sample"] - row["sample"] % self._size, self._size) in fresh:
                    self.insert(row)
                else:
                    self._check_same(row)
            db.executemany("DELETE FROM claims WHERE problem = ? AND first = ?", [chunk.address for chunk in chunks])
        return new

    def insert(self, row: Mapping[str, Any]) -> int:
        """One row of `columns.COLUMNS`, its verdict as that of pass 0; returns the sample's id."""
        with self.transaction(write=True) as db:
            values = [row[name] for name in STORED]
            marks = ", ".join("?" * len(values))
            sql = f"INSERT INTO samples (sha, {', '.join(STORED)}) VALUES (?, {marks})"
            where = int(db.execute(sql, (seal(values), *values)).lastrowid or 0)
            self._judge(where, 0, *(row[name] for name in JUDGED))
        return where

    def _judge(self, sample: int, number: int, *said: Any) -> None:
        """said: verifier, verdict, reason, answer."""
        with self.transaction(write=True) as db:
            row = (sample, number, *said)
            db.execute("INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?)", (*row[:2], seal(row), *row[2:]))

    def _check_same(self, new: Mapping[str, Any]) -> None:
        with self.transaction() as db:
            sql = "SELECT seed, token_ids, text_hash FROM samples WHERE problem = ? AND sample = ?"
            seed, tokens, text = db.execute(sql, (new["problem"], new["sample"])).fetchone()
        known = tokens is not None and new["token_ids"] is not None
        if seed != new["seed"] or (tokens != new["token_ids"] if known else text != new["text_hash"]):
            raise DataError(
                f"{self.path}: problem {unescape(new['problem'])!r}, sample {new['sample']} is there already with "
                "other tokens or another seed: this sampler is not a function of the seed, or two evaluations share "
                "this folder. What is there stays; claim chunks before sampling them, or name another folder"
            )

    def _read(
        self, columns: Sequence[str], problems: Sequence[str] | None, n: int | None, verifier: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Rows as they are stored, by problem in the order chosen and sample."""
        with self.transaction():
            self._choose(problems, n)
            return self._chosen(columns, n, verifier)

    def _chosen(self, columns: Sequence[str], n: int | None, verifier: str | None = None) -> list[tuple[Any, ...]]:
        judged = bool(set(columns) & set(JUDGED))
        names = [f"{'v' if name in JUDGED else 's'}.{name}" for name in (*columns, *(("verifier",) * judged))]
        with self.transaction() as db:
            asked = {"n": 2**31 if n is None else n, "verifier": verifier}
            sql = f"SELECT {', '.join(names)}{CHOSEN}{NEWEST if judged else ''} ORDER BY c.place, s.sample"
            rows = db.execute(sql, asked).fetchall()
        if lacking := sum(row[-1] is None for row in rows) if judged else 0:
            raise DataError(
                f"{self.path}: {lacking} of {len(rows)} samples have no verdict of {verifier!r}; "
                f"run reverify with it, or choose one of {[entry['verifier_hash'] for entry in self.verifiers()]}"
            )
        return [row[:-1] for row in rows] if judged else rows

    def _choose(self, problems: Sequence[str] | None, n: int | None) -> None:
        """Fill the temporary table of problems that `CHOSEN` reads, all by id where None. DataError where samples lack."""
        self.verify()
        with self.transaction() as db:
            names = [unescape(name) for (name,) in db.execute("SELECT DISTINCT problem FROM samples")]
            names = sorted(names, key=natural) if problems is None else list(problems)
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
        names = list(dict.fromkeys(row[0] for row in rows))
        found = Counter((problem, said) for problem, label, _, end in rows for said in ("n", label, f"end {end}"))
        marks = ("n", *LABELS, "end length", "end None")
        return Counts(
            tuple(map(unescape, names)), *(np.array([found[name, m] for name in names], dtype=np.int64) for m in marks)
        )

    def repeats(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> list[Repeat]:
        """Signs that samples are not independent draws; [] is the good answer. See `evaluation/repeats.py`."""
        with self.transaction() as db:
            self._choose(problems, n)
            identity = self.identity
            return repeats.found(db, CHOSEN, 2**31 if n is None else n, identity.greedy, identity.truncated_sampling)

    def digest(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> str:
        """SHA-256 of what `table` says, but for `latency_s`: two stores with one digest give the same report."""
        digest = hashlib.sha256()
        with self.transaction():
            self._choose(problems, n)
            for name in (name for name in COLUMNS if name not in UNSTEADY):
                rows = self._chosen((name,), n)
                digest.update(f"{name}:{len(rows)}:".encode())
                feed(digest, (value for (value,) in rows))
        return digest.hexdigest()
