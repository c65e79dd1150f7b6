"""The numbers of a sample store as lines: scores over k, shares that qualify them, perplexity tails.

    k | pass@k | pass^k | maj@k | distinct right answers in k, each [interval] | guess floor
    avg@n, Cover@tau, truncation rate, undecided share, answer and token entropy, q: each with its interval over problems

All from the first n samples of every problem, so that two stores of equal n give the same lines whatever they hold beyond.
An undecided sample is not right. A function of the store's rows alone: equal digests give equal lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.lm_eval import UNJUDGED
from sage_rlvr.evaluation.store import Counts, SampleStore
from sage_rlvr.evaluation.store.database import arrays
from sage_rlvr.evaluation.store.sample import GUIDED, SCORED
from sage_rlvr.stats.intervals import Interval, column_intervals, mean_interval, passk_interval, share_interval
from sage_rlvr.stats.majority import maj_at_k
from sage_rlvr.stats.passk import cover_at_tau, pass_hat_k
from sage_rlvr.stats.samples.clusters import clusters, pooled_share, ratio_interval
from sage_rlvr.stats.samples.diversity import answer_entropy, expected_distinct_correct, token_entropy
from sage_rlvr.stats.samples.perplexity import perplexities, perplexity_tails
from sage_rlvr.stats.tempered import reweighted

SAMPLED_POWERS = (1.5, 2.0, 4.0)  # of whole completions; sharper ones leave too few effective samples
TAUS = (0.25, 0.5, 0.75, 1.0)
LEGEND = (
    "           pass@k: one of k samples is right at least; pass^k: all k are; maj@k: the commonest answer of k is; Cover@tau: "
    "share of problems with a share tau of right samples at least"
)
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
    if store.lacking(counts):
        lines.append(f"INCOMPLETE: {store.lacking(counts)}")
    ends = _truncated_line(counts, law["max_new_tokens"])
    if _unjudged(store, counts, n):
        lines.append(
            f"no pass@k: none of {counts.n.sum():,} samples is judged; add --judge boxed (or tag, last_number, whole)"
        )
        return [*lines, ends, *_token_lines(store, n)]
    lines += _table(store, counts, n, floor)
    c = counts.right
    lines.append(f"avg@{n}     {cell(passk_interval(n, c, 1))}")
    covers = [f"{tau:g}: {cell(share_interval(np.asarray(cover_at_tau(n, c, tau))))}" for tau in TAUS]
    lines += ["Cover@tau  " + "  ".join(covers), LEGEND]
    share = f"{_share(counts.undecided, counts.n)} (over {len(counts.problems)} problems)"
    lines += [ends, f"undecided  {share}, counted as not right{_reasons(store, n)}", *_tempered_lines(store, n)]
    return lines + _token_lines(store, n)


def _unjudged(store: SampleStore, counts: Counts, n: int) -> bool:
    """Whether no sample has been judged by anybody: an import whose harness gave no verdict a sample."""
    if (counts.undecided < counts.n).any():
        return False
    return set(store.table(("reason",), n=n)["reason"].to_pylist()) == {UNJUDGED}


def _truncated_line(counts: Counts, limit: int) -> str:
    """The share of samples that met the limit, of those whose end was recorded."""
    known = counts.n - counts.finish_unknown
    if not known.any():
        return "truncated  not recorded"
    of = f" of the {known.sum():,} samples whose end was recorded" if counts.finish_unknown.any() else ""
    share = _share(counts.truncated, known)
    return f"truncated  {share} (over {np.count_nonzero(known)} problems){of} met the limit of {limit} tokens"


def _law(law: dict[str, Any] | Any) -> str:
    cuts = [f"{name} {law[name]:g}" for name, off in (("top_p", 1), ("top_k", 0), ("min_p", 0)) if law[name] != off]
    said = ", ".join(cuts) if cuts else "nothing truncated"
    return f"preset {law['preset']}: T {law['temperature']:g}, {said}"


def powers(n: int) -> list[int]:
    """1, 2, 4, ... below n, and n."""
    return [*(2**i for i in range(n.bit_length()) if 2**i < n), n]


def _table(store: SampleStore, counts: Counts, n: int, floor: Callable[[int], float] | None) -> list[str]:
    ks = powers(n)
    majority, distinct, entropy = _answer_columns(store, n, ks)
    head = "".join(f"{name:<22}" for name in ("pass@k", "pass^k", "maj@k", "distinct right"))
    lines = [f"{'k':>5}  {head}" + ("uniform guesses" if floor else "")]
    for j, k in enumerate(ks):
        hats = share_interval(np.atleast_1d(pass_hat_k(n, counts.right, k)))
        cells = f"{k:>5}  {cell(passk_interval(n, counts.right, k)):<22}{cell(hats):<22}"
        cells += f"{cell(majority[k]) if k in majority else '':<22}{cell(distinct[j], 2):<22}"
        lines.append((cells + (f"{floor(k):.3f}" if floor else "")).rstrip())
    return [
        *(line.rstrip() for line in lines),
        f"answers    {cell(entropy)} nats per problem (a missing answer counts as one answer)",
    ]


def _answer_columns(
    store: SampleStore, n: int, ks: Sequence[int]
) -> tuple[dict[int, Interval], list[Interval], Interval]:
    """Over problems: {k: maj@k} of some k, expected number of distinct right answers at each of ks, answer entropy."""
    rows = store.table(("problem", "answer", "verdict"), n=n).to_pylist()
    some = [k for k in MAJORITY_KS if k < n]
    majority, distinct, entropy = [], [], []
    for _, group in groupby(rows, key=lambda row: row["problem"]):
        answers, right = zip(*((row["answer"], row["verdict"] == "right") for row in group), strict=True)
        drawn = maj_at_k(answers, right, some, method="sample", draws=MAJORITY_DRAWS).values
        majority.append([*drawn, *maj_at_k(answers, right, [n]).values])
        distinct.append(expected_distinct_correct(answers, right, ks))
        entropy.append(answer_entropy(answers))
    votes = [share_interval(column) for column in np.transpose(majority)]
    return dict(zip([*some, n], votes, strict=True)), column_intervals(np.array(distinct)), mean_interval(entropy)


def _reasons(store: SampleStore, n: int) -> str:
    """The commonest reasons of undecided samples, in brackets; "" where there are none."""
    rows = store.table(("verdict", "reason"), n=n).to_pylist()
    reasons = [row["reason"] for row in rows if row["verdict"] == "undecided"]
    often = sorted(set(reasons), key=lambda reason: (-reasons.count(reason), reason))[:3]
    return f" ({', '.join(f'{reason}: {reasons.count(reason):,}' for reason in often)})" if often else ""


def _tempered_lines(store: SampleStore, n: int) -> list[str]:
    """pass@1 of the policy tempered over whole completions, from samples of the policy itself; [] for those of another law."""
    law = store.identity.decoding
    if (law["temperature"], law["top_p"], law["top_k"], law["min_p"]) != (1, 1, 0, 0):
        return []
    rows = store.table(("problem", "verdict", "rollout_logps", "text"), n=n)
    if rows["rollout_logps"].null_count:
        return ["tempered   over whole completions: not available, the samples have no log-probs"]
    of, many = clusters(rows["problem"].to_pylist())
    sums = np.array([float(np.sum(row, dtype=float)) for row in arrays(rows["rollout_logps"])])
    right = np.array([verdict == "right" for verdict in rows["verdict"].to_pylist()])
    texts = np.array(rows["text"].to_pylist(), dtype=object)
    parts = ([column[of == i] for i in range(many)] for column in (sums, right, texts))
    logps, marks, names = parts
    found = [reweighted(logps, marks, names, power) for power in SAMPLED_POWERS]
    cells = [
        f"power {one.power:g}: "
        + (one.reason if one.pass1 is None else f"{cell(one.pass1)}, +- {one.unseen:.1%} for what was not drawn")
        for one in found
    ]
    return [f"tempered   pass@1 over whole completions, pi(y)^power, by importance weights: {'; '.join(cells)}"]


def _token_lines(store: SampleStore, n: int) -> list[str]:
    """Length, entropy, perplexity under the base and q, each where all samples have it."""
    rows = store.table(("problem", "verdict", "token_ids", "entropies", "base_logps", "q", "versions"), n=n)
    of, many = clusters(rows["problem"].to_pylist())
    lines = []
    if not rows["token_ids"].null_count:
        lengths = np.bincount(of, [len(row) for row in rows["token_ids"]], many) / n
        lines.append(f"tokens     {cell(mean_interval(lengths), 1)} a sample, with its end")
    if not rows["entropies"].null_count:
        each = [token_entropy([row]) for row in arrays(rows["entropies"])]
        entropy = mean_interval(np.bincount(of, each, many) / n)
        lines.append(f"entropy    {cell(entropy)} nats per token, of the sampler's distribution")
    if trouble := _unlike(rows, "base_logps", SCORED, "--score-base"):
        lines.append(f"perplexity {trouble}: none is given")
    elif not rows["base_logps"].null_count:
        lines += _tail_lines(rows)
    if trouble := _unlike(rows, "q", GUIDED, "--guide"):
        lines.append(f"q          {trouble}: none is given")
    elif not rows["q"].null_count:
        lines.append(_q_line(arrays(rows["q"]), of, many, *made_under(rows, GUIDED)))
    return lines


def made_under(rows: Any, key: str) -> list[str]:
    """What the rows themselves say of `key` in their versions, each once: the store's own versions are the last writer's."""
    said = [json.loads(text).get(key) for text in dict.fromkeys(rows["versions"].to_pylist())]
    return sorted({word for word in said if word is not None})


def _unlike(rows: Any, column: str, key: str, option: str) -> str:
    """Why a column is no one thing over these rows: it lacks in some, or was made in several ways; "" where it is."""
    lacking = rows[column].null_count
    if 0 < lacking < len(rows):
        return f"{lacking:,} of {len(rows):,} samples were drawn without {option}"
    several = made_under(rows, key)
    return f"samples were drawn under several of {option} ({'; '.join(several)})" if len(several) > 1 else ""


def _q_line(q: list[NDArray[Any]], of: NDArray[Any], many: int, guide: str = "the guide") -> str:
    totals = np.bincount(of, [len(row) for row in q], many)
    mean = ratio_interval(np.bincount(of, [row.sum(dtype=float) for row in q], many), totals)
    moved = _share(np.bincount(of, [np.sum(np.abs(row - 1) > 1e-6) for row in q], many), totals)
    return f"q          mean {cell(mean)}, of {guide}; differs from 1 on {moved} of the tokens"


def _tail_lines(rows: Any) -> list[str]:
    """Eq. (39) of arXiv 2605.18864: all samples, and the right ones alone."""
    values = perplexities(arrays(rows["base_logps"]))
    problems, right = rows["problem"].to_pylist(), np.array([v == "right" for v in rows["verdict"].to_pylist()])
    base = next(iter(made_under(rows, SCORED)), "the base").split()[0]
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


def cell(found: Interval, digits: int = 3) -> str:
    """A number with the ends of its interval in brackets."""
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def _share(hits: NDArray[Any], totals: NDArray[Any]) -> str:
    found = pooled_share(hits, totals)
    return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"


__all__ = ["GUIDED", "SCORED", "arrays", "cell", "common_n", "made_under", "powers", "report_lines"]
