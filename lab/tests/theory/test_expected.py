"""The expected loss over completions against its brute-force twin over all groups: values, gradients, and where it stops."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.theory import Listing, TokenTree, expected_loss, loss_over_groups
from lab.theory import expected as module
from sage_rlvr.contrib.methods.adaptive_entropy import AdaptiveEntropy
from sage_rlvr.contrib.methods.alpha_dpg import alpha_dpg
from sage_rlvr.contrib.methods.dars import dars
from sage_rlvr.contrib.methods.distinct import distinct
from sage_rlvr.contrib.methods.ds_grpo import ds_grpo
from sage_rlvr.contrib.methods.mara import mara
from sage_rlvr.contrib.methods.pkpo import pkpo
from sage_rlvr.contrib.methods.right_entropy import right_entropy
from sage_rlvr.contrib.methods.ucpo import ucpo
from sage_rlvr.contrib.methods.unlikeliness import unlikeliness
from sage_rlvr.core import (
    Anchor,
    BetaNormalized,
    Branch,
    Clip,
    FixedBudget,
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
    Linear,
    Method,
    Placebo,
    RolloutPlan,
    SequenceMean,
    Token,
    TokenMean,
)
from sage_rlvr.core.advantages import GroupSignals
from sage_rlvr.core.extras import EntropyBonus, Extra, TokenWeight
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import METHODS as METHODS_ALL
from sage_rlvr.methods import dr_grpo, grpo, maxrl, rloo, sage
from stateful import Remembered, stateful

TREE = TokenTree([(0,), (1, 0), (1, 1, 0), (1, 1, 2)])
LOGITS = torch.tensor([[0.2, 0.5, 0.0], [0.3, -0.6, 0.0], [-0.2, 0.0, 0.8]], dtype=torch.float64)
REF = torch.tensor([[-0.5, 0.1, 0.0], [-0.4, 0.7, 0.0], [0.9, 0.0, -0.3]], dtype=torch.float64)
OLD = torch.tensor([[0.6, -0.2, 0.0], [-0.5, 0.4, 0.0], [0.7, 0.0, -0.1]], dtype=torch.float64)
RIGHT = torch.tensor([1.0, 0.0, 1.0, 0.0])


@dataclass(frozen=True)
class Mixed(RolloutPlan):
    """Keeps groups whose raw rewards differ."""

    equation: str = "rewards differ"
    max_refills: int = 1

    def keeps(self, rewards):
        return rewards.amax(1) != rewards.amin(1)


class Shorter(Extra):
    """r - .2 |y|: a price on the length."""

    equation = "r - 0.2 |y|"

    def after_rewards(self, rewards, seen, state):
        return rewards - 0.2 * seen.lengths


class LateTokens(TokenWeight):
    """Half the advantage at the first token."""

    equation = "0.5 at the first token, else 1"

    def token_weights(self, signals, step, total_steps, key, state):
        return torch.where(signals.positions == 0, 0.5, 1.0), state


STILL_TOKEN = Token(alpha=0.4, sigma=0.0)
METHODS = {
    "grpo": grpo(beta=0.3),
    "dr_grpo": dr_grpo(beta=0.3),
    "dr_grpo k3_is": dr_grpo(beta=0.3, estimator="k3_is"),
    "rloo": rloo(beta=0.3),
    "dr_grpo in the reward": dr_grpo(beta=0.3, estimator="k1", placement="reward"),
    "normalized, in the reward": replace(rloo(beta=0.3), advantage=GroupNormalized()),
    "exact reverse": dr_grpo(beta=0.3, estimator="exact", divergence="reverse"),
    "exact forward": grpo(beta=0.3, estimator="exact", divergence="forward"),
    "exact js": dr_grpo(beta=0.3, estimator="exact", divergence="js"),
    "exact alpha": dr_grpo(beta=0.3, estimator="exact", divergence="alpha", alpha=0.7),
    "token": sage(grpo(beta=0.3), STILL_TOKEN),
    "token under k2": sage(dr_grpo(beta=0.3, estimator="k2"), STILL_TOKEN),
    "token in the reward": sage(rloo(beta=0.3), STILL_TOKEN),
    "branch under exact js": sage(dr_grpo(beta=0.3, estimator="exact", divergence="js"), Branch(0.5, ratio=0.8)),
    "plan": replace(grpo(beta=0.3), rollout=Mixed()),
    "plan, centered": replace(dr_grpo(beta=0.3), rollout=Mixed()),
    "transform": replace(grpo(beta=0.3), extras=(Shorter(),)),
    "transform, in the reward": replace(rloo(beta=0.3), extras=(Shorter(),)),
    "transform and plan": replace(dr_grpo(beta=0.3), extras=(Shorter(),), rollout=Mixed()),
    "token weight": replace(grpo(beta=0.3), extras=(LateTokens(),)),
    "token weight, in the reward": replace(rloo(beta=0.3), extras=(LateTokens(),)),
    "entropy bonus": replace(dr_grpo(beta=0.3), extras=(EntropyBonus(0.5),)),
    "entropy bonus, in the reward": replace(rloo(beta=0.3), extras=(LateTokens(), EntropyBonus(Linear(0.5, 0)))),
    "maxrl": maxrl(beta=0.3),
    "pkpo": pkpo(k=2, beta=0.3),
    "distinct": distinct(k=2, beta=0.3),
    "distinct, log": distinct(k=3, power=1.0, beta=0.3),
    "alpha_dpg": alpha_dpg(),
    "mara": mara(beta=0.3),
    "right_entropy": right_entropy(gamma=0.4, beta=0.3),
    "unlikeliness": unlikeliness(beta=0.3),
    "outcome_repeats": METHODS_ALL["outcome_repeats"](beta=0.3),
    "outcome_repeats, right": METHODS_ALL["outcome_repeats"](weight=2.0, bonus_on="correct", beta=0.3),
    "dars": dars(max_completions=5, beta=0.3),
    "dars, hard": dars(max_completions=5, target="hardness", form="std", beta=0.3),
    "dars, stages": dars(max_completions=5, baseline="stages", beta=0.3),
    "dars, second": dars(max_completions=5, baseline="second", beta=0.3),
    "dars, mean over rows": replace(dars(max_completions=5, beta=0.3), reduction=SequenceMean()),
    "ds_grpo": ds_grpo(beta=0.3),
    "ucpo": ucpo(tau=0.8, per_token=False, beta=0.3),
}


def both(method: Method, size: int, **options) -> tuple[tuple[float, torch.Tensor], ...]:
    """(loss, gradient) by expectation over completions and by brute force over groups."""
    found = []
    for brute_force in (False, True):
        leaf = LOGITS.clone().requires_grad_(True)
        arguments = {"rewards": RIGHT} | options
        loss = TREE.expected_loss(method, leaf, REF, group_size=size, brute_force=brute_force, **arguments)
        found.append((float(loss), torch.autograd.grad(loss, leaf)[0]))
    return tuple(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_expectation_is_the_mean_over_all_groups(name):
    (_, quick), (_, slow) = both(METHODS[name], 3)
    assert torch.allclose(quick, slow, atol=2e-6) and slow.abs().max() > 0.01


def test_an_entropy_bonus_adds_the_gradient_of_the_visited_states_entropies():
    """c sum_y pi(y) sum_t grad H_t over the budget, the visits held fixed: by hand on the tree, and by brute force."""
    plain, coefficient = dr_grpo(), 0.5
    method = replace(plain, extras=(EntropyBonus(coefficient),))
    (_, quick), (_, slow) = both(method, 3)
    (_, without), _ = both(plain, 3)
    leaf = LOGITS.clone().requires_grad_(True)
    probs, budget = TREE.probs(LOGITS), int(TREE.mask.sum(1).max())
    entropy = (probs * TREE.entropies(leaf).sum(1)).sum() / budget
    wanted = without - coefficient * torch.autograd.grad(entropy, leaf)[0]
    assert torch.allclose(quick, wanted, atol=1e-6) and torch.allclose(slow, wanted, atol=1e-6)
    whole = torch.autograd.grad((TREE.probs(leaf) * TREE.entropies(leaf).sum(1)).sum() / budget, leaf)[0]
    assert not torch.allclose(without - coefficient * whole, wanted, atol=1e-3)  # not that of whole completions


@pytest.mark.parametrize("target, acts", [(0.1, False), (5.0, True)])
def test_an_adaptive_bonus_is_the_bonus_of_its_coefficient_while_entropy_is_low(target, acts):
    terms = AdaptiveEntropy(target, start_at=0.25), EntropyBonus(0.25 * acts)
    methods = [replace(dr_grpo(), extras=(term,)) for term in terms]
    options = {"group_size": 3, "brute_force": True}
    found, wanted = (TREE.expected_gradient(method, LOGITS, REF, RIGHT, **options) for method in methods)
    assert torch.equal(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("bonus_on", ["correct", "all"])
def test_outcome_counts_ascend_the_reward_plus_the_bonus_of_each_answer(bonus_on):
    """Answers 1 and 2 were given 100 and 4 times: RLOO's gradient of rewards 1 + b/10 or 1 + b, and b/2 or b of wrong ones."""
    method = METHODS_ALL["outcome_counts"](bonus=0.6, bonus_on=bonus_on, beta=0.3)
    (part,), one = method.extras, torch.ones(1, 1)
    seen = [GroupSignals(one, one, None, torch.tensor([[answer]]), torch.ones(1, 1, dtype=torch.int64)) for answer in (1, 2)]
    counts = part.start()
    for answered in [seen[0]] * 100 + [seen[1]] * 4:
        counts = part.learn(one, answered, counts)
    start, later = method.start(), {part.slot: counts}
    (_, quick), (_, slow) = both(method, 3, state=later)
    wrong = torch.tensor([0.0, 0.3, 0, 0.6]) * (bonus_on == "all")
    (_, wanted), _ = both(rloo(beta=0.3), 3, rewards=RIGHT + wrong + torch.tensor([0.06, 0, 0.6, 0]))
    assert torch.allclose(quick, slow, atol=2e-6) and torch.allclose(quick, wanted, atol=2e-6)
    assert not torch.allclose(quick, both(method, 3, state=start)[0][1], atol=1e-3)


