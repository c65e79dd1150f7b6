"""What the loop descends of a KL term, measured on a tree: `shape`, `advantages_of` and `objective`, every completion with its
probability; what is refused is measured without the refusal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lab.theory.effects import KEY, companies_of, looks_at_batch, signals_on
from lab.theory.tree import Logits, TokenTree
from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.anchor import Anchor, anchor_logps
from sage_rlvr.core.divergences import divergence
from sage_rlvr.core.guides import Guide
from sage_rlvr.core.keys import Key
from sage_rlvr.core.kl import estimate
from sage_rlvr.core.method import Method, advantages_of, objective, shape
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.reward_kl import summed_to_go
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.core.surrogates import Clip


class Measured(NamedTuple):
    """(S, V) gradient for beta = 1, and (S, V) standard error of its mean over repeats: 0 where nothing is random."""

    gradient: Logits
    standard_error: Logits


def kl_only(anchor: Anchor) -> Method:
    """A method for measuring its KL term: a sum over tokens, and an advantage that does not shrink what it centers."""
    return Method("kl only", LeaveOneOut(), Clip(), anchor, FixedBudget(1))


def measured_gradient(
    anchor: Anchor,
    tree: TokenTree,
    logits: Logits,
    ref_logits: Logits,
    *,
    draws: int = 1,
    repeats: int = 1,
    rows: int = 2,
    key: Key = KEY,
    batches: Sequence[list[FirstRow]] | None = None,
) -> Measured:
    """Exact on-policy gradient of the KL term alone, through the loop's own `objective`, divided by beta.

    All rewards are equal, so that every advantage is 0 but for the KL in it; the divisor is a constant. A random guide is
    averaged over `draws` draws, `repeats` times with keys of its own; one of the batch sees each completion among `rows`
    - 1 others, as in `draw_q`, or in the `batches` of each repeat where they were made before.
    """
    method, where, keys = kl_only(anchor), (tree, logits, ref_logits), [key.fold(f"repeat {n}") for n in range(repeats)]
    if looks_at_batch(anchor.guide):
        made = batches or [batches_of(anchor.guide, *where, draws, rows, own) for own in keys]
        found = [_over_batches(method, *where, each) for each in made]
    else:
        options: dict[str, Any] = {"group_size": 2, "draws": draws}
        found = [tree.expected_gradient(method, *where[1:], torch.zeros(len(tree)), **options, key=own) for own in keys]
    stack = torch.stack(found) / anchor.beta_at(0, 1)
    error = stack.std(0) / math.sqrt(len(found)) if len(found) > 1 else torch.zeros_like(stack[0])
    return Measured(stack.mean(0), error)


class FirstRow(NamedTuple):
    """A batch whose first row stands for completion `first`, its log q, and its weight in the mean over such batches."""

    first: int
    signals: Signals
    log_q: Tensor
    weight: float


def batches_of(
    guide: Guide, tree: TokenTree, logits: Logits, ref_logits: Logits, draws: int, rows: int, key: Key
) -> list[FirstRow]:
    """Every completion as the first row, in each of its companies."""
    method = kl_only(unchecked_anchor(beta=1.0, guide=guide))
    signals, probs, found = signals_on(tree, logits, ref_logits), tree.probs(logits), []
    for others, chance, own_key in companies_of(probs, rows, draws, key):
        for i in range(len(tree)):
            batch = signals.take(torch.tensor([i, *others]))
            found.append(FirstRow(i, batch, shape(method, batch, 0, 1, own_key), chance * float(probs[i])))
    return found


def _over_batches(method: Method, tree: TokenTree, logits: Logits, ref_logits: Logits, batches: list[FirstRow]) -> Logits:
    """The mean gradient of the first row of these batches. Rows are alike, so it is that of every row."""
    rewards = torch.zeros(1, len(batches[0].log_q))
    return _gradient_of_rows(
        method, tree, logits, ref_logits,
        members=torch.tensor([each.first for each in batches]),
        advantages=torch.stack([advantages_of(method, rewards, each.signals, each.log_q)[0] for each in batches]),
        weights=torch.tensor([each.weight for each in batches]),
        log_q=torch.stack([each.log_q[0] for each in batches]),
    )  # fmt: skip


def _gradient_of_rows(
    method: Method,
    tree: TokenTree,
    logits: Logits,
    ref_logits: Logits,
    members: Tensor,
    advantages: Tensor,
    weights: Tensor,
    log_q: Tensor | None = None,
) -> Logits:
    """Gradient of sum_i weights_i * (loss of row i), row i being completion members_i."""
    leaf = logits.detach().double().requires_grad_(True)
    signals = signals_on(tree, logits, ref_logits).take(members)
    wide = "distributions" in method.needs
    batch = Batch(
        logps=tree.logps(leaf)[members],
        old_logps=signals.old_logps,
        ref_logps=signals.ref_logps,
        mask=signals.mask,
        advantages=advantages,
        log_q=log_q,
        log_probs=tree.log_probs(leaf)[tree.states][members] if wide else None,
        ref_log_probs=tree.log_probs(ref_logits)[tree.states][members] if wide else None,
        weights=weights * len(members),
    )
    return torch.autograd.grad(objective(method, batch, 0, 1)[0], leaf)[0]


# ---- what is refused


def unchecked_anchor(**arguments: Any) -> Anchor:
    """An `Anchor` that nobody looked at: for measuring what a refusal keeps away, and for nothing else."""
    anchor = object.__new__(Anchor)
    for field in fields(Anchor):
        default = field.default_factory() if callable(field.default_factory) else field.default
        object.__setattr__(anchor, field.name, arguments.get(field.name, default))
    return anchor


def in_reward_gradient(
    estimator: str, tree: TokenTree, logits: Logits, ref_logits: Logits, divergence_name: str | None = None
) -> Logits:
    """(S, V) gradient where the detached value of any estimator is a price in the reward, with return-to-go and no guide.

    The loop itself only takes k1 there; this is what the others would give, through the loop's surrogate.
    """
    signals = signals_on(tree, logits, ref_logits)
    if estimator == "exact":
        log_pi, log_ref = (tree.log_probs(table.detach())[tree.states] for table in (logits, ref_logits))
        price = divergence(divergence_name, log_pi, log_ref)  # type: ignore[arg-type]
    else:
        anchored = anchor_logps(signals.require("ref_logps", "in_reward_gradient"), None)
        price = estimate(estimator, signals.old_logps, anchored, signals.old_logps)  # type: ignore[arg-type]
    to_go = summed_to_go(price.float(), tree.mask)
    method = Method("price", LeaveOneOut(), Clip(), None, FixedBudget(1))
    members, probs = torch.arange(len(tree)), tree.probs(logits).detach()
    return _gradient_of_rows(method, tree, logits, ref_logits, members, -to_go, probs)
