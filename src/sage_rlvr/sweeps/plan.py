"""The runs and tasks of a design, their state, the selection of an arm, and the record in design.json."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.config import TrainConfig, dump, task_of
from sage_rlvr.errors import ConfigError, refuse
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED
from sage_rlvr.recipes import find
from sage_rlvr.results.read import read_results
from sage_rlvr.results.summary import choose
from sage_rlvr.runs import versions, write_json_atomic, writing
from sage_rlvr.sweeps.controls import PlannedArm
from sage_rlvr.sweeps.design import DesignSpec, load_design, sft_recipe, suffix_of, world_named
from sage_rlvr.sweeps.evaluations import (
    VALIDATION,
    EvaluatedPolicy,
    ExactEvaluation,
    SampledEvaluation,
    exact_processes,
    recipe_of,
)
from sage_rlvr.sweeps.processes import ProcessTask
from sage_rlvr.sweeps.resolve import Edits, resolve
from sage_rlvr.sweeps.runs import SweepRun, as_json
from sage_rlvr.tasks import described
from sage_rlvr.tasks.abilities import Described, Enumerable
from sage_rlvr.tasks.base import Task, problems_of
from sage_rlvr.tasks.countdown import Countdown
from sage_rlvr.tasks.countdown.expressions import MAX_NUMBERS
from sage_rlvr.verdicts.sources import State
from sage_rlvr.verdicts.stats.tempered import POWERS

ADOPTED = "adopted.json"  # in a reused run: its origin


@dataclass(eq=False)
class SweepPlan:
    """A resolved design in its folder, and its progress. Made by `plan`.

    left_out: sentences about controls that do not exist
    sft: the task that trains the policy of the design, if it makes one
    base: suffix of the record -> exact evaluation of the base
    finished: tasks with existing results
    failures: why others failed
    seconds: durations of tasks that ended in this process
    started: running tasks, and since when
    choice: the selection of an arm as in design.json, None if the design selects none
    """

    design: DesignSpec
    source: Path
    out: Path
    arms: list[PlannedArm]
    left_out: list[str]
    sft: list[ProcessTask]
    base: dict[str, ProcessTask]
    base_samples: list[ProcessTask]
    runs: list[SweepRun]
    finished: set[ProcessTask] = field(default_factory=set)
    failures: dict[ProcessTask, str] = field(default_factory=dict)
    seconds: dict[ProcessTask, float] = field(default_factory=dict)
    started: dict[ProcessTask, float] = field(default_factory=dict)
    choice: dict[str, Any] | None = None
    workers: int = 1

    @property
    def tasks(self) -> list[ProcessTask]:
        """All tasks, the base first, then the named arms seed by seed, then the added controls."""
        of_runs = [task for run in self.runs for task in self.tasks_of(run)]
        return [*self.sft, *self.base.values(), *self.base_samples, *of_runs]

    def tasks_of(self, run: SweepRun) -> list[ProcessTask]:
        """The run's tasks as far as they are required: the test of an arm that may be selected waits for the selection."""
        select = self.design.select
        if select is None or run.arm.name not in select.among:
            return [task for task in run.tasks if task is not run.exact.get(VALIDATION)]
        if self.choice is not None and self.choice["chosen"] == run.arm.name:
            return run.tasks
        return [run.train, run.exact[VALIDATION]]

    def status(self, run: SweepRun) -> State:
        """The progress of the run."""
        wanted = self.tasks_of(run)
        if any(task in self.failures for task in wanted):
            return "failed"
        if self.finished.issuperset(wanted):
            main = run.exact.get("")  # none if the design has only samples
            return "evaluated" if main is None or main in wanted else "validation only"
        steps = run.steps_done
        if run.train in self.finished or (steps == run.config.steps and run.train.done()):  # it may have ended unnoticed
            return "trained"
        return "training" if steps else "not run"

    def is_complete(self, run: SweepRun) -> bool:
        """Whether all required results exist."""
        return self.status(run) in ("evaluated", "validation only")

    def look(self) -> None:
        """Add to `finished` the tasks whose results exist by now."""
        self.finished.update(task for task in self.tasks if task not in self.finished and task.is_finished())


