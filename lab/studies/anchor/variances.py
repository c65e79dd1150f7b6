"""How far the gradient of one completion's KL term scatters around the exact mean, for each estimator, in the parameters.

Completions are drawn from a `Case`, where all of them are listed with their probabilities, and each one's share of the loop's
objective is differentiated by itself. The exact mean is known (`expectations.py`), so that the trace of the covariance is a
plain mean of squared distances, and that the draws agree with it is checked on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lab.studies.anchor.expectations import SAME, Case, kl_gradient
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method, objective
from sage_rlvr.core.reward_kl import return_to_go
from sage_rlvr.core.signals import Batch
from sage_rlvr.models.scoring import completion_logits

NO_BASELINE = ", no baseline"


@dataclass(frozen=True, eq=False)
class Scatter:
    """Of one estimator at one problem: (n,) squared distances of the drawn completions' gradients from the exact mean, each
    weighted so that their mean is the trace of the covariance; the mean's squared length; and gap, the squared distance of
    the drawn mean from the exact one over its own expectation, which is 1 on average."""

    distances: np.ndarray
    norm2: float
    gap: float


def variances(
    case: Case, methods: Mapping[str, Method], *, draws: int, key: Key, number: int = 0
) -> dict[str, Scatter]:
    """Draw completions, the same for all methods, and measure the gradient of the KL term (beta = 1) of each.

    Half of the draws are the policy's, half prefer completions whose tokens carry large coefficients, and all are weighted
    back: under k3 a rare token that the reference likes, coefficient 1 - ref/pi, holds much of the variance, and draws from
    the policy alone would not meet it. `number` is the problem's, for the random numbers. A method with its KL in the reward
    stands there twice: with the baseline that the loop subtracts, the mean return-to-go of the completions that still count
    at a token, here its expectation, and, its name followed by `NO_BASELINE`, without. Guides are not looked at: q = 1.
    """
    variants = {name: (method, True) for name, method in methods.items()}
    variants |= {name + NO_BASELINE: (m, False) for name, m in methods.items() if _in_reward(m)}
    means = {name: kl_gradient(case, method) for name, (method, _) in variants.items()}
    proposal = _proposal(case, [pair for pair in variants.values() if "distributions" not in pair[0].needs])
    uniforms = key.uniform64(number, "lab/draw", torch.arange(draws), 0)[:, 0]
    drawn = torch.searchsorted(proposal.cumsum(0), uniforms * proposal.sum()).clamp_max(len(proposal) - 1)
    rows, counts = torch.unique(drawn, return_counts=True)
    weights = case.every.listing.probs.double()[rows] / proposal[rows]
    cotangents = {name: _cotangents(case, method, rows, baseline) for name, (method, baseline) in variants.items()}
    return _scatter(case, rows, counts, weights, cotangents, means)


def _in_reward(method: Method) -> bool:
    return method.anchor is not None and method.anchor.placement == "reward"


def _proposal(case: Case, methods: Sequence[tuple[Method, bool]]) -> Tensor:
    """(B,) probabilities to draw with: the policy's, and the same times the largest squared coefficient, half and half."""
    probs, rows = case.every.listing.probs.double(), torch.arange(len(case.rewards))
    tilted = torch.zeros_like(probs)
    for method, baseline in methods:
        leaf = case.every.listing.signals.old_logps.clone().requires_grad_(True)
        loss = _own_loss(case, method, rows, leaf, None, baseline)
        squares = probs * torch.autograd.grad(loss, leaf)[0].double().square().sum(1)
        tilted = torch.maximum(tilted, squares / squares.sum().clamp(min=1e-300))
    total = tilted.sum()
    return 0.5 * probs + 0.5 * tilted / total if float(total) > 0 else probs


