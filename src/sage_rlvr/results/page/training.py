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
    summary: Mapping[str, Any], them: Mapping[str, PolicyScores], base: str, design: Design, runs: Runs, trained: Trained,
    evaluated: Collection[tuple[str, int | None]],
) -> dict[str, Any]:  # fmt: skip
    """The values of the template's sections on training and on what was run. trained: of `in_order`; evaluated: arm and training
    seed of every evaluation."""
    configs, k = configs_of(trained), max(summary["ks"])
    controls = [f"added: {arm.name} ({arm.why})" for arm in design.arms if arm.why]
    controls = controls or ["no control was added to the arms of the design"]
    matched = {row["metric"]["matched"] for row in summary["rows"]}
    controls += [text for kind, text in SAME_KL.items() if kind in matched]
    used = versions(trained) or (summary.get("versions") or {}).items()
    training_tables = [tables.costs(summary), tables.training(summary)]
    return {
        "training_tables": [table for table in training_tables if table.rows],
        "training": curves(trained),
        "warnings": warnings(summary),
        "warned": warned(summary),
        "learning": learning(configs, them, base, k),
        "grids": grids(configs, them, k),
        "states": states(trained, runs, evaluated),
        "cards": cards(design, trained),
        "choice": choice_of(summary),
        "versions": [f"{name} {version}" for name, version in used],
        "swept": bool(design.facts),
        "runs_wanted": len(design.facts.get("runs", ())) or len(summary["arms"]) * len(summary["seeds"]),
        "controls": controls,
        "not_run": list(summary["not_run"]),
    }


def in_order(runs: Runs, design: Design) -> dict[str, list[TrainingRun]]:
    """The runs of each arm in the order of the design."""
    by_seed = sorted(runs.items(), key=lambda item: item[0][1])
    of_arm = by_arm(dict(by_seed))
    names = dict.fromkeys([*design.names, *of_arm])
    return {arm: list(of_arm[arm].values()) for arm in names if arm in of_arm}


def curves(runs: Trained) -> dict[str, Any] | None:
    """The values of the training figures with notes; None without logged metrics."""
    logged = {}
    for arm, of_arm in runs.items():
        columns = [_columns(run) for run in of_arm if run.metrics]
        if columns:
            logged[arm] = columns
    if not logged:
        return None
    seen, idle = set(), True
    for columns in logged.values():
        for run in columns:
            seen |= {metric for metric, values in run.items() if np.isfinite(values).any()}
            if STRENGTH[0] in run and np.nanmax(run[STRENGTH[0]], initial=0) > 0:
                idle = False
    metrics = [metric for metric in TRAINING if metric in seen and not (idle and metric in STRENGTH)]
    most = max(len(columns) for columns in logged.values())
    notes = []
    if idle:
        notes.append("q was 1 on every token of every run: no arm has an active guide.")
    uneven = [f"{arm} {len(columns)} of {most}" for arm, columns in logged.items() if len(columns) < most]
    if uneven:
        notes.append(f"Missing seeds: {', '.join(uneven)}.")
    absent = [title for metric, (title, _) in TRAINING.items() if metric not in seen and metric not in STRENGTH]
    if absent:
        notes.append(f"Not recorded in any run: {', '.join(absent)}.")
    return {"runs": logged, "metrics": metrics, "most": most, "notes": notes}


def _columns(run: TrainingRun) -> dict[str, np.ndarray]:
    """Metric -> (S,), NaN where a step has none."""
    names = ["step", *(metric for metric in TRAINING if any(metric in row for row in run.metrics))]
    columns = {}
    for name in names:
        columns[name] = np.array([float(row.get(name, np.nan)) for row in run.metrics])
    return columns


def warnings(summary: Mapping[str, Any]) -> list[str]:
    """Warnings about inactive guides: the results of such an arm are no evidence about guides."""
    texts = []
    for row in summary["arms"].values():
        strength = row.get("dose")
        if strength and max(strength["active_first"], strength["active_last"]) < 0.001:
            texts.append(
                f"{row['label']}: q differed from 1 on {strength['active_first']:.1%} of the tokens in the first tenth of training "
                f"and {strength['active_last']:.1%} in the last, so this run trained as if it had no guide."
            )
    return texts


# ------------------------------------------------------------------------------------------------------------------
# learning curves and grids


