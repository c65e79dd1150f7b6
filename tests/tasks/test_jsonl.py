"""Rows and a reward of the user's: what is called how, what is refused by row, and a run by recipe alone on both engines."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from command import call
from sage_rlvr.config import TrainConfig, decode, dump, task_of
from sage_rlvr.contrib.audit import audit
from sage_rlvr.contrib.methods.distinct import distinct
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.plugins import executed
from sage_rlvr.tasks import verifiers
from sage_rlvr.tasks.base import NO_ANSWER
from sage_rlvr.tasks.jsonl import RewardTask, _file_and_function, _judge, _loaded, reward_hash
from sage_rlvr.tasks.rows import sha256_of
from sage_rlvr.training.problems import unkeyed
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.pool import STRANGE

REWARDS = """
import os
import time

def score(completion, row):
    return 1.0 if completion.strip() == row["answer"] else 0.5 * (row["answer"][0] in completion)

def as_trl(prompts, completions, answer, **columns):
    assert columns["color"] == ["red"]
    return [float(text == gold and prompt.endswith(":")) for prompt, text, gold in zip(prompts, completions, answer)]

def raises(completion, row):
    return float(completion)

def nan(completion, row):
    return float("nan")

def nobody(completion, row):
    return None

def ends(completion, row):
    os._exit(0)

def aborts(completion, row):
    os.abort()

def writes(completion, row):
    for pipe in range(3, 32):
        try:
            os.write(pipe, b"{}\\n")
        except OSError:
            pass
    return 1.0

def hangs(completion, row):
    while True:
        time.sleep(1)
"""


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """made(function, **options) -> a task of three rows that the shipped policy's characters can spell."""
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    rows = [{"id": f"r{i}", "prompt": f"{i} {i}={2 * i}:", "answer": f"{i}+{i}", "color": "red"} for i in (1, 2, 3)]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(function: str = "score", **options: Any) -> RewardTask:
        return RewardTask(str(tmp_path / "my.jsonl"), f"{tmp_path / 'my_rewards.py'}:{function}", **options)

    return make


@pytest.mark.slow
def test_a_reward_is_called_with_a_row_or_as_trl_calls_it(made: Any) -> None:
    first = made().problems("train")[0]
    assert made().prompt(first) == "1 1=2:" and made().name == "my"
    found = made().verify_all([(first, "1+1"), (first, "1-1"), (first, "2"), (first, f"1+1{NO_ANSWER}")])
    assert [(v.label, v.reward) for v in found] == [("right", 1.0), ("wrong", 0.5), ("wrong", 0.0), ("right", 1.0)]
    assert [v.reward for v in made("as_trl").verify_all([(first, "1+1"), (first, "2")])] == [1.0, 0.0]
    assert made(right_from=0.5).verify(first, "1").right


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "why"), [("raises", "raised ValueError: could not convert"), ("nan", "gave nan")]
)
def test_a_reward_that_raises_or_is_no_number_names_the_row_and_the_value(made: Any, function: str, why: str) -> None:
    with pytest.raises(DataError, match=rf"on row 'r2' of .*my\.jsonl it {why}.*completion was 'x'"):
        made(function).verify(made().problems()[1], "x")


class Raising:
    def __float__(self) -> float:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")


def exits(completion: str, row: Any) -> float:
    sys.exit(0)


def interrupts(completion: str, row: Any) -> float:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("reward", "why"),
    [
        (lambda completion, row: 10**400, r"gave 1000+.*, which is no number \(OverflowError\)"),
        (lambda completion, row: Raising(), r"gave a Raising without a text, which is no number \(RuntimeError\)"),
        (lambda completion, row: Verdict("maybe", "x"), r"raised DataError: Verdict\('maybe', ...\): the label is one of .*\(line"),
        (lambda completion, row: Verdict("right", "x", float("inf")), r"raised DataError: .*score=inf.*finite"),
        (lambda completion, row: Verdict("right", "x", "much"), r"raised DataError: .*score='much'"),
        (lambda completion, row: float("nan"), "gave nan"),
        (lambda completion, row: 2j, "gave 2j, which is no number"),
        (lambda completion, row: "1", r"gave '1', which is no number \(TypeError\)"),
        (lambda completion, row: b"1", r"gave b'1', which is no number"),
        (exits, r"raised SystemExit: 0 \(line \d+\)"),
        (interrupts, r"raised KeyboardInterrupt:  \(line \d+\)"),
    ],
)
def test_a_reward_that_fails_in_any_way_is_a_mistake_and_never_undecided(reward: Any, why: str, made: Any) -> None:
    said = _judge(reward, "x", {}, "?", None)
    assert said.label == "wrong" and re.match(why, said.reason)
    with pytest.raises(DataError, match=rf"on row 'r1' of .*my\.jsonl it {why}"):
        made()._verdict(made().problems()[0], "x", said)


