"""From a design to its arms: every recipe with its edits, missing controls added, questions checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from sage_rlvr import plugins
from sage_rlvr.config import TrainConfig, dump, load, load_config, task_of
from sage_rlvr.core import GUIDES, METHODS
from sage_rlvr.errors import ConfigError, Issue, choose_from, refuse, short
from sage_rlvr.paths import anchored
from sage_rlvr.recipes import Recipe, dotted, key_path_of, locate
from sage_rlvr.runs import config_differences
from sage_rlvr.sweeps.controls import Kind, PlannedArm, controls_of, free_name, linked, twin_of
from sage_rlvr.sweeps.design import DesignSpec, read_design, suffix_of
from sage_rlvr.sweeps.runs import as_json
from sage_rlvr.tasks.abilities import Enumerable
from sage_rlvr.verdicts.design import BASE, COLDER, TEMPERED, Question
from sage_rlvr.verdicts.metric import is_of_samples, known_metrics, known_of_samples
from sage_rlvr.verdicts.of_temperatures import above_colder
from sage_rlvr.verdicts.results import K

Edits = Sequence[tuple[str, str]]
"""(dotted key, value as typed) on the command line."""


def resolve(design: DesignSpec, source: Path, policy: str | None = None, edits: Edits = ()) -> tuple[list[PlannedArm], list[str]]:
    """The arms with all missing controls, and sentences about controls that do not exist.

    source: the design's file, to which paths of recipes are relative and which errors name. policy: the model of every arm, if the
        design trains one. edits: those of the command line, in every arm.
    """
    arms: list[PlannedArm] = []
    for name in design.arms:
        arm = _arm_of(design, name, source, policy, edits)
        if twin := twin_of(arms, arm.config):
            raise ConfigError(f"{source}: arms {twin.name!r} and {name!r} have the same configuration; keep one of them")
        arms.append(arm)
    loaded = plugins.loaded()  # a process has the plugins of all arms, including those after its arm, and its run names them
    arms = [replace(arm, config=replace(arm.config, plugins=loaded)) for arm in arms]
    notes = _add_controls(arms, design.kinds)
    arms = [linked(arm, arms) for arm in arms]
    _check_questions(design, arms, source)
    return arms, notes


def _arm_of(design: DesignSpec, name: str, source: Path, policy: str | None, edits: Edits) -> PlannedArm:
    """The arm of that name, its recipe read with all edits."""
    spec = design.spec(name)
    of_design: dict[str, Any] = {} if policy is None else {"model": policy}
    for key, value in {**design.base, **spec.edits}.items():
        of_design[key] = anchored(value, key_path_of(key), lambda key_path: source.parent)
    try:
        recipe = locate(spec.recipe, folder=source.parent)
        changes = [*((key, json.dumps(value)) for key, value in of_design.items()), *edits]
        config = load_config(TrainConfig, recipe, changes)
    except ConfigError as error:
        raise ConfigError(_in_design(error, design, name, source, edits)) from error
    own_label = None if spec.edits else label_of(Path(spec.recipe).stem)
    return PlannedArm(
        name=name,
        label=spec.label or own_label or name,
        recipe=_name_of(recipe),
        config=replace(config, seed=0),
        matched=spec.kl_matched,
        dropped=_dropped(recipe, changes),
    )


def _name_of(recipe: Recipe) -> str:
    return recipe.name if recipe.above else recipe.file.name


def label_of(stem: str) -> str | None:
    """The label of a recipe with the name of a registered method (`rloo`), a guide (`placebo`) or both (`rloo_branch`): RLOO,
    Placebo, RLOO+Branch, and for SAGE itself SAGE-Branch. None for other names."""
    for registry in (METHODS, GUIDES):
        if stem in registry:
            label = registry.label(stem)
            return None if label == stem else label
    for name in METHODS:
        guide = stem.removeprefix(f"{name}_")
        if guide != stem and guide in GUIDES:
            return f"{METHODS.label(name)}{'-' if name == 'sage' else '+'}{GUIDES.label(guide)}"
    return None


def _add_controls(arms: list[PlannedArm], kinds: Sequence[Kind]) -> list[str]:
    """Append the controls of these kinds that are missing; returns a sentence for each that does not exist."""
    notes: dict[str, None] = {}  # each once, in order
    for arm in list(arms):
        for control in controls_of(arm, arms):
            if control.kind not in kinds:
                continue
            if control.config is None:
                notes[control.why] = None
            elif twin_of(arms, control.config) is None:
                name = free_name(arms, control.name)
                arms.append(PlannedArm(name=name, label=control.label, recipe="", config=control.config, why=control.why))
    return list(notes)


# ---- questions


def _check_questions(design: DesignSpec, arms: Sequence[PlannedArm], source: Path) -> None:
    """Check that every question names existing arms, an evaluated task, and a metric of the list of comparisons."""
    names = sorted({BASE, TEMPERED, COLDER, *design.baselines, *(arm.name for arm in arms), *(arm.label for arm in arms)})
    task, samples = task_of(arms[0].config), design.evaluate.samples
    exact = isinstance(task, Enumerable)
    tasks = ["", *(suffix_of(world) for world in design.evaluate.ood)] if exact else ["", task.name]
    k_max = min(K, samples.n if samples else 1)
    metrics = known_metrics() if exact else [*known_of_samples(k_max), *above_colder(k_max)]
    listed = list(dict.fromkeys(metric.written for metric in metrics))
    for question in design.questions:
        metric = question.metric.written
        # the list in an error has only the first and the last k, but every k up to that is a metric of samples
        known = [*listed, metric] if not exact and is_of_samples(question.metric, k_max) else listed
        _check_known(source, "arm", question.a, names)
        _check_known(source, "arm", question.b, names)
        _check_known(source, "metric", metric, known)
        _check_known(source, "task", question.task, tasks)
        if problem := _unmatched(question, design, arms):
            raise ConfigError(f"{source}: questions: {metric}: {problem}")


def _check_known(source: Path, noun: str, name: str, known: Sequence[str]) -> None:
    refuse((name not in known, f"{source}: questions: {name!r}: no such {noun}{choose_from(name, known)}"))


def _unmatched(question: Question, design: DesignSpec, arms: Sequence[PlannedArm]) -> str:
    """The reasons why there will be no comparison at equal KL or of exact KLs, and the next step; "" if nothing is missing."""
    metric, samples = question.metric, design.evaluate.samples
    if "exact KL" in (metric.name, metric.matched) and not (samples and samples.kl):
        return "needs the exact KL of every arm to the base; set evaluate.samples.kl, such as 8 (samples of each problem)"
    if not metric.matched:
        return ""
    by_name = {name: arm for arm in reversed(arms) for name in (arm.label, arm.name)}
    a, b = by_name.get(question.a), by_name.get(question.b)
    if a and b and (b.name in a.matched or a.name in b.matched):
        return ""
    return (
        f"{question.a} is not read at equal KL against {question.b}; set kl_matched of arm {question.a} to {question.b} and more "
        "arms of its method at other betas"
    )


# ---- messages for a reader of the design

PARTS = ("advantage", "surrogate", "reduction", "rollout", "extras")  # settings of a method, besides its KL term


def differing_parts(a: TrainConfig, b: TrainConfig) -> list[str]:
    """The parts in which two arms differ: those of their methods, each setting of their KL terms, and other keys of their recipes.

    A KL term that only one of them has is one part.
    """
    found = [part for part in PARTS if getattr(a.method, part) != getattr(b.method, part)]
    one, two = (None if m.anchor is None or m.anchor.is_off else m.anchor for m in (a.method, b.method))
    if (one is None) != (two is None):
        found.append("KL term")
    elif one is not None and two is not None:
        found += [f"KL term's {f.name}" for f in fields(one) if getattr(one, f.name) != getattr(two, f.name)]
    trees = (as_json({**dump(config), "method": None}) for config in (a, b))
    return found + sorted(config_differences(*trees))


def several_parts(design: DesignSpec, arms: Sequence[PlannedArm]) -> list[str]:
    """A sentence for each arm of the design that differs from its control in more than one part."""
    by_name = {arm.name: arm for arm in arms}
    control, lines = by_name[design.control], []
    for name in design.arms:
        parts = differing_parts(by_name[name].config, control.config)
        if len(parts) > 1:
            pair = f"{by_name[name].label} differs from {control.label} in {len(parts)} parts ({', '.join(parts)})"
            lines.append(f"{pair}: a difference between them is that of all these together")
    return lines



def _dropped(recipe: Recipe, changes: Edits) -> str:
    """A sentence on the settings of a recipe's method that another method's name among the edits drops; "" if none."""
    before, after = load(recipe, ()).get("method"), load(recipe, changes).get("method")
    if not isinstance(before, Mapping) or not isinstance(after, Mapping) or before.get("name") == after.get("name"):
        return ""
    dropped = ", ".join(f"{key} {short(value)}" for key, value in before.items() if key not in after)
    return f"{dropped} of {_name_of(recipe)} is dropped with method {before.get('name')}" if dropped else ""


def _in_design(error: ConfigError, design: DesignSpec, arm: str, source: Path, edits: Edits) -> str:
    """The error of an arm's recipe, each problem with file and line of the design. An edit of the design is named by its place
    in it (`base.steps`, `edits.method.beta`), one of the command line as typed."""
    places = {key_path_of(key): ("base", key) for key in design.base}
    places |= {key_path_of(key): ("arms", arm, "edits", key) for key in design.spec(arm).edits}
    for key, _ in edits:
        places.pop(key_path_of(key), None)
    lines = []
    for issue in error.issues or (Issue(problem=str(error)),):
        where: tuple[str, ...] = ("arms", arm)
        by_design = [key_path for key_path in issue.edited if key_path in places]
        if issue.written in places:
            where = places[issue.written]
            issue = replace(issue, source="", key_path=(where[-2], *issue.key_path))
        elif by_design:
            names = ", ".join(f"{places[key_path][-2]}.{dotted(key_path)}" for key_path in by_design)
            others = tuple(key_path for key_path in issue.edited if key_path not in places)
            issue = replace(issue, source=f"{issue.source} with {names}", edited=others)
        lines.append(f"{_line_of(where, source)}: arm {arm!r}: {issue}")
    return "\n".join(lines)


def _line_of(where: tuple[str, ...], source: Path) -> str:
    """File and line of a key of the design, or of the nearest mapping around it."""
    origins = read_design(source).origins if source.is_file() else {}
    for length in range(len(where), 0, -1):
        if where[:length] in origins:
            return origins[where[:length]]
    return str(source)
