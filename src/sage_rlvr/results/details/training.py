"""Training as trees of JSON: logged metrics, states of runs, run cards, versions, and arms that form a curve or grid of recipes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from sage_rlvr.errors import SageError
from sage_rlvr.extras import advice
from sage_rlvr.results.runs_text import state
from sage_rlvr.results.tables import NOT_RUN, TRAINING
from sage_rlvr.verdicts.design import Design
from sage_rlvr.verdicts.sources import Runs, TrainingRun, by_arm

Config = Mapping[str, Any]
Trained = Mapping[str, Sequence[TrainingRun]]
"""The runs of each arm, one per training seed."""


def in_order(runs: Runs, design: Design) -> dict[str, list[TrainingRun]]:
    """The runs of each arm in the order of the design."""
    by_seed = sorted(runs.items(), key=lambda item: item[0][1])
    of_arm = by_arm(dict(by_seed))
    names = dict.fromkeys([*design.names, *of_arm])
    return {arm: list(of_arm[arm].values()) for arm in names if arm in of_arm}


def curves(trained: Trained) -> dict[str, list[dict[str, list[float]]]]:
    """Arm -> for each run with metrics its logged values step by step, NaN at a step without one."""
    logged = {arm: [_columns(run) for run in of_arm if run.metrics] for arm, of_arm in trained.items()}
    return {arm: columns for arm, columns in logged.items() if columns}


def _columns(run: TrainingRun) -> dict[str, list[float]]:
    names = ["step", *(metric for metric in TRAINING if any(metric in row for row in run.metrics))]
    return {name: [float(row.get(name, np.nan)) for row in run.metrics] for name in names}


# ------------------------------------------------------------------------------------------------------------------
# learning curves and grids


def configs_of(trained: Trained) -> dict[str, dict[str, Any]]:
    """Arm -> its configuration without the seed, flat."""
    configs = {}
    for arm, of_arm in trained.items():
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


def learning(configs: Mapping[str, Config], several: Collection[str]) -> dict[str, list[tuple[int, str]]]:
    """Arms that differ only in their number of steps, under the name of the longest: (steps, arm) in order. several: arms with
    scores of more than one training seed."""
    families: dict[str, list[tuple[int, str]]] = {}
    for arm, row in configs.items():
        if isinstance(row.get("steps"), int) and arm in several:
            families.setdefault(_rest(row, ("steps",)), []).append((row["steps"], arm))
    lines = {}
    for family in families.values():
        if len({steps for steps, _ in family}) >= 3:
            lines[max(family)[1]] = sorted(family)
    return lines


def grids(configs: Mapping[str, Config]) -> list[dict[str, Any]]:
    """The largest sets of arms that differ in exactly two recipe keys: at least four arms and two values of each key."""
    keys = sorted({key for row in configs.values() for key in row})
    varying = [key for key in keys if len({str(row.get(key)) for row in configs.values()}) > 1]
    candidates: list[dict[str, Any]] = []
    for a, b in combinations(varying, 2):
        candidates += _grids(configs, a, b)
    candidates.sort(key=lambda grid: -len(grid["arms"]))
    kept: list[dict[str, Any]] = []
    for grid in candidates:
        arms = {arm for _, _, arm in grid["arms"]}
        if not any(arms <= {arm for _, _, arm in other["arms"]} for other in kept):
            kept.append(grid)
    return kept


def _grids(configs: Mapping[str, Config], a: str, b: str) -> Iterator[dict[str, Any]]:
    """The sets of arms that differ only in these two keys."""
    families: dict[str, dict[tuple[str, str], str]] = {}
    for arm, row in configs.items():
        if a in row and b in row:
            families.setdefault(_rest(row, (a, b)), {})[str(row[a]), str(row[b])] = arm
    for arms in families.values():
        rows = sorted({row for row, _ in arms}, key=_by_value)
        columns = sorted({column for _, column in arms}, key=_by_value)
        if len(arms) >= 4 and len(rows) > 1 and len(columns) > 1:
            cells = [(*at, arm) for at, arm in arms.items()]
            yield {"row_key": a, "column_key": b, "rows": rows, "columns": columns, "arms": cells}


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


def states(trained: Trained, runs: Runs, evaluated: Collection[tuple[str, int | None]]) -> dict[str, dict[int, str]]:
    """Arm -> training seed -> the state of its run and the kinds of its warnings, a line each. evaluated: arm and training seed of
    the evaluations."""
    seeds = sorted({run.seed for of_arm in trained.values() for run in of_arm})
    return {arm: {seed: _state(runs.get((arm, seed)), (arm, seed) in evaluated) for seed in seeds} for arm in trained}


def _state(run: TrainingRun | None, evaluated: bool) -> str:
    if run is None:
        return NOT_RUN
    lines = [state(run, evaluated)]
    lines += [f"warned: {warning['kind']}" for warning in run.warnings]
    return "\n".join(lines)


def cards(design: Design, trained: Trained) -> list[dict[str, Any]]:
    """Facts, objective and configuration of every arm."""
    texts = []
    for arm, of_arm in trained.items():
        config = of_arm[0].config
        if not config:
            continue
        entry = design.arm(arm)
        equation = (entry.equation if entry else "") or _equation(config)
        if entry is not None and entry.why:
            equation += f"\n\nReason for this arm: {entry.why}"
        texts.append({"name": arm, "facts": _facts(of_arm), "equation": equation, "config": config})
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
        from sage_rlvr.config import TrainConfig, decode  # torch, by the parts of a method

        return decode(TrainConfig, config).objective
    except ImportError as error:
        message = advice(error)
        if message is None:
            raise
        return f"the objective {message}"
    except (SageError, TypeError, ValueError, KeyError):
        return ""


def versions(trained: Trained) -> list[tuple[str, str]]:
    """The versions of the first run, the number of other sets of versions, and the processors of all runs."""
    each = [run for of_arm in trained.values() for run in of_arm]
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
