"""The register of questions: pooled exactly, answered by the seeds that were run for it, and equal to its page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.__main__ import main
from lab.register.questions import RULE, Answer, answers, pooled_seeds, register_lines
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.stats.intervals import Interval, seed_interval
from sage_rlvr.verdicts.stats.paired import PairedDifference
from sage_rlvr.verdicts.summary_io import row_tree

RESULTS = Path(__file__).parents[1] / "experiments"
PAGES = Path(__file__).parents[1] / "pages" / "results"
numbers = st.floats(-1, 1)


@given(st.lists(numbers, min_size=2, max_size=6), st.lists(numbers, min_size=2, max_size=6))
def test_pooled_is_the_interval_of_all_seeds(first: list[float], second: list[float]) -> None:
    found = pooled_seeds([seed_interval(first), seed_interval(second)])
    wanted = seed_interval([*first, *second])
    assert found.n == wanted.n and found.over == wanted.over
    for end in ("value", "low", "high"):
        assert getattr(found, end) == pytest.approx(getattr(wanted, end), abs=1e-7)


def test_pooling_the_two_sets_of_rarity_gives_what_the_six_seeds_gave_when_read_together() -> None:
    stored = json.loads((RESULTS / "2026-11-22_rarity_six_seeds" / "summary.json").read_text(encoding="utf-8"))["rows"]
    six = {(c["a"], c["b"], Metric.parse(c["metric"])): c["difference"] for c in stored}
    told = [one for one in answers(RESULTS / "register.yaml") if one.question.asked_of.results == "2026-11-21_rarity_rep"]
    assert len(told) >= 3
    for one in told:
        assert one.together is not None
        wanted = six[one.question.a, one.question.b, one.question.metric]
        assert (one.together.low, one.together.high) == pytest.approx((wanted["low"], wanted["high"]), abs=1e-9)


def test_beta_over_twelve_seeds_by_hand() -> None:
    one = next(one for one in answers(RESULTS / "register.yaml") if one.question.asked_of.results == "2026-11-22_beta_rep")
    # six seeds of 0.00631 +- 0.00172 and six of 0.00451 +- 0.00929; t(5) = 2.5706, t(11) = 2.2010
    sds = np.array([0.0017248, 0.0092906]) / 2.570582 * np.sqrt(6)
    squares = 5 * np.sum(sds**2) + 6 * 2 * (0.0063085 / 2 - 0.0045087 / 2) ** 2
    half = 2.200985 * np.sqrt(squares / 11 / 12)
    assert one.together is not None and one.outcome == "tied"
    assert one.together.value == pytest.approx(0.0054086, abs=1e-6) and one.together.width / 2 == pytest.approx(
        half, abs=1e-6
    )


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stored = (PAGES / "register.md").read_text(encoding="utf-8")
    assert main(["register"]) == 0
    assert capsys.readouterr().out == stored, "print it again: make -C lab pages"
    (tmp_path / "results").mkdir()
    assert main(["register", "--docs", str(tmp_path)]) == 0
    assert (tmp_path / "results" / "register.md").read_text(encoding="utf-8") == stored and RULE in stored


QUESTION = {
    "question": "q", "a": "A", "b": "B", "metric": "pass@1", "asked": "2026-11-22", "raised_by": {"results": "old"},
    "asked_of": {"results": "new"},
}  # fmt: skip


def write(folder: Path, value: float, low: float, high: float, *, more: str = "", b: str = "B") -> Path:
    """A register with one question, beside the two summaries that it names; both hold A against `b`."""
    gap = Interval(value=value, low=low, high=high, level=0.95, over="training seeds", n=3)
    outcome = "better" if low > 0 else "worse" if high < 0 else "tied"
    comparison = PairedDifference(difference=gap, p=0.04, outcome=outcome, over="training seeds")
    row = Row(a="A", b=b, metric=Metric(name="pass", k=1, at="temperature", temperature=1.0), comparison=comparison)
    arms = {key: {"label": key.upper(), "recipe": "", "why": "", "seeds": [0, 1, 2]} for key in "abc"}
    whole = {"format": 3, "title": "t", "notes": "", "control": "b", "seeds": [0, 1, 2], "base": None, "arms": arms, "away": {}}
    whole |= {"ks": [1], "questions": [], "rows": [row_tree(row)], "sampled": [], "baselines": [], "discarded": [], "oracle": None}
    whole |= {"chance": {}, "failed": []}
    for name in ("old", "new"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "summary.json").write_text(json.dumps(whole))
    path = folder / "register.yaml"
    path.write_text(f"questions:\n  - {json.dumps(QUESTION)}\n{more}")
    return path


def test_the_seeds_that_were_run_for_it_answer(tmp_path: Path) -> None:
    assert answers(write(tmp_path, 0.1, 0.05, 0.15))[0].outcome == "better"
    assert answers(write(tmp_path, -0.1, -0.15, -0.05))[0].outcome == "worse"
    path = write(tmp_path, 0.1, -0.05, 0.25)
    assert answers(path)[0].outcome == "tied"
    (tmp_path / "new" / "summary.json").unlink()
    (one,) = answers(path)
    assert one.outcome == "not run" and one.asked is None and one.together is None and one.raised is not None


def asking(path: Path, **changes: object) -> tuple[Answer, ...]:
    path.write_text(f"questions:\n  - {json.dumps(QUESTION | changes)}\n")
    return answers(path)


def test_a_row_says_when_it_was_asked_and_what_was_taken_back(tmp_path: Path) -> None:
    path = write(tmp_path, 0.1, -0.05, 0.25)
    said = '2026-11-24: "better", from intervals that were too narrow'
    lines = register_lines(asking(path, apart="no: fewer rivals", retracted=said, raised_by={"selected": "a worry"}))
    assert lines[0].splitlines()[::2] == [
        "| question | asked | set that raised it (selected) | seeds run for it | one of | answer | all seeds together |",
        "| q: pass@1 | 2026-11-22 | a worry | +0.1000 (−0.0500 to +0.2500, 3 seeds) new | 1 | "
        'tied<br>retracted 2026-11-24: "better", from intervals that were too narrow | no: fewer rivals |',
    ]
    assert lines[2] == RULE


@pytest.mark.parametrize("asked", ["22.11.2026", "2026-11-31", "20261122", "2026-11", ""])
def test_a_bad_date_is_refused_and_named(tmp_path: Path, asked: str) -> None:
    path = write(tmp_path, 0.1, 0.0, 0.2)
    with pytest.raises(ConfigError, match=f"asked '{asked}': give the date"):
        asking(path, asked=asked)
    with pytest.raises(ConfigError, match="begin with the date"):
        asking(path, retracted=f"{asked}: it was wrong" if asked else "it was wrong")


def test_a_question_of_no_seeds_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 0.1, 0.0, 0.2)
    with pytest.raises(ConfigError, match="asked_of of 'q': name the folder"):
        asking(path, asked_of={})
    with pytest.raises(ConfigError, match="announced other: no question is asked of it"):
        answers(write(tmp_path, 0.1, 0.0, 0.2, more="announced: {other: 2}\n"))


def test_how_many_were_set_together() -> None:
    """By the family of the summary; where none was named those of the register; exploratory rows are beside them."""
    told, sage = answers(RESULTS / "register.yaml"), "2026-11-24_sage_on_hard_countdown"

    def of(results: str) -> set[tuple[int, bool, bool]]:
        found = [one for one in told if one.question.asked_of.results == results]
        return {(one.one_of, one.exploratory, math.isfinite(one.adjusted)) for one in found}

    assert of(sage) == {(14, False, True), (14, False, False)}  # seven of them cannot be read
    assert len([one for one in told if one.question.asked_of.results == sage]) == 14
    # eight discarded candidates count; comparisons at T = 0.3 are exploratory
    assert of("2026-11-23_countdown_hard_frontier") == {(44, False, True), (44, True, False)}
    assert of("2026-11-24_countdown_easy_checks") == {(4, False, True), (4, True, False)}
    assert of("2026-11-21_rarity_rep") == {(3, False, False)}  # asked in words
    assert of("2026-11-24_rarity_centered_placebo") == {(1, False, False), (6, False, True)}
    assert of("2026-11-24_long_answers") == {(4, False, True)}


def test_how_many_were_announced_of_seeds_that_have_not_been_run(tmp_path: Path) -> None:
    path = write(tmp_path, 0.1, 0.0, 0.2, more="announced: {new: 16}\n")
    assert answers(path)[0].one_of == 1
    (tmp_path / "new" / "summary.json").unlink()
    assert answers(path)[0].one_of == 16


def test_a_row_at_the_same_raw_kl_answers_to_each_of_its_betas() -> None:
    told = [one for one in answers(RESULTS / "register.yaml") if one.question.asked_of.results == "2026-11-24_countdown_easy_k3_is"]
    assert [(one.question.b, one.asked and round(one.asked.value, 4)) for one in told] == [
        ("grpo_0.1", 0.0066), ("grpo_0.1", -0.0015),
    ]  # fmt: skip


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no comparison of A \| B \| pass@1; in that metric it has: A \| C"):
        answers(write(tmp_path, 0.1, 0.0, 0.2, b="C"))
    path = write(tmp_path, 0.1, 0.0, 0.2)
    (tmp_path / "old" / "summary.json").write_text("{")
    with pytest.raises(DataError, match=r"summary\.json: cannot be read as JSON: .* create it again with: sage-rlvr sweep"):
        answers(path)
    with pytest.raises(DataError, match="two seeds or more"):
        pooled_seeds([seed_interval([0.1]), seed_interval([0.1, 0.2])])
    with pytest.raises(DataError, match="one level"):
        pooled_seeds([seed_interval([0.1, 0.3]), seed_interval([0.1, 0.2], level=0.9)])
