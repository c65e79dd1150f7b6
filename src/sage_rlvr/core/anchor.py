"""The leash: which reference, shaped by which guide, measured by which estimator, put where, how strongly."""

from __future__ import annotations

import inspect
import math
import warnings
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.guides import Flat, Guide, is_clamped, is_flat
from sage_rlvr.core.kl import ESTIMATORS, Estimator, k3
from sage_rlvr.core.schedules import Constant, Schedule, as_schedule, is_zero
from sage_rlvr.core.signals import masked_mean
from sage_rlvr.errors import CancellingGuide, ConfigError

Placement = Literal["loss", "reward"]
PerToken = Float[Tensor, "B T"]

UNBIASED_IN_LOSS = ("k2", "straight_through", "k3_is")


@dataclass(frozen=True)
class Anchor:
    """beta * KL-like force towards q * pi_ref.

    `beta` is a number or a schedule, >= 0. `guide` gives q. `estimator` is k1, k2, k3, k3_is or straight_through.
    `placement` puts it in the loss (differentiated) or in the reward (detached, return-to-go). `source` is "base",
    the model that training started from, or the path of another checkpoint. Combinations without meaning are refused
    here: ConfigError, or CancellingGuide when the guide would vanish from the expected gradient. One that is only
    noise gives a UserWarning.
    """

    beta: float | Schedule
    guide: Guide = field(default_factory=Flat)
    estimator: Estimator = "k3"
    placement: Placement = "loss"
    source: str = "base"

    def __post_init__(self) -> None:
        self._check_values()
        _check_placement(self.estimator, self.placement)
        if not is_flat(self.guide):
            self._check_guide()

    def _check_values(self) -> None:
        schedule = as_schedule(self.beta)
        if isinstance(schedule, Constant) and schedule.value < 0:
            raise ConfigError(f"Anchor: beta = {self.beta!r} would push away from the reference; give beta >= 0.")
        if self.estimator not in ESTIMATORS:
            raise ConfigError(f"Anchor: estimator = {self.estimator!r}; choose one of {', '.join(ESTIMATORS)}.")
        if self.placement not in ("loss", "reward"):
            raise ConfigError(f"Anchor: placement = {self.placement!r}; choose 'loss' or 'reward'.")
        if not isinstance(self.guide, Guide):
            raise ConfigError(f"Anchor: guide = {self.guide!r} is not a guide; give one, for example Branch().")

    def _check_guide(self) -> None:
        name = type(self.guide).__name__
        if is_zero(self.beta):
            raise ConfigError(
                f"a guide needs beta > 0: {name} shapes the reference of a KL term of weight beta = 0 and would "
                "never act; give the anchor a weight, for example beta=0.05."
            )
        if self.placement == "loss":
            _check_cancellation(name, self.guide.depends_on, self.estimator)

    def beta_at(self, step: int, total_steps: int) -> float:
        """beta at an optimiser step; ConfigError when a schedule goes below 0 there."""
        value = as_schedule(self.beta)(step, total_steps)
        if not 0 <= value < math.inf:
            raise ConfigError(f"Anchor: beta is {value} at step {step} of {total_steps}; keep its schedule at >= 0.")
        return value

    @property
    def is_off(self) -> bool:
        """True when beta is 0 at every step: the reference is then never needed."""
        return is_zero(self.beta)


def _check_placement(estimator: str, placement: str) -> None:
    if placement == "loss" and estimator == "k1":
        raise ConfigError(
            "Anchor: k1 in the loss has expected gradient E[grad log pi] = 0, so it is noise and no leash; use "
            "estimator='k3' (forward KL), 'k3_is' (reverse KL), or placement='reward'."
        )
    if placement == "reward" and estimator != "k1":
        reason = {
            "k3": "its force is grad KL(pi||ref) - grad KL(ref||pi), second order near the reference",
            "k2": "it is the gradient of no KL and second order near the reference",
        }.get(estimator, "the reward is detached, so the gradient that defines this estimator is thrown away")
        raise ConfigError(
            f"Anchor: {estimator} in the reward is refused: {reason}; use estimator='k1' there, whose gradient is that "
            "of KL(pi||ref), or placement='loss'."
        )


