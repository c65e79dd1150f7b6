"""`sage-rlvr eval --samples N`: from the words of the command line to a filled sample store, and verdicts given again.

    settings -> task, policy, generator -> store of that identity -> missing samples drawn -> store

The same settings again continue; another N tops up; `verify_again` needs neither policy nor network, but for the task's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from sage_rlvr.config import WorldConfig
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.sample_files import STORE
from sage_rlvr.evaluation.sample_report import SCORED, arrays, cell
from sage_rlvr.evaluation.sampled_tasks import (
    COUNTDOWN,
    SAMPLED_TASKS,
    Chat,
    Prompt,
    SampledTask,
    countdown,
    knights_and_knaves,
    mathematics,
    prompts_of,
)
from sage_rlvr.evaluation.samples import Identity, Sample, SampleStore
from sage_rlvr.evaluation.sampling import Evaluation, Scorer, check_window, chunk_size_of, guide_of, identity_of
from sage_rlvr.models.generation import CpuGenerator, Decoding, Generation, Generator, Preset, TransformersGenerator
from sage_rlvr.models.policy import Tokens, load_policy, load_tokens
from sage_rlvr.stats.intervals import mean_interval
from sage_rlvr.stats.samples.spectrum import effective_rank

Engine = Literal["auto", "sampler", "transformers", "vllm", "server"]
UNKNOWN = "revision unknown"
KNIGHTS_TASKS = ("knights_and_knaves", "knights_and_knaves_strict")
Counting = Callable[[int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """What decides an evaluation by samples.

    policy      its name in the store; model: its folder, Hub id or "embedded"; world: of Countdown
    problems    how many (Countdown: as drawn; else the first rows); None: 300 of Countdown, else all
    temperature None: the preset's
    template    prompt format of the mathematics tasks; chat: whose chat template writes it (`prompts_of`)
    max_new_tokens  None: 32 for Countdown, else the preset's
    generator   auto: transformers on a GPU, else the house's sampler; server: the address for "server", served_as: the name
                under which the policy is served there
    dtype       auto: bfloat16 on a GPU, else float32
    """

    task: str
    policy: str
    model: str
    samples: int
    store: Path
    world: WorldConfig | None = None
    problems: int | None = None
    split: str = "test"
    seed: int = 1
    draw: str = "law"
    preset: Preset = "honest"
    temperature: float | None = None
    template: str = "boxed"
    chat: Chat = "model"
    max_new_tokens: int | None = None
    generator: Engine = "auto"
    server: str | None = None
    served_as: str | None = None
    dtype: str = "auto"
    sampling_seed: int = 0
    score_base: str | None = None
    guide: str | None = None
    threads: int = 1

    def build_task(self) -> SampledTask:
        """The task with its problems. ConfigError for an unknown one, or without a world for Countdown."""
        if self.problems is not None and self.problems < 1:
            raise ConfigError(f"--problems {self.problems}: at least one problem is needed")
        if self.task == COUNTDOWN:
            if self.world is None:
                raise ConfigError("task countdown: needs a world; evaluate a run, or give --world")
            many = 300 if self.problems is None else self.problems
            return countdown(self.world, self.split, many, self.seed, self.draw)
        if self.task in KNIGHTS_TASKS:
            return knights_and_knaves(self.problems, strict=self.task.endswith("_strict"))
        if self.task not in SAMPLED_TASKS and not self.task.endswith(".jsonl"):
            known = ", ".join([*SAMPLED_TASKS, KNIGHTS_TASKS[1]])
            raise ConfigError(f"--task {self.task}: choose one of {known}, or give a .jsonl file")
        return mathematics(self.task, self.template, self.problems)

    def decoding(self, task: SampledTask, engine: Engine) -> Decoding:
        """The preset, as this generator has it."""
        limit = task.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        law = Decoding.of(self.preset, vllm=engine in ("vllm", "server"), max_new_tokens=limit)
        return law if self.temperature is None else replace(law, temperature=self.temperature)

    @property
    def engine(self) -> Engine:
        """The generator, "auto" settled."""
        if (self.generator == "server") != (self.server is not None):
            raise ConfigError(
                f"--generator {self.generator} with --server {self.server}: a server needs both, --generator server and "
                "--server http://HOST:PORT"
            )
        if self.generator != "auto":
            return self.generator
        return "transformers" if torch.cuda.is_available() else "sampler"

    def settled_dtype(self) -> str:
        """The dtype, "auto" settled. ConfigError for a word that names no floating-point type."""
        if self.dtype == "auto":
            return "bfloat16" if torch.cuda.is_available() or self.engine in ("vllm", "server") else "float32"
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise ConfigError(f"--dtype {self.dtype}: choose auto, float32, bfloat16 or float16")
        return self.dtype


def sample_into_store(settings: SampleSettings, counting: Counting) -> tuple[SampleStore, SampledTask]:
    """Draw what is missing, and score under `score_base` what has no log-probs of it, drawn long ago or now.

    counting(total): a context whose value is told of samples that are there. Returns the store, to be read, and the task.
    Every refusal comes before anything is drawn. Where nothing is missing, the policy's weights are not loaded.
    """
    if settings.samples < 1:
        raise ConfigError(f"--samples {settings.samples}: at least one sample a problem is needed")
    torch.set_num_threads(settings.threads)
    task = settings.build_task()
    engine, dtype = settings.engine, settings.settled_dtype()
    decoding = settings.decoding(task, engine)
    drawing = _lacks(settings, task)
    model, tokens = _policy(settings, engine, dtype) if drawing else (None, load_tokens(settings.model))
    prompts, template_hash = prompts_of(task, tokens, settings.chat)
    if model is not None:
        check_window(prompts, model, decoding.max_new_tokens)
    guide = None if settings.guide is None else guide_of(settings.guide)
    scorer = None if settings.score_base is None else _scorer(settings.score_base, dtype, tokens)
    identity = identity_of(
        task,
        policy=settings.policy,
        model=settings.model,
        template_hash=template_hash,
        decoding=decoding,
        generator=engine,
        dtype=dtype,
        seed=settings.sampling_seed,
        scored=settings.score_base,
        guide=settings.guide,
        commit=getattr(getattr(model, "config", None), "_commit_hash", None) or commit_of(settings.model, engine),
        chunk_size=chunk_size_of(settings.store, decoding, engine, settings.samples),
    )
    with _agreeing(settings.store, identity, task) as store:
        lacking = len(store.missing(task.problems, settings.samples)) * (identity.chunk_size or 1)
        if lacking and drawing:
            generator = _generator(settings, engine, model, tokens, decoding, dtype)
            with counting(lacking) as advance:
                Evaluation(task, prompts, generator, scorer, guide).run(store, settings.samples, progress=advance)
        if scorer is not None:
            _score(store, scorer, prompts, (SCORED, identity.versions[SCORED]), counting)
    return store, task


def _agreeing(folder: Path, identity: Identity, task: SampledTask) -> SampleStore:
    """The store of this identity; its refusal says in words what other hashes of problems or weights mean."""
    try:
        return SampleStore.open(folder, identity)
    except ConfigError as error:
        said = str(error)
    known = SampleStore.open(folder)
    had, many = known.wanted().get("problems"), len(task.problems)
    if known.identity.task_hash != identity.task_hash and had not in (None, many):
        said += f"\nproblems: {had} -> {many}"
    if known.identity.revision != identity.revision:
        said += "\nother weights: if the run went on, name another --store"
    raise ConfigError(said)


def _lacks(settings: SampleSettings, task: SampledTask) -> bool:
    """Whether anything is to be drawn; where not, neither the policy's weights nor a generator are needed."""
    if not (settings.store / STORE).is_file():
        return True
    with SampleStore.open(settings.store) as store:
        return bool(store.missing(task.problems, settings.samples))


