"""What moves where nothing is earned: a guided KL, unless the update is skipped; nothing else from the reference on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.__main__ import main

SMALL = ["--set", "rollout.prompts_per_step=2", "rollout.group_size=2", "rollout.max_new_tokens=8", "optimizer.lr=1e-3"]


def test_only_a_guide_moves_a_policy_without_a_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["no-reward", "--steps", "2", "--seeds", "2", "--update", "plain", "skipped", *SMALL, "--out", str(tmp_path)]
    assert main(words) == 0
    rows = {(row["method"], row["update"]): row for row in json.loads((tmp_path / "no_reward.json").read_text())["rows"]}
    assert len(rows) == 6 and "raw KL after 2 steps" in capsys.readouterr().out
    moving = rows.pop(("Branch, p80", "plain"))
    assert min(moving["kl"]) > 0 and min(moving["weights"]) > 0
    assert all(row["kl"] == row["weights"] == [0.0, 0.0] for row in rows.values())
    assert min(moving["gradient"]) > 0 == max(rows["Branch, p80", "skipped"]["gradient"])
    assert max(rows["no guide", "plain"]["gradient"]) == 0
