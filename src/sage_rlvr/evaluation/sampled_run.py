"""`sage-rlvr eval --samples N`: fill a sample store, and judge stored samples again.

    settings and policy -> task, generator -> store of that identity -> generate missing samples -> store

The same settings continue an evaluation and a larger N adds samples; `verify_again` needs no policy, and no network except for the
task's rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.policies import borrowing, commit_of, lender_of, load_here, name_or_path, tokens_of
from sage_rlvr.evaluation.sample_run import SampleRun
from sage_rlvr.evaluation.sampling import EvalSet, SamplingRun, Scorer, check_window, guide_of, prompts_of
from sage_rlvr.evaluation.store import Identity, SampleStore, is_store
from sage_rlvr.evaluation.store.sample import SCORED
from sage_rlvr.models.borrowing import Borrowing, BorrowingGenerator
from sage_rlvr.models.episodes import positions_of
from sage_rlvr.models.generation import Decoding, Generator, GeneratorSource
from sage_rlvr.models.interpolation import Interpolated
from sage_rlvr.models.llama.net import supports
from sage_rlvr.models.policy import Prompt, PromptRenderer, Tokens
from sage_rlvr.progress import Counting, reporting
from sage_rlvr.tasks.base import ready
from sage_rlvr.tasks.rows import Say, tell
from sage_rlvr.verdicts.chance import KEY
from sage_rlvr.verdicts.measurements import MIXTURE


def sample_into_store(
    run: SampleRun, counting: Counting, say: Say = tell, *, progress: Say = lambda text: None
) -> tuple[SampleStore, EvalSet]:
    """Generate the missing samples, and compute missing log-probs under `base_logprobs`.

    counting(total): a context manager whose value receives the number of new samples. say: receives messages about the problems;
    progress: receives messages about loading that takes seconds.
    Returns the store and the task. All errors are raised before sampling. Without missing samples the policy's weights are not
    loaded.
    """
    if run.samples < 1:
        raise ConfigError(f"--samples {run.samples}: at least one sample per problem is needed")
    torch.set_num_threads(run.threads)
    task = run.build_task()
    store = SampleStore.open(run.store) if is_store(run.store) else None
    known = None if store is None else store.identity
    drawing = store is None or bool(store.missing(task.problems, run.samples))
    if drawing:
        ready(task.task, say, run.split)
    loaded, dtype, decoding = "policy" if drawing else "tokenizer", run.precision(known), run.decoding(task)
    with reporting(progress, f"{run.policy}: loading the {loaded}, rendering {len(task.problems)} prompts"):
        model, tokens = load_here(run.model, dtype) if drawing and run.drawer.local else (None, tokens_of(run.model))
        prompts, template_hash = prompts_of(task, tokens, run.chat_template, run.options)
    if model is not None:
        check_window(prompts, model, decoding.max_new_tokens)
    guide = None if run.guide is None else guide_of(run.guide)
    scorer = None if run.base_logprobs is None else Scorer.of(run.base_logprobs, *load_here(run.base_logprobs, dtype), tokens)
    lender = lender_of(run.model, dtype, tokens) if drawing else None
    commit = getattr(getattr(model, "config", None), "_commit_hash", None) or commit_of(run.model, run.engine)
    widest = None if lender is not None and not supports(lender) else model
    identity = run.identity(task, template_hash, commit, widest, known)
    if drawing and (over := -run.samples % (identity.chunk_size or 1)):
        size = identity.chunk_size
        say(f"a store has complete chunks of {size} samples: {run.samples + over} per problem instead of {run.samples}")
    with _agreeing(run.store, identity, task) as store:
        _describe(store, run, task, prompts, drawing)
        if drawing:
            asking = PromptRenderer.of(task.task, tokens, run.chat_template, run.options)
            window = None if model is None else positions_of(model)
            generator = _generator(run, identity, decoding, model, tokens, lender)
            with counting(len(store.missing(task.problems, run.samples)) * (identity.chunk_size or 1)) as advance:
                sampling = SamplingRun(task, prompts, generator, scorer, guide, asking, window)
                sampling.run(store, run.samples, progress=advance)
        if scorer is not None:
            _score(store, scorer, prompts, (SCORED, identity.versions[SCORED]), counting)
    return store, task


def _generator(
    run: SampleRun, identity: Identity, decoding: Decoding, model: Any, tokens: Tokens, lender: Any
) -> Generator | BorrowingGenerator:
    """The generator of a run's samples."""
    server, together = {"server": run.server, "served_as": run.server_model}, identity.together > 1
    source = GeneratorSource(str(run.model), tokens, decoding, str(identity.decoding["dtype"]), model, **server, together=together)
    if lender is None:
        return run.drawer.of(source)  # type: ignore[no-any-return]
    assert isinstance(run.model, Borrowing)
    return borrowing(run.model, run.asked, source, lender)


def _describe(store: SampleStore, run: SampleRun, task: EvalSet, prompts: Mapping[str, Prompt], drawing: bool) -> None:
    """Record in a store the data that its reports need: chance floor, prompts and golds, and where the policy is found."""
    if drawing and KEY not in store.facts():
        chance = task.chance
        store.note(**{KEY: None if chance is None else chance.tree()})
    if drawing and isinstance(run.model, Interpolated) and MIXTURE not in store.facts():
        store.note(**{MIXTURE: run.model.facts})
    if os.access(run.store, os.W_OK):
        store.describe(task.questions(prompts))
        if isinstance(run.model, str):
            store.keep_policy_name_or_path(name_or_path(run.model))


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
