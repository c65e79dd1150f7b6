"""Claims on empirical support: Theorem 4.2 and Theorem 4.3. `appendix_c.py` has the construction of appendix C.

supp_eps(pi) is the set of right completions with pi(y) > eps (Def. 4.1). Each theorem is shown where its assumptions hold
and where one of them fails; of Theorem 4.2 there are four, and lab/pages/concepts/theorems.md lists them.
"""

from __future__ import annotations

import math
from functools import cache

import torch

from lab.theory.claims.claim import Claim, numbers
from lab.theory.claims.lab import Steps, many_bandits, method_of, rise, train
from lab.theory.optima import Leaves, reverse_kl_optimum
from lab.theory.tree import Logits, TokenTree
from sage_rlvr.core.advantages import GroupCentered
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.method import Method

ZETA, GROUP, STEPS = 0.05, 8, 100


def detectable(zeta: float, draws: int) -> float:
    """The eps for which a completion of that probability stays undrawn in so many draws with probability 1 - zeta."""
    return -math.expm1(math.log1p(-zeta) / draws)


# ---- Theorem 4.2


@cache
def _bandit() -> tuple[Leaves, Leaves, float]:
    """(ref, rewards, eps): 40 completions of one token; number 0 is right and has eps / 2; eps not detectable in 800 draws."""
    eps = detectable(ZETA, GROUP * STEPS)
    ref = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64) ** 2
    ref[0] = 0.0
    ref = ref / ref.sum() * (1 - 0.5 * eps)
    ref[0] = 0.5 * eps
    rewards = torch.zeros(40, dtype=torch.float64)
    rewards[[0, 3, 7, 11]] = 1.0
    return ref, rewards, eps


def preserved() -> list[Claim]:
    """Theorem 4.2 where it holds: a logit per completion, updates from drawn completions only, eps below detectability, and a
    normalization that lifts y by no more than eps / ref(y)."""
    ref, rewards, eps = _bandit()
    probs, draws = many_bandits(ref, rewards, runs=2000, rate=0.5, steps=STEPS, group=GROUP, seed=5)
    unseen = draws[:, 0] == 0
    tree = TokenTree.bandit(len(ref))
    start = tree.logits_of(ref)
    plain, anchored = (
        _undrawn(0, tree, method_of(anchor, GroupCentered()), start, rewards, 0.5, STEPS)
        for anchor in (None, Anchor(0.05))
    )
    return [
        Claim(
            "4.2/undrawn", "SAGE Th. 4.2",
            "share of 2,000 trainings (100 groups of 8) that never draw y, ref(y) = eps / 2, >= 1 - zeta",
            float(unseen.double().mean()), 1 - ZETA, ">=",
            note="eps = 1 - (1 - zeta)^(1/800): the detectability threshold of the budget. y is right.",
        ),
        Claim(
            "4.2/no-force", "SAGE Th. 4.2",
            "change of the logit of a completion that 100 steps never drew = 0",
            float((plain.logits - start)[0, 0]), 0.0, "=", 1e-9,
            note="One logit per completion, advantages that sum to 0 over the group, no KL: only the "
            f"normalization moves it. Drawn {int(plain.draws[0])} times.",
        ),
        Claim(
            "4.2/preserved", "SAGE Th. 4.2",
            "the largest mass that y has after any of the 2,000 trainings <= eps",
            float(probs[:, 0].max()), eps, "<=",
            note="The conclusion: what was outside the empirical support stays outside. It rests on three "
            "assumptions: updates from drawn completions only, one logit per completion, eps below detectability; and on "
            "a fourth, that the normalization lifts y by no more than eps / ref(y), which holds here.",
        ),
        Claim(
            "4.2/preserved-k3", "SAGE Th. 4.2",
            "the same after 100 steps of the loop with k3 and beta = .05: pi(y) <= eps",
            float(anchored.probs[-1, 0]), eps, "<=",
            note=f"Drawn {int(anchored.draws[0])} times.",
        ),
    ]  # fmt: skip


