"""Reward transforms of published objectives: worked by hand, and their neutral settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sage_rlvr.contrib.methods.mara import Mara
from sage_rlvr.contrib.methods.outcomes import OutcomeCounts, OutcomeRepeats
from sage_rlvr.contrib.methods.right_entropy import RightEntropy
from sage_rlvr.contrib.methods.unlikeliness import Unlikeliness
from sage_rlvr.core.advantages import GroupSignals, LeaveOneOut
from sage_rlvr.errors import DataError

REWARDS = torch.tensor([[1.0, 1, 0, 0, 1, 0, 0, 0]])
SEEN = GroupSignals(
    torch.full((1, 8), 4),
    torch.tensor([[-2.0, -2, -3, -1, -4, -2, -5, -6]]),
    torch.tensor([[-2.5, -2.5, -9, -9, -3, -9, -9, -9]]),
)


def test_mara_by_hand():
    found = Mara(0.1).after_rewards(REWARDS, SEEN, {})
    assert found[0].tolist() == pytest.approx([1, 1, 0, 0, 1.05, 0, 0, 0])
    wanted = [0.707143, 0.707143, -0.435714, -0.435714, 0.764286, -0.435714, -0.435714, -0.435714]
    assert LeaveOneOut()(found)[0].tolist() == pytest.approx(wanted, abs=1e-6)
    assert not Mara().after_rewards(torch.zeros(1, 8), SEEN, {}).any()


ANSWERS = replace(SEEN, answers=torch.tensor([[7, 7, 5, 5, 8, 5, 0, 9]]), problems=torch.full((1, 8), 3))


def test_outcome_repeats_by_hand():
    """Answer 7 twice, 5 three times; one without an answer is nobody's repeat."""
    found = OutcomeRepeats(0.8).after_rewards(REWARDS, ANSWERS, {})[0]
    assert found.tolist() == pytest.approx([0.9, 0.9, -0.2, -0.2, 1, -0.2, 0, 0])
    right = OutcomeRepeats(0.8, "correct").after_rewards(REWARDS, ANSWERS, {})[0]
    assert right.tolist() == pytest.approx([0.9, 0.9, 0, 0, 1, 0, 0, 0])
    assert torch.equal(OutcomeRepeats(0.0).after_rewards(REWARDS, ANSWERS, {}), REWARDS)


def paid(part, rewards, seen, state):
    """Rewards of a rollout, and the state after it."""
    return part.after_rewards(rewards, seen, state), part.learn(rewards, seen, state)


def test_outcome_counts_by_hand():
    """New answers are paid whole; at the next step those given twice 1/sqrt 2, three times 1/sqrt 3; another problem is new."""
    part = OutcomeCounts(0.6)
    first, state = paid(part, REWARDS, ANSWERS, part.start())
    assert first[0].tolist() == pytest.approx([1.6, 1.6, 0.6, 0.6, 1.6, 0.6, 0, 0.6])
    assert sorted(state["counts"].tolist()) == [1, 1, 2, 3] and state["new_frac"] == 1
    second, state = paid(part, REWARDS, ANSWERS, state)
    two, three = 0.6 / 2**0.5, 0.6 / 3**0.5
    assert second[0].tolist() == pytest.approx([1 + two, 1 + two, three, three, 1.6, three, 0, 0.6])
    assert sorted(state["counts"].tolist()) == [2, 2, 4, 6] and state["new_frac"] == 0
    assert state["mean_bonus"] == pytest.approx((2 * two + 3 * three + 2 * 0.6) / 8)
    other = replace(ANSWERS, problems=torch.full((1, 8), 4))
    third, state = paid(part, REWARDS, other, state)
    assert torch.equal(third, first) and len(state["keys"]) == 8
    right = OutcomeCounts(0.6, "correct").after_rewards(REWARDS, ANSWERS, part.start())[0]
    assert right.tolist() == pytest.approx([1.6, 1.6, 0, 0, 1.6, 0, 0, 0])


