"""All completions of a prompt under a language model, with their probabilities, except for a remainder of known mass.

The prefixes of completions form a tree. Every prefix whose probability is above a floor is expanded by the full
vocabulary, level after level; a completion ends with an end token, at the token limit, or is dropped once its prefix is
at or below the floor. So the list is that of the model with one more rule for stopping: no completion is the beginning of
another, their probabilities sum to 1, and an expectation over the list misses only what follows after a drop. The mass of
the dropped completions is `remainder`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from sage_rlvr.errors import DataError
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.sampler import cached
from sage_rlvr.models.scoring import completion_logits

MOST_STATES = 20_000


@dataclass(frozen=True, eq=False)
class Enumerated:
    """B completions of one prompt over S expanded prefixes, the states; state 0 is the prompt only.

    `enumerate_completions` makes it; exact evaluation and the theory read it.

    tokens     (B, T) long
    mask       (B, T) bool, the end token counted
    states     (B, T) long, the state in which each token is chosen
    probs      (B,) float64, which sum to 1
    finished   (B,) bool, ended by an end token
    dropped    (B,) bool, cut off because the prefix fell to the floor (the rest of the unfinished ones met the token limit)
    remainder  the total probability of the dropped ones
    """

    prompt: tuple[int, ...]
    tokens: Tensor
    mask: Tensor
    states: Tensor
    probs: Tensor
    finished: Tensor
    dropped: Tensor
    remainder: float

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of each completion, (B,)."""
        return self.mask.sum(1)

    @property
    def last_states(self) -> Tensor:
        """State in which each completion's last token is chosen, (B,)."""
        return self.states.gather(1, self.lengths[:, None] - 1).squeeze(1)

    @property
    def state_count(self) -> int:
        """Number of states S."""
        return int(self.states.max()) + 1

    def texts(self, tokens: Tokens) -> list[str]:
        """Return the finished completions in their order, as text without the end token."""
        rows = zip(self.tokens[self.finished].tolist(), self.lengths[self.finished].tolist(), strict=True)
        ended = [row[:n] for row, n in rows]
        return tokens.decode(ended, [True] * len(ended))

    def logits(self, model: PreTrainedModel) -> Tensor:
        """Return (S, V) logits of the next token in every state, in the graph of `model` if gradients are on.

        One forward pass over the longest prefixes also gives those of the shorter ones.
        """
        rows = self._longest()
        mask = self.mask[rows]
        along = self.states[rows][mask]
        first = torch.empty(self.state_count, dtype=torch.long, device=along.device)
        # Written from the last place to the first, so that the first stays where several rows pass a state.
        first[along.flip(0)] = torch.arange(len(along), device=along.device).flip(0)
        owners = torch.zeros(len(rows), dtype=torch.long, device=along.device)
        return completion_logits(model, [self.prompt], self.tokens[rows], mask, owners, engine=False)[first]

    def _longest(self) -> Tensor:
        """Return a row through each state without successors; together they pass through every state."""
        last, passed = self.last_states, torch.zeros(self.state_count, dtype=torch.bool, device=self.states.device)
        inner = self.mask.clone()
        inner.scatter_(1, self.lengths[:, None] - 1, False)
        passed[self.states[inner]] = True
        chosen = torch.empty(self.state_count, dtype=torch.long, device=last.device)
        chosen[last] = torch.arange(len(last), device=last.device)
        leads_on = torch.ones_like(passed)
        leads_on[last] = passed[last]
        return chosen[~leads_on].sort().values


