"""A recipe as verl's words, its problems as verl's files, and how they are judged: all that needs no verl."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import save_file

import sage_rlvr.training.trl.versions as trl_package
import sage_rlvr.training.verl as verl_package
from command import call
from sage_rlvr import verl as entry
from sage_rlvr.cli.app import main as cli
from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.contrib.methods.adaptive_entropy import adaptive_entropy
from sage_rlvr.core.guides import Branch
from sage_rlvr.core.guides.random import Random
from sage_rlvr.errors import CheckpointError, ConfigError, DataError, TrainingDiverged
from sage_rlvr.methods import grpo, sage
from sage_rlvr.models.folders import embedded_policy
from sage_rlvr.models.policy import load_policy
from sage_rlvr.tasks.base import NO_ANSWER, Task, problems_of
from sage_rlvr.tasks.countdown import WORLDS
from sage_rlvr.tasks.datasets import examples
from sage_rlvr.tasks.rows import DataSource
from sage_rlvr.training.counts.dry_run import dry_run_lines
from sage_rlvr.training.verl import convert, run, state
from sage_rlvr.training.verl import judge as judging
from sage_rlvr.training.verl.arguments import command, flattened, notes, verl_words, words_of_export, written
from sage_rlvr.training.verl.fields import CLAMP
from sage_rlvr.training.verl.judge import Judge
from sage_rlvr.training.verl.objective import Objective
from sage_rlvr.training.verl.problems import ECHO, Named, chosen, export, exported
from sage_rlvr.training.verl.terms import ACTOR

ROOT = Path(__file__).resolve().parents[3]


def config_of(*edits: str, name: str = "sage_branch") -> TrainConfig:
    given = ("engine.name=verl", "engine.args.trainer.n_gpus_per_node=2", "world.train_problems=32", *edits)
    return load_config(TrainConfig, name, [tuple(edit.split("=", 1)) for edit in given])  # type: ignore[misc]


def words_of(config: TrainConfig) -> dict[str, str]:
    found = verl_words(config, Path("/run/verl"), template=ECHO, longest=12)
    return dict(word.split("=", 1) for word in found)


def test_the_words_of_a_recipe():
    edits = "updates.epochs=2 updates.minibatches=4 updates.micro_batch=1 optimizer.warmup_steps=15 seed=7 steps=50"
    sizes = "rollout.prompts_per_step=16 rollout.group_size=8 engine.args.+ray_kwargs.ray_init.num_gpus=2"
    config = config_of(*edits.split(), *sizes.split())
    found = words_of(config)
    wanted = {
        "data.train_batch_size": "16",
        "data.train_files": "/run/verl/problems/train.parquet",
        "actor_rollout_ref.rollout.n": "8",
        f"{ACTOR}.ppo_mini_batch_size": "4",
        f"{ACTOR}.ppo_epochs": "2",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": "8",
        f"{ACTOR}.optim.lr_warmup_steps": "2",
        "trainer.total_training_steps": "50",
        "trainer.n_gpus_per_node": "2",
        "+ray_kwargs.ray_init.num_gpus": "2",
        "+sage.seed": "7",
        "data.max_prompt_length": "12",
    }
    assert {key: found[key] for key in wanted} == wanted
    method = yaml.safe_load(found["+sage.method"])  # as `launch.split` reads it
    assert method == json.loads(json.dumps(dump(config)["method"]))
    assert found["actor_rollout_ref.model.custom_chat_template"] == f"'{ECHO}'"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("engine.args.data.train_batch_size=8", "set rollout.prompts_per_step instead"),
        (f"engine.args.{ACTOR}.optim.lr=1", "set optimizer.lr instead"),
        (f"engine.args.{ACTOR}.kl_loss_coef=1", "set method instead"),
        ("engine.args.+sage.seed=1", "set method, seed and task instead"),
        ("engine.args.trainer.n_gpus_per_node=3", "cannot be split evenly over 3 workers"),
        ("optimizer.schedule=linear", "constant and cosine"),
        ("engine.lora.dropout=0.1", "engine.lora.dropout = 0.1"),
        ("engine.args.min_p=0.1", "engine.args.min_p: not a field of verl"),
        ("base_model=elsewhere", "source: sft"),
    ],
)
def test_refused_with_the_way_out(edit: str, words: str):
    with pytest.raises(ConfigError, match=re.escape(words)):
        words_of(config_of(edit))


def test_a_threshold_that_no_entropy_exceeds_is_refused_before_verl_starts(tmp_path: Path):
    config = config_of("method.guide.threshold=4.0")
    with pytest.raises(ConfigError, match=r"Branch: threshold = 4 nats is never exceeded"):
        run.prepare(config, tmp_path, lambda line: None)
    assert not list(tmp_path.iterdir())


def test_what_is_otherwise_on_verl_is_noted():
    edits = ["optimizer.weight_decay=0.1", "optimizer.warmup_steps=2", "optimizer.schedule=cosine", "updates.epochs=2"]
    found = [line.partition(":")[0] for line in notes(config_of(*edits, name="dapo_overlong"))]
    kept = ["optimizer.weight_decay", "optimizer.warmup_steps", "optimizer.schedule = cosine"]
    assert found == [*kept, "dynamic sampling", "overlong shaping", "arithmetic"]
    assert [*notes(config_of())][-1] == CLAMP
    assert not [*notes(config_of(f"engine.args.+{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp32", name="no_kl"))]


def test_an_adapter_is_no_model_to_start_from(tmp_path: Path):
    """verl's reference is what lies below an adapter; a new adapter on a whole model is verl's own."""
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "embedded"}')
    with pytest.raises(ConfigError, match="use the merged policy as the model"):
        words_of(config_of(f"model={tmp_path}"))
    found = words_of(config_of("engine.lora={rank: 4, alpha: 6, target_modules: [q_proj]}"))
    parts = {name: found[f"actor_rollout_ref.model.{name}"] for name in ("lora_rank", "lora_alpha", "target_modules")}
    assert parts == {"lora_rank": "4", "lora_alpha": "6", "target_modules": "[q_proj]"}


def test_a_checkpoint_with_adapters_becomes_a_policy(tmp_path: Path):
    """Written as verl leaves it: under PEFT's inner names, base and all. What is read again is W + B A alpha / rank."""
    pytest.importorskip("peft", reason="adapters are read by PEFT, which is not installed here: make test-verl")
    config = config_of("engine.lora={rank: 4, alpha: 6, target_modules: [q_proj]}")
    trained = tmp_path / "actor" / "huggingface"
    trained.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"a smaller checkpoint\.every"):
        convert.save(config, tmp_path, tmp_path / "policy")
    start = load_policy("embedded")[0].state_dict()
    name, draw = "model.layers.0.self_attn.q_proj", torch.Generator().manual_seed(0)
    weight = start[f"{name}.weight"]
    a, b = torch.randn(4, weight.shape[1], generator=draw), torch.randn(weight.shape[0], 4, generator=draw)
    inner = f"base_model.model.{name}"
    base = {f"{inner}.base_layer.weight": weight.clone()}
    save_file(base, trained / "model.safetensors")
    with pytest.raises(CheckpointError, match="contains no adapter"):
        convert.save(config, tmp_path, tmp_path / "policy")
    layers = range(1, load_policy("embedded")[0].config.num_hidden_layers)
    rest = {f"{inner.replace('.0.', f'.{n}.')}.lora_{x}.default.weight": 0 * y for n in layers for x, y in (("A", a), ("B", b))}
    own = {f"{inner}.lora_A.default.weight": a, f"{inner}.lora_B.default.weight": b}
    save_file(base | own | rest, trained / "model.safetensors")
    convert.save(config, tmp_path, tmp_path / "policy")
    found = load_policy(str(tmp_path / "policy"))[0].state_dict()
    wanted = start | {f"{name}.weight": weight + 6 / 4 * b @ a}
    assert max(float((found[key] - wanted[key]).abs().max()) for key in wanted) < 1e-5


