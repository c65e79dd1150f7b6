"""A sweep in small: it runs what is missing and nothing else, and a failure stops only what waits for it."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sage_rlvr.cli.app import main
from sage_rlvr.config import dump
from sage_rlvr.errors import ConfigError, RunLocked
from sage_rlvr.evaluation.record import load_record, save_record
from sage_rlvr.models.policy import run_facts
from sage_rlvr.render import write_summary
from sage_rlvr.results.probabilities import load_probabilities
from sage_rlvr.results.read import read_results
from sage_rlvr.sweeps import demo
from sage_rlvr.sweeps import plan as plans
from sage_rlvr.sweeps import processes as work
from sage_rlvr.sweeps import sweep as module
from sage_rlvr.sweeps.display import dry_lines
from sage_rlvr.sweeps.plan import plan
from sage_rlvr.sweeps.processes import ProcessTask, run_tasks
from sage_rlvr.sweeps.reuse import reusable
from sage_rlvr.sweeps.runs import SweepRun, as_json
from sage_rlvr.sweeps.sweep import run
from sage_rlvr.verdicts.record import Record
from sweeps.sweep_common import Ended, Started, said, screen, states, summarize

# A Branch that acts within two steps whatever the machine's rounding: its weights are then not the control's.
ACTS = ("branch: sage_branch", "branch: {recipe: sage_branch, edits: {method.guide.threshold: 0.1}}")


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
    assert "ADDED, GRPO without its KL" in text and "A claim about methods needs at least 3 training seeds per arm" in text
    facts = json.loads((out / "design.json").read_text(encoding="utf-8"))
    assert [cell["status"] for cell in facts["runs"]] == ["evaluated"] * 6 and facts["base_evaluated"] == [""]
    assert {arm["name"]: arm["no_kl"] for arm in facts["arms"]}["branch"] == "grpo_no_kl"
    found = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert len(load_probabilities(out)) == 9  # of the base, six runs and two guessers
    record = load_record(out / "evaluations" / "grpo-s1.npz")
    p = np.array([math.fsum(np.exp(row)) for row in record.logps[1.0]])
    assert found["arms"]["grpo"]["pass_by_seed"]["1"]["8"] == pytest.approx(np.mean(1 - (1 - p) ** 8))
    assert found["not_run"] == [] and "every run of the design is complete" in (out / "summary.md").read_text(encoding="utf-8")

    fewer = dry_lines(plan(design(ACTS, ("evaluate: {problems: 6", "evaluate: {problems: 5")), out))
    assert any(f"REPLACES 7 evaluations in {out} (evaluations/base.npz, " in said for said in fewer)
    assert not any("REPLACES" in said for said in dry_lines(plan(design(ACTS), out)))
    named = read_results(f"G={out / 'runs' / 'grpo-s1'}", f"B={out / 'evaluations' / 'base.npz'}", apart=True)
    assert named.records["G", 0, ""].meta == load_record(out / "evaluations" / "grpo-s1.npz").meta  # by the run's folder

    started.clear()  # again: nothing to do
    assert run(plan(path, out), 1, screen()) and not started and json.loads((out / "design.json").read_text()) == facts
    (out / "evaluations" / "grpo-s1.npz").unlink()
    shutil.rmtree(out / "runs" / "branch-s0")
    again = plan(path, out)
    assert states(again)["branch-s0"] == "not run" and states(again)["grpo-s1"] == "trained"
    assert run(again, 1, screen()) and [words[0] for words in started] == ["train", "eval", "eval"]
    with pytest.raises(ConfigError, match=r"contains a run with other settings(.|\n)*optimizer.lr"):
        plan(design(ACTS, ("steps: 2", "steps: 2\n  optimizer.lr: 0.5")), out)

    # another sweep beside it takes over what is finished and of the same configuration, with its evaluations
    started.clear()
    beside = plan(
        design(
            ACTS,
            ("title: small", "title: other\nreuse_runs: [out]"),
            ("grpo: grpo,", "plain: grpo,"),
            ("control: grpo", "control: plain"),
        ),
        tmp_path / "other",
    )
    assert [cell.directory.name for cell, _ in reusable(beside)][:2] == ["plain-s0", "branch-s0"]
    for part in (out / "runs" / "grpo-s0" / "metrics.jsonl", out / "runs" / "grpo-s0"):
        shutil.move(part, tmp_path / "elsewhere")
        part.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ConfigError, match="a link, but reuse_runs needs copies"):
            reusable(beside)
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
        other = plan(design(ACTS, ("title: small", f"title: {name}\nreuse_runs: [out]"), change), tmp_path / name)
        assert run(other, 1, screen()) and [words[0] for words in started] == ["eval"] * made
    shown = summarize(tmp_path / "temperatures")["arms"]["grpo"]
    assert [point["temperature"] for point in shown["frontier"]] == [1.0]
    assert shown["pass"] == summarize(out)["arms"]["grpo"]["pass"]
    found = read_results(tmp_path / "temperatures")
    assert {tuple(record.logps) for record in found.records.values()} == {(1.0,)}


@pytest.mark.slow
def test_a_failure_is_printed_and_the_others_go_on(
    tmp_path: Path, design: Callable[..., Path], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = plan(design(("controls: [no_kl]", "controls: none")), tmp_path / "out")
    start = work._start

    def failing(task: ProcessTask) -> Ended:
        if "branch-s0" not in " ".join(task.args):
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
            assert caught.value.code == 2 and cause in said and "contains no runs" not in said and "is not there" not in said, said


def test_what_is_taken_over_lies_in_the_folder_beside(tmp_path: Path, design: Callable[..., Path]) -> None:
    for name in ("../elsewhere", "/elsewhere", "..", "", "a/b"):
        with pytest.raises(ConfigError, match="expected the name of a folder next to"):
            plan(design(("title: small", f"title: other\nreuse_runs: [{name!r}]")), tmp_path / "other")


def test_a_folder_from_which_nothing_is_taken_over_is_named(tmp_path: Path, design: Callable[..., Path]) -> None:
    (tmp_path / "former" / "runs" / "grpo-s0").mkdir(parents=True)
    said = dry_lines(plan(design(("title: small", "title: other\nreuse_runs: [formr, former]")), tmp_path / "other"))
    assert [text.strip() for text in said if "reuse_runs" in text] == [
        f"NOT REUSED: reuse_runs = 'formr': {tmp_path / 'formr'} contains no runs; did you mean 'former'? choose from: former",
        "NOT REUSED: reuse_runs = 'former': no finished run there matches a missing run (settings, weights)",
    ]


def test_a_run_of_an_earlier_version_is_continued(tmp_path: Path, design: Callable[..., Path]) -> None:
    """Parts that a method no longer has are null in its run.json."""
    run = plan(design(), tmp_path / "out").runs[0]
    run.directory.mkdir(parents=True)
    config = as_json(dump(run.config))
    for value in (None, "entropy"):
        config["method"]["loss_term"] = value
        facts = {"config": config, "data": run_facts(run.config)}
        (run.directory / "run.json").write_text(json.dumps(facts), encoding="utf-8")
        if value is None:
            assert states(plan(design(), tmp_path / "out"))["grpo-s0"] == "not run"
    with pytest.raises(ConfigError, match=r'method\.loss_term: "entropy" -> "\(absent\)"'):
        plan(design(), tmp_path / "out")


def test_a_run_that_ended_unseen_is_trained(
    tmp_path: Path, design: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between the last step of a run and the next look at it, a sweep says "trained" and not "2/2"."""
    cell = (sweep := plan(design(), tmp_path / "out")).runs[0]
    monkeypatch.setattr(SweepRun, "steps_done", 2)
    assert sweep.status(cell) == "training"
    monkeypatch.setattr(SweepRun, "trained", True)
    assert sweep.status(cell) == "trained"


