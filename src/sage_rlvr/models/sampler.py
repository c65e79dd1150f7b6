"""Sampling groups of completions from any causal LM of transformers: each prompt is run once for its group.

`sample` runs the prompts (`prefill`), then in turns draws a token for each completion (`draw`) and computes the next logits
(`Decoder` or `_ModelDecoder`). A Llama-shaped model goes through the engine (`models/llama`). Its savings against `generate` on
repeated prompts, none of which changes the distribution:

1. A common prefix of prompts runs once, and a prompt's keys and values are stored once for its group.
2. The completion's keys and values are in buffers allocated once, not in a tensor concatenated every step.
3. Completions that have ended leave the batch.
4. A token of a large vocabulary is drawn in two levels, its block first (`draw`).

Any other model takes the stock path, its own forward: it repeats the prompt's cache, and samples prompts of one length at a time,
because padding would displace real tokens in a cache with a window. Letters of shapes are those of `llama/__init__.py`.

Random numbers are an argument: the completion with the number r (`row_ids`) uses the uniform number
`key.uniform64(step, "sample", r, t)` at position t, so it depends neither on its neighbors nor on the number of completions in a
call (up to float rounding).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from sage_rlvr.core.keys import Key, widest_float
from sage_rlvr.errors import DataError
from sage_rlvr.models.llama.attention import attend, grids_of
from sage_rlvr.models.llama.decoder import Decoder, Folded, Plain, weights_of
from sage_rlvr.models.llama.forward import Activations, Trace, run
from sage_rlvr.models.llama.layout import Layout
from sage_rlvr.models.llama.net import Net, Versions, supports, versions_of
from sage_rlvr.models.llama.pieces import unit
from sage_rlvr.models.lm_head import KEPT_LOGITS, LOWEST, pieces

Cut = Callable[[Tensor], Tensor]
"""Truncates a distribution: log-probs (B, V) -> those of the truncated one, -inf for a removed token."""

ONE_LEVEL, BLOCK = 4096, 128
"""The largest vocabulary that a draw sums at once; tokens of a block of a larger one."""


@dataclass(frozen=True)
class Rollout:
    """B = P * G completions of one sampling call, also called its rows, prompt-major (row = prompt * group_size + member).

    `sample` and `sample_episodes` make it; training, rewards and generators read it.

    tokens     (B, T) long, padded with `pad_id`
    mask       (B, T) bool, the end token counted
    logps      (B, T) float32, log-probs of the tokens under the temperature-scaled sampler
    entropies  (B, T) float32, nats, of the same distribution; None if not requested
    finished   (B,) bool, False if the completion was cut off at `max_new_tokens`
    own        (B, T) bool: of episodes, which tokens the policy sampled, the rest being an environment's; None = all that exist
    trace      the engine's activations, for an update without a forward pass; None if not requested
    """

    tokens: Tensor
    mask: Tensor
    logps: Tensor
    entropies: Tensor | None
    finished: Tensor
    own: Tensor | None = None
    trace: Trace | None = None

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of each completion, an environment's included, (B,)."""
        return self.mask.sum(1)

    @property
    def drawn(self) -> Tensor:
        """Tokens that the policy sampled, (B, T) bool: those that a loss, a guide and a budget count."""
        return self.mask if self.own is None else self.mask & self.own

    def rows(self, index: Tensor) -> Rollout:
        """Return these completions (at least one), in this order, as wide as the longest of them, without the trace."""
        width = int(self.lengths[index].max())
        entropies = None if self.entropies is None else self.entropies[index, :width]
        parts = (self.tokens[index, :width], self.mask[index, :width], self.logps[index, :width])
        own = None if self.own is None else self.own[index, :width]
        return Rollout(*parts, entropies, self.finished[index], own)


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    group_size: int,
    max_new_tokens: int,
    eos_id: int | Sequence[int],
    pad_id: int,
    key: Key,
    step: int = 0,
    temperature: float = 1.0,
    row_ids: Tensor | None = None,
    entropies: bool = True,
    cut: Cut | None = None,
    ready: Prefill | None = None,
    limits: Tensor | None = None,
    trace: bool = False,
    lender: Lender | None = None,
) -> Rollout:
    """Sample `group_size` completions of each prompt, nothing truncated unless `cut` is given.

    Raises `DataError` on an empty prompt, without an end token, and for a `ready` or a `lender` that does not fit.

    Args:
        model: the policy.
        prompts: P token lists of any lengths.
        group_size: completions per prompt.
        max_new_tokens: tokens of each at most.
        eos_id: the token that ends a completion, or several of them.
        pad_id: fills the rows after their end.
        key: source of the random numbers.
        step: number of the training step, part of the random numbers' address as are `row_ids`.
        temperature: > 0, divides the logits.
        row_ids: (P * group_size,), the completions' numbers for the random streams (default 0, 1, 2, ...).
        entropies: False saves their computation.
        cut: truncates the scaled distribution (top-k, top-p, min-p: see `models/generation.py`); log-probs and entropies are then
            those of the truncated one.
        ready: `prefill(model, prompts)`, to sample more than once from one run of the prompts; the weights must not have changed.
        limits: (P * group_size,), tokens of each completion at most, from 1 to `max_new_tokens`; None = all alike.
        trace: True keeps `Rollout.trace` if the engine supports the model.
        lender: another policy, from which tokens are sampled at some states.
    """
    ends = (eos_id,) if isinstance(eos_id, int) else tuple(eos_id)
    _check(prompts, ends, group_size, max_new_tokens, temperature)
    device = next(model.parameters()).device
    count = len(prompts) * group_size
    row_ids = torch.arange(count) if row_ids is None else row_ids.cpu()
    if ready is not None:
        if trace:
            raise DataError("trace=True records the prompts too, so that it cannot start from `ready`; leave one of the two out")
        _check_ready(model, ready, len(prompts))
    if lender is not None:
        _check_lender(lender, len(prompts), trace)
    part = partial(  # the same call for some of the prompts or completions
        sample,
        model,
        max_new_tokens=max_new_tokens,
        eos_id=ends,
        pad_id=pad_id,
        key=key,
        step=step,
        temperature=temperature,
        entropies=entropies,
        cut=cut,
    )
    grid = row_ids.reshape(-1, group_size)
    by_length = ready if isinstance(ready, PrefillByLength) else None
    if by_length or (ready is None and len({len(p) for p in prompts}) > 1 and not supports(model)):
        return _length_by_length(partial(part, group_size=group_size), prompts, grid, pad_id, limits, by_length)
    pieces_of_rollout = pieces_of(model, len(prompts), group_size, max_new_tokens)
    if len(pieces_of_rollout) > 1 and ready is None and lender is None and not trace:
        most = None if limits is None else limits.reshape(grid.shape)
        sampled = [
            part(
                prompts[some],
                group_size=own.stop - own.start,
                row_ids=grid[some, own].flatten(),
                limits=None if most is None else most[some, own].flatten(),
            )
            for some, own in pieces_of_rollout
        ]
        return joined(sampled, pad_id)
    # float64 if the device has it: a float32 uniform has 24 bits, and tokens rarer than its steps could not be drawn
    uniforms = key.uniform64(step, "sample", row_ids, torch.arange(max_new_tokens)).to(device, widest_float(device))
    tokens = torch.full((count, max_new_tokens), pad_id, dtype=torch.long, device=device)
    logps = torch.zeros(count, max_new_tokens, device=device)
    entropy_rows = torch.zeros(count, max_new_tokens, device=device) if entropies else None
    lengths = torch.full((count,), max_new_tokens, dtype=torch.long, device=device)
    finished = torch.zeros(count, dtype=torch.bool, device=device)
    limits = None if limits is None else limits.to(device)
    with evaluating(model):
        tracing = _Tracing(model, prompts, group_size * (max_new_tokens - 1)) if trace and supports(model) else None
        prefilled = ready or prefill(model, prompts, None if tracing is None else tracing.weights)
        decoder = _decoder(model, prefilled, group_size, max_new_tokens, again=ready is not None)
        alive = torch.arange(count, device=device)  # rows that have not ended; `at` picks them out of all rows
        logits = prefilled.logits.repeat_interleave(group_size, 0)
        if lender is not None:
            other = _decoder(lender.model, lender.ready, group_size, max_new_tokens, again=True)
            decoder = _Borrower(decoder, other, lender, count)
            logits = decoder.chosen(logits, lender.ready.logits.repeat_interleave(group_size, 0))
        for t in range(max_new_tokens):
            at = (slice(None) if alive.shape[0] == count else alive, t)
            drawn, logp, entropy = draw(logits, uniforms[at], temperature, entropies, cut)
            tokens[at], logps[at] = drawn, logp
            if entropy_rows is not None:
                entropy_rows[at] = entropy
            ended = reduce(torch.logical_or, [drawn == end for end in ends])
            over = ended if limits is None else ended | (limits[alive] == t + 1)
            if bool(over.any()):
                going = torch.nonzero(~over).squeeze(1)
                lengths[alive[over]], finished[alive[ended]] = t + 1, True
                if len(going) == 0:
                    break
                drawn, alive = drawn[going], alive[going]
                decoder.select(going)  # before advance: the cache must have the rows that `drawn` has
            if t + 1 < max_new_tokens:
                positions = decoder.positions
                logits = decoder.advance(drawn)
                if tracing is not None:
                    tracing.add(drawn, positions, logits)
    mask = torch.arange(max_new_tokens, device=device)[None, :] < lengths[:, None]
    width = int(lengths.max())
    kept_entropies = None if entropy_rows is None else entropy_rows[:, :width]
    traced = None if tracing is None else tracing.trace(prefilled)
    return Rollout(tokens[:, :width], mask[:, :width], logps[:, :width], kept_entropies, finished, None, traced)


