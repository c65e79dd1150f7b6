"""The advantages of a method on TRL: the core's `advantages_of` on the rewards and the tokens of all ranks.

    A = advantages_of(method, r, signals, log q)        (rows,), or (rows, T) where a part looks at tokens

Groups may lie across ranks, so what the core reads is gathered first. TRL's loss takes both shapes and subtracts nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.advantages import GroupCentered, GroupNormalized
from sage_rlvr.core.method import Method, advantages_of
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.signals import Signals
from sage_rlvr.errors import DataError
from sage_rlvr.training.trl.batch import Drawn, Inputs, counted, over_ranks, pad_and_gather

# What TRL's scorer takes beside text, by the names of all releases.
MULTIMODAL = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes",
    "token_type_ids", "mm_token_type_ids", "image_position_ids", "pixel_position_ids",
)  # fmt: skip


def kl_in_reward(method: Method | None) -> bool:
    """True where the KL is part of the advantages, and the loss adds none of its own."""
    anchor = None if method is None else method.anchor
    return anchor is not None and not anchor.is_off and anchor.placement == "reward"


def reads_logps(method: Method | None) -> bool:
    """True where the advantages read log-probs of the tokens, so that the policy scores them at generation."""
    return method is not None and (method.token_weight is not None or kl_in_reward(method))


def computes_advantages(method: Method) -> bool:
    """True where `SageTrainer` computes the advantages, because TRL's formula is another or knows no kept groups."""
    known = isinstance(method.advantage, GroupCentered) or method.advantage == GroupNormalized()
    return not known or method.reward_transform is not None or method.rollout is not None or reads_logps(method)


def total_rewards(by_function: Tensor, weights: Tensor) -> Tensor:
    """(rows, reward functions) -> (rows,): the weighted sum, NaN where no function gave a reward (None)."""
    totals = (by_function * weights.to(by_function)).nansum(dim=1)
    return totals.masked_fill(by_function.isnan().all(dim=1), torch.nan)


def scale_of(method: Method, max_tokens: int, kept_share: float = 1.0) -> float:
    """The factor on advantages and beta that makes TRL's divisor the method's.

    TRL divides by all rows, dropped ones too, and grants a completion `max_tokens`; a token mean counts what is there.
    """
    tokens = method.reduction.tokens if isinstance(method.reduction, FixedBudget) else None
    granted = 1.0 if tokens is None else max_tokens / tokens
    return granted if method.reduction.divisor == "batch" else granted / kept_share


def with_advantages(method: Method, output: Inputs, drawn: Drawn, trainer: Any) -> None:
    """Put the advantages of `method` into `output`, this rank's rows of `drawn`, where TRL's are not the same.

    sage_scale beside them is the factor that they hold and that beta is still to get.
    """
    scale = scale_of(method, trainer.max_completion_length, drawn.kept_share)
    if not computes_advantages(method) and scale == 1.0 and not drawn.rewards.isnan().any():
        return
    signals, log_q = None, None
    if method.reward_transform is not None or reads_logps(method):
        signals, log_q = signals_of(output, drawn.rewards.flatten(), trainer.accelerator)
    state = trainer.state
    found = group_advantages(method, drawn.rewards, signals, log_q, state.global_step, state.max_steps)
    local, width = output["completion_ids"].shape
    first = trainer.accelerator.process_index * local
    rows = found[first : first + local]
    output["advantages"] = (scale * (rows if rows.dim() == 1 else rows[:, :width])).to(output["advantages"])
    output["sage_scale"] = torch.tensor(scale)


@torch.no_grad()
def score(trainer: Any, output: Inputs, *, entropies: bool) -> None:
    """sage_logps and sage_entropies by a forward of the policy that generated `output`: TRL makes one at generation only
    where its weights will move before the loss."""
    ids, mask = (torch.cat([output[f"prompt_{part}"], output[f"completion_{part}"]], dim=1) for part in ("ids", "mask"))
    found = trainer._get_per_token_logps_and_entropies(
        trainer.model,
        ids,
        mask,
        output["completion_ids"].shape[1],
        batch_size=trainer.args.per_device_train_batch_size,
        compute_entropy=entropies,
        **{name: output[name] for name in MULTIMODAL if name in output},
    )
    output["sage_logps"] = found[0]
    if entropies:
        output["sage_entropies"] = found[1]


def signals_of(output: Inputs, rewards: Tensor, accelerator: Any) -> tuple[Signals, Tensor | None]:
    """The signals of a rollout, all ranks' rows, and its log q. `rewards`: (rows of all ranks,).

    `output` holds sage_logps of pi_old where a part reads them (zeros stand for them elsewhere: lengths read the mask).
    """
    mask, first = counted(output), accelerator.process_index * len(output["completion_ids"])
    local = Signals(
        old_logps=output.get("sage_logps", torch.zeros_like(mask, dtype=torch.float32)),
        ref_logps=output.get("sage_ref_logps"),
        mask=mask,
        row_ids=output["sage_row_ids"],
        entropies=output.get("sage_entropies"),
        rewards=rewards[first : first + len(mask)],
    )
    log_q = output.get("sage_log_q")
    return over_ranks(local, accelerator)[0], None if log_q is None else pad_and_gather(log_q, accelerator)


@torch.no_grad()
def group_advantages(
    method: Method, rewards: Tensor, signals: Signals | None, log_q: Tensor | None, step: int, total_steps: int
) -> Tensor:
    """`advantages_of` for rewards (P, G), NaN where a completion is none of its group's: (P * G,) or (P * G, T), 0 there.

    A group that lacks some is a smaller group, and one of fewer than two gets 0. DataError where a group lacks some and the
    advantages of all groups hang together (BNPO's Beta density reads the share of right completions of each).
    """
    scored = ~rewards.isnan()
    whole, some = scored.all(dim=1), scored.sum(dim=1) >= 2
    if getattr(method.advantage, "couples_prompts", False) and bool((scored.any(dim=1) & ~whole).any()):
        raise DataError(f"{method.name}: a completion has no reward (None); its advantage needs one of each.")
    ids = torch.arange(rewards.numel(), device=rewards.device).reshape(rewards.shape)
    parts = [ids[whole], *(ids[i : i + 1, scored[i]] for i in (some & ~whole).nonzero().flatten().tolist())]
    found: Tensor | None = None
    for part in (part for part in parts if part.numel()):
        rows = part.flatten()
        chosen = None if signals is None else signals.take(rows, signals.row_ids[rows])
        shift = None if log_q is None else log_q[rows]
        values = advantages_of(method, rewards.flatten()[rows].reshape(part.shape), chosen, shift, step, total_steps)
        found = values.new_zeros(rewards.numel(), *values.shape[1:]) if found is None else found
        found[rows] = values
    return rewards.new_zeros(rewards.numel()) if found is None else found