@pytest.mark.slow
def test_an_arm_is_chosen_on_validation_and_it_alone_is_tested(
    tmp_path: Path, design: Callable[..., Path], started: Started
) -> None:
    change = ("controls: [no_kl]", "controls: none\nselect: {among: [branch, strong], by: pass@1, problems: 6}")
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

    def start(task: ProcessTask) -> Ended:
        order.append(task.label)
        there.update({task.label} - {"bad"})
        (tmp_path / "log").touch()
        return Ended(0)

    def task(label: str, *after: ProcessTask) -> ProcessTask:
        return ProcessTask(label, (), tmp_path / "log", lambda: label in there, after=after)

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


def test_a_second_sweep_in_a_folder_is_refused_before_it_trains(
    tmp_path: Path, design: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_tasks", lambda *words: None)
    planned = plan(design(), tmp_path / "out")
    with module._alone(tmp_path / "out"), pytest.raises(RunLocked, match="another sweep or demo is working in this folder"):
        run(planned, 1, Console(file=io.StringIO()))
    assert run(planned, 1, Console(file=io.StringIO()))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that takes nothing")
def test_a_log_that_cannot_be_written_is_named_and_no_folder_is_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").touch()
    task = ProcessTask("GRPO s0", (), tmp_path / "log", lambda: False, advice="delete the run")
    assert "delete the run" in str(work._problem(task, 2))
    assert work._unwritable(Path("/dev/full")) == os.strerror(errno.ENOSPC)
    monkeypatch.setattr(work, "_unwritable", lambda log: "No space left on device")
    problem = str(work._problem(task, 1))
    assert "delete the run" not in problem and f"{task.log}: cannot be written: No space left on device" in problem