def test_values_as_hydra_reads_them():
    given = {"a": {"b": 1, "c": {}}, "d.e": [0.9, "x"]}
    assert flattened(given) == {"a.b": 1, "a.c": {}, "d.e": [0.9, "x"]}
    values = (None, True, "it's {x}", "plain/word", [1, "a b"], {"k": 1e-6})
    assert [*map(written, values)] == ["null", "true", r"'it\'s {x}'", "plain/word", "[1, 'a b']", "{k: 1e-06}"]


def test_a_dry_run_prints_the_command():
    lines = dry_run_lines(config_of("steps=10", "rollout.prompts_per_step=4", "rollout.group_size=8"))
    text = "\n".join(lines)
    assert "python -m sage_rlvr.verl" in text and "data.max_prompt_length=LONGEST" in text and "GRPOConfig" not in text
    assert "320 with gradient, 320 without, by the policy, 320 without, by the reference" in text
    assert command(["a=b c"]) == "python -m sage_rlvr.verl \\\n  'a=b c'"


def test_a_dry_run_names_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    assert call("train", "grpo", "--dry-run", "--run", "here/mine", "--engine", "{name: verl}", "--steps", "30") == 0
    found = capsys.readouterr().out
    assert f"trainer.default_local_dir={tmp_path}/here/mine/verl/checkpoints" in found and "<run>" not in found


