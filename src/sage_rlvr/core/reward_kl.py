"""The KL in the reward (placement='reward'): log pi_old - log pi_ref - log q as return-to-go, centered within the group."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.advantages import Advantage
from sage_rlvr.core.anchor import anchor_logps
from sage_rlvr.core.signals import Signals

PerToken = Float[Tensor, "B T"]


def return_to_go(signals: Signals, log_q: PerToken | None) -> PerToken:
    """Return K_t = sum from t on of log pi_old - log pi_ref - log q of the row, (B, T) nats, 0 off the mask.

    Assumes right-padded rows: column t is token t.
    """
    mask = signals.mask
    shaped = anchor_logps(signals.require("ref_logps", "placement='reward'"), log_q)
    return summed_to_go(signals.old_logps - shaped, mask)


def summed_to_go(values: PerToken, mask: Bool[Tensor, "B T"]) -> PerToken:
    """Return the sum of `values` from t on over the counted tokens of the row, (B, T), 0 off the mask; values there may be NaN."""
    return torch.where(mask, torch.where(mask, values, 0.0).flip(1).cumsum(1).flip(1), 0.0)


def kl_share(advantage: Advantage, group_size: int) -> float:
    """Return c of `credit`: (G - 1) / G if the advantage subtracts the mean of the group including the row itself, else 1."""
    return (group_size - 1) / group_size if advantage.takes_group_mean else 1.0


def reward_penalty(signals: Signals, log_q: PerToken | None, group_size: int, share: float = 1.0) -> PerToken:
    """Return share * (K_t minus its mean over the other rows of the group), K_t = `return_to_go`, (B, T), 0 off the mask.

    Assumes right-padded rows in groups of `group_size`. The baseline at column t is the mean over those of the other
    rows that still count there, and 0 if there are none: it does not depend on the row itself, so the expected force
    is the exact one at every column, however ragged the group. `share` is `kl_share`.
    """
    to_go = return_to_go(signals, log_q)
    grouped, counted = (part.reshape(-1, group_size, part.shape[1]) for part in (to_go, signals.mask))
    others = (counted.sum(1, keepdim=True) - 1).clamp(min=1)
    centered = grouped - (grouped.sum(1, keepdim=True) - grouped) / others
    return torch.where(counted, share * centered, 0.0).reshape(to_go.shape)