@pytest.mark.parametrize(("function", "why"), [("aborts", "worker died twice, status -6"), ("writes", STRANGE)])
def test_a_reward_that_ends_or_disturbs_its_worker_stops_the_run_before_it_begins(function: str, why: str, made: Any) -> None:
    said = f"reward my_rewards.py:{function}: on row 'r1' of my.jsonl and an empty completion the {why}"
    with pytest.raises(DataError, match=said):
        made(function).ready(lambda _: None)


def test_os_exit_of_a_reward_is_an_exception_like_any_other(made: Any) -> None:
    with pytest.raises(DataError, match=r"on row 'r1' of my\.jsonl it raised SystemExit: os\._exit\(0\) \(line \d+\)"):
        made("ends").ready(lambda _: None)


def test_a_verdict_has_a_score_also_where_mathematics_is_loaded() -> None:
    importlib.import_module("sage_rlvr.verifiers.math")
    assert Verdict("right", "graded", 0.25).reward == 0.25


def test_a_reward_whose_file_ends_the_process_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(ConfigError, match=r"ends.py \(line 2\): SystemExit: 0"):
        _loaded(f"{tmp_path / 'ends.py'}|score")


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 5])
def test_a_run_that_nobody_could_judge_is_not_done(steps: int, recipe: Path, capsys: Any) -> None:
    with pytest.warns(UserWarning, match=r"step 0: 8 of 8 completions are undecided and earn 0 .*task.seconds"):
        assert call("train", recipe, "--run", "run", "--quiet", "--steps", steps, "--task.reward", "my_rewards.py:nobody") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert ("no completion could be judged in the first 3 steps" if steps == 5 else "no completion of this run") in said
    kept = json.loads(Path("run/run.json").read_text())["warnings"]
    assert "undecided" in {one["kind"] for one in kept}


@pytest.mark.slow
def test_a_reward_that_hangs_is_undecided(made: Any) -> None:
    said = made("hangs", seconds=0.5).verify(made().problems()[0], "x")
    assert (said.label, said.reward) == ("undecided", 0.0) and said.reason.startswith("took longer")