@pytest.mark.parametrize("method", [stateful(0.3), replace(rloo(beta=0.3), advantage=Remembered())], ids=lambda m: m.name)
def test_a_running_state_is_held_fixed(method):
    """Half the reward as the mean of before is half the reward's gradient less of one sign; E[grad log pi] = 0 keeps it out."""
    later = {name: dict(own) for name, own in method.start().items()}
    later["advantage"]["mean"] = torch.tensor(0.5)
    if "extra/tiring" in later:
        later["extra/tiring"]["unlikely"] = torch.tensor(1.0)
    (start, at_start), _ = both(method, 3)
    (value, quick), (_, slow) = both(method, 3, state=later)
    assert torch.allclose(quick, slow, atol=2e-6) and slow.abs().max() > 0.01 and value != start
    assert torch.allclose(quick, at_start, atol=1e-6) is ("extra/tiring" not in later and method.reduction.divisor == "constant")


OF_THE_BATCH = ("steer", "eapo", "shaped_entropy", "clip_cov", "high_entropy", "kl_cov", "adaptive_entropy")


@pytest.mark.parametrize("method", [METHODS_ALL[name]() for name in OF_THE_BATCH], ids=OF_THE_BATCH)
def test_a_weight_that_compares_tokens_has_no_expectation_over_single_completions(method):
    with pytest.raises(ConfigError, match="use loss_over_groups on a small listing"):
        both(method, 2)
    leaf = LOGITS.clone().requires_grad_(True)
    loss = TREE.expected_loss(method, leaf, REF, RIGHT, group_size=2, brute_force=True)
    assert torch.autograd.grad(loss, leaf)[0].abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rloo", "plan", "transform"])