def numbers_per_token(config: Any) -> int:
    """Return how many numbers the keys and values of one token have in all layers, from a text model's config."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads) * width)


CACHE = 1 << 32
"""Bytes of keys and values of completions up to which a rollout is sampled at once, however small the model is."""


def cache_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of keys and values that sampling holds at most at a time: those of the weights, or `CACHE` if it is more."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return max(CACHE, weights)


def pieces_of(model: PreTrainedModel, prompts: int, group_size: int, max_new_tokens: int) -> list[tuple[slice, slice]]:
    """Return (prompts, completions of each) of the pieces in which a rollout is sampled, in the order of its rows.

    A piece's completions at full length stay below `cache_bytes`, but for a single one. The pieces depend on sizes alone, so that
    a run and its resume have the same; the random numbers are the rows', whatever their piece.
    """
    weight = next(model.parameters())
    each = numbers_per_token(model.config.get_text_config()) * weight.element_size() * max_new_tokens
    fit = max(1, cache_bytes(model) // each)
    if (per := fit // group_size) >= 1:
        return [(slice(i, min(i + per, prompts)), slice(0, group_size)) for i in range(0, prompts, per)]
    parts = [slice(i, min(i + fit, group_size)) for i in range(0, group_size, fit)]
    return [(slice(n, n + 1), part) for n in range(prompts) for part in parts]


class _Tracing:
    """Record of a sampler in the making: weights that fill it, tokens and positions, and the logits that are sampled from.

    more: the maximum number of completion tokens of each prompt that are computed, G * (max_new_tokens - 1). Logits are (P, V) of
    the prompts, which `trace` writes, and (B, V) of each step.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], more: int) -> None:
        self.weights = Plain(Net(model))
        nodes, width = sum(map(len, prompts)) + len(prompts) * more, len(self.weights.net.lm_head)
        self.weights.record = Activations(self.weights.net, nodes)
        self.ids: list[Tensor] = []
        self.positions: list[Tensor] = []
        outputs = len(prompts) * (1 + more)
        self.logits = self.weights.net.embedding.new_empty(outputs, width) if outputs * width <= KEPT_LOGITS else None
        self.filled = len(prompts)  # rows of `logits`

    def add(self, tokens: Tensor, positions: Tensor, logits: Tensor) -> None:
        """Record the tokens (B,) of a decode step, their positions, and the logits (B, V) of the next ones."""
        self.ids.append(tokens)
        self.positions.append(positions)
        if self.logits is not None:
            self.logits[self.filled : self.filled + len(logits)] = logits
        self.filled += len(logits)

    def trace(self, ready: Prefill) -> Trace:
        """Return the complete trace, after the last token is sampled."""
        assert isinstance(ready, EnginePrefill) and self.weights.record is not None
        record, self.weights.record = self.weights.record, None
        completion_nodes = self.filled - len(ready.logits)
        filled, versions = record.filled(len(ready.layout.ids) + completion_nodes), self.weights.versions
        ids, positions = torch.cat([ready.layout.ids, *self.ids]), torch.cat([ready.layout.positions, *self.positions])
        one_state_each = len(ready.layout.outputs) == len(ready.logits)  # else two prompts are equal and have one last node
        if self.logits is None or not one_state_each:
            return Trace(filled, None, ids, positions, versions)
        logits = self.logits[: self.filled]
        logits[ready.layout.of_token] = ready.logits
        return Trace(filled, logits, ids, positions, versions)


