"""Words: one function a form; families, corrections and reasons are said, and nothing twice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sage_rlvr.results.tables import base_row, cell, effects
from sage_rlvr.verdicts.comparisons import corrected
from sage_rlvr.verdicts.design import Arm, Design, Question
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import End, Row
from sage_rlvr.verdicts.stats.intervals import seed_interval
from sage_rlvr.verdicts.stats.paired import DETECTABLE, Reason, paired, paired_seeds, unknown
from sage_rlvr.verdicts.summary_io import row_tree
from sage_rlvr.verdicts.text import rows as row_texts
from sage_rlvr.verdicts.text.words import difference_text


def row(gaps: list[float], a: str = "A", b: str = "B", k: int = 256, **more: object) -> Row:
    return Row(a=a, b=b, metric=Metric(k=k), comparison=paired_seeds(gaps, [0.0] * len(gaps)), **more)  # type: ignore[arg-type]


CLEAR, WEAK, NONE = [0.1, 0.11, 0.1, 0.1], [0.02, 0.03, 0.06, 0.03], [0.01, -0.01, 0.008, -0.009]


def ask(a: str, b: str, metric: object) -> Question:
    """A question, its metric as a design writes it."""
    return Question(a=a, b=b, metric=Metric.parse(metric))


def rows(*questions: Question) -> list[Row]:
    noise = [row([0.001 * ((i * 7 + j * 3) % 5 - 2) + 0.0001 * j for j in range(4)], f"N{i}") for i in range(8)]
    made = [row(CLEAR), row(WEAK, "W"), row(NONE, "T"), *noise, row([0.1], "one")]
    arms = tuple(Arm(name=r.a, key=r.a.lower()) for r in made)
    return corrected(Results(design=Design(arms=arms, control="B", questions=questions)), made)


def test_holm_runs_once_over_the_primary_family_and_what_it_takes_back_is_said() -> None:
    first, weak, tied, *_, one = rows()
    assert {r.family for r in rows()} == {"primary"} and first.family_size == 12  # the one of a single seed too
    assert first.holds and first.outcome == "higher"
    assert (
        not weak.holds
        and weak.outcome == "higher before correction"
        and weak.adjusted > 0.05 > weak.comparison.p
    )
    assert tied.outcome == "no significant difference" and one.outcome == "cannot be told"
    assert math.isnan(one.adjusted)
    text = row_texts.sentence(weak)
    assert "W vs B, pass@256: higher before correction for these methods on these problems (difference +0.035" in text
    assert f"p = {weak.comparison.p:.3f}, Holm's p = {weak.adjusted:.3f} among 12 primary comparisons" in text


def test_a_planned_comparison_that_is_lost_makes_no_other_p_smaller() -> None:
    """A row of two usable seeds, one outside the betas, a question without a row: each counts in its family as p = 1. Two arms
    without a common pass@1 are no exploratory comparison."""
    clear, few = row(CLEAR), replace(row([0.1, 0.2], "C"), left_out=2)
    outside = replace(clear, a="D", comparison=unknown(Reason.OUTSIDE, over="training seeds"), left_out=4)
    apart = replace(outside, a="E", comparison=unknown(Reason.NO_COMMON_RANGE, over="training seeds"))
    arms = tuple(Arm(name=name, key=name.lower()) for name in "ACDEF")
    for questions, size in ((("A", "C"), 2), (("A", "C", "F"), 3), (("C",), 2)):
        design = Design(arms=arms, control="B", questions=tuple(ask(a, "B", "pass@256") for a in questions))
        first, *others = corrected(Results(design=design), [clear, few, outside, apart])
        assert first.family_size == size and first.adjusted == pytest.approx(size * first.comparison.p)
        assert all(math.isnan(one.adjusted) for one in others)
    colder = replace(row(CLEAR, b="base at any temperature", k=8), why="colder", metric=Metric(k=8, at="mixture"))
    asked = tuple(ask("A", colder.b, {"k": 8, "at": at}) for at in ("mixture", "b best"))  # one of the two ways has a row
    (found,) = corrected(Results(design=Design(arms=arms, control="B", questions=asked)), [colder])
    assert found.family_size == 1


def test_a_design_that_could_detect_only_a_large_difference_prints_cannot_be_told_with_that_difference() -> None:
    """Six problems, pass@4 falls from .333 to 0: not significant; none below .8^(1 / 6) = .963 (all six differ) could be seen."""
    found = Row(a="A", b="B", metric=Metric(k=4), comparison=paired([0.0] * 6, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]))
    c = found.comparison
    assert c.outcome == "tied" and c.difference.value == pytest.approx(-1 / 3) and DETECTABLE < c.mde <= c.mde_limit == 1
    texts = [row_texts.sentence(found), row_texts.line([found]), row_texts.answer([found]), row_texts.chip(found)]
    assert all(End.CANNOT in text and "0.963" in text for text in texts)
    assert not any("tied" in text or End.NO_DIFFERENCE in text for text in texts)
    assert "minimum detectable difference 0.963 (80 % power), up to 1.000 at 95 % confidence" in texts[0]


def test_the_detectable_difference_of_shares_is_at_most_1_in_rows_from_anywhere() -> None:
    """Three scattered seeds: the difference of pass@k is capped, that of the raw KL is not."""
    wide = [1.0, -1.0, 0.9]
    passes, kl = row(wide), replace(row(wide), metric=Metric(name="raw KL", at="end"))
    assert passes.comparison.mde > 1
    first, second = corrected(Results(design=Design(arms=(), control="B")), [passes, kl])
    assert first.comparison.mde == first.comparison.mde_limit == 1 and second.comparison.mde > 1
    assert row_tree(first)["mde"] == row_tree(first)["mde_limit"] == 1


@pytest.mark.parametrize(
    ("mde", "word"), [(0.05, "no significant difference"), (0.051, "cannot be told"), (math.inf, "cannot be told")]
)
def test_the_bound_of_no_significant_difference(mde: float, word: str) -> None:
    found = row(NONE)
    assert replace(found, comparison=replace(found.comparison, mde=mde)).outcome == word
    kl = replace(found, metric=Metric(name="raw KL", at="end"), comparison=replace(found.comparison, mde=0.01, mean_b=0.1))
    assert kl.outcome == "cannot be told"  # 5 % of 0.1 is smaller
    assert replace(kl, comparison=replace(kl.comparison, mean_b=0.2)).outcome == "no significant difference"


def test_the_questions_of_the_design_are_the_primary_family() -> None:
    first, weak, *rest = rows(ask("w", "B", "pass@256"))
    assert weak.family == "primary" and weak.family_size == 1 and weak.adjusted == weak.comparison.p and weak.holds
    assert first.family == "exploratory" and first.family_size == 10 and all(r.family == "exploratory" for r in rest)
    assert row_texts.answer([first, weak]).startswith("Against B, pass@256: higher: W (+0.035, ")


def test_a_question_between_two_arms_that_are_no_controls_is_a_pair() -> None:
    """As asked, a minus b; the control's own pairs stay, and none stands twice."""
    arms = tuple(Arm(name=name, key=name.lower()) for name in "BAC")
    asked = (ask("c", "A", "pass@1"), ask("C", "b", "pass@1"))
    pairs = Design(arms=arms, control="B", questions=asked).pairs()
    assert [(a, b) for a, b, _ in pairs] == [("A", "B"), ("C", "B"), ("C", "A")]


