"""Sample stores as `report` shows them: the counts of all, and the first samples of each problem with their signals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.cli.found import Found
from sage_rlvr.errors import SageError
from sage_rlvr.evaluation.sample_report import GUIDED, SCORED, arrays, made_under
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.sample import unescape
from sage_rlvr.report import (
    SampleSet,
    Shown,
)
from sage_rlvr.stats.samples.diversity import expected_distinct_correct
from sage_rlvr.stats.samples.patterns import pattern_frequencies
from sage_rlvr.stats.samples.perplexity import perplexities

LONGEST = 4000  # characters of one sample on the page
MOST_SAMPLES = 20_000  # on one page


def sample_sets(found: Found, shown: int) -> tuple[list[SampleSet], list[str]]:
    """Every store as counts (n of the smallest of its task) with its first `shown` samples a problem, MOST_SAMPLES in all; and
    sentences on what could not be read or was left out."""
    stores = [
        (policy.name, seed, path) for policy in (found.base, *found.arms.values()) for seed, path in policy.stores
    ]
    fewest, trouble = _fewest(stores)
    out, left = [], MOST_SAMPLES
    for arm, seed, path in stores:
        with SampleStore.open(path) as store:
            counts = store.counts(check=False)
            if not len(counts.n):
                trouble.append(f"{arm}: {path.name} holds no samples yet.")
                continue
            if lacking := store.lacking(counts):
                trouble.append(f"{arm}: {path.name} has {lacking.partition(';')[0]}.")
            most = fewest[store.identity.task]
            one = _sample_set(store, arm, seed, min(shown, left // max(1, len(counts.problems))), most)
        left -= len(one.shown)
        out.append(one)
    return out, trouble


def _fewest(stores: Sequence[tuple[str, int | None, Path]]) -> tuple[dict[str, int], list[str]]:
    """Of each task the smallest n of its stores, which all are read to, and a sentence where that leaves samples out."""
    sizes: dict[str, dict[str, int]] = {}
    for arm, seed, path in stores:
        with SampleStore.open(path) as store:
            name = f"{arm} ({path.name})" if seed is None else f"{arm}, seed {seed} ({path.name})"
            if len(n := store.counts(check=False).n):
                sizes.setdefault(store.identity.task, {})[name] = int(n.min())
    fewest = {task: min(found.values()) for task, found in sizes.items()}
    said = []
    for task, found in sizes.items():
        more = [f"{name} has {n}" for name, n in found.items() if n > fewest[task]]
        if more:
            said.append(
                f"{task}: the first {fewest[task]} samples of each problem are read, the most that all stores have "
                f"({', '.join(more)})."
            )
    return fewest, said


def _sample_set(store: SampleStore, arm: str, seed: int | None, shown: int, n: int) -> SampleSet:
    """The first n samples of each problem; `shown` of them on the page."""
    counts = store.counts(n, check=False)
    rows = store.table(("problem", "answer", "verdict", "text", "base_logps", "versions"), n=n)
    names = [unescape(name) for name in rows["problem"].to_pylist()]
    right = np.array([verdict == "right" for verdict in rows["verdict"].to_pylist()], dtype=bool)
    law, ks = store.identity.decoding, [*(2**i for i in range(n.bit_length()) if 2**i < n), n]
    scored = sorted(made_under(rows, SCORED))
    known = len(scored) == 1 and not rows["base_logps"].null_count
    answers = rows["answer"].to_pylist()
    texts = [unescape(text) for text in rows["text"].to_pylist()]
    patterns = {}
    if right.any() and store.identity.task != "countdown":
        patterns = pattern_frequencies(texts, right, names, resamples=1000)
    distinct = [expected_distinct_correct(answers[i : i + n], right[i : i + n], ks) for i in range(0, len(answers), n)]
    guides = sorted(made_under(rows, GUIDED))
    return SampleSet(
        arm=arm,
        seed=seed,
        task=store.identity.task,
        law=f"T = {law['temperature']:g}, preset {law['preset']}, at most {law['max_new_tokens']} tokens, n = {n} of each problem"
        + (f", q of {', '.join(guides)}" if guides else ""),
        problems=tuple(counts.problems),
        n=n,
        right=counts.right,
        shown=tuple(_shown(store, min(shown, n))) if shown else (),
        scored=scored[0].split()[0] if known else None,
        perplexities=perplexities(arrays(rows["base_logps"])) if known else None,
        owners=tuple(names),
        is_right=right,
        ks=tuple(ks),
        distinct=np.array(distinct),
        patterns=patterns,
        guide=guides[0] if guides else None,
        temperature=float(law["temperature"]),
    )


def _shown(store: SampleStore, n: int) -> list[Shown]:
    """The first n samples of every problem, as the page shows them."""
    rows = store.samples(n=n)
    ids = [None if row.token_ids is None else np.asarray(row.token_ids) for row in rows]
    spelled = _spellings(store, ids, [row.text for row in rows])
    out = []
    for row, tokens in zip(rows, ids, strict=True):
        long = len(row.text) > LONGEST
        base = row.base_logps
        spell = None if spelled is None or tokens is None or long else tuple(spelled[int(i)] for i in tokens)
        out.append(
            Shown(
                problem=row.problem,
                sample=row.sample,
                text=row.text[:LONGEST],
                verdict=row.verdict,
                reason=row.reason,
                answer=row.answer,
                finish=row.finish,
                left_out=max(0, len(row.text) - LONGEST),
                tokens=spell,
                entropies=None if spell is None or row.entropies is None else tuple(np.asarray(row.entropies).tolist()),
                q=None if spell is None or row.q is None else tuple(np.asarray(row.q).tolist()),
                perplexity=None if base is None else float(perplexities([base])[0]),
            )
        )
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
