"""`SampleStore`: a store that is opened by identity, sampled chunk by chunk, judged again and scored afterwards."""

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
from sage_rlvr.evaluation.store.checks import checked
from sage_rlvr.evaluation.store.database import create
from sage_rlvr.evaluation.store.identity import Identity
from sage_rlvr.evaluation.store.reader import StoredSamples
from sage_rlvr.evaluation.store.sample import (
    ESCAPED,
    GUIDED,
    LABELS,
    SCORED,
    Chunk,
    PromptAndGold,
    Sample,
    escape,
    judged_text,
    natural,
    policy_turns,
    text_hash,
    turns_in,
    unescape,
)
from sage_rlvr.evaluation.store.schema import FILE, TURNS, delete, insert, insert_questions, judge, stored
from sage_rlvr.evaluation.store.writers import name_of, other_writers, processes, sign_in, sign_out
from sage_rlvr.runs import differences
from sage_rlvr.runs.record import now

if TYPE_CHECKING:
    import sqlite3


def is_store(path: str | Path) -> bool:
    """Whether a folder is a sample store."""
    return (Path(path) / FILE).is_file()


class SampleStore(StoredSamples):
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

    def _agree(self, identity: Identity) -> None:
        """ConfigError where the samples here were made otherwise; what is only noted is noted."""
        noted = _differences(self.path, self.identity.tree(), identity.tree(), self._judges())
        self.identity = identity
        if not noted:
            return
        silent = {"verifier_hash"}
        for name in (f"versions.{SCORED}", f"versions.{GUIDED}"):
            if "(absent)" in noted.get(name, ()):  # who scores first, or not this time, changes no sample
                silent.add(name)
        changed = [f"{name} {old} -> {new}" for name, (old, new) in noted.items() if name not in silent]
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
            before = self.wanted()
            problems = max(len(problem_ids), before.get("problems", 0))
            self.note(wanted={"problems": problems, "n": max(n, before.get("n", 0))})

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
            claims = [(*chunk.address, writer) for chunk in free]
            db.executemany("INSERT INTO claims (problem, first, writer) VALUES (?, ?, ?)", claims)
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
                delete(db, chunk)  # what is left of it, where rows were deleted by hand
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
        for name in ESCAPED:
            row[name] = None if row[name] is None else escape(row[name])
        row["sample"] = int(sample.sample)
        row["seed"] = None if sample.seed is None else int(sample.seed)
        row["latency_s"] = None if sample.latency_s is None else float(sample.latency_s)
        row["text_hash"] = text_hash(sample.text)
        row["verifier"] = self.identity.verifier_hash
        row["versions"] = json.dumps(dict(self.identity.versions), sort_keys=True)
        row[TURNS] = None if sample.turns is None else json.dumps(sample.turns)
        return row

    def _check_same(self, db: sqlite3.Connection, new: Mapping[str, Any]) -> None:
        """DataError where the sample that is stored at this address is another one."""
        sql = "SELECT seed, token_ids, text_hash FROM samples WHERE problem = :problem AND sample = :sample"
        seed, tokens, text = db.execute(sql, new).fetchone()
        if tokens is None or new["token_ids"] is None:
            same = text == new["text_hash"]
        else:
            same = tokens == new["token_ids"]
        if seed != new["seed"] or not same:
            raise DataError(
                f"{self.path}: problem {unescape(new['problem'])!r}, sample {new['sample']} already exists with "
                "other tokens or another seed: this sampler is not a function of the seed, or two evaluations share "
                "this folder. The existing sample is kept; claim chunks before sampling them, or use another folder"
            )

    def describe(self, questions: Mapping[str, PromptAndGold]) -> None:
        """Keep the prompts and golds of problems that have none here yet."""
        if set(questions) <= set(self.questions()):
            return
        with self.transaction(write=True) as db:
            insert_questions(db, questions)

    def keep_policy_name_or_path(self, model: str) -> None:
        """Record the folder or name of the policy, from which its tokenizer is read later; not part of the identity, as folders
        move."""
        if self.policy_name_or_path() != model:
            self.note(place=model)

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
        outdated = [row[:4] for row in rows if row[4] != verifier_hash]
        for start in range(0, len(outdated), batch):
            part = outdated[start : start + batch]
            addresses = [(problem, sample) for problem, sample, _, _ in part]
            texts = [_judged_text(text, finish, written == TURNS) for _, _, text, finish in part]
            names = [unescape(problem) for problem, _ in addresses]
            verdicts = _checked_verdicts(function(names, texts), names, [sample for _, sample in addresses])
            self._add_pass(addresses, verdicts, {"verifier": verifier_hash, "who": by or _somebody(), "at": now()})
        return len(outdated)

    def _add_pass(self, addresses: Sequence[tuple[str, int]], verdicts: Sequence[dict[str, Any]], about: dict[str, Any]) -> None:
        """One more verdict on each of these samples. about: verifier, who and at."""
        with self.transaction(write=True) as db:
            (number,) = db.execute("SELECT max(pass) + 1 FROM verdicts").fetchone()
            for address, verdict in zip(addresses, verdicts, strict=True):
                judge(db, address, {"pass": number, **about, **verdict})

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
        unscored = self.unscored(stamp)
        for chunk in unscored:
            rows = [s for s in self.samples(problems=[chunk.problem]) if s.sample in chunk.samples]
            values = _fitting(rows, function(rows))
            with self.transaction(write=True):
                for row, logps in zip(rows, values, strict=True):
                    self._rescore(row, logps, stamp)
            progress(self._size)
        return len(unscored) * self._size

    def unscored(self, stamp: tuple[str, str]) -> list[Chunk]:
        """The chunks that `score` would score, in the order of the table."""
        key, base = stamp
        with self.transaction() as db:
            scored = [text for text, versions in self._all_versions().items() if versions.get(key) == base]
            rows = db.execute(
                "SELECT problem, sample / :size * :size, min(token_ids IS NOT NULL) FROM samples GROUP BY 1, 2 HAVING"
                " max(base_logps IS NULL OR versions NOT IN (SELECT value FROM json_each(:scored)))",
                {"size": self._size, "scored": json.dumps(scored)},
            ).fetchall()
        chunks = [Chunk(unescape(problem), first, self._size) for problem, first, has_tokens in rows if has_tokens]
        if lost := (len(rows) - len(chunks)) * self._size:
            warnings.warn(f"{self.path}: {lost} samples have no token ids, so {base} cannot score them", stacklevel=2)
        return sorted(chunks, key=lambda chunk: (natural(chunk.problem), chunk.first))

    def _rescore(self, sample: Sample, values: NDArray[np.float32], stamp: tuple[str, str]) -> None:
        """Store log-probs (T,) of a sample under the base, and in its versions under which."""
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
    *before, last = policy_turns(turns_in(text))
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
    lines = _change_lines(binding)
    also = f"\nThese differ too, and would only be noted:{_change_lines(noted)}" if noted else ""
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


def _change_lines(changes: Mapping[str, tuple[Any, Any]]) -> str:
    return "".join(f"\n  {name}: {json.dumps(old)} -> {json.dumps(new)}" for name, (old, new) in changes.items())


def _fitting(rows: Sequence[Sample], scores: Sequence[ArrayLike]) -> list[NDArray[np.float32]]:
    """Log-probs (T,) of each row. DataError where one does not fit."""
    values = [np.asarray(logps, np.float32) for logps in scores]
    shapes = [logps.shape for logps in values]
    lengths = [len(np.asarray(row.token_ids)) for row in rows]
    if shapes != [(length,) for length in lengths]:
        raise DataError(
            f"score: problem {rows[0].problem!r}: shapes {shapes[:3]}... for samples of {lengths[:3]}... "
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
