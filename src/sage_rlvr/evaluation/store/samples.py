"""`SampleStore`: what `SampleRows` does, opened by identity, judged again, scored afterwards."""

from __future__ import annotations

import getpass
import json
import socket
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.store.database import FILE, TURNS, create, judge
from sage_rlvr.evaluation.store.older import VERDICTS
from sage_rlvr.evaluation.store.rows import Counts, SampleRows, turns_in
from sage_rlvr.evaluation.store.sample import (
    GUIDED,
    LABELS,
    SCORED,
    Chunk,
    Identity,
    Sample,
    escape,
    judged_text,
    natural,
    requested,
    said_of,
    unescape,
)
from sage_rlvr.runs import differences
from sage_rlvr.runs.record import now
from sage_rlvr.safe_io import parse_json


def is_store(path: str | Path) -> bool:
    """Whether a folder is a sample store."""
    return (Path(path) / FILE).is_file()


class SampleStore(SampleRows):
    """The samples of one policy on one task under one set of decoding settings. Open it with `SampleStore.open`."""

    @classmethod
    def open(cls, path: str | Path, identity: Identity | None = None) -> SampleStore:
        """Create a store, or open an existing one for reading, continuing or adding samples.

        identity: None opens what is there, for reading or re-verifying. Nothing is locked between calls, so several
        processes may have the store open and write to it. ConfigError with every difference when the folder holds
        samples of another identity (other versions are noted and warned about; another verifier is noted where all samples
        have its verdicts by now; all else is refused); DataError when there is no store, or one of another format.
        """
        path = Path(path)
        if not (path / FILE).is_file():
            if identity is None:
                raise DataError(f"{path}: no sample store ({FILE} is missing); pass the folder of a store")
            create(path, identity.tree())
        store = cls(path)
        if identity is not None:
            store._agree(identity)
        return store

    def __enter__(self) -> SampleStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _agree(self, identity: Identity) -> None:
        """ConfigError where the samples here were made otherwise; what is only noted is noted."""
        noted = _differences(self.path, self.identity.tree(), identity.tree(), self._judges())
        self.identity = identity
        if not noted:
            return
        # who scores first, or not this time, changes no sample
        first = {f"versions.{name}" for name in (SCORED, GUIDED) if "(absent)" in noted.get(f"versions.{name}", ())}
        changed = [f"{name} {old} -> {new}" for name, (old, new) in noted.items() if name not in {"verifier_hash", *first}]
        if changed:
            warnings.warn(
                f"{self.path}: continued under other versions ({', '.join(changed)}); samples may differ from those of a single "
                "version"
            )
        change = {"at": now(), "changed": {name: list(pair) for name, pair in noted.items()}}
        self.note(identity=identity.tree(), changes=[*self.facts()["changes"], change])

    def want(self, problem_ids: Sequence[str], n: int) -> None:
        """Record the requested size of an evaluation, so that an unfinished store can be recognized."""
        with self.transaction(write=True):
            known = self.wanted()
            self.note(wanted={"problems": max(len(problem_ids), known.get("problems", 0)), "n": max(n, known.get("n", 0))})

    def wanted(self) -> dict[str, int]:
        """The requested size of the largest evaluation as recorded by `want`: problems, n; {} without a record."""
        return requested(self.facts()["wanted"], str(self.path / FILE))

    def keep_place(self, model: str) -> None:
        """Record the folder or name of the policy, from which its tokenizer is read later; not part of the identity, as folders
        move."""
        if self.place() != model:
            self.note(place=model)

    def place(self) -> str | None:
        """The folder or name of the policy as recorded by `keep_place`; None without a record."""
        model = self.facts().get("place")
        return None if model is None else str(model)

    def lacking(self, counts: Counts) -> str:
        """A text about requested problems without samples in `counts`; "" if there are none."""
        wanted, have = self.wanted().get("problems", 0), len(counts.problems)
        return f"samples of {have} of {wanted} problems; {self._advice()}" if have < wanted else ""

    def verifiers(self) -> list[dict[str, Any]]:
        """Who judged: verifier_hash, by, at, rows of every pass, oldest first; first those of the evaluation itself, of which
        there are several where a store was judged again and then topped up."""
        with self.transaction() as db:
            table = VERDICTS if self._older else "verdicts"
            sql = f"SELECT verifier, who, at, count(*) FROM {table} GROUP BY pass, verifier ORDER BY pass, min(id)"
            rows = db.execute(sql).fetchall()
        rows = rows or [(self.identity.verifier_hash, None, None, 0)]
        return [dict(zip(("verifier_hash", "by", "at", "rows"), row, strict=True)) for row in rows]

    def _judges(self) -> set[str]:
        """The verifiers of the samples' newest verdicts."""
        with self.transaction() as db:
            newest = "SELECT verifier, max(pass) FROM verdicts GROUP BY id"
            return {name for (name,) in db.execute(f"SELECT DISTINCT verifier FROM ({newest})")}

    def reverify(
        self,
        function: Callable[[list[str], list[Any]], Sequence[Any]],
        verifier_hash: str,
        *,
        by: str | None = None,
        batch: int = 4096,
    ) -> int:
        """Judge all samples again; returns how many were judged, not counting those whose verdict it already is.

        function: problem ids and texts as `judged_text` (the policy's turns, a tuple, where it is an episode), in step -> one
        verdict each, with `label` ("right", "wrong", "undecided"), `reason`, and `answer` if it has one. verifier_hash: of the
        verifier and its limits. by: who, default user and host. Each batch is committed by itself: interrupted, the same call
        goes on. Older verdicts stay readable (`table(verifier=...)`).
        """
        if not verifier_hash:
            raise ConfigError("reverify: verifier_hash is empty; set a hash of the verifier and its limits")
        written = TURNS if TURNS in self.columns else "text"
        rows = self._read(("problem", "sample", written, "finish", "verifier"), None, None)
        others = [row[:4] for row in rows if row[4] != verifier_hash]
        for start in range(0, len(others), batch):
            some = others[start : start + batch]
            problems = [unescape(row[0]) for row in some]
            texts = [_judged_text(row[2], row[3], written == TURNS) for row in some]
            verdicts = _checked_verdicts(function(problems, texts), problems, [row[1] for row in some])
            self._add_pass([row[:2] for row in some], verdicts, {"verifier": verifier_hash, "who": by or _somebody(), "at": now()})
        return len(others)

    def _add_pass(self, addresses: Sequence[tuple[str, int]], verdicts: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
        """One more verdict on each of these samples. about: verifier, who and at."""
        with self.transaction(write=True) as db:
            (number,) = db.execute("SELECT max(pass) + 1 FROM verdicts").fetchone()
            for address, verdict in zip(addresses, verdicts, strict=True):
                judge(db, address, {"pass": number, **about, **verdict})

    def under(self, key: str) -> set[str | None]:
        """What the samples' versions say of `key` (`SCORED`, `GUIDED`), each once; None is of those that say nothing."""
        with self.transaction() as db:
            return {self._versions(text).get(key) for (text,) in db.execute("SELECT DISTINCT versions FROM samples")}

    def _versions(self, text: str) -> dict[str, Any]:
        return dict(parse_json(text, f"{self.path / FILE}, versions of a sample"))

    def score(
        self,
        function: Callable[[list[Sample]], Sequence[ArrayLike]],
        stamp: tuple[str, str],
        *,
        progress: Callable[[int], None] = lambda n: None,
    ) -> int:
        """Log-probs under a base of the samples that have none under this one; returns how many were scored, nothing drawn.

        function: the samples of a chunk -> (T,) log-probs of each, nats. stamp: (key, value) of the rows' versions that says
        which base it is. A chunk is committed whole: interrupted, the same call goes on. progress(m): m more are scored. Chunks of
        which not all token ids are known stay as they are, with a warning. DataError where one number per token is not what
        `function` gave.
        """
        lacking = self.unscored(stamp)
        for chunk in lacking:
            rows = [s for s in self.samples(problems=[chunk.problem]) if s.sample in chunk.samples]
            values = _fitting(rows, function(rows))
            with self.transaction(write=True):
                for row, logps in zip(rows, values, strict=True):
                    self._rescore(row, logps, stamp)
            progress(self._size)
        return len(lacking) * self._size

    def unscored(self, stamp: tuple[str, str]) -> list[Chunk]:
        """The chunks that `score` would score, in the order of the table."""
        with self.transaction() as db:
            versions = [text for (text,) in db.execute("SELECT DISTINCT versions FROM samples")]
            scored = json.dumps([text for text in versions if self._versions(text).get(stamp[0]) == stamp[1]])
            rows = db.execute(
                "SELECT problem, sample / :size * :size, min(token_ids IS NOT NULL) FROM samples GROUP BY 1, 2 HAVING"
                " max(base_logps IS NULL OR versions NOT IN (SELECT value FROM json_each(:scored)))",
                {"size": self._size, "scored": scored},
            ).fetchall()
        if lost := sum(self._size for *_, known in rows if not known):
            warnings.warn(
                f"{self.path}: {lost} samples have no token ids, so {stamp[1]} cannot score them", stacklevel=2
            )
        chunks = [Chunk(unescape(problem), first, self._size) for problem, first, known in rows if known]
        return sorted(chunks, key=lambda chunk: (natural(chunk.problem), chunk.first))

    def _rescore(self, sample: Sample, values: NDArray[np.float32], stamp: tuple[str, str]) -> None:
        address = (escape(sample.problem), sample.sample)
        with self.transaction(write=True) as db:
            (text,) = db.execute("SELECT versions FROM samples WHERE problem = ? AND sample = ?", address).fetchone()
            versions = json.dumps(self._versions(text) | {stamp[0]: stamp[1]}, sort_keys=True)
            sql = "UPDATE samples SET base_logps = ?, versions = ? WHERE problem = ? AND sample = ?"
            db.execute(sql, (values.tobytes(), versions, *address))


def _judged_text(text: str, finish: str | None, turns: bool) -> str | tuple[str, ...]:
    """What a verifier gets of a stored text, or of stored turns."""
    if not turns:
        return judged_text(unescape(text), finish)
    *before, last = said_of(turns_in(text))
    return (*before, judged_text(last, finish))


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
        "".join(f"\n  {name}: {json.dumps(a)} -> {json.dumps(b)}" for name, (a, b) in changes.items())
        for changes in (binding, noted)
    )
    also = f"\nThese differ too, and would only be noted:{also}" if also else ""
    judge = ""
    if "verifier_hash" in binding:
        judge = (
            f"The samples were judged by another version of the verifier ({binding['verifier_hash'][0]}): run reverify (the same "
            "eval command with --rejudge), after which the samples can be topped up. "
        )
    raise ConfigError(
        f"{path}: this folder holds samples that were made otherwise; these differences change what they mean:{lines}{also}\n"
        f"{judge}Give the settings they were made with, or name another folder."
    )


