"""What the tests of effects share."""

from __future__ import annotations

import warnings

import torch

from lab.theory.effect_map import TERMS
from lab.theory.tree import TokenTree
from sage_rlvr.core import (
    Anchor,
)
from sage_rlvr.errors import ConfigError

TREE = TokenTree([(0,), (1, 0), (1, 1), (2, 0, 0), (2, 0, 1), (2, 1), (2, 2)])
SMALL = TokenTree([(0,), (1, 0), (1, 1)])


# completions, the policy and a reference that has little to do with it; entropies of the policy's states differ
WHERE = (
    TREE,
    torch.tensor([[0.2, 0.0, 0.6], [0.8, -0.6, 0.0], [0.5, -0.3, 0.1], [-1.1, 0.7, 0.0]], dtype=torch.float64),
    torch.tensor([[-0.3, 0.6, 0.2], [0.1, 0.5, 0.0], [-0.6, 0.4, 0.9], [0.8, -0.3, 0.0]], dtype=torch.float64),
)
HERE = (
    SMALL,
    torch.tensor([[-0.2, 0.5], [1.5, -0.6]], dtype=torch.float64),
    torch.tensor([[0.5, -0.4], [-0.3, 0.6]], dtype=torch.float64),
)
COMBINATIONS = [(*term, placement) for term in TERMS for placement in ("loss", "reward")]


def arguments_of(guide, estimator, named, placement) -> dict:
    return {"beta": 0.5, "guide": guide, "estimator": estimator, "divergence": named, "placement": placement}


def admitted(arguments: dict) -> Anchor | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Anchor(**arguments)
        except ConfigError:
            return None


def gap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())
