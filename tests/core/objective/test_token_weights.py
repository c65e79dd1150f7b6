"""Token weights of published objectives: worked by hand, and methods that are one objective."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch.nn.functional import pad

from lab.theory.utility import SHARES, axes, has_axes, same_objectives
from sage_rlvr.contrib.methods.adaptive_entropy import AdaptiveEntropy
from sage_rlvr.contrib.methods.cispo import Cispo
from sage_rlvr.contrib.methods.clip_cov import ClipCov, KlCov
from sage_rlvr.contrib.methods.eapo import Eapo, eapo
from sage_rlvr.contrib.methods.erank import ERank
from sage_rlvr.contrib.methods.gspo import Gspo
from sage_rlvr.contrib.methods.high_entropy import HighEntropy
from sage_rlvr.contrib.methods.mara import Mara
from sage_rlvr.contrib.methods.outcomes import OutcomeCounts, OutcomeRepeats
from sage_rlvr.contrib.methods.pacs import Pacs
from sage_rlvr.contrib.methods.right_entropy import RightEntropy
from sage_rlvr.contrib.methods.shaped_entropy import ShapedEntropy
from sage_rlvr.contrib.methods.steer import Steer, steer
from sage_rlvr.contrib.methods.unlikeliness import Unlikeliness
from sage_rlvr.core import Key, Signals, advantages_of
from sage_rlvr.core.extras import EntropyBonus, TokenWeight, entropy_drift, weights_of
from sage_rlvr.core.extras.tokens.placebo import PlaceboWeight
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import METHODS, no_kl, rloo
from sage_rlvr.testing import check_extra

# ---- token weights


def of(weight: TokenWeight, signals: Signals, step: int = 0, key: Key | None = None) -> torch.Tensor:
    return weights_of(weight, signals, step, 9, key or Key(0))[0]


def signals_of(probs: list[float], entropies: list[float], advantage: float = 1.0) -> Signals:
    count = len(probs)
    return Signals(
        torch.tensor([probs]).log(), None, torch.ones(1, count, dtype=torch.bool), torch.tensor([0]),
        entropies=torch.tensor([entropies]), advantages=torch.tensor([advantage]),
        entropy_drift=entropy_drift(torch.tensor([[[0.7, 0.2, 0.1]] * count]).log()),
    )  # fmt: skip


@pytest.mark.parametrize(
    "weight, wanted",
    [
        (Steer("paper", 0.7), [0.781256, 0.710897, 0.7]),
        (Steer("released", 0.8), [0.978179, 0.898760, 0.8]),
        (Steer("exact", 0.7), [0.7 ** (0.140793 / 0.332332), 0.7, 0.7 ** (0.320885 / 0.332332)]),
        (Steer("paper", 1.0), [1, 1, 1]),
    ],
    ids=str,
)
def test_steer_by_hand(weight, wanted):
    """pi = (.7, .2, .1), H = .801819, each token of it sampled once."""
    assert of(weight, signals_of([0.7, 0.2, 0.1], [0.801819] * 3))[0].tolist() == pytest.approx(wanted, abs=1e-5)


def test_the_exact_form_is_the_change_of_entropy():
    """A step of 1e-4 on rho A log pi_k of a softmax, by finite differences, for each token."""
    logits = torch.tensor([1.2, -0.3, 0.4], dtype=torch.float64)
    log_probs = torch.log_softmax(logits, 0)
    probs, rate = log_probs.exp(), 1e-4
    entropy = float(torch.special.entr(probs).sum())
    part = Steer("exact")
    signals = Signals(
        log_probs[None].float(), None, torch.ones(1, 3, dtype=torch.bool), torch.tensor([0]),
        entropies=torch.full((1, 3), entropy), advantages=torch.tensor([1.0]),
        entropy_drift=entropy_drift(log_probs.float().expand(1, 3, 3)),
    )  # fmt: skip
    moved = part._moved(signals)[0]
    for k in range(3):
        after = torch.softmax(logits + rate * (torch.nn.functional.one_hot(torch.tensor(k), 3) - probs), 0)
        change = float(torch.special.entr(after).sum()) - entropy
        assert -change / rate == pytest.approx(float(moved[k]), abs=2e-4)


def test_high_entropy_keeps_the_share_it_says():
    signals = signals_of([0.5] * 10, [0.1, 0.9, 0.2, 0.3, 0.8, 0.1, 0.4, 0.2, 0.3, 0.1])
    assert of(HighEntropy(), signals)[0].nonzero().flatten().tolist() == [1, 4]
    assert bool((of(HighEntropy(1.0), signals) == 1).all())


@pytest.mark.parametrize(
    "entropy, advantage, wanted", [(2, 1, 1.5), (2, -1, -0.5), (0.5, 1, 1.2), (0.5, -1, -0.8), (2, 0, 0)]
)
def test_shaped_entropy_by_hand(entropy: float, advantage: float, wanted: float):
    weight = of(ShapedEntropy(), signals_of([0.5], [float(entropy)], float(advantage)))
    assert float(weight[0, 0] * advantage) == pytest.approx(wanted)


# ---- EAPO


@pytest.mark.parametrize("advantage, wanted", [(2.0, [0.4, 1.6]), (-0.5, [1.6, 0.4]), (0.0, [1.0, 1.0])])
def test_eapo_by_hand(advantage: float, wanted: list[float]):
    """Two tokens are the ends of the scale, h = (0, 1) beyond their quantiles: r = (1, 4) of mean 2.5, or (1, 1/4) of mean 5/8."""
    assert of(Eapo(), signals_of([0.5, 0.5], [0.3, 1.7], advantage))[0].tolist() == pytest.approx(wanted)
    assert of(Eapo(0.0), signals_of([0.5, 0.5], [0.3, 1.7], advantage))[0].tolist() == [1, 1]


def test_eapo_of_constant_entropies_is_no_weight():
    assert bool((of(Eapo(), signals_of([0.5] * 4, [0.7] * 4)) == 1).all())


def test_eapo_scales_by_the_quantiles_of_the_whole_rollout():
    """Entropies 0, .1, ..., 1 over two rows: 10 % and 90 % are .1 and .9, and .5 is h = 1/2."""
    entropies = torch.tensor([[0.0, 0.5, 1.0, 0.1, 0.2, 0.3], [0.4, 0.6, 0.7, 0.8, 0.9, math.nan]])
    signals = Signals(
        -entropies, None, entropies.isfinite(), torch.arange(2), entropies=entropies, advantages=torch.tensor([1.0, -1.0])
    )  # fmt: skip
    raw = [4 ** min(max((h - 0.1) / 0.8, 0), 1) for h in entropies[0].tolist()]
    assert of(Eapo(), signals)[0].tolist() == pytest.approx([6 * r / sum(raw) for r in raw], rel=1e-5)


def eapo_batch() -> Signals:
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    entropies = torch.tensor([[0.1, 2.0, 0.7, 1.3], [0.4, 0.0, 1.1, 9.0], [0.9, 9.0, 9.0, 9.0], [0.3, 1.6, 9.0, 9.0]])
    advantages = torch.tensor([1.5, -0.5, -1.0, 0.0])
    return Signals(-entropies / 2, None, mask, torch.arange(4), entropies=entropies, advantages=advantages)


def test_eapo_as_the_authors_code_computes_it():
    """Printed by normalize_token_entropies and eapo_token_advantages of wgcyeo/EAPO, src/trainers/eapo_trainer.py at cd9885c."""
    wanted = [[0.6250, 2.4779, 1.0689, 1.8282], [-0.5255, -0.6935, -0.2810, 0.0], [-1.0, 0.0, 0.0, 0.0], [0.0] * 4]
    signals = eapo_batch()
    found = torch.where(signals.mask, signals.advantages[:, None] * of(Eapo(), signals), 0.0)
    assert found.tolist() == [pytest.approx(row, abs=6e-5) for row in wanted]


@pytest.mark.parametrize("kappa", [math.log(4), 3.0, 500.0])
def test_the_mean_advantage_of_a_completion_stays(kappa: float):
    """At a kappa that would overflow without the row's largest power too; padding counts nowhere."""
    signals = eapo_batch()
    weights = torch.where(signals.mask, of(Eapo(kappa), signals), 0.0)
    assert (weights.sum(1) / signals.mask.sum(1)).tolist() == pytest.approx([1.0] * 4, rel=1e-5)
    other = replace(signals, entropies=torch.where(signals.mask, signals.entropies, math.nan))
    assert torch.equal(of(Eapo(kappa), signals)[signals.mask], of(Eapo(kappa), other)[signals.mask])


