"""PassAtK under stock TRL and SageTrainer: numbers, files, resume, and a training that does not change. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

trl = pytest.importorskip("trl")

from datasets import Dataset
from transformers import TrainerCallback
from transformers.integrations.integration_utils import rewrite_logs

import sage_rlvr.trl  # noqa: F401  # sets the verdict
from byte_tokenizer import CHATML
from chat_policy import chat_policy
from sage_rlvr.api.compare import compare
from sage_rlvr.core.guides import Flat
from sage_rlvr.core.keys import Key
from sage_rlvr.errors import CheckpointError, ConfigError, DataError
from sage_rlvr.training import evaluations
from sage_rlvr.training.trl import PassAtK, SageTrainer, held_out
from sage_rlvr.verdicts.stats.intervals import passk_interval
from sage_rlvr.verifiers.rewards import text_of
from trl_common import PROMPTS, QUIET, arguments, build, on_ranks, reward, same, weights
from trl_tools import CHAT_ROWS, ROWS, WITH_TOOLS, Counting, add, chat_trainer, reward_chat

TRAINERS: dict[str, tuple[type, dict[str, Any]]] = {
    "grpo": (trl.GRPOTrainer, {}),
    "sage": (SageTrainer, {"guide": Flat()}),
}


def first_ones(completions: list[Any], right: list[int], **_: Any) -> list[float | None]:
    """Golden: the first `right` completions of a row are right, the last of row 2 has no answer."""
    seen: Counter[int] = Counter()
    values: list[float | None] = []
    for count in right:
        seen[count] += 1
        values.append(None if (count, seen[count]) == (1, 4) else float(seen[count] <= count))
    return values


def dice(completions: list[str], **_: Any) -> list[float]:
    """A reward that draws from every generator of random numbers there is."""
    return [float(random.random() + np.random.rand() + float(torch.rand(())) > 1.5) for _ in completions]


def passk(trainer: Any, fn: Callable[..., Any] = first_ones, rows: Any = ROWS, **more: Any) -> PassAtK:
    settings: dict[str, Any] = {"n": 4, "every": 1, "temperatures": (), "batch_size": 5}
    callback = PassAtK(trainer, rows, fn, **settings | more)
    trainer.add_callback(callback)
    return callback


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def evaluated(trainer: Any) -> list[dict[str, float]]:
    """The logged evaluations."""
    return [line for line in trainer.state.log_history if "eval_passk/pass@1" in line]


def files(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((tmp_path / "out" / "passk").glob("step-*.jsonl"))}


# ---- numbers


@pytest.mark.parametrize("batch", [3, 4, 9, 100])
def test_the_curve_of_known_counts(batch: int, tiny_policy: Path, tmp_path: Path) -> None:
    """c = 0, 1, 2 and 4 of n = 4, by hand, whatever the calls of the generator are."""
    trainer = build(tiny_policy, arguments(tmp_path, max_steps=1), trl.GRPOTrainer)
    passk(trainer, batch_size=batch, answer_key=lambda row, text: f"answer {row['right'] > 2}", samples=True, arm="mine")
    trainer.train()
    before, after = evaluated(trainer)
    assert (before["step"], after["step"]) == (0, 1)
    for found in (before, after):
        assert found["eval_passk/pass@1"] == pytest.approx((0 + 1 / 4 + 2 / 4 + 1) / 4)
        assert found["eval_passk/pass@2"] == pytest.approx((0 + 3 / 6 + 5 / 6 + 1) / 4)
        assert found["eval_passk/pass@4"] == pytest.approx(3 / 4)
        interval = passk_interval(4, [0, 1, 2, 4], 2)
        assert (found["eval_passk/pass@2_low"], found["eval_passk/pass@2_high"]) == pytest.approx((interval.low, interval.high))
        assert found["eval_passk/distinct_right"] == pytest.approx(3 / 4)  # one answer in each of three rows
        assert found["eval_passk/pcmd"] == 0.0  # of two rows, all of whose right answers are one
        assert found["eval_passk/no_answer_frac"] == pytest.approx(1 / 16)
        assert found["eval_passk/reward_mean"] == pytest.approx(7 / 15)
    rows = lines(tmp_path / "out" / "passk" / "step-000001-T0.8.jsonl")
    assert [(row["id"], row["n"], row["c"]) for row in rows] == [("row 1", 4, 0), ("row 2", 4, 1), ("row 3", 4, 2), ("row 4", 4, 4)]
    assert [row["keys"] for row in rows] == [{}, {"answer False": 1}, {"answer False": 2}, {"answer True": 4}]
    assert {(row["step"], row["temperature"], row["seed"], row["arm"]) for row in rows} == {(1, 0.8, 5, "mine")}
    samples = lines(tmp_path / "out" / "passk" / "samples" / "step-000001-T0.8.jsonl")
    assert [one["id"] for one in samples] == [row["id"] for row in ROWS for _ in range(4)]
    assert Counter(one["id"] for one in samples if one["correct"]) == {row["id"]: row["c"] for row in rows if row["c"]}
    assert all(isinstance(one["text"], str) and isinstance(one["cut"], bool) and one["prompt"] for one in samples)
    assert sum(one["cut"] for one in samples) == sum(row["unfinished"] for row in rows)
    assert after["eval_passk/unfinished_frac"] == pytest.approx(sum(one["cut"] for one in samples) / 16)


@pytest.mark.parametrize("arm", [None, "mine"])
def test_training_ends_with_the_verdict_of_compare(arm: str | None, tiny_policy: Path, tmp_path: Path, capfd: Any) -> None:
    """Of the base at both temperatures and the last step; a run that begins with all steps done says nothing again."""
    trainer = build(tiny_policy, arguments(tmp_path, max_steps=1), trl.GRPOTrainer)
    passk(trainer, temperatures=(0.5,), arm=arm)
    trainer.train()
    (line,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("PassAtK: "))
    folder = tmp_path / "out" / "passk"
    base = ",".join(str(folder / f"step-000000-T{heat}.jsonl") for heat in (0.8, 0.5))
    answer = compare({"base": base, "rl": str(folder / "step-000001-T0.8.jsonl")}).answer.partition("\n\n")[0]
    assert line.startswith(f"PassAtK: {answer} More: sage-rlvr compare base={folder}") and answer


def test_k_of_the_curve(tiny_policy: Path, tmp_path: Path) -> None:
    trainer = build(tiny_policy, arguments(tmp_path, max_steps=1), trl.GRPOTrainer)
    passk(trainer, k=3)
    trainer.train()
    names = {f"eval_passk/pass@{k}{end}" for k in (1, 2, 3) for end in ("", "_low", "_high")}
    means = {"distinct_right", "pcmd", "unfinished_frac", "no_answer_frac", "reward_mean"}
    assert evaluated(trainer)[0].keys() == names | {f"eval_passk/{name}" for name in means} | {"epoch", "step"}


def test_when_it_evaluates(tiny_policy: Path, tmp_path: Path) -> None:
    """Before the first step, at multiples of `every`, and after the last step."""
    trainer = build(tiny_policy, arguments(tmp_path, max_steps=5), trl.GRPOTrainer)
    passk(trainer, every=2, n=2)
    trainer.train()
    assert [line["step"] for line in evaluated(trainer)] == [0, 2, 4, 5]


def test_completions_are_drawn_independently_and_from_the_policy(tiny_policy: Path, tmp_path: Path) -> None:
    """Near T = 0 all completions of a row are one; at T = 1 they differ, also between rows, calls and steps."""
    trainer = build(tiny_policy, arguments(tmp_path, max_steps=1, learning_rate=0.0), trl.GRPOTrainer)
    rows = [{"prompt": PROMPTS[0], "id": str(place)} for place in range(3)]
    passk(trainer, dice, rows, n=6, temperature=1.0, temperatures=(1e-3,), samples=True)
    trainer.train()
    folder = tmp_path / "out" / "passk" / "samples"
    cold, base, later = (
        [one["text"] for one in lines(folder / f"step-{name}.jsonl")] for name in ("000000-T0.001", "000000-T1", "000001-T1")
    )
    assert len(set(cold)) == 1 and len(set(base)) > 9
    assert base[:6] != base[6:12] and base != later


def test_the_base_at_lower_temperatures_has_names_and_files_of_its_own(tiny_policy: Path, tmp_path: Path) -> None:
    trainer = build(tiny_policy, arguments(tmp_path, max_steps=1), trl.GRPOTrainer)
    kept = vars(trainer.generation_config).copy(), dict(trainer.generation_kwargs)
    passk(trainer, temperatures=(1.0, 0.8, 0.6))
    seen: list[tuple[float, float]] = []
    generate = trainer._generate

    def spy(prompts: Any) -> Any:
        if not trainer.model.training:
            seen.append((trainer.generation_config.temperature, trainer.generation_kwargs["temperature"]))
        return generate(prompts)

    trainer._generate = spy
    trainer.train()
    assert set(seen) == {(1.0, 1.0), (0.8, 0.8), (0.6, 0.6)}
    assert kept == (vars(trainer.generation_config), trainer.generation_kwargs)
    base, last = evaluated(trainer)
    assert {f"eval_passk{at}/pass@4" for at in ("", "_T1", "_T0.6")} <= base.keys() and "eval_passk_T0.8/pass@4" not in base
    assert not any("_T" in name for name in last)
    assert files(tmp_path).keys() == {f"step-00000{name}.jsonl" for name in ("0-T1", "0-T0.8", "0-T0.6", "1-T0.8")}


def test_conversations(tmp_path: Path) -> None:
    """Messages reach the reward as TRL gives them; a row without an id is named by its prompt."""
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in ("One?", "Two?")]
    seen: list[Any] = []

    async def fn(prompts: list[Any], completions: list[Any], completion_ids: Any, trainer_state: Any, **_: Any) -> list[float]:
        seen.append((prompts, completions, trainer_state.global_step))
        return [float(text_of(one) is not None) for one in completions]

    args = arguments(tmp_path, max_steps=1, max_completion_length=4)
    trainer = trl.GRPOTrainer(chat_policy(tmp_path / "chat"), reward_chat, args, train_dataset=Dataset.from_list(rows * 6))
    passk(trainer, fn, Dataset.from_list(rows), n=2, samples=True)
    trainer.train()
    (prompts, completions, step), _ = seen
    assert step == 0 and prompts == [rows[0]["prompt"]] * 2 + [rows[1]["prompt"]] * 2
    assert all(len(one) == 1 and one[0]["role"] == "assistant" for one in completions)
    samples = lines(tmp_path / "out" / "passk" / "samples" / "step-000000-T0.8.jsonl")
    assert [one["text"] for one in samples] == [text_of(one) for one in completions]
    assert len({one["id"] for one in samples}) == 2 and samples[0]["prompt"] == rows[0]["prompt"]


# ---- a training that does not change


@pytest.mark.parametrize("kind", TRAINERS)
@pytest.mark.parametrize("layout", ["plain", "moves: both"])
def test_the_training_is_bitwise_the_same(kind: str, layout: str, tiny_policy: Path, tmp_path: Path) -> None:
    """Weights, moments, generators and TRL's own log lines; log_completions prints at the same steps."""
    cls, more = TRAINERS[kind]

    def run(name: str, with_callback: bool) -> Any:
        trainer = build(tiny_policy, arguments(tmp_path / name, layout, log_completions=True), cls, **more)
        if with_callback:
            passk(trainer, dice, temperatures=(1.0, 0.6))
        torch.manual_seed(9)
        random.seed(9)
        np.random.seed(9)
        trainer.train()
        return trainer, (torch.get_rng_state(), random.getstate(), str(np.random.get_state()))

    plain, generators = run("plain", False)
    watched, generators_after = run("watched", True)
    assert same(weights(plain), weights(watched)) and watched.model.training == plain.model.training
    assert torch.equal(generators[0], generators_after[0]) and generators[1:] == generators_after[1:]
    for first, second in zip(plain.optimizer.state.values(), watched.optimizer.state.values(), strict=True):
        assert torch.equal(first["exp_avg_sq"], second["exp_avg_sq"])
    logged = [[without_time(line) for line in t.state.log_history if "eval_passk/pass@1" not in line] for t in (plain, watched)]
    assert logged[0] == logged[1] and len(logged[0]) == 4 and len(evaluated(watched)) == 4
    assert plain.state.num_input_tokens_seen == watched.state.num_input_tokens_seen and not watched._metrics["eval"]


