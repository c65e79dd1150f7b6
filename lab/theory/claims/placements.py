"""Claims on the placement table: the expected gradient of each KL term against the gradient of the functional it descends.

The left side is the loop's own objective, summed over all completions with A = 0 (`TokenTree.expected_gradient`). The right
side is the gradient of a functional written from its definition, in float64 (`effects.claimed_gradient`). The pairs that
`Anchor` refuses are summed by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lab.theory.claims.claim import Claim, numbers
from lab.theory.claims.lab import along, method_of
from lab.theory.effects import Draws, claimed_gradient
from lab.theory.tree import Logits, TokenTree
from sage_rlvr.core.anchor import Anchor, Placement
from sage_rlvr.core.effect import Descends, Effect, Role
from sage_rlvr.core.guides import Branch
from sage_rlvr.core.kl import Estimator
from sage_rlvr.core.reductions import Reduction, SequenceMean

TREE = TokenTree([(0,), (1, 0), (1, 1)])
LOGITS = torch.tensor([[0.2, 0.1], [-0.3, 0.5]], dtype=torch.float64)
REF = torch.tensor([[0.6, -0.4], [0.5, -0.9]], dtype=torch.float64)
STATE_Q = torch.tensor([[1.3, 1.3], [0.8, 0.8]], dtype=torch.float64).log()
TOKEN_Q = torch.tensor([[1.3, 0.7], [0.9, 1.2]], dtype=torch.float64).log()
NO_Q = torch.zeros(2, 2, dtype=torch.float64)
UNBIASED: tuple[Literal["k2", "straight_through", "k3_is"], ...] = ("k2", "straight_through", "k3_is")

THREE, THREE_REF = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)
SETTING = "Answers (0), (1, 0), (1, 1); gradients on the four logits; on-policy, beta = 1, a sum over tokens, A = 0."


def measured(
    estimator: Estimator,
    placement: Placement,
    log_q: Logits = NO_Q,
    ref: Logits = REF,
    reduction: Reduction | None = None,
) -> tuple[float, ...]:
    """The loop's expected gradient of the KL term alone, on the logits of both states."""
    method = method_of(Anchor(1.0, estimator=estimator, placement=placement), reduction=reduction)
    return numbers(TREE.expected_gradient(method, LOGITS, ref, torch.zeros(3), log_q=along(TREE, log_q)))


def claimed(descends: Descends, log_q: Logits = NO_Q, role: Role = "moves") -> tuple[float, ...]:
    """The gradient of a functional, written a second time in `theory.effects` with nothing of the KL code of the loop.

    forward: sum_s d(s) sum_v f log(f / pi) - f + pi, and reverse: sum_s d(s) sum_v pi log(pi / f), the visits d(s) held fixed;
    f = q ref where q moves, else ref, with each state times q where q scales. sequence: KL(pi || ref) - E_pi[sum_t log q_t] over
    the three whole answers, beta times the penalty of Eq. (6).
    """
    q = Draws({"token": along(TREE, log_q)[None].numpy()}, np.ones(1))
    return numbers(claimed_gradient(Effect(descends, (("token", role),)), TREE, LOGITS, REF, q))