def test_kappa_decays_to_no_weight():
    part = Eapo(decay_steps=4)
    assert [part.kappa_at(step) / math.log(4) for step in (0, 1, 3, 4, 9)] == pytest.approx([1, 0.75, 0.25, 0, 0])
    assert Eapo().kappa_at(9) == Eapo().kappa
    method, signals, rewards = eapo(decay_steps=4), eapo_batch(), torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    late, plain = (advantages_of(m, rewards, signals, step=4, total_steps=9) for m in (method, replace(method, extras=())))
    assert torch.equal(late, plain[:, None].expand(4, 4))
    halfway = advantages_of(method, rewards, signals, step=2, total_steps=9)
    assert torch.allclose(halfway, advantages_of(eapo(kappa=math.log(2)), rewards, signals))


# ---- the placebo of a weight


@pytest.mark.parametrize(
    "weight", [Eapo(), Steer(), HighEntropy(0.5), ShapedEntropy(), ClipCov(0.3, -9.0, 9.0)], ids=lambda w: type(w).__name__
)
def test_a_placebo_keeps_each_completions_weights_and_not_their_places(weight):
    signals = eapo_batch()
    drawn = [(step, Key(3)) for step in range(40)]
    plain = [of(weight, signals, *at) for at in drawn]
    found = [of(PlaceboWeight(weight), signals, *at) for at in drawn]
    for one, other in zip(plain, found, strict=True):
        for row in range(4):
            kept = signals.mask[row]
            assert sorted(one[row][kept].tolist()) == sorted(other[row][kept].tolist())
    assert torch.equal(found[7], of(PlaceboWeight(weight), signals, 7, Key(3)))
    assert any(not torch.equal(one, other) for one, other in zip(plain, found, strict=True))


