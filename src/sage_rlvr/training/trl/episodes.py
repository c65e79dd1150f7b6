"""Episodes on TRL: its `rollout_func`, played as on the loop engine, the environment's words masked by its `env_mask`.

    prompts of this rank -> problems -> episodes by this package's sampler (`models/episodes.py`) -> ids, mask, the
    policy's turns

TRL's own `environment_factory` wants a chat template with tools, which a policy from scratch lacks; `rollout_func` asks for none.
For chat models `environment_of` makes such an environment of the same task. An episode is a function of (seed, step, number of
the draw in it, row), as completions are on the loop; in an evaluation of the state of torch's generator.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sage_rlvr.core.keys import Key
from sage_rlvr.errors import refuse
from sage_rlvr.models.episodes import responses_of, sample_episodes
from sage_rlvr.models.policy import PromptRenderer, in_messages, load_tokens
from sage_rlvr.tasks.base import replies, turns_of, verdicts
from sage_rlvr.tasks.chat import NO_OPTIONS, Options, encodable
from sage_rlvr.tasks.prompts import FORMATS
from sage_rlvr.training.trl.card import truncated
from sage_rlvr.training.trl.protocols import TrlTrainer
from sage_rlvr.training.trl.reference_model import sharded
from sage_rlvr.training.trl.task_reward import TaskReward

OVER = "The task is over."


class Episodes:
    """A `rollout_func` of TRL for a task with turns; `TaskReward` judges what it drew, by the column `said`."""

    def __init__(self, asking: PromptRenderer, prompts: Sequence[Any], problems: Sequence[Any]) -> None:
        """prompts: of the rows, as TRL is given them. ConfigError for one prompt of two problems: TRL names an episode's problem
        by its prompt only."""
        self.asking, self.known = asking, dict[str, Any]()
        self.drawn = (-1, 0)  # step, draws in it
        for prompt, problem in zip(prompts, problems, strict=True):
            other = self.known.setdefault(json.dumps(prompt), problem)
            same = other.problem_id == problem.problem_id
            words = f"problems {other.problem_id!r} and {problem.problem_id!r} have one prompt, by which TRL finds the environment"
            refuse((not same, f"{words}; remove one of them, or set engine.name = loop"))

    def prompt_ids(self, prompt: Any) -> list[int]:
        """The tokens of a row's prompt."""
        return list(self.asking(self.known[json.dumps(prompt)]).ids)

    def __call__(self, prompts: list[Any], trainer: TrlTrainer) -> dict[str, Any]:
        """One episode for each prompt of this rank."""
        args, step, tokens = trainer.args, trainer.state.global_step, self.asking.tokens
        policy = trainer.accelerator.unwrap_model(trainer.model)
        check_sampler(trainer, policy, "episodes")
        key = Key(args.seed)
        if trainer.model.training:
            self.drawn = (step, self.drawn[1] + 1 if self.drawn[0] == step else 0)
            key = key.fold(f"episodes/{self.drawn[1]}")
        else:  # an evaluation: it counts no draw of the training, and follows torch's generator
            key = key.fold(f"evaluation/{int(torch.randint(1 << 62, ()))}")
        problems = [self.known[json.dumps(prompt)] for prompt in prompts]
        prompt_ids = [list(self.asking(problem).ids) for problem in problems]
        rollout = sample_episodes(
            policy, self.asking, problems, prompt_ids, group_size=1, max_new_tokens=args.max_completion_length,
            key=key, step=step, temperature=args.temperature,
            row_ids=trainer.accelerator.process_index * len(prompts) + torch.arange(len(prompts)),
        )  # fmt: skip
        columns = (rollout.tokens, rollout.logps, rollout.drawn.int())
        ids, logps, own = ([row[m].tolist() for row, m in zip(column, rollout.mask, strict=True)] for column in columns)
        turns_of_rows = [list(turns) for turns in responses_of(tokens, rollout)]
        return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logps, "env_mask": own, "said": turns_of_rows}


def episodes_of(
    reward: TaskReward, prompts: Sequence[Any], tokenizer: PreTrainedTokenizerBase, where: str, options: Options = NO_OPTIONS
) -> Episodes:
    """The rollout function of a recipe whose task has turns; prompts: of its rows; options: chat_template_kwargs."""
    form = reward.task.form or FORMATS["as_is"]
    tokens = replace(load_tokens(where), tokenizer=tokenizer)
    asking = PromptRenderer(reward.task, tokens, form if in_messages(reward.task, tokenizer) else None, options)
    return Episodes(asking, prompts, reward.problems)


def environment_of(task: Any, problems: Sequence[Any], tokenizer: PreTrainedTokenizerBase | None = None) -> type:
    """An `environment_factory` of TRL for chat models whose template has tools: the policy takes its turns by the tool `say`.

    problems: those that the column `problem` of the rows numbers. tokenizer: the policy's; with it special tokens that an answer
    spells out stay text. TRL generates, calls the tool, masks its answers, and asks the
    environment for its reward, `Verdict.reward` of the turns; a policy that never writes anything gets 0.
    """

    class TaskEnvironment:
        def __init__(self) -> None:
            self._problem: Any = None
            self._said: list[str] = []
            self._over = False

        def reset(self, problem: int, **row: Any) -> None:
            """Begin an episode of a problem."""
            self._problem, self._said, self._over = problems[problem], [], False

        def say(self, text: str) -> str:
            """
            Take your next turn in the task.

            Args:
                text: Your message.

            Returns:
                The environment's reply, or that the task is over.
            """
            if self._over:
                return OVER
            self._said.append(text)
            (reply,) = replies(task, [(self._problem, tuple(self._said))])
            self._over = reply is None or len(self._said) >= turns_of(task)
            return OVER if self._over or reply is None else encodable(reply, tokenizer)

        def get_reward(self) -> float:
            """The reward of the turns."""
            return verdicts(task, [(self._problem, tuple(self._said))])[0].reward if self._said else 0.0

    return TaskEnvironment


def check_sampler(trainer: TrlTrainer, policy: PreTrainedModel, what: str) -> None:
    """ConfigError if this package's sampler cannot draw from the policy that TRL trains, or if TRL would truncate its
    distribution. what: it draws, the subject of messages, in the plural.
    """
    cuts = truncated(trainer.args)
    refuse(
        (bool(trainer.args.use_vllm), f"engine.args.use_vllm = True: {what} are drawn by this package's sampler; set it to false"),
        (bool(cuts), f"engine.args {', '.join(cuts)}: {what} are drawn from the full distribution; remove these settings"),
        (
            hasattr(policy, "peft_config") or sharded(trainer),
            f"{what} need the full weights of the policy in each process, but the weights are sharded or an "
            "adapter; train the full model on one device per process, or set engine.name = loop",
        ),
    )


__all__ = ["Episodes", "environment_of", "episodes_of"]
