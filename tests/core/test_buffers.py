"""The answer buffer: against a dictionary that keeps the same rules by hand, its draws, and its losses worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.contrib.methods.pacs import Pacs
from sage_rlvr.contrib.replay.dph import Rehearsal
from sage_rlvr.contrib.replay.remax import redr, remax
from sage_rlvr.contrib.replay.replay import Replay
from sage_rlvr.contrib.replay.rft import Likelihood, rft
from sage_rlvr.core import Key, SequenceMean, TokenMean
from sage_rlvr.core.extras.replay.answers import Answers, Bounds
from sage_rlvr.core.extras.replay.base import StoredAnswers, buffer_budget, buffer_loss
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.testing import check_extra

G, T = 3, 4
REPRESENTATIVES, EVICTIONS = ("first", "newest", "shortest", "likeliest"), ("oldest", "newest", "commonest")
rollouts = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 4),  # problem
            st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, T)), min_size=G, max_size=G),
        ),
        min_size=1,
        max_size=3,
    ),
    max_size=5,
)


def rollout(groups, step: int) -> Answers:
    """Completions as (right, answer, length); a text's tokens and log-probs tell it apart from all others."""
    rows = [row for _, members in groups for row in members]
    lengths = torch.tensor([length for _, _, length in rows])
    mask = torch.arange(T)[None] < lengths[:, None]
    tokens = 1 + torch.arange(len(rows))[:, None] * T + torch.arange(T) + 1000 * (step + 1)
    return Answers.of_rollout(
        torch.tensor([problem for problem, _ in groups]),
        torch.tensor([[float(right) for right, _, _ in members] for _, members in groups]),
        torch.tensor([[answer for _, answer, _ in members] for _, members in groups]),
        tokens,
        mask,
        -(tokens % 8).float() / 8,  # sums are exact, so ties are ties
        step,
        torch.full((len(groups), G), 0.5 + step),
    )


def by_hand(history, rule: Bounds) -> list[dict]:
    """What a buffer holds after these rollouts, one answer after the other in plain Python; in the order of entry."""
    kept: list[dict] = []
    for step, groups in enumerate(history):
        seen = {problem: G * sum(1 for p, _ in groups if p == problem) for problem, _ in groups}
        new = rollout(groups, step)
        touched = set(new.problem.tolist())
        for i in range(len(new)):
            one = {
                "problem": int(new.problem[i]), "answer": int(new.answer[i]), "step": step, "found": 1,
                "share": 1 / seen[int(new.problem[i])], "tokens": new.tokens[i][new.mask[i]].tolist(),
                "logp": float(new.logps[i].sum()), "advantage": float(new.advantage[i]),
            }  # fmt: skip
            old = next((k for k in kept if (k["problem"], k["answer"]) == (one["problem"], one["answer"])), None)
            if old is None:
                kept.append(one)
                continue
            again, found = old["step"] == step, old["found"] + 1
            better = {
                "first": False,
                "newest": not again,
                "shortest": len(one["tokens"]) < len(old["tokens"]),
                "likeliest": one["logp"] > old["logp"] + 1e-9,
            }[rule.representative]
            shared = old.setdefault("shares", {old["step"]: old["share"]})
            shared[step] = shared.get(step, 0.0) + one["share"]
            old.update({**one, "shares": shared} if better else {}, found=found)
            old["share"] = shared[old["step"]]
        for problem in touched:
            mine = [k for k in kept if k["problem"] == problem]
            order = {"oldest": lambda k: -k["step"], "newest": lambda k: 0, "commonest": lambda k: k["found"]}
            for gone in sorted(mine, key=order[rule.evict])[rule.answers :]:
                kept.remove(gone)
        last = {k["problem"]: max(o["step"] for o in kept if o["problem"] == k["problem"]) for k in kept}
        stay = sorted(last, key=lambda p: (-last[p], p))[: rule.pool]
        kept = [k for k in kept if k["problem"] in stay]
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("representative", REPRESENTATIVES)
@pytest.mark.parametrize("evict", EVICTIONS)
@settings(max_examples=25, deadline=None)
@given(history=rollouts, most=st.integers(1, 3), pool=st.integers(1, 4))
def test_it_holds_what_a_dictionary_with_the_same_rules_holds(representative, evict, history, most, pool):
    rule = Bounds(most, pool, representative, evict)
    kept = Answers.none()
    for step, groups in enumerate(history):
        before = {name: one.clone() for name, one in kept.tensors().items()}
        after = rule.add(kept, rollout(groups, step))
        assert all(torch.equal(one, before[name]) for name, one in kept.tensors().items())  # a value: the old one stays
        kept = Answers.of({name: one.clone() for name, one in after.tensors().items()})  # as through a checkpoint
    wanted = by_hand(history, rule)
    found = sorted(range(len(kept)), key=lambda i: (int(kept.problem[i]), int(kept.answer[i])))
    wanted.sort(key=lambda k: (k["problem"], k["answer"]))
    assert [(int(kept.problem[i]), int(kept.answer[i])) for i in found] == [(k["problem"], k["answer"]) for k in wanted]
    for i, one in zip(found, wanted, strict=True):
        assert kept.tokens[i][kept.mask[i]].tolist() == one["tokens"]
        assert (int(kept.step[i]), int(kept.found[i])) == (one["step"], one["found"])
        assert float(kept.share[i]) == pytest.approx(one["share"]) and float(kept.advantage[i]) == one["advantage"]
    tried = {p: sum(G for groups in history for q, _ in groups if q == p) for groups in history for p, _ in groups}
    assert {int(p): int(n) for p, n, _ in kept.tried} == tried


