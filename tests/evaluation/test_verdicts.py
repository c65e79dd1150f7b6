"""Verdicts from counts on several data sets: levels, Holm over the data sets, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.verdicts import (
    Scored,
    arms_of,
    compare_counts,
    exact_leash_lines,
    frontier_lines,
    leash_lines,
    leash_over_seeds,
)
from sage_rlvr.stats.comparison import adjust, over_data_sets, paired_counts
from sage_rlvr.stats.intervals import passk_interval
from sage_rlvr.stats.leash import LeashCounts

RNG = np.random.default_rng(0)
P = {"AIME": RNG.beta(0.3, 2, 60), "AMC23": RNG.beta(0.6, 0.8, 40)}


def scored(task: str, seeds: int = 1, lift: float = 0.0, n: int = 32) -> Scored:
    p = np.clip(P[task] + lift, 0, 1)
    return Scored(tuple(f"{task}-{i}" for i in range(len(p))), n, RNG.binomial(n, p, (seeds, len(p))))


def arms(**changes):
    return {name: {task: scored(task, **settings) for task in P} for name, settings in changes.items()}


def test_checkpoints_on_two_data_sets():
    given = arms(GRPO={}, Branch={"lift": 0.2})
    lines = compare_counts(given, 8)
    text = "\n".join(lines)
    c = paired_counts(32, given["Branch"]["AIME"].right[0], given["GRPO"]["AIME"].right[0], 1)
    assert f"Branch vs GRPO, AIME pass@1: better for these checkpoints (+{c.difference.value:.3f}" in text
    assert c.difference.over == "problems and their samples"
    assert "over 60 problems and their samples" in text and "Holm's p" in text
    assert "AIME: Branch vs GRPO over k, for these checkpoints: better at k = 1" in text
    assert "P(Branch > GRPO), AIME, a problem's pass@1, for these checkpoints: " in text
    assert f"GRPO, AIME: pass@1 {passk_interval(32, given['GRPO']['AIME'].right[0], 1)}" in text


def test_methods_over_training_seeds():
    given = arms(GRPO={"seeds": 3}, Branch={"seeds": 3, "lift": 0.2})
    text = "\n".join(compare_counts(given, 8))
    assert "Branch vs GRPO, AMC23 pass@8: " in text and "for these methods" in text
    assert "over 3 training seeds on these 40 problems" in text
    assert "AIME: Branch vs GRPO over k, for these methods: better at k = 1 to 8" in text
    assert (
        "these 60 problems held fixed: preserved " in text and "Student's 95 % intervals over 3 training seeds" in text
    )
    base = {"base": {t: scored(t) for t in P}}
    one = "\n".join(compare_counts(base | given, 8))
    assert "over 3 training seeds and the control's samples on these 60 problems" in one
    assert "over 3 training seeds and base's samples." in one and "base's samples, drawn once, are held fixed." in one
    with pytest.raises(DataError, match="numbers of training seeds"):  # a claim about a method that was trained once
        compare_counts({"GRPO": given["GRPO"], "base": base["base"]}, 8)


def test_holm_runs_over_the_data_sets():
    found = {t: paired_counts(32, scored(t, lift=0.1).right[0], scored(t).right[0], 1) for t in P}
    adjusted = over_data_sets(found)
    assert {c.family for c in adjusted.values()} == {2}
    assert max(c.adjusted for c in adjusted.values()) == pytest.approx(max(c.p for c in found.values()), abs=0.05)


def test_several_stores_of_one_task_are_seeds():
    one, two = scored("AIME"), scored("AIME")
    assert arms_of({"GRPO": [("AIME", one), ("AIME", two)]})["GRPO"]["AIME"].right.shape == (2, 60)
    with pytest.raises(DataError, match="differ in problems or n"):
        arms_of({"GRPO": [("AIME", one), ("AIME", scored("AIME", n=16))]})


def test_refusals():
    given = arms(GRPO={}, Branch={})
    for change, words in [
        ({"Branch": {"AIME": given["Branch"]["AIME"]}}, "different data sets"),
        ({"Branch": {t: scored(t, n=16) for t in P}}, "compare the first 16 samples of each"),
        (
            {"Branch": {t: Scored(given["Branch"][t].problems[::-1], 32, given["Branch"][t].right) for t in P}},
            "problems of",
        ),
        ({"GRPO": {t: scored(t, 2) for t in P}, "Branch": {t: scored(t, 3) for t in P}}, "numbers of training seeds"),
    ]:
        with pytest.raises(DataError, match=words):
            compare_counts(given | change, 8)
    with pytest.raises(DataError, match="at least two arms"):
        compare_counts({"GRPO": given["GRPO"]}, 8)
    with pytest.raises(DataError, match="pass@64 needs 64 samples, there are 32"):
        compare_counts(given, 64)


@pytest.mark.slow
def test_holm_is_over_all_arms_data_sets_and_ks():
    given = arms(GRPO={}, Branch={"lift": 0.2}, Token={"lift": 0.1})
    lines = compare_counts(given, 8)
    assert lines[-1].startswith(
        "Holm's p is over the 8 comparisons of mean scores above (2 arms x 2 data sets x pass@1 and "
    )
    raw = [
        paired_counts(32, given[arm][t].right[0], given["GRPO"][t].right[0], k)
        for arm in ("Branch", "Token") for k in (1, 8) for t in P
    ]  # fmt: skip
    for arm, c in zip(("Branch", "Token"), (raw[0], raw[4]), strict=True):
        told = next(line for line in lines if line.startswith(f"{arm} vs GRPO, AIME pass@1: "))
        assert f"Holm's p {'< 0.001' if 8 * c.p < 0.001 else '= '}" in told or "tied" in told
    family = [c.adjusted for c in adjust(raw)]
    assert min(family) == pytest.approx(min(1.0, 8 * min(c.p for c in raw)))


def test_problems_beyond_luck_in_words():
    """Pooled counts 20, 5, 6 and 40 of 64 samples each: alone 20 of 64 and 6 of 64 (0.027) are beyond luck, 5 (0.055) is not."""
    base = Scored(("a", "b", "c", "d"), 64, np.array([[0, 0, 6, 20]]))
    arm = Scored(("a", "b", "c", "d"), 64, np.array([[20, 5, 0, 20]]))
    text = leash_lines(arm, base, 64, "GRPO", "base", "T")[-1]
    assert text == (
        "T: problems that only one of the two solves, beyond luck (two-sided, at most 5 % chance of even one by luck, all 64 "
        "samples): 1 new (a), 1 lost (c)."
    )


def test_the_exact_leash_in_words():
    base = [np.log([0.5, 0.3, 0.001])] * 6
    arm = [np.log([0.6, 0.001, 0.2])] * 6
    lines = exact_leash_lines("GRPO", [arm], "no KL", [base], 4)
    assert lines[0].startswith(
        "GRPO against no KL, exact, right completions with probability above 1/256 (Definition 4.1): preserved 6, expanded 6, "
        "shrunk 6, out of support 0; SRR 0.500 ["
    )
    assert "problems with one of them at least, of 6: preserved 6, expanded 0, shrunk 0, out of support 0; " in lines[1]
    assert (
        lines[2].endswith("95 % intervals over 6 problems.")
        and "expected to be solved in 4 samples: preserved 5." in lines[2]
    )
    seeds = exact_leash_lines("GRPO", [arm] * 3, "no KL", [base], 4)
    assert "held fixed: preserved 6.0 (in each), expanded" in seeds[0] and "over 3 training seeds" in seeds[0]
    assert exact_leash_lines("GRPO", [arm] * 2, "no KL", [base], 4) == []


def test_the_leash_over_seeds_by_hand():
    rows = [LeashCounts(10, e, 2, 0) for e in (1.0, 2.0, 3.0)]
    (line,) = leash_over_seeds(rows, "x")
    half = 4.302652729911275 / np.sqrt(3)
    assert f"expanded 2.0 [0.0, {2 + half:.1f}]" in line and "SRR 0.833 (in each)" in line


def test_frontiers_of_stores_in_words():
    hot = {t: scored(t) for t in P}
    warm = {t: Scored(hot[t].problems, 32, np.minimum(hot[t].right + 3, 32)) for t in P}
    mine = {t: {1.0: hot[t], 0.7: warm[t]} for t in P}
    lines = frontier_lines({"GRPO": mine, "Branch": mine}, 8)
    assert lines[0].startswith("GRPO, AIME, pass@1 and pass@8 by temperature: T 0.7: ")
    told = [line for line in lines if "pass@8 at equal pass@1, temperature frontiers: " in line]
    assert len(told) == 2 and all("tied for these checkpoints (mean gap 0.000" in line for line in told)
    with pytest.raises(DataError, match="different data sets"):
        frontier_lines({"GRPO": mine, "Branch": {"AIME": mine["AIME"]}}, 8)


def test_all_or_nothing_in_words():
    names = tuple(f"p{i}" for i in range(8))
    none, every = (Scored(names, 4, np.full((1, 8), c)) for c in (0, 4))
    text = "\n".join(compare_counts({"base": {"t": none}, "arm": {"t": every}}, 4))
    assert "NSCR 1.000 [0.511, 1.000]" in text and "NDR 1.000 [0.511, 1.000]" in text
    text = "\n".join(compare_counts({"base": {"t": none}, "arm": {"t": none}}, 4))
    assert "t: no problem is solved by either, so nothing is kept, found or lost." in text
