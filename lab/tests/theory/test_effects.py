"""What `Anchor.effect` claims against what the loop's objective descends, for every guide, estimator and placement."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lab.tests.theory.effects_common import COMBINATIONS, HERE, TREE, WHERE, admitted, arguments_of, gap
from lab.theory.effect_map import MAP_GUIDES, TERMS, gradient_map, markdown
from lab.theory.effects import claimed_gradient, draw_q
from lab.theory.measured import in_reward_gradient, measured_gradient, unchecked_anchor
from lab.theory.tree import TokenTree
from sage_rlvr.core import (
    DIVERGENCES,
    ESTIMATORS,
    GUIDES,
    Anchor,
    Branch,
    Effect,
    FixedBudget,
    Flat,
    GroupCentered,
    Guide,
    Method,
    Token,
)
from sage_rlvr.core.guides.rarity import Rarity
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import CancellingGuide, ConfigError

STILL = {
    "flat": Flat(),
    "token": Token(alpha=0.4, sigma=0.0),
    "token rank": Token(alpha=0.4, sigma=0.0, norm="rank", signal="reference"),
    "branch": Branch(ratio=0.8, threshold=0.6),
    "branch of the reference": Branch(ratio=0.8, threshold=0.6, signal="reference"),
    "compose": Branch(ratio=0.8, threshold=0.6) * Token(alpha=0.4, sigma=0.0),
}


def test_the_combinations_are_all_there_are():
    assert {estimator for estimator, _ in TERMS} == set(ESTIMATORS)
    assert {named for estimator, named in TERMS if estimator == "exact"} == set(DIVERGENCES)
    kinds = {type(guide).__name__.lower() for guide in MAP_GUIDES.values()}
    assert kinds == set(GUIDES)


# ---- guides without noise: equal to float32


ADMITTED = [(name, *where) for name in STILL for where in COMBINATIONS if admitted(arguments_of(STILL[name], *where))]


@pytest.mark.parametrize(("name", "estimator", "named", "placement"), ADMITTED)
def test_an_admitted_term_descends_what_its_effect_says(name, estimator, named, placement):
    guide = STILL[name]
    anchor = admitted(arguments_of(guide, estimator, named, placement))
    assert anchor is not None
    found, _ = measured_gradient(anchor, *WHERE)
    wanted = claimed_gradient(anchor.effect, *WHERE, draw_q(guide, *WHERE))
    assert wanted.norm() > 0.05 and torch.allclose(found, wanted, atol=3e-6)
    plain, _ = measured_gradient(Anchor(**arguments_of(Flat(), estimator, named, placement)), *WHERE)
    assert (gap(found, plain) > 0.01) == anchor.effect.acts
    method = Method("m", GroupCentered(), Clip(), anchor, FixedBudget(1))
    assert f"expected gradient of the KL term, on-policy: {anchor.effect.text}\n" in method.describe() + "\n"


@pytest.mark.parametrize("name", STILL)
def test_what_is_admitted_and_what_is_refused(name):
    """2 placements of 9 terms. In the reward k1 alone; in the loss not k1, and no guide that cancels or that a sum lacks."""
    runs = {
        (estimator if named is None else named, placement)
        for estimator, named, placement in COMBINATIONS
        if admitted(arguments_of(STILL[name], estimator, named, placement))
    }
    unbiased, sampled, sums = {"k2", "straight_through", "k3_is"}, {"k3"}, {"forward", "js", "alpha"}
    wanted = {
        "flat": unbiased | sampled | sums | {"reverse"},
        "branch": sampled | sums,
        "token": unbiased | sampled,
        "compose": unbiased | sampled,
    }[name.split()[0]]
    assert runs == {("k1", "reward")} | {(term, "loss") for term in wanted}


@pytest.mark.parametrize("name", STILL)
def test_k1_in_the_loss_is_refused_because_nothing_is_left(name):
    anchor = unchecked_anchor(**arguments_of(STILL[name], "k1", None, "loss"))
    assert measured_gradient(anchor, *WHERE).gradient.abs().max() < 1e-6


@pytest.mark.parametrize("name", ["branch", "branch of the reference"])
@pytest.mark.parametrize(
    ("estimator", "named"), [*((e, None) for e in ("k2", "straight_through", "k3_is")), ("exact", "reverse")]
)
def test_a_cancelling_guide_is_refused_because_it_changes_nothing(name, estimator, named):
    arguments = arguments_of(STILL[name], estimator, named, "loss")
    with pytest.raises(CancellingGuide):
        Anchor(**arguments)
    found = measured_gradient(unchecked_anchor(**arguments), *WHERE).gradient
    plain = measured_gradient(Anchor(**arguments | {"guide": Flat()}), *WHERE).gradient
    assert torch.allclose(found, plain, atol=3e-6) and plain.norm() > 0.05
    assert (draw_q(STILL[name], *WHERE).by_kind["state"] > 0.1).any()


@pytest.mark.parametrize("named", DIVERGENCES)
def test_an_exact_sum_refuses_a_token_guide_because_the_anchor_would_not_move(named):
    """With q of the drawn token alone the reference stays the target: at pi = pi_ref no force is left but under js, and
    nowhere is it the pull to q pi_ref that the same guide has under k3 or k3_is."""
    guide = STILL["token"]
    arguments = arguments_of(guide, "exact", named, "loss")
    with pytest.raises(ConfigError, match="q depends on the sampled token"):
        Anchor(**arguments)
    anchor = unchecked_anchor(**arguments)
    found = measured_gradient(anchor, *WHERE).gradient
    q = draw_q(guide, *WHERE)
    assert torch.allclose(found, claimed_gradient(anchor.effect, *WHERE, q), atol=3e-6)
    if named in ("reverse", "forward"):
        moved = claimed_gradient(Effect(named, (("token", "moves"),)), *WHERE, q)
        assert gap(found, moved) > 0.1
        at_ref = measured_gradient(anchor, TREE, WHERE[2], WHERE[2]).gradient
        assert at_ref.abs().max() < 1e-6
        q_ref = draw_q(guide, TREE, WHERE[2], WHERE[2])
        pull = claimed_gradient(Effect(named, (("token", "moves"),)), TREE, WHERE[2], WHERE[2], q_ref)
        assert pull.norm() > 0.05


# ---- in the reward: what the others are worth


@pytest.mark.parametrize(("estimator", "named"), [term for term in TERMS if term[0] != "k1"])
def test_in_the_reward_another_estimator_is_k1_or_of_second_order(estimator, named):
    with pytest.raises(ConfigError, match="in the reward is not supported"):
        Anchor(**arguments_of(Flat(), estimator, named, "reward"))
    tree, logits, ref = WHERE
    if estimator == "straight_through":
        same = in_reward_gradient("k1", *WHERE)
        assert torch.allclose(in_reward_gradient(estimator, *WHERE), same, atol=1e-6) and same.norm() > 0.05
        return
    far, near = (
        [
            float(in_reward_gradient(name, tree, ref + t * (logits - ref), ref, named).norm())
            for name in (estimator, "k1")
        ]
        for t in (0.02, 0.01)
    )
    assert far[0] / near[0] == pytest.approx(4.0, rel=0.05) and far[1] / near[1] == pytest.approx(2.0, rel=0.05)


def test_a_price_in_the_reward_on_one_state():
    """kl_estimators: pi = (.5, .3, .2), ref = (.2, .3, .5); an exact sum is the same for all tokens, so nothing is left."""
    tree = TokenTree.bandit(3)
    pi, ref = (torch.tensor([p]).log() for p in ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5)))
    wanted = {
        "k1": (0.320702, -0.082466, -0.238236),
        "k2": (0.062969, -0.088157, 0.025188),
        "k3": (0.020702, -0.082466, 0.061764),
        "k3_is": (0.020702, -0.082466, 0.061764),
    }
    for estimator, gradient in wanted.items():
        assert in_reward_gradient(estimator, tree, pi, ref)[0].tolist() == pytest.approx(gradient, abs=2e-6)
    for named in DIVERGENCES:
        assert in_reward_gradient("exact", tree, pi, ref, named).abs().max() < 1e-7


def test_an_exact_reverse_kl_in_the_reward_has_lost_the_force_at_the_state_itself():
    """What it gives and what the loss would give add up to the gradient of the KL of whole sequences."""
    in_loss = measured_gradient(Anchor(1.0, estimator="exact", divergence="reverse"), *WHERE).gradient
    whole = claimed_gradient(Anchor(1.0, estimator="k1", placement="reward").effect, *WHERE)
    assert torch.allclose(in_reward_gradient("exact", *WHERE, "reverse") + in_loss, whole, atol=3e-6)
    assert gap(in_loss, whole) > 0.1


# ---- means: what is left of a q that looks at more than its state and token


AHEAD = {
    "minmax": STILL["token"],
    "rank": Token(alpha=0.4, sigma=0.0, norm="rank"),
    "zscore": Token(alpha=0.4, sigma=0.0, norm="zscore"),
    "product": STILL["compose"],
}


def sequence_gradient(price: torch.Tensor) -> torch.Tensor:
    """(S, V) gradient of KL(pi || pi_ref) - E_pi sum_t price_t, `price` (L, T) held fixed; by autograd."""
    tree, logits, ref = WHERE
    leaf = logits.clone().requires_grad_(True)
    paid = tree.logps(leaf).sum(1) - tree.logps(ref).sum(1) - torch.where(tree.mask, price, 0.0).sum(1)
    return torch.autograd.grad((tree.probs(leaf) * paid).sum(), leaf)[0]


@pytest.mark.parametrize("name", AHEAD)
def test_return_to_go_keeps_of_a_q_that_looks_ahead_only_its_mean(name):
    """Token scales its weights within the row: q_t of one completion hangs on its later tokens. What `describe` prints holds
    to 1e-6: KL - E sum_t m_t, m_t the mean of log q_t over the completions through y_<=t, by hand here. With each
    completion's own log q_t in its place it misses by .02 to .05."""
    tree, logits, _ = WHERE
    guide, probs = AHEAD[name], tree.probs(logits)
    log_q = torch.from_numpy(sum(draw_q(guide, *WHERE).by_kind.values())[0])
    mean = torch.zeros_like(log_q)
    for i, t in tree.mask.nonzero().tolist():
        alike = [j for j, other in enumerate(tree.completions) if other[: t + 1] == tree.completions[i][: t + 1]]
        mean[i, t] = (probs[alike] * log_q[alike, t]).sum() / probs[alike].sum()
    anchor = Anchor(1.0, guide, "k1", "reward")
    assert "grad [KL(pi || pi_ref) - E_pi sum_t E[log q_t | y_<=t]] over whole sequences" in anchor.effect.text
    found = measured_gradient(anchor, *WHERE).gradient
    assert (found - sequence_gradient(mean)).abs().max() < 1e-6
    assert (found - sequence_gradient(log_q)).norm() > 0.02
    assert torch.allclose(found, claimed_gradient(anchor.effect, *WHERE, draw_q(guide, *WHERE)), atol=1e-6)


