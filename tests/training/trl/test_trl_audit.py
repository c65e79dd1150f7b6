"""`SageTrainer(..., audit=True)`: a reward that pays wrong answers stops training before its first step."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("trl")

from datasets import Dataset

from audited_reward import good, last_digit
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import grpo
from sage_rlvr.training.trl import SageTrainer
from trl_common import arguments

ROWS = Dataset.from_dict({"prompt": [f"{n} 1=" for n in range(1, 9)], "answer": [str(n + 1) for n in range(1, 9)]})


def trained(policy: Path, folder: Path, **more: object) -> SageTrainer:
    trainer = SageTrainer(
        model=str(policy), args=arguments(folder, max_steps=1), train_dataset=ROWS, method=grpo(beta=0.5), **more
    )
    trainer.note = lines.append
    trainer.train()
    return trainer


lines: list[str] = []


def test_a_reward_is_audited_before_the_first_step(tiny_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wrong answers rejected") as caught:
        trained(tiny_policy, tmp_path, reward_funcs=last_digit, audit=True)
    assert "mend it, or omit audit" in str(caught.value)
    done = trained(tiny_policy, tmp_path, reward_funcs=good, audit={"problems": 4})
    assert done.state.global_step == 1 and any(line.startswith("audit of the reward good: ") for line in lines)
