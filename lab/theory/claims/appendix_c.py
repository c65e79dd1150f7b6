"""The construction of appendix C with numbers of our own, and what training reaches in its world."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from lab.theory.claims.claim import Claim
from lab.theory.claims.lab import method_of, rise
from lab.theory.optima import Leaves, reverse_kl_optimum
from lab.theory.tree import Logits, TokenTree
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.guides import Branch, Flat
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import shape


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
        """The threshold of Theorem 4.3: `needed` times the probability of y under `rlvr`."""
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
            note="The stronger KL pull at the uncertain state keeps the wrong siblings alive.",
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
