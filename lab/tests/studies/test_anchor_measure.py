"""The laboratory: every completion of a prompt, exact expected gradients in the parameters, and how single ones scatter.

The policy is a random Llama and its reference the same one disturbed; a limit of two or three tokens lists everything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lab.studies.anchor.expectations import (
    Case,
    equation6,
    gradients,
    kl_gradient,
    open_case,
    shaping_of,
    state_gradient,
)
from lab.studies.anchor.variances import NO_BASELINE, variances
from lab.tests.studies.anchor_common import BRANCH, WORLD, disturbed, rows_of
from sage_rlvr.core.guides import Flat
from sage_rlvr.core.guides.base import Banded
from sage_rlvr.core.guides.random import Random
from sage_rlvr.core.guides.token import Token
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method, advantages_of, objective, shape
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.methods import dr_grpo, forward_kl, grpo, rloo
from sage_rlvr.models.policy import Tokens
from sage_rlvr.models.sampler import sample
from sage_rlvr.models.scoring import completion_logits, score
from sage_rlvr.tasks.countdown import Problem

PROBLEM = Problem((1, 2), 3)


@pytest.fixture(scope="module")
def case(tiny: tuple[PreTrainedModel, Tokens]) -> Case:
    """All completions of up to three tokens; 30 % of the rows that end are called right, so that there is a reward."""
    model, tokens = tiny
    found = open_case(model, disturbed(model, 1, 0.05), tokens, WORLD, PROBLEM, max_new_tokens=3, remainder=1e-4)
    chance = torch.rand(len(found.rewards), generator=torch.Generator().manual_seed(0))
    return replace_rewards(found, (chance < 0.3).float() * found.listed.finished)


def replace_rewards(found: Case, rewards: Tensor) -> Case:
    return Case(
        found.name, found.listed, found.policy, found.params, found.logits, found.table, found.ref_table, rewards
    )


def fresh_pull(case: Case, gradient: Tensor) -> Tensor:
    """Past the memory of `Case.pull`."""
    parts = torch.autograd.grad(case.logits, case.params, gradient.float(), retain_graph=True)
    return torch.cat([part.reshape(-1) for part in parts])


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.double().flatten(), b.double().flatten(), 0))


def near(a: Tensor, b: Tensor, share: float = 1e-5) -> bool:
    return float((a - b).norm()) <= share * float(b.norm())


# ---- exact gradients


def visits(case: Case) -> Tensor:
    """(S,) probability of coming through each state."""
    mass = case.every.listing.probs[:, None].expand(case.every.mask.shape)[case.every.mask]
    return torch.zeros(len(case.table), dtype=torch.float64).index_add(0, case.every.states[case.every.mask], mass)


def test_k1_in_the_reward_is_the_gradient_of_equation_6(case: Case) -> None:
    for method, factor in (
        (rloo(beta=1.0, estimator="k1", placement="reward"), 1.0),
        (dr_grpo(beta=1.0, estimator="k1", placement="reward"), 15 / 16),
    ):
        for guide in (Flat(), BRANCH):
            log_q = shaping_of(guide, case.every, Key(0)).of_log_q
            own, wanted = state_gradient(case, method, log_q=log_q, rewarded=False), equation6(case, log_q)
            assert near(own, factor * wanted)
            assert cosine(fresh_pull(case, own), fresh_pull(case, wanted)) > 1 - 1e-4
        whole = state_gradient(case, replace(method, anchor=replace(method.anchor, beta=0.3)))
        assert near(whole, factor * equation6(case, beta=0.3, rewarded=True))


def test_k3_descends_the_forward_kl_and_k2_the_reverse_one(case: Case) -> None:
    ref, pi = case.ref_table.exp(), case.table.exp()
    log_ratio = case.table - case.ref_table
    forward = visits(case)[:, None] * (pi - ref)
    reverse = visits(case)[:, None] * pi * (log_ratio - (pi * log_ratio).sum(1, keepdim=True))
    assert near(state_gradient(case, rloo(beta=1.0, estimator="k3", placement="loss"), rewarded=False), forward)
    assert near(state_gradient(case, replace_reduction(forward_kl(beta=1.0)), rewarded=False), forward)
    for estimator in ("k2", "straight_through", "k3_is"):
        method = rloo(beta=1.0, estimator=estimator, placement="loss")  # type: ignore[arg-type]
        assert near(state_gradient(case, method, rewarded=False), reverse)
    method = rloo(beta=1.0, estimator="exact", placement="loss", divergence="reverse")
    assert near(state_gradient(case, method, rewarded=False), reverse)
    assert cosine(fresh_pull(case, forward), fresh_pull(case, reverse)) < 0.999


def replace_reduction(method: Method) -> Method:
    """A sum over tokens, as in the other methods of the lab."""
    return replace(method, reduction=rloo().reduction)


def test_a_state_guide_scales_k3_and_cancels_under_k2(case: Case) -> None:
    log_q = BRANCH(case.every.listing.signals, 0, 1, Key(0))
    assert 0.2 < float((log_q[case.every.mask] != 0).float().mean()) < 0.9
    entropies = torch.special.entr(case.table.exp()).sum(1)
    q = 1.0 + torch.relu(entropies - 2.55)
    forward = visits(case)[:, None] * (case.table.exp() - case.ref_table.exp())
    k3 = rloo(beta=1.0, estimator="k3", placement="loss")
    assert near(state_gradient(case, k3, log_q=log_q, rewarded=False), q[:, None] * forward)
    assert not near(q[:, None] * forward, forward, 0.01)
    for estimator in ("k2", "straight_through", "k3_is"):
        method = rloo(beta=1.0, estimator=estimator, placement="loss")  # type: ignore[arg-type]
        flat, shaped = (state_gradient(case, method, log_q=x, rewarded=False) for x in (None, log_q))
        assert near(shaped, flat)


class OfTheToken(Banded):
    """q of the token's own probability alone, unlike `Token`, whose weights are normalized over the whole completion."""

    q_min, q_max = 0.1, 10.0
    needs: frozenset[str] = frozenset()
    depends_on, equation = "token", "1 - log pi / 4"

    def raw_q(self, signals: Signals, step: int, total_steps: int, key: Key) -> Tensor:
        return 1.0 - signals.old_logps / 4


