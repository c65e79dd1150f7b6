"""Whole runs of verl on this machine: Ray, TransferQueue, FSDP2 over gloo, weight sync, a rollout, our reward manager.

    theta_n(loop) = theta_n(verl)        to 1e-5 in every weight, through two workers, a kill and a resume
"""


from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("verl", reason="verl is not installed here: make test-verl")

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from test_verl_stages import Figure, node
from verl_common import cluster, environment, launched, on_cluster, started, words

from loop_recorded import furthest, record
from sage_rlvr.api.compare import compare
from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.models.policy import load_policy
from sage_rlvr.recipes import Tree, override
from sage_rlvr.training.groups import Groups
from sage_rlvr.training.problems import training_problems
from sage_rlvr.training.verl.arguments import OWNED, REWARD
from sage_rlvr.training.verl.problems import Named, chosen, export
from sage_rlvr.training.verl.state import LATEST, OBJECTIVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
STEPS = 4


def small(name: str, *more: str) -> TrainConfig:
    sizes = f"steps={STEPS} rollout.prompts_per_step=4 rollout.group_size=8 optimizer.eps=1e-6 seed=5 world.train_problems=64"
    edits = [tuple(edit.split("=", 1)) for edit in (*sizes.split(), *more)]
    return load_config(TrainConfig, name, edits)  # type: ignore[arg-type]


def play_back(config: TrainConfig, groups: list[Groups], folder: Path) -> Path:
    """The problems of the loop's run in its order as verl's file, and a file of its completions for the rollout of cpu_verl.py."""
    named = Named(config=dump(config))
    export(named, folder / "problems", chosen(named.task(), say=lambda line: None), talks=False)
    rows = pq.read_table(folder / "problems" / "train.parquet").to_pylist()
    problems = training_problems(config, lambda line: None)[1]
    numbers = {problem.problem_id: n for n, problem in enumerate(problems)}
    asked = [rows[numbers[problem.problem_id]] for part in groups for problem in part.problems]
    pq.write_table(pa.Table.from_pylist(asked), folder / "train.parquet")
    drawn: dict[str, dict[str, list[list[int]]]] = {}
    for version, part in enumerate(groups):
        for row, prompt in enumerate(part.prompts):
            size = part.rewards.shape[1]
            place = slice(row * size, (row + 1) * size)
            kept = zip(part.rollout.tokens[place], part.rollout.mask[place], strict=True)
            drawn.setdefault(str(version), {})[" ".join(map(str, prompt))] = [ids[mask].tolist() for ids, mask in kept]
    replay = folder / "replay.json"
    replay.write_text(json.dumps(drawn))
    return replay


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def killed_after(steps: int, arguments: list[str], folder: Path, **more: str) -> list[dict[str, Any]]:
    """Start verl, kill all of it by SIGKILL once it has logged so many steps; what it logged."""
    log, until = folder / "killed.jsonl", time.monotonic() + 900
    with started(arguments, folder / "killed.txt", log, **more) as process:
        while len(rows_of(log)) < steps:
            text = (folder / "killed.txt").read_text(errors="replace")
            assert process.poll() is None and time.monotonic() < until, text[-6000:]
            time.sleep(0.2)
    return rows_of(log)


def test_two_workers_killed_and_resumed_end_with_the_loops_weights(tmp_path: Path):
    """The same completions and rewards, these by our manager; a resumed step has the q that it had before the kill."""
    config = small("sage_branch", "checkpoint.every=2")
    groups, wanted = record(config)
    replay = play_back(config, groups, tmp_path)
    node_words = [*node(config), f"+sage.task={tmp_path}/problems", *(f"{key}={value}" for key, value in REWARD.items())]
    saved = ["trainer.save_freq=2", "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"]
    arguments = [*words(tmp_path, workers=2, steps=STEPS), *node_words, *saved]
    before = killed_after(3, arguments, tmp_path, SAGE_TEST_REPLAY=str(replay))
    assert (tmp_path / "verl/latest_checkpointed_iteration.txt").read_text() == "2"
    with pytest.raises(AssertionError, match=r"(?s)a different objective:\nmethod grpo\+branch.*objective_may_change=true"):
        launched([*arguments, "+sage.method.base.beta=0.4"], tmp_path, SAGE_TEST_REPLAY=str(replay))
    said = launched(arguments, tmp_path, SAGE_TEST_REPLAY=str(replay))
    assert "sage: method grpo+branch: minimize" in said
    after = rows_of(tmp_path / "file.jsonl")
    assert [row["step"] for row in before[:3]] == [1, 2, 3] and [row["step"] for row in after] == [3, 4]
    again, once = after[0]["data"], before[2]["data"]
    for name in ("guide/q_mean", "kl/to_anchor", "kl/to_reference", "reward/mean", "policy/entropy"):
        assert again[name] == pytest.approx(once[name], abs=1e-6)
    for row, part in zip([*before[:2], *after], groups, strict=True):
        assert row["data"]["reward/mean"] == pytest.approx(float(part.rewards.mean()))
        assert abs(row["data"]["guide/q_mean"] - 1) > 1e-4
    start = load_policy("embedded")[0].state_dict()
    found = load_file(next((tmp_path / f"verl/global_step_{STEPS}/actor/huggingface").glob("*.safetensors")))
    assert set(found) <= set(wanted) and furthest(found, start) > 2e-4
    assert furthest({name: value.float() for name, value in found.items()}, wanted) < 1e-5
    kept = json.loads((tmp_path / f"verl/global_step_{STEPS}/sage_objective.json").read_text())
    assert kept["objective"].startswith("method grpo+branch")