@pytest.mark.slow
def test_a_placebo_draws_every_order_alike():
    """Each of the six orders of three tokens in about a sixth of the draws, so each token has the mean weight, 1 of EAPO."""
    signals = eapo_batch()
    part, wanted = PlaceboWeight(Eapo()), of(Eapo(), signals)[1, :3].tolist()
    draws = torch.stack([of(part, signals, step)[1, :3] for step in range(3000)])
    for order in itertools.permutations(wanted):
        share = (draws == torch.tensor(order)).all(dim=1).float().mean()
        assert float(share) == pytest.approx(1 / 6, abs=0.035)
    assert draws.mean(0).tolist() == pytest.approx([1.0] * 3, abs=0.03)


def test_neither_padding_nor_the_order_of_rows_moves_a_placebo():
    signals, part = eapo_batch(), PlaceboWeight(Eapo())
    old, entropies = (pad(values, (2, 1), value=math.nan) for values in (signals.old_logps, signals.entropies))
    wide = Signals(
        old, None, pad(signals.mask, (2, 1)), signals.row_ids, entropies=entropies, advantages=signals.advantages
    )  # fmt: skip
    found = of(part, signals, 5, Key(1))
    assert torch.allclose(of(part, wide, 5, Key(1))[:, 2:6][signals.mask], found[signals.mask], atol=1e-6)
    rows = torch.tensor([2, 0, 3, 1])
    turned = signals.take(rows, signals.row_ids[rows])
    assert torch.allclose(of(part, turned, 5, Key(1))[turned.mask], found[rows][turned.mask], atol=1e-6)


