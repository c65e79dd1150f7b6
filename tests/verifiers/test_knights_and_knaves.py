"""The published rule of Knights and Knaves, its holes included, and the strict one that closes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers.knights_and_knaves import MAX_COMPLETION, conclusion, judge

NAMES, SOLUTION = ("Zoey", "Oliver"), (False, True)
GOLD = "CONCLUSION:\n(1) Zoey is a knave\n(2) Oliver is a knight"
BOTH = f"{GOLD}\n(1) Zoey is a knight\n(2) Oliver is a knave"

CASES = [  # completion, published, strict
    (GOLD, "right", "right"),
    (f"If Zoey lied, then so did (3). {GOLD}", "right", "right"),
    (f"{GOLD}\n### Reason: if not, (3)", "right", "right"),
    (f"{GOLD}\n### Question: more CONCLUSION:\n(1) Zoey is a knight", "right", "right"),
    ("CONCLUSION:\n(1) Zoey is a knight\n(2) Oliver is a knight", "identity", "identity"),
    ("CONCLUSION:\n(1) Zoey is a knave", "identity", "items"),
    ("CONCLUSION: Zoey is a knave and Oliver is a knight", "right", "items"),  # phrases anywhere
    ("CONCLUSION:\n(1) Oliver is a knight\n(2) Zoey is a knave", "right", "items"),
    (f"{GOLD}\n(3) Jack is a knight", "more items than people", "items"),
    (f"{GOLD}, if Zoey lied", "conditional", "right"),
    (BOTH, "right", "items"),  # everybody is called both
    ("(1) Zoey is a knave (2) Oliver is a knight", "right", "no conclusion"),  # read whole: every number is there
    ("Zoey is a knave, Oliver is a knight", "no conclusion", "no conclusion"),
    ("CONCLUSION:", "no conclusion", "items"),
    ("", "no conclusion", "no conclusion"),
    (f"CONCLUSION:\n(1) Zoey is a knight\nWait. {GOLD}", "identity", "right"),  # the first counts, or the last
    ("**CONCLUSION:**\n(1) **Zoey** is a **knave**\n(2) **Oliver** is a *knight*", "right", "right"),
    ("**CONCLUSION:**\n(1) **Zoey** is a **knight**\n(2) **Oliver** is a *knight*", "identity", "identity"),
    ("CONCLUSION:\n1. Zoey is a knave\n2. Oliver is a knight", "right", "right"),
    ("CONCLUSION:\n1. Zoey is a knave.\n2. Oliver is a knave.", "identity", "identity"),
    ("CONCLUSION:\n1) Oliver is a knight\n2) Zoey is a knave", "right", "items"),
    ("CONCLUSION:\n- **Zoey** is a `knave`\n- Oliver is a knight", "right", "right"),
    ("CONCLUSION:\n* Oliver is a knight\n* Zoey is a knave", "right", "right"),  # bullets have no order
    ("CONCLUSION:\n* Oliver is a knave\n* Zoey is a knight", "identity", "identity"),
    ("CONCLUSION:\n- Zoey is a knave\n- Oliver is a knight\n- Zoey is a knight", "right", "items"),
]


@pytest.mark.parametrize("completion, published, strict", CASES)
def test_both_rules_by_hand(completion: str, published: str, strict: str):
    assert judge(NAMES, SOLUTION, completion).reason == published
    assert judge(NAMES, SOLUTION, completion, "strict").reason == strict


def test_what_is_neither_and_what_is_refused():
    assert conclusion(NAMES, SOLUTION) == GOLD
    assert judge(NAMES, SOLUTION, None).label == "undecided"  # type: ignore[arg-type]
    assert judge(NAMES, SOLUTION, "x" * (MAX_COMPLETION + 1)).label == "undecided"
    with pytest.raises(ConfigError, match="'lenient' is none of published, strict"):
        judge(NAMES, SOLUTION, GOLD, "lenient")  # type: ignore[arg-type]


@given(st.lists(st.booleans(), min_size=2, max_size=8), st.integers(0, 255))
def test_only_the_solution_is_right(solution: list[bool], code: int):
    names = [f"Person{chr(65 + i)}" for i in range(len(solution))]
    told = [bool(code >> i & 1) for i in range(len(solution))]
    for rule in ("published", "strict"):
        assert judge(names, solution, conclusion(names, told), rule).right == (told == solution)


@given(st.text(st.sampled_from("CONCLUSION:()12 Zoeyisaknvght\n\ud800#"), max_size=80))
def test_no_text_makes_it_raise(text: str):
    for rule in ("published", "strict"):
        assert judge(NAMES, SOLUTION, GOLD[:12] + text, rule).label in ("right", "wrong")
