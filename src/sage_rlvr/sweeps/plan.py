"""The runs and tasks of a design, their state, and the record in design.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.config import TrainConfig, dump, task_of
from sage_rlvr.errors import ConfigError, refuse
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED
from sage_rlvr.evaluation.record import record_path
from sage_rlvr.evaluation.settings import SampleSettings
from sage_rlvr.models.devices import dtype_of
from sage_rlvr.recipes import find
from sage_rlvr.results import Results
from sage_rlvr.results.sources import State
from sage_rlvr.results.summary import choose
from sage_rlvr.runs import versions, write_json_atomic, writing
from sage_rlvr.stats.tempered import POWERS
from sage_rlvr.sweeps.design import (
    DesignSpec,
    PlannedArm,
    exact_of,
    load_design,
    resolve,
    sampled_of,
    sft_config,
    suffix_of,
    world_named,
)
from sage_rlvr.sweeps.jobs import Exact, Job, ProcessTask, Sampled, as_read_back
from sage_rlvr.tasks import described
from sage_rlvr.tasks.abilities import Described, Enumerable
from sage_rlvr.tasks.base import Task, problems_of
from sage_rlvr.tasks.countdown import Countdown
from sage_rlvr.tasks.countdown.expressions import MAX_NUMBERS
from sage_rlvr.training.opening import cores

VALIDATION = "validation"
ADOPTED = "adopted.json"  # in a run that was taken over: from where


@dataclass(frozen=True, eq=False)
class EvaluatedPolicy:
    """Something that is evaluated. name: of its records; what: how `sage-rlvr eval` names it; model: its weights."""

    name: str
    what: str
    model: str
    logs: Path


@dataclass(frozen=True, eq=False)
class Cell:
    """One arm with one training seed: its training and what follows. exact: suffix of the record -> task; kl: the exact KL to the
    base, on the samples of both."""

    arm: PlannedArm
    job: Job
    train: ProcessTask
    exact: Mapping[str, ProcessTask]
    samples: ProcessTask | None
    kl: ProcessTask | None = None

    @property
    def tasks(self) -> list[ProcessTask]:
        """In order."""
        return [self.train, *self.exact.values(), *(task for task in (self.samples, self.kl) if task is not None)]


@dataclass(eq=False)
class SweepPlan:
    """A resolved design in its folder, and how far it is. over: tasks whose results are there; failures: why others failed; took:
    seconds of those that ended here."""

    design: DesignSpec
    source: Path
    out: Path
    arms: list[PlannedArm]
    left_out: list[str]
    first: list[ProcessTask]
    base: dict[str, ProcessTask]
    base_samples: list[ProcessTask]
    cells: list[Cell]
    over: set[ProcessTask] = field(default_factory=set)
    failures: dict[ProcessTask, str] = field(default_factory=dict)
    took: dict[ProcessTask, float] = field(default_factory=dict)
    choice: dict[str, Any] | None = None
    workers: int = 1

    @property
    def tasks(self) -> list[ProcessTask]:
        """Everything, the base first, then the named arms seed by seed, then the controls that were added."""
        return [*self.first, *self.base.values(), *self.base_samples, *(task for cell in self.cells for task in self.wanted(cell))]

    def wanted(self, cell: Cell) -> list[ProcessTask]:
        """The cell's tasks as far as they are called for: an arm that may be chosen waits for the choice with its test."""
        choose = self.design.select
        if choose is None or cell.arm.name not in choose.among:
            return [task for task in cell.tasks if task is not cell.exact.get(VALIDATION)]
        if self.choice is not None and self.choice["chosen"] == cell.arm.name:
            return cell.tasks
        return [cell.train, cell.exact[VALIDATION]]

    def status(self, cell: Cell) -> State:
        """How far it is."""
        wanted = self.wanted(cell)
        if any(task in self.failures for task in wanted):
            return "failed"
        if self.over.issuperset(wanted):
            main = cell.exact.get("")  # none where all is told by samples
            return "evaluated" if main is None or main in wanted else "validation only"
        done, steps = cell.job.done, cell.job.config.steps
        if cell.train in self.over or (done == steps and cell.train.done()):  # it may have ended since one last looked
            return "trained"
        return "training" if done else "not run"