def _fitting(rows: Sequence[Sample], scores: Sequence[ArrayLike]) -> list[NDArray[np.float32]]:
    """Log-probs (T,) of each row. DataError where one does not fit."""
    values = [np.asarray(one, np.float32) for one in scores]
    lengths = [len(np.asarray(row.token_ids)) for row in rows]
    if [one.shape for one in values] != [(length,) for length in lengths]:
        raise DataError(
            f"score: problem {rows[0].problem!r}: shapes {[one.shape for one in values][:3]}... for samples of {lengths[:3]}... "
            "tokens; one number per token is wanted"
        )
    return values


def _checked_verdicts(verdicts: Sequence[Any], problems: list[str], samples: list[int]) -> list[dict[str, Any]]:
    """The verdict, reason and answer of each as they are stored."""
    if len(verdicts) != len(problems):
        raise DataError(f"reverify: the verifier gave {len(verdicts)} verdicts for {len(problems)} samples")
    rows = []
    for verdict, problem, sample in zip(verdicts, problems, samples, strict=True):
        if getattr(verdict, "label", None) not in LABELS:
            raise DataError(f"reverify: problem {problem!r}, sample {sample}: {verdict!r} has no label of {LABELS}")
        answer = getattr(verdict, "answer", None)
        answer = None if answer is None else escape(str(answer))
        rows.append({"verdict": verdict.label, "reason": escape(str(verdict.reason)), "answer": answer})
    return rows


def _somebody() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container whose user has no name
        return f"somebody@{socket.gethostname()}"