def plan(
    source: Path,
    out: Path,
    design: DesignSpec | None = None,
    edits: Edits = (),
    *,
    powers: Sequence[float] = POWERS,
) -> SweepPlan:
    """The work that the design requires, and the finished part. All errors are raised at this point: recipes, worlds, problems
    that a split does not have, a folder with other runs under the same names. design: instead of the file's contents; edits: for
    every arm's recipe, as on the command line; powers: powers at which the base is tempered over full completions."""
    source = find(source, "designs")
    design = design or load_design(source)
    recipe = sft_recipe(design, source)
    policy = None if recipe is None else out / "policy"
    arms, left_out = resolve(design, source, None if policy is None else str(policy.absolute()), edits)
    _check_alike(arms, design.steps_differ)
    config = arms[0].config
    evaluations = _exact_evaluations(design, source.parent, task_of(config))
    sampled = SampledEvaluation.of(design.evaluate, task_of(config))
    sft = [] if recipe is None else [_sft_task(recipe, out)]
    base = EvaluatedPolicy("base", config.model, config.model, out / "logs", out, tuple(sft), _task_args(arms[0], out))
    of_base = dict(evaluations)
    if evaluations:  # the power frontier, a permanent control
        of_base[""] = replace(evaluations[""], powers=tuple(powers))
    sweep = SweepPlan(
        design=design,
        source=source,
        out=out,
        arms=arms,
        left_out=left_out,
        sft=sft,
        base=exact_processes(base, of_base),
        base_samples=_samples_of_base(design, sampled, base, config),
        runs=[],
    )
    named = [arm for arm in arms if not arm.why]
    added = [arm for arm in arms if arm.why]
    for group in (named, added):
        sweep.runs += [_run(sweep, arm, seed, evaluations, sampled) for seed in design.seeds for arm in group]
    for run in sweep.runs:
        run.check_same_run()
    sweep.look()
    if design.select is not None:
        select_arm(sweep)
        sweep.look()  # also at the temperatures of the selection
    return sweep


def _check_alike(arms: Sequence[PlannedArm], steps_differ: bool) -> None:
    """Require one base policy and the same problems for all arms, for paired comparisons; and one length, unless the design
    compares lengths."""
    for name in ("model", "world", "task", "data"):
        values = {json.dumps(dump(arm.config).get(name), default=str) for arm in arms}
        if len(values) > 1:
            raise ConfigError(
                f"the arms differ in {name}: {', '.join(sorted(values))}; a design has a single value, set it in `base`"
            )
    steps = {arm.config.steps for arm in arms}
    if len(steps) > 1 and not steps_differ:
        raise ConfigError(
            f"the arms differ in steps: {sorted(steps)}; a design has a single number, set it in `base`, or set "
            "`steps_differ: true` to compare training lengths"
        )


# ---- the tasks


def _exact_evaluations(design: DesignSpec, folder: Path, task: Task) -> dict[str, ExactEvaluation]:
    """Suffix of the record -> evaluation; "" is the main one. None if right completions cannot be listed, and the design has
    samples instead. Raises ConfigError if a world has fewer problems."""
    spec = design.evaluate
    if not isinstance(task, Enumerable):
        _check_sampled(design, task)
        return {}
    evaluations = {"": ExactEvaluation.of(spec, task)}
    if design.select is not None:
        evaluations[VALIDATION] = replace(evaluations[""], split="validation", problems=design.select.problems)
    for name in spec.ood:
        world = world_named(name, folder).build()
        evaluations[suffix_of(name)] = ExactEvaluation(
            world, spec.ood_problems, spec.split, spec.sampling, spec.ood_temperatures
        )
    for evaluation in evaluations.values():
        slow = isinstance(evaluation.task, Countdown) and max(evaluation.task.counts) == MAX_NUMBERS  # to draw its problems
        if not slow or len(evaluations) == 1:
            evaluation.ids  # noqa: B018  (raises)
    return evaluations


def _check_sampled(design: DesignSpec, task: Task) -> None:
    """Raise ConfigError unless a task without listed right completions is evaluated by samples, and no exact evaluation is
    required."""
    lacks = f"task {task.name}: its right completions cannot be enumerated ({type(task).__name__} has no solutions)"
    spec = design.evaluate
    refuse(
        (
            spec.samples is None,
            f"{lacks}, so its arms cannot be evaluated exactly; evaluate them by samples, with the line `evaluate: {{samples: "
            "{problems: 100, n: 64, guide: null}}` in the design, or implement solutions(problem) in the task",
        ),
        (design.select is not None, f"{lacks}, and `select` needs exact evaluations; omit select"),
        (design.baselines, f"{lacks}, and `baselines` needs exact evaluations; omit baselines"),
        (design.oracle, f"{lacks}, and `oracle` needs exact evaluations; omit oracle"),
        (spec.ood, f"{lacks}, and other tasks (ood) are evaluated exactly; omit evaluate.ood"),
        (
            not problems_of(task, spec.split, EVALUATION_SEED, 1, spec.sampling),
            f"evaluate.split = {spec.split!r}: task {task.name} has no such problems; choose another split",
        ),
    )


def _task_args(arm: PlannedArm, out: Path) -> tuple[str, ...]:
    """The arguments of `eval` that name the training task of all arms, for a policy that is no run."""
    is_world = arm.config.task is None and arm.config.data is None
    return "--world" if is_world else "--task", str(recipe_of(out, arm.name))


def _sft_task(recipe: Path, out: Path) -> ProcessTask:
    policy = (out / "policy").absolute()
    args = ("sft", str(recipe), "--run", str(out / "sft"), "--out", str(policy), "--quiet")
    return ProcessTask("base policy", args, out / "logs" / "sft.log", lambda: (policy / "config.json").exists())