@pytest.mark.parametrize("name", ["branch", "branch of the reference", "rarity"])
def test_a_q_that_does_not_look_ahead_is_its_own_mean(name):
    guide = {**STILL, "rarity": Rarity()}[name]
    log_q = torch.from_numpy(sum(draw_q(guide, *WHERE).by_kind.values())[0])
    anchor = Anchor(1.0, guide, "k1", "reward")
    assert "- E_pi sum_t log q_t] over whole sequences" in anchor.effect.text
    assert (measured_gradient(anchor, *WHERE).gradient - sequence_gradient(log_q)).abs().max() < 1e-6


def test_under_k3_the_mean_is_that_of_q_and_under_k2_that_of_log_q():
    """Two completions through (root, 1) with q = 1.4 and .6 there: k3 sees their mean at the probabilities of going on."""
    _, logits, ref = HERE

    class Ahead(Guide):
        needs, depends_on, equation = frozenset(), "token", "1.4 or .6 at the root, by the second token"

        def __call__(self, signals, step, total_steps, key):
            rows = signals.row_ids % 3  # the leaves in the order of the tree
            return torch.where(
                signals.positions == 0, torch.tensor([0.0, 1.4, 0.6])[rows].clamp(min=1e-9).log()[:, None], 0.0
            )

    share = torch.softmax(logits[1, :2], 0)
    arithmetic, geometric = (
        (share * torch.tensor([1.4, 0.6])).sum(),
        (share * torch.tensor([1.4, 0.6]).log()).sum().exp(),
    )
    pi, anchor = torch.softmax(logits, 1)[0], torch.softmax(ref, 1)[0]
    q = torch.stack([torch.tensor(1e-9), arithmetic])
    forward = (q * anchor).sum() * pi - q * anchor
    assert torch.allclose(measured_gradient(Anchor(1.0, Ahead()), *HERE).gradient[0], forward, atol=2e-6)
    force = pi.log() - anchor.log() - torch.stack([torch.tensor(1e-9).log(), geometric.log()])
    reverse = pi * (force - (pi * force).sum())
    assert torch.allclose(measured_gradient(Anchor(1.0, Ahead(), "k2"), *HERE).gradient[0], reverse, atol=2e-5)
    assert float(arithmetic - geometric) > 0.03


