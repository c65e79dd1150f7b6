"""Published methods: their paper's parts and defaults, what `sage` and they refuse, and their names in YAML."""

from __future__ import annotations

import inspect
import typing
from dataclasses import replace

import pytest

from sage_rlvr.config import build, dump
from sage_rlvr.core import (
    Anchor,
    BetaNormalized,
    Branch,
    Clip,
    DynamicSampling,
    FixedBudget,
    Flat,
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
    Linear,
    Method,
    OverlongShaping,
    SequenceMean,
    Token,
    TokenMean,
)
from sage_rlvr.core.describe import essence
from sage_rlvr.errors import CancellingGuide, ConfigError
from sage_rlvr.methods import METHODS, bnpo, dapo, dr_grpo, forward_kl, grpo, grpo_token_mean, no_kl, rloo, sage
from sage_rlvr.schema import parameters

HIGHER = Clip(0.2, 0.28, 10.0)
WITH_ANCHOR_KEYWORDS = ["grpo", "dr_grpo", "rloo", "bnpo", "dapo", "grpo_token_mean"]
LEASHED = [name for name in METHODS if name not in ("no_kl", "sage")]


def test_parts_and_defaults():
    k3 = Anchor(0.05, Flat(), "k3", "loss", "base")
    exact = Anchor(0.05, Flat(), "exact", divergence="forward")
    wanted = [
        Method("grpo", GroupNormalized(), Clip(), k3, SequenceMean()),
        Method("no_kl", GroupNormalized(), Clip(), None, SequenceMean()),
        Method("dr_grpo", GroupCentered(), Clip(), None, FixedBudget()),
        Method("rloo", LeaveOneOut(), Clip(), None, FixedBudget()),
        Method("bnpo", BetaNormalized(), HIGHER, None, FixedBudget(1)),
        Method("dapo", GroupNormalized(), HIGHER, None, TokenMean(), rollout=DynamicSampling(9)),
        Method("forward_kl", GroupNormalized(), Clip(), exact, SequenceMean()),
        Method("grpo_token_mean", GroupNormalized(), Clip(), k3, TokenMean()),
    ]
    assert [METHODS[method.name]() for method in wanted] == wanted
    assert all(method.name == name for name in METHODS.keys() - {"sage"} for method in [METHODS[name]()])
    assert rloo(beta=0.05).anchor == Anchor(0.05, Flat(), "k1", "reward")


def test_arguments_reach_their_parts():
    assert dapo(dynamic_sampling=False).rollout is None and dapo(max_refills=2).rollout == DynamicSampling(2)
    assert dapo(overlong_buffer=4, max_tokens=24).extras == (OverlongShaping(24, 4),)
    assert dapo(clip_low=0.1, clip_high=0.3, dual=None).surrogate == Clip(0.1, 0.3)
    assert bnpo(clip_low=0.1, clip_high=0.3, dual=3.0).surrogate == Clip(0.1, 0.3, 3.0)
    moving = Anchor(0.1, estimator="exact", divergence="forward", source="sft", refresh_every=5)
    assert forward_kl(beta=0.1, clip_high=0.28, source="sft", refresh_every=5) == Method(
        "forward_kl", GroupNormalized(), Clip(0.2, 0.28), moving, SequenceMean()
    )


@pytest.mark.parametrize("name", WITH_ANCHOR_KEYWORDS)
def test_the_keywords_of_the_anchor_are_the_same_everywhere(name):
    factory = METHODS[name]
    keywords = {"placement": "loss", "source": "sft", "refresh_every": 7}
    exact = {"estimator": "exact", "divergence": "alpha", "alpha": 0.3}
    assert factory(beta=0.1, **keywords, **exact).anchor == Anchor(0.1, **keywords, **exact)
    assert factory(beta=Linear(0.1, 0.0), estimator="k2", placement="loss").anchor == Anchor(
        Linear(0.1, 0.0), estimator="k2"
    )
    assert factory(beta=0.0, source="sft").anchor is None
    with pytest.raises(ConfigError, match="used with divergence='alpha'"):  # with beta = 0 too
        factory(beta=0.0, placement="loss", estimator="exact", divergence="js", alpha=0.3)


def test_no_kl_is_grpo_without_an_anchor():
    assert no_kl(clip_high=0.28) == replace(grpo(beta=0.0, clip_high=0.28), name="no_kl")


