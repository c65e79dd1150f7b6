"""Effective rank of hidden states along completions, from incremental Gram matrices: VERL, arXiv 2509.23808.

    p_j = sigma_j / sum sigma,   ER(Z) = exp( -sum_j p_j log p_j )        Z centered over tokens, sigma its singular values
    m_j = ER of the first j * stride tokens,   d_j = m_j - mean(m_1 .. m_{j-1}),   velocity = mean_j d_j
    a_j = d_j - d_{j-1},                                                            acceleration = mean_j a_j

A window of t tokens of width C costs the eigenvalues of a min(t, C) square matrix: a corner of one Gram matrix of all tokens, or
sums to which each window adds its part. `verdicts.stats.samples.spectrum` computes the same by singular values, one response at a
time:
statistics load no torch, so that reading results stays quick. tests/core/test_ranks.py checks that the two agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LEAST = 1e-12  # of the sum of squares of the states: an eigenvalue below it is rounding, and no direction


@dataclass(frozen=True, eq=False)
class Ranks:
    """Effective rank of each completion, (B,) float64, with its velocity and acceleration; these are 0 for a completion that is too
    short (fewer than two or three windows).
    """

    rank: Float[Tensor, " B"]
    velocity: Float[Tensor, " B"]
    acceleration: Float[Tensor, " B"]


def ranks_of(states: Float[Tensor, "B T C"], mask: Bool[Tensor, "B T"], stride: int, last: int) -> Ranks:
    """Return the ranks of hidden states over the `last` counted tokens of each completion, in windows of `stride` more tokens each.
    """
    z, lengths = _last_states(states, mask, last)
    longest, width = z.shape[1:]
    ends = range(stride, longest + 1, stride)
    corner = z[:, :width]  # a longer window is the eigenvalues of a (C, C) matrix
    gram, second, total = corner @ corner.mT, z.new_zeros(len(z), width, width), z.new_zeros(len(z), width)
    path: list[Tensor] = []
    for first, end in pairwise([0, *ends, longest]):
        if longest > width:
            part = z[:, first:end]
            second, total = second + part.mT @ part, total + part.sum(1)
        counted = lengths.clamp(max=end)
        path.append(_of_gram(gram[:, :end, :end], counted) if end <= width else _of_moments(second, total, counted))
    whole = path.pop()
    if not path:
        return Ranks(whole, torch.zeros_like(whole), torch.zeros_like(whole))
    return Ranks(whole, *_dynamics(torch.stack(path, 1), lengths[:, None] >= torch.tensor(ends, device=z.device)))


def _last_states(
    states: Float[Tensor, "B T C"], mask: Bool[Tensor, "B T"], last: int
) -> tuple[Float[Tensor, "B L C"], Int[Tensor, " B"]]:
    """Return the last counted states of each row from column 0 on, float64 and 0 after them; and their number."""
    counts = mask.sum(1)
    lengths = counts.clamp(max=last)
    position = torch.cumsum(mask.long(), 1) - 1 - (counts - lengths)[:, None]
    kept = mask & (position >= 0)
    longest = max(1, int(lengths.max())) if len(lengths) else 1
    z = states.new_zeros(len(mask), longest, states.shape[2])
    rows, columns = kept.nonzero(as_tuple=True)
    z[rows, position[rows, columns]] = states[rows, columns]
    return z.double(), lengths


def _of_gram(gram: Float[Tensor, "B t t"], lengths: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return ER from Z Z' of rows of which the first `lengths` count."""
    counted = (torch.arange(gram.shape[1], device=gram.device) < lengths[:, None]).double()
    means = gram.sum(2) / lengths.clamp(min=1)[:, None]
    centered = gram - means[:, :, None] - means[:, None, :] + (means.sum(1) / lengths.clamp(min=1))[:, None, None]
    centered = centered * counted[:, :, None] * counted[:, None, :]
    return _effective(torch.linalg.eigvalsh(centered), gram.diagonal(dim1=1, dim2=2).sum(1))


def _of_moments(
    second: Float[Tensor, "B C C"], total: Float[Tensor, "B C"], lengths: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """Return ER from Z' Z and the sum of Z over its `lengths` rows."""
    centered = second - total[:, :, None] * total[:, None, :] / lengths.clamp(min=1)[:, None, None]
    return _effective(torch.linalg.eigvalsh(centered), second.diagonal(dim1=1, dim2=2).sum(1))


def _effective(eigenvalues: Float[Tensor, "B n"], size: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return exp of the entropy of sigma's shares; 0 if the states are all 0."""
    sigma = torch.where(eigenvalues > LEAST * size[:, None], eigenvalues.clamp(min=0), 0.0).sqrt()
    total = sigma.sum(1)
    entropy = torch.special.entr(sigma / torch.where(total > 0, total, 1.0)[:, None]).sum(1)
    return torch.where(total > 0, entropy.exp(), 0.0)


def _dynamics(path: Float[Tensor, "B J"], there: Bool[Tensor, "B J"]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Return (velocity, acceleration) over the windows that exist, the first ones of each row."""
    before = path.cumsum(1)[:, :-1] / torch.arange(1, path.shape[1], device=path.device)
    d = path[:, 1:] - before
    return _mean_there(d, there[:, 1:]), _mean_there(d.diff(dim=1), there[:, 2:])


def _mean_there(values: Float[Tensor, "B n"], there: Bool[Tensor, "B n"]) -> Float[Tensor, " B"]:
    return torch.where(there, values, 0.0).sum(1) / there.sum(1).clamp(min=1)
