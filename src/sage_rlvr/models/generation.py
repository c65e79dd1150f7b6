"""Generators: prompts and seeds in, completions out. Each sample has its own seed; a preset names the settings.

    token t of a sample = inverse CDF of the (truncated) next-token distribution at u(seed, t),   u from `core/keys.py`

`SamplerGenerator` gives the same bits for the same requests, whatever was sampled before: with together=True for the same call,
with together=False for the same request (prompt, seeds and limit). `TransformersGenerator` is `model.generate` with the same
sampling
inside it, for each completion: neighbors and batch size change its rounding, never its seeds. vLLM is in `models/vllm.py`. All stop
only at the model's end tokens and read no sampling defaults from a model's files.

The tokens that truncated sampling leaves of a next-token distribution, exactly:

    top-k   the k most likely tokens                                           (Fan et al. 2018, arXiv 1805.04833)
    top-p   the shortest list of most likely tokens that together reach p      (Holtzman et al. 2020, arXiv 1904.09751)
    min-p   the tokens with at least min_p times the chance of the likeliest   (Nguyen et al. 2024, arXiv 2407.01082)

They apply in this order, each to the result of the one before, as in transformers; of equal probabilities the smaller id stays
(top-k, top-p). The rest is renormalized: a sampler reports the log-probs of the distribution that it samples from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from sage_rlvr.core.keys import Key, widest_float
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.sampler import Cut, Lender, Prefill, Rollout, decode_weights, draw, evaluating, prefill, sample
from sage_rlvr.registry import Registry
from sage_rlvr.tasks.base import MAX_NEW_TOKENS

KEY = Key(0).fold("samples of an evaluation")  # the seeds are the row ids of its streams
PASS_ROWS, PASS_BYTES = 1024, 1 << 31  # what `SamplerGenerator` draws in one pass at most
LOGIT_BYTES = 32  # of each logit of a completion while a token is drawn: float32, and float64 with its sums
TRANSFORMERS_TOP_K = 50  # the default of `generate`


@dataclass(frozen=True)
class Truncation:
    """Truncation of a distribution: on log-probs (B, V) it returns those of the remaining tokens, -inf elsewhere.

    top_k 0, top_p 1 and min_p 0 each mean "off". `Decoding` makes it; the samplers call it.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p < 1:
            raise ConfigError(
                f"top_k = {self.top_k}, top_p = {self.top_p}, min_p = {self.min_p}: top_k must be >= 1 (0 is off), "
                "top_p in (0, 1] (1 is off), min_p in [0, 1) (0 is off)"
            )

    @property
    def off(self) -> bool:
        """True if nothing is truncated."""
        return self == Truncation()

    def __call__(self, log_probs: Tensor) -> Tensor:
        kept = torch.ones_like(log_probs, dtype=torch.bool)
        if self.top_k or self.top_p < 1:
            kept = self._by_rank(log_probs)
        if self.min_p:
            # The likeliest token is always left, and renormalizing moves it and the others alike.
            kept &= log_probs >= log_probs.amax(-1, keepdim=True) + math.log(self.min_p)
        return torch.log_softmax(log_probs.masked_fill(~kept, -math.inf), -1)

    def _by_rank(self, log_probs: Tensor) -> Tensor:
        ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
        if self.top_k:
            ordered, order = ordered[:, : self.top_k], order[:, : self.top_k]
        kept = torch.ones_like(ordered, dtype=torch.bool)
        if self.top_p < 1:
            probs = torch.softmax(ordered.to(widest_float(ordered.device)), -1)
            kept = probs.cumsum(-1) - probs < self.top_p  # what stands before it does not reach p yet
        return torch.zeros_like(log_probs, dtype=torch.bool).scatter_(1, order, kept)


@dataclass(frozen=True)
class Decoding:
    """Sampling settings of a completion. Evaluation and teachers make it; generators use it, and a store's identity includes it.

    temperature 0 is greedy; top_p 1, top_k 0 and min_p 0 are off; max_new_tokens per sample.
    """

    preset: str = "untruncated"
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: int = MAX_NEW_TOKENS

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.max_new_tokens < 1:
            raise ConfigError(
                f"temperature = {self.temperature}, max_new_tokens = {self.max_new_tokens}: set a temperature >= 0 (0 "
                "is greedy) and max_new_tokens >= 1"
            )
        Truncation(self.top_k, self.top_p, self.min_p)

    @classmethod
    def of(cls, preset: str, *, vllm: bool = False, **changes: Any) -> Decoding:
        """Return the settings of a preset, some of them changed. vllm: true if vLLM samples, which has no default top-k."""
        if preset not in PRESETS:
            raise ConfigError(f"preset {preset!r}: choose one of {', '.join(PRESETS)}")
        own = {"top_k": 0} if preset == "released_code" and vllm else {}
        return replace(PRESETS[preset], **(own | changes))

    @property
    def cut(self) -> Truncation:
        """Truncation of each distribution; for greedy decoding to the likeliest token."""
        return Truncation(self.top_k, self.top_p, self.min_p) if self.temperature else Truncation(top_k=1)

    @property
    def plain(self) -> bool:
        """True at temperature 1 without truncation: the policy itself."""
        return self.temperature == 1 and self.cut.off

    def temperature_and_cut(self) -> tuple[float, Cut | None]:
        """Return the temperature and truncation for `sample` and `draw`."""
        return self.temperature or 1.0, None if self.cut.off else self.cut


