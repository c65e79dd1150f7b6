"""`sage-rlvr eval --samples N`: fill a sample store, and judge stored samples again.

    settings and policy -> task, generator -> store of that identity -> generate missing samples -> store

The same settings continue an evaluation and a larger N adds samples; `verify_again` needs no policy, and no network except for the
task's rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from sage_rlvr.config import task_named
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.chance import KEY
from sage_rlvr.evaluation.guidance import again, teacher_named
from sage_rlvr.evaluation.sample_report import cell, common_n
from sage_rlvr.evaluation.sampling import (
    Chosen,
    Prompt,
    SamplingRun,
    Scorer,
    check_window,
    choose,
    guide_of,
    prompts_of,
)
from sage_rlvr.evaluation.settings import SampleSettings
from sage_rlvr.evaluation.store import CHUNK, Identity, Sample, SampleStore, is_store
from sage_rlvr.evaluation.store.sample import GUIDED, SCORED, own_of
from sage_rlvr.models.devices import auto_dtype
from sage_rlvr.models.episodes import positions_of
from sage_rlvr.models.folders import NAMED, cached_folder, folder_of
from sage_rlvr.models.generation import Decoding, GeneratorSource, rows_of_a_pass
from sage_rlvr.models.llama.net import supports
from sage_rlvr.models.policy import Asking, Tokens, load_policy, load_tokens, revision_of
from sage_rlvr.models.reward_model import load_reward_model, scores_of
from sage_rlvr.models.vllm import GENERATORS
from sage_rlvr.progress import Counting, reporting
from sage_rlvr.runs import versions
from sage_rlvr.stats.comparison import paired
from sage_rlvr.stats.intervals import mean_interval, share_interval
from sage_rlvr.stats.samples.majority import maj_at_k
from sage_rlvr.stats.samples.spectrum import effective_rank
from sage_rlvr.tasks.base import Task, ready
from sage_rlvr.tasks.rows import Say, tell

WIDE = 64  # samples per chunk of the CPU sampler at most: a third faster than twice the 32 of other generators
# Problems in one call of the CPU sampler: for a small model most of the time is the calling of operations, which does not grow
# with the rows (benchmarks/evaluator.py).
TOGETHER = 8
UNKNOWN = "revision unknown"
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class SampleRun(SampleSettings):
    """Settings, and what they are settings for. `sage_rlvr.evaluate` makes it; `sample_into_store` and the exact KL read it.

    policy: its name in the store; model: its folder, Hub id or "embedded"; store: the folder; own: what a run was trained on, or
    its world, in place of the settings' task.
    """

    store: Path
    policy: str
    model: str
    own: Task | None = None

    def build_task(self) -> Chosen:
        """The task with its problems. ConfigError for an unknown one, or where none is named."""
        if self.retry_failures_of is None and self.hints != "nothing":
            raise ConfigError(
                f"--hints {self.hints}: is for second attempts; add --retry-failures-of STORE, the store of the first attempts"
            )
        if self.problems is not None and self.problems < 1:
            raise ConfigError(f"--problems {self.problems}: at least one problem is needed")
        if self.own is None and self.task is None:
            raise ConfigError("no task: evaluate a run, or pass --task or --world")
        task = task_named(self.task, self.template) if self.own is None else self.own  # type: ignore[arg-type]
        chosen = choose(task, self.split, self.seed, self.problems, self.sampling)
        if self.retry_failures_of is None:
            return chosen
        return again(chosen, self.retry_failures_of, teacher_named(self.hints), self.store)

    def decoding(self, task: Chosen) -> Decoding:
        """The preset, as this generator has it."""
        limit = task.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        law = Decoding.of(self.preset, vllm=not self.drawer.local, max_new_tokens=limit)
        return law if self.temperature is None else replace(law, temperature=self.temperature)

    @property
    def engine(self) -> str:
        """The generator's name, "auto" settled."""
        if (self.generator == "server") != (self.server is not None):
            raise ConfigError(
                f"--generator {self.generator} with --server {self.server}: set both, --generator server and "
                "--server http://HOST:PORT"
            )
        local = "transformers" if torch.cuda.is_available() else "sampler"
        return local if self.generator == "auto" else self.generator

    @property
    def drawer(self) -> Any:
        """The generator's class. ConfigError names the neighbor of an unknown name."""
        return GENERATORS[self.engine]

    @property
    def _stored(self) -> Identity | None:
        """The identity of the store that is continued; None where there is no store yet."""
        if not is_store(self.store):
            return None
        with SampleStore.open(self.store) as store:
            return store.identity

    @property
    def precision(self) -> str:
        """The dtype, "auto" resolved: that of the store that is continued, bfloat16 on a server, else `auto_dtype`. Raises
        ConfigError for other names than floating-point types."""
        if self.dtype not in ("auto", *DTYPES):
            raise ConfigError(f"--dtype {self.dtype}: choose auto, float32, bfloat16 or float16")
        if self.dtype != "auto":
            return self.dtype
        stored = self._stored
        if stored is not None and stored.decoding.get("dtype") in DTYPES:
            return str(stored.decoding["dtype"])
        if not self.drawer.local:
            return "bfloat16"
        return auto_dtype("cuda" if torch.cuda.is_available() else "cpu")

    def identity(
        self, task: Chosen, template_hash: str, commit: str | None = None, model: PreTrainedModel | None = None
    ) -> Identity:
        """The identity of the store of this evaluation: the settings that determine its numbers, and hashes.

        The base that scores and the guide of q stand with the versions: another one is noted, in each row too, and no other
        evaluation. commit: of the Hub that the weights were loaded at, since a model there may move. model: the policy, loaded;
        its size decides how many problems a new store draws together.
        """
        decoding, weights = self.decoding(task), revision_of(self.model)
        recorded = versions() | {"threads": str(torch.get_num_threads())}
        if self.base_logprobs is not None:
            recorded[SCORED] = f"{self.base_logprobs} {revision_of(self.base_logprobs)}"
        if self.guide is not None:
            recorded[GUIDED] = self.guide
        return Identity(
            task=task.name,
            task_hash=task.task_hash,
            model=self.policy,
            revision=f"{weights}@{commit}" if commit and weights.startswith("hub:") else weights,
            prompt=task.prompt,
            template_hash=template_hash,
            decoding=asdict(decoding) | {"generator": self.engine, "dtype": self.precision},
            verifier_hash=task.verifier_hash,
            seed=self.sampling_seed,
            versions=recorded,
            chunk_size=self._chunk_size(decoding),
            together=self._together(decoding, model),
            guidance=task.guidance,
            turns=task.turns,
        )

    def _chunk_size(self, decoding: Decoding) -> int | None:
        """Samples a chunk: what the store there has; in a new one as few equal chunks as hold the n that are asked for, since a
        store holds whole chunks. None, the store's default, where a completion has no second sample or n is not known."""
        stored = self._stored
        if stored is not None:
            return stored.chunk_size
        if decoding.temperature == 0 or not self.samples:
            return None
        largest = WIDE if self.engine == "sampler" else CHUNK
        chunks = -(-self.samples // largest)
        return -(-self.samples // chunks)

    def _together(self, decoding: Decoding, model: PreTrainedModel | None) -> int:
        """Problems a call: what the store there has; in a new one `TOGETHER` for a model so small that it takes no longer."""
        stored = self._stored
        if stored is not None:
            return stored.together
        if self.engine != "sampler" or model is None or not supports(model):
            return 1
        return TOGETHER if TOGETHER * (self._chunk_size(decoding) or CHUNK) <= rows_of_a_pass(model, decoding) else 1


def sample_into_store(
    run: SampleRun, counting: Counting, say: Say = tell, *, progress: Say = lambda text: None
) -> tuple[SampleStore, Chosen]:
    """Generate the missing samples, and compute missing log-probs under `base_logprobs`.

    counting(total): a context manager whose value receives the number of new samples. say: receives messages about the problems;
    progress: what is loaded, where that takes seconds.
    Returns the store and the task. All errors are raised before sampling. Without missing samples the policy's weights are not
    loaded.
    """
    if run.samples < 1:
        raise ConfigError(f"--samples {run.samples}: at least one sample per problem is needed")
    torch.set_num_threads(run.threads)
    task = run.build_task()
    decoding, drawing = run.decoding(task), _lacks(run, task)
    if drawing:
        ready(task.task, say, run.split)
    loaded = "policy" if drawing else "tokenizer"
    with reporting(progress, f"{run.policy}: loading the {loaded}, rendering {len(task.problems)} prompts"):
        model, tokens = _policy(run) if drawing else (None, load_tokens(run.model))
        prompts, template_hash = prompts_of(task, tokens, run.chat_template, run.options)
    if model is not None:
        check_window(prompts, model, decoding.max_new_tokens)
    guide = None if run.guide is None else guide_of(run.guide)
    base = run.base_logprobs
    scorer = None if base is None else Scorer.of(base, *load_here(base, run.precision), tokens)
    commit = None if model is None else getattr(model.config, "_commit_hash", None)
    commit = commit or commit_of(run.model, run.engine)
    identity = run.identity(task, template_hash, commit, model)
    size = identity.chunk_size or 1
    if drawing and (over := -run.samples % size):
        say(f"a store has complete chunks of {size} samples: {run.samples + over} per problem instead of {run.samples}")
    with _agreeing(run.store, identity, task) as store:
        if drawing and KEY not in store.facts():
            chance = task.chance
            store.note(**{KEY: None if chance is None else chance.tree()})
        lacking = len(store.missing(task.problems, run.samples)) * size
        if os.access(run.store, os.W_OK):
            store.describe(task.questions(prompts))
            store.keep_policy_name_or_path(_name_or_path(run.model))
        if lacking and drawing:
            server = {"server": run.server, "served_as": run.server_model}
            together = identity.together > 1
            source = GeneratorSource(run.model, tokens, decoding, run.precision, model, **server, together=together)
            generator = run.drawer.of(source)
            with counting(lacking) as advance:
                asking = Asking.of(task.task, tokens, run.chat_template, run.options)
                window = None if model is None else positions_of(model)
                sampling = SamplingRun(task, prompts, generator, scorer, guide, asking, window)
                sampling.run(store, run.samples, progress=advance)
        if scorer is not None:
            _score(store, scorer, prompts, (SCORED, identity.versions[SCORED]), counting)
    return store, task


def _name_or_path(model: str) -> str:
    """Where a policy is found again: the whole path of a folder, else its name."""
    folder = folder_of(model)
    return str(folder.resolve()) if model not in NAMED and folder.is_dir() else model


def _agreeing(folder: Path, identity: Identity, task: Chosen) -> SampleStore:
    """The store of this identity; its refusal says in words what other hashes of problems or weights mean."""
    try:
        return SampleStore.open(folder, identity)
    except ConfigError as error:
        message = str(error)
    known = SampleStore.open(folder)
    had, many = known.wanted().get("problems"), len(task.problems)
    if known.identity.task_hash != identity.task_hash and had not in (None, many):
        message += f"\nproblems: {had} -> {many}"
    if known.identity.template_hash != identity.template_hash:
        message += "\nthe prompts are rendered differently (chat template, --chat-template-kwargs): use another --store"
    if known.identity.revision != identity.revision:
        message += "\nthe weights differ: if the run was continued, use another --store"
    raise ConfigError(message)


def _lacks(run: SampleRun, task: Chosen) -> bool:
    """Whether anything is to be drawn; where not, neither the policy's weights nor a generator are needed."""
    if not is_store(run.store):
        return True
    with SampleStore.open(run.store) as store:
        return bool(store.missing(task.problems, run.samples))


def _score(
    store: SampleStore, scorer: Scorer, prompts: Mapping[str, Prompt], stamp: tuple[str, str], counting: Counting
) -> None:
    """Log-probs under the base for samples that were drawn without it, a chunk at a time as when they are drawn."""

    def scored(rows: list[Sample]) -> list[Any]:
        return scorer(prompts[rows[0].problem].ids, rows)

    if lacking := store.unscored(stamp):
        with counting(len(lacking) * lacking[0].size) as advance:
            store.score(scored, stamp, progress=advance)


def commit_of(model: str, engine: str) -> str:
    """The commit of the Hub that a policy's weights were loaded at, from the local cache; else "revision unknown".

    vLLM loads what the cache's `main` is once the tokenizer was loaded. What a server has loaded nobody here can know.
    """
    folder = None if engine == "server" else cached_folder(model)
    return UNKNOWN if folder is None else folder.name


def verify_again(run: SampleRun) -> tuple[SampleStore, Chosen, int]:
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


@torch.no_grad()
def rank_line(run: SampleRun, store: SampleStore, task: Chosen) -> str:
    """Effective rank of the policy's last hidden states over the tokens of each problem's first sample, mean over problems."""
    rows = store.samples(problems=list(task.problems), n=1)
    if any(row.token_ids is None for row in rows):
        raise DataError(
            f"{store.path}: some samples have no token_ids, so their hidden states are unknown; omit --effective-rank"
        )
    model, tokens = _policy(run, loaded=True)
    prompts, _ = prompts_of(task, tokens, run.chat_template, run.options)
    ranks, counts = [], []
    for row in rows:
        prompt, ids = prompts[row.problem].ids, np.asarray(row.token_ids)
        whole = torch.tensor([[*prompt, *ids.tolist()]], device=model.device)
        own = np.ones(len(ids), dtype=bool) if row.turns is None else own_of(row.turns)
        states = model(whole, output_hidden_states=True).hidden_states[-1][0, len(prompt) :].double().cpu().numpy()
        ranks.append(effective_rank(states[own]))
        counts.append(int(own.sum()))
    return (
        f"rank       {cell(mean_interval(ranks), 2)} effective rank of the last hidden states, first sample of each problem, "
        f"{sum(counts) / len(counts):.1f} tokens on average; the rank grows with the length"
    )


@torch.no_grad()
def best_line(run: SampleRun, store: SampleStore, task: Chosen, model: str) -> str:
    """pass@1 of the sample that a reward model ranks first, next to pass@1, maj@n and pass@n of all n samples. The reward model
    gets the problem without hints.
    """
    ranker, tokens = load_reward_model(model)
    prompts, _ = prompts_of(replace(task, hinted=None), tokens, run.chat_template, run.options)
    n = common_n(store)
    rows = store.lists(("problem", "sample", "token_ids", "verdict", "answer"), problems=list(task.problems), n=n)
    if any(ids is None for ids in rows["token_ids"]):
        raise DataError(f"{store.path}: some samples have no token_ids, so a reward model cannot score them; omit --rerank-with")
    drawn = rows["token_ids"]
    right = (np.array(rows["verdict"]) == "right").reshape(-1, n)
    answers = np.array(rows["answer"], dtype=object).reshape(-1, n)
    chosen = []
    for index, (name, own) in enumerate(zip(task.problems, right, strict=True)):
        texts = [(*prompts[name].ids, *ids.tolist()) for ids in drawn[index * n : (index + 1) * n]]
        chosen.append(float(own[int(scores_of(ranker, texts, tokens.pad_id).argmax())]))
    votes = [maj_at_k(list(given), own, [n]).values[0] for given, own in zip(answers, right, strict=True)]
    better, solved, chance = paired(chosen, right.mean(1)).difference, right.any(1).astype(float), task.chance
    return (
        f"best of {n}  {cell(share_interval(chosen))} pass@1 of the sample that {model} ranks first; pass@1 "
        f"{cell(share_interval(right.mean(1)))}, maj@{n} {cell(share_interval(votes))}, pass@{n} {cell(share_interval(solved))}"
        f"{'' if chance is None else f', chance {chance.at(n):.3f}'}; "
        f"ranked first minus pass@1: {cell(better)}"
    )


def _policy(run: SampleRun, loaded: bool = False) -> tuple[Any, Tokens]:
    """(model, tokens); no model where the generator runs it elsewhere, unless it must be `loaded` here."""
    here = loaded or run.drawer.local
    return load_here(run.model, run.precision) if here else (None, load_tokens(run.model))


def load_here(name: str, dtype: str) -> tuple[Any, Tokens]:
    """A policy in eval mode on a GPU, else on the CPU, and its tokens."""
    model, tokens = load_policy(name, dtype)
    return (model.to("cuda") if torch.cuda.is_available() else model), tokens  # type: ignore[arg-type]
