"""Sweeps: what did not run is said, the time that is left, and arms of other lengths."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.record import record_path
from sage_rlvr.render import write_summary
from sage_rlvr.sweeps import display
from sage_rlvr.sweeps import sweep as module
from sage_rlvr.sweeps.display import dry_lines, line, table
from sage_rlvr.sweeps.plan import plan, write_record
from sage_rlvr.sweeps.runs import SweepRun
from sweeps.sweep_common import said, screen, states, summarize


def test_what_did_not_run_is_said(tmp_path: Path, design: Callable[..., Path]) -> None:
    sweep = plan(design(), tmp_path / "out")
    assert set(states(sweep).values()) == {"not run"} and not (tmp_path / "out").exists()
    assert line(sweep).startswith("sweep: 0/12 steps, 0 of 6 runs complete, time left unknown before the first steps")
    assert line(sweep).endswith("without evaluation")
    dry = dry_lines(sweep)
    assert dry[-3].startswith("  ADDED: ") and dry[-2].startswith("  to omit ADDED arms: set `controls: none` in ")
    declined = plan(design(("controls: [no_kl]", "controls: none")), tmp_path / "out")
    assert not any("to omit" in text for text in dry_lines(declined))
    console = screen()
    console.print(table(sweep))
    assert said(console).count("not run") == 6
    module.write_recipes(sweep)
    write_record(sweep)
    write_summary(sweep.out)
    page = (sweep.out / "summary.md").read_text(encoding="utf-8")
    assert page.count("| GRPO | 0 of 2 | not run | not run |") == 1 and "\n0 of 6 runs complete.\n" in page
    assert "- GRPO s0: not run\n- SAGE-Branch s0: not run" in page and "the control has 0 evaluated seeds; two halves" in page
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
    monkeypatch.setattr(SweepRun, "steps_done", 2)
    monkeypatch.setattr(display, "read_metrics", lambda run: [{"seconds": 1.0}])
    seconds = {"base.npz": 300.0}
    monkeypatch.setattr(
        display, "load_record", lambda path: SimpleNamespace(meta={"seconds": seconds.get(path.name, 2.0)})
    )
    assert display.left_words(sweep) == "no training left"
    paths = [record_path(sweep.out, name) for name in ("base", sweep.runs[0].directory.name)]
    paths[0].parent.mkdir(parents=True)
    for path in paths:
        path.touch()
    assert display.left_words(sweep) == "about 15 min left"  # six of the base's five minutes, two at a time
    sweep.finished.add(sweep.runs[0].exact[""])
    assert display.left_words(sweep) == "about 5 s left"


def test_what_runs_besides_training_is_named_with_how_far_it_is(
    tmp_path: Path, design: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the newest line of its log where that counts, else by the clock: an evaluation of the base takes minutes."""
    sweep = plan(design(), tmp_path / "out")
    (base,), run = sweep.base.values(), sweep.runs[0]
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    sweep.started |= {base: 900.0, run.train: 900.0, run.exact[""]: 993.0}
    assert display.running_words(sweep) == f"\n  {base.label}: 100 s so far\n  {run.exact[''].label}: 7 s so far"
    base.log.parent.mkdir(parents=True)
    base.log.write_text("base 12/600, time left unknown\nbase 382/600, about 4 min left\n")
    assert f"\n  {base.label}: 382/600, about 4 min left\n" in display.running_words(sweep)


def test_time_left_is_that_of_the_clock(tmp_path: Path, design: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four runs are left whose steps take 2 s together; one that ended took 30 s with its start and saving, an evaluation 12 s."""
    sweep = plan(design(("controls: [no_kl]", "controls: none"), ("seeds: [0, 1]", "seeds: [0, 1, 2]")), tmp_path / "out")
    ended, *others = sweep.runs
    monkeypatch.setattr(SweepRun, "steps_done", property(lambda job: 2 if job.directory == ended.directory else 0))
    monkeypatch.setattr(display, "read_metrics", lambda run: [{"time/step_s": 1.0}] * 2)
    monkeypatch.setattr(display, "load_record", lambda path: pytest.fail("what ended here is measured by the clock"))
    sweep.finished |= {ended.train, ended.exact[""]}
    sweep.seconds |= {ended.train: 30.0, ended.exact[""]: 12.0}
    assert len(others) == 5 and display.left_words(sweep) == f"about {(5 * 30 + 5 * 12) / 60:.0f} min left"
    sweep.seconds[ended.train] = 1.0  # less than its steps: only its end was made here, which says nothing
    assert display.left_words(sweep) == f"about {5 * 2 + 5 * 12} s left"


def test_arms_of_other_lengths_are_refused_unless_the_length_is_the_question(
    tmp_path: Path, design: Callable[..., Path]
) -> None:
    arms = ("arms: {grpo: grpo,", "arms: {grpo: grpo, early: {recipe: grpo, edits: {steps: 1}},")
    with pytest.raises(ConfigError, match=r"differ in steps: \[1, 2\].*steps_differ: true"):
        plan(design(arms), tmp_path / "out")
    sweep = plan(design(arms, ("controls: [no_kl]", "controls: none\nsteps_differ: true")), tmp_path / "out")
    assert {cell.arm.name: cell.config.steps for cell in sweep.runs} == {"grpo": 2, "early": 1, "branch": 2}
    sweep.out.mkdir()
    write_record(sweep)
    assert json.loads((tmp_path / "out" / "design.json").read_text())["steps"] == "1 to 2"