def filled(sizes: dict[int, int], order: int = 0) -> Answers:
    """Problem -> number of answers, one token each; `order` permutes their entry."""
    pairs = [(problem, answer) for problem, n in sizes.items() for answer in range(n)]
    rows = torch.tensor(pairs)[torch.randperm(len(pairs), generator=torch.Generator().manual_seed(order))]
    one = torch.ones(len(rows), dtype=torch.long)
    return Answers(
        rows[:, 0], rows[:, 1], one, one, one / 4, one.float(), one, rows[:, 1:] + 1, -one[:, None].float(),
        torch.tensor([[p, 8, min(n, 8)] for p, n in sorted(sizes.items())]), torch.tensor(0),
    )  # fmt: skip


POOL = {3: 1, 5: 4, 8: 2, 9: 16, 12: 3, 40: 2}


@pytest.mark.parametrize("draw", ["any", "hard", "step"])
def test_a_draw_is_a_function_of_seed_update_and_content(draw: str):
    """Not of the order in which answers came in, nor of draws before; each prompt brings all its answers."""
    buffer, now = Likelihood(prompts=3, draw=draw), torch.tensor([40, 9, 7, 5, 3])

    def drawn(order: int, number: int, seed: int = 1) -> list[list[tuple[int, int]]]:
        rows = buffer.rows(filled(POOL, order), number, Key(seed), now)
        assert rows.owners.tolist() == sorted(rows.owners.tolist()) and rows.whole == len(rows) and rows.requested_prompts == 3
        pairs = [(int(p), int(a)) for p, a in zip(rows.answers.problem, rows.answers.answer, strict=True)]
        return [sorted(pair for pair, o in zip(pairs, rows.owners, strict=True) if o == own) for own in range(3)]

    first = drawn(0, 0)
    assert drawn(1, 0) == first and drawn(2, 0) == first
    assert all(len(group) == POOL[group[0][0]] for group in first)
    assert {group[0][0] for group in first} <= ({3, 5, 9, 40} if draw == "step" else set(POOL))
    other = [drawn(0, number) for number in range(8)]
    assert len({str(one) for one in other}) > 3 and drawn(0, 0, seed=2) != first


def test_hard_prompts_are_drawn_more_often_in_proportion():
    """Solve rates (1 + 1) / (8 + 2) = .2 and (7 + 1) / 10 = .8: the first of two is the hard one in .8 of the draws."""
    kept = filled({3: 1, 5: 7})
    hard, plain = Likelihood(prompts=1, draw="hard"), Likelihood(prompts=1)
    assert kept.solve_rates(torch.tensor([3, 5, 6])).tolist() == pytest.approx([0.2, 0.8, 0.5])
    firsts = [[int(b.rows(kept, n, Key(0)).answers.problem[0]) == 3 for n in range(300)] for b in (hard, plain)]
    assert sum(firsts[0]) / 300 == pytest.approx(0.8, abs=0.06) and sum(firsts[1]) / 300 == pytest.approx(0.5, abs=0.08)


