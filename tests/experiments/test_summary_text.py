"""summary.md opens with what can be said: every comparison of summary.json in one group, in the matrix and, folded, in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from sage_rlvr.experiments.summary_text import verdict_lines


def made(kind: str, a: str, b: str, metric: str, verdict: str, value: float | None, n: int = 3) -> dict[str, Any]:
    ends = {"low": None if value is None else value - 0.25, "high": None if value is None else value + 0.25}
    gap = {"value": value, **ends, "n": n}
    said = f"{a} vs {b}, {metric}: {verdict}."
    return {
        "kind": kind, "a": a, "b": b, "metric": metric, "verdict": verdict, "difference": gap, "detectable": 0.125, "family": 6,
        "sentence": said,
    }  # fmt: skip


def summary(comparisons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    wide, points = [{"temperature": t} for t in (0.5, 1.0)], {"frontier": [{}, {}]}
    arms = {
        "nokl": {"label": "no KL", "seeds": [0, 1, 2], "frontier": wide},
        "grpo": {"label": "GRPO", "seeds": [0, 1, 2], "frontier": wide},
        "branch": {"label": "Branch", "seeds": [0, 1], "frontier": wide},
        "shuffled": {"label": "Shuffled", "seeds": [0, 1, 2]},
        "weak": {"label": "GRPO, beta 0.1", "seeds": [0, 1, 2], "frontier": wide},
        "late": {"label": "Late", "seeds": []},
    }
    return {
        "seeds": [0, 1, 2], "control": "grpo", "arms": arms, "added": {"weak": "why"}, "base": points,
        "evaluate": {"problems": 300}, "comparisons": comparisons,
    }  # fmt: skip


ALL = [
    made("control", "no KL", "GRPO", "pass@1", "better", 0.5),
    made("control", "Branch", "GRPO", "pass@1", "tied", 0.25, n=2),
    made("placebo", "Branch", "Shuffled", "pass@1", "worse taken alone", -0.5),
    made("frontier_control", "no KL at any temperature", "GRPO at any temperature", "pass@256 at equal pass@1", "worse", -1.0),
    made("frontier_base", "Branch at any temperature", "base at any temperature", "pass@256 at equal pass@1", "cannot be told (x)",
         None),
    made("away", "no KL", "GRPO", "pass@1 on far", "tied", 0.0),
]  # fmt: skip


def test_every_comparison_is_grouped_and_kept_in_full() -> None:
    lines = "\n".join(verdict_lines(summary(ALL))).split("\n")
    assert [line for line in lines if line.startswith("- **")] == [
        "- **Against GRPO, pass@1**: better: no KL (+0.500); tied: Branch (minimum detectable 0.125, up to 1.993; 2 of 3 seeds).",
        "- **Against Shuffled, pass@1**: Branch is worse, but only taken alone (−0.500).",
        "- **Against GRPO, pass@256 at equal pass@1**: no KL is worse (−1.000).",
        "- **Against base, pass@256 at equal pass@1**: of Branch it cannot be told: x.",
        "- **Against GRPO, pass@1 on far**: no KL is tied (minimum detectable 0.125, up to 0.552).",
        "- **Not compared at equal pass@1**: Branch vs GRPO (no common range of pass@1 in some training seed), no KL vs base (no "
        "common range of pass@1 in some training seed), GRPO vs base (no common range of pass@1 in some training seed).",
        "- **Not compared at equal pass@1 near T = 1**: no KL vs GRPO, Branch vs GRPO (one of the two has no temperature with the "
        "pass@1 that the other has at T = 1).",
        "- **Training seeds missing**: Branch (2 of 3 evaluated), Late (0 of 3 evaluated).",
        "- **In no comparison**: GRPO, beta 0.1 (an added control, see below).",
    ]
    assert lines[2] == (
        "About these methods, over 3 or 2 training seeds on the same 300 problems. Holm's correction runs over 6 comparisons."
    )
    start = lines.index("<details><summary>Every comparison in full (6)</summary>")
    assert lines[start + 2 : start + 8] == [f"- {c['sentence']}" for c in ALL]
    assert lines[start + 1] == lines[start + 8] == "" and lines[start + 9] == "</details>"


def test_the_matrix_is_a_plain_table() -> None:
    table = [line for line in "\n".join(verdict_lines(summary(ALL))).split("\n") if line.startswith("|")]
    assert table[0].startswith(
        "| arm | vs GRPO<br>pass@1 | vs Shuffled<br>pass@1 | vs GRPO<br>pass@256 at equal pass@1 |"
    )
    assert table[2].startswith("| no KL | better<br>+0.500<br>+0.250 to\u00a0+0.750 | – | worse<br>−1.000<br>−1.250 to")
    assert [line.split(" | ")[0] for line in table[2:]] == ["| no KL", "| Branch"]
    assert len({line.count("|") for line in table}) == 1


@pytest.mark.parametrize("lacking", ["Late (0 of 3 evaluated)", "not run: no two arms share an evaluated seed"])
def test_nothing_compared_is_said(lacking: str) -> None:
    assert lacking in "\n".join(verdict_lines(summary([])))


def few(n: int) -> list[dict[str, Any]]:
    why = "cannot be told (two training seeds: a claim about methods needs at least three)"
    return [
        made("control", "no KL", "GRPO", "pass@1", why, 0.5, n),
        made("control", "Branch", "GRPO", "pass@1", why, -0.25, 1),
        made("placebo", "Branch", "Shuffled", "pass@1", why, 0.125, n),
    ]


@pytest.mark.parametrize(
    ("n", "scope"),
    [
        (2, "Two training seeds: no claim about methods; the differences in brackets and in the table are means"),
        (1, "One training seed: no claim about methods; the differences below are of one run an arm"),
    ],
)
def test_fewer_than_three_seeds_are_said_once_and_in_full_in_the_fold(n: int, scope: str) -> None:
    lines = "\n".join(verdict_lines(summary(few(n)) | {"seeds": list(range(n))})).split("\n")
    fold = lines.index("<details><summary>Every comparison in full (3)</summary>")
    assert lines[2] == f"{scope}, on the same 300 problems."
    assert "cannot be told" not in "\n".join(lines[:fold])
    assert sum("a claim about methods needs at least three" in line for line in lines[fold:]) == 3
    note = "; 1 of 2 seeds" * (n == 2)
    assert lines[4:6] == [
        f"- **Against GRPO, pass@1**: no KL (+0.500), Branch (−0.250{note}).",
        "- **Against Shuffled, pass@1**: Branch (+0.125).",
    ]
    assert "In brackets: the difference in the metric." in lines
    assert [line for line in lines if line.startswith("|")][2:] == [
        "| no KL | +0.500 | – |",
        "| Branch | −0.250 | +0.125 |",
    ]


def test_one_comparison_is_singular_and_one_of_three_seeds_keeps_its_verdict() -> None:
    alone = made("control", "no KL", "GRPO", "pass@1", "better", 0.5) | {"family": 1}
    assert verdict_lines(summary([alone]))[2].endswith("Holm's correction runs over 1 comparison.")
    mixed = "\n".join(verdict_lines(summary([alone, few(2)[1]])))
    assert "better: no KL" in mixed and "About these methods, over 3 or 1 training seeds" in mixed
