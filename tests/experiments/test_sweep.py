"""A sweep in small: it runs what is missing and nothing else, a failure stops only what waits for it, and what it says of
numbers is what the numbers are."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import shutil
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from frozen.folders import as_once
from sage_rlvr import plugins
from sage_rlvr.cli.app import main
from sage_rlvr.cli.compare import caveats
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.record import Record, load_record, record_path, save_record
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.experiments import demo, display
from sage_rlvr.experiments import jobs as work
from sage_rlvr.experiments import plan as plans
from sage_rlvr.experiments import sweep as module
from sage_rlvr.experiments.adoption import adoptable, clear, replaced
from sage_rlvr.experiments.display import dry_lines, line, table
from sage_rlvr.experiments.jobs import Task, run_tasks
from sage_rlvr.experiments.plan import Sweep, note, plan
from sage_rlvr.experiments.sweep import run
from sage_rlvr.registry import registry_of
from sage_rlvr.report import write_summary
from sage_rlvr.results import Results, Run, compare
from sage_rlvr.results.comparisons import between
from sage_rlvr.results.summary import choose, relabelled, strength, summary_of
from sage_rlvr.results.tables import costs

DESIGN = """
title: small
seeds: [0, 1]
base:
  steps: 2
  model: {model}
  world: {{counts: {{2: 1.0}}, max_number: 12, max_target: 144, train_problems: 60}}
  rollout: {{prompts_per_step: 4, group_size: 4, max_new_tokens: 8}}
arms: {{grpo: grpo, branch: sage_branch}}
control: grpo
controls: [no_kl]
evaluate: {{problems: 6, temperatures: [0.5, 1.0]}}
"""
# A Branch that acts within two steps whatever the machine's rounding: its weights are then not the control's.
ACTS = ("branch: sage_branch", "branch: {recipe: sage_branch, edits: {method.guide.threshold: 0.1}}")
Started = list[tuple[str, ...]]


def screen() -> Console:
    return Console(file=io.StringIO(), width=120)


def said(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


class Ended:
    """A process that ran to its end in this one, when it was asked for."""

    pid = 0

    def __init__(self, code: int):
        self.returncode = code

    def poll(self) -> int:
        return self.returncode


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Commands are run in this process, one after the other; what they were is listed."""
    found: Started = []

    def start(task: Task) -> Ended:
        found.append(task.words)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        task.log.touch()
        with pytest.raises(SystemExit) as caught:
            main(list(task.words))
        return Ended(int(caught.value.code or 0))

    monkeypatch.setattr(work, "_start", start)
    monkeypatch.setattr(work, "POLL_SECONDS", 0.0)
    return found


@pytest.fixture
def design(tmp_path: Path, warm_policy: Path) -> Callable[..., Path]:
    def write(*changes: tuple[str, str], name: str = "small.yaml") -> Path:
        text = DESIGN.format(model=warm_policy)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def states(sweep: Sweep) -> dict[str, str]:
    return {cell.job.directory.name: sweep.status(cell) for cell in sweep.cells}


def summarize(path: Path) -> dict[str, Any]:
    results = Results.read(path)
    return summary_of(results, compare(results))


# ---- the machinery


