"""Reading a sample store: existing and missing samples, as tables, samples or counts."""

from __future__ import annotations

import json
import threading
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    COLUMNS,
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

    from sage_rlvr.evaluation.store.parts import StoredParts

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
        wanted, present, source = self.wanted().get("problems", 0), len(counts.problems), self.facts().get(IMPORTED)
        if present >= wanted:
            return ""
        advice = "run the same eval command again"
        if source is not None:
            advice = (
                f"the samples were imported from {source}: import a file with all samples into another folder, or sample what "
                f"is missing with eval --store {self.path} and the policy, task and settings of these"
            )
        return f"samples of {present} of {wanted} problems; {advice}"

    def verifiers(self) -> list[dict[str, Any]]:
        """The verifiers: verifier_hash, by, at, rows of every pass, oldest first; first those of the evaluation itself, of which
        there are several if a store was judged again and then topped up."""
        own = Counter(self._parts.read(("verifier",), drawn=True)["verifier"].to_pylist())
        changes = [change["changed"].get("verifier_hash", ["", ""])[1] for change in self.facts()["changes"]]
        rows = [
            {"verifier_hash": name, "by": None, "at": None, "rows": own[name]}
            for name in sorted(own, key=lambda name: changes.index(name) if name in changes else -1)
        ]
        for part in self._parts.of(folder.VERDICTS):
            about = part.about
            rows.append({"verifier_hash": about["verifier"], "by": about["by"], "at": about["at"], "rows": part.rows})
        return rows or [{"verifier_hash": self.identity.verifier_hash, "by": None, "at": None, "rows": 0}]

    def under(self, key: str) -> set[str | None]:
        """Distinct values of `key` (`SCORED`, `GUIDED`) in the versions of the samples; None for samples without it."""
        return {self._version(text, key) for text in self._values("versions")}

    def _version(self, text: str, key: str) -> str | None:
        version: str | None = parse_json(text, f"{self.path}, versions of a sample").get(key)
        return version

    def _values(self, name: str) -> list[Any]:
        """Distinct values of a column."""
        return list(self._parts.read((name,))[name].unique().to_pylist())

    def questions(self) -> dict[str, PromptAndGold]:
        """Problem id -> its prompt and gold, for the described problems."""
        kept: dict[str, PromptAndGold] = {}
        for problem, *question in zip(*self._parts.lists(self._parts.asked()).values(), strict=True):
            kept.setdefault(problem, PromptAndGold(*question))
        return kept

    # ---- what is missing

    def missing(self, problem_ids: Iterable[str], n: int) -> list[Chunk]:
        """The missing chunks for n samples of every problem, all first chunks before any second chunk.

        n is rounded up to complete chunks. Raises ConfigError for n > 1 under greedy decoding, whose samples are all the same.
        """
        return self._missing(problem_ids, n, self._parts.chunks())

    def _missing(self, problem_ids: Iterable[str], n: int, held: Collection[Chunk]) -> list[Chunk]:
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
        chunks = [Chunk(name, first, self._size) for first in range(0, n, self._size) for name in problems]
        return [chunk for chunk in chunks if chunk not in held]

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
        table = self._read(self.columns if columns is None else columns, problems, n, verifier)
        if columns is None:
            table = self._parts.with_questions(table)
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

        Text is as it was, and in `table` `escape`d if it is not UTF-8.
        """
        return self._parts.lists(self._read(columns, problems, n, verifier))

    def samples(
        self, *, problems: Sequence[str] | None = None, n: int | None = None, verifier: str | None = None
    ) -> list[Sample]:
        """All rows as `Sample`s, text as it was."""
        return samples_of(self.lists(self._own, problems=problems, n=n, verifier=verifier))

    @property
    def _own(self) -> list[str]:
        """The columns that are fields of a sample."""
        return [name for name in self.columns if name in Sample.__dataclass_fields__]

    def _read(self, columns: Sequence[str], problems: Sequence[str] | None, n: int | None, verifier: str | None = None) -> pa.Table:
        """Columns of the samples of `problems`, all by id if None. Raises DataError if samples or verdicts of `verifier` are
        missing."""
        if unknown := sorted(set(columns) - set(self.columns)):
            raise DataError(f"columns {unknown} are not in a sample store; there are {', '.join(self.columns)}")

        def chosen(held: Collection[Chunk]) -> list[Chunk]:
            names = sorted({chunk.problem for chunk in held}, key=natural) if problems is None else problems
            if missing := self._missing(names, 1 if n is None else n, held):
                raise DataError(
                    f"{self.path}: {len(missing)} chunks are missing for n = {n or self._size} samples of every problem, the first "
                    f"being problem {missing[0].problem!r} from sample {missing[0].first}; continue the evaluation, or use "
                    "a smaller n"
                )
            order = {name: place for place, name in enumerate(names)}
            own = [chunk for chunk in held if chunk.problem in order and (n is None or chunk.first < n)]
            return sorted(own, key=lambda chunk: (order[chunk.problem], chunk.first))

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
        found = self._parts.counts(table)
        return Counts(tuple(found.pop("problem")), **{name: np.array(many, np.int64) for name, many in found.items()})

    def repeats(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> list[Repeat]:
        """Signs that samples are not independent; [] if there are none. See `evaluation/repeats.py`."""
        table = self._read(("problem", "sample", "seed", "text_hash", "token_ids", "rollout_logps"), problems, n)
        coded = table["problem"].combine_chunks().dictionary_encode()
        names, owners = list(map(unescape, coded.dictionary.to_pylist())), coded.indices.to_numpy()
        numbers, texts = (table[name].to_numpy() for name in ("sample", "text_hash"))
        return repeats.signs_of(
            repeats.Drawn(names, owners, numbers, table["seed"].to_pylist(), texts),
            lambda rows: list(self._parts.lists(table.select(["token_ids", "rollout_logps"]).take(rows)).values()),
            greedy=self.identity.greedy,
            truncated=self.identity.truncated_sampling,
        )

    def digest(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> str:
        """SHA-256 of `table` without `latency_s`: two stores with the same digest have the same report."""
        steady = [name for name in self.columns if name not in UNSTEADY]
        return self._parts.digest(self._read(steady, problems, n))


def samples_of(columns: Mapping[str, Sequence[Any]]) -> list[Sample]:
    """Stored columns as `Sample`s, text as it was."""
    samples = []
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        if TURNS in row:
            row[TURNS] = turns_in(row[TURNS])
        samples.append(Sample(**row))
    return samples
