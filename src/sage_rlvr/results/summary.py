"""The numbers of a folder as strict JSON, for summary.json and for all tables.

Every arm has its mean over training seeds with Student's interval; for one seed the interval is over problems (`share_interval`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.evaluation.chance import KEY
from sage_rlvr.evaluation.judged import Reasons
from sage_rlvr.evaluation.record import Record
from sage_rlvr.results.design import BASE, Arm, Design
from sage_rlvr.results.findings import Findings
from sage_rlvr.results.measurements import ExactMeasurements, Measurement, Measurements, Place, in_order
from sage_rlvr.results.metric import PAPER, REFERENCE
from sage_rlvr.results.pairs import Arms
from sage_rlvr.results.read import Results
from sage_rlvr.results.scores import Scores
from sage_rlvr.results.sources import Run, by_arm
from sage_rlvr.results.stored import FORMAT, plain, row_tree
from sage_rlvr.results.verdict import tree
from sage_rlvr.results.words import state
from sage_rlvr.stats.frontier import best_pass1, gap_to_frontier
from sage_rlvr.stats.intervals import Interval, seed_interval
from sage_rlvr.stats.passk import curve, powers
from sage_rlvr.stats.support import reachable, support_change
from sage_rlvr.stats.tempered import tempered

KS = (1, 8, 64, 256)
EPS = 1 / 256


def summary_of(results: Results, findings: Findings) -> dict[str, Any]:
    """All numbers of a folder. A stored summary is returned with its rows corrected again."""
    if results.stored is not None and not results.records:
        return {**results.stored, "rows": [row_tree(row) for row in findings.rows]}
    design, runs, k, several = results.design, results.runs, results.k, results.several
    facts, control, ks = design.facts, design.arm(design.control or ""), shown_ks(results.k)
    scores = {place: rows.scores() for place, rows in results.table.policies().items()}
    exact = results.table.exact()
    arms, trained = exact.where(task="").by_arm(), by_arm(runs)
    base = arms.get(results.home or "")
    found: dict[str, Any] = {"format": FORMAT, "title": design.title, "notes": design.notes, "ks": ks}
    found |= {name: facts.get(name) for name in ("design", "world", "versions", "steps", "choice")}
    found |= {"control": control.key if control else "", "seeds": list(design.seeds)}
    found["questions"] = [asdict(question) for question in design.questions]
    if design.baselines:
        found |= {"baselines": [asdict(one) for one in design.baselines], "oracle": design.oracle}
        found["room"] = [asdict(row) for row in findings.headroom]
        found |= {"discarded": list(design.discarded)} if design.discarded else {}
    main = [record for (_, _, task), record in results.records.items() if not task]
    found["evaluate"] = facts.get("evaluate") or _evaluated(main)
    found["policy"] = _policy(main if results.base_record is None else [results.base_record], runs.values())
    found["created"] = max((run.created[:10] for run in runs.values()), default="")
    found["base"] = _base(base, scores, ks, several, runs.get((results.home or "", 0)))
    found["arms"] = {}
    for arm in design.arms:
        if arm.name != results.home and (arm.name not in design.beside or arm.name in arms):
            row = _arm(arm, arms.get(arm.name), base, scores, ks, several)
            found["arms"][arm.key] = row | training_of(_logged(trained.get(arm.name, {}), row["seeds"]), arm.guided)
    names = dict.fromkeys([*([results.home] if results.home else []), *design.names])
    found["curves"] = _curves({name: arms[name] for name in names if name in arms}, scores, powers(k), several)
    found["sampled"] = _sampled(design, results.table, scores)
    found[KEY] = {task: None if (chance := results.chances.get(task)) is None else chance.tree() for task in results.tasks}
    away = facts.get("evaluate", {}).get("ood", ())
    found["away"] = {task: _away(design, exact.where(task=task).by_arm(), scores, ks, several) for task in away}
    found["rows"] = [row_tree(row) for row in findings.rows]
    found |= {"cold": _cold(design, arms, scores, k, several), "power": _power(base, results.base_record, k)}
    found |= {"gains": findings.gains, "relabelled": findings.relabelled}
    found |= {"verdicts": tree(findings.verdicts, results.given, results.notes)} if results.sampled_only else {}
    found["added"] = {arm.key: arm.why for arm in design.arms if arm.why}
    found |= {"left_out": list(results.notes), "failed": list(results.failed)}
    found["warnings"] = [{"arm": run.arm, "seed": run.seed, **warning} for run in runs.values() for warning in run.warnings]
    asked = [(design.called(c["arm"]), c["seed"]) for c in facts.get("runs", ()) if not c["complete"]]
    found["not_run"] = [f"{arm} s{seed}: {state(runs[arm, seed])}" for arm, seed in asked]
    return dict(plain(found))


def shown_ks(k: int) -> list[int]:
    """The k of the tables: `KS` up to the largest k, which is included."""
    return [*(n for n in KS if n < k), k]


def _evaluated(records: Sequence[Record]) -> dict[str, Any]:
    if not records:
        return {"problems": 0, "split": "test"}
    first = records[0]
    return {"problems": first.problems, **{name: first.meta.get(name) for name in ("split", "sampling")}}


def _policy(records: Sequence[Record], runs: Iterable[Run]) -> dict[str, Any] | None:
    """Model and number of parameters of the base, else of any policy of the main task; without an exact record the model that all
    runs start from; None where they start from several."""
    if not records:
        models = {run.config.get("model") for run in runs}
        only = models.pop() if len(models) == 1 else None
        return {"model": _without_place(only), "parameters": None} if isinstance(only, str) else None
    model = records[0].meta.get("model")
    return {"model": model and _without_place(model), "parameters": records[0].meta.get("parameters")}


def _without_place(model: str) -> str:
    """The name of a folder, of a run's `policy` the run's; a Hub id as it is. A summary is the same wherever its runs lie."""
    path = Path(model)
    if not path.is_absolute():
        return model
    return path.parent.name if path.name == "policy" else path.name


# ------------------------------------------------------------------------------------------------------------------
# exact policies

Policies = Mapping[Place, Scores | None]
"""(Arm, task, temperature) -> scores of all training seeds."""


def _passes(found: Scores | None, ks: Sequence[int], several: bool) -> dict[str, Interval]:
    """k -> mean with its interval over training seeds; for one seed over problems."""
    return {} if found is None else {str(k): found.interval(k, several=several) for k in ks}


def _trees(found: Mapping[str, Interval]) -> dict[str, Any]:
    return {name: asdict(interval) for name, interval in found.items()}


def _curves(arms: Arms, scores: Policies, ks: Sequence[int], several: bool) -> dict[str, Any]:
    """pass@k and expected number of distinct right completions of every policy, over powers of two."""
    out = {}
    for name, arm in arms.items():
        if rows := arm.where(temperature=REFERENCE).rows:
            reached = {str(k): seed_interval([float(np.mean(reachable(row.logps, k))) for row in rows]) for k in ks}
            out[name] = {"pass": _trees(_passes(scores[name, "", REFERENCE], ks, several)), "distinct": _trees(reached)}
    return out


def _base(
    base: ExactMeasurements | None, scores: Policies, ks: Sequence[int], several: bool, run: Run | None = None
) -> dict[str, Any] | None:
    """The base on a task. run: its own training on the main task, if it was trained."""
    if base is None:
        return None
    home = base.where(temperature=REFERENCE).rows[0]
    found, trained = scores[home.place], {}
    if run is not None:
        trained = {"trained": {"pass": _trees(_passes(found, ks, several)), **_raw_kl([run])}}
    means = [] if found is None else found.passes(ks)[0].mean(axis=0).tolist()
    return trained | {
        "label": home.arm,
        "pass": dict(zip(map(str, ks), means, strict=True)),
        "distinct": home.distinct,
        "best": asdict(best_pass1(base.points)),
        "frontier": _frontier(base, ks),
        "support": sum(int(np.sum(np.asarray(row) > math.log(EPS))) for row in home.logps),
    }


def _scored(arm: ExactMeasurements, found: Scores | None, ks: Sequence[int], several: bool) -> dict[str, Any]:
    """Seeds, pass@k and best pass@1 of an evaluated arm."""
    best = seed_interval([best_pass1(run.points).pass1 for run in arm.runs.values()])
    return {"seeds": list(arm.seeds), "pass": _trees(_passes(found, ks, several)), "best_pass1": asdict(best)}


def _arm(
    arm: Arm, rows: ExactMeasurements | None, base: ExactMeasurements | None, scores: Policies, ks: Sequence[int], several: bool
) -> dict[str, Any]:
    """An arm on the main task; without an exact record only its names."""
    found, seeds = scores.get((arm.name, "", REFERENCE)), [] if rows is None else list(rows.seeds)
    row: dict[str, Any] = {"label": arm.name, "why": arm.why, "recipe": arm.recipe, "seeds": seeds}
    row |= {"matched": list(arm.matched)} if arm.matched else {}
    if rows is None or found is None:
        return row
    row |= _scored(rows, found, ks, several)
    row["pass_by_seed"] = _by_seed(found, ks)
    row["distinct"] = asdict(seed_interval([one.distinct for one in rows.where(temperature=REFERENCE).rows]))
    row["frontier"] = _mean_frontier(rows.runs.values())
    row["frontier_by_seed"] = {str(seed): _frontier(one, ks) for seed, one in rows.runs.items()}
    return row if base is None else row | {"support": _support(base, rows.runs.values())}


def _mean_frontier(runs: Iterable[ExactMeasurements]) -> list[dict[str, float]]:
    """pass@1 and pass@k at every temperature, means over training seeds."""
    out = []
    for same in zip(*(run.points for run in runs), strict=True):
        pass1, passk = np.mean([point.pass1 for point in same]), np.mean([point.passk for point in same])
        out.append({"temperature": same[0].temperature, "pass1": float(pass1), "passk": float(passk)})
    return out


def _support(base: ExactMeasurements, runs: Iterable[ExactMeasurements]) -> dict[str, Any]:
    """Right completions of the base kept, gained and lost, over training seeds."""
    start = base.logps
    changes = [support_change(start, run.logps, EPS) for run in runs]
    kept = {"preserved": [c.preserved for c in changes], "gained": [c.gained for c in changes], "lost": [c.lost for c in changes]}
    return _trees({kind: seed_interval(values) for kind, values in kept.items()})


def _frontier(run: ExactMeasurements, ks: Sequence[int]) -> list[dict[str, Any]]:
    """pass@1, pass@k, pass@k at every shown k and distinct answers of one policy at all its temperatures."""
    out = []
    for row in run.rows:
        passes = curve(row.values, ks).mean(axis=0).tolist()
        out.append(asdict(row.point) | {"distinct": row.distinct, "pass": dict(zip(map(str, ks), passes, strict=True))})
    return out


def _away(design: Design, arms: Arms, scores: Policies, ks: Sequence[int], several: bool) -> dict[str, Any]:
    """The base and the arms on another task."""
    base, found = arms.get(design.base or ""), {}
    for arm in design.arms:
        if arm.name in arms:
            rows = arms[arm.name]
            found[arm.key] = _scored(rows, scores.get((arm.name, rows.tasks[0], REFERENCE)), ks, several)
    problems = None if base is None else len(base.rows[0].problems)
    return {"problems": problems, "base": _base(base, scores, ks, several), "arms": found}


def _cold(design: Design, arms: Arms, scores: Policies, k: int, several: bool) -> dict[str, Any] | None:
    """Scores of the base and the arms at the paper's temperature; None if an arm has no evaluation there."""
    shown = [arm for arm in design.arms if arm.name in arms]
    if not shown or any(PAPER not in arms[arm.name].temperatures for arm in shown):
        return None
    ks, others = sorted({1, k}), {}
    for arm in shown:
        if arm.name != design.base:
            others[arm.key] = {"label": arm.name, **_trees(_passes(scores[arm.name, "", PAPER], ks, several))}
    home = {name: interval.value for name, interval in _passes(scores.get((design.base or "", "", PAPER)), ks, several).items()}
    return {"temperature": PAPER, "base": home or None, "arms": others}