def test_groups_of_four(name):
    (_, quick), (_, slow) = both(METHODS[name], 4)
    assert torch.allclose(quick, slow, atol=2e-6)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "token", "exact alpha", "plan", "transform", "dars", "dars, stages"])
def test_with_the_kl_in_the_loss_the_values_agree_too(name):
    """In the reward they do not: the baseline there, which `expected_loss` leaves out, moves the value and not the force."""
    (quick, _), (slow, _) = both(METHODS[name], 2)
    assert quick == pytest.approx(slow, abs=2e-6)


@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.5, 0.25], [2.0, -1.0, 0.0, 0.0]])
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "transform"])
def test_several_reward_values(name, rewards):
    (_, quick), (_, slow) = both(METHODS[name], 2, rewards=torch.tensor(rewards))
    assert torch.allclose(quick, slow, atol=2e-6)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dr_grpo k3_is", "exact forward", "token", "plan", "token weight"])
@pytest.mark.parametrize("clip", [Clip(0.2, 0.2), Clip(0.1, 0.28, dual=1.5)])
def test_later_updates_with_two_rewards_are_exact_clipped_or_not(name, clip):
    """old differs from the policy by up to half: some ratios are outside the interval, on both sides of A."""
    (quick, found), (slow, wanted) = both(replace(METHODS[name], surrogate=clip), 2, old_logits=OLD)
    assert torch.allclose(found, wanted, atol=2e-6) and quick == pytest.approx(slow, abs=2e-6)
    loose = replace(METHODS[name], surrogate=Clip(0.9, 9.0))
    loose = TREE.expected_gradient(loose, LOGITS, REF, RIGHT, old_logits=OLD, group_size=2)
    assert (loose - found).abs().max() > 0.003


