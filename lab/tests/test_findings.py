# ruff: noqa: E501  (tables of addresses)
"""The results of the small transformer agree with the stored summaries: every effect, its correction, its seeds, its mean q, every level, the chance floor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lab.floor import DRAWS, WORLDS, evaluated, floor
from lab.hull import crossfitted
from lab.room.smollm2 import ROOMS, smollm2_arms
from lab.studies.pages import filled
from lab.study import details_of, rooms_of, tables_of
from sage_rlvr.results.read import read_results
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.metric import Metric

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "lab" / "pages" / "results" / "small_transformer.md"
FINDINGS = ROOT / "docs" / "findings.md"
DETAILS = ROOT / "lab" / "pages" / "results" / "smollm2.md"
EXPERIMENTS = ROOT / "lab" / "experiments"
TEMPERED = "base tempered over whole completions"
RFT = "RFT, distinct answers of the base"
MAXRL = "MaxRL, k3 in the loss, beta 0.025"
PASS1, PASS256, BEST = Metric(k=1), Metric(k=256), Metric(k=1, at="best")
HULL8, HULL256 = Metric(k=8, at="hull"), Metric(k=256, at="hull")
SAMES = (Metric(k=1, matched="raw KL"), Metric(k=256, matched="raw KL"))
BOTH, HULLS = (PASS1, PASS256), (HULL8, HULL256)
EFFECTS = [  # how the line begins, folder of lab/experiments, a, b, metrics in the order of the line, the arm whose mean q stands there
    ("No KL against GRPO:", "2026-11-21_table1", "no KL", "GRPO", BOTH, None),
    ("Paper's settings, easy", "2026-11-21_table1", "SAGE-Branch", "GRPO", BOTH, "sage_branch"),
    ("Ratio 4, hard", "2026-11-24_sage_on_hard_countdown", "Branch, ratio 4", "GRPO, beta 0.0125", BOTH, "branch_4"),
    ("The same against its placebo", "2026-11-24_sage_on_hard_countdown", "Branch, ratio 4", "placebo of Branch, ratio 4", (PASS256,), None),
    ("Answers of 55 tokens", "2026-11-24_long_answers", "GRPO + strong Branch", "GRPO, beta 0.0125", BOTH, "branch_strong"),
    ("Word problems", "2026-11-25_word_problems", "GRPO + strong Branch", "GRPO, beta 0.0125", BOTH, "branch_strong"),
    ("Best of nine settings", "2026-11-25_branch_grid", "r0.3_t2", "GRPO, beta 0.0125", BOTH, "r0.3_t2"),
    ("KL in the reward", "2026-11-25_kl_in_reward", "RLOO+Branch", "RLOO", BOTH, "rloo_branch"),
    ("RLOO with Rarity", "2026-11-24_rarity_centered_placebo", "RLOO+Rarity", "RLOO+Rarity-placebo", (PASS256, PASS1), "rloo_rarity"),
    ("k3_is, beta 0.025, against k3 at equal", "2026-11-23_countdown_hard_k3_is", "k3_is, beta 0.025", "k3, beta 0.0125", SAMES, None),
    ("k3_is, beta 0.0125, against k3, beta 0.025", "2026-11-23_countdown_hard_k3_is", "k3_is, beta 0.0125", "k3, beta 0.025", (PASS256, PASS1), None),
    ("k3_is, beta 0.1, against k3 at equal", "2026-11-24_countdown_easy_k3_is", "k3_is, beta 0.1", "k3, beta 0.05", SAMES, None),
    ("Best pass@1 of GRPO", "2026-11-22_temp03", "GRPO", TEMPERED, (BEST,), None),
    ("The same in 2,000 steps", "2026-11-24_countdown_easy_2000_steps", "GRPO, beta 0.1", TEMPERED, (BEST,), None),
    ("GRPO, beta 0.025, 250 steps", "2026-11-23_countdown_hard_frontier_250", "GRPO, beta 0.025", "base", (PASS256,), None),
    ("No KL against GRPO on the 500", "2026-11-25_few_problems_on_train", "no KL", "GRPO", BOTH, None),
    ("Against GRPO and RLOO, easy", "2026-11-24_countdown_easy_2000_steps", RFT, "GRPO and RLOO over their betas", HULLS, None),
    ("Against GRPO, hard: pass@256", "2026-11-25_countdown_hard_rft", RFT, "GRPO over its betas", (HULL256,), None),
    ("Another architecture", "2026-11-25_architectures_selected", RFT, "GRPO at two betas", HULLS, None),
    ("Against GRPO, hard: pass@8", "2026-11-23_countdown_hard_frontier_rep", MAXRL, "GRPO over its betas", HULLS, None),
    ("Repetition against", "2026-11-24_sage_on_hard_countdown", "MaxRL, k3", "GRPO over its betas", HULLS, None),
    ("Targets 21 to 99", "2026-11-25_sparse99_maxrl", MAXRL, "GRPO at two betas", HULLS, None),
    ("Distinct@k against RLOO", "2026-11-25_distinct_placebo", "Distinct@k", "RLOO at two betas", (HULL256,), None),
    ("DARS against", "2026-11-25_dars_rep", "DARS", "dars_uniform", (PASS256, PASS1), None),
    ("Effective rank (VERL)", "2026-11-24_erank_rep", "VERL", "GRPO, no KL", BOTH, None),
]
SEEDS = {3: "Three", 6: "Six", 8: "Eight"}


def page_lines() -> list[str]:
    """The lines of the page that state an effect, without their bullet."""
    return [line[2:] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("- ") and "`" in line]


def written(value: float, low: float, high: float, metric: Metric) -> str:
    """An effect as the page writes it: three decimals, four where three show nothing; a hull bounds one end only."""

    def number(x: float) -> str:
        return f"{x:+.{3 if abs(x) >= 0.0005 else 4}f}"

    if metric.at == "hull":
        return f"{number(value)} (at most {high:+.3f})" if high < 0 else f"{number(value)} (at least {low:+.3f})"
    return f"{number(value)} ({number(low)} to {number(high)})"


def stored(folder: str) -> dict[str, Any]:
    return read_results(str(EXPERIMENTS / folder)).stored or {}


@pytest.mark.parametrize(("start", "folder", "a", "b", "metrics", "guided"), EFFECTS)
def test_every_effect_is_in_its_summary(start: str, folder: str, a: str, b: str, metrics: tuple[Metric, ...], guided: str | None) -> None:
    (line,) = (one for one in page_lines() if one.startswith(start))
    assert line.endswith(f"`{folder}`")
    rows = [r for r in compare(read_results(str(EXPERIMENTS / folder))) if r.task in ("", "countdown_steps", "word_problems") and (r.a, r.b) == (a, b)]
    (whole_line,) = re.findall(r"(\w+) seeds(?:, (adjusted|unadjusted))?\. `", line)
    for metric in metrics:
        (row,) = (r for r in rows if r.metric == metric)
        found = row.comparison.difference
        level = "" if row.comparison.outcome == "tied" else "adjusted" if row.holds else "unadjusted"
        effect = written(found.value, found.low, found.high, metric)
        assert effect in line, (metric, effect)
        after = re.match(r"(?:, (adjusted|unadjusted))?", line.split(effect, 1)[1])
        assert (whole_line[1] or (after and after.group(1)) or "") == level, (metric, level)
        assert whole_line[0] == SEEDS[found.n], metric
    if guided is None:
        assert "mean q" not in line
    else:
        dose = stored(folder)["arms"][guided]["dose"]
        assert f"mean q {dose['q_first']:.3f} to {dose['q_last']:.3f}" in line


def test_every_line_with_an_experiment_has_its_effects_here() -> None:
    lines = page_lines()
    starts = [start for start, *_ in EFFECTS]
    assert len(lines) == len(EFFECTS) and all(sum(line.startswith(start) for start in starts) == 1 for line in lines)
    assert all("mean q" in line for line in lines if "Branch" in line and "placebo" not in line)


def test_the_base_below_chance_and_what_the_prose_states_of_single_experiments() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    easy, betas = stored("2026-11-24_countdown_easy_k3_is")["arms"], stored("2026-11-23_countdown_hard_frontier_rep")["arms"]
    assert f"at 0.1 the raw KL there is {easy['is_0.1']['kl_raw']['value']:.3f} with k3_is and {easy['grpo_0.1']['kl_raw']['value']:.3f} with k3" in page
    base = stored("2026-11-23_countdown_hard_frontier_250")["base"]["pass"]["256"]
    assert f"The base has {base:.3f}, a guesser {floor(WORLDS['hard'], [256])[0]:.3f}." in page
    rows = compare(read_results(str(EXPERIMENTS / "2026-11-23_countdown_hard_frontier_rep")))
    (row,) = (r for r in rows if (r.a, r.b, r.metric) == (MAXRL, "GRPO over its betas", HULL8))
    assert f"an unadjusted p of {row.comparison.p:.4f}" in page and row.comparison.p * 4 <= 0.05 < row.comparison.p * 5
    assert sorted(betas) == ["grpo_0", "grpo_0.0125", "grpo_0.025", "maxrl_k3_0.025"]
    dose = stored("2026-11-21_table1")["arms"]["sage_branch"]["dose"]
    assert f"a mean q of {dose['q_last']:.3f} to {dose['q_first']:.3f}" in page
    easy_chance = floor(WORLDS["easy"], [256])[0]
    assert all(arm["pass"]["256"]["value"] < easy_chance for name, arm in stored("2026-11-25_dars_rep")["arms"].items() if "dars" in name)


LEVELS = {  # row of the page: (folder, arm) of its cells, None where there is none
    "base": (("2026-11-21_table1", "base"), None, ("2026-11-24_sage_on_hard_countdown", "base")),
    "GRPO, beta 0.05; 0.1; 0.0125": (("2026-11-21_table1", "grpo"), ("2026-11-24_countdown_easy_2000_steps", "grpo_0.1"), ("2026-11-24_sage_on_hard_countdown", "grpo")),
    "GRPO without KL": (("2026-11-21_table1", "no_kl"), ("2026-11-25_countdown_easy_betas", "grpo_0"), ("2026-11-25_countdown_hard_rft", "grpo_0")),
    "SAGE-Branch; hard: ratio 4": (("2026-11-21_table1", "sage_branch"), None, ("2026-11-24_sage_on_hard_countdown", "branch_4")),
    "RFT": (None, ("2026-11-24_countdown_easy_2000_steps", "rft"), ("2026-11-25_countdown_hard_rft", "rft")),
    "MaxRL, k3": (None, ("2026-11-25_countdown_easy_betas", "maxrl_k3_0.1"), ("2026-11-24_sage_on_hard_countdown", "maxrl")),
    "SFT oracle (all correct answers)": (None, ("2026-11-24_countdown_easy_2000_steps", "truth"), ("2026-11-23_countdown_hard_frontier", "truth")),
}
KS = ("1", "8", "256")
COLUMNS = (("easy", 250), ("easy", 2000), ("hard", 500))  # level and steps


def levels_table() -> dict[str, list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index("| method | easy, 250 steps | easy, 2,000 steps | hard, 500 steps |") + 2
    rows = [line.split("|") for line in lines[start : start + 1 + len(LEVELS)]]
    return {cells[1].strip(): [cell.strip() for cell in cells[2:5]] for cells in rows}


def test_the_levels_are_those_of_their_summaries_and_stars_mark_what_is_below_chance() -> None:
    table = levels_table()
    assert table.keys() == {"chance", *LEVELS}
    for column, (level, steps) in enumerate(COLUMNS):
        chance = floor(WORLDS[level], [int(k) for k in KS])
        assert table["chance"][column] == ", ".join(f"{value:.3f}" for value in chance)
        for name, places in LEVELS.items():
            cell, place = table[name][column], places[column]
            if place is None:
                assert cell == "", name
                continue
            folder, arm = place
            summary = stored(folder)
            assert str(WORLDS[level].max_target) in summary["world"] and (arm == "base" or summary["steps"] == steps)
            one = summary["base"] if arm == "base" else summary["arms"][arm]
            found = [one["pass"][k] if arm == "base" else one["pass"][k]["value"] for k in KS]
            star = "*" if found[-1] < chance[-1] else ""
            source = "" if arm == "base" else f" (`{folder}`)"
            assert cell == ", ".join(f"{value:.3f}" for value in found) + star + source, (name, folder)


def test_all_levels_stand_on_the_same_draw_of_test_problems() -> None:
    page = PAGE.read_text(encoding="utf-8")
    easy, hard = (len(set(evaluated(world))) for world in WORLDS.values())
    assert f"**one fixed draw of {DRAWS} test problems**" in page
    assert f"({easy} different ones at the easy level, {hard} at the hard" in page
    for folder in {place[0] for places in LEVELS.values() for place in places if place}:
        asked = stored(folder)["evaluate"]
        assert (asked["problems"], asked["split"], asked["sampling"]) == (DRAWS, "test", "iid"), folder


def test_other_pages_repeat_these_numbers() -> None:
    """The levels of base and chance on the page of tasks, mean q on that of guides, the floor on that of statistics."""
    concepts = ROOT / "docs" / "concepts"
    tasks, guides, statistics = ((concepts / f"{name}.md").read_text(encoding="utf-8") for name in ("tasks", "guides", "statistics"))
    table = levels_table()
    for level, column in (("easy", 0), ("hard", 2)):
        assert f"| {table['base'][column].rstrip('*')} | {table['chance'][column]} |" in tasks, level
    told = f"has pass@256 of {table['chance'][0][-5:]} on easy and {table['chance'][2][-5:]} on hard Countdown"
    assert told in " ".join(statistics.split())
    kl_term = " ".join((concepts / "kl_term.md").read_text(encoding="utf-8").split())
    anchor = (ROOT / "lab" / "pages" / "concepts" / "anchor.md").read_text(encoding="utf-8")
    rests = [re.search(rf"^\| none \| {where} .*?\| ([01]\.\d+) \|", anchor, re.M) for where in ("k3 in", "k3_is,", r"k1 in the reward \| LeaveOneOut")]
    k3, k3_is, k1 = (found[1] for found in rests if found)
    assert f"P(right) is {k3} with k3 and {k3_is} with k3_is; with RLOO and k1 in the reward it is {k1}" in kl_term
    dose = stored("2026-11-21_table1")["arms"]["sage_branch"]["dose"]
    assert f"is {dose['q_first']:.3f} at the start and {dose['q_last']:.3f} at the end" in guides


EFFECT = re.compile(r"(?:pass@\d+ )?[+-]\d\.\d+ \((?:[+-]\d\.\d+ to [+-]\d\.\d+|at (?:least|most) [+-]\d\.\d+)")
"""With its metric where one stands before it, so that two of them are not exchanged."""


def test_the_findings_of_the_docs_repeat_these_effects_and_those_of_the_study() -> None:
    """Every effect of the page is one of the small transformer, or of the study's counts; its tables are those that the command prints."""
    text = FINDINGS.read_text(encoding="utf-8")
    study, small = (" ".join(part.split()) for part in text.split("## A small transformer"))
    detail = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert len(EFFECT.findall(small)) > 7
    changes = [f"{arm.change:+.3f} ({arm.low:+.3f} to {arm.high:+.3f}" for arm in smollm2_arms(11)]
    assert [effect for effect in EFFECT.findall(small) if effect not in detail and effect not in changes] == []
    rooms = rooms_of()
    tables, details = tables_of(rooms), details_of(rooms)
    pages = ((text, tables), (DETAILS.read_text(encoding="utf-8"), details))
    assert [name for page, own in pages for name, table in own.items() if filled(page, {name: table}) != page] == []
    assert all(f"arms {name}" in details for name in ROOMS)
    prose = re.sub(r"<!-- (.*?):begin.*?<!-- \1:end -->", "", study)
    known = " ".join([*tables.values(), *details.values()])
    assert [effect for effect in EFFECT.findall(prose) if effect not in known] == []
    assert len(re.findall(r"\S*\w\S*", text)) <= 1_200


