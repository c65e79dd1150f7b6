"""A sweep whose arms are typed, without a design file; and what arms differ in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command import call, refused
from sage_rlvr.sweeps.design import load_design
from sage_rlvr.sweeps.plan import SweepPlan, plan
from sage_rlvr.sweeps.resolve import several_parts

WORDS = ("sweep", "--methods", "grpo", "maxrl", "--seeds", "0", "1", "--steps", "40", "--out", "out")


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[SweepPlan]:
    """The plans that a command would run, in a folder of the test."""
    plans: list[SweepPlan] = []

    def keep(planned: SweepPlan, *more: Any) -> None:
        plans.append(planned)
        raise KeyboardInterrupt

    monkeypatch.setattr("sage_rlvr.api.sweep.swept", keep)
    monkeypatch.chdir(tmp_path)
    return plans


def test_methods_and_seeds_are_a_design(planned: list[SweepPlan], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*WORDS) == 130
    (one,) = planned
    arms = ("grpo", "maxrl")
    assert {(run.arm.name, run.seed, run.config.steps) for run in one.runs} == {(arm, s, 40) for arm in arms for s in (0, 1)}
    assert one.design.control == "grpo" and one.design == load_design(Path("out/design.yaml"))
    assert [arm.config for arm in plan(Path("out/design.yaml"), Path("out")).arms] == [arm.config for arm in one.arms]
    assert "MaxRL differs from GRPO in 5 parts (advantage, reduction, KL term's beta" in capsys.readouterr().out
    assert call(*WORDS) == 130 and planned[1].design == one.design


def test_a_path_that_is_typed_starts_at_the_working_directory(planned: list[SweepPlan], warm_policy: Path) -> None:
    Path("policy").symlink_to(warm_policy)
    Path("own.yaml").write_text("base: countdown/base\nmethod: {name: grpo, beta: 0.5}\n")
    assert call("sweep", "--methods", "no_kl", "own.yaml", "--seeds", "0", "--model", "./policy", "--out", "out") == 130
    (one,) = planned
    assert [arm.name for arm in one.arms] == ["no_kl", "own"]
    assert {arm.config.model for arm in one.arms} == {str(warm_policy.resolve())}


def test_another_task_is_evaluated_as_it_can_be(planned: list[SweepPlan]) -> None:
    assert call("sweep", "--methods", "grpo", "--task", "countdown_chat", "--seeds", "0", "--model", "embedded") == 130
    assert call("sweep", "--methods", "grpo", "--task", "words", "--seeds", "0", "--model", "embedded") == 130
    chat, words = planned
    assert chat.design.evaluate.samples is not None and not chat.base and words.design.evaluate.samples is None and words.base
    assert chat.out == Path("runs/sweep-countdown_chat-grpo") and chat.runs[0].samples is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "--methods grpo maxrl --seeds 0 1 2"),
        ("quick --steps 3", "--steps beside the design quick"),
        ("quick --seeds 5", "--seeds beside the design quick"),
        ("--methods grop", "grop: no such file, shipped recipe or method; did you mean 'grpo'?"),
        ("--methods grpo maxrll", "maxrll: no such file, shipped recipe or method; did you mean 'maxrl'?"),
        ("--methods grpo --seeds 0 0", "seeds = [0, 0]: a seed occurs twice"),
        ("--methods grpo grpo", "methods = ['grpo', 'grpo']: a name occurs twice"),
        ("--methods grpo --task mine.jsonl", "--task mine.jsonl: no settings to train with"),
        ("--methods grpo --stesp 3", "--stesp = 3: unknown key; did you mean 'steps'?"),
    ],
)
def test_what_cannot_be_swept_is_named(words: str, said: str, planned: list[SweepPlan], capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, "sweep", *words.split()) and not planned and not Path("runs").exists()


def test_a_single_part_is_what_a_design_is_for(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    head = "title: t\nseeds: [0]\ncontrols: none\ncontrol: grpo\narms: {grpo: grpo, "
    for arm in ("no_kl: no_kl", "b: {recipe: grpo, edits: {method.beta: 0.1}}", "sage_branch: sage_branch"):
        file.write_text(f"{head}{arm}}}\n")
        planned = plan(file, tmp_path / "out")
        assert several_parts(planned.design, planned.arms) == []
    file.write_text(f"{head}b: {{recipe: grpo, edits: {{method.beta: 0.1, optimizer.lr: 1e-5}}}}}}\n")
    planned = plan(file, tmp_path / "out")
    (said,) = several_parts(planned.design, planned.arms)
    assert "in 2 parts (KL term's beta, optimizer.lr)" in said
