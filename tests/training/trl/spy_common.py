"""What the tests of SageTrainer share. Needs TRL."""

# ruff: noqa: E402  (what needs TRL is imported after importorskip)

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

trl = pytest.importorskip("trl")


from sage_rlvr.core import Batch, Key, Method, Signals, objective, shape
from trl_common import forward


def keep_inputs(trainer: Any, kept: list[dict[str, Any]]) -> None:
    """Append the inputs of each loss, as they are after it."""
    plain = trainer._compute_loss

    def keep(model: Any, inputs: dict[str, Any]) -> Tensor:
        loss = plain(model, inputs)
        kept.append(dict(inputs))
        return loss

    trainer._compute_loss = keep


def ours(method: Method, trainer: Any, inputs: dict[str, Any]) -> tuple[float, dict[str, Tensor]]:
    logps, entropies = forward(trainer.model, inputs, trainer.args.temperature)
    mask, old, reference = (inputs[name] for name in ("completion_mask", "old_per_token_logps", "ref_per_token_logps"))
    signals = Signals(logps, reference, mask.bool(), inputs["sage_row_ids"], entropies)
    log_q = shape(method, signals, 0, 10, Key(trainer.args.seed))
    batch = Batch(logps, old, reference, mask.bool(), inputs["advantages"], log_q=log_q, max_tokens=8)
    trainer.model.zero_grad()
    loss, _ = objective(method, batch, 0, 10)
    loss.backward()
    return float(loss), gradients(trainer)


def gradients(trainer: Any) -> dict[str, Tensor]:
    return {name: value.grad.clone() for name, value in trainer.model.named_parameters() if value.grad is not None}