def test_return_to_go_holds_all_of_a_bonus_that_does_not_look_ahead(case: Case) -> None:
    method = rloo(beta=1.0, estimator="k1", placement="reward")

    def pair(guide: Any) -> tuple[Tensor, Tensor]:
        log_q = shaping_of(guide, case.every, Key(0)).of_log_q
        return state_gradient(case, method, log_q=log_q, rewarded=False), equation6(case, log_q)

    assert near(*pair(OfTheToken()))
    assert not near(*pair(Token(alpha=0.3, sigma=0.0)), 1e-3)  # type: ignore[misc]


def test_the_memory_of_pull_knows_multiples_and_nothing_else(case: Case) -> None:
    own = replace_rewards(case, case.rewards)
    a, b = equation6(own), equation6(own, beta=0.2, rewarded=True)
    first = own.pull(a)
    assert torch.equal(own.pull(-3.0 * a), -3.0 * first) and len(own.pulled) == 1
    assert near(own.pull(b), fresh_pull(case, b), 1e-4) and len(own.pulled) == 2


def loop_gradients(case: Case, method: Method, tokens: Tokens, groups: int, size: int) -> Tensor:
    """(groups, P) gradient of one prompt's loss as the loop computes it, each group sampled anew."""
    rollout = sample(
        case.policy, [case.listed.prompt], group_size=groups * size, max_new_tokens=3, eos_id=tokens.eos_ids, pad_id=0,
        key=Key(3),
    )  # fmt: skip
    place = {row: i for i, row in enumerate(rows_of(case.listed))}
    found = []
    for part in torch.arange(groups * size).split(size):
        toks, mask = rollout.tokens[part], rollout.mask[part]
        owners = torch.zeros(size, dtype=torch.long)
        scores = score(case.policy, [case.listed.prompt], toks, mask, owners, entropies=True)
        rows = torch.tensor([place[tuple(row[m].tolist())] for row, m in zip(toks, mask, strict=True)])
        ref = case.ref_table[case.listed.states[rows], case.listed.tokens[rows]][:, : mask.shape[1]]
        signals = Signals(scores.logps, torch.where(mask, ref, 0.0), mask, part, scores.entropies)
        log_q = shape(method, signals, 0, 1, Key(0))
        batch = Batch(
            logps=scores.logps,
            old_logps=signals.old_logps,
            ref_logps=signals.ref_logps,
            mask=mask,
            advantages=advantages_of(method, case.rewards[rows][None], signals, log_q),
            log_q=log_q,
            max_tokens=1,
        )
        parts = torch.autograd.grad(objective(method, batch, 0, 1)[0], case.params)
        found.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(found)