@pytest.mark.slow
def test_it_makes_what_is_missing_and_only_that(
    tmp_path: Path, design: Callable[..., Path], started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = design(ACTS), tmp_path / "out"
    with pytest.raises(SystemExit) as caught:
        main(["sweep", str(path), "--out", str(out), "--workers", "1"])
    assert caught.value.code == 0
    runs = [Path(words[words.index("--run") + 1]).name for words in started if words[0] == "train"]
    assert runs == ["grpo-s0", "branch-s0", "grpo-s1", "branch-s1", "grpo_no_kl-s0", "grpo_no_kl-s1"]  # added ones last
    text = capsys.readouterr().out
    assert "ADDED, GRPO without its KL" in text and "A claim about methods needs 3 training seeds of each arm at least" in text
    facts = json.loads((out / "design.json").read_text(encoding="utf-8"))
    assert [cell["status"] for cell in facts["runs"]] == ["evaluated"] * 6 and facts["base_evaluated"] == [""]
    assert {arm["name"]: arm["no_kl"] for arm in facts["arms"]}["branch"] == "grpo_no_kl"
    found = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    record = load_record(out / "evaluations" / "grpo-s1.npz")
    p = np.array([math.fsum(np.exp(row)) for row in record.logps[1.0]])
    assert found["arms"]["grpo"]["pass_by_seed"]["1"]["8"] == pytest.approx(np.mean(1 - (1 - p) ** 8))
    assert found["not_run"] == [] and "every run of the design is there" in (out / "summary.md").read_text(encoding="utf-8")

    fewer = dry_lines(plan(design(ACTS, ("evaluate: {problems: 6", "evaluate: {problems: 5")), out))
    assert any(f"REPLACES 7 evaluations in {out} (evaluations/base.npz, " in said for said in fewer)
    assert not any("REPLACES" in said for said in dry_lines(plan(design(ACTS), out)))
    named = Results.read(f"G={out / 'runs' / 'grpo-s1'}", f"B={out / 'evaluations' / 'base.npz'}", apart=True)
    assert named.records["G", 0, ""].meta == load_record(out / "evaluations" / "grpo-s1.npz").meta  # by the run's folder

    started.clear()  # again, and in a folder that an older version left: nothing to do
    assert run(plan(path, out), 1, screen()) and not started
    as_once(out)
    assert run(plan(path, out), 1, screen()) and not started and json.loads((out / "design.json").read_text()) == facts
    (out / "evaluations" / "grpo-s1.npz").unlink()
    shutil.rmtree(out / "runs" / "branch-s0")
    again = plan(path, out)
    assert states(again)["branch-s0"] == "not run" and states(again)["grpo-s1"] == "trained"
    assert run(again, 1, screen()) and [words[0] for words in started] == ["train", "eval", "eval"]
    with pytest.raises(ConfigError, match=r"holds a run with other settings(.|\n)*optimizer.lr"):
        plan(design(ACTS, ("steps: 2", "steps: 2\n  optimizer.lr: 0.5")), out)

    # another sweep beside it takes over what is finished and of the same configuration, with its evaluations
    started.clear()
    beside = plan(
        design(
            ACTS,
            ("title: small", "title: other\nadopt: [out]"),
            ("grpo: grpo,", "plain: grpo,"),
            ("control: grpo", "control: plain"),
        ),
        tmp_path / "other",
    )
    assert [cell.job.directory.name for cell, _ in adoptable(beside)][:2] == ["plain-s0", "branch-s0"]
    for part in (out / "runs" / "grpo-s0" / "metrics.jsonl", out / "runs" / "grpo-s0"):
        shutil.move(part, tmp_path / "elsewhere")
        part.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ConfigError, match="a link, where a run is to be taken over"):
            adoptable(beside)
        part.unlink()
        shutil.move(tmp_path / "elsewhere", part)
    assert "sweep: 12/12 steps" in dry_lines(beside)[-1]
    records = {
        name: (out / "evaluations" / f"{name}.npz").read_bytes() for name in ("branch-s0", "branch-s1", "grpo-s1")
    }
    (out / "evaluations" / "branch-s0.npz").write_bytes(records["branch-s0"][:-20])
    (out / "evaluations" / "branch-s1.npz").write_bytes(records["grpo-s1"])
    assert run(beside, 1, screen())  # the base, the record that is torn, and that of other weights, are made
    assert [Path(words[1]).name for words in started] == ["warm", "branch-s0", "branch-s1"]
    for name, content in records.items():
        (out / "evaluations" / f"{name}.npz").write_bytes(content)
    assert summarize(tmp_path / "other")["arms"]["plain"]["pass"] == summarize(out)["arms"]["grpo"]["pass"]

    # but no evaluation of other problems, and of more temperatures than are asked for these alone
    for name, change, made in (
        ("problems", ("evaluate: {problems: 6", "evaluate: {problems: 5"), 7), ("temperatures", ("[0.5, 1.0]", "[1.0]"), 1)
    ):  # fmt: skip
        started.clear()
        other = plan(design(ACTS, ("title: small", f"title: {name}\nadopt: [out]"), change), tmp_path / name)
        assert run(other, 1, screen()) and [words[0] for words in started] == ["eval"] * made
    shown = summarize(tmp_path / "temperatures")["arms"]["grpo"]
    assert [point["temperature"] for point in shown["frontier"]] == [1.0]
    assert shown["pass"] == summarize(out)["arms"]["grpo"]["pass"]
    found = Results.read(tmp_path / "temperatures")
    assert {tuple(record.logps) for record in found.records.values()} == {(1.0,)}