def _undrawn(
    leaf: int, tree: TokenTree, method: Method, start: Logits, rewards: Leaves, rate: float, steps: int
) -> Steps:
    """The training of the loop with the first seed for which that completion is never drawn."""
    trainings = (
        train(tree, method, start, rewards, rate=rate, steps=steps, group=GROUP, seed=seed) for seed in range(50)
    )
    return next(found for found in trainings if found.draws[leaf] == 0)


@cache
def _shared_prefix() -> tuple[Steps, float, float]:
    """(training, ref(y), eps): 20 right answers behind a first token of probability .1, of which y is one in 667."""
    tree = TokenTree([(0,)] + [(1, v) for v in range(20)])
    ref = torch.full((21,), 0.1 * 0.9985 / 19, dtype=torch.float64)
    ref[0], ref[1] = 0.9, 0.1 * 0.0015
    rewards = torch.ones(21)
    rewards[0] = 0.0
    found = _undrawn(1, tree, method_of(None, GroupCentered()), tree.logits_of(ref), rewards, 1.0, 40)
    return found, float(ref[1]), detectable(ZETA, GROUP * 40)


def not_preserved() -> list[Claim]:
    """Theorem 4.2 where it fails: the exact optimum, exact expected gradients, the normalization, tokens that are shared."""
    ref, rewards, eps = (0.0005, 0.3, 0.6995), (1.0, 0.0, 0.0), 0.001
    risen = rise(ref, rewards, 0.05)
    tree = TokenTree.bandit(3)
    rests = tree.descend(method_of(Anchor(0.05)), tree.logits_of(torch.tensor(ref)), torch.tensor(rewards))
    shared, before, threshold = _shared_prefix()
    lifted, undrawn, below = _lifted_undrawn()
    text = "a right y with ref(y) = eps / 2 = .0005, beta = .05: pi(y) <= eps at {}"
    return [
        Claim(
            "4.2/optimum", "SAGE Th. 4.2, Eq. (2)",
            text.format("the optimum of Eq. (1), by ascent"),
            float(risen[0]), eps, "<=", expected=False,
            note="No sampling: the maximum of the objective itself multiplies by e^{1/beta} = e^20. What "
            "preserves the support is the finite budget of draws, and not the reverse KL.",
        ),
        Claim(
            "4.2/expected-gradient", "SAGE Th. 4.2",
            text.format("the rest of exact expected gradients, k3 in the loss"),
            float(rests.probs[0]), eps, "<=", expected=False,
            note="The assumption that fails: updates from drawn completions only.",
        ),
        Claim(
            "4.2/normalization", "SAGE Th. 4.2",
            f"{undrawn} trainings (60 groups of 8) that never drew y, one logit each, ref .02 right: largest pi(y) <= eps",
            lifted, below, "<=", expected=False,
            note="y's logit has not moved. One wrong completion with .98 has lost and a right one with .02 has gained: while "
            "neither has nearly all, the sum of exp(logits) is below 1 and every other completion stands higher, y by up "
            "to 1 / (2 sqrt(.98 * .02)) = 3.57. When the right one has won, y is lower than in ref.",
        ),
        Claim(
            "4.2/undrawn-here", "SAGE Th. 4.2",
            "draws of y in 320 by the loop, 20 right answers behind one first token, first seed without it = 0",
            float(shared.draws[1]), 0.0,
            note=f"ref(y) = {before:.2g}, eps = {threshold:.3g} by zeta = .05.",
        ),
        Claim(
            "4.2/shared-tokens", "SAGE Th. 4.2",
            "in that training, with y never drawn: pi(y) <= eps",
            float(shared.probs[-1, 1]), threshold, "<=", expected=False,
            note="The assumption that fails: one logit per completion. y's first token is that of 19 right "
            "siblings, which were drawn and raised it; an autoregressive policy lifts what it never drew.",
        ),
        *_threshold(),
    ]  # fmt: skip


@cache
def _lifted_undrawn() -> tuple[float, int, float]:
    """(largest pi(y), number of trainings, eps) of those of 500 that never draw y, ref(y) = eps / 2, its rival .02 right."""
    eps = detectable(ZETA, GROUP * 60)
    start = torch.tensor([eps / 2, 0.02, 0.98 - eps / 2], dtype=torch.float64)
    probs, draws = many_bandits(start, torch.tensor([1.0, 1.0, 0.0]), runs=500, rate=0.5, steps=60, group=GROUP, seed=9)
    unseen = probs[draws[:, 0] == 0, 0]
    return float(unseen.max()), len(unseen), eps


