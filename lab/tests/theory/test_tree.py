"""TokenTree: what is a tree, the exact numbers of a policy on it, and where descent comes to rest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.theory import TokenTree
from sage_rlvr.core import Anchor, Branch, Clip, FixedBudget, Flat, Key, LeaveOneOut, Method, Random
from sage_rlvr.errors import ConfigError, DataError, TrainingDiverged
from sage_rlvr.methods import dr_grpo, grpo, no_kl, rloo, sage

RAGGED = TokenTree([(0,), (1, 0), (1, 1, 0), (1, 1, 2), (2, 1)])
seeds = st.integers(0, 2**31 - 1)


def random_tree(seed: int) -> TokenTree:
    """Ragged: up to 4 tokens per state, up to 4 deep, tokens with gaps, completions in any order."""
    drawn = torch.Generator().manual_seed(seed)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=drawn))

    def grow(prefix: tuple[int, ...]) -> list[tuple[int, ...]]:
        tokens = torch.randperm(5, generator=drawn)[: pick(1, 5)].tolist()
        parts = [grow((*prefix, t)) if len(prefix) < 3 and pick(0, 3) == 0 else [(*prefix, t)] for t in tokens]
        return [completion for part in parts for completion in part]

    found = grow(())
    return TokenTree([found[i] for i in torch.randperm(len(found), generator=drawn).tolist()])


def random_logits(tree: TokenTree, seed: int, scale: float = 1.0) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return scale * torch.randn(tree.allowed.shape, generator=drawn, dtype=torch.float64)


def some_right(tree: TokenTree, seed: int, share: float = 0.4) -> torch.Tensor:
    """0/1 rewards, at least one right."""
    rewards = (torch.rand(len(tree), generator=torch.Generator().manual_seed(seed)) < share).double()
    rewards[seed % len(tree)] = 1.0
    return rewards


# ---- the tree


def test_states_tokens_and_mask_by_hand():
    assert len(RAGGED) == 5 and RAGGED.prefixes == ((), (1,), (1, 1), (2,))
    assert RAGGED.lengths.tolist() == [1, 2, 3, 3, 2]
    assert RAGGED.tokens.tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 2], [2, 1, 0]]
    assert RAGGED.states[RAGGED.mask].tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 2, 0, 3]
    assert RAGGED.allowed.tolist() == [[True] * 3, [True, True, False], [True, False, True], [False, True, False]]


def test_full_and_bandit():
    assert TokenTree.full(2, 2).completions == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert TokenTree.bandit(3).completions == ((0,), (1,), (2,))
    assert len(TokenTree.full(8, 4)) == 4096 and len(TokenTree.full(8, 4).prefixes) == 585


@pytest.mark.parametrize(
    ("completions", "words"),
    [
        ([], "at least one completion"),
        ([(0,), ()], "none without a token"),
        ([(0, 1), (1,), (0, 1)], r"\(0, 1\) is listed twice"),
        ([(0,), (-1, 2)], "numbered from 0"),
        ([(0, 1, 2), (0, 1)], r"\(0, 1\) is a completion and also the beginning of \(0, 1, 2\)"),
    ],
)
def test_what_is_no_tree(completions, words):
    with pytest.raises(DataError, match=words):
        TokenTree(completions)


def test_numbers_of_a_policy_by_hand():
    """Root (.5, .3, .2), after 1 (.6, .4), after 11 (.25, .75), after 2 certain."""
    logits = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.4, 9.0], [0.25, 9.0, 0.75], [9.0, 1.0, 9.0]]).log()
    assert RAGGED.probs(logits).tolist() == pytest.approx([0.5, 0.18, 0.03, 0.09, 0.2])
    assert RAGGED.visits(logits).tolist() == pytest.approx([1.0, 0.3, 0.12, 0.2])
    assert RAGGED.logps(logits).exp()[3].tolist() == pytest.approx([0.3, 0.4, 0.75])
    late = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))
    assert RAGGED.entropies(logits)[1].tolist() == pytest.approx([1.029653, late, 0.0], abs=1e-6)
    assert RAGGED.entropies(logits)[4].tolist() == pytest.approx([1.029653, 0.0, 0.0], abs=1e-6)
    assert RAGGED.log_probs(logits)[3].tolist() == [-math.inf, 0.0, -math.inf]


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_laws_of_probabilities(seed):
    """They sum to 1; visits of a state are what flows in; logits_of inverts probs; entropies of ragged states are right."""
    tree = random_tree(seed)
    logits = random_logits(tree, seed, 2.0)
    probs, visits = tree.probs(logits), tree.visits(logits)
    assert float(probs.sum()) == pytest.approx(1.0, abs=1e-12) and float(visits[0]) == pytest.approx(1.0, abs=1e-12)
    assert torch.allclose(tree.log_probs(logits).exp().sum(1), torch.ones(len(tree.prefixes)).double(), atol=1e-12)
    assert float((probs * tree.lengths).sum()) == pytest.approx(float(visits.sum()), abs=1e-12)
    for place, prefix in enumerate(tree.prefixes):
        through = [c[: len(prefix)] == prefix for c in tree.completions]
        assert float(visits[place]) == pytest.approx(float(probs[torch.tensor(through)].sum()), abs=1e-12)
    again = tree.logits_of(probs * 7.0)
    assert torch.allclose(tree.probs(again), probs, atol=1e-12) and torch.allclose(
        tree.logps(again), tree.logps(logits)
    )
    entropy = -(tree.log_probs(logits).exp() * tree.log_probs(logits).clamp(min=-1e9)).sum(1)
    assert torch.allclose(tree.entropies(logits)[tree.mask], entropy[tree.states[tree.mask]], atol=1e-12)
    assert not tree.entropies(logits)[~tree.mask].any() and not tree.logps(logits)[~tree.mask].any()


def test_what_has_another_shape_is_named():
    zeros, ones = torch.zeros(4, 3), torch.ones(5)
    with pytest.raises(DataError, match=r"shape \(3,\).*\(4, 3\)"):
        RAGGED.probs(torch.zeros(3))
    with pytest.raises(DataError, match=r"rewards has shape \(4,\).*\(5,\)"):
        RAGGED.expected_loss(grpo(), zeros, zeros, torch.ones(4))
    with pytest.raises(DataError, match=r"log_q has shape \(5, 2\).*\(5, 3\)"):
        RAGGED.expected_loss(grpo(), zeros, zeros, ones, log_q=torch.zeros(5, 2))
    for wrong in (torch.ones(4), torch.tensor([0.5, 0.5, 0.0, 0.1, 0.1])):
        with pytest.raises(DataError, match="positive probability for each of the 5"):
            RAGGED.logits_of(wrong)


def test_brute_force_takes_one_prompt_and_one_draw():
    zeros = torch.zeros(4, 3)
    for option in ({"draws": 2}, {"others": torch.ones(1, 2)}):
        with pytest.raises(ConfigError, match="brute_force"):
            RAGGED.expected_loss(grpo(), zeros, zeros, torch.ones(5), group_size=2, brute_force=True, **option)


# ---- gradients

KL_ONLY = {
    "reverse": Anchor(1.0, estimator="exact", divergence="reverse"),
    "forward": Anchor(1.0, estimator="exact", divergence="forward"),
    "js": Anchor(1.0, estimator="exact", divergence="js"),
    "alpha": Anchor(1.0, estimator="exact", divergence="alpha", alpha=0.5),
    "k3": Anchor(1.0),
    "k3_is": Anchor(1.0, estimator="k3_is"),
    "reward": Anchor(1.0, estimator="k1", placement="reward"),
}
METHODS = {
    "grpo": grpo(beta=0.1),
    "dr_grpo k3_is": dr_grpo(beta=0.1, estimator="k3_is"),
    "rloo": rloo(beta=0.1),
    "js": dr_grpo(beta=0.1, estimator="exact", divergence="js"),
    "branch": sage(dr_grpo(beta=0.1), Branch(ratio=0.8, threshold=0.5)),
}


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=6, deadline=None)
@given(seed=seeds)
def test_a_gradient_moves_allowed_tokens_only_and_no_row_as_a_whole(name, seed):
    tree = random_tree(seed)
    logits, ref, rewards = random_logits(tree, seed), random_logits(tree, seed + 1), some_right(tree, seed)
    found = tree.expected_gradient(METHODS[name], logits, ref, rewards, group_size=3)
    assert found.shape == tree.allowed.shape and not found[~tree.allowed].any()
    assert torch.allclose(found.sum(1), torch.zeros(len(found)).double(), atol=1e-6)
    if len(tree) > 1:
        assert found.abs().max() > 1e-5


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=4, deadline=None)
@given(seed=seeds)
def test_flat_is_the_base_bit_for_bit(name, seed):
    tree, base = random_tree(seed), METHODS[name]
    where = (random_logits(tree, seed), random_logits(tree, seed + 1), some_right(tree, seed))
    plain = replace(base, anchor=replace(base.anchor, guide=Flat()))
    flat = replace(base, anchor=replace(base.anchor, guide=Flat() * Flat()))
    none = tree.expected_gradient(plain, *where, log_q=torch.zeros(tree.mask.shape))
    assert torch.equal(tree.expected_gradient(plain, *where), tree.expected_gradient(flat, *where))
    assert torch.equal(tree.expected_gradient(flat, *where), none)


def differences(value, logits: torch.Tensor, allowed: torch.Tensor, step: float = 1e-5) -> torch.Tensor:
    gradient = torch.zeros_like(logits)
    for s, v in allowed.nonzero().tolist():
        ends = []
        for sign in (1.0, -1.0):
            moved = logits.clone()
            moved[s, v] += sign * step
            ends.append(float(value(moved)))
        gradient[s, v] = (ends[0] - ends[1]) / (2 * step)
    return gradient


@settings(max_examples=6, deadline=None)
@given(seed=seeds)
def test_rloo_is_the_gradient_of_the_kl_regularized_reward(seed):
    """-E[R] + beta KL(pi || pi_ref) over whole completions, with nothing held fixed: a scalar with a gradient."""
    tree, beta = random_tree(seed), 0.3
    logits, ref, rewards = random_logits(tree, seed), random_logits(tree, seed + 1), some_right(tree, seed)

    def value(table):
        log_pi = tree.logps(table).sum(1)
        return (log_pi.exp() * (beta * (log_pi - tree.logps(ref).sum(1)) - rewards)).sum()

    method = Method("rloo", LeaveOneOut(), Clip(), Anchor(beta, estimator="k1", placement="reward"), FixedBudget(1))
    found = tree.expected_gradient(method, logits, ref, rewards, group_size=4)
    assert torch.allclose(found, differences(value, logits, tree.allowed), atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reverse", "forward", "js", "alpha"])
@settings(max_examples=4, deadline=None)
@given(seed=seeds)
def test_exact_divergences_are_gradients_of_the_loss_with_the_sampling_policy_held_fixed(name, seed):
    """With old_logits fixed the expected loss is a scalar function of the logits; at old = logits its gradient is the loop's."""
    tree = random_tree(seed)
    logits, ref, rewards = random_logits(tree, seed), random_logits(tree, seed + 1), some_right(tree, seed)
    method = Method("kl", LeaveOneOut(), Clip(), KL_ONLY[name], FixedBudget(1))

    def value(table):
        return tree.expected_loss(method, table, ref, rewards, old_logits=logits, group_size=3)

    found = tree.expected_gradient(method, logits, ref, rewards, group_size=3)
    numeric = differences(value, logits, tree.allowed, 3e-3)  # wide, because the loss is a float32 number
    assert torch.allclose(found, numeric, atol=2e-3)


