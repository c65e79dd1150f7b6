"""Rows of arms at equal KL: an arm against another method, interpolated between that method's betas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sage_rlvr.verdicts.design import Design
from sage_rlvr.verdicts.exact_kl import Kls
from sage_rlvr.verdicts.measurements import Measurement, Measurements
from sage_rlvr.verdicts.metric import Matched, Metric
from sage_rlvr.verdicts.pairs import ArmPair
from sage_rlvr.verdicts.row import Estimate
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.sources import Runs
from sage_rlvr.verdicts.stats import paired as paired_by
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.paired import Reason, paired_seeds


def kls_of(runs: Runs, exact: Kls) -> dict[Matched, Kls]:
    """The KLs at which an arm can be matched, by name."""
    raw = {key: run.raw_kl for key, run in runs.items()}
    return {"raw KL": {key: kl for key, kl in raw.items() if kl is not None}, "exact KL": exact}


def matched_pairs(design: Design, arms: Mapping[str, Measurements[Measurement]], task: str = "") -> list[ArmPair]:
    """Every arm with another method at several betas, or for a guided arm the same method without the guide. arms: their rows of
    one task."""
    have = [arm for arm in design.arms if arm.matched and all(name in arms for name in (arm.name, *arm.matched))]
    rivals = [(arm.name, arm.plain or arm.matched[0]) for arm in have]
    return [
        ArmPair(a=a, b=b, why="matched", left=arms[a], right=arms.get(b, Measurements()), task=task) for a, b in rivals
    ]


def matched(
    design: Design, arms: Mapping[str, Measurements[Measurement]], kls: Mapping[Matched, Kls], pair: ArmPair, metric: Metric,
    fixed: bool,
) -> Estimate | None:  # fmt: skip
    """pass@k at equal KL, the rival's interpolated between its betas. "unknown" if no training seed has a KL between those of
    the betas; None without KLs."""
    arm = design.arm(pair.a)
    if arm is None or not metric.matched:
        return None
    names, known = (arm.name, *arm.matched), kls[metric.matched]
    scores = [arms[name].where(temperature=metric.temperature).scores() for name in names]
    values = [one for one in scores if one is not None]
    seeds = sorted(set.intersection(*(set(arms[name].seeds) for name in names)))
    if len(values) < len(names) or any(not set(seeds) <= set(one.seeds) for one in values):
        return None
    own, interpolated, any_kl = [], [], False
    for seed in seeds:
        of_arm, *others = _passes(values, seed, metric.k or 0)
        kl, *rivals = [known.get((name, seed)) for name in names]
        if kl is None or None in rivals:
            continue
        any_kl = True
        at_kl = between(kl, np.array(rivals, dtype=float), np.stack(others))
        if at_kl is not None:
            own.append(of_arm)
            interpolated.append(at_kl)
    if not any_kl:
        return None
    comparison = paired_by.unknown(Reason.OUTSIDE, over="training seeds")
    if own:
        comparison = paired_seeds(np.stack(own), np.stack(interpolated), fixed=fixed)
    return Estimate(comparison, left_out=len(seeds) - len(own))


def _passes(values: Sequence[ProblemScores], seed: int, k: int) -> Floats:
    """pass@k of each arm and problem at a training seed, (arms, N)."""
    own = [one.only([seed]) for one in values]
    for other in own[1:]:
        own[0].check_alike(other)
    return np.stack([one.passes([k])[0, :, 0] for one in own])


def between(kl: float, kls: Floats, scores: Floats) -> Floats | None:
    """Scores (...) at KL `kl` of a method trained at several betas with kls (B,) and scores (B, ...): linear interpolation in
    log KL. None outside the trained range, and if a KL is 0 or not finite and thus has no logarithm."""
    if not all(0 < one < math.inf for one in (kl, *kls)):
        return None
    order = np.argsort(kls)
    x, y = np.log(kls[order]), scores[order]
    if not x[0] <= math.log(kl) <= x[-1]:
        return None
    above = max(1, int(np.searchsorted(x, math.log(kl))))
    share = (math.log(kl) - x[above - 1]) / (x[above] - x[above - 1]) if x[above] > x[above - 1] else 0.0
    return np.asarray(y[above - 1] + share * (y[above] - y[above - 1]))


def kl_difference(pair: ArmPair, kls: Kls, seeds: Sequence[int]) -> Estimate | None:
    """KL to the reference, nats per token, paired over these training seeds; None if one has no KL."""
    left = [kls.get((pair.a, seed)) for seed in seeds]
    right = [kls.get((pair.b, seed)) for seed in seeds]
    if not seeds or None in left or None in right:
        return None
    return Estimate(paired_seeds(np.array(left, dtype=float), np.array(right, dtype=float)))