PRESETS: dict[str, Decoding] = {
    "untruncated": Decoding(),
    # arXiv 2605.18864, appendix: those of training (min_p 0.01, nothing else cut) but for the temperature, 0.3.
    "paper": Decoding("paper", temperature=0.3, min_p=0.01),
    # The authors' evaluator sets these two; without vLLM the library's own top-k comes on top unsaid.
    "released_code": Decoding("released_code", temperature=0.3, top_p=0.95, top_k=TRANSFORMERS_TOP_K),
}


@dataclass(frozen=True)
class Request:
    """A prompt's tokens, and the seeds of its samples, each in [0, 2^63).

    Evaluation makes one per prompt; `Generator.generate` reads it.

    limit: tokens of each at most, if less than the decoding's; a generator that cannot apply it samples more.
    messages: the prompt as a conversation, for a server that renders it; empty if only tokens are known.
    """

    prompt: tuple[int, ...]
    seeds: tuple[int, ...]
    limit: int | None = None
    messages: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise DataError("a prompt has no tokens; add at least one (for example BOS)")


@dataclass(frozen=True, eq=False)
class Generation:
    """One completion. A `Generator` makes one per seed; evaluation judges, scores and stores it.

    text       without its end token; if it met the limit, with the mark of `Tokens.decode`
    token_ids  (T,) with the end token, None if a server does not send them
    logps      (T,) nats, under the sampler
    entropies  (T,) nats, of the sampler's distribution; None if not known
    turns      of an episode: (who, text, tokens) each; the environment's tokens have log-prob and entropy 0
    """

    text: str
    token_ids: NDArray[np.int32] | None
    logps: NDArray[np.float32] | None
    entropies: NDArray[np.float32] | None
    finish: Literal["stop", "length"]
    turns: tuple[tuple[str, str, int], ...] | None = None


@dataclass(frozen=True, eq=False)
class GeneratorSource:
    """Arguments for making a generator.

    policy             folder, Hub id or "embedded"
    model              the loaded policy, if the generator is `local`
    server, served_as  address of a server and the policy's name there, as given
    together           see `SamplerGenerator`
    """

    policy: str
    tokens: Tokens
    decoding: Decoding
    dtype: str = "float32"
    model: Any = None
    server: str | None = None
    served_as: str | None = None
    together: bool = True


class Generator(Protocol):
    """A source of samples.

    name     for the store
    at_once  prompts per call for good use of the hardware
    local    true if it runs a policy that is loaded in this process
    """

    name: str
    at_once: int
    local: ClassVar[bool]

    @classmethod
    def of(cls, source: GeneratorSource) -> Generator:
        """Return the generator of an evaluation."""
        ...

    def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        """Return for each request one generation per seed, in order.

        A seed's generation does not depend on the other requests, except for rounding in classes that document it.
        """
        ...


@runtime_checkable
class DrawsTogether(Protocol):
    """A generator whose samples depend, in their last bits, on the requests that share a pass. Sample stores compare it."""

    together: bool


GENERATORS: Registry[Any] = Registry("generator", remember=False)
"""Classes of `Generator` by name; those of vLLM and of servers register in `models/vllm.py`."""
Single = tuple[tuple[int, ...], int]  # a prompt and one seed


def one_by_one(
    requests: Sequence[Request], drawing: Callable[[list[Single]], Iterable[Generation]]
) -> list[list[Generation]]:
    """Return `Generator.generate` from a function that samples one completion."""
    drawn = iter(drawing([(request.prompt, seed) for request in requests for seed in request.seeds]))
    return [[next(drawn) for _ in request.seeds] for request in requests]