def test_a_row_at_the_same_raw_kl_answers_to_each_arm_that_it_is_read_between() -> None:
    arms = (Arm(name="B", key="b"), Arm(name="C", key="c"), Arm(name="A", key="a", matched=("B", "C")))
    found = Row(a="A", b="B", metric=Metric(k=1, matched="raw KL"), comparison=paired_seeds(CLEAR, [0.0] * len(CLEAR)))
    same = {"k": 1, "matched": "raw KL"}
    for b, metric, family in (("c", same, "primary"), ("b", same, "primary"), ("c", "pass@1", "exploratory")):
        design = Design(arms=arms, control="B", questions=(ask("a", b, metric),))
        (row,) = corrected(Results(design=design), [found])
        assert row.family == family, (b, metric)


def test_exploratory_rows_that_answer_are_not_called_primary() -> None:
    made = rows(ask("A", "B", "pass@1"))
    assert {row.family for row in made} == {"exploratory"} and " more exploratory comparisons: " in row_texts.answer(made)


def test_the_one_task_of_samples_is_the_main_one() -> None:
    """Every row carries its name, which a question need not."""
    design = Design(arms=(), control="B", questions=(ask("A", "B", "pass@8"),))
    (found,) = corrected(Results(design=design), [row(CLEAR, k=8, task="add")])
    assert found.family == "primary"
    both = corrected(Results(design=design), [row(CLEAR, k=8, task=task) for task in ("add", "subtract")])
    assert {one.family for one in both} == {"exploratory"}