def args_of_a_cpu(given: list[str]) -> dict[str, Any]:
    """engine.args of a recipe under which verl runs here as with these words."""
    tree = Tree()
    taken = ("custom_chat_template", "micro_batch", "trainer.total", "hydra.", "override_optimizer")
    for word in given:
        key, _, value = word.partition("=")
        if key not in OWNED and not any(part in key for part in taken):
            tree = override(tree, key, value)
    return dict(tree)


SAGE = {"name": "sage", "base": "grpo", "guide": "branch"}
CASES: dict[str, dict[str, Any]] = {
    "sync": {"method": SAGE},
    "colocate_async": {
        "method": SAGE | {"guide": {"name": "branch", "threshold": "p80"}},
        "more": {"trainer.v1.trainer_mode": "colocate_async"},
    },
    "lora": {  # and verl's dynamic sampling
        **{"method": SAGE | {"base": {"name": "dapo", "beta": 0.05}}, "optimizer": {"lr": 1e-2}},
        **{"lora": {"rank": 4}},
    },
}


def command(folder: Path, *arguments: str, **more: str) -> str:
    """What a command of this package says in `folder`; AssertionError with verl's last lines where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "sage_rlvr", *arguments],
        cwd=folder,
        env={**os.environ, **environment(), "RAY_TMPDIR": tempfile.mkdtemp(prefix="ray", dir="/tmp"), **more},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    detail = [path.read_text(errors="replace")[-4000:] for path in folder.glob("run/verl/said-*.txt")]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:] + "\n".join(detail)
    return done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_runs_on_verl_and_is_read_like_any_other(case: str, tmp_path: Path):
    """train, train again (nothing left), eval, compare, report: the run directory is one of this package."""
    given = dict(CASES[case])
    args = args_of_a_cpu([*words(tmp_path), *(f"{key}={value}" for key, value in given.pop("more", {}).items())])
    engine = {"name": "verl", "args": args, "lora": given.pop("lora", None)}
    shared = {"base": "countdown/base", "steps": 2, "world": {"train_problems": 64}, "checkpoint": {"every": 1}}
    sizes = {"rollout": {"prompts_per_step": 4, "group_size": 8}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**shared, **sizes, **given, "engine": engine}))
    assert "done: 2 steps" in command(tmp_path, "train", "mine.yaml", "--run", "run")
    rows = rows_of(tmp_path / "run/metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1]
    assert {"reward/mean", "kl/to_reference", "optimizer/lr", "loss", "actor/kl_loss"} <= rows[1].keys()
    assert rows[0]["kl/to_reference"] == pytest.approx(0, abs=1e-6) and abs(rows[0]["guide/q_mean"] - 1) > 1e-4
    assert rows[1]["kl/to_reference"] > 1e-8
    assert {"verifier/no_answer_frac", "verifier/undecided_frac", "completions/unfinished_frac"} <= rows[1].keys()
    assert (rows[0]["reward/zero_variance_frac"] == 0) or case != "lora"
    assert "nothing to do" in command(tmp_path, "train", "mine.yaml", "--run", "run")
    assert json.loads((tmp_path / "run/run.json").read_text())["config"]["engine"]["name"] == "verl"
    adapter = (tmp_path / "run/policy/adapter_config.json").is_file()
    assert adapter == (case == "lora")
    start, found = (load_policy(name)[0].state_dict() for name in ("embedded", str(tmp_path / "run/policy")))
    moved = {name for name in found if not torch.equal(found[name], start[name])}
    assert moved and all("_proj" in name for name in moved) == adapter
    assert "pass@1" in command(tmp_path, "eval", "run", "--problems", "10")
    if case == "sync":
        for name, model in (("base", "embedded"), ("verl", "run")):
            command(tmp_path, "eval", model, "--problems", "10", "--samples", "8", "--store", name, "--quiet")
        assert "verl" in command(tmp_path, "compare", "base=base", "verl=verl", "--k", "4")
        command(tmp_path, "report", "run", "-o", "report.html")
        assert "kl/to_anchor" in (tmp_path / "report.html").read_text()


def test_pass_at_k_and_metrics_of_a_cluster_of_two_machines_that_already_runs(tmp_path: Path, figure: Figure):
    """verl's own objective, then a recipe on the same cluster: nothing of a run stays there. Files lie where the command ran, and
    `compare` reads them: the base at two temperatures, the policy after each validation."""
    named = Named(config=dump(small("grpo")))
    counts = export(named, tmp_path, chosen(named.task(), take=8, say=lambda line: None), talks=False)
    with cluster(tmp_path) as address:
        arguments = [
            *(word for word in on_cluster(words(tmp_path, workers=2, steps=2), address) if "val_" not in word),
            *(f"{key}={value}" for key, value in REWARD.items()),
            *("algorithm.adv_estimator=grpo", f"+sage.task={tmp_path}", "+sage.passk=passk", "+sage.temperatures=[1.0,0.5]"),
            *(f"data.val_files={tmp_path}/val.parquet", "trainer.val_before_train=true", "trainer.test_freq=2"),
            *(f"actor_rollout_ref.rollout.val_kwargs.{word}" for word in ("n=4", "temperature=1.0", "do_sample=true")),
        ]
        said = launched(arguments, tmp_path)
        here = [word for word in on_cluster(words(tmp_path, workers=2), address) if "ray_init" not in word]
        engine = {"name": "verl", "args": args_of_a_cpu(here)}
        sizes = {"rollout": {"prompts_per_step": 4, "group_size": 8}, "steps": 1, "world": {"train_problems": 64}}
        recipe = {"base": "countdown/base", "method": "grpo", **sizes, "engine": engine}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
        assert "done: 1 step" in command(tmp_path, "train", "mine.yaml", "--run", "run", RAY_ADDRESS=address)
    assert "verl's own objective, unchanged" in said
    rows = {row["step"]: row["data"] for row in rows_of(tmp_path / "file.jsonl")}
    assert rows.keys() == {0, 1, 2} and "reward/mean" in rows_of(tmp_path / "run/metrics.jsonl")[0]
    files = {at: tmp_path / f"passk/step-{at}.jsonl" for at in ("000000-T1", "000000-T0.5", "000002-T1")}
    stored = {at: rows_of(file) for at, file in files.items()}
    assert all(len(part) == counts["validation"] and {row["n"] for row in part} == {4} for part in stored.values())
    assert [row["c"] for row in stored["000000-T1"]] != [row["c"] for row in stored["000000-T0.5"]]
    for at, metrics in (("000000-T1", rows[0]), ("000002-T1", rows[2])):
        mean = sum(row["c"] for row in stored[at]) / sum(row["n"] for row in stored[at])
        assert metrics["eval_passk/pass@1"] == pytest.approx(mean)
        assert metrics["eval_passk/pass@1_low"] <= mean <= metrics["eval_passk/pass@4_high"]
    assert "eval_passk_T0.5/pass@4" in rows[0] and "val-core" not in "".join(name for name in rows[0] if "T0.5" in name)
    arms = {"base": f"{files['000000-T1']},{files['000000-T0.5']}", "rl": str(files["000002-T1"])}
    answer = compare(arms).answer.partition("\n\n")[0]
    assert answer in said and len(list((tmp_path / "passk").glob("step-*.jsonl"))) == 3
    figure("pass@1 of the base and after two steps", f"{rows[0]['eval_passk/pass@1']:.2f}, {rows[2]['eval_passk/pass@1']:.2f}")


def test_a_resume_with_another_objective_is_refused_before_ray_starts(tmp_path: Path):
    """In a line, from the checkpoint's files; what verl was told is not looked at."""
    (checkpoint := tmp_path / "verl" / "global_step_3").mkdir(parents=True)
    (checkpoint / OBJECTIVE).write_text('{"objective": "method of another run"}')
    (tmp_path / "verl" / LATEST).write_text("3")
    begun = time.monotonic()
    with started([*words(tmp_path), "+sage.method=grpo"], tmp_path / "said.txt", tmp_path / "file.jsonl") as process:
        assert process.wait(600) == 2
    said = (tmp_path / "said.txt").read_text()
    assert "ConfigError: " in said and "method of another run" in said and "Traceback" not in said
    assert "Ray instance" not in said and not (tmp_path / "file.jsonl").exists(), f"{time.monotonic() - begun:.0f} s"


