"""`SampleStore`: a store that is opened by identity, filled chunk by chunk, read, judged again and scored afterwards."""

from __future__ import annotations

import getpass
import json
import socket
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation import repeats
from sage_rlvr.evaluation.store import folder
from sage_rlvr.evaluation.store.checks import checked
from sage_rlvr.evaluation.store.claims import Claims
from sage_rlvr.evaluation.store.identity import Identity, is_count, requested
from sage_rlvr.evaluation.store.sample import (
    COLUMNS,
    GUIDED,
    LABELS,
    SCORED,
    TURNS,
    Chunk,
    PromptAndGold,
    Sample,
    judged_text,
    natural,
    policy_turns,
    sha_63,
    turns_in,
)
from sage_rlvr.runs import differences
from sage_rlvr.runs.record import now
from sage_rlvr.safe_io import parse_json
from sage_rlvr.verdicts.chance import KEY

if TYPE_CHECKING:
    import pyarrow as pa

    from sage_rlvr.evaluation.store.parts import StoredParts

AT_ONCE = 64  # chunks that are scored between two writes
Scores = Callable[[list[Sample]], Sequence[ArrayLike]]
HINTS = {
    "template_hash": "the prompts are rendered differently (chat template, --chat-template-kwargs): use another --store",
    "revision": "the weights differ: if the run was continued, use another --store",
}  # for differences of an identity
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


