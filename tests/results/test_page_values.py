"""Values of a page that no folder of tests has: kinds of answers of a task from outside."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from command import call
from sage_rlvr.api.report import report
from sage_rlvr.errors import DataError
from sage_rlvr.results.details.answers import kinds_of
from sage_rlvr.results.details.training import versions
from sage_rlvr.results.page import page_of
from sage_rlvr.results.page.answers import answers_of
from sage_rlvr.tasks import TASKS, described
from sage_rlvr.tasks.base import Task
from sage_rlvr.tasks.countdown import WORLDS, Problem
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.sources import TrainingRun
from sage_rlvr.verifiers import Verdict


@dataclass(frozen=True)
class Word:
    problem_id: str


@dataclass(frozen=True)
class Spelling(Task):
    """Any spelling of a word is right: in small letters, in large ones."""

    name: ClassVar[str] = "spelling"
    kinds: ClassVar[dict[str, str]] = {"cases": "small-or/large."}

    def problems(self, split: str) -> list[Word]:
        return [Word("a-b"), Word("c")]

    def prompt(self, problem: Word) -> str:
        return problem.problem_id

    def verify(self, problem: Word, text: str) -> Verdict:
        return Verdict("right" if text in self.solutions(problem) else "wrong", "")

    def problem_of(self, problem_id: str) -> Word:
        return Word(problem_id)

    def solutions(self, problem: Word) -> list[str]:
        return [problem.problem_id, problem.problem_id.upper()]

    def kinds_of(self, problem: Word, text: str) -> list[str]:
        return ["small" if text.islower() else "large-or/larger"]

    @property
    def identity(self) -> dict[str, object]:
        return {"name": self.name, "letters": "small"}

    def described(self, identity: dict[str, object]) -> str:
        return f"words, {identity['letters']} letters"


def record(name: str, rows: list[list[float]]) -> Record:
    meta = {"world": {"name": name}, "problem_ids": ["a-b", "c", "a-b"]}
    return Record(meta, {1.0: [np.log(row) for row in rows]}, {})


def test_a_task_from_outside_says_the_kinds_of_its_answers() -> None:
    """The base gives small letters 3 of 4 times, the arm always: exp of the entropy of (3/4, 1/4), and 1."""
    rows = {"base": [record("spelling", [[0.6, 0.2]] * 3)], "arm": [record("spelling", [[0.9, 1e-9]] * 3)]}
    assert kinds_of(rows, 8) == []  # nobody has the task
    TASKS.register(Spelling)
    try:
        values = answers_of({"kinds": kinds_of(rows, 8)}, 8)
        assert described({"name": "spelling", "letters": 3}) == "words, 3 letters"
    finally:
        del TASKS["spelling"]
    (one,), kinds = values["structure"], values["kinds"]
    assert one["kind"] == "cases" and list(one["shares"]["base"]) == ["small", "large-or/larger"]  # the task's own spelling
    assert one["shares"]["base"]["small"]["value"] == pytest.approx(0.75)
    assert one["table"].notes[0].endswith(" small-or/large.") and one["table"].rows[1][2].endswith("0 +0 −3")
    assert kinds is not None and [row[1].split("\n")[0] for row in kinds.rows] == ["1.75", "1.00"]


def test_a_record_of_other_completions_has_no_kinds() -> None:
    other = Record({"world": WORLDS["demo"].identity, "problem_ids": ["1-2=3"]}, {1.0: [np.log([0.5])]}, {})
    assert len(WORLDS["demo"].solutions(Problem((1, 2), 3))) == 2 and kinds_of({"base": [other]}, 8) == []


@pytest.mark.parametrize(("change", "said"), [({"counts": None}, "invalid content"), ({}, "'max_number' is missing")])
def test_damaged_words_of_a_world_are_a_refusal(change: dict[str, object], said: str) -> None:
    identity = {key: value for key, value in WORLDS["demo"].identity.items() if change or key != "max_number"}
    advice = "make the record again, with sage-rlvr eval RUN or by the demo or sweep that it is of"
    with pytest.raises(DataError, match=rf"^a.npz: world = .'name': 'countdown', .*; {advice}$") as caught:
        described(identity | change, where="a.npz")
    assert said in str(caught.value)


def test_countdown_describes_itself_and_finds_a_problem_by_its_id() -> None:
    world = WORLDS["demo"]
    assert described(world.identity) == "Countdown: 4 numbers of 1..9, targets 1..20, drawn by expression"
    assert described({"name": "riddles"}) == "riddles" and described({}) == ""
    problem = Problem((3, 5, 7, 11), 24)
    assert world.problem_of(problem.problem_id) == problem
    assert world.kinds_of(problem, "3*(5+7)-11") == ["+−×", "((·(··))·)"]
    with pytest.raises(DataError, match="no id of a Countdown problem"):
        world.problem_of("riddle 4")


EXPERIMENTS = Path(__file__).parents[2] / "lab" / "experiments"


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [
        (
            "2026-11-22_sparse99",
            r"- pass@1: \+0\.017 is excluded \(SAGE-Branch minus GRPO here \+0\.0002, 95 % interval −0\.005 to \+0\.\d+ over \d "
            r"training seeds\)\.",
        ),
        (
            "2026-11-25_branch_grid",
            r"The standard deviation of their means is \d\.\d{4}; for equal arms seed noise would give \d\.\d{4} \(F test: p "
            r"[=<] 0\.\d{3}\)\.",
        ),
        (
            "2026-11-21_table1",
            r"- GRPO A \(seeds 0, 1, 2\) vs GRPO B \(seeds 3, 4, 5\), pass@1: no significant difference for these methods "
            r"\(difference \+0\.005, 95 % interval −0\.003 to \+0\.012 over 3 training seeds on these 300 "
            r"problems, p = 0\.\d{3}; minimum detectable",
        ),
        (
            "2026-11-22_few_problems_rep",
            r"3 policies on the same 300 test problems, all right answers enumerated, so every probability is an exact sum; "
            r"250 steps; 6 training seeds each, paired; 95 % intervals are over training seeds \(Student's t\)\.",
        ),
        ("2026-11-22_few_problems_rep", r"\*250 training steps · training seeds per arm: 6\*"),
        ("2026-11-24_long_answers", r"Sampled on countdown_steps; without an exact evaluation\."),
    ],
)
def test_the_page_of_a_stored_summary_states_what_was_compared(folder: str, sentence: str) -> None:
    assert re.search(sentence, report(EXPERIMENTS / folder).markdown())


def test_the_processors_of_all_runs_are_listed() -> None:
    """One that two runs share once; libraries of one version are one set, wherever the runs were trained."""
    libraries = {"torch": "2.13.0"}
    first, second = (TrainingRun(arm="a", seed=0, versions=libraries, processors=names) for names in (("A",), ("A", "B")))
    assert versions({"a": [first, second]}) == [("torch", "2.13.0"), ("2 processors:", "A; B")]
    assert versions({"a": [first]}) == [("torch", "2.13.0"), ("processor", "A")]
    assert versions({"a": [TrainingRun(arm="a", seed=0, versions=libraries)]}) == [("torch", "2.13.0")]


@pytest.mark.slow
def test_gains_by_how_often_the_base_solves_a_problem_are_laid_out_from_the_summary(tmp_path: Path) -> None:
    """The base solves half of the problems never and the others always; the arm solves all."""
    for name, never in (("base", 0), ("rl", 4)):
        rows = [{"id": f"p{i}", "n": 4, "c": never if i % 2 else 4} for i in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert call("compare", tmp_path / "base.jsonl", tmp_path / "rl.jsonl", "--out", tmp_path / "page") == 0
    (one,) = page_of(json.loads((tmp_path / "page" / "summary.json").read_text()))["unlocked"]
    assert (one["pair"], one["half"], one["k"]) == (("rl", "base"), 2, 1)
    never, always = one["rows"]
    assert (never["right"], never["share"], never["naive"], never["redrawn"], never["gain"]["value"]) == ("0", 0.5, 1, 0, 1)
    assert (always["right"], always["naive"], always["redrawn"], always["gain"]["value"]) == ("1–2", 0, 0, 0)
    assert never["gain"]["low"] > 0.5 > always["gain"]["high"] and (tmp_path / "page" / "figures" / "unlocked-1.png").exists()