@torch.no_grad()
def enumerate_completions(
    model: PreTrainedModel,
    tokens: Tokens,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    *,
    floor: float = 1e-6,
    most_states: int = MOST_STATES,
) -> Enumerated:
    """Return every completion of `prompt_ids` whose proper prefixes are more probable than `floor`, at temperature 1.

    Raises DataError for an empty prompt, a limit below 1, a floor outside (0, 1), and if more than `most_states`
    prefixes are above the floor (a cache for a complete level of them is held at once).
    """
    _check(prompt_ids, max_new_tokens, floor)
    model.eval()
    cache, device = DynamicCache(config=model.config), next(model.parameters()).device

    def next_laws(ids: Tensor, **where: Tensor) -> Tensor:
        """Return log-probs (n, V) float64 of the next token after n rows; the cache follows the tree."""
        logits = model(input_ids=ids, **cached(model, cache), use_cache=True, **where).logits
        return torch.log_softmax(logits[:, -1].double(), -1)

    laws = next_laws(torch.tensor([list(prompt_ids)], device=device))
    ends = torch.zeros(laws.shape[1], dtype=torch.bool, device=device)
    ends[list(tokens.eos_ids)] = True
    prefixes, paths = (torch.zeros(1, width, dtype=torch.long, device=device) for width in (0, 1))
    chances = torch.zeros(1, dtype=torch.float64, device=device)
    parts: list[tuple[Tensor, ...]] = []
    count = 1
    for depth in range(max_new_tokens):
        reached = chances[:, None] + laws
        at_limit = depth + 1 == max_new_tokens
        going = (reached > math.log(floor)) & ~ends & (not at_limit)
        row, token = (~going & torch.isfinite(reached)).nonzero(as_tuple=True)
        done = ends[token]
        leaves = torch.cat([prefixes[row], token[:, None]], 1)
        parts.append((leaves, paths[row], reached[row, token].exp(), done, (~done) & (not at_limit)))
        row, token = going.nonzero(as_tuple=True)
        if len(row) == 0:
            break
        if count + len(row) > most_states:
            raise DataError(
                f"more than {most_states:,} prefixes of this prompt are above floor = {floor:g}; raise the floor (or "
                "the remainder), allow more states, or use a prompt on which the model is more certain (fewer "
                "numbers)."
            )
        cache.batch_select_indices(row)
        places = torch.full((len(row), 1), len(prompt_ids) + depth, device=device)
        laws, chances = next_laws(token[:, None], position_ids=places), reached[row, token]
        prefixes = torch.cat([prefixes[row], token[:, None]], 1)
        new = torch.arange(count, count + len(row), device=device)
        paths, count = torch.cat([paths[row], new[:, None]], 1), count + len(row)
    return _joined(tuple(prompt_ids), parts, tokens.pad_id)


def _check(prompt_ids: Sequence[int], max_new_tokens: int, floor: float) -> None:
    if len(prompt_ids) == 0:
        raise DataError("the prompt has no tokens, so nothing predicts its first token; add at least one (for example BOS)")
    if max_new_tokens < 1 or not 0 < floor < 1:
        raise DataError(f"max_new_tokens = {max_new_tokens}, floor = {floor!r}: set max_new_tokens >= 1, and a floor in (0, 1)")


def _joined(prompt: tuple[int, ...], parts: list[tuple[Tensor, ...]], pad_id: int) -> Enumerated:
    """Return the leaves of all levels, each (rows, states, probs, finished, dropped), padded to the longest."""
    rows, states, probs, finished, dropped = zip(*parts, strict=True)
    lengths = torch.cat([torch.full((len(part),), part.shape[1], device=part.device) for part in rows])
    mask = torch.arange(int(lengths.max()), device=lengths.device)[None, :] < lengths[:, None]

    def padded(columns: Sequence[Tensor], fill: int) -> Tensor:
        return torch.cat([F.pad(part, (0, mask.shape[1] - part.shape[1]), value=fill) for part in columns])

    law, ended, cut = torch.cat(probs), torch.cat(finished), torch.cat(dropped)
    return Enumerated(prompt, padded(rows, pad_id), mask, padded(states, 0), law, ended, cut, float(law[cut].sum()))


def enumerate_to(
    model: PreTrainedModel,
    tokens: Tokens,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    *,
    remainder: float = 1e-3,
    most_states: int = MOST_STATES,
) -> Enumerated:
    """Return `enumerate_completions` with the largest floor of 0.1, 0.03, 0.01, ... that leaves at most `remainder`.

    Raises DataError if `most_states` prefixes do not suffice for that.
    """
    try:
        for halves in range(2, 25):
            floor = 10.0 ** (-halves / 2)
            enumerated = enumerate_completions(model, tokens, prompt_ids, max_new_tokens, floor=floor, most_states=most_states)
            if enumerated.remainder <= remainder:
                return enumerated
    except DataError as error:
        raise DataError(f"a remainder of {remainder:g} is out of reach: {error}") from error
    raise DataError(f"a remainder of {remainder:g} is out of reach for a floor of 1e-12; use a larger remainder.")
