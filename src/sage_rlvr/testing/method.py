"""The laws of a complete method."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.method import Method, credit, objective, q_clamped, shape
from sage_rlvr.core.signals import Batch, Signals
from sage_rlvr.testing.guides import check_guide
from sage_rlvr.testing.parts import check_extra
from sage_rlvr.testing.tried import KEY, changed, check_recipe, holed, rollout_signals, unholed


def check_method(method: Method, seed: int = 0) -> None:
    """Check that a method has a finite loss and gradient on a random batch, a description, and a recipe.

    The loss and its gradient must not depend on uncounted columns, even in the middle of a row. Its guide must pass `check_guide`,
    each extra `check_extra`. A method of exact divergences is run without their term, which needs distributions.
    """
    given = rollout_signals(seed, rows=2 * max(3, method.advantage.least_group))
    if "distributions" not in method.needs:
        loss, gradient = _descent(method, given)
        spread = changed(given, holed)
        other, again = _descent(method, spread)
        same = torch.allclose(loss, other, atol=1e-6) and torch.allclose(gradient, unholed(again), atol=1e-6)
        assert same, "tokens of an environment in the middle of an episode change the loss"
    else:
        _credited(method, given)
    assert method.describe(), "describe() of the method is empty"
    if method.anchor is not None:
        check_guide(method.anchor.guide, seed)
    for extra in method.extras:
        check_extra(extra, seed)
    check_recipe("method", method)


def _credited(method: Method, given: Signals) -> tuple[Tensor | None, Any]:
    """log q and advantages of two prompts, with one and with two right completions."""
    log_q = shape(method, given, 1, 4, KEY)
    rewards = torch.zeros(2, len(given.mask) // 2)
    rewards[0, 0] = rewards[1, 0] = rewards[1, 1] = 1.0
    return log_q, credit(method, rewards, given, log_q, 1, 4, KEY)


def _descent(method: Method, given: Signals) -> tuple[Tensor, Tensor]:
    """Loss of a rollout, and its gradient (B, T) by its log-probs."""
    mask, (log_q, credited) = given.mask, _credited(method, given)
    logps = torch.where(mask, given.old_logps, 0.0).clone().requires_grad_(True)
    batch = Batch(
        logps=logps, old_logps=given.old_logps, advantages=credited.advantages, mask=mask, ref_logps=given.ref_logps,
        log_q=log_q, q_clamped=q_clamped(method, given, 1, 4, KEY, log_q), max_tokens=9,
        entropies=given.entropies, loss_weights=credited.loss_weights, group_size=len(mask) // 2,
        kl_weights=credited.kl_weights,
    )  # fmt: skip
    loss, metrics = objective(method, batch, 1, 4)
    (gradient,) = torch.autograd.grad(loss, logps)
    assert bool(loss.isfinite()) and bool(gradient.isfinite().all()), "loss and gradient must be finite"
    assert not gradient[~mask].any() and all(map(math.isfinite, metrics.values())), "values off the mask change the loss"
    return loss.detach(), gradient