def k3_in_the_loss() -> list[Claim]:
    """The forward KL: q(s) scales it, a q of the token moves its target."""
    return [
        Claim(
            "place/k3-loss", "placement table; arXiv 2505.17508",
            "k3 in the loss: expected gradient = grad sum_s d(s) KL(ref || pi)",
            measured("k3", "loss"), claimed("forward"), "=", 1e-6,
            note=SETTING + " The *forward* KL, with the visits d(s) held fixed.",
        ),
        Claim(
            "place/k3-loss/state-q", "placement table; SAGE E.5",
            "k3 in the loss, q(s) = 1.3, .8: gradient = q(s) grad KL(ref || pi)",
            measured("k3", "loss", STATE_Q), claimed("forward", STATE_Q, "scales"), "=", 1e-6,
            note="q scales the pull to the reference at its state and does not move the anchor; the scaled "
            "functional has ref itself as its target.",
        ),
        Claim(
            "place/k3-loss/token-q", "SAGE Eq. (38)",
            "k3 in the loss, q of the token: gradient = grad sum_s d(s) KL(q ref || pi)",
            measured("k3", "loss", TOKEN_Q), claimed("forward", TOKEN_Q), "=", 1e-6,
            note="On the logits Zq pi - q ref.",
        ),
        Claim(
            "place/k3-loss/not-reverse", "SAGE Eqs. (3), (38)",
            "k3 in the loss: expected gradient = grad sum_s d(s) KL(pi || ref)",
            measured("k3", "loss"), claimed("reverse"), "=", 1e-6, expected=False,
            note="k3 estimates the value of the reverse KL; its gradient is that of the other one.",
        ),
        _branch(),
    ]  # fmt: skip


def _branch() -> Claim:
    """Branch itself, through `shape`; two tokens per state have little entropy, so its threshold is lower than the paper's."""
    guide = Branch(ratio=1.0, threshold=0.4)
    with_guide = method_of(Anchor(1.0, guide, "k3"))
    entropies = torch.special.entr(torch.softmax(LOGITS, 1)).sum(1, keepdim=True)
    q = (1.0 + torch.relu(entropies - 0.4)).clamp(max=1.4).expand(2, 2)
    found = TREE.expected_gradient(with_guide, LOGITS, REF, torch.zeros(3))
    return Claim(
        "place/k3-loss/branch", "SAGE Eqs. (11), (38)",
        "Branch, through shape(): gradient = q(H(s)) grad KL(ref || pi)",
        numbers(found), claimed("forward", q.log(), "scales"), "=", 1e-6,
        note=f"ratio 1, threshold .4 nats: q = {float(q[0, 0]):.3f} and {float(q[1, 0]):.3f} at the two states.",
    )  # fmt: skip


def unbiased_in_the_loss() -> list[Claim]:
    """k2, straight-through and k3 with the importance ratio: the reverse KL, from which a state guide drops out."""
    claims = []
    stock = {"k3_is": " TRL since 1.10 multiplies k3 by the ratio by default: Branch there is this silent no-op."}
    for estimator in UNBIASED:
        found = measured(estimator, "loss", STATE_Q)
        text = f"{estimator} in the loss: expected gradient"
        claims += [
            Claim(
                f"place/{estimator}-loss", "placement table; arXiv 2505.17508",
                text + " = grad sum_s d(s) KL(pi || ref)",
                measured(estimator, "loss"), claimed("reverse"), "=", 1e-6,
                note=SETTING,
            ),
            Claim(
                f"place/{estimator}-loss/state-q", "placement table",
                text + " with q(s) = the one without q",
                found, measured(estimator, "loss"), "=", 1e-6,
                note="The guide cancels exactly: -log q(s) times sum_v grad pi(v|s) = 0." + stock.get(estimator, ""),
            ),
            Claim(
                f"place/{estimator}-loss/token-q", "placement table",
                text + ", q of the token = grad sum_s d(s) D(pi || q ref)",
                measured(estimator, "loss", TOKEN_Q), claimed("reverse", TOKEN_Q), "=", 1e-6,
            ),
        ]  # fmt: skip
    claims.append(
        Claim(
            "place/k3_is-loss/not-sequence", "SAGE Eq. (6)",
            "k3_is in the loss: expected gradient = grad of Eq. (6)'s penalty",
            measured("k3_is", "loss"), claimed("sequence", NO_Q, "bonus"), "=", 1e-6, expected=False,
            note="It leaves out that a token changes which states are visited later.",
        )
    )  # fmt: skip
    return claims


