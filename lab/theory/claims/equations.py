"""Claims on the equations: where each objective has its maximum, the pseudo-KL and its form by token, entropy bonuses."""

from __future__ import annotations

import math
from functools import cache

import torch

from lab.theory.claims.claim import Claim, numbers
from lab.theory.claims.lab import RAGGED, RAGGED_REWARDS, along, ascend, rise, table
from lab.theory.optima import (
    Leaves,
    entropy_optimum,
    forward_value,
    pseudo_kl,
    reverse_kl_optimum,
    sage_value,
)

BETA, BONUS = 0.4, 0.3
ANYWHERE = (
    "pi may be any distribution: the tree's table of logits can express every positive one; ref and q are held fixed."
)

# numbers that are that the golden tests have too
THREE, THREE_REWARDS, THREE_Q = (0.2, 0.3, 0.5), (1.0, 0.0, 0.0), (1.0, 1.3, 0.8)


@cache
def world() -> tuple[Leaves, Leaves]:
    """(ref, q) over the completions of the ragged tree; q is a product of factors that look at the token."""
    return RAGGED.probs(table(RAGGED, 1)), along(RAGGED, table(RAGGED, 2, 0.3)).sum(1).exp()


@cache
def risen(q: bool = False, bonus: float = 0.0, scale: float = 1.0) -> Leaves:
    """(L,) probabilities where ascent on Eq. (1), (6) or (19) ends; `scale` multiplies the anchor."""
    ref, guide = world()
    factor = scale * (guide if q else torch.ones_like(ref))
    return rise(ref, RAGGED_REWARDS, BETA, factor, bonus, tree=RAGGED, start=torch.zeros(RAGGED.allowed.shape))


def equations_2_and_4() -> list[Claim]:
    """Ascent against exponential tilting, by the reference and by q times the reference."""
    ref, guide = world()
    plain, shaped = (reverse_kl_optimum(ref, RAGGED_REWARDS, BETA, q) for q in (None, guide))
    mass = float((ref * guide * (RAGGED_REWARDS.double() / BETA).exp()).sum())
    statement = "pi that ascent on {} finds, differentiated through a tree's token policy = {} / Z"
    return [
        Claim(
            "eq2/optimum", "SAGE Eq. (2)",
            statement.format("Eq. (1)", "ref e^{R/beta}"),
            numbers(risen()), numbers(plain), "=", 1e-7,
            note=ANYWHERE,
        ),
        Claim(
            "eq4/optimum", "SAGE Eq. (4)",
            statement.format("Eq. (6)", "q ref e^{R/beta}"),
            numbers(risen(q=True)), numbers(shaped), "=", 1e-7,
            note=ANYWHERE,
        ),
        Claim(
            "eq4/value", "SAGE Eqs. (4), (6)",
            "Eq. (6) where ascent ends = beta log sum q ref e^{R/beta}",
            float(sage_value(risen(q=True), ref, RAGGED_REWARDS, BETA, guide)),
            BETA * math.log(mass), "=", 1e-9,
        ),
        Claim(
            "eq4/three", "SAGE Eq. (4)",
            "ref (.2, .3, .5), R (1, 0, 0), beta .5, q (1, 1.3, .8): ascent = closed form",
            numbers(rise(THREE, THREE_REWARDS, 0.5, THREE_Q)),
            numbers(reverse_kl_optimum(THREE, THREE_REWARDS, 0.5, THREE_Q)), "=", 1e-7,
        ),
    ]  # fmt: skip


