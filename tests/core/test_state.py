"""The running state of parts: an explicit value in and out, pure, and one that checkpoints give back to its own part alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sage_rlvr.contrib.methods.outcomes import OutcomeCounts
from sage_rlvr.core import Method, Signals, advantages_of, credit
from sage_rlvr.core.state import State, state_from, state_metrics, tensors_of
from sage_rlvr.errors import CheckpointError
from sage_rlvr.methods import METHODS, grpo
from stateful import Remembered, stateful

REWARDS = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
SIGNALS = Signals(
    old_logps=torch.tensor([[-2.0, -0.5], [-0.5, 9.0], [-3.0, -2.0], [-0.1, -0.2]]),
    ref_logps=torch.zeros(4, 2),
    mask=torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]),
    row_ids=torch.arange(4),
)


def equal(first: State, second: State) -> bool:
    return {field: list(own) for field, own in first.items()} == {field: list(own) for field, own in second.items()} and all(
        torch.equal(first[field][name], second[field][name]) for field in first for name in first[field]
    )


def test_a_state_goes_in_and_out_by_hand() -> None:
    """Mean reward 3/4, a quarter of it taken up a step; 3 of the 7 counted tokens have a log-prob below -1."""
    method = stateful()
    first = credit(method, REWARDS, SIGNALS)
    torch.testing.assert_close(first.advantages, torch.tensor([[1.0, 1], [0, 0], [1, 1], [1, 1]]) * SIGNALS.mask)
    assert state_metrics(first.state) == pytest.approx(
        {"advantage/mean": 0.1875, "advantage/steps": 1, "extra/tiring/unlikely": 3 / 7}
    )
    second = credit(method, REWARDS, SIGNALS, state=first.state)
    right, wrong = (1 - 0.1875) / (1 + 3 / 7), -0.1875 / (1 + 3 / 7)
    wanted = torch.tensor([[right, right], [wrong, 0], [right, right], [right, right]])
    torch.testing.assert_close(second.advantages, wanted)
    torch.testing.assert_close(second.state["extra/tiring"]["seen"], torch.tensor([6.0, 14, 2]))
    assert second.state["advantage"]["steps"] == 2


def test_the_state_given_is_left_as_it_is_and_the_same_gives_the_same() -> None:
    method, start = stateful(), stateful().start()
    one, other = credit(method, REWARDS, SIGNALS, state=start), credit(method, REWARDS, SIGNALS)
    assert torch.equal(one.advantages, other.advantages) and equal(one.state, other.state)
    assert equal(start, method.start()) and not equal(start, one.state)
    again = credit(method, REWARDS, SIGNALS, state=one.state)
    assert torch.equal(advantages_of(method, REWARDS, SIGNALS, state=one.state), again.advantages)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_of_parts_without_state_has_none(name: str) -> None:
    method = METHODS[name]()
    assert bool(method.start()) is any(hasattr(part, "start") and part.start() for part in method.parts.values())


def test_tensors_of_a_checkpoint_say_whose_they_are() -> None:
    method = stateful()
    state = credit(method, REWARDS, SIGNALS).state
    kept = tensors_of(method.parts, state)
    assert list(kept) == [
        *("advantage.Remembered.mean", "advantage.Remembered.steps"),
        *("extra/tiring.Tiring.unlikely", "extra/tiring.Tiring.seen"),
    ]
    assert equal(state_from(method.parts, kept, "here"), state)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (grpo(), r"has the running state of no part, but this method needs that of advantage Remembered \(mean, steps\)"),
        (replace(grpo(), advantage=Remembered()), r"of advantage Remembered \(mean, steps\), but this method needs .* Tiring"),
        (replace(grpo(), extras=(OutcomeCounts(),)), r"of extra/outcome_counts OutcomeCounts \(keys, counts, .*\), but"),
    ],
)
def test_the_state_of_other_parts_is_refused_by_name(other: Method, words: str) -> None:
    with pytest.raises(CheckpointError, match=f"step-4: it {words}" if words.startswith("holds") else words):
        state_from(stateful().parts, tensors_of(other.parts, other.start()), "step-4")