def test_take_draws_some_answers_of_each_prompt_evenly():
    buffer, kept = Likelihood(prompts=2, take=2), filled({5: 4, 9: 1})
    drawn = [buffer.rows(kept, n, Key(0)) for n in range(400)]
    assert {tuple(sorted(torch.bincount(rows.owners).tolist())) for rows in drawn} == {(1, 2)}
    counts = sum(torch.bincount(r.answers.answer[r.answers.problem == 5], minlength=4) for r in drawn)
    assert counts.sum() == 800 and (counts.float() / 400 - 0.5).abs().max() < 0.08


# ---- the losses

STORED = replace(
    filled({5: 2, 9: 1}), logps=torch.tensor([[-1.0, -0.5], [-2.0, 0.0], [-0.25, -0.25]]), lengths=torch.tensor([2, 1, 2]),
    tokens=torch.ones(3, 2, dtype=torch.long), problem=torch.tensor([5, 5, 9]), answer=torch.tensor([0, 1, 0]),
    advantage=torch.tensor([1.0, 2.0, 0.5]), share=torch.tensor([0.25, 0.5, 0.125]), step=torch.tensor([3, 3, 4]),
)  # fmt: skip
LOGPS = torch.tensor([[-0.9, -0.5], [-2.5, math.nan], [-0.25, -0.25]])


def gradient(buffer):
    """d loss / d logps at `LOGPS`, prompt 5 first; the loss; its metrics."""
    rows = replace(buffer.rows(STORED, 0, Key(0)), requested_prompts=4)
    order = (rows.answers.problem * 10 + rows.answers.answer).argsort()
    rows = replace(rows, answers=rows.answers.take(order), owners=torch.tensor([0, 0, 1]))
    leaf = LOGPS.clone().requires_grad_(True)
    budget = buffer_budget(buffer, rows, 2)
    parts = ((leaf[:2], rows.of_owners(0, 1)), (leaf[2:], rows.of_owners(1, 2)))
    found = [buffer_loss(buffer, logps, own, budget) for logps, own in parts]
    loss, metrics = buffer_loss(buffer, leaf, rows, budget)
    assert float((found[0][0] + found[1][0]).detach()) == pytest.approx(float(loss.detach()), rel=1e-5)  # micro-batches add up
    assert {k: sum(f[1][k] for f in found) for k in metrics} == pytest.approx(metrics, rel=1e-5)
    (slope,) = torch.autograd.grad(loss, leaf)
    assert math.isfinite(metrics["replay/loss"]) and not slope[1, 1].any()  # NaN off the mask
    return slope, float(loss.detach()), metrics


def test_uniform_likelihood_by_hand():
    """Two prompts of four asked: weights 1/8, 1/8, 1/4, by 2 tokens granted to each of them."""
    slope, loss, metrics = gradient(Likelihood())
    assert slope.tolist() == [[-0.0625, -0.0625], [-0.0625, 0.0], [-0.125, -0.125]]
    assert loss == pytest.approx((1.4 / 8 + 2.5 / 8 + 0.5 / 4) / 2)
    assert metrics == pytest.approx({"replay/loss": loss, "replay/logp": -(1.4 + 2.5 + 0.5) / 3})


def test_the_reduction_is_the_buffers_own():
    by_row = gradient(Likelihood(reduction=SequenceMean()))[0]
    assert by_row.tolist() == [[-0.0625, -0.0625], [-0.125, 0.0], [-0.125, -0.125]]
    by_token = gradient(Likelihood(reduction=TokenMean()))[0]
    assert by_token[0].tolist() == pytest.approx([-3 / 8 / 5] * 2)


def test_the_laws_of_the_likelihood_by_hand():
    policy = gradient(Likelihood(law="policy"))[0][:, 0] * 8
    first = math.exp(-1.4) / (math.exp(-1.4) + math.exp(-2.5))
    assert policy.tolist() == pytest.approx([-first, first - 1, -1.0])
    base = gradient(Likelihood(law="base", base=4, policy=False))[0][:, 0] * 8
    first = math.exp(-1.5) / (math.exp(-1.5) + math.exp(-2.0))
    assert base.tolist() == pytest.approx([-first, first - 1, -1.0])