def without_time(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if "time" not in name and "per_second" not in name and name != "total_flos"}


def test_rloo(tiny_policy: Path, tmp_path: Path) -> None:
    fields = {"max_steps": 2, "per_device_train_batch_size": 6, "num_generations": 3, "max_completion_length": 8}
    data = Dataset.from_dict({"prompt": PROMPTS})

    def run(name: str) -> Any:
        args = trl.RLOOConfig(str(tmp_path / name / "out"), **QUIET | fields, learning_rate=3e-2, seed=5)
        trainer = trl.RLOOTrainer(str(tiny_policy), reward, args, train_dataset=data)
        if name == "watched":
            passk(trainer)
        trainer.train()
        return trainer

    plain, watched = run("plain"), run("watched")
    assert same(weights(plain), weights(watched))
    assert [line["eval_passk/pass@4"] for line in evaluated(watched)] == pytest.approx([0.75] * 3)


def test_no_forward_of_a_training_batch_is_added(tiny_policy: Path, tmp_path: Path) -> None:
    """Beyond the tokens that are generated the model is called as often as without the callback."""

    class Counting(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
        calls = 0

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            type(self).calls += 1
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            type(self).calls += 100
            return super()._generate_and_score_completions(inputs)

    counts = []
    for name in ("plain", "watched"):
        Counting.calls = 0
        trainer = build(tiny_policy, arguments(tmp_path / name, "moves: both"), Counting)
        if name == "watched":
            passk(trainer)
        trainer.train()
        counts.append(Counting.calls)
    assert counts[0] == counts[1] > 100  # one rollout, scored and trained on


def test_the_modes_of_modules_and_metrics_are_restored_one_by_one(tiny_policy: Path, tmp_path: Path) -> None:
    trainer = build(tiny_policy, arguments(tmp_path), trl.GRPOTrainer)
    trainer.model.train()
    frozen = trainer.model.model.layers[0]
    frozen.eval()
    trainer._metrics["eval"]["kept"].append(1.0)
    with pytest.raises(RuntimeError), held_out.evaluating(trainer):
        assert not any(module.training for module in trainer.model.modules())
        trainer._metrics["eval"]["gone"].append(1.0)
        raise RuntimeError
    assert trainer.model.training and not frozen.training and not frozen.mlp.training and trainer.model.model.layers[1].training
    assert dict(trainer._metrics["eval"]) == {"kept": [1.0]}


# ---- where the numbers go


def test_trackers_and_the_best_checkpoint_see_the_metrics(tiny_policy: Path, tmp_path: Path) -> None:
    """wandb and trackio show eval/passk/pass@1; TRL's own evaluation carries it, so a checkpoint can be chosen by it."""

    class Tracker(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            seen.append((state.global_step, rewrite_logs(logs)))

    def rising(completions: list[Any], trainer_state: Any, **_: Any) -> list[float]:
        return [float(place < 4 * trainer_state.global_step) for place in range(len(completions))]

    seen: list[tuple[int, dict[str, float]]] = []
    best = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "best", "metric_for_best_model": "passk/pass@1"}
    args = arguments(tmp_path, max_steps=2, greater_is_better=True, **best)
    trainer = build(tiny_policy, args, trl.GRPOTrainer, eval_dataset=Dataset.from_dict({"prompt": PROMPTS[:2]}))
    trainer.add_callback(Tracker())
    passk(trainer, rising)
    trainer.train()
    assert [(step, row["eval/passk/pass@1"]) for step, row in seen if "eval/passk/pass@1" in row] == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (0.5, 2)


# ---- stored evaluations


def run_to_the_end(policy: Path, folder: Path, resume: bool = False, **more: Any) -> Any:
    trainer = build(policy, arguments(folder, max_steps=4, save_strategy="steps", save_steps=1), trl.GRPOTrainer)
    passk(trainer, **{"fn": dice, "temperatures": (1.0,)} | more)
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer


class Killed(BaseException):
    """In place of a signal."""


@pytest.mark.parametrize("when", ["before the write", "between samples and counts", "after the write"])
def test_a_killed_run_continues_without_a_lost_or_repeated_evaluation(
    when: str, tiny_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_to_the_end(tiny_policy, tmp_path / "whole", samples=True)
    write, write_lines = evaluations.Evaluations.write, evaluations._write_lines
    made: list[tuple[int, float]] = []

    def killed(self: Any, step: int, temperature: float, counts: Any, samples: Any) -> None:
        made.append((step, temperature))
        if step == 2 and when == "before the write":
            raise Killed
        write(self, step, temperature, counts, samples)
        if step == 2:
            raise Killed

    def torn(path: Path, rows: Any) -> None:
        if "step-000002" in path.name and path.parent.name == "passk":
            raise Killed
        write_lines(path, rows)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(evaluations.Evaluations, "write", killed)
        if when == "between samples and counts":
            patch.setattr(evaluations, "_write_lines", torn)
        run_to_the_end(tiny_policy, tmp_path / "again", samples=True)
    assert made == [(0, 0.8), (0, 1.0), (1, 0.8), (2, 0.8)]
    stored = when == "after the write"
    assert ("step-000002-T0.8.jsonl" in files(tmp_path / "again")) is stored

    def counting(self: Any, step: int, temperature: float, counts: Any, samples: Any) -> None:
        made.append((step, temperature))
        write(self, step, temperature, counts, samples)

    monkeypatch.setattr(evaluations.Evaluations, "write", counting)
    again = run_to_the_end(tiny_policy, tmp_path / "again", resume=True, samples=True)
    assert made[4:] == [(2, 0.8)] * (not stored) + [(3, 0.8), (4, 0.8)]
    assert files(tmp_path / "again") == files(tmp_path / "whole") and len(files(tmp_path / "whole")) == 6
    assert evaluated(again) == evaluated(whole) and same(weights(again), weights(whole))


def test_a_new_start_in_the_same_folder_keeps_the_base_and_sets_the_rest_aside(tiny_policy: Path, tmp_path: Path) -> None:
    run_to_the_end(tiny_policy, tmp_path)
    before = files(tmp_path)
    with pytest.warns(UserWarning, match=r"4 files of an earlier run in .* were moved into earlier-"):
        run_to_the_end(tiny_policy, tmp_path)
    assert files(tmp_path) == before
    assert len([*(tmp_path / "out" / "passk" / "earlier-1").glob("*.jsonl")]) == 4
    with pytest.warns(UserWarning, match="6 files"):  # n is another one: the base is evaluated again
        run_to_the_end(tiny_policy, tmp_path, n=2)
    assert {row["n"] for row in lines(tmp_path / "out" / "passk" / "step-000000-T1.jsonl")} == {2}
    with pytest.raises(ConfigError, match=r"other settings \(n was 2, now 4\); pass the settings that the run"):
        run_to_the_end(tiny_policy, tmp_path, resume=True)


@pytest.mark.parametrize(("before", "now", "moved"), [("a", "a", 1), ("a", "b", 2), (None, None, 2)])
def test_evaluations_of_a_base_without_a_digest_are_made_again(before: Any, now: Any, moved: int, tmp_path: Path) -> None:
    """Sharded weights have no digest: the base of the earlier run may be another one."""
    kept = evaluations.Evaluations(tmp_path)
    assert kept.begin({"n": 4, "base": before}, fresh=True) == ""
    for step in (0, 1):
        kept.write(step, 1.0, [{"id": "a", "n": 4, "c": 1}], [])
    assert f"{moved} files of an earlier run" in kept.begin({"n": 4, "base": now}, fresh=True)
    assert kept.file(0, 1.0).is_file() is (moved == 1)
    assert kept.begin({"n": 4, "base": now}, fresh=False) == ""


def test_a_finished_run_that_is_started_again_gets_no_file(tiny_policy: Path, tmp_path: Path) -> None:
    run_to_the_end(tiny_policy, tmp_path)
    files = sorted(file.name for file in (tmp_path / "out" / "passk").iterdir())
    run_to_the_end(tiny_policy, tmp_path, resume=True)
    assert sorted(file.name for file in (tmp_path / "out" / "passk").iterdir()) == files


def test_a_run_that_gets_the_callback_late_warns_that_it_has_no_base(tiny_policy: Path, tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=1, save_strategy="steps", save_steps=1)
    build(tiny_policy, args, trl.GRPOTrainer).train()
    trainer = build(tiny_policy, arguments(tmp_path, max_steps=2), trl.GRPOTrainer)
    passk(trainer)
    with pytest.warns(UserWarning, match=r"continues at step 1, and .* no evaluation of the base; sample it with sage-rlvr eval"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    assert [line["step"] for line in evaluated(trainer)] == [1, 2]


def test_a_damaged_file_is_named(tiny_policy: Path, tmp_path: Path) -> None:
    run_to_the_end(tiny_policy, tmp_path)
    (tmp_path / "out" / "passk" / "step-000000-T0.8.jsonl").write_text('{"id": "row 1", "n": 4}\n')
    text = r"step-000000-T0\.8\.jsonl: the first row has no c, keys"
    with pytest.warns(UserWarning, match="earlier run"), pytest.raises(CheckpointError, match=text):
        run_to_the_end(tiny_policy, tmp_path)


# ---- vLLM, by a stand-in for its engine: TRL's own code around it runs


class Engine:
    """In place of TRL's VLLMGeneration: `times` completions per prompt, as its server answers."""

    def __init__(self, lost: int = 0) -> None:
        self.temperature, self.generation_kwargs, self.lost = 0.8, {"temperature": 0.8}, lost
        self.calls: list[tuple[int, int, float, float]] = []

    def sync_weights(self) -> None:
        """As the engine's."""

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None) -> Any:
        self.calls.append((len(prompts), num_generations, self.temperature, self.generation_kwargs["temperature"]))
        ids = [[4 + place % 9, 5] for place in range(len(prompts) - self.lost)]
        return prompts, ids, [[[-1.0], [-1.0]] for _ in ids], None


def on_vllm(policy: Path, folder: Path, lost: int = 0, **more: Any) -> Any:
    trainer = build(policy, arguments(folder, max_steps=1), trl.GRPOTrainer)
    callback = passk(trainer, **{"batch_size": None, "temperatures": (0.6,)} | more)
    trainer.args.vllm_mode = "server"
    trainer.use_vllm, trainer._last_loaded_step, trainer.vllm_generation = True, -1, Engine(lost)
    return trainer, callback


def test_vllm_generates_n_completions_of_each_prompt(tiny_policy: Path, tmp_path: Path) -> None:
    trainer, callback = on_vllm(tiny_policy, tmp_path)
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    assert trainer.vllm_generation.calls == [(16, 4, 0.8, 0.8), (16, 4, 0.6, 0.6)]  # all prompts in one call
    assert (trainer.vllm_generation.temperature, trainer.vllm_generation.generation_kwargs) == (0.8, {"temperature": 0.8})
    assert trainer.num_generations_eval == 3
    assert [row["c"] for row in lines(tmp_path / "out" / "passk" / "step-000000-T0.6.jsonl")] == [0, 1, 2, 4]


def test_the_temperature_of_training_is_the_one_that_trl_samples_at() -> None:
    args = SimpleNamespace(temperature=0.9, generation_kwargs=None)
    assert held_out.training_temperature(args) == 0.9
    args.generation_kwargs = {"temperature": 0.7}  # TRL writes these over the fields
    assert held_out.training_temperature(args) == 0.7


def test_a_server_that_returns_one_completion_per_prompt(tiny_policy: Path, tmp_path: Path) -> None:
    trainer, callback = on_vllm(tiny_policy, tmp_path, lost=12)
    text = r"the vLLM server returned 4 completions for 4 prompts with n = 4 \(16 expected\); start the server of the TRL installed"
    with pytest.raises(DataError, match=text):
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)


# ---- errors name the value and the next step


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rows": []}, "rows has 0 held-out rows; pass some, such as"),
        ({"rows": Dataset.from_list(ROWS).to_iterable_dataset()}, "has no length; pass a loaded dataset"),
        ({"rows": [{"question": "?"}]}, "held-out row 0 has the columns question; rename"),
        ({"rows": [{"prompt": "1", "image": 0}]}, "row 0 has image, and the trainer.s .* reads no images: remove"),
        ({"rows": [{"prompt": "1", "a": 0}, {"prompt": "2"}]}, "rows 0 and 1 differ in the columns a"),
        ({"rows": [{"prompt": "1"}, {"prompt": "2"}, {"prompt": "1"}]}, "rows 0 and 2 have the same prompt and no column id"),
        ({"rows": [{"prompt": "1", "id": 7}, {"prompt": "2", "id": 7}]}, r"rows 0 and 1 have the same id \(7\)"),
        ({"n": 8, "k": 16}, r"k = 16: pass@16 needs at least 16 completions per row, and n = 8; raise n or lower k"),
        ({"n": 0}, "n = 0: give a whole number from 1 on"),
        ({"n": None}, "n = None: give a whole number from 1 on"),
        ({"batch_size": 0}, "batch_size = 0: give a whole number from 1 on"),
        ({"every": 2.5}, "every = 2.5: give a whole number"),
        ({"temperature": 0.0}, "temperature = 0.0: give a number above 0"),
        ({"temperatures": (1.0, -1.0)}, "temperature = -1.0: give a number above 0"),
        ({"fn": "org/reward-model"}, "reward = 'org/reward-model' is a reward model; pass one reward function"),
        ({"fn": [first_ones]}, "is no function; pass one reward function"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_what_cannot_be_evaluated(changes: dict[str, Any], text: str, tiny_policy: Path, tmp_path: Path) -> None:
    trainer = build(tiny_policy, arguments(tmp_path), trl.GRPOTrainer)
    with pytest.raises((ConfigError, DataError), match=text):
        passk(trainer, **changes)


def broken(**_: Any) -> list[float]:
    raise KeyError("answer")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"fn": broken}, r"the reward broken raised KeyError: 'answer' on 16 held-out completions with the arguments prompts,"),
        ({"fn": lambda completions, **_: [1.0]}, r"returned 1 values for 16 completions; return one number or None for each"),
        ({"fn": lambda completions, **_: 0.5}, r"returned 0.5 for 16 completions"),
        ({"fn": lambda completions, **_: ["yes"] * 16}, r"returned 'yes' for a completion of held-out row 0; return a"),
        ({"answer_key": lambda row, text: row["missing"]}, r"answer_key raised KeyError: 'missing' on a completion of held-out"),
    ],
    ids=["raises", "wrong length", "no list", "no number", "key"],
)
def test_what_goes_wrong_in_an_evaluation(changes: dict[str, Any], text: str, tiny_policy: Path, tmp_path: Path) -> None:
    trainer = build(tiny_policy, arguments(tmp_path, max_steps=1), trl.GRPOTrainer)
    passk(trainer, **changes)
    with pytest.raises(DataError, match=text):
        trainer.train()
    assert not files(tmp_path)