def _power(base: ExactMeasurements | None, record: Record | None, k: int) -> dict[str, Any] | None:
    """The power-tempering frontier of the base: pi(y)^power over whole completions, without any reward."""
    if base is None or record is None or not record.norms:
        return None
    points = [
        {"power": one.power, "known": one.known, "bound1": float(one.bound.mean()), "boundk": one.passk_bound(k)}
        | {"pass1": one.point(k).pass1, "passk": one.point(k).passk}
        for one in tempered(base.logps, record.norms)
    ]
    return {"points": points}


# ------------------------------------------------------------------------------------------------------------------
# samples


def _sampled(design: Design, table: Measurements[Measurement], scores: Policies) -> list[dict[str, Any]]:
    """pass@k over powers of two for every policy with samples of a task, the base first, hot before cold. An arm sampled at several
    temperatures counts as several policies; "base" is the base at the reference temperature."""
    out, policies = [], table.sampled().policies()
    places = sorted(policies, key=lambda place: in_order(design, place))
    for name, task, temperature in places:
        rows, found = policies[name, task, temperature].rows, scores[name, task, temperature]
        if found is None or found.n is None:
            continue
        alone = (name, temperature) == (BASE, REFERENCE) or sum((name, task) == other[:2] for other in places) == 1
        row = {"label": name if alone else f"{name} at T = {temperature:g}", "policy": name, "task": task, "n": found.n}
        row |= {"temperature": temperature, "problems": len(found.problems), "seeds": found.seeds}
        row |= Reasons.sum(one.reasons for one in rows).fractions()
        row["pass"] = _trees({str(k): found.interval(k) for k in powers(found.n)})
        out.append(row | {"pass_by_seed": _by_seed(found, powers(found.n))})
    return out


