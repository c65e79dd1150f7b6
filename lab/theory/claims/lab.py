"""What the claims share: a ragged tree and tables on it, methods made of core parts, ascent, sampled steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lab.theory.effect_map import MAP_TREE
from lab.theory.expected import loss_of_group
from lab.theory.optima import Leaves, Values, entropy_value
from lab.theory.tree import Logits, OverLeaves, TokenTree
from sage_rlvr.core.advantages import Advantage, LeaveOneOut
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.method import Method
from sage_rlvr.core.reductions import FixedBudget, Reduction
from sage_rlvr.core.surrogates import Clip

RAGGED = MAP_TREE
RAGGED_REWARDS = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])


def table(tree: TokenTree, seed: int, scale: float = 1.0) -> Logits:
    """(S, V) normal numbers, float64, a function of the seed: logits, or the log of a token's q."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(tree.allowed.shape, generator=generator, dtype=torch.float64)


def along(tree: TokenTree, by_token: Logits) -> Float[Tensor, "L T"]:
    """The entries that each completion passes, (L, T), 0 off the mask."""
    return torch.where(tree.mask, by_token[tree.states, tree.tokens], 0.0)


def method_of(
    anchor: Anchor | None, advantage: Advantage | None = None, reduction: Reduction | None = None, name: str = "claim"
) -> Method:
    """A method of core parts; by default RLOO's advantage, whose expected force is grad E[R], and a sum over tokens."""
    return Method(name, advantage or LeaveOneOut(), Clip(), anchor, reduction or FixedBudget(1))


def ascend(value: Callable[[Tensor], Tensor], start: Tensor, rounds: int = 40) -> Tensor:
    """Where L-BFGS, started at `start`, finds the maximum of `value`, differentiated through everything; float64.

    It is started anew where it stops, until the gradient is below 1e-11 or the rounds are over.
    """
    point = start.detach().double().clone().requires_grad_(True)
    for _ in range(rounds):
        (gradient,) = torch.autograd.grad(value(point), point)
        if float(gradient.abs().max()) < 1e-11:
            break
        optimizer = torch.optim.LBFGS(
            [point], max_iter=100, tolerance_grad=1e-13, tolerance_change=1e-18, line_search_fn="strong_wolfe"
        )

        def closure(optimizer: torch.optim.LBFGS = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = -value(point)
            loss.backward()
            return loss

        optimizer.step(closure)
    return point.detach()


def rise(
    ref: Values, rewards: Values, beta: float, q: Values | None = None, bonus: float = 0.0, *,
    tree: TokenTree | None = None, start: Logits | None = None,
) -> Leaves:  # fmt: skip
    """(L,) where ascent on Eq. (6), with c H(pi) on top as in Eq. (19), ends from `start`, by default `ref`; completions of a
    tree, by default of one token."""
    tree = TokenTree.bandit(len(ref)) if tree is None else tree

    def value(logits: Tensor) -> Tensor:
        return entropy_value(tree.probs(logits), ref, rewards, beta, bonus, q)

    return tree.probs(ascend(value, tree.logits_of(torch.as_tensor(ref)) if start is None else start))


@dataclass(frozen=True, eq=False)
class Steps:
    """What sampled training did: probs (K + 1, L) before and after each update, draws (L,) of each completion."""

    probs: Float[Tensor, "K1 L"]
    draws: Int[Tensor, " L"]
    logits: Logits


def train(
    tree: TokenTree,
    method: Method,
    ref: Logits,
    rewards: OverLeaves,
    *,
    rate: float,
    steps: int,
    group: int,
    seed: int,
) -> Steps:
    """On-policy steps as the loop takes them: draw a group, shape, advantages, objective, one step of plain descent."""
    generator, logits = torch.Generator().manual_seed(seed), ref.detach().double().clone()
    seen, draws = [tree.probs(logits)], torch.zeros(len(tree), dtype=torch.long)
    for step in range(steps):
        rows = torch.multinomial(seen[-1], group, replacement=True, generator=generator)
        draws += torch.bincount(rows, minlength=len(tree))
        logits = logits - rate * _sampled_gradient(tree, method, logits, ref, rewards, rows, step)
        seen.append(tree.probs(logits))
    return Steps(torch.stack(seen), draws, logits)


def _sampled_gradient(
    tree: TokenTree, method: Method, logits: Logits, ref: Logits, rewards: OverLeaves, rows: Tensor, step: int
) -> Logits:
    leaf = logits.clone().requires_grad_(True)
    listing = tree.listing(logits, ref, rewards)
    loss = loss_of_group(method, listing, tree.logps(leaf), rows, step=step, total_steps=step + 1)
    return torch.autograd.grad(loss, leaf)[0]


def many_bandits(
    start: OverLeaves, rewards: OverLeaves, *, runs: int, rate: float, steps: int, group: int, seed: int
) -> tuple[Float[Tensor, "N L"], Int[Tensor, "N L"]]:
    """(probabilities at the end, draws) of `runs` independent trainings of one softmax over completions, at once.

    Written from the update itself, logit_a += rate * mean_i A_i (1[y_i = a] - pi_a) with A = r - mean r, and with none
    of the code of the loop. `start` may hold zeros.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = start.double().log().repeat(runs, 1)
    draws = torch.zeros(runs, len(start), dtype=torch.long)
    for _ in range(steps):
        probs = torch.softmax(logits, 1)
        rows = torch.multinomial(probs, group, replacement=True, generator=generator)
        draws.scatter_add_(1, rows, torch.ones_like(rows))
        advantages = rewards.double()[rows]
        advantages = (advantages - advantages.mean(1, keepdim=True)) / group
        pushed = torch.zeros_like(logits).scatter_add_(1, rows, advantages)
        logits = logits + rate * (pushed - probs * advantages.sum(1, keepdim=True))
    return torch.softmax(logits, 1), draws
