"""The audit of a reward as a guard: what it raises in a test, and which reward it takes of a trainer."""

from __future__ import annotations

import re

import pytest

from audited_reward import good
from sage_rlvr.contrib.audit.guard import INSIDE, _importable, audit_trainer, complaint_about
from sage_rlvr.errors import ConfigError
from sage_rlvr.testing import check_reward
from sage_rlvr.verifiers.rewards import math_reward

ROWS = [{"id": str(n), "prompt": f"{n} + 3?", "answer": str(n + 3)} for n in (2, 9, 14, 21)]


@pytest.mark.slow
def test_a_bad_reward_fails_a_test_with_its_failed_checks() -> None:
    check_reward(good, ROWS)
    with pytest.raises(AssertionError) as caught:
        check_reward("audited_reward:last_digit", ROWS)
    said = str(caught.value)
    assert "all wrong answers rejected" in said and "BELOW 99 %" in said and "  ok" not in said


@pytest.mark.slow
def test_a_trainer_names_the_reward_that_judges_answers() -> None:
    both = {"format": good, "score": "audited_reward:last_digit"}
    with pytest.raises(ConfigError, match=re.escape("one that judges answers: audit={'reward': 'format'}")):
        audit_trainer(both, ROWS, {})
    with pytest.raises(ConfigError, match="audit has no option 'rewards'; did you mean 'reward'"):
        audit_trainer(both, ROWS, {"rewards": "score"})
    assert "BELOW 99 %" in audit_trainer(both, ROWS, {"reward": "score"})[0]
    complaint, line = audit_trainer({"good": good}, iter(ROWS), {"problems": 2})
    assert not complaint and line.startswith("audit of the reward good: ") and "2 of 4" in line
    assert _importable(math_reward) == "sage_rlvr.verifiers.rewards:math_reward"


def test_a_script_that_audits_itself_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSIDE, "1")
    with pytest.raises(ConfigError, match=r'put the training behind `if __name__ == "__main__":`'):
        complaint_about(good, ROWS)
