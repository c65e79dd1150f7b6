"""The laboratory: every completion of a prompt, exact expected gradients in the parameters, and how single ones scatter.

The policy is a random Llama and its reference the same one disturbed; a limit of two or three tokens lists everything.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sage_rlvr.core.guides import Branch, Flat, Random, Token
from sage_rlvr.core.guides.base import Banded
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method, advantages_of, objective, shape
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import dr_grpo, forward_kl, grpo, rloo
from sage_rlvr.models.listing.completions import Enumerated, enumerate_completions, enumerate_to
from sage_rlvr.models.listing.solutions import solution_logps
from sage_rlvr.models.policy import Tokens, load_policy
from sage_rlvr.models.sampler import sample
from sage_rlvr.models.scoring import completion_logits, score
from sage_rlvr.studies.anchor.expectations import (
    Case,
    equation6,
    gradients,
    kl_gradient,
    open_case,
    shaping_of,
    state_gradient,
)
from sage_rlvr.studies.anchor.measure import run_lab
from sage_rlvr.studies.anchor.rows import ADMITTED, FOR_THE_RECORD, LabResult, markdown
from sage_rlvr.studies.anchor.terms import GUIDES, K1, PAPER_BRANCH
from sage_rlvr.studies.anchor.variances import NO_BASELINE, variances
from sage_rlvr.tasks.countdown import Countdown, Problem

WORLD = Countdown({2: 1.0}, max_number=9, max_target=20)
PROBLEM = Problem((1, 2), 3)
BRANCH = Branch(ratio=1.0, threshold=2.55)  # entropies of the random policy lie between 2.2 and 2.9 nats


def disturbed(model: PreTrainedModel, seed: int, by: float) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return other


@pytest.fixture(scope="module")
def tiny(tiny_policy: Path) -> tuple[PreTrainedModel, Tokens]:
    return load_policy(str(tiny_policy))


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


# ---- the list of completions


def rows_of(listed: Enumerated) -> list[tuple[int, ...]]:
    return [tuple(row[m].tolist()) for row, m in zip(listed.tokens, listed.mask, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("floor", [1e-9, 1e-3, 0.05])
def test_the_list_is_a_tree_whose_probabilities_sum_to_one(tiny: Any, floor: float) -> None:
    model, tokens = tiny
    listed = enumerate_completions(model, tokens, tokens.encode_prompt("1 2=3:"), 3, floor=floor)
    assert float(listed.probs.sum()) == pytest.approx(1.0, abs=1e-6)
    assert float(listed.probs[~listed.dropped].sum()) == pytest.approx(1.0 - listed.remainder, abs=1e-6)
    rows = rows_of(listed)
    known = set(rows)
    assert len(known) == len(rows) and not any(row[:t] in known for row in rows for t in range(1, len(row)))
    assert listed.finished.tolist() == [row[-1] == tokens.eos_id for row in rows]
    assert all(len(row) == 3 for row, cut in zip(rows, ~(listed.finished | listed.dropped), strict=True) if cut)
    assert (listed.remainder > 0) == bool(listed.dropped.any()) and not (listed.finished & listed.dropped).any()


@pytest.mark.slow
def test_probabilities_are_those_of_a_plain_forward_pass(tiny: Any) -> None:
    model, tokens = tiny
    prompt = tokens.encode_prompt("1 2=3:")
    listed = enumerate_completions(model, tokens, prompt, 4, floor=1e-3)
    with torch.no_grad():
        table = listed.logits(model)
        for row in range(0, len(listed.probs), 37):
            answer = listed.tokens[row][listed.mask[row]]
            logits = model(torch.tensor([[*prompt, *answer.tolist()]])).logits[0, len(prompt) - 1 : -1]
            states = listed.states[row][listed.mask[row]]
            assert torch.allclose(table[states], logits, atol=1e-4)
            logp = torch.log_softmax(logits.double(), -1)[torch.arange(len(answer)), answer].sum()
            assert float(listed.probs[row].log()) == pytest.approx(float(logp), abs=1e-4)


def test_a_lower_floor_leaves_less_and_enumerate_to_finds_one(tiny: Any) -> None:
    model, tokens = tiny
    prompt = tokens.encode_prompt("1 2=3:")
    left = [enumerate_completions(model, tokens, prompt, 4, floor=f).remainder for f in (1e-2, 1e-3, 1e-4)]
    assert left[0] > left[1] > left[2]
    assert enumerate_to(model, tokens, prompt, 4, remainder=left[1]).remainder <= left[1]


def test_right_completions_have_the_probability_of_the_exact_evaluation(warm_policy: Path) -> None:
    model, tokens = load_policy(str(warm_policy))
    problem = WORLD.problems("test", 0, 1)[0]
    listed = enumerate_completions(model, tokens, tokens.encode_prompt(WORLD.prompt(problem)), 8, floor=1e-6)
    found = dict(zip(listed.texts(tokens), listed.probs[listed.finished].tolist(), strict=True))
    exact = solution_logps(model, tokens, WORLD, [problem])[1.0][0]
    chances = [
        (found[text], np.exp(logp)) for text, logp in zip(WORLD.solutions(problem), exact, strict=True) if text in found
    ]
    assert chances and max(a for a, _ in chances) > 1e-6
    assert all(a == pytest.approx(b, rel=1e-3) for a, b in chances)


def test_the_sampler_draws_them_as_often_as_the_list_says(tiny: Any) -> None:
    model, tokens = tiny
    prompt, n = tokens.encode_prompt("1 2=3:"), 4000
    listed = enumerate_completions(model, tokens, prompt, 3, floor=1e-9)
    drawn = sample(model, [prompt], group_size=n, max_new_tokens=3, eos_id=tokens.eos_ids, pad_id=0, key=Key(5))
    counts: dict[tuple[int, ...], int] = {}
    for row, m in zip(drawn.tokens, drawn.mask, strict=True):
        text = tuple(row[m].tolist())
        counts[text] = counts.get(text, 0) + 1
    chances = dict(zip(rows_of(listed), listed.probs.tolist(), strict=True))
    assert set(counts) <= set(chances)
    likely = {row: p for row, p in chances.items() if n * p > 10}
    assert len(likely) > 10
    for row, p in likely.items():
        assert abs(counts.get(row, 0) - n * p) < 5 * np.sqrt(n * p * (1 - p)) + 1


def test_what_cannot_be_listed_is_refused(tiny: Any) -> None:
    model, tokens = tiny
    prompt = tokens.encode_prompt("1 2=3:")
    with pytest.raises(DataError, match="more than 50 prefixes"):
        enumerate_completions(model, tokens, prompt, 6, floor=1e-6, most_states=50)
    with pytest.raises(DataError, match="out of reach"):
        enumerate_to(model, tokens, prompt, 6, remainder=1e-4, most_states=50)
    with pytest.raises(DataError, match="no tokens"):
        enumerate_completions(model, tokens, [], 6)
    for limit, floor in ((0, 1e-3), (3, 0.0), (3, 1.0)):
        with pytest.raises(DataError, match="at least 1, and a floor"):
            enumerate_completions(model, tokens, prompt, limit, floor=floor)


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


# ---- the whole


@pytest.fixture(scope="module")
def folders(tiny: tuple[PreTrainedModel, Tokens], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(policy, reference)."""
    model, tokens = tiny
    place = tmp_path_factory.mktemp("lab")
    for name, one in (("policy", disturbed(model, 3, 0.05)), ("reference", model)):
        one.save_pretrained(place / name)
        tokens.tokenizer.save_pretrained(place / name)
    return str(place / "policy"), str(place / "reference")


