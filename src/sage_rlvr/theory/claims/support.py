"""Claims on empirical support: Theorem 4.2, Theorem 4.3, and the construction of appendix C with numbers of our own.

supp_eps(pi) is the set of right completions with pi(y) > eps (Def. 4.1). Each theorem is shown where its assumptions hold
and where one of them fails; of Theorem 4.2 there are four, and docs/concepts/theorems.md lists them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from sage_rlvr.core.advantages import GroupCentered
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.guides import Branch, Flat
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method, shape
from sage_rlvr.theory.claims.claim import Claim, numbers
from sage_rlvr.theory.claims.lab import Steps, many_bandits, method_of, rise, train
from sage_rlvr.theory.optima import Leaves, reverse_kl_optimum
from sage_rlvr.theory.tree import Logits, TokenTree

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
    """Theorem 4.2 where it holds: a logit a completion, updates from drawn completions only, eps below detectability, and a
    normalization that lifts y by no more than eps / ref(y)."""
    ref, rewards, eps = _bandit()
    probs, draws = many_bandits(ref, rewards, runs=2000, rate=0.5, steps=STEPS, group=GROUP, seed=5)
    unseen = draws[:, 0] == 0
    tree = TokenTree.bandit(len(ref))
    start = tree.logits_of(ref)
    plain, leashed = (
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
            note="One logit a completion, advantages that sum to 0 over the group, no KL: only the "
            f"normalization moves it. Drawn {int(plain.draws[0])} times.",
        ),
        Claim(
            "4.2/preserved", "SAGE Th. 4.2",
            "the largest mass that y has after any of the 2,000 trainings <= eps",
            float(probs[:, 0].max()), eps, "<=",
            note="The conclusion: what was outside the empirical support stays outside. It rests on three "
            "assumptions: updates from drawn completions only, one logit a completion, eps below detectability; and on "
            "a fourth, that the normalization lifts y by no more than eps / ref(y), which holds here.",
        ),
        Claim(
            "4.2/preserved-k3", "SAGE Th. 4.2",
            "the same after 100 steps of the loop with k3 and beta = .05: pi(y) <= eps",
            float(leashed.probs[-1, 0]), eps, "<=",
            note=f"Drawn {int(leashed.draws[0])} times.",
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
            note="The assumption that fails: one logit a completion. y's first token is that of 19 right "
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


# ---- appendix C, and what training does in its world


@dataclass(frozen=True, eq=False)
class Rare:
    """A frequent right completion (0,) and a rare right one y behind first token 1 and uncertain branch points.

    tree, ref logits, rewards and the leaf of y; `q` (L,) of whole completions by a Branch that reads the reference's
    entropies; `rlvr` the optimum of Eq. (1); `eps` = needed * rlvr(y), so that Theorem 4.3 asks for q(y)/E[q] > needed.
    """

    tree: TokenTree
    ref: Logits
    rewards: Leaves
    leaf: int
    guide: Branch
    q: Leaves
    rlvr: Leaves
    needed: float
    beta: float

    @property
    def eps(self) -> float:
        return self.needed * float(self.rlvr[self.leaf])

    @property
    def reached(self) -> float:
        """q(y) / E_RLVR[q], the left side of Theorem 4.3."""
        return float(self.q[self.leaf] / (self.rlvr * self.q).sum())

    def risen(self) -> Leaves:
        """pi_SAGE by ascent on Eq. (6), from the reference."""
        probs = self.tree.probs(self.ref)
        return rise(probs, self.rewards, self.beta, self.q, tree=self.tree, start=self.ref)

    def rest(self, anchor: Anchor) -> float:
        """pi(y) where descent on the loop's own expected loss comes to rest."""
        return float(self.tree.descend(method_of(anchor), self.ref, self.rewards).probs[self.leaf])


@cache
def rare(branches: int, points: int = 1, needed: float = 1.19, q_max: float = 1.4, all_right: bool = False) -> Rare:
    """The first token is 0 with .9 (right, the end), 1 with .02, 2 with .08 (wrong, the end); after 1 come `points` states of
    `branches` equally likely tokens, of which always token 0 leads on and to y. all_right: every answer behind 1 is right.
    """
    beta = 0.25
    behind = [(1,) + (0,) * k + (v,) for k in range(points) for v in range(0 if k == points - 1 else 1, branches)]
    tree = TokenTree([(0,), *behind, (2,)])
    ref = torch.zeros(tree.allowed.shape, dtype=torch.float64)
    ref[0, :3] = torch.tensor([0.9, 0.02, 0.08], dtype=torch.float64).log()
    leaf = tree.completions.index((1,) + (0,) * points)
    rewards = torch.zeros(len(tree), dtype=torch.float64)
    rewards[[0, leaf]] = 1.0
    if all_right:
        rewards[:-1] = 1.0
    return _with_branch(tree, ref, rewards, leaf, needed, q_max, beta)


