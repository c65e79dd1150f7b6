"""Reading a sample store: existing and missing samples, as tables, samples or counts."""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation import repeats
from sage_rlvr.evaluation.repeats import Repeat
from sage_rlvr.evaluation.store import folder
from sage_rlvr.evaluation.store.folder import FILE
from sage_rlvr.evaluation.store.identity import Identity, is_count, requested
from sage_rlvr.evaluation.store.sample import (
    ASKED,
    COLUMNS,
    ESCAPED,
    LABELS,
    TURNS,
    Chunk,
    PromptAndGold,
    Sample,
    natural,
    turns_in,
    unescape,
)
from sage_rlvr.safe_io import parse_json
from sage_rlvr.verdicts.chance import KEY

if TYPE_CHECKING:
    import pyarrow as pa

    from sage_rlvr.evaluation.store.parts import Firsts, StoredChunk, StoredParts

UNSTEADY = ("latency_s",)  # columns that may differ between two equal evaluations
IMPORTED = "imported"  # the fact with the name of the Parquet file

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """Counts per problem, (P,) each: n samples, of them right, wrong, undecided; truncated: those that met max_new_tokens.

    finish_unknown: samples without a recorded end. Undecided ones are neither right nor wrong.
    """

    problems: tuple[str, ...]
    n: Ints
    right: Ints
    wrong: Ints
    undecided: Ints
    truncated: Ints
    finish_unknown: Ints


