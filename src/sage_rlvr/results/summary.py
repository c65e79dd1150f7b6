"""The numbers of a folder as strict JSON, for summary.json and for all tables.

Every arm has its mean over training seeds with Student's interval; for one seed the interval is over problems (`share_interval`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.evaluation.chance import KEY
from sage_rlvr.evaluation.judged import Reasons
from sage_rlvr.results.comparisons import ABOVE, GUESSER, Row, above, always_allowed, beside_chance
from sage_rlvr.results.design import BASE, Arm
from sage_rlvr.results.metric import PAPER, REFERENCE, Metric
from sage_rlvr.results.read import Exact, Results, Run, in_order
from sage_rlvr.results.scores import Scores
from sage_rlvr.results.stored import FORMAT, plain, row_tree
from sage_rlvr.results.verdict import tree, verdicts
from sage_rlvr.results.words import sentence, state
from sage_rlvr.stats.comparison import FEWEST_SEEDS, against_itself, excludes, halves, paired_seeds
from sage_rlvr.stats.frontier import best_pass1, gap_to_frontier
from sage_rlvr.stats.hull import Share, on_hull
from sage_rlvr.stats.intervals import Interval, seed_interval
from sage_rlvr.stats.mixture import on_mixtures
from sage_rlvr.stats.passk import curve, powers
from sage_rlvr.stats.support import support_change
from sage_rlvr.stats.tempered import power_table, tempered

KS = (1, 8, 64, 256)
EPS = 1 / 256
PAPER_GAINS = {1: 0.017, 256: 0.015}
"""k -> Branch minus GRPO at pass@k, averages of the paper's Table 1 (`python -m lab published`)."""


def summary_of(results: Results, rows: Sequence[Row]) -> dict[str, Any]:
    """All numbers of a folder. A stored summary is returned with its rows corrected again."""
    if results.stored is not None and not results.records:
        return {**results.stored, "rows": [row_tree(row) for row in rows]}
    design, base = results.design, results.home
    facts, control = design.facts, design.arm(design.control or "")
    arms = [arm for arm in design.arms if arm.name not in design.beside or results.seeds(arm.name)]
    found: dict[str, Any] = {"format": FORMAT, "title": design.title, "notes": design.notes, "ks": shown_ks(results)}
    found |= {name: facts.get(name) for name in ("design", "world", "versions", "steps", "choice")}
    found |= {"control": control.key if control else "", "seeds": list(design.seeds)}
    found["questions"] = [asdict(question) for question in design.questions]
    if design.baselines:
        found |= {"baselines": [asdict(one) for one in design.baselines], "oracle": design.oracle, "room": _room(results)}
        found |= {"discarded": list(design.discarded)} if design.discarded else {}
    found["evaluate"] = facts.get("evaluate") or _evaluated(results)
    found |= {"policy": _policy(results), "created": max((run.created[:10] for run in results.runs.values()), default="")}
    found["base"] = None if base is None else _base(results, base)
    found["arms"] = {arm.key: _arm(results, arm) for arm in arms if arm.name != base}
    found |= {"curves": _curves(results), "sampled": _sampled(results)}
    found[KEY] = {task: None if (chance := results.chance(task)) is None else chance.tree() for task in results.tasks}
    found["away"] = {task: _away(results, task) for task in facts.get("evaluate", {}).get("ood", ())}
    found |= {"rows": [row_tree(row) for row in rows], "cold": _cold(results), "power": _power(results)}
    found |= {"gains": _gains(results), "relabelled": relabelled(results)}
    found |= {"verdicts": tree(results, verdicts(results, rows))} if results.sampled_only else {}
    found["added"] = {arm.key: arm.why for arm in design.arms if arm.why}
    found |= {"left_out": list(results.notes), "failed": results.failed}
    found["warnings"] = [
        {"arm": run.arm, "seed": run.seed, **warning} for run in results.runs.values() for warning in run.warnings
    ]
    asked = [(design.called(c["arm"]), c["seed"]) for c in facts.get("runs", ()) if not c["complete"]]
    found["not_run"] = [f"{arm} s{seed}: {state(results.runs[arm, seed])}" for arm, seed in asked]
    return dict(plain(found))


def shown_ks(results: Results) -> list[int]:
    """The k of the tables: `KS` up to the largest k, which is included."""
    return [*(k for k in KS if k < results.k), results.k]


def _evaluated(results: Results) -> dict[str, Any]:
    record = next((record for (_, _, task), record in results.records.items() if not task), None)
    if record is None:
        return {"problems": 0, "split": "test"}
    return {"problems": record.problems, **{name: record.meta.get(name) for name in ("split", "sampling")}}


