"""Advantages with a utility of their own: worked by hand, unbiased by enumeration, refused by name."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.theory.expected import step_of_groups
from lab.theory.tree import TokenTree
from lab.theory.utility import slope, values
from sage_rlvr.contrib.methods.alpha_dpg import Filtered, alpha_dpg
from sage_rlvr.contrib.methods.distinct import DistinctRight
from sage_rlvr.contrib.methods.ds_grpo import DifferentialSmoothing
from sage_rlvr.contrib.methods.passk_training import AnalyticPassAtK
from sage_rlvr.contrib.methods.pkpo import PassAtKAdvantage, pkpo
from sage_rlvr.contrib.methods.rs_grpo import RiskSeeking
from sage_rlvr.contrib.methods.ucpo import UniformRight
from sage_rlvr.contrib.methods.w_reinforce import Signed, nsr, psr, w_reinforce
from sage_rlvr.core.advantages import (
    ADVANTAGES,
    GroupCentered,
    GroupNormalized,
    GroupSignals,
    LeaveOneOut,
    PowerNormalized,
    ZeroVariance,
    sees,
)
from sage_rlvr.core.advantages.placebo import PlaceboRight
from sage_rlvr.core.advantages.prompts import Focal, PromptWeighted
from sage_rlvr.core.method import Method, credit
from sage_rlvr.core.reductions import FixedBudget, TokenMean
from sage_rlvr.core.reward_kl import kl_share
from sage_rlvr.core.schedules import Linear
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import maxrl
from sage_rlvr.testing import check_advantage

REWARDS = torch.tensor([[1.0, 1, 0, 0, 1, 0, 0, 0]])
SEEN = GroupSignals(
    torch.full((1, 8), 4),
    torch.tensor([[-2.0, -2, -3, -1, -4, -2, -5, -6]]),
    torch.tensor([[-2.5, -2.5, -9, -9, -3, -9, -9, -9]]),
    torch.tensor([[0, 0, 5, 5, 1, 6, 7, 8]]),
)
PKPO = [PassAtKAdvantage(4), PassAtKAdvantage(4, "sloo")]
BLIND = [PowerNormalized(), PowerNormalized(0.5), RiskSeeking(), *PKPO, AnalyticPassAtK(4)]
SEEING = [DistinctRight(4), DistinctRight(8, 1.0), Filtered(0.0), Filtered(), DifferentialSmoothing(), UniformRight()]


def of(part, rewards=REWARDS, seen=SEEN):
    return part(rewards, seen) if sees(part) else part(rewards)


def test_maxrl_by_hand():
    """Mean 3/8: (1 - 3/8) / (3/8) = 5/3 and -1."""
    assert PowerNormalized()(REWARDS)[0].tolist() == pytest.approx([5 / 3, 5 / 3, -1, -1, 5 / 3, -1, -1, -1])


@pytest.mark.parametrize("p, wanted", [(0.05, 10.734175), (0.2, 4.824078)])
def test_maxrl_ascends_log_p_truncated_at_order_g_minus_1(p: float, wanted: float):
    found = slope(PowerNormalized(), p, 16)
    assert found == pytest.approx((1 - (1 - p) ** 15) / p, rel=1e-5) and found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("p", [0.03, 0.3, 0.8])
def test_known_utilities(p: float):
    assert slope(LeaveOneOut(), p, 6) == pytest.approx(1)
    assert slope(GroupCentered(), p, 6) == pytest.approx(5 / 6)
    assert slope(PowerNormalized(0.0), p, 6) == pytest.approx(5 / 6)
    for baseline in ("sloo1", "sloo"):
        assert slope(PassAtKAdvantage(4, baseline), p, 6) == pytest.approx(4 * (1 - p) ** 3, rel=1e-5)
    assert slope(PassAtKAdvantage(1, "sloo"), p, 6) == pytest.approx(1, rel=1e-6)
    for right, wrong in ((1.0, 0.0), (0.0, 1.0), (0.1, 1.0), (2.0, 3.0)):
        assert slope(Signed(right, wrong), p, 6) == pytest.approx(right + wrong)


@pytest.mark.parametrize("p, size, wanted", [(0.05, 16, 11.197467), (0.2, 16, 4.859263), (0.6, 4, 1.624)])
def test_signs_over_their_own_group_are_logarithms(p: float, size: int, wanted: float):
    """PSR by the group's right rows: log P truncated at order G, (1 - (1-P)^G)/P; NSR is its mirror, W-REINFORCE their sum."""
    right, wrong = (1 - (1 - p) ** size) / p, (1 - p**size) / (1 - p)
    assert right == pytest.approx(wanted, abs=1e-5)
    for weights in ((1.0, 0.0), (0.0, 1.0), (0.1, 1.0)):
        found = slope(Signed(*weights, normalize_by="group"), p, size)
        assert found == pytest.approx(weights[0] * right + weights[1] * wrong, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [psr, nsr, w_reinforce])