def generations(tokens: Tokens, rollout: Rollout) -> list[Generation]:
    """Return the rows of a rollout. Raise DataError if a log-prob is NaN or infinite."""
    lengths, finished = rollout.lengths.tolist(), rollout.finished.tolist()
    texts = tokens.texts(rollout)
    ids, logps = rollout.tokens.cpu().numpy().astype(np.int32), rollout.logps.float().cpu().numpy()
    entropies = None if rollout.entropies is None else rollout.entropies.float().cpu().numpy()
    if not all(np.isfinite(row[:n]).all() for row, n in zip(logps, lengths, strict=True)):
        raise DataError(
            "the model's log-probabilities are NaN or infinite, so its weights contain NaN or infinity, or overflow "
            "in this precision; use other weights, or float32"
        )
    rows = []
    for i, (text, n, done) in enumerate(zip(texts, lengths, finished, strict=True)):
        entropy = None if entropies is None else entropies[i, :n].copy()
        rows.append(Generation(text, ids[i, :n].copy(), logps[i, :n].copy(), entropy, "stop" if done else "length"))
    return rows


# ------------------------------------------------------------------------------------------------------------------
# the sampler of this package


@GENERATORS.register
class SamplerGenerator:
    """Generator by `models/sampler.py` on the model's device; on a GPU equal seeds give equal bits only as far as its kernels do.

    together: consecutive requests of a call with equal numbers of seeds are sampled in one pass, as far as memory suffices
    (`rows_of_a_pass`). Samples are then bitwise a function of the complete call, and this is the fastest for a small model, whose
    time is mostly that of calling operations. False: one prompt at a time, run once for all its requests; samples are then bitwise
    a
    function of the request: prompt, seeds and limit.
    """

    name = "sampler"
    local: ClassVar[bool] = True

    def __init__(
        self, model: PreTrainedModel, tokens: Tokens, decoding: Decoding, at_once: int = 4, together: bool = True
    ) -> None:
        self.model, self.tokens, self.decoding = model, tokens, decoding
        self.at_once, self.together = at_once, together

    @classmethod
    def of(cls, source: GeneratorSource) -> SamplerGenerator:
        return cls(source.model, source.tokens, source.decoding, together=source.together)

    def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        """Return as `Generator.generate`; with together=False the other requests do not change a bit of it."""
        with evaluating(self.model):
            return self._generate(requests)

    def _generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        drawn: list[list[Generation]] = []
        weights = decode_weights(self.model)  # anew in each call, since the model may change between two calls
        if self.together:
            for some in _passes(requests, rows_of_a_pass(self.model, self.decoding)):
                prompts, size = [request.prompt for request in some], len(some[0].seeds)
                seeds = [seed for request in some for seed in request.seeds]
                limits = [request.limit for request in some for _ in request.seeds]
                rows = self._drawn(prompts, seeds, prefill(self.model, prompts, weights), limits)
                drawn += [rows[first : first + size] for first in range(0, len(rows), size)]
            return drawn
        for prompt, group in itertools.groupby(requests, key=lambda request: request.prompt):
            ready = prefill(self.model, [prompt], weights)
            drawn += [self._drawn([prompt], one.seeds, ready, [one.limit] * len(one.seeds)) for one in group]
        return drawn

    def _drawn(
        self, prompts: Sequence[tuple[int, ...]], seeds: Sequence[int], ready: Prefill, limits: Sequence[int | None]
    ) -> list[Generation]:
        (temperature, cut), most = self.decoding.temperature_and_cut(), self.decoding.max_new_tokens
        rooms = [most if limit is None else min(most, limit) for limit in limits]
        rollout = sample(
            self.model,
            prompts,
            group_size=len(seeds) // len(prompts),
            max_new_tokens=max(rooms),
            eos_id=self.tokens.eos_ids,
            pad_id=self.tokens.pad_id,
            key=KEY,
            temperature=temperature,
            row_ids=torch.tensor(seeds),
            cut=cut,
            ready=ready,
            limits=None if min(rooms) == most else torch.tensor(rooms),
            lender=self._lender(prompts),
        )
        return generations(self.tokens, rollout)

    def _lender(self, prompts: Sequence[Sequence[int]]) -> Lender | None:
        """Return another policy to sample from at some states; here None."""
        return None