def test_a_question_that_has_no_row_here_is_said_with_the_reason() -> None:
    questions = tuple(ask("A", b, metric) for b, metric in (("B", "pass@256"), ("C", "pass@1")))
    results = Results(design=Design(arms=(), control="B", questions=questions), k=64)
    text = row_texts.answer(corrected(results, [row(CLEAR, k=64)]), results)
    why = "A against B, pass@256 (k is 64 here); A against C, pass@1 (no such comparison exists)"
    assert text.startswith(f"Questions of the design that cannot be answered: {why}. Exploratory: Against B, pass@64: higher: A")


def test_an_answer_is_one_line_and_of_one_seed_it_says_so() -> None:
    rng = np.random.default_rng(0)
    b = rng.beta(0.5, 2, 300)
    found = Row(a="A", b="B", metric=Metric(k=1), comparison=paired(b + rng.normal(0, 0.05, 300), b), family="primary")
    text = row_texts.answer([found])
    assert "\n" not in text and "Against B, pass@1: no significant difference: A (" in text
    assert "detectable 0.0" in text and "about these checkpoints" in text
    alone = replace(found, comparison=paired_seeds([0.1], [0.0]))
    assert (
        row_texts.answer([alone])
        == "No claim about methods. Against B, pass@1: cannot be told (one training seed): A (+0.100)."
    )
    assert row_texts.answer([]).startswith("Nothing is compared")


def test_of_one_run_each_the_answer_starts_with_that_and_calls_nothing_better_or_worse() -> None:
    """Intervals over problems say nothing of another seed: the answer and the lines say higher and lower, whoever prints them."""
    b, noise = np.linspace(0.1, 0.8, 60), np.tile([0.01, -0.01, 0.02, 0.0], 15)
    made = [
        Row(a=a, b="B", metric=Metric(k=k), comparison=paired(b + gap + noise, b), family="primary", adjusted=adjusted)
        for a, k, gap, adjusted in (("A", 256, -0.1, 0.001), ("A", 1, 0.1, 0.2), ("C", 1, 0.0, 1.0))
    ]
    assert [row.outcome for row in made[:2]] == ["lower", "higher before correction"]
    for row in made:
        assert not {"better", "worse"} & set(f"{row_texts.sentence(row)} {row_texts.chip(row)}".replace(":", " ").split())
    for text in (row_texts.answer(made), row_texts.answer(made[:1]), row_texts.answer(made[1:2])):
        assert text.startswith("One run of each: about these checkpoints, not about methods. ")
        assert "better" not in text and "worse" not in text and "\n" not in text
    assert "Against B, pass@256: lower: A (−0.095, " in row_texts.answer(made[:1])
    assert "Against B, pass@1: higher before correction: A (+0.105, " in row_texts.lines(made)[1]
    several = replace(made[0], comparison=paired_seeds(CLEAR, [0.0] * 4))
    assert row_texts.answer([several]).startswith("Against B, pass@256: higher: A")


def test_the_answer_names_what_differs_before_what_is_tied_and_counts_the_rest() -> None:
    few = [row(CLEAR, "A", k=8), row(NONE, "A"), row([-gap for gap in CLEAR], "C", k=1), row(NONE, "C"), row(NONE, "D")]
    made = corrected(Results(design=Design(arms=(Arm(name="A", key="a"),), control="B")), few)
    text = row_texts.answer(made)
    ends = ("pass@8: higher: A (+0.103, ", "pass@1: lower: C (−0.103, ", "pass@256: no significant difference: A (")
    order = [text.index(f"Against B, {said}") for said in ends]
    assert order == sorted(order) and "\n" not in text
    assert text.endswith(" 1 more primary comparison: 1 no significant difference.") and "detectable 0.0" in text


def test_a_p_below_a_half_tenth_beside_an_interval_that_holds_0_is_explained() -> None:
    """Sign flips and joined limits are two procedures: near the edge they disagree, and the sentence says which decides."""
    found = row(NONE)
    odd = replace(found, comparison=replace(found.comparison, p=0.011))
    assert "not significant: the interval, the wider of the two procedures, includes 0 and decides" in row_texts.sentence(odd)
    assert "procedures" not in row_texts.sentence(found)
    short = difference_text(odd.comparison)
    assert short.endswith(", p = 0.011; not significant: the interval, the wider of the two procedures, includes 0 and decides)")
    assert "procedures" not in difference_text(found.comparison)


