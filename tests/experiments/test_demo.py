"""The demo in small: it trains, evaluates, draws; what is there is not made again; interrupted, it leaves no process."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sage_rlvr import runs
from sage_rlvr.cli.app import main
from sage_rlvr.config import dump
from sage_rlvr.errors import ConfigError, SageError
from sage_rlvr.evaluation.evaluate import FRONTIER
from sage_rlvr.evaluation.record import Record, save_record
from sage_rlvr.experiments import demo
from sage_rlvr.experiments import jobs as work
from sage_rlvr.experiments.demo import (
    ARMS,
    Job,
    check_by_sampling,
    choose_arms,
    evaluate_all,
    evaluation_ids,
    plan,
    results,
    train_all,
)
from sage_rlvr.progress import counting
from sage_rlvr.runs import read_metrics

SOURCE = str(Path(runs.__file__).parents[1])
SMALL = {
    "steps": "2",
    "world": "{counts: {2: 1.0}, max_number: 12, max_target: 144, train_problems: 60}",
    "rollout": "{prompts_per_step: 4, group_size: 4, max_new_tokens: 8}",
    "optimizer.lr": "1e-3",
}


def words(model: Path, **changes: str) -> list[str]:
    edits = {"model": str(model), **SMALL, **changes}
    return [word for name, value in edits.items() for word in (f"--{name}", value)]


@pytest.fixture(autouse=True)
def children_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    monkeypatch.setattr(work, "POLL_SECONDS", 0.05)


def screen() -> Console:
    return Console(file=io.StringIO(), width=200)


# ---- the plan


def test_the_plan(tmp_path: Path, warm_policy: Path) -> None:
    jobs = plan(tmp_path, (0, 3), ARMS, words(warm_policy))
    assert [job.label for job in jobs] == [f"{arm} s{seed}" for seed in (0, 3) for arm in ARMS]
    assert len({job.directory for job in jobs}) == 6 and not any(job.finished or job.done for job in jobs)
    assert all(job.config.seed == job.seed and job.config.steps == 2 for job in jobs)
    assert jobs[0].config.method.name == "no_kl" and dump(jobs[2].config.method)["guide"]["name"] == "branch"
    command = plan(tmp_path, (3,), ARMS, [*words(warm_policy), "--seed", "9"])[0].command()
    assert command[-2:] == ["--seed", "3"]  # the last word counts: the demo's seed, not an edit's
    with pytest.raises(ConfigError, match="did you mean"):
        plan(tmp_path, (0,), ARMS, ["--stepz", "3"])


def test_whatever_can_be_refused_is_refused_before_training(tmp_path: Path, warm_policy: Path) -> None:
    def refused(match: str, seeds: Sequence[int] = (0,), arms: dict[str, str] = ARMS, **more: int) -> None:
        with pytest.raises(ConfigError, match=match):
            plan(tmp_path / "new", seeds, arms, words(warm_policy), **more)
        assert not (tmp_path / "new").exists()

    refused("at least one of each", seeds=())
    refused("at least one of each", arms={})
    refused(r"--seeds \[1, 2, 1\]: a seed stands there twice", seeds=(1, 2, 1))
    refused("--workers 0", workers=0)
    refused("--workers -2", workers=-2)
    refused("--problems 0: an evaluation needs at least 1", problems=0)
    with pytest.raises(ConfigError, match="--workers 0"):
        train_all([], 0, screen())
    with pytest.raises(ConfigError, match="stands there twice"):
        choose_arms(["grpo", "grpo"])
    (tmp_path / "file").write_text("")
    with pytest.raises(SageError, match=r"file: cannot write a demo"):
        plan(tmp_path / "file", (0,), ARMS, words(warm_policy))
    assert plan(tmp_path / "new", (0,), ARMS, words(warm_policy), problems=6, workers=2)


def test_the_command_line_refuses_them_too(
    tmp_path: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (["--problems", "0"], ["--workers", "0"], ["--seeds"], ["--arms"], ["--seeds", "1", "1"]):
        with pytest.raises(SystemExit) as caught:
            main(["demo", "--out", str(tmp_path / "d"), *words(warm_policy), *wrong])
        assert caught.value.code == 2 and wrong[0] in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_more_problems_than_the_world_can_give(
    tmp_path: Path, warm_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "DRAW", "census")
    with pytest.raises(ConfigError, match=r"--problems 5000: .*this world has"):
        plan(tmp_path, (0,), ARMS, words(warm_policy), problems=5000)


def test_an_edit_of_the_method_says_whose_it_is(tmp_path: Path, warm_policy: Path) -> None:
    edits = [*words(warm_policy), "--method.beta", "0.1"]
    (job,) = plan(tmp_path, (0,), {"GRPO": "grpo.yaml"}, edits)
    assert dump(job.config.method)["beta"] == 0.1
    with pytest.raises(ConfigError, match=r"SAGE-Branch \(sage_branch.yaml\): (.|\n)*method\.base\.beta(.|\n)*--arms"):
        plan(tmp_path, (0,), {"SAGE-Branch": "sage_branch.yaml"}, edits)
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, (0,), {"no KL": "no_kl.yaml"}, edits)
    assert "no KL (no_kl.yaml)" in str(caught.value) and "method.base.beta" not in str(caught.value)


def test_arms_are_chosen_by_name() -> None:
    assert choose_arms(None) is ARMS and choose_arms(["placebo", "grpo"]) == {
        "Placebo": "placebo.yaml",
        "GRPO": "grpo.yaml",
    }
    with pytest.raises(ConfigError, match=r"\['gpro'\].*choose from no_kl, grpo"):
        choose_arms(["gpro"])


# ---- the whole


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, warm_policy: Path) -> Path:
    """A demo folder in which two steps of the three arms were trained, by the commands of the plan but in this process."""
    out = tmp_path_factory.mktemp("demo")
    for job in plan(out, (0,), ARMS, words(warm_policy)):
        python, dash, module, *command = job.command()
        assert (python, dash, module) == (sys.executable, "-m", "sage_rlvr")
        with pytest.raises(SystemExit) as caught:
            main(command)
        assert caught.value.code == 0
    return out


def demo_of(out: Path, model: Path, **changes: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--out", str(out), "--problems", "6", "--workers", "1", *words(model, **changes)])
    return int(caught.value.code or 0)


@pytest.mark.slow
def test_it_finishes_and_says_what_differs(
    trained: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = plan(trained, (0,), ARMS, words(warm_policy))
    assert all(job.finished and job.done == 2 for job in jobs)
    before = {path: path.stat().st_mtime_ns for job in jobs for path in job.directory.rglob("*") if path.is_file()}
    assert demo_of(trained, warm_policy) == 0
    out = " ".join(capsys.readouterr().out.split())
    for name in ("base", *ARMS, "report.html", "cross-check"):
        assert name in out
    assert "better" in out or "worse" in out or "tied" in out
    for name in ("report.html", "passk.png", "result.json"):
        assert (trained / name).stat().st_size > 1000
    page = (trained / "report.html").read_text(encoding="utf-8")
    assert "://" not in page and page.count("<svg") >= 3  # one file, nothing fetched
    result = json.loads((trained / "result.json").read_text(encoding="utf-8"))
    assert [arm["name"] for arm in result["arms"]] == ["base", *ARMS] and result["problems"] == 6
    assert all(len(arm["ps"]) == len(FRONTIER) for arm in result["arms"])  # all are treated alike
    assert re.search(r"took: training \d+ s, evaluation \d+ s, report \d+ s, together \d+ s", out)
    assert all(len(arm["training"]["reward"]) == 2 for arm in result["arms"][1:])
    made = [path.stat().st_mtime_ns for path in sorted((trained / "evaluations").glob("*.npz"))]
    assert len(made) == 4
    assert demo_of(trained, warm_policy) == 0  # again: nothing is trained or evaluated anew
    assert "evaluating" not in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert made == [path.stat().st_mtime_ns for path in sorted((trained / "evaluations").glob("*.npz"))]


def test_a_short_look_does_not_pass_for_the_whole(trained: Path, warm_policy: Path) -> None:
    longer = plan(trained, (0,), ARMS, words(warm_policy, steps="5"))
    assert not any(job.finished for job in longer) and [job.done for job in longer] == [2, 2, 2]


@pytest.mark.slow
def test_real_processes_one_after_the_other(tmp_path: Path, warm_policy: Path) -> None:
    assert demo_of(tmp_path, warm_policy) == 0 and (tmp_path / "report.html").exists()
    assert all(job.finished for job in plan(tmp_path, (0,), ARMS, words(warm_policy)))
    rows = [(job.directory / "metrics.jsonl").read_bytes() for job in plan(tmp_path, (0,), ARMS, words(warm_policy))]
    assert demo_of(tmp_path, warm_policy, steps="3") == 0  # more steps go on where the runs stand
    for job, old in zip(plan(tmp_path, (0,), ARMS, words(warm_policy, steps="3")), rows, strict=True):
        assert job.finished and (job.directory / "metrics.jsonl").read_bytes().startswith(old)
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert all(len(arm["training"]["reward"]) == 3 for arm in result["arms"][1:])  # and the page shows the new ones


def test_another_recipe_in_the_same_folder_is_explained(trained: Path, warm_policy: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(trained, (0,), ARMS, words(warm_policy, **{"optimizer.lr": "2e-3"}))
    text = str(caught.value)
    assert "optimizer.lr: 0.001 -> 0.002" in text and "choose another --out, or delete" in text
    assert str(trained / "runs" / "no_kl-s0") in text and "--fork" not in text
    with pytest.raises(ConfigError, match="steps: 2 -> 1"):
        plan(trained, (0,), ARMS, words(warm_policy, steps="1"))


def test_a_damaged_run_record_is_explained(tmp_path: Path, warm_policy: Path) -> None:
    (tmp_path / "runs" / "grpo-s0").mkdir(parents=True)
    (tmp_path / "runs" / "grpo-s0" / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json cannot be read.*choose another --out, or delete"):
        plan(tmp_path, (0,), {"GRPO": "grpo.yaml"}, words(warm_policy))


def test_a_damaged_evaluation_is_made_again(tmp_path: Path, trained: Path, warm_policy: Path) -> None:
    jobs = plan(trained, (0,), {"GRPO": "grpo.yaml"}, words(warm_policy))
    evaluate_all(tmp_path, jobs, 4, screen())
    for path in (tmp_path / "evaluations").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    base, records = evaluate_all(tmp_path, jobs, 4, screen())
    assert base.problems == 4 and len(base.meta["problem_ids"]) == 4 and set(records[jobs[0]].logps) == set(FRONTIER)
    (tmp_path / "evaluations" / "base.npz").unlink()
    console = screen()
    evaluate_all(tmp_path, jobs, 4, console)
    assert "evaluating 1 policies" in console.file.getvalue()  # type: ignore[attr-defined]


def test_an_evaluation_of_other_problems_is_made_again(tmp_path: Path, trained: Path, warm_policy: Path) -> None:
    """As many problems of the same world, drawn in another way, are not the same evaluation."""
    jobs = plan(trained, (0,), {"GRPO": "grpo.yaml"}, words(warm_policy))
    base, _ = evaluate_all(tmp_path, jobs, 4, screen())
    path = tmp_path / "evaluations" / "base.npz"
    save_record(Record({**base.meta, "problem_ids": [*base.meta["problem_ids"][1:], "1-1=2"]}, base.logps), path)
    again, _ = evaluate_all(tmp_path, jobs, 4, screen())
    assert again.meta["problem_ids"] == evaluation_ids(jobs[0].config, 4) == base.meta["problem_ids"]


def test_evaluation_shows_its_progress(
    tmp_path: Path, trained: Path, warm_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = plan(trained, (0,), {"GRPO": "grpo.yaml"}, words(warm_policy))
    console = screen()
    with counting(console, "evaluating", 8, every=0.0) as advance:
        advance(3)
        advance(5)
    assert "evaluating 3/8, time left" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "evaluating 8/8, done" in console.file.getvalue()  # type: ignore[attr-defined]
    terminal = Console(file=io.StringIO(), width=100, force_terminal=True)
    evaluate_all(tmp_path, jobs, 4, terminal)
    assert re.search(r"(\d+)/\1", terminal.file.getvalue())  # type: ignore[attr-defined]


def test_an_evaluation_of_other_weights_is_made_again(
    tmp_path: Path, trained: Path, warm_policy: Path, tiny_policy: Path
) -> None:
    jobs = plan(trained, (0,), {"GRPO": "grpo.yaml"}, words(warm_policy))
    first, _ = evaluate_all(tmp_path, jobs, 4, screen())
    same, _ = evaluate_all(tmp_path, jobs, 4, screen())
    assert same.meta["seconds"] == first.meta["seconds"]
    moved = [replace(job, config=replace(job.config, model=str(tiny_policy))) for job in jobs]
    other, _ = evaluate_all(tmp_path, moved, 4, screen())
    assert not np.allclose(other.logps[1.0][0], first.logps[1.0][0])
    assert evaluate_all(tmp_path, jobs, 5, screen())[0].problems == 5


def test_results_and_the_cross_check(trained: Path, warm_policy: Path) -> None:
    jobs = plan(trained, (0,), ARMS, words(warm_policy))
    base, records = evaluate_all(trained, jobs, 6, screen())
    (result,) = results(base, records, (0,))
    assert (
        [arm.name for arm in result.arms] == ["base", *ARMS]
        and result.seed == 0
        and "Countdown: 2 numbers" in result.world
    )
    assert result.arm("GRPO").training is not None and "k3" in result.arm("GRPO").equation
    found = check_by_sampling(jobs, base)
    assert found["low"] <= found["exact"] <= found["high"] and found["exact"] > 0.05
    assert found["agree"] == 1.0 and found["level"] == 0.999


@pytest.mark.slow
def test_a_disagreement_is_loud_and_the_demo_finishes(
    trained: Path, warm_policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"sampled": 0.25, "low": 0.2, "high": 0.3, "exact": 0.4, "level": 0.999, "agree": 0.0}
    monkeypatch.setattr(demo, "cross_check", lambda *a, **k: found)
    assert demo_of(trained, warm_policy) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "sampled 0.2500 (99.9 % interval 0.2000 to 0.3000), exact 0.4000: WARNING: THEY DISAGREE" in out
    assert "report.html" in out


# ---- what goes wrong


@pytest.mark.slow
def test_a_run_that_fails_is_quoted_and_the_others_are_stopped(tmp_path: Path, warm_policy: Path) -> None:
    good, bad = plan(tmp_path, (0,), {"no KL": "no_kl.yaml", "GRPO": "grpo.yaml"}, words(warm_policy, steps="5000"))
    bad = replace(bad, overrides=("--steps", "none"))
    with pytest.raises(SageError, match=r"GRPO s0 ended with code 2(.|\n)*expected a whole number(.|\n)*continues it"):
        train_all([good, bad], 2, screen())
    assert not alive(good.directory)


def alive(*folders: Path) -> list[int]:
    """Processes that name one of the folders on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace") if entry.name.isdigit() else ""
        except OSError:  # it has just ended
            continue
        if any(str(folder) in line for folder in folders) and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def wait_until(holds: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def restore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table of Linux")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_no_process_and_continues(
    tmp_path: Path, warm_policy: Path, number: signal.Signals
) -> None:
    edits = words(warm_policy, steps="100000")
    command = [sys.executable, "-m", "sage_rlvr", "demo", "--out", str(tmp_path), "--workers", "2", *edits]
    # A runner that stands in the background hands down an ignored SIGINT, which Python would keep: put it back.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=restore_sigint,
    )
    jobs: Sequence[Job] = plan(tmp_path, (0,), ARMS, edits)[:2]
    try:
        wait_until(lambda: all(job.done > 2 for job in jobs))
        assert len(alive(*(job.directory for job in jobs))) == 2
        process.send_signal(number)
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1 and b"the same command continues" in text
    assert not alive(tmp_path)
    for job in jobs:
        steps = len(read_metrics(job.directory))
        assert (job.directory / "checkpoints" / f"step-{steps:06d}").is_dir()  # the step in hand was finished and saved