def reward_k1() -> list[Claim]:
    """k1 in the reward with return-to-go: Eq. (6) whole."""
    text = "k1 in the reward, {}: expected gradient = grad [KL(pi || ref) - E sum log q]"
    return [
        Claim(
            f"place/k1-reward{label}", "SAGE Eqs. (6), (8)",
            text.format(words),
            measured("k1", "reward", log_q), claimed("sequence", log_q, "bonus"), "=", 1e-6,
            note=SETTING + " Over whole answers, visits included.",
        )
        for label, words, log_q in (("", "no q", NO_Q), ("/state-q", "q(s)", STATE_Q), ("/token-q", "q of the token", TOKEN_Q))
    ]  # fmt: skip


def by_hand(weights: Callable[[Tensor], Tensor], in_graph: bool) -> tuple[float, ...]:
    """The gradient of sum_a pi_a f(l_a) with pi_a held fixed, on three logits: f in the graph, or detached times log pi."""
    logits = torch.tensor(THREE, dtype=torch.float64).log().requires_grad_(True)
    log_p = torch.log_softmax(logits, 0)
    value = weights(log_p - torch.tensor(THREE_REF, dtype=torch.float64).log())
    term = value if in_graph else value.detach() * log_p
    return numbers(torch.autograd.grad((log_p.detach().exp() * term).sum(), logits)[0])


def refused() -> list[Claim]:
    """k1 in the loss is nothing, k3 in the reward is next to nothing near the reference."""
    reverse, forward = by_hand(lambda ratio: ratio, False), tuple(p - r for p, r in zip(THREE, THREE_REF, strict=True))
    difference = tuple(a - b for a, b in zip(reverse, forward, strict=True))
    near = [_force_near(step) for step in (0.02, 0.01)]
    return [
        Claim(
            "place/k1-loss", "placement table",
            "k1 in the loss (refused), pi (.5, .3, .2), ref (.2, .3, .5): gradient = 0",
            by_hand(lambda ratio: ratio, True), (0.0, 0.0, 0.0), "=", 1e-12,
            note="E[grad log pi] = 0: noise and no pull.",
        ),
        Claim(
            "place/k3-reward", "placement table",
            "k3 in the reward (refused): gradient = grad KL(pi || ref) - grad KL(ref || pi)",
            by_hand(lambda ratio: torch.expm1(-ratio) + ratio, False), difference, "=", 1e-12,
        ),
        Claim(
            "place/k3-reward/second-order", "placement table",
            "its force at a displacement of .02 over that at .01 = 4, of k1 = 2",
            (near[0][0] / near[1][0], near[0][1] / near[1][1]), (4.0, 2.0), "=", 0.05,
            note="Logits displaced by .02 (1, -1, 0) and half of it from ref (.2, .3, .5). Norms at .02: "
            f"{near[0][0]:.2g} for k3, {near[0][1]:.2g} for k1.",
        ),
    ]  # fmt: skip


def _force_near(step: float) -> tuple[float, float]:
    """Norms of the gradients of k3 and of k1 in the reward, at logits displaced by step * (1, -1, 0) from the reference."""
    ref = torch.tensor(THREE_REF, dtype=torch.float64).log()
    log_p = torch.log_softmax(ref + step * torch.tensor([1.0, -1.0, 0.0]), 0)
    probs, k1 = log_p.exp(), log_p - ref
    k3 = torch.expm1(-k1) + k1
    norms = [float((probs * (value - (probs * value).sum())).norm()) for value in (k3, k1)]
    return norms[0], norms[1]


def length_artifact() -> Claim:
    """What a division of each row by its length leaves of a state guide, where nothing should be left."""
    p0 = 1.0 / (1.0 + math.exp(-0.1))
    wanted = (1 - 1.3) * p0 * (1 - p0) * 0.5
    return Claim(
        "place/length-artifact", "placement table",
        "sequence_mean, pi = ref, q(root) = 1.3: root gradient = (1 - q) pi0 pi1 / 2",
        measured("k3", "loss", STATE_Q * torch.tensor([[1.0], [0.0]]), LOGITS, SequenceMean()),
        (wanted, -wanted, 0.0, 0.0), "=", 1e-6,
        note="With a constant divisor it is 0. A descent step raises the token that ends the answer.",
    )  # fmt: skip