def small_lab(folders: tuple[str, str], **changes: Any) -> LabResult:
    settings: dict[str, Any] = {
        "problems": ["1 2=3:", "2 5=7:"],
        "draws": 16,
        "reference": folders[1],
        "guides": {**GUIDES, "Branch": BRANCH},
        "remainder": 0.05,
        "max_new_tokens": 2,
    }
    return run_lab(folders[0], **(settings | changes))


@pytest.mark.slow
def test_the_table_of_a_small_policy(folders: tuple[str, str]) -> None:
    said: list[str] = []
    torch.set_num_threads(2)
    result = small_lab(folders, progress=said.append)
    assert torch.get_num_threads() == 2 and len(said) == 2
    torch.set_num_threads(1)
    assert [fact.prompt for fact in result.problems] == ["1 2=3:", "2 5=7:"] and result.remainder <= 0.05
    assert result.remainder == max(fact.remainder for fact in result.problems)
    for guide in ("Flat", "Branch"):
        k1 = result.row(K1, guide)
        assert k1.cosine > 1 - 1e-6 and k1.norm_ratio == pytest.approx(1, abs=1e-4) and k1.whole_cosine > 1 - 1e-6
    assert result.row("k1 in the reward (Dr. GRPO)").norm_ratio == pytest.approx(15 / 16, abs=1e-4)
    for term in ("k2", "straight_through", "k3_is", "exact reverse"):
        row = result.row(term, "Branch")
        assert row.status == FOR_THE_RECORD and row.guide_norm is not None and row.guide_cosine is not None
        assert row.guide_norm < 1e-4 and abs(row.guide_cosine) < 0.1
        assert result.row(term).cosine == pytest.approx(result.row("k2").cosine, abs=1e-5)
    shaped = result.row("k3", "Branch")
    assert shaped.status == ADMITTED and shaped.guide_norm is not None and shaped.guide_norm > 0.01
    assert shaped.cosine == pytest.approx(result.row("exact forward", "Branch").cosine, abs=1e-4)
    assert shaped.cosine_spread[0] <= shaped.cosine <= shaped.cosine_spread[1] < 0.99
    assert result.row("k3").variance_interval is not None and shaped.variance_ratio is None
    assert result.row(K1 + NO_BASELINE).variance_ratio != result.row(K1).variance_ratio
    with pytest.raises(DataError, match="no row 'exact forward' with guide 'Token'"):
        result.row("exact forward", "Token")


