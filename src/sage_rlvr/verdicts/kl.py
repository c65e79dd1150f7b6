"""KLs to the reference, and comparisons by them: an arm's KL against another's, and pass@k of an arm against another method at
equal KL, interpolated between that method's betas.

Exact KLs are those of trained policies to their base, from their sample stores; raw KLs are those that training logged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sage_rlvr.verdicts.design import Design
from sage_rlvr.verdicts.measurements import Measurement, Measurements, SampledMeasurement
from sage_rlvr.verdicts.metric import REFERENCE, Matched, Metric
from sage_rlvr.verdicts.pairs import ArmPair
from sage_rlvr.verdicts.row import Estimate
from sage_rlvr.verdicts.scores import ProblemScores
from sage_rlvr.verdicts.sources import Runs
from sage_rlvr.verdicts.stats import paired as paired_by
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.paired import Reason, paired_seeds

Kls = Mapping[tuple[str, int], float]
"""(Arm, training seed) -> KL to the reference, nats per token."""
SampledRows = Measurements[SampledMeasurement]


def exact_kls(rows: SampledRows, base: str | None) -> dict[tuple[str, int], float]:
    """The reverse KL to the base of that revision on completions of the policy. rows: of one task and temperature; a row without a
    known training seed counts by its place in the arm, as in `Measurements.scores`."""
    return {
        (arm, index if row.seed is None else row.seed): row.kls[base]
        for arm, own in rows.by_arm().items()
        for index, row in enumerate(own.rows)
        if base is not None and base in row.kls
    }


def exact_kls_of_main(table: SampledRows) -> dict[tuple[str, int], float]:
    """KL per policy with exact records of the main task, from its store at the reference temperature; {} if the stores with a KL
    are of several tasks."""
    at_reference = table.where(temperature=REFERENCE)
    tasks = {row.task for row in at_reference.rows if row.kls}
    return exact_kls(at_reference.where(task=tasks.pop()), base_of(table)) if len(tasks) == 1 else {}


def base_of(table: SampledRows) -> str | None:
    """Return the revision of the base that exact KLs refer to: the only one, or else the only one with samples in the table."""
    known = {revision for row in table.rows for revision in row.kls}
    if len(known) > 1:
        known &= {str(row.identity.get("revision")) for row in table.rows}
    return known.pop() if len(known) == 1 else None


def kls_of(runs: Runs, exact: Kls) -> dict[Matched, Kls]:
    """The KLs at which an arm can be matched, by name."""
    raw = {key: run.raw_kl for key, run in runs.items()}
    return {"raw KL": {key: kl for key, kl in raw.items() if kl is not None}, "exact KL": exact}


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