def _score(
    store: SampleStore, scorer: Scorer, prompts: Mapping[str, Prompt], stamp: tuple[str, str], counting: Counting
) -> None:
    """Log-probs under the base for samples that were drawn without it, a chunk at a time as when they are drawn."""

    def scored(rows: list[Sample]) -> list[Any]:
        owned = [Generation("", np.array(row.token_ids), None, None, "stop") for row in rows]
        return scorer(prompts[rows[0].problem].ids, owned)

    if lacking := store.unscored(stamp):
        with counting(len(lacking) * lacking[0].size) as advance:
            store.score(scored, stamp, progress=advance)


def commit_of(model: str, engine: Engine) -> str:
    """The commit of the Hub that a policy's weights were loaded at, from the local cache; else "revision unknown".

    vLLM loads what the cache's `main` is once the tokenizer was loaded. What a server has loaded nobody here can know.
    """
    if engine == "server" or model.count("/") != 1:
        return UNKNOWN
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(model, "config.json")
    except ValueError:  # no id of the Hub
        return UNKNOWN
    return Path(found).parent.name if isinstance(found, str) else UNKNOWN


def verify_again(settings: SampleSettings) -> tuple[SampleStore, SampledTask, int]:
    """Judge every sample of the store by today's verifier, offline. Returns how many were judged anew."""
    task = settings.build_task()
    with SampleStore.open(settings.store) as store:
        known = store.identity
        if (known.task, known.task_hash, known.prompt) != (task.name, task.task_hash, task.prompt):
            raise DataError(
                f"{settings.store}: holds samples of {known.task!r} asked as {known.prompt!r}, and these settings are "
                f"{task.name!r} asked as {task.prompt!r}, or other problems of it; give the settings of the evaluation"
            )
        return store, task, store.reverify(task.verdicts, task.verifier_hash)


