"""Claims on A.4: the forward-KL optimum, and when a guided reverse KL leaves less mass on wrong completions than it."""

from __future__ import annotations

import math
from functools import cache
from typing import Literal, NamedTuple

import torch

from lab.theory.claims.claim import Claim, numbers
from lab.theory.claims.lab import method_of
from lab.theory.optima import forward_kl_optimum, reverse_kl_optimum
from lab.theory.tree import TokenTree
from sage_rlvr.core.anchor import Anchor

ONE_STATE = "One state (completions of one token), on-policy, no clipping, an advantage of expected force grad E[R]."


def rest(
    estimator: Literal["k3", "exact"],
    ref: tuple[float, ...],
    rewards: tuple[float, ...],
    beta: float,
    q: tuple[float, ...] | None = None,
) -> tuple[float, ...]:
    """Where descent on the loop's own expected loss comes to rest, completions of one token, forward KL in the loss."""
    tree = TokenTree.bandit(len(ref))
    anchor = Anchor(beta, estimator=estimator, divergence="forward" if estimator == "exact" else None)
    log_q = None if q is None else torch.tensor(q).log()[:, None]
    found = tree.descend(
        method_of(anchor), tree.logits_of(torch.tensor(ref)), torch.tensor(rewards), log_q=log_q, tolerance=1e-6
    )
    return numbers(found.probs)


def right_mass(p0: float, beta: float) -> float:
    """E[R] of Eq. (27) for rewards 0 and 1 and a reference mass p0 of right completions: the root of a quadratic."""
    return 0.5 * ((1 - beta) + math.sqrt((1 - beta) ** 2 + 4 * p0 * beta))


def equation_27() -> list[Claim]:
    """Descent on k3 in the loss, and on the exact forward KL, against the closed form and its multiplier."""
    ref, rewards, beta = (0.2, 0.3, 0.5), (1.0, 1.0, 0.0), 0.05
    closed = forward_kl_optimum(ref, rewards, beta)
    shaped = forward_kl_optimum(ref, (1.0, 0.0, 0.0), 0.5, (1.0, 1.3, 0.8))
    cases = ((0.3, 0.05), (0.05, 0.05), (0.3, 0.5))
    masses = tuple(float(forward_kl_optimum((p0, 1 - p0), (1.0, 0.0), b).probs[0]) for p0, b in cases)
    text = "where descent on {} comes to rest = beta ref / (lam - R)"
    return [
        Claim(
            "eq27/k3", "SAGE Eq. (27)",
            text.format("k3 in the loss"),
            rest("k3", ref, rewards, beta), numbers(closed.probs), "=", 1e-5,
            note=ONE_STATE + " So the forward-KL rival of A.4 is what GRPO's own KL term (E.5) rests at.",
        ),
        Claim(
            "eq27/exact", "SAGE Eq. (27)",
            text.format("the forward KL summed exactly"),
            rest("exact", ref, rewards, beta), numbers(closed.probs), "=", 1e-5,
            note=ONE_STATE,
        ),
        Claim(
            "eq27/lam", "SAGE Eq. (27)",
            "the multiplier that makes sum pi = 1 is beta + E[R]",
            closed.lam, beta + right_mass(0.5, beta), "=", 1e-9,
        ),
        Claim(
            "eq27/right-mass", "SAGE Eq. (27)",
            "mass on right completions, (p0, beta) = (.3, .05), (.05, .05), (.3, .5) = [1 - beta + sqrt((1 - "
            "beta)^2 + 4 p0 beta)] / 2",
            masses, tuple(right_mass(*case) for case in cases), "=", 1e-9,
        ),
        Claim(
            "eq27/shaped", "SAGE Eqs. (27), (38)",
            "where descent on k3 with q (1, 1.3, .8) rests = beta q ref / (lam - R)",
            rest("k3", ref, (1.0, 0.0, 0.0), 0.5, (1.0, 1.3, 0.8)), numbers(shaped.probs), "=", 1e-5,
            note=ONE_STATE + " Close to Eq. (4), (.6516, .1720, .1764), and not it.",
        ),
    ]  # fmt: skip


class _World(NamedTuple):
    """A random world with 0/1 rewards: does (30) hold, does (32), the off-target mass of both optima, spread of (28)."""

    separated: bool
    sufficient: bool
    sage: float
    forward: float
    reweighting_error: float


def _measure(ref: torch.Tensor, right: torch.Tensor, q: torch.Tensor, beta: float) -> _World:
    rewards = right.double()
    forward = forward_kl_optimum(ref, rewards, beta)
    sage = reverse_kl_optimum(ref, rewards, beta, q)
    # W of Eq. (29) divided by e^{1 / beta}, which leaves its order as it is and keeps it in range
    weight = q * ((rewards - 1.0) / beta).exp() * (forward.gap + 1.0 - rewards)
    reweighted = weight * forward.probs
    error = float((reweighted / reweighted.sum() - sage).abs().max())
    needed = forward.lam / forward.gap * math.exp(-1.0 / beta)
    return _World(
        separated=bool(weight[right].min() > weight[~right].max()),
        sufficient=bool(q[right].min() / q[~right].max() > needed),
        sage=float(sage[~right].sum()),
        forward=float(forward.probs[~right].sum()),
        reweighting_error=error,
    )


