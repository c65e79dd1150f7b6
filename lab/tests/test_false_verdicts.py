"""False verdicts of A/A designs and false alarms of independence: the command, and the rates as slow tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab.__main__ import main
from lab.beyond_base import ANSWERS, DESIGNS, OF_ARM, Grid, false_yes, right_at
from lab.false_verdicts import (
    LAWS,
    Rate,
    alarm_table,
    false_alarms,
    false_verdicts,
    of_policies,
    published,
    simulated,
    verdict_table,
)
from lab.room.command import LAB_PAGES
from lab.stress.interval_coverage import WORLDS
from sage_rlvr.errors import DataError

UNLABELED = "the same, not labeled"


def write_counts(folder: Path):
    """The two files of `published`, 20 problems of 8 samples each."""
    for name in ("base.jsonl", "rl.jsonl"):
        lines = [json.dumps({"id": f"p{i}", "n": 8, "c": i % 9}) for i in range(20)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def rows_of_page(name: str) -> list[str]:
    """First cells of a table of coverage.md."""
    page = (LAB_PAGES / "results" / "coverage.md").read_text(encoding="utf-8")
    table = page.partition(f"<!-- {name}:begin -->\n")[2].partition(f"<!-- {name}:end -->")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]


def test_the_page_has_the_rows_that_the_command_prints(tmp_path: Path):
    write_counts(tmp_path)
    assert rows_of_page("verdicts") == [one.name for one in (*published(tmp_path), *simulated())]
    assert rows_of_page("independence") == [*LAWS, "all"]
    assert rows_of_page("colder") == [one.name for one in DESIGNS]


def test_the_command_prints_all_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_counts(tmp_path)
    left_out = ["--population", "0", "--power", "0", "--dependent", "0", "--colder", "0", "--unlocked", "0"]  # minutes each
    assert main(["false-verdicts", "--published", str(tmp_path), "--replicates", "2", "--files", "3", *left_out]) == 0
    shown = capsys.readouterr().out
    assert "published base against itself" in shown and "| all | 27 | 0 (95 % limit: 0.10502 of files)" in shown
    assert "| seven in ten gain, three lose, 200 x 64 | 14 |" in shown and "| published pair, 300 x 128 | 0 |" in shown
    (tmp_path / "rl.jsonl").write_text('{"id": "other", "n": 8, "c": 1}\n', encoding="utf-8")
    with pytest.raises(DataError, match="different problems"):
        list(published(tmp_path))


def test_the_tables_show_shares_with_intervals():
    shown = verdict_table([Rate("design", 200, 10, 6, 4, 0)]).markdown()
    assert "| design | 5.0 % (2.7 to 9.0) | 3.0 %" in shown
    assert alarm_table([false_alarms("two answers", 2, shapes=((5, 4),))]).rows[-1][:2] == ("all", "2")


def test_unlabeled_copies_mislead_and_labeled_ones_do_not():
    """The simulation can fail: thirty problems that stand in the file eight times each are not 240."""
    p, q = WORLDS[0].draw(), WORLDS[1].draw()
    unlabeled, labeled = (of_policies("copies", p, q, 30, 16, size=8, label=label) for label in (False, True))
    assert false_verdicts(unlabeled, 30).either >= 8 > 5 >= false_verdicts(labeled, 30).either


@pytest.mark.slow
@pytest.mark.parametrize("design", [one for one in simulated() if one.name != UNLABELED], ids=lambda one: one.name)
def test_verdicts_over_k_are_seldom_false(design):
    """400 comparisons: 5 % and two and a half standard errors."""
    found = false_verdicts(design, 400)
    assert found.either <= 0.05 * 400 + 2.5 * (0.05 * 0.95 * 400) ** 0.5, found


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_independent_files_raise_no_alarm(law):
    """Of 220 files with at most 1 alarm in 1,000, one or more have an alarm with probability 0.2 at most; the seed is fixed."""
    found = false_alarms(law, 220)
    assert found.alarms == 0, found


def test_a_simulated_base_cools_to_its_likeliest_answer():
    """Two answers, the right one 1 ahead at T = 1: 1 / (1 + e^-1), at T = 0.5 1 / (1 + e^-2), at T = 0 one."""
    logits = np.full((1, ANSWERS), -1e9)
    logits[0, :2] = 0.2, 0.0
    found = [right_at(logits, np.ones(1, dtype=int), t)[0] for t in (1.0, 0.5, 0.0)]
    assert found == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-2)), 1.0])


@pytest.mark.slow  # a quarter of a second a study
def test_an_arm_that_is_its_base_is_seldom_said_to_do_more():
    found = false_yes(Grid("", (1.0, 0.6, OF_ARM, 0.1, 0.0), 100, 3), 30)
    assert found.now <= 3 and found.better >= 25