def test_the_law_of_the_finds_by_hand():
    """Found once and three times: 1/4 and 3/4 of a prompt's weight, where the uniform law has halves."""
    found = replace(STORED, found=torch.tensor([1, 3, 2]))
    rows = Likelihood(law="found").rows(found, 0, Key(0))
    by_answer = {(int(p), int(a)): i for i, (p, a) in enumerate(zip(rows.answers.problem, rows.answers.answer, strict=True))}
    weights = Likelihood(law="found").stored_loss(torch.zeros(3, 2), rows)[1]
    assert [float(weights[by_answer[at]]) for at in ((5, 0), (5, 1), (9, 0))] == pytest.approx([0.25, 0.75, 1.0])


# ---- Re:Max and Re:Dr

SCORED = torch.tensor([[-0.5, -1.5, 0.0], [-2.0, 0.0, 0.0], [-0.3, -0.6, -0.9]])  # per token: means -1, -2, -.6


def replayed(part, logps: torch.Tensor) -> torch.Tensor:
    """Its loss, before the weight, on a bank of two answers of one prompt and one of another, found 1, 3 and 2 times."""
    whole, lengths = torch.tensor([0, 0, 1]), torch.tensor([2, 1, 3])
    answers = Answers(
        whole, torch.arange(3), whole, torch.tensor([1, 3, 2]), torch.ones(3), torch.ones(3), lengths,
        torch.zeros(3, 3, dtype=torch.long), SCORED, torch.zeros(0, 3, dtype=torch.long), torch.tensor(0),
    )  # fmt: skip
    rows = StoredAnswers(answers, whole, 2, 3, 6)
    return buffer_loss(part, logps, rows, buffer_budget(part, rows, 192))[0]


@pytest.mark.parametrize("make", [remax, redr])
def test_the_replay_of_remax_as_the_authors_code_computes_it(make):
    """By hand ((1 + 2) / 2 + .6) / 2 = 1.05, and (1/4 + 6/4 + .6) / 2 = 1.175 by finds. For scores (-1, -2, -.6), sizes (2, 1) and
    weights of ones or (1, 3, 2), canonical_replay_uniform_verified_likelihood_loss of remax-rl 0.1.1 printed both, and the slopes
    -1/4, -1/4, -1/2 and -1/8, -3/8, -1/2 per score. Its adapter takes the mean over an answer's tokens as the score."""
    leaf = SCORED.clone().requires_grad_(True)
    loss = replayed(make().buffer, leaf)
    (slope,) = torch.autograd.grad(loss, leaf)
    assert float(loss.detach()) == pytest.approx(1.05)
    assert slope.sum(1).tolist() == pytest.approx([-1 / 4, -1 / 4, -1 / 2]) and slope[0].tolist() == [-0.125, -0.125, 0.0]
    leaf = SCORED.clone().requires_grad_(True)
    loss = replayed(make(law="found").buffer, leaf)
    assert float(loss.detach()) == pytest.approx(1.175)
    assert torch.autograd.grad(loss, leaf)[0].sum(1).tolist() == pytest.approx([-1 / 8, -3 / 8, -1 / 2])


def test_the_recipe_of_remax():
    """Weight .1 * 15 / 256 for 16 completions, at most 16 answers, the first that came stay, each text once."""
    for make in (remax, redr):
        part = make().buffer
        assert part.weight == 0.1 * (16 - 1) / 16**2 == 0.005859375 and (part.answers, part.evict) == (16, "newest")
        assert (part.law, part.representative, part.policy, part.alone) == ("uniform", "first", True, False)
        assert isinstance(part.reduction, SequenceMean) and make().anchor is None
    paid = remax().advantage(torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]))
    wanted = [[1.0, -1.0, -1.0, 1.0], [0.0] * 4, [-1.0, 3.0, -1.0, -1.0]]  # 4 r / K - 1: binary_maxrl_advantages of remax-rl 0.1.1
    assert paid.tolist() == [pytest.approx(row, abs=1e-5) for row in wanted]
    assert redr().advantage(torch.tensor([[1.0, 0.0, 0.0, 1.0]])).tolist() == [[0.5, -0.5, -0.5, 0.5]]


def test_a_full_bank_admits_no_new_answer_and_counts_the_old_ones():
    rule, kept = replace(remax().buffer, answers=2).rule, Answers.none()
    for step, answers in enumerate(([0, 1, 0], [2, 1, 1], [3, 0, 2])):
        kept = rule.add(kept, rollout([(7, [(True, answer, 2) for answer in answers])], step))
    assert kept.answer.tolist() == [0, 1] and kept.found.tolist() == [3, 3] and kept.step.tolist() == [0, 0]