def equation_5() -> list[Claim]:
    """The pseudo-KL does not need a normalized anchor."""
    ref, guide = world()
    policy = RAGGED.probs(table(RAGGED, 3))
    anchor = 7.0 * guide * ref
    ratio = policy / anchor
    of_measures = (anchor * (ratio * ratio.log() - ratio + 1)).sum()  # Csiszar's form, which is 0 only at pi = f
    gap = of_measures - pseudo_kl(policy, anchor)
    return [
        Claim(
            "eq5/scale", "SAGE Eq. (5)",
            "pi that ascent finds with the anchor 7 q ref = the one with q ref",
            numbers(risen(q=True, scale=7.0)), numbers(risen(q=True)), "=", 1e-7,
            note="log 7 times sum pi = 1 is a constant of the objective; nothing else depends on the scale of "
            "f.",
        ),
        Claim(
            "eq5/mass", "SAGE Eq. (5)",
            "KL of measures minus pseudo-KL, at some pi = sum f - 1",
            float(gap), float(anchor.sum()) - 1.0, "=", 1e-9,
            note="So both have one gradient. k3 with a shaped anchor estimates the first of the two.",
        ),
        Claim(
            "eq5/sign", "SAGE Eq. (5)",
            "the pseudo-KL is never negative, as a KL is: D(pi || 7 q ref) >= 0",
            float(pseudo_kl(policy, anchor)), 0.0, ">=", expected=False,
            note="It is D of the normalized anchor minus log sum f: below 0 where pi is near an anchor of "
            "mass above 1.",
        ),
    ]  # fmt: skip


def equation_8() -> Claim:
    """The pseudo-KL over completions against its token-level form, state by state, on completions of lengths 1 to 3."""
    logits, ref, log_q = table(RAGGED, 3), table(RAGGED, 1), table(RAGGED, 2, 0.3)
    log_pi = RAGGED.log_probs(logits)
    terms = torch.where(RAGGED.allowed, log_pi - RAGGED.log_probs(ref) - log_q, 0.0)
    by_token = (RAGGED.visits(logits)[:, None] * log_pi.exp() * terms).sum()
    ref_probs, guide = world()
    return Claim(
        "eq8/decomposition", "SAGE Eqs. (7), (8)",
        "D(pi || q ref) over whole completions = sum_s d(s) sum_v pi(v|s) [log pi - log ref - log q]",
        float(pseudo_kl(RAGGED.probs(logits), guide * ref_probs)), float(by_token), "=", 1e-9,
        note="d(s) is the probability of coming through s; q is a product of factors q_t(x, y_<=t), Eq. (7).",
    )  # fmt: skip


def entropy_bonus() -> list[Claim]:
    """A.2: a bonus c H is a temperature, for the reference and for the reward at once."""
    ref, _ = world()
    warm = risen(bonus=BONUS)
    tempered = risen() ** (BETA / (BETA + BONUS))
    right = RAGGED_REWARDS.bool()
    wanted = ref[right] ** (BETA / (BETA + BONUS))
    return [
        Claim(
            "eq21/optimum", "SAGE Eq. (21)",
            "pi that ascent on Eq. (19) finds = ref^{b/(b+c)} e^{R/(b+c)} / Z, b = beta",
            numbers(warm), numbers(entropy_optimum(ref, RAGGED_REWARDS, BETA, BONUS)), "=", 1e-7,
            note=ANYWHERE,
        ),
        Claim(
            "eq21/three", "SAGE Eq. (21)",
            "ref (.2, .3, .5), R (1, 0, 0), beta .5, c .3: ascent = closed form",
            numbers(rise(THREE, THREE_REWARDS, 0.5, bonus=0.3)),
            numbers(entropy_optimum(THREE, THREE_REWARDS, 0.5, 0.3)), "=", 1e-7,
        ),
        Claim(
            "a2/temperature", "SAGE A.2",
            "pi with the bonus c = pi without it, sampled at temperature 1 + c/beta",
            numbers(warm), numbers(tempered / tempered.sum()), "=", 1e-7,
            note="Both sides come from ascent. It is the temperature of whole completions.",
        ),
        Claim(
            "a2/odds", "SAGE A.2",
            "odds of the right completions to the first one = those of ref, to the power b/(b+c)",
            numbers(warm[right] / warm[right][0]), numbers(wanted / wanted[0]), "=", 1e-6,
        ),
        Claim(
            "a2/token-temperature", "SAGE A.2",
            "pi without the bonus, each token sampled at temperature 1 + c/beta = pi with the bonus",
            _tempered_tokens(1 + BONUS / BETA), numbers(warm), "=", 1e-3, expected=False,
            note="Another policy: it flattens each state by itself, whatever lies behind a token.",
        ),
        *_orders(),
    ]  # fmt: skip


