"""The audit of a reward function: counts by hand for rewards made here, the signatures, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command import call as command
from command import said as output
from sage_rlvr.contrib.audit import audit_reward, audit_reward_on_pairs, lines_of, rewards, worker
from sage_rlvr.contrib.audit.mathematics import equal_answers
from sage_rlvr.errors import ConfigError, DataError, suggest
from sage_rlvr.tasks import jsonl
from sage_rlvr.tasks.jsonl import _judge
from sage_rlvr.verifiers import Verdict, pool
from sage_rlvr.verifiers.exact import verify_exact
from sage_rlvr.verifiers.foreign import RewardCall, call, lacking, signature_of

ROWS = [
    {"id": "a", "question": "2 + 3?", "answer": "5"},
    {"id": "b", "question": "3 * 4?", "answer": 12},
    {"id": "c", "question": "10^3?", "answer": "10^3 is\n#### 1,000"},
    {"id": "d", "question": "1 / 2?", "answer": r"so \boxed{\frac{1}{2}}"},
]
WRONG = 4 * 7 + 11 + 14 + 14 + 9 + 4 * 7 + 8 * 2 * 2
EQUAL, CALLS = 3 + 3 + 4 + 5, 7 * 4 + 4 + 15 + WRONG + 12 * 4 + 16
"""By hand: seven wrong values per row; near values of 5, 12, 1,000 and 1/2; seven texts per row, eight phrases before and behind
another answer on two rows; spellings of 5, 12, 1,000 and 1/2; calls: forms, working, spellings, wrong
answers, twelve constants on four rows, and eight completions twice. Written bare, the form without an answer is the empty text:
four fewer. Where no call gives a number, there is no second call of the eight: eight fewer. Forms
that are paid equally often are tried behind a working: six more, on four rows."""

NUMBER = "calls that return a number within 5 s"

REWARDS = r'''
import os, re, time
from sage_rlvr.verifiers.exact import verify_exact
from sage_rlvr.verifiers.golds import gold_of

def right(text, gold):
    boxes = re.findall(r"\\boxed\{(.*)\}", text)
    return float(bool(boxes) and verify_exact(boxes[-1].replace("x = ", ""), gold_of(gold)[0]).right)

def perfect(completions, answer, **columns):
    assert "question" in columns and "prompts" in columns
    return [right(text, gold) for text, gold in zip(completions, answer)]

def always(completions, **columns):
    return [1.0 for _ in completions]

def never(completions, **columns):
    return [None for _ in completions]

def raises_on_nothing(completions, answer, **columns):
    if "" in completions:
        raise ValueError("nothing to judge")
    return [right(text, gold) for text, gold in zip(completions, answer)]

def hangs_on_nothing(completions, answer, **columns):
    while "" in completions:
        time.sleep(1)
    return [right(text, gold) for text, gold in zip(completions, answer)]

def hangs(completions, **columns):
    time.sleep(1000)

def first_only(completions, answer, **columns):
    return [float(i == 0) * right(text, gold) for i, (text, gold) in enumerate(zip(completions, answer))]

counted = 0
def every_third_call(completions, answer, **columns):
    global counted
    counted += 1
    return [(counted % 3 == 1) * right(text, gold) for text, gold in zip(completions, answer)]

def one_more(completions, **columns):
    return [1.0] * (len(completions) + 1)

def not_a_list(completions, **columns):
    return 1.0

async def later(completions, answer, **columns):
    return [right(text, gold) for text, gold in zip(completions, answer)]

def conversations(completions, solution, **columns):
    return [right(one[0]["content"], gold) for one, gold in zip(completions, solution)]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "rows" and extra_info["question"]
    return {"score": right(solution_str, ground_truth), "acc": True}

async def func(completion, answer, **kwargs):
    assert kwargs["state"]["answer"] == answer
    return right(completion if isinstance(completion, str) else completion[-1]["content"], answer)

class Rubric:
    def __init__(self):
        self.funcs, self.weights, self.class_objects = [self.half, func], [0.0, 1.0], {"parser": str}

    def half(self, parser, completion):
        return 0.5

rubric = Rubric()

def leaves_a_child(completions, answer, **columns):
    if "" in completions:
        os.fork()  # the child has the worker's pipe too
        time.sleep(1000)
    return [right(text, gold) for text, gold in zip(completions, answer)]

def only_twelve(completions, answer, **columns):
    return [float(gold == 12) for gold in answer]

def score(completion, row):
    return right(completion, row["answer"])

def none_of_these(response, label):
    return 1.0

def needs_more(completions, color):
    return [1.0]
'''


@dataclass
class Here:
    """A `Pool` without processes: the reward is loaded and called in this one, with arguments as JSON has them."""

    workers: int
    seconds: float
    memory_mb: int
    function: str
    cache: int
    python: str | None = None

    @cached_property
    def loaded(self) -> Callable[..., Verdict]:
        reward, _, first = self.function.partition(":judge|")[2].partition("|")
        function = worker._loaded(reward)
        if first:
            worker._one(function, *json.loads(first))
        return partial(worker._done, function)

    def submit(self, *args: Any) -> Future[Verdict]:
        found: Future[Verdict] = Future()
        found.set_result(self.loaded(*json.loads(json.dumps(args))))
        return found

    def close(self) -> None:
        pass


@pytest.fixture
def made_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """made_apart(function, **options) -> the audit on the four rows, without the ratio of times and with three short hostile
    texts."""
    (tmp_path / "some_rewards.py").write_text(REWARDS)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    monkeypatch.setattr(rewards, "_time", lambda *_: ("", None, None))
    monkeypatch.setattr(rewards, "FIRST_SECONDS", 1.0)
    monkeypatch.setattr(rewards.RewardJudge, "phrases", lambda judge: [])  # as many as the code has texts
    monkeypatch.setattr(rewards, "hostile_texts", lambda write: {"unclosed": r"\boxed{5", "NUL": "\0", "tower": write("9^{9^{9}}")})
    return lambda function, **options: audit_reward(f"{tmp_path / 'some_rewards.py'}:{function}", ROWS, **options)


@pytest.fixture
def made(made_apart: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`made_apart` without worker processes."""
    monkeypatch.setattr(rewards, "Pool", Here)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return made_apart


