"""`SampleStore`: a store that is opened by identity, filled chunk by chunk, judged again and scored afterwards."""

from __future__ import annotations

import getpass
import json
import socket
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from sage_rlvr.evaluation.store.reader import StoredSamples, samples_of
from sage_rlvr.evaluation.store.sample import (
    GUIDED,
    LABELS,
    SCORED,
    TURNS,
    Chunk,
    PromptAndGold,
    Sample,
    judged_text,
    policy_turns,
    text_hash,
    turns_in,
)
from sage_rlvr.runs import differences
from sage_rlvr.runs.record import now

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE = 64  # chunks that are scored between two writes


class SampleStore(StoredSamples):
    """The samples of one policy on one task under one set of decoding settings. Open it with `SampleStore.open`."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._claims = Claims(path / WRITING)
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
            self._claims.close()
            if self._written:
                self._written = False
                try:
                    with folder.explained(self.path):
                        self.merge()
                except DataError as error:
                    warnings.warn(f"{error} (The small parts of {self.path} were not merged; all samples are there.)", stacklevel=2)

    def merge(self) -> tuple[int, int]:
        """Merge small parts into few; returns their number before and after. No sample is lost if the process is killed. While
        another process merges, this waits."""
        return self._parts.merge(self.columns)

    def _agree(self, identity: Identity) -> None:
        """Raise ConfigError if the identities differ; record differences that do not affect samples."""
        noted = _differences(self.path, self.identity.tree(), identity.tree(), set(self._values("verifier")))
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
            self._claims.register()
            while True:
                free: list[Chunk] = []
                for chunk in self._missing(problems, n, self._parts.indexed):
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
        columns["text_hash"] = [text_hash(row.text) for row in rows]
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
            some = unscored[start : start + AT_ONCE]
            columns = self._parts.lists(self._parts.read([*self._own, "versions"], lambda held, some=some: some))
            versions = [json.dumps(json.loads(text) | {stamp[0]: stamp[1]}, sort_keys=True) for text in columns.pop("versions")]
            rows, scores = samples_of(columns), list[NDArray[np.float32]]()
            try:
                while len(scores) < len(rows):
                    chunk = rows[len(scores) : len(scores) + self._size]
                    scores += _fitting(chunk, function(chunk))
                    progress(self._size)
            finally:
                if many := len(scores):
                    address = {name: columns[name][:many] for name in ("problem", "sample")}
                    with self._mutex:
                        self._parts.write_later(folder.SCORES, address | {"base_logps": scores, "versions": versions[:many]})
        return len(unscored) * self._size

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
        "reason": [str(verdict.reason) for verdict in verdicts],
        "answer": [None if answer is None else str(answer) for answer in answers],
    }


def _somebody() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container in which the user has no name
        return f"somebody@{socket.gethostname()}"