def _policy(results: Results) -> dict[str, Any] | None:
    """Model and number of parameters of the base, else of any policy of the main task; without an exact record the model that all
    runs start from; None where they start from several."""
    records = [results.exact(results.home).record] if results.home else [r for (*_, task), r in results.records.items() if not task]
    if not records:
        models = {run.config.get("model") for run in results.runs.values()}
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


def _passes(
    results: Results, name: str, task: str = "", temperature: float = REFERENCE, ks: Sequence[int] = ()
) -> dict[str, Interval]:
    """k -> mean with its interval over training seeds; for one seed over problems."""
    found = results.scores(name, task, temperature)
    return {} if found is None else {str(k): found.interval(k, several=results.several) for k in ks or shown_ks(results)}


def _curves(results: Results) -> dict[str, Any]:
    """pass@k and expected number of distinct right completions of every policy, over powers of two."""
    found, ks = {}, powers(results.k)
    for name in (results.home, *results.design.names):
        if name and (passes := _passes(results, name, ks=ks)) and (seeds := results.seeds(name)):
            ones = [results.exact(name, seed) for seed in seeds]
            distinct = {str(k): seed_interval([one.reach(k) for one in ones]) for k in ks}
            found[name] = {"pass": _trees(passes), "distinct": _trees(distinct)}
    return found


def _trees(found: Mapping[str, Interval]) -> dict[str, Any]:
    return {name: asdict(interval) for name, interval in found.items()}


def _base(results: Results, name: str, task: str = "") -> dict[str, Any]:
    one, found = results.exact(name, 0, task), results.scores(name, task)
    means = [] if found is None else found.passes(shown_ks(results))[0].mean(axis=0).tolist()
    run = results.runs.get((name, 0)) if not task else None
    trained = {} if run is None or found is None else {"trained": {"pass": _trees(_passes(results, name)), **_raw_kl([run])}}
    return trained | {
        "label": name,
        "pass": dict(zip(map(str, shown_ks(results)), means, strict=True)),
        "distinct": one.distinct[REFERENCE],
        "best": asdict(best_pass1(one.points)),
        "frontier": _frontier(results, one),
        "support": sum(int(np.sum(np.asarray(row) > math.log(EPS))) for row in one.record.logps[REFERENCE]),
    }


def _scored(results: Results, name: str, task: str = "") -> dict[str, Any]:
    """Seeds, pass@k and best pass@1 of an evaluated arm."""
    seeds = results.seeds(name, task)
    best = seed_interval([best_pass1(results.exact(name, seed, task).points).pass1 for seed in seeds])
    return {"seeds": list(seeds), "pass": _trees(_passes(results, name, task)), "best_pass1": asdict(best)}


def _arm(results: Results, arm: Arm) -> dict[str, Any]:
    seeds, found = results.seeds(arm.name), results.scores(arm.name)
    row: dict[str, Any] = {"label": arm.name, "why": arm.why, "recipe": arm.recipe, "seeds": list(seeds)}
    row |= {"matched": list(arm.matched)} if arm.matched else {}
    if not seeds or found is None:  # without an exact record there are only the metrics of its runs
        return row | training_of([run for (name, _), run in results.runs.items() if name == arm.name and run.metrics], arm.guided)
    row |= _scored(results, arm.name)
    ones = {str(seed): results.exact(arm.name, seed) for seed in seeds}
    row["pass_by_seed"] = _by_seed(found, shown_ks(results))
    row["distinct"] = asdict(seed_interval([one.distinct[REFERENCE] for one in ones.values()]))
    row["frontier"] = [
        {"temperature": p[0].temperature}
        | {end: float(np.mean([getattr(q, end) for q in p])) for end in ("pass1", "passk")}
        for p in zip(*(one.points for one in ones.values()), strict=True)
    ]
    row["frontier_by_seed"] = {seed: _frontier(results, one) for seed, one in ones.items()}
    if results.home:
        start = results.exact(results.home).record.logps[REFERENCE]
        changes = [support_change(start, one.record.logps[REFERENCE], EPS) for one in ones.values()]
        kinds = ("preserved", "gained", "lost")
        row["support"] = _trees({kind: seed_interval([getattr(c, kind) for c in changes]) for kind in kinds})
    runs = [results.runs.get((arm.name, seed)) for seed in seeds]
    return row | training_of([run for run in runs if run is not None and run.metrics], arm.guided)


def _frontier(results: Results, one: Exact) -> list[dict[str, Any]]:
    """pass@1, pass@k, pass@k at every shown k and distinct answers of one policy at all its temperatures."""
    ks, out = shown_ks(results), []
    for p, distinct in zip(one.points, one.distinct_frontier, strict=True):
        passes = curve(one.p[p.temperature], ks).mean(axis=0).tolist()
        out.append(asdict(p) | {"distinct": distinct.passk, "pass": dict(zip(map(str, ks), passes, strict=True))})
    return out


