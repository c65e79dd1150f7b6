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

from sage_rlvr.core.guides import Flat, Guide, factors, is_clamped, is_flat
from sage_rlvr.core.guides.base import DependsOn
from sage_rlvr.core.kl import ESTIMATORS, Estimator, k3
from sage_rlvr.core.reductions import Reduction
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
    here: ConfigError, or CancellingGuide when every factor of the guide would vanish from the expected gradient. A
    factor that is only noise, or that cancels beside others that do not, is named by a UserWarning.
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
            _check_cancellation(factors(self.guide), self.estimator)

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


def _check_cancellation(parts: tuple[Guide, ...], estimator: str) -> None:
    """Refuse a guide of which nothing acts in the expected gradient; name each factor that does not."""
    unbiased = estimator in UNBIASED_IN_LOSS
    noise, state, batch = (_named(parts, depends_on) for depends_on in ("nothing", "state", "batch"))
    if unbiased and state and all(part.depends_on in ("nothing", "state") for part in parts):
        raise CancellingGuide(
            f"{state} cancels, up to a 1/|y| artefact under sequence_mean: its q is the same for every next token of a "
            f"state, and {estimator} in the loss has the expected gradient E[(log pi - log ref - log q) grad log pi], "
            "in which a constant of the state multiplies E[grad log pi] = 0. Use estimator='k3', where q scales the "
            "pull, or placement='reward' with estimator='k1', where log q is a bonus for reaching the state."
        )
    if noise:
        _warn(
            f"{noise} in the loss is noise only: its q does not look at the sequence, so the expected gradient is "
            "that of the anchor without it (times E[q] under k3); use it as a control."
        )
    if unbiased and state:
        _warn(
            f"{state} under {estimator} in the loss cancels in the expected gradient, up to a 1/|y| artefact under "
            "sequence_mean, and only the other factors of the product act; use estimator='k3' or placement='reward', "
            "or leave it out."
        )
    if unbiased and batch:
        _warn(
            f"{batch} under {estimator} in the loss: what q takes from the batch, and not from the sampled token, "
            "cancels in the expected gradient, up to a 1/|y| artefact under sequence_mean; use estimator='k3' or "
            "placement='reward' if it should act."
        )


def _named(parts: tuple[Guide, ...], depends_on: str) -> str:
    """The class names of the factors that depend on that, joined; empty when there are none."""
    names = [type(part).__name__ for part in parts if part.depends_on == depends_on]
    return " and ".join(dict.fromkeys(names))


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


def effective_gradient(anchor: Anchor, reduction: Reduction) -> str:
    """In words, the expected gradient of the KL term at on-policy samples (kl.py has the derivations).

    The text is put together from what the factors of the guide depend on. It holds as it stands where a token's weight
    does not depend on its row; for a `reduction` that divides each row by its length, `length_note` follows it.
    """
    note = length_note(anchor, reduction)
    return gradient_at_even_weights(anchor) + (f"; note: {note}" if note else "")


def gradient_at_even_weights(anchor: Anchor) -> str:
    """`effective_gradient` under a constant or batch-wide reduction."""
    found = _dependences(anchor)
    if anchor.placement == "reward":
        bonus = "; log q is a bonus for reaching the tokens and states that q favours" if found else ""
        return "grad [KL(pi || pi_ref) - E_pi sum_t log q_t] over whole sequences, by return-to-go" + bonus
    return _reverse_kl(found) if anchor.estimator in UNBIASED_IN_LOSS else _forward_kl(found)


def length_note(anchor: Anchor, reduction: Reduction) -> str:
    """What a division of each row by its own length adds to the expected gradient; empty for other reductions.

    At a prefix s the force on the next token v is weighted by E[1/|y| | s, v]. With pi = pi_ref and q(s) > 1 the k3
    force 1 - q(s) is the same for all v, so without that weight it is 0 in expectation, and with it the tokens with
    the larger weight gain: those that lead to shorter answers.
    """
    if reduction.divisor != "row":
        return ""
    acting = _dependences(anchor) - (set() if anchor.estimator in UNBIASED_IN_LOSS else {"nothing"})
    return (
        "each row's force is weighted by 1/|y|: next tokens that lead to short answers count more, so this is exact "
        "only where the length does not depend on the token"
        + ("; with q > 1 at its prefixes a pull towards shorter answers" if acting else "")
    )


def _dependences(anchor: Anchor) -> set[DependsOn]:
    return {part.depends_on for part in factors(anchor.guide)}


def _reverse_kl(found: set[DependsOn]) -> str:
    target = "q pi_ref" if "token" in found else "pi_ref"
    text = f"grad KL(pi || {target}) at the visited states (reverse KL)"
    if "token" in found:
        text += ", shaped: q re-weights the tokens of a state"
    lost = {"state": "looks at the state alone", "batch": "comes from the batch", "nothing": "is noise"}
    words = [why for what, why in lost.items() if what in found]
    return text + (f"; the part of q that {' or '.join(words)} cancels" if words else "")


def _forward_kl(found: set[DependsOn]) -> str:
    if not found:
        return "grad KL(pi_ref || pi) at the visited states: the *forward* KL, on the logits pi - pi_ref"
    scale = "".join(f"{factor} * " for what, factor in (("state", "q(s)"), ("nothing", "E[q]")) if what in found)
    if "token" in found:
        text = f"{scale}(Zq pi - q pi_ref) on the logits at the visited states, Zq = sum_v q_v pi_ref,v"
        text += ": the forward KL to the anchor that the token's q shapes"
    elif found == {"batch"}:
        return "the forward KL to q pi_ref at the visited states, q fixed by the batch"
    else:
        text = f"{scale}grad KL(pi_ref || pi) at the visited states: a re-weighted *forward* KL"
    tails = {
        "state": "q(s) scales the pull at the states it marks and does not move the anchor",
        "nothing": "the q that looks at nothing adds noise only",
        "batch": "a factor of q is fixed by the batch",
    }
    return "; ".join([text, *(tail for what, tail in tails.items() if what in found)])


@torch.no_grad()
def anchor_metrics(
    anchor: Anchor,
    logps: PerToken,
    ref_logps: PerToken,
    log_q: PerToken | None,
    mask: Bool[Tensor, "B T"],
    q_clamped: Bool[Tensor, "B T"] | None = None,
) -> dict[str, float]:
    """Means over counted tokens: k3 to the shaped and raw reference (nats), q, shares of q != 1 and at the band.

    The share at the band is read from `q_clamped`; without it from `log_q`, and left out for a product of several
    guides, whose log q does not tell which factor stands at an edge.
    """
    shift = torch.zeros_like(ref_logps, dtype=torch.float32) if log_q is None else log_q.float()
    metrics = {
        "anchor/kl": masked_mean(k3(logps, anchor_logps(ref_logps, log_q)), mask),
        "anchor/kl_raw": masked_mean(k3(logps, ref_logps), mask),
        "anchor/q_mean": masked_mean(shift.exp(), mask),
        "anchor/q_active_share": masked_mean(shift != 0, mask),
    }
    parts = factors(anchor.guide)
    if q_clamped is None and len(parts) < 2:
        q_clamped = is_clamped(parts[0] if parts else Flat(), shift)
    return metrics if q_clamped is None else metrics | {"anchor/q_clamped_share": masked_mean(q_clamped, mask)}