def configs_of(runs: Trained) -> dict[str, dict[str, Any]]:
    """Arm -> its configuration without the seed, flat."""
    configs = {}
    for arm, of_arm in runs.items():
        config = dict(of_arm[0].config)
        if config:
            config.pop("seed", None)
            configs[arm] = flat(config)
    return configs


def flat(tree: Config, before: str = "") -> dict[str, Any]:
    """{"method": {"beta": 1}} -> {"method.beta": 1}."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        key_path = f"{before}{key}"
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{key_path}.")
        else:
            leaves[key_path] = value
    return leaves


def learning(
    configs: Mapping[str, Config], them: Mapping[str, PolicyScores], base: str | None, k: int
) -> dict[str, Any] | None:
    """pass@1 and pass@k over training steps, for arms that differ only in their number of steps; only over training seeds."""
    families: dict[str, list[tuple[int, str]]] = {}
    for arm, row in configs.items():
        if isinstance(row.get("steps"), int) and arm in them and len(them[arm].seeds) > 1:
            families.setdefault(_rest(row, ("steps",)), []).append((row["steps"], arm))
    lines = {}
    for family in families.values():
        if len({steps for steps, _ in family}) < 3:
            continue
        points = []
        for steps, arm in sorted(family):
            scores = them[arm]
            points.append((steps, scores.passes[1], scores.best, scores.passes[k]))
        lines[scores.name] = points  # of the longest training
    if not lines or base not in them:
        return None
    of_base = them[base or ""]
    best = of_base.best or of_base.passes[1]
    return {"lines": lines, "base": (of_base.passes[1].value, best.value, of_base.passes[k].value)}


def grids(configs: Mapping[str, Config], them: Mapping[str, PolicyScores], k: int) -> list[dict[str, Any]]:
    """The largest sets of arms that differ in exactly two recipe keys: at least four arms and two values of each key."""
    keys = sorted({key for row in configs.values() for key in row})
    varying = [key for key in keys if len({str(row.get(key)) for row in configs.values()}) > 1]
    candidates: list[dict[str, Any]] = []
    for a, b in combinations(varying, 2):
        candidates += _grids(configs, a, b)
    candidates.sort(key=lambda grid: -len(grid["arms"]))
    kept: list[dict[str, Any]] = []
    for grid in candidates:
        arms = grid["arms"]
        if any(set(arms.values()) <= set(other["arms"].values()) for other in kept):
            continue
        texts = []
        for row in grid["rows"]:
            texts += [f"{row}, {column}: {arms.get((row, column), 'not run')}" for column in grid["columns"]]
        grid["said"] = "; ".join(texts)
        for name, n in (("first", 1), ("last", k)):
            grid[name] = {pair: them[arm].passes[n].value for pair, arm in arms.items() if arm in them}
        kept.append(grid)
    return [grid for grid in kept if grid["first"]][:3]


def _grids(configs: Mapping[str, Config], a: str, b: str) -> Iterator[dict[str, Any]]:
    """The sets of arms that differ in these two keys alone."""
    families: dict[str, dict[tuple[str, str], str]] = {}
    for arm, row in configs.items():
        if a in row and b in row:
            families.setdefault(_rest(row, (a, b)), {})[str(row[a]), str(row[b])] = arm
    for arms in families.values():
        rows = sorted({row for row, _ in arms}, key=_by_value)
        columns = sorted({column for _, column in arms}, key=_by_value)
        if len(arms) >= 4 and len(rows) > 1 and len(columns) > 1:
            yield {"row_key": a, "column_key": b, "rows": rows, "columns": columns, "arms": arms}


def _rest(row: Config, without: Sequence[str]) -> str:
    rest = [(key, str(value)) for key, value in row.items() if key not in without]
    return str(sorted(rest))


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
    seeds = sorted({run.seed for of_arm in trained.values() for run in of_arm})
    rows = []
    for arm in trained:
        cells = [_state(runs.get((arm, seed)), (arm, seed) in evaluated) for seed in seeds]
        rows.append((arm, *cells))
    return Table(header=("arm", *(f"seed {seed}" for seed in seeds)), rows=tuple(rows))


def _state(run: TrainingRun | None, evaluated: bool) -> str:
    if run is None:
        return NOT_RUN
    lines = [sentences.state(run, evaluated)]
    lines += [f"warned: {warning['kind']}" for warning in run.warnings]
    return "\n".join(lines)


def warned(summary: Mapping[str, Any]) -> list[str]:
    """Warnings during training, the first of each kind."""
    form = "{arm}, seed {seed}, warned at step {step} ({kind}): {message}"
    return [form.format(**warning) for warning in summary.get("warnings", ())]


def cards(design: Design, runs: Trained) -> list[dict[str, str]]:
    """Facts, objective and configuration of every arm."""
    texts = []
    for arm, of_arm in runs.items():
        config = of_arm[0].config
        if not config:
            continue
        entry = design.arm(arm)
        equation = (entry.equation if entry else "") or _equation(config)
        if entry is not None and entry.why:
            equation += f"\n\nReason for this arm: {entry.why}"
        written = json.dumps(config, indent=2, ensure_ascii=False, default=str)
        texts.append({"name": arm, "facts": _facts(of_arm), "equation": equation, "config": written})
    return texts


def _facts(mine: Sequence[TrainingRun]) -> str:
    """Seeds, cost, code and configurations of an arm's runs, in a sentence."""
    seeds = ", ".join(str(run.seed) for run in mine)
    facts = [f"training seeds {seeds}" if len(mine) > 1 else f"training seed {seeds}"]
    units = {"time/step_s": ("{:,.0f} s of training per seed", 1.0), "rollout/tokens": ("{:,.2f} M sampled tokens per seed", 1e6)}
    for name, (form, unit) in units.items():
        totals = [total for total in (run.total(name) for run in mine) if total is not None]
        if totals:
            facts.append(form.format(np.mean(totals) / unit))
    steps = [run.optimizer_steps for run in mine if run.optimizer_steps]
    if steps:
        facts.append(f"{np.mean(steps):,.0f} optimizer steps per seed")
    commits = dict.fromkeys(run.commit[:12] for run in mine if run.commit)
    if commits:
        facts.append(f"code {', '.join(commits)}")
    configs = [{**run.config, "seed": None} for run in mine]
    if any(config != configs[0] for config in configs):
        facts.append("the configurations of its runs differ in more than the seed; the first is shown")
    return "; ".join(facts)