@torch.no_grad()
def rank_line(settings: SampleSettings, store: SampleStore, task: SampledTask) -> str:
    """Effective rank of the policy's last hidden states over the tokens of each problem's first sample, mean over problems."""
    rows = store.table(("problem", "sample", "token_ids"), problems=list(task.problems), n=1)
    if rows["token_ids"].null_count:
        raise DataError(
            f"{store.path}: some samples have no token_ids, so their hidden states are unknown; leave --rank out"
        )
    model, tokens = _policy(settings, "transformers", settings.settled_dtype())
    prompts, _ = prompts_of(task, tokens, settings.chat)
    ranks, lengths = [], []
    for name, ids in zip(task.problems, arrays(rows["token_ids"]), strict=True):
        prompt = list(prompts[name].ids)
        whole = torch.tensor([[*prompt, *ids.tolist()]], device=model.device)
        states = model(whole, output_hidden_states=True).hidden_states[-1][0, len(prompt) :]
        ranks.append(effective_rank(states.double().cpu().numpy()))
        lengths.append(len(ids))
    mean = sum(lengths) / len(lengths)
    return (
        f"rank       {cell(mean_interval(ranks), 2)} effective rank of the last hidden states, first sample of each problem, "
        f"{mean:.1f} tokens on average: it grows with the length"
    )


def _policy(settings: SampleSettings, engine: Engine, dtype: str) -> tuple[Any, Tokens]:
    if engine in ("vllm", "server"):
        return None, load_tokens(settings.model)
    model, tokens = load_policy(settings.model, dtype)
    return _placed(model), tokens


def _placed(model: Any) -> Any:
    return model.to("cuda") if torch.cuda.is_available() else model


def _scorer(name: str, dtype: str, tokens: Tokens) -> Scorer:
    base, own = load_policy(name, dtype)
    return Scorer.of(name, _placed(base), own, tokens)


def _generator(
    settings: SampleSettings, engine: Engine, model: Any, tokens: Tokens, decoding: Decoding, dtype: str
) -> Generator:
    if engine == "sampler":
        return CpuGenerator(model, tokens, decoding)
    if engine == "transformers":
        return TransformersGenerator(model, tokens, decoding)
    from sage_rlvr.models.vllm import ServerGenerator, VllmGenerator

    if engine == "vllm":
        return VllmGenerator(settings.model, tokens, decoding, dtype=dtype)
    assert settings.server is not None
    return ServerGenerator(settings.server, settings.served_as or settings.model, tokens, decoding)


__all__ = ["Engine", "SampleSettings", "rank_line", "sample_into_store", "verify_again"]