def command_line(folder: Path, *words: str) -> str:
    """What a command of this package prints in `folder`."""
    done = subprocess.run([sys.executable, "-m", "sage_rlvr", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- which verl


def test_the_tested_releases_are_those_of_the_constraints():
    for engine, tested in (("verl", verl_package.TESTED), ("trl", trl_package.TESTED)):
        file = ROOT / ("constraints-verl.txt" if engine == "verl" else "constraints.txt")
        assert f"{engine}=={tested}" in file.read_text().splitlines()
    assert '"verl>=0.9,<0.10"' in (ROOT / "pyproject.toml").read_text() and "verl>=0.9,<0.10" in verl_package.INSTALL


@pytest.mark.parametrize("found", ["0.8.0", "0.10.0.dev0"])
def test_another_series_of_verl_is_refused_before_any_of_it_is_imported(
    found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(verl_package, "version", lambda name: found)
    monkeypatch.setitem(sys.modules, "transfer_queue", None)  # importing it is an ImportError
    with pytest.raises(ConfigError, match=rf"verl {found} is not structured as in 0\.9; install verl>=0\.9,<0\.10 \(tested: "):
        verl_package.require_verl()
    monkeypatch.setattr(entry, "end_with_parent", lambda: None)
    assert entry.main(["+sage.guide=branch"]) == 2
    assert capsys.readouterr().err.startswith(f"ConfigError: verl {found} is not structured as in 0.9")


def test_a_verl_of_the_series_with_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(entry, "require_verl", lambda: None)
    monkeypatch.setattr(entry, "end_with_parent", lambda: None)
    monkeypatch.setitem(sys.modules, "sage_rlvr.training.verl.launch", None)
    assert entry.main([]) == 2
    assert "verl is not structured as in 0.9 (import of sage_rlvr.training.verl.launch" in capsys.readouterr().err


# ---- problems and verdicts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text("base: countdown/base\nmethod: grpo\nworld: {train_problems: 6}\nrollout: {prompts_per_step: 4}\n")
    named = Named.of(str(file))
    found = export(named, tmp_path / "out", chosen(named.task(), 6, say=lambda line: None), talks=False)
    assert found == {"train": 6, "validation": 6}
    return tmp_path / "out"


def test_exported_problems_are_found_again(folder: Path):
    task, problems = exported(folder)
    rows = pq.read_table(folder / "train.parquet").to_pylist()
    assert [row["prompt"][0]["content"] for row in rows] == [task.prompt(problem) for problem in problems["train"]]
    ids = [problem.problem_id for problem in problems["train"]]
    assert [row["extra_info"] for row in rows] == [{"index": n, "split": "train", "problem": ids[n]} for n in range(6)]
    golds = [row["reward_model"]["ground_truth"] for row in rows]  # one of the right answers
    assert all(task.verify(*pair).right for pair in zip(problems["train"], golds, strict=True))
    record = json.loads((folder / "task.json").read_text())
    (folder / "task.json").write_text(json.dumps(record | {"problems": record["problems"] | {"train": "x"}}))
    with pytest.raises(DataError, match="export them again"):
        exported(folder)


def test_the_ground_truth_of_an_exported_row_is_its_gold(tmp_path: Path):
    golds = (4, "6*1=6\n#### 6", "1/3")
    rows = [{"question": f"{number}?", "answer": gold} for number, gold in enumerate(golds)]
    (file := tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = Named.of(str(file))
    export(named, tmp_path / "out", chosen(named.task(), say=lambda line: None), talks=True)
    made = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert [row["reward_model"]["ground_truth"] for row in made] == ["4", "6", "1/3"]
    assert [row["extra_info"] for row in made] == [{"index": n, "split": "train", "problem": str(n)} for n in range(3)]
    read = examples(DataSource(path=str(tmp_path / "out" / "train.parquet"))).examples  # as anybody's verl rows
    assert [one.answer for one in read] == ["4", "6", "1/3"]


@pytest.mark.slow
def test_a_completion_is_judged_by_the_tasks_verifier(folder: Path):
    judge = Judge(folder, seconds=60)
    task, problems = exported(folder)
    right = next(iter(task.solutions(problems["train"][3])))
    try:
        found = [judge("train", 3, text) for text in (right, right + NO_ANSWER, "1")]
    finally:
        assert judge.pool is not None
        judge.pool.close()
    assert [verdict.reward for verdict in found] == [1.0, 0.0, 0.0] and found[0].label == "right"


class Unlisted(Task):
    """A task of which only `verify` is called."""

    def problems(self, split: str) -> list[Any]:
        return []

    def prompt(self, problem: Any) -> str:
        return ""


@dataclass(frozen=True)
class Slow(Unlisted):
    """A task whose verifier hangs on one text, and grades another."""

    name: str = "slow"

    def verify(self, problem: Any, text: str) -> Any:
        while text == "hang":
            time.sleep(1)
        return judging.Verdict("right", "graded", 0.25)


def slow(folder: str, split: str, number: int, text: str) -> Any:
    """`judge` of a task that is no export, for a worker process."""
    judging._exported = lambda _: (Slow(), {"train": [None]})  # type: ignore[assignment]
    return judging.judge(folder, split, number, text)


@pytest.mark.slow
def test_a_verifier_that_hangs_is_killed_and_the_next_is_judged(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judging, "JUDGE", f"{__name__}:slow")
    monkeypatch.setattr(judging, "Pool", lambda **options: _Pool(**options | {"start_seconds": 120}))
    judge = Judge(folder, seconds=2)
    try:
        hung, graded = judge("train", 0, "hang"), judge("train", 0, "fine")
    finally:
        assert judge.pool is not None
        judge.pool.close()
    assert (hung.label, hung.reward) == ("undecided", 0.0) and "took longer than 2 s" in hung.reason
    assert (graded.label, graded.reward, graded.reason) == ("right", 0.25, "graded")


@dataclass(frozen=True)
class Failing(Unlisted):
    """A task whose verifier fails in three ways."""

    name: str = "failing"

    def verify(self, problem: Any, text: str) -> Any:
        if text == "exit":
            sys.exit(0)
        return judging.Verdict("maybe", "") if text == "maybe" else 1 / 0


@pytest.mark.parametrize(
    ("text", "why"), [("exit", "SystemExit: 0"), ("maybe", "DataError: Verdict.*label is one of"), ("", "ZeroDivisionError: div")]
)
def test_a_verifier_that_raises_stops_the_run_and_pays_no_0(text: str, why: str, monkeypatch: pytest.MonkeyPatch):
    problems = {"train": [SimpleNamespace(problem_id="p7")]}
    monkeypatch.setattr(judging, "_exported", lambda _: (Failing(), problems))
    judge = Judge(Path("anywhere"))
    found = judging.judge("anywhere", "train", 0, text)
    assert len(found.reason) < 200
    judge.pool = SimpleNamespace(verify=lambda items: [found])  # type: ignore[assignment]
    with pytest.raises(DataError, match=rf"task failing: its verifier raised on problem 'p7': test_verl_arguments.py:\d+: {why}"):
        judge("train", 0, text)


_Pool = judging.Pool


@pytest.mark.slow
def test_export_by_a_tasks_name_prints_a_command_that_needs_no_addition(tmp_path: Path):
    """The first problems alone are made; the words have the files of both splits and what verl does not start without."""
    found = command_line(tmp_path, "export", "verl", "countdown", "--out", "out", "--take", "3")
    assert "guess floor" in found
    out = tmp_path / "out"
    wanted = (
        *(f"data.train_files={out}/train.parquet", f"data.val_files={out}/val.parquet", f"+sage.task={out}", "+sage.method=grpo"),
        *("data.train_batch_size=3", "data.max_prompt_length=11", "data.max_response_length=32", "SageRewardManager"),
        *(f"actor_rollout_ref.model.path={embedded_policy()}", "custom_chat_template=", "actor_rollout_ref.rollout.name=vllm"),
    )
    assert [word for word in wanted if word not in found] == []
    assert len(pq.read_table(out / "val.parquet")) == len(pq.read_table(out / "train.parquet")) == 3


def test_what_is_refused_comes_before_the_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """And before any file."""
    world = "{counts: {2: 1.0}, max_number: 4, max_target: 6, train_problems: 500}"
    (tmp_path / "mine.yaml").write_text(f"base: countdown/base\nmethod: grpo\nworld: {world}\nrollout: {{prompts_per_step: 4}}\n")
    with pytest.raises(SystemExit, match="2"):
        cli(["export", "verl", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert "500 distinct train problems: this world gave only" in said.err and "right expression" not in said.out + said.err
    assert not (tmp_path / "out").exists()


def test_an_export_without_validation_problems_validates_nothing(tmp_path: Path):
    prompts = run.Prompts(True, None, longest=9)
    found = words_of_export(tmp_path, {"train": 100, "validation": 0}, "m", prompts, limit=32, options={})
    assert f"data.val_files={tmp_path}/train.parquet" in found and "trainer.val_before_train=false" in found
    assert "data.train_batch_size=64" in found and not any("custom_chat_template" in word for word in found)


@pytest.mark.parametrize(
    "world", ["demo", "demo-large", *(pytest.param(w, marks=pytest.mark.slow) for w in ("demo-base", "countdown-3"))]
)
def test_a_named_world_has_its_training_problems(world: str):
    """By its name alone: what a task of the command line is asked for. The first few are the first of all of them."""
    task = WORLDS[world]
    every = task.problems("train")
    assert len(every) == task.train_problems
    assert problems_of(task, "train", 1, 5) == every[:5] and problems_of(task, "train", 1, 10**9) == every


@pytest.mark.parametrize("name", ["countdown", "countdown_steps", "word_problems"])
def test_the_first_problems_are_made_without_the_others(name: str):
    """Of a pool that no world could fill."""
    kind = type(Named.of(name).task())
    endless, small = kind(train_problems=10**9), kind(train_problems=30)
    every = small.problems("train")
    assert problems_of(endless, "train", 1, 4) == every[:4] == problems_of(small, "train", 1, 4)
    assert problems_of(small, "train", 1, 99) == every


# ---- rows and states


def test_a_row_of_verl_under_our_names():
    row = run.our_row({"step": 3, "data": {"actor/loss": 0.5, "reward/mean": 0.25, "timing_s/step": 2, "text": "x"}})
    assert row == {"step": 2, "loss": 0.5, "time/step_s": 2, "actor/loss": 0.5, "reward/mean": 0.25, "timing_s/step": 2}
    with pytest.raises(TrainingDiverged, match="step 0"):
        run.our_row({"step": 1, "data": {"actor/grad_norm": None}})


def test_rows_of_verl_are_taken_once_and_when_they_are_whole(tmp_path: Path):
    logged: list[int] = []
    sink = SimpleNamespace(log=lambda row: logged.append(row["step"]), advance=lambda done, row: None, note=lambda line: None)
    file, row = tmp_path / "metrics.jsonl", '{"step": %d, "data": {"reward/mean": 0.5}}\n'
    assert run.take(file, 0, sink, sink) == 0
    file.write_text(row % 1 + (row % 2)[:9])
    read = run.take(file, 0, sink, sink)
    assert (read, logged) == (len(row % 1), [0])
    file.write_text(row % 1 + row % 2 + row % 3)
    assert run.take(file, read, sink, sink) == file.stat().st_size and logged == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("x\n(pid=3) sage_rlvr.errors.ConfigError: no beta\nray::x\n", ConfigError, "on verl: no beta"),
        ("one\nRuntimeError: two\n\n", CheckpointError, "last line: RuntimeError: two"),
        ("", CheckpointError, "(no output)"),
    ],
)
def test_what_verl_ended_with_is_told(tmp_path: Path, text: str, kind: type[Exception], words: str):
    (tmp_path / "said.txt").write_text(text)
    found = run.failed(tmp_path / "said.txt")
    assert isinstance(found, kind) and words in str(found)


def trainer_of(folder: Path, objective: Objective, parts: Any) -> Any:
    trainer = {"resume_mode": "auto", "default_local_dir": str(folder), "resume_from_path": None}
    return SimpleNamespace(config=SimpleNamespace(trainer=SimpleNamespace(**trainer)), sage_objective=objective, sage_parts=parts)


def test_objective_and_parts_beside_a_checkpoint(tmp_path: Path):
    method = sage(adaptive_entropy(beta=0.1), Branch())
    objective = Objective(method, method.anchor, 0, False)
    parts = {slot: {name: value + 1 for name, value in own.items()} for slot, own in method.start().items()}
    place = state.folder_of_step(trainer_of(tmp_path, objective, parts).config, 5)
    assert place == tmp_path / "global_step_5"
    state.save_state(trainer_of(tmp_path, objective, parts), place)
    again = trainer_of(tmp_path, objective, method.start())
    state.check_objective(objective, place)
    state.restore_parts(again, place)
    assert all(torch.equal(again.sage_parts[slot][name], value) for slot, own in parts.items() for name, value in own.items())
    other = Objective(sage(grpo(), Random()), None, 0, False)
    with pytest.raises(ConfigError, match=r"(?s)a different objective:\nmethod adaptive_entropy\+branch.*may_change=true"):
        state.check_objective(other, place)
    state.check_objective(replace(other, may_change=True), place)
    (place / state.OBJECTIVE).unlink()
    state.check_objective(other, place)


def test_a_resume_with_another_objective_is_refused_from_the_configuration_alone(tmp_path: Path):
    """Before anything of verl has started: from the files of the checkpoint that it would resume from."""
    method = grpo()
    written = Objective(method, method.anchor, 0, False)
    config = trainer_of(tmp_path, written, {}).config
    other = replace(written, terms=("added to verl's own loss: critic.enable = True",))
    state.check_resume(other, config)  # a new run
    state.save_state(trainer_of(tmp_path, written, {}), tmp_path / "global_step_5")
    state.check_resume(other, config)  # verl has not named the checkpoint its newest
    (tmp_path / state.LATEST).write_text("5")
    state.check_resume(written, config)
    with pytest.raises(ConfigError, match=r"(?s)global_step_5: .*a different objective.*may_change=true"):
        state.check_resume(other, config)
    config.trainer.resume_mode = "disable"
    state.check_resume(other, config)
    config.trainer.resume_mode, config.trainer.resume_from_path = "resume_path", str(tmp_path / "global_step_5")
    with pytest.raises(ConfigError, match="a different objective"):
        state.check_resume(other, config)
