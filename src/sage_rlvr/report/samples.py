"""Sample stores as the page shows them: counts, signals, and the first samples of each problem with their texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import SageError
from sage_rlvr.evaluation.sample_report import GUIDED, SCORED, arrays, made_under
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.sample import unescape
from sage_rlvr.results import Results
from sage_rlvr.results.design import BASE
from sage_rlvr.stats.samples.diversity import expected_distinct_correct
from sage_rlvr.stats.samples.patterns import PatternFrequency, pattern_frequencies
from sage_rlvr.stats.samples.perplexity import perplexities

LONGEST = 4000  # characters of one sample on the page
MOST_SAMPLES = 20_000  # on one page


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One sample as the page shows it: text (cut, `left_out` characters more), tokens with their entropies and q where kept."""

    problem: str
    sample: int
    text: str
    verdict: str
    reason: str
    answer: str | None = None
    finish: str | None = None
    left_out: int = 0
    tokens: tuple[str, ...] | None = None
    entropies: tuple[float, ...] | None = None
    q: tuple[float, ...] | None = None
    perplexity: float | None = None


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """One sample store. policy: whose it is; arm: the same, with the temperature where there are several. right (N,): right ones
    among n of each of `problems`; perplexities (M,) under `scored` with the problem and verdict of each, where recorded; distinct:
    (N, K) expected distinct right answers over `ks`."""

    arm: str
    policy: str
    seed: int | None
    task: str
    law: str
    problems: tuple[str, ...]
    n: int
    right: NDArray[np.int64]
    shown: tuple[Shown, ...] = ()
    scored: str | None = None
    perplexities: NDArray[np.float64] | None = None
    owners: tuple[str, ...] = ()
    is_right: NDArray[np.bool_] | None = None
    ks: tuple[int, ...] = ()
    distinct: NDArray[np.float64] | None = None
    patterns: Mapping[str, PatternFrequency] = field(default_factory=dict)
    guide: str | None = None
    temperature: float = 1.0

    @property
    def name(self) -> str:
        """The arm, and its training seed where it has one."""
        return self.arm if self.seed is None else f"{self.arm}, seed {self.seed}"


