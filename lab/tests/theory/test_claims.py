"""Every claim is as expected, a wrong formula or a wrong estimator is caught, and hand-worked numbers stand on both sides."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from lab.theory import TokenTree, claims, expected
from lab.theory import optima as closed
from lab.theory.claims import (
    Claim,
    appendix_c,
    equations,
    lab,
    leash,
    off_target,
    placements,
    stationary,
    support,
)
from sage_rlvr.core import Anchor, GroupCentered, GroupNormalized, LeaveOneOut, Method, kl
from sage_rlvr.core.guides import Branch, Flat
from sage_rlvr.errors import CancellingGuide, ConfigError

SLOW = "Where training comes to rest"


@cache
def found(title: str) -> tuple[Claim, ...]:
    result = claims.ALL[title]()
    return tuple(result) if isinstance(result, list) else (result,)


def named() -> dict[str, Claim]:
    return {claim.name: claim for title in claims.ALL if title != SLOW for claim in found(title)}


@pytest.mark.slow
@pytest.mark.parametrize("title", [title for title in claims.ALL if title != SLOW])
def test_every_claim_is_as_expected(title):
    assert found(title)
    assert not [f"{c.name}: {c.left} {c.relation} {c.right}" for c in found(title) if c.holds is not c.expected]


@pytest.mark.slow
def test_every_claim_says_what_it_says():
    every = list(named().values())
    assert len(every) > 80 and len({claim.name for claim in every}) == sum(
        len(found(t)) for t in claims.ALL if t != SLOW
    )
    assert all(claim.source and claim.statement for claim in every)
    assert all(claim.note for claim in every if claim.name in ("4.2/optimum", "4.2/shared-tokens", "4.3/k3-branch"))
    assert sum(not claim.expected for claim in every) > 15


def test_hand_worked_numbers_stand_on_both_sides():
    wanted = {
        "eq4/three": (0.651646, 0.171972, 0.176382),
        "eq21/three": (0.532732, 0.196652, 0.270616),
        "eq27/k3": (0.39025, 0.585375, 0.024375),
        "eq27/lam": 1.025625,
        "eq27/right-mass": (0.965535, 0.952624, 0.710977),
        "eq27/shaped": (0.657168, 0.169246, 0.173586),
        "place/k3-reward": (0.020702, -0.082466, 0.061764),
        "place/length-artifact": (-0.037406, 0.037406, 0.0, 0.0),
    }
    every = named()
    for name, value in wanted.items():
        assert every[name].left == pytest.approx(value, abs=3e-6), name
        assert every[name].right == pytest.approx(value, abs=3e-6), name
    condition = every["4.3/condition"]
    assert (condition.left, condition.right) == pytest.approx((1.346154, 1.2), abs=1e-6)
    assert every["4.3/conclusion"].left == pytest.approx(0.134615, abs=1e-6)


def test_appendix_c_by_hand():
    """Entropy of (.9, .02, .08) is .3751, of eight equal tokens log 8: q = 1 and 1 + .3 (2.0794 - 1.2) = 1.2638.

    Eq. (2) at beta = 1/4: (.9 + .0025) e^4 + .0975 = 49.3728, so pi(y) = .0025 e^4 / 49.3728 = .0027646.
    """
    world = appendix_c.rare(8)
    assert world.q[0] == 1.0 and float(world.q[world.leaf]) == pytest.approx(1.263832, abs=1e-5)
    assert float(world.rlvr[world.leaf]) == pytest.approx(0.0027646, abs=1e-7)
    behind = (0.0025 * math.e**4 + 0.0175) / 49.3728
    assert world.reached == pytest.approx(1.263832 / (1 + 0.263832 * behind), abs=1e-5)
    assert float(appendix_c.rare(30).q[appendix_c.rare(30).leaf]) == pytest.approx(1.4, abs=1e-6)
    assert float(appendix_c.rare(30, 2).q[appendix_c.rare(30, 2).leaf]) == pytest.approx(1.96, abs=1e-6)
    assert torch.allclose(appendix_c.uncertain_first_token().q, appendix_c.uncertain_first_token().q[0])
    assert float(appendix_c.uncertain_first_token().q[0]) > 1.05


# ---- a wrong formula is caught


def _broken(function, monkeypatch, owner, name, wrong) -> set[str]:
    """Names of the claims of `function` that are not as expected once `owner.name` is `wrong`."""
    monkeypatch.setattr(owner, name, wrong)
    result = function()
    return {claim.name for claim in (result if isinstance(result, list) else [result]) if not claim.as_expected}


def _hotter(ref, rewards, beta, q=None):
    return closed.reverse_kl_optimum(ref, rewards, 1.01 * beta, q)


def _without_q(ref, rewards, beta, q=None):
    return closed.reverse_kl_optimum(ref, rewards, beta)


def _untempered(ref, rewards, beta, c, q=None):
    return closed.reverse_kl_optimum(ref, rewards, beta + c, q)


def _normalized(probs, anchor):
    return closed.pseudo_kl(probs, anchor / anchor.sum())


def _for_lam(ref, rewards, beta, q=None):
    exact = closed.forward_kl_optimum(ref, rewards, beta, q)
    return exact._replace(probs=exact.probs**0.9 / (exact.probs**0.9).sum(), gap=1.1 * exact.gap)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "owner", "name", "wrong", "caught"),
    [
        (equations.equations_2_and_4, equations, "reverse_kl_optimum", _hotter, {"eq2/optimum", "eq4/optimum", "eq4/three"}),
        (equations.equations_2_and_4, equations, "reverse_kl_optimum", _without_q, {"eq4/optimum", "eq4/three"}),
        (equations.entropy_bonus, equations, "entropy_optimum", _untempered, {"eq21/optimum", "eq21/three"}),
        (equations.equation_5, equations, "pseudo_kl", closed.unnormalized_kl, {"eq5/mass", "eq5/sign"}),
        (equations.equation_8, equations, "pseudo_kl", _normalized, {"eq8/decomposition"}),
        (off_target.equation_27, off_target, "forward_kl_optimum", _for_lam, {"eq27/k3", "eq27/exact", "eq27/shaped"}),
        (support._equivalence, support, "reverse_kl_optimum", _without_q, {"4.3/equivalence"}),
        (leash.without_a_leash, leash, "reverse_kl_optimum", lambda ref, *_: ref, {"leash/limit"}),
    ],
)  # fmt: skip
def test_a_wrong_closed_form_is_caught(monkeypatch, function, owner, name, wrong, caught):
    assert caught <= _broken(function, monkeypatch, owner, name, wrong)


def test_another_estimator_under_the_same_name_is_caught(monkeypatch):
    monkeypatch.setitem(kl._TWO_ARGUMENTS, "k3", kl.k2)
    broken = {claim.name for claim in placements.k3_in_the_loss() if not claim.as_expected}
    assert {"place/k3-loss", "place/k3-loss/state-q", "place/k3-loss/not-reverse"} <= broken
    assert not [claim for claim in off_target.equation_27()[:1] if claim.as_expected]


def test_a_ratio_that_left_the_graph_is_caught(monkeypatch):
    broken = _broken(
        placements.unbiased_in_the_loss, monkeypatch, kl, "k3_is",
        lambda logps, ref, old: (logps - old).exp().detach() * kl.k3(logps, ref),
    )  # fmt: skip
    assert {"place/k3_is-loss", "place/k3_is-loss/state-q"} <= broken
    assert not [name for name in broken if "k2" in name]


def test_a_reward_without_return_to_go_is_caught(monkeypatch):
    def own_token(signals, log_q):
        return torch.where(signals.mask, signals.old_logps - signals.ref_logps - log_q, 0.0)

    broken = _broken(placements.reward_k1, monkeypatch, expected, "return_to_go", own_token)
    assert broken == {"place/k1-reward", "place/k1-reward/state-q", "place/k1-reward/token-q"}


def test_steps_longer_than_said_are_caught(monkeypatch):
    real = lab.train
    trained = tuple(
        (rate, real(lab.RAGGED, lab.method_of(None, GroupCentered()), lab.table(lab.RAGGED, 6), lab.RAGGED_REWARDS,
                    rate=60 * rate, steps=20, group=6, seed=0))
        for rate in leash.RATES[:1]
    )  # fmt: skip
    assert "leash/bound" in _broken(leash.bounded_rise, monkeypatch, leash, "_trainings", lambda: trained)


# ---- the laboratory behind the claims


def test_the_refused_pairs_are_refused():
    """What the claims of "Refused pairs" sum by hand no anchor can be made of; nor of Branch under a corrected k3."""
    for estimator, placement in (("k1", "loss"), ("k3", "reward"), ("k2", "reward")):
        with pytest.raises(ConfigError):
            Anchor(0.1, estimator=estimator, placement=placement)
    for estimator in placements.UNBIASED:
        with pytest.raises(CancellingGuide):
            Anchor(0.1, Branch(), estimator)


def test_a_detectable_share():
    """(1 - eps)^n = 1 - zeta."""
    eps = support.detectable(0.05, 800)
    assert (1 - eps) ** 800 == pytest.approx(0.95, abs=1e-12) and eps == pytest.approx(6.4115e-5, rel=1e-4)


def test_ascent_finds_a_maximum_and_keeps_its_start():
    start = torch.zeros(2)
    top = lab.ascend(lambda x: -((x - torch.tensor([1.0, -2.0])) ** 2 * torch.tensor([1.0, 300.0])).sum(), start)
    assert top.tolist() == pytest.approx([1.0, -2.0], abs=1e-9) and not bool(start.any())


def test_many_bandits_take_the_step_that_the_loop_takes():
    """One step of the vectorised twin, from its own draws, equals plain descent on the loop's objective."""
    probs, rewards = torch.tensor([0.2, 0.5, 0.3]).double(), torch.tensor([1.0, 0.0, 1.0])
    after, draws = lab.many_bandits(probs, rewards, runs=20, rate=0.7, steps=1, group=4, seed=0)
    tree, method = TokenTree.bandit(3), lab.method_of(None, GroupCentered())
    start = tree.logits_of(probs)
    for run in range(20):
        rows = torch.repeat_interleave(torch.arange(3), draws[run])
        moved = start - 0.7 * lab._sampled_gradient(tree, method, start, start, rewards, rows, 0)
        assert torch.allclose(tree.probs(moved), after[run], atol=1e-6)
    assert len(draws.unique(dim=0)) > 5