def test_the_neutral_setting_of_each_method_is_an_older_one():
    """Part by part: what is left when every part of its own is switched off."""
    plain = {"clip_high": 0.2, "dual": None}
    dapo_off = dapo(**plain, dynamic_sampling=False)
    assert replace(dapo_off, name="grpo_token_mean") == grpo_token_mean(beta=0.0)
    assert replace(dapo_off, name="no_kl", reduction=SequenceMean()) == no_kl()
    assert replace(grpo_token_mean(), name="grpo", reduction=SequenceMean()) == grpo()
    bnpo_off = replace(bnpo(**plain), advantage=GroupCentered(), reduction=FixedBudget())
    assert replace(bnpo_off, name="dr_grpo") == dr_grpo()
    assert replace(forward_kl(beta=0.0), name="no_kl") == no_kl()
    assert replace(forward_kl(), name="grpo", anchor=grpo().anchor) == grpo()


def test_sage_changes_one_field():
    for base in (dr_grpo(beta=0.05), dapo(beta=0.05), bnpo(beta=0.05), grpo_token_mean()):
        shaped = sage(base, Token())
        assert shaped == replace(base, name=f"{base.name}+token", anchor=replace(base.anchor, guide=Token()))
    assert sage() == sage(base=grpo(), guide=Branch()) and sage().anchor.guide == Branch(1.2, ratio=0.3)


@pytest.mark.parametrize(
    ("base", "advice"),
    [
        (dr_grpo(), r"dr_grpo\(beta=0.05\)"),
        (no_kl(), r"grpo\(beta=0.05\)"),
        (dapo(), r"base=dapo\(beta=0.05\), whose control is dapo\(beta=0.05\) instead of dapo\(\)"),
        (bnpo(), r"bnpo\(beta=0.05\)"),
        (forward_kl(beta=0.0), r"forward_kl\(beta=0.05\)"),
    ],
)
def test_sage_needs_a_base_with_a_leash(base, advice):
    with pytest.raises(ConfigError, match="a guide needs beta > 0.*" + advice):
        sage(base)


def test_sage_refuses_a_guide_that_cancels():
    for base in (
        grpo(estimator="k3_is"),
        grpo(estimator="exact", divergence="reverse"),
        dapo(beta=0.05, estimator="k2"),
    ):
        with pytest.raises(CancellingGuide):
            sage(base)


def test_sage_over_the_exact_forward_kl():
    """Branch scales the pull; Token has no q for the tokens that were not sampled."""
    shaped = sage(base=forward_kl(), guide=Branch())
    assert shaped.name == "forward_kl+branch" and shaped.anchor.effect.role("state") == "scales"
    assert shaped.needs == {"ref_logps", "entropies", "distributions"}
    with pytest.raises(ConfigError, match=r"Token with estimator='exact'.*every token of the vocabulary"):
        sage(base=forward_kl(), guide=Token())


@pytest.mark.parametrize("factory", [grpo, forward_kl])
def test_grpo_in_the_reward_is_refused(factory):
    with pytest.raises((ConfigError, TypeError), match=r"sequence_mean|unexpected keyword"):
        factory(estimator="k1", placement="reward")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"overlong_buffer": 4},
            r"overlong_buffer = 4 needs max_tokens.*max_new_tokens",
        ),
        ({"max_tokens": 24}, "max_tokens = 24 is only used by overlong shaping; also set overlong_buffer"),
        ({"overlong_buffer": 30, "max_tokens": 24}, "buffer = 30 is longer than max_tokens = 24"),
        ({"max_refills": -1}, "max_refills = -1"),
        ({"dual": 0.9}, "dual = 0.9"),
    ],
)
def test_dapo_refuses_what_cannot_act(arguments, said):
    with pytest.raises(ConfigError, match=said):
        dapo(**arguments)


