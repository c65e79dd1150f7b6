"""Training on the page: curves, activity of guides, tables, learning curves, grids of recipes, states and cards."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from sage_rlvr.errors import SageError
from sage_rlvr.extras import advice
from sage_rlvr.results import sentences, tables
from sage_rlvr.results.design import Design
from sage_rlvr.results.page.scores import PolicyScores
from sage_rlvr.results.sources import Runs, TrainingRun, by_arm
from sage_rlvr.results.tables import NOT_RUN, Table
from sage_rlvr.stats.comparison import p_text
from sage_rlvr.stats.power import spread

TRAINING = {  # names of metrics.jsonl -> (title, unit of the axis)
    "reward/mean": ("Reward", "mean reward"),
    "kl/to_reference": ("Raw KL to the reference", "nats per token"),
    "kl/to_anchor": ("KL to the shaped reference", "nats per token"),
    "policy/entropy": ("Policy entropy", "nats per token"),
    "guide/q_mean": ("Mean of q", "mean over tokens"),
    "guide/active_frac": ("Tokens with q other than 1", "share of tokens"),
    "reward/zero_variance_frac": ("Zero-variance groups", "share of groups"),
    "optimizer/grad_norm": ("Gradient norm", "before clipping"),
}
STRENGTH = ("guide/active_frac", "guide/q_mean")
Config = Mapping[str, Any]
Trained = Mapping[str, Sequence[TrainingRun]]
"""The runs of each arm, one per training seed."""


SAME_KL: Mapping[str, str] = {
    "raw KL": "at the same raw KL: the scores of another method at several betas (of a guided arm: the method without its guide), "
    "interpolated at the arm's KL, seed by seed; linear in the logarithm of the raw KL of the last tenth of training; there is no "
    "extrapolation.",
    "exact KL": "at the same exact KL: the same, with the reverse KL to the base on completions of each trained policy.",
}


def runs_of(
    found: Mapping[str, Any], them: Mapping[str, PolicyScores], base: str, design: Design, runs: Runs, trained: Trained,
    evaluated: Collection[tuple[str, int | None]],
) -> dict[str, Any]:  # fmt: skip
    """The values of the template's sections on training and on what was run. trained: of `in_order`; evaluated: arm and training
    seed of every evaluation."""
    configs, k = configs_of(trained), max(found["ks"])
    more = [tables.costs(found), tables.training(found)]
    added = [f"added: {arm.name} ({arm.why})" for arm in design.arms if arm.why] or ["none was added"]
    matched = {row["metric"]["matched"] for row in found["rows"]}
    used = versions(trained) or (found.get("versions") or {}).items()
    return {
        "training_tables": [table for table in more if table.rows],
        "training": curves(trained), "warnings": warnings(found), "warned": warned(found),
        "learning": learning(configs, them, base, k), "grids": grids(configs, them, k),
        "states": states(trained, runs, evaluated), "cards": cards(design, trained), "choice": choice_of(found),
        "versions": [f"{name} {version}" for name, version in used], "swept": bool(design.facts),
        "runs_wanted": len(design.facts.get("runs", ())) or len(found["arms"]) * len(found["seeds"]),
        "controls": [*added, *(text for kind, text in SAME_KL.items() if kind in matched)], "not_run": list(found["not_run"]),
    }  # fmt: skip


def in_order(runs: Runs, design: Design) -> dict[str, list[TrainingRun]]:
    """The runs of each arm in the order of the design."""
    found = by_arm(dict(sorted(runs.items(), key=lambda item: item[0][1])))
    names = dict.fromkeys([*design.names, *found])
    return {arm: list(found[arm].values()) for arm in names if arm in found}


def curves(runs: Trained) -> dict[str, Any] | None:
    """The values of the training figures with notes; None without logged metrics."""
    logged = {arm: [run for run in mine if run.metrics] for arm, mine in runs.items()}
    found = {arm: list(map(_columns, mine)) for arm, mine in logged.items() if mine}
    if not found:
        return None
    seen = {m for mine in found.values() for run in mine for m, values in run.items() if np.isfinite(values).any()}
    active = [run[STRENGTH[0]] for mine in found.values() for run in mine if STRENGTH[0] in run]
    idle = not any(np.nanmax(values, initial=0) > 0 for values in active)
    metrics = [m for m in TRAINING if m in seen and not (idle and m in STRENGTH)]
    most = max(map(len, found.values()))
    notes = ["q was 1 on every token of every run: no arm has an active guide."] * idle
    uneven = [f"{arm} {len(mine)} of {most}" for arm, mine in found.items() if len(mine) < most]
    notes += [f"Missing seeds: {', '.join(uneven)}."] * bool(uneven)
    absent = [TRAINING[m][0] for m in TRAINING if m not in seen and m not in STRENGTH]
    notes += [f"Not recorded in any run: {', '.join(absent)}."] * bool(absent)
    return {"runs": found, "metrics": metrics, "most": most, "notes": notes}


def _columns(run: TrainingRun) -> dict[str, np.ndarray]:
    """Metric -> (S,), NaN where a step has none."""
    names = [m for m in TRAINING if any(m in row for row in run.metrics)]
    return {m: np.array([float(row.get(m, np.nan)) for row in run.metrics]) for m in ("step", *names)}


def warnings(found: Mapping[str, Any]) -> list[str]:
    """Warnings about inactive guides: the results of such an arm are no evidence about guides."""
    strengths = {row["label"]: row["dose"] for row in found["arms"].values() if row.get("dose")}
    return [
        f"{name}: q differed from 1 on {q['active_first']:.1%} of the tokens in the first tenth of training and "
        f"{q['active_last']:.1%} in the last, so this run trained as if it had no guide."
        for name, q in strengths.items()
        if max(q["active_first"], q["active_last"]) < 0.001
    ]


# ------------------------------------------------------------------------------------------------------------------
# learning curves and grids


def configs_of(runs: Trained) -> dict[str, dict[str, Any]]:
    """Arm -> its configuration without the seed, flat."""
    return {
        arm: flat({k: v for k, v in mine[0].config.items() if k != "seed"})
        for arm, mine in runs.items()
        if mine[0].config
    }


def flat(tree: Config, before: str = "") -> dict[str, Any]:
    """{"method": {"beta": 1}} -> {"method.beta": 1}."""
    named = {f"{before}{key}": value for key, value in tree.items()}
    parts = [flat(value, f"{key}.") if isinstance(value, Mapping) else {key: value} for key, value in named.items()]
    return {key: value for part in parts for key, value in part.items()}


def learning(
    configs: Mapping[str, Config], them: Mapping[str, PolicyScores], base: str | None, k: int
) -> dict[str, Any] | None:
    """pass@1 and pass@k over training steps, for arms that differ only in their number of steps; only over training seeds."""
    families: dict[str, list[tuple[int, str]]] = {}
    for arm, row in configs.items():
        if isinstance(row.get("steps"), int) and arm in them and len(them[arm].seeds) > 1:
            families.setdefault(_rest(row, ("steps",)), []).append((row["steps"], arm))
    lines = {}
    for found in families.values():
        if len({steps for steps, _ in found}) > 2:
            ordered = [(steps, them[arm]) for steps, arm in sorted(found)]
            lines[ordered[-1][1].name] = [(steps, p.passes[1], p.best, p.passes[k]) for steps, p in ordered]
    if not lines or base not in them:
        return None
    home = them[base or ""]
    best = home.best or home.passes[1]
    return {"lines": lines, "base": (home.passes[1].value, best.value, home.passes[k].value)}


def grids(configs: Mapping[str, Config], them: Mapping[str, PolicyScores], k: int) -> list[dict[str, Any]]:
    """The largest sets of arms that differ in exactly two recipe keys: at least four arms and two values of each key."""
    keys = sorted({key for row in configs.values() for key in row})
    varying = [key for key in keys if len({str(row.get(key)) for row in configs.values()}) > 1]
    found = [grid for a, b in combinations(varying, 2) for grid in _grids(configs, a, b)]
    kept: list[dict[str, Any]] = []
    for grid in sorted(found, key=lambda grid: -len(grid["arms"])):
        arms = grid["arms"]
        if any(set(arms.values()) <= set(other["arms"].values()) for other in kept):
            continue
        places = [(r, c) for r in grid["rows"] for c in grid["columns"]]
        grid["said"] = "; ".join(f"{r}, {c}: {arms.get((r, c), 'not run')}" for r, c in places)
        for name, n in (("first", 1), ("last", k)):
            grid[name] = {place: them[arm].passes[n].value for place, arm in arms.items() if arm in them}
        kept.append(grid)
    return [grid for grid in kept if grid["first"]][:3]


def _grids(configs: Mapping[str, Config], a: str, b: str) -> Iterator[dict[str, Any]]:
    families: dict[str, dict[tuple[str, str], str]] = {}
    for arm, row in configs.items():
        if a in row and b in row:
            families.setdefault(_rest(row, (a, b)), {})[str(row[a]), str(row[b])] = arm
    for arms in families.values():
        rows, columns = (sorted({pair[i] for pair in arms}, key=_by_value) for i in (0, 1))
        if len(arms) >= 4 and len(rows) > 1 and len(columns) > 1:
            yield {"row_key": a, "column_key": b, "rows": rows, "columns": columns, "arms": arms}


def _rest(row: Config, without: Sequence[str]) -> str:
    return str(sorted((key, str(value)) for key, value in row.items() if key not in without))


def _by_value(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


# ------------------------------------------------------------------------------------------------------------------
# what was run


def states(trained: Trained, runs: Runs, evaluated: Collection[tuple[str, int | None]]) -> Table | None:
    """The state of every run and the kinds of its warnings. evaluated: arm and training seed of the evaluations."""
    if not trained:
        return None
    seeds = sorted({run.seed for mine in trained.values() for run in mine})
    rows = [(arm, *(_state(runs.get((arm, seed)), (arm, seed) in evaluated) for seed in seeds)) for arm in trained]
    return Table(header=("arm", *(f"seed {seed}" for seed in seeds)), rows=tuple(rows))


def _state(run: TrainingRun | None, evaluated: bool) -> str:
    if run is None:
        return NOT_RUN
    return "\n".join([sentences.state(run, evaluated), *(f"warned: {one['kind']}" for one in run.warnings)])


def warned(found: Mapping[str, Any]) -> list[str]:
    """Warnings during training, the first of each kind."""
    return ["{arm}, seed {seed}, warned at step {step} ({kind}): {message}".format(**one) for one in found.get("warnings", ())]


def cards(design: Design, runs: Trained) -> list[dict[str, str]]:
    """Facts, objective and configuration of every arm."""
    out = []
    for arm, mine in runs.items():
        if mine[0].config:
            entry = design.arm(arm)
            why = f"\n\nReason for this arm: {entry.why}" if entry is not None and entry.why else ""
            equation = (entry.equation if entry else "") or _equation(mine[0].config)
            config = json.dumps(mine[0].config, indent=2, ensure_ascii=False, default=str)
            out.append({"name": arm, "facts": _facts(mine), "equation": equation + why, "config": config})
    return out


def _facts(mine: Sequence[TrainingRun]) -> str:
    facts = [f"training seed{'s' * (len(mine) > 1)} {', '.join(str(run.seed) for run in mine)}"]
    units = {"time/step_s": ("{:,.0f} s of training per seed", 1.0), "rollout/tokens": ("{:,.2f} M sampled tokens per seed", 1e6)}
    for name, (form, unit) in units.items():
        totals = [v for run in mine if (v := run.total(name)) is not None]
        if totals:
            facts.append(form.format(np.mean(totals) / unit))
    if steps := [n for run in mine if (n := run.optimizer_steps)]:
        facts.append(f"{np.mean(steps):,.0f} optimizer steps per seed")
    commits = dict.fromkeys(run.commit[:12] for run in mine if run.commit)
    facts += [f"code {', '.join(commits)}"] * bool(commits)
    if any({**run.config, "seed": None} != {**mine[0].config, "seed": None} for run in mine):
        facts.append("the configurations of its runs differ in more than the seed; the first is shown")
    return "; ".join(facts)


def _equation(config: Config) -> str:
    """The objective of a run as text; without torch, what to install; "" for a configuration that this version cannot read."""
    try:
        from sage_rlvr.config import TrainConfig, decode  # torch, by the parts of a method

        return decode(TrainConfig, config).objective
    except ImportError as error:
        message = advice(error)
        if message is None:
            raise
        return f"the objective {message}"
    except (SageError, TypeError, ValueError, KeyError):
        return ""


def versions(runs: Trained) -> list[tuple[str, str]]:
    """The versions of the first run, and the number of other sets of versions."""
    every = [dict(run.versions) for mine in runs.values() for run in mine if run.versions]
    different = len({json.dumps(v, sort_keys=True) for v in every})
    more = [("runs", f"used {different} different sets of versions; those of the first run are listed")]
    return [*(every[0].items() if every else ()), *(more if different > 1 else [])]


# ------------------------------------------------------------------------------------------------------------------
# the selection on validation problems


def choice_of(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arm selected on validation problems and the selection score."""
    choice = found.get("choice")
    if not choice:
        return None
    ranked = sorted(choice["scores"].items(), key=lambda item: -math.inf if item[1] is None else item[1], reverse=True)
    rows = []
    for key, score in ranked:
        mark = " (chosen)" if key == choice["chosen"] else ""
        rows.append((found["arms"][key]["label"] + mark, "no common range" if score is None else f"{score:.4f}"))
    return choice | {"table": Table(header=("arm", "score on validation"), rows=tuple(rows)), "spread": _spread(choice)}


def _spread(choice: Mapping[str, Any]) -> dict[str, Any] | None:
    """Whether the candidates of a selection differ by more than seed noise; None for one candidate or one seed. tested: whether
    all their runs have a score."""
    runs = [list(scores.values()) for scores in (choice.get("by_seed") or {}).values()]
    if len(runs) < 2 or any(len(scores) < 2 for scores in runs):
        return None
    if any(x is None for scores in runs for x in scores):
        return {"tested": False}
    found = spread(runs)
    numbers = {"arms": f"{found.arms:.4f}", "seeds": f"{found.seeds:.4f}", "p": p_text(found.p)}
    return {"tested": True, "differ": found.p < 0.05, **numbers}