def _length_by_length(
    sample_some: Callable[..., Rollout],
    prompts: Sequence[Sequence[int]],
    row_ids: Tensor,
    pad_id: int,
    limits: Tensor | None = None,
    ready: PrefillByLength | None = None,
) -> Rollout:
    """Return `sample_some(prompts, row_ids=..., limits=..., ready=...)` for the prompts of each length, in the original order.

    row_ids: (P, G). limits: (P * G,). ready: a prefill for each length.
    """
    groups = _alike_in_length(prompts) if ready is None else ready.groups
    most = None if limits is None else limits.cpu().reshape(row_ids.shape)
    parts = [
        sample_some(
            [prompts[i] for i in group.tolist()],
            row_ids=row_ids[group].flatten(),
            limits=None if most is None else most[group].flatten(),
            ready=None if ready is None else ready.parts[number],
        )
        for number, group in enumerate(groups)
    ]
    places = torch.arange(row_ids.numel()).reshape(row_ids.shape)
    order = torch.cat([places[g].flatten() for g in groups]).argsort().to(parts[0].tokens.device)
    return joined(parts, pad_id).rows(order)


def _alike_in_length(prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the numbers of the prompts of each length, shortest first."""
    lengths = torch.tensor([len(p) for p in prompts])
    return [torch.nonzero(lengths == n).squeeze(1) for n in lengths.unique()]


def joined(parts: Sequence[Rollout], pad_id: int) -> Rollout:
    """Return the completions of several rollouts concatenated, padded to the widest; with entropies if every part has them."""
    width = max(part.tokens.shape[1] for part in parts)

    def column(values: Sequence[Tensor], fill: int = 0) -> Tensor:
        return torch.cat([F.pad(value, (0, width - value.shape[1]), value=fill) for value in values])

    entropies = [part.entropies for part in parts if part.entropies is not None]
    episodes = any(part.own is not None for part in parts)
    return Rollout(
        column([part.tokens for part in parts], pad_id),
        column([part.mask for part in parts]),
        column([part.logps for part in parts]),
        column(entropies) if len(entropies) == len(parts) else None,
        torch.cat([part.finished for part in parts]),
        column([part.drawn for part in parts]) if episodes else None,  # of a part without `own` the policy drew every token
    )


def draw(
    logits: Tensor, uniforms: Tensor, temperature: float, entropies: bool = True, cut: Cut | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sample by inverse CDF: logits (B, V), uniforms (B,) in (0, 1) -> tokens (B,), log-probs (B,), entropies (B,) or None.

    Sums are float64 if the device has it: near 1 a float32 sum moves in steps of 6e-8, above the probability of most
    tokens of a vocabulary of 100,000, which could then never be sampled.

    cut: truncates the distribution; a token that it removes is never sampled.
    """
    if cut is None and logits.shape[1] > ONE_LEVEL:
        return _draw_in_two_levels(logits, uniforms, temperature, entropies)
    logits = logits.float() if temperature == 1 else logits.float() / temperature
    log_probs = torch.log_softmax(logits, dim=-1)
    if cut is not None:
        log_probs = cut(log_probs)
    probs = log_probs.exp()
    cumulative = probs.cumsum(-1, dtype=widest_float(probs.device))
    # The last sum may fall short of 1 by rounding; scaling the threshold by it keeps every draw inside the vocabulary.
    threshold = (uniforms * cumulative[:, -1])[:, None]
    chosen = torch.searchsorted(cumulative, threshold).clamp_max_(logits.shape[-1] - 1)
    drawn = log_probs.gather(1, chosen).squeeze(1)
    entropy = -torch.linalg.vecdot(probs, log_probs.clamp_min(LOWEST)) if entropies else None  # a cut leaves -inf
    return chosen.squeeze(1), drawn, entropy


def _draw_in_two_levels(
    logits: Tensor, uniforms: Tensor, temperature: float, entropies: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sample as `draw` does without float64 sums over the full vocabulary: over blocks of `BLOCK` tokens, then within one block.

    log p = (logit / temperature - top) - log_sum, as in `lm_head.measured`; sums (B, blocks) are of exp(logit / temperature - top).
    """
    count, vocabulary = logits.shape
    widest = widest_float(logits.device)
    whole = vocabulary // BLOCK * BLOCK  # what is left over is a block of its own
    blocks = -(-vocabulary // BLOCK)
    top, log_sum = (torch.empty(count, device=logits.device) for _ in range(2))
    sums = torch.empty(count, blocks, device=logits.device)
    entropy = torch.empty_like(top) if entropies else None
    for part in pieces(logits):
        wide = logits[part].float()
        wide = wide / temperature if temperature != 1 else wide
        highest = wide.amax(1, keepdim=True)
        wide = wide - highest
        powers = wide.exp()
        sums[part, : whole // BLOCK] = powers[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1)
        if whole < vocabulary:
            sums[part, -1] = powers[:, whole:].sum(-1)
        total = sums[part].sum(-1)
        top[part], log_sum[part] = highest[:, 0], total.log()
        if entropy is not None:
            entropy[part] = log_sum[part] - torch.linalg.vecdot(powers, wide.clamp_min_(LOWEST)) / total
    cumulative = sums.cumsum(-1, dtype=widest)
    threshold = uniforms * cumulative[:, -1]
    block = torch.searchsorted(cumulative, threshold[:, None]).squeeze(1).clamp_max_(blocks - 1)
    here = torch.arange(count, device=logits.device)
    before = torch.where(block == 0, 0.0, cumulative[here, block - 1])
    inside_ids = block[:, None] * BLOCK + torch.arange(BLOCK, device=logits.device)
    inside = logits.gather(1, inside_ids.clamp_max(vocabulary - 1)).float() / temperature - top[:, None]
    shares = inside.exp().masked_fill_(inside_ids >= vocabulary, 0.0).cumsum(-1, dtype=widest)
    # The two levels round differently: the rest of the threshold is scaled by what the block sums to at this level.
    rest = (threshold - before) / (cumulative[here, block] - before) * shares[:, -1]
    at = torch.searchsorted(shares, rest[:, None]).squeeze(1).clamp_max_(BLOCK - 1)
    # NaN logits make the search end after the last token; `generations` and training raise for such log-probs.
    return (block * BLOCK + at).clamp_max_(vocabulary - 1), inside[here, at] - log_sum, entropy


def _check(
    prompts: Sequence[Sequence[int]], ends: tuple[int, ...], group_size: int, max_new_tokens: int, temperature: float
) -> None:
    if not prompts or any(len(p) == 0 for p in prompts):
        where = next((i for i, p in enumerate(prompts) if len(p) == 0), "all")
        raise DataError(f"prompt {where} has no tokens; add at least one token to each prompt (for example BOS)")
    if not ends:
        raise DataError("eos_id is empty; pass the token id that ends a completion, or several ids")
    if group_size < 1 or max_new_tokens < 1:
        raise DataError(f"group_size {group_size} and max_new_tokens {max_new_tokens} must be at least 1")
    if not temperature > 0:
        raise DataError(f"temperature {temperature} must be above 0; for greedy decoding use a small value, e.g. 0.01")


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Disable the model's dropout while the block runs; each of its modules then has its own mode again."""
    training = [part for part in model.modules() if part.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _decoder(model: PreTrainedModel, ready: Prefill, group_size: int, max_new_tokens: int, again: bool) -> Any:
    """Return the engine's decoder for a Llama-shaped model, else the model with the cache of its prompts repeated.

    again: True if `ready` will be used again, so that its cache must not change.
    """
    if isinstance(ready, EnginePrefill):
        return Decoder(ready.weights, ready.keys_values, ready.layout, ready.lengths, group_size, max_new_tokens)
    positions = ready.lengths.repeat_interleave(group_size)
    cache = copy.deepcopy(ready.cache) if again else ready.cache
    cache.batch_repeat_interleave(group_size)
    return _ModelDecoder(model, positions, cache.batch_select_indices, **cached(model, cache))


@cache
def _name_of_cache(kind: type[PreTrainedModel]) -> str:
    """Return the keyword for a cache.

    transformers 5.24 renamed it, and warns of the old name; before, `cache` would be an unknown keyword.
    """
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


def cached(model: PreTrainedModel, cache: Any) -> dict[str, Any]:
    """Return a cache as the keyword argument of this model's forward."""
    return {_name_of_cache(type(model)): cache}


@cache
def _keeps_logits(kind: type[PreTrainedModel]) -> bool:
    """Return True if the forward computes logits of chosen positions only (an adapter's `*args, **kwargs` does not show it)."""
    return "logits_to_keep" in inspect.signature(kind.forward).parameters


def logits_at(model: PreTrainedModel, columns: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:
    """Return (logits (B, C, V), places (N,)) of one forward on `inputs`: `logits[:, places[i]]` are those at column `columns[i]`.

    C is the number of different columns if the model's forward can leave the rest out, else all of them: logits of
    positions that nobody reads are the main use of memory with a large vocabulary.
    """
    if not _keeps_logits(type(model)):
        return model(**inputs).logits, columns
    kept, places = columns.unique(return_inverse=True)
    return model(logits_to_keep=kept, **inputs).logits, places


def pad_right(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return lists of different lengths as (ids (P, S), lengths (P,)). Right padding changes nothing under a causal mask."""
    lengths = torch.tensor([len(r) for r in rows])
    ids = pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True)
    return ids.to(device), lengths.to(device)


@dataclass(frozen=True)
class EnginePrefill:
    """P prompts after one run through the engine. `prefill` makes it; `sample` reads it.

    keys_values: (N, 2 * K * D) of the nodes of `layout` per layer, keys first and turned. logits (P, V) of the first new token.
    lengths (P,). weights: those that decode, with their versions; they serve one decoder at a time.
    """

    keys_values: list[Tensor]
    layout: Layout
    logits: Tensor
    lengths: Tensor
    weights: Folded | Plain


@dataclass(frozen=True)
class StockPrefill:
    """P prompts of one length after one run of the model's own forward. `prefill` makes it; `sample` reads it.

    cache: (P, K, S, D) per layer. logits: (P, V). lengths: (P,). versions: of the model's parameters.
    """

    cache: DynamicCache
    logits: Tensor
    lengths: Tensor
    versions: Versions


@dataclass(frozen=True)
class PrefillByLength:
    """Prompts of several lengths on the stock path. `prefill` makes it; `sample` reads it.

    groups: the numbers of the prompts of each length. parts: a prefill of each group.
    """

    groups: list[Tensor]
    parts: list[StockPrefill]


Prefill = EnginePrefill | StockPrefill | PrefillByLength


def _check_ready(model: PreTrainedModel, ready: Prefill, prompts: int) -> None:
    """Raise DataError for a prefill of other prompts, or of weights that have changed: old keys do not belong to new weights."""
    parts = ready.parts if isinstance(ready, PrefillByLength) else [ready]
    if (count := sum(len(part.lengths) for part in parts)) != prompts:
        raise DataError(f"ready is of {count} prompts, and prompts are {prompts}; pass the prompts that `prefill` got")
    for part in parts:
        if isinstance(part, EnginePrefill):
            fresh = part.weights.versions == part.weights.net.versions
        else:
            fresh = part.versions == versions_of(model.parameters())
        if not fresh:
            raise DataError("the model's weights changed after `prefill`; call prefill(model, prompts) again, then sample from it")


@torch.no_grad()
def decode_weights(model: PreTrainedModel) -> Folded | Plain | None:
    """Return the current weights in the engine's form for decoding; None for a model of the stock path."""
    return weights_of(model) if supports(model) else None


@torch.no_grad()
def prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]], weights: Folded | Plain | None = None) -> Prefill:
    """Run the prompts once; `sample(..., ready=...)` samples from it any number of times. The model must be in eval mode.

    `weights`: `decode_weights(model)`, to prepare them once for many prompts; the model must not have changed since.
    """
    if weights is not None and weights.versions != weights.net.versions:
        raise DataError("the model's weights changed after `decode_weights`; call decode_weights(model) again")
    weights = decode_weights(model) if weights is None else weights
    if weights is not None:
        return _engine_prefill(weights, prompts, next(model.parameters()).device)
    groups = _alike_in_length(prompts)
    if len(groups) == 1:
        return _stock_prefill(model, prompts)
    return PrefillByLength(groups, [_stock_prefill(model, [prompts[i] for i in group.tolist()]) for group in groups])


def _stock_prefill(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> StockPrefill:
    """Run prompts of one length."""
    ids, lengths = pad_right(prompts, next(model.parameters()).device)
    cache = DynamicCache(config=model.config)
    logits, last = logits_at(model, lengths - 1, input_ids=ids, **cached(model, cache), use_cache=True)
    versions = versions_of(model.parameters())
    return StockPrefill(cache, logits[torch.arange(len(prompts), device=ids.device), last], lengths, versions)


def _engine_prefill(weights: Folded | Plain, prompts: Sequence[Sequence[int]], device: torch.device) -> EnginePrefill:
    """Run the prompts; the forward fills the record of the weights, if they have one."""
    net, layout = weights.net, Layout.of_prompts(prompts, device)
    q_width, grids = net.query_heads * net.head_dim, grids_of(net, layout)
    keys_values: list[Tensor] = []

    def attention(number: int, qkv: Tensor) -> Tensor:
        keys_values.append(qkv[:, q_width:].clone())
        return attend(net, qkv, grids)

    last = run(net, layout.ids, layout.positions, attention, weights.record)
    states = unit(last.index_select(0, layout.outputs), net.eps, net.final_norm)
    logits = F.linear(states, net.lm_head).index_select(0, layout.of_token)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    return EnginePrefill(keys_values, layout, logits, lengths, weights)


@dataclass(frozen=True)
class Lender:
    """Another policy, from which the next token is sampled at some states. `BorrowingGenerator` makes it; `sample` reads it.

    ready: its `prefill` of the same prompts. spelled: token id -> text. at: text of a completion so far -> True if the next token
    is sampled from this policy.
    """

    model: PreTrainedModel
    ready: Prefill
    spelled: Callable[[int], str]
    at: Callable[[str], bool]


def _check_lender(lender: Lender, prompts: int, trace: bool) -> None:
    """Raise DataError for options that `sample` cannot combine with a lender."""
    if trace:
        raise DataError("trace=True with a lender: a trace is of one policy; leave one of the two out")
    if isinstance(lender.ready, PrefillByLength):
        raise DataError("lender: its model is sampled one length of prompts at a time; pass prompts of one length")
    _check_ready(lender.model, lender.ready, prompts)


class _Borrower:
    """A decoder that steps a policy and its lender on the same tokens. texts: of each of `count` completions so far."""

    def __init__(self, own: Any, other: Any, lender: Lender, count: int) -> None:
        self.own, self.other, self.lender, self.texts = own, other, lender, [""] * count

    @property
    def positions(self) -> Tensor:
        """Position of the next token, (B,)."""
        positions: Tensor = self.own.positions
        return positions

    def chosen(self, own: Tensor, other: Tensor) -> Tensor:
        """Return for each completion the logits that its next token is sampled from: own or other, (B, V) each."""
        lent = torch.tensor([self.lender.at(text) for text in self.texts], device=own.device)
        return torch.where(lent[:, None], other, own)

    def advance(self, tokens: Tensor) -> Tensor:
        """tokens (B,) -> logits (B, V) of the next token."""
        self.texts = [text + self.lender.spelled(token) for text, token in zip(self.texts, tokens.tolist(), strict=True)]
        return self.chosen(self.own.advance(tokens), self.other.advance(tokens))

    def select(self, going: Tensor) -> None:
        """Keep only these completions."""
        self.texts = [self.texts[number] for number in going.tolist()]
        self.own.select(going)
        self.other.select(going)


class _ModelDecoder:
    """Decoder of one token of each completion per step, by the model's own forward. positions (B,) of the next token.

    inputs: the cache, that of the prompts (all of one length) repeated for their groups; select_in_cache: keeps some completions
    of it.
    """

    def __init__(
        self, model: PreTrainedModel, positions: Tensor, select_in_cache: Callable[[Tensor], None], **inputs: Any
    ) -> None:
        self.model, self.positions, self.select_in_cache, self.inputs = model, positions, select_in_cache, inputs

    def advance(self, tokens: Tensor) -> Tensor:
        """tokens (B,) -> logits (B, V) of the next token."""
        at = self.positions[:, None]
        out = self.model(input_ids=tokens[:, None], position_ids=at, use_cache=True, **self.inputs)
        self.positions = self.positions + 1
        return out.logits[:, -1]

    def select(self, going: Tensor) -> None:
        """Keep only these completions (ascending numbers among the present ones)."""
        self.positions = self.positions[going]
        self.select_in_cache(going)