def _by_seed(found: Scores, ks: Sequence[int]) -> dict[str, dict[str, float]]:
    means = found.passes(ks).mean(axis=1).tolist()
    return {str(seed): dict(zip(map(str, ks), m, strict=True)) for seed, m in zip(found.seeds, means, strict=True)}


# ------------------------------------------------------------------------------------------------------------------
# training


def _part(values: Sequence[Any], when: str) -> Any:
    """The first or last tenth, or one of the thirds, of the steps."""
    if when in ("first", "last"):
        tenth = max(1, len(values) // 10)
        return values[-tenth:] if when == "last" else values[:tenth]
    third = np.array_split(np.asarray(values), 3)[("early", "middle", "late").index(when)]
    return third if len(third) else values


PARTS = {
    "grad_norm": ("optimizer/grad_norm", ("early", "middle", "late")),
    "reward": ("reward/mean", ("first", "last")),
    "dead": ("reward/zero_variance_frac", ("first", "last")),
}
"""Metrics that are averaged over parts of the training: name in metrics.jsonl, and the parts."""


def _logged(runs: Mapping[int, Run], seeds: Sequence[int]) -> list[Run]:
    """The runs with metrics: of an exact evaluation those of its training seeds, else all."""
    return [runs[seed] for seed in seeds or runs if seed in runs and runs[seed].metrics]


def training_of(runs: Sequence[Run], guided: bool) -> dict[str, Any]:
    """Raw KL, tokens, seconds and strength of q from the metrics of these runs; metrics that were not logged are left out."""
    if not runs:
        return {}
    logs = [run.metrics for run in runs]
    row: dict[str, Any] = {"steps": max(map(len, logs))}
    for name, key in (("train_seconds", "time/step_s"), ("tokens", "rollout/tokens")):
        totals = [total for run in runs if (total := run.total(key)) is not None]
        if len(totals) == len(runs):
            row[name] = float(np.mean(totals))
    for what, (key, parts) in PARTS.items():
        values = [[float(r[key]) for r in rows if key in r] for rows in logs]  # "nan" is a number
        if all(values):
            row[what] = _trees({when: seed_interval([float(np.mean(_part(v, when))) for v in values]) for when in parts})
    row |= _raw_kl(runs)
    if guided:
        row["dose"] = strength(logs)
    return row


def _raw_kl(runs: Sequence[Run]) -> dict[str, Any]:
    """Raw KL at the end of these runs; {} if a run did not log it."""
    kls = [kl for run in runs if (kl := run.raw_kl) is not None]
    if len(kls) < len(runs):
        return {}
    return {"kl_raw": asdict(seed_interval(kls)), "kl_raw_by_seed": {str(run.seed): run.raw_kl for run in runs}}


def strength(logs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, float] | None:
    """Share of tokens with q other than 1, mean q and, if logged, the sum of log q per completion in the first and last tenth of
    training, means over seeds. Only steps with an update count, because other steps have no q. None without any q."""
    updated = [[row for row in log if "guide/q_mean" in row] for log in logs]
    if not all(updated):
        return None
    keys = {"active": "guide/active_frac", "q": "guide/q_mean", "log_q_sum": "guide/log_q_sum"}
    return {
        f"{what}_{when}": float(np.mean([float(np.mean([float(row[key]) for row in _part(rows, when)])) for rows in updated]))
        for when in ("first", "last")
        for what, key in keys.items()
        if all(key in row for rows in updated for row in rows)  # runs of before have no log_q_sum
    }


def choose(results: Results, among: Sequence[str], by: str, task: str = "") -> dict[str, list[float]]:
    """Arm -> the selection score of each seed: pass@1, pass@256 or the gap to the base's frontier (minus infinity without a gap).
    The arm with the largest mean is selected."""
    arms, out = results.table.exact().where(task=task).by_arm(), {}
    for key in among:
        rows = arms.get(results.design.called(key), ExactMeasurements())
        if by == "frontier":
            gaps = [gap_to_frontier(one.points, arms[BASE].points).value for one in rows.runs.values()]
            out[key] = [-math.inf if gap is None else gap for gap in gaps]
        else:
            found = rows.where(temperature=REFERENCE).scores()
            k = {"pass@1": 1, "pass@256": 256}[by]
            out[key] = [] if found is None else found.passes([k]).mean(axis=(1, 2)).tolist()
    return out
