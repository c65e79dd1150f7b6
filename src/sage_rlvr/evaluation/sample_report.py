"""The numbers of a sample store as lines: scores over k, shares that qualify them, perplexity tails.

    k | pass@k [interval] | pass^k | maj@k | distinct right answers in k | guess floor
    avg@n, Cover@tau, truncation rate, undecided share: each with its interval over problems

All from the first n samples of every problem, so that two stores of equal n give the same lines whatever they hold beyond.
An undecided sample is not right. A function of the store's rows alone: equal digests give equal lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.clusters import pooled_share
from sage_rlvr.evaluation.diversity import expected_distinct_correct, token_entropy
from sage_rlvr.evaluation.intervals import Interval, passk_interval, share_interval
from sage_rlvr.evaluation.majority import maj_at_k
from sage_rlvr.evaluation.passk import cover_at_tau, pass_hat_k
from sage_rlvr.evaluation.perplexity import perplexities, perplexity_tails
from sage_rlvr.evaluation.samples import Counts, SampleStore

TAUS = (0.25, 0.5, 0.75, 1.0)
TAIL_QUANTILES = (0.5, 0.95, 0.99)
MAJORITY_KS, MAJORITY_DRAWS = (8, 64), 400  # and n itself, exactly; the others from that many subsets a problem


def common_n(store: SampleStore) -> int:
    """The largest n that every problem of the store has. DataError for an empty store."""
    counts = store.counts(check=False)
    if not len(counts.n):
        raise DataError(f"{store.path}: holds no samples yet; run the evaluation first")
    return int(counts.n.min())


def report_lines(store: SampleStore, n: int | None = None, floor: Callable[[int], float] | None = None) -> list[str]:
    """See above. n: default `common_n`. floor: k -> share of problems that k uniform guesses hit, where it is known."""
    n = common_n(store) if n is None else n
    counts = store.counts(n)
    law = store.identity.decoding
    lines = [
        f"{store.identity.task}: {len(counts.problems)} problems, n = {n} samples of each; {_law(law)}; 95 % intervals over "
        "problems and their samples"
    ]
    lines += _table(store, counts, n, floor)
    c = counts.right
    lines.append(f"avg@{n}     {_cell(passk_interval(n, c, 1))}")
    covers = [f"{tau:g}: {_cell(share_interval(np.asarray(cover_at_tau(n, c, tau))))}" for tau in TAUS]
    lines.append("Cover@tau  " + "  ".join(covers))
    lines.append(f"truncated  {_share(counts.truncated, counts.n)} met the limit of {law['max_new_tokens']} tokens")
    if counts.finish_unknown.any():
        lines.append(f"           of {counts.finish_unknown.sum():,} samples nobody recorded how they ended")
    lines.append(f"undecided  {_share(counts.undecided, counts.n)}, counted as not right{_reasons(store, n)}")
    return lines + _token_lines(store, n)


def _law(law: dict[str, Any] | Any) -> str:
    cuts = [f"{name} {law[name]:g}" for name, off in (("top_p", 1), ("top_k", 0), ("min_p", 0)) if law[name] != off]
    said = ", ".join(cuts) if cuts else "nothing truncated"
    return f"preset {law['preset']}: T {law['temperature']:g}, {said}"


def powers(n: int) -> list[int]:
    """1, 2, 4, ... below n, and n."""
    return [*(2**i for i in range(n.bit_length()) if 2**i < n), n]


def _table(store: SampleStore, counts: Counts, n: int, floor: Callable[[int], float] | None) -> list[str]:
    ks = powers(n)
    majority, distinct = _answer_columns(store, n, ks)
    voted = {k: f"{value:.3f}" for k, value in majority.items()}
    head = f"{'k':>5}  {'pass@k':<22}{'pass^k':<9}{'maj@k':<9}{'distinct right':<16}"
    lines = [head + ("uniform guesses" if floor else "")]
    for j, k in enumerate(ks):
        hats = float(np.mean(pass_hat_k(n, counts.right, k)))
        cells = f"{k:>5}  {_cell(passk_interval(n, counts.right, k)):<22}{hats:<9.3f}"
        cells += f"{voted.get(k, ''):<9}{distinct[j]:<16.2f}"
        lines.append((cells + (f"{floor(k):.3f}" if floor else "")).rstrip())
    return lines


def _answer_columns(store: SampleStore, n: int, ks: Sequence[int]) -> tuple[dict[int, float], NDArray[Any]]:
    """Means over problems: {k: maj@k} of some k, and the expected number of distinct right answers at each of ks, (K,)."""
    rows = store.table(("problem", "answer", "verdict"), n=n).to_pylist()
    some = [k for k in MAJORITY_KS if k < n]
    majority, distinct = [], []
    for _, group in groupby(rows, key=lambda row: row["problem"]):
        answers, right = zip(*((row["answer"], row["verdict"] == "right") for row in group), strict=True)
        drawn = maj_at_k(answers, right, some, method="sample", draws=MAJORITY_DRAWS).values
        majority.append([*drawn, *maj_at_k(answers, right, [n]).values])
        distinct.append(expected_distinct_correct(answers, right, ks))
    means = np.mean(majority, axis=0).tolist()
    return dict(zip([*some, n], means, strict=True)), np.mean(distinct, axis=0)


def _reasons(store: SampleStore, n: int) -> str:
    """The commonest reasons of undecided samples, in brackets; "" where there are none."""
    rows = store.table(("verdict", "reason"), n=n).to_pylist()
    reasons = [row["reason"] for row in rows if row["verdict"] == "undecided"]
    often = sorted(set(reasons), key=lambda reason: (-reasons.count(reason), reason))[:3]
    return f" ({', '.join(f'{reason}: {reasons.count(reason):,}' for reason in often)})" if often else ""


def _token_lines(store: SampleStore, n: int) -> list[str]:
    """Length, entropy, perplexity under the base and q, each where all samples have it."""
    rows = store.table(("problem", "verdict", "token_ids", "entropies", "base_logps", "q"), n=n)
    lines = []
    if not rows["token_ids"].null_count:
        lengths = np.array([len(row) for row in rows["token_ids"]])
        lines.append(f"tokens     {lengths.mean():.1f} a sample, with its end")
    if not rows["entropies"].null_count:
        entropy = token_entropy([row.values.to_numpy(zero_copy_only=False) for row in rows["entropies"]])
        lines.append(f"entropy    {entropy:.3f} nats a token, of the sampler's distribution")
    unscored = rows["base_logps"].null_count
    if not unscored:
        lines += _tail_lines(store, rows)
    elif unscored < len(rows):
        lines.append(f"perplexity {unscored:,} of {len(rows):,} samples were drawn without --score-base: none is given")
    if not rows["q"].null_count:
        q = np.concatenate([row.values.to_numpy(zero_copy_only=False) for row in rows["q"]])
        lines.append(
            f"q          mean {q.mean():.3f}; differs from 1 on {np.mean(np.abs(q - 1) > 1e-6):.1%} of the tokens"
        )
    return lines


def _tail_lines(store: SampleStore, rows: Any) -> list[str]:
    """Eq. (39) of arXiv 2605.18864: all samples, and the right ones alone."""
    values = perplexities([row.values.to_numpy(zero_copy_only=False) for row in rows["base_logps"]])
    problems, right = rows["problem"].to_pylist(), np.array([v == "right" for v in rows["verdict"].to_pylist()])
    base = store.identity.versions.get("scored under", "the base").split()[0]
    lines = []
    for name, kept in (("all", np.ones(len(values), dtype=bool)), ("right", right)):
        if kept.any():
            owners = [p for p, keep in zip(problems, kept, strict=True) if keep]
            found = perplexity_tails(values[kept], owners, quantiles=TAIL_QUANTILES)
            cells = [f"{q:.0%}: {i.value:.2f} [{i.low:.2f}, {i.high:.2f}]" for q, i in found.quantiles.items()]
            lines.append(
                f"perplexity under {base}, quantiles of {name} samples  {'  '.join(cells)} {found.caution}".rstrip()
            )
    return lines


def _cell(found: Interval) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _share(hits: NDArray[Any], totals: NDArray[Any]) -> str:
    found = pooled_share(hits, totals)
    return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"


__all__ = ["common_n", "powers", "report_lines"]
