"""A method names one of each part; `shape`, `advantages_of` and `objective` run it, `describe` prints its equation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.core.advantages import Advantage, GroupNormalised, LeaveOneOut
from sage_rlvr.core.anchor import Anchor, anchor_logps, anchor_metrics, effective_gradient
from sage_rlvr.core.guides import band_of, is_flat
from sage_rlvr.core.keys import Key
from sage_rlvr.core.kl import estimate
from sage_rlvr.core.reductions import Reduction, SequenceMean
from sage_rlvr.core.schedules import show
from sage_rlvr.core.signals import Batch, Signals, masked_mean
from sage_rlvr.core.surrogates import Surrogate
from sage_rlvr.errors import ConfigError, DataError

PerToken = Float[Tensor, "B T"]
RewardTransform = Callable[[Float[Tensor, "P G"], Int[Tensor, "P G"]], Float[Tensor, "P G"]]
TokenWeight = Callable[[Signals], PerToken]


@dataclass(frozen=True)
class Method:
    """An RLVR method as a value: one choice for each independent part.

    advantage         rewards (P, G) -> advantages (P, G)
    surrogate         log-ratios and advantages -> per-token loss (B, T)
    anchor            the KL term, None = no KL; a guide other than Flat in it makes the method a SAGE
    reduction         per-token loss -> scalar
    reward_transform  (rewards (P, G), lengths (P, G)) -> rewards (P, G) before the advantage; None = unchanged
    token_weight      signals -> factor (B, T) on the advantage; None = 1
    The rollout plan, a part still to come, is for now the engine's fixed number of completions a prompt.
    """

    name: str
    advantage: Advantage
    surrogate: Surrogate
    anchor: Anchor | None
    reduction: Reduction
    reward_transform: RewardTransform | None = None
    token_weight: TokenWeight | None = None

    def __post_init__(self) -> None:
        in_reward = self.anchor is not None and not self.anchor.is_off and self.anchor.placement == "reward"
        if in_reward and isinstance(self.reduction, SequenceMean):
            raise ConfigError(
                f"{self.name}: placement='reward' with the sequence_mean reduction divides each row's KL by its "
                "length, so the penalty is no gradient of a KL; use a constant reduction: dr_grpo(...) or rloo(...)."
            )

    @property
    def needs(self) -> frozenset[str]:
        """Which optional signals an engine must compute: a subset of ref_logps, entropies, ref_entropies."""
        if self.anchor is None or self.anchor.is_off:
            return frozenset()
        return self.anchor.guide.needs | {"ref_logps"}

    def describe(self) -> str:
        """The objective that is really optimised, values filled in, and the expected gradient of its KL term."""
        return _describe(self)


def shape(method: Method, signals: Signals, step: int, total_steps: int, key: Key) -> PerToken:
    """log q of the generation batch, (B, T) float32; zeros without an anchor. Call it once per rollout."""
    if method.anchor is None or method.anchor.is_off:
        return torch.zeros_like(signals.old_logps)
    return method.anchor.guide(signals, step=step, total_steps=total_steps, key=key)


@torch.no_grad()
def advantages_of(
    method: Method,
    rewards: Float[Tensor, "P G"],
    signals: Signals | None = None,
    log_q: PerToken | None = None,
    step: int = 0,
    total_steps: int = 1,
) -> Tensor:
    """Advantages (B,), or (B, T) where a part looks at tokens; B = P * G, row-major.

    With the anchor in the reward, A_t = A_group - beta * (K_t - mean of K_t over the group's rows still counted at
    t), K_t the sum from t on of log pi_old - log pi_ref - log q; the KL is never divided by the group's std. The mean
    is that of the advantage: with LeaveOneOut it is over the other rows, else over the whole group.
    """
    if method.reward_transform is not None:
        lengths = _need(signals, "reward_transform").mask.sum(dim=1).reshape(rewards.shape)
        rewards = method.reward_transform(rewards, lengths)
    advantages = method.advantage(rewards).reshape(-1)
    if method.token_weight is not None:
        advantages = advantages[:, None] * method.token_weight(_need(signals, "token_weight"))
    if method.anchor is None or method.anchor.placement == "loss":
        return advantages
    beta = method.anchor.beta_at(step, total_steps)
    if beta == 0.0:
        return advantages
    known = _need(signals, "placement='reward'")
    penalty = beta * reward_penalty(known, log_q, rewards.shape[1], isinstance(method.advantage, LeaveOneOut))
    return (advantages if advantages.dim() == 2 else advantages[:, None]) - penalty


def _need(signals: Signals | None, who: str) -> Signals:
    if signals is None:
        raise DataError(f"advantages_of: {who} looks at the tokens; pass the signals of the batch.")
    return signals


def reward_penalty(signals: Signals, log_q: PerToken | None, group_size: int, leave_one_out: bool = False) -> PerToken:
    """Return-to-go of k1 to the shaped anchor minus its mean over the group at each column, (B, T), 0 off the mask.

    Assumes right-padded rows (column t is token t) in groups of `group_size`; the mean is over the n rows counted at t.
    With the row itself in it, the expected force shrinks by (n - 1) / n, as the group mean of Dr. GRPO does its own;
    `leave_one_out` takes the mean of the others, which is n / (n - 1) times as much. Where only one row counts, both
    are 0: there is nothing to compare it with.
    """
    mask = signals.mask
    shaped = anchor_logps(signals.require("ref_logps", "placement='reward'"), log_q)
    k1 = torch.where(mask, signals.old_logps - shaped, 0.0)
    to_go = torch.where(mask, k1.flip(1).cumsum(1).flip(1), 0.0)
    grouped, counted = (part.reshape(-1, group_size, part.shape[1]) for part in (to_go, mask))
    rows = counted.sum(1, keepdim=True)
    centred = grouped - grouped.sum(1, keepdim=True) / rows.clamp(min=1)
    if leave_one_out:
        centred = centred * (rows / (rows - 1).clamp(min=1))
    return torch.where(counted, centred, 0.0).reshape(to_go.shape)


def objective(
    method: Method, batch: Batch, step: int, total_steps: int, budget: float | None = None
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """The scalar to minimise and its metrics (Python floats, family/name).

    `budget` is `method.reduction.budget(...)` of the whole update, so that micro-batches add up; None = this batch
    alone. With beta = 0 or without an anchor `ref_logps` and `log_q` are never read.
    """
    mask = batch.mask.bool()
    logps, old_logps = _on_mask(batch.logps, mask), _on_mask(batch.old_logps.detach(), mask)
    advantages = batch.advantages.detach().float()
    advantages = _on_mask(advantages, mask) if advantages.dim() == 2 else advantages[:, None]
    per_token, metrics = method.surrogate(logps - old_logps, advantages, mask)
    beta = 0.0 if method.anchor is None else method.anchor.beta_at(step, total_steps)
    if method.anchor is not None and beta != 0.0:
        penalty, more = _anchor_term(method.anchor, batch, logps, old_logps, mask)
        per_token = per_token if penalty is None else per_token + beta * penalty
        metrics = metrics | more
    budget = method.reduction.budget(mask, batch.max_tokens) if budget is None else budget
    loss = method.reduction(per_token, mask, budget)
    if batch.entropies is not None:
        metrics = metrics | {"policy/entropy": masked_mean(batch.entropies, mask)}
    return loss, metrics | {"loss": float(loss.detach())}


def _on_mask(values: PerToken, mask: Bool[Tensor, "B T"]) -> PerToken:
    """float32 values with 0 off the mask, so that nothing there reaches value or gradient."""
    return torch.where(mask, values.float(), 0.0)


def _anchor_term(
    anchor: Anchor, batch: Batch, logps: PerToken, old_logps: PerToken, mask: Bool[Tensor, "B T"]
) -> tuple[PerToken | None, dict[str, float]]:
    """The per-token penalty (None when it is already in the advantages) and the anchor's metrics."""
    if batch.ref_logps is None:
        raise DataError("objective: the anchor has beta > 0 but Batch.ref_logps is None; compute it (method.needs).")
    ref_logps = _on_mask(batch.ref_logps.detach(), mask)
    log_q = None if batch.log_q is None else _on_mask(batch.log_q.detach(), mask)
    metrics = anchor_metrics(anchor, logps, ref_logps, log_q, mask)
    if anchor.placement == "reward":
        return None, metrics
    return estimate(anchor.estimator, logps, anchor_logps(ref_logps, log_q), old_logps), metrics