@pytest.mark.parametrize(
    "method",
    [
        rloo(beta=0.5, estimator="k1", placement="reward"),
        pytest.param(rloo(beta=0.5, estimator="k3_is", placement="loss"), marks=pytest.mark.slow),
        pytest.param(grpo(beta=0.5), marks=pytest.mark.slow),
    ],
    ids=lambda m: f"{m.name}-{m.anchor.estimator}",
)
def test_the_loop_on_samples_agrees_with_the_sum_over_the_list(case: Case, tiny: Any, method: Method) -> None:
    groups = 120
    exact = fresh_pull(case, state_gradient(case, method))
    sampled = loop_gradients(case, method, tiny[1], groups, 16)
    spread = (sampled - exact).square().sum(1).mean()
    error = (sampled.mean(0) - exact).square().sum()
    assert float(groups * error / spread) < 4  # 1 on average
    assert float(error) < 0.25 * float(exact.square().sum())  # and the sample is large enough to say something


def test_gradients_are_linear_in_beta(case: Case) -> None:
    for method in (rloo(beta=1.0, estimator="k3", placement="loss"), grpo(beta=1.0)):
        parts = gradients(case, method)
        assert method.anchor is not None
        whole = state_gradient(case, replace(method, anchor=replace(method.anchor, beta=0.3)))
        assert near(parts.whole(0.3), fresh_pull(case, whole), 1e-4)


# ---- noise of a guide


def test_noise_is_averaged_in_q_and_in_log_q(case: Case) -> None:
    token, signals = Token(alpha=0.3, sigma=0.25), case.every.listing.signals
    shaping = shaping_of(token, case.every, Key(1))
    many = torch.stack([token(signals, 0, 1, Key(100 + n)) for n in range(120)])
    mask = case.every.mask
    assert torch.allclose(shaping.of_q.exp()[mask], many.exp().mean(0)[mask], atol=0.1)
    assert torch.allclose(shaping.of_log_q[mask], many.mean(0)[mask], atol=0.1)
    assert float((shaping.of_q.exp() - many.exp().mean(0))[mask].mean().abs()) < 2e-3
    assert shaping.of("q") is shaping.of_q and shaping.of("log q") is shaping.of_log_q


def test_a_q_that_looks_at_nothing_is_one_number(case: Case) -> None:
    shaping = shaping_of(Random(eps=0.1, sigma=0.15), case.every, Key(0))
    assert len(shaping.of_q[case.every.mask].unique()) == 1 and not shaping.of_q[~case.every.mask].any()
    assert float(shaping.of_q[0, 0]) == pytest.approx(0.0, abs=1e-6)  # E[q] = 1 in a symmetric band
    assert float(shaping.of_log_q[0, 0]) == pytest.approx(-0.1 * 0.01163, abs=2e-5)  # -eps (s^2 / 2 + 3 s^4 / 4)


# ---- single completions

SAMPLED = {
    "k1": rloo(beta=1.0, estimator="k1", placement="reward"),
    "k2": rloo(beta=1.0, estimator="k2", placement="loss"),
    "k3": rloo(beta=1.0, estimator="k3", placement="loss"),
    "k3_is": rloo(beta=1.0, estimator="k3_is", placement="loss"),
    "js": rloo(beta=1.0, estimator="exact", placement="loss", divergence="js"),
}


