"""A sampler that is a function of the seed, and stores filled from it: what the tests of the sample store share."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from sage_rlvr.evaluation.store import Chunk, Identity, Sample, SampleStore, prompt_hash

DECODING = {"preset": "paper", "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 8}
IDENTITY = Identity(
    task="sums",
    task_hash="t0",
    model="tiny",
    revision="r0",
    prompt="sage",
    template_hash="h0",
    decoding=DECODING,
    verifier_hash="v0",
    seed=7,
    versions={"numpy": "2"},
)
SMALL = replace(IDENTITY, chunk_size=2)
TURNS = replace(SMALL, turns=3)
PROBLEMS = ["a", "b"]


def draw(problem: str, number: int, identity: Identity = IDENTITY) -> Sample:
    """A sampler that is a function of the seed."""
    seed = identity.seed_of(problem, number)
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 5000, rng.integers(1, 9))
    logps = np.full(len(ids), -np.log(5000.0))
    if number == 1:
        logps[0] = -np.inf
    return Sample(
        problem=problem,
        sample=number,
        seed=seed,
        prompt_hash=prompt_hash(problem),
        text=" ".join(map(str, ids)) + ("\ud800 \x00" if number == 0 else ""),
        token_ids=ids,
        rollout_logps=logps,
        base_logps=logps - 1,
        entropies=np.full(len(ids), np.nan) if number == 1 else logps * 0,
        q=None,
        finish="length" if len(ids) == 8 else "stop",
        answer=str(ids[-1]),
        verdict=("right", "wrong", "undecided")[int(ids[0]) % 3],
        reason="because",
        latency_s=float(os.getpid()),
        turns=None if identity.turns == 1 else turns(number, len(ids)),
    )


def turns(number: int, tokens: int) -> tuple[tuple[str, str, int], ...]:
    """One turn of the policy, or two with a reply between them, where there are tokens for it."""
    if number % 2 or tokens < 3:
        return (("policy", f"said {number} \ud800", tokens),)
    return ("policy", "one", 1), ("environment", "no\x00", 1), ("policy", f"{number}", tokens - 2)


def rows(chunks: list[Chunk], identity: Identity = IDENTITY) -> list[Sample]:
    return [draw(chunk.problem, number, identity) for chunk in chunks for number in chunk.samples]


def evaluate(path: Path, problems: list[str], n: int, identity: Identity = IDENTITY, most: int = 2) -> SampleStore:
    store = SampleStore.open(path, identity)
    while chunks := store.claim(problems, n, most):
        store.commit(rows(chunks, identity))
    return store


def report(store: SampleStore) -> bytes:
    """Everything but the latencies as text, as a report would be made of it."""
    counts = store.counts()
    lines = [repr(row) for row in store.table().drop_columns(["latency_s"]).to_pylist()]
    return "\n".join([*lines, repr(counts)]).encode("utf-8")


class Verdict:
    def __init__(self, label: str, reason: str, answer: str | None = None):
        self.label, self.reason, self.answer = label, reason, answer


def lenient(problems: list[str], texts: list[str]) -> list[Verdict]:
    return [Verdict("right", f"{problem}: {text[:1]}", "\udfff") for problem, text in zip(problems, texts, strict=True)]
