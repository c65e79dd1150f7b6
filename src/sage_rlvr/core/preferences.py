"""Losses on pairs of completions of one prompt, a winner w and a loser l (Agent-RLVR, arXiv 2506.11425).

    h      = beta [ log pi(y_w|x) - log pi_ref(y_w|x) - log pi(y_l|x) + log pi_ref(y_l|x) ]      the margin
    DPO    = mean over pairs of -log sigma(h)                                                    (arXiv 2305.18290)
    reward = mean over pairs of -log sigma(s(x, y_w) - s(x, y_l))                                (Bradley-Terry)

log pi(y|x) is the sum over the tokens that the policy drew: what an environment wrote between its turns is read and not counted.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.errors import DataError

PerPair = Float[Tensor, " N"]


def completion_logps(logps: Float[Tensor, "B T"], own: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Return log pi(y|x) of each row, nats: the sum over its `own` tokens; other values reach neither result nor gradient."""
    return torch.where(own, logps.float(), 0.0).sum(dim=1)


def margins(winner: PerPair, loser: PerPair, ref_winner: PerPair, ref_loser: PerPair, beta: float) -> PerPair:
    """Return h of each pair, from sums of log-probs under the policy and under the reference. Raise DataError if shapes differ."""
    shapes = {tuple(part.shape) for part in (winner, loser, ref_winner, ref_loser)}
    if len(shapes) != 1 or winner.dim() != 1:
        raise DataError(f"margins: shapes {sorted(shapes)}; pass one number per pair, (N,) each.")
    return beta * ((winner - ref_winner.detach()) - (loser - ref_loser.detach()))


def pair_loss(margin: PerPair) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """Return the mean of -log sigma(margin), and metrics: the mean margin and the fraction of positive margins.

    At margin 0 it is ln 2.
    """
    loss = -torch.nn.functional.logsigmoid(margin).mean()
    ahead = float((margin.detach() > 0).float().mean())
    return loss, {"pairs/margin": float(margin.detach().mean()), "pairs/accuracy": ahead}
