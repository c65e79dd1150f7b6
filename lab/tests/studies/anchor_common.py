"""What the tests of the lab on anchors share."""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel

from sage_rlvr.core.guides import Branch
from sage_rlvr.models.enumeration.completions import Enumerated
from sage_rlvr.tasks.countdown import Countdown

WORLD = Countdown({2: 1.0}, max_number=9, max_target=20)
BRANCH = Branch(ratio=1.0, threshold=2.55)  # entropies of the random policy lie between 2.2 and 2.9 nats


def disturbed(model: PreTrainedModel, seed: int, by: float) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return other


def rows_of(listed: Enumerated) -> list[tuple[int, ...]]:
    return [tuple(row[m].tolist()) for row, m in zip(listed.tokens, listed.mask, strict=True)]
