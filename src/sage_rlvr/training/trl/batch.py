"""What SageTrainer does to a batch of TRL: log(q pi_ref) for log pi_ref, the mask, the metrics. Plain functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.anchor import Anchor, anchor_logps, anchor_metrics
from sage_rlvr.core.guides import clamped, factors, is_flat
from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import Signals

Inputs = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Drawn:
    """A generation batch: `output`, this rank's rows of it, and of all ranks:

    rewards (P, G), NaN in dropped groups and where a completion has none; row_ids (P * G,), the number of each row among
    the `count` rows that were drawn for it; kept_share, the groups that are not dropped among the P (1 where all are:
    there is nothing to scale then).
    """

    output: Inputs
    rewards: Tensor
    row_ids: Tensor
    count: int
    kept_share: float = 1.0


def counted(inputs: Inputs) -> Tensor:
    """(B, T) bool: the tokens that TRL's loss counts, those of the completion that no tool wrote."""
    mask = inputs["completion_mask"]
    return (mask * inputs["tool_mask"] if "tool_mask" in inputs else mask).bool()


@torch.no_grad()
def shape_inputs(
    anchor: Anchor, inputs: Inputs, logps: Tensor, entropies: Tensor | None, state: Any, key: Key, accelerator: Any
) -> None:
    """ref_per_token_logps <- ref_per_token_logps + log q, float32, with `logps` and `entropies` (B, T) those of pi_old.

    Beside it: sage_log_q, sage_ref_logps (the reference as it was) and sage_q_clamped, all (B, T). `state` is the
    trainer's: step and total steps of the schedules and the noise. Flat leaves the reference as it is, its dtype too.
    """
    reference = inputs["ref_per_token_logps"]
    signals = Signals(logps, reference, counted(inputs), inputs["sage_row_ids"], entropies)
    rows, width = slice(None), reference.shape[1]
    if any(part.depends_on == "batch" for part in factors(anchor.guide)):
        signals, rows = over_ranks(signals, accelerator)
    log_q = anchor.guide(signals, step=state.global_step, total_steps=state.max_steps, key=key)[rows, :width]
    inputs["sage_log_q"], inputs["sage_ref_logps"] = log_q, reference
    inputs["sage_q_clamped"] = clamped(anchor.guide, signals, state.global_step, state.max_steps, key)[rows, :width]
    if not is_flat(anchor.guide):
        inputs["ref_per_token_logps"] = anchor_logps(reference, log_q)


def over_ranks(signals: Signals, accelerator: Any) -> tuple[Signals, slice]:
    """The signals of all ranks, and which rows of them are this rank's."""
    names = ("old_logps", "ref_logps", "mask", "row_ids", "entropies", "rewards")
    found = {name: pad_and_gather(getattr(signals, name), accelerator) for name in names}
    local = signals.mask.shape[0]
    first = accelerator.process_index * local
    return Signals(**found), slice(first, first + local)  # type: ignore[arg-type]


def pad_and_gather(value: Tensor | None, accelerator: Any) -> Tensor | None:
    """The rows of all ranks, (B, T) padded on the right to the widest of them; None stays None."""
    if value is not None and value.dim() == 2:  # accelerate pads a bool into an int64, on the padded rank alone
        value = accelerator.pad_across_processes(value.float(), dim=1)
    return None if value is None else accelerator.gather(value)


@torch.no_grad()
def anchor_means(anchor: Anchor, inputs: Inputs, logps: Tensor, accelerator: Any) -> dict[str, float]:
    """`anchor_metrics` of a shaped batch at the policy's `logps`, over the counted tokens of all ranks; {} without any."""
    mask = counted(inputs)
    reference, log_q = inputs["sage_ref_logps"], inputs["sage_log_q"]
    means = anchor_metrics(anchor, logps, reference, log_q, mask, inputs["sage_q_clamped"])
    sums = torch.tensor([*means.values(), 1.0], device=mask.device) * mask.sum()
    *totals, count = accelerator.reduce(sums, reduction="sum").tolist()
    return {name: total / count for name, total in zip(means, totals, strict=True)} if count else {}