def plan(
    source: Path,
    out: Path,
    design: DesignSpec | None = None,
    edits: Sequence[tuple[str, str]] = (),
    *,
    powers: Sequence[float] = POWERS,
) -> SweepPlan:
    """Everything that the design asks for, and what of it is there. Whatever can be refused is refused here: recipes, worlds,
    problems that a split does not hold, a folder with other runs under the same names. design: instead of what the file says;
    edits: of every arm's recipe, as on the command line; powers: at which the base is tempered over whole completions."""
    source = find(source, "designs")
    design, folder = design or load_design(source), source.parent
    own = sft_config(design, source)
    policy = None if own is None else str((out / "policy").absolute())
    arms, left_out = resolve(design, source, policy, edits)
    _check_alike(arms, design.steps_differ)
    evaluations, sampled = _evaluations(design, folder, arms[0]), sampled_of(design.evaluate, task_of(arms[0].config))
    for exact in evaluations.values():
        slow = isinstance(exact.task, Countdown) and max(exact.task.counts) == MAX_NUMBERS  # to draw its problems
        if not slow or len(evaluations) == 1:
            exact.ids  # noqa: B018  (raises where the world cannot give so many)
    first = [] if own is None or policy is None else [_sft_task(own[0], out, policy)]
    shared = _named_for_base(arms[0], out)
    tempered = {"": replace(evaluations[""], powers=tuple(powers))} if evaluations else {}  # the power frontier, a standing control
    base = EvaluatedPolicy("base", arms[0].config.model, arms[0].config.model, out / "logs")
    colder = () if design.evaluate.samples is None else design.evaluate.samples.base_temperatures
    base_samples = [_sample_task(base, sampled, out, tuple(first), shared, arms[0].config, t) for t in (None, *colder)]
    sweep = SweepPlan(
        design=design,
        source=source,
        out=out,
        arms=arms,
        left_out=left_out,
        first=first,
        base=_exact_tasks(base, evaluations | tempered, out, tuple(first), shared),
        base_samples=[task for task in base_samples if task is not None],
        cells=[
            _cell(out, arm, seed, evaluations, sampled, tuple(first), base_samples[0])
            for added in (False, True)
            for seed in design.seeds
            for arm in arms
            if bool(arm.why) is added
        ],
    )
    for cell in sweep.cells:
        cell.job.check_same_run()
    for _ in range(2):  # the second time what a choice calls for, where every candidate is validated
        settle(sweep)
        sweep.over.update(task for task in sweep.tasks if task not in sweep.over and task.is_over())
    return sweep


def _check_alike(arms: Sequence[PlannedArm], steps_differ: bool) -> None:
    """One base policy and the same problems for all arms, without which nothing could be paired; one length, unless it is asked
    for."""
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


def _evaluations(design: DesignSpec, folder: Path, arm: PlannedArm) -> dict[str, Exact]:
    """Suffix of the record -> evaluation; "" is the main one. None where right completions cannot be listed and samples are asked
    for instead."""
    spec, task = design.evaluate, task_of(arm.config)
    if not isinstance(task, Enumerable):
        _check_sampled(design, task)
        return {}
    found = {"": exact_of(spec, task)}
    if design.select is not None:
        found[VALIDATION] = replace(found[""], split="validation", problems=design.select.problems)
    for name in spec.ood:
        world = world_named(name, folder)
        found[suffix_of(name)] = Exact(world.build(), spec.ood_problems, spec.split, spec.sampling, spec.ood_temperatures)
    return found


def _check_sampled(design: DesignSpec, task: Task) -> None:
    """ConfigError unless a task without listed right completions is evaluated by samples, and nothing exact is asked for."""
    lacks = f"task {task.name}: its right completions cannot be enumerated ({type(task).__name__} has no solutions)"
    refuse(
        (
            design.evaluate.samples is None,
            f"{lacks}, so its arms cannot be evaluated exactly; evaluate them by samples, with the line `evaluate: {{samples: "
            "{problems: 100, n: 64, guide: null}}` in the design, or implement solutions(problem) in the task",
        ),
        (design.select is not None, f"{lacks}, and `select` needs exact evaluations; omit select"),
        *(
            (bool(getattr(design, name)), f"{lacks}, and `{name}` needs exact evaluations; omit {name}")
            for name in ("baselines", "oracle")
        ),
        (bool(design.evaluate.ood), f"{lacks}, and other tasks (ood) are evaluated exactly; omit evaluate.ood"),
        (
            not problems_of(task, design.evaluate.split, EVALUATION_SEED, 1, design.evaluate.sampling),
            f"evaluate.split = {design.evaluate.split!r}: task {task.name} has no such problems; choose another split",
        ),
    )


def _named_for_base(arm: PlannedArm, out: Path) -> tuple[str, ...]:
    """The words that say to `eval` what all arms are trained on, for a policy that is no run."""
    return "--world" if arm.config.task is None and arm.config.data is None else "--task", str(recipe_of(out, arm.name))


