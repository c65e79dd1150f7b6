"""Verdicts in groups: every claim is in one group and one cell, from the right side, and what is uncertain stays so in words."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.report.digest import (
    AWAY,
    BEST,
    EQUAL,
    FRONTIER,
    MEAN,
    PLACEBO,
    WORDS,
    Claim,
    claim,
    groups_of,
    legend,
    matrix,
    unlike,
)
from sage_rlvr.report.result import Arm, Result
from sage_rlvr.report.summary import control_pairs
from sage_rlvr.stats.comparison import adjust, paired_seeds


def one(
    a: str, b: str, verdict: str, value: float = math.nan, seen: float = math.inf, kind: str = MEAN, **more
) -> Claim:
    more = {"metric": "pass@1", "low": value - 0.01, "high": value + 0.01} | more
    return Claim(kind=kind, a=a, b=b, verdict=verdict, value=value, detectable=seen, detectable_high=2 * seen, **more)


def test_one_sentence_a_control_and_metric() -> None:
    claims = [
        one("no KL", "GRPO", "worse", -0.169),
        one("Branch", "GRPO", "tied", -0.0001, 0.003),
        one("Forward-KL", "GRPO", "tied", 0.001, 0.0026),
        one("Token", "GRPO", "better taken alone", 0.002),
        one("Random", "GRPO", "worse taken alone", -0.005),
        one("Clone", "GRPO", "tied", 0.0, low=0.0, high=0.0),
        one("Young", "GRPO", "cannot be told (two training seeds: three are needed)", 0.05),
        one("Far", "GRPO", "no common range"),
    ]
    (group,) = groups_of(claims, control="GRPO", base="base")
    assert group.sentence() == (
        "Against GRPO, pass@1: worse: no KL (−0.169); tied: Branch (minimum detectable 0.003, up to 0.006), Forward-KL (0.003, up "
        "to 0.005); identical: Clone; only taken alone: Token better (+0.002), Random worse (−0.005); cannot be told: Young "
        "(+0.050): two training seeds: three are needed; cannot be told: Far: no common range."
    )
    assert legend([group]).startswith("In brackets") and "Holm's correction" in legend([group])


@pytest.mark.parametrize(
    ("claim_", "said"),
    [
        (one("A", "B", "better", 0.5), "A is better (+0.500)."),
        (one("A", "B", "tied", 0.5, 0.25), "A is tied (minimum detectable 0.250, up to 0.500)."),
        (one("A", "B", "tied", 0.5), "A is tied (minimum detectable none)."),
        (one("A", "B", "tied", 0.0, low=0.0, high=0.0), "A is identical."),
        (one("A", "B", "worse taken alone", -0.5), "A is worse, but only taken alone (−0.500)."),
        (
            one("A", "B", "cannot be told (one training seed)", 0.5),
            "of A (+0.500) it cannot be told: one training seed.",
        ),
        (one("A", "B", "cannot be told: too few problems (5)"), "of A it cannot be told: too few problems (5)."),
        (one("A", "B", "better", 0.5, note="3 of 6 seeds"), "A is better (+0.500; 3 of 6 seeds)."),
    ],
)
def test_one_arm_alone_makes_a_natural_sentence(claim_: Claim, said: str) -> None:
    (group,) = groups_of([claim_])
    assert group.sentence() == f"Against B, pass@1: {said}"


def test_what_matters_most_stands_first() -> None:
    """The control and the placebos, then other arms, the base, best temperatures, whole frontiers, other problems."""
    claims = [
        one("A", "base", "better", 0.1, kind=FRONTIER),
        one("A", "base", "better", 0.1, kind=EQUAL),
        one("A", "base", "better", 0.1, kind=BEST, where="0.2 at T = 0.5"),
        one("A", "base", "better", 0.1, metric="pass@256"),
        one("A", "base", "better", 0.1),
        one("A", "no KL", "better", 0.1),
        one("A", "A placebo", "better", 0.1),
        one("B", "shuffled", "better", 0.1, kind=PLACEBO),
        one("A", "GRPO", "better", 0.1, metric="pass@1 on Far", kind=AWAY),
        one("A", "GRPO", "better", 0.1, kind=FRONTIER, corrected=False),
        one("GRPO", "A placebo", "better", 0.1),
        one("A", "GRPO", "better", 0.1, metric="pass@256"),
        one("GRPO", "base", "better", 0.1),
    ]
    found = groups_of(claims, control="GRPO", base="base")
    assert [group.head for group in found] == [
        "Against GRPO, pass@1",
        "Against GRPO, pass@256",
        "Each against its own placebo, pass@1",
        "Against no KL, pass@1",
        "Against base, pass@1",
        "Against base, pass@256",
        "Against base (0.2 at T = 0.5), best pass@1 at any temperature",
        "Against GRPO, pass@1 at equal pass@1 (each taken alone)",
        "Against base, pass@1 at equal pass@1",
        "Against base, pass@1 at its temperature of equal pass@1",
        "Against GRPO, pass@1 on Far",
    ]
    assert found[0].sentence() == "Against GRPO, pass@1: A placebo is worse (−0.100)."  # turned round
    assert found[2].lines == (("better", "A vs A placebo (+0.100), B vs shuffled (+0.100)"),)
    assert "each policy at all its temperatures" in legend(found) and "each policy" not in legend(found[:6])


def test_a_placebo_of_ones_own_is_a_pair() -> None:
    arms = tuple(
        Arm(name=n, ps={1.0: (0.5,)}) for n in ("SAGE-Token", "SAGE-Token placebo", "GRPO", "Mine", "mine-placebo")
    )
    result = Result(arms=(Arm(name="base", ps={1.0: (0.5,)}, trained=False), *arms), problems=1)
    assert control_pairs(result) == (
        ("SAGE-Token", "GRPO"),
        ("SAGE-Token", "SAGE-Token placebo"),
        ("Mine", "mine-placebo"),
    )


def test_the_matrix_has_word_difference_and_interval() -> None:
    claims = [
        one("A", "GRPO", "better taken alone", 0.25),
        one("no KL", "GRPO", "cannot be told (one training seed)", 0.5, low=-math.inf, high=math.inf),
        one("A", "base", "tied", 0.0, low=0.0, high=0.0),
    ]
    groups = groups_of(claims, control="GRPO", base="base")
    table = matrix([*groups, *unlike("In no comparison", [("C", "not run")])], ["base", "no KL", "A", "C"])
    assert table.header == ("arm", "vs GRPO\npass@1", "vs base\npass@1")
    assert table.rows == (
        ("no KL", "cannot be told\n+0.500", "–"),
        ("A", "better taken alone\n+0.250\n+0.240 to\u00a0+0.260", "identical\n0.000"),
    )


def test_what_is_missing_is_named_without_a_verdict() -> None:
    assert unlike("In no comparison", []) == ()
    (group,) = unlike("In no comparison", [("C, beta 1", "not run"), ("D", "2 of 6 training seeds evaluated")])
    assert group.sentence() == "In no comparison: C, beta 1 (not run), D (2 of 6 training seeds evaluated)."
    assert legend([group]) == "" and group.claims == ()


VERDICTS = (
    "better",
    "worse",
    "tied",
    "better taken alone",
    "worse taken alone",
    "cannot be told (why)",
    "no common range",
)
CLAIMS = st.lists(
    st.builds(
        Claim, kind=st.sampled_from((MEAN, BEST, EQUAL, FRONTIER)), a=st.sampled_from("ABC"),
        b=st.sampled_from(("G", "base", "placebo", "A")), metric=st.sampled_from(("pass@1", "pass@9")),
        verdict=st.sampled_from(VERDICTS), value=st.floats(-1, 1), low=st.floats(-1, 1), high=st.floats(-1, 1),
        detectable=st.floats(0, 1),
    ),
    max_size=20,
)  # fmt: skip


@given(CLAIMS, st.sampled_from(("G", "A", None)))
def test_nothing_is_lost_and_nothing_is_said_twice(claims: list[Claim], control: str | None) -> None:
    groups = groups_of(claims, control=control, base="base")
    kept = Counter((c.kind, c.metric, frozenset((c.a, c.b)), round(abs(c.value), 9)) for g in groups for c in g.claims)
    assert kept == Counter((c.kind, c.metric, frozenset((c.a, c.b)), round(abs(c.value), 9)) for c in claims)
    assert len({group.head for group in groups}) == len(groups)
    for group in groups:
        assert {word for word, _ in group.lines} == {c.word for c in group.claims} <= set(WORDS)
        for c in group.claims:
            assert c.b == control or c.a != control or c.b == "base"
            (text,) = [text for word, text in group.lines if word == c.word and c.reason * (word == WORDS[-1]) in text][
                :1
            ]
            assert c.a in text
    cells = [cell for row in matrix(groups, list("ABC")).rows for cell in row[1:] if cell != "–"]
    assert sum(any(line in (c, "identical") or line.startswith("cannot") for c in VERDICTS) for cell in cells
               for line in cell.split("\n")) == len(claims)  # fmt: skip


@given(st.lists(st.floats(0, 1), min_size=3, max_size=6), st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_turned_round_it_is_the_comparison_the_other_way(a: list[float], b: list[float]) -> None:
    """Student's interval is that of the differences with the other sign; so is the verdict, before Holm and after."""
    b = b[: len(a)]
    ways = [paired_seeds(x, y) for x, y in ((a, b), (b, a))]
    for left, right in (ways, adjust(ways)):
        turned, there = claim(MEAN, "A", "B", "m", left).flipped(), claim(MEAN, "B", "A", "m", right)
        assert (turned.a, turned.b, turned.verdict, turned.word) == (there.a, there.b, there.verdict, there.word)
        ends = [[x.value, x.low, x.high, x.detectable, x.detectable_high] for x in (turned, there)]
        assert np.allclose(*ends, rtol=1e-6, atol=1e-12, equal_nan=True)