@pytest.mark.parametrize("over", ["kept", "tokens"])
def test_signs_over_the_kept_rows_and_tokens_of_a_step(make, over):
    """Every step of two groups of two from one tree: the loss is right times the mean of -log pi over the right rows (tokens)
    plus wrong times that of log pi over the wrong ones, written out here, and so is its expectation."""
    method = make(normalize_by=over)
    tree, part = TokenTree([(0,), (1, 0), (1, 1)]), method.advantage
    logits = torch.tensor([[0.3, -0.2], [0.5, 0.1]], dtype=torch.float64)
    rewards = torch.tensor([1.0, 0.0, 1.0])
    listing = tree.listing(logits, logits, rewards)
    leaf = logits.clone().requires_grad_(True)
    rows, found, wanted = tree.logps(leaf), 0.0, 0.0
    size = tree.lengths.double() if over == "tokens" else torch.full((3,), 2.0, dtype=torch.float64)  # 2: max_tokens
    for step in itertools.product(range(3), repeat=4):
        members = torch.tensor(step)
        chance = listing.probs[members].double().prod()
        loss, _ = step_of_groups(method, listing, rows, members.reshape(2, 2))
        right, own = rewards[members] == 1, rows.sum(1)[members]
        mean = [own[one].sum() / size[members][one].sum().clamp(min=1) for one in (right, ~right)]
        found, wanted = found + chance * loss, wanted + chance * (part.wrong * mean[1] - part.right * mean[0])
    gradients = [torch.autograd.grad(one, leaf, retain_graph=True)[0] for one in (found, wanted)]
    assert torch.allclose(*gradients, atol=1e-6) and gradients[0].abs().max() > 0.05
    assert (method.reduction.divisor == "batch") == (over == "tokens") and part.couples_prompts


@pytest.mark.parametrize("right, wrong", [(1.0, 0.0), (0.0, 1.0)])
def test_signs_over_the_kept_rows_of_many_prompts_weigh_all_prompts_alike(right, wrong):
    """P = .2 and .7, 100 completions of each: f' is 1/mean P, or 1/(1 - mean P), for both, up to O(1/B)."""
    part, size, chances = Signed(right, wrong, "kept"), 100, (0.2, 0.7)
    counts = torch.arange(size).double()
    laws = [torch.distributions.Binomial(size - i, torch.tensor(p).double()) for p in chances for i in (0, 1)]
    mean = sum(chances) / 2
    for own, other in ((0, 1), (1, 0)):
        chance = laws[2 * own + 1].log_prob(counts)[:, None] + laws[2 * other].log_prob(torch.arange(size + 1).double())
        kept = counts[:, None] + torch.arange(size + 1)
        of_right = (chance.exp() * 2 * size / (kept + 1)).sum() * right
        of_wrong = (chance.exp() * 2 * size / (2 * size - kept)).sum() * wrong
        assert float(of_right + of_wrong) == pytest.approx(right / mean + wrong / (1 - mean), rel=0.02)
    rewards = torch.zeros(2, size)
    rewards[0, :20], rewards[1, :70] = 1.0, 1.0
    paid = part(rewards)[rewards == right]
    assert torch.allclose(paid, torch.tensor(right / mean - wrong / (1 - mean))) and not part(rewards)[rewards == wrong].any()