def test_training_is_a_function_of_its_seed():
    method = lab.method_of(Anchor(0.05), GroupCentered())
    arguments = (lab.RAGGED, method, lab.table(lab.RAGGED, 1), lab.RAGGED_REWARDS)
    runs = [lab.train(*arguments, rate=0.3, steps=5, group=4, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(runs[0].probs, runs[1].probs) and not torch.equal(runs[0].probs, runs[2].probs)
    assert int(runs[0].draws.sum()) == 20 and runs[0].probs.shape == (6, len(lab.RAGGED))


@pytest.mark.parametrize("advantage", [GroupNormalized(), GroupCentered(), LeaveOneOut()])
@pytest.mark.parametrize("right", [0.03, 0.5, 0.9])
def test_kappa_is_the_mean_advantage_of_the_loop(advantage, right):
    """kappa by a binomial sum against `mean_advantages`, which calls the advantage itself on every composition."""
    tree = TokenTree.bandit(2)
    start = tree.logits_of(torch.tensor([right, 1 - right]))
    listing = tree.listing(start, start, torch.tensor([1.0, 0.0]))
    method = Method("x", advantage, lab.Clip(), None, lab.FixedBudget(1))
    means, _ = expected.mean_advantages(method, listing, stationary.GROUP)
    assert stationary.kappa(advantage, right) == pytest.approx(float(means[0] - means[1]), rel=1e-5)


# ---- where training comes to rest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guide", "term", "advantage", "eq4"),
    [
        ("token", ("k3", "loss"), 2, False),
        ("token", ("k2", "loss"), 1, False),
        ("state", ("k3_is", "loss"), 0, False),
        ("token", ("k1", "reward"), 0, False),
        ("state", ("k1", "reward"), 1, True),
    ],
)
def test_a_row_rests_at_its_closed_form(guide, term, advantage, eq4):
    row = stationary._row(guide, term, advantage, 2)
    assert row.converged and row.to_closed_form < 5e-5
    assert (row.to_eq4 < 5e-5) is eq4
    assert row.right == pytest.approx(row.probs[0] + row.probs[2] + row.probs[4])
    if guide == "state":
        assert (row.moved < 5e-5) is (term[0] == "k3_is") and row.wanted > 0.01


def test_a_closed_form_with_another_beta_is_another_policy():
    flat = stationary.log_q_of("none")
    for estimator in ("k1", "k3", "k2"):
        first, second = (stationary.closed_form(estimator, b, flat) for b in (0.3, 0.33))
        assert float(first.sum()) == pytest.approx(1.0, abs=1e-12)
        assert closed.total_variation(first, second) > 1e-3


def test_the_table_in_markdown():
    row = stationary.StationaryRow(
        guide="state", estimator="k3", placement="loss", advantage="GroupCentered", reduction="SequenceMean",
        probs=(0.5, 0.5), right=0.5, to_eq4=0.125, moved=0.25, wanted=0.0625, beta_effective=math.nan,
        to_closed_form=math.nan, steps=3, converged=True,
    )  # fmt: skip
    text = claims.stationary_markdown([row, replace(row, reduction="TokenMean", beta_effective=0.343)]).splitlines()
    assert len(text) == 4 and len({line.count("|") for line in text}) == 1
    assert "| k3 in the loss | GroupCentered | SequenceMean | 0.500 | 0.125 | 0.250 | 0.062 |  |" in text[2]
    assert text[3].endswith("| 0.34 |")


@pytest.mark.slow
def test_the_whole_table():
    rows = claims.stationary_table()
    assert len(rows) == 3 * (4 * 9 + 6)
    assert not [claim.name for claim in found(SLOW) if not claim.as_expected]
    assert [claim.name for claim in claims.run_all()][:1] == ["eq2/optimum"]


# ---- what a claim is


def claim(left, right, relation="=", tolerance=0.0, **more) -> Claim:
    return Claim("a/b", "source", "left is right", left, right, relation, tolerance, **more)


@pytest.mark.parametrize(
    ("left", "relation", "right", "tolerance", "holds"),
    [
        (1.0, "=", 1.05, 0.1, True),
        (1.0, "=", 1.2, 0.1, False),
        (1.0, "!=", 1.2, 0.1, True),
        (1.0, "!=", 1.05, 0.1, False),
        (1.1, ">", 1.0, 0.0, True),
        (1.1, ">", 1.0, 0.2, False),
        (1.0, "<", 1.0, 0.0, False),
        (1.0, ">=", 1.0, 0.0, True),
        (1.1, "<=", 1.0, 0.0, False),
        ((1.0, 2.0), "=", (1.0, 2.0), 0.0, True),
        ((1.0, 2.0), "=", (1.0, 2.1), 0.05, False),
        ((1.0, 2.0), "!=", (1.0, 2.1), 0.05, True),
        ((3.0, 2.0), ">", (1.0, 2.1), 0.0, False),
        (math.nan, "=", math.nan, 1.0, False),
        ((1.0, math.nan), "!=", (1.0, 2.0), 0.0, False),
    ],
)
def test_relations(left, relation, right, tolerance, holds):
    assert claim(left, right, relation, tolerance).holds is holds


def test_what_was_found_cannot_be_given():
    made = claim(1.0, 1.0)
    assert made.holds and not replace(made, left=2.0).holds
    with pytest.raises(TypeError):
        Claim("a", "b", "c", 1.0, 2.0, holds=True)
    with pytest.raises(FrozenInstanceError):
        made.holds = False


def test_verdicts_and_texts():
    assert [claim(1.0, r, expected=e).verdict for r in (1.0, 2.0) for e in (True, False)] == [
        "holds",
        "UNEXPECTED: holds",
        "UNEXPECTED: fails",
        "fails, as it should",
    ]
    made = claim((1 / 3, -0.0), (0.0, 2.0), "!=")
    assert made.row(3) == ("a/b", "(0.333, 0)", "!=", "(0, 2)", "holds")
    assert (
        claims.markdown([made]).splitlines()[2]
        == "| a/b | source | left is right | (0.3333, 0) | `!=` | (0, 2) | holds |"
    )


def test_a_claim_that_compares_nothing_is_refused():
    with pytest.raises(ConfigError, match="relation = '=='"):
        claim(1.0, 1.0, "==")
    with pytest.raises(ConfigError, match="2 numbers stand against 1"):
        claim((1.0, 2.0), 1.0)


# ---- what the page says beyond the table of claims


def test_an_undrawn_answer_is_lifted_by_the_normalization_alone():
    """Odds .02 : .98 moved to 1 : 1 by zero-sum pushes: sum exp(logits) = 2 sqrt(.02 * .98) = .28, so y stands 3.571-fold."""
    lifted, undrawn, eps = support._lifted_undrawn()
    assert 400 < undrawn < 500
    assert lifted / (eps / 2) == pytest.approx(1 / (2 * math.sqrt(0.02 * 0.98)), rel=2e-3)
    page = " ".join((Path(__file__).parents[2] / "pages" / "concepts" / "theorems.md").read_text(encoding="utf-8").split())
    assert "has four conditions" in page and "Without the last it fails" in page
    assert f"lifted up to {lifted / (eps / 2):.2f}-fold ({undrawn} trainings), across an eps of twice ref(y)" in page


def test_branch_as_released_moves_nothing_under_k3_and_that_of_the_reference_does():
    one = appendix_c.rare(8)
    plain, own, reference = (one.rest(Anchor(one.beta, g)) for g in (Flat(), Branch(), one.guide))
    assert own == pytest.approx(plain, abs=1e-6) and plain > one.eps
    assert reference == pytest.approx(0.007473, abs=1e-6) and reference < plain - 1e-3


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_under_the_groups_std_beta_never_acts_as_less_than_its_bound(monkeypatch, size):
    """1 / kappa >= sqrt(G) / (G - 1), reached where nearly all answers are right: a lone wrong one has A = -(G-1)/sqrt(G)."""
    monkeypatch.setattr(stationary, "GROUP", size)
    acts = [1 / stationary.kappa(GroupNormalized(), right) for right in (0.001, 0.02, 0.2, 0.5, 0.8, 0.98, 0.999)]
    bound = math.sqrt(size) / (size - 1)
    assert min(acts) > bound and acts[-1] == pytest.approx(bound, rel=0.01)
    if size == 8:
        assert (acts[3], acts[-1]) == pytest.approx((0.576, 0.405), abs=1e-3)