def test_what_holds_of_many_rows_is_said_once() -> None:
    two = [row([0.1, 0.2], name) for name in "ACD"]
    (line,) = row_texts.lines(two)
    assert line == "Against B, pass@256: cannot be told (two training seeds): A (+0.150), C (+0.150), D (+0.150)."
    assert row_texts.cautions(two) == [row_texts.CLAIM] and row_texts.cautions(rows()[:3]) == []
    near = [replace(r, comparison=unknown(Reason.NOT_NEAR), metric=Metric(k=256, at="near")) for r in two]
    (line,) = row_texts.sentences(near)
    why = "cannot be told (no temperature gives one arm the pass@1 of the other at T = 1)"
    assert line == f"Against B, pass@256 at equal pass@1 near T = 1: {why}: A, C, D."
    hull = replace(row(CLEAR), metric=Metric(k=8, at="hull"))
    c = hull.comparison
    ends = replace(hull, comparison=replace(c, difference=replace(c.difference, high=c.mean_a)))
    assert row_texts.cautions([hull]) == [] and row_texts.cautions([ends, ends]) == [row_texts.OPEN_ENDED]


def test_identical_unknown_and_left_out_are_said() -> None:
    same = row([0.0, 0.0, 0.0])
    assert (
        row_texts.sentence(same)
        == "A vs B, pass@256: identical for these methods on these problems (difference 0.000, over 3 training seeds, p = 1.000)."
        and same.outcome == "identical"
    )
    far = replace(same, comparison=unknown(Reason.NOT_NEAR), metric=Metric(k=256, at="near"), left_out=2)
    assert "near T = 1: cannot be told (no temperature gives one arm" in row_texts.sentence(far)
    assert row_texts.sentence(far).endswith("(left out: 2 training seeds without a value).")
    kl = replace(row(CLEAR), metric=Metric(name="raw KL", at="end"), adjusted=0.01)
    less = replace(kl, comparison=paired_seeds([-gap for gap in CLEAR], [0.0] * 4), adjusted=0.2)
    assert kl.outcome == "higher" and less.outcome == "lower before correction"


def test_groups_and_the_table_hold_every_row() -> None:
    found = rows()
    lines = [row_texts.line(group) for group in row_texts.groups(found)]
    assert len(lines) == 1 and lines[0].startswith("Against B, pass@256: higher: A (+0.103, ")
    assert "); higher before correction: W (+0.035, " in lines[0]
    table = effects(found, ["T", "A"])
    assert [cells[0] for cells in table.rows][:3] == ["T", "A", "W"] and table.header == ("arm", "vs B\npass@256")
    assert "| A | higher<br>+0.103<br>" in table.markdown()


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (Metric(k=1, temperature=0.3), "pass@1 at T = 0.3"),
        (Metric(k=1, at="best"), "pass@1, each at its best temperature"),
        (Metric(name="distinct", k=256, at="near"), "distinct in 256 at equal pass@1 near T = 1"),
        (Metric(k=256, matched="raw KL"), "pass@256 at the same raw KL"),
    ],
)
def test_a_metric_is_written_once(metric: Metric, text: str) -> None:
    assert str(metric) == text


def test_a_cell_over_two_seeds_has_no_interval_and_a_trained_control_has_one() -> None:
    """Student's interval of two seeds holds what no raw KL can be; a run that stands for the base keeps its interval and raw KL."""
    assert cell(seed_interval([0.05, 0.07])) == "0.060" and "–" in cell(seed_interval([0.05, 0.06, 0.07]))
    base = {"pass": {"1": 0.1}, "distinct": 1.0, "frontier": [{}], "best": {"pass1": 0.1}, "label": "grpo"}
    assert "kl_raw" not in base_row(base)
    over_problems = base_row(base, {"grpo": {"pass": {"1": {"value": 0.1, "low": 0.09, "high": 0.11}}}})
    assert cell(over_problems["pass"]["1"]) == "0.100\n0.090–0.110"
    trained = base_row(base | {"trained": {"pass": {"1": {"value": 0.1, "low": 0.08, "high": 0.12}}, "kl_raw": {"value": 0.06}}})
    assert cell(trained["pass"]["1"]) == "0.100\n0.080–0.120" and trained["kl_raw"] == {"value": 0.06}
