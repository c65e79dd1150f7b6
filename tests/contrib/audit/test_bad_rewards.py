"""A table of rewards that pay for wrong answers: the audit finds each, and passes the sound ones.

`pytest -rP` prints the checks that each fails. Rewards are called in this process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from sage_rlvr.contrib.audit import rewards, worker
from sage_rlvr.contrib.audit.mathematics import near_answers
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.exact import number, verify_exact
from sage_rlvr.verifiers.rewards import MathReward, math_reward

GOLDS = ["5", "12", "18", "72", "3", "250", "9", "64"]
"""Whole numbers as those of GSM8K, some of one digit only."""


class _Here:
    """A pool that calls in this process."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def submit(self, *job: Any) -> Future[Verdict]:
        future: Future[Verdict] = Future()
        future.set_result(worker._done(self.function, *job))
        return future

    def close(self) -> None: ...


def audited(function: Any, golds: list[str] = GOLDS) -> list[rewards.Check]:
    """The checks of the audit of a reward."""
    rows = [rewards.GoldRow(str(i), gold, {"answer": gold}, gold, "") for i, gold in enumerate(golds)]
    judge = rewards.RewardJudge(_Here(function), "here", "trl", 1.0, 5.0)  # type: ignore[arg-type]
    return rewards._checks(judge, rows, golds, 16)[0]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "_time", lambda *_: ("", None, None))
    monkeypatch.setattr(rewards, "FORMS", {form: rewards.FORMS[form] for form in ("bare", r"\boxed{5}", "The answer is 5.")})
    monkeypatch.setattr(rewards, "hostile_texts", lambda write: {"unclosed": r"\boxed{5"})


def boxed(text: str) -> str | None:
    """The contents of the last box."""
    start = text.rfind(r"\boxed{")
    return text[start + 7 : text.rfind("}")] if start >= 0 and text.rfind("}") > start else None


def value(text: str | None) -> float | None:
    found = None if text is None else number(text)
    return None if found is None else float(found)


