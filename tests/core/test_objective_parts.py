"""Reward transforms, surrogates and token weights of published objectives: worked by hand, and their neutral settings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sage_rlvr.core import Anchor, Batch, Key, Signals, advantages_of, credit, objective
from sage_rlvr.core.advantages import Filtered, LeaveOneOut, Seen, Signed
from sage_rlvr.core.loss_terms import AdaptiveEntropy, EntropyBonus, KlCov
from sage_rlvr.core.rewards import Mara, OutcomeCounts, OutcomeRepeats, RightEntropy, Unlikeliness
from sage_rlvr.core.surrogates import Cispo, Clip, Gspo, Pacs
from sage_rlvr.core.token_weights import ClipCov, HighEntropy, ShapedEntropy, Steer, entropy_drift
from sage_rlvr.core.token_weights.base import covariance
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods import METHODS, compose, grpo_token_mean, no_kl, pacs, rloo, steer
from sage_rlvr.theory.utility import SHARES, axes, has_axes, same_objectives

REWARDS = torch.tensor([[1.0, 1, 0, 0, 1, 0, 0, 0]])
SEEN = Seen(
    torch.full((1, 8), 4),
    torch.tensor([[-2.0, -2, -3, -1, -4, -2, -5, -6]]),
    torch.tensor([[-2.5, -2.5, -9, -9, -3, -9, -9, -9]]),
)

# ---- reward transforms


def test_mara_by_hand():
    found = Mara(0.1)(REWARDS, SEEN)
    assert found[0].tolist() == pytest.approx([1, 1, 0, 0, 1.05, 0, 0, 0])
    wanted = [0.707143, 0.707143, -0.435714, -0.435714, 0.764286, -0.435714, -0.435714, -0.435714]
    assert LeaveOneOut()(found)[0].tolist() == pytest.approx(wanted, abs=1e-6)
    assert not Mara()(torch.zeros(1, 8), SEEN).any()


ANSWERS = replace(SEEN, answers=torch.tensor([[7, 7, 5, 5, 8, 5, 0, 9]]), problems=torch.full((1, 8), 3))


def test_outcome_repeats_by_hand():
    """Answer 7 twice, 5 three times; one without an answer is nobody's repeat."""
    found = OutcomeRepeats(0.8)(REWARDS, ANSWERS)[0]
    assert found.tolist() == pytest.approx([0.9, 0.9, -0.2, -0.2, 1, -0.2, 0, 0])
    assert OutcomeRepeats(0.8, "right")(REWARDS, ANSWERS)[0].tolist() == pytest.approx([0.9, 0.9, 0, 0, 1, 0, 0, 0])
    assert torch.equal(OutcomeRepeats(0.0)(REWARDS, ANSWERS), REWARDS)


def test_outcome_counts_by_hand():
    """New answers are paid whole; at the next step those given twice 1/sqrt 2, three times 1/sqrt 3; another problem is new."""
    part = OutcomeCounts(0.6)
    first, state = part(REWARDS, ANSWERS, part.start())
    assert first[0].tolist() == pytest.approx([1.6, 1.6, 0.6, 0.6, 1.6, 0.6, 0, 0.6])
    assert sorted(state["counts"].tolist()) == [1, 1, 2, 3] and state["new_share"] == 1
    second, state = part(REWARDS, ANSWERS, state)
    two, three = 0.6 / 2**0.5, 0.6 / 3**0.5
    assert second[0].tolist() == pytest.approx([1 + two, 1 + two, three, three, 1.6, three, 0, 0.6])
    assert sorted(state["counts"].tolist()) == [2, 2, 4, 6] and state["new_share"] == 0
    assert state["mean_bonus"] == pytest.approx((2 * two + 3 * three + 2 * 0.6) / 8)
    other = replace(ANSWERS, problems=torch.full((1, 8), 4))
    third, state = part(REWARDS, other, state)
    assert torch.equal(third, first) and len(state["keys"]) == 8
    right = OutcomeCounts(0.6, "right")(REWARDS, ANSWERS, part.start())[0][0]
    assert right.tolist() == pytest.approx([1.6, 1.6, 0, 0, 1.6, 0, 0, 0])


