"""An evaluation by samples: missing chunks of a store -> completions -> verdicts -> committed, until nothing is missing.

    while missing: claim the chunks of a few problems; generate, a chunk's seeds of one prompt a request; verify; commit

The store decides what is missing and who works on what (`evaluation/store`), so an interrupted evaluation goes on
where it was, SIGKILL included; more samples are a top-up; and several processes share the work. A chunk is computed alike
whatever came before it, so that on the CPU sampler the store's digest depends on none of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from sage_rlvr.core.guides import GUIDES, Guide
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.sampled_tasks import Chosen, Prompt
from sage_rlvr.evaluation.store import Chunk, Identity, Sample, SampleStore, prompt_hash
from sage_rlvr.models.generation import Generation, Generator, Request
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.scoring import score

PAUSE_S = 0.5  # between two looks at what other processes have still to commit


@dataclass(frozen=True)
class Scorer:
    """The base model's log-probs of the sampled tokens, at temperature 1, nats: Eq. (39) of arXiv 2605.18864."""

    model: PreTrainedModel

    @classmethod
    def of(cls, name: str, model: PreTrainedModel, base: Tokens, policy: Tokens) -> Scorer:
        """ConfigError unless a token means the same text to both."""
        if base.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise ConfigError(
                f"--score-base {name}: its tokenizer has another vocabulary than the policy's, so it cannot score the "
                "policy's tokens; name the model that the policy was trained from"
            )
        return cls(model.eval())

    @torch.no_grad()
    def __call__(self, prompt: Sequence[int], rows: Sequence[Generation]) -> list[Any]:
        """(T,) a row; None for rows whose tokens are not known."""
        known = [row.token_ids for row in rows if row.token_ids is not None]
        if len(known) < len(rows):
            return [None] * len(rows)
        device = next(self.model.parameters()).device
        tokens, mask = padded(known)
        owners = torch.zeros(len(rows), dtype=torch.long, device=device)
        logps = score(self.model, [list(prompt)], tokens.to(device), mask.to(device), owners).logps.cpu().numpy()
        return [logps[i, : len(ids)].astype(np.float32) for i, ids in enumerate(known)]