def _equation(config: Config) -> str:
    """The objective of a run as text; without torch, what to install; "" for a configuration that this version cannot read."""
    try:
        from sage_rlvr.config import TrainConfig, decode_recorded  # torch, by the parts of a method

        return decode_recorded(TrainConfig, config).objective
    except ImportError as error:
        message = advice(error)
        if message is None:
            raise
        return f"the objective {message}"
    except (SageError, TypeError, ValueError, KeyError):
        return ""


def versions(runs: Trained) -> list[tuple[str, str]]:
    """The versions of the first run, the number of other sets of versions, and the processors of all runs."""
    each = [run for of_arm in runs.values() for run in of_arm]
    sets = [dict(run.versions) for run in each if run.versions]
    if not sets:
        return []
    listed = list(sets[0].items())
    known = list(dict.fromkeys(name for run in each for name in run.processors))
    if known:
        listed.append(("processor" if len(known) == 1 else f"{len(known)} processors:", "; ".join(known)))
    different = len({json.dumps(one, sort_keys=True) for one in sets})
    if different > 1:
        listed.append(("runs", f"used {different} different sets of versions; those of the first run are listed"))
    return listed


# ------------------------------------------------------------------------------------------------------------------
# the selection on validation problems


def choice_of(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arm selected on validation problems and the selection score."""
    choice = summary.get("choice")
    if not choice:
        return None
    ranked = sorted(choice["scores"].items(), key=lambda item: -math.inf if item[1] is None else item[1], reverse=True)
    rows = []
    for key, score in ranked:
        label = summary["arms"][key]["label"]
        if key == choice["chosen"]:
            label += " (chosen)"
        rows.append((label, "no common range" if score is None else f"{score:.4f}"))
    return choice | {"table": Table(header=("arm", "score on validation"), rows=tuple(rows)), "spread": _spread(choice)}


def _spread(choice: Mapping[str, Any]) -> dict[str, Any] | None:
    """Whether the candidates of a selection differ by more than seed noise; None for one candidate or one seed. tested: whether
    all their runs have a score."""
    runs = [list(scores.values()) for scores in (choice.get("by_seed") or {}).values()]
    if len(runs) < 2 or any(len(scores) < 2 for scores in runs):
        return None
    if any(x is None for scores in runs for x in scores):
        return {"tested": False}
    f_test = spread(runs)
    numbers = {"arms": f"{f_test.arms:.4f}", "seeds": f"{f_test.seeds:.4f}", "p": p_text(f_test.p)}
    return {"tested": True, "differ": f_test.p < 0.05, **numbers}