def test_grpo_and_risk_tend_to_their_utilities():
    assert slope(GroupNormalized(), 0.4, 400) == pytest.approx((0.4 * 0.6) ** -0.5, rel=0.01)
    assert slope(RiskSeeking(2.0), 0.4, 400) == pytest.approx(6.389056 / (2 * (1 + 0.4 * 6.389056)), rel=0.01)
    assert slope(RiskSeeking(1e-4), 0.4, 16) == pytest.approx(15 / 16, rel=1e-3)


def test_pkpo_by_hand():
    """n = 5, k = 3, y = (1, 0, 0, 1, 0): sloo1 (.3, 0, 0, .3, 0), sloo .6 - .75 * .75 and .5 - .75; here times n."""
    rewards = torch.tensor([[1.0, 0, 0, 1, 0]])
    assert (PassAtKAdvantage(3)(rewards) / 5)[0].tolist() == pytest.approx([0.3, 0, 0, 0.3, 0])
    assert (PassAtKAdvantage(3, "sloo")(rewards) / 5)[0].tolist() == pytest.approx([0.0375, -0.25, -0.25, 0.0375, -0.25])


@pytest.mark.parametrize("baseline", ["sloo1", "sloo"])
def test_the_k_of_pkpo_is_that_of_the_step(baseline):
    """Linear from 5 to 1 over 9 steps: 5, 4.5, 4, ...; .5 goes to the even number. A constant is the number, bit for bit."""
    method, wanted = pkpo(k=Linear(5, 1), baseline=baseline), [5, 4, 4, 4, 3, 2, 2, 2, 1]
    flat = pkpo(k=Linear(4, 4), baseline=baseline)
    tree = TokenTree.bandit(4)
    logits, right = torch.tensor([[0.3, -0.2, 0.5, 0.1]]), torch.tensor([1.0, 0, 0, 1])
    for step, k in enumerate(wanted):
        plain = PassAtKAdvantage(k, baseline)
        assert torch.equal(credit(method, REWARDS, step=step, total_steps=9).grouped, plain(REWARDS))
        assert torch.equal(credit(flat, REWARDS, step=step, total_steps=9).grouped, PassAtKAdvantage(4, baseline)(REWARDS))
        args = {"rewards": right, "group_size": 6, "step": step, "total_steps": 9}
        found = [tree.expected_gradient(one, logits, logits, **args) for one in (method, replace(method, advantage=plain))]
        assert torch.equal(*found) and found[0].any()
    assert "k = Linear(start=5, end=1) at the step" in method.describe() and "pass@k with the k of the step" in method.describe()
    assert (method.advantage.least_group, flat.advantage.least_group) == ((6, 5) if baseline == "sloo" else (5, 4))
    with pytest.raises(DataError, match=r"call at\(step, total_steps\)"):
        method.advantage(REWARDS)


@pytest.mark.parametrize(
    "right, k, of_right, of_wrong",
    [
        (1, 4, 1.0, -0.142857),
        (2, 4, 0.522233, -0.174078),
        (4, 4, 0.120386, -0.120386),
        (6, 4, 0, 0),
        (2, 1, 1.732051, -0.57735),
    ],
)
def test_chen_by_hand(right: int, k: int, of_right: float, of_wrong: float):
    found = AnalyticPassAtK(k)(torch.tensor([[1.0] * right + [0.0] * (8 - right)]))[0]
    assert found[0] == pytest.approx(of_right, abs=1e-6) and found[-1] == pytest.approx(of_wrong, abs=1e-6)


@pytest.mark.parametrize("k, p", [(2, 0.5), (4, 0.2)])
def test_chen_tends_to_the_arcsine_of_pass_at_k(k: int, p: float):
    missed = (1 - p) ** k
    wanted = (1 - p) ** (k - 1) / math.sqrt(missed * (1 - missed))
    assert slope(AnalyticPassAtK(k), p, 512) == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("part", [
    *(kind() for kind in ADVANTAGES.values() if kind not in (PlaceboRight, PromptWeighted)), PlaceboRight(DistinctRight()),
    PromptWeighted(GroupNormalized(), Focal()),
    PassAtKAdvantage(1), PassAtKAdvantage(3, "sloo"), PassAtKAdvantage(Linear(4, 1)), DistinctRight(1),
    DistinctRight(4, 1.0), Filtered(0.0, z="exact"), Filtered(form="released"), Signed(1.0, 0.0), Signed(1.0, 0.0, "kept"),
    Signed(normalize_by="group"), Signed(normalize_by="tokens"), PowerNormalized(0.0), AnalyticPassAtK(2),
], ids=str)  # fmt: skip
def test_the_laws_of_an_advantage_and_what_it_declares_of_groups_with_nothing_to_compare(part):
    check_advantage(part)


