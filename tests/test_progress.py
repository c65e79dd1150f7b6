"""The progress line: what it says of a rollout that serves several updates."""

from __future__ import annotations

import pytest

from sage_rlvr.progress import Terminal


def test_the_reward_of_a_rollout_stands_beside_all_of_its_updates(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Terminal("run", every=0.0)
    shown.start(total=2, done=0)
    shown.advance(0, {"loss": 0.5, "reward/mean": 0.25})
    shown.advance(1, {"loss": 0.125})
    shown.advance(2, {"loss": 0.75, "reward/mean": 1.0, "time/step_s": 9.0})
    ends = [line.split("left  ")[1] for line in capsys.readouterr().err.splitlines()]
    assert ends == ["loss 0.500  reward 0.250", "loss 0.125  reward 0.250", "loss 0.750  reward 1.000"]