@pytest.mark.parametrize("name", ["rloo", "dr_grpo in the reward", "token in the reward"])
def test_later_updates_with_the_kl_in_the_reward_are_exact_where_nothing_is_clipped(name):
    wide = replace(METHODS[name], surrogate=Clip(1.0, 9.0))
    (_, quick), (_, slow) = both(wide, 2, old_logits=OLD)
    assert torch.allclose(quick, slow, atol=2e-6)
    (_, quick), (_, slow) = both(METHODS[name], 2, old_logits=OLD)
    assert (quick - slow).abs().max() > 1e-4  # the clip sees the mean advantage: what the docstring says


def test_three_rewards_and_a_clip_are_beyond_it():
    """A middle reward has A of either sign, by its company: the clip of the mean is not the mean of the clip."""
    some = torch.tensor([1.0, 0.0, 0.5, 0.25])
    (_, quick), (_, slow) = both(METHODS["dr_grpo"], 2, rewards=some, old_logits=OLD)
    assert (quick - slow).abs().max() > 1e-4
    (_, quick), (_, slow) = both(replace(METHODS["dr_grpo"], surrogate=Clip(1.0, 9.0)), 2, rewards=some, old_logits=OLD)
    assert torch.allclose(quick, slow, atol=2e-6)


def test_a_log_q_of_ones_own_takes_the_place_of_the_guides():
    log_q = torch.where(TREE.mask, torch.linspace(-0.4, 0.4, TREE.mask.numel()).reshape(TREE.mask.shape), 0.0)
    (_, quick), (_, slow) = both(METHODS["grpo"], 3, log_q=log_q)
    (_, plain), _ = both(METHODS["grpo"], 3)
    assert torch.allclose(quick, slow, atol=2e-6) and (quick - plain).abs().max() > 0.01


# ---- reductions

KL_ALONE = Method("kl", LeaveOneOut(), Clip(), Anchor(1.0), TokenMean())


@pytest.mark.parametrize("reduction", [SequenceMean(), FixedBudget(), FixedBudget(7)])
def test_divisors_of_the_row_and_constants_are_exact(reduction):
    (quick, found), (slow, wanted) = both(replace(METHODS["dr_grpo"], reduction=reduction), 3)
    assert torch.allclose(found, wanted, atol=2e-6) and quick == pytest.approx(slow, abs=2e-6)


@pytest.mark.slow
def test_a_mean_over_tokens_is_the_limit_of_many_rows():
    """E[sum / tokens] goes to E[sum] / E[tokens] like 1 / G; KL alone, whose advantage does not change with G."""
    errors = {}
    for size in (2, 4, 6):
        small = TokenTree([(0,), (1, 0), (1, 1)])
        logits, ref = LOGITS[:2, :2], REF[:2, :2]
        found = small.expected_gradient(KL_ALONE, logits, ref, torch.ones(3), group_size=size)
        groups = small.expected_gradient(KL_ALONE, logits, ref, torch.ones(3), group_size=size, brute_force=True)
        errors[size] = float((found - groups).norm())
        by_hand = small.expected_gradient(replace(KL_ALONE, reduction=FixedBudget(1)), logits, ref, torch.ones(3))
        tokens = float((small.probs(logits) * small.lengths).sum())
        assert torch.allclose(found, by_hand / tokens, atol=1e-6)
    assert errors[2] > 1e-3 and errors[4] < 0.6 * errors[2] and errors[6] < 0.4 * errors[2]


# ---- mean advantages


def listing_of(rewards: torch.Tensor) -> Listing:
    return TREE.listing(LOGITS, REF, rewards)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 9), st.floats(0.02, 0.98))
def test_mean_advantages_by_their_formulas(size, share):
    """Two actions, P right: RLOO r - P; centered (G - 1) / G of it; their mean over completions is 0."""
    tree = TokenTree.bandit(2)
    logits = tree.logits_of(torch.tensor([share, 1 - share], dtype=torch.float64))
    listing = tree.listing(logits, logits, torch.tensor([1.0, 0.0]))
    for advantage, factor in ((LeaveOneOut(), 1.0), (GroupCentered(), (size - 1) / size)):
        method = Method("m", advantage, Clip(), None, FixedBudget(1))
        found, kept = module.mean_advantages(method, listing, size)
        assert found.tolist() == pytest.approx([factor * (1 - share), -factor * share], abs=1e-5)
        assert kept.tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    method = Method("m", LeaveOneOut(), Clip(), None, FixedBudget(1), rollout=Mixed())
    _, kept = module.mean_advantages(method, listing, size)
    assert kept.tolist() == pytest.approx([1 - share ** (size - 1), 1 - (1 - share) ** (size - 1)], abs=1e-5)