def test_rehearsal_by_hand():
    """log u = (.1, 0), (-.5), (0, 0): d/dlogp of u - 1 - log u is u - 1, and nothing pulls where pi is the base."""
    slope, loss, metrics = gradient(Rehearsal())
    first = math.exp(-1.5) / (math.exp(-1.5) + math.exp(-2.0))
    wanted = [[first * math.expm1(0.1) / 8, 0.0], [(1 - first) * math.expm1(-0.5) / 8, 0.0], [0.0, 0.0]]
    assert [row for row in slope.tolist()] == [pytest.approx(row, abs=1e-7) for row in wanted]
    assert metrics["replay/kl"] == pytest.approx(2 * loss)


def test_replay_by_hand():
    """Ratios e^.1, 1; e^-.5; 1, 1 with A = 1, 2, .5 and shares .25, .5, .125; e^-.5 < .8 is not clipped for A > 0."""
    slope = gradient(Replay())[0]
    wanted = [[-0.25 * math.exp(0.1) / 8, -0.25 / 8], [-math.exp(-0.5) / 8, 0.0], [-0.0625 / 8, -0.0625 / 8]]
    assert [row for row in slope.tolist()] == [pytest.approx(row) for row in wanted]
    far = replace(Replay(), surrogate=replace(Replay().surrogate, high=0.05))
    assert gradient(far)[0][0].tolist() == pytest.approx([0.0, -0.25 / 8]) and gradient(far)[2]["replay/clipped_frac"] > 0


def test_replay_takes_the_mean_over_a_prompts_rollouts():
    rows = Replay().rows(replace(STORED, problem=torch.tensor([5, 5, 5]), step=torch.tensor([3, 4, 4])), 0, Key(0))
    assert sorted(Replay().stored_loss(torch.zeros(3, 2), rows)[1].tolist()) == [0.0625, 0.125, 0.25]


def test_an_empty_buffer_weighs_nothing():
    for buffer in (Likelihood(), Likelihood(law="policy"), Rehearsal(), Replay()):
        rows = buffer.rows(Answers.none(), 0, Key(0))
        loss, metrics = buffer_loss(buffer, torch.zeros(0, 0), rows, 1.0)
        assert len(rows) == 0 and float(loss) == 0.0 and not any(metrics.values())


def test_a_reward_between_right_and_wrong_is_refused():
    one = torch.ones(1, 1)
    with pytest.raises(DataError, match=r"completion 0 is 0\.5"):
        Answers.of_rollout(torch.tensor([0]), one / 2, one.long(), one.long(), one.bool(), one, 0)


@pytest.mark.parametrize("make", [Likelihood, Rehearsal, Replay])
@pytest.mark.parametrize("seed", range(3))
def test_the_laws_of_a_buffer(make, seed: int):
    check_extra(make(), seed)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Likelihood(policy=False), "no answer would ever be stored"),
        (lambda: Likelihood(answers=0), "answers = 0"),
        (lambda: Likelihood(prompts=0), "prompts = 0"),
        (lambda: Likelihood(take=0), "take = 0"),
        (lambda: Likelihood(base=-1), "base = -1"),
        (lambda: Likelihood(base_prompts=5), "without samples of the base"),
        (lambda: Likelihood(law="policy", take=2), "would drop answers"),
        (lambda: remax(law="base"), "set policy=False, base=16"),
        (lambda: Likelihood(law="base"), "set policy=False, base=16"),
        (lambda: Likelihood(law="base", policy=False, base=4, file="a.jsonl"), "law='base' weights answers"),
        (lambda: Likelihood(file="a.jsonl", representative="likeliest"), "from a file or the task lack"),
        (lambda: Rehearsal(policy=True), "per-token log-probs"),
        (lambda: Replay(base=4), "only rollouts"),
        (lambda: Replay(take=2), "take = 2"),
        (lambda: Replay(surrogate=Pacs()), "compares whole groups"),
        (lambda: Likelihood(policy=False, file="a.jsonl", draw="hard"), "draw='hard' prefers problems that failed"),
        (lambda: Likelihood(policy=False, oracle=True, draw="hard"), "set draw='any'"),
        (lambda: rft(base=0), "^rft: no answer would be stored; set base=16 .* or file="),
        (lambda: Likelihood(weight=-1.0).weight_at(0, 1), "weight is -1.0"),
    ],
)
def test_settings_that_cannot_work_are_refused(make, words: str):
    with pytest.raises(ConfigError, match=words):
        make()