class SampleStore:
    """The samples of one policy on one task under one set of decoding settings. Open it with `SampleStore.open`."""

    def __init__(self, path: Path, identity: Identity | None = None):
        self.path = path
        self.identity = identity or Identity.of(self.facts()["identity"], f"{path / folder.FILE}, identity")
        self._size = self.identity.chunk_size or 1
        self._mutex = threading.RLock()
        self._claims = Claims(path / folder.WRITING)
        self._written = False

    @cached_property
    def _parts(self) -> StoredParts:
        from sage_rlvr.evaluation.store.parts import StoredParts  # pyarrow, slow to import

        return StoredParts(self.path, self.identity.key, self._size)

    @classmethod
    def open(cls, path: str | Path, identity: Identity | None = None) -> SampleStore:
        """Create a store, or open an existing one for reading, continuing or adding samples.

        identity: None opens an existing store for reading or re-verifying. Nothing is locked between calls, so several
        processes may have the store open and write to it.

        Raises ConfigError with every difference when the folder has samples of another identity (other versions are recorded with a
        warning; another verifier is recorded if all samples have its verdicts by now; any other difference is an error). Raises
        DataError when there is no store, or one of another format.
        """
        path = Path(path)
        if identity is not None and not folder.is_store(path):
            if folder.parts_in(path, folder.SAMPLES):
                cls(path, identity).missing([], 1)  # which raises an error for samples of another identity
            folder.create(path, identity.tree())
        store = cls(path)
        if identity is not None:
            store._agree(identity)
        return store

    def __enter__(self) -> SampleStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release claimed chunks and merge the small parts that were written; a second call does nothing. The store can still be
        read and written."""
        with self._mutex:
            self._claims.close()
            if self._written:
                self._written = False
                try:
                    self.merge()
                except DataError as error:
                    warnings.warn(f"{error} (The small parts of {self.path} were not merged; all samples are there.)", stacklevel=2)

    def merge(self) -> tuple[int, int]:
        """Merge small parts into few; returns their number before and after. No sample is lost if the process is killed. While
        another process merges, this waits."""
        with folder.explained(self.path):
            return self._parts.merge(self.columns)

    def _agree(self, identity: Identity) -> None:
        """Raise ConfigError if the identities differ; record differences that do not affect samples."""
        noted = _differences(self.path, self.identity.tree(), identity.tree(), set(self._values("verifier")))
        self.identity = identity
        if not noted:
            return
        scorers = (f"versions.{SCORED}", f"versions.{GUIDED}")  # adding or omitting one changes no sample
        affecting = {name: pair for name, pair in noted.items() if not (name in scorers and "(absent)" in pair)}
        affecting.pop("verifier_hash", None)
        if affecting:
            changed = [f"{name} {old} -> {new}" for name, (old, new) in affecting.items()]
            warnings.warn(
                f"{self.path}: continued under other versions ({', '.join(changed)}); samples may differ from those of a single "
                "version"
            )
        change = {"at": now(), "changed": {name: list(pair) for name, pair in noted.items()}}
        self.note(identity=identity.tree(), changes=[*self.facts()["changes"], change])

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

    def note(self, **facts: Any) -> None:
        """Store facts, which are JSON values; earlier ones of the same names are replaced."""
        folder.note(self.path, facts)

    def want(self, problem_ids: Sequence[str], n: int) -> None:
        """Record the requested size of an evaluation, so that an unfinished store can be recognized."""
        before = self.wanted()
        wanted = {"problems": max(len(problem_ids), before.get("problems", 0)), "n": max(n, before.get("n", 0))}
        if wanted != before:
            self.note(wanted=wanted)

    def describe(self, questions: Mapping[str, PromptAndGold]) -> None:
        """Store the prompts and golds of problems that have none in the store yet."""
        known = self.questions()
        if new := {name: question for name, question in sorted(questions.items()) if name not in known}:
            prompts, golds = zip(*((question.prompt, question.gold) for question in new.values()), strict=True)
            self._parts.write(folder.PROBLEMS, {"problem": list(new), "prompt": prompts, "gold": golds})

    def keep_policy_name_or_path(self, model: str) -> None:
        """Record the folder or name of the policy, from which its tokenizer is read later; not part of the identity, because
        folders move."""
        if self.policy_name_or_path() != model:
            self.note(place=model)

    # ---- missing and new samples

    def missing(self, problem_ids: Iterable[str], n: int, held: Collection[Chunk] | None = None) -> list[Chunk]:
        """The missing chunks for n samples of every problem, all first chunks before any second chunk.

        n is rounded up to complete chunks. held: the existing chunks, by default those of now. Raises ConfigError for n > 1 under
        greedy decoding, whose samples are all the same.
        """
        held = self._parts.chunks() if held is None else held
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

    def claim(self, problem_ids: Iterable[str], n: int, most: int = 1) -> list[Chunk]:
        """Up to `most` of the missing chunks, which no other live writer works on; [] when none is free.

        A claim ends with the chunk's commit, with `release`, `close`, or the end of this process, also by SIGKILL. A
        writer that gets [] while `missing` is not empty can wait: other writers work on the rest.
        """
        problems = list(problem_ids)
        with self._mutex, folder.explained(self.path):
            self._claims.register()
            while True:
                free: list[Chunk] = []
                for chunk in self.missing(problems, n, self._parts.indexed):
                    if len(free) == most:
                        break
                    if self._claims.take(chunk):
                        free.append(chunk)
                held = self._parts.chunks()  # others may have committed some before this claim
                late = [chunk for chunk in free if chunk in held]
                self._claims.drop(late)
                if len(late) < len(free) or not free:
                    return [chunk for chunk in free if chunk not in late]

    def claimants(self) -> str:
        """The other processes with claims, as text for a message."""
        return self._claims.others()

    def release(self) -> None:
        """Release all claimed chunks without committing them."""
        with self._mutex:
            self._claims.drop()

    def commit(self, samples: Sequence[Sample]) -> list[Chunk]:
        """Store complete chunks, all of them or none; returns those that are new.

        An existing chunk is dropped when its seeds and tokens (texts, if there are no tokens) are the same. Otherwise raises
        DataError: the sampler is not a function of the seed. Raises DataError also for incomplete chunks and for invalid samples,
        with nothing written.
        """
        rows, chunks = checked(samples, self._size, self.identity.turns)
        columns: dict[str, Any] = {name: [getattr(row, name, None) for row in rows] for name in self.columns}
        columns["text_hash"] = [sha_63(row.text.encode("utf-8", "surrogatepass")) for row in rows]
        columns["verifier"] = [self.identity.verifier_hash] * len(rows)
        columns["versions"] = [json.dumps(dict(self.identity.versions), sort_keys=True)] * len(rows)
        columns["latency_s"] = [None if row.latency_s is None or np.isnan(row.latency_s) else float(row.latency_s) for row in rows]
        if TURNS in columns:
            columns[TURNS] = [json.dumps(row.turns) for row in rows]
        with self._mutex:
            if not self._claims.has(chunks):
                self._parts.chunks()  # another process may have committed them
            new = self.add(columns)
            self._claims.drop(chunks)
        return new

    def add(self, columns: Mapping[str, Sequence[Any]] | pa.Table) -> list[Chunk]:
        """`commit` for the store's `columns`, sorted by problem and sample: those of complete chunks of valid samples."""
        with self._mutex:
            new = self._parts.add(columns)
            self._written = self._written or bool(new)
        return new

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
            if missing := self.missing(names, 1 if n is None else n, held):
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

    def repeats(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> list[repeats.Repeat]:
        """Signs that samples are not independent; [] if there are none. See `evaluation/repeats.py`."""

        def tokens_of(rows: Ints) -> list[list[Any]]:
            if not len(rows):  # as a rule: tokens are most of a store
                return [[], []]
            table = self._read(("token_ids", "rollout_logps"), problems, n)
            return list(self._parts.lists(table.take(rows)).values())

        table = self._read(("problem", "sample", "seed", "text_hash"), problems, n)
        owned, seeds = self._parts.lists(table.select(["problem", "seed"])).values()
        places = {name: place for place, name in enumerate(dict.fromkeys(owned))}
        owners = np.array([places[name] for name in owned], np.int64)
        numbers, texts = (table[name].to_numpy() for name in ("sample", "text_hash"))
        drawn = repeats.Drawn(list(places), owners, numbers, seeds, texts)
        law = self.identity
        return repeats.signs_of(drawn, tokens_of, greedy=law.greedy, truncated=law.truncated_sampling)

    def digest(self, *, problems: Sequence[str] | None = None, n: int | None = None) -> str:
        """SHA-256 of `table` without `latency_s`: two stores with the same digest have the same report."""
        steady = [name for name in self.columns if name not in UNSTEADY]
        return self._parts.digest(self._read(steady, problems, n))

    # ---- verdicts and log-probs of stored samples

    def reverify(
        self,
        function: Callable[[list[str], list[Any]], Sequence[Any]],
        verifier_hash: str,
        *,
        by: str | None = None,
        batch: int = 4096,
    ) -> int:
        """Judge all samples again; returns how many were judged, not counting those with such a verdict already.

        function: problem ids and texts as `judged_text` (the policy's turns, a tuple, for an episode), of equal length -> one
        verdict each, with `label` ("right", "wrong", "undecided"), `reason`, and `answer` if it has one. verifier_hash: of the
        verifier and its limits. by: the person or program, default user and host. Each batch is committed separately: after an
        interruption, the same call continues. Older verdicts stay readable (`table(verifier=...)`).
        """
        if not verifier_hash:
            raise ConfigError("reverify: verifier_hash is empty; set a hash of the verifier and its limits")
        written = TURNS if TURNS in self.columns else "text"
        rows = self.lists(("problem", "sample", written, "finish", "verifier"))
        outdated = [row[:4] for row in zip(*rows.values(), strict=True) if row[4] != verifier_hash]
        for start in range(0, len(outdated), batch):
            problems, numbers, texts, ends = zip(*outdated[start : start + batch], strict=True)
            judged = [_judged_text(text, end, written == TURNS) for text, end in zip(texts, ends, strict=True)]
            verdicts = _checked_verdicts(function(list(problems), judged), problems, numbers)
            address = {"problem": problems, "sample": numbers, "verifier": [verifier_hash] * len(problems)}
            with self._mutex:
                self._parts.write_later(folder.VERDICTS, address | verdicts, verifier=verifier_hash, by=by or _somebody(), at=now())
        return len(outdated)

    def score(
        self,
        function: Scores,
        stamp: tuple[str, str],
        *,
        progress: Callable[[int], None] = lambda n: None,
    ) -> int:
        """Compute log-probs under a base for samples that have none under it; returns how many were scored. Nothing is generated.

        function: the samples of a chunk -> (T,) log-probs of each, nats. stamp: (key, value) in the rows' versions that identifies
        the base. A few chunks are written at once: after an interruption, the same call continues. progress(m): m more are
        scored. Chunks with unknown token ids are unchanged, with a warning. Raises DataError if `function` does not return one
        number per token.
        """
        unscored = self.unscored(stamp)
        for start in range(0, len(unscored), AT_ONCE):
            self._score(unscored[start : start + AT_ONCE], function, stamp, progress)
        return len(unscored) * self._size

    def _score(self, chunks: list[Chunk], function: Scores, stamp: tuple[str, str], progress: Callable[[int], None]) -> None:
        """Score chunks, and write a part of the scores; after an exception, of those that are known."""
        columns = self._parts.lists(self._parts.read([*self._own, "versions"], lambda _: chunks))
        versions = [json.dumps(json.loads(text) | {stamp[0]: stamp[1]}, sort_keys=True) for text in columns.pop("versions")]
        rows, scores = samples_of(columns), list[NDArray[np.float32]]()
        try:
            for first in range(0, len(rows), self._size):
                chunk = rows[first : first + self._size]
                scores += _fitting(chunk, function(chunk))
                progress(self._size)
        finally:
            if many := len(scores):
                address = {name: columns[name][:many] for name in ("problem", "sample")}
                with self._mutex:
                    self._parts.write_later(folder.SCORES, address | {"base_logps": scores, "versions": versions[:many]})

    def unscored(self, stamp: tuple[str, str]) -> list[Chunk]:
        """The chunks that `score` would score, in the order of the table."""
        table = self._parts.read(("problem", "sample", "token_ids", "base_logps", "versions"))
        under = {text: self._version(text, stamp[0]) == stamp[1] for text in table["versions"].unique().to_pylist()}
        scored = table["base_logps"].is_valid().to_numpy() & np.array([under[text] for text in table["versions"].to_pylist()], bool)
        unscored = ~scored.reshape(-1, self._size).all(1)
        known = table["token_ids"].is_valid().to_numpy().reshape(-1, self._size).all(1)
        if lost := self._size * int((unscored & ~known).sum()):
            warnings.warn(f"{self.path}: {lost} samples have no token ids, so {stamp[1]} cannot score them", stacklevel=2)
        firsts = self._parts.lists(table.select(["problem", "sample"]).take(self._size * np.flatnonzero(unscored & known)))
        return [Chunk(problem, first, self._size) for problem, first in zip(*firsts.values(), strict=True)]


def samples_of(columns: Mapping[str, Sequence[Any]]) -> list[Sample]:
    """Stored columns as `Sample`s, text as it was."""
    if TURNS in columns:
        columns = {**columns, TURNS: list(map(turns_in, columns[TURNS]))}
    return [Sample(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _judged_text(text: str, finish: str | None, turns: bool) -> str | tuple[str, ...]:
    """The verifier's input for a stored text, or for stored turns."""
    if not turns:
        return judged_text(text, finish)
    *before, last = policy_turns(turns_in(text))
    return (*before, judged_text(last, finish))


def _differences(path: Path, old: dict[str, Any], new: dict[str, Any], judges: set[str]) -> dict[str, tuple[Any, Any]]:
    """Differences that are only recorded; raises ConfigError when there are others.

    Versions are recorded, and another verifier if all samples have its verdicts by now. judges: the verifiers of the
    samples' newest verdicts; if they are not only the new identity's, samples judged by it would be mixed with theirs.
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
    also = f"\nThese differ too, and would only be noted:{_change_lines(noted)}" if noted else ""
    advice = "Give the settings they were made with, or name another folder"
    if set(binding) == {"verifier_hash"}:
        advice = (
            f"The samples were judged by another version of the verifier ({binding['verifier_hash'][0]}): run reverify (the same "
            "eval command with --rejudge), after which the samples can be topped up"
        )
    elif (pair := noted.get("versions.sage_rlvr")) is not None:
        maker = "an unknown version of sage-rlvr" if pair[0] == "(absent)" else f"sage-rlvr {pair[0]}"
        advice = f"The samples were made by {maker}: continue them with that version and their settings, or name another folder"
    hints = "".join(f"\n{hint}" for name, hint in HINTS.items() if name in binding)
    raise ConfigError(
        f"{path}: this folder holds samples that were made otherwise; these differences change what they mean:"
        f"{_change_lines(binding)}{also}\n{advice}.{hints}"
    )


def _change_lines(changes: Mapping[str, tuple[Any, Any]]) -> str:
    return "".join(f"\n  {name}: {json.dumps(old)} -> {json.dumps(new)}" for name, (old, new) in changes.items())


def _fitting(rows: Sequence[Sample], scores: Sequence[ArrayLike]) -> list[NDArray[np.float32]]:
    """Log-probs (T,) of each row. Raises DataError if one does not fit."""
    values = [np.asarray(logps, np.float32) for logps in scores]
    given, wanted = [logps.shape for logps in values], [np.shape(np.asarray(row.token_ids)) for row in rows]
    if given != wanted:
        raise DataError(
            f"score: problem {rows[0].problem!r}: shapes {given[:3]}... for tokens of shapes {wanted[:3]}...; one number per token "
            "is wanted"
        )
    return values


def _checked_verdicts(verdicts: Sequence[Any], problems: Sequence[str], samples: Sequence[int]) -> dict[str, list[Any]]:
    """The verdicts, reasons and answers as they are stored."""
    if len(verdicts) != len(problems):
        raise DataError(f"reverify: the verifier gave {len(verdicts)} verdicts for {len(problems)} samples")
    for verdict, problem, sample in zip(verdicts, problems, samples, strict=True):
        if getattr(verdict, "label", None) not in LABELS:
            raise DataError(f"reverify: problem {problem!r}, sample {sample}: {verdict!r} has no label of {LABELS}")
    answers = [getattr(verdict, "answer", None) for verdict in verdicts]
    return {
        "verdict": [verdict.label for verdict in verdicts],
        "reason": [str(verdict.reason) for verdict in verdicts],
        "answer": [None if answer is None else str(answer) for answer in answers],
    }


def _somebody() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container in which the user has no name
        return f"somebody@{socket.gethostname()}"
