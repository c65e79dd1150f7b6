"""`python -m lab published`: the arithmetic of the paper's tables as a command."""

from __future__ import annotations

import pytest

from lab.__main__ import main


def test_the_papers_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["published", "GRPO", "Branch"]) == 0
    out = capsys.readouterr().out
    assert "| AIME pass@1 | +0.010 | 0.018 | 0.55 | 0.59 | 1.00 | 0.6 of 60 |" in out
    assert "| **average pass@256** | **+0.015** | 0.009 | 1.69 | **0.11** |" in out and "smallest Holm's p = 0.66" in out
    assert "average pass@256, 3 pairs pooled" in out and "+0.016 (standard error 0.004, t 3.6" in out
    assert main(["published", "4/GRPO", "Branch", "Base"]) == 0
    out = capsys.readouterr().out
    assert out.count("DeepSeek-R1-Distill-Qwen-7B") == 2 and "pooled" not in out


@pytest.mark.parametrize(("arms", "message"), [(["GRPO", "PPO"], "no one table has each"), (["GRPO"], "name two arms at least")])
def test_arms_that_no_table_has(arms: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["published", *arms]) == 2
    assert message in capsys.readouterr().err