@pytest.fixture(scope="module")
def rows():
    return gradient_map()


@pytest.mark.slow
def test_the_map_has_every_combination_once_and_agrees_with_its_claims(rows):
    assert (
        len({(row.guide, row.estimator, row.placement) for row in rows})
        == len(rows)
        == len(MAP_GUIDES) * len(TERMS) * 2
    )
    still = {"Flat", "Token", "Rarity", "Branch", "Place(first 1)", "Branch * Token"}
    for row in rows:
        assert row.status in ("runs", "warns", "refused") and row.effect
        if row.gap is None:
            assert row.status == "refused" and (row.estimator == "k1") == (row.placement == "loss")
        else:
            assert row.cosine > 0.99 and row.gap < (1e-5 if row.guide in still else 0.1)
            assert (row.error > 1e-6) == (row.guide not in still and row.estimator != "exact reverse")
    outcome = {(row.guide, row.estimator, row.placement): row for row in rows}
    assert outcome["Branch", "k3_is", "loss"].influence < 1e-5 and outcome["Branch", "k3", "loss"].influence > 0.2
    assert [outcome[g, "k3", "loss"].status for g in ("Flat", "Random", "Token", "Branch")] == [
        "runs",
        "warns",
        "runs",
        "runs",
    ]
    assert outcome["Random", "k3", "loss"].influence < 4 * outcome["Random", "k3", "loss"].error
    assert outcome["Random", "exact js", "loss"].influence > 4 * outcome["Random", "exact js", "loss"].error
    assert "force falls by 4.0, that of k1 by 2.0" in outcome["Token", "exact js", "reward"].effect


