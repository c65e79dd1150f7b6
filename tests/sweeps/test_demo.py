"""The demo in small: it trains, evaluates, draws; what is there is not made again; interrupted, it leaves no process."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sage_rlvr import runs
from sage_rlvr.cli.app import main
from sage_rlvr.config import dump
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.evaluate import FRONTIER
from sage_rlvr.results.read import read_results
from sage_rlvr.results.summary import strength
from sage_rlvr.runs import read_metrics
from sage_rlvr.sweeps import demo, sweep
from sage_rlvr.sweeps import processes as work
from sage_rlvr.sweeps.runs import SweepRun
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.text import rows as row_texts

SOURCE = str(Path(runs.__file__).parents[2])
SMALL = {
    "steps": "2",
    "world": "{counts: {2: 1.0}, max_number: 12, max_target: 144, train_problems: 60}",
    "rollout": "{prompts_per_step: 4, group_size: 4, max_new_tokens: 8}",
    "optimizer.lr": "1e-3",
}


ARMS = ("no_kl", "grpo", "sage_branch")
LABELS = ("no KL", "GRPO", "SAGE-Branch")


def pairs(model: Path, **changes: str) -> list[tuple[str, str]]:
    return list({"model": str(model), **SMALL, **changes}.items())


def words(model: Path, **changes: str) -> list[str]:
    return [word for name, value in pairs(model, **changes) for word in (f"--{name}", value)]


def plan(
    out: Path,
    edits: Sequence[tuple[str, str]],
    seeds: Sequence[int] = (0,),
    arms: Sequence[str] | None = None,
    problems: int = 6,
) -> list[SweepRun]:
    return demo.plan(out, seeds, arms, edits, problems).runs


@pytest.fixture(autouse=True)
def children_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    monkeypatch.setattr(work, "POLL_SECONDS", 0.05)


def screen() -> Console:
    return Console(file=io.StringIO(), width=200)


# ---- the plan


def test_the_plan(tmp_path: Path, warm_policy: Path) -> None:
    jobs = plan(tmp_path, pairs(warm_policy), (0, 3))
    assert [job.label for job in jobs] == [f"{arm} s{seed}" for seed in (0, 3) for arm in LABELS]
    assert len({job.directory for job in jobs}) == 6 and not any(job.trained or job.steps_done for job in jobs)
    assert all(job.config.seed == job.seed and job.config.steps == 2 for job in jobs)
    assert jobs[0].config.method.name == "no_kl" and dump(jobs[2].config.method)["guide"]["name"] == "branch"
    job = plan(tmp_path, [*pairs(warm_policy), ("seed", "9")], (3,))[0]
    assert list(job.train.args[-2:]) == ["--seed", "3"]  # the demo's seed, not an edit's
    with pytest.raises(ConfigError, match="did you mean"):
        plan(tmp_path, [("stepz", "3")])


def test_whatever_can_be_refused_is_refused_before_training(tmp_path: Path, warm_policy: Path) -> None:
    def refused(match: str, **more: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            plan(tmp_path / "new", pairs(warm_policy), **more)
        assert not (tmp_path / "new").exists()

    refused(r"--seeds \[\]: pass at least one", seeds=())
    refused(r"--arms \[\]: pass at least one", arms=())
    refused(r"--seeds \[1, 2, 1\]: a value occurs twice", seeds=(1, 2, 1))
    refused(r"--arms \['grpo', 'grpo'\]: a value occurs twice", arms=("grpo", "grpo"))
    refused("--problems 0: an evaluation needs at least 1", problems=0)
    refused("--arms gpro: no such method; did you mean 'grpo'.*choose from: .*maxrl", arms=("gpro",))
    assert plan(tmp_path / "new", pairs(warm_policy), arms=("placebo",))[0].label == "Placebo s0"


def test_the_command_line_refuses_them_too(
    tmp_path: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (["--problems", "0"], ["--seeds"], ["--arms"], ["--seeds", "1", "1"]):
        with pytest.raises(SystemExit) as caught:
            main(["demo", "--out", str(tmp_path / "d"), *words(warm_policy), *wrong])
        assert caught.value.code == 2 and wrong[0] in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_an_edit_of_the_method_says_whose_it_is(tmp_path: Path, warm_policy: Path) -> None:
    edits = [*pairs(warm_policy), ("method.beta", "0.1")]
    (job,) = plan(tmp_path, edits, arms=("grpo",))
    assert dump(job.config.method)["beta"] == 0.1
    with pytest.raises(ConfigError, match=r"arm 'sage_branch'(.|\n)*method\.base\.beta(.|\n)*--arms"):
        plan(tmp_path, edits, arms=("sage_branch",))


def test_the_demo_asks_about_the_base_and_keeps_a_few_samples_to_read(tmp_path: Path, warm_policy: Path) -> None:
    planned = demo.plan(tmp_path, (0,), ("grpo", "placebo"), pairs(warm_policy), 6)
    asked = [(q.a, q.b, q.metric.written) for q in planned.design.questions]
    assert asked == [(arm, "base", metric) for metric in ("pass@256", "pass@1") for arm in ("grpo", "placebo")]
    assert len(planned.base_samples) == 1 and all(cell.samples is not None for cell in planned.runs)
    assert planned.design.title == "Does RL widen what a small policy solves? A demo on Countdown"


# ---- the whole


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, warm_policy: Path) -> Path:
    """A demo folder in which two steps of the three arms were trained, by the commands of the plan but in this process."""
    out = tmp_path_factory.mktemp("demo")
    planned = demo.plan(out, (0,), None, pairs(warm_policy), 6)
    sweep.write_recipes(planned)
    for cell in planned.runs:
        with pytest.raises(SystemExit) as caught:
            main(list(cell.train.args))
        assert caught.value.code == 0
    return out


def demo_of(out: Path, model: Path, arms: Sequence[str] = ARMS, **changes: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--out", str(out), "--arms", *arms, "--problems", "6", "--workers", "1", *words(model, **changes)])
    return int(caught.value.code or 0)


@pytest.mark.slow
@pytest.mark.timeout(900)  # eight evaluations, a process each
def test_it_finishes_and_says_what_differs(
    trained: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = plan(trained, pairs(warm_policy))
    assert all(job.trained and job.steps_done == 2 for job in jobs)
    before = {path: path.stat().st_mtime_ns for job in jobs for path in job.directory.rglob("*") if path.is_file()}
    assert demo_of(trained, warm_policy) == 0
    said = capsys.readouterr().out
    for name in ("report.html", "figures/passk.png", "summary.json"):
        assert (trained / name).stat().st_size > 1000
    page = (trained / "report.html").read_text(encoding="utf-8")
    assert "://" not in page and page.count("<svg") >= 3  # one file, nothing fetched
    assert "<h1>Does RL widen what a small policy solves?" in page and "base policy: " in page and "M parameters" in page
    assert re.search(r"trained 20\d\d-\d\d-\d\d", page) and "one run each" in page and "chance" in page
    lines = said.strip().splitlines()
    lines = lines[next(i for i, line in enumerate(lines) if line.startswith("Did RL widen")) :]
    answered, *scored, checked, took, page_is = lines  # the answer, base and arms, and where the page is
    assert answered == row_texts.paragraphs(compare(results := read_results(trained)), results)[0] and answered in page
    assert [line.split("  ")[1] for line in scored] == ["base", *LABELS] and all(line.count("pass@") == 3 for line in scored)
    assert checked.startswith("cross-check") and re.fullmatch(r"took \d+ (s|min)", took) and page_is.endswith("report.html")
    stores = [store.parent.parent.name for store in (trained / "runs").glob("*/samples/*")]
    assert sorted(stores) == ["base", "grpo-s0", "no_kl-s0", "sage_branch-s0"] and 'id="samples-data"' in page
    assert results.design.names == LABELS and results.design.base == "base"
    assert all(len(record.logps) == len(FRONTIER) for record in results.records.values())  # all are treated alike
    made = [path.stat().st_mtime_ns for path in sorted((trained / "evaluations").glob("*.npz"))]
    assert len(made) == 4
    assert demo_of(trained, warm_policy) == 0  # again: nothing is trained or evaluated anew
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert made == [path.stat().st_mtime_ns for path in sorted((trained / "evaluations").glob("*.npz"))]


@pytest.mark.slow
def test_a_short_look_does_not_pass_for_the_whole(trained: Path, warm_policy: Path) -> None:
    longer = plan(trained, pairs(warm_policy, steps="5"))
    assert not any(job.trained for job in longer) and [job.steps_done for job in longer] == [2, 2, 2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_processes_one_after_the_other(tmp_path: Path, warm_policy: Path) -> None:
    arms = ("grpo", "sage_branch")
    assert demo_of(tmp_path, warm_policy, arms) == 0 and (tmp_path / "report.html").exists()
    jobs = plan(tmp_path, pairs(warm_policy), arms=arms)
    rows = [(job.directory / "metrics.jsonl").read_bytes() for job in jobs if job.trained]
    assert len(rows) == len(jobs) == 2
    assert demo_of(tmp_path, warm_policy, arms, steps="3") == 0  # more steps go on where the runs stand
    for job, old in zip(plan(tmp_path, pairs(warm_policy, steps="3"), arms=arms), rows, strict=True):
        assert job.trained and (job.directory / "metrics.jsonl").read_bytes().startswith(old)
    assert all(run.steps == 3 for run in read_results(tmp_path).runs.values())


@pytest.mark.slow
def test_another_recipe_in_the_same_folder_is_explained(trained: Path, warm_policy: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(trained, pairs(warm_policy, **{"optimizer.lr": "2e-3"}))
    text = str(caught.value)
    assert "optimizer.lr: 0.001 -> 0.002" in text and "choose another --out, or delete" in text
    assert str(trained / "runs" / "no_kl-s0") in text and "--fork" not in text
    with pytest.raises(ConfigError, match="steps: 2 -> 1"):
        plan(trained, pairs(warm_policy, steps="1"))


def test_a_damaged_run_record_is_explained(tmp_path: Path, warm_policy: Path) -> None:
    (tmp_path / "runs" / "grpo-s0").mkdir(parents=True)
    (tmp_path / "runs" / "grpo-s0" / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json: cannot be read.*choose another --out, or delete"):
        plan(tmp_path, pairs(warm_policy), arms=("grpo",))


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


def wait_until(holds: object, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def restore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table of Linux")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
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
    jobs = plan(tmp_path, pairs(warm_policy, steps="100000"))[:2]
    try:
        wait_until(lambda: all(job.steps_done > 2 for job in jobs))
        assert len(alive(*(job.directory for job in jobs))) == 2
        process.send_signal(number)
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    if number == signal.SIGKILL:  # the parent alone: its runs notice
        assert process.returncode == -number
        wait_until(lambda: not alive(tmp_path))
    else:
        assert process.returncode == 128 + number and b"the same command continues" in text
        assert not alive(tmp_path)
    for job in jobs:
        steps = len(read_metrics(job.directory))
        assert (job.directory / "checkpoints" / f"step-{steps:06d}").is_dir()  # the step in hand was finished and saved


def test_a_strength_is_read_from_the_steps_that_had_an_update() -> None:
    skipped = [{"step": 0, "reward/mean": 0.0, "rollout/groups_kept": 0.0}]
    updated = [{"step": n, "guide/active_frac": 0.1 * n, "guide/q_mean": 1.0 + 0.01 * n} for n in (1, 2)]
    found = strength([[*skipped, *updated]])
    assert found == pytest.approx({"active_first": 0.1, "active_last": 0.2, "q_first": 1.01, "q_last": 1.02})
    assert strength([skipped]) is None and strength([[]]) is None
    summed = [row | {"guide/log_q_sum": 0.5 * row["step"]} for row in updated]
    logged = strength([[*skipped, *summed]])
    assert logged == pytest.approx(found | {"log_q_sum_first": 0.5, "log_q_sum_last": 1.0})
