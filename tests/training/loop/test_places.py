"""The Place guide in a run: classes of states reach it, a strength of 0 is the base bit for bit, unknown classes are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sage_rlvr.errors import ConfigError
from sage_rlvr.training.loop import train_step
from training.loop.loop_common import make, weights

Recipe = Callable[..., Path]
PLACE = "{name: sage, base: {name: grpo, beta: 0.5}, guide: {name: place, classes: [%s], ratio: %s}}"


def test_a_strength_of_0_is_the_base_bit_for_bit_and_another_one_is_not(write_recipe: Recipe) -> None:
    methods = ["{name: grpo, beta: 0.5}", PLACE % ("operator, first operator", 0.0), PLACE % ("operator, first operator", 1.0)]
    after, q_means = [], []
    for method in methods:
        loop = make(write_recipe(), ("method", method))
        metrics = [train_step(loop, step) for step in range(2)]
        after.append(weights(loop))
        q_means.append(metrics[-1].get("guide/q_mean"))
    assert torch.equal(after[0], after[1]) and not torch.equal(after[0], after[2])
    assert 1.0 < q_means[2] < 2.0


def test_every_state_at_once_is_a_larger_beta(write_recipe: Recipe) -> None:
    loop = make(write_recipe(), ("method", PLACE % ("first operand, first operator, operand, operator, behind", 1.0)))
    assert train_step(loop, 0)["guide/q_mean"] == pytest.approx(2.0)


def test_a_class_that_the_task_does_not_have_is_refused(write_recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match=r"'oparator'.*operator"):
        make(write_recipe(), ("method", PLACE % ("oparator", 1.0)))