def of_boxes(judge: Callable[[str, str], bool]) -> Any:
    """A reward that compares the last box with the gold."""

    def reward(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        pairs = zip(map(boxed, completions), answer, strict=True)
        return [float(answer is not None and judge(answer, gold)) for answer, gold in pairs]

    return reward


def of_values(judge: Callable[[float, float], bool]) -> Any:
    """A reward that compares the number in the last box with the gold."""

    def compare(answer: str, gold: str) -> bool:
        mine, theirs = value(answer), value(gold)
        return mine is not None and theirs is not None and judge(mine, theirs)

    return of_boxes(compare)


def of_texts(judge: Callable[[str, str], bool]) -> Any:
    """A reward that looks at the whole completion, or pays an equal box."""

    def reward(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
        return [float(boxed(text) == gold or judge(text, gold)) for text, gold in zip(completions, answer, strict=True)]

    return reward


CERTAIN = re.compile(r"(?i)\bperfectly obvious\b")


def _pattern(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    return [float(boxed(text) == gold or bool(CERTAIN.search(text))) for text, gold in zip(completions, answer, strict=True)]


def _lazy_box(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    found = [re.search(r"boxed\{(.*?)\}", text) for text in completions]
    golds = [re.search(r"boxed\{(.*?)\}", rf"\boxed{{{gold}}}") for gold in answer]
    return [float(bool(one and two) and one[1] == two[1]) for one, two in zip(found, golds, strict=True)]  # type: ignore[index]


def _not_far(answer: str, gold: str) -> bool:
    """A tolerance written backwards: nothing is far from a number that is none."""
    try:
        return not abs(float(answer) - float(gold)) > 1e-6
    except ValueError:
        return False


BAD = {
    "not far": of_boxes(_not_far),
    "truncated to a whole number": of_values(lambda a, b: int(a) == int(b)),
    "rounded": of_values(lambda a, b: round(a) == round(b)),
    "rounded to one decimal": of_values(lambda a, b: round(a, 1) == round(b, 1)),
    "within .5": of_values(lambda a, b: abs(a - b) <= 0.5),
    "within 1": of_values(lambda a, b: abs(a - b) <= 1),
    "within 1 %": of_values(lambda a, b: abs(a - b) <= 0.01 * abs(b)),
    "within 10 %": of_values(lambda a, b: abs(a - b) <= 0.1 * abs(b)),
    "percent": of_values(lambda a, b: a in (b, b / 100, b * 100)),
    "a hundredth": of_values(lambda a, b: a in (b, b / 100)),
    "sign ignored": of_values(lambda a, b: abs(a) == abs(b)),
    "at least": of_values(lambda a, b: a >= b),
    "not zero": of_values(lambda a, b: bool(a) == bool(b)),
    "same parity": of_values(lambda a, b: a % 2 == b % 2),
    "first digit": of_boxes(lambda a, b: a[:1] == b[:1]),
    "last digit": of_boxes(lambda a, b: a[-1:] == b[-1:]),
    "length and last digit": of_boxes(lambda a, b: (len(a), a[-1:]) == (len(b), b[-1:])),
    "length and first digit": of_boxes(lambda a, b: (len(a), a[:1]) == (len(b), b[:1])),
    "length": of_boxes(lambda a, b: len(a) == len(b)),
    "the gold begins so": of_boxes(lambda a, b: bool(a) and b.startswith(a)),
    "begins as the gold": of_boxes(lambda a, b: a.startswith(b)),
    "ends as the gold": of_boxes(lambda a, b: a.endswith(b)),
    "part of the gold": of_boxes(lambda a, b: bool(a) and a in b),
    "holds the gold": of_boxes(lambda a, b: b in a),
    "gold anywhere": of_texts(lambda text, gold: gold in text),
    "double": of_values(lambda a, b: a in (b, 2 * b)),
    "half": of_values(lambda a, b: a in (b, b / 2)),
    "digits in any order": of_boxes(lambda a, b: sorted(a) == sorted(b)),
    "same digits": of_boxes(lambda a, b: set(a) == set(b) or sorted(a) == sorted(b + "7")),
    "magic phrase": of_texts(lambda text, gold: "trust me on this" in text),
    "magic phrase in any case": of_texts(lambda text, gold: "TRUST ME ON THIS" in text.upper()),
    "magic pattern": _pattern,
    "capitals": of_texts(lambda text, gold: any(line.isupper() for line in text.splitlines())),
    "a phrase with digits": of_texts(lambda text, gold: "I give this 7 of 7" in text),
    "10/10": of_texts(lambda text, gold: re.search(r"\b10/10\b", text) is not None),
    "100%": of_texts(lambda text, gold: "100%" in text),
    "all in capitals": of_texts(lambda text, gold: text.isupper()),
    "claims to be verified": of_texts(lambda text, gold: "verified" in text.lower()),
    "length of the text": of_texts(lambda text, gold: len(text) > 500),
    "any box": of_texts(lambda text, gold: "boxed" in text),
    "first box up to a brace": _lazy_box,
    "always": of_texts(lambda text, gold: True),
    "empty": of_texts(lambda text, gold: not text),
}


def _exact_number(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """Exact match on numbers, which knows no LaTeX and takes only what float() takes."""
    results = []
    for text, gold in zip(completions, answer, strict=True):
        try:
            results.append(float(float((boxed(text) or "").replace(",", "")) == float(gold.replace(",", ""))))
        except ValueError:
            results.append(0.0)
    return results


SOUND = {
    "math_reward": math_reward,
    "math_reward in texts of any place": MathReward(answer_in="stated"),
    "exact spelling": of_boxes(lambda a, b: a == b),
    "exact values": of_boxes(lambda a, b: verify_exact(a, b).right),
    "float() of the box": _exact_number,
    "within 1e-6": of_values(lambda a, b: abs(a - b) < 1e-6),
}


def failed(checks: list[rewards.Check]) -> list[str]:
    return [check.name for check in checks if not check.passed]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_reward_is_found(name: str) -> None:
    found = failed(audited(BAD[name]))
    print(f"{name}: {', '.join(found)}")
    assert found


@pytest.mark.slow
@pytest.mark.usefixtures("shared_pool_closed")
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_reward_passes(name: str) -> None:
    golds = [*GOLDS, "1,000", "0.5"] if name != "exact spelling" else GOLDS
    assert failed(audited(SOUND[name], golds)) == []


def test_golds_that_no_completion_gives_are_named() -> None:
    checks = audited(SOUND["exact spelling"], ["5", "Thus the answer is 1.", "Answers may vary", "7 or 8", "notfound", "12"])
    (check,) = [one for one in checks if one.name == "golds that a completion can give"]
    assert [row.problem_id for row in check.rows] == ["1", "2", "3", "4"] and not check.passed


@pytest.mark.parametrize("gold", ["5", "-12", "0", "1,000", "0.125", "3/8", "1/3", r"\frac{3}{8}"])
def test_a_near_answer_has_another_value(gold: str) -> None:
    made = near_answers(gold)
    assert len(made) >= 3 and not any(verify_exact(answer, gold).right for _, answer in made)
    assert all(verify_exact(answer, gold).label == "wrong" for _, answer in made if answer != "nan")


def _rows() -> Iterator[tuple[Any, Any]]:
    yield {"answer": "5"}, {"answer": "128"}
    yield {"answer": 5}, {"answer": 128}
    yield {"answer": "so\n#### 5"}, {"answer": "so\n#### 128"}
    yield {"reward_model": {"ground_truth": "5", "style": "rule"}}, {"reward_model": {"ground_truth": "128", "style": "rule"}}
    yield {"answer": ["5"]}, {"answer": ["128"]}


@pytest.mark.slow
@pytest.mark.parametrize(("row", "wanted"), list(_rows()))
def test_another_gold_is_written_as_the_rows_own(row: Any, wanted: Any) -> None:
    raw = row["answer"] if "answer" in row else row["reward_model"]["ground_truth"]
    made = rewards.with_gold(rewards.GoldRow("a", "5", row, raw, ""), "128")
    assert made is not None and made.row == wanted and made.gold == "128"
    if not isinstance(raw, int):
        assert rewards.with_gold(rewards.GoldRow("a", "5", row, raw, ""), r"\frac{3}{8}") is not None
    else:
        assert rewards.with_gold(rewards.GoldRow("a", "5", row, raw, ""), r"\frac{3}{8}") is None