def _sampled(results: Results) -> list[dict[str, Any]]:
    """pass@k over powers of two for every policy with samples of a task, the base first, hot before cold. An arm sampled at several
    temperatures counts as several policies; "base" is the base at the reference temperature."""
    out, policies = [], sorted(dict.fromkeys(c.policy for c in results.counts), key=lambda policy: in_order(results, policy))
    for name, task, temperature in policies:
        found = results.scores(name, task, temperature)
        if found is not None and found.n is not None:
            alone = (name, temperature) == (BASE, REFERENCE) or sum((name, task) == other[:2] for other in policies) == 1
            row = {"label": name if alone else f"{name} at T = {temperature:g}", "policy": name, "task": task, "n": found.n}
            row |= {"temperature": temperature, "problems": len(found.problems), "seeds": found.seeds}
            row |= Reasons.sum(c.reasons for c in results.counts if c.policy == (name, task, temperature)).fractions()
            row["pass"] = _trees({str(k): found.interval(k) for k in powers(found.n)})
            out.append(row | {"pass_by_seed": _by_seed(found, powers(found.n))})
    return out


def _by_seed(found: Scores, ks: Sequence[int]) -> dict[str, dict[str, float]]:
    means = found.passes(ks).mean(axis=1).tolist()
    return {str(seed): dict(zip(map(str, ks), m, strict=True)) for seed, m in zip(found.seeds, means, strict=True)}


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


def _away(results: Results, task: str) -> dict[str, Any]:
    base = results.design.base
    home = base if base and results.seeds(base, task) else None
    arms = {arm.key: _scored(results, arm.name, task) for arm in results.design.arms if results.seeds(arm.name, task)}
    problems = None if home is None else results.records[home, 0, task].problems
    return {"problems": problems, "base": None if home is None else _base(results, home, task), "arms": arms}


def _cold(results: Results) -> dict[str, Any] | None:
    """Scores of the base and the arms at the paper's temperature; None if an arm has no evaluation there."""
    arms, base = [arm for arm in results.design.arms if results.seeds(arm.name)], results.home
    if not arms or any(PAPER not in results.temperatures(arm.name) for arm in arms):
        return None
    at = {
        name: {k: found for k, found in _passes(results, name, "", PAPER).items() if int(k) in (1, results.k)}
        for name in (base, *(arm.name for arm in arms)) if name
    }  # fmt: skip
    home = {k: found.value for k, found in at[base].items()} if base else {}
    others = {arm.key: {"label": arm.name, **_trees(at[arm.name])} for arm in arms if arm.name != base}
    return {"temperature": PAPER, "base": home or None, "arms": others}


def _power(results: Results) -> dict[str, Any] | None:
    """The power-tempering frontier of the base: pi(y)^power over whole completions, without any reward."""
    record, k = results.exact(results.home).record if results.home else None, results.k
    if record is None or not record.norms:
        return None
    points = [
        {"power": one.power, "known": one.known, "bound1": float(one.bound.mean()), "boundk": one.passk_bound(k)}
        | {"pass1": one.point(k).pass1, "passk": one.point(k).passk}
        for one in tempered(record.logps[REFERENCE], record.norms)
    ]
    return {"points": points}


def _room(results: Results) -> list[dict[str, Any]]:
    """Headroom, per candidate, set of baselines and metric at the candidate's pass@1 at the reference temperature: scores of the
    candidate, the baselines' best mixture, the tempered base and the oracle, means over seeds; the gain as a share of the distance
    from the baselines to the oracle, and in log odds. None for missing values."""
    design, out = results.design, []
    metrics = [replace(metric, k=metric.k or results.k) for metric in ABOVE if metric.temperature == REFERENCE]
    for name, envelope, metric in itertools.product(design.candidates, design.baselines, metrics):
        found = above(results, name, envelope, metric)
        if found is None:
            continue
        own, rival = float(np.mean(found.arm)), found.place.height
        row = {"arm": name, "envelope": envelope.name, "metric": asdict(metric)}
        row["rival"] = _mixed((*envelope.arms, *always_allowed(results)), found.place.best)
        chance = results.chance() if metric.name == "pass" else None
        row["chance"] = None if chance is None else chance.at(metric.k or 0)
        row |= {"pass1": (pass1 := float(np.mean(found.pass1))), "own": own, "best": rival}
        row["oracle"] = top = _at(results, design.oracle, metric, pass1)
        row["power"] = _of_power(results, metric, pass1)
        row["share"] = None if top is None or top <= rival else (own - rival) / (top - rival)
        odds = metric.name == "pass" and min(own, rival) > 0 and max(own, rival) < 1
        row["log_odds"] = math.log(own / (1 - own)) - math.log(rival / (1 - rival)) if odds else None
        out.append(row)
    return out


