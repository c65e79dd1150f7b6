"""Why completions earned nothing: the reason "no answer" of every task, the sentences above a half, and other places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.tasks import TASKS, task_named
from sage_rlvr.tasks.base import problems_of, verdicts
from sage_rlvr.tasks.unanswered import elsewhere_of, read_at
from sage_rlvr.verifiers import UNANSWERED, Verdict
from sage_rlvr.verifiers.reasons import LOOKED, Elsewhere, Reasons, ReasonWatch, elsewhere
from sage_rlvr.verifiers.rewards import MathReward, math_reward

NOTHING = "I do not know."
NONE, CUT_OFF, WRONG = Verdict("wrong", "no answer"), Verdict("wrong", "answer cut off"), Verdict("wrong", "value")
RIGHT, LATE = Verdict("right", "right"), Verdict("undecided", "took longer than 5 s")
OTHERS: dict[str, Any] = {  # a task's name -> a wrong answer to a problem
    "countdown": lambda task, problem: "1+1",
    "countdown_chat": lambda task, problem: "1+1",
    "countdown_steps": lambda task, problem: "1+1=3",
    "word_problems": lambda task, problem: task.reference(problem) + "0",
    "knights_and_knaves": lambda task, problem: "CONCLUSION:\n(1) Nobody is a knave",
}


def rows(folder: Path) -> Path:
    path = folder / "my.jsonl"
    path.write_text('{"problem": "2+2?", "answer": "4"}\n{"problem": "2+3?", "answer": "5"}\n')
    return path


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_each_task_has_a_word_for_no_answer_and_others_for_a_wrong_one(name: str) -> None:
    task = task_named(name)
    problem = problems_of(task, "test", 1, 1)[0]
    none, wrong = verdicts(task, [(problem, NOTHING), (problem, OTHERS[name](task, problem))])
    assert none.unanswered and none.reason in UNANSWERED
    assert wrong.label == "wrong" and not wrong.unanswered


def test_the_battery_has_every_task_with_completions_of_its_own() -> None:
    """A new task must say which of its reasons means "no answer"; the others are in the tests below."""
    assert set(TASKS) - set(OTHERS) == {"gsm_symbolic", "jsonl", "math", "reasoning_gym", "repair"}


def test_repair_and_reasoning_gym_have_one_too() -> None:
    repair = pytest.importorskip("sage_rlvr.contrib.tasks.repair").Repair()
    found = verdicts(repair, [(repair.problems("test")[0], NOTHING)])
    assert found[0].unanswered
    pytest.importorskip("reasoning_gym")
    gym: Any = TASKS["reasoning_gym"]("leg_counting", count=2)
    problem = gym.problems()[0]
    found = verdicts(gym, [(problem, NOTHING), (problem, r"\boxed{-1}"), (problem, f"It is {problem.answer}.")])
    assert [one.unanswered for one in found] == [True, False, True]
    grade: Any = TASKS["gsm_symbolic"]()
    (one,) = grade.draw("test", 1, 1)
    assert [said.unanswered for said in verdicts(grade, [(one, NOTHING), (one, r"\boxed{-1}")])] == [True, False]
    there = elsewhere_of(gym, [(problem, f"It is {problem.answer}.")], [NONE])
    assert there == Elsewhere(looked=1, answer_in="last_number", tag="", answers=1, right=1)


@pytest.mark.parametrize(
    ("text", "unanswered"),
    [(NOTHING, True), (r"\boxed{4", True), (r"\boxed{}", True), (r"\boxed{5}", False), (r"\boxed{4}", False)],
)
def test_mathematics_has_no_answer_where_the_box_is_absent_empty_or_open(text: str, unanswered: bool, tmp_path: Path) -> None:
    task: Any = task_named(str(rows(tmp_path)))
    assert task.verify(task.problems()[0], text).unanswered == unanswered


def test_a_reward_of_ones_own_keeps_the_reason_of_its_verdict(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from sage_rlvr.verifiers import Verdict\n"
        "def score(completion, row):\n"
        "    return Verdict('wrong', 'no answer') if not completion else Verdict('right', 'a long reason', 0.5)\n"
    )
    task: Any = TASKS["jsonl"](str(rows(tmp_path)), reward=f"{tmp_path / 'mine.py'}:score", right_from=0.5)
    problem = task.problems("train")[0]
    none, other = task.verify_all([(problem, ""), (problem, "4")])
    assert none.unanswered and none.reward == 0.0
    assert (other.label, other.reason, other.reward) == ("right", "a long reason", 0.5)


# ---- counts and sentences


def test_counts_fractions_and_metrics() -> None:
    found = Reasons.of([NONE, CUT_OFF, WRONG, RIGHT, LATE], [False, True, True, None, None])
    assert (found.total, found.unanswered, found.undecided, found.cut, found.ends) == (5, 2, 1, 2, 3)
    assert found.metrics() == {"verifier/no_answer_frac": 0.4, "verifier/undecided_frac": 0.2}
    assert found.fractions() == {"no_answer_frac": 0.4, "cut_frac": 2 / 3, "undecided_frac": 0.2}
    assert Reasons.of([]).metrics() == {"verifier/no_answer_frac": 0.0, "verifier/undecided_frac": 0.0} and not Reasons.of([]).kinds
    assert Reasons.of([NONE]).cut_frac is None
    assert Reasons.sum([found, found]).unanswered == 4


@pytest.mark.parametrize(
    ("said", "cut", "kinds"),
    [
        ([NONE, RIGHT], None, ()),  # a half is not above a half
        ([NONE, NONE, RIGHT], None, ("no answer",)),
        ([LATE, LATE, NONE], None, ("undecided",)),
        ([WRONG, WRONG, RIGHT], [True, True, False], ("cut",)),
        ([NONE, NONE, RIGHT], [True, True, False], ("cut", "no answer")),
    ],
)
def test_what_is_above_a_half_is_told(said: list[Verdict], cut: Any, kinds: tuple[str, ...]) -> None:
    assert tuple(kind for kind, _ in Reasons.of(said, cut).problems()) == kinds


def test_the_sentences_name_numbers_place_and_next_step() -> None:
    there = Elsewhere(looked=200, answer_in="last_number", tag="", answers=171, right=69)
    ((_, sentence),) = Reasons.of([NONE] * 240).problems(location=r"in \boxed{}", search=lambda: there)
    assert sentence.startswith(r"no answer in \boxed{} in 240 of 240 completions")
    assert "of 200 such texts 171 have one as the last number, 69 of them right: set answer_in: last_number" in sentence
    ((_, cut), (_, none)) = Reasons.of([NONE] * 4, [True] * 4).problems(limit="--max-new-tokens")
    assert cut.endswith("raise --max-new-tokens") and "4 of them were cut" in none and "sft" not in none
    ((_, late),) = Reasons.of([LATE] * 3).problems()
    assert "3 of 3 completions are undecided" in late and "took longer than 5 s: 3" in late and "sage-rlvr verify" in late
    ((_, other),) = Reasons.of([Verdict("wrong", "not an expression")] * 3).problems()
    assert other.startswith("no answer (not an expression: 3) in 3 of 3")
    none_right = Elsewhere(looked=3, answer_in="stated", tag="", answers=3, right=0)
    assert "none of them right" in none_right.words() and "set answer_in" not in none_right.words()


# ---- other places


@pytest.mark.parametrize(
    ("text", "place", "setting"),
    [
        ("So it is 4.", ("last_number", ""), "answer_in: last_number"),
        ("I add.\nAnswer: 4", ("stated", ""), "answer_in: stated"),
        ("<answer>4</answer>", ("tag", "answer"), "answer_in: tag, tag: answer, with prompt: as_is"),
        ("<SOLUTION>4</SOLUTION> of 3", ("tag", "SOLUTION"), "answer_in: tag, tag: SOLUTION, with prompt: sage"),
    ],
)
def test_the_place_with_most_right_answers_is_named(text: str, place: tuple[str, str], setting: str, tmp_path: Path) -> None:
    task: Any = task_named(str(rows(tmp_path)))
    assert read_at(task) == r"in \boxed{}"
    problem = task.problems()[0]
    pairs = [(problem, text)] * 3 + [(problem, "nothing")]
    found = elsewhere_of(task, pairs, [NONE] * 4)
    assert found is not None and (found.answer_in, found.tag) == place
    assert (found.looked, found.answers, found.right) == (4, 3, 3) and setting in found.words()


def test_only_so_many_texts_are_looked_at_and_cut_ones_never(tmp_path: Path) -> None:
    task: Any = task_named(str(rows(tmp_path)))
    problem = task.problems()[0]
    found = elsewhere_of(task, [(problem, "It is 4.")] * (LOOKED + 50), [NONE] * (LOOKED + 50))
    assert found is not None and found.looked == LOOKED
    assert elsewhere_of(task, [(problem, "It is 4.\N{REPLACEMENT CHARACTER}")], [NONE]) is None
    assert elsewhere_of(task, [(problem, "It is 4.")], [WRONG]) is None
    assert elsewhere_of(task_named("countdown"), [(problem, "It is 4.")], [NONE]) is None
    assert elsewhere(["no number"]) is None and elsewhere([]) is None


# ---- during training


def test_the_watch_warns_once_of_a_kind() -> None:
    told: list[tuple[str, int, str]] = []
    watch = ReasonWatch(lambda *said: told.append(said))
    for step in range(3):
        watch.see(step, Reasons.of([NONE, NONE, RIGHT]), r"in \boxed{}")
    watch.see(3, Reasons.of([LATE]))
    assert [said[:2] for said in told] == [("no answer", 0), ("undecided", 3)]
    assert told[0][2].startswith(r"step 0: no answer in \boxed{} in 2 of 3")


class State:
    global_step = 4


def test_math_reward_logs_and_warns_in_any_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sage_rlvr.verifiers.reasons._PROCESS", ReasonWatch())
    logged: dict[str, float] = {}
    columns: Any = {"answer": ["4", "5"], "log_metric": logged.__setitem__, "trainer_state": State()}
    with pytest.warns(UserWarning, match=r"step 4: no answer in \\boxed\{\} in 2 of 2 .* as the last number, 1 of them right"):
        assert math_reward(["It is 4.", "It is 6."], **columns) == [0.0, 0.0]
    assert logged == {"verifier/no_answer_frac": 1.0, "verifier/undecided_frac": 0.0}
    assert MathReward(answer_in="last_number")(["It is 4.", "It is 6."], answer=["4", "5"]) == [1.0, 0.0]