def test_outcome_counts_forget_what_was_seen_longest_ago():
    """Two pairs are kept: of 7, 8, 9, 7 in turn 9 and 7; a group alone decides, whatever stands beside it in the batch."""
    part, state = OutcomeCounts(1.0, memory=2), OutcomeCounts().start()
    for answer in (7, 8, 9, 7):
        seen = Seen(torch.ones(1, 1), torch.zeros(1, 1), None, torch.tensor([[answer]]), torch.tensor([[1]]))
        found, state = part(torch.zeros(1, 1), seen, state)
        assert found == 1  # 7 had been forgotten
    assert state["counts"].tolist() == [1, 1]
    found, state = part(torch.zeros(1, 1), seen, state)
    assert found == 1 and state["counts"].tolist() == [1, 2]  # 7 was seen last and is kept
    many = OutcomeCounts(1.0)
    table = many.start()
    generator = torch.Generator().manual_seed(2)
    tally: dict[tuple[int, int], int] = {}
    for _ in range(6):
        problems = torch.randint(-(2**62), 2**62, (4, 1), generator=generator) // 2**61
        answers = torch.randint(-3, 4, (4, 5), generator=generator)
        seen = Seen(torch.ones(4, 5), torch.zeros(4, 5), None, answers, problems.expand(4, 5))
        found, table = many(torch.zeros(4, 5), seen, table)
        pairs = [(int(problems[row]), int(one)) for row in range(4) for one in answers[row]]
        wanted = [0.0 if a == 0 else max(tally.get((p, a), 0), 1) ** -0.5 for p, a in pairs]
        assert found.flatten().tolist() == pytest.approx(wanted)
        for pair in pairs:
            if pair[1]:
                tally[pair] = tally.get(pair, 0) + 1
    assert sorted(table["counts"].tolist()) == sorted(tally.values())


def test_unlikeliness_by_hand_and_ties_share_their_ranks():
    assert Unlikeliness()(REWARDS, SEEN)[0].tolist() == pytest.approx([0.84375, 0.84375, 0, 0, 0.9375, 0, 0, 0])


def test_right_entropy_pays_nothing_on_average():
    """Log-probs of the right -2, -2, -4, mean -8/3."""
    found = RightEntropy(0.3)(REWARDS, SEEN)
    assert found[0].tolist() == pytest.approx([0.8, 0.8, 0, 0, 1.4, 0, 0, 0])
    assert float(found.mean()) == pytest.approx(float(REWARDS.mean()))


@pytest.mark.parametrize("part", [Mara(), Unlikeliness(), RightEntropy(), OutcomeRepeats(paid="right")], ids=str)
def test_a_reward_that_is_neither_right_nor_wrong_is_named(part):
    with pytest.raises(DataError, match=r"prompt 0, completion 1 is 0\.5"):
        part(torch.tensor([[1.0, 0.5]]), SEEN)


# ---- surrogates


def batch_of(shift: list[list[float]], advantages: list[float], size: int | None = None) -> tuple[Batch, torch.Tensor]:
    """Rows of two tokens, the second row's second one off the mask; logps = old + shift, a leaf."""
    old = torch.full((len(shift), 2), -1.0)
    mask = torch.ones_like(old, dtype=torch.bool)
    mask[1, 1] = False
    logps = (old + torch.tensor(shift)).requires_grad_(True)
    return Batch(logps, old, old - 0.5, mask, torch.tensor(advantages), max_tokens=2, group_size=size), logps