def _passes(requests: Sequence[Request], rows: int) -> Iterator[list[Request]]:
    """Yield consecutive requests of equal numbers of seeds, up to `rows` completions at a time, at least one request."""
    for size, alike in itertools.groupby(requests, key=lambda request: len(request.seeds)):
        some, most = list(alike), max(1, rows // max(1, size))
        yield from (some[first : first + most] for first in range(0, len(some), most))


def rows_of_a_pass(model: PreTrainedModel, decoding: Decoding) -> int:
    """Return the number of completions whose caches and logits fit into `PASS_BYTES`, at most `PASS_ROWS`, without the prompts'
    cache.
    """
    row = decoding.max_new_tokens * cache_bytes(model) + LOGIT_BYTES * model.config.get_text_config().vocab_size
    return min(PASS_ROWS, PASS_BYTES // row)


def cache_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of the keys and values of one token, float32."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * 4 * int(config.num_hidden_layers * heads * width)


# ------------------------------------------------------------------------------------------------------------------
# transformers


class SeededChoice(LogitsProcessor):
    """Sampling inside `generate`: completion r takes the token at u(seed_r, t) at its step t, and every other token gets -inf.

    `TransformersGenerator` makes one per call.
    """

    def __init__(self, seeds: Sequence[int], decoding: Decoding, start: int, device: torch.device) -> None:
        steps = torch.arange(decoding.max_new_tokens)
        uniforms = KEY.uniform64(0, "sample", torch.tensor(list(seeds)), steps)
        self.uniforms = uniforms.to(device, widest_float(device))
        self.temperature_and_cut, self.start = decoding.temperature_and_cut(), start
        self.logps: list[Tensor] = []
        self.entropies: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        temperature, cut = self.temperature_and_cut
        chosen, logps, entropies = draw(scores, self.uniforms[:, input_ids.shape[1] - self.start], temperature, cut=cut)
        assert entropies is not None
        self.logps.append(logps)
        self.entropies.append(entropies)
        return torch.full_like(scores, float("-inf")).scatter(1, chosen[:, None], 0.0)


@GENERATORS.register
class TransformersGenerator:
    """`model.generate` on a GPU or a CPU, at most `rows` completions at a time, prompts padded on the left.

    `generate` has one random stream for a batch; here each completion is sampled from its seed (`SeededChoice`), so that
    top-ups and batches give the same samples up to rounding: a token changes if its uniform number falls within the rounding.
    """

    name, local = "transformers", True

    def __init__(self, model: PreTrainedModel, tokens: Tokens, decoding: Decoding, rows: int = 128) -> None:
        self.model, self.tokens, self.decoding, self.rows = model, tokens, decoding, rows
        self.at_once = max(1, rows // 32)

    @classmethod
    def of(cls, source: GeneratorSource) -> TransformersGenerator:
        return cls(source.model, source.tokens, source.decoding)

    def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        """Return as `Generator.generate`; other completions of its batch may change the last bits of a log-prob."""
        at_a_time = self.rows

        def drawing(flat: list[Single]) -> Iterator[Generation]:
            for first in range(0, len(flat), at_a_time):
                yield from self._batch(flat[first : first + at_a_time])

        with evaluating(self.model), _without_own_defaults(self.model):
            return one_by_one(requests, drawing)

    @torch.no_grad()
    def _batch(self, rows: Sequence[Single]) -> list[Generation]:
        device, pad = next(self.model.parameters()).device, self.tokens.pad_id
        prompts = [torch.tensor(prompt) for prompt, _ in rows]
        left = partial(pad_sequence, batch_first=True, padding_side="left")
        ids = left(prompts, padding_value=pad).to(device)
        seen, width = left([torch.ones_like(prompt) for prompt in prompts]).to(device), ids.shape[1]
        choice = SeededChoice([seed for _, seed in rows], self.decoding, width, device)
        ends = list(self.tokens.eos_ids)
        settings = GenerationConfig(
            do_sample=False, max_new_tokens=self.decoding.max_new_tokens, eos_token_id=ends, pad_token_id=pad
        )
        out = self.model.generate(  # type: ignore[operator]
            ids, attention_mask=seen, generation_config=settings, logits_processor=LogitsProcessorList([choice])
        )
        return generations(self.tokens, _rollout(out[:, width:], choice, ends))


@contextmanager
def _without_own_defaults(model: PreTrainedModel) -> Iterator[None]:
    """Make `generate` ignore penalties, top-k and other settings from the files of the model while the block runs."""
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


def _rollout(new: Tensor, choice: SeededChoice, ends: Sequence[int]) -> Rollout:
    """Return the output of `generate` after the prompts, (B, T), as a rollout."""
    hit = torch.isin(new, torch.tensor(ends, device=new.device))
    finished = hit.any(1)
    lengths = torch.where(finished, hit.int().argmax(1) + 1, new.shape[1])
    mask = torch.arange(new.shape[1], device=new.device)[None, :] < lengths[:, None]
    logps, entropies = (torch.stack(rows, 1)[:, : new.shape[1]] for rows in (choice.logps, choice.entropies))
    return Rollout(new, mask, logps, entropies, finished)
