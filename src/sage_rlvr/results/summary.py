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
from sage_rlvr.evaluation.record import Record
from sage_rlvr.results.design import BASE, Arm, Design
from sage_rlvr.results.exact_kl import exact_kls_of_main
from sage_rlvr.results.findings import Findings
from sage_rlvr.results.measurements import ExactMeasurements, Measurements, Place, SampledMeasurement, in_order
from sage_rlvr.results.metric import PAPER, REFERENCE
from sage_rlvr.results.numbers import EPS, ExactNumbers, PassCurve, curves_of, numbers_of, shown_ks
from sage_rlvr.results.pairs import Arms
from sage_rlvr.results.read import Results
from sage_rlvr.results.sentences import state
from sage_rlvr.results.sources import TrainingRun, by_arm
from sage_rlvr.results.summary_io import FORMAT, plain, row_tree
from sage_rlvr.results.verdict_json import tree
from sage_rlvr.stats.frontier import gap_to_frontier
from sage_rlvr.stats.intervals import Interval, seed_interval
from sage_rlvr.stats.passk import powers
from sage_rlvr.stats.tempered import tempered
from sage_rlvr.verifiers.reasons import Reasons


def summary_of(results: Results, findings: Findings) -> dict[str, Any]:
    """All numbers of a folder. A stored summary is returned with its rows corrected again."""
    if results.stored is not None:
        return {**results.stored, "rows": [row_tree(row) for row in findings.rows]}
    design, runs, k = results.design, results.runs, results.k
    facts, control, ks = design.facts, design.arm(design.control or ""), shown_ks(k)
    curves, exact = curves_of(results.table, k, results.several), results.table.exact()
    arms, trained = exact.where(task="").by_arm(), by_arm(runs)
    kls = exact_kls_of_main(results.table.sampled())
    base = arms.get(results.home or "")
    numbers = {name: numbers_of(rows, ks, None if rows is base else base, powers(k)) for name, rows in arms.items()}
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
    found["base"] = None if base is None else _base(base, numbers, curves, ks, runs.get((base.rows[0].arm, 0)))
    found["arms"] = {}
    for arm in design.arms:
        if arm.name != results.home and (arm.name not in design.beside or arm.name in arms):
            row = _arm(arm, arms.get(arm.name), numbers, curves, ks)
            row |= training_of(_logged(trained.get(arm.name, {}), row["seeds"]), arm.guided)
            found["arms"][arm.key] = row | _exact_kl({seed: kl for (name, seed), kl in kls.items() if name == arm.name})
    found["curves"] = {}
    for name in dict.fromkeys([results.home or "", *design.names]):
        if curve := curves.get((name, "", REFERENCE)):
            found["curves"][name] = _curves(numbers[name], curve)
    found["sampled"] = _sampled(design, results.table.sampled(), curves)
    found[KEY] = {task: None if (chance := results.chances.get(task)) is None else chance.tree() for task in results.tasks}
    found["away"] = {}
    for task in facts.get("evaluate", {}).get("ood", ()):
        there = exact.where(task=task).by_arm()
        found["away"][task] = _away(design, there, {name: numbers_of(rows, ks) for name, rows in there.items()}, curves, ks)
    found["rows"] = [row_tree(row) for row in findings.rows]
    found |= {"cold": _cold(design, arms, curves, k), "power": _power(base, results.base_record, k)}
    found |= {"gains": findings.gains, "relabelled": findings.relabelled}
    found |= {"verdicts": tree(findings.verdicts, results.given, results.notes)} if results.sampled_only else {}
    found["added"] = {arm.key: arm.why for arm in design.arms if arm.why}
    found |= {"left_out": list(results.notes), "failed": list(results.failed)}
    found["warnings"] = [{"arm": run.arm, "seed": run.seed, **warning} for run in runs.values() for warning in run.warnings]
    asked = [(design.called(c["arm"]), c["seed"]) for c in facts.get("runs", ()) if not c["complete"]]
    found["not_run"] = [f"{arm} s{seed}: {state(runs[arm, seed])}" for arm, seed in asked]
    return dict(plain(found))


def _evaluated(records: Sequence[Record]) -> dict[str, Any]:
    if not records:
        return {"problems": 0, "split": "test"}
    first = records[0]
    return {"problems": first.problems, **{name: first.meta.get(name) for name in ("split", "sampling")}}


def _policy(records: Sequence[Record], runs: Iterable[TrainingRun]) -> dict[str, Any] | None:
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

Numbers = Mapping[str, ExactNumbers]
"""Arm -> its exact numbers on a task."""
Curves = Mapping[Place, PassCurve]


def _trees(found: Mapping[Any, Interval]) -> dict[str, Any]:
    return {str(name): asdict(interval) for name, interval in found.items()}


def _passes(curve: PassCurve | None, ks: Sequence[int]) -> dict[str, Any]:
    """k -> mean with its interval; {} without scores."""
    return {} if curve is None else _trees({k: curve.passes[k] for k in ks})


def _by_seed(curve: PassCurve, ks: Sequence[int]) -> dict[str, dict[str, float]]:
    return {str(seed): {str(k): means[k] for k in ks} for seed, means in curve.by_seed.items()}


def _curves(numbers: ExactNumbers, curve: PassCurve) -> dict[str, Any]:
    """pass@k and expected number of distinct right completions of a policy, over powers of two."""
    return {"pass": _passes(curve, list(numbers.reached)), "distinct": _trees(numbers.reached)}


