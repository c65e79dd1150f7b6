"""lab/pages/concepts/reliability.md names tests that there are, and leaves no fault without a word."""

import re
from pathlib import Path

HERE = Path(__file__).parents[1]
PAGE = (HERE.parent / "docs" / "concepts" / "reliability.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \|(.*)\|(.*)\|(.*)\|$", PAGE, re.MULTILINE)


def test_every_named_test_exists() -> None:
    there = {
        name for path in HERE.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
    }
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 60
    assert named <= there, sorted(named - there)


def test_all_28_faults_are_there_and_one_without_a_test_says_so() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, 29))
    for number, _, happens, shown in ROWS:
        assert "test_" in shown or "not covered" in happens, number
