"""Training on the page: curves, activity of guides, tables, learning curves, grids of recipes, and what was run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from sage_rlvr.results import tables
from sage_rlvr.results.page.scores import Scores, drawn
from sage_rlvr.results.tables import TRAINING, Columns, Table, table
from sage_rlvr.verdicts.stats.power import spread
from sage_rlvr.verdicts.text.words import p_text

STRENGTH = ("guide/active_frac", "guide/q_mean")
SAME_KL: Mapping[str, str] = {
    "raw KL": "at the same raw KL: the scores of another method at several betas (of a guided arm: the method without its guide), "
    "interpolated at the arm's KL, seed by seed; linear in the logarithm of the raw KL of the last tenth of training; there is no "
    "extrapolation.",
    "exact KL": "at the same exact KL: the same, with the reverse KL to the base on completions of each trained policy.",
}
Tree = Mapping[str, Any]


def runs_of(summary: Tree, them: Scores, base: str, k: int) -> dict[str, Any]:
    """The values of the template's sections on training and on what was run."""
    added = [f"added: {summary['arms'].get(key, {}).get('label', key)} ({why})" for key, why in summary["added"].items()]
    matched = {row["metric"]["matched"] for row in summary["rows"]}
    used = summary["run_versions"] or (summary.get("versions") or {}).items()
    return {
        "training_tables": [made for made in (tables.costs(summary), tables.training(summary)) if made.rows],
        "training": curves(summary.get("training") or {}),
        "warnings": warnings(summary),
        "warned": [WARNED.format(**warning) for warning in summary["warnings"]],
        "learning": learning(summary["learning"], them, base, k),
        "grids": grids(summary["grids"], them, k),
        "states": _states(summary["states"]),
        "cards": [{**card, "config": _written(card["config"])} for card in summary.get("cards") or ()],
        "choice": choice_of(summary),
        "versions": [f"{name} {version}" for name, version in used],
        "swept": summary["swept"],
        "runs_wanted": summary["runs_wanted"],
        "controls": (added or ["no control was added to the arms of the design"])
        + [text for kind, text in SAME_KL.items() if kind in matched],
        "not_run": list(summary["not_run"]),
    }


WARNED = "{arm}, seed {seed}, warned at step {step} ({kind}): {message}"


def _written(config: Tree) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False)


def _states(states: Mapping[str, Mapping[str, str]]) -> Table | None:
    """The state of every run and the kinds of its warnings."""
    columns: Columns = {"arm": lambda item: item[0]}
    for seed in next(iter(states.values()), {}):
        columns[f"seed {seed}"] = lambda item, seed=seed: item[1][seed]  # type: ignore[misc]
    return table(columns, states.items()) if states else None


def curves(logged: Mapping[str, list[Tree]]) -> dict[str, Any] | None:
    """The values of the training figures with notes; None without logged metrics. logged: arm -> for each run {"step": (S,),
    metric: (S,)}."""
    if not logged:
        return None
    seen, idle = set(), True
    for of_arm in logged.values():
        for columns in of_arm:
            seen |= {metric for metric, values in columns.items() if any(value is not None for value in values)}
            idle = idle and not any(value and value > 0 for value in columns.get(STRENGTH[0], ()))
    most = max(map(len, logged.values()))
    notes = ["q was 1 on every token of every run: no arm has an active guide."] if idle else []
    uneven = [f"{arm} {len(of_arm)} of {most}" for arm, of_arm in logged.items() if len(of_arm) < most]
    if uneven:
        notes.append(f"Missing seeds: {', '.join(uneven)}.")
    absent = [title for metric, (title, _) in TRAINING.items() if metric not in seen and metric not in STRENGTH]
    if absent:
        notes.append(f"Not recorded in any run: {', '.join(absent)}.")
    metrics = [metric for metric in TRAINING if metric in seen and not (idle and metric in STRENGTH)]
    return {"runs": logged, "metrics": metrics, "most": most, "notes": notes}


def warnings(summary: Tree) -> list[str]:
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


def learning(lines: Mapping[str, list[tuple[int, str]]], them: Scores, base: str, k: int) -> dict[str, Any] | None:
    """pass@1, best pass@1 and pass@k of arms that differ only in their number of training steps, and those of the base."""
    if not lines or base not in them:
        return None

    def scores(arm: str) -> list[Any]:
        row = them[arm]
        return [drawn(row["pass"]["1"]), drawn(row["best_pass1"]), drawn(row["pass"][str(k)])]

    points = {name: [(steps, *scores(arm)) for steps, arm in line] for name, line in lines.items()}
    return {"lines": points, "base": [one["value"] for one in scores(base)]}


def grids(found: list[Tree], them: Scores, k: int) -> list[dict[str, Any]]:
    """Up to three grids of recipes with the scores of their arms."""
    kept = []
    for grid in found:
        arms = {(row, column): arm for row, column, arm in grid["arms"]}
        texts = [f"{row}, {column}: {arms.get((row, column), 'not run')}" for row in grid["rows"] for column in grid["columns"]]
        values: dict[str, Any] = {**grid, "said": "; ".join(texts)}
        for name, n in (("first", 1), ("last", k)):
            values[name] = {at: drawn(them[arm]["pass"][str(n)])["value"] for at, arm in arms.items() if arm in them}
        if values["first"]:
            kept.append(values)
    return kept[:3]


# ------------------------------------------------------------------------------------------------------------------
# the selection on validation problems


def choice_of(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arm selected on validation problems and the selection score."""
    choice = summary["choice"]
    if not choice:
        return None
    ranked = sorted(choice["scores"].items(), key=lambda item: -math.inf if item[1] is None else item[1], reverse=True)
    rows = []
    for key, score in ranked:
        label = summary["arms"][key]["label"]
        if key == choice["chosen"]:
            label += " (chosen)"
        rows.append((label, "no common range" if score is None else f"{score:.4f}"))
    return {**choice, "table": Table(header=("arm", "score on validation"), rows=tuple(rows)), "spread": _spread(choice)}


def _spread(choice: Mapping[str, Any]) -> dict[str, Any] | None:
    """Whether the candidates of a selection differ by more than seed noise; None for one candidate or one seed. tested: whether
    all their runs have a score."""
    by_arm = [list(scores.values()) for scores in (choice.get("by_seed") or {}).values()]
    if len(by_arm) < 2 or any(len(scores) < 2 for scores in by_arm):
        return None
    if any(x is None for scores in by_arm for x in scores):
        return {"tested": False}
    f_test = spread(by_arm)
    numbers = {"arms": f"{f_test.arms:.4f}", "seeds": f"{f_test.seeds:.4f}", "p": p_text(f_test.p)}
    return {"tested": True, "differ": f_test.p < 0.05, **numbers}