def _base(
    base: ExactMeasurements, numbers: Numbers, curves: Curves, ks: Sequence[int], run: TrainingRun | None = None
) -> dict[str, Any]:
    """The base on a task. run: its own training on the main task, if it was trained."""
    home = base.where(temperature=REFERENCE).rows[0]
    own, curve = numbers[home.arm], curves[home.place]
    trained = {} if run is None else {"trained": {"pass": _passes(curve, ks), **_raw_kl([run])}}
    return trained | {
        "label": home.arm,
        "pass": _by_seed(curve, ks)[str(home.seed)],
        "distinct": home.distinct,
        "best": asdict(own.tops[0]),
        "frontier": own.frontiers[home.seed],
        "support": sum(int(np.sum(np.asarray(row) > math.log(EPS))) for row in home.logps),
    }


def _scored(rows: ExactMeasurements, numbers: ExactNumbers, curves: Curves, ks: Sequence[int]) -> dict[str, Any]:
    """Seeds, pass@k and best pass@1 of an evaluated arm."""
    arm, task, _ = rows.rows[0].place
    return {"seeds": list(rows.seeds), "pass": _passes(curves.get((arm, task, REFERENCE)), ks), "best_pass1": asdict(numbers.best)}


def _arm(arm: Arm, rows: ExactMeasurements | None, numbers: Numbers, curves: Curves, ks: Sequence[int]) -> dict[str, Any]:
    """An arm on the main task; without an exact record only its names."""
    row: dict[str, Any] = {"label": arm.name, "why": arm.why, "recipe": arm.recipe}
    row |= {"seeds": [] if rows is None else list(rows.seeds)} | ({"matched": list(arm.matched)} if arm.matched else {})
    curve = curves.get((arm.name, "", REFERENCE))
    if rows is None or curve is None:
        return row
    own = numbers[arm.name]
    row |= _scored(rows, own, curves, ks)
    row |= {"pass_by_seed": _by_seed(curve, ks), "distinct": own.distinct and asdict(own.distinct), "frontier": own.frontier}
    row["frontier_by_seed"] = {str(seed): points for seed, points in own.frontiers.items()}
    return row | ({"support": _trees(own.support)} if own.support else {})


def _away(design: Design, arms: Arms, numbers: Numbers, curves: Curves, ks: Sequence[int]) -> dict[str, Any]:
    """The base and the arms on another task."""
    base = arms.get(design.base or "")
    found = {arm.key: _scored(arms[arm.name], numbers[arm.name], curves, ks) for arm in design.arms if arm.name in arms}
    if base is None:
        return {"problems": None, "base": None, "arms": found}
    return {"problems": len(base.rows[0].problems), "base": _base(base, numbers, curves, ks), "arms": found}


def _cold(design: Design, arms: Arms, curves: Curves, k: int) -> dict[str, Any] | None:
    """Scores of the base and the arms at the paper's temperature; None if an arm has no evaluation there."""
    shown = [arm for arm in design.arms if arm.name in arms]
    if not shown or any(PAPER not in arms[arm.name].temperatures for arm in shown):
        return None
    ks = sorted({1, k})
    rows = {arm.key: (arm.name, curves[arm.name, "", PAPER]) for arm in shown if arm.name != design.base}
    others = {key: {"label": name, **_passes(curve, ks)} for key, (name, curve) in rows.items()}
    home = curves.get((design.base or "", "", PAPER))
    base = None if home is None else {str(n): home.passes[n].value for n in ks}
    return {"temperature": PAPER, "base": base, "arms": others}


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


def _sampled(design: Design, table: Measurements[SampledMeasurement], curves: Curves) -> list[dict[str, Any]]:
    """pass@k over powers of two for every policy with samples of a task, the base first, hot before cold. An arm sampled at several
    temperatures counts as several policies; "base" is the base at the reference temperature."""
    out, policies = [], table.policies()
    places = sorted(policies, key=lambda place: in_order(design, place))
    for name, task, temperature in places:
        curve = curves.get((name, task, temperature))
        if curve is None or curve.n is None:  # the exact scores of a policy are shown in place of its samples
            continue
        alone = (name, temperature) == (BASE, REFERENCE) or sum((name, task) == other[:2] for other in places) == 1
        row = {"label": name if alone else f"{name} at T = {temperature:g}", "policy": name, "task": task, "n": curve.n}
        row |= {"temperature": temperature, "problems": curve.problems, "seeds": curve.seeds}
        row |= Reasons.sum(one.reasons for one in policies[name, task, temperature].rows).fractions()
        out.append(row | {"pass": _trees(curve.passes), "pass_by_seed": _by_seed(curve, list(curve.passes))})
    return out


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


def _logged(runs: Mapping[int, TrainingRun], seeds: Sequence[int]) -> list[TrainingRun]:
    """The runs with metrics: of an exact evaluation those of its training seeds, else all."""
    return [runs[seed] for seed in seeds or runs if seed in runs and runs[seed].metrics]


def training_of(runs: Sequence[TrainingRun], guided: bool) -> dict[str, Any]:
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


def _raw_kl(runs: Sequence[TrainingRun]) -> dict[str, Any]:
    """Raw KL at the end of these runs; {} if a run did not log it."""
    kls = [kl for run in runs if (kl := run.raw_kl) is not None]
    if len(kls) < len(runs):
        return {}
    return {"kl_raw": asdict(seed_interval(kls)), "kl_raw_by_seed": {str(run.seed): run.raw_kl for run in runs}}


def _exact_kl(kls: Mapping[int, float]) -> dict[str, Any]:
    """Exact KL to the base by training seed; {} without any."""
    by_seed = {str(seed): kl for seed, kl in kls.items()}
    return {"kl_exact": asdict(seed_interval(list(kls.values()))), "kl_exact_by_seed": by_seed} if kls else {}


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