def sample_sets(results: Results, shown: int) -> tuple[SampleSet, ...]:
    """Every whole store with its first `shown` samples of each problem, MOST_SAMPLES in all. An arm that was sampled at several
    temperatures is as many policies, and no two training seeds."""
    out, left = [], MOST_SAMPLES
    for c in sorted(results.counts, key=lambda counts: counts.store.arm != BASE):
        with c.store.open() as store:
            one = _sample_set(store, c.store.arm, c.store.seed, min(shown, left // max(1, len(c.problems))), c)
        left -= len(one.shown)
        out.append(one)
    laws: dict[tuple[str, str], set[float]] = {}
    for s in out:
        laws.setdefault((s.arm, s.task), set()).add(s.temperature)
    return tuple(
        replace(s, arm=f"{s.arm} at T = {s.temperature:g}") if len(laws[s.arm, s.task]) > 1 else s for s in out
    )


def by_task(sets: Iterable[SampleSet]) -> dict[str, list[SampleSet]]:
    """The stores of each task."""
    out: dict[str, list[SampleSet]] = {}
    for s in sets:
        out.setdefault(s.task, []).append(s)
    return out


def by_arm(sets: Iterable[SampleSet]) -> dict[str, list[SampleSet]]:
    """The stores of each arm, one a training seed."""
    out: dict[str, list[SampleSet]] = {}
    for s in sets:
        out.setdefault(s.arm, []).append(s)
    return out


def first_of_each(sets: Iterable[SampleSet]) -> list[SampleSet]:
    """The first store of each arm."""
    return [mine[0] for mine in by_arm(sets).values()]


def _sample_set(store: SampleStore, arm: str, seed: int | None, shown: int, counted: Any) -> SampleSet:
    """The first n samples of each problem; `shown` of them on the page."""
    n, task = counted.n, store.identity.task
    rows = store.table(("problem", "answer", "verdict", "text", "base_logps", "versions"), n=n)
    names = [unescape(name) for name in rows["problem"].to_pylist()]
    right = np.array([verdict == "right" for verdict in rows["verdict"].to_pylist()], dtype=bool)
    law, ks = store.identity.decoding, [*(2**i for i in range(n.bit_length()) if 2**i < n), n]
    scored, guides = sorted(made_under(rows, SCORED)), sorted(made_under(rows, GUIDED))
    known = len(scored) == 1 and not rows["base_logps"].null_count
    answers = rows["answer"].to_pylist()
    texts = [unescape(text) for text in rows["text"].to_pylist()]
    distinct = [expected_distinct_correct(answers[i : i + n], right[i : i + n], ks) for i in range(0, len(answers), n)]
    worded = right.any() and task != "countdown"
    return SampleSet(
        arm=arm, policy=arm, seed=seed, task=task, problems=tuple(counted.problems), n=n, right=counted.right,
        law=f"T = {law['temperature']:g}, preset {law['preset']}, at most {law['max_new_tokens']} tokens, n = {n} of each problem"
        + (f", q of {', '.join(guides)}" if guides else ""),
        shown=tuple(_shown(store, min(shown, n))) if shown else (),
        scored=scored[0].split()[0] if known else None,
        perplexities=perplexities(arrays(rows["base_logps"])) if known else None,
        owners=tuple(names), is_right=right, ks=tuple(ks), distinct=np.array(distinct),
        patterns=pattern_frequencies(texts, right, names, resamples=1000) if worded else {},
        guide=guides[0] if guides else None, temperature=float(law["temperature"]),
    )  # fmt: skip


def _shown(store: SampleStore, n: int) -> list[Shown]:
    """The first n samples of every problem, as the page shows them."""
    rows = store.samples(n=n)
    ids = [None if row.token_ids is None else np.asarray(row.token_ids) for row in rows]
    spelled = _spellings(store, ids, [row.text for row in rows])
    out = []
    for row, tokens in zip(rows, ids, strict=True):
        spell = None
        if spelled is not None and tokens is not None and len(row.text) <= LONGEST:
            spell = tuple(spelled[int(i)] for i in tokens)
        signals = {
            name: None if spell is None or values is None else tuple(np.asarray(values).tolist())
            for name, values in (("entropies", row.entropies), ("q", row.q))
        }
        out.append(
            Shown(
                problem=row.problem, sample=row.sample, text=row.text[:LONGEST], verdict=row.verdict, reason=row.reason,
                answer=row.answer, finish=row.finish, left_out=max(0, len(row.text) - LONGEST), tokens=spell,
                perplexity=None if row.base_logps is None else float(perplexities([row.base_logps])[0]), **signals,
            )
        )  # fmt: skip
    return out


def _spellings(store: SampleStore, rows: Sequence[Any], texts: Sequence[str]) -> dict[int, str] | None:
    """Token id -> its text, from the tokenizer of the store's policy; None where none is there or it spells other texts."""
    from sage_rlvr.models.policy import load_tokens

    known = sorted({int(i) for row in rows if row is not None for i in row})
    runs = [str(parent / "policy") for parent in list(store.path.parents)[:3] if (parent / "policy").is_dir()]
    named = [store.identity.model] if Path(store.identity.model).is_dir() else []
    for place in (*runs, *named, *(["embedded"] if store.identity.task == "countdown" else [])):
        try:
            tokenizer = load_tokens(place).tokenizer
        except SageError:
            continue
        spelled = {i: tokenizer.decode([i]) for i in known}
        pairs = [(row, text) for row, text in zip(rows, texts, strict=True) if row is not None][:32]
        if all(text in "".join(spelled[int(i)] for i in row) for row, text in pairs):
            return spelled
    return None