def named(found: Any, name: str) -> Any:
    return next(check for check in found.checks if check.name == name)


@pytest.mark.parametrize("function", ["perfect", "later", "conversations", "compute_score", "func", "rubric", "score"])
def test_a_sound_reward_passes_in_every_signature(function: str, made: Any) -> None:
    found = made(function)
    assert found.passed, lines_of(found)
    figures = found.figures
    assert figures["form"] == r"\boxed{5}" and figures["golds"] == (4, 4) and figures["order"]
    assert (figures["accepts"], figures["rejects"], figures["floor"]) == ((0, WRONG), (0, EQUAL), (3, 4))
    assert figures["failed"] == (0, CALLS) and figures["hostile"] == (0, 3)
    signature = {"compute_score": "verl", "func": "verifiers", "rubric": "verifiers", "score": "row"}.get(function, "trl")
    assert f"({signature})" in found.head and ("conversations" in found.head) == (function == "conversations")


@pytest.mark.parametrize(
    ("function", "figures"),
    [
        ("always", {"form": "bare", "golds": (4, 4), "accepts": (WRONG, WRONG), "floor": (4, 4), "hostile": (3, 3)}),
        ("never", {"golds": (0, 4), "accepts": (0, WRONG), "failed": (0, CALLS - 4 + 24), "hostile": (0, 3)}),
        ("raises_on_nothing", {"golds": (4, 4), "accepts": (0, WRONG), "failed": (8, CALLS)}),
        ("one_more", {"golds": (0, 4), "failed": (CALLS - 12 + 24, CALLS - 12 + 24), "hostile": (3, 3)}),
        ("not_a_list", {"failed": (CALLS - 12 + 24, CALLS - 12 + 24)}),
    ],
)
def test_each_fault_is_counted(function: str, figures: dict[str, Any], made: Any) -> None:
    found = made(function)
    assert not found.passed and {name: found.figures[name] for name in figures} == figures


def test_a_failure_names_the_shortest_text_and_how_often(made: Any) -> None:
    calls = named(made("raises_on_nothing"), NUMBER)
    assert re.fullmatch(r"raised ValueError: nothing to judge \(line \d+\) on '' \(8 calls\)", calls.rows[0].reason)
    calls = named(made("one_more"), NUMBER)
    assert "one completion got 2 rewards: [1.0, 1.0]" in calls.rows[0].reason


def test_a_reward_that_depends_on_the_batch_or_on_earlier_calls_is_found(made: Any) -> None:
    found = made("first_only")  # 4 right and 4 wrong completions: all right ones but the first lose
    assert named(found, "the same reward in a second call").good == 8 and not found.figures["order"]
    batch = named(found, "the same reward in a batch of 8")
    assert (batch.good, batch.total) == (5, 8)
    assert (batch.rows[0].problem_id, batch.rows[0].reason) == ("b", r"'\boxed{12}' earns 1 alone and 0 here")
    again = named(made("every_third_call"), "the same reward in a second call")  # pays other right ones 8 calls later
    assert again.total == 8 and again.good in (5, 6) and re.search(r"earns [01] and then [01]$", again.rows[0].reason)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["hangs_on_nothing", "leaves_a_child"])