def _check_cancellation(name: str, depends_on: str, estimator: str) -> None:
    unbiased = estimator in UNBIASED_IN_LOSS
    if unbiased and depends_on == "state":
        raise CancellingGuide(
            f"{name} cancels: its q is the same for every next token of a state, and {estimator} in the loss has the "
            "expected gradient E[(log pi - log ref - log q) grad log pi], in which a constant of the state multiplies "
            "E[grad log pi] = 0. Use estimator='k3', where q scales the pull, or placement='reward' with "
            "estimator='k1', where log q is a bonus for reaching the state."
        )
    if depends_on == "nothing":
        _warn(
            f"{name} in the loss is noise only: its q does not look at the sequence, so the expected gradient is "
            "that of the anchor without it (times E[q] under k3); use it as a control."
        )
    if unbiased and depends_on == "batch":
        _warn(
            f"{name} under {estimator} in the loss: what q takes from the batch, and not from the sampled token, "
            "cancels in the expected gradient; use estimator='k3' or placement='reward' if it should act."
        )


def _warn(message: str) -> None:
    """A UserWarning at the line outside this package that asked for the anchor, be it by Anchor, sage or a recipe."""
    level, frame = 1, inspect.currentframe()
    while frame and str(frame.f_globals.get("__name__")).partition(".")[0] in ("sage_rlvr", "dataclasses"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def anchor_logps(ref_logps: PerToken, log_q: PerToken | None) -> PerToken:
    """log(q pi_ref) = ref_logps + log_q, (B, T) float32, detached; None means q = 1."""
    reference = ref_logps.detach().float()
    return reference if log_q is None else reference + log_q.detach().float()


def effective_gradient(anchor: Anchor) -> str:
    """In words, the expected gradient of the KL term at on-policy samples (kl.py has the derivations)."""
    depends_on = "flat" if is_flat(anchor.guide) else anchor.guide.depends_on
    if anchor.placement == "reward":
        bonus = "" if depends_on == "flat" else "; log q is a bonus for reaching the tokens and states that q favours"
        return "grad [KL(pi || pi_ref) - E_pi sum_t log q_t] over whole sequences, by return-to-go" + bonus
    if anchor.estimator in UNBIASED_IN_LOSS:
        tail = {"flat": "", "token": ", shaped: q re-weights the tokens of a state"}
        target = "pi_ref" if depends_on in ("flat", "nothing", "batch") else "q pi_ref"
        return f"grad KL(pi || {target}) at the visited states (reverse KL)" + tail.get(depends_on, "; q is noise here")
    return {
        "flat": "grad KL(pi_ref || pi) at the visited states: the *forward* KL, on the logits pi - pi_ref",
        "nothing": "E[q] * grad KL(pi_ref || pi) at the visited states (forward KL); q adds noise only",
        "state": "q(s) * grad KL(pi_ref || pi) at the visited states: a re-weighted *forward* KL; q scales the pull "
        "to the reference at the states it marks and does not move the anchor",
        "token": "on the logits Zq pi - q pi_ref with Zq = sum_v q_v pi_ref,v at the visited states: the forward KL "
        "to the shaped anchor",
        "batch": "the forward KL to q pi_ref at the visited states, q fixed by the batch",
    }[depends_on]


@torch.no_grad()
def anchor_metrics(
    anchor: Anchor, logps: PerToken, ref_logps: PerToken, log_q: PerToken | None, mask: Bool[Tensor, "B T"]
) -> dict[str, float]:
    """Means over counted tokens: k3 to the shaped and raw reference (nats), q, shares of q != 1 and at the band."""
    shift = torch.zeros_like(ref_logps, dtype=torch.float32) if log_q is None else log_q.float()
    return {
        "anchor/kl": masked_mean(k3(logps, anchor_logps(ref_logps, log_q)), mask),
        "anchor/kl_raw": masked_mean(k3(logps, ref_logps), mask),
        "anchor/q_mean": masked_mean(shift.exp(), mask),
        "anchor/q_active_share": masked_mean(shift != 0, mask),
        "anchor/q_clamped_share": masked_mean(is_clamped(anchor.guide, shift), mask),
    }