def _cotangents(case: Case, method: Method, rows: Tensor, baseline: bool) -> Tensor:
    """(U, T, V) gradient of each row's own loss with respect to its log-probs of every next token."""
    leaf = case.table[case.every.states[rows]].float().requires_grad_(True)
    logps = leaf.gather(2, case.every.tokens[rows][:, :, None]).squeeze(2)
    return torch.autograd.grad(_own_loss(case, method, rows, logps, leaf, baseline), leaf)[0]


def _own_loss(
    case: Case, method: Method, rows: Tensor, logps: Tensor, log_probs: Tensor | None, baseline: bool
) -> Tensor:
    """The loop's objective summed over rows without rewards, so that each row has its own share and no weight."""
    view, signals = case.every, case.every.listing.signals
    assert signals.ref_logps is not None
    advantages = torch.zeros(len(rows))
    if _in_reward(method):
        to_go = return_to_go(signals, None)
        shares = view.listing.probs[:, None].float() * signals.mask
        mean = (shares * to_go).sum(0) / shares.sum(0).clamp(min=1e-30)
        advantages = -(to_go[rows] - (mean if baseline else 0.0))
    batch = Batch(
        logps=logps,
        old_logps=signals.old_logps[rows],
        ref_logps=signals.ref_logps[rows],
        mask=view.mask[rows],
        advantages=advantages,
        max_tokens=1,
        log_probs=log_probs,
        ref_log_probs=None if log_probs is None else case.ref_table[view.states[rows]].float(),
    )
    return objective(method, batch, 0, 1, budget=1.0)[0]


def _scatter(
    case: Case,
    rows: Tensor,
    counts: Tensor,
    weights: Tensor,
    cotangents: Mapping[str, Tensor],
    means: Mapping[str, Tensor],
) -> dict[str, Scatter]:
    """Gradients in the parameters of each row that was drawn, for all different cotangents in one batched backward pass."""
    same = _representatives(cotangents)
    kept = list(dict.fromkeys(same.values()))
    mean = torch.stack([means[name] for name in kept])
    stacked = torch.stack([cotangents[name] for name in kept])
    total = torch.zeros_like(mean)
    spread, scaled = torch.zeros(len(rows), len(kept)), torch.zeros(len(rows), len(kept))
    for i, row in enumerate(rows.tolist()):
        log_probs, weight = _row_log_probs(case, row), float(weights[i])
        parts = torch.autograd.grad(log_probs, case.params, stacked[:, i, case.listed.mask[row]], is_grads_batched=True)
        found = torch.cat([part.flatten(1) for part in parts], 1)
        spread[i] = weight * (found - mean).square().sum(1)
        scaled[i] = (weight * found - mean).square().sum(1)
        total += weight * int(counts[i]) * found
    n = int(counts.sum())
    off = (total / n - mean).square().sum(1)
    expected = (scaled * counts[:, None]).sum(0) / n / n
    each = {
        name: Scatter(
            np.repeat(spread[:, k].double().numpy(), counts.numpy()),
            float(mean[k].square().sum(dtype=torch.float64)),
            float(off[k] / expected[k].clamp(min=1e-30)),
        )
        for k, name in enumerate(kept)
    }
    return {name: each[first] for name, first in same.items()}


def _row_log_probs(case: Case, row: int) -> Tensor:
    """(n, V) log-probs of every next token along one completion of n tokens, in a graph of its own."""
    listed, counted = case.listed, case.listed.mask[row]
    own = torch.zeros(1, dtype=torch.long)
    logits = completion_logits(
        case.policy, [listed.prompt], listed.tokens[row][counted][None], counted[counted][None], own, engine=False
    )
    return torch.log_softmax(logits.float(), -1)


def _representatives(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """name -> the first name whose tensor is the same up to float32 rounding."""
    found: dict[str, str] = {}
    for name, tensor in tensors.items():
        same = (o for o in dict.fromkeys(found.values()) if float((tensors[o] - tensor).norm()) <= SAME * float(tensor.norm()))
        found[name] = next(same, name)
    return found