def test_what_a_file_offers_is_its_functions_and_no_loop_variable(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text("LIMIT = 3\nfor step in range(3):\n    total = step\nhelper = lambda c, r: 0.0\ndef pay(c, row): return 1.0\n")
    with pytest.raises(ConfigError, match=r"defines no 'nosuch'; it has helper, pay$"):
        _file_and_function(f"{file}:nosuch")


@pytest.mark.slow
def test_rewards_that_are_not_there_are_refused_at_once(made: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="defines no 'scor'; did you mean 'score'"):
        made("scor")
    with pytest.raises(ConfigError, match=r"there is no file rewards\.py in .*did you mean my_rewards\.py"):
        RewardTask("my.jsonl", str(tmp_path / "rewards.py:score"))
    with pytest.raises(ConfigError, match="or the name of a verifier: math, exact"):
        RewardTask("my.jsonl", "exakt")
    (tmp_path / "my_rewards.py").write_text("import nothing_of_this_name\ndef score(completion, row): return 1.0\n")
    with pytest.raises(ConfigError, match="nothing_of_this_name"):
        made().verify(made().problems()[0], "x")


@pytest.mark.parametrize("gold", ["NaN", '"nan"', "null", '""'])
def test_a_verifier_by_its_name_needs_a_gold_in_every_row(gold: str, tmp_path: Path) -> None:
    path = tmp_path / "my.jsonl"
    path.write_text(f'{{"problem": "a?", "answer": "1"}}\n{{"problem": "b?", "answer": {gold}}}\n')
    with pytest.raises(DataError, match=r"my\.jsonl:2, column answer"):
        RewardTask(str(path), "exact").problems()


def test_one_answer_is_counted_once_by_the_reading_of_a_verifier(made: Any, tmp_path: Path) -> None:
    """`exact` compares the whole text, `math` the last box; of a reward of one's own the text is all that is known."""
    (tmp_path / "gold.jsonl").write_text('{"prompt": "2+2", "answer": "4"}\n')
    said = {
        "math": (r"so \boxed{4}", r"I say \boxed{4}", r"\boxed{ 4. }" + NO_ANSWER, "none", r"\boxed{5}"),
        "exact": ("4", "8/2", r"\frac{8}{2}", "", "5"),
    }
    for name, (*same, nothing, other) in said.items():
        task = RewardTask(str(tmp_path / "gold.jsonl"), name)
        keys = [task.answer_key(task.problems()[0], text) for text in (*same, nothing, other)]
        assert keys[0] == keys[1] == keys[2] and keys[3] is None and keys[4] not in (None, keys[0]), name
        assert unkeyed(distinct(), task) == ""
    own = made("score")
    assert "has no answer_key" in unkeyed(distinct(), own)
    assert own.answer_key(None, " a  b ") == "a b" != own.answer_key(None, "a c")


def test_code_rows_and_limits_are_hashed(made: Any, tmp_path: Path) -> None:
    before, sha = made().verifier_hash, reward_hash(made().reward)
    assert set(made().files().values()) >= {sha} and made(right_from=0.5).verifier_hash != before
    (tmp_path / "my_rewards.py").write_text(REWARDS + "\n# another\n")
    assert made().verifier_hash != before and reward_hash(made().reward) != sha


WRAPPED = """
import functools
from sage_rlvr.tasks.verifiers import VERIFIERS
from sage_rlvr.verifiers import Verdict
shipped = VERIFIERS["math"]
@functools.wraps(shipped)
def wrapped(completion, gold):
    return Verdict("right", "always")
"""


@pytest.mark.parametrize("name", ["mymath", "math", "countdown"])
def test_a_plugins_verifier_that_wraps_one_of_the_package_is_known_by_its_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wrapping.py"
    path.write_text(WRAPPED)
    monkeypatch.setattr(sys, "path", [*sys.path])
    wrapped = executed(path, "wrapping").wrapped
    assert wrapped.__module__.startswith("sage_rlvr.")  # as the package's own verifiers are
    monkeypatch.setitem(verifiers.VERIFIERS._parts, name, wrapped)
    assert reward_hash(name) == sha256_of(path)


def test_the_packages_own_verifiers_are_known_by_their_versions(tmp_path: Path) -> None:
    (tmp_path / "gold.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    for name in ("math", "exact"):
        assert reward_hash(name).startswith(f"{name}-v")
        assert RewardTask(str(tmp_path / "gold.jsonl"), name).verifier_hash.startswith(f"{name}-v")


@pytest.mark.slow
def test_any_task_is_audited(made: Any) -> None:
    found = {check.name: check for check in audit(made()).checks}
    assert found["gold right against itself, alone or boxed"].good == 3 and found["empty"].good == 3
    assert found["problems that stand once"].share == 1


# ---- by recipe alone


@pytest.fixture
def recipe(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made()
    path = tmp_path / "mine.yaml"
    path.write_text(
        "steps: 2\nmodel: embedded\nmethod: {name: grpo}\n"
        "task: {name: jsonl, file: my.jsonl, reward: 'my_rewards.py:score'}\n"
        "rollout: {prompts_per_step: 2, group_size: 4, max_new_tokens: 8}\n"
    )
    return path


@pytest.mark.slow
def test_a_recipe_trains_on_the_loop_evaluates_and_audits(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    assert call("train", recipe, "--run", "run", "--quiet") == 0
    record = json.loads(Path("run/run.json").read_text())
    assert reward_hash("my_rewards.py:score") in json.dumps(record)
    config = decode(TrainConfig, record["config"])
    assert decode(TrainConfig, dump(config)) == config and isinstance(task_of(config), RewardTask)
    capsys.readouterr()
    assert call("eval", "run") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "cannot be enumerated; evaluate it by sampling: sage-rlvr eval run --samples 64" in said
    assert call("eval", "run", "--samples", 32, "--quiet", "--store", "s") == 0  # what it suggests
    assert SampleStore.open("s").counts().n.tolist() == [32] * 3
    assert call("audit", recipe) == 0 and "gold right against itself" in capsys.readouterr().out
    (tmp_path / "my_rewards.py").write_text(REWARDS + "\n# changed\n")
    assert call("train", recipe, "--run", "run", "--steps", 3, "--quiet") == 2  # another reward is another run


def test_a_recipe_trains_on_trl_with_the_rewards_of_the_loop(recipe: Path) -> None:
    pytest.importorskip("trl")
    assert call("train", recipe, "--run", "trl", "--engine.name", "trl", "--steps", 1, "--quiet") == 0
    card = Path("trl/policy/README.md").read_text()
    assert "reward `score`: source SHA-256" in card
    rows = [json.loads(line) for line in Path("trl/metrics.jsonl").read_text().splitlines()]
    assert rows and "reward/mean" in json.dumps(rows)


def test_puzzles_train_on_the_loop_with_any_tokenizer(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from byte_tokenizer import CHATML, byte_tokenizer
    from sage_rlvr.training.loop import build, train_step

    tokenizer = byte_tokenizer(CHATML)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    tree = {"name": "knights_and_knaves", "people": [2], "count": 5, "train_count": 6, "rule": "strict"}
    given = {"steps": 1, "model": str(tmp_path), "method": "grpo", "task": tree}
    loop = build(decode(TrainConfig, given | {"rollout": {"prompts_per_step": 2, "group_size": 2, "max_new_tokens": 4}}))
    assert loop.ask(loop.problems[0]).text.endswith("<|im_start|>assistant\n") and len(loop.problems) == 6
    assert {p.problem_id for p in loop.problems}.isdisjoint(p.problem_id for p in loop.task.problems("test"))
    assert train_step(loop, 0)["reward/mean"] == 0.0
    with pytest.raises(ConfigError, match="more prompts per step than the 6 training problems"):
        build(decode(TrainConfig, given | {"rollout": {"prompts_per_step": 8}}))


SUMS = """
from dataclasses import dataclass
from typing import ClassVar
import sage_rlvr
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.pool import STRANGE

@dataclass(frozen=True)
class Sum:
    problem_id: str
    a: int

@sage_rlvr.task
@dataclass(frozen=True)
class Doubles(sage_rlvr.Task):
    "Twice a number."

    name: ClassVar[str] = "doubles"
    most: int = 9

    def problems(self, split):
        return [Sum(f"{split}-{a}", a) for a in range(1, self.most)]

    def prompt(self, problem):
        return f"{problem.a} {problem.a}={2 * problem.a}:"

    def verify(self, problem, completion):
        return Verdict("right" if completion in self.solutions(problem) else "wrong", "sum")

    def solutions(self, problem):
        return [f"{problem.a}+{problem.a}"]
"""


@pytest.mark.slow
def test_a_task_of_a_plugin_that_lists_its_answers_trains_audits_and_evaluates_exactly_and_by_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_task.py").write_text(SUMS)
    Path("doubles.yaml").write_text(
        "plugins: [my_task.py]\nsteps: 1\nmodel: embedded\nmethod: {name: grpo, beta: 0.0}\ntask: {name: doubles, most: 7}\n"
        "rollout: {prompts_per_step: 2, group_size: 4, max_new_tokens: 8}\n"
    )
    assert call("train", "doubles.yaml", "--run", "run", "--quiet") == 0
    assert call("audit", "doubles.yaml") == 0 and "every right answer is right" in capsys.readouterr().out
    assert call("eval", "run") == 0 and "6 test problems" in capsys.readouterr().out
    assert call("eval", "run", "--samples", 32, "--quiet", "--store", "s") == 0
    assert SampleStore.open("s").counts().n.tolist() == [32] * 6
