"""What a sample store says beyond scores, as lines: reasoning patterns, signal anatomy, perplexity against another store.

    patterns   Eq. (13) of arXiv 2605.18864, both averages, counts        (`stats/samples/patterns.py`)
    anatomy    section 4.2: entropy, surprisal and q by class of token     (`stats/samples/anatomy.py`)
    excess     appendix J: samples beyond the base's own 95 % quantile     (`stats/samples/perplexity.py`)

Functions of the rows alone. Token texts are the caller's: a store keeps ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.sample_report import SCORED, arrays, cell, made_under
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.sample import unescape
from sage_rlvr.stats.samples.anatomy import COUNTDOWN_CLASSES, TOKEN_CLASSES, ClassAnatomy, Spread, token_anatomy
from sage_rlvr.stats.samples.patterns import compare_patterns, pattern_frequencies
from sage_rlvr.stats.samples.perplexity import perplexities, perplexity_excess

EXCESS_AT = 0.95


def pattern_lines(store: SampleStore, n: int | None = None) -> list[str]:
    """Each pattern among the right samples: mean over problems (macro), over solutions (micro), counts, and a caution."""
    lines = ["reasoning patterns among right samples; 95 % intervals over problems; rules: stats/samples/patterns.yaml"]
    for name, found in pattern_frequencies(*_solutions(store, n)).items():
        counts = f"{found.hits:,} of {found.solutions:,} samples, in {found.problems_with} of {found.problems} problems"
        lines.append(f"  {name}: macro {cell(found.macro)}, micro {cell(found.micro)}, {counts}")
        lines += [f"    {found.caution}"] * bool(found.caution)
    return lines


def compared_pattern_lines(name_a: str, a: SampleStore, name_b: str, b: SampleStore, n: int | None = None) -> list[str]:
    """Each pattern in two stores: counts, Fisher's p, and the difference paired by problem."""
    task = a.identity.task
    found = compare_patterns(_solutions(a, n), _solutions(b, n))
    return [f"{task}: {name_a} vs {name_b}, pattern {one.sentence}." for one in found.values()]


def excess_lines(name_a: str, a: SampleStore, name_b: str, b: SampleStore, n: int | None = None) -> list[str]:
    """How much heavier the upper tail of a's perplexities is than b's, where both stores were scored under one base."""
    rows = [store.table(("problem", "base_logps", "versions"), n=n) for store in (a, b)]
    bases = {base for part in rows for base in made_under(part, SCORED)}
    if any(part["base_logps"].null_count for part in rows) or len(bases) > 1:
        return []
    given: list[Any] = []
    for part in rows:
        given += [perplexities(arrays(part["base_logps"])), part["problem"].to_pylist()]
    found = perplexity_excess(*given, quantile=EXCESS_AT)
    base = next(iter(bases), "the base").split()[0]
    return [
        f"{a.identity.task}: samples with a higher perplexity under {base} than {EXCESS_AT:.0%} of {name_b}'s own: "
        f"{name_a} has {found.value:+.3f} more of them (95 % interval {found.low:+.3f} to {found.high:+.3f} over {found.n} "
        "problems)."
    ]


def anatomy_lines(store: SampleStore, text_of: Callable[[Sequence[int]], list[str]], n: int | None = None) -> list[str]:
    """Section 4.2 by class of token. text_of: token ids -> their texts. DataError where a sample lacks tokens or signals."""
    rows = store.table(("problem", "token_ids", "rollout_logps", "entropies", "q"), n=n)
    for name in ("token_ids", "rollout_logps", "entropies"):
        if rows[name].null_count:
            raise DataError(
                f"{store.path}: {rows[name].null_count:,} of {len(rows):,} samples have no {name}; the anatomy needs every "
                "token with its log-prob and entropy: sample with --generator sampler or transformers"
            )
    ids = arrays(rows["token_ids"])
    owners = [name for name, row in zip(rows["problem"].to_pylist(), ids, strict=True) for _ in row]
    flat = np.concatenate(ids)
    known = np.unique(flat)
    texts = dict(zip(known.tolist(), text_of(known.tolist()), strict=True))
    found = token_anatomy(
        [texts[token] for token in flat.tolist()],
        np.concatenate(arrays(rows["entropies"])),
        -np.concatenate(arrays(rows["rollout_logps"])),
        None if rows["q"].null_count else np.concatenate(arrays(rows["q"])),
        problems=owners,
        table=COUNTDOWN_CLASSES if store.identity.task == "countdown" else TOKEN_CLASSES,
    )
    law = store.identity.decoding
    lines = [
        f"signal anatomy of {found.tokens:,} tokens, of the distribution that they were drawn from (T "
        f"{law['temperature']:g}{', truncated' if store.identity.truncated_sampling else ''}); top: share of the {found.top:.0%} "
        "of tokens with the highest signal; below each number its 95 % interval over problems",
        f"  {'class':<26}"
        + "".join(f"{head:>16}" for head, name, _ in COLUMNS if getattr(found.classes[0], name) is not None),
        *(line for row in found.classes for line in _class_lines(row)),
        f"  rank correlation of entropy and surprisal over all tokens {found.correlation:.3f}",
    ]
    if found.correlation_by_problem is not None:
        lines.append(f"  the same within a problem, mean {cell(found.correlation_by_problem)} over problems")
    if found.raised is not None and found.clamped is not None:
        lines.append(f"  q above 1 on {cell(found.raised)} of the tokens, at the clamp on {cell(found.clamped)}")
    return lines


COLUMNS = (  # head, field, percentages or not
    ("tokens", "share", True), ("entropy", "entropy", False), ("top", "top_entropy", True),
    ("surprisal", "surprisal", False), ("top", "top_surprisal", True), ("rank corr.", "correlation", False),
    ("mean q", "q", False), ("raised", "raised", True), ("lowered", "lowered", True), ("clamped", "clamped", True),
)  # fmt: skip


def _class_lines(row: ClassAnatomy) -> list[str]:
    """A class on two lines: its numbers, and below each its interval over problems."""
    top, below = f"  {row.name:<26}", " " * 28
    for _, name, percent in COLUMNS:
        found = getattr(row, name)
        if found is None:
            continue
        value = found.mean if isinstance(found, Spread) else found
        top += f"{_number(value, percent):>16}"
        i = row.intervals.get(name)
        told = i is not None and np.isfinite(i.width)
        below += f"{f'[{_number(i.low, percent)}, {_number(i.high, percent)}]' if told else '':>16}"  # type: ignore[union-attr]
    return [top, below.rstrip()]


def _number(value: float, percent: bool) -> str:
    return f"{value:.1%}" if percent else f"{value:.3f}"


def _solutions(store: SampleStore, n: int | None) -> tuple[list[str], list[bool], list[str]]:
    rows = store.table(("problem", "text", "verdict"), n=n).to_pydict()
    right = [verdict == "right" for verdict in rows["verdict"]]
    if not any(right):
        raise DataError(f"{store.path}: no sample is right, and patterns are counted among right ones")
    return [unescape(text) for text in rows["text"]], right, rows["problem"]


__all__ = ["anatomy_lines", "compared_pattern_lines", "excess_lines", "pattern_lines"]