@pytest.mark.parametrize("name", METHODS)
def test_factories_are_documented_and_annotated(name):
    factory = METHODS[name]
    hints = [hint for hint, _ in parameters(factory).values()]
    assert hints and typing.Any not in hints
    assert (factory().name and "L = " in factory.__doc__) or name in ("sage", "compose")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (bnpo(), ["(1/B) sum_i sum_t [ -max(min(", "10 min(A, 0))", "(r - p) / f_N(p)", "fitted to p", "arcsin"]),
        (bnpo(beta=0.1), ["beta acts as beta * f_N(p)"]),
        (bnpo(beta=0.1, estimator="k1", placement="reward"), ["- 0.1 * (G-1)/G * (K_t"]),
        (dapo(), ["(1/sum_i |y_i|)", "clip(rho, 0.8, 1.28)", "rollout: keep groups", "at most 9 times", "no KL term"]),
        (dapo(overlong_buffer=4, max_tokens=24), ["r = 2 R - 1 - min(1, max(0, |y| - 20) / 4), of the verifier's"]),
        (dapo(beta=0.05), ["note: dropped groups have no KL term either"]),
        (forward_kl(), ["0.05 * exact_forward(pi, pi_ref)", "*forward* KL"]),
        (sage(forward_kl()), ["exact_forward(pi, q pi_ref)", "q(s) * grad KL(pi_ref || pi)"]),
        (grpo_token_mean(), ["(1/sum_i |y_i|) sum_i sum_t", "0.05 * k3"]),
    ],
)
def test_describe_says_what_is_optimized(method, words):
    text = method.describe()
    assert [word for word in words if word not in text] == []
    assert essence(method) and set(essence(method)) <= set(text.splitlines())


def test_the_notes_stand_only_where_they_hold():
    assert "dropped groups" not in dapo(beta=0.05, dynamic_sampling=False).describe()
    assert "f_N" not in grpo().describe() and "beta acts as" not in bnpo().describe()


# ---- YAML


@pytest.mark.parametrize("name", METHODS)
def test_every_method_decodes_to_its_defaults_and_back(name):
    method = build("method", name)
    assert method == METHODS[name]() == build("method", dump(method))
    assert set(dump(method)) == {"name", *inspect.signature(METHODS[name]).parameters}


@pytest.mark.parametrize("name", LEASHED)
def test_sage_decodes_over_every_method_with_a_leash(name):
    if "estimator" not in inspect.signature(METHODS[name]).parameters:
        pytest.skip("its KL is part of its objective, and takes no guide")
    method = build("method", {"name": "sage", "base": {"name": name, "beta": 0.05}, "guide": "branch"})
    assert method == sage(METHODS[name](beta=0.05), Branch()) == build("method", dump(method))


@pytest.mark.parametrize("name", ["no_kl", "dr_grpo", "rloo", "dapo", "bnpo"])
def test_sage_over_a_method_without_one_is_refused_in_yaml_too(name):
    with pytest.raises(ConfigError, match=r"method: sage\(base=.*a guide needs beta > 0.*beta=0\.05"):
        build("method", {"name": "sage", "base": name})


@pytest.mark.parametrize("name", WITH_ANCHOR_KEYWORDS)
def test_the_keywords_of_the_anchor_decode(name):
    tree = {"name": name, "beta": 0.1, "placement": "loss", "source": "sft", "refresh_every": 7}
    exact = {"estimator": "exact", "divergence": "alpha", "alpha": 0.3}
    wanted = Anchor(0.1, source="sft", refresh_every=7, **exact)
    assert build("method", tree | exact).anchor == wanted
    fading = tree | exact | {"beta": {"name": "linear", "start": 0.1, "end": 0.0}}
    assert build("method", fading).anchor.beta == Linear(0.1, 0.0)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (
            {"name": "grpo", "estimator": "exact", "divergence": "forwrd"},
            "divergence = 'forwrd'.*did you mean 'forward'",
        ),
        ({"name": "grpo", "refresh_every": 1.5}, r"refresh_every = 1\.5: expected a whole number"),
        ({"name": "grpo", "alpha": "x"}, "alpha = 'x': expected a number"),
        ({"name": "grpo", "estimator": "exact"}, "choose one of reverse, forward, js, alpha"),
        ({"name": "forward_kl", "estimator": "k3"}, "estimator = 'k3': unknown key"),
        ({"name": "dapo", "dynamic_sampling": 1}, "expected true or false"),
        ({"name": "dapo", "overlong_buffer": 4}, "method: dapo: overlong_buffer = 4.*needs max_tokens"),
        ({"name": "bnpo", "dual": 1.0}, "method: Clip: dual = 1.0"),
        ({"name": "dapo", "overlong_bufer": 4}, "did you mean 'overlong_buffer'"),
    ],
)
def test_wrong_values_in_yaml_say_what_was_expected(tree, said):
    with pytest.raises(ConfigError, match=said):
        build("method", tree)


def test_null_switches_the_dual_clip_off():
    assert build("method", {"name": "dapo", "dual": None}).surrogate == Clip(0.2, 0.28)