def test_the_command_that_an_export_prints_trains(tmp_path: Path):
    """By a task's name, with nothing added but what verl needs on a CPU: two steps, judged by the task's verifier."""
    said = command(tmp_path, "export", "verl", "countdown", "--out", "out", "--take", "8")
    found = re.search(r"python -m sage_rlvr\.verl \\\n(.*\\\n)*.*", said)
    assert found is not None
    printed = shlex.split(found[0].replace("\\\n", " "))[3:]
    told = dict(word.split("=", 1) for word in printed)
    assert told["data.train_batch_size"] == "8"
    cpu = dict(word.split("=", 1) for word in words(tmp_path, prompts=8, steps=2) if not word.startswith("data.m"))
    kept = [key for key in cpu if key in told and key != "actor_rollout_ref.rollout.name" and key != "trainer.logger"]
    merged = told | {key: value for key, value in cpu.items() if key not in kept} | {"trainer.test_freq": "2"}
    launched([f"{key}={value}" for key, value in merged.items()], tmp_path)
    rows = rows_of(tmp_path / "file.jsonl")
    assert [row["step"] for row in rows] == [1, 2] and all(0 <= row["data"]["reward/mean"] <= 1 for row in rows)
    assert any(name.startswith("val-core/countdown") for name in rows[1]["data"]), rows[1]["data"].keys()
