"""The numbers of a folder as strict JSON, for summary.json, all tables and the page (`details` adds what only the page shows).

Every arm has its mean over training seeds with Student's interval; for one seed the interval is over problems (`share_interval`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.results.details import training
from sage_rlvr.results.runs_text import nothing, state
from sage_rlvr.results.tables import evaluated
from sage_rlvr.verdicts.baselines import headroom
from sage_rlvr.verdicts.chance import KEY
from sage_rlvr.verdicts.checks import paper_gains, relabelled
from sage_rlvr.verdicts.design import BASE, Arm, Design
from sage_rlvr.verdicts.findings import Findings
from sage_rlvr.verdicts.kl import exact_kls_of_main
from sage_rlvr.verdicts.measurements import ExactMeasurements, Measurements, PolicyKey, SampledMeasurement, in_order
from sage_rlvr.verdicts.metric import PAPER, REFERENCE
from sage_rlvr.verdicts.numbers import EPS, ExactNumbers, PassCurve, curves_of, numbers_of, shown_ks
from sage_rlvr.verdicts.of_temperatures import lines_of
from sage_rlvr.verdicts.pairs import Arms, control_of
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.sources import TrainingRun, by_arm
from sage_rlvr.verdicts.stats.frontier import gap_to_frontier
from sage_rlvr.verdicts.stats.intervals import Interval, seed_interval
from sage_rlvr.verdicts.stats.passk import powers
from sage_rlvr.verdicts.stats.tempered import tempered
from sage_rlvr.verdicts.summary_io import FORMAT, plain, row_tree
from sage_rlvr.verdicts.text.rows import paragraphs
from sage_rlvr.verdicts.verdict_json import tree
from sage_rlvr.verifiers.reasons import Reasons


def summary_of(results: Results, findings: Findings) -> dict[str, Any]:
    """All numbers of a folder. A stored summary is returned with its rows corrected again."""
    if results.stored is not None:
        return _stored(results, findings, results.stored)
    design, runs, k, ks = results.design, results.runs, results.k, shown_ks(results.k)
    exact = results.table.exact()
    curves = curves_of(results.table, k, results.fixed)
    arms = exact.where(task="").by_arm()
    base = arms.get(results.home or "")
    numbers = {name: numbers_of(rows, ks, None if rows is base else base, powers(k)) for name, rows in arms.items()}
    summary = _design_facts(results, arms, ks)
    summary["created"] = max((run.created[:10] for run in runs.values()), default="")
    summary["base"] = None if base is None else _base(base, numbers, curves, ks, runs.get((base.rows[0].arm, 0)))
    summary["arms"] = _arms(results, arms, numbers, curves, ks)
    summary["curves"] = {}
    for name in dict.fromkeys([results.home or "", *design.names]):
        if curve := curves.get((name, "", REFERENCE)):
            summary["curves"][name] = _curves(numbers[name], curve)
    summary["sampled"] = _sampled(design, results.table.sampled(), curves)
    summary[KEY] = {}
    for task in results.tasks:
        chance = results.chances.get(task)
        summary[KEY][task] = None if chance is None else chance.tree()
    summary["away"] = {}
    for task in design.facts.get("evaluate", {}).get("ood", ()):
        on_task = exact.where(task=task).by_arm()
        task_numbers = {name: numbers_of(rows, ks) for name, rows in on_task.items()}
        summary["away"][task] = _away(design, on_task, task_numbers, curves, ks)
    summary["rows"] = [row_tree(row) for row in findings.rows]
    summary["cold"] = _cold(design, arms, curves, k)
    summary["power"] = _power(base, results.base_record, k)
    summary["gains"] = paper_gains(design, arms, results.fixed) if results.several else None
    control = arms.get(design.control or "", ExactMeasurements())
    summary["relabelled"] = relabelled(control, k, results.chances.get(""), results.fixed)
    if results.sampled_only:
        summary["verdicts"] = tree(findings.verdicts, results.given, [*results.failed, *results.notes])
        for of_verdict, verdict in zip(summary["verdicts"]["verdicts"], findings.verdicts, strict=True):
            of_verdict["curves"] = {}
            for side, scores in (("control", verdict.b), ("arm", verdict.a)):
                of_verdict["curves"][side] = _trees({k: scores.interval(k) for k in powers(verdict.a.n or 1)})
    summary["added"] = {arm.key: arm.why for arm in design.arms if arm.why}
    summary["left_out"] = list(results.notes)
    summary["failed"] = list(results.failed)
    summary["warnings"] = []
    for run in runs.values():
        summary["warnings"] += [{"arm": run.arm, "seed": run.seed, **warning} for warning in run.warnings]
    summary["not_run"] = []
    for wanted in design.facts.get("runs", ()):
        if not wanted["complete"]:
            arm, seed = design.called(wanted["arm"]), wanted["seed"]
            summary["not_run"].append(f"{arm} s{seed}: {state(runs[arm, seed])}")
    return dict(plain(summary | _told(results, findings, summary)))


def _stored(results: Results, findings: Findings, stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored summary merged with other results, if there are any: it keeps what these lack."""
    summary = {**stored, "rows": [row_tree(row) for row in findings.rows]}
    summary["left_out"] = list(dict.fromkeys([*results.notes, *stored["left_out"]]))
    alone = not results.table.rows
    for name, value in plain(_told(results, findings, summary)).items():
        if name not in stored or (value and not alone):
            summary[name] = value
    return summary