def _describe(method: Method) -> str:
    anchor, inner = method.anchor, f"[ {method.surrogate.equation} ]"
    lines = [f"{method.name}: minimise"]
    advantage = f"  rho = pi / pi_old,  A = {method.advantage.equation}"
    if anchor is None or anchor.is_off:
        return "\n".join([*lines, f"  {method.reduction.equation} {inner}", advantage, "  no KL term"])
    beta, reference = show(anchor.beta), "pi_ref" if is_flat(anchor.guide) else "q pi_ref"
    if anchor.placement == "loss":
        inner = f"[ {method.surrogate.equation}  +  {beta} * {anchor.estimator}(pi, {reference}) ]"
    else:
        mean = "mean_others" if isinstance(method.advantage, LeaveOneOut) else "mean_group"
        advantage += f" - {beta} * (K_t - {mean} K_t),  K_t = sum_(s>=t) [ log pi_old - log({reference}) ]"
    lines += [f"  {method.reduction.equation} {inner}", advantage]
    if not is_flat(anchor.guide):
        lines.append(f"  q_t = {anchor.guide.equation}{_band_text(method)}")
    lines.append(f"  pi_ref = {'the model training started from' if anchor.source == 'base' else anchor.source}")
    lines.append(f"  expected gradient of the KL term, on-policy: {effective_gradient(anchor)}")
    return "\n".join(lines + [f"  note: {note}" for note in _notes(method)])


def _band_text(method: Method) -> str:
    assert method.anchor is not None
    low, high = band_of(method.anchor.guide)
    return f", clamped to [{low:g}, {high:g}]"


def _notes(method: Method) -> list[str]:
    """What a reader of the equation would otherwise learn late."""
    anchor = method.anchor
    assert anchor is not None
    notes = []
    if isinstance(method.advantage, GroupNormalised):
        notes.append(
            "the reward is divided by the group's std, the KL is not: against the raw reward beta acts as beta * std"
        )
    if anchor.placement == "reward":
        notes.append("later updates of a rollout clip the KL together with the reward: exact where no ratio is clipped")
    if anchor.estimator == "k3" and not is_flat(anchor.guide):
        notes.append("at pi = pi_ref the shaped k3 is q - log q - 1, not 0: read anchor/kl_raw beside anchor/kl")
    if not is_flat(anchor.guide) and anchor.guide.depends_on == "nothing":
        notes.append("noise only" if anchor.placement == "loss" else "E[log q] < 0: a drift towards shorter answers")
    return notes