class StoredSamples:
    """A store for reading. `SampleStore` also writes."""

    def __init__(self, path: Path):
        self.path = path
        self._mutex = threading.RLock()
        self.identity = Identity.of(self.facts()["identity"], f"{path / FILE}, identity")

    @cached_property
    def _parts(self) -> StoredParts:
        return self._parts_of(self.path, self.identity)

    @staticmethod
    def _parts_of(path: Path, identity: Identity) -> StoredParts:
        from sage_rlvr.evaluation.store.parts import StoredParts  # pyarrow, slow to import

        return StoredParts(path, identity.key, identity.chunk_size or 1)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a table of its samples."""
        return (*COLUMNS, TURNS) if self.identity.turns > 1 else COLUMNS

    # ---- records of the store

    def facts(self) -> dict[str, Any]:
        """identity, created, changes (of versions and verifiers) and wanted, as trees of JSON values."""
        return folder.facts_of(self.path)

    def wanted(self) -> dict[str, int]:
        """The requested size of the largest evaluation as recorded by `want`: problems, n; {} without a record."""
        return requested(self.facts()["wanted"], str(self.path))

    def policy_name_or_path(self) -> str | None:
        """The folder or name of the policy as recorded by `keep_policy_name_or_path`; None without a record."""
        model = self.facts().get("place")
        return None if model is None else str(model)

    def lacking(self, counts: Counts) -> str:
        """A text about requested problems without samples in `counts`; "" if there are none."""
        wanted, present = self.wanted().get("problems", 0), len(counts.problems)
        return f"samples of {present} of {wanted} problems; {self._advice()}" if present < wanted else ""

    def _advice(self) -> str:
        """The next step for a store with missing samples."""
        source = self.facts().get(IMPORTED)
        if source is None:
            return "run the same eval command again"
        return (
            f"the samples were imported from {source}: import a file with all samples into another folder, or sample what "
            f"is missing with eval --store {self.path} and the policy, task and settings of these"
        )

    def verifiers(self) -> list[dict[str, Any]]:
        """The verifiers: verifier_hash, by, at, rows of every pass, oldest first; first those of the evaluation itself, of which
        there are several if a store was judged again and then topped up."""
        own = Counter(self._parts.read(("verifier",), every, drawn=True)["verifier"].to_pylist())
        changes = [change["changed"].get("verifier_hash", ["", ""])[1] for change in self.facts()["changes"]]
        rows = [
            {"verifier_hash": name, "by": None, "at": None, "rows": own[name]}
            for name in sorted(own, key=lambda name: changes.index(name) if name in changes else -1)
        ]
        for part in self._parts.of(folder.VERDICTS):
            told = part.about
            rows.append({"verifier_hash": told["verifier"], "by": told["by"], "at": told["at"], "rows": part.rows})
        return rows or [{"verifier_hash": self.identity.verifier_hash, "by": None, "at": None, "rows": 0}]

    def under(self, key: str) -> set[str | None]:
        """Distinct values of `key` (`SCORED`, `GUIDED`) in the versions of the samples; None for samples without it."""
        texts = self._parts.read(("versions",), every)["versions"].unique().to_pylist()
        return {parse_json(text, f"{self.path}, versions of a sample").get(key) for text in texts}

    def questions(self) -> dict[str, PromptAndGold]:
        """Problem id -> its prompt and gold, for the described problems."""
        kept: dict[str, PromptAndGold] = {}
        for part in self._parts.of(folder.PROBLEMS):
            for row in part.read(("problem", *ASKED)).to_pylist():
                gold = None if row["gold"] is None else unescape(row["gold"])
                kept.setdefault(unescape(row["problem"]), PromptAndGold(unescape(row["prompt"]), gold))
        return kept

    # ---- what is missing

    def missing(self, problem_ids: Iterable[str], n: int) -> list[Chunk]:
        """The missing chunks for n samples of every problem, all first chunks before any second chunk.

        n is rounded up to complete chunks. Raises ConfigError for n > 1 under greedy decoding, whose samples are all the same.
        """
        return self._missing(problem_ids, n, self._parts.chunks())

    def _missing(self, problem_ids: Iterable[str], n: int, held: Firsts) -> list[Chunk]:
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
        size, none = self._size, dict[int, Any]()
        return [Chunk(name, first, size) for first in range(0, n, size) for name in problems if first not in held.get(name, none)]

    @property
    def _size(self) -> int:
        assert self.identity.chunk_size is not None
        return self.identity.chunk_size

    # ---- samples

    def table(
        self,
        columns: Sequence[str] | None = None,
        *,
        problems: Sequence[str] | None = None,
        n: int | None = None,
        verifier: str | None = None,
    ) -> pa.Table:
        """All samples as an Arrow table, with the identity in its metadata. Arguments as in `lists`; None: all columns, with
        turns for episodes, and with the problem's prompt and gold, null if the store does not have them."""
        from sage_rlvr.evaluation.store.parts import with_questions  # pyarrow

        table = self._read(self.columns if columns is None else columns, problems, n, verifier)
        if columns is None:
            table = with_questions(table, self.questions())
        kept = {name: fact for name, fact in self.facts().items() if name in ("wanted", KEY)}
        return table.replace_schema_metadata({"sage_rlvr": json.dumps({"identity": self.identity.tree(), **kept}, sort_keys=True)})

    def lists(
        self,
        columns: Sequence[str],
        *,
        problems: Sequence[str] | None = None,
        n: int | None = None,
        verifier: str | None = None,
    ) -> dict[str, list[Any]]:
        """The named columns of all samples, sorted by (problem, sample number): a list each, of arrays for a token-level column.

        problems: the problems, in this order; None: all, by id, with numbers in ids by their value
        n: the first n of each; raises DataError if a problem has fewer
        verifier: verdicts of this verifier hash; None: the newest of each sample, with its verifier in the column `verifier`

        Text is `escape`d if it is not UTF-8; `samples` undoes that.
        """
        from sage_rlvr.evaluation.store.parts import list_of  # pyarrow

        table = self._read(columns, problems, n, verifier)
        return {name: list_of(name, table[name]) for name in columns}

    def samples(
        self, *, problems: Sequence[str] | None = None, n: int | None = None, verifier: str | None = None
    ) -> list[Sample]:
        """All rows as `Sample`s, text as it was."""
        names = [name for name in self.columns if name in Sample.__dataclass_fields__]
        columns = self.lists(names, problems=problems, n=n, verifier=verifier)
        return [_sample_of(dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]

    def _read(self, columns: Sequence[str], problems: Sequence[str] | None, n: int | None, verifier: str | None = None) -> pa.Table:
        """Columns of the samples of `problems`, all by id if None. Raises DataError if samples or verdicts of `verifier` are
        missing."""
        if unknown := sorted(set(columns) - set(self.columns)):
            raise DataError(f"columns {unknown} are not in a sample store; there are {', '.join(self.columns)}")

        def chosen(held: Firsts) -> list[StoredChunk]:
            names = sorted(held, key=natural) if problems is None else problems
            if missing := self._missing(names, 1 if n is None else n, held):
                raise DataError(
                    f"{self.path}: {len(missing)} chunks are missing for n = {n or self._size} samples of every problem, the first "
                    f"being problem {missing[0].problem!r} from sample {missing[0].first}; continue the evaluation, or use "
                    "a smaller n"
                )
            return [held[name][first] for name in names for first in sorted(held[name]) if n is None or first < n]

        with self._mutex:
            table = self._parts.read(columns, chosen, n, verifier)
        if verifier is not None and "verdict" in columns and (unjudged := table["verdict"].null_count):
            known = list(dict.fromkeys(one["verifier_hash"] for one in self.verifiers()))
            raise DataError(
                f"{self.path}: {unjudged} of {len(table)} samples have no verdict of {verifier!r}; "
                f"run reverify with it, or choose one of {known}"
            )
        return table

    def counts(
        self,
        n: int | None = None,
        *,
        problems: Sequence[str] | None = None,
        verifier: str | None = None,
        check: bool = True,
    ) -> Counts:
        """Right, wrong and undecided samples of each problem: the input of pass@k and every other score.

        Arguments as in `lists`. Raises DataError if verdicts of several verifiers are mixed (a top-up after `reverify`: run it
        again), and, unless `check` is False, if samples repeat each other beyond chance; uncertain repeats give a warning. See
        `evaluation/repeats.py`.
        """
        table = self._read(("problem", "verdict", "verifier", "finish"), problems, n, verifier)
        judges = sorted(table["verifier"].unique().to_pylist())  # of the newest verdicts
        if len(judges) > 1:
            raise DataError(f"{self.path}: verdicts of several verifiers are mixed ({judges}); run reverify with one")
        for repeat in self.repeats(problems=problems, n=n) if check else []:
            if repeat.certain:
                raise DataError(f"{self.path}: {repeat.sentence}")
            warnings.warn(f"{self.path}: {repeat.sentence}", stacklevel=2)
        names, owners = _coded(table["problem"])
        number = {name: _per_problem(owners, _is(table["verdict"], name), len(names)) for name in LABELS}
        return Counts(
            problems=tuple(map(unescape, names)),
            n=_per_problem(owners, np.ones(len(owners), bool), len(names)),
            truncated=_per_problem(owners, _is(table["finish"], "length"), len(names)),
            finish_unknown=_per_problem(owners, table["finish"].is_null().to_numpy(), len(names)),
            **number,
        )

    def repeats(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> list[Repeat]:
        """Signs that samples are not independent; [] if there are none. See `evaluation/repeats.py`."""
        from sage_rlvr.evaluation.store.parts import list_of  # pyarrow

        table = self._read(("problem", "sample", "seed", "text_hash", "token_ids", "rollout_logps"), problems, n)
        names, owners = _coded(table["problem"])
        numbers, texts = (table[name].to_numpy() for name in ("sample", "text_hash"))
        drawn = repeats.Drawn(list(map(unescape, names)), owners, numbers, table["seed"].to_pylist(), texts)
        return repeats.signs_of(
            drawn,
            lambda rows: [list_of(name, table[name].take(rows)) for name in ("token_ids", "rollout_logps")],
            greedy=self.identity.greedy,
            truncated=self.identity.truncated_sampling,
        )

    def digest(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> str:
        """SHA-256 of `table` without `latency_s`: two stores with the same digest have the same report."""
        from sage_rlvr.evaluation.store.parts import bytes_of  # pyarrow

        table = self._read([name for name in self.columns if name not in UNSTEADY], problems, n)
        digest = hashlib.sha256()
        for name in table.column_names:
            digest.update(f"{name}:{len(table)}:".encode())
            for data in bytes_of(table[name]):
                digest.update(data)
        return digest.hexdigest()


def every(held: Firsts) -> list[StoredChunk]:
    """Return all chunks, with or without gaps between them."""
    return [held[name][first] for name in sorted(held, key=natural) for first in sorted(held[name])]


def _sample_of(row: dict[str, Any]) -> Sample:
    """A stored row as a `Sample`, text as it was."""
    if TURNS in row:
        row[TURNS] = turns_in(row[TURNS])
    row |= {name: unescape(row[name]) for name in ESCAPED if row[name] is not None}
    return Sample(**row)


def _coded(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    """A column's different values in order, and the index of each row's value."""
    coded = column.combine_chunks().dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy()


def _is(column: pa.ChunkedArray, value: str) -> NDArray[np.bool_]:
    names, codes = _coded(column.fill_null(""))
    return codes == names.index(value) if value in names else np.zeros(len(codes), bool)


def _per_problem(owners: Ints, which: NDArray[np.bool_], many: int) -> Ints:
    return np.bincount(owners[which], minlength=many).astype(np.int64)
