"""Given completions, for SFT and preferences: their tokens, and their layout for `models/scoring.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Text:
    """A completion of a problem: the prompt's tokens, its own, and which of these are learned (None: all).

    In a stored episode only the tokens that the policy sampled are learned; an environment's are read.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    own: tuple[bool, ...] | None = None


def learned_tokens(text: Text) -> int:
    """Return how many of its tokens are learned."""
    return len(text.tokens) if text.own is None else sum(text.own)


class Laid(NamedTuple):
    """N texts in the layout of `score`.

    prompts        token lists
    tokens, mask   (N, T)
    owners         (N,), the prompt of each text
    own            (N, T), the learned tokens
    """

    prompts: list[tuple[int, ...]]
    tokens: Tensor
    mask: Tensor
    owners: Tensor
    own: Tensor


def laid_out(texts: Sequence[Text], device: torch.device | str = "cpu") -> Laid:
    """Return the texts, each with its prompt; the engine computes equal prompts once."""
    tokens = pad_sequence([torch.tensor(text.tokens) for text in texts], batch_first=True)
    lengths = torch.tensor([len(text.tokens) for text in texts])
    mask = torch.arange(tokens.shape[1])[None, :] < lengths[:, None]
    marks = [torch.tensor([True] * len(text.tokens) if text.own is None else text.own) for text in texts]
    own = pad_sequence(marks, batch_first=True)
    parts = (part.to(device) for part in (tokens, mask, torch.arange(len(texts)), own))
    return Laid([text.prompt for text in texts], *parts)
