"""Grade-school word problems from templates: on a package of four templates made here, and on reasoning-gym where there is one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from byte_tokenizer import CHATML
from chat_policy import chat_policy
from command import call
from sage_rlvr.contrib.audit import audit
from sage_rlvr.contrib.tasks import gsm_symbolic
from sage_rlvr.contrib.tasks.gsm_symbolic import GsmSymbolic, instance, is_unseen, sound, split_of, templates
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.tasks import TASKS, known_task, task_named
from sage_rlvr.tasks.chance import chance_of

there = importlib.util.find_spec("reasoning_gym") is not None
missing = pytest.mark.skipif(not there, reason="reasoning-gym (the extra `tasks`) is not installed")
pytestmark = pytest.mark.usefixtures("shared_pool_closed")

# 25 is unseen by its hash, 0 and 1 are seen; the worked answers of 2 do not end in the gold, and 3 is not drawn by the package.
PACKAGE = '''
def _of(number, wrong=0):
    def generate(rng, difficulty):
        if number == 1 and rng.random() < 0.1:  # of none of the instances that `sound` checks
            raise ValueError("too many decimals")
        a, b = rng.randint(1, 500), rng.randint(1, 500)
        cot = f"First {a} and {b}.\\n   So {a} + {b} = {a + b}\\n#### {a + b + wrong}"
        return {"question": f"Template {chr(97 + number)}: {a} and {b}?", "answer": str(a + b), "metadata": {"answer_cot": cot}}
    return generate


class Symbolic:
    def __init__(self, size, seed):
        self.task_indices = [(0, 1, 2, 25)[i % 4] for i in range(size)]
        self.generators = {n: _of(n, wrong=int(n == 2)) for n in (0, 1, 2, 3, 25)}


def create_dataset(name, size, seed):
    assert name == "gsm_symbolic"
    return Symbolic(size, seed)
'''


def cleared() -> None:
    for cached in ("generators", "sound", "templates", "_drawn", "_different"):
        getattr(gsm_symbolic, cached).cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "reasoning_gym").mkdir()
    (tmp_path / "reasoning_gym" / "__init__.py").write_text(PACKAGE)
    known, version = sys.modules.pop("reasoning_gym", None), importlib.metadata.version
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "7" if name == "reasoning-gym" else version(name))
    cleared()
    yield
    cleared()
    sys.modules.pop("reasoning_gym", None)
    if known is not None:
        sys.modules["reasoning_gym"] = known


def test_templates_are_found_by_their_worked_answers_and_divided_by_hash(package: None) -> None:
    assert templates("all") == (0, 1, 25) and templates("seen") == (0, 1) and templates("unseen") == (25,)
    assert not sound(2) and not is_unseen(0) and is_unseen(25)
    assert [n for n in range(100) if is_unseen(n)][:5] == [25, 27, 35, 41, 42]  # golden: the division never changes


def test_problems_are_a_function_of_their_place_and_splits_share_no_question(package: None) -> None:
    task = GsmSymbolic("all")
    assert task.examples("train", 3, 5, 10) == task.examples("train", 3, 0, 15)[5:]
    assert [p for p, _ in task.examples("test", 3, 0, 20)] == task.draw("test", 3, 20) != task.draw("test", 4, 20)
    found = {split: task.first(split, 60) for split in ("train", "validation", "test")}
    questions = [p.question for rows in found.values() for p in rows]
    assert len(set(questions)) == 180
    for split, rows in found.items():
        assert {split_of(p.question) for p in rows} == {split} and {p.template for p in rows} == {0, 1, 25}
        assert all(task.problem_of(p.problem_id) == p for p in rows)
    assert {p.template for p in GsmSymbolic().draw("test", 1, 50)} == {0, 1}
    assert {p.template for p in GsmSymbolic("unseen").draw("test", 1, 50)} == {25}


def test_worked_answers_are_right_and_end_where_the_verifier_reads(package: None) -> None:
    task = GsmSymbolic()
    ((problem, text), *_) = task.examples("train", 0, 0, 1)
    a, b = (int(word.strip("?")) for word in problem.question.split(": ")[1].split(" and "))
    assert text == f"First {a} and {b}.\nSo {a} + {b} = {a + b}\n\nThe answer is $\\boxed{{{a + b}}}$."
    spelled = (text, f"\\boxed{{{a + b}.0}}", f"\\boxed{{{a + b + 1}}}", f"It is {a + b}.")
    assert [task.verify(problem, one).right for one in spelled] == [True, True, False, False]
    assert [task.answer_key(problem, one) for one in spelled] == [str(a + b), str(a + b), str(a + b + 1), None]  # one right answer
    assert task.reference(problem) == str(a + b) and task.golds([problem]) == [str(a + b)]
    assert task.messages(problem)[-1] == {"role": "user", "content": problem.question}
    chance = chance_of(task, task.draw("test", 1, 20))
    assert chance is not None and chance.law == "golds"


def test_it_is_a_task_by_name_and_its_audit_names_the_templates_left_out(
    package: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TASKS["gsm_symbolic"] is GsmSymbolic and task_named("gsm_symbolic") == GsmSymbolic()
    for which in ("seen", "unseen", "all"):
        made = task_named(f"gsm_symbolic:{which}")
        assert made == GsmSymbolic(which) and known_task(made.name) == made  # type: ignore[arg-type]
    found = audit(GsmSymbolic("all"))
    assert found.passed and found.task == "gsm_symbolic:all" and found.head.endswith("reasoning-gym 7 (3 templates)")
    (worked,) = (check for check in found.checks if check.name.startswith("templates whose"))
    assert [row.problem_id for row in worked.rows] == ["template 2"] and worked.total == 4
    assert GsmSymbolic("unseen").identity == {"name": "gsm_symbolic:unseen", "templates": "unseen", "reasoning_gym": "7"}
    monkeypatch.setattr(gsm_symbolic, "_skeleton", lambda template: "one text")
    failed = [check for check in audit(GsmSymbolic()).checks if not check.passed]
    assert [(check.name, check.good, check.total) for check in failed] == [("unseen templates differ from every seen one", 0, 1)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GsmSymbolic("some"), "templates 'some': choose one of seen, unseen, all"),  # type: ignore[arg-type]
        (lambda: GsmSymbolic(train_problems=0), "train_problems 0"),
        (lambda: GsmSymbolic(data_seed=-1), "a seed of 0 or more"),
        (lambda: GsmSymbolic().draw("dev", 0, 3), "split 'dev': choose one of test, validation, train"),
        (lambda: GsmSymbolic().draw("test", 0, 3, "without-replacement"), "has only iid"),
        (lambda: GsmSymbolic().examples("train", 0, -1, 3), "none may be negative"),
        (lambda: task_named("gsm_symbolic:some"), "no such world; choose one of seen, unseen, all"),
        (lambda: GsmSymbolic.problem_of("12"), "'12' is no id of a gsm_symbolic problem"),
    ],
)
def test_errors(package: None, make: Any, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        make()


@pytest.mark.slow
def test_a_policy_is_trained_and_evaluated_on_both_sides(package: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = chat_policy(tmp_path / "chat", CHATML)
    small = ("--engine.dtype", "float32", "--optimizer.warmup_steps", "0")
    assert call("sft", "gsm/sft", "--model", model, "--steps", 1, "--batch_size", 2, *small, "--run", "sft", "--quiet") == 0
    steps = ("--steps", 1, "--rollout.prompts_per_step", 1, "--rollout.group_size", 2, "--rollout.max_new_tokens", 8, *small)
    assert call("train", "grpo", "--task", "gsm_symbolic", "--model", "sft/policy", *steps, "--run", "rl", "--quiet") == 0
    assert json.loads((tmp_path / "rl" / "metrics.jsonl").read_text().splitlines()[0])["reward/mean"] == 0
    for which in ("", ":unseen"):
        words = ("--task", f"gsm_symbolic{which}", "--samples", 2, "--problems", 3, "--max-new-tokens", 8, "--quiet")
        assert call("eval", "rl", *words, "--gate", "--gate-ks", 1) == 3
        assert (tmp_path / "rl" / "samples" / f"gsm_symbolic{which}-untruncated-boxed" / "store.json").is_file()


@pytest.mark.skipif(there, reason="reasoning-gym is installed")
def test_without_the_package_the_message_names_the_extra() -> None:
    cleared()
    for make in (lambda: GsmSymbolic().draw("test", 0, 1), lambda: GsmSymbolic().identity):
        with pytest.raises(ConfigError, match=r"-e '\.\[tasks\]'"):
            make()


@missing
def test_the_templates_of_the_package() -> None:
    """85 that it draws; the worked answers of all end in the gold (0.1.20 to 0.1.25)."""
    cleared()
    assert len(templates("all")) == 85 and len(templates("seen")) == 70 and len(templates("unseen")) == 15
    assert not set(templates("seen")) & set(templates("unseen"))
    found = instance(templates("seen")[0], 0)
    assert found is not None and found == instance(found.template, 0) and "####" not in found.worked


@missing
@pytest.mark.parametrize("which", ["seen", "unseen"])
def test_the_package_passes_its_audit(which: Any) -> None:
    cleared()
    found = audit(GsmSymbolic(which))
    assert found.passed and not any(check.rows for check in found.checks)