def _tempered_tokens(temperature: float) -> tuple[float, ...]:
    """What sampling every token of Eq. (2)'s optimum at that temperature gives, completion by completion."""
    logits = RAGGED.log_probs(RAGGED.logits_of(risen()))
    return numbers(RAGGED.probs(torch.where(RAGGED.allowed, logits, 0.0) / temperature))


def _orders() -> list[Claim]:
    """No bonus reverses an order among equally rewarded completions, and a q does."""
    generator = torch.Generator().manual_seed(4)
    reversals = 0
    for _ in range(300):
        ref, rewards = torch.rand(5, generator=generator), torch.rand(5, generator=generator).round()
        c = float(10 ** (4 * torch.rand((), generator=generator) - 2))
        found = entropy_optimum(ref, rewards, 0.2, c)
        pairs = (rewards[:, None] == rewards) & (ref[:, None] > ref)
        reversals += int((pairs & (found[:, None] <= found)).sum())
    ref, q = torch.tensor([0.3, 0.1, 0.6]), torch.tensor([1.0, 4.0, 1.0])
    moved = rise(ref, (1.0, 1.0, 0.0), 0.5, q)
    return [
        Claim(
            "a2/order", "SAGE A.2",
            "orders among equally rewarded completions reversed by a bonus, 300 worlds = none",
            float(reversals), 0.0,
            note="c between 0.01 and 100 at beta = 0.2: odds go toward 1 and never across.",
        ),
        Claim(
            "a2/guide-reverses", "SAGE Eq. (4), A.2",
            "odds pi_a / pi_b of two right completions, ref_a / ref_b = 3 > 1",
            float(moved[0] / moved[1]), 1.0, ">", expected=False,
            note="q = (1, 4) gives 3/4 (by ascent): the order is reversed, which no entropy bonus c >= 0 can "
            "do.",
        ),
    ]  # fmt: skip


def equal_rewards() -> list[Claim]:
    """Neither KL re-balances equally rewarded completions; a guide does, by q_a / q_b."""
    ref, guide = world()
    right = RAGGED_REWARDS.bool()

    def forward(logits: torch.Tensor) -> torch.Tensor:
        return forward_value(RAGGED.probs(logits), ref, RAGGED_REWARDS, BETA)

    odds = {"ref": ref, "q ref": ref * guide, "reverse": risen(), "guided": risen(q=True)}
    odds["forward"] = RAGGED.probs(ascend(forward, torch.zeros(RAGGED.allowed.shape)))
    sides = {name: numbers(values[right] / values[right][0]) for name, values in odds.items()}
    text = "odds of right completions at the optimum of the {}, by ascent = those of {}"
    return [
        Claim(
            "odds/reverse", "MARA; SAGE Eq. (2)",
            text.format("reverse KL", "ref"),
            sides["reverse"], sides["ref"], "=", 1e-6,
            note="The reward cancels in the ratio: a rare right completion stays as rare beside a frequent "
            "one.",
        ),
        Claim(
            "odds/forward", "MARA; SAGE Eq. (27)",
            text.format("forward KL", "ref"),
            sides["forward"], sides["ref"], "=", 1e-6,
            note="The forward KL keeps them too; it covers, and does not re-balance.",
        ),
        Claim(
            "odds/guide", "SAGE Eq. (4)",
            text.format("guided reverse KL", "q ref"),
            sides["guided"], sides["q ref"], "=", 1e-6,
        ),
    ]  # fmt: skip
