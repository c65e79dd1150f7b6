"""Sweeps on a task of one's own: evaluated exactly where it lists its solutions, by samples where it does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sage_rlvr import plugins
from sage_rlvr.cli.app import main
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.record import load_record, record_path
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.registry import registry_of
from sage_rlvr.render import write_summary
from sage_rlvr.results.read import read_results
from sage_rlvr.sweeps import sweep as module
from sage_rlvr.sweeps.display import dry_lines
from sage_rlvr.sweeps.plan import SweepPlan, plan
from sage_rlvr.sweeps.processes import ProcessTask, run_tasks
from sage_rlvr.sweeps.reuse import clear, replaced
from sage_rlvr.sweeps.sweep import run
from sage_rlvr.verdicts.comparisons import compare
from sweeps.sweep_common import Started, screen, states

OWN = """
from dataclasses import dataclass
from typing import ClassVar

import sage_rlvr
from sage_rlvr.verifiers import Verdict


@dataclass(frozen=True)
class Sum:
    problem_id: str
    a: int
    b: int


@sage_rlvr.task
@dataclass(frozen=True)
class OwnSums(sage_rlvr.Task):
    '''Right completions cannot be listed.'''

    name: ClassVar[str] = "own_sums"
    most: int = 4

    def problems(self, split):
        part = {"train": 0, "validation": 1, "test": 2}[split]
        pairs = ((a, b) for a in range(self.most) for b in range(self.most))
        return [Sum(f"{a}+{b}", a, b) for a, b in pairs if (a + 2 * b) % 3 == part]

    def prompt(self, problem):
        return f"{problem.a} {problem.b}="

    def verify(self, problem, completion):
        right = completion == str(problem.a + problem.b)
        return Verdict("right", "sum") if right else Verdict("wrong", "another number")


@sage_rlvr.task
@dataclass(frozen=True)
class ListedSums(OwnSums):
    '''The same, listed.'''

    name: ClassVar[str] = "listed_sums"

    def solutions(self, problem):
        return [str(problem.a + problem.b)]


@sage_rlvr.task
@dataclass(frozen=True)
class DrawnSums(ListedSums):
    '''The same with all that Countdown declares.'''

    name: ClassVar[str] = "drawn_sums"

    def draw(self, split, seed, n, law):
        return self.problems(split)[:n]

    def candidates(self, problem):
        return 2 * self.most - 1

    @property
    def identity(self):
        return {"name": self.name, "most": self.most}

    def described(self, identity):
        return f"sums of numbers below {identity['most']}"