def _threshold() -> list[Claim]:
    """The exact form of the statement for the optimum of Eq. (1), on both sides of the threshold."""
    eps, beta = 0.01, 0.4
    edge = eps / (eps + (1 - eps) * math.exp(1 / beta))

    def mass(ref: float) -> float:
        return float(rise((ref, 1 - ref), (1.0, 0.0), beta)[0])

    text = "ref(y) {} % of the one at which ref(y) e^{{1/beta}} / Z = eps: pi(y) {} eps at the optimum, by ascent"
    return [
        Claim(
            "4.2/exact-above", "SAGE Th. 4.2, exact",
            text.format(101, ">"),
            mass(1.01 * edge), eps, ">",
            note=f"eps = .01, beta = .4: ref(y) = {edge:.3g} is enough. A right y is in the support of the "
            "optimum if and only if ref(y) e^{1/beta} / Z > eps.",
        ),
        Claim(
            "4.2/exact-below", "SAGE Th. 4.2, exact",
            text.format(99, "<="),
            mass(0.99 * edge), eps, "<=",
        ),
    ]  # fmt: skip


# ---- Theorem 4.3


def expansion() -> list[Claim]:
    """Theorem 4.3: the condition, the mass, the identity behind it, and that it is an equivalence."""
    rlvr, q, eps, beta = torch.tensor([0.6, 0.3, 0.1]).double(), torch.tensor([1.0, 1.0, 1.4]).double(), 0.12, 0.5
    rewards = torch.tensor([1.0, 0.0, 1.0])
    ref = rlvr * (-rewards.double() / beta).exp()
    ref = ref / ref.sum()
    plain, shaped = rise(ref, rewards, beta), rise(ref, rewards, beta, q)
    return [
        Claim(
            "4.3/condition", "SAGE Th. 4.3",
            "pi_RLVR (.6, .3, .1), q (1, 1, 1.4), eps .12: q(y) / E[q] > eps / pi_RLVR(y)",
            float(q[2] / (plain * q).sum()), eps / float(plain[2]), ">",
            note="pi_RLVR by ascent on Eq. (1).",
        ),
        Claim(
            "4.3/conclusion", "SAGE Th. 4.3",
            "and pi_SAGE(y), by ascent on Eq. (6), > eps",
            float(shaped[2]), eps, ">",
            note="Assumes that training reaches Eq. (4), with q held fixed.",
        ),
        Claim(
            "4.3/identity", "SAGE Eqs. (23), (24)",
            "pi_SAGE by ascent on Eq. (6) = pi_RLVR q / E_RLVR[q]",
            numbers(shaped), numbers(rlvr * q / (rlvr * q).sum()), "=", 1e-7,
        ),
        _equivalence(),
    ]  # fmt: skip


def _equivalence(worlds: int = 1000) -> Claim:
    generator = torch.Generator().manual_seed(43)
    wrong, met = 0, 0
    for _ in range(worlds):
        ref = torch.rand(6, generator=generator, dtype=torch.float64) ** 3 + 1e-9
        ref, q = ref / ref.sum(), 0.6 + 0.8 * torch.rand(6, generator=generator, dtype=torch.float64)
        rewards = (torch.rand(6, generator=generator) < 0.5).double()
        rewards[0] = 1.0
        beta, eps = float(0.05 + torch.rand((), generator=generator)), float(0.3 * torch.rand((), generator=generator))
        rlvr = reverse_kl_optimum(ref, rewards, beta)
        condition = float(q[0] / (rlvr * q).sum()) > eps / float(rlvr[0])
        wrong += condition != (float(reverse_kl_optimum(ref, rewards, beta, q)[0]) > eps)
        met += condition
    return Claim(
        "4.3/equivalence", "SAGE Th. 4.3",
        f"worlds of {worlds} in which condition and pi_SAGE(y) > eps disagree = none",
        float(wrong), 0.0,
        note=f"Met in {met}. By the identity the sufficient condition is also necessary, for Eq. (4).",
    )  # fmt: skip