def test_a_column_of_any_name_reaches_the_reward() -> None:
    """A column with the name of one of TRL's arguments is left out; no other name collides with the code that makes the call."""
    seen: dict[str, Any] = {}

    def fn(**columns: Any) -> list[float]:
        seen.update(columns)
        return [1.0]

    rows = [{"prompt": "1", "reward": 7, "arguments": 8, "completions": 9, "trainer_state": 10}]
    assert held_out.rewards_of(fn, rows, [held_out.HeldOut(0, "text", [4, 5], cut=False)], "state") == [1.0]
    assert (seen["reward"], seen["arguments"], seen["completions"], seen["trainer_state"]) == ([7], [8], ["text"], "state")


def test_trainers_that_cannot_be_sampled(tiny_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"trainer = SimpleNamespace does not derive from a trainer of TRL; pass a GRPOTrainer"):
        passk(SimpleNamespace())
    trainer = build(tiny_policy, arguments(tmp_path), trl.GRPOTrainer)
    trainer.environments = [object()]
    monkeypatch.setattr(held_out, "NEW_ENVIRONMENTS", "something else")
    with pytest.raises(ConfigError, match=r"the environments of TRL .* are one list, as long as a training batch; install TRL"):
        passk(trainer)
    trainer.environments = None
    monkeypatch.setitem(held_out.SEAMS, "_generate", ("something else",))
    with pytest.raises(ConfigError, match=r"unexpected structure; not found: _generate: something else; install TRL"):
        passk(trainer)


