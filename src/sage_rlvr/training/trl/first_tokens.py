"""A rollout plan that chooses first tokens on TRL: its `rollout_func`, by this package's sampler.

A completion is a function of (args.seed, step, number of the draw in it, row), as completions are on the loop. TRL scores the
tokens with the policy, so that the ratio takes a chosen first token for a sampled one.
"""

from __future__ import annotations

from typing import Any

import torch

from sage_rlvr.core.keys import Key
from sage_rlvr.core.rollout_plans import Spread
from sage_rlvr.errors import refuse
from sage_rlvr.training.first_tokens import first_logits, sample_behind
from sage_rlvr.training.trl.episodes import check_sampler
from sage_rlvr.training.trl.protocols import TrlTrainer


class FirstTokenRollouts:
    """A `rollout_func` of TRL for a plan that chooses first tokens."""

    def __init__(self, plan: Spread) -> None:
        self.plan = plan
        self.drawn = (-1, 0)  # step, draws in it

    def __call__(self, prompts: list[Any], trainer: TrlTrainer) -> dict[str, Any]:
        """One completion for each prompt of this rank; rows of one group follow one another over all ranks."""
        args, step, tokenizer = trainer.args, trainer.state.global_step, trainer.processing_class
        policy = trainer.accelerator.unwrap_model(trainer.model)
        check_sampler(trainer, policy, "first tokens of a rollout plan")
        self.drawn = (step, self.drawn[1] + 1 if self.drawn[0] == step else 0)
        key, size = Key(args.seed).fold(f"first_tokens/{self.drawn[1]}"), trainer.num_generations
        rows = trainer.accelerator.process_index * len(prompts) + torch.arange(len(prompts))
        groups, group_of = torch.unique(rows // size, return_inverse=True)
        asked = [prompt_ids(tokenizer, prompt, args.chat_template_kwargs or {}) for prompt in prompts]
        heads = torch.searchsorted(group_of, torch.arange(len(groups)))
        logits = first_logits(policy, [asked[i] for i in heads.tolist()])
        chosen = self.plan.first(logits, size, groups, step, key)
        owner, member = group_of.to(logits.device), (rows % size).to(logits.device)
        ends = {*getattr(trainer, "eos_token_ids", ()), tokenizer.eos_token_id}
        rollout = sample_behind(
            policy,
            asked,
            logits[owner],
            chosen[owner, member][:, None],
            eos_id=sorted(int(end) for end in ends),
            pad_id=int(tokenizer.pad_token_id),
            max_new_tokens=args.max_completion_length,
            temperature=args.temperature,
            key=key,
            step=step,
            row_ids=rows,
        )
        columns = (rollout.tokens, rollout.logps)
        ids, logps = ([row[mask].tolist() for row, mask in zip(column, rollout.mask, strict=True)] for column in columns)
        return {"prompt_ids": asked, "completion_ids": ids, "logprobs": logps}


def first_token_rollouts(plan: Spread, given: Any) -> FirstTokenRollouts:
    """The `rollout_func` of a plan. ConfigError where the trainer is given another one."""
    both = f"SageTrainer: rollout_func together with {type(plan).__name__}, which draws completions itself; leave one of them out"
    refuse((given is not None, both))
    return FirstTokenRollouts(plan)


def prompt_ids(tokenizer: Any, prompt: Any, options: dict[str, Any]) -> list[int]:
    """The tokens of a row's prompt, a text or messages, as TRL makes them."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    made = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **options)
    return list(made["input_ids"])


__all__ = ["FirstTokenRollouts", "first_token_rollouts", "prompt_ids"]