@pytest.mark.parametrize(
    "wrong, words",
    [
        (ZeroVariance(all_right=0.1), "all right earns .* 0.1 is declared"),
        (ZeroVariance(all_wrong="compared"), "all wrong earns .* compared is declared"),
        (ZeroVariance(none_right="refused"), "none right earns .* not refused"),
        (ZeroVariance(none_right=0.0), "none right earns .* 0.0 is declared"),
    ],
)
def test_what_is_declared_wrongly_is_found(monkeypatch, wrong, words):
    monkeypatch.setattr(GroupNormalized, "dead", lambda part, size: wrong)
    with pytest.raises(AssertionError, match=words):
        check_advantage(GroupNormalized())
    monkeypatch.setattr(Filtered, "dead", lambda part, size: ZeroVariance("compared", 0.0, "compared"))
    with pytest.raises(AssertionError, match="none_right: the advantage rejects"):
        check_advantage(Filtered())


def one_right(count: int, gap: float = 0.0) -> tuple[torch.Tensor, GroupSignals]:
    """A group of `count` with one right completion, whose reference log-prob is `gap` above the policy's."""
    rewards = torch.zeros(1, count)
    rewards[0, 0] = 1
    policy = torch.full((1, count), -3.0)
    reference = policy.clone()
    reference[0, 0] += gap
    return rewards, GroupSignals(torch.full((1, count), 4), policy, reference)


def test_alpha_dpg_clips_the_ratio_and_the_released_code_the_reward():
    """One right of 16, pi_old = pi_ref: u = 16. Scaled: (sqrt 10 - 1) / .5 + 2 = 2 sqrt 10; released: 3 + 1."""
    rewards, seen = one_right(16)
    scaled, released = Filtered()(rewards, seen)[0], Filtered(form="released")(rewards, seen)[0]
    assert float(scaled[0]) == pytest.approx(2 * 10**0.5) and float(released[0]) == pytest.approx(4)
    # The others: -1 less the mean of 14 times -1 and once the right one's 3.
    assert released[1:].tolist() == pytest.approx([-1 - (3 - 14) / 15] * 15)
    # 144 completions: u = 144 and sqrt 144 - 1 = 11, which the bound of 10 cuts; the forward KL (alpha 0) has u - 1, cut at 10.
    rewards, seen = one_right(144)
    assert float(Filtered(form="released")(rewards, seen)[0, 0]) == pytest.approx(11)
    rewards, seen = one_right(16)
    assert float(Filtered(0.0, form="released")(rewards, seen)[0, 0]) == pytest.approx(11)


def test_the_released_alpha_dpg_holds_its_divisor_at_1():
    """One right of 2, reference 4 times as likely: mean u Z = 2, held at 1, so u = 4 and not 2."""
    rewards, seen = one_right(2, math.log(4))
    assert float(Filtered(form="released")(rewards, seen)[0, 0]) == pytest.approx((4**0.5 - 1) + 1)
    assert float(Filtered()(rewards, seen)[0, 0]) == pytest.approx((2**0.5 - 1) / 0.5 + 2)


def test_maxrl_keeps_the_weight_of_a_kl():
    """As P -> 1 its force is that of log P whole, and Dr. GRPO's (G - 1)/G of P: only the latter shrinks beta with it."""
    for q, share in ((1.0, 1.0), (0.0, 7 / 8)):
        assert slope(PowerNormalized(q), 1 - 1e-5, 8) == pytest.approx(share, abs=1e-4)
        assert kl_share(maxrl(q=q).advantage, 8) == share


