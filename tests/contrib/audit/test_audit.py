"""The audit: floors and perturbations by hand, what it says of good and of broken rows, and the two commands."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from markdown_it import MarkdownIt

from chat_policy import OFF, chat_policy, rows_file
from sage_rlvr.cli import app as cli
from sage_rlvr.contrib.audit import (
    Check,
    audit,
    lines_of,
    page_of,
    verify_lines,
    wrong_answers,
)
from sage_rlvr.contrib.audit.pages import BLIND
from sage_rlvr.contrib.audit.pairs import AnswerPair, audit_file, read_pairs, rows_of
from sage_rlvr.contrib.audit.peers import ENVIRONMENT, lm_eval_verdicts
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks import TASKS
from sage_rlvr.tasks.base import Task
from sage_rlvr.tasks.checks import Case
from sage_rlvr.tasks.math_sets import SETS
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.exact import verify_exact
from sage_rlvr.verifiers.golds import no_answer
from sage_rlvr.verifiers.math import verify_math
from sage_rlvr.verifiers.pool import shared

needs_data = pytest.mark.skipif(
    not os.environ.get("SAGE_RLVR_DATA"),
    reason="SAGE_RLVR_DATA names no folder: the problems' texts are not in the repository",
)


pytestmark = pytest.mark.usefixtures("shared_pool_closed")
READING = {"answer_in": "boxed", "tag": "SOLUTION"}


@pytest.mark.parametrize(
    "gold, other, made",
    [
        ("3", "4", {"+1": "4", "-1": "2", "sign": "-3", "reciprocal": "1/3", "another's": "4"}),
        ("0", "0.0", {"+1": "1", "-1": "-1"}),  # no sign, no reciprocal, and the other row has the same value
        ("-1", "x=-1", {"+1": "0", "-1": "-2", "sign": "1"}),
        ("2.5", "7", {"+1": "7/2", "-1": "3/2", "sign": "-5/2", "reciprocal": "2/5", "another's": "7"}),
        (
            "p - q",
            "1",
            {"+1": "p - q+1", "-1": "p - q-1", "sign": "-(p - q)", "reciprocal": r"\frac{1}{p - q}", "another's": "1"},
        ),
        (r"1 \pm \sqrt{2}", "1", {"another's": "1"}),  # its negative may be its other half
        (r"\text{Evelyn}", "Evelyn", {}),
        ("x=5", "5", {}),
    ],
)
def test_answers_that_are_wrong_by_construction(gold: str, other: str, made: dict[str, str]):
    assert dict(wrong_answers(gold, other)) == made
    assert not [answer for _, answer in wrong_answers(gold, other) if verify_exact(answer, gold).right]


def test_a_part_is_left_out_of_an_answer_with_several():
    assert [a for kind, a in wrong_answers("1,2,3", "1,2,3") if kind == "part"] == ["2,3", "1,3", "1,2"]
    assert wrong_answers(r"\{1,2\}", "2,1") == [("part", r"\{2\}"), ("part", r"\{1\}")]
    assert [a for kind, a in wrong_answers(r"\left[0,1\right)", "7") if kind == "part"] == ["[1)", "[0)"]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "own.jsonl"
    made = [
        {"id": "a", "problem": "One plus one?", "answer": "2", "solution": r"It is \boxed{3}."},
        {"id": "b", "problem": "A half?", "answer": r"\frac12", "solution": r"It is \boxed{0.5}."},
        {"id": "c", "problem": "one  plus one?", "answer": "2"},
        {"id": "d", "problem": "ONE plus one?", "answer": "11"},
        {"id": "e", "problem": "Which?", "answer": r"\hbar\broken("},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def named(found, name: str) -> Check:
    return next(check for check in found.checks if check.name == name)


@pytest.mark.slow
def test_it_names_the_rows_that_fail_and_says_why(rows: Path):
    found = audit(str(rows))
    broken = named(found, "the same by algebra, not by spelling")
    assert (broken.good, broken.total, broken.passed, found.passed) == (4, 5, False, False)
    assert [(r.problem_id, r.label, r.reason) for r in broken.rows] == [("e", "undecided", "gold cannot be parsed")]
    assert named(found, "gold right against itself").good == named(found, "format 'boxed': perfect answer").good == 5
    twins = named(found, "rows that stand once")
    assert [(r.problem_id, r.reason) for r in twins.rows] == [
        ("c", "of a, of the same gold"),
        ("d", "of a, OF ANOTHER GOLD"),
    ]
    solved = named(found, "answer of the source's worked solution")
    assert (solved.good, solved.total) == (1, 2) and solved.rows[0].problem_id == "a"
    assert named(found, "all wrong answers rejected").share == 1 and named(found, "second verifier agrees").share == 1
    text, page = "\n".join(lines_of(found)), page_of([found], "the command")
    assert "BELOW 99 %" in text and "      e: undecided, gold cannot be parsed" in text and "NOT PASSED" in text
    assert "| e | gold can be parsed | undecided | gold cannot be parsed |" in page and "**Not passed.**" in page
    for secret in ("One plus", r"\frac12", "broken"):
        assert secret not in text + page


@pytest.mark.slow
def test_what_it_costs_to_read_the_answer_in_another_place(rows: Path):
    rows.write_text("".join(line + "\n" for line in rows.read_text().splitlines()[:4]))
    assert named(audit(str(rows), "sage"), "format 'sage': perfect answer").good == 4
    wrong_place = audit(str(rows), "sage", answer_in="boxed")
    check = named(wrong_place, "format 'sage': perfect answer")
    assert (check.good, check.rows[0].reason, wrong_place.passed) == (0, "no answer", False)
    assert "      every row: wrong, no answer" in lines_of(wrong_place)


@pytest.mark.slow
def test_the_published_rule_of_knights_and_knaves_accepts_contradictions_and_the_strict_one_does_not():
    published, strict = audit("knights_and_knaves"), audit("knights_and_knaves_strict")
    both = "everybody called both"
    assert (named(published, both).good, named(published, both).total, published.passed) == (0, 700, False)
    assert (named(strict, both).good, strict.passed) == (700, True)
    assert named(strict, "guess floor: 8 people, 256 guesses").good == pytest.approx(
        63.3, abs=0.05
    )  # 1 - (255/256)^256 = 0.633


def test_what_is_refused():
    for options, message in [
        ({"task": "aime24"}, "choose one of aime"),
        ({"task": "aime", "k": 0}, "at least one guess"),
        ({"task": "aime", "template": "chat"}, "choose one of sage"),
        ({"task": "knights_and_knaves", "template": "sage"}, "one format, its own"),
    ]:
        with pytest.raises(ConfigError, match=message):
            audit(**options)
    assert Check("empty", 0, 0, bar=True).passed and not Check("low", 98, 100, bar=True).passed
    assert Check("at the bar", 99, 100, bar=True).passed and Check("no bar", 0, 9).passed


DAPO = "Solve it. The last line of your response should be of the form Answer: $Answer. {} Remember to put it after \"Answer:\"."


def own_prompts(found) -> Check:
    return next(check for check in found.checks if "rows' own prompts" in check.name)


class _Sums(Task):
    """Two problems of a task from outside."""

    name: ClassVar[str] = "sums"

    def __init__(self, *ids: str) -> None:
        self.ids = ids

    def problems(self, split: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(problem_id=name, answer=str(number)) for number, name in enumerate(self.ids)]

    def prompt(self, problem: SimpleNamespace) -> str:
        return f"0 + {problem.answer} ="

    def verify(self, problem: SimpleNamespace, completion: str) -> Verdict:
        right = completion in (problem.answer, rf"\boxed{{{problem.answer}}}")
        return Verdict("right", "value") if right else Verdict("wrong", "value")


class _DrawnSums(_Sums):
    """The same, and it draws problems for an evaluation."""

    def draw(self, split: str, seed: int, n: int, sampling: str) -> list[SimpleNamespace]:
        return self.problems(split)[:n]


@pytest.mark.parametrize("kind", [_Sums, _DrawnSums])
def test_ids_that_training_refuses_are_refused_by_the_audit(kind: type[_Sums]):
    assert audit(kind("a", "b")).passed
    with pytest.raises(DataError, match="task sums, test problems: the id 'a' is there 2 times; ids must differ"):
        audit(kind("a", "a"))


def test_the_rows_own_prompts_are_held_against_the_place_that_is_read(tmp_path: Path):
    texts = [DAPO.format("What is 1+1?"), r"What is 2+2? Put it within \boxed{}.", "What is 3+3? The answer is an integer."]
    rows = [{"prompt": [{"role": "user", "content": text}], "answer": str(2 * i)} for i, text in enumerate(texts, 1)]
    path = write_pairs(tmp_path / "own.jsonl", *rows)
    check = own_prompts(audit(str(path), "as_is"))
    assert (check.good, check.total, check.passed, check.note) == (2, 3, False, "1 name no place")
    assert [(row.problem_id, row.reason) for row in check.rows] == [("0", 'asks for it behind "Answer:"; set answer_in: stated')]
    assert not any("own prompts" in one.name for one in audit(str(path), "boxed").checks)  # its system message names the place
    stated = TASKS["jsonl"](str(write_pairs(path, rows[0])), prompt="as_is", answer_in="stated")  # as the recipe says it
    found = audit(stated)
    assert found.passed and own_prompts(found).good == 1 and "as_is (stated)" in found.head
    assert stated.verify(stated.problems()[0], "1+1 is 2.\n\nAnswer: $2$").right
    with pytest.raises(ConfigError, match=r"'boxed': its answer is read in <A>, which its system message does not request"):
        TASKS["jsonl"](str(path), answer_in="tag", tag="A")
    with pytest.raises(ConfigError, match=r"answer_in, tag, .*: of mathematics"):
        TASKS["jsonl"](str(path), reward="exact", answer_in="stated")


def test_a_recipes_audit_prints_the_prompt_as_the_policy_reads_it(tmp_path: Path, capsys):
    tree = {"steps": 1, "model": chat_policy(tmp_path / "policy"), "task": {"name": "jsonl", "file": rows_file(tmp_path, 3)}}
    recipe = tmp_path / "mine.yaml"
    for options in ({}, OFF):
        recipe.write_text(json.dumps({**tree, "chat_template_kwargs": options}))
        with pytest.raises(SystemExit):
            cli.main(["audit", str(recipe)])
        said = capsys.readouterr().out
        assert said.startswith("first prompt, ") and ("</think>" in said) == bool(options)
    recipe.write_text(json.dumps({**tree, "chat_template_kwargs": {"enable_thinkin": False}}))
    with pytest.raises(SystemExit) as ended:
        cli.main(["audit", str(recipe)])
    assert ended.value.code == 2 and "chat_template_kwargs.enable_thinkin:" in capsys.readouterr().err


@pytest.mark.slow
def test_a_task_without_golds_is_told_to_be_tried_by_wrong_texts_alone(tmp_path: Path, capsys, monkeypatch):
    """A line says that a reward pays a text that solves nothing, which one on the form may; the last how little was tried."""
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "2 3 6=", "sign": "*"}\n{"prompt": "2 5 7=", "sign": "+"}\n')
    Path("rewards.py").write_text(
        "def every(completion, row):\n    return float(len(completion) > 0)\n"
        "def sign(completion, row):\n    return float(row['sign'] in completion)\n"
    )
    codes, printed = [], []
    for reward in ("every", "sign"):
        Path("r.yaml").write_text(
            "model: embedded\nsteps: 2\nmethod: {name: grpo, beta: 0.0}\n"
            f"task: {{name: jsonl, file: rows.jsonl, test_file: rows.jsonl, reward: 'rewards.py:{reward}'}}\n"
        )
        with pytest.raises(SystemExit) as stop:
            cli.main(["audit", "r.yaml"])
        codes.append(int(stop.value.code or 0))
        printed.append(capsys.readouterr().out)
    assert codes == [0, 0] and all(BLIND in text and "\npassed" not in text for text in printed)
    lines = [re.search("'I do not know.' earns nothing +(.*?) +", text) for text in printed]
    assert [line and line[1] for line in lines] == ["0/2", "2/2"]


ANSWERS = "golds that a completion can give"


@pytest.mark.parametrize(
    "gold",
    [
        *("Thus the answer is 1.", "It is $5$.", "7 or 8", r"7 \text{ or } 8", "proof", "notfound", "N/A", "na"),
        *("Answers may vary", "Answers will vary.", "N.A.", "to be determined", "TBA", "not applicable", "A or B", "(A) or (B)"),
        *("https://example.com/a.png", "www.example.com/solution"),
        *("?", "see the solution", "We add both sides and find that x must be 3, as was to be shown"),
    ],
)
def test_a_gold_that_no_completion_gives_is_named(gold: str, tmp_path: Path):
    found = audit(str(write_pairs(tmp_path / "rows.jsonl", *({"problem": str(i), "answer": g} for i, g in enumerate(("5", gold))))))
    assert [row.problem_id for row in named(found, ANSWERS).rows] == ["1"] and not found.passed


def test_golds_of_the_published_pairs_are_answers():
    golds = {pair.gold for pair in read_pairs() if pair.right}
    assert not [gold for gold in golds if no_answer(gold)]
    met = ("no solution", "all real numbers", "none", "x=1 or x=2", "third", "Evelyn", "undefined", "-3", "Na")
    assert not any(map(no_answer, met))


def test_golds_in_words_that_a_completion_may_give_are_not_named():
    met = {  # gold -> another spelling that the verifier pays
        "seven": "7", "fifteen percent": r"15\%", "twenty-one": "21", "two thirds": r"\frac23", "x is in (1,2)": "(1,2)",
        "x is 5": "5",
        "x=5 or x=7": "5, 7", "Unknown": "unknown", "error": "Error", "null": "null", "none": "None", "nil": "nil",
    }  # fmt: skip
    assert not [gold for gold in met if no_answer(gold)]
    assert not [gold for gold, answer in met.items() if not verify_math(answer, gold, answer_in="whole").right]


def test_plain_names_of_functions_and_constants_are_golds(tmp_path: Path):
    golds = ("pi/3", "2*pi", "sqrt(2)/2", "x**2")
    found = audit(str(write_pairs(tmp_path / "rows.jsonl", *({"problem": gold, "answer": gold} for gold in golds))))
    assert found.passed and "formats and where the answer is read: boxed (boxed), as_is (boxed)" in found.head
    assert shared().verify([(r"\boxed{\frac{\pi}{3}}", "pi/3"), (r"\boxed{p\cdot i/3}", "pi/3")])[0].right
    unfinished = named(found, "format 'boxed': the gold in unfinished thinking earns nothing")
    assert (unfinished.good, unfinished.total) == (4, 4)


def test_verify_says_where_another_answer_stands(capsys):
    for answer, place in (("The answer is 25", "stated"), (r"<think>24</think> So \boxed{25}", "boxed")):
        with pytest.raises(SystemExit) as ended:
            cli.main(["verify", "25", answer])
        said = capsys.readouterr()
        assert ended.value.code == 0
        assert said.out.startswith("right") or ("cannot be parsed" in said.out and f"--answer-in {place}" in said.err)


def test_verdicts_on_a_file(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a", "completion": "\\\\boxed{0.5}", "answer": "1/2"}\n\n{"response": "no", "gold": 3}\n')
    assert verify_lines(path, READING) == [
        f"{path}: 2 rows; completion: completion or response; gold: answer or gold",
        "a\tright\tright",
        "3\twrong\tno answer",
        "1 right, 1 wrong (1 without an answer), 0 undecided",
    ]
    seen: list[int] = []

    @contextmanager
    def counting(total: int) -> Iterator[Callable[[int], None]]:
        seen.append(total)
        yield seen.append

    verify_lines(path, READING, counting, batch=1)
    assert seen == [2, 1, 1]
    for text, message in [
        ("{", "rows.jsonl:1: cannot be read as JSON"),
        ("[]", "list instead of a mapping"),
        ('{"answer": 1}', "no column for the completion"),
        ('{"completion": "5", "answer": NaN}', ":1, column answer.*: the answer is missing"),
    ]:
        path.write_text(text)
        with pytest.raises((ConfigError, DataError), match=message):
            verify_lines(path, READING)


@pytest.fixture(scope="module")
def judged():
    """The verdicts on all pairs as they stand, and with answer and gold exchanged."""
    pairs = read_pairs()
    turned = [pair.exchanged for pair in pairs]
    verdicts = [shared().verify([(pair.completion, pair.gold) for pair in side]) for side in (pairs, turned)]
    return {pair.pair_id: both for pair, *both in zip(pairs, *verdicts, strict=True)}


# id -> why this verifier does not get it; strict, so that one that is mended must leave the list
KNOWN_MISSES: dict[str, str] = {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id=pair.pair_id, marks=pytest.mark.xfail(reason=KNOWN_MISSES[pair.pair_id], strict=True))
        if pair.pair_id in KNOWN_MISSES
        else pytest.param(pair, id=pair.pair_id)
        for pair in read_pairs()
    ],
)
def test_a_pair_gets_the_verdict_of_mathematics_both_ways(judged, pair: AnswerPair):
    assert [verdict.right for verdict in judged[pair.pair_id]] == [pair.right, pair.right], judged[pair.pair_id]


def test_the_pairs_are_many_of_both_kinds_and_no_two_are_one():
    pairs = read_pairs()
    assert sum(pair.right for pair in pairs) >= 160 and sum(not pair.right for pair in pairs) >= 160
    assert len({(pair.answer, pair.gold) for pair in pairs}) == len(pairs)
    assert {pair.written for pair in pairs} == {"first", "second", "reported"}
    assert len({pair.pair_id for pair in pairs}) == len(pairs)
    lines = files("sage_rlvr.contrib.audit").joinpath("pairs.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")
    rows = [line.split("\t") for line in lines[1:]]
    assert {(len(row), row[2]) for row in rows} == {(5, "right"), (5, "wrong")} and len(rows) == len(pairs)
    assert not set(KNOWN_MISSES) - {pair.pair_id for pair in pairs}


@pytest.mark.slow
def test_the_audit_of_the_pairs_prints_both_rates_of_the_verifier_and_of_its_peers(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "/no/such/python")
    found = audit("pairs")
    assert found.passed and "not available: pip install" in found.head
    ours = named(found, "different, not called right")
    assert (ours.good, ours.total, ours.rows) == (393, 393, ()) and ours.note == "false positives 0.0 % (0.0 to 1.0)"
    peer = next(check for check in found.checks if "math-verify" in check.name and check.name.startswith("different"))
    assert 0.1 < 1 - peer.share < 0.3 and peer.rows == () and not peer.bar  # it drops units and whatever stands behind
    with pytest.raises(ConfigError, match="one format, its own"):
        audit("pairs", "boxed")


PAIRS_OF_A_FILE = [
    ("42", r"\boxed{\color{red}42}", True, {"note": "color"}),
    ("42", r"\boxed{42\text{ halved}}", False, {"note": "operation"}),
    ("42", "The answer is 42, since 6 * 7 = 42.", True, {"note": "reason", "place": "stated"}),
    ("42", "<A>43</A>", False, {"note": "tag", "place": "tag", "tag": "A"}),
    ("12", r"\boxed{\text{a dozen}}", True, {"note": "words", "debatable": True}),
]


def write_pairs(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
def test_a_file_of_pairs_is_judged_beside_math_verify_and_its_kinds_are_named(tmp_path: Path):
    rows = [{"gold": gold, "answer": answer, "right": right, **more} for gold, answer, right, more in PAIRS_OF_A_FILE]
    found = audit_file(write_pairs(tmp_path / "pairs.jsonl", *rows))
    assert found.passed and found.head.startswith("5 pairs, 1 of them debatable")
    different, equal = named(found, "different, not called right"), named(found, "equal, called right")
    assert (different.good, different.total, equal.good, equal.total) == (2, 2, 2, 2) and different.bar and equal.bar
    assert [row.problem_id for row in named(found, "decided").rows] == ["1"]
    assert (named(found, "equal, called right, debatable").good, named(found, "words").part) == (0, True)
    assert (named(found, "operation").good, named(found, "operation").note) == (1, "math-verify 0")
    rows[1]["right"] = True  # as if halved were a unit: the verifier does not say so
    assert not audit_file(write_pairs(tmp_path / "other.jsonl", *rows)).passed


def test_a_pair_that_cannot_be_used_is_named(tmp_path: Path):
    good = {"gold": "1", "answer": "1", "right": True}
    for change, message in [
        ({"gold": None}, r"bad.jsonl:2: no gold; a pair has gold, answer"),
        ({"right": "perhaps"}, r"bad.jsonl:2, right: 'perhaps'; write true or false"),
        ({"place": "top"}, r"bad.jsonl:2, place: 'top' is no place"),
        ({"gold": "\frac12"}, r"bad.jsonl:2, gold: .*control character"),
    ]:
        with pytest.raises(DataError, match=message):
            rows_of(write_pairs(tmp_path / "bad.jsonl", good, good | change))


@pytest.mark.slow
@needs_data
def test_the_open_pairs():
    found = audit_file(Path(os.environ["SAGE_RLVR_DATA"]) / "answer_pairs_open.jsonl")
    for name in ("different, not called right", "different, not called right, debatable"):
        assert named(found, name).good == named(found, name).total
    assert named(found, "equal, called right").share > 0.95


def test_lm_eval_is_asked_in_an_interpreter_of_its_own(tmp_path: Path, monkeypatch):
    package = tmp_path / "lm_eval" / "tasks"
    for task in ("minerva_math", "hendrycks_math"):
        (package / task).mkdir(parents=True)
        (package / task / "utils.py").write_text(
            "def get_unnormalized_answer(text): return text.split('$')[1]\n"
            "def normalize_final_answer(text): return text.strip()\n"
            f"def is_equiv(a, b): return a == b and {task == 'minerva_math'}\n"
        )
    (tmp_path / "lm_eval" / "__init__.py").write_text("raise ImportError('the package itself is not needed')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(ENVIRONMENT, sys.executable)
    assert lm_eval_verdicts([("1", "1"), (" 2", "2"), ("1", "2")]) == {
        "minerva_math": [True, True, False],
        "hendrycks_math": [False, False, False],
    }


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        cli.main(words)
    said = capsys.readouterr()
    return int(done.value.code or 0), said.out, said.err


@pytest.mark.slow
def test_the_verbs(capsys, rows: Path, tmp_path: Path):
    assert run(capsys, "verify", r"\frac12", "0.5")[:2] == (0, "right: right\n")
    assert run(capsys, "verify", "--", "-5", "5")[:2] == (0, "wrong: value\n")
    assert run(capsys, "verify", "42", r"17. \boxed{42}", "--answer-in", "boxed")[:2] == (0, "right: right\n")
    assert run(capsys, "verify", "42", "[bold]42")[:2] == (0, "wrong: value\n")
    code, _, error = run(capsys, "verify", "42")
    assert code == 2 and "pass either GOLD and ANSWER or --file" in error
    code, _, error = run(capsys, "verify", "42", "--file", str(rows))
    assert code == 2 and "either GOLD and ANSWER or --file" in error
    code, out, _ = run(capsys, "audit", str(rows), "--out", str(tmp_path / "page.md"))
    assert (
        code == 2 and "NOT PASSED" in out and (tmp_path / "page.md").read_text().startswith("# Audits of the verifiers")
    )
    rows.write_text(rows.read_text().splitlines()[0] + "\n")
    assert run(capsys, "audit", str(rows))[0] == 0
    code, _, error = run(capsys, "audit", "aime24")
    assert code == 2 and "choose one of" in error
    assert run(capsys, "audit")[0] == 2


def test_verify_of_a_file_shows_how_far_it_is(capsys, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"completion": "\\\\boxed{\\x1b5}", "answer": "5"}\n'.replace("\\x1b", "\\u001b") * 3)
    code, out, error = run(capsys, "verify", "--file", str(path))
    assert code == 0 and out.endswith("undecided\n") and "\x1b" not in out
    assert error.startswith(f"verify: reading {path}\n") and error.endswith("verify 3/3, done\n")


def test_a_page_links_nothing_that_a_row_says(capsys, tmp_path: Path):
    odd = "[x](javascript:alert(1)) | <img src=x> ![y](http://h/z.png) <http://h> `a` \x1b[2J"
    rows, page = tmp_path / "[l](javascript:b).jsonl", tmp_path / "page.md"
    lines = [{"id": f"{odd}{i}", "problem": "p", "answer": "1"} for i in range(3)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(capsys, "audit", str(rows), "--out", str(page))[0] == 0
    html = MarkdownIt("commonmark").enable("table").render(page.read_text())
    assert "<a" not in html.replace('<a href="tasks.md">', "") and "<img" not in html and "\x1b" not in html
    assert html.count("[x](javascript:alert(1)) | &lt;img src=x") == 4  # two rows that stand twice, and of which


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_page_on_a_full_disk_is_a_sentence(capsys, rows: Path, tmp_path: Path):
    for place, said in (("/dev/full", "the disk is full: this page needs"), (tmp_path, "cannot write a page: Is a dir")):
        code, _, error = run(capsys, "audit", str(rows), "--out", str(place))
        assert code == 2 and said in error and "Traceback" not in error


@needs_data
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "minerva" else name
        for name in SETS
    ],
)
def test_the_published_tasks_reach_the_bar(name: str):
    found = audit(name)
    assert found.passed, lines_of(found)
    parsed = named(found, "the same by algebra, not by spelling")
    assert [row.problem_id for row in parsed.rows] == (["minerva-5"] if name == "minerva" else [])
    assert named(found, "all wrong answers rejected").rows == () and named(found, "second verifier agrees").share == 1
    if name == "aime":
        assert named(found, "guess floor: 256 uniform guesses in 0..999").note.startswith(
            "1 - (1 - 1/1000)^256 = 0.226"
        )


@pytest.mark.slow
def test_other_places_are_looked_for_only_in_texts_without_an_answer() -> None:
    pairs = [(SimpleNamespace(problem_id=str(i)), r"\boxed{5}" if i < 4 else "the number 7") for i in range(10)]

    def judge(given: Any) -> list[Verdict]:
        return [Verdict("wrong", "value" if "boxed" in text else "no answer") for _, text in given]

    (check,) = Case("gold", pairs, location=r"in \boxed{}").checks(judge)
    (sentence,) = check.failed
    assert "of 6 such texts 6 have one as the last number" in sentence and "have one in" not in sentence