def recipe_of(out: Path, name: str) -> Path:
    """The recipe of an arm, or of a world (`world-<suffix>`)."""
    return out / "recipes" / f"{name}.yaml"


def _sft_task(recipe: Path, out: Path, policy: str) -> ProcessTask:
    typed = ("sft", str(recipe), "--run", str(out / "sft"), "--out", policy, "--quiet")
    return ProcessTask("base policy", typed, out / "logs" / "sft.log", lambda: (Path(policy) / "config.json").exists())


def _cell(
    out: Path,
    arm: PlannedArm,
    seed: int,
    evaluations: Mapping[str, Exact],
    sampled: Sampled | None,
    first: tuple[ProcessTask, ...],
    of_base: ProcessTask | None,
) -> Cell:
    """of_base: the samples of the base at temperature 1."""
    directory = out / "runs" / f"{arm.name}-s{seed}"
    job = Job(arm.label, recipe_of(out, arm.name), seed, directory, arm.at(seed))
    train = job.task(after=first)
    policy = EvaluatedPolicy(directory.name, str(directory), str(directory / "policy"), directory)
    exact = _exact_tasks(policy, evaluations, out, (train,), ())
    if sampled is None or of_base is None:
        return Cell(arm, job, train, exact, None)
    samples = _sample_task(policy, sampled, out, (train,), (), arm.config)
    unscored = _sample_task(policy, replace(sampled, guide=None, scored=False), out, (train,), (), arm.config)
    return Cell(arm, job, train, exact, samples, _kl_task(policy, sampled, samples, unscored, of_base))


def _exact_tasks(
    policy: EvaluatedPolicy, evaluations: Mapping[str, Exact], out: Path, after: tuple[ProcessTask, ...], named: tuple[str, ...]
) -> dict[str, ProcessTask]:
    """named: the words that say the main world or task, for a policy that is no run."""
    found = {}
    for suffix, exact in evaluations.items():
        path = record_path(out, policy.name, suffix)
        typed = ["eval", policy.what, "--split", exact.split, "--problems", str(exact.problems), "--sampling", exact.sampling]
        typed += ["--temperatures", *map(str, exact.temperatures), "--out", str(path)]
        typed += ["--power-tempering"] * bool(exact.powers)
        typed += named if suffix in ("", VALIDATION) else ["--world", str(recipe_of(out, f"world-{suffix}"))]
        label, done = f"{policy.name} {suffix or 'evaluation'}", partial(exact.is_kept, path, policy.model)
        found[suffix] = ProcessTask(label, tuple(typed), policy.logs / "evaluation.log", done, after=after, place=path)
    return found


def _sample_task(
    policy: EvaluatedPolicy,
    sampled: Sampled | None,
    out: Path,
    after: tuple[ProcessTask, ...],
    named: tuple[str, ...],
    config: TrainConfig,
    temperature: float | None = None,
) -> ProcessTask | None:
    """config: of an arm; its model is the base, under which samples are scored too. temperature: another one than 1."""
    if sampled is None:
        return None
    task, threads = sampled.task, config.engine.threads or cores()
    form: Any = "as_is" if task.form is None else task.form.name
    settings = SampleSettings(task=task.name, template=form, temperature=temperature)
    store = out / "runs" / policy.name / "samples" / settings.store_name(task)
    typed = ["eval", policy.what, "--samples", str(sampled.n), "--problems", str(sampled.problems)]
    typed += ["--split", sampled.split, "--sampling", sampled.sampling, "--generator", "sampler"]
    typed += ["--dtype", dtype_of(config.engine), "--threads", str(threads), "--store", str(store), "--quiet"]
    typed += named
    typed += [] if temperature is None else ["--temperature", f"{temperature:g}"]
    typed += [] if config.task is None and config.data is None else ["--max-new-tokens", str(config.rollout.max_new_tokens)]
    typed += ["--chat-template-kwargs", json.dumps(config.chat_template_kwargs)] if config.chat_template_kwargs else []
    typed += [] if sampled.guide is None else ["--guide", sampled.guide]
    typed += ["--base-logprobs", config.model] if sampled.scored else []
    return ProcessTask(
        f"{policy.name} samples" + ("" if temperature is None else f" at T = {temperature:g}"),
        tuple(typed),
        policy.logs / "samples.log",
        done=partial(sampled.is_kept, store, policy.model),
        threads=threads,
        after=after,
        place=store,
        goes_on=partial(sampled.goes_on, store, policy.model),
    )