def test_distinct_pays_what_companions_do_not_give():
    """Copies 2, 2, 1: U = 4 C(6, 3) / C(7, 3) = 16/7 twice and 4; the baseline is the others' mean without the row."""
    part = DistinctRight(4)
    found = part(REWARDS, SEEN)[0]
    without = [4 * 1.0, 4 * (10 / 20)]  # of U among 7: a lone answer is unmet for sure by 3 of 6; two copies: C(5,3)/C(6,3)
    first = 16 / 7 - (without[0] + without[0]) / 7
    fifth = 4 - (2 * without[1]) / 7
    third = 0 - (2 * without[1] + without[0]) / 7
    assert found.tolist() == pytest.approx([first, first, third, third, fifth, third, third, third])


def test_distinct_is_unbiased():
    """pi = (.30, .10, .05 right; .40, .15 wrong), k = 4: the gradient of sum over right a of 1 - (1 - pi_a)^4 on logits."""
    pi, right = [0.30, 0.10, 0.05, 0.40, 0.15], [True] * 3 + [False] * 2
    found = [p * v for p, v in zip(pi, values(DistinctRight(4), pi, pi, right, 5), strict=True)]
    assert found == pytest.approx([0.149197, 0.204133, 0.127741, -0.349870, -0.131201], abs=2e-6)


@pytest.mark.parametrize("k, size, near", [(2, 10, 0.16), (4, 8, 0.2), (8, 8, 0.5), (10, 10, 0.5)])
def test_the_log_of_distinct_is_about_its_logarithm(k: int, size: int, near: float):
    """grad log D = k (1 - pi)^(k-1) / D on each right answer, minus its mean; at k = G too, where all pay may be 0."""
    pi, right = [0.30, 0.10, 0.05, 0.40, 0.15], [True] * 3 + [False] * 2
    there = [k * (1 - p) ** (k - 1) * r for p, r in zip(pi, right, strict=True)]
    found = sum(r - r * (1 - p) ** k for p, r in zip(pi, right, strict=True))
    mean = sum(p * v for p, v in zip(pi, there, strict=True))
    wanted = [(v - mean) / found for v in there]
    assert values(DistinctRight(k, 1.0), pi, pi, right, size) == pytest.approx(wanted, abs=near)
    for p in (0.05, 0.2, 0.6):
        own = values(DistinctRight(k, 1.0), [p, 1 - p], [p, 1 - p], [True, False], size)
        limit = k * (1 - p) ** (k - 1) / (1 - (1 - p) ** k)
        assert 0 < own[0] - own[1] < 1.3 * limit, "a right answer alone is never pushed down"


def test_log_of_distinct_by_hand():
    """Copies 2, 2, 1 of 8, k = 4: D = (1 - C(6,4)/C(8,4)) + (1 - C(7,4)/C(8,4)) = 55/70 + 35/70."""
    assert torch.allclose(DistinctRight(4, 1.0)(REWARDS, SEEN), DistinctRight(4)(REWARDS, SEEN) / (90 / 70))


def test_one_right_answer_makes_distinct_pass_at_k():
    pi, right = [0.3, 0.5, 0.2], [True, False, False]
    there = values(DistinctRight(3), pi, pi, right, 6)
    assert there == pytest.approx(values(PassAtKAdvantage(3), pi, pi, right, 6), abs=1e-6)


def test_alpha_dpg_by_hand():
    """rho = (e^-.5, e^-.5, e), Z = .491418: u - 1 and 2 (sqrt u - 1), each minus the others' mean."""
    plain = torch.tensor([0.234246, 0.234246, -1, -1, 4.531508, -1, -1, -1])
    assert torch.allclose(Filtered(0.0)(REWARDS, SEEN)[0], plain * 8 / 7, atol=1e-5)
    half = torch.tensor([0.221933, 0.221933, -2, -2, 2.703831, -2, -2, -2])
    assert torch.allclose(Filtered(0.5)(REWARDS, SEEN)[0], (half - half.mean()) * 8 / 7, atol=1e-5)