@cache
def sweep(worlds: int = 1500) -> tuple[_World, ...]:
    """Random finite worlds of fixed seed, the same at every call."""
    generator = torch.Generator().manual_seed(30)

    def uniform(low: float, high: float, size: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(size, generator=generator, dtype=torch.float64)

    found = []
    for _ in range(worlds):
        size = int(torch.randint(3, 9, (), generator=generator))
        right = torch.arange(size) < int(torch.randint(1, size, (), generator=generator))
        ref = uniform(0.0, 1.0, size) ** 3 + 1e-6
        beta, q = float(uniform(0.05, 2.0, 1)), uniform(-1.2, 1.2, size).exp()
        found.append(_measure(ref / ref.sum(), right, q, beta))
    return tuple(found)


def separation() -> list[Claim]:
    """(28), (30) implies (31), (32) implies (30) over random worlds."""
    worlds = sweep()
    separated = [w for w in worlds if w.separated]
    larger = [w for w in worlds if w.sage >= w.forward]
    return [
        Claim(
            "a4/reweighting", "SAGE Eqs. (28), (29)",
            f"Eq. (4) minus W times Eq. (27), largest over {len(worlds)} worlds",
            max(w.reweighting_error for w in worlds), 0.0, "=", 1e-9,
        ),
        Claim(
            "a4/separation", "SAGE Eqs. (30), (31)",
            f"worlds with (30) in which SAGE has the larger off-target mass, of {len(separated)} = none",
            float(sum(w.sage >= w.forward for w in separated)), 0.0,
            note="Rewards 0 and 1, both kinds present, ref > 0.",
        ),
        Claim(
            "a4/sufficient", "SAGE Eq. (32)",
            "worlds in which (32) and (30) disagree = none",
            float(sum(w.sufficient != w.separated for w in worlds)), 0.0,
            note="For rewards 0 and 1 the sufficient condition is the separation condition itself, and no "
            "stronger.",
        ),
        Claim(
            "a4/always", "SAGE A.4",
            "worlds in which SAGE's off-target mass is the larger one = none",
            float(len(larger)), 0.0, expected=False,
            note=f"It is in {len(larger)} of {len(worlds)}; (30) fails in each of them, as it must.",
        ),
    ]  # fmt: skip


def cases() -> list[Claim]:
    """(32) is not necessary; without it the off-target mass may be larger; a weak preference may not suffice."""
    ref, q, beta = (0.3, 0.69, 0.01), (1.0, 1.0, 2.0), 0.5
    forward = forward_kl_optimum(ref, (1.0, 0.0, 0.0), beta)
    sage = reverse_kl_optimum(ref, (1.0, 0.0, 0.0), beta, q)
    needed = forward.lam / forward.gap * math.exp(-1 / beta)
    rare = forward_kl_optimum((0.05, 0.95), (1.0, 0.0), beta)
    plain, clamped = (reverse_kl_optimum((0.05, 0.95), (1.0, 0.0), beta, (q, 1.0)) for q in (1.0, 1.4))
    rare_needed = rare.lam / rare.gap * math.exp(-1 / beta)
    off_target = float(rare.probs[1])
    return [
        Claim(
            "a4/not-necessary", "SAGE Eq. (32)",
            "ref (.3, .69, .01), one right, q (1, 1, 2): min_C q / max_notC q > bound",
            q[0] / max(q[1:]), needed, ">", expected=False,
            note="(32) fails here, and (31) holds all the same: see the next line.",
        ),
        Claim(
            "a4/holds-without", "SAGE Eq. (31)",
            "same world: off-target mass of SAGE < of the forward KL",
            float(sage[1:].sum()), float(forward.probs[1:].sum()), "<",
        ),
        Claim(
            "a4/reverse-kl-larger", "SAGE A.4",
            "ref (.05, .95), beta .5, q = 1: off-target mass of (4) < of (27)",
            float(plain[1]), off_target, "<", expected=False,
            note="A strong KL and a rare right answer: the reverse KL lets go of the wrong mass later than "
            "the forward KL.",
        ),
        Claim(
            "a4/weak-preference", "SAGE A.4 ('even a weak preference is sufficient')",
            "same world: the ratio of q that (32) asks for <= 1.4, what the clamp leaves Branch at one token",
            rare_needed, 1.4, "<=", expected=False,
            note="e^{-1/beta} is small only for small beta; lam / (lam - 1) grows as right completions get "
            "rare. The whole band [.6, 1.4] has the ratio 2.33; over several tokens ratios multiply.",
        ),
        Claim(
            "a4/clamped-guide-larger", "SAGE Eq. (31)",
            "same world, q = 1.4 on the right one: off-target of (4) < of (27)",
            float(clamped[1]), off_target, "<", expected=False,
        ),
        Claim(
            "a4/small-beta", "SAGE A.4",
            "the same at beta = .05, q = 1: off-target mass of (4) < of (27)",
            float(reverse_kl_optimum((0.05, 0.95), (1.0, 0.0), 0.05)[1]), 1 - right_mass(0.05, 0.05), "<",
            note="At the paper's beta the condition holds with room: A.4 is right there, for Eq. (4) against "
            "Eq. (27).",
        ),
    ]  # fmt: skip