def test_on_policy_is_the_default_and_a_method_without_a_force_has_gradient_zero():
    logits, rewards = random_logits(RAGGED, 1), torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0])
    same = [RAGGED.expected_gradient(grpo(), logits, logits * 0.5, rewards, **o) for o in ({}, {"old_logits": logits})]
    assert torch.equal(*same)
    assert not RAGGED.expected_gradient(no_kl(), logits, logits, torch.ones(5)).any()


@pytest.mark.filterwarnings("ignore:.*noise only")
def test_draws_average_the_noise_and_the_key_names_it():
    method = sage(dr_grpo(beta=1.0), Random(eps=1.0, sigma=0.2))
    where = (random_logits(RAGGED, 1), random_logits(RAGGED, 2), torch.ones(5))
    plain = RAGGED.expected_gradient(dr_grpo(beta=1.0), *where)
    apart = [
        float((RAGGED.expected_gradient(method, *where, draws=draws, key=Key(4)) - plain).norm()) for draws in (1, 4000)
    ]
    assert apart[0] > 0.02 and apart[1] < 0.1 * apart[0]
    again, other = (RAGGED.expected_gradient(method, *where, key=Key(seed)) for seed in (4, 5))
    assert torch.equal(again, RAGGED.expected_gradient(method, *where, key=Key(4))) and not torch.equal(again, other)


