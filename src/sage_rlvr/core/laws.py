"""Next-token distributions of a rollout from final hidden states and the head, for some tokens at a time, never as one tensor.

For 3,000 tokens and a vocabulary of 50,000 log-probs are 600 MB, and a divergence keeps several such tensors for its backward.
`Laws` computes `NUMBERS` of them at a time, once in the forward and again in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

NUMBERS = 1 << 24
"""Maximum number of log-probs in memory at a time in one tensor: 64 MiB. A rollout with fewer keeps all of them."""


@dataclass(frozen=True, eq=False)
class Laws:
    """Distributions of the n counted tokens of a rollout, temperature-scaled.

    states (M, C)   final hidden states, in the graph if they are to be trained
    weight (V, C)   weight of the head
    rows (n,)       index of the state before each counted token, in the order of `mask.nonzero()`
    mask (B, T)     counted tokens
    """

    states: Float[Tensor, "M C"]
    weight: Float[Tensor, "V C"]
    rows: Int[Tensor, " n"]
    mask: Bool[Tensor, "B T"]
    temperature: float = 1.0

    def within(self, mask: Bool[Tensor, "B T"]) -> Laws:
        """Return the distributions of the tokens of a smaller mask."""
        return replace(self, rows=self.rows[mask[self.mask]], mask=mask)

    def at(self, part: slice) -> Float[Tensor, "m V"]:
        """Return float32 log-probs of some of the tokens."""
        logits = F.linear(self.states[self.rows[part]], self.weight).float()
        return torch.log_softmax(logits / self.temperature, -1)

    def detach(self) -> Laws:
        """Return the distributions out of the graph."""
        return replace(self, states=self.states.detach(), weight=self.weight.detach())

    @classmethod
    def cat(cls, parts: Sequence[Laws]) -> Laws:
        """Return the distributions of several parts of a rollout, concatenated."""
        starts = [sum(len(one.states) for one in parts[:i]) for i in range(len(parts))]
        rows = torch.cat([one.rows + start for one, start in zip(parts, starts, strict=True)])
        states, mask = torch.cat([one.states for one in parts]), torch.cat([one.mask for one in parts])
        return replace(parts[0], states=states, rows=rows, mask=mask)


def per_token(
    term: Callable[..., Float[Tensor, " n"]], mask: Bool[Tensor, "B T"], *laws: Laws | Float[Tensor, "B T V"]
) -> Float[Tensor, " n"]:
    """Return term(part, *log-probs (m, V)) -> (m,) at each token of the mask, computed in parts.

    part: a slice of these tokens.
    """
    dense = [law[mask] if isinstance(law, Tensor) else law.within(mask) for law in laws]
    width = next((len(law.weight) for law in dense if isinstance(law, Laws)), None)
    total = int(mask.sum())
    size = total if width is None else max(1, NUMBERS // width)

    def of(part: slice) -> Tensor:
        return term(part, *(law[part] if isinstance(law, Tensor) else law.at(part) for law in dense))

    if size >= total:
        return of(slice(0, total))
    parts = [slice(first, first + size) for first in range(0, total, size)]
    again: Callable[[slice], Tensor] = of
    if torch.is_grad_enabled():

        def again(part: slice) -> Tensor:
            values: Tensor = checkpoint(of, part, use_reentrant=False)
            return values

    return torch.cat([again(part) for part in parts])
