"""Episodes on TRL: the loop's replayed there, and played there by the rollout function of a recipe."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

trl = pytest.importorskip("trl")

import torch
from datasets import Dataset
from packaging.version import Version

from byte_tokenizer import byte_tokenizer
from conftest import tiny_llama
from episodes_common import Digits, digit_policy, save_digit_policy
from loop_recorded import furthest, record
from sage_rlvr.config import TrainConfig, decode, dump
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods import grpo
from sage_rlvr.models.policy import PromptRenderer
from sage_rlvr.progress import Silent
from sage_rlvr.runs import RunDir, read_metrics
from sage_rlvr.tasks import TASKS
from sage_rlvr.tasks.base import verdicts
from sage_rlvr.training import loop as engine
from sage_rlvr.training.trl import SageTrainer, grpo_config
from sage_rlvr.training.trl import run as trl_run
from sage_rlvr.training.trl.callbacks import CHECKPOINTS
from sage_rlvr.training.trl.episodes import Episodes, check_sampler, environment_of
from trl_common import QUIET
from trl_replayed import Replay, arguments
from trl_replayed import verdicts as recorded

BRANCH = {"name": "sage", "base": {"name": "grpo", "beta": 0.05}, "guide": {"name": "branch", "threshold": 0.2}}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(TASKS, "digits", Digits)
    policy = save_digit_policy(tmp_path / "policy")

    def make(**changes: Any) -> TrainConfig:
        tree = {
            "steps": 4, "seed": 3, "model": str(policy), "task": {"name": "digits"}, "method": BRANCH,
            "rollout": {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 12}, "optimizer": {"lr": 1e-4, "eps": 1e-6},
        }  # fmt: skip
        return decode(TrainConfig, tree | changes)

    return make


@pytest.mark.parametrize(
    "method",
    [
        BRANCH,
        pytest.param({"name": "dapo", "dynamic_sampling": False}, marks=pytest.mark.slow),
        pytest.param({"name": "gspo"}, marks=pytest.mark.slow),
        pytest.param({"name": "steer"}, marks=pytest.mark.slow),
        pytest.param({"name": "erank"}, marks=pytest.mark.slow),
        pytest.param({"name": "dr_grpo", "beta": 0.05}, marks=pytest.mark.slow),
    ],
    ids=lambda method: method["name"],
)
def test_the_loops_episodes_replayed_on_trl_end_with_its_weights(
    config: Any, method: dict[str, Any], tmp_path: Path
) -> None:
    given = config(method=method)
    groups, wanted = record(given)
    assert sum(bool((part.rewards != part.rewards[:, :1]).any()) for part in groups) > 2
    assert all(bool((part.rollout.drawn != part.rollout.mask).any()) for part in groups)
    task, replay = Digits(), Replay(groups)
    trainer = SageTrainer(
        model=given.model, reward_funcs=recorded, args=arguments(given, tmp_path / "trl"), method=given.method,
        train_dataset=Dataset.from_dict({"prompt": [task.prompt(p) for part in groups for p in part.problems]}),
        rollout_func=replay,
    )  # fmt: skip
    trainer.train()
    assert replay.is_used_up() and trainer.state.global_step == 4
    begun = engine.load_policy(given.model)[0].state_dict()
    found = trainer.model.state_dict()
    assert found.keys() == wanted.keys() and furthest(wanted, begun) > 2e-4 and furthest(found, wanted) < 1e-5


def trained(folder: Path, given: TrainConfig) -> int:
    with RunDir.open(folder, dump(given)) as run:
        return trl_run.train(given, run, folder, Silent())


def test_a_recipe_trains_episodes_on_trl_and_goes_on_after_a_kill(config: Any, tmp_path: Path) -> None:
    rollout = {"prompts_per_step": 2, "group_size": 8, "max_new_tokens": 12}  # four steps are one epoch of the eight problems
    given = config(engine={"name": "trl"}, checkpoint={"every": 2, "keep": 9}, rollout=rollout)
    assert trained(tmp_path / "whole", given) == 4
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / CHECKPOINTS / "checkpoint-4")
    shutil.rmtree(tmp_path / "parts" / "policy")
    assert trained(tmp_path / "parts", given) == 4
    whole, parts = (engine.load_policy(str(tmp_path / name / "policy"))[0].state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    kept = ("step", "loss", "grad_norm", "reward/mean", "completions/mean_length")
    rows = [[[row[name] for name in kept] for row in read_metrics(tmp_path / folder)] for folder in ("whole", "parts")]
    assert rows[0] == rows[1] and max(row[3] for row in rows[0]) > 0


def test_the_rollout_function_plays_and_its_rewards_are_of_the_policys_turns() -> None:
    model, tokens = digit_policy()
    task = Digits()
    problems, asking = list(task.problems("train")), PromptRenderer.of(task, tokens)
    prompts = [task.prompt(problem) for problem in problems]
    args = SimpleNamespace(max_completion_length=14, seed=1, temperature=1.0, use_vllm=False)
    accelerator = SimpleNamespace(unwrap_model=lambda model: model, process_index=0)
    trainer = SimpleNamespace(
        args=args, state=SimpleNamespace(global_step=2), model=model, accelerator=accelerator, is_deepspeed_enabled=False,
        is_fsdp_enabled=False,
    )  # fmt: skip
    play = Episodes(asking, prompts, problems)
    asked = [prompts[i // 4] for i in range(32)]
    model.train()
    first = play(asked, trainer)
    model.eval()  # an evaluation between them draws by torch's generator, and no draw of the training is another one
    torch.manual_seed(4)
    evaluation = play(asked, trainer)
    torch.manual_seed(4)
    assert play(asked, trainer) == evaluation and evaluation["said"] not in (first["said"], play(asked, trainer)["said"])
    model.train()
    second = play(asked, trainer)
    fresh = Episodes(asking, prompts, problems)
    assert [fresh(asked, trainer), fresh(asked, trainer)] == [first, second]
    assert first["said"] != second["said"]  # a refill of the same step
    for ids, own, logps in zip(first["completion_ids"], first["env_mask"], first["logprobs"], strict=True):
        assert len(ids) == len(own) == len(logps) and own[0] == own[-1] == 1 and sum(own) <= 14
    reward = trl_run.TaskReward(task, problems, tokens.eos_ids)
    numbers, texts = [i // 4 for i in range(32)], tokens.tokenizer.batch_decode(first["completion_ids"])
    paid = reward(texts, first["completion_ids"], numbers, said=first["said"])
    wanted = verdicts(task, [(problems[i], tuple(said)) for i, said in zip(numbers, first["said"], strict=True)])
    assert paid == [one.reward for one in wanted] and max(map(len, first["said"])) == 3
    for change, words in (({"use_vllm": True}, "use_vllm"), ({"top_k": 5}, "top_k=5")):
        trainer.args = SimpleNamespace(**vars(args) | change)
        with pytest.raises(ConfigError, match=words):
            check_sampler(trainer, model, "episodes")
    with pytest.raises(ConfigError, match="have one prompt, by which TRL finds the environment"):
        Episodes(asking, ["1?", "1?"], problems[:2])


@pytest.mark.skipif(
    Version(trl.__version__) < Version("1.16"), reason="environment_factory was tried on TRL 1.16; 1.0 wants jmespath for its tools"
)
def test_an_environment_of_a_task_trains_a_chat_model_with_tools(tmp_path: Path) -> None:
    """TRL calls the tool, masks its answer and asks for the reward; what the tiny policy says is scripted."""
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer = byte_tokenizer(qwen3_chat_template, eos_token="<|im_end|>", pad_token="</s>")
    task, method = Digits(), grpo(beta=0.05, source="sft")
    problems = list(task.problems("train"))
    rows = [{"prompt": [{"role": "user", "content": f"Name {p.digit}."}], "problem": i} for i, p in enumerate(problems)]
    args = trl.GRPOConfig(
        str(tmp_path), max_steps=1, per_device_train_batch_size=2, num_generations=2, max_completion_length=600,
        **QUIET, **grpo_config(method),
    )  # fmt: skip
    model = tiny_llama(vocab_size=len(tokenizer), max_position_embeddings=4096)
    trainer = SageTrainer(
        model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, method=method,
        environment_factory=environment_of(task, problems), reward_funcs=[],
    )  # fmt: skip
    seen: list[Any] = []

    def scripted(prompt_ids: Any, *_: Any, **__: Any) -> Any:
        """9, which is too much or right; then the digit; then an end. The second row ends at once."""
        turn, texts = len(seen), []
        seen.append([tokenizer.decode(ids) for ids in prompt_ids])
        for place, shown in enumerate(seen[-1]):
            digit = shown.split("Name ")[1][0]
            call = '<tool_call>\n{"name": "say", "arguments": {"text": "%s"}}\n</tool_call>' % ("9" if turn == 0 else digit)
            texts.append("done" if place == 1 or turn == 2 else call)
        ids = [tokenizer(f"{text}<|im_end|>", add_special_tokens=False)["input_ids"] for text in texts]
        return ids, [[-1.0] * len(row) for row in ids]

    trainer._generate_single_turn = scripted
    kept: list[Any] = []
    compute = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: kept.append(inputs) or compute(model, inputs)
    trainer.train()
    (inputs,) = kept
    texts = [
        tokenizer.decode(ids[(mask * own).bool()])
        for ids, mask, own in zip(inputs["completion_ids"], inputs["completion_mask"], inputs["tool_mask"], strict=True)
    ]
    assert "say" in texts[0] and "done" in texts[0] and "<tool_response>" not in texts[0]
    assert any("<tool_response>\n<\n</tool_response>" in shown for shown in seen[1]) and texts[1] == "done<|im_end|>"
    assert trainer.state.log_history[0]["rewards/TaskEnvironment/mean"] == 0.5
