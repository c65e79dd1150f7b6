"""Forms of answers by hand on a small store: families entered and right, brackets, and what only a bracket solves."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from command import Capture, call
from sage_rlvr.evaluation.forms import forms_of
from sage_rlvr.evaluation.sample_report import report_lines
from sage_rlvr.evaluation.store import Sample, SampleStore, prompt_hash
from sage_rlvr.tasks.countdown import Countdown
from sage_rlvr.tasks.countdown.chat import CountdownChat
from sage_rlvr.tasks.countdown.problem import problem_of
from samples_common import IDENTITY

CHAT = CountdownChat(counts={3: 1.0}, max_number=7, max_target=20)
TEXTS = {
    # Right are (1+2)*3, 3*(1+2) and their like, all with a bracket. Entered: 1 +, 3 *, 2 *; there is no 7.
    "1-2-3=9": ["(1+2)*3", " ( 1 + 2 ) × 3 = 9", "3*2+1", "2*3", "7+1+1", "six"],
    # Right are 2+2+3, 2*2+3 and their like, none with a bracket. Entered: 2 +, 2 *, 3 +.
    "2-2-3=7": ["2+2+3", "(2+2)+3", "2*2+3", "3+2*2", "2+3*2", "2+"],
}


def store_of(folder: Path, task: CountdownChat | Countdown, texts: Mapping[str, Sequence[str]]) -> SampleStore:
    identity = replace(
        IDENTITY, task=task.name, verifier_hash=task.verifier_hash, chunk_size=len(next(iter(texts.values())))
    )
    store = SampleStore.open(folder, identity)
    while chunks := store.claim(texts, identity.chunk_size or 1):
        rows = []
        for chunk in chunks:
            problem = problem_of(chunk.problem)
            for number in chunk.samples:
                text = texts[chunk.problem][number]
                verdict = task.verify(problem, text)
                rows.append(
                    Sample(
                        problem=chunk.problem, sample=number, seed=identity.seed_of(chunk.problem, number),
                        prompt_hash=prompt_hash(chunk.problem), text=text, token_ids=np.arange(3), rollout_logps=np.zeros(3),
                        base_logps=None, entropies=None, q=None, finish="stop", answer=task.answer_key(problem, text),
                        verdict=verdict.label, reason=verdict.reason, latency_s=0.0,
                    )
                )  # fmt: skip
        store.commit(rows)
    return store


def test_by_hand(tmp_path: Path) -> None:
    forms = forms_of(store_of(tmp_path / "s", CHAT, TEXTS), 6)
    assert forms is not None
    one, two = forms.rows()
    exist = {name: one[f"{name}_exist"] for name in ("families", "right_families", "right_answers")}
    # (1+2)*3, (2+1)*3, 3*(1+2), 3*(2+1)
    assert exist == {"families": 12, "right_families": 3, "right_answers": 4}
    assert {name: one[name] for name in ("right", "families", "right_families", "right_answers")} == {
        "right": 2, "families": 3, "right_families": 1, "right_answers": 1
    }  # fmt: skip
    assert one["bracket"] == 2 and one["needs_bracket"] == 1 and one["n"] == 6
    # 2+2+3, 2+3+2, 3+2+2, 2*2+3, 3+2*2
    assert (two["families_exist"], two["right_families_exist"], two["right_answers_exist"]) == (8, 3, 5)
    assert (two["right"], two["families"], two["right_families"], two["right_answers"]) == (4, 3, 3, 3)
    assert two["bracket"] == 1 and two["needs_bracket"] == 0
    means = forms.means()
    assert means["families"].value == 3 and means["right_answers_exist"].value == 4.5
    assert forms.share("bracket").value == 3 / 12
    assert {name: (one.value, one.n) for name, one in forms.solved("bracket").items()} == {"only": (1, 1), "others": (1, 1)}


def test_the_first_samples_alone(tmp_path: Path) -> None:
    forms = forms_of(store_of(tmp_path / "s", CHAT, TEXTS), 2)
    assert forms is not None and forms.families.tolist() == [1, 1] and forms.marked["bracket"].tolist() == [2, 1]


def test_the_report_of_a_store_prints_them_and_of_other_operators_nothing(tmp_path: Path, capsys: Capture) -> None:
    store_of(tmp_path / "s", CHAT, TEXTS)
    assert call("samples", tmp_path / "s") == 0
    said = capsys.readouterr().out
    assert "families   3.00" in said and "bracket    in 25.0%" in said
    assert "where only answers with a bracket are right (problems: 1)" in said
    sums = replace(CHAT, operators="+-")
    store = store_of(tmp_path / "sums", sums, {"2-2-3=7": ["2+2+3"] * 2})
    assert forms_of(store, 2) is None and not any(line.startswith("families") for line in report_lines(store))
    known = forms_of(store, 2, sums)
    assert known is not None and known.families_exist.tolist() == [4] and known.right_answers_exist.tolist() == [3]


def test_an_evaluation_has_them_as_json(
    write_recipe: Callable[..., Path], warm_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    recipe = write_recipe()
    monkeypatch.chdir(tmp_path)
    assert call("eval", warm_policy, "--world", recipe, "--problems", 5, "--samples", 8, "--quiet", "--json") == 0
    forms = json.loads(capsys.readouterr().out)["forms"]
    assert forms["n"] == 8 and forms["problems"] == 5 and 0 < forms["families"]["value"] <= forms["families_exist"]["value"] <= 8
    assert forms["marks"]["bracket"]["share"]["value"] == 0 and forms["marks"]["bracket"]["pass@8"]["others"]["problems"] == 5


def flat(numbers: Sequence[int], target: int) -> bool:
    """Whether an expression without brackets reaches the target, by Python's own arithmetic."""
    for order in set(itertools.permutations(numbers)):
        for operators in itertools.product("+-*/", repeat=len(order) - 1):
            text = "".join(f"Fraction({number}){sign}" for number, sign in zip(order, [*operators, ""], strict=True))
            try:
                if eval(text, {"Fraction": Fraction}) == target:
                    return True
            except ZeroDivisionError:
                continue
    return False


def test_what_exists_is_what_enumeration_finds() -> None:
    for problem in CHAT.draw("test", 0, 100):
        answers = CHAT.answers(problem)
        needs = all("bracket" in CHAT.answer_form(problem, text).marks for text in answers)
        assert needs == (not flat(problem.numbers, problem.target))
        begun = {re.match(r"\(*(\d+)\)*([-+*/])", text).groups() for text in answers}  # type: ignore[union-attr]
        assert {CHAT.answer_form(problem, text).family for text in answers} == {" ".join(pair) for pair in begun}
        assert {CHAT.answer_form(problem, text).family for text in answers} <= CHAT.families(problem)


@pytest.mark.parametrize(
    ("text", "family", "bracket"),
    [("((3))÷ 2", "3 /", True), ("12−5", "12 -", False), ("3", None, False), ("+3", None, False), ("3+1=(4)", "3 +", False)],
)
def test_the_form_of_any_text(text: str, family: str | None, bracket: bool) -> None:
    form = Countdown().answer_form(problem_of("1-2-3=9"), text)
    assert form.family == family and ("bracket" in form.marks) == bracket