def _kl_task(
    policy: EvaluatedPolicy, sampled: Sampled, samples: ProcessTask, evaluation: ProcessTask, of_base: ProcessTask
) -> ProcessTask | None:
    """The exact KL of an arm to the base on the stored completions of both, where the design has it. evaluation: `samples` without
    guide and log-probs of the base, for which `eval` would load other weights; it has nothing left to draw. No `place`: the file
    in the store is written over, and no store is replaced for it."""
    if not sampled.kl or samples.place is None or of_base.place is None:
        return None
    typed = (*evaluation.words, "--kl-to", str(of_base.place), "--kl-samples", str(sampled.kl))
    done = partial(sampled.has_kl, samples.place, of_base.place)
    return ProcessTask(f"{policy.name} KL", typed, policy.logs / "kl.log", done, threads=samples.threads, after=(samples, of_base))


def settle(sweep: SweepPlan) -> None:
    """Settle which arm was chosen, where the design chooses and every candidate is validated."""
    spec = sweep.design.select
    if spec is None:
        return
    sweep.choice = {"by": spec.by, "problems": spec.problems, "among": list(spec.among), "chosen": None}
    sweep.choice |= {"scores": {}, "by_seed": {}}
    cells = [cell.exact[VALIDATION] for cell in sweep.cells if cell.arm.name in spec.among]
    if not sweep.over.issuperset([*cells, sweep.base[VALIDATION]]):
        return
    note(sweep)
    by_seed = choose(Results.read(sweep.out, split=VALIDATION), spec.among, spec.by)
    scores = {name: float(np.mean(values)) for name, values in by_seed.items()}
    sweep.choice["scores"] = {name: score if math.isfinite(score) else None for name, score in scores.items()}
    seeds = [str(seed) for seed in sweep.design.seeds]  # every candidate has been evaluated at all of them
    sweep.choice["by_seed"] = {
        name: {seed: x if math.isfinite(x) else None for seed, x in zip(seeds, values, strict=True)}
        for name, values in by_seed.items()
    }
    sweep.choice["chosen"] = max(scores, key=lambda name: scores[name])


# ---- what is there, written down


def note(sweep: SweepPlan) -> None:
    """design.json: what was resolved, and the state of every run."""
    design, steps = sweep.design, sorted({arm.config.steps for arm in sweep.arms})
    evaluate = dump(design.evaluate) | {"ood": [suffix_of(name) for name in design.evaluate.ood]}
    facts = {
        "schema": 1,
        "title": design.title,
        "notes": design.notes,
        "design": sweep.source.name,
        "control": design.control,
        "seeds": list(design.seeds),
        "steps": steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1]}",
        "world": task_words(sweep),
        "evaluate": evaluate,
        "base_evaluated": [suffix for suffix, task in sweep.base.items() if task in sweep.over],
        "base_model": "embedded" if design.policy is None else f"policy/, by {design.policy}",
        "arms": [_arm_facts(arm) for arm in sweep.arms],
        **{name: dump(design)[name] for name in ("questions", "baselines", "oracle", "discarded")},
        "left_out": sweep.left_out,
        "choice": sweep.choice,
        "runs": [_cell_facts(sweep, cell) for cell in sweep.cells],
        "versions": versions(),
    }
    with writing("sweep", sweep.out, 0):
        write_json_atomic(sweep.out / "design.json", as_read_back(facts))


def _arm_facts(arm: PlannedArm) -> dict[str, Any]:
    links = {name: getattr(arm, name) for name in ("label", "recipe", "why", "guided", "plain", "placebo", "no_kl")}
    equation = arm.config.method.describe()
    return {"name": arm.name, **links, "matched": list(arm.matched), "equation": equation, "config": dump(arm.config)}


def _cell_facts(sweep: SweepPlan, cell: Cell) -> dict[str, Any]:
    status, job = sweep.status(cell), cell.job
    failures = [sweep.failures[task] for task in cell.tasks if task in sweep.failures]
    return {
        "arm": cell.arm.name,
        "seed": job.seed,
        "run": f"runs/{job.directory.name}",
        "status": status,
        "complete": status in ("evaluated", "validation only"),
        "steps": job.done,
        "evaluated": [suffix for suffix, task in cell.exact.items() if task in sweep.over],
        "sampled": cell.samples in sweep.over,
        "adopted": (job.directory / ADOPTED).exists(),
        "failure": failures[0] if failures else None,
    }


def task_words(sweep: SweepPlan) -> str:
    """The world or task that all arms are trained on, in a line."""
    config = sweep.arms[0].config
    task = task_of(config)
    if isinstance(task, Described):
        return described(task.identity, task)
    given = dump(config.task if config.data is None else config.data)
    said = ", ".join(f"{name} {value}" for name, value in given.items() if name != "name" and value is not None)
    return f"task {task.name}" + f" ({said})" * bool(said)
