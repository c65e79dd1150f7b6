"""Methods run: several updates at ratios other than 1 against an independent twin, the parts, the equation in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sage_rlvr.core import (
    Anchor,
    Batch,
    Branch,
    Clip,
    Extra,
    FixedBudget,
    GroupCentered,
    Guide,
    Key,
    Linear,
    Method,
    Random,
    SequenceMean,
    Signals,
    Token,
    TokenMean,
    TokenWeight,
    advantages_of,
    objective,
    q_clamped,
    shape,
)
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import dr_grpo, grpo, no_kl, rloo, sage

MASK = torch.tensor([[1, 1], [1, 0]]).bool()


def test_golden_objective_with_ratios_other_than_one():
    """Row 1: ratios 1.5, 1.1, A = 1: -1.2 (clipped), -1.1. Row 2: ratio .5, A = -1: .8 (clipped). beta = .1, k3 with

    ref / pi = 2, 1, .5: 1 - log 2 = .306853, 0, log 2 - .5 = .193147. Loss of row 1: (-1.2 + .0306853 - 1.1) / 2 =
    -1.134657; of row 2: .8 + .0193147; mean of both: -.157671. Gradient on logps: row 1 (.5 * .5) * (0 - .1, -1.1 - 0),
    row 2 (.5) * (0 + .1 * (1 - .5)).
    """
    ratios, over = torch.tensor([[1.5, 1.1], [0.5, 9.0]]), torch.tensor([[2.0, 1.0], [0.5, 9.0]])
    old = torch.full((2, 2), -2.0)
    logps = (old + ratios.log()).requires_grad_(True)
    ref = logps.detach() + over.log()
    batch = Batch(logps, old, ref, MASK, torch.tensor([1.0, -1.0]))
    loss, metrics = objective(grpo(beta=0.1), batch, 0, 1)
    (gradient,) = torch.autograd.grad(loss, logps)
    assert float(loss.detach()) == pytest.approx(-0.157671, abs=1e-6) == metrics["loss"]
    assert gradient.flatten().tolist() == pytest.approx([-0.025, -0.275, 0.025, 0.0], abs=1e-6)
    assert metrics["surrogate/clipped_frac"] == pytest.approx(2 / 3)
    assert metrics["surrogate/ratio_mean"] == pytest.approx(3.1 / 3)
    assert metrics["kl/to_anchor"] == metrics["kl/to_reference"] == pytest.approx(0.5 / 3, abs=1e-6)


def twin_gradient(logits, old, ref, actions, advantages, q, beta):
    """d/d logits of mean_i [-min(rho A, clip A) + beta k3], one token per row, written out with floats only."""
    peak = [math.exp(v) for v in logits]
    pi = [v / sum(peak) for v in peak]
    total = [0.0] * len(logits)
    for action, advantage, weight in zip(actions, advantages, q, strict=True):
        ratio, pull = pi[action] / old[action], weight * ref[action] / pi[action]
        held = (ratio > 1.2 and advantage > 0) or (ratio < 0.8 and advantage < 0)
        slope = (0.0 if held else -ratio * advantage) + beta * (1 - pull)
        for j in range(len(logits)):
            total[j] += slope * ((j == action) - pi[j]) / len(actions)
    return total


def test_four_updates_on_one_rollout_agree_with_the_twin():
    """q and old stay those of the rollout while the policy moves; some ratio leaves the clip interval on the way."""
    start, ref = torch.tensor([0.5, 0.0, -0.5]), torch.tensor([-0.5, 0.5, 0.0])
    actions, advantages = torch.tensor([0, 1, 2, 0]), torch.tensor([1.0, -1.0, 0.5, -0.5])
    mask = torch.ones(4, 1, dtype=torch.bool)
    old, anchor = (torch.log_softmax(v, 0)[actions][:, None] for v in (start, ref))
    signals = Signals(old, anchor, mask, torch.arange(4), entropies=torch.tensor([[0.5], [1.7], [2.2], [4.0]]))
    method = sage(grpo(beta=0.3))
    log_q = shape(method, signals, 0, 1, Key(0))
    logits, plain, clipped = start.clone(), start.tolist(), []
    for _ in range(4):
        leaf = logits.clone().requires_grad_(True)
        logps = torch.log_softmax(leaf, 0)[actions][:, None]
        loss, metrics = objective(method, Batch(logps, old, anchor, mask, advantages, log_q), 0, 1)
        (gradient,) = torch.autograd.grad(loss, leaf)
        wanted = twin_gradient(
            plain, torch.softmax(start, 0).tolist(), torch.softmax(ref, 0).tolist(), actions.tolist(),
            advantages.tolist(), [1.0, 1.15, 1.3, 1.4], 0.3,
        )  # fmt: skip
        assert gradient.tolist() == pytest.approx(wanted, abs=1e-6)
        logits, plain = logits - 2.0 * gradient, [v - 2.0 * g for v, g in zip(plain, wanted, strict=True)]
        clipped.append(metrics["surrogate/clipped_frac"])
    assert clipped[0] == 0.0 and max(clipped) > 0.0


def test_objective_never_calls_the_guide():
    class Once(Guide):
        needs, depends_on, equation = frozenset(), "token", "counts its calls"
        calls = 0

        def __call__(self, signals, step, total_steps, key):
            type(self).calls += 1
            return torch.zeros_like(signals.old_logps)

    method, logps = sage(grpo(), Once()), torch.full((2, 2), -1.0)
    signals = Signals(logps, logps, MASK, torch.arange(2))
    log_q = shape(method, signals, 0, 1, Key(0))
    for _ in range(3):
        objective(method, Batch(logps, logps, logps, MASK, torch.zeros(2), log_q), 0, 1)
    assert Once.calls == 1


def test_beta_may_start_at_zero():
    method = grpo(beta=Linear(0.0, 0.1))
    logps = torch.full((2, 2), -1.0)
    batch = Batch(logps, logps, logps - 0.5, MASK, torch.zeros(2))
    assert "kl/to_anchor" not in objective(method, batch, 0, 11)[1]
    assert objective(method, batch, 10, 11)[1]["loss"] > 0 and method.needs == {"ref_logps"}


def test_an_extra_on_rewards_and_a_token_weight_take_their_places():
    class ShorterIsBetter(Extra):
        equation = "r - .1 |y|"

        def after_rewards(self, rewards, seen, state):
            return rewards - 0.1 * seen.lengths

    class FirstTokenOnly(TokenWeight):
        equation = "w_t = [t = 0]"

        def token_weights(self, signals, step, total_steps, key, state):
            return (signals.positions == 0).float(), state

    method = Method("parts", GroupCentered(), Clip(), None, FixedBudget(2), extras=(FirstTokenOnly(), ShorterIsBetter()))
    signals = Signals(torch.zeros(2, 2), None, MASK, torch.arange(2))
    found = advantages_of(method, torch.tensor([[1.0, 1.0]]), signals)
    assert found.flatten().tolist() == pytest.approx([-0.05, 0.0, 0.05, 0.0])
    with pytest.raises(DataError, match="an extra works per token"):
        advantages_of(method, torch.tensor([[1.0, 1.0]]))


def test_rewards_alone_suffice_without_reward_placement():
    assert advantages_of(no_kl(), torch.tensor([[1.0, 0.0]])).shape == (2,)
    with pytest.raises(DataError, match="placement='reward'"):
        advantages_of(rloo(beta=0.05), torch.tensor([[1.0, 0.0]]))


def test_the_reward_kl_is_not_divided_by_the_group_std():
    """The penalty is the same whatever the rewards are."""
    method = replace(rloo(beta=0.5), advantage=grpo().advantage)  # which also takes its mean: the whole group's
    old = -torch.arange(1.0, 9.0).reshape(4, 2)
    signals = Signals(old, torch.zeros(4, 2), torch.ones(4, 2), torch.arange(4))
    penalties = [
        advantages_of(method, rewards, signals) - method.advantage(rewards).reshape(-1, 1)
        for rewards in (torch.tensor([[1.0, 0.0, 0.0, 0.0]]), torch.zeros(1, 4))
    ]
    assert torch.allclose(*penalties, atol=1e-6) and penalties[0].abs().max() > 1


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (rloo(beta=0.5), [[-2.5, -1.0, -2.0], [1.25, 1.0, 0.0], [1.25, 0.0, 0.0]]),
        (
            dr_grpo(beta=0.5, estimator="k1", placement="reward"),
            [[-5 / 3, -2 / 3, -4 / 3], [5 / 6, 2 / 3, 0.0], [5 / 6, 0.0, 0.0]],
        ),
    ],
    ids=["rloo", "dr_grpo"],
)
def test_the_kl_has_the_baseline_of_the_advantage(method, wanted):
    """k1 = (3, 1, 1), (1, 3), (2): K = (5, 2, 1), (4, 3), (2).

    RLOO, K_t - mean of the others: 5 - 3, 4 - 7/2, 2 - 9/2 | 2 - 3, 3 - 2 | alone: 1 - 0. Times -beta = -.5: -1, -.25,
    1.25 | .5, -.5 | -.5, on A = -1.5, 1.5, 0 (rewards 0, 2, 1; means of the others 3/2, 1/2, 1). Dr. GRPO: 2/3 of all
    that, reward and KL: -2/3, -1/6, 5/6 | 1/3, -1/3 | -1/3, on A = -1, 1, 0.
    """
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()
    old = torch.tensor([[3.0, 1.0, 1.0], [1.0, 3.0, math.nan], [2.0, math.nan, math.nan]])
    signals = Signals(old, torch.zeros(3, 3), mask, torch.arange(3))
    found = advantages_of(method, torch.tensor([[0.0, 2.0, 1.0]]), signals)
    own = method.advantage(torch.tensor([[0.0, 2.0, 1.0]])).reshape(-1, 1)
    wanted = torch.tensor(wanted)
    assert torch.allclose(found[mask], wanted[mask], atol=1e-6) and torch.equal(found[~mask], own.expand(3, 3)[~mask])


def test_missing_reference_is_named():
    logps = torch.zeros(2, 2)
    with pytest.raises(DataError, match=r"Batch\.ref_logps is None"):
        objective(grpo(), Batch(logps, logps, None, MASK, torch.zeros(2)), 0, 1)


def test_reward_placement_refuses_length_normalization():
    with pytest.raises(ConfigError, match=r"sequence_mean.*dr_grpo"):
        Method("m", GroupCentered(), Clip(), Anchor(0.05, estimator="k1", placement="reward"), SequenceMean())


def test_needs():
    assert (no_kl().needs, grpo().needs) == (frozenset(), {"ref_logps"})
    assert sage().needs == {"ref_logps", "entropies"} and sage(guide=Token()).needs == {"ref_logps"}
    assert sage(guide=Branch(signal="reference")).needs == {"ref_logps", "ref_entropies"}


def test_entropy_metric_counts_the_mask():
    logps = torch.zeros(2, 2)
    entropies = torch.tensor([[1.0, 2.0], [3.0, math.nan]])
    metrics = objective(no_kl(), Batch(logps, logps, None, MASK, torch.zeros(2), entropies=entropies), 0, 1)[1]
    assert metrics["policy/entropy"] == 2.0 and all(isinstance(value, float) for value in metrics.values())


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (no_kl(), ["no KL term", "clip(rho, 0.8, 1.2)"]),
        (
            grpo(clip_high=0.28),
            ["0.05 * k3(pi, pi_ref)", "1.28", "(1/|y_i|)", "std_group", "*forward* KL", "beta * std"],
        ),
        (
            sage(),
            ["k3(pi, q pi_ref)", "1 + 0.3 * relu(H_t[pi_old] - 1.2)", "[0.6, 1.4]", "q(s) * grad", "q - log q - 1"],
        ),
        (dr_grpo(beta=0.05, source="runs/sft"), ["max_tokens", "pi_ref = runs/sft"]),
        (
            sage(rloo(beta=0.1)),
            ["log pi_old - log(q pi_ref)", "- 0.1 * (K_t - mean_others K_t)", "bonus", "mean_others r"],
        ),
        (
            dr_grpo(beta=0.1, estimator="k1", placement="reward"),
            ["- 0.1 * (G-1)/G * (K_t - mean_others K_t)", "mean_group r", "that reach t, 0 if none does"],
        ),
        (
            sage(),
            ["note: each row's force is weighted by 1/|y|", "q > 1, this is a pull toward shorter answers"],
        ),
        (replace(rloo(beta=0.1), reduction=TokenMean()), ["note: sum_i |y_i| varies from batch to batch", "O(1/B)"]),
        (sage(grpo(), Branch() * Token()), ["each factor clamped to its band, their product in [0.36, 1.96]"]),
        (grpo(beta=Linear(0.1, 0.0)), ["Linear(start=0.1, end=0.0) * k3"]),
    ],
)
def test_describe_prints_the_equation_with_its_values(method, words):
    text = method.describe()
    assert text.startswith(method.name) and [word for word in words if word not in text] == []


@pytest.mark.filterwarnings("ignore:.*noise")
@pytest.mark.parametrize(
    ("base", "note"),
    [
        (dr_grpo(beta=0.05), "note: Random: noise only"),
        (dr_grpo(beta=0.05, estimator="exact", divergence="forward"), "note: Random: noise only"),
        (dr_grpo(beta=0.05, estimator="exact", divergence="js"), "note: Random: noise, and a second-order change"),
        (rloo(beta=0.05), "note: Random: E[log q] < 0, a drift toward shorter answers"),
    ],
)
def test_describe_says_what_is_left_of_noise(base, note):
    assert note in sage(base, Random()).describe() and "note: Random" not in base.describe()


def test_a_constant_divisor_gets_no_note_about_lengths():
    for method in (sage(dr_grpo(beta=0.05)), rloo(beta=0.1)):
        assert "1/|y|" not in method.describe() and "varies from batch" not in method.describe()


class Overlong(Extra):
    """Stands in for a published transform: it says its equation."""

    equation = "r - 0.1 max(0, |y| - 512)"

    def after_rewards(self, rewards, seen, state):
        return rewards - 0.1 * (seen.lengths - 512).clamp(min=0)


class Uncertain(TokenWeight):
    """A token weight that says what it needs."""

    needs, equation = frozenset({"ref_entropies"}), "1[H_ref > 1]"

    def token_weights(self, signals, step, total_steps, key, state):
        return (signals.require("ref_entropies", "Uncertain") > 1).float(), state


class ThirdOfTheTokens(TokenWeight):
    equation = "1 at every third token, else 0"

    def token_weights(self, signals, step, total_steps, key, state):
        return (signals.positions % 3 == 0).float(), state


@pytest.mark.parametrize("base", [no_kl(), grpo(), rloo(beta=0.1)])
def test_describe_prints_every_part(base):
    text = replace(base, extras=(Overlong(), ThirdOfTheTokens())).describe()
    assert "  r = r - 0.1 max(0, |y| - 512), of the verifier's" in text and "  w_t = 1 at every third token, else 0" in text
    assert f"A = w_t * [{base.advantage.equation}]" in text
    assert "w_t = 1[H_ref > 1]" in replace(grpo(), extras=(Uncertain(),)).describe()
    assert "w_t" not in base.describe() and "of the verifier's" not in base.describe()


def test_a_part_says_what_it_needs():
    assert replace(grpo(), extras=(Uncertain(),)).needs == {"ref_logps", "ref_entropies"}
    assert replace(grpo(), anchor=Anchor(0.0), extras=(Uncertain(),)).needs == {"ref_logps", "ref_entropies"}
    assert replace(no_kl(), extras=(ThirdOfTheTokens(),)).needs == frozenset()
    with pytest.raises(ConfigError, match=r"needs the reference.*Anchor\(0\.0"):
        replace(no_kl(), extras=(Uncertain(),))


@pytest.mark.filterwarnings("ignore:.*cancels")
def test_the_batch_carries_where_a_factor_of_q_is_clamped():
    """Row 1: H = 4 puts Branch at its edge. Row 2: H = 0. Three counted tokens, two of them clamped."""
    logps, entropies = torch.full((2, 2), -1.0), torch.tensor([[4.0, 4.0], [0.0, 4.0]])
    method = sage(grpo(), Branch() * Token(alpha=0.0, sigma=0.0))
    signals = Signals(logps, logps, MASK, torch.arange(2), entropies=entropies)
    log_q = shape(method, signals, 0, 20, Key(0))
    edges = q_clamped(method, signals, 0, 20, Key(0), log_q)
    batch = Batch(logps, logps, logps, MASK, torch.zeros(2), log_q, q_clamped=edges)
    assert objective(method, batch, 0, 20)[1]["guide/clamped_frac"] == pytest.approx(2 / 3)
    assert not q_clamped(no_kl(), signals, 0, 20, Key(0), log_q).any()
