"""The term of a buffer on the tree: its expected gradient is the one written down, and where descent on it comes to rest."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.theory import TokenTree
from lab.theory.utility import SHARES, axes, values
from sage_rlvr.contrib.replay.dph import Rehearsal
from sage_rlvr.contrib.replay.replay import Replay
from sage_rlvr.contrib.replay.rft import Likelihood, rft
from sage_rlvr.core import Clip, Key
from sage_rlvr.core.extras.replay.answers import Answers
from sage_rlvr.core.extras.replay.base import buffer_budget, buffer_loss
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import no_kl, rloo

RAGGED = TokenTree([(0,), (1, 0), (1, 1, 0), (1, 1, 2), (2, 1)])
RIGHT = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
WIDE = Clip(1.0, 1e6)
seeds = st.integers(0, 2**31 - 1)


def logits(seed: int, tree: TokenTree = RAGGED) -> torch.Tensor:
    return torch.randn(tree.allowed.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alone(buffer):
    return replace(no_kl(), extras=(replace(buffer, alone=True),))


def of_formula(formula, at: torch.Tensor, tree: TokenTree = RAGGED) -> torch.Tensor:
    """d formula(log pi of the leaves, log pi per token) / d logits, over the longest completion's length."""
    leaf = at.clone().requires_grad_(True)
    logps = tree.logps(leaf)
    value = formula(logps.sum(1), logps) / int(tree.lengths.max())
    return torch.autograd.grad(value, leaf)[0]


def base_shares(ref: torch.Tensor) -> torch.Tensor:
    mass = torch.where(RIGHT > 0, RAGGED.probs(ref), 0.0)
    return mass / mass.sum()


FORMULAS = {
    "uniform": (Likelihood(), lambda ref: lambda y, t: -y[RIGHT > 0].mean()),
    "as often as found": (
        Likelihood(law="found"),
        lambda ref: lambda y, t: -(y[RIGHT > 0].softmax(0).detach() * y[RIGHT > 0]).sum(),
    ),
    "the right set": (Likelihood(law="policy"), lambda ref: lambda y, t: -y[RIGHT > 0].logsumexp(0)),
    "forward KL from the base restricted to right answers": (
        Likelihood(law="base", base=4, policy=False),
        lambda ref: lambda y, t: (torch.special.xlogy(base_shares(ref), base_shares(ref)) - base_shares(ref) * y).sum(),
    ),
    "rehearsal": (
        Rehearsal(),
        lambda ref: lambda y, t: (base_shares(ref)[:, None] * RAGGED.mask * ((t - RAGGED.logps(ref)).exp() - t)).sum(),
    ),
}


BASE_LAW = "forward KL from the base restricted to right answers"


@pytest.mark.parametrize("name", FORMULAS)
@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_the_expected_gradient_is_the_one_written_down(name: str, seed: int):
    buffer, formula = FORMULAS[name]
    at, ref = logits(seed), logits(seed + 1)
    found = RAGGED.expected_gradient(alone(replace(buffer, weight=0.3)), at, ref, RIGHT)
    assert torch.allclose(found, 0.3 * of_formula(formula(ref), at), atol=1e-7)


def test_rehearsal_of_everything_is_the_forward_kl_to_the_base():
    """On one token, all of it stored: pi - base on the logits."""
    tree = TokenTree.bandit(4)
    at, ref = logits(1, tree), logits(2, tree)
    found = tree.expected_gradient(alone(Rehearsal()), at, ref, torch.ones(4))
    assert torch.allclose(found[0], tree.probs(at) - tree.probs(ref), atol=1e-7)
    policy, base = (tree.logits_of(torch.tensor(law)) for law in ([0.5, 0.3, 0.2, 1e-9], [0.2, 0.3, 0.5, 1e-9]))
    value = float(tree.expected_loss(alone(Rehearsal()), policy, base, torch.ones(4)))
    assert value == pytest.approx(0.274887, abs=1e-6)  # KL(base || pi)


@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_replay_is_the_importance_weighted_gradient_of_the_right_ones(seed: int):
    """One token, no clip, whatever policy wrote them: -sum over right y of pi(y) A(y) grad log pi(y), A as at that rollout."""
    tree, right = TokenTree.bandit(4), torch.tensor([1.0, 0.0, 1.0, 0.0])
    at, old = logits(seed, tree), logits(seed + 1, tree)
    method = replace(rloo(), extras=(Replay(alone=True, surrogate=WIDE),))
    found = tree.expected_gradient(method, at, at, right, old_logits=old, group_size=4)
    lone = torch.tensor([1.0 - float((tree.probs(old) * right).sum())] * 4)  # RLOO: A = 1 - mean of the others
    formula = of_formula(lambda y, t: -(y.exp() * lone * right).sum(), at, tree)
    assert torch.allclose(found, formula, atol=1e-6)