def test_what_training_drew_is_added_up_and_named(warm_policy: Path, tmp_path: Path) -> None:
    jobs = plan(tmp_path, (0,), ARMS, words(warm_policy))
    logs: list[list[dict[str, float]]] = [
        [{"step": n, "rollout/tokens": 4e5} for n in range(3)],
        [{"step": n, "rollout/tokens": 6e5, "rollout/refills": 2.0 * n, "anchor/kl_raw": 0.1 * n} for n in range(4)],
        [{"step": 0, "rollout/tokens": 1.0}, {"step": 1}],
    ]
    for job, rows in zip(jobs, logs, strict=True):
        job.directory.mkdir(parents=True)
        (job.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert demo.cost(jobs) == (
        "Tokens drawn in training (raw KL in nats a token): no KL 1.20 M; GRPO 2.40 M, 3.0 refills a step, raw KL 0.300 at "
        "the last step; SAGE-Branch not recorded."
    )


def test_a_dose_is_read_from_the_steps_that_had_an_update(warm_policy: Path, tmp_path: Path) -> None:
    job = plan(tmp_path, (0,), ARMS, words(warm_policy))[2]
    job.directory.mkdir(parents=True)
    skipped = [{"step": 0, "reward/mean": 0.0, "rollout/groups_kept": 0.0}]
    updated = [{"step": n, "anchor/q_active_share": 0.1 * n, "anchor/q_mean": 1.0 + 0.01 * n} for n in (1, 2)]
    for rows, said in (
        (
            skipped + updated,
            "on 10.0% of the tokens in the first tenth of training and 20.0% in the last; its mean is 1.0100",
        ),
        (skipped, "Dose of SAGE-Branch: none, no step"),
        ([], "none, no step"),
    ):
        (job.directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert said in demo.dose(job)
