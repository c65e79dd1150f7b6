"""`sage-rlvr eval --samples N`: fill a sample store, and judge stored samples again.

    settings -> problems, with hints -> policy, prompts -> store of that identity -> generate, score and judge what is missing

The same settings continue an evaluation and a larger N adds samples; `verify_again` needs no policy, and no network except for the
task's rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.policies import LoadedPolicy, load_to_sample, scorer_under
from sage_rlvr.evaluation.sample_run import SampleRun
from sage_rlvr.evaluation.sampling import EvalSet, SamplingRun, Scorer, check_window, guide_of, prompts_of
from sage_rlvr.evaluation.store import Identity, SampleStore, is_store
from sage_rlvr.evaluation.store.sample import GUIDED, SCORED
from sage_rlvr.models.interpolation import Interpolated
from sage_rlvr.models.policy import Prompt, PromptRenderer
from sage_rlvr.progress import Counting, reporting
from sage_rlvr.tasks.base import ready
from sage_rlvr.tasks.rows import Say, tell
from sage_rlvr.verdicts.chance import KEY
from sage_rlvr.verdicts.measurements import MIXTURE


def problems_to_sample(run: SampleRun) -> EvalSet:
    """The problems of an evaluation, with the hints of second attempts. Sets the CPU threads, which a teacher of hints uses too."""
    if run.samples < 1:
        raise ConfigError(f"--samples {run.samples}: at least one sample per problem is needed")
    torch.set_num_threads(run.threads)
    return run.build_task()


def sample_into_store(
    run: SampleRun, task: EvalSet, counting: Counting, say: Say = tell, *, progress: Say = lambda text: None
) -> SampleStore:
    """Generate the missing samples, and compute missing log-probs under `base_logprobs`. task: of `problems_to_sample`.

    counting(total): a context manager whose value receives the number of new samples. say: receives messages about the problems;
    progress: receives messages about loading that takes seconds.
    All errors are raised before sampling. Without missing samples the policy's weights are not loaded.
    """
    begun = SampleStore.open(run.store) if is_store(run.store) else None
    known = None if begun is None else begun.identity
    drawing = begun is None or bool(begun.missing(task.problems, run.samples))
    if drawing:
        ready(task.task, say, run.split)
    decoding, dtype = run.decoding(task), run.precision(known)
    loaded = "policy" if drawing else "tokenizer"
    with reporting(progress, f"{run.policy}: loading the {loaded}, rendering {len(task.problems)} prompts"):
        policy = load_to_sample(run.model, dtype, run.engine, drawing=drawing, local=run.drawer.local)
        prompts, template_hash = prompts_of(task, policy.tokens, run.chat_template, run.options)
    check_window(prompts, policy.window, decoding.max_new_tokens)
    guide, scorer, recorded = None, None, dict[str, str]()
    if run.guide is not None:
        guide, recorded[GUIDED] = guide_of(run.guide), run.guide
    if run.base_logprobs is not None:
        scorer, recorded[SCORED] = scorer_under(run.base_logprobs, dtype, policy.tokens)
    identity = run.identity(task, template_hash, policy.revision, model=policy.sized, known=known, recorded=recorded)
    size = identity.chunk_size or 1
    if drawing and (over := -run.samples % size):
        say(f"a store has complete chunks of {size} samples: {run.samples + over} per problem instead of {run.samples}")
    with _agreeing(run.store, identity, task) as store:
        _record(store, task, prompts, policy, drawing)
        if drawing:
            generator = policy.generator(
                run.drawer, task.task, decoding=decoding, dtype=dtype, server=run.server, served_as=run.server_model,
                together=identity.together > 1,
            )  # fmt: skip
            asking = PromptRenderer.of(task.task, policy.tokens, run.chat_template, run.options)
            sampling = SamplingRun(task, prompts, generator, scorer, guide, asking, policy.window)
            with counting(len(store.missing(task.problems, run.samples)) * size) as advance:
                sampling.run(store, run.samples, progress=advance)
        if scorer is not None:
            _score(store, scorer, prompts, (SCORED, recorded[SCORED]), counting)
    return store


def _record(store: SampleStore, task: EvalSet, prompts: Mapping[str, Prompt], policy: LoadedPolicy, drawing: bool) -> None:
    """Record in a store the data that its reports need: chance floor, prompts and golds, and where the policy is found."""
    if drawing and KEY not in store.facts():
        chance = task.chance
        store.note(**{KEY: None if chance is None else chance.tree()})
    if drawing and isinstance(policy.policy, Interpolated) and MIXTURE not in store.facts():
        store.note(**{MIXTURE: policy.policy.facts})
    if os.access(store.path, os.W_OK):
        store.describe(task.questions(prompts))
        if policy.name_or_path is not None:
            store.keep_policy_name_or_path(policy.name_or_path)


def _agreeing(folder: Path, identity: Identity, task: EvalSet) -> SampleStore:
    """The store of this identity; its error names another number of problems."""
    try:
        return SampleStore.open(folder, identity)
    except ConfigError as error:
        known, many = SampleStore.open(folder), len(task.problems)
        had = known.wanted().get("problems", many)
        if known.identity.task_hash == identity.task_hash or had == many:
            raise
        raise ConfigError(f"{error}\nproblems: {had} -> {many}") from error


def _score(
    store: SampleStore, scorer: Scorer, prompts: Mapping[str, Prompt], stamp: tuple[str, str], counting: Counting
) -> None:
    """Compute log-probs under the base for samples that were generated without it, chunk by chunk as in generation."""
    if lacking := store.unscored(stamp):
        with counting(len(lacking) * lacking[0].size) as advance:
            store.score(lambda rows: scorer(prompts[rows[0].problem].ids, rows), stamp, progress=advance)


def verify_again(run: SampleRun) -> tuple[SampleStore, EvalSet, int]:
    """Judge every sample of the store with the current verifier, offline. Returns the number of new verdicts."""
    task = run.build_task()
    with SampleStore.open(run.store) as store:
        known = store.identity
        if (known.task, known.task_hash, known.prompt) != (task.name, task.task_hash, task.prompt):
            raise DataError(
                f"{run.store}: has samples of {known.task!r} with the prompt {known.prompt!r}, but these settings are "
                f"{task.name!r} with the prompt {task.prompt!r}, or other problems; use the settings of the evaluation"
            )
        return store, task, store.reverify(task.verdicts, task.verifier_hash)
