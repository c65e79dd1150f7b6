"""Arms against sets of baselines: the best mixture of several arms at equal pass@1, and the headroom up to the oracle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from sage_rlvr.verdicts.chance import KEY, Chance, chance_of_tree
from sage_rlvr.verdicts.design import Design, Envelope
from sage_rlvr.verdicts.measurements import ExactMeasurements
from sage_rlvr.verdicts.metric import REFERENCE, Metric, above_baselines
from sage_rlvr.verdicts.pairs import Arms, run_at
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.stats.hull import AboveHull, above_hull, on_hull
from sage_rlvr.verdicts.stats.mixture import Table, above_mixtures, on_mixtures
from sage_rlvr.verdicts.stats.tempered import power_table
from sage_rlvr.verdicts.text.mixtures import mixture_words

GUESSER = "uniform guesser"
Allowed = Mapping[str, Table]
"""Tables that every mixture per completion may use besides the baselines, by name."""


def always_allowed(base: ExactMeasurements, record: Record | None) -> dict[str, Table]:
    """The base at its temperatures, and guessers of well-formed answers, if the task can count them. base:
    empty without an exact record of the base."""
    guesses = guesses_of(chance_of_tree(record.meta.get(KEY))) if record is not None else ()
    tables: dict[str, Table] = {row.arm: base.p for row in base.rows[:1]}
    guessers = enumerate(guesses, 1)
    return tables | {GUESSER if i == 1 else f"guesser {i}": {REFERENCE: shares} for i, shares in guessers}


def guesses_of(chance: Chance | None) -> tuple[tuple[float, ...], ...]:
    """Probability that one guess is right, for each guesser of the chance floor and each problem; () if guesses are not
    independent."""
    return () if chance is None or chance.law == "golds" else chance.guessers


def above(arms: Arms, name: str, envelope: Envelope, metric: Metric, allowed: Allowed) -> AboveHull | None:
    """One arm against the best mixture of a set of baselines at the arm's pass@1, over their common seeds. None without a common
    seed or without an evaluation of the arm at the metric's temperature."""
    rows = [arms.get(one, ExactMeasurements()) for one in (name, *envelope.arms)]
    seeds = sorted(set.intersection(*({*arm.seeds} for arm in rows)))
    runs = [[run_at(arm, seed) for seed in seeds] for arm in rows]
    if metric.at == "hull":
        lines = [[run.line(metric.name) for run in of_arm] for of_arm in runs]
        return above_hull(lines[0], lines[1:], metric.temperature)
    own, *rivals = [[run.p for run in of_arm] for of_arm in runs]
    others = [[table] * len(seeds) for table in allowed.values()]
    return above_mixtures(own, [*rivals, *others], metric.k or 0, metric.temperature)


# ------------------------------------------------------------------------------------------------------------------
# headroom


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """A candidate compared with a set of baselines and with the oracle at its pass@1 at the reference temperature; means over
    seeds.

    own: score of the candidate
    best: score of the best mixture of the baselines
    rival: that mixture, in words
    oracle, power: scores of the oracle and of the tempered base
    share: the gain as a share of the distance from the baselines to the oracle
    log_odds: the gain in log odds

    A missing value is None."""

    arm: str
    envelope: str
    metric: Metric
    rival: str
    chance: float | None
    pass1: float
    own: float
    best: float
    oracle: float | None
    power: float | None
    share: float | None
    log_odds: float | None


def headroom(
    design: Design, arms: Arms, record: Record | None, k: int, chance: Chance | None
) -> list[Headroom]:
    """Headroom per candidate, set of baselines and metric. record: of the base."""
    base = arms.get(design.base or "", ExactMeasurements())
    allowed, oracle = always_allowed(base, record), arms.get(design.oracle or "", ExactMeasurements())
    metrics = [metric for metric in above_baselines(k) if metric.temperature == REFERENCE]
    rows = []
    for name, envelope, metric in product(design.candidates, design.baselines, metrics):
        gap = above(arms, name, envelope, metric, allowed)
        if gap is None:
            continue
        own, rival, pass1 = float(np.mean(gap.arm)), gap.mixture.height, float(np.mean(gap.pass1))
        top, passes = _best_of_arm(oracle, metric, pass1), metric.name == "pass"
        rows.append(Headroom(
            arm=name, envelope=envelope.name, metric=metric,
            rival=mixture_words((*envelope.arms, *allowed), gap.mixture.best, heatless=(GUESSER,)),
            chance=chance.at(metric.k or 0) if passes and chance is not None else None,
            pass1=pass1, own=own, best=rival, oracle=top,
            power=_best_of_tempered(base, record, metric, pass1) if passes else None,
            share=None if top is None or top <= rival else (own - rival) / (top - rival),
            log_odds=_log_odds(own) - _log_odds(rival) if passes and min(own, rival) > 0 and max(own, rival) < 1 else None,
        ))  # fmt: skip
    return rows


def _log_odds(p: float) -> float:
    return math.log(p / (1 - p))


def _best_of_arm(arm: ExactMeasurements, metric: Metric, pass1: float) -> float | None:
    """The best mixture of one arm's temperatures at this pass@1, mean over seeds; None outside."""
    runs = list(arm.runs.values())
    if metric.at == "hull":
        best = on_hull(pass1, [[run.line(metric.name) for run in runs]])
    else:
        best = on_mixtures(pass1, [[run.p for run in runs]], metric.k or 0)
    return None if best is None else best.height


def _best_of_tempered(base: ExactMeasurements, record: Record | None, metric: Metric, pass1: float) -> float | None:
    """pass@k of the base tempered over full completions, at this pass@1."""
    if record is None or not record.norms:
        return None
    best = on_mixtures(pass1, [[power_table(base.logps, record.norms)]], metric.k or 0)
    return None if best is None else best.height


__all__ = ["GUESSER", "Allowed", "Headroom", "above", "always_allowed", "guesses_of", "headroom"]
