"""Second attempts with guidance: which problems, what is kept, and the pairs that offline training reads of both stores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from sage_rlvr.cli.app import main
from sage_rlvr.config import OfflineConfig, PairsConfig
from sage_rlvr.contrib.hints.teachers import Function, Nothing
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.evaluation.guidance import KEPT, again, first_failures, guidance_line, words_of
from sage_rlvr.evaluation.pairs import Paired, paired, texts_of
from sage_rlvr.evaluation.sampling import EvalSet, SamplingRun, choose, prompts_of
from sage_rlvr.evaluation.store import Identity, Sample, SampleStore
from sage_rlvr.models.generation import Generation, Request
from sage_rlvr.models.policy import Tokens
from sage_rlvr.tasks import TASKS
from sage_rlvr.tasks.base import Task
from sage_rlvr.tasks.countdown import build_tokenizer
from sage_rlvr.verdicts.stats.budget import budget_differences
from sage_rlvr.verifiers import Verdict
from samples_common import IDENTITY

TOKENS = Tokens.of(build_tokenizer())
N = 4


@dataclass(frozen=True)
class Number:
    """A problem that is right where its number is said."""

    problem_id: str
    number: int
    hint: str = ""


@dataclass(frozen=True)
class Numbers(Task):
    """"0" is always right, "1" now and then, "2" never but with guidance, "3" never."""

    name: ClassVar[str] = "numbers"

    def problems(self, split: str) -> list[Number]:
        return [Number(str(i), i) for i in range(4)]

    def prompt(self, problem: Number) -> str:
        return f"{problem.hint}{problem.number}="

    def guided(self, problem: Number, guidance: str) -> Number:
        return replace(problem, hint=guidance)

    def verify(self, problem: Number, completion: str) -> Verdict:
        return Verdict("right" if completion == str(problem.number) else "wrong", f"said {completion}")


@dataclass
class Drawing:
    """A policy of one token: right by the seed, oftener under guidance."""

    name, at_once, local = "drawing", 4, True

    def generate(self, requests: Sequence[Request]) -> list[list[Generation]]:
        asked = TOKENS.decode([list(request.prompt) for request in requests], [True] * len(requests))
        return [[self.one(text, seed) for seed in request.seeds] for text, request in zip(asked, requests, strict=True)]

    def one(self, prompt: str, seed: int) -> Generation:
        number, hinted = int(prompt[-2]), len(prompt) > 2
        chance = {0: 1.0, 1: 0.5, 2: 0.5 * hinted, 3: 0.0}[number]
        text = str(number if seed % 1000 < 1000 * chance else (5 + seed % 3))
        ids = np.array([*TOKENS.encode(text), TOKENS.eos_id], dtype=np.int32)
        return Generation(text, ids, np.full(2, -1.0, np.float32), np.zeros(2, np.float32), "stop")


def identity(chosen: EvalSet) -> Identity:
    return replace(IDENTITY, task=chosen.name, task_hash=chosen.task_hash, guidance=chosen.guidance, chunk_size=N)


def fill(folder: Path, chosen: EvalSet) -> SampleStore:
    store = SampleStore.open(folder, identity(chosen))
    SamplingRun(chosen, prompts_of(chosen, TOKENS)[0], Drawing()).run(store, N)  # type: ignore[arg-type]
    return store


@pytest.fixture
def teacher(tmp_path: Path) -> Function:
    """Says 9, and writes down each time what it was asked."""
    file = tmp_path / f"{tmp_path.name}.py"  # a name of its own: the process knows files of users by it
    file.write_text(
        "from pathlib import Path\n\ndef teach(problem, said, verdict):\n"
        "    with Path(__file__).with_suffix('.txt').open('a') as file:\n"
        "        file.write(f'{problem.problem_id} {said[0]} {verdict.reason}\\n')\n    return '9'\n"
    )
    return Function(f"{file}:teach")


@pytest.fixture
def stores(tmp_path: Path, teacher: Function) -> Path:
    """Stores first, guided and plain of the task above."""
    chosen = choose(Numbers())
    fill(tmp_path / "first", chosen).close()
    for name, by in (("guided", teacher), ("plain", Nothing())):
        fill(tmp_path / name, again(chosen, tmp_path / "first", by, tmp_path / name)).close()
    return tmp_path


def rows(store: Path) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    with SampleStore.open(store) as opened:
        for row in opened.samples():
            found.setdefault(row.problem, []).append(row)
    return found


def test_failed_problems_are_attempted_again_and_a_teacher_is_asked_once(stores: Path, teacher: Function) -> None:
    first, guided, plain = (rows(stores / name) for name in ("first", "guided", "plain"))
    assert set(first) == {"0", "1", "2", "3"} and set(guided) == set(plain) == {"1", "2", "3"}
    asked = (stores / f"{stores.name}.txt").read_text().splitlines()
    with SampleStore.open(stores / "first") as store:
        failed = first_failures(store)
    assert asked == [f"{name} {row.text} said {row.text}" for name, row in failed.items()] and len(asked) == 3
    again(choose(Numbers()), stores / "first", teacher, stores / "guided")
    assert (stores / f"{stores.name}.txt").read_text().splitlines() == asked, "what was said is kept"
    told = [json.loads(line) for line in (stores / "guided" / KEPT).read_text().splitlines()]
    assert told[0]["problems"] == 3 and told[1] == {"problem": "1", "attempt": failed["1"].sample, "guidance": "9"}
    assert "3 failed problems attempted again; 0 hints contained" in guidance_line(stores / "guided")
    assert "3 prompts have none" in guidance_line(stores / "plain")
    assert {row.prompt_hash for row in guided["1"]} != {row.prompt_hash for row in first["1"]}
    assert {row.prompt_hash for row in plain["1"]} == {row.prompt_hash for row in first["1"]}
    parts = (first, guided, plain)
    seeds = [{(row.problem, row.sample): row.seed for some in part.values() for row in some} for part in parts]
    assert seeds[1] == seeds[2] and not set(seeds[0].values()) & set(seeds[1].values()), "second attempts are drawn anew"
    right = {name: sum(row.verdict == "right" for row in guided[name]) for name in guided}
    assert right["2"] > 0 == right["3"] and all(row.verdict == "wrong" for row in (*plain["2"], *first["2"]))


def test_a_guided_store_says_by_whom_and_is_compared_with_its_control_alone(stores: Path, teacher: Function) -> None:
    known = {name: SampleStore.open(stores / name).identity for name in ("first", "guided", "plain")}
    with SampleStore.open(stores / "first") as store:
        digest = store.digest()[:16]
    assert known["guided"].guidance == f"{words_of(teacher)} after {digest}"
    assert known["plain"].guidance == f"nothing after {digest}"
    assert known["first"].guidance == ""
    assert Identity.of(known["guided"].tree()) == known["guided"] and Identity.of(known["first"].tree()) == known["first"]
    assert budget_differences(known["plain"].tree(), known["guided"].tree()) == {}
    assert set(budget_differences(known["first"].tree(), known["guided"].tree())) == {"task_hash"}
    with pytest.raises(ConfigError, match=r"was written by function.*now the source is nothing"):
        again(choose(Numbers()), stores / "first", Nothing(), stores / "guided")
    with pytest.raises(ConfigError, match="no sample store"):
        again(choose(Numbers()), stores / "none", Nothing(), stores / "x")
    other = replace(choose(Numbers()), problems={"7": Number("7", 7)})
    with pytest.raises(ConfigError, match="it has no wrong attempts on these 1 problems"):
        again(other, stores / "first", Nothing(), stores / "x")


def pairs_of(stores: Path, **changes: Any) -> Paired:
    return paired(PairsConfig(**{"attempts": str(stores / "first"), **changes}))


def test_pairs_have_an_unguided_loser_and_second_attempts_open_problems(stores: Path) -> None:
    first = rows(stores / "first")
    alone, both = pairs_of(stores), pairs_of(stores, retries=str(stores / "guided"))
    assert {pair.problem for pair in alone.pairs} == {"1"} and {pair.problem for pair in both.pairs} == {"1", "2"}
    wins = {name: sum(row.verdict == "right" for row in some) for name, some in first.items()}
    assert wins["0"] == N and wins["2"] == wins["3"] == 0 < wins["1"] < N
    assert len(alone.pairs) == wins["1"], "only a problem with 0 < successes < n makes pairs without second attempts"
    late = {name: sum(row.verdict == "right" for row in some) for name, some in rows(stores / "guided").items()}
    assert len(both.pairs) == wins["1"] + late["1"] + late["2"] and both.counts["opened"] == 1
    losers = {(row.problem, row.sample) for some in first.values() for row in some if row.verdict == "wrong"}
    hashes = {name: some[0].prompt_hash for name, some in first.items()}
    for pair in both.pairs:
        assert pair.winner.verdict == "right" and (pair.loser.problem, pair.loser.sample) in losers
        assert pair.loser.prompt_hash == hashes[pair.problem] and pair.winner.problem == pair.loser.problem == pair.problem
    counts = both.counts
    assert counts["attempts"] == 4 * N and counts["retries"] == 3 * N and counts["tokens"] == 2 * 7 * N
    assert any("2 problems" in line and "1 problems only by second attempts" in line for line in both.lines())


def test_pairs_are_a_function_of_stores_and_seed(stores: Path) -> None:
    guided = str(stores / "guided")
    one, two = (pairs_of(stores, retries=guided, share=0.5) for _ in range(2))
    assert [(p.winner.text, p.loser.sample) for p in one.pairs] == [(p.winner.text, p.loser.sample) for p in two.pairs]
    alone = pairs_of(stores, share=0.5)
    assert [(row.problem, row.sample) for row in one.learned] == [(row.problem, row.sample) for row in alone.learned]
    assert len(one.learned) == -(-one.counts["right"] // 2) and all(row.verdict == "right" for row in one.learned)
    drawn = {tuple(p.loser.sample for p in pairs_of(stores, retries=guided, seed=seed).pairs) for seed in range(8)}
    assert len(drawn) > 1
    assert {p.problem for p in pairs_of(stores, retries=guided, max_pairs=1).pairs} == {"1", "2"}
    assert len(pairs_of(stores, retries=guided, max_pairs=1).pairs) == 2
    assert len(pairs_of(stores, retries=guided, distinct=True).pairs) == 2, "as one text"


def config(stores: Path, **changes: Any) -> OfflineConfig:
    pairs = PairsConfig(attempts=str(stores / "first"), retries=str(stores / "guided"))
    return OfflineConfig(**{"steps": 1, "loss": "dpo", "model": "x", "task": Numbers(), "pairs": pairs} | changes)


def test_the_prompt_of_a_guided_winner_has_no_guidance(stores: Path) -> None:
    found = paired(config(stores).pairs)
    data = texts_of(config(stores), found, TOKENS)
    late = [texts for pair, texts in zip(found.pairs, data.pairs, strict=True) if pair.again]
    assert late and all(TOKENS.decode([list(winner.prompt)], [True])[0] in ("1=", "2=") for winner, _ in late)
    assert all(winner.prompt == loser.prompt for winner, loser in data.pairs)
    assert all(text.tokens[-1] == TOKENS.eos_id for text in data.learned)

    @dataclass(frozen=True)
    class Fewer(Numbers):
        def problems(self, split: str) -> list[Number]:
            return []

    with pytest.raises(DataError, match="is none of the 0 of task numbers, split train"):
        texts_of(config(stores, task=Fewer()), found, TOKENS)


def test_the_command_prints_what_it_pairs_trains_and_refuses_other_stores(
    stores: Path, tiny_policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TASKS, "numbers", Numbers)
    monkeypatch.chdir(stores)
    recipe = stores / "mine.yaml"
    recipe.write_text(
        f"steps: 2\nbatch_size: 2\nloss: dpo\nmodel: {tiny_policy}\ntask: {{name: numbers}}\n"
        "pairs: {attempts: first, retries: guided}\noptimizer: {lr: 1.0e-3}\n"
    )

    def offline(*words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["offline", str(recipe), "--run", "run", "--quiet", *words])
        return int(ended.value.code or 0)

    found = pairs_of(stores, retries=str(stores / "guided"))
    assert offline("--dry-run") == 0 and "2 optimizer steps of 2 pairs" in capsys.readouterr().out
    assert offline() == 0
    said = capsys.readouterr()
    assert all(line in said.err for line in found.lines()) and "done: 2 steps" in said.err
    facts = json.loads((stores / "run" / "run.json").read_text())
    assert facts["kind"] == "offline" and facts["config"]["loss"] == "dpo" and found.digests["retries"] in str(facts)
    assert (stores / "run" / "policy" / "model.safetensors").is_file()
    assert offline("--pairs.retries", "plain") == 2 and "pairs.retries" in capsys.readouterr().err
    assert offline("--method.name", "grpo") == 2
    with pytest.raises(SystemExit):
        main(["sft", str(recipe)])
    assert "sage-rlvr offline" in capsys.readouterr().err


def test_stores_that_do_not_fit_are_refused(stores: Path) -> None:
    with pytest.raises(ConfigError, match="is not in"):
        paired(PairsConfig(attempts=str(stores / "guided"), retries=str(stores / "first")))
    with pytest.raises(DataError, match=r"there is no pair|no first attempt is right"):
        fill(stores / "hard", replace(choose(Numbers()), problems={"3": Number("3", 3)})).close()
        paired(PairsConfig(attempts=str(stores / "hard")))
