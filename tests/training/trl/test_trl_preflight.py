"""`preflight(trainer)` of TRL's trainers: sound scripts and broken ones, and a training that does not change. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

trl = pytest.importorskip("trl")

from lab.casebook.cases import CASES
from lab.casebook.trl_script import problem_rows, right, script, tokens
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.symptoms.logs.diagnose import diagnose
from sage_rlvr.symptoms.on_trl import first_rollout, unchanged
from sage_rlvr.trl import preflight
from sage_rlvr.verifiers.rewards import text_of
from trl_common import arguments, build, same, weights
from trl_tools import WITH_TOOLS, Counting, add, chat_trainer

SMALL: dict[str, Any] = {"per_device_train_batch_size": 16, "num_generations": 4, "max_steps": 2}


def generators() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_a_sound_script_has_no_finding_and_its_training_does_not_change(tmp_path: Path, kind: str):
    made = {"trainer": getattr(trl, f"{kind}Trainer"), "config": getattr(trl, f"{kind}Config")}
    results = []
    for looked in (False, True):
        trainer = script(tmp_path / str(looked), **made, **SMALL)
        if looked:
            before, held = weights(trainer), generators()
            report = preflight(trainer, draw=16, say=False)
            assert report.first is None and report.exit_code == 0, str(report)
            assert generators() == held and same(weights(trainer), before) and trainer.model.training is not None
            assert not trainer._metrics["eval"] and trainer.state.num_input_tokens_seen == 0
        trainer.train()
        results.append((weights(trainer), [row.get("reward") for row in trainer.state.log_history]))
    assert same(results[0][0], results[1][0]) and results[0][1] == results[1][1]


FAST = ("template missing", "doubled start token", "gold unreadable", "golds shifted", "reward infinite", "reference wrong")


@pytest.mark.parametrize("name", FAST)
def test_a_fault_is_named_first(tmp_path: Path, name: str):
    case = next(case for case in CASES if case.name == name)
    before, _ = case.make(tmp_path)
    assert before().first == case.cause


def test_a_reward_that_raises_and_one_that_returns_too_few(tmp_path: Path):
    def raises(completions: Any, **_: Any) -> list[float]:
        return [completions[0]["content"]]

    report = preflight(script(tmp_path, raises, **SMALL), say=False)
    assert report.first == "reward-raises" and "TypeError" in report.findings[0].sentence and report.exit_code == 3
    report = preflight(script(tmp_path, lambda completions, **_: [1.0], **SMALL), say=False)
    assert report.first == "reward-raises" and "returned 1 rewards" in report.findings[0].sentence


def test_what_is_no_trainer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ConfigError, match="no GRPOTrainer"):
        preflight(torch.nn.Linear(2, 2))
    trainer = script(tmp_path, rows=problem_rows(24), **SMALL)
    with pytest.raises(ConfigError, match="draw = 0"):
        preflight(trainer, draw=0)
    preflight(trainer, draw=2)
    assert "preflight of GRPOTrainer: 2 prompts x 4 completions" in capsys.readouterr().out
    trainer.train_dataset = trainer.train_dataset.rename_column("prompt", "question")
    with pytest.raises(DataError, match="rename one"):
        preflight(trainer)


def test_conversations(tmp_path: Path):
    from lab.casebook.trl_script import TEMPLATE

    rows = [row | {"prompt": [{"role": "user", "content": row["prompt"].removesuffix(":")}]} for row in problem_rows(24)]
    trainer = script(tmp_path, right, rows, tokenizer=tokens(chat_template=TEMPLATE), **SMALL)
    assert preflight(trainer, draw=16, say=False).first is None


def test_the_log_of_a_run_is_read_with_its_completions(tmp_path: Path):
    trainer = script(tmp_path, **SMALL | {"max_steps": 3})
    trainer.train()
    trainer.state.save_to_json(str(tmp_path / "trainer_state.json"))
    found = diagnose(tmp_path)
    assert found.table.program == "TRL" and found.table.steps == [1, 2, 3] and len(found.table.completions) == 48
    assert found.table.has("reward", "unmixed", "entropy", "kl", "length", "cut", "grad_norm", "lr")


# ---- tools, environments and rollout functions


@WITH_TOOLS
def test_tools_are_called_and_their_words_are_not_the_policys(tmp_path: Path):
    from trl.chat_template_utils import qwen3_chat_template

    seen: list[list[str]] = []

    def fn(completions: list[Any], right: list[int], **_: Any) -> list[float]:
        seen.extend([message["role"] for message in one] for one in completions if len(one) > 1)
        return [float(text_of(one) == "done" and gold > 1) for one, gold in zip(completions, right, strict=True)]

    trainer = chat_trainer(tmp_path, qwen3_chat_template, tools=[add])
    trainer.reward_funcs = [fn]
    with unchanged(trainer):
        first = first_rollout(trainer, 4)
    size = trainer.args.num_generations
    assert seen == [["assistant", "tool", "assistant"]] * (4 * size)
    assert [one.reward for one in first.completions[::size]] == [0.0, 0.0, 1.0, 1.0]
    assert all(one.answered and not one.cut and "sum 4" in one.text for one in first.completions)
    assert first.plan.surplus is not None and 0 < first.plan.surplus.tokens < sum(len(one.ids) for one in first.completions)
    report = preflight(trainer, draw=4, say=False)
    assert {one.cause for one in report.findings} & {"special-tokens", "empty-completions", "reward-raises"} == set()


@WITH_TOOLS
def test_an_environment_is_judged_as_it_ended_and_the_training_does_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from trl.chat_template_utils import qwen3_chat_template

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    def fn(prompts: list[Any], environments: list[Any], **_: Any) -> list[float]:
        assert all(p[-1]["content"].endswith(f" observed {e.right}") for p, e in zip(prompts, environments, strict=True))
        return [float(e.asked == 1 and e.right > 1) for e in environments]

    results = []
    for looked in (False, True):
        torch.manual_seed(0)
        trainer = chat_trainer(tmp_path / str(looked), qwen3_chat_template, environment_factory=Counting)
        trainer.reward_funcs = [fn]
        if looked:
            report = preflight(trainer, draw=4, say=False)
            assert "reward 0.5 on average" in report.facts[0]
        trainer.train()
        results.append(weights(trainer))
    assert same(*results)


@pytest.mark.parametrize("texts", [3, 1], ids=["different texts", "one text"])
def test_the_columns_of_a_rollout_function_reach_the_reward(texts: int, tiny_policy: Path, tmp_path: Path):
    def drawn(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        ids = [[5, 6 + place % texts, trainer.processing_class.eos_token_id] for place in range(len(prompts))]
        columns = {"prompt_ids": [[4]] * len(prompts), "completion_ids": ids, "logprobs": [[0.0] * 3] * len(prompts)}
        return columns | {"said": [place % 2 for place in range(len(prompts))]}

    trainer = build(tiny_policy, arguments(tmp_path, max_steps=1), trl.GRPOTrainer, rollout_func=drawn)
    trainer.reward_funcs = [lambda said, **_: list(map(float, said))]
    report = preflight(trainer, draw=4, say=False)
    assert "reward 0.5 on average" in report.facts[0]
    assert not {one.cause for one in report.findings} & {"reward-raises", "batch-dependent"}
