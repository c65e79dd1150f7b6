"""Anchors: what is refused, what warns, what runs, and the metrics by hand."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch

from sage_rlvr.config import build
from sage_rlvr.core import (
    Anchor,
    Branch,
    Constant,
    FixedBudget,
    Flat,
    Linear,
    Placebo,
    Random,
    SequenceMean,
    Token,
    TokenMean,
    anchor_logps,
    anchor_metrics,
    effect_of,
    effective_gradient,
)
from sage_rlvr.core.guides import factors
from sage_rlvr.core.guides.rarity import Rarity
from sage_rlvr.errors import CancellingGuide, ConfigError
from sage_rlvr.methods import grpo, sage

UNBIASED = ["k2", "straight_through", "k3_is"]


@pytest.mark.parametrize("beta", [0, 0.0, Constant(0.0), Linear(0.0, 0.0)])
def test_a_guide_needs_beta(beta):
    with pytest.raises(ConfigError, match=r"a guide needs beta > 0.*beta=0\.05"):
        Anchor(beta, Branch())
    assert Anchor(beta).is_off and Anchor(beta, Flat() * Flat()).is_off


@pytest.mark.parametrize("estimator", UNBIASED)
@pytest.mark.parametrize(
    "guide",
    [Branch(), Branch(signal="reference"), Branch() * Flat(), Branch() * Random(), Branch() * Branch(ratio=0.1)],
)
def test_a_state_guide_under_an_unbiased_loss_cancels(estimator, guide):
    with pytest.raises(CancellingGuide, match=r"^Branch cancels, up to a 1/\|y\| artifact.*k3.*placement='reward'"):
        Anchor(0.05, guide, estimator)


@pytest.mark.filterwarnings("ignore:.*the part of q that depends on the batch")
@pytest.mark.parametrize("estimator", UNBIASED)
@pytest.mark.parametrize(
    "guide", [Token() * Branch(), Branch() * Token(), Branch() * Token() * Branch(threshold="p80")]
)
def test_a_factor_that_cancels_beside_others_is_named(estimator, guide):
    """The whole does not vanish, or not for a known reason, but Branch does: log q of the state alone drops out."""
    with pytest.warns(UserWarning, match=rf"^Branch under {estimator} in the loss cancels.*only the other factors"):
        Anchor(0.05, guide, estimator)


def test_a_noise_factor_is_named_beside_others():
    for estimator in ("k3", *UNBIASED):
        with pytest.warns(UserWarning, match="^Random in the loss is noise only"):
            Anchor(0.05, Token() * Random(), estimator)


@pytest.mark.parametrize("estimator", ["k3", *UNBIASED])
def test_token_survives_everywhere(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Anchor(0.05, Token(), estimator)
        Anchor(0.05, Token() * Flat() * Token(norm="rank"), estimator)


@pytest.mark.parametrize("estimator", UNBIASED)
@pytest.mark.parametrize(
    "guide", [Placebo(Branch()), Placebo(Branch(threshold="p80")), Token() * Branch(threshold="p80")]
)
def test_a_placebo_or_a_percentile_beside_a_token_under_an_unbiased_loss_warns_and_runs(estimator, guide):
    """A placebo is there to do nothing: the control of a guide that acts."""
    with pytest.warns(UserWarning, match="cancels in the expected gradient"):
        Anchor(0.05, guide, estimator)


P80 = Branch(threshold="p80")


@pytest.mark.parametrize("estimator", UNBIASED)
@pytest.mark.parametrize(
    "guide", [P80, P80 * Branch(), P80 * Random(), P80 * Placebo(Token()), Branch() * Placebo(P80)]
)
def test_a_percentile_under_an_unbiased_loss_cancels_as_a_threshold_does(estimator, guide):
    """tests/theory/test_effects.py has how little of it is left; the error says what to take in its place."""
    said = rf"^Branch cancels, up to .*{estimator} in the loss.*Use estimator='k3'.*or placement='reward' with estimator='k1'"
    with pytest.raises(CancellingGuide, match=said) as caught:
        Anchor(0.05, guide, estimator)
    assert ("O(1/B) for B rows" in str(caught.value)) == (P80 in factors(guide))


def test_k3_takes_every_guide_without_a_word_except_random():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for guide in (Flat(), Branch(), Token(), Placebo(Branch()), Branch(threshold="p80"), Branch() * Token()):
            Anchor(0.05, guide)
    with pytest.warns(UserWarning, match="noise only"):
        Anchor(0.05, Random())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Anchor(0.05, Random()),
        lambda: replace(Anchor(0.05), guide=Random()),
        lambda: sage(grpo(), Random()),
        lambda: build("method", {"name": "sage", "guide": "random"}),
    ],
)
def test_a_warning_points_at_the_line_outside_this_package(make):
    with pytest.warns(UserWarning, match="noise only") as caught:
        make()
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, make.__code__.co_firstlineno)]


def test_in_the_reward_every_guide_runs():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for guide in (Flat(), Branch(), Token(), Random(), Placebo(Branch())):
            Anchor(0.05, guide, "k1", "reward")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"estimator": "k1"}, "noise without a pull"),
        ({"estimator": "k3", "placement": "reward"}, "second order"),
        ({"estimator": "k2", "placement": "reward"}, "not that of any KL"),
        (
            {"estimator": "k3_is", "placement": "reward"},
            "detached, which leaves k3, second order",
        ),
        ({"estimator": "straight_through", "placement": "reward"}, "detached, which leaves exactly k1"),
        (
            {"estimator": "exact", "divergence": "forward", "placement": "reward"},
            "no gradient remains at the state itself",
        ),
        ({"estimator": "k4"}, "choose one of k1"),
        ({"placement": "advantage"}, "'loss' or 'reward'"),
        ({"beta": -0.1}, "beta >= 0"),
        ({"beta": "0.05"}, "neither a number nor a schedule"),
        ({"guide": "branch"}, "not a guide"),
    ],
)
def test_refusals_give_the_reason(arguments, reason):
    with pytest.raises(ConfigError, match=reason):
        Anchor(**({"beta": 0.05} | arguments))


def test_beta_follows_its_schedule_and_may_not_go_below_zero():
    anchor = Anchor(Linear(0.1, -0.1))
    assert anchor.beta_at(0, 11) == 0.1 and Anchor(0.05).beta_at(7, 8) == 0.05
    with pytest.raises(ConfigError, match="at step 10 of 11"):
        anchor.beta_at(10, 11)


def test_anchor_logps_adds_and_detaches():
    ref = torch.tensor([[-1.0, -2.0]]).bfloat16().requires_grad_(True)
    assert torch.equal(anchor_logps(ref, torch.tensor([[0.5, 0.0]])), torch.tensor([[-0.5, -2.0]]))
    assert anchor_logps(ref, None).dtype == torch.float32 and not anchor_logps(ref, None).requires_grad


def test_metrics_by_hand():
    """At pi = pi_ref the raw k3 is 0 and the shaped one q - log q - 1; q = 1.4, 1.2, 1 and one uncounted token."""
    logps, q = torch.tensor([[-1.0, -1.0, -1.0, math.nan]]), torch.tensor([[1.4, 1.2, 1.0, 1.0]])
    found = anchor_metrics(Anchor(0.05, Branch()), logps, logps, q.log(), torch.tensor([[1, 1, 1, 0]]).bool())
    shaped = (0.4 - math.log(1.4) + 0.2 - math.log(1.2)) / 3
    wanted = {
        "kl/to_anchor": shaped, "kl/to_reference": 0.0, "guide/q_mean": 1.2, "guide/active_frac": 2 / 3,
        "guide/clamped_frac": 1 / 3,
    }  # fmt: skip
    wanted |= {"guide/log_q_sum": math.log(1.4 * 1.2)}
    assert found == pytest.approx(wanted, abs=1e-6)


@pytest.mark.filterwarnings("ignore:.*noise only")
def test_the_clamped_share_of_a_product_comes_from_its_factors_or_not_at_all():
    logps, edge = torch.zeros(1, 2), torch.tensor([[True, False]])
    anchor, arguments = Anchor(0.05, Branch() * Token()), (logps, logps, logps, torch.ones(1, 2).bool())
    assert "guide/clamped_frac" not in anchor_metrics(anchor, *arguments)
    assert anchor_metrics(anchor, *arguments, edge)["guide/clamped_frac"] == 0.5
    assert anchor_metrics(Anchor(0.05), *arguments)["guide/clamped_frac"] == 0.0


@pytest.mark.filterwarnings("ignore:.*noise only")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Anchor(0.05), "*forward* KL, on the logits pi - pi_ref"),
        (lambda: Anchor(0.05, Branch()), "q(s) * grad KL(pi_ref || pi)"),
        (lambda: Anchor(0.05, Token()), "Zq pi - q pi_ref"),
        (lambda: Anchor(0.05, Random()), "noise only"),
        (lambda: Anchor(0.05, estimator="k3_is"), "grad KL(pi || pi_ref)"),
        (lambda: Anchor(0.05, Token(), "k2"), "grad KL(pi || q pi_ref)"),
        (lambda: Anchor(0.05, Branch(), "k1", "reward"), "log q is a bonus for reaching"),
        (lambda: Anchor(0.05, estimator="k1", placement="reward"), "return-to-go"),
    ],
)
def test_effective_gradient_says_what_descends(make, words):
    assert words in effective_gradient(make(), FixedBudget())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("guide", "estimator", "words", "absent"),
    [
        (
            Token() * Branch(),
            "k2",
            ["KL(pi || q pi_ref)", "log q being E[log q_t | y_<=t]", "depends only on the state cancels"],
            ["noise"],
        ),
        (Rarity(), "k2", ["KL(pi || q pi_ref)"], ["y_<=t"]),
        (Rarity(), "k3", ["Zq pi - q pi_ref"], ["y_<=t"]),
        (Token(), "k3", ["Zq pi - q pi_ref", "q being E[q_t | y_<=t]"], ["log q"]),
        (
            Token() * Branch(threshold="p80"),
            "k2",
            ["KL(pi || q pi_ref)", "depends on a large batch cancels"],
            ["noise"],
        ),
        (Token() * Branch(), "k3", ["q(s) * (Zq pi - q pi_ref)", "q(s) scales the pull"], ["noise"]),
        (Branch() * Random(), "k3", ["q(s) * E[q] * grad KL(pi_ref || pi)", "noise only"], ["Zq"]),
        (Token() * Placebo(Branch()), "k3", ["E[q | s] * (Zq pi - q pi_ref)", "its mean at the state"], ["q(s)"]),
        (Placebo(Branch()), "k3", ["E[q | s] * grad KL(pi_ref || pi)", "re-weighted *forward* KL"], ["Zq", "q(s)"]),
        (Random(), "k3", ["E[q] * grad KL(pi_ref || pi)", "the *forward* KL"], ["re-weighted"]),
        (Random(), "k2", ["grad KL(pi || pi_ref)", "is noise cancels"], ["q pi_ref"]),
    ],
)
def test_the_words_come_from_all_factors_and_not_from_the_strongest(guide, estimator, words, absent):
    text = effective_gradient(Anchor(0.05, guide, estimator), FixedBudget())
    assert [w for w in words if w not in text] == [w for w in absent if w in text] == []


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("guide", "estimator", "pulls"),
    [(Flat(), "k3", False), (Random(), "k3", False), (Branch(), "k3", True), (Token() * Branch(), "k2", True)],
)
def test_a_division_by_the_length_of_the_row_gets_a_note(guide, estimator, pulls):
    """1/|y| goes with the token, so the claim is no longer exact; the sign of the pull is pinned in tests/golden."""
    anchor = Anchor(0.05, guide, estimator)
    plain, noted = (effective_gradient(anchor, reduction) for reduction in (FixedBudget(), SequenceMean()))
    assert effective_gradient(anchor, TokenMean()) == plain and "1/|y|" not in plain
    assert noted.startswith(plain + "; note: each row's force is weighted by 1/|y|")
    assert ("where q > 1, this is a pull toward shorter answers" in noted) == pulls


@pytest.mark.parametrize(
    ("guide", "words", "absent"),
    [
        (Flat(), ["grad KL(pi || pi_ref) over whole sequences"], ["log q", ";"]),
        (Branch(), ["bonus for reaching the states that q favors"], ["tokens and"]),
        (Token(), ["E_pi sum_t E[log q_t | y_<=t]]", "bonus for reaching the tokens that q favors"], ["states"]),
        (Rarity(), ["E_pi sum_t log q_t]", "bonus for reaching the tokens that q favors"], ["states", "y_<=t"]),
        (
            Branch() * Token(),
            ["E_pi sum_t E[log q_t | y_<=t]]", "bonus for reaching the tokens and states that q favors"],
            ["batch"],
        ),
        (Random(), ["adds E[log q] per token as reward", "drift toward shorter answers"], ["bonus"]),
        (Placebo(Branch()), ["depends on a large batch adds the reward E[log q | s]"], ["bonus", "drift"]),
        (
            Placebo(Branch(), centered=True),
            ["grad KL(pi || pi_ref) over whole sequences", "with mean log q = 0 is noise only"],
            ["sum_t", "bonus", "drift", "E["],
        ),
        (
            Placebo(Token(), centered=True) * Branch(),
            ["- E_pi sum_t log q_t", "bonus for reaching the states", "noise only"],
            ["tokens", "E[log q | s]"],
        ),
    ],
)
def test_in_the_reward_each_kind_of_factor_has_its_words(guide, words, absent):
    text = Anchor(0.05, guide, "k1", "reward").effect.text
    assert [w for w in words if w not in text] == [w for w in absent if w in text] == []


@pytest.mark.filterwarnings("ignore:.*noise")
@pytest.mark.parametrize(
    ("guide", "divergence", "text"),
    [
        (Flat(), "reverse", "grad KL(pi || pi_ref) at the visited states (reverse KL)"),
        (Flat(), "forward", "grad KL(pi_ref || pi) at the visited states: the *forward* KL, on the logits pi - pi_ref"),
        (Flat(), "js", "grad of 2 JS(pi, pi_ref) at the visited states"),
        (Flat(), "alpha", "grad D_alpha(pi, pi_ref), alpha = 0.2, at the visited states"),
        (
            Branch(),
            "alpha",
            "q(s)**0.2 * grad D_alpha(pi, pi_ref), alpha = 0.2, at the visited states; q(s) scales the pull at the states it "
            "marks, and the minimum stays at pi_ref",
        ),
        (
            Branch(),
            "js",
            "grad of 2 JS(pi, q pi_ref) at the visited states: q changes the target, neither as a factor nor as a constant",
        ),
    ],
)
def test_the_words_of_exact_sums(guide, divergence, text):
    assert Anchor(0.05, guide, "exact", divergence=divergence).effect.text == text


def test_an_exact_sum_says_in_one_breath_what_a_sampled_estimator_says():
    for guide in (Flat(), Branch(), Placebo(Branch())):
        assert Anchor(0.05, guide, "exact", divergence="forward").effect == Anchor(0.05, guide, "k3").effect


@pytest.mark.parametrize("divergence", ["forward", "js", "alpha"])
def test_noise_in_an_exact_sum_warns_and_under_js_says_that_its_mean_acts(divergence):
    with pytest.warns(UserWarning, match="^Random in an exact sum is noise") as caught:
        effect = Anchor(0.05, Random(), "exact", divergence=divergence).effect
    only = divergence != "js"
    assert ("noise only" in str(caught[0].message)) == only and ("second-order" in str(caught[0].message)) != only
    assert effect.acts != only and effect.role("nothing") == ("noise" if only else "tilts")


ROLES = {
    # estimator, divergence, placement: role of a factor of the state, the token, the batch, of nothing
    ("k2", None, "loss"): ("cancels", "moves", "cancels", "cancels"),
    ("k3", None, "loss"): ("scales", "moves", "scales", "noise"),
    ("exact", "forward", "loss"): ("scales", "scales", "scales", "noise"),
    ("exact", "alpha", "loss"): ("scales", "scales", "scales", "noise"),
    ("exact", "js", "loss"): ("tilts", "tilts", "tilts", "tilts"),
    ("exact", "reverse", "loss"): ("cancels", "cancels", "cancels", "cancels"),
    ("k1", None, "reward"): ("bonus", "bonus", "bonus", "drift"),
}


@pytest.mark.parametrize("term", ROLES)
def test_roles_by_kind_of_factor(term):
    estimator, divergence, placement = term
    effect = effect_of(estimator, placement, ("token", "state", "nothing", "batch", "state"), divergence, 0.2)
    assert tuple(effect.role(kind) for kind in ("state", "token", "batch", "nothing")) == ROLES[term]
    for kind, role in effect.roles:
        alone = effect_of(estimator, placement, [kind], divergence, 0.2)
        assert alone.roles == ((kind, role),) and alone.acts == (role not in ("cancels", "noise"))
    assert effect_of(estimator, placement, [], divergence, 0.2).role("state") is None


def test_replacing_the_guide_checks_again():
    with pytest.raises(CancellingGuide):
        replace(Anchor(0.05, estimator="k2"), guide=Branch())