def test_the_chance_floor_by_hand() -> None:
    """Numbers 3 5 7 11, target 24: six right expressions of 5,856."""
    from sage_rlvr.tasks.countdown.expressions import expressions_over
    from sage_rlvr.tasks.countdown.problem import Problem, solutions

    assert (len(solutions(Problem((3, 5, 7, 11), 24))), expressions_over((3, 5, 7, 11))) == (6, 5856)
    one, eight = floor(WORLDS["easy"], [1, 8])
    assert one < eight < 8 * one


def test_runs_trained_again_come_out_as_the_page_says() -> None:
    """The seeds that two experiments both trained, with the bounds of lab/pages/results/runs.md."""
    before, after = (stored(name)["arms"] for name in ("2026-11-24_countdown_easy_2000_steps", "2026-11-25_countdown_easy_betas"))
    page = (ROOT / "lab" / "pages" / "results" / "runs.md").read_text(encoding="utf-8")
    assert "RFT within 0.001 of pass@1 and of pass@8, GRPO and RLOO within 0.013 and 0.007" in page
    both = sorted({*before} & {*after})
    assert both == ["grpo_0.05", "grpo_0.1", "grpo_0.2", "rft", "rloo_0.1"]
    for arm in both:
        for k, bound in {"1": 0.013, "8": 0.007}.items():
            moved = [abs(new[k] - before[arm]["pass_by_seed"][s][k]) for s, new in after[arm]["pass_by_seed"].items()]
            assert len(moved) == 3 and 0 < max(moved) < (0.001 if arm == "rft" else bound)


def test_upper_ends_on_the_hull_are_cross_fitted_and_the_gain_of_rft_is_an_upper_bound() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    ends = {}
    for folder, arm in (("2026-11-25_countdown_hard_rft", RFT), ("2026-11-25_distinct_placebo", "Distinct@k")):
        summary = stored(folder)
        found = [crossfitted(summary, row) for row in summary["room"] if (row["arm"], Metric.parse(row["metric"]).bare) == (arm, "pass@256")]
        (ends[arm],) = (one.difference.high for one in found if one is not None and one.outcome == "worse")
    assert f"RFT's on hard Countdown is {ends[RFT]:.3f} and that of Distinct@k in 10 is {ends['Distinct@k']:.3f}" in page
    summary = stored("2026-11-24_countdown_easy_2000_steps")
    (lead,) = (row["own"] - row["best"] for row in summary["room"] if (row["arm"], Metric.parse(row["metric"]).bare) == (RFT, "pass@256"))
    assert f"{lead:+.3f} of pass@256 is the most that can be left" in page
