"""Every experiment has its files, its README has the numbers of its summary, and the table of experiments lists it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.register.command import design_files
from sage_rlvr.results.read import read_results
from sage_rlvr.verdicts.comparisons import compare

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
FOLDERS = sorted(path for path in EXPERIMENTS.iterdir() if path.is_dir() and path.name != "policies")
LINES = ("# ", "**Question.** ", "**Answer.** ", "- Compared: ", "- Task: ", "- Training seeds: ", "- Status: ", "- Run again: ")
# +0.039 (+0.033 to +0.046), +0.051 (at least +0.015), -0.403 (at most -0.361)
NUMBER = re.compile(r"([+-]\d\.\d+) \((?:([+-]\d\.\d+) to ([+-]\d\.\d+)|at least ([+-]\d\.\d+)|at most ([+-]\d\.\d+))\)")


def numbers(text: str) -> list[tuple[str, str, str]]:
    """(value, low, high) of every difference in a README; "" for an end that is not printed."""
    found = NUMBER.findall(text)
    return [(value, low or least, high or most) for value, low, high, least, most in found]


def is_in(number: tuple[str, str, str], ends: set[tuple[float, float, float]]) -> bool:
    digits = len(number[0].partition(".")[2])

    def agrees(row: tuple[float, float, float]) -> bool:
        return all(not text or f"{end:+.{digits}f}" == text for text, end in zip(number, row, strict=True))

    return any(agrees(row) for row in ends)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_readme_has_every_line_and_the_numbers_of_its_summary(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    for begins in LINES:
        assert len([line for line in text.splitlines() if line.startswith(begins)]) == 1, begins
    assert str(design_files(EXPERIMENTS)[folder.name].relative_to(EXPERIMENTS.parents[1])) in text
    found = numbers(text)
    if not (folder / "summary.json").is_file():
        assert "Designed, not run" in text and not found
        return
    assert f"sage-rlvr compare lab/experiments/{folder.name}`" in text
    gaps = [row.comparison.difference for row in compare(read_results(folder))]
    ends = {(gap.value, gap.low, gap.high) for gap in gaps}
    assert not [number for number in found if not is_in(number, ends)]
    assert not is_in(("+9.999", "", ""), ends)


def test_most_readmes_have_numbers() -> None:
    texts = [(folder / "README.md").read_text(encoding="utf-8") for folder in FOLDERS]
    assert sum(len(numbers(text)) > 0 for text in texts) > 45 and sum(len(numbers(text)) for text in texts) > 130


def test_the_table_lists_every_experiment_in_order() -> None:
    text = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\(([\w.-]+)/README\.md\)", text) == [folder.name for folder in FOLDERS]
