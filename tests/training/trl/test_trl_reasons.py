"""Completions without an answer on TRL: metrics under this package's names, and one warning that the run keeps. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl")

from datasets import Dataset

from sage_rlvr.core.guides import Flat
from sage_rlvr.models.folders import embedded_policy
from sage_rlvr.training.trl import SageTrainer
from sage_rlvr.verifiers import reasons
from sage_rlvr.verifiers.rewards import math_reward
from trl_common import PROMPTS, arguments


@pytest.mark.parametrize(("limit", "kinds"), [(24, {"no answer"}), (2, {"no answer", "cut"})])
def test_math_reward_under_the_trainer(limit: int, kinds: set[str], tmp_path: Path) -> None:
    """The shipped policy writes no boxes."""
    told: list[tuple[str, int, str]] = []
    data = Dataset.from_dict({"prompt": PROMPTS, "answer": ["7"] * len(PROMPTS)})
    args = arguments(tmp_path, max_steps=2, max_completion_length=limit)
    trainer: Any = SageTrainer(str(embedded_policy()), math_reward, args, train_dataset=data, guide=Flat())
    trainer.tell = lambda *said: told.append(said)
    trainer.train()
    logged = [row for row in trainer.state.log_history if "reward/mean" in row]
    assert [row["verifier/no_answer_frac"] for row in logged] == [1.0, 1.0]
    assert [row["verifier/undecided_frac"] for row in logged] == [0.0, 0.0]
    assert all(row["completions/unfinished_frac"] == row["completions/clipped_ratio"] for row in logged)
    assert {kind for kind, *_ in told} == kinds and {step for _, step, _ in told} == {0}
    assert len(told) == len(kinds), "a kind is told once"
    words = {kind: sentence for kind, _, sentence in told}
    assert r"no answer in \boxed{} in" in words["no answer"]
    assert ("raise max_completion_length" in words.get("cut", "")) == (limit == 2)


def test_a_plain_trainer_warns_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "_PROCESS", reasons.ReasonWatch())
    data = Dataset.from_dict({"prompt": PROMPTS, "answer": ["7"] * len(PROMPTS)})
    args = arguments(tmp_path, max_steps=1)
    trainer = trl.GRPOTrainer(str(embedded_policy()), math_reward, args, train_dataset=data)
    with pytest.warns(UserWarning, match=r"step 0: no answer in \\boxed\{\}"):
        trainer.train()