@pytest.mark.slow
def test_a_failure_is_printed_and_the_others_go_on(
    tmp_path: Path, design: Callable[..., Path], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = plan(design(("controls: [no_kl]", "controls: none")), tmp_path / "out")
    start = work._start

    def failing(task: Task) -> Ended:
        if "branch-s0" not in " ".join(task.words):
            return start(task)  # type: ignore[return-value]
        task.log.parent.mkdir(parents=True, exist_ok=True)
        task.log.write_text("something\nthe disk is gone\n")
        return Ended(70)

    monkeypatch.setattr(work, "_start", failing)
    console = screen()
    assert not run(sweep, 1, console)
    assert "FAILED: SAGE-Branch s0 ended with code 70" in said(console) and "the disk is gone" in said(console)
    assert states(sweep) == {
        "grpo-s0": "evaluated",
        "branch-s0": "failed",
        "grpo-s1": "evaluated",
        "branch-s1": "evaluated",
    }
    found = write_summary(sweep.out)
    assert found["not_run"] == ["SAGE-Branch s0: failed"] and found["arms"]["branch"]["seeds"] == [1]
    monkeypatch.setattr(work, "_start", start)
    assert run(plan(design(("controls: [no_kl]", "controls: none")), tmp_path / "out"), 1, screen())


@pytest.mark.slow
def test_a_folder_that_cannot_be_filled_is_named_as_the_cause(
    tmp_path: Path, design: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not that nothing was started there."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 93, 7))

    def refusing(code: int) -> Callable[..., None]:
        def write(path: Path, text: object) -> None:
            raise OSError(code, os.strerror(code), str(path))

        return write

    for code, cause in {errno.ENOSPC: "the disk is full", errno.EROFS: "Read-only file system"}.items():
        for home, name in ((module, "write_text_atomic"), (plans, "write_json_atomic")):
            with monkeypatch.context() as disk, pytest.raises(SystemExit) as caught:
                disk.setattr(home, name, refusing(code))
                main(["sweep", str(design()), "--out", str(tmp_path / f"{name}-{code}"), "--workers", "1"])
            said = " ".join(capsys.readouterr().err.split())
            assert caught.value.code == 2 and cause in said and "holds no runs" not in said and "is not there" not in said, said


def test_what_is_taken_over_lies_in_the_folder_beside(tmp_path: Path, design: Callable[..., Path]) -> None:
    for name in ("../elsewhere", "/elsewhere", "..", "", "a/b"):
        with pytest.raises(ConfigError, match="expected the name of a folder beside"):
            plan(design(("title: small", f"title: other\nadopt: [{name!r}]")), tmp_path / "other")


def test_a_folder_from_which_nothing_is_taken_over_is_named(tmp_path: Path, design: Callable[..., Path]) -> None:
    (tmp_path / "former" / "runs" / "grpo-s0").mkdir(parents=True)
    said = dry_lines(plan(design(("title: small", "title: other\nadopt: [formr, former]")), tmp_path / "other"))
    assert [text.strip() for text in said if "adopt" in text] == [
        f"NOT TAKEN OVER: adopt = 'formr': {tmp_path / 'formr'} holds no runs; did you mean 'former'? choose from: former",
        "NOT TAKEN OVER: adopt = 'former': no finished run there has settings and weights that lack here",
    ]


def test_a_sweep_that_an_older_version_began_goes_on(tmp_path: Path, design: Callable[..., Path]) -> None:
    out = tmp_path / "out"
    (out / "runs").mkdir(parents=True)
    note(plan(design(), out))
    facts = json.loads((out / "design.json").read_text(encoding="utf-8"))
    as_once(out)
    assert Results.read(out).design.facts == facts and facts["title"] == "small" and len(facts["runs"]) == 6
    old = design(("title: small", "tier: small"))
    with pytest.warns(FutureWarning, match=r"small\.yaml:2: the key tier is called title now"):
        note(plan(old, out))
    assert Results.read(out).design.facts == facts and {path.name for path in out.iterdir()} == {"design.json", "runs"}


def test_what_did_not_run_is_said(tmp_path: Path, design: Callable[..., Path]) -> None:
    sweep = plan(design(), tmp_path / "out")
    assert set(states(sweep).values()) == {"not run"} and not (tmp_path / "out").exists()
    assert line(sweep).startswith("sweep: 0/12 steps, 0 of 6 runs complete, time left is known after the first steps")
    assert line(sweep).endswith("evaluation not counted")
    dry = dry_lines(sweep)
    assert dry[-3].startswith("  ADDED: ") and dry[-2].startswith("  to decline ADDED arms: `controls: none` in ")
    declined = plan(design(("controls: [no_kl]", "controls: none")), tmp_path / "out")
    assert not any("to decline" in text for text in dry_lines(declined))
    console = screen()
    console.print(table(sweep))
    assert said(console).count("not run") == 6
    module._write_recipes(sweep)
    note(sweep)
    write_summary(sweep.out)
    page = (sweep.out / "summary.md").read_text(encoding="utf-8")
    assert page.count("| GRPO | 0 of 2 | not run | not run |") == 1 and "\n0 of 6 runs complete.\n" in page
    assert "- GRPO s0: not run\n- SAGE-Branch s0: not run" in page and "the control has 0 evaluated seeds; splitting" in page
    facts = json.loads((sweep.out / "design.json").read_text(encoding="utf-8"))
    for cell, status in zip(facts["runs"], ("trained", "training", "1/2"), strict=False):
        cell["status"] = status
        (sweep.out / "runs" / f"{cell['arm']}-s{cell['seed']}").mkdir(parents=True)
        (sweep.out / "runs" / f"{cell['arm']}-s{cell['seed']}" / "metrics.jsonl").write_text('{"step": 0}\n')
    (sweep.out / "design.json").write_text(json.dumps(facts), encoding="utf-8")
    assert summarize(sweep.out)["not_run"][:4] == [
        *("GRPO s0: trained, not evaluated", "SAGE-Branch s0: 1 steps", "GRPO s1: 1 steps"),
        "SAGE-Branch s1: not run",
    ]


def test_evaluations_left_take_as_long_as_those_of_arms(
    tmp_path: Path, design: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base's, which is tempered too and takes minutes, stands in only until an arm's is there."""
    sweep = plan(design(), tmp_path / "out")
    sweep.workers = 2
    monkeypatch.setattr(work.Job, "done", 2)
    monkeypatch.setattr(display, "read_metrics", lambda run: [{"seconds": 1.0}])
    seconds = {"base.npz": 300.0}
    monkeypatch.setattr(
        display, "load_record", lambda path: SimpleNamespace(meta={"seconds": seconds.get(path.name, 2.0)})
    )
    assert display.left_words(sweep) == "no training left"
    paths = [record_path(sweep.out, name) for name in ("base", sweep.cells[0].job.directory.name)]
    paths[0].parent.mkdir(parents=True)
    for path in paths:
        path.touch()
    assert display.left_words(sweep) == "about 15 min left"  # six of the base's five minutes, two at a time
    sweep.over.add(sweep.cells[0].exact[""])
    assert display.left_words(sweep) == "about 5 s left"


def test_time_left_is_that_of_the_clock(tmp_path: Path, design: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four runs are left whose steps take 2 s together; one that ended took 30 s with its start and saving, an evaluation 12 s."""
    sweep = plan(design(("controls: [no_kl]", "controls: none"), ("seeds: [0, 1]", "seeds: [0, 1, 2]")), tmp_path / "out")
    ended, *others = sweep.cells
    monkeypatch.setattr(work.Job, "done", property(lambda job: 2 if job.directory == ended.job.directory else 0))
    monkeypatch.setattr(display, "read_metrics", lambda run: [{"time/step_s": 1.0}] * 2)
    monkeypatch.setattr(display, "load_record", lambda path: pytest.fail("what ended here is measured by the clock"))
    sweep.over |= {ended.train, ended.exact[""]}
    sweep.took |= {ended.train: 30.0, ended.exact[""]: 12.0}
    assert len(others) == 5 and display.left_words(sweep) == f"about {(5 * 30 + 5 * 12) / 60:.0f} min left"
    sweep.took[ended.train] = 1.0  # less than its steps: only its end was made here, which says nothing
    assert display.left_words(sweep) == f"about {5 * 2 + 5 * 12} s left"


def test_a_run_that_ended_unseen_is_trained(
    tmp_path: Path, design: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between the last step of a run and the next look at it, a sweep says "trained" and not "2/2"."""
    cell = (sweep := plan(design(), tmp_path / "out")).cells[0]
    monkeypatch.setattr(work.Job, "done", 2)
    assert sweep.status(cell) == "training"
    monkeypatch.setattr(work.Job, "finished", True)
    assert sweep.status(cell) == "trained"


def test_arms_of_other_lengths_are_refused_unless_the_length_is_the_question(
    tmp_path: Path, design: Callable[..., Path]
) -> None:
    arms = ("arms: {grpo: grpo,", "arms: {grpo: grpo, early: {recipe: grpo, edits: {steps: 1}},")
    with pytest.raises(ConfigError, match=r"differ in steps: \[1, 2\].*steps_differ: true"):
        plan(design(arms), tmp_path / "out")
    sweep = plan(design(arms, ("controls: [no_kl]", "controls: none\nsteps_differ: true")), tmp_path / "out")
    assert {cell.arm.name: cell.job.config.steps for cell in sweep.cells} == {"grpo": 2, "early": 1, "branch": 2}
    sweep.out.mkdir()
    note(sweep)
    assert json.loads((tmp_path / "out" / "design.json").read_text())["steps"] == "1 to 2"


@pytest.mark.slow
def test_an_arm_is_chosen_on_validation_and_it_alone_is_tested(
    tmp_path: Path, design: Callable[..., Path], started: Started
) -> None:
    change = ("controls: [no_kl]", "controls: none\nchoose: {among: [branch, strong], by: pass@1, problems: 6}")
    more = (
        "branch: sage_branch",
        "branch: sage_branch, strong: {recipe: sage_branch, edits: {method.guide.ratio: 3.0, method.guide.threshold: 0.1}}",
    )
    sweep = plan(design(change, more), tmp_path / "out")
    terminal = Console(file=io.StringIO(), width=120, force_terminal=True)
    assert run(sweep, 1, terminal) and sweep.choice is not None
    assert "SAGE-Branch" in said(terminal) and "validation only" in said(terminal)  # the table as it stood at the end
    chosen = sweep.choice["chosen"]
    other = ({"branch", "strong"} - {chosen}).pop()
    assert sweep.choice["scores"][chosen] >= sweep.choice["scores"][other]
    assert states(sweep)[f"{chosen}-s0"] == "evaluated" and states(sweep)[f"{other}-s0"] == "validation only"
    assert not (sweep.out / "evaluations" / f"{other}-s0.npz").exists()
    assert load_record(sweep.out / "evaluations" / f"{other}-s0-validation.npz").meta["split"] == "validation"
    found = write_summary(sweep.out)
    assert found["not_run"] == [] and found["choice"]["chosen"] == chosen
    assert f"(chosen) | {found['choice']['scores'][chosen]:.4f}" in (sweep.out / "summary.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.slow
def test_the_folder_of_a_demo_is_taken_as_it_is(
    tmp_path: Path, design: Callable[..., Path], started: Started, warm_policy: Path
) -> None:
    edits = {
        "model": str(warm_policy),
        "steps": "2",
        "rollout": "{prompts_per_step: 4, group_size: 4, max_new_tokens: 8}",
    }
    edits["world"] = "{counts: {2: 1.0}, max_number: 12, max_target: 144, train_problems: 60}"
    assert run(demo.plan(tmp_path / "demo", (0, 1), ["grpo"], list(edits.items()), 6), 1, screen())
    found = states(plan(design(), tmp_path / "demo"))
    assert found["grpo-s0"] == found["grpo-s1"] == "evaluated" and found["branch-s0"] == "not run"
    # but not one whose weights are others by now, however complete it looks
    moved = load_record(tmp_path / "demo" / "evaluations" / "grpo-s0.npz")
    save_record(Record({**moved.meta, "weights": "0"}, moved.logps), tmp_path / "demo" / "evaluations" / "grpo-s0.npz")
    assert states(plan(design(), tmp_path / "demo"))["grpo-s0"] == "trained"


def test_tasks_wait_for_what_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order, there = [], set()

    def start(task: Task) -> Ended:
        order.append(task.label)
        there.update({task.label} - {"bad"})
        (tmp_path / "log").touch()
        return Ended(0)

    def task(label: str, *after: Task) -> Task:
        return Task(label, (), tmp_path / "log", lambda: label in there, after=after)

    monkeypatch.setattr(work, "_start", start)
    monkeypatch.setattr(work, "POLL_SECONDS", 0.0)
    bad, first = task("bad"), task("first")
    tasks = [task("needs bad", bad), task("second", first), bad, first]
    failures: list[str] = []
    run_tasks(tasks, 1, failed=lambda t, problem: failures.append(t.label))
    assert order == ["bad", "first", "second"] and failures == ["bad"]
    run_tasks([first], 1)
    assert order == ["bad", "first", "second"]
    order.clear()
    there = {"evaluation"}  # of a run that goes on to more steps: it is made again behind it
    run_tasks([task("evaluation", more := task("more steps")), more], 1)
    assert order == ["more steps", "evaluation"]


# ---- the numbers


def folder_of(path: Path, scores: dict[str, list[float]], kls: dict[str, float] | None = None) -> Path:
    """A sweep's folder with made records: arm -> p of its two problems, one per seed (the second problem always 0.5)."""
    arms = []
    for name in scores:
        links: dict[str, object] = {"plain": None, "placebo": None, "no_kl": None, "matched": [], "guided": False}
        if name == "guided":
            links |= {"guided": True, "plain": "control", "matched": [n for n in scores if n != "guided"]}
        arms.append({"name": name, "label": name, "recipe": "", "why": "", **links})
    seeds = range(len(next(iter(scores.values()))))

    def record(name: str, p: float) -> None:
        logps = {1.0: [np.log([p]), np.log([0.5])], 0.5: [np.log([p / 2]), np.log([0.5])]}
        meta = {"name": name, "problem_ids": ["a", "b"], "world": {}, "split": "test", "seed": 1, "draw": "law"}
        save_record(Record(meta, logps), path / "evaluations" / f"{name}.npz")

    record("base", 0.1)
    for name, values in scores.items():
        for seed, p in enumerate(values):
            record(f"{name}-s{seed}", p)
            (path / "runs" / f"{name}-s{seed}").mkdir(parents=True)
            row = {"step": 0, "time/step_s": 1.0, "anchor/kl_raw": (kls or {}).get(name, 0.1)}
            row |= {"anchor/q_mean": 1.0, "anchor/q_active_share": 0.0}
            (path / "runs" / f"{name}-s{seed}" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    cells = [
        {"arm": n, "seed": s, "status": "evaluated", "complete": True, "evaluated": [""]} for n in scores for s in seeds
    ]
    facts = {
        "title": "t",
        "notes": "",
        "design": "m",
        "control": "control",
        "seeds": list(seeds),
        "steps": 1,
        "world": "w",
    }
    facts |= {"versions": {}, "choice": None, "left_out": [], "arms": arms, "runs": cells, "base_evaluated": [""]}
    facts |= {"evaluate": {"ood": [], "problems": 2, "split": "test", "draw": "law", "ood_problems": 1}}
    (path / "design.json").write_text(json.dumps(facts))
    return path


def test_verdicts_are_paired_by_seed_and_holm_runs_over_all(tmp_path: Path) -> None:
    control = [0.1, 0.2, 0.3]
    folder = folder_of(
        tmp_path, {"control": control, "other": [p + 0.1 + e for p, e in zip(control, (0, 1e-4, -1e-4), strict=True)]}
    )
    found = summarize(folder)
    first = found["rows"][0]
    assert (first["why"], first["a"], first["b"], first["metric"]["k"]) == ("control", "other", "control", 1)
    assert first["difference"]["value"] == pytest.approx(0.05) and first["outcome"] == "better"  # half of 0.1: two problems
    primary = [c for c in found["rows"] if c["family"] == "primary" and c["p"] is not None]
    assert first["family_size"] == len(primary) and first["adjusted"] >= first["p"]
    assert found["arms"]["control"]["pass"]["1"]["value"] == pytest.approx((0.2 + 0.5) / 2)
    width = found["arms"]["control"]["pass"]["1"]["high"] - 0.35
    assert width == pytest.approx(4.302653 * 0.05 / math.sqrt(3), rel=1e-6)  # Student, two degrees of freedom


def test_scores_between_betas_are_linear_in_log_kl_and_nothing_is_read_outside() -> None:
    kls, scores = np.array([0.4, 0.1]), np.array([[0.3, 0.6], [0.1, 0.8]])
    assert between(0.2, kls, scores) == pytest.approx([0.2, 0.7])  # halfway from 0.1 to 0.4 in the logarithm
    assert between(0.1, kls, scores) == pytest.approx([0.1, 0.8])
    assert between(0.41, kls, scores) is None and between(0.09, kls, scores) is None
    assert between(0.0, kls, scores) is None and between(0.2, np.array([0.4, 0.0]), scores) is None  # before the first update
    assert between(0.2, np.array([np.inf, 0.1]), scores) is None


def test_a_guided_arm_is_held_against_its_method_at_the_same_raw_kl(tmp_path: Path) -> None:
    scores = {"control": [0.2, 0.21, 0.22], "strong": [0.4, 0.41, 0.42], "guided": [0.3, 0.31, 0.32]}
    folder = folder_of(tmp_path, scores, {"control": 0.1, "strong": 0.4, "guided": 0.2})
    found = {(row.why, str(row.metric)): row.comparison for row in compare(Results.read(folder)) if row.a == "guided"}
    assert found["matched", "pass@1 at the same raw KL"].difference.value == pytest.approx(0, abs=1e-12)
    assert found["control", "pass@1"].difference.value == pytest.approx(0.05)
    away = folder_of(tmp_path / "away", scores, {"control": 0.1, "strong": 0.4, "guided": 0.5})
    assert not any(row.why == "matched" for row in compare(Results.read(away)))


def test_near_temperature_one_an_arm_that_only_slides_gains_nothing(tmp_path: Path) -> None:
    """The hot arm is the control sampled twice as hot: above it at temperature 1, on its frontier throughout. The wide one has its
    frontier but twice the probability of another right answer. The far one has no temperature with the control's pass@1: no
    comparison, and that is said."""
    c = [0.002, 0.003, 0.004]
    folder = folder_of(tmp_path, {"control": c, "hot": [2 * p for p in c], "wide": c, "far": [50 * p for p in c]})
    factors = {"base": 50.0, "control": 1.0, "hot": 2.0, "wide": 1.0, "far": 50.0}
    for name, seed in [("base", 0), *((name, seed) for name in factors if name != "base" for seed in range(3))]:
        path = folder / "evaluations" / ("base.npz" if name == "base" else f"{name}-s{seed}.npz")
        p = c[seed] * factors[name] * (np.array([0.5, 0.5]) if name == "wide" else np.array([1.0, 1e-12]))
        rows = {t: [np.log(p * t), np.log([0.5])] for t in (0.25, 0.5, 1.0, 2.0)}  # twice as hot, twice the probability
        save_record(Record(load_record(path).meta, rows), path)
    found = summarize(folder)
    rows = [row for row in compare(Results.read(folder)) if row.metric.at == "near"]
    gaps = {(row.a, str(row.metric)): row.comparison.difference for row in rows}
    near = {key: asdict(gap) for key, gap in gaps.items() if math.isfinite(gap.value)}
    assert {name for name, _ in near} == {"hot", "wide"} and {row.a for row in rows} == {"hot", "wide", "far"}
    passk, distinct = "pass@256 at equal pass@1 near T = 1", "distinct in 256 at equal pass@1 near T = 1"
    for what in (passk, distinct):
        assert near["hot", what]["value"] == pytest.approx(0, abs=1e-8) and near["hot", what]["n"] == 3
    assert found["arms"]["hot"]["pass"]["256"]["value"] > found["arms"]["control"]["pass"]["256"]["value"] + 0.05
    assert near["wide", passk]["value"] == pytest.approx(0, abs=1e-8)
    f = [2 * (1 - (1 - p / 2) ** 256) - (1 - (1 - p) ** 256) for p in c]  # two answers of p / 2 instead of one of p
    assert near["wide", distinct]["value"] == pytest.approx(np.mean(f) / 2, rel=1e-6)  # over two problems
    write_summary(folder)
    text = (folder / "summary.md").read_text(encoding="utf-8")
    why = "Cannot be told, one of the two has no temperature with the pass@1 that the other has at T = 1: "
    assert f"- {why}{passk} and {distinct}: far against control." in text


def test_near_temperature_one_a_guided_arm_meets_its_method_and_its_placebo_and_added_placebos_meet_nobody(
    tmp_path: Path,
) -> None:
    scores = {name: [0.2, 0.21, 0.22] for name in ("control", "plain", "shuffled", "mine", "beta")}
    folder = folder_of(tmp_path, scores)
    facts = json.loads((folder / "design.json").read_text())
    for arm in facts["arms"]:
        arm |= {"plain": "plain", "placebo": "shuffled"} if arm["name"] == "mine" else {}
        arm |= {"why": "added"} if arm["name"] in ("shuffled", "beta") else {}
    (folder / "design.json").write_text(json.dumps(facts))
    near = {(row.a, row.b) for row in compare(Results.read(folder)) if row.metric.at == "near"}
    assert near == {
        ("plain", "control"),
        ("mine", "control"),
        ("mine", "plain"),
        ("mine", "shuffled"),
        ("beta", "control"),
    }


def test_one_arm_under_two_names_is_tied(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    even = folder_of(tmp_path / "even", {"control": rng.normal(0.3, 0.02, 6).tolist()})
    found = relabelled(Results.read(even))
    assert found["splits"] == 10 and found["tied"]["pass@1"] >= 9 and "A (seeds 0, 1, 2)" in found["first"][0]
    halves = folder_of(tmp_path / "halves", {"control": [0.1, 0.1001, 0.1002, 0.3, 0.3001, 0.3002]})
    assert relabelled(Results.read(halves))["tied"]["pass@1"] < 10  # two different arms under one name are found out
    few = folder_of(tmp_path / "few", {"control": [0.1] * 5})
    assert relabelled(Results.read(few)) == {"splits": 0, "have": 5}
    write_summary(few)
    why = "not run: the control has 5 evaluated seeds; splitting them in two halves of three needs 6"
    assert why in (few / "summary.md").read_text(encoding="utf-8")


def test_what_was_logged_is_a_mean_of_its_part_of_the_run(tmp_path: Path) -> None:
    """Thirty steps, reward the step's number, norm 1, 2, 3 in the thirds; the second seed has both doubled. Dead groups: a
    fortieth of the step's number, in both."""
    folder = folder_of(tmp_path, {"control": [0.1, 0.1]})
    for seed, scale in ((0, 1.0), (1, 2.0)):
        rows = [
            {"step": i, "time/step_s": 1.0, "reward/mean": scale * i, "optimizer/grad_norm": scale * (1 + i // 10)}
            | {"reward/zero_variance_share": i / 40}
            for i in range(30)
        ]
        log = folder / "runs" / f"control-s{seed}" / "metrics.jsonl"
        log.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    row = summarize(folder)["arms"]["control"]
    assert [row["reward"][when]["value"] for when in ("first", "last")] == [1.5, 42.0]
    assert [row["dead"][when]["value"] for when in ("first", "last")] == pytest.approx([0.025, 0.7])
    assert [norm["value"] for norm in row["grad_norm"].values()] == [1.5, 3.0, 4.5]
    write_summary(folder)
    text = (folder / "summary.md").read_text(encoding="utf-8")
    assert "| training reward,<br>first tenth | last tenth | test pass@1 |" in text and "| 4.500 |" in text
    assert "| 0.700 |" in text and "## Controls\n\n- none was added" in text


def test_raw_kl_is_that_of_the_last_tenth() -> None:
    rows = [{"anchor/kl_raw": float(n)} for n in range(20)] + [{"step": 20}]
    logged, without = (Run(arm="a", seed=0, metrics=some) for some in (rows, [{"step": 0}]))
    assert logged.raw_kl == 18.5 and without.raw_kl is None
    for text in ("nan", "inf"):  # as metrics.jsonl has them
        assert Run(arm="a", seed=0, metrics=[*rows, {"anchor/kl_raw": text}]).raw_kl is None
        found = strength([[{"anchor/q_mean": text, "anchor/q_active_share": 0.5}]])
        assert found is not None and found["active_first"] == 0.5 and not math.isfinite(found["q_last"])


def test_of_samples_alone_the_summary_has_what_the_runs_logged(tmp_path: Path) -> None:
    """No exact record stands there; strength, raw KL and seconds are of the runs all the same."""
    folder = folder_of(tmp_path, {"control": [0.2], "other": [0.3]})
    for record in (folder / "evaluations").glob("*-s*.npz"):
        record.unlink()
    for log in (folder / "runs").glob("*/metrics.jsonl"):
        log.write_text(json.dumps({"step": 0, "anchor/kl_raw": 0.1, "rollout/tokens": 7, "time/step_s": 2.0}) + "\n")
    found = summarize(folder)
    row = found["arms"]["other"]
    assert row["seeds"] == [] and row["tokens"] == 7 and row["kl_raw"]["value"] == 0.1 and row["train_seconds"] == 2.0
    assert [line[0] for line in costs(found).rows] == ["control", "other"]


def test_a_control_of_one_temperature_is_evaluated_again_by_its_path(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"control": [0.2], "other": [0.3]})
    results = Results.read(folder)
    results.records |= {key: record.only([1.0]) for key, record in results.records.items()}
    assert f"sage-rlvr eval {folder / 'runs' / 'control-s0'} --frontier." in caveats(results)[0]


def test_the_choice_takes_the_higher_frontier(tmp_path: Path) -> None:
    folder = Results.read(folder_of(tmp_path, {"control": [0.2] * 2, "a": [0.1] * 2, "b": [0.12] * 2}))
    by_pass1 = choose(folder, ("a", "b"), "pass@1")
    assert by_pass1 == pytest.approx({"a": 0.3, "b": 0.31})
    assert choose(folder, ("a",), "frontier") == pytest.approx({"a": 0.0})  # it is the base's own frontier


# ---- a task of one's own


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
class OwnSums:
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
    assert set(write_summary(out)["arms"]) == {"a", "b"} and Results.read(out).home == "base"


def test_a_plan_says_the_problems_in_the_words_of_their_task(tmp_path: Path, own: Callable[..., Path]) -> None:
    sweep = plan(own("drawn_sums", "temperatures: [1.0]"), tmp_path / "out")
    assert dry_lines(sweep)[0].endswith(f"in {tmp_path / 'out'}, sums of numbers below 5")


@pytest.mark.slow
def test_a_task_of_ones_own_without_solutions_is_evaluated_by_samples(
    tmp_path: Path, own: Callable[..., Path], started: Started
) -> None:
    out = tmp_path / "out"
    sweep = plan(own("own_sums", SAMPLED), out)
    assert any("by samples alone" in said and "4 of each of 100 problems" in said for said in dry_lines(sweep))
    assert run(sweep, 1, screen()) and states(sweep) == {"a-s0": "evaluated", "b-s0": "evaluated"}
    assert [words[0] for words in started] == ["eval", "train", "eval", "train", "eval"]
    assert all("--samples" in words for words in started if words[0] == "eval")
    results = Results.read(out)
    assert {(c.store.arm, c.task, len(c.problems), c.n) for c in results.counts} == {
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
    assert "| a | 1 of 1 | sampled |" in page and "### From samples: own" in page and "| not run |" not in page


def test_samples_of_what_the_design_no_longer_asks_for_are_drawn_anew(
    tmp_path: Path, own: Callable[..., Path], started: Started
) -> None:
    """Other problems or another guide replace a store, and that is said; log-probs under the base are added to it."""
    out = tmp_path / "out"

    def asked(**more: str) -> tuple[Sweep, Task]:
        spec = ", ".join(f"{key}: {value}" for key, value in {"problems": "3", "n": "2", "guide": "null", **more}.items())
        sweep = plan(own("own_sums", f"split: {split}, samples: {{{spec}}}"), out)
        module._write_recipes(sweep)
        assert sweep.base_samples is not None
        return sweep, sweep.base_samples

    def complete(sweep: Sweep, task: Task) -> bool:
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
    unlisted = r"own_sums: its right completions cannot be listed \(OwnSums has no solutions\).*`evaluate: \{samples: "
    asked = "controls: none\nquestions: [{{a: b, b: a, metric: {}}}]"
    for evaluate, change, wanted in (
        ("problems: 6", ("", ""), unlisted),
        (SAMPLED, ("controls: none", "controls: none\nenvelopes: {E: [a]}"), "leave envelopes out"),
        (SAMPLED, ("controls: none", "controls: none\nceiling: a"), "leave ceiling out"),
        (SAMPLED, ("controls: none", asked.format("pass@8")), "'pass@8': no such metric.*did you mean 'pass@4'"),
        (SAMPLED, ("controls: none", asked.format("pass@4, task: sums")), "'sums': no such task; did you mean 'own_sums'"),
        (f"ood: [demo-5], {SAMPLED}", ("", ""), "leave evaluate.ood out"),
        (SAMPLED, ("controls: none", "controls: none\nchoose: {among: [b]}"), "leave choose out"),
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
        (["--task", "own_sums"], 2, f"own_sums cannot be listed; evaluate by sampling: sage-rlvr eval {warm_policy} --task"),
        (["--task", "listed_sums", "--world", "demo-5"], 2, "leave one of them out"),
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
        floor = f"uniform guesses: pass@1 {1 / (2 * most - 1):.3f}, pass@8 {1 - (1 - 1 / (2 * most - 1)) ** 8:.3f}"
        assert f"{floor} problems: sums of numbers below {most}; split test, draw law, seed 1" in told
    with pytest.raises(SystemExit) as caught:
        main(["eval", str(tmp_path / "run"), *words[:2], "--task", "drawn_sums", "--samples", "2", "--store", str(tmp_path / "s")])
    assert caught.value.code == 0 and "problems: sums of numbers below 5;" in " ".join(capsys.readouterr().out.split())
    with SampleStore.open(tmp_path / "s") as store:
        assert len(store.counts().problems) == 8 and store.identity.decoding["max_new_tokens"] == 4


def test_arms_on_other_problems_are_refused(tmp_path: Path, own: Callable[..., Path]) -> None:
    other = ("edits: {method.name: rloo}", "edits: {task.most: 3}")
    with pytest.raises(ConfigError, match=r"the arms differ in task: .*one design has one"):
        plan(own("listed_sums", "problems: 6", other), tmp_path / "out")