def test_alpha_dpg_at_the_reference_is_maxrl():
    seen = GroupSignals(SEEN.lengths, SEEN.policy, SEEN.policy)
    assert torch.allclose(Filtered(0.0)(REWARDS, seen), PowerNormalized()(REWARDS) * 8 / 7, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("size", [2, 4])
def test_alpha_dpg_with_the_exact_z_descends_the_divergence_itself(alpha: float, size: int):
    """D = (1 - sum p^(1 - alpha) pi^alpha) / (alpha (1 - alpha)), p the reference given right; at 0 KL(p || pi): on a tree with
    completions of several lengths, gradients in every logit, at any group size. The group's own Z is biased there."""
    tree = TokenTree([(0, 0), (0, 1, 0), (0, 1, 1), (1,), (2, 0)])
    logits, reference = (torch.randn(tree.allowed.shape, generator=torch.Generator().manual_seed(n)).double() for n in (1, 2))
    rewards = torch.tensor([1.0, 0, 1, 0, 1])
    leaf = logits.clone().requires_grad_(True)
    target = tree.probs(reference) * rewards
    target, policy = (target / target.sum())[rewards == 1], tree.probs(leaf)[rewards == 1]
    if alpha == 0:
        divergence = (target * (target / policy).log()).sum()
    else:
        divergence = (1 - (target ** (1 - alpha) * policy**alpha).sum()) / (alpha * (1 - alpha))
    (wanted,) = torch.autograd.grad(divergence, leaf)
    found = {}
    for z in ("exact", "group"):
        method = alpha_dpg(alpha=alpha, clip=1e6, z=z)  # divides by max_tokens = 3
        found[z] = 3 * tree.expected_gradient(method, logits, reference, rewards, group_size=size)
        assert method.needs >= {"logps", "ref_logps"} and ("ref_right" in method.needs) == (z == "exact")
    assert torch.allclose(found["exact"], wanted, atol=1e-5) and wanted.abs().max() > 0.1
    assert not torch.allclose(found["group"], wanted, atol=0.02)


def test_smoothing_by_hand():
    """Population std .484123; lengths 4, of the fifth 5: 1.290992 + .05 * 2/4, + .05 * 4/5 (its log-prob is -4)."""
    seen = GroupSignals(torch.tensor([[4, 4, 4, 4, 5, 4, 4, 4]]), SEEN.policy)
    found = DifferentialSmoothing()(REWARDS, seen)[0]
    assert found[[0, 4]].tolist() == pytest.approx([1.315992, 1.330992], abs=1e-6)
    assert found[2] == pytest.approx(-0.774595 - 0.05 * 3 / 4, abs=1e-5)  # a wrong one: less where it is unlikely
    assert torch.allclose(
        DifferentialSmoothing(0, 0)(REWARDS, seen), GroupNormalized()(REWARDS) * (8 / 7) ** 0.5, atol=1e-3
    )


def test_ucpo_by_hand():
    """Right log-probs per token -.5, -.5, -1: shares (e^.5, e^.5, e) / (2 e^.5 + e) of 3, at tau .2."""
    found = (UniformRight()(REWARDS, SEEN) / GroupNormalized()(REWARDS))[0]
    total = 2 * math.exp(0.5) + math.exp(1.0)
    wanted = [0.8 + 0.2 * 3 * math.exp(0.5) / total, 0.8 + 0.2 * 3 * math.exp(1.0) / total]
    assert found.tolist() == pytest.approx([wanted[0], wanted[0], 1, 1, wanted[1], 1, 1, 1], abs=1e-5)
    assert float(found[REWARDS[0] == 1].mean()) == pytest.approx(1)
    assert torch.equal(UniformRight(0.0)(REWARDS, SEEN), GroupNormalized()(REWARDS))


@pytest.mark.parametrize("part", [*BLIND, *SEEING], ids=str)
@given(seed=st.integers(0, 10_000))
def test_laws(part, seed: int):
    """Order of rows and groups follows; groups without a right one give exactly 0; float32, finite, no gradient."""
    chance = torch.Generator().manual_seed(seed)
    rewards = (torch.rand(3, 8, generator=chance) < torch.rand(3, 1, generator=chance)).float()
    rewards[0] = 0.0
    logs = -4 * torch.rand(2, 3, 8, generator=chance)
    seen = GroupSignals(torch.ones(3, 8).long(), logs[0], logs[1], torch.randint(0, 4, (3, 8), generator=chance))
    found = of(part, rewards, seen)
    assert found.dtype == torch.float32 and bool(found.isfinite().all()) and not found.requires_grad
    if not (isinstance(part, PassAtKAdvantage) and part.baseline == "sloo"):
        assert not found[0].any()
    order, groups = torch.randperm(8, generator=chance), torch.tensor([2, 0, 1])
    there = GroupSignals(
        *(None if v is None else v[groups][:, order] for v in (seen.lengths, seen.policy, seen.reference, seen.answers))
    )
    assert torch.allclose(of(part, rewards[groups][:, order], there), found[groups][:, order], atol=1e-5)


@given(shift=st.integers(1, 50))
def test_names_of_answers_do_not_matter(shift: int):
    renamed = GroupSignals(SEEN.lengths, SEEN.policy, SEEN.reference, (SEEN.answers * 7 + shift) % 101)
    assert torch.equal(DistinctRight(4)(REWARDS, renamed), DistinctRight(4)(REWARDS, SEEN))


@pytest.mark.parametrize(
    "part, rewards, words",
    [
        (PowerNormalized(), [[1.0, -0.5]], "reward of prompt 0, completion 1 is -0.5"),
        (PassAtKAdvantage(4), [[1.0, 0.0]], "k = 4 with groups of 2"),
        (PassAtKAdvantage(2, "sloo"), [[1.0, 0.0]], "needs k <= 1"),
        (PassAtKAdvantage(2), [[0.5, 0.0]], "must be 0 or 1"),
        (AnalyticPassAtK(2), [[0.5, 0.0, 0.0]], "must be 0 or 1"),
        (AnalyticPassAtK(3), [[1.0, 0.0]], "needs k <= 2"),
        (DistinctRight(4), [[1.0, 0.0]], "k = 4 with groups of 2"),
        (DistinctRight(2), [[0.5, 0.0]], "prompt 0, completion 0 is 0.5"),
        (Filtered(), [[1.0, -1.0]], "prompt 0, completion 1 is -1"),
        (Signed(), [[0.5, 0.0]], "must be 0 or 1"),
        (RiskSeeking(), [[1.0]], "at least 2"),
    ],
)
def test_rewards_that_cannot_be_read(part, rewards, words: str):
    with pytest.raises(DataError, match=words):
        of(part, torch.tensor(rewards))


def test_what_was_not_computed_is_named():
    with pytest.raises(DataError, match="DistinctRight reads 'answers'"):
        DistinctRight(2)(REWARDS, GroupSignals(SEEN.lengths, SEEN.policy))
    with pytest.raises(DataError, match="Filtered reads 'reference'"):
        Filtered()(REWARDS, GroupSignals(SEEN.lengths, SEEN.policy))
    with pytest.raises(DataError, match="Filtered reads 'ref_right'"):
        Filtered(z="exact")(REWARDS, SEEN)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PowerNormalized(-1.0), lambda: PowerNormalized(3.0), lambda: RiskSeeking(0.0), lambda: PassAtKAdvantage(0),
        lambda: PassAtKAdvantage(True), lambda: PassAtKAdvantage(Linear(8, 0)),
        lambda: PassAtKAdvantage(2, "loo"), lambda: AnalyticPassAtK(0), lambda: Signed(0.0, 0.0),
        lambda: Signed(-1.0, 1.0), lambda: Signed(normalize_by="rows"),
        lambda: Method("", Signed(normalize_by="kept"), Clip(), None, TokenMean()),
        lambda: Method("", Signed(normalize_by="tokens"), Clip(), None, FixedBudget()),
        lambda: DistinctRight(0), lambda: DistinctRight(2, 3.0), lambda: Filtered(1.0), lambda: Filtered(clip=1.0),
        lambda: Filtered(z="mean"),
        lambda: DifferentialSmoothing(-1.0), lambda: UniformRight(2.0),
    ],
)  # fmt: skip
def test_settings_that_mean_nothing(make):
    with pytest.raises(ConfigError):
        make()