DrawnSums.worlds = {"few": DrawnSums(most=3), "many": DrawnSums(most=6)}
"""
SUMS = """
plugins: [own.py]
steps: 2
model: {model}
task: {{name: {task}, most: 5}}
rollout: {{prompts_per_step: 2, group_size: 4, max_new_tokens: 4}}
method: {{name: grpo, beta: 0.0}}
"""
OWN_DESIGN = """
title: own
seeds: [0]
arms: {{a: {{recipe: ./{task}.yaml}}, b: {{recipe: ./{task}.yaml, edits: {{method.name: rloo}}}}}}
control: a
controls: none
evaluate: {{{evaluate}}}
"""
SAMPLED = "samples: {problems: 100, n: 4, guide: null}"
WITH_KL = SAMPLED.replace("null", "null, kl: 2")


@pytest.fixture
def own(tmp_path: Path, warm_policy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """own(task, evaluate) -> a design over a task of a plugin. Registries and loaded plugins are as before behind it."""
    monkeypatch.setenv(plugins.VARIABLE, "")
    before, loaded = dict(registry_of("task")._parts), dict(plugins._loaded)
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")

    def write(task: str, evaluate: str, change: tuple[str, str] = ("", "")) -> Path:
        (tmp_path / f"{task}.yaml").write_text(SUMS.format(model=warm_policy, task=task), encoding="utf-8")
        path = tmp_path / "own.yaml"
        path.write_text(OWN_DESIGN.format(task=task, evaluate=evaluate).replace(*change), encoding="utf-8")
        return path

    yield write
    plugins._loaded.clear()
    plugins._loaded.update(loaded)
    registry_of("task")._parts = before


@pytest.mark.slow
def test_a_task_of_ones_own_that_lists_its_solutions_is_evaluated_exactly(
    tmp_path: Path, own: Callable[..., Path], started: Started
) -> None:
    design, out = own("listed_sums", f"temperatures: [1.0], problems: 300, {SAMPLED}"), tmp_path / "out"
    sweep = plan(design, out, powers=(2.0,))
    assert "own: 2 runs in" in dry_lines(sweep)[0] and dry_lines(sweep)[0].endswith("task listed_sums (most 5)")
    assert run(sweep, 1, screen()) and states(sweep) == {"a-s0": "evaluated", "b-s0": "evaluated"}
    for name in ("base", "a-s0", "b-s0"):
        record = load_record(record_path(out, name))
        assert record.meta["world"] == {"name": "listed_sums"} and len(record.meta["problem_ids"]) == 8
        stores = list((out / "runs" / name / "samples").iterdir())
        assert [store.name for store in stores] == ["listed_sums-untruncated"]
        with SampleStore.open(stores[0]) as store:
            assert set(store.counts().problems) == set(record.meta["problem_ids"])
    started.clear()
    assert run(plan(design, out, powers=(2.0,)), 1, screen()) and not started
    assert json.loads((out / "design.json").read_text(encoding="utf-8"))["world"] == "task listed_sums (most 5)"
    assert set(write_summary(out)["arms"]) == {"a", "b"} and read_results(out).home == "base"


def test_a_plan_says_the_problems_in_the_words_of_their_task(tmp_path: Path, own: Callable[..., Path]) -> None:
    sweep = plan(own("drawn_sums", "temperatures: [1.0]"), tmp_path / "out")
    assert dry_lines(sweep)[0].endswith(f"in {tmp_path / 'out'}, sums of numbers below 5")


@pytest.mark.slow
def test_a_task_of_ones_own_without_solutions_is_evaluated_by_samples(
    tmp_path: Path, own: Callable[..., Path], started: Started
) -> None:
    out = tmp_path / "out"
    sweep = plan(own("own_sums", SAMPLED), out)
    assert any("by samples (right completions" in said and "4 for each of 100 problems" in said for said in dry_lines(sweep))
    assert run(sweep, 1, screen()) and states(sweep) == {"a-s0": "evaluated", "b-s0": "evaluated"}
    assert [words[0] for words in started] == ["eval", "train", "eval", "train", "eval"]
    assert all("--samples" in words for words in started if words[0] == "eval")
    results = read_results(out)
    assert {(row.arm, row.task, len(row.problems), row.n) for row in results.table.rows} == {
        (arm, "own_sums", 8, 4) for arm in ("base", "a", "b")
    }
    rows = compare(results)
    assert {(row.a, row.b, row.family) for row in rows} == {
        ("a", "base", "exploratory"), ("b", "base", "exploratory"), ("b", "a", "primary")
    }  # fmt: skip
    started.clear()
    assert run(plan(own("own_sums", SAMPLED), out), 1, screen()) and not started
    assert [row["label"] for row in write_summary(out)["sampled"]] == ["base", "a", "b"]
    page = (out / "summary.md").read_text(encoding="utf-8")
    assert "every run of the design is complete" in page and "### From samples: own" in page and "| not run |" not in page


@pytest.mark.slow
def test_samples_of_what_the_design_no_longer_asks_for_are_drawn_anew(
    tmp_path: Path, own: Callable[..., Path], started: Started
) -> None:
    """Other problems or another guide replace a store, and that is said; log-probs under the base are added to it."""
    out = tmp_path / "out"

    def asked(**more: str) -> tuple[SweepPlan, ProcessTask]:
        spec = ", ".join(f"{key}: {value}" for key, value in {"problems": "3", "n": "2", "guide": "null", **more}.items())
        sweep = plan(own("own_sums", f"split: {split}, samples: {{{spec}}}"), out)
        module.write_recipes(sweep)
        (task,) = sweep.base_samples
        return sweep, task

    def complete(sweep: SweepPlan, task: ProcessTask) -> bool:
        clear(sweep)
        run_tasks([task], 1)
        return task.done()

    split = "test"
    assert complete(*asked(score_base="false")) and asked(score_base="false")[1].done()
    sweep, task = asked()
    assert not task.done() and not replaced(sweep) and complete(sweep, task)
    split = "validation"
    sweep, task = asked()
    assert not task.done() and complete(sweep, task) and asked()[1].done()
    sweep, task = asked(guide="branch")
    (told,) = replaced(sweep)
    assert f"REPLACES 1 evaluations in {out} (runs/base/samples/own_sums-untruncated), " in told
    assert not task.done() and complete(sweep, task) and not replaced(asked(guide="branch")[0]) and asked()[1].done()
    assert len(started) == 4


def test_a_task_of_ones_own_without_solutions_needs_samples(tmp_path: Path, own: Callable[..., Path]) -> None:
    unlisted = r"own_sums: its right completions cannot be enumerated \(OwnSums has no solutions\).*`evaluate: \{samples: "
    asked = "controls: none\nquestions: [{{a: b, b: a, metric: {}}}]"
    for evaluate, change, wanted in (
        ("problems: 6", ("", ""), unlisted),
        (SAMPLED, ("controls: none", "controls: none\nbaselines: {E: [a]}"), "omit baselines"),
        (SAMPLED, ("controls: none", "controls: none\noracle: a"), "omit oracle"),
        (SAMPLED, ("controls: none", asked.format("pass@8")), "'pass@8': no such metric.*did you mean 'pass@4'"),
        (SAMPLED, ("controls: none", asked.format("pass@4, task: sums")), "'sums': no such task; did you mean 'own_sums'"),
        (f"ood: [demo-5], {SAMPLED}", ("", ""), "omit evaluate.ood"),
        (SAMPLED, ("controls: none", asked.format("{k: 4, matched: exact KL}")), "exact KL of every arm.*set evaluate.samples.kl"),
        (SAMPLED, ("controls: none", asked.format("{name: exact KL}")), "exact KL of every arm.*set evaluate.samples.kl"),
        (WITH_KL, ("controls: none", asked.format("{k: 4, matched: exact KL}")), "set kl_matched of arm b to a and more arms"),
        (WITH_KL.replace("kl: 2", "kl: 5"), ("", ""), "kl = 5: must be 0 .no exact KL. to n = 4"),
        (SAMPLED, ("controls: none", "controls: none\nselect: {among: [b]}"), "omit select"),
    ):
        with pytest.raises(ConfigError, match=wanted):
            plan(own("own_sums", evaluate, change), tmp_path / "out")
    sweep = plan(own("own_sums", SAMPLED, ("controls: none", asked.format("pass@4"))), tmp_path / "out")
    assert "    beta 0.0 of own_sums.yaml is dropped with method grpo" in dry_lines(sweep)  # by an arm's edit of method.name
    assert not (tmp_path / "out").exists()


def test_a_policy_that_is_no_run_is_evaluated_exactly_on_a_task_that_lists_its_solutions(
    tmp_path: Path, own: Callable[..., Path], warm_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own("listed_sums", "problems: 6")
    words = ["eval", str(warm_policy), "--plugin", str(tmp_path / "own.py")]
    for more, code, wanted in (
        (["--task", "listed_sums", "--out", str(tmp_path / "one.npz")], 0, "listed_sums; 5 test problems"),
        (["--task", str(tmp_path / "listed_sums.yaml"), "--out", str(tmp_path / "two.npz")], 0, "listed_sums; 8 test problems"),
        (["--task", "own_sums"], 2, f"own_sums cannot be enumerated; evaluate by sampling: sage-rlvr eval {warm_policy} --task"),
        (["--task", "listed_sums", "--world", "demo-5"], 2, "omit one of them"),
    ):
        with pytest.raises(SystemExit) as caught:
            main([*words, *more])
        told = capsys.readouterr()
        assert caught.value.code == code and wanted in " ".join((told.out + told.err).split())
    assert load_record(tmp_path / "two.npz").meta["world"] == {"name": "listed_sums"}


def test_a_task_from_outside_is_evaluated_as_countdown_is(
    tmp_path: Path, own: Callable[..., Path], warm_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run on its own task without naming it, and by its bare name; a named world of it; what guessing earns; its problems."""
    own("drawn_sums", "problems: 6")
    shutil.copytree(warm_policy, tmp_path / "run" / "policy")
    config = {"task": {"name": "drawn_sums", "most": 5}, "rollout": {"max_new_tokens": 4}}
    (tmp_path / "run" / "run.json").write_text(json.dumps({"kind": "train", "config": config}))
    for what, more, many, most in (
        ("run", [], 8, 5),
        ("run", ["--task", "drawn_sums"], 8, 5),
        ("run", ["--task", "drawn_sums:few"], 3, 3),
        ("run", ["--task", "drawn_sums", "--world", "many"], 12, 6),
        (warm_policy, ["--task", "drawn_sums"], 3, 3),
    ):
        with pytest.raises(SystemExit) as caught:
            words = ["--plugin", str(tmp_path / "own.py"), "--out", str(tmp_path / "one.npz"), "--ks", "1", "8", *more]
            main(["eval", str(tmp_path / what), *words])
        told = " ".join(capsys.readouterr().out.split())
        assert caught.value.code == 0 and f": sums of numbers below {most}; {many} test problems" in told
        floor = f"chance {1 / (2 * most - 1):.3f} {1 - (1 - 1 / (2 * most - 1)) ** 8:.3f}"
        law = "chance: k guesses of a guesser, uniform over the well-formed answers"
        assert f"{floor} {law}; * below chance problems: sums of numbers below {most}; split test, sampling iid, seed 1" in told
    with pytest.raises(SystemExit) as caught:
        main(["eval", str(tmp_path / "run"), *words[:2], "--task", "drawn_sums", "--samples", "2", "--store", str(tmp_path / "s")])
    assert caught.value.code == 0 and "problems: sums of numbers below 5;" in " ".join(capsys.readouterr().out.split())
    with SampleStore.open(tmp_path / "s") as store:
        assert len(store.counts().problems) == 8 and store.identity.decoding["max_new_tokens"] == 4


def test_arms_on_other_problems_are_refused(tmp_path: Path, own: Callable[..., Path]) -> None:
    other = ("edits: {method.name: rloo}", "edits: {task.most: 3}")
    with pytest.raises(ConfigError, match=r"the arms differ in task: .*a design has a single value"):
        plan(own("listed_sums", "problems: 6", other), tmp_path / "out")