def test_the_asynchronous_trainer_is_refused_with_the_reason() -> None:
    module = pytest.importorskip("trl.experimental.async_grpo")
    with pytest.raises(ConfigError, match=r"AsyncGRPOTrainer samples in a process of its own, on a server whose weights change"):
        passk(object.__new__(module.AsyncGRPOTrainer))


# ---- what the trainer's own rollout adds


@WITH_TOOLS
def test_environments_are_those_of_the_training_and_are_asked_before_they_are_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt of a completion has the observation of its row, the reward reads the environment while it is still that of the
    row, with its tool called once, no more are made than a call has completions, and the training does not change."""
    from trl.chat_template_utils import qwen3_chat_template

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    seen: list[tuple[str, int, int, int, str]] = []

    def fn(prompts: list[Any], completions: list[Any], right: list[int], environments: list[Any], **_: Any) -> list[float]:
        for p, said, c, e in zip(prompts, completions, right, environments, strict=True):
            seen.append((p[-1]["content"], c, e.right, e.asked, said[1]["content"]))
        return [float(e.right > 1) for e in environments]

    torch.manual_seed(0)
    plain = chat_trainer(tmp_path, qwen3_chat_template, environment_factory=Counting)
    plain.train()
    torch.manual_seed(0)
    trainer = chat_trainer(tmp_path, qwen3_chat_template, environment_factory=Counting)
    passk(trainer, fn, CHAT_ROWS, every=2, batch_size=4)
    Counting.made = 0
    trainer.train()
    assert len(seen) == 32 and all(text.endswith(f" observed {c}") and c == own for text, c, own, *_ in seen)
    assert {(asked, said) for *_, asked, said in seen} == {(1, "4")}
    assert Counting.made == 5  # a batch of training has 6, and the trainer made the first
    assert [one["eval_passk/pass@1"] for one in evaluated(trainer)] == [0.5, 0.5]
    assert same(weights(trainer), weights(plain)) and "_generate" not in vars(trainer)


@WITH_TOOLS
def test_tools_are_called_and_their_words_reach_the_reward(tmp_path: Path) -> None:
    from trl.chat_template_utils import qwen3_chat_template

    trainer, seen = chat_trainer(tmp_path, qwen3_chat_template, tools=[add]), list[str]()

    def fn(completions: list[Any], **_: Any) -> list[float]:
        seen.extend(one[1]["content"] for one in completions)
        return [float(text_of(one) == "done") for one in completions]

    passk(trainer, fn, CHAT_ROWS, every=2, batch_size=4)
    trainer.train()
    assert seen == ["sum 4"] * 32 and evaluated(trainer)[0]["eval_passk/pass@1"] == 1.0


def test_a_rollout_func_draws_at_the_temperature_and_returns_columns(tiny_policy: Path, tmp_path: Path) -> None:
    """Its own columns reach the reward; other temperatures than that of training are only those that are given."""
    heats: list[float] = []

    def drawn(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        heats.append(trainer.args.temperature)
        ids = [[5, 6, trainer.processing_class.eos_token_id] for _ in prompts]
        columns = {"prompt_ids": [[4]] * len(prompts), "completion_ids": ids, "logprobs": [[0.0] * 3] * len(prompts)}
        return columns | {"said": [f"{prompt} {trainer.args.temperature}" for prompt in prompts]}

    def fn(prompts: list[Any], said: list[str], **_: Any) -> list[float]:
        assert all(text.startswith(prompt) for prompt, text in zip(prompts, said, strict=True))
        return [float(text.endswith("0.3")) for text in said]

    trainer = build(tiny_policy, arguments(tmp_path, max_steps=1), trl.GRPOTrainer, rollout_func=drawn)
    assert passk(trainer, fn, temperatures=None).base_temperatures == (0.8,)
    trainer = build(tiny_policy, arguments(tmp_path, max_steps=1), trl.GRPOTrainer, rollout_func=drawn)
    passk(trainer, fn, temperatures=(0.3,))
    heats.clear()
    trainer.train()
    assert heats == [0.8] * 4 + [0.3] * 4 + [0.8] + [0.8] * 4 and trainer.temperature == 0.8
    base, last = evaluated(trainer)
    assert (base["eval_passk/pass@1"], base["eval_passk_T0.3/pass@1"], last["eval_passk/pass@1"]) == (0.0, 1.0, 0.0)


def test_images_reach_the_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    trainer = chat_trainer(tmp_path, CHATML)
    pictures = [row | {"image": image.new("RGB", (2, 2), (place, 0, 0))} for place, row in enumerate(CHAT_ROWS)]
    with pytest.raises(DataError, match=r"held-out row 0 has image, and the trainer's .* reads no images: remove the column"):
        passk(trainer, first_ones, pictures)
    trainer.processing_class.image_processor = object()
    words = [row | {"prompt": "text"} for row in pictures]
    with pytest.raises(DataError, match=r"held-out row 0 has image; prompts with images are messages"):
        passk(trainer, first_ones, words)
    callback = passk(trainer, first_ones, pictures)
    again = [row | {"image": row["image"].copy()} for row in pictures]
    assert callback._settings()["rows"] == PassAtK(trainer, again, first_ones, temperatures=())._settings()["rows"]
    seen: list[Any] = []

    def generate(prompts: list[Any]) -> tuple[Any, ...]:
        seen.extend(part["image"] for prompt in prompts for part in prompt[0]["content"] if part["type"] == "image")
        names = held_out.returned_names(held_out.trl_class(trainer)._generate)
        values = {"completion_ids": [[5]] * len(prompts), "completions": [[{"role": "assistant", "content": "x"}]] * len(prompts)}
        return tuple(values.get(name) for name in names)

    monkeypatch.setattr(trainer, "_generate", generate)
    drawn, rewards = held_out.sample(trainer, pictures, 2, 1.0, Key(0), callback._rewards, 4)
    assert [one.getpixel((0, 0))[0] for one in seen] == [0, 0, 1, 1, 2, 2, 3, 3] and len(drawn) == len(rewards) == 8


def test_the_seams_of_the_installed_trl() -> None:
    """What is read of each release: where in the returned tuple the ids and the completions are."""
    for cls in (trl.GRPOTrainer, trl.RLOOTrainer):
        names = held_out.returned_names(cls._generate)
        assert {"completion_ids", "completions"} <= set(names) and names[0] == "prompt_ids"


def test_every_process_makes_the_same_calls() -> None:
    for rows, world, n, batch in ((5, 2, 4, 8), (1, 3, 2, 2), (7, 3, 5, 2)):
        shares = [held_out.share_of(rows, rank, world) for rank in range(world)]
        calls = [[(len(chunk), times) for chunk, times in held_out.calls_of(share, n, batch)] for share in shares]
        assert all(one == calls[0] for one in calls)
        assert sorted(row for share in shares for row in share if row >= 0) == list(range(rows))
        drawn = Counter(row for chunk, times in held_out.calls_of(shares[0], n, batch) for row in chunk for _ in range(times))
        assert {drawn[row] for row in shares[0] if row >= 0} == {n}


# ---- two processes

RANKS = """
import os, sys
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from sage_rlvr.trl import PassAtK