def _told(results: Results, findings: Findings, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The answer in words, and what was run."""
    design, rows, exact = results.design, findings.rows, evaluated(summary)
    trained = training.in_order(results.runs, design)
    scored = {(row.arm, row.seed) for row in results.table.rows if row.is_main}
    configs = training.configs_of(trained)
    return {
        "answer": paragraphs(rows, results, findings.verdicts) if rows else [nothing(results)],
        "baseline": design.base or next(iter(exact), ""),
        "starts": results.starts,
        "swept": bool(design.facts),
        "runs_wanted": len(design.facts.get("runs", ())) or len(summary["arms"]) * len(summary["seeds"]),
        "states": training.states(trained, results.runs, scored),
        "run_versions": training.versions(trained),
        "learning": training.learning(configs, [name for name, row in exact.items() if len(row["seeds"]) > 1]),
        "grids": training.grids(configs),
    }


def _design_facts(results: Results, arms: Arms, ks: Sequence[int]) -> dict[str, Any]:
    """Facts on the design: its questions, the evaluations, the model, and the headroom of candidates above baselines."""
    design, facts = results.design, results.design.facts
    control = design.arm(design.control or "")
    summary: dict[str, Any] = {"format": FORMAT, "title": design.title, "notes": design.notes, "ks": ks}
    for name in ("design", "world", "versions", "steps", "choice"):
        summary[name] = facts.get(name)
    summary["control"] = control.key if control else ""
    summary["seeds"] = list(design.seeds)
    summary["questions"] = [asdict(question) for question in design.questions]
    summary["baselines"] = [asdict(baseline) for baseline in design.baselines]
    summary["oracle"] = design.oracle
    summary["discarded"] = list(design.discarded)
    summary["room"] = []
    if design.baselines:
        rooms = headroom(design, arms, results.base_record, results.k, results.chances.get(""))
        summary["room"] = [asdict(row) for row in rooms]
    main = [record for (_, _, task), record in results.records.items() if not task]
    summary["evaluate"] = facts.get("evaluate") or _evaluated(main)
    summary["policy"] = _policy(main if results.base_record is None else [results.base_record], results.runs.values())
    return summary


def _arms(results: Results, arms: Arms, numbers: Numbers, curves: Curves, ks: Sequence[int]) -> dict[str, Any]:
    """Key -> scores, training and exact KL of every arm but the base."""
    design, runs_of = results.design, by_arm(results.runs)
    kls = exact_kls_of_main(results.table.sampled())
    rows = {}
    for arm in design.arms:
        if arm.name == results.home or (arm.name in design.extra_arms and arm.name not in arms):
            continue
        row = _arm(arm, arms.get(arm.name), numbers, curves, ks)
        row |= training_of(_logged(runs_of.get(arm.name, {}), row["seeds"]), arm.guided)
        row |= _exact_kl({seed: kl for (name, seed), kl in kls.items() if name == arm.name})
        rows[arm.key] = row
    return rows


def _evaluated(records: Sequence[Record]) -> dict[str, Any]:
    if not records:
        return {"problems": 0, "split": "test"}
    first = records[0]
    return {"problems": first.problems, "split": first.meta.get("split"), "sampling": first.meta.get("sampling")}


def _policy(records: Sequence[Record], runs: Iterable[TrainingRun]) -> dict[str, Any] | None:
    """Model and number of parameters of the base, else of any policy of the main task; without an exact record the model that all
    runs start from; None where they start from several."""
    if not records:
        models = {run.config.get("model") for run in runs}
        model = models.pop() if len(models) == 1 else None
        return {"model": _without_path(model), "parameters": None} if isinstance(model, str) else None
    model = records[0].meta.get("model")
    return {"model": model and _without_path(model), "parameters": records[0].meta.get("parameters")}


def _without_path(model: str) -> str:
    """The name of a folder, of a run's `policy` the run's; a Hub id as it is. A summary is the same wherever its runs lie."""
    path = Path(model)
    if not path.is_absolute():
        return model
    return path.parent.name if path.name == "policy" else path.name


# ------------------------------------------------------------------------------------------------------------------
# exact policies

Numbers = Mapping[str, ExactNumbers]
"""Arm -> its exact numbers on a task."""
Curves = Mapping[PolicyKey, PassCurve]


def _trees(intervals: Mapping[Any, Interval]) -> dict[str, Any]:
    return {str(name): asdict(interval) for name, interval in intervals.items()}


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
    reference = base.where(temperature=REFERENCE).rows[0]
    own, curve = numbers[reference.arm], curves[reference.policy_key]
    values: dict[str, Any] = {}
    if run is not None:
        values["trained"] = {"pass": _passes(curve, ks), **_raw_kl([run])}
    values["label"] = reference.arm
    values["pass"] = _by_seed(curve, ks)[str(reference.seed)]
    values["distinct"] = reference.distinct
    values["best"] = asdict(own.tops[0])
    values["frontier"] = own.frontiers[reference.seed]
    values["support"] = sum(int(np.sum(np.asarray(row) > math.log(EPS))) for row in reference.logps)
    return values


def _scored(rows: ExactMeasurements, numbers: ExactNumbers, curves: Curves, ks: Sequence[int]) -> dict[str, Any]:
    """Seeds, pass@k and best pass@1 of an evaluated arm."""
    arm, task, _ = rows.rows[0].policy_key
    passes = _passes(curves.get((arm, task, REFERENCE)), ks)
    return {"seeds": list(rows.seeds), "pass": passes, "best_pass1": asdict(numbers.best)}


def _arm(arm: Arm, rows: ExactMeasurements | None, numbers: Numbers, curves: Curves, ks: Sequence[int]) -> dict[str, Any]:
    """An arm on the main task; without an exact record only its names."""
    row: dict[str, Any] = {"label": arm.name, "why": arm.why, "recipe": arm.recipe}
    row["seeds"] = [] if rows is None else list(rows.seeds)
    if arm.matched:
        row["matched"] = list(arm.matched)
    curve = curves.get((arm.name, "", REFERENCE))
    if rows is None or curve is None:
        return row
    own = numbers[arm.name]
    row |= _scored(rows, own, curves, ks)
    row["pass_by_seed"] = _by_seed(curve, ks)
    row["distinct"] = own.distinct and asdict(own.distinct)
    row["frontier"] = own.frontier
    row["frontier_by_seed"] = {str(seed): points for seed, points in own.frontiers.items()}
    if own.support:
        row["support"] = _trees(own.support)
    return row


def _away(design: Design, arms: Arms, numbers: Numbers, curves: Curves, ks: Sequence[int]) -> dict[str, Any]:
    """The base and the arms on another task."""
    base = arms.get(design.base or "")
    rows = {}
    for arm in design.arms:
        if arm.name in arms:
            rows[arm.key] = _scored(arms[arm.name], numbers[arm.name], curves, ks)
    if base is None:
        return {"problems": None, "base": None, "arms": rows}
    return {"problems": len(base.rows[0].problems), "base": _base(base, numbers, curves, ks), "arms": rows}


def _cold(design: Design, arms: Arms, curves: Curves, k: int) -> dict[str, Any] | None:
    """Scores of the base and the arms at the paper's temperature; None if an arm has no evaluation there."""
    shown = [arm for arm in design.arms if arm.name in arms]
    if not shown or any(PAPER not in arms[arm.name].temperatures for arm in shown):
        return None
    ks = sorted({1, k})
    others = {}
    for arm in shown:
        if arm.name != design.base:
            others[arm.key] = {"label": arm.name, **_passes(curves[arm.name, "", PAPER], ks)}
    curve = curves.get((design.base or "", "", PAPER))
    base = None if curve is None else {str(n): curve.passes[n].value for n in ks}
    return {"temperature": PAPER, "base": base, "arms": others}


def _power(base: ExactMeasurements | None, record: Record | None, k: int) -> dict[str, Any] | None:
    """The power-tempering frontier of the base: pi(y)^power over full completions, without any reward."""
    if base is None or record is None or not record.norms:
        return None
    points = []
    for policy in tempered(base.logps, record.norms):
        point = policy.point(k)
        row = {"power": policy.power, "known": policy.known}
        row |= {"bound1": float(policy.bound.mean()), "boundk": policy.passk_bound(k)}
        row |= {"pass1": point.pass1, "passk": point.passk}
        points.append(row)
    return {"points": points}


# ------------------------------------------------------------------------------------------------------------------
# samples


def _sampled(design: Design, table: Measurements[SampledMeasurement], curves: Curves) -> list[dict[str, Any]]:
    """pass@k over powers of two for every policy with samples of a task, the base first, hot before cold. An arm sampled at several
    temperatures counts as several policies; "base" is the base at the reference temperature."""
    out, policies, on_lines = [], table.policies(), _on_lines(design, table)
    places = sorted(policies, key=lambda key: in_order(design, key))
    for name, task, temperature in places:
        curve = curves.get((name, task, temperature))
        if curve is None or curve.n is None:  # the exact scores of a policy are shown in place of its samples
            continue
        unique = (name, temperature) == (BASE, REFERENCE) or sum((name, task) == other[:2] for other in places) == 1
        label = name if unique else f"{name} at T = {temperature:g}"
        row = {"label": label, "policy": name, "task": task, "n": curve.n}
        row |= {"temperature": temperature, "problems": curve.problems, "seeds": curve.seeds}
        row |= Reasons.sum(Reasons(one.reasons) for one in policies[name, task, temperature].rows).fractions()
        if name in on_lines.get(task, {}) and temperature == REFERENCE:
            row["lines"] = on_lines[task][name]
        row["pass"] = _trees(curve.passes)
        row["pass_by_seed"] = _by_seed(curve, list(curve.passes))
        out.append(row)
    return out


def _on_lines(design: Design, table: Measurements[SampledMeasurement]) -> dict[str, dict[str, dict[str, float]]]:
    """Task -> policy -> lines of mixed weights on which it lies -> its distance from the policy at their end."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    if any(row.mixture for row in table.rows):
        for task in table.tasks:
            here = table.where(task=task)
            for line in lines_of(here, control_of(design, here)):
                for distance, row in line.points.items():
                    found.setdefault(task, {}).setdefault(row.arm, {})[line.name] = distance
    return found


# ------------------------------------------------------------------------------------------------------------------
# training


def _part(values: Sequence[Any], when: str) -> Any:
    """The first or last tenth, or one of the thirds, of the steps."""
    tenth = max(1, len(values) // 10)
    if when == "first":
        return values[:tenth]
    if when == "last":
        return values[-tenth:]
    third = np.array_split(np.asarray(values), 3)[("early", "middle", "late").index(when)]
    return third if len(third) else values


PARTS = {
    "grad_norm": ("optimizer/grad_norm", ("early", "middle", "late")),
    "reward": ("reward/mean", ("first", "last")),
    "dead": ("reward/zero_variance_frac", ("first", "last")),
}
"""Metrics that are averaged over parts of the training: name in metrics.jsonl, and the parts."""


def _logged(by_seed: Mapping[int, TrainingRun], seeds: Sequence[int]) -> list[TrainingRun]:
    """The runs with metrics: of an exact evaluation those of its training seeds, else all."""
    return [by_seed[seed] for seed in seeds or by_seed if seed in by_seed and by_seed[seed].metrics]


def training_of(runs: Sequence[TrainingRun], guided: bool) -> dict[str, Any]:
    """Raw KL, tokens, seconds and strength of q from the metrics of these runs; metrics that were not logged are left out."""
    if not runs:
        return {}
    logs = [run.metrics for run in runs]
    row: dict[str, Any] = {"steps": max(map(len, logs))}
    for name, key in (("train_seconds", "time/step_s"), ("tokens", "rollout/tokens")):
        totals = [run.total(key) for run in runs]
        if None not in totals:
            row[name] = float(np.mean(totals))  # type: ignore[arg-type]
    for name, (key, parts) in PARTS.items():
        values = [[float(step[key]) for step in steps if key in step] for steps in logs]  # "nan" is a number
        if not all(values):
            continue
        intervals = {}
        for part in parts:
            intervals[part] = seed_interval([float(np.mean(_part(of_run, part))) for of_run in values])
        row[name] = _trees(intervals)
    row |= _raw_kl(runs)
    if guided:
        row["dose"] = strength(logs)
    return row


def _raw_kl(runs: Sequence[TrainingRun]) -> dict[str, Any]:
    """Raw KL at the end of these runs; {} if a run did not log it."""
    kls = [kl for kl in (run.raw_kl for run in runs) if kl is not None]
    if len(kls) < len(runs):
        return {}
    by_seed = {str(run.seed): kl for run, kl in zip(runs, kls, strict=True)}
    return {"kl_raw": asdict(seed_interval(kls)), "kl_raw_by_seed": by_seed}


def _exact_kl(kls: Mapping[int, float]) -> dict[str, Any]:
    """Exact KL to the base by training seed; {} without any."""
    if not kls:
        return {}
    by_seed = {str(seed): kl for seed, kl in kls.items()}
    return {"kl_exact": asdict(seed_interval(list(kls.values()))), "kl_exact_by_seed": by_seed}


def strength(logs: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, float] | None:
    """Share of tokens with q other than 1, mean q and, if logged, the sum of log q per completion in the first and last tenth of
    training, means over seeds. Only steps with an update count, because other steps have no q. None without any q."""
    updated = [[row for row in log if "guide/q_mean" in row] for log in logs]
    if not all(updated):
        return None
    keys = {"active": "guide/active_frac", "q": "guide/q_mean", "log_q_sum": "guide/log_q_sum"}
    means = {}
    for part in ("first", "last"):
        for name, key in keys.items():
            if not all(key in row for rows in updated for row in rows):  # runs of before have no log_q_sum
                continue
            by_run = []
            for rows in updated:
                by_run.append(float(np.mean([float(row[key]) for row in _part(rows, part)])))
            means[f"{name}_{part}"] = float(np.mean(by_run))
    return means


def choose(results: Results, among: Sequence[str], by: str, task: str = "") -> dict[str, list[float]]:
    """Arm -> the selection score of each seed: pass@1, pass@256 or the gap to the base's frontier (minus infinity without a gap).
    The arm with the largest mean is selected."""
    arms = results.table.exact().where(task=task).by_arm()
    by_arm_key: dict[str, list[float]] = {}
    for key in among:
        rows = arms.get(results.design.called(key), ExactMeasurements())
        if by == "frontier":
            gaps = [gap_to_frontier(run.points, arms[BASE].points).value for run in rows.runs.values()]
            by_arm_key[key] = [-math.inf if gap is None else gap for gap in gaps]
        else:
            scores = rows.where(temperature=REFERENCE).scores()
            k = {"pass@1": 1, "pass@256": 256}[by]
            by_arm_key[key] = [] if scores is None else scores.passes([k]).mean(axis=(1, 2)).tolist()
    return by_arm_key