def _with_branch(
    tree: TokenTree, ref: Logits, rewards: Leaves, leaf: int, needed: float, q_max: float, beta: float
) -> Rare:
    guide = Branch(q_max=q_max, signal="reference")
    log_q = shape(method_of(Anchor(beta, guide)), tree.listing(ref, ref, rewards).signals, 0, 1, Key(0))
    rlvr = reverse_kl_optimum(tree.probs(ref), rewards, beta)
    return Rare(tree, ref, rewards, leaf, guide, log_q.double().sum(1).exp(), rlvr, needed, beta)


@cache
def uncertain_first_token() -> Rare:
    """Appendix C to the letter: the uncertain step is the first one. y is first token 1 of eight, probability .0025."""
    tree = TokenTree.bandit(8)
    probs = torch.full((8,), 0.4975 / 6, dtype=torch.float64)
    probs[0], probs[1] = 0.5, 0.0025
    rewards = torch.tensor([1.0, 1.0] + [0.0] * 6, dtype=torch.float64)
    return _with_branch(tree, tree.logits_of(probs), rewards, 1, 1.05, 1.4, 0.25)


def appendix_c() -> list[Claim]:
    """Branch's q through `shape`: a case that meets Theorem 4.3's condition, and two that do not."""
    meets, clamped, free, twice = rare(8), rare(30, needed=1.5), rare(30, needed=1.5, q_max=100.0), rare(30, 2, 1.5)
    first = uncertain_first_token()
    condition = "q(y) / E_RLVR[q] > eps / pi_RLVR(y)"
    return [
        Claim(
            "appC/outside", "SAGE App. C",
            "ref(y) and pi_RLVR(y) of the rare right answer <= eps",
            (float(meets.tree.probs(meets.ref)[meets.leaf]), float(meets.rlvr[meets.leaf])), (meets.eps, meets.eps),
            "<=",
            note="First token: 0 with .9 (right), 1 with .02, 2 with .08 (wrong); after 1 eight equally "
            "likely tokens, one of them right: y. Entropies .375 and ln 8 = 2.08 nats, so q = 1 and "
            "1.264. beta = .25.",
        ),
        Claim(
            "appC/meets", "SAGE App. C, Th. 4.3",
            f"Branch's q there: {condition}",
            meets.reached, meets.needed, ">",
            note="q looks at the state alone: it tells two completions apart only by the states they pass. y "
            "passes the uncertain one, the frequent answer does not.",
        ),
        Claim(
            "appC/conclusion", "SAGE Th. 4.3",
            "and pi_SAGE(y), by ascent on Eq. (6), > eps",
            float(meets.risen()[meets.leaf]), meets.eps, ">",
        ),
        Claim(
            "appC/first-token", "SAGE App. C",
            "the uncertain step is the first token, as in the paper's text: q(y) / E[q] > 1",
            first.reached, 1.0, ">", 1e-9, expected=False,
            note="All completions start in one state with one entropy: its q stands above and below the line "
            "and cancels.",
        ),
        Claim(
            "appC/clamp", "SAGE App. C, Th. 4.3",
            f"30 equally likely tokens, eps = 1.5 pi_RLVR(y): {condition}",
            clamped.reached, clamped.needed, ">", expected=False,
            note="H = 3.40 asks for q = 1.66; the clamp leaves 1.4.",
        ),
        Claim(
            "appC/clamp-conclusion", "SAGE Th. 4.3",
            "and then pi_SAGE(y), by ascent on Eq. (6), > eps",
            float(clamped.risen()[clamped.leaf]), clamped.eps, ">", expected=False,
        ),
        Claim(
            "appC/without-clamp", "SAGE App. C, Th. 4.3",
            f"the same without the clamp: {condition}",
            free.reached, free.needed, ">",
        ),
        Claim(
            "appC/two-points", "SAGE App. C, Th. 4.3",
            f"the same clamp, two such branch points before y: {condition}",
            twice.reached, twice.needed, ">",
            note="Branch points compound: q(y) = 1.4 * 1.4 = 1.96. ref(y) is 30 times smaller.",
        ),
    ]  # fmt: skip


