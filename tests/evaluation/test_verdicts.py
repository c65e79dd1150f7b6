"""Verdicts from counts on several data sets: levels, Holm over the data sets, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation import over_data_sets, paired_counts, passk_interval
from sage_rlvr.evaluation.verdicts import Scored, arms_of, compare_counts

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
    assert "P(Branch > GRPO), AIME, for these checkpoints: " in text
    assert f"GRPO, AIME: pass@1 {passk_interval(32, given['GRPO']['AIME'].right[0], 1)}" in text


def test_methods_over_training_seeds():
    given = arms(GRPO={"seeds": 3}, Branch={"seeds": 3, "lift": 0.2})
    text = "\n".join(compare_counts(given, 8))
    assert "Branch vs GRPO, AMC23 pass@8: " in text and "for these methods" in text
    assert "over 3 training seeds on these 40 problems" in text and "over k" not in text
    base = {"base": {t: scored(t) for t in P}}
    assert "for these methods" in "\n".join(compare_counts(base | given, 8))


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