def test_a_mean_over_all_rollouts_is_the_term_and_the_right_part_of_a_later_update():
    """Each group of three through `of_rollout`, `add`, a draw and the loss: what the listing says, and what `objective` has."""
    at, old, size = logits(3), logits(4), 3
    method = replace(rloo(), extras=(Replay(),))
    buffer, probs, logps = method.buffer, RAGGED.probs(old), RAGGED.logps(at)
    with torch.no_grad():
        wrote = RAGGED.logps(old).float()
    total = torch.zeros(())
    for group in itertools.product(range(5), repeat=size):
        members = torch.tensor(group)
        rewards = RIGHT[members][None]
        new = Answers.of_rollout(
            torch.tensor([7]), rewards, members[None], members[:, None].expand(-1, 3), RAGGED.mask[members], wrote[members], 5,
            method.advantage(rewards),
        )  # fmt: skip
        rows = replace(buffer.rows(buffer.rule.add(Answers.none(), new), 0, Key(0)), requested_prompts=1)
        loss, _ = buffer_loss(buffer, logps[rows.answers.answer][:, : rows.mask.shape[1]], rows, buffer_budget(buffer, rows, 3))
        total = total + float(probs[members].prod()) * loss
    stored = replace(method, extras=(replace(buffer, alone=True),))
    term = RAGGED.expected_loss(stored, at, at, RIGHT, old_logits=old, group_size=size)
    assert float((total - term).abs().detach()) < 1e-6
    advantage = 1.0 - float((probs * RIGHT).sum())
    ratios = (logps - wrote).exp().clamp(max=1.2)
    by_hand = -(probs * RIGHT * advantage * (ratios * RAGGED.mask).sum(1)).sum() / 3
    assert float((term - by_hand).abs().detach()) < 1e-6


@pytest.mark.parametrize("weight", [0.0, 0.25, 2.0])
def test_beside_a_policy_gradient_it_is_the_known_combination(weight: float):
    """RLOO ascends P, the right set's likelihood log P: (1 + w / P) grad P. With weight 0 RLOO, bit for bit."""
    at = logits(5)
    found = RAGGED.expected_gradient(replace(rloo(), extras=(Likelihood(law="policy", weight=weight),)), at, at, RIGHT)
    chance = float((RAGGED.probs(at) * RIGHT).sum())
    wanted = of_formula(lambda y, t: -(1 + weight / chance) * (y.exp() * RIGHT).sum(), at)
    assert torch.allclose(found, wanted, atol=1e-6)
    plain = RAGGED.expected_gradient(rloo(), at, at, RIGHT)
    assert torch.equal(found, plain) is (weight == 0.0)


# ---- where it leads: support kept, gained and lost

REF = torch.tensor([0.60, 0.25, 0.001, 0.049, 0.10], dtype=torch.float64)
"""Right are .25, .001 and .10: the second is what sampling hardly finds."""


def rest_of(buffer, stored=None, **options) -> torch.Tensor:
    found = RAGGED.descend(alone(buffer), RAGGED.logits_of(REF), RIGHT, stored=stored, tolerance=1e-4, **options)
    return found.probs


def support(probs: torch.Tensor, least: float = 0.02) -> tuple[list[int], list[int], list[int]]:
    """Right answers kept, gained and lost: of a chance of at least `least`, before and after."""
    had, has = (set(((RIGHT > 0) & (p >= least)).nonzero()[:, 0].tolist()) for p in (REF, probs))
    return sorted(had & has), sorted(has - had), sorted(had - has)


def test_support_of_each_objective():
    """Uniform gains the rare answer; the base's law keeps its shares; rehearsal keeps the base's chances as well. The right set's
    likelihood is at rest wherever the wrong have gone: nothing is gained, and the shares are those of the way there."""
    uniform, among, base = (rest_of(one) for one in (Likelihood(), Likelihood(law="policy"), FORMULAS[BASE_LAW][0]))
    assert torch.allclose(uniform[RIGHT > 0], torch.full((3,), 1 / 3, dtype=torch.float64), atol=1e-2)
    assert torch.allclose(base, REF * RIGHT / (REF * RIGHT).sum(), atol=1e-2) and float((among * RIGHT).sum()) > 0.999
    assert support(uniform) == ([1, 4], [2], []) and support(base) == support(among) == ([1, 4], [], [])
    held = rest_of(Rehearsal())
    assert torch.allclose(held, REF, atol=1e-6) and support(held) == ([1, 4], [], [])


def test_an_answer_that_is_not_stored_is_lost():
    """What the store does not hold is forgotten, and be it the likeliest: likelihood covers the modes of the store alone."""
    only = torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0])
    found = rest_of(Likelihood(), stored=only)
    assert support(found) == ([4], [2], [1]) and torch.allclose(found[[2, 4]], torch.full((2,), 0.5).double(), atol=1e-2)


def test_a_policy_gradient_beside_it_does_not_bring_the_lost_answer_back():
    """RLOO with the likelihood of the stored ones: at rest among all right answers only the stored are paid twice."""
    only = torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0])
    mixed = replace(rloo(), extras=(Likelihood(weight=0.5),))
    found = RAGGED.descend(mixed, RAGGED.logits_of(REF), RIGHT, stored=only, tolerance=1e-3).probs
    assert support(found) == ([4], [2], [1]) and float((found * RIGHT).sum()) > 0.95


# ---- the map


def test_the_axes_of_stored_answers():
    """All likelihoods ascend log P: f'(P) = 1 / P, not truncated; they differ in which right answers gain."""
    wanted = [pytest.approx(1 / p, rel=1e-4) for p in SHARES]
    for law, concentration, returning in (("uniform", -1.0, -1.0), ("policy", 1.0, 1.0), ("base", 1.0, -1.0)):
        found = axes(rft(law=law))
        assert list(found.weights) == wanted
        assert (found.concentration, found.returning) == pytest.approx((concentration, returning), abs=1e-4)
    replayed = replace(rloo(), extras=(Replay(weight=0.5),))  # A = .6 and -.4, and .3 more where right, .12 on average
    assert values(replayed, [0.3, 0.1, 0.6], [0.3, 0.1, 0.6], [True, True, False], 4) == pytest.approx([0.78, 0.78, -0.52])


def test_listing_groups_is_refused():
    with pytest.raises(ConfigError, match="other rollouts than this group"):
        RAGGED.expected_loss(alone(Likelihood()), logits(0), logits(0), RIGHT, brute_force=True)
