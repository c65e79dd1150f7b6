"""`SampleStore`: a store that is opened by identity, filled chunk by chunk, judged again and scored afterwards."""

from __future__ import annotations

import getpass
import json
import socket
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.store import folder
from sage_rlvr.evaluation.store.checks import checked
from sage_rlvr.evaluation.store.claims import Claims
from sage_rlvr.evaluation.store.folder import WRITING, is_store
from sage_rlvr.evaluation.store.identity import Identity
from sage_rlvr.evaluation.store.reader import StoredSamples, every
from sage_rlvr.evaluation.store.sample import (
    ESCAPED,
    GUIDED,
    LABELS,
    SCORED,
    TURNS,
    Chunk,
    PromptAndGold,
    Sample,
    escape,
    judged_text,
    policy_turns,
    text_hash,
    turns_in,
    unescape,
)
from sage_rlvr.runs import differences
from sage_rlvr.runs.record import now
from sage_rlvr.safe_io import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE = 64  # chunks that are scored between two writes


class SampleStore(StoredSamples):
    """The samples of one policy on one task under one set of decoding settings. Open it with `SampleStore.open`."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._claims: Claims | None = None
        self._written = False

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
        if identity is not None and not is_store(path):
            if folder.parts_in(path, folder.SAMPLES):
                cls._parts_of(path, identity).chunks()  # which raises an error for those of another identity
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
            if self._claims is not None:
                self._claims.close()
                self._claims = None
            if self._written:
                self._written = False
                try:
                    with folder.explained(self.path):
                        self.merge()
                except DataError as error:
                    warnings.warn(f"{error} (The small parts of {self.path} were not merged; all samples are there.)", stacklevel=2)

    def merge(self) -> tuple[int, int]:
        """Merge small parts into few; returns their number before and after. No sample is lost if the process is killed."""
        return self._parts.merge()

    def _agree(self, identity: Identity) -> None:
        """Raise ConfigError if the identities differ; record differences that do not affect samples."""
        noted = _differences(self.path, self.identity.tree(), identity.tree(), self._judges())
        self.identity = identity
        if not noted:
            return
        silent = {"verifier_hash"}
        for name in (f"versions.{SCORED}", f"versions.{GUIDED}"):
            if "(absent)" in noted.get(name, ()):  # adding or omitting a scorer changes no sample
                silent.add(name)
        changed = [f"{name} {old} -> {new}" for name, (old, new) in noted.items() if name not in silent]
        if changed:
            warnings.warn(
                f"{self.path}: continued under other versions ({', '.join(changed)}); samples may differ from those of a single "
                "version"
            )
        change = {"at": now(), "changed": {name: list(pair) for name, pair in noted.items()}}
        self.note(identity=identity.tree(), changes=[*self.facts()["changes"], change])

    def note(self, **facts: Any) -> None:
        """Store facts, which are JSON values; earlier ones of the same names are replaced."""
        folder.note(self.path, facts)

    def want(self, problem_ids: Sequence[str], n: int) -> None:
        """Record the requested size of an evaluation, so that an unfinished store can be recognized."""
        before = self.wanted()
        wanted = {"problems": max(len(problem_ids), before.get("problems", 0)), "n": max(n, before.get("n", 0))}
        if wanted != before:
            self.note(wanted=wanted)

    def claim(self, problem_ids: Iterable[str], n: int, most: int = 1) -> list[Chunk]:
        """Up to `most` of the missing chunks, which no other live writer works on; [] when none is free.

        A claim ends with the chunk's commit, with `release`, `close`, or the end of this process, also by SIGKILL. A
        writer that gets [] while `missing` is not empty can wait: other writers work on the rest.
        """
        problems = list(problem_ids)
        with self._mutex, folder.explained(self.path):
            if self._claims is None:
                self._claims = Claims(self.path / WRITING)
            while True:
                free: list[Chunk] = []
                for chunk in self._missing(problems, n, self._parts.indexed):
                    if len(free) == most:
                        break
                    if self._claims.take(chunk):
                        free.append(chunk)
                held = self._parts.chunks()  # others may have committed some before this claim
                late = [chunk for chunk in free if chunk.first in held.get(chunk.problem, ())]
                self._claims.drop(late)
                if len(late) < len(free) or not free:
                    return [chunk for chunk in free if chunk not in late]

    def claimants(self) -> str:
        """The other processes with claims, as text for a message."""
        return "another process" if self._claims is None else self._claims.others()

    def release(self) -> None:
        """Release all claimed chunks without committing them."""
        with self._mutex:
            if self._claims is not None:
                self._claims.drop()

    def commit(self, samples: Sequence[Sample]) -> list[Chunk]:
        """Store complete chunks, all of them or none; returns those that are new.

        An existing chunk is dropped when its seeds and tokens (texts, if there are no tokens) are the same. Otherwise raises
        DataError: the sampler is not a function of the seed. Raises DataError also for incomplete chunks and for invalid samples,
            with nothing written.
        """
        rows, chunks = checked(samples, self._size, self.identity.turns)
        with self._mutex:
            there = self._parts.indexed if self._claims and self._claims.has(chunks) else self._parts.chunks()
            held = {chunk for chunk in chunks if chunk.first in there.get(chunk.problem, ())}
            new = [chunk for chunk in chunks if chunk not in held]
            given = {chunk: rows[at * self._size : (at + 1) * self._size] for at, chunk in enumerate(chunks)}
            for chunk in held:
                self._check_same(chunk, given[chunk])
            if new:
                self._write([row for chunk in new for row in given[chunk]])
            if self._claims is not None:
                self._claims.drop(chunks)
        return new

    def _write(self, rows: Sequence[Sample]) -> None:
        """Write a part of samples, judged and generated under this identity."""
        from sage_rlvr.evaluation.store.parts import table_of  # pyarrow

        columns: dict[str, Any] = {name: [getattr(row, name, None) for row in rows] for name in self.columns}
        for name in ESCAPED:
            columns[name] = [None if text is None else escape(text) for text in columns[name]]
        columns["text_hash"] = [text_hash(row.text) for row in rows]
        columns["verifier"] = [self.identity.verifier_hash] * len(rows)
        columns["versions"] = [json.dumps(dict(self.identity.versions), sort_keys=True)] * len(rows)
        columns["latency_s"] = [None if row.latency_s is None or np.isnan(row.latency_s) else float(row.latency_s) for row in rows]
        if TURNS in columns:
            columns[TURNS] = [json.dumps(row.turns) for row in rows]
        self.write_table(table_of(columns))

    def write_table(self, table: pa.Table) -> None:
        """Store complete chunks of new samples, sorted by problem and sample, with the columns of `columns`."""
        self._parts.write_samples(table)
        self._written = True

    def _check_same(self, chunk: Chunk, rows: Sequence[Sample]) -> None:
        """Raise DataError if the stored samples of a chunk are others."""
        names = ("seed", "token_ids", "text_hash")
        stored = self.lists(names, problems=[chunk.problem], n=chunk.first + chunk.size)
        for row, seed, tokens, text in zip(rows, *(stored[name][-chunk.size :] for name in names), strict=True):
            if tokens is None or row.token_ids is None:
                same = text == text_hash(row.text)
            else:
                same = np.array_equal(tokens, np.asarray(row.token_ids))
            if seed != row.seed or not same:
                raise DataError(
                    f"{self.path}: problem {row.problem!r}, sample {row.sample} already exists with "
                    "other tokens or another seed: this sampler is not a function of the seed, or two evaluations share "
                    "this folder. The existing sample is kept; claim chunks before sampling them, or use another folder"
                )

    def describe(self, questions: Mapping[str, PromptAndGold]) -> None:
        """Store the prompts and golds of problems that have none in the store yet."""
        from sage_rlvr.evaluation.store.parts import table_of  # pyarrow

        known = self.questions()
        if new := {name: question for name, question in sorted(questions.items()) if name not in known}:
            golds = [None if question.gold is None else escape(question.gold) for question in new.values()]
            prompts = [escape(question.prompt) for question in new.values()]
            self._parts.write(folder.PROBLEMS, table_of({"problem": list(map(escape, new)), "prompt": prompts, "gold": golds}))

    def keep_policy_name_or_path(self, model: str) -> None:
        """Record the folder or name of the policy, from which its tokenizer is read later; not part of the identity, because
        folders move."""
        if self.policy_name_or_path() != model:
            self.note(place=model)

    def _judges(self) -> set[str]:
        """The verifiers of the samples' newest verdicts."""
        return set(self._parts.read(("verifier",), every)["verifier"].unique().to_pylist())

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
        from sage_rlvr.evaluation.store.parts import table_of  # pyarrow

        written = TURNS if TURNS in self.columns else "text"
        rows = self.lists(("problem", "sample", written, "finish", "verifier"))
        outdated = [row[:4] for row in zip(*rows.values(), strict=True) if row[4] != verifier_hash]
        for start in range(0, len(outdated), batch):
            problems, numbers, texts, ends = zip(*outdated[start : start + batch], strict=True)
            names = list(map(unescape, problems))
            judged = [_judged_text(text, end, written == TURNS) for text, end in zip(texts, ends, strict=True)]
            verdicts = _checked_verdicts(function(names, judged), names, numbers)
            address = {"problem": problems, "sample": numbers, "verifier": [verifier_hash] * len(names)}
            table, about = table_of(address | verdicts), {"verifier": verifier_hash, "by": by or _somebody(), "at": now()}
            with self._mutex:
                self._parts.write_later(folder.VERDICTS, table, **about)
        return len(outdated)

    def score(
        self,
        function: Callable[[list[Sample]], Sequence[ArrayLike]],
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
            scored: list[tuple[Sample, str, NDArray[np.float32]]] = []
            try:
                for rows, versions in self._rows_of(unscored[start : start + AT_ONCE]):
                    scored += zip(rows, versions, _fitting(rows, function(rows)), strict=True)
                    progress(self._size)
            finally:
                self._write_scores(scored, stamp)
        return len(unscored) * self._size

    def _rows_of(self, chunks: Sequence[Chunk]) -> list[tuple[list[Sample], list[str]]]:
        """The samples of each chunk, and their versions."""
        problems = list(dict.fromkeys(chunk.problem for chunk in chunks))
        versions = self.lists(("versions",), problems=problems)["versions"]
        rows: dict[Chunk, tuple[list[Sample], list[str]]] = {chunk: ([], []) for chunk in chunks}
        for row, text in zip(self.samples(problems=problems), versions, strict=True):
            chunk = Chunk(row.problem, row.sample - row.sample % self._size, self._size)
            if chunk in rows:
                rows[chunk][0].append(row)
                rows[chunk][1].append(text)
        return list(rows.values())

    def _write_scores(self, scored: Sequence[tuple[Sample, str, NDArray[np.float32]]], stamp: tuple[str, str]) -> None:
        """Write a part of log-probs under a base, with the versions that name the base."""
        from sage_rlvr.evaluation.store.parts import table_of  # pyarrow

        if not scored:
            return
        columns: dict[str, Sequence[Any]] = {
            "problem": [escape(row.problem) for row, _, _ in scored],
            "sample": [row.sample for row, _, _ in scored],
            "base_logps": [values for _, _, values in scored],
            "versions": [json.dumps(json.loads(text) | {stamp[0]: stamp[1]}, sort_keys=True) for _, text, _ in scored],
        }
        with self._mutex:
            self._parts.write_later(folder.SCORES, table_of(columns))

    def unscored(self, stamp: tuple[str, str]) -> list[Chunk]:
        """The chunks that `score` would score, in the order of the table."""
        key, base = stamp
        table = self._parts.read(("problem", "sample", "token_ids", "base_logps", "versions"), every)
        texts = table["versions"].unique().to_pylist()
        scored = {text for text in texts if parse_json(text, f"{self.path}, versions of a sample").get(key) == base}
        known, logps = (table[name].is_valid().to_pylist() for name in ("token_ids", "base_logps"))
        problems, numbers, made = (table[name].to_pylist() for name in ("problem", "sample", "versions"))
        rows = zip(problems, numbers, known, logps, made, strict=True)
        chunks, lost = [], 0
        for (problem, first), group in groupby(rows, key=lambda row: (row[0], row[1] - row[1] % self._size)):
            own = list(group)
            if all(there and text in scored for _, _, _, there, text in own):
                continue
            if all(has_tokens for _, _, has_tokens, _, _ in own):
                chunks.append(Chunk(unescape(problem), first, self._size))
            else:
                lost += self._size
        if lost:
            warnings.warn(f"{self.path}: {lost} samples have no token ids, so {base} cannot score them", stacklevel=2)
        return chunks


def _judged_text(text: str, finish: str | None, turns: bool) -> str | tuple[str, ...]:
    """The verifier's input for a stored text, or for stored turns."""
    if not turns:
        return judged_text(unescape(text), finish)
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
    lines = _change_lines(binding)
    also = f"\nThese differ too, and would only be noted:{_change_lines(noted)}" if noted else ""
    if set(binding) == {"verifier_hash"}:
        advice = (
            f"The samples were judged by another version of the verifier ({binding['verifier_hash'][0]}): run reverify (the same "
            "eval command with --rejudge), after which the samples can be topped up"
        )
    elif (pair := noted.get("versions.sage_rlvr")) is not None:
        maker = "an unknown version of sage-rlvr" if pair[0] == "(absent)" else f"sage-rlvr {pair[0]}"
        advice = f"The samples were made by {maker}: continue them with that version and their settings, or name another folder"
    else:
        advice = "Give the settings they were made with, or name another folder"
    raise ConfigError(
        f"{path}: this folder holds samples that were made otherwise; these differences change what they mean:{lines}{also}\n"
        f"{advice}."
    )


def _change_lines(changes: Mapping[str, tuple[Any, Any]]) -> str:
    return "".join(f"\n  {name}: {json.dumps(old)} -> {json.dumps(new)}" for name, (old, new) in changes.items())


def _fitting(rows: Sequence[Sample], scores: Sequence[ArrayLike]) -> list[NDArray[np.float32]]:
    """Log-probs (T,) of each row. Raises DataError if one does not fit."""
    values = [np.asarray(logps, np.float32) for logps in scores]
    shapes = [logps.shape for logps in values]
    lengths = [len(np.asarray(row.token_ids)) for row in rows]
    if shapes != [(length,) for length in lengths]:
        raise DataError(
            f"score: problem {rows[0].problem!r}: shapes {shapes[:3]}... for samples of {lengths[:3]}... "
            "tokens; one number per token is wanted"
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
        "reason": [escape(str(verdict.reason)) for verdict in verdicts],
        "answer": [None if answer is None else escape(str(answer)) for answer in answers],
    }


def _somebody() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container in which the user has no name
        return f"somebody@{socket.gethostname()}"