def test_an_advantage_across_prompts_takes_their_rewards():
    """BNPO beside two other prompts, each of the 4**3 groups as the first prompt of the step."""
    method = Method("bnpo", BetaNormalized(), Clip(), None, FixedBudget(1))
    others = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    found = TREE.expected_gradient(method, LOGITS, REF, RIGHT, group_size=3, others=others)
    leaf = LOGITS.clone().requires_grad_(True)
    total, probs, logps = torch.zeros(()), TREE.probs(LOGITS), TREE.logps(leaf).sum(1)
    for group in itertools.product(range(4), repeat=3):
        members = torch.tensor(group)
        advantages = method.advantage(torch.stack([RIGHT[members], *others]))[0].double()
        total = total - probs[members].prod() * (advantages * logps[members]).mean()
    (wanted,) = torch.autograd.grad(total, leaf)
    assert torch.allclose(found, wanted, atol=2e-6) and found.abs().max() > 0.01
    with pytest.raises(DataError, match="pass others="):
        TREE.expected_loss(method, LOGITS, REF, RIGHT)
    with pytest.raises(ConfigError, match="given without what its extras see"):
        TREE.expected_loss(replace(method, extras=(Shorter(),)), LOGITS, REF, RIGHT, group_size=3, others=others)


# ---- what has no expectation here


@pytest.mark.filterwarnings("ignore:.*the part of q that depends on the batch")
@pytest.mark.parametrize("guide", [Placebo(Branch()), Branch(threshold="p50"), Token() * Branch(threshold="p50")])
def test_a_guide_of_the_batch_is_refused_and_brute_force_takes_it(guide):
    method = sage(grpo(), guide)
    with pytest.raises(ConfigError, match="guide that looks at the whole batch has no expectation"):
        TREE.expected_loss(method, LOGITS, REF, RIGHT)
    assert torch.isfinite(TREE.expected_loss(method, LOGITS, REF, RIGHT, group_size=2, brute_force=True))


def test_a_plan_with_the_kl_in_the_reward_is_refused_because_it_would_be_wrong(monkeypatch):
    method = replace(rloo(beta=0.3), rollout=Mixed())
    with pytest.raises(ConfigError, match="use loss_over_groups"):
        TREE.expected_loss(method, LOGITS, REF, RIGHT)
    monkeypatch.setattr(module, "check_expectation", lambda method: None)
    (_, quick), (_, slow) = both(method, 3)
    assert (quick - slow).abs().max() > 1e-3


def test_a_plan_that_keeps_nothing_is_named():
    method = replace(grpo(), rollout=Mixed())
    for brute_force in (False, True):
        with pytest.raises(DataError, match=r"no group of 2|keeps no group"):
            TREE.expected_loss(method, LOGITS, REF, torch.ones(4), group_size=2, brute_force=brute_force)


def test_what_is_too_much_is_named():
    tree = TokenTree.bandit(12)
    with pytest.raises(ConfigError, match=r"12 different rewards in groups of 16 have 7,726,160 compositions"):
        tree.expected_loss(grpo(), torch.zeros(1, 12), torch.zeros(1, 12), torch.arange(12.0), group_size=16)
    with pytest.raises(ConfigError, match=r"12\*\*5 groups are more than 20,000"):
        tree.expected_loss(
            grpo(), torch.zeros(1, 12), torch.zeros(1, 12), torch.arange(12.0), group_size=5, brute_force=True
        )


def test_a_listing_is_complete():
    signals = listing_of(RIGHT).signals
    with pytest.raises(DataError, match=r"sum to 0.5; list every completion once"):
        Listing(signals, TREE.probs(LOGITS) / 2, RIGHT)
    with pytest.raises(DataError, match=r"probs has shape \(3,\)"):
        Listing(signals, torch.full((3,), 1 / 3), RIGHT)
    for run in (expected_loss, loss_over_groups):
        with pytest.raises(DataError, match=r"logps has shape \(4, 2\); the listing has \(rows, tokens\) = \(4, 3\)"):
            run(grpo(), listing_of(RIGHT), torch.zeros(4, 2), group_size=2)


def test_a_repeated_listing_is_the_same_prompt():
    listing = listing_of(RIGHT)
    many = listing.repeated(3)
    assert float(many.probs.sum()) == pytest.approx(1.0) and len(set(many.signals.row_ids.tolist())) == 12
    once, thrice = (
        expected_loss(grpo(), each, TREE.logps(LOGITS).repeat(times, 1)) for each, times in ((listing, 1), (many, 3))
    )
    assert float(once) == pytest.approx(float(thrice), abs=1e-6)
