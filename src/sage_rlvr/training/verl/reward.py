"""The verifiers of this package as a reward manager of verl, in a process pool with time limits.

    reward.reward_manager.source=importlib reward.reward_manager.module.path=pkg://sage_rlvr.training.verl.reward
    reward.reward_manager.name=SageRewardManager +sage.task=FOLDER        (FOLDER: of `sage-rlvr export verl`)

A manager and not a reward function, because verl decodes the completion for a function and drops its end token: one that was cut
off would look finished. Here it carries the mark that no verifier accepts, as on the other engines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from sage_rlvr.errors import ConfigError
from sage_rlvr.models.policy import load_tokens
from sage_rlvr.training.verl.judge import Judge, logged


class SageRewardManager(RewardManagerBase):
    """verl's reward manager over an exported task."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **more: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        folder = (config.get("sage") or {}).get("task")
        if folder is None:
            raise ConfigError(
                "SageRewardManager: sage.task is not set; pass the folder that `sage-rlvr export verl` wrote: "
                "+sage.task=FOLDER"
            )
        self.judge = Judge(Path(folder))
        self.tokens = load_tokens(str(config.actor_rollout_ref.model.path))

    async def run_single(self, data: Any) -> dict[str, Any]:
        """verl's signature: the reward of the last row, and what is logged of it."""
        row = data[-1:][0]
        responses = row.batch["responses"]
        length = int(row.batch["attention_mask"][-responses.shape[-1] :].sum())
        text = self.tokens.decode([responses[:length].tolist()], [True])[0]
        extra_info = row.non_tensor_batch["extra_info"]
        verdict = await self.loop.run_in_executor(None, self.judge, extra_info["split"], int(extra_info["index"]), text)
        return {"reward_score": verdict.reward, "reward_extra_info": logged(verdict, extra_info, text)}


__all__ = ["SageRewardManager"]