@pytest.mark.slow
def test_a_result_is_plain_and_a_function_of_its_arguments(folders: tuple[str, str]) -> None:
    result = small_lab(folders, problems=["1 2=3:"])
    assert result == small_lab(folders, problems=[Problem((1, 2), 3)])

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(plain(v) for v in value.values())
        if isinstance(value, (tuple, list)):
            return all(plain(v) for v in value)
        return value is None or type(value) in (str, int, float)

    assert plain(asdict(result))
    text = markdown(result)
    assert all(f"| {row.objective} | {row.guide} |" in text for row in result.rows)
    assert "| 1 2=3: |" in text and "refuses it" in text and "over its own mean^2" in text
    for row in result.rows:  # one problem: both variances are one trace, in the unit of Eq. (6) and of the term itself
        if row.variance_ratio is not None:
            assert row.variance_ratio == pytest.approx(row.snr_completions * row.norm_ratio**2, rel=1e-6)  # type: ignore[operator]
    assert result.row("k3").norm_ratio != pytest.approx(1.0, abs=1e-3)
    without = small_lab(folders, problems=["1 2=3:"], draws=0)
    assert "variance" not in markdown(without) and without.row("k3").cosine == result.row("k3").cosine


@pytest.mark.slow
def test_what_the_lab_refuses(folders: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="are the same on '1 2=3:'"):
        small_lab((folders[1], folders[1]))
    with pytest.raises(ConfigError, match="the first of them all is 'Flat'"):
        small_lab(folders, guides={"Branch": BRANCH})
    with pytest.raises(ConfigError, match="draws = -1"):
        small_lab(folders, draws=-1)
    with pytest.raises(DataError, match="out of reach"):
        small_lab(folders, remainder=1e-4, most_states=5)
    with pytest.raises(DataError, match="only 0 of 2 problems fit"):
        small_lab(folders, problems=2, remainder=1e-4, most_states=2)


@pytest.mark.slow
def test_the_default_lab_on_one_problem() -> None:
    """The embedded base, moved by a few steps: what the page says of it."""
    result = run_lab(problems=1, draws=64)
    assert result.remainder <= 1e-3 and result.problems[0].kl > 0.05
    assert result.row(K1).cosine > 1 - 1e-4 and result.row(K1, "Branch").cosine > 1 - 1e-4
    assert result.row("k2", "Branch").guide_norm == pytest.approx(0.0, abs=1e-4)
    assert result.row("k3", "Branch").guide_norm > 1e-3  # type: ignore[operator]
    assert result.row("k3").cosine < 0.99
    assert result.row("k3").variance_ratio > 3 * result.row("exact forward").variance_ratio  # type: ignore[operator]
    strength = {strength.guide: strength for strength in result.strengths}
    assert strength["Branch"].active_share > 0.05 > strength[PAPER_BRANCH].active_share
    assert all(row.mean_gap is None or row.mean_gap < 6 for row in result.rows)
