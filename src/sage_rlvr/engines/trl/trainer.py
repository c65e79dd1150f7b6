"""SageTrainer: TRL's GRPOTrainer, whose loss reads log(q pi_ref) where it would read log pi_ref.

    ref_per_token_logps <- ref_per_token_logps + log q(pi_old)         SAGE, arXiv 2605.18864, Eqs. 7 and 38

No line of TRL's loss is copied and no forward pass added. q comes from the policy that generated the data: where TRL
scores the completions at generation (the policy will move before it is done with them), from that forward; elsewhere
from the first forward of the loss, before which no optimiser step lies. It is kept in the batch, so that it holds for
the whole update. Noise and schedules are functions of args.seed, state.global_step and the row, so a resume needs no state.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.guides import Guide
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method
from sage_rlvr.engines.trl.mapping import computes_advantage
from sage_rlvr.engines.trl.refusals import admitted_anchor, check_engine
from sage_rlvr.engines.trl.shaping import Inputs, anchor_means, shape_inputs
from sage_rlvr.errors import ConfigError, DataError


class SageTrainer(GRPOTrainer):
    """A GRPOTrainer with one of `guide=` (shapes the KL of `args`) and `method=` (must agree with `args`: grpo_config).

    Everything else is as in GRPOTrainer, evaluation included: its KL stays the distance to the reference itself.
    Logs anchor/kl, anchor/kl_raw, anchor/q_mean, anchor/q_active_share and anchor/q_clamped_share beside TRL's metrics.
    ConfigError (CancellingGuide) at construction for what would leave the run unshaped, RuntimeError while training.
    A guide that looks at the batch sees one rollout: the rows that TRL generated together, on all ranks.
    """

    def __init__(self, *args: Any, guide: Guide | None = None, method: Method | None = None, **kwargs: Any) -> None:
        given = inspect.signature(GRPOTrainer.__init__).bind_partial(self, *args, **kwargs).arguments.get("args")
        if given is None:
            raise ConfigError(
                "SageTrainer: TRL's default arguments have beta = 0.0; give args=GRPOConfig(..., beta=0.05)."
            )
        check_engine(type(self), given)
        self.anchor: Anchor | None = admitted_anchor(guide, method, given)
        self.method = method
        self._records: list[tuple[Tensor, Tensor | None]] | None = None  # forwards seen while TRL scores a rollout
        self._waiting: Inputs | None = None  # a micro-batch whose q comes from the forward in progress
        self._numbered = (-1, 0)  # optimiser step, rows numbered in it
        self._losses = 0  # computed from a shaped reference
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> Inputs:
        if not self.model.training or self.anchor is None:
            return self._with_advantages(super()._generate_and_score_completions(inputs))
        self._records = []
        try:
            output = super()._generate_and_score_completions(inputs)
            records = self._records
        finally:
            self._records = None
        self._number_rows(output)
        old = output.get("old_per_token_logps")
        if old is not None:  # by identity, because an adapter's reference is a forward of the same model
            self._shape(output, old, next(entropies for logps, entropies in records if logps is old))
        return self._with_advantages(output)

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        scoring = self._records is not None and self.anchor is not None
        if scoring and "entropies" in self.anchor.needs and model is not self.ref_model:  # which has none to give
            kwargs["compute_entropy"] = True
        found = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if self._records is not None:
            self._records.append((found[0], found[1]))
        elif self.model.training:
            self._logps = found[0].detach()
            if self._waiting is not None:
                self._shape(self._waiting, found[0], found[1])
        return found

    def _shape(self, inputs: Inputs, logps: Tensor, entropies: Tensor | None) -> None:
        self._waiting = None
        shape_inputs(self.anchor, inputs, logps, entropies, self.state, Key(self.args.seed), self.accelerator)

    def _compute_loss(self, model: Any, inputs: Inputs) -> Tensor:
        if not self.model.training or self.anchor is None:
            return super()._compute_loss(model, inputs)
        self._waiting = None if "sage_log_q" in inputs else inputs
        loss = super()._compute_loss(model, inputs)
        if "sage_log_q" not in inputs:
            raise _unshaped("the loss was computed and no forward of the policy was seen")
        for name, value in anchor_means(self.anchor, inputs, self._logps, self.accelerator).items():
            self._metrics["train"][name].append(value)
        self._losses += 1
        return loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """GRPOTrainer's; RuntimeError where its loss did not pass through here, before the weights move."""
        before = self._losses
        loss = super().training_step(*args, **kwargs)
        if self.anchor is not None and self._losses == before:
            raise _unshaped("the training step did not pass GRPOTrainer._compute_loss")
        return loss

    def _number_rows(self, output: Inputs) -> None:
        """sage_row_ids: the number of each completion within the optimiser step, over all ranks and rollouts of it."""
        local = output["completion_ids"].shape[0]
        used = self._numbered[1] if self._numbered[0] == self.state.global_step else 0
        first = used + self.accelerator.process_index * local
        output["sage_row_ids"] = torch.arange(first, first + local, device=output["completion_ids"].device)
        self._numbered = (self.state.global_step, used + self.accelerator.num_processes * local)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        self._rewards = super()._calculate_rewards(*args, **kwargs)  # of all ranks, (rows, reward functions)
        return self._rewards

    def _with_advantages(self, output: Inputs) -> Inputs:
        """The advantages of `method` in place of TRL's r - mean, where TRL has none of its kind."""
        if self.method is None or not computes_advantage(self.method) or not self.model.training:
            return output
        if self._rewards.isnan().all(dim=1).any():
            raise DataError(f"{self.method.name}: a completion has no reward (None); its advantage needs one of each.")
        rewards = (self._rewards * self.reward_weights.to(self._rewards)).nansum(dim=1)
        advantages = self.method.advantage(rewards.reshape(-1, self.num_generations)).reshape(-1)
        local = output["advantages"].shape[0]
        first = self.accelerator.process_index * local
        output["advantages"] = advantages[first : first + local].to(output["advantages"])
        return output


def _unshaped(why: str) -> RuntimeError:
    return RuntimeError(
        f"SageTrainer: {why}, so the reference is not shaped; stopped before an optimiser step. A patched or replaced "
        "trainer does that: use TRL's own GRPOTrainer as the base, without libraries that rewrite it."
    )