def _samples_of_base(
    design: DesignSpec, sampled: SampledEvaluation | None, base: EvaluatedPolicy, config: TrainConfig
) -> list[ProcessTask]:
    """Samples at temperature 1 first, then at the further temperatures of the design."""
    if sampled is None or design.evaluate.samples is None:
        return []
    temperatures = (None, *design.evaluate.samples.base_temperatures)
    return [replace(sampled, temperature=temperature).process(base, config) for temperature in temperatures]


def _run(
    sweep: SweepPlan,
    arm: PlannedArm,
    seed: int,
    evaluations: dict[str, ExactEvaluation],
    sampled: SampledEvaluation | None,
) -> SweepRun:
    """One run with its processes."""
    out = sweep.out
    directory = out / "runs" / f"{arm.name}-s{seed}"
    run = SweepRun(arm, seed, directory, recipe_of(out, arm.name), after=tuple(sweep.sft))
    policy = EvaluatedPolicy(directory.name, str(directory), str(directory / "policy"), directory, out, after=(run.train,))
    run.exact = exact_processes(policy, evaluations)
    if sampled is not None:
        run.samples = sampled.process(policy, arm.config)
        run.kl = sampled.kl_process(policy, arm.config, run.samples, of_base=sweep.base_samples[0])
    return run


# ---- the selection of an arm


def select_arm(sweep: SweepPlan) -> None:
    """Select an arm on validation problems, if the design selects one and every candidate is evaluated on them."""
    select = sweep.design.select
    if select is None:
        return
    sweep.choice = {
        "by": select.by, "problems": select.problems, "among": list(select.among), "chosen": None, "scores": {}, "by_seed": {},
    }  # fmt: skip
    validated = [run.exact[VALIDATION] for run in sweep.runs if run.arm.name in select.among]
    if not sweep.finished.issuperset([*validated, sweep.base[VALIDATION]]):
        return
    write_record(sweep)  # design.json, from which `read_results` learns what is evaluated
    by_seed = choose(read_results(sweep.out, split=VALIDATION), select.among, select.by)
    scores = {name: float(np.mean(values)) for name, values in by_seed.items()}
    seeds = [str(seed) for seed in sweep.design.seeds]  # every candidate has been evaluated at all of them
    for name, values in by_seed.items():
        sweep.choice["scores"][name] = _finite(scores[name])
        sweep.choice["by_seed"][name] = {seed: _finite(value) for seed, value in zip(seeds, values, strict=True)}
    sweep.choice["chosen"] = max(scores, key=lambda name: scores[name])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ---- the record


def write_record(sweep: SweepPlan) -> None:
    """Write design.json: the resolved design, and the state of every run."""
    design = sweep.design
    steps = sorted({arm.config.steps for arm in sweep.arms})
    facts = {
        "schema": 1,
        "title": design.title,
        "notes": design.notes,
        "design": sweep.source.name,
        "control": design.control,
        "seeds": list(design.seeds),
        "steps": steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1]}",
        "world": task_words(sweep),
        "evaluate": dump(design.evaluate) | {"ood": [suffix_of(name) for name in design.evaluate.ood]},
        "base_evaluated": [suffix for suffix, task in sweep.base.items() if task in sweep.finished],
        "base_model": "embedded" if design.policy is None else f"policy/, by {design.policy}",
        "arms": [_arm_facts(arm) for arm in sweep.arms],
        **{name: dump(design)[name] for name in ("questions", "baselines", "oracle", "discarded")},
        "left_out": sweep.left_out,
        "choice": sweep.choice,
        "runs": [_run_facts(sweep, run) for run in sweep.runs],
        "versions": versions(),
    }
    with writing("sweep", sweep.out, 0):
        write_json_atomic(sweep.out / "design.json", as_json(facts))


def _arm_facts(arm: PlannedArm) -> dict[str, Any]:
    links = {name: getattr(arm, name) for name in ("label", "recipe", "why", "guided", "plain", "placebo", "no_kl")}
    equation = arm.config.method.describe()
    return {"name": arm.name, **links, "matched": list(arm.matched), "equation": equation, "config": dump(arm.config)}


def _run_facts(sweep: SweepPlan, run: SweepRun) -> dict[str, Any]:
    """A run in design.json."""
    failures = [sweep.failures[task] for task in run.tasks if task in sweep.failures]
    return {
        "arm": run.arm.name,
        "seed": run.seed,
        "run": f"runs/{run.directory.name}",
        "status": sweep.status(run),
        "complete": sweep.is_complete(run),
        "steps": run.steps_done,
        "evaluated": [suffix for suffix, task in run.exact.items() if task in sweep.finished],
        "sampled": run.samples in sweep.finished,
        "adopted": (run.directory / ADOPTED).exists(),
        "failure": failures[0] if failures else None,
    }


def task_words(sweep: SweepPlan) -> str:
    """The training world or task of all arms, in a line."""
    config = sweep.arms[0].config
    task = task_of(config)
    if isinstance(task, Described):
        return described(task.identity, task)
    settings = dump(config.task if config.data is None else config.data)
    shown = [f"{name} {value}" for name, value in settings.items() if name != "name" and value is not None]
    return f"task {task.name} ({', '.join(shown)})" if shown else f"task {task.name}"