def padded(rows: Sequence[Any], fill: float = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Arrays (T_i,) -> (B, T) and a mask (B, T)."""
    lengths = torch.tensor([len(row) for row in rows])
    values = torch.full((len(rows), int(lengths.max())), fill, dtype=torch.as_tensor(rows[0]).dtype)
    for i, row in enumerate(rows):
        values[i, : len(row)] = torch.as_tensor(row)
    values = values.long() if not values.is_floating_point() else values
    return values, torch.arange(values.shape[1])[None, :] < lengths[:, None]


def guide_of(name: str, generator_tells: bool = True) -> Guide:
    """A guide by its word, with its defaults. ConfigError where q would depend on more than a sample and the base."""
    if name not in GUIDES or name in ("placebo", "compose"):
        alone = [word for word in GUIDES if word not in ("placebo", "compose")]
        raise ConfigError(f"--guide {name}: choose one of {', '.join(alone)}")
    found: Guide = GUIDES[name]()
    if found.depends_on == "batch" or not found.needs <= {"entropies"}:
        raise ConfigError(f"--guide {name}: its q depends on more than a sample's own log-probs and entropies")
    return found


def q_of(guide: Guide, rows: Sequence[Generation], numbers: Sequence[int], seed: int) -> list[Any]:
    """(T,) q at each token of a row, at the first step of the guide's schedules; None where its signals are not known."""
    if any(row.logps is None or (guide.needs and row.entropies is None) for row in rows):
        return [None] * len(rows)
    logps, mask = padded([row.logps for row in rows])
    entropies = padded([row.entropies for row in rows])[0] if guide.needs else None
    signals = Signals(logps, logps, mask, torch.tensor(list(numbers)), entropies=entropies)
    q = guide(signals, 0, 1, Key(seed).fold("guide of an evaluation")).exp().numpy()
    return [q[i, : int(n)] for i, n in enumerate(mask.sum(1))]


@dataclass(frozen=True)
class Evaluation:
    """What draws and judges: `run` fills a store with it."""

    task: Chosen
    prompts: Mapping[str, Prompt]
    generator: Generator
    scorer: Scorer | None = None
    guide: Guide | None = None

    def run(
        self, store: SampleStore, n: int, *, progress: Callable[[int], None] = lambda n: None, pause: float = PAUSE_S
    ) -> None:
        """Until every problem has n samples (whole chunks). progress(m): m more are there, drawn here or elsewhere."""
        ids = list(self.task.problems)
        store.want(ids, n)
        left = len(store.missing(ids, n))
        size = store.identity.chunk_size or 1
        while left:
            lacking = {chunk.problem for chunk in store.missing(ids, n)}
            worked = False
            for block in _blocks([i for i in ids if i in lacking], self.generator.at_once):
                chunks = store.claim(block, n, most=len(block) * -(-n // size))
                if chunks:
                    store.commit(self.samples(store.identity, chunks))
                    progress(len(chunks) * size)
                    worked = True
            before, left = left, len(store.missing(ids, n))
            if left and not worked:
                progress((before - left) * size)
                time.sleep(pause)  # others work on what is left; if one dies, its claims are free again

    def samples(self, identity: Identity, chunks: Sequence[Chunk]) -> list[Sample]:
        """Chunks as rows: drawn, scored, judged."""
        chunks = sorted(chunks, key=lambda chunk: (chunk.problem, chunk.first))
        requests = [
            Request(self.prompts[c.problem].ids, tuple(identity.seed_of(c.problem, s) for s in c.samples))
            for c in chunks
        ]
        began = time.perf_counter()
        drawn = self.generator.generate(requests)
        seconds = (time.perf_counter() - began) / len(chunks)
        flat = [row for rows in drawn for row in rows]
        owners = [chunk.problem for chunk in chunks for _ in chunk.samples]
        judged = iter(self.task.verdicts(owners, [row.text for row in flat]))
        made = []
        for chunk, request, rows in zip(chunks, requests, drawn, strict=True):
            base = self.scorer(request.prompt, rows) if self.scorer else [None] * len(rows)
            q = q_of(self.guide, rows, chunk.samples, identity.seed) if self.guide else [None] * len(rows)
            hashed = prompt_hash(self.prompts[chunk.problem].text)
            for number, seed, row, *scores in zip(chunk.samples, request.seeds, rows, base, q, strict=True):
                verdict = next(judged)
                made.append(
                    Sample(
                        problem=chunk.problem,
                        sample=number,
                        seed=seed,
                        prompt_hash=hashed,
                        text=row.text,
                        token_ids=row.token_ids,
                        rollout_logps=row.logps,
                        base_logps=scores[0],
                        entropies=row.entropies,
                        q=scores[1],
                        finish=row.finish,
                        answer=verdict.answer,
                        verdict=verdict.label,  # type: ignore[arg-type]
                        reason=verdict.reason,
                        latency_s=seconds,
                    )
                )
        return made


def _blocks(ids: Sequence[str], size: int) -> list[list[str]]:
    return [list(ids[first : first + size]) for first in range(0, len(ids), size)]


def check_window(prompts: Mapping[str, Prompt], model: PreTrainedModel, max_new_tokens: int) -> None:
    """ConfigError where the longest prompt and a whole completion do not fit into the model's positions."""
    window = getattr(model.config, "max_position_embeddings", None)
    name, longest = max(((i, len(p.ids)) for i, p in prompts.items()), key=lambda pair: pair[1])
    if window is not None and longest + max_new_tokens > window:
        raise ConfigError(
            f"problem {name!r}: its prompt has {longest} tokens, and with max_new_tokens = {max_new_tokens} it does not fit "
            f"into the model's {window}; give --max-new-tokens {max(1, window - longest)} or less, to all arms alike"
        )


__all__ = [
    "Evaluation",
    "Scorer",
    "check_window",
    "guide_of",
    "q_of",
]
