"""One policy by itself: the numbers of its samples, and the differences that a comparison with it could detect.

    portraits(results)   one per task and temperature
    tree(results)        for JSON; text/one_file.py has the lines for a terminal
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.stats.curves import paired_count_curve
from sage_rlvr.verdicts.stats.intervals import SEED, Interval, share_interval
from sage_rlvr.verdicts.stats.passk import powers
from sage_rlvr.verdicts.stats.samples.clusters import clustered_mean
from sage_rlvr.verdicts.units import OneRunEach
from sage_rlvr.verdicts.verdict import ALL_RIGHT, SHOWN

MOST_VOTES = 64  # samples of a majority vote


@dataclass(frozen=True, kw_only=True)
class Portrait:
    """One policy on one task at one temperature.

    passes: k -> pass@k
    banded: whether the limits of `passes` hold at all k at once
    all_right: pass^k
    vote: maj@k, None without answers
    silent: share of samples without an answer
    never, always: number of problems of which no sample, and every sample, is right
    seen: k -> the difference in pass@k that a second file could show, if it is like this one and if it is unrelated; None for
        several training seeds
    """

    arm: str
    task: str
    temperature: float
    problems: int
    n: int
    passes: Mapping[int, Interval]
    banded: bool
    all_right: tuple[int, Interval]
    vote: tuple[int, Interval] | None
    silent: float
    never: int
    always: int
    seen: Mapping[int, tuple[float, float]] | None
    chance: Chance | None


def portraits(results: Results) -> list[Portrait]:
    """Every policy by itself, in order of appearance."""
    made = []
    for (_, task, _), rows in results.table.sampled().policies().items():
        scores = rows.scores()
        assert scores is not None
        made.append(_portrait(scores, results, task))
    return made


def _portrait(scores: ProblemScores, results: Results, task: str) -> Portrait:
    n = min(results.k, scores.n or 1)
    ks = sorted({k for k in (*SHOWN, *powers(n), n) if k <= n})
    banded, passes = _passes(scores, ks)
    tries = min(ALL_RIGHT, n)
    failing = replace(scores, values=scores.samples - scores.values, tables=()).interval(tries)
    k, vote, silent = _vote(scores, n)
    return Portrait(
        arm=scores.arm, task=task, temperature=scores.temperature, problems=len(scores.problems), n=n, passes=passes, banded=banded,
        all_right=(tries, replace(failing, value=1 - failing.value, low=1 - failing.high, high=1 - failing.low)),
        vote=None if vote is None else (k, vote), silent=silent, never=int(np.sum(scores.values.sum(axis=0) == 0)),
        always=int(np.sum((scores.values == scores.samples).all(axis=0))), seen=_seen(scores, n), chance=results.chances.get(task),
    )  # fmt: skip


def _passes(scores: ProblemScores, ks: Sequence[int]) -> tuple[bool, dict[int, Interval]]:
    """pass@k at ks, and whether its limits hold at all k at once: those of the band of the difference to a policy that solves
    nothing, and at least as wide as the interval at that k."""
    alone = {k: scores.interval(k) for k in ks}
    if len(scores.values) > 1:
        return False, alone
    counts = scores.values[0].astype(int)
    curve = paired_count_curve(scores.samples[0], counts, np.zeros_like(counts), cluster=scores.cluster or None)
    if curve.reason:
        return False, alone
    place = {k: i for i, k in enumerate(curve.ks)}
    limits = {k: (max(0.0, float(curve.low[i])), min(1.0, float(curve.high[i]))) for k, i in place.items() if k in alone}
    return True, {
        k: replace(one, low=min(one.low, limits[k][0]), high=max(one.high, limits[k][1])) for k, one in alone.items() if k in limits
    }


def _vote(scores: ProblemScores, n: int) -> tuple[int, Interval | None, float]:
    """maj@k at the largest power of two up to `MOST_VOTES`, and the share of samples without an answer; None if the rows have no
    answers."""
    from sage_rlvr.verdicts.stats.samples.majority import maj_at_k

    k = max(one for one in powers(min(n, MOST_VOTES)) if one <= n)
    columns = [(table.answers, table.right) for table in scores.tables]
    if k < 2 or not columns or any(answers is None or right is None for answers, right in columns):
        return k, None, 0.0
    values = [
        [float(maj_at_k(row, hits, [k]).values[0]) for row, hits in zip(answers or (), right or (), strict=True)]
        for answers, right in columns
    ]
    flat = [answer for answers, _ in columns for row in answers or () for answer in row]
    mean = np.mean(values, axis=0)
    interval = clustered_mean(mean, scores.cluster, shares=True) if scores.cluster else share_interval(mean)
    return k, interval, sum(answer is None for answer in flat) / len(flat)


def _seen(scores: ProblemScores, n: int) -> dict[int, tuple[float, float]] | None:
    """Differences that a second file could show, at 1 and n: of two policies that both solve each problem as often as this one did,
    sampled again, and of two that solve unrelated problems. {} if no difference could be detected, None for several training
    seeds."""
    if len(scores.values) > 1:
        return None
    rng, rates = np.random.default_rng(SEED), scores.values / scores.samples
    one, two = (replace(scores, values=rng.binomial(scores.samples, rates).astype(float)) for _ in range(2))
    places = rng.permutation(len(scores.problems))
    other = replace(two, values=np.minimum(two.values[:, places], two.samples))
    found: dict[int, tuple[float, float]] = {}
    for k in dict.fromkeys((1, n)):
        values = []
        for side in (two, other):
            both = OneRunEach(side, one)
            curve = both.curve(n)
            values.append(float("nan") if curve.reason else both.detectable(k, curve))
        if np.isfinite(values).all():
            found[k] = values[0], values[1]
    return found


def tree(results: Results) -> dict[str, Any]:
    """Return the portraits for JSON."""
    return {"policies": list(map(_policy, portraits(results))), "notes": [*results.failed, *results.notes]}


def _policy(one: Portrait) -> dict[str, Any]:
    made = {"arm": one.arm, "task": one.task, "temperature": one.temperature, "problems": one.problems, "samples": one.n}
    made |= {"pass": {str(k): _ends(score) for k, score in one.passes.items()}, "simultaneous": one.banded}
    made |= {"pass_hat": _of_k(one.all_right), "majority": _of_k(one.vote), "never": one.never, "always": one.always}
    seen = one.seen or {}
    made["detectable"] = {str(k): {"same": same, "unrelated": apart} for k, (same, apart) in seen.items()}
    made["chance"] = None if one.chance is None else {str(k): one.chance.at(k) for k in one.passes}
    return made


def _of_k(score: tuple[int, Interval] | None) -> dict[str, Any]:
    return {} if score is None else {str(score[0]): _ends(score[1])}


def _ends(one: Interval) -> dict[str, float]:
    return {"value": one.value, "low": one.low, "high": one.high}


__all__ = ["Portrait", "portraits", "tree"]