@pytest.mark.slow
def test_the_table_names_every_combination_once_and_groups_what_is_alike(rows):
    text = markdown(rows)
    cells = [
        [cell.strip() for cell in line.replace(r"\|", "/").strip("|").split("|")] for line in text.splitlines()[2:]
    ]
    assert {len(line) for line in cells} == {8} and len(cells) < len(rows) / 2
    named = []
    for owners, terms, placement, *_ in cells:
        guides = list(MAP_GUIDES) if owners == "any" else owners.split(", ")
        named += itertools.product(guides, terms.split(", "), [placement])
    assert sorted(named) == sorted((row.guide, row.estimator, row.placement) for row in rows)
    assert any(
        line[:4] == ["Branch, Place(first 1)", "k2, straight_through, k3_is, exact reverse", "loss", "refused"] for line in cells
    )


def test_the_map_takes_other_guides():
    found = gradient_map({"one": Branch(ratio=0.2, threshold=0.5)}, *HERE)
    assert {row.guide for row in found} == {"one"} and "| any |" not in markdown(found)


def test_an_unchecked_anchor_is_the_checked_one_where_that_exists():
    assert unchecked_anchor(beta=0.3, guide=Branch()) == Anchor(0.3, Branch())
    assert math.isclose(unchecked_anchor(beta=0.3, estimator="k1").beta_at(0, 1), 0.3)