def _mixed(names: Sequence[str], best: Sequence[Share]) -> str:
    """ "GRPO at T = 0.9", or several with their shares, the largest first."""

    def name(one: Share) -> str:
        share = f"{one.weight:.0%} " if len(best) > 1 else ""
        return f"{share}{names[one.rival]}" + ("" if names[one.rival] == GUESSER else f" at T = {one.temperature:g}")

    return " and ".join(map(name, sorted(best, key=lambda one: -one.weight)))


def _at(results: Results, name: str | None, metric: Metric, pass1: float) -> float | None:
    """The best mixture of one arm's temperatures at this pass@1, mean over seeds; None outside."""
    ones = [results.exact(name, seed) for seed in results.seeds(name)] if name else []
    if metric.at == "hull":
        found = on_hull(pass1, [[one.line(metric.name, metric.k or 0) for one in ones]])
    else:
        found = on_mixtures(pass1, [[one.p for one in ones]], metric.k or 0)
    return None if found is None else found.height


def _of_power(results: Results, metric: Metric, pass1: float) -> float | None:
    record = results.exact(results.home).record if results.home else None
    if metric.name != "pass" or record is None or not record.norms:
        return None
    found = on_mixtures(pass1, [[power_table(record.logps[REFERENCE], record.norms)]], metric.k or 0)
    return None if found is None else found.height


def _gains(results: Results) -> list[dict[str, Any]] | None:
    """Per metric and temperature: the paper's gain, the interval of GRPO with Branch minus GRPO (the first such arms), and whether
    the interval excludes the gain. None without such arms."""
    arm = next((arm for arm in results.design.arms if arm.plain and not arm.why and _is_the_papers(arm)), None)
    if arm is None or arm.plain is None or not results.several:
        return None
    a, b = arm.name, arm.plain
    seeds = sorted({*results.seeds(a)} & {*results.seeds(b)})
    out = []
    for temperature in (REFERENCE, PAPER):
        both = [results.scores(name, "", temperature) for name in (a, b)]
        if not seeds or any(side is None or not {*seeds} <= {*side.seeds} for side in both):
            continue
        left, right = (side.only(seeds).passes(tuple(PAPER_GAINS)) for side in both if side is not None)
        for j, (k, gain) in enumerate(PAPER_GAINS.items()):
            found = paired_seeds(left[..., j], right[..., j])
            row = {"a": a, "b": b, "metric": asdict(Metric(k=k, temperature=temperature)), "gain": gain}
            out.append(row | {"difference": asdict(found.difference), "excluded": excludes(found, gain)})
    return out or None


def _is_the_papers(arm: Arm) -> bool:
    """Whether the method is GRPO with the guide Branch."""
    method = arm.config.get("method") or {}
    parts = [method.get(part) or {} for part in ("guide", "base")]
    return method.get("name") == "sage" and [part.get("name") for part in parts] == ["branch", "grpo"]


def relabelled(results: Results) -> dict[str, Any]:
    """A/A check: the control's seeds in two halves A and B, in every split; counts of splits without a significant difference.

    Paired in order of seed; each comparison has level 0.95 without correction, so 5 % of the splits may differ by chance."""
    control = results.design.control or ""
    have, found = results.seeds(control), results.scores(control)
    if len(have) < 2 * FEWEST_SEEDS or found is None:
        return {"splits": 0, "have": len(have)}
    splits = halves(have)
    out: dict[str, Any] = {"splits": len(splits), "have": len(have), "tied": {}, "first": []}
    for k in (1, results.k):
        made = against_itself(dict(zip(have, found.only(have).passes([k])[..., 0], strict=True)))
        out["tied"][f"pass@{k}"] = sum(c.outcome == "tied" for c in made)
        names = [
            f"{control} {name} (seeds {', '.join(map(str, part))})" for name, part in zip("AB", splits[0], strict=True)
        ]
        first = Row(a=names[0], b=names[1], metric=Metric(k=k), comparison=made[0])
        out["first"].append(sentence(beside_chance(results, first)))
    return out


def choose(results: Results, among: Sequence[str], by: str, task: str = "") -> dict[str, list[float]]:
    """Arm -> the selection score of each seed: pass@1, pass@256 or the gap to the base's frontier (minus infinity without a gap).
    The arm with the largest mean is selected."""
    out = {}
    for key in among:
        name = results.design.called(key)
        ones = [results.exact(name, seed, task) for seed in results.seeds(name, task)]
        if by == "frontier":
            gaps = [gap_to_frontier(one.points, results.exact(BASE, 0, task).points).value for one in ones]
            out[key] = [-math.inf if gap is None else gap for gap in gaps]
        else:
            found = results.scores(name, task)
            k = {"pass@1": 1, "pass@256": 256}[by]
            out[key] = [] if found is None else found.passes([k]).mean(axis=(1, 2)).tolist()
    return out
