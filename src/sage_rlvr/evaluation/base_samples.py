"""Read the base model's samples of training problems from a sample store, and compare the store with the run that reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sage_rlvr.config import TrainConfig, task_of
from sage_rlvr.errors import ConfigError, DataError, short
from sage_rlvr.evaluation.sampling import EvalSet
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.models.folders import cached_folder
from sage_rlvr.models.policy import PromptRenderer, load_tokens, revision_of
from sage_rlvr.tasks.base import gold_of, hash_of
from sage_rlvr.training.base_samples import BaseSamples, checked_base, drawn_by


def base_of(config: TrainConfig) -> BaseSamples | None:
    """Return the samples that the method of a recipe reads, None if it reads none. Raise ConfigError if it reads some and the
    recipe names none, or names a store of another base model, task or prompts than the run's."""
    read = "base_counts" in config.method.needs and config.base_samples is not None
    return checked_base(config.method, base_samples_of(str(config.base_samples), config) if read else None)


def base_samples_of(folder: str | Path, config: TrainConfig | None = None) -> BaseSamples:
    """The samples of a store; an undecided one is not right. config: the run that reads them.

    DataError without a store, or for an evaluation that is not complete; ConfigError for one of second attempts, at another
    temperature than 1 or under cut sampling, whose shares of right samples are not those of the model, and for one with another
    model, task, prompts or verifier than the run's.
    """
    with SampleStore.open(folder) as store:
        counts = store.counts()
        if not counts.problems:
            raise DataError(f"base_samples = {folder}: the store has no samples; run the eval command that made it")
        differences = [*_of_another_law(store), *(() if config is None else _of_another_run(store, config))]
        if differences:
            of_run = {} if config is None else _asked_by(config)
            listed = "".join(f"\n  {what}: {here}; needed: {needed}" for what, here, needed in differences)
            raise ConfigError(
                f"base_samples = {folder}: not the base model's own samples in this run:{listed}\n"
                f"Draw them with the run's recipe as RECIPE.yaml: {drawn_by(**of_run)}"
            )
        if lacking := store.lacking(counts):
            raise DataError(f"base_samples = {folder}: has {lacking}, so the evaluation is not complete")
    table = zip(counts.problems, counts.right.tolist(), counts.n.tolist(), strict=True)

    def answers(problem_ids: Sequence[str]) -> list[tuple[str, str]]:
        with SampleStore.open(folder) as store:
            return [(row.problem, row.text) for row in store.samples(problems=list(problem_ids)) if row.verdict == "right"]

    return BaseSamples(str(folder), {name: (right, tried) for name, right, tried in table}, answers)


Difference = tuple[str, str, str]
"""The setting, its value in the store, and the value that is needed."""


def _of_another_law(store: SampleStore) -> Iterator[Difference]:
    """Settings under which completions are not samples of the model itself."""
    identity = store.identity
    if identity.guidance:
        yield "prompts", "second attempts", "first attempts"
    if identity.truncated_sampling or identity.decoding["temperature"] != 1:
        yield "decoding", str(dict(identity.decoding)), "temperature 1 without top_p, top_k and min_p"


def _of_another_run(store: SampleStore, config: TrainConfig) -> Iterator[Difference]:
    """Differences between the base, task and prompts of a run and those of a store."""
    identity, base, task = store.identity, config.base, task_of(config)
    revision, commit = revision_of(base), cached_folder(base)
    weights, _, at = identity.revision.partition("@")
    if weights != revision or (commit is not None and at not in ("", "revision unknown", commit.name)):
        of_run = revision if commit is None else f"{revision}@{commit.name}"
        yield "model", f"{identity.model} ({identity.revision})", f"{base} ({of_run})"
    if identity.task != task.name:
        yield "task", identity.task, task.name
    asking = PromptRenderer.of(task, load_tokens(base), options=config.chat_template_kwargs)
    if identity.template_hash != (written := hash_of(asking.written)):
        yield "prompt template", f"{identity.prompt} ({identity.template_hash})", f"{EvalSet(task, {}, '').prompt} ({written})"
    judge = store.verifiers()[-1]["verifier_hash"]
    if judge != task.verifier_hash:
        yield "verifier", str(judge), task.verifier_hash
    kept = store.questions()
    for problem in task.problems("train"):
        name = str(problem.problem_id)
        if name in kept:
            here, needed = (kept[name].prompt, kept[name].gold), (asking(problem).text, gold_of(task, problem))
            if here != needed:
                yield f"prompt and answer of problem {name!r}", short(here), short(needed)
                return


def _asked_by(config: TrainConfig) -> dict[str, Any]:
    """Arguments of `drawn_by` that are known of a run."""
    problems = len(task_of(config).problems("train"))
    return {"model": config.base, "problems": problems, "options": config.chat_template_kwargs}


__all__ = ["base_of", "base_samples_of"]