policy, out, world = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank = int(os.environ.get("RANK", "0"))
torch.set_num_threads(1)
rows = [{"prompt": f"{a} 2={a + 2}:", "number": a} for a in range(5)]


def even(completions, number, **_):
    return [float(one % 2 == 0) for one in number]


def broken(completions, **_):
    assert rank == 0, "only the second process sees this"
    return [1.0] * len(completions)


def run(kind, reward):
    args = GRPOConfig(
        f"{out}/{kind}", max_steps=2, learning_rate=0.03, per_device_train_batch_size=6, num_generations=3,
        max_completion_length=8, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, bf16=False,
        gradient_checkpointing=False, disable_tqdm=True, seed=5,
    )
    trainer = GRPOTrainer(
        model=policy, reward_funcs=lambda completions, **_: [float(len(set(text)) % 2) for text in completions], args=args,
        train_dataset=Dataset.from_dict({"prompt": [f"{a} {b}={a + b}:" for a in range(1, 7) for b in range(1, 5)]}),
    )
    assert trainer.accelerator.num_processes == world, trainer.accelerator.num_processes
    if reward is not None:
        trainer.add_callback(PassAtK(trainer, rows, reward, n=4, every=2, temperatures=(0.6,), batch_size=2, samples=True))
    raised = ""
    try:
        trainer.train()
    except ValueError as error:
        raised = str(error)
    log = [line for line in trainer.state.log_history if "eval_passk/pass@1" in line]
    return raised, log, {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


runs = {"plain": run("plain", None), "even": run("even", even), "broken": run("broken", broken)}
torch.save(runs, f"{out}/rank{rank}.pt")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_evaluate_their_shares_and_the_first_writes(tiny_policy: Path, tmp_path: Path) -> None:
    ranks = on_ranks(RANKS, tmp_path, 2, str(tiny_policy), "OUT", seconds=800)
    for runs in ranks:
        assert same(runs["plain"][2], runs["even"][2])
        assert "raised AssertionError: only the second process sees this" in runs["broken"][0]
    folder = tmp_path / "2" / "even" / "passk"
    assert sorted(path.name for path in folder.glob("*.jsonl")) == [f"step-00000{at}.jsonl" for at in ("0-T0.6", "0-T1", "2-T1")]
    rows = lines(folder / "step-000002-T1.jsonl")
    assert [(row["n"], row["c"]) for row in rows] == [(4, 4), (4, 0)] * 2 + [(4, 4)]
    samples = lines(folder / "samples" / "step-000002-T1.jsonl")
    assert len(samples) == 20 and [one["id"] for one in samples[::4]] == [row["id"] for row in rows]
    logs = [runs["even"][1] for runs in ranks]
    assert logs[0] == logs[1] and [line["step"] for line in logs[0]] == [0, 2]
    assert all(line["eval_passk/pass@1"] == pytest.approx(0.6) for line in logs[0])
    assert not [*(tmp_path / "2" / "broken" / "passk").glob("step-*")]