# ---- where descent comes to rest


def assert_at_rest(tree: TokenTree, method: Method, found, ref, rewards) -> None:
    """The plain gradient there is that of float32 noise, which on some processors is a little above 1e-6."""
    plain = tree.expected_gradient(method, found.logits, ref, rewards)
    assert found.converged and found.residual < 3e-6
    assert plain.abs().max() < 3e-6 and torch.allclose(tree.probs(found.logits), found.probs)


@pytest.mark.parametrize("depth", [pytest.param(4, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", ["grpo", "rloo", "dr_grpo k3_is"])
def test_thousands_of_leaves_come_to_rest(name, depth):
    """4,096 leaves, 585 states, one in twenty right; 512 of them in the fast suite."""
    tree = TokenTree.full(8, depth)
    method = {
        "grpo": grpo(beta=0.05), "rloo": rloo(beta=0.05), "dr_grpo k3_is": dr_grpo(beta=0.05, estimator="k3_is"),
    }[name]  # fmt: skip
    ref, rewards = random_logits(tree, 0), some_right(tree, 50, 0.05)
    found = tree.descend(method, ref, rewards, max_steps=400, tolerance=3e-6)  # float32's noise depends on the processor
    assert_at_rest(tree, method, found, ref, rewards)
    assert float((found.probs * rewards).sum()) > 0.95 > 0.3 > float((tree.probs(ref) * rewards).sum())


@pytest.mark.parametrize("beta", [1.0, 0.05, 0.01])
@settings(max_examples=4, deadline=None)
@given(seed=seeds)
@example(seed=272)  # two right answers of nearly one probability: 2.5 r / beta at beta 0.05
def test_rloo_rests_at_equation_2_on_any_tree(beta, seed):
    """pi_ref exp(R / beta) normalized, beta from the harmless to the stiff; a residual r leaves a few r / beta in log pi."""
    tree = random_tree(seed)
    ref, rewards = random_logits(tree, seed, 2.0), some_right(tree, seed)
    wanted = torch.softmax(tree.logps(ref).sum(1) + rewards / beta, 0)
    found = tree.descend(rloo(beta=beta), ref, rewards)
    assert found.converged and torch.allclose(found.probs, wanted, atol=2e-6 + 1e-5 / beta)


@pytest.mark.slow
@pytest.mark.parametrize("rare", [1e-3, 1e-9, 1e-20])
@pytest.mark.parametrize("beta", [0.05, 0.01])
def test_a_right_answer_that_the_reference_hardly_has_is_found(rare, beta):
    """Forward KL with centered rewards, G = 8: 7/8 of the reward. With c = beta 8/7 the share P of right answers solves
    P (1 - P) = c (P - rare): P ~ 1 - c. A residual that weighs by probability alone would call the reference at rest."""
    tree, rewards = TokenTree.bandit(3), torch.tensor([1.0, 0.0, 0.0])
    ref = tree.logits_of(torch.tensor([rare, 0.4, 0.6 - rare], dtype=torch.float64))
    found, c = tree.descend(dr_grpo(beta=beta), ref, rewards, max_steps=300), beta * 8 / 7
    share = ((1 - c) + math.sqrt((1 - c) ** 2 + 4 * c * rare)) / 2
    assert found.converged and float(found.probs[0]) == pytest.approx(share, abs=1e-5)
    assert float(found.probs[1] / found.probs[2]) == pytest.approx(0.4 / (0.6 - rare), rel=1e-3)


def test_a_needle_six_tokens_deep_is_found():
    """The right answer is the least probable of 64, exp(-12): under RLOO its odds against the rest grow by e^(1/beta)."""
    tree = TokenTree.full(2, 6)
    ref, rewards = torch.zeros(63, 2, dtype=torch.float64), torch.zeros(64)
    ref[:, 0], rewards[-1] = 2.0, 1.0
    found = tree.descend(rloo(beta=0.05), ref, rewards, max_steps=300)
    wanted = torch.softmax(tree.logps(ref).sum(1) + rewards / 0.05, 0)
    assert found.converged and torch.allclose(found.probs, wanted, atol=2e-5) and 0.99 < float(wanted[-1]) < 0.9999


def test_what_has_nothing_to_learn_stays_where_it_is():
    for tree in (TokenTree.bandit(3), TokenTree([(0,)]), TokenTree([(0, 0, 2)])):
        for method in (grpo(), rloo(beta=0.05), dr_grpo(beta=0.05, estimator="exact", divergence="js")):
            ref = random_logits(tree, 3)
            found = tree.descend(method, ref, torch.ones(len(tree)))
            assert (found.steps, found.converged) == (0, True) and torch.equal(found.logits, ref)


def test_descent_may_start_elsewhere_and_ends_at_the_same_point():
    ref, rewards = random_logits(RAGGED, 5), torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    ends = [
        RAGGED.descend(rloo(beta=0.2), ref, rewards, start=start) for start in (None, random_logits(RAGGED, 6, 3.0))
    ]
    assert all(end.converged for end in ends) and torch.allclose(ends[0].probs, ends[1].probs, atol=1e-5)


def test_too_few_steps_are_said_and_give_the_best_point_seen():
    ref, rewards = random_logits(RAGGED, 5), torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    found = [RAGGED.descend(grpo(), ref, rewards, max_steps=steps) for steps in (0, 3, 10)]
    assert not any(end.converged for end in found) and torch.equal(found[0].logits, ref)
    assert found[0].residual > found[1].residual > found[2].residual > 1e-6 and found[1].steps == 3


def test_without_a_leash_it_goes_to_the_right_answers_alone():
    found = RAGGED.descend(no_kl(), random_logits(RAGGED, 5), torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]))
    assert found.converged and float(found.probs[[1, 3]].sum()) > 1 - 1e-9


def test_a_gradient_that_is_not_finite_is_named():
    """pi_ref / pi = e^200 overflows float32 under k3; NaN logits are no policy to begin with."""
    tree, ref = TokenTree.bandit(2), torch.zeros(1, 2)
    with pytest.raises(TrainingDiverged, match="grpo: the expected gradient is not finite"):
        tree.descend(grpo(), ref, torch.ones(2), start=torch.tensor([[-200.0, 0.0]]))
    with pytest.raises(DataError, match="sum to nan"):
        tree.descend(grpo(), torch.full((1, 2), math.nan), torch.ones(2))