def test_outcome_counts_forget_what_was_seen_longest_ago():
    """Two pairs are kept: of 7, 8, 9, 7 in turn 9 and 7; a group alone decides, whatever stands beside it in the batch."""
    part, state = OutcomeCounts(1.0, memory=2), OutcomeCounts().start()
    for answer in (7, 8, 9, 7):
        seen = GroupSignals(torch.ones(1, 1), torch.zeros(1, 1), None, torch.tensor([[answer]]), torch.tensor([[1]]))
        found, state = paid(part, torch.zeros(1, 1), seen, state)
        assert found == 1  # 7 had been forgotten
    assert state["counts"].tolist() == [1, 1]
    found, state = paid(part, torch.zeros(1, 1), seen, state)
    assert found == 1 and state["counts"].tolist() == [1, 2]  # 7 was seen last and is kept
    many = OutcomeCounts(1.0)
    table = many.start()
    generator = torch.Generator().manual_seed(2)
    tally: dict[tuple[int, int], int] = {}
    for _ in range(6):
        problems = torch.randint(-(2**62), 2**62, (4, 1), generator=generator) // 2**61
        answers = torch.randint(-3, 4, (4, 5), generator=generator)
        seen = GroupSignals(torch.ones(4, 5), torch.zeros(4, 5), None, answers, problems.expand(4, 5))
        found, table = paid(many, torch.zeros(4, 5), seen, table)
        pairs = [(int(problems[row]), int(one)) for row in range(4) for one in answers[row]]
        wanted = [0.0 if a == 0 else max(tally.get((p, a), 0), 1) ** -0.5 for p, a in pairs]
        assert found.flatten().tolist() == pytest.approx(wanted)
        for pair in pairs:
            if pair[1]:
                tally[pair] = tally.get(pair, 0) + 1
    assert sorted(table["counts"].tolist()) == sorted(tally.values())


def test_unlikeliness_by_hand_and_ties_share_their_ranks():
    assert Unlikeliness().after_rewards(REWARDS, SEEN, {})[0].tolist() == pytest.approx([0.84375, 0.84375, 0, 0, 0.9375, 0, 0, 0])


def test_unlikeliness_per_token_by_hand():
    """Sums -4, -3, -8, -2 rank 1, 2, 0, 3; over 4, 1, 16, 1 tokens the means -1, -3, -.5, -2 rank 2, 0, 3, 1."""
    seen = GroupSignals(torch.tensor([[4, 1, 16, 1]]), torch.tensor([[-4.0, -3, -8, -2]]))
    right = torch.tensor([[1.0, 1, 1, 0]])
    assert Unlikeliness().after_rewards(right, seen, {}).tolist() == [[1 - 0.25 / 4, 1 - 0.5 / 4, 1, 0]]
    assert Unlikeliness(per_token=True).after_rewards(right, seen, {}).tolist() == [[1 - 0.5 / 4, 1, 1 - 0.75 / 4, 0]]
    assert "log pi_old(y) / |y|" in Unlikeliness(per_token=True).equation


def test_right_entropy_pays_nothing_on_average():
    """Log-probs of the right -2, -2, -4, mean -8/3."""
    found = RightEntropy(0.3).after_rewards(REWARDS, SEEN, {})
    assert found[0].tolist() == pytest.approx([0.8, 0.8, 0, 0, 1.4, 0, 0, 0])
    assert float(found.mean()) == pytest.approx(float(REWARDS.mean()))


@pytest.mark.parametrize("part", [Mara(), Unlikeliness(), RightEntropy(), OutcomeRepeats(bonus_on="correct")], ids=str)
def test_a_reward_that_is_neither_right_nor_wrong_is_named(part):
    with pytest.raises(DataError, match=r"prompt 0, completion 1 is 0\.5"):
        part.after_rewards(torch.tensor([[1.0, 0.5]]), SEEN, {})
