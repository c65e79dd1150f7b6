"""Evaluations of a policy in a sweep: exactly, by samples, and by its exact KL to the base; each as a task of a process.

A result is finished if its file is: a record or store of these weights and these problems.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from sage_rlvr.config import TrainConfig
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED, identity_of
from sage_rlvr.evaluation.kl import about_of, kl_path, known_kl
from sage_rlvr.evaluation.record import load_record, record_path
from sage_rlvr.evaluation.sampling import EvalSet, choose
from sage_rlvr.evaluation.settings import SampleSettings
from sage_rlvr.evaluation.store import SampleStore, is_store
from sage_rlvr.evaluation.store.sample import GUIDED, SCORED
from sage_rlvr.models.devices import dtype_of
from sage_rlvr.models.policy import revision_of, weights_hash
from sage_rlvr.sweeps.design import EvaluateSpec
from sage_rlvr.sweeps.processes import ProcessTask
from sage_rlvr.tasks.base import Task, problems_of
from sage_rlvr.training.opening import cores

VALIDATION = "validation"  # suffix of the records by which an arm is selected


def recipe_of(out: Path, name: str) -> Path:
    """The recipe of an arm, or of a world (`world-<suffix>`), in the folder of a sweep."""
    return out / "recipes" / f"{name}.yaml"


@dataclass(frozen=True, eq=False)
class EvaluatedPolicy:
    """A policy to evaluate: the base, or that of a run.

    name: name of its records
    what: its name for `sage-rlvr eval`
    model: its weights
    logs: the folder of its logs
    out: the sweep's folder
    after: tasks that make it
    task_args: arguments that name the task of all arms, for a policy that is no run
    """

    name: str
    what: str
    model: str
    logs: Path
    out: Path
    after: tuple[ProcessTask, ...]
    task_args: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ExactEvaluation:
    """An exact evaluation of any policy: `problems` problems of a split of a task, at these temperatures; powers: also over full
    completions (for the base, a permanent control)."""

    task: Any
    problems: int
    split: str
    sampling: str
    temperatures: tuple[float, ...]
    powers: tuple[float, ...] = ()

    @classmethod
    def of(cls, spec: EvaluateSpec, task: Any) -> ExactEvaluation:
        """The main evaluation of arms of that task."""
        return cls(task, spec.problems, spec.split, spec.sampling, spec.temperatures)

    @cached_property
    def ids(self) -> list[str]:
        """The problems, for a list the first this many; raises `ConfigError` if a world or a list has fewer."""
        try:
            problems = problems_of(self.task, self.split, EVALUATION_SEED, self.problems, self.sampling)
        except DataError as error:
            raise ConfigError(f"--problems {self.problems}: {error}") from error
        if not problems:
            raise ConfigError(f"--split {self.split}: task {self.task.name} has no {self.split} problems; choose another split")
        return [problem.problem_id for problem in problems]

    def is_done(self, path: Path, model: str) -> bool:
        """Whether the record at `path` is complete, has these weights and problems, and these temperatures."""
        if not path.exists():
            return False
        try:
            record = load_record(path)
        except DataError:
            return False
        wanted = {
            "weights": weights_hash(model), "world": identity_of(self.task), "split": self.split,
            "seed": EVALUATION_SEED, "sampling": self.sampling, "problem_ids": self.ids,
        }  # fmt: skip
        if any(record.meta.get(name) != value for name, value in wanted.items()):
            return False
        return set(self.temperatures) <= set(record.logps) and set(self.powers) <= set(record.norms)

    def process(self, policy: EvaluatedPolicy, suffix: str) -> ProcessTask:
        """The process that evaluates a policy. suffix: suffix of its record; "" for the main task, else VALIDATION or another
        world."""
        path = record_path(policy.out, policy.name, suffix)
        args = ["eval", policy.what, "--split", self.split, "--problems", str(self.problems), "--sampling", self.sampling]
        args += ["--temperatures", *map(str, self.temperatures), "--out", str(path)]
        if self.powers:
            args.append("--power-tempering")
        if suffix in ("", VALIDATION):
            args += policy.task_args
        else:
            args += ["--world", str(recipe_of(policy.out, f"world-{suffix}"))]
        return ProcessTask(
            f"{policy.name} {suffix or 'evaluation'}",
            tuple(args),
            policy.logs / "evaluation.log",
            done=partial(self.is_done, path, policy.model),
            after=policy.after,
            output=path,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledEvaluation:
    """An evaluation of any policy by `n` samples of each of `problems` problems of a split of a task.

    guide: the guide whose q is stored for every token, if any. scored: whether log-probs under the base are stored. kl: samples of
        each problem for
    the exact KL of an arm to the base, 0 for none. temperature: None for 1.
    """

    task: Task
    problems: int
    n: int
    split: str
    sampling: str
    guide: str | None
    scored: bool
    kl: int = 0
    temperature: float | None = None

    @classmethod
    def of(cls, spec: EvaluateSpec, task: Task) -> SampledEvaluation | None:
        """The evaluation by samples of arms of that task, if the design has one."""
        samples = spec.samples
        if samples is None:
            return None
        return cls(
            task=task,
            problems=samples.problems,
            n=samples.n,
            split=spec.split,
            sampling=spec.sampling,
            guide=samples.guide,
            scored=samples.score_base,
            kl=samples.kl,
        )

    @cached_property
    def chosen(self) -> EvalSet:
        """The problems."""
        return choose(self.task, self.split, EVALUATION_SEED, self.problems, self.sampling)

    def is_resumable(self, store: Path, model: str) -> bool:
        """Whether an evaluation can complete the store: it has these weights, problems and guide (q is not computed later)."""
        if not is_store(store):
            return False
        with SampleStore.open(store) as opened:
            identity = opened.identity
            same_weights = identity.revision.partition("@")[0] == revision_of(model)
            if not same_weights or identity.task_hash != self.chosen.task_hash:
                return False
            return self.guide is None or opened.under(GUIDED) <= {self.guide}

    def is_done(self, store: Path, model: str) -> bool:
        """Whether the store also has all samples, and their log-probs under the base if requested."""
        if not self.is_resumable(store, model):
            return False
        with SampleStore.open(store) as opened:
            complete = int((opened.counts(check=False).n >= self.n).sum())
            unscored = self.scored and None in opened.under(SCORED)
            return complete >= len(self.chosen.problems) and not unscored

    def has_kl(self, store: Path, base: Path) -> bool:
        """Whether the store contains the exact KL to the policy of `base`, a store of the same problems: for these weights and
        these completions of both."""
        if not (is_store(store) and is_store(base)):
            return False
        with SampleStore.open(store) as opened, SampleStore.open(base) as opened_base:
            path = kl_path(store, opened_base.identity.model)
            try:
                about = about_of({"policy": opened, "base": opened_base}, self.chosen, self.kl)
                return known_kl(path, about) is not None
            except DataError:  # a damaged file, for which the evaluation raises an error with the next step
                return False

    def process(self, policy: EvaluatedPolicy, config: TrainConfig) -> ProcessTask:
        """The process that samples a policy. config: that of an arm; its model is the base, under which samples are also scored."""
        threads = config.engine.threads or cores()
        template: Any = "as_is" if self.task.form is None else self.task.form.name
        settings = SampleSettings(task=self.task.name, template=template, temperature=self.temperature)
        store = policy.out / "runs" / policy.name / "samples" / settings.store_name(self.task)
        args = ["eval", policy.what, "--samples", str(self.n), "--problems", str(self.problems)]
        args += ["--split", self.split, "--sampling", self.sampling, "--generator", "sampler"]
        args += ["--dtype", dtype_of(config.engine), "--threads", str(threads), "--store", str(store), "--quiet"]
        args += policy.task_args
        label = f"{policy.name} samples"
        if self.temperature is not None:
            args += ["--temperature", f"{self.temperature:g}"]
            label += f" at T = {self.temperature:g}"
        if config.task is not None or config.data is not None:
            args += ["--max-new-tokens", str(config.rollout.max_new_tokens)]
        if config.chat_template_kwargs:
            args += ["--chat-template-kwargs", json.dumps(config.chat_template_kwargs)]
        if self.guide is not None:
            args += ["--guide", self.guide]
        if self.scored:
            args += ["--base-logprobs", config.model]
        return ProcessTask(
            label,
            tuple(args),
            policy.logs / "samples.log",
            done=partial(self.is_done, store, policy.model),
            threads=threads,
            after=policy.after,
            output=store,
            resumable=partial(self.is_resumable, store, policy.model),
        )

    def kl_process(
        self, policy: EvaluatedPolicy, config: TrainConfig, samples: ProcessTask, of_base: ProcessTask
    ) -> ProcessTask | None:
        """The process that computes the exact KL of an arm to the base on the stored completions of both, if the design has it.

        samples, of_base: the processes that sample both. The command is that of `samples` without guide and log-probs of the base,
        for which `eval` would load other weights; nothing is left to sample. No `output`: the file in the store is overwritten, and
        no store is replaced for it.
        """
        if not self.kl or samples.output is None or of_base.output is None:
            return None
        unscored = replace(self, guide=None, scored=False).process(policy, config)
        return ProcessTask(
            f"{policy.name} KL",
            (*unscored.args, "--kl-to", str(of_base.output), "--kl-samples", str(self.kl)),
            policy.logs / "kl.log",
            done=partial(self.has_kl, samples.output, of_base.output),
            threads=samples.threads,
            after=(samples, of_base),
        )


def exact_processes(policy: EvaluatedPolicy, evaluations: Mapping[str, ExactEvaluation]) -> dict[str, ProcessTask]:
    """Suffix of the record -> the process that makes it."""
    return {suffix: evaluation.process(policy, suffix) for suffix, evaluation in evaluations.items()}