def what_training_reaches() -> list[Claim]:
    """Theorem 4.3 is about Eq. (4). Where the loop comes to rest in appendix C's world under each estimator and placement."""
    alike, one = rare(8, all_right=True), rare(8)
    own = Branch()
    beta = one.beta
    masses = {
        "k3": alike.rest(Anchor(beta)),
        "k3+branch": alike.rest(Anchor(beta, alike.guide)),
        "k3+own": alike.rest(Anchor(beta, own)),
        "reward+branch": alike.rest(Anchor(beta, alike.guide, "k1", "reward")),
    }
    grpo, guided, released = (one.rest(Anchor(beta, guide)) for guide in (Flat(), one.guide, own))
    eq2, eq4 = float(one.rlvr[one.leaf]), float(alike.risen()[alike.leaf])
    return [
        Claim(
            "4.3/eq4", "SAGE Th. 4.3",
            "all eight answers behind token 1 right: condition met, and at Eq. (4) pi(y) > eps",
            eq4, alike.eps, ">",
            note=f"q(y)/E[q] = {alike.reached:.4g} > {alike.needed:.4g}. Eq. (4) by ascent.",
        ),
        Claim(
            "4.3/k3-branch", "SAGE Th. 4.3, E.5",
            "the same, k3 in the loss + Branch, q from the entropy of the reference, of the policy: pi(y) at rest > eps",
            (masses["k3+branch"], masses["k3+own"]), (alike.eps, alike.eps), ">", expected=False,
            note="The KL term of the paper's E.5. The theorem is about the optimum of Eq. (6), which it does not "
            "descend.",
        ),
        Claim(
            "4.3/k3-branch-moves-nothing", "SAGE Th. 4.3, E.5",
            "and pi(y) at rest with either Branch = without a guide",
            (masses["k3+branch"], masses["k3+own"]), (masses["k3"], masses["k3"]), "=", 1e-6,
            note="q(s) scales the pull to ref(.|s); where the reward is silent between siblings the policy is "
            "at ref already.",
        ),
        Claim(
            "4.3/k1-reward", "SAGE Th. 4.3",
            "the same, k1 in the reward + Branch: pi(y) at rest = at Eq. (4)",
            masses["reward+branch"], eq4, "=", 1e-6,
        ),
        Claim(
            "4.3/rlvr-is-not-grpo", "SAGE Eq. (2)",
            "one in eight right: pi(y) where k3 without a guide rests = at Eq. (2)",
            grpo, eq2, "=", 1e-4, expected=False,
            note=f"It is {grpo / one.eps:.2f} eps before any guide: per-state pulls do not charge a token for "
            "the KL behind it.",
        ),
        Claim(
            "4.3/k3-branch-lowers", "SAGE Th. 4.3, E.5",
            "one in eight right, k3: pi(y) at rest with a Branch that reads the reference > without",
            guided, grpo, ">", expected=False,
            note="The tighter leash at the uncertain state keeps the wrong siblings alive.",
        ),
        Claim(
            "4.3/k3-own-branch", "SAGE Eqs. (11), (38)",
            "the same with Branch as released, q from the policy's own entropy: pi(y) at rest = without a guide",
            released, grpo, "=", 1e-6,
            note="At rest the right sibling is known, H < 1.2 and q = 1: it moves nothing there.",
        ),
        Claim(
            "4.3/own-entropy", "SAGE Eq. (11), Th. 4.3",
            "one in eight right, k1 in the reward, q from the policy's own entropy: pi(y) at rest > eps",
            one.rest(Anchor(beta, own, "k1", "reward")), one.eps, ">", expected=False,
            note="q refreshed with the policy falls asleep: once the right sibling is known, H < 1.2 and q = "
            "1. With q from the reference the same run rests above eps (next line).",
        ),
        Claim(
            "4.3/reference-entropy", "SAGE Eq. (11), Th. 4.3",
            "the same with q from the reference's entropy: pi(y) at rest > eps",
            one.rest(Anchor(beta, one.guide, "k1", "reward")), one.eps, ">",
        ),
    ]  # fmt: skip