def gradient(method, batch: Batch, logps: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad(objective(method, batch, 0, 1)[0], logps)
    return found


def test_cispo_keeps_the_gradient_that_clip_drops():
    """Ratio e^.5 and A = 1: Clip has no gradient, Cispo 1.28 / 3 tokens."""
    batch, logps = batch_of([[0.5, 0.0], [0.0, 0.0]], [1.0, 0.0])
    token_mean = grpo_token_mean(beta=0.0)
    assert gradient(token_mean, batch, logps)[0].tolist() == pytest.approx([0, -1 / 3])
    assert gradient(METHODS["cispo"](), batch, logps)[0].tolist() == pytest.approx([-1.28 / 3, -1 / 3])
    low = replace(token_mean, surrogate=Cispo(low=0.2))
    batch, logps = batch_of([[-1.0, 0.0], [0.0, 0.0]], [1.0, 0.0])
    assert gradient(low, batch, logps)[0, 0] == pytest.approx(-0.8 / 3)


def test_gspo_clips_a_completion_whole():
    """Log-ratios .002 and 0: s = e^.001 > 1.0004, so that neither token has a gradient; the second row has one token."""
    batch, logps = batch_of([[0.002, 0.0], [0.002, 0.0]], [1.0, -1.0])
    found = gradient(METHODS["gspo"](), batch, logps)
    ratio = torch.tensor(0.002).exp()
    assert found[0].tolist() == [0, 0] and found[1].tolist() == pytest.approx([float(ratio) / 2, 0])
    inside, leaf = batch_of([[0.0004, 0.0], [0.0, 0.0]], [1.0, -1.0])
    s = float(torch.tensor(0.0002).exp())
    assert gradient(METHODS["gspo"](), inside, leaf)[0].tolist() == pytest.approx([-s / 4, -s / 4])


@pytest.mark.parametrize("name", ["cispo", "gspo"])
def test_the_first_update_is_that_of_the_clip(name: str):
    method, (batch, logps) = METHODS[name](), batch_of([[0.0, 0.0], [0.0, 0.0]], [1.0, -0.5])
    plain = replace(method, surrogate=Clip())
    assert torch.allclose(gradient(method, batch, logps), gradient(plain, batch, logps))


def pacs_gradient(method, gains: list[float], labels: list[float]) -> torch.Tensor:
    """d loss / d log pi(y) of each completion of one token."""
    old = torch.full((len(gains), 1), -1.0)
    logps = (old + torch.tensor(gains)[:, None]).requires_grad_(True)
    mask = torch.ones_like(old, dtype=torch.bool)
    batch = Batch(logps, old, old, mask, torch.tensor(labels), max_tokens=1, group_size=len(gains))
    return gradient(method, batch, logps)[:, 0]


def test_pacs_by_hand():
    """psi = (.433333, -.366667, .033333, -.1): the weighted and the plain gradient."""
    gains, labels = [0.4, -0.2, 0.1, 0.0], [1.0, 0.0, 0.0, 0.0]
    assert pacs_gradient(pacs(balanced=False), gains, labels).tolist() == pytest.approx(
        [-0.214391, 0.053168, 0.086163, 0.075059], abs=1e-6
    )
    assert pacs_gradient(pacs(), gains, labels).tolist() == pytest.approx(
        [-0.274038, 0.079149, 0.101146, 0.093743], abs=1e-6
    )


def test_the_first_update_of_pacs_is_rloo():
    labels = [1.0, 0.0, 0.0, 0.0]
    plain = pacs_gradient(pacs(scale=2.0, balanced=False), [0.0] * 4, labels)
    assert torch.allclose(plain, -2.0 * LeaveOneOut()(torch.tensor([labels]))[0] / 4)
    assert pacs_gradient(pacs(), [0.0] * 4, labels).tolist() == pytest.approx([-1 / 3, 1 / 9, 1 / 9, 1 / 9])
    assert not pacs_gradient(pacs(), [0.0] * 4, [1.0] * 4).any()


@pytest.mark.parametrize("p, terms, wanted", [(0.05, 1, 3.1431), (0.5, 1, 1.0667), (0.05, 2, -0.212), (0.5, 2, 1.067)])
def test_the_first_update_of_balanced_pacs(p: float, terms: int, wanted: float):
    """Per log pi(y) and group mean, over c right among 15 others: 1/(4 P (1 - P)) or so; two terms push hard prompts down."""
    force = [0.0, 0.0]
    for others in range(16):
        chance = math.comb(15, others) * p**others * (1 - p) ** (15 - others)
        for own in (0, 1):
            labels = [float(own)] + [1.0] * others + [0.0] * (15 - others)
            found = -16 * float(pacs_gradient(pacs(terms=terms), [0.0] * 16, labels)[0])
            force[own] += chance * found
    assert force[1] - force[0] == pytest.approx(wanted, rel=0.02)


def test_the_two_terms_of_pacs_are_the_gradient_of_the_expected_loss_but_for_the_other_rows():
    """Two answers, the policy a softmax of one logit, reference (.5, .5), groups of two: by enumeration."""
    method, reference = pacs(reference="anchor", terms=2, balanced=False), torch.tensor([0.5, 0.5]).log()

    def law(logit: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(torch.stack([logit, torch.zeros(())]), 0)

    def expected(logit: torch.Tensor) -> torch.Tensor:
        logs = law(logit)
        total = torch.zeros(())
        for a in (0, 1):
            for b in (0, 1):
                psi = (logs[a] - reference[a]) - (logs[b] - reference[b])
                losses = torch.nn.functional.softplus(torch.stack([psi * (2 * a - 1), psi * (1 - 2 * b)]))
                total = total + (logs[a] + logs[b]).exp() * losses.mean()  # answer 0 is right: softplus(-psi)
        return total

    logit = torch.tensor(0.7, requires_grad=True)
    (whole,) = torch.autograd.grad(expected(logit), logit)
    found = torch.zeros(())
    for a in (0, 1):
        for b in (0, 1):
            logs = law(logit)
            logps = torch.stack([logs[a], logs[b]])[:, None]
            labels = torch.tensor([1.0 - a, 1.0 - b])
            ref = torch.stack([reference[a], reference[b]])[:, None]
            batch = Batch(
                logps, logps.detach(), ref, torch.ones(2, 1, dtype=torch.bool), labels, max_tokens=1, group_size=2
            )
            (one,) = torch.autograd.grad(objective(method, batch, 0, 1)[0], logit, retain_graph=True)
            found += (logs[a] + logs[b]).exp().detach() * one
    # each row's score term has its own loss; the other row's, which its sample decides too, is left out as in the paper
    cross = torch.zeros(())
    for a in (0, 1):
        for b in (0, 1):
            logs = law(logit)
            psi = (logs[a] - reference[a] - logs[b] + reference[b]).detach()
            losses = torch.nn.functional.softplus(torch.stack([psi * (2 * a - 1), psi * (1 - 2 * b)]))
            (one,) = torch.autograd.grad(losses[0] * logs[b] + losses[1] * logs[a], logit)
            cross += (logs[a] + logs[b]).exp().detach() * one / 2
    assert float(found + cross) == pytest.approx(float(whole), abs=1e-6)


@pytest.mark.parametrize("size, words", [(None, "whole groups"), (3, "whole groups"), (1, "whole groups")])
def test_pacs_without_its_groups_is_refused(size, words: str):
    batch, logps = batch_of([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0], size)
    with pytest.raises(DataError, match=words):
        gradient(pacs(), batch, logps)
    other, leaf = batch_of([[0.0, 0.0], [0.0, 0.0]], [0.7, -0.7], 2)
    with pytest.raises(DataError, match="must be labels"):
        gradient(pacs(), other, leaf)


@pytest.mark.parametrize("more", [{}, {"advantage": Signed(0.1, 1.0)}, {"advantage": Signed(1, 0), "token_weight": Steer()}])
def test_pacs_composed_with_what_it_cannot_read_is_refused(more):
    with pytest.raises(ConfigError, match=r"advantage: \{name: signed, right: 1, wrong: 0\}"):
        compose(surrogate=Pacs(), beta=0.0, **more)
    assert compose(surrogate=Pacs(), advantage=Signed(1, 0), beta=0.0).surrogate == Pacs()


def test_a_composed_part_that_reads_the_reference_has_one_at_beta_0():
    anchors = [compose(advantage=part, beta=0.0, source="sft").anchor for part in (Filtered(), LeaveOneOut())]
    assert anchors == [Anchor(0.0, source="sft"), None]


# ---- token weights


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
    assert weight(signals_of([0.7, 0.2, 0.1], [0.801819] * 3))[0].tolist() == pytest.approx(wanted, abs=1e-5)


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
    assert HighEntropy()(signals)[0].nonzero().flatten().tolist() == [1, 4]
    assert bool((HighEntropy(1.0)(signals) == 1).all())


@pytest.mark.parametrize(
    "entropy, advantage, wanted", [(2, 1, 1.5), (2, -1, -0.5), (0.5, 1, 1.2), (0.5, -1, -0.8), (2, 0, 0)]
)
def test_shaped_entropy_by_hand(entropy: float, advantage: float, wanted: float):
    weight = ShapedEntropy()(signals_of([0.5], [float(entropy)], float(advantage)))
    assert float(weight[0, 0] * advantage) == pytest.approx(wanted)


def test_clip_cov_leaves_out_tokens_of_its_window_alone():
    """A = (1, 1, -1, -1), log pi = (-.1, -2, -.1, -2): cov = (.95, -.95, -.95, .95)."""
    signals = Signals(
        torch.tensor([[-0.1, -2.0], [-0.1, -2.0]]), None, torch.ones(2, 2, dtype=torch.bool), torch.arange(2),
        advantages=torch.tensor([1.0, -1.0]),
    )  # fmt: skip
    both = ClipCov(0.5, 0.9, 1.0)(signals, 0, Key(1))
    assert both.tolist() == [[0, 1], [1, 0]]
    one = [ClipCov(0.01, 0.9, 1.0)(signals, step, Key(1)) for step in range(30)]
    assert {tuple(w.flatten().tolist()) for w in one} == {(0, 1, 1, 1), (1, 1, 1, 0)}, "one token, drawn anew each step"
    assert torch.equal(one[3], ClipCov(0.01, 0.9, 1.0)(signals, 3, Key(1)))
    assert bool((ClipCov(0.5, 1.0, 5.0)(signals, 0, Key(1)) == 1).all())


def test_a_weight_that_draws_asks_for_the_key():
    signals = signals_of([0.5, 0.5], [1.0, 1.0])
    with pytest.raises(DataError, match="ClipCov draws tokens at random; pass key="):
        method = replace(METHODS["clip_cov"](), advantage=METHODS["dr_grpo"]().advantage)
        advantages_of(method, torch.tensor([[1.0]]), signals)


def test_a_neutral_weight_is_no_weight():
    signals = signals_of([0.7, 0.2], [0.8, 0.8])
    two = replace(signals, mask=torch.ones(1, 2, dtype=torch.bool))
    rewards = torch.tensor([[1.0]])
    method = replace(steer(least=1.0), advantage=METHODS["dr_grpo"]().advantage)
    plain = replace(method, token_weight=None)
    assert torch.equal(advantages_of(method, rewards, two), advantages_of(plain, rewards, two)[:, None].expand(1, 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mara(0.0), lambda: Unlikeliness(2.0), lambda: RightEntropy(-1.0), lambda: Cispo(2.0), lambda: OutcomeCounts(-1.0),
        lambda: EntropyBonus(float("nan")), lambda: AdaptiveEntropy(0.0), lambda: AdaptiveEntropy(least=0.5), lambda: KlCov(0.0),
        lambda: AdaptiveEntropy(delta=-1.0), lambda: KlCov(coefficient=-1.0), lambda: OutcomeCounts(memory=0),
        lambda: OutcomeRepeats(0.1, "wrong"), lambda: Cispo(0.2, -1),
        lambda: Gspo(2.0), lambda: Gspo(0.1, -1.0), lambda: Pacs(0.0), lambda: Pacs(1.0, "base"), lambda: Pacs(terms=3),
        lambda: Steer("code"), lambda: Steer(least=0.0), lambda: HighEntropy(0.0), lambda: ShapedEntropy(-1.0),
        lambda: ShapedEntropy(0.4, 1.0), lambda: ClipCov(0.0), lambda: ClipCov(0.1, 5.0, 1.0),
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
        assert plain == ("none is preferred" in METHODS[name]().describe()), name
    assert len(axes(rloo()).weights) == len(SHARES) and axes(no_kl(), 4).weights[0] > axes(no_kl(), 4).weights[2]


# ---- loss terms


def told(logps: list[list[float]], entropies: float = 1.0, advantages: tuple[float, ...] = (1.0, -1.0)) -> Signals:
    """Two rows of two tokens, all counted."""
    old = torch.tensor(logps)
    return Signals(
        old, None, torch.ones(2, 2), torch.arange(2), entropies=torch.full((2, 2), entropies), advantages=torch.tensor(advantages)
    )


def test_covariances_by_hand():
    """A = (1, 1, -1, -1), log pi = (-.1, -2, -.1, -2): (.95, -.95, -.95, .95); KL-Cov takes the largest, at least one."""
    found = covariance(told([[-0.1, -2.0], [-0.1, -2.0]]))
    assert found.flatten().tolist() == pytest.approx([0.95, -0.95, -0.95, 0.95])
    lone = KlCov(2e-4, 0.5)(told([[-0.1, -2.0], [-0.1, -3.0]]), 0, 1)
    assert lone.tolist() == [[0, 0], [0, 0.5]]
    assert KlCov(0.5, 0.5)(told([[-0.1, -2.0], [-0.1, -3.0]]), 0, 1).tolist() == [[0.5, 0], [0, 0.5]]


def test_kl_cov_holds_its_tokens_back_from_the_second_update_on():
    """-rho A without a clip, and 3 |log pi - log pi_old| at the token held: 0 with its gradient where the policy has not moved."""
    method = METHODS["kl_cov"](share=1e-3, coefficient=3.0)
    signals = told([[-0.1, -2.0], [-0.1, -3.0]])
    worth = credit(method, torch.tensor([[1.0, 0.0]]), signals)
    advantage = float(worth.advantages[0])
    for moved in (0.0, 0.7, -0.7):
        logps = (signals.old_logps + moved).requires_grad_(True)
        batch = Batch(logps, signals.old_logps, None, signals.mask, worth.advantages, term_weights=worth.term_weights)
        loss, metrics = objective(method, batch, 0, 1)
        (found,) = torch.autograd.grad(loss, logps)
        ratio = float(torch.tensor(moved).exp())
        plain = [-ratio * advantage / 4, -ratio * advantage / 4, ratio * advantage / 4, ratio * advantage / 4]
        plain[3] += 3 / 4 * (moved > 0) - 3 / 4 * (moved < 0)
        assert found.flatten().tolist() == pytest.approx(plain, rel=1e-4)
        assert metrics["term/loss"] == pytest.approx(3 * abs(moved) / 4)
    with pytest.raises(DataError, match="take it from `credit`"):
        objective(method, replace(batch, term_weights=None), 0, 1)


def test_adaptive_entropy_climbs_while_entropy_is_low_and_falls_above_it():
    term = AdaptiveEntropy(target=0.8, delta=0.005, most=0.06)
    state, low, high = term.start(), told([[-1.0, -1], [-1, -1]], 0.79), told([[-1.0, -1], [-1, -1]], 0.9)
    for step in range(10):
        weights, state = term(low, 0, 1, state)
        assert weights.unique().item() == pytest.approx(0.005 * step)
    assert float(state["coefficient"]) == pytest.approx(0.05)
    weights, state = term(high, 0, 1, state)
    assert not weights.any() and float(state["coefficient"]) == pytest.approx(0.045)
    for _ in range(9):
        _, state = term(low, 0, 1, state)
    assert float(state["coefficient"]) == pytest.approx(0.06)  # at the bound
    for _ in range(20):
        _, state = term(high, 0, 1, state)
    assert float(state["coefficient"]) == 0.0


@pytest.mark.parametrize("term", [EntropyBonus(0.0), KlCov(0.1, 0.0), AdaptiveEntropy(0.1)], ids=str)
def test_a_term_of_weight_zero_is_the_method_without_it_bit_for_bit(term):
    signals = told([[-0.1, -2.0], [-0.3, -3.0]])
    found = []
    for method in (no_kl(), replace(no_kl(), loss_term=term)):
        worth = credit(method, torch.tensor([[1.0, 0.0]]), signals)
        logps = (signals.old_logps + 0.3).requires_grad_(True)
        batch = Batch(
            logps, signals.old_logps, None, signals.mask, worth.advantages, entropies=-2 * logps, term_weights=worth.term_weights
        )
        loss, _ = objective(method, batch, 0, 1)
        found.append(torch.cat([loss.detach()[None], *torch.autograd.grad(loss, logps)[0]]))
    assert torch.equal(*found)