def test_a_hang_is_a_finding_and_the_audit_goes_on(function: str, made_apart: Any) -> None:
    found = made_apart(function, seconds=0.3, problems=1)
    assert found.figures["golds"] == (1, 1) and found.figures["failed"][0] == 2
    assert named(found, "calls that return a number within 0.3 s").rows[0].reason == "took longer than 0.3 s on '' (2 calls)"


@pytest.mark.slow
def test_os_exit_is_told_at_once_and_costs_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ends.py").write_text("import os\n\ndef score(completions, answer, **more):\n    os._exit(0)\n")
    Path("ends_early.py").write_text("import os\nos._exit(0)\n")
    found = audit_reward("ends.py:score", ROWS, problems=1)
    (calls,) = [check for check in found.checks if check.name == NUMBER]
    assert "raised SystemExit: os._exit(0) (line 4)" in calls.rows[0].reason and f"({calls.total} calls)" in calls.rows[0].reason
    monkeypatch.setattr(pool, "STARTS", 1)
    with pytest.raises(ConfigError, match=r"ends_early\.py:score: SystemExit: os\._exit\(0\) \(line 2\)"):
        audit_reward("ends_early.py:score", ROWS)


@pytest.mark.slow
def test_a_reward_in_another_environment(made_apart: Any) -> None:
    found = made_apart("perfect", python=sys.executable)
    assert found.passed and found.figures["failed"] == (0, CALLS)
    with pytest.raises(ConfigError, match=r"python 'no/such/python': there is no such program"):
        made_apart("perfect", python="no/such/python")


def test_a_gold_that_the_reward_cannot_read_is_not_what_hostile_texts_are_judged_by(made: Any) -> None:
    found = made("only_twelve")
    assert found.figures["golds"] == (1, 4) and named(found, rewards.HOSTILE).rows[0].reason.endswith("earns 1, gold '12'")


@pytest.mark.slow
def test_a_reward_that_always_hangs_is_given_up(made_apart: Any) -> None:
    found = made_apart("hangs", seconds=0.2)
    assert found.figures["failed"] == (8, 8) and found.figures["hostile"] == (0, 0)
    assert "not called after 8 calls" in named(found, rewards.HOSTILE).note and not found.passed


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("none_of_these", r"its parameters \(response, label\) fit none of reward\(completions, \*\*columns\) \(trl\); compu"),
        ("needs_more", r"needs color, which is no column of the rows \(id, question, answer\)"),
        ("nothing", r"some_rewards\.py has no nothing; it has verify_exact, gold_of, right, perfect"),
    ],
)
def test_a_reward_that_cannot_be_called_is_an_error(function: str, message: str, made_apart: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        made_apart(function)


def test_what_is_refused(tmp_path: Path) -> None:
    for reward, message in [
        ("module", "write module:function or path/to/file.py:function"),
        (str(tmp_path / "none.py:f"), "there is no file none.py in"),
        (lambda completions: [1.0], "pass module:function or path"),
    ]:
        with pytest.raises(ConfigError, match=message):
            audit_reward(reward, ROWS)
    with pytest.raises(ConfigError, match=r"signature 'tlr': choose one of trl, verl, verifiers, row"):
        audit_reward("a:b", ROWS, signature="tlr")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"--gold = 'label': no such column"):
        audit_reward("a:b", ROWS, gold="label")
    with pytest.raises(ConfigError, match=r"no column for the answer .*name it: --gold NAME"):
        audit_reward("a:b", [{"label": 1}])
    with pytest.raises(DataError, match=r"rows, row 1, column answer: the answer is missing"):
        audit_reward("a:b", [{"answer": "1"}, {"answer": None}])


@pytest.mark.slow
def test_the_command_prints_the_audit_and_its_exit_code(made_apart: Any, capsys: Any, tmp_path: Path) -> None:
    reward, rows = f"{tmp_path / 'some_rewards.py'}:", str(tmp_path / "rows.jsonl")
    assert command("audit", "--reward", reward + "perfect", "--rows", rows) == 0
    text = output(capsys)[0]
    assert "golds paid, written as \\boxed{5}" in text and "4 of 4 rows" in text and text.rstrip().endswith("passed")
    words = ("audit", "--reward", reward + "always", "--rows", rows, "--problems", "3")
    assert command(*words, "--out", str(tmp_path / "page.md")) == 2
    assert "a: paid, '' earns 1, gold '5'" in output(capsys)[0]
    assert f"Made by `{suggest(*words)}`." in (tmp_path / "page.md").read_text()
    for words, message in [
        (("--reward", "a:b"), "pass either --rows FILE"),
        (("pairs", "--reward", "a:b", "--rows", rows), "pass either --rows FILE"),
        (("pairs", "--reward", "a:b", "--gold", "x", "--problems", "9"), "--gold, --problems: for a reward on --rows FILE"),
        (("--rows", rows), "--rows: for the audit of a reward"),
        (("--reward", "a:b", "--rows", rows, "--template", "sage"), "--template: for the audit of a task"),
    ]:
        assert command("audit", *words) == 2 and message in " ".join(output(capsys)[1].split())