@pytest.fixture(scope="module")
def small(tiny: tuple[PreTrainedModel, Tokens]) -> Case:
    """81 completions: what is done with one can be done with all."""
    model, tokens = tiny
    listed_for = {"max_new_tokens": 2, "remainder": 0.6}
    return open_case(model, disturbed(model, 2, 0.05), tokens, WORLD, PROBLEM, **listed_for)


def mean_to_go(case: Case, length: int) -> Tensor:
    """(length,) the expected return-to-go at each token of those completions that have one there."""
    listed = case.listed
    ratios = (case.table - case.ref_table)[listed.states, listed.tokens] * listed.mask
    to_go = torch.stack([ratios[:, t:].sum(1) for t in range(length)], 1)
    shares = case.every.listing.probs[:, None] * listed.mask[:, :length]
    return (shares * to_go).sum(0) / shares.sum(0)


def single_gradients(case: Case, term: str) -> Tensor:
    """(B, P) gradient of each completion's KL term, by its formula, one backward pass each."""
    found = []
    for row in range(len(case.rewards)):
        tokens, states = (x[row][case.listed.mask[row]] for x in (case.listed.tokens, case.listed.states))
        own = torch.zeros(1, dtype=torch.long)
        logits = completion_logits(
            case.policy, [case.listed.prompt], tokens[None], torch.ones(1, len(tokens), dtype=torch.bool), own
        )
        laws = torch.log_softmax(logits.double(), -1)
        logps, ref = laws[torch.arange(len(tokens)), tokens], case.ref_table[states, tokens]
        log_ratio = (logps - ref).detach()
        if term.startswith("k1"):
            to_go = log_ratio.flip(0).cumsum(0).flip(0)
            loss = (logps * (to_go if term.endswith(NO_BASELINE) else to_go - mean_to_go(case, len(tokens)))).sum()
        elif term == "k2":
            loss = (logps * log_ratio).sum()
        elif term == "k3":
            loss = (logps * (1 - torch.exp(-log_ratio))).sum()
        else:
            middle = torch.logaddexp(laws, case.ref_table[states]) - np.log(2.0)
            anchor = case.ref_table[states]
            loss = (laws.exp() * (laws - middle) + anchor.exp() * (anchor - middle)).sum()
        parts = torch.autograd.grad(loss, case.params)
        found.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(found)


@pytest.mark.parametrize(
    "term",
    ["k1" + NO_BASELINE, "k3", *(pytest.param(term, marks=pytest.mark.slow) for term in ("k1", "k2", "js"))],
)
def test_single_gradients_have_the_exact_mean_and_the_variance_that_draws_find(small: Case, term: str) -> None:
    every, probs = single_gradients(small, term), small.every.listing.probs.float()
    mean = (probs[:, None] * every).sum(0)
    method = SAMPLED[term.removesuffix(NO_BASELINE)]
    assert near(mean, kl_gradient(small, method), 1e-4)
    trace = float((probs * (every - mean).square().sum(1)).sum())
    found = variances(small, {term.removesuffix(NO_BASELINE): method}, draws=2000, key=Key(1))[term]
    error = found.distances.std() / np.sqrt(len(found.distances))
    assert abs(found.distances.mean() - trace) < 5 * error and error < 0.2 * trace
    assert found.norm2 == pytest.approx(float(mean.square().sum()), rel=1e-3)


@pytest.mark.slow
def test_common_draws_and_a_mean_that_is_the_exact_gradient(small: Case) -> None:
    found = variances(small, SAMPLED, draws=256, key=Key(0))
    assert set(found) == {*SAMPLED, "k1" + NO_BASELINE}
    assert np.array_equal(
        found["k2"].distances, found["k3_is"].distances
    )  # the same gradient, completion by completion
    assert not np.array_equal(found["k2"].distances, found["k3"].distances)
    assert not np.array_equal(found["k1"].distances, found["k1" + NO_BASELINE].distances)
    assert all(len(one.distances) == 256 and 0 < one.gap < 6 for one in found.values())
    again = variances(small, SAMPLED, draws=256, key=Key(0))
    assert all(np.array_equal(found[name].distances, again[name].distances) for name in found)
    other = variances(small, SAMPLED, draws=256, key=Key(0), number=1)
    assert not np.array_equal(found["k3"].distances, other["k3"].distances)
