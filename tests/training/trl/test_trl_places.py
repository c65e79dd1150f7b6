"""The Place guide on TRL: q at the classes that a function of the text so far names, in every layout of updates. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")

from sage_rlvr.core.guides.place import Place
from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.countdown.problem import state_class
from sage_rlvr.training.trl import SageTrainer
from training.trl.spy_common import keep_inputs
from trl_common import LAYOUTS, arguments, build

OPERATOR = Place(("first operator", "operator"), ratio=0.5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_q_is_at_the_states_that_the_function_names(layout: str, tiny_policy: Path, tmp_path: Path):
    trainer = build(tiny_policy, arguments(tmp_path, layout), SageTrainer, guide=OPERATOR, state_class=state_class)
    caught: list[dict[str, Any]] = []
    keep_inputs(trainer, caught)
    trainer.train()
    decode, seen = trainer.processing_class.decode, set()
    for inputs in caught:
        rows = zip(inputs["completion_ids"].tolist(), inputs["completion_mask"].tolist(), inputs["sage_log_q"], strict=True)
        for ids, mask, log_q in rows:
            texts = ["".join(decode([token]) for token in ids[:t]) for t in range(sum(mask))]
            wanted = [1.5 if state_class(text).endswith("operator") else 1.0 for text in texts]
            assert torch.allclose(log_q[: sum(mask)].exp(), torch.tensor(wanted))
            seen |= set(wanted)
    assert caught and seen == {1.0, 1.5}


def test_the_function_of_a_reward_is_taken_and_without_one_the_guide_is_refused(tiny_policy: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="state_class="):
        build(tiny_policy, arguments(tmp_path), SageTrainer, guide=OPERATOR)
    build(tiny_policy, arguments(tmp_path), SageTrainer, guide=Place(first=2)).train()
