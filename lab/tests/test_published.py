"""The arithmetic on the paper's tables, number by number, and the tables against the paper's text where it is at hand.

SAGE_RLVR_PAPER=/path/to/sage_2605.18864.txt compares recipes/paper/tables.json with the text of arXiv 2605.18864."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import stats

from lab.published.tables import (
    SEEDS,
    Cell,
    Table,
    compare_arms,
    comparison_lines,
    find_arms,
    load_document,
    pairs_of_guide,
    pooled_lines,
    read_tables,
    welch,
    welch_average,
)
from sage_rlvr.errors import DataError

DOCUMENT = load_document(Path(__file__).parents[1] / "published" / "tables.json")
TABLES = read_tables(DOCUMENT)
BRANCH = compare_arms(TABLES["1"], "GRPO", "GRPO + Branch")
HALF = 0.0005 + 1e-9  # half a unit of the third decimal: what rounding may have moved


@pytest.mark.parametrize(
    ("key", "difference", "se", "t", "p"),
    [
        (("AIME", "pass@1"), 0.010, 0.018, 0.55, 0.59),
        (("AIME", "pass@256"), 0.020, 0.019, 1.04, 0.33),
        (("AMC23", "pass@1"), 0.035, 0.038, 0.92, 0.38),
        (("AMC23", "pass@256"), 0.005, 0.014, 0.35, 0.74),
        (("MATH-500", "pass@1"), 0.007, 0.023, 0.30, 0.77),
        (("MATH-500", "pass@256"), 0.019, 0.010, 1.86, 0.11),
    ],
)
def test_branch_against_grpo_in_every_cell(key, difference, se, t, p):
    w = BRANCH.cells[key]
    assert (round(w.difference, 3), round(w.se, 3), round(w.t, 2), round(w.p, 2)) == (difference, se, t, p)


def test_branch_against_grpo_on_average():
    one, many = BRANCH.averages["pass@1"], BRANCH.averages["pass@256"]
    assert [round(x, 3) for x in (one.difference, one.se, one.low, one.high)] == [0.017, 0.016, -0.016, 0.051]
    assert (round(one.t, 2), round(one.p, 2)) == (1.08, 0.29)
    assert [round(x, 3) for x in (many.difference, many.se, many.low, many.high)] == [0.015, 0.009, -0.004, 0.033]
    assert (round(many.t, 2), round(many.p, 2)) == (1.69, 0.11)
    assert round(min(BRANCH.adjusted.values()), 2) == 0.66


def test_the_other_comparisons():
    def average(a: str, b: str, metric: str, table: str = "1") -> tuple[float, float]:
        w = compare_arms(TABLES[table], a, b).averages[metric]
        return round(w.difference, 3), round(w.p, 3)

    assert average("Base Model", "GRPO + Branch", "pass@1") == (0.056, 0.003)
    assert average("Base Model", "GRPO + Branch", "pass@256") == (0.021, 0.027)
    assert average("Base Model", "GRPO", "pass@1")[1] == 0.021
    assert average("GRPO + Forward KL", "GRPO + Branch", "pass@256") == (0.002, 0.789)
    others = [average("GRPO", f"GRPO + {x}", m)[1] for x in ("Random", "Token") for m in ("pass@1", "pass@256")]
    assert (round(min(others), 1), round(max(others), 2)) == (0.3, 0.96)
    r1 = [average("GRPO", "GRPO + Branch", m, "4")[1] for m in ("pass@1", "pass@64")]
    assert [round(p, 2) for p in r1] == [0.84, 0.76]


def test_minerva():
    lost = compare_arms(TABLES["9"], "Base Model", "GRPO").cells["Minerva", "pass@256"]
    won = compare_arms(TABLES["9"], "GRPO", "GRPO + Branch").cells["Minerva", "pass@256"]
    assert (round(lost.difference, 3), round(lost.t)) == (-0.095, -13)
    assert (round(won.difference, 3), round(won.p, 2)) == (0.006, 0.20)
    assert round(-won.difference / lost.difference, 2) == 0.06


def test_three_pairs_pooled_by_hand():
    """pass@256: gains of (.020 + .005 + .019) / 3, (.020 + .030 - .002) / 3 and (.026 + .010 + .012) / 3; the squares of the 18
    printed standard deviations add up to .003408 + .002199 + .002038."""
    one, many = pairs_of_guide(TABLES, BRANCH)
    assert (one.metric, many.metric, many.guide) == ("pass@1", "pass@256", "Branch")
    assert many.pairs == (
        ("1", "GRPO", "GRPO + Branch"),
        ("3", "BNPO (no KL)", "BNPO + Branch"),
        ("3", "DAPO (no KL)", "DAPO + Branch"),
    )
    assert many.confounded == many.pairs[1:]
    assert many.pooled.difference == pytest.approx((0.044 / 3 + 0.016 + 0.016) / 3)
    assert many.pooled.se == pytest.approx(np.sqrt((0.003408 + 0.002199 + 0.002038) / 5 / 81))
    assert (round(many.pooled.difference, 3), round(many.pooled.se, 3), round(many.pooled.t, 1)) == (0.016, 0.004, 3.6)
    assert many.clean == BRANCH.averages["pass@256"]
    assert many.mixed is not None and many.mixed.se == pytest.approx(np.sqrt((0.002199 + 0.002038) / 5 / 36))
    assert (round(one.pooled.difference, 3), round(one.pooled.t, 1), one.pooled.p > 0.05) == (0.016, 2.0, True)
    text = "\n".join(pooled_lines(TABLES, BRANCH))
    assert "average pass@256, 3 pairs pooled (GRPO + Branch against GRPO, BNPO + Branch against BNPO (no KL)," in text
    assert (
        "+0.016 (standard error 0.004, t 3.6, 95 % interval +0.007 to +0.024, p < 0.001), for these checkpoints, each"
        in text
    )
    assert "2 of the pairs confound the guide with the KL (BNPO (no KL) and DAPO (no KL)): +0.016" in text
    assert "What differs in Branch alone: +0.015 (standard error 0.009, t 1.7," in text
    assert "A KL alone (GRPO against GRPO w/o KL), average pass@256: +0.013 (standard error 0.008, t 1.6," in text


def test_what_is_pooled_only_where_there_are_several_pairs():
    same = [compare_arms(TABLES[n], a, b) for n, a, b in pairs_of_guide(TABLES, BRANCH)[0].pairs]
    assert all(pairs_of_guide(TABLES, found) == pairs_of_guide(TABLES, BRANCH) for found in same)
    for number, a, b in (("1", "GRPO", "GRPO + Token"), ("1", "GRPO w/o KL", "GRPO"), ("4", "GRPO", "GRPO + Branch")):
        assert pooled_lines(TABLES, compare_arms(TABLES[number], a, b)) == []


def cells_of_0_or_1() -> list[tuple[Cell, int]]:
    """AIME and AMC23 in Tables 1 and 3, the base counted once: 44 cells."""
    rows = [(n, arm) for n in ("1", "3") for arm in TABLES[n].arms if (n, arm) != ("3", "Base Model")]
    return [
        (cell, DOCUMENT["problems"][data])
        for n, arm in rows
        for (data, _), cell in TABLES[n].arms[arm].items()
        if data != "MATH-500"
    ]


def integer_fit(cell: Cell, problems: int, *, seeds: int = SEEDS, ddof: int = 1) -> bool:
    """Whether whole numbers of right answers c_1..c_s out of `problems` give the printed mean and standard deviation.

    mean = sum c_i / (s N), sd^2 = sum (c_i / N - mean)^2 / (s - ddof), both rounded to three decimals. True says that one
    outcome a problem and seed explains the cell; a cell of many samples per problem would fit by luck only.
    """
    unit = problems * seeds
    totals = range(math.ceil((cell.mean - HALF) * unit), math.floor((cell.mean + HALF) * unit) + 1)
    reach = math.ceil((cell.sd + HALF) * problems * math.sqrt(max(seeds - ddof, 1))) + 1
    for total in totals:
        center, rest = divmod(total, seeds)
        least, most = max(-reach, -center), min(reach + 1, problems - center)
        for squares in _sums_of_squares(seeds, least, most).get(rest, ()):
            sd = math.sqrt(max(squares - rest * rest / seeds, 0.0) / (seeds - ddof)) / problems
            if abs(sd - cell.sd) <= HALF:
                return True
    return False


def all_equal_p(shares: ArrayLike, trials: int) -> float:
    """p of chi square that settings with these printed shares of `trials` outcomes each are all the same (Table 6)."""
    right = np.rint(np.asarray(shares, dtype=float) * trials)
    return float(stats.chi2_contingency([right, trials - right], correction=False)[1])


def smallest_denominator(frequencies: Sequence[float], start: int = 2, stop: int = 10_000) -> int:
    """The smallest n with whole numbers c such that every c / n is printed as one of the frequencies (three decimals)."""
    for n in range(start, stop):
        if all(abs(round(f * n) / n - f) <= HALF for f in frequencies):
            return n
    raise DataError(f"no denominator below {stop} gives all of {list(frequencies)}.")


@lru_cache
def _sums_of_squares(seeds: int, least: int, most: int) -> dict[int, set[int]]:
    """sum d_i -> all sum d_i^2 of `seeds` whole deviations between least and most, for sums of 0 to seeds - 1."""
    out: dict[int, set[int]] = {}
    for deviations in combinations_with_replacement(range(least, most + 1), seeds):
        total = sum(deviations)
        if 0 <= total < seeds:
            out.setdefault(total, set()).add(sum(d * d for d in deviations))
    return out


def test_all_44_cells_are_five_outcomes_a_problem():
    cells = cells_of_0_or_1()
    fits = {s: sum(integer_fit(cell, n, seeds=s) for cell, n in cells) for s in (3, 4, 5, 6)}
    assert len(cells) == 44 and fits == {3: 2, 4: 4, 5: 44, 6: 4}
    assert sum(integer_fit(cell, n, ddof=0) for cell, n in cells) == 16


def test_whole_numbers_by_hand():
    """Five seeds on ten problems with 1 1 1 1 2 right: mean 0.12, SD sqrt(0.2) / 10 = 0.0447."""
    assert integer_fit(Cell(0.12, 0.045), 10)
    assert not integer_fit(Cell(0.12, 0.046), 10) and not integer_fit(Cell(0.121, 0.045), 10)
    assert integer_fit(Cell(0.975, 0.0), 40) and integer_fit(Cell(0.0, 0.0), 40)
    assert not integer_fit(Cell(0.02, 0.063), 10)  # would need a count below 0: the most scattered is 1 0 0 0 0
    assert not integer_fit(Cell(0.02, 0.110), 10)  # 2 -1 0 0 0
    assert integer_fit(Cell(0.02, 0.045), 10)


def test_the_grid_of_table_6_and_the_patterns_of_table_2():
    rows = np.array(DOCUMENT["tables"]["6"]["rows"])
    assert round(all_equal_p(rows[:, 2], 120), 2) == 0.95 and round(all_equal_p(rows[:, 3], 120), 2) == 0.34
    patterns = DOCUMENT["tables"]["2"]["arms"]
    smallest = [smallest_denominator(list(patterns[arm].values())) for arm in ("GRPO", "GRPO + Branch")]
    assert smallest == [260, 276]
    assert round(stats.fisher_exact([[2, 258], [9, 267]])[1], 2) == 0.06
    with pytest.raises(DataError, match="below 20"):
        smallest_denominator([0.123, 0.457], stop=20)


def test_welch_is_scipys():
    a, b = [0.1, 0.2, 0.4, 0.2, 0.3], [0.3, 0.5, 0.2, 0.4, 0.4]
    ours = welch(Cell(np.mean(a), np.std(a, ddof=1)), Cell(np.mean(b), np.std(b, ddof=1)))
    theirs = stats.ttest_ind(b, a, equal_var=False)
    ends = theirs.confidence_interval()
    assert (ours.t, ours.p, ours.df) == pytest.approx((theirs.statistic, theirs.pvalue, theirs.df))
    assert (ours.low, ours.high) == pytest.approx((ends.low, ends.high))
    certain = welch(Cell(0.5, 0.0), Cell(0.6, 0.0))
    assert certain.p == 0.0 and certain.low == certain.high == pytest.approx(0.1) and certain.t == np.inf


def test_averages_are_those_printed():
    for number in ("1", "3", "4"):
        table = TABLES[number]
        for arm, printed in table.averages.items():
            for metric, value in printed.items():
                means = [cell.mean for (_, of), cell in table.arms[arm].items() if of == metric]
                assert np.mean(means) == pytest.approx(value, abs=0.0011), (number, arm, metric)


def test_arms_are_found_by_their_last_word():
    assert find_arms(TABLES, ["GRPO", "Branch"])[1] == ["GRPO", "GRPO + Branch"]
    assert find_arms(TABLES, ["base", "forward kl"])[1] == ["Base Model", "GRPO + Forward KL"]
    table, arms = find_arms(TABLES, ["4/GRPO", "Branch"])
    assert table.number == "4" and arms == ["GRPO", "GRPO + Branch"]
    assert find_arms(TABLES, ["DAPO + Branch", "Base"])[0].number == "3"
    with pytest.raises(DataError, match="Table 3: Base Model, BNPO"):
        find_arms(TABLES, ["GRPO", "PPO"])
    with pytest.raises(DataError, match="within one table"):
        find_arms(TABLES, ["1/GRPO", "4/GRPO"])


def test_the_table_in_words():
    text = "\n".join(comparison_lines(BRANCH, DOCUMENT["problems"]))
    assert "| MATH-500 pass@256 | +0.019 | 0.010 | 1.86 | 0.11 | 0.66 | 2.5 of 134 |" in text
    assert "| **average pass@256** | **+0.015** | 0.009 | 1.69 | **0.11** | | 95 % interval −0.004 to +0.033 |" in text
    assert "no difference in any of 6 cells (smallest Holm's p = 0.66)" in text
    high = BRANCH.averages["pass@256"].detectable_high
    hidden = f"minimum detectable difference 0.026 (80 % power), up to {high:.3f} at 95 % confidence"
    assert "average pass@256: no significant difference for these checkpoints" in text and hidden in text and 0.03 < high < 0.04
    minerva = compare_arms(TABLES["9"], "Base Model", "GRPO")
    lost = "\n".join(comparison_lines(minerva, DOCUMENT["problems"]))
    assert "a difference in Minerva pass@1, Minerva pass@256 (Holm)" in lost


def test_damaged_tables_are_named(tmp_path: Path):
    (tmp_path / "tables.json").write_text("{")
    with pytest.raises(DataError, match=r"tables\.json: cannot be read as JSON"):
        load_document(tmp_path / "tables.json")
    with pytest.raises(DataError, match="two seeds"):
        welch(Cell(0.1, 0.1), Cell(0.1, 0.1), seeds=1)


TEXT = os.environ.get("SAGE_RLVR_PAPER")


@pytest.mark.skipif(not TEXT, reason="set SAGE_RLVR_PAPER to the text of arXiv 2605.18864")
def test_every_number_stands_in_the_paper():
    lines = Path(str(TEXT)).read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("| ")]
    squeezed = {re.sub(r"[^a-z0-9.+]", "", "".join(row).lower()) for row in rows}

    def printed(name: str, numbers: list[float]) -> str:
        return re.sub(r"[^a-z0-9.+]", "", name.lower()) + "".join(f"{x:.3f}" for x in numbers)

    wanted = []
    for number, table in TABLES.items():
        for arm, cells in table.arms.items():
            averages = list(table.averages.get(arm, {}).values())
            wanted.append((number, printed(arm, [x for c in cells.values() for x in (c.mean, c.sd)] + averages)))
    for arm, phases in DOCUMENT["tables"]["5"]["arms"].items():
        wanted.append(("5", printed(arm, list(phases.values()))))
    patterns = DOCUMENT["tables"]["2"]["arms"]
    for pattern in patterns["GRPO"]:
        wanted.append(("2", printed(pattern, [patterns[arm][pattern] for arm in patterns])))
    for threshold, ratio, *scores in DOCUMENT["tables"]["6"]["rows"]:
        wanted.append(("6", f"{threshold}{ratio}" + "".join(f"{x:.3f}" for x in scores)))
    assert len(wanted) == 7 + 5 + 3 + 3 + 3 + 3 + 9
    assert [row for row in wanted if row[1] not in squeezed] == []


def test_an_average_ends_by_the_rule_of_every_comparison():
    """The outcome of a Welch interval is `outcome_of`'s, at its own level, and the sentence prints that."""
    strict, usual = (welch_average([(Cell(0.5, 0.02), Cell(0.53, 0.02))] * 2, level=level) for level in (0.999, 0.95))
    assert 0.001 < usual.p < 0.05 and (usual.outcome, strict.outcome) == ("better", "tied")
    assert welch(Cell(0.5, 0.0), Cell(0.4, 0.0)).outcome == "worse" and welch(Cell(0.5, 0.0), Cell(0.5, 0.0)).outcome == "tied"
    table = Table("1", "t", "m", {"a": {("d", "pass@1"): Cell(0.5, 0.02)}, "b": {("d", "pass@1"): Cell(0.57, 0.02)}})
    assert compare_arms(table, "a", "b").seen == [("d", "pass@1")] and not compare_arms(table, "a", "a").seen