def test_pairs_of_known_verdict(made_apart: Any, tmp_path: Path) -> None:
    found = audit_reward_on_pairs(f"{tmp_path / 'some_rewards.py'}:always")
    assert named(found, "different, not called right").good == 0 and named(found, "equal, called right").share == 1


# ---- without a worker


def test_hostile_texts_can_be_sent_to_a_worker_and_hold_no_gold() -> None:
    texts = rewards.hostile_texts(r"\boxed{{{}}}".format)
    assert len(texts) == len(set(texts.values())) == 29
    assert all(json.loads(json.dumps(text)) == text for text in texts.values())
    assert texts["factorial"] == r"\boxed{(10^{9})!}" and texts["NUL"] == "\0"


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (lambda completions, **columns: [], "trl"),
        (lambda prompts, completions: [], "trl"),
        (lambda solution_str, ground_truth: 0, "verl"),
        (lambda completion, answer: 0, "verifiers"),
        (lambda completion, row: 0, "row"),
        (lambda text, gold: 0, None),
        (print, None),
    ],
)
def test_a_signature_is_read_from_the_parameters(function: Any, signature: str | None) -> None:
    assert signature_of(function) == signature


def test_a_function_gets_what_it_names() -> None:
    sample = RewardCall("t", {"color": "red", "prompt": "?"}, "5", "2 + 3?", chat=True)
    message = [{"role": "assistant", "content": "t"}]
    assert call(lambda completions, prompts, color, solution: [(completions, prompts, color, solution)], "trl", [sample]) == [
        ([message], ["2 + 3?"], ["red"], ["5"])
    ]
    assert call(lambda completion, answer, color: (completion, answer, color), "verifiers", [sample]) == [(message, "5", "red")]
    assert lacking(lambda completions, shade, answer: [], "trl", sample) == ["shade"]
    with pytest.raises(TypeError, match="2 completions got 1 rewards"):
        call(lambda completions: [1.0], "trl", [sample, sample])


def test_a_task_of_rows_takes_every_signature() -> None:
    async def later(completion: Any, answer: str) -> float:
        return float(completion == answer)

    def compute_score(solution_str: str, ground_truth: str) -> float:
        return float(solution_str == ground_truth)

    for reward in (later, compute_score, lambda text, of: float(text == of["answer"])):
        assert [_judge(reward, text, {"color": "red"}, "?", "5").score for text in ("5", "6")] == [1.0, 0.0]


@pytest.mark.parametrize("column", ["answer", "target"])
def test_a_reward_gets_a_gold_as_it_is_in_the_row_from_a_task_and_from_the_audit(
    column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golds = [" 5 ", 5, "2+3\n#### 5", [" 5"]]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "?", "id": str(i), column: gold}) + "\n" for i, gold in enumerate(golds)))
    (tmp_path / "my.py").write_text("def score(completion, row):\n    return 1.0\n")
    given: list[Any] = []
    verify = SimpleNamespace(verify=lambda items: [given.append(item[-1]) or Verdict("right", "", 1.0) for item in items])
    monkeypatch.setattr(jsonl, "reward_pool", lambda *_: verify)
    task = jsonl.RewardTask(str(rows), f"{tmp_path / 'my.py'}:score", answer_column=column)
    task.verify_all([(problem, "5") for problem in task.problems()])
    assert given == golds == [row.raw for row in rewards._rows_of(str(rows), column)[0]]
    assert [problem.answer for problem in task.problems()] == ["5"] * 4
    given.clear()
    exact = jsonl.RewardTask(str(rows), "exact", answer_column=column)
    exact.verify_all([(problem, "5") for problem in exact.problems()])
    assert given == ["5"] * 4


@pytest.mark.parametrize(
    ("gold", "made"),
    [
        ("5", ["$5$", "5.0", "x = 5"]),
        ("1,000", ["$1,000$", "1000.0", "1000", "x = 1,000"]),
        (r"\frac{1}{2}", [r"$\frac{1}{2}$", "1/2", "0.5", r"x = \frac{1}{2}", r"\dfrac{1}{2}"]),
        (r"\{1,2\}", [r"$\{1,2\}$", r"\{2, 1\}"]),
        (r"\text{Evelyn}", [r"$\text{Evelyn}$"]),
    ],
)
def test_answers_that_are_right_by_construction(gold: str, made: list[str]) -> None:
    assert [answer for _, answer in equal_answers(gold)] == made
    assert all(verify_exact(answer.removeprefix("x = "), gold).right for answer in made)