def test_a_placebo_follows_the_schedule_of_its_weight():
    part, signals = PlaceboWeight(Eapo(decay_steps=4)), eapo_batch()
    assert torch.equal(of(part, signals, 2), of(PlaceboWeight(Eapo(math.log(4) / 2)), signals, 2))
    assert part.needs == {"advantages", "entropies"} and "permuted over the tokens of its completion" in part.equation


@pytest.mark.parametrize("weight", [Eapo(), Eapo(0.5, 7), PlaceboWeight(Eapo()), PlaceboWeight(HighEntropy())], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_laws_of_the_new_weights(weight, seed: int):
    check_extra(weight, seed)


@dataclass(frozen=True)
class _Careless(TokenWeight):
    """1 + entropy - median entropy, the median over padding too."""

    equation: ClassVar[str] = "1 + H - median H"
    needs: ClassVar[frozenset[str]] = frozenset({"entropies"})
    depends_on: ClassVar[str] = "batch"

    def token_weights(self, signals, step, total_steps, key, state):
        entropies = torch.nan_to_num(signals.require("entropies", "a test"))
        return 1 + entropies - entropies.median(), state


class _Undeclared(ShapedEntropy):
    """A weight that says of one of its two signals only that it reads it."""

    needs: ClassVar[frozenset[str]] = frozenset({"advantages"})


class _UndeclaredTerm(AdaptiveEntropy):
    """The same of a term of the loss."""

    needs: ClassVar[frozenset[str]] = frozenset({"entropy_gradient"})


@pytest.mark.parametrize(
    ("part", "law"),
    [
        (_Careless(), "_Careless.token_weights: what is off the mask changes the weights"),
        (_Undeclared(), r"_Undeclared.token_weights reads Signals.entropies, which needs = \['advantages'\] does not declare"),
        (PlaceboWeight(_Undeclared()), "PlaceboWeight.token_weights reads Signals.entropies"),
        (_UndeclaredTerm(), "_UndeclaredTerm.loss_weights reads Signals.entropies"),
    ],
    ids=str,
)
def test_the_laws_find_a_signal_that_is_not_declared_and_a_median_over_padding(part, law: str):
    with pytest.raises(AssertionError, match=law):
        check_extra(part)


def test_clip_cov_leaves_out_tokens_of_its_window_alone():
    """A = (1, 1, -1, -1), log pi = (-.1, -2, -.1, -2): cov = (.95, -.95, -.95, .95)."""
    signals = Signals(
        torch.tensor([[-0.1, -2.0], [-0.1, -2.0]]), None, torch.ones(2, 2, dtype=torch.bool), torch.arange(2),
        advantages=torch.tensor([1.0, -1.0]),
    )  # fmt: skip
    both = of(ClipCov(0.5, 0.9, 1.0), signals, 0, Key(1))
    assert both.tolist() == [[0, 1], [1, 0]]
    one = [of(ClipCov(0.01, 0.9, 1.0), signals, step, Key(1)) for step in range(30)]
    assert {tuple(w.flatten().tolist()) for w in one} == {(0, 1, 1, 1), (1, 1, 1, 0)}, "one token, drawn anew each step"
    assert torch.equal(one[3], of(ClipCov(0.01, 0.9, 1.0), signals, 3, Key(1)))
    assert bool((of(ClipCov(0.5, 1.0, 5.0), signals, 0, Key(1)) == 1).all())


def test_a_method_has_one_token_weight():
    with pytest.raises(ConfigError, match="Steer is one of two token weights, and a method has one: keep one of the two"):
        replace(steer(), extras=(Steer(), Eapo()))


def test_a_weight_that_draws_asks_for_the_key():
    signals = signals_of([0.5, 0.5], [1.0, 1.0])
    with pytest.raises(DataError, match="ClipCov draws at random; pass key="):
        method = replace(METHODS["clip_cov"](), advantage=METHODS["dr_grpo"]().advantage)
        advantages_of(method, torch.tensor([[1.0]]), signals)


def test_a_neutral_weight_is_no_weight():
    signals = signals_of([0.7, 0.2], [0.8, 0.8])
    two = replace(signals, mask=torch.ones(1, 2, dtype=torch.bool))
    rewards = torch.tensor([[1.0]])
    method = replace(steer(min_weight=1.0), advantage=METHODS["dr_grpo"]().advantage)
    plain = replace(method, extras=())
    assert torch.equal(advantages_of(method, rewards, two), advantages_of(plain, rewards, two)[:, None].expand(1, 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mara(0.0), lambda: Unlikeliness(2.0), lambda: RightEntropy(-1.0), lambda: Cispo(2.0), lambda: OutcomeCounts(-1.0),
        lambda: EntropyBonus(float("nan")), lambda: AdaptiveEntropy(0.0), lambda: AdaptiveEntropy(min_coef=0.5), lambda: KlCov(0.0),
        lambda: AdaptiveEntropy(delta=-1.0), lambda: KlCov(coefficient=-1.0), lambda: OutcomeCounts(memory=0),
        lambda: OutcomeRepeats(0.1, "wrong"), lambda: Cispo(0.2, -1),
        lambda: Gspo(2.0), lambda: Gspo(0.1, -1.0), lambda: Pacs(0.0), lambda: Pacs(1.0, "base"), lambda: Pacs(terms=3),
        lambda: Steer("code"), lambda: Steer(min_weight=0.0), lambda: HighEntropy(0.0), lambda: ShapedEntropy(-1.0),
        lambda: Eapo(-1.0), lambda: Eapo(math.inf), lambda: Eapo(decay_steps=0), lambda: PlaceboWeight(ERank()),
        lambda: PlaceboWeight(Eapo), lambda: ShapedEntropy(0.4, 1.0), lambda: ClipCov(0.0), lambda: ClipCov(0.1, 5.0, 1.0),
    ],
)  # fmt: skip
def test_settings_that_mean_nothing(make):
    with pytest.raises(ConfigError):
        make()


# ---- the two axes


def test_methods_that_are_one_objective_are_found():
    assert not has_axes(METHODS["bnpo"]()), "one prompt alone is not what BNPO ascends"
    names = ["rloo", "grpo", "psr", "nsr", "w_reinforce", "dr_grpo", "maxrl", "no_kl", "distinct"]
    found = same_objectives([(name, axes(METHODS[name](), 6)) for name in names if name != "distinct"])
    assert [[name for name, _ in group] for group in found] == [
        ["rloo", "psr", "nsr", "w_reinforce", "dr_grpo"],
        ["grpo", "no_kl"],
    ]
    assert dict(found[0]) == pytest.approx({"rloo": 1, "psr": 1, "nsr": 1, "w_reinforce": 1.1, "dr_grpo": 5 / 6})


def test_what_a_method_says_it_prefers_is_what_enumeration_finds():
    """A method without a preference concentrates as REINFORCE does, wherever the reference is; others say so in `prefers`."""
    for name in (
        "rloo",
        "maxrl",
        "pkpo",
        "distinct",
        "alpha_dpg",
        "right_entropy",
        "mara",
        "unlikeliness",
        "outcome_repeats",
        "ds_grpo",
        "ucpo",
    ):
        place = axes(METHODS[name](**({"k": 4} if name == "distinct" else {})), 5)
        plain = place.concentration == pytest.approx(1, abs=1e-3) and place.returning == pytest.approx(1, abs=1e-3)
        assert plain == ("no preference" in METHODS[name]().describe()), name
    assert len(axes(rloo()).weights) == len(SHARES) and axes(no_kl(), 4).weights[0] > axes(no_kl(), 4).weights[2]
