"""The audit of Countdown: golden numbers by hand, what it says of broken verifiers, and the second verifier alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sage_rlvr.cli import app as cli
from sage_rlvr.contrib.audit import AuditReport, Check, _audited, audit
from sage_rlvr.contrib.audit.reference_parser import second_opinion
from sage_rlvr.errors import ConfigError
from sage_rlvr.tasks.countdown import Countdown, Problem, split_of, verify
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.countdown import judge, parse

SMALL = Countdown({2: 0.5, 3: 0.5}, max_number=5, max_target=12)
SIZES = (12, 12, 200)


def audit_countdown(name: str, world: Countdown, k: int, sizes: tuple[int, int, int]) -> AuditReport:
    return _audited(name, world, k, {"sizes": sizes})


def named(found: AuditReport, name: str) -> Check:
    return next(check for check in found.checks if check.name == name)


class Broken(Countdown):
    """A world whose verifier takes values alone: other spellings and other numbers pass."""

    def verify(self, problem: Problem, completion: str) -> Verdict:
        parsed = parse(completion)
        good = parsed is not None and parsed.den != 0 and parsed.num == problem.target * parsed.den
        return Verdict("right", "right") if good else Verdict("wrong", "value")


def test_a_small_world_passes_with_every_kind_of_wrong_answer():
    found = audit_countdown("small", SMALL, 4, SIZES)
    assert found.passed and all(check.total for check in found.checks)
    assert sum(check.part for check in found.checks) == 8
    assert "12 test problems" in found.head and "2-3 numbers up to 5" in found.head


def test_a_verifier_of_values_alone_is_found_out():
    found = audit_countdown("broken", Broken(SMALL.counts, SMALL.max_number, SMALL.max_target), 4, SIZES)
    assert not found.passed
    for name in ("one number missing", "a number used again", "a bare number"):
        assert named(found, name).share < 0.99 and named(found, name).rows, name
    assert named(found, "division by zero").share == 1 and named(found, "every right expression is right").share == 1
    assert not named(found, "every other spelling of it earns nothing").passed
    assert not named(found, "second verifier agrees").passed


def test_the_guess_floor_by_hand(monkeypatch: pytest.MonkeyPatch):
    # 2 and 3 make 2+3 3+2 2-3 3-2 2*3 3*2 2/3 3/2: eight expressions, two of them 5. Two guesses hit 1 - (3/4)^2 = 7/16.
    monkeypatch.setattr(Countdown, "problems", lambda *a, **k: [Problem((2, 3), 5)])
    check = next(c for c in audit_countdown("one", SMALL, 2, (1, 1, 20)).checks if c.name.startswith("guess floor"))
    assert (check.good, check.total) == (pytest.approx(7 / 16), 1) and "one guess hits 0.2500" in check.note


def test_a_problem_in_two_splits_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sage_rlvr.contrib.audit.countdown.split_of", lambda p: "train" if p.target == 5 else split_of(p))
    check = named(audit_countdown("leaky", SMALL, 4, SIZES), "problems that stand in one split")
    assert not check.passed and all(row.problem_id.endswith("=5") for row in check.rows)


@pytest.mark.parametrize(
    "text, right",
    [
        ("3*(5+7)-12", True), ("(3*(5+7))-12", False), ("3*5+7", False), ("3*(5+7)-12 ", False), ("3*(5+7)-012", False),
        ("3*(7+5)-12", True), ("-12+3*(5+7)", False), ("3*(5+7)-12/(3-3)", False), ("3*(5+7)-12#", False),
        ("(" * 99 + "3" + ")" * 99, False), ("3**(5+7)-12", False), ("", False), ("3_0", False), ("\ud800", False),
    ],
)  # fmt: skip
def test_the_second_verifier_by_hand(text: str, right: bool):
    assert second_opinion((3, 5, 7, 12), 24, text) is right


def test_division_by_zero_is_wrong_to_the_second_verifier_too():
    assert not second_opinion((1, 1, 2), 2, "2/(1-1)") and not second_opinion((1, 2, 3), 0, "1/(1+2-3)")
    assert second_opinion((1, 1, 2), 0, "(1-1)/2")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*"0123()+-*/ ", "12", "=", "x"]), max_size=14).map("".join))
def test_two_verifiers_give_one_verdict_on_any_text(text: str):
    parsed = parse(text)
    numbers = parsed.numbers if parsed else (1, 2)
    value = parsed.num // parsed.den if parsed and parsed.den else 1
    assert judge(numbers, value, text).right == second_opinion(numbers, value, text)


@pytest.mark.slow
def test_the_verb(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sage_rlvr.contrib.audit.countdown.SIZES", (5, 1, 50))
    for word, code in (("countdown:countdown-3", 0), ("countdown:mine", 2)):
        with pytest.raises(SystemExit) as done:
            cli.main(["audit", word])
        assert done.value.code == code
    said = capsys.readouterr()
    assert "every right expression is right" in said.out and "no such world" in said.err
    monkeypatch.setattr(Countdown, "verify", lambda self, p, text: verify(p, text.strip()))
    with pytest.raises(SystemExit) as done:
        cli.main(["audit", "countdown"])
    assert done.value.code == 2 and "BELOW 99 %" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="leave out --template"):
        audit("countdown", template="sage")
