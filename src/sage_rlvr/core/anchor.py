"""The KL term of a method, `Anchor`: its reference, guide, estimator, placement and weight beta."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.advantages.prompt_weight import PromptWeight
from sage_rlvr.core.divergences import DIVERGENCES, Divergence
from sage_rlvr.core.effect import UNBIASED_IN_LOSS, Effect, effect_of
from sage_rlvr.core.guides import (
    Flat,
    Guide,
    Placebo,
    check_declared,
    factors,
    is_clamped,
    is_flat,
)
from sage_rlvr.core.kl import ESTIMATORS, Estimator, k3
from sage_rlvr.core.reductions import Reduction
from sage_rlvr.core.schedules import Constant, Schedule, as_schedule, is_zero
from sage_rlvr.core.signals import masked_mean
from sage_rlvr.errors import CancellingGuide, ConfigError

Placement = Literal["loss", "reward"]
PerToken = Float[Tensor, "B T"]

SNAPSHOT = re.compile(r"snapshot@(\d+)")


@dataclass(frozen=True)
class Anchor:
    """beta * KL-like force toward q * pi_ref.

    `beta` is a number or a schedule, >= 0. `guide` defines q. `estimator` is k1, k2, k3, k3_is or straight_through, on
    sampled log-probs, or exact: the sum over the vocabulary of `divergence` (reverse, forward, js, or alpha with
    `alpha` in (0, 1), default 0.2). `placement` is "loss" (differentiated) or "reward" (detached, return-to-go).

    `source` selects pi_ref: "base", the model before any fine-tuning (the run's `base_model`, by default its initial
    model); "sft", the initial model of the run; "snapshot@N", the policy of the run after N steps (until then the
    initial model); or the path of a checkpoint. `refresh_every` = N replaces the reference by the current policy after
    every N steps.

    `prompts` multiplies beta by a weight of the prompt, None = 1: the KL of a prompt of weight 0 does not act.

    Invalid combinations raise ConfigError, or CancellingGuide if every factor of the guide would vanish from the
    expected gradient, whether its threshold is a number or a percentile. A UserWarning names a factor that is noise by
    design (one that depends on nothing, a placebo), or that cancels while other factors act.
    """

    beta: float | Schedule
    guide: Guide = field(default_factory=Flat)
    estimator: Estimator = "k3"
    placement: Placement = "loss"
    source: str = "base"
    refresh_every: int | None = None
    divergence: Divergence | None = None
    alpha: float | None = None
    prompts: PromptWeight | None = None

    def __post_init__(self) -> None:
        self._check_values()
        self._check_divergence()
        self._check_source()
        _check_placement(self.estimator, self.placement)
        if not is_flat(self.guide):
            self._check_guide()

    def _check_values(self) -> None:
        schedule = as_schedule(self.beta)
        if isinstance(schedule, Constant) and schedule.value < 0:
            raise ConfigError(f"Anchor: beta = {self.beta!r} would push away from the reference; set beta >= 0.")
        if self.estimator not in ESTIMATORS:
            raise ConfigError(f"Anchor: estimator = {self.estimator!r}; choose one of {', '.join(ESTIMATORS)}.")
        if self.placement not in ("loss", "reward"):
            raise ConfigError(f"Anchor: placement = {self.placement!r}; choose 'loss' or 'reward'.")
        if not isinstance(self.guide, Guide):
            raise ConfigError(
                f"Anchor: guide = {self.guide!r} is not a guide; pass a guide object, for example Branch(). A class of your own "
                "inherits sage_rlvr.Banded, or sage_rlvr.core.Guide"
            )
        if self.prompts is not None and not isinstance(self.prompts, PromptWeight):
            raise ConfigError(f"Anchor: prompts = {self.prompts!r} is no prompt weight; pass one, for example Focal().")
        for part in factors(self.guide):
            check_declared(type(part).__name__, part)

    def _check_divergence(self) -> None:
        if self.estimator == "exact":
            if self.divergence not in DIVERGENCES:
                raise ConfigError(
                    "Anchor: estimator='exact' sums a divergence over the vocabulary, but divergence = "
                    f"{self.divergence!r}; choose one of {', '.join(DIVERGENCES)}."
                )
        elif self.divergence is not None:
            raise ConfigError(
                f"Anchor: divergence = {self.divergence!r} is only used with estimator='exact'; {self.estimator} on "
                "sampled log-probs implies its own divergence: set estimator='exact', or remove divergence."
            )
        if self.alpha is not None and self.divergence != "alpha":
            raise ConfigError(f"Anchor: alpha = {self.alpha!r} is only used with divergence='alpha'; remove alpha.")
        if self.alpha is not None and not 0 < self.alpha < 1:
            raise ConfigError(
                f"Anchor: alpha = {self.alpha!r}; set 0 < alpha < 1 (1 would be divergence='forward', 0 'reverse')."
            )

    def _check_source(self) -> None:
        if not isinstance(self.source, str) or not self.source.strip():
            raise ConfigError(
                f"Anchor: source = {self.source!r}; set base, sft, snapshot@N or the path of a checkpoint."
            )
        if self.source.startswith("snapshot") and (self.snapshot_step or 0) < 1:
            raise ConfigError(
                f"Anchor: source = {self.source!r}; write snapshot@N with N >= 1, the number of steps after which the "
                "run's own policy becomes the reference (the model at step 0 is 'sft')."
            )
        if self.refresh_every is None:
            return
        if isinstance(self.refresh_every, bool) or not isinstance(self.refresh_every, int) or self.refresh_every < 1:
            raise ConfigError(
                f"Anchor: refresh_every = {self.refresh_every!r}; set a whole number of steps >= 1, or None."
            )
        if self.snapshot_step is not None:
            raise ConfigError(
                f"Anchor: source = {self.source!r} fixes the reference at one step, and refresh_every = "
                f"{self.refresh_every} replaces it repeatedly; set only one of them."
            )

    @property
    def snapshot_step(self) -> int | None:
        """N of source "snapshot@N"; None for every other source."""
        match = SNAPSHOT.fullmatch(self.source)
        return int(match[1]) if match else None

    @property
    def effect(self) -> Effect:
        """The divergence that the KL term minimizes in expectation, and the role of each factor of the guide."""
        parts = factors(self.guide)
        nonzero_mean = {part.depends_on for part in parts if not part.pays_nothing}
        alpha = (0.2 if self.alpha is None else self.alpha) if self.divergence == "alpha" else None
        return effect_of(
            self.estimator,
            self.placement,
            {part.depends_on for part in parts},
            self.divergence,
            alpha,
            unpaid={part.depends_on for part in parts} - nonzero_mean,
            ahead=any(part.looks_ahead for part in parts),
        )

    @property
    def needs(self) -> frozenset[str]:
        """Signals that the term needs: the guide's, `ref_logps`, and `distributions` for exact sums."""
        if self.is_off:
            return frozenset()
        weighed = frozenset() if self.prompts is None else self.prompts.needs
        return self.guide.needs | weighed | {"ref_logps"} | ({"distributions"} if self.estimator == "exact" else set())

    def _check_guide(self) -> None:
        name = type(self.guide).__name__
        if is_zero(self.beta):
            raise ConfigError(
                f"a guide needs beta > 0: {name} multiplies the reference of a KL term whose weight is beta = 0, so it "
                "would never act; set a weight, for example beta=0.05."
            )
        if self.estimator == "exact":
            _check_exact(factors(self.guide), self.divergence)
        elif self.placement == "loss":
            _check_cancellation(factors(self.guide), self.estimator)

    def beta_at(self, step: int, total_steps: int) -> float:
        """Return beta at an optimizer step; raise ConfigError if a schedule is negative there."""
        value = as_schedule(self.beta)(step, total_steps)
        if not 0 <= value < math.inf:
            raise ConfigError(f"Anchor: beta is {value} at step {step} of {total_steps}; use a schedule that stays >= 0.")
        return value

    @property
    def is_off(self) -> bool:
        """True when beta is 0 at every step: the reference is then never needed."""
        return is_zero(self.beta)


def _check_placement(estimator: str, placement: str) -> None:
    if placement == "loss" and estimator == "k1":
        raise ConfigError(
            "Anchor: k1 in the loss has expected gradient E[grad log pi] = 0, so it is noise without a pull toward "
            "the reference; use estimator='k3' (forward KL), 'k3_is' (reverse KL), or placement='reward'."
        )
    if placement == "reward" and estimator != "k1":
        reason = {
            "k3": "its force is grad KL(pi||ref) - grad KL(ref||pi), second order near the reference",
            "k3_is": "the reward is detached, which leaves k3, second order near the reference",
            "k2": "its gradient is not that of any KL, and it is second order near the reference",
            "straight_through": "the reward is detached, which leaves exactly k1",
        }.get(
            estimator,
            "the sum is the same for every next token of a state, so no gradient remains at the state itself",
        )
        raise ConfigError(
            f"Anchor: {estimator} in the reward is not supported: {reason}; use estimator='k1' there, whose gradient "
            "is that of KL(pi||ref), or placement='loss'."
        )


def _check_exact(parts: tuple[Guide, ...], divergence: str | None) -> None:
    """Raise for a q that is known only at the sampled token, or that cancels: exact sums run over all tokens."""
    names = ", ".join(dict.fromkeys(type(part).__name__ for part in parts))
    if any(part.depends_on == "token" for part in parts):
        raise ConfigError(
            f"Anchor: {names} with estimator='exact': its q depends on the sampled token, but an exact sum needs q for "
            "every token of the vocabulary; use estimator='k3' (forward) or 'k3_is' (reverse), where it acts."
        )
    if divergence == "reverse":
        raise CancellingGuide(
            f"{names} cancels: its q is a single number per position, and -log q times sum_v grad pi_v = 0; use "
            "divergence='forward', where q scales the pull, or placement='reward' with estimator='k1', where log q is "
            "a bonus for reaching the state."
        )
    if noise := _named(parts, "nothing"):
        left = " plus a second-order change of its mean, because JS is not linear in q" if divergence == "js" else " only"
        _warn(
            f"{noise} in an exact sum is noise{left}: its q does not depend on the sequence, so it only randomizes the "
            "strength of the KL; use it as a control."
        )


def _check_cancellation(parts: tuple[Guide, ...], estimator: str) -> None:
    """Raise for a guide of which no factor acts in the expected gradient; warn about each single factor that does not.

    Noise and placebos are meant to have no effect: they are controls and only cause a warning.
    """
    unbiased = estimator in UNBIASED_IN_LOSS
    noise, state, batch = (_named(parts, depends_on) for depends_on in ("nothing", "state", "batch"))
    controls = [part for part in parts if part.depends_on == "nothing" or isinstance(part, Placebo)]
    lost = tuple(part for part in parts if part.depends_on != "token" and part not in controls)
    if unbiased and lost and not any(part.depends_on == "token" for part in parts):
        names = _named(lost, "state", "batch")
        sees = "the same for every next token of a state"
        if _named(lost, "batch"):
            sees += ", up to the effect of the sampled token on a statistic of the whole batch, O(1/B) for B rows"
        raise CancellingGuide(
            f"{names} cancels, up to a 1/|y| artifact under sequence_mean: its q is {sees}, and {estimator} in the "
            "loss has the expected gradient E[(log pi - log ref - log q) grad log pi], in which a per-state constant "
            "multiplies E[grad log pi] = 0. Use estimator='k3', where q scales the pull, or placement='reward' with "
            "estimator='k1', where log q is a bonus for reaching the state."
        )
    if noise:
        _warn(
            f"{noise} in the loss is noise only: its q does not depend on the sequence, so the expected gradient is "
            "that of the KL term without it (times E[q] under k3); use it as a control."
        )
    if unbiased and state:
        _warn(
            f"{state} under {estimator} in the loss cancels in the expected gradient, up to a 1/|y| artifact under "
            "sequence_mean, and only the other factors of the product act; use estimator='k3' or placement='reward', "
            "or remove this factor."
        )
    if unbiased and batch:
        _warn(
            f"{batch} under {estimator} in the loss: the part of q that depends on the batch rather than on the "
            "sampled token cancels in the expected gradient of large batches, up to a 1/|y| artifact under "
            "sequence_mean; use estimator='k3' or placement='reward' if this part should act."
        )


def _named(parts: tuple[Guide, ...], *depends_on: str) -> str:
    """Return the class names of the factors that depend on one of these, joined; "" if there are none."""
    names = [type(part).__name__ for part in parts if part.depends_on in depends_on]
    return " and ".join(dict.fromkeys(names))


def _warn(message: str) -> None:
    """Warn (UserWarning) at the line outside this package that asked for the anchor, through Anchor, sage or a recipe."""
    level, frame = 1, inspect.currentframe()
    while frame and str(frame.f_globals.get("__name__")).partition(".")[0] in ("sage_rlvr", "dataclasses", "pydantic"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)


def is_sampled(anchor: Anchor | None) -> bool:
    """Return True if TRL and verl estimate the term instead of summing it: they read only sampled tokens (the exact forward KL)."""
    return anchor is not None and not anchor.is_off and (anchor.estimator, anchor.divergence) == ("exact", "forward")


def sampled(anchor: Anchor) -> Anchor:
    """Return the anchor as TRL and verl descend it: k3 instead of the exact forward KL, with the same expected gradient."""
    return replace(anchor, estimator="k3", divergence=None) if is_sampled(anchor) else anchor


def anchor_logps(ref_logps: PerToken, log_q: PerToken | None) -> PerToken:
    """Return log(q pi_ref) = ref_logps + log_q, (B, T) float32, detached; None means q = 1."""
    reference = ref_logps.detach().float()
    return reference if log_q is None else reference + log_q.detach().float()


def effective_gradient(anchor: Anchor, reduction: Reduction) -> str:
    """Return the expected gradient of the KL term at on-policy samples, as text: `anchor.effect.text` and the effect of length.

    The text is exact if the weight of a token does not depend on its row; for a `reduction` that divides each row by
    its length, `length_note` is appended.
    """
    note = length_note(anchor, reduction)
    return anchor.effect.text + (f"; note: {note}" if note else "")


def length_note(anchor: Anchor, reduction: Reduction) -> str:
    """Return how dividing each row by its own length changes the expected gradient, as text; "" for other reductions.

    At a prefix s the force on the next token v is weighted by E[1/|y| | s, v]. With pi = pi_ref and q(s) > 1 the k3
    force 1 - q(s) is the same for all v, so without that weight it is 0 in expectation, and with it the tokens with
    the larger weight gain: those that lead to shorter answers.
    """
    if reduction.divisor != "row":
        return ""
    if anchor.estimator == "exact":
        return "each row's force is weighted by 1/|y|: states of short answers count more, with no other change"
    roles = [role for _, role in anchor.effect.roles if role != "noise"]
    return (
        "each row's force is weighted by 1/|y|: next tokens that lead to short answers count more, so this is exact "
        "only if the length does not depend on the token"
        + ("; where q > 1, this is a pull toward shorter answers" if roles else "")
    )


PER_COMPLETION = frozenset({"guide/log_q_sum"})
"""Metrics of `anchor_metrics` that are means over completions instead of tokens."""


@torch.no_grad()
def anchor_metrics(
    anchor: Anchor,
    logps: PerToken,
    ref_logps: PerToken,
    log_q: PerToken | None,
    mask: Bool[Tensor, "B T"],
    q_clamped: Bool[Tensor, "B T"] | None = None,
) -> dict[str, float]:
    """Return means over counted tokens: k3 to q pi_ref and to pi_ref (nats), q, and the fractions with q != 1 and with q
    at an edge of its band.

    log_q_sum is the mean over completions of the sum of log q, the factor of Eq. (4) on a completion.

    Args:
        anchor: the KL term.
        logps: (B, T), nats, of the policy.
        ref_logps: (B, T), nats, of the unshaped reference.
        log_q: (B, T) from the guide.
        mask: (B, T), true at counted tokens.
        q_clamped: (B, T), true at an edge of the band. Without it the fraction is computed from `log_q`, and is omitted for a
            product of several guides, whose log q does not show which factor is clamped.
    """
    shift = torch.zeros_like(ref_logps, dtype=torch.float32) if log_q is None else log_q.float()
    metrics = {
        "kl/to_anchor": masked_mean(k3(logps, anchor_logps(ref_logps, log_q)), mask),
        "kl/to_reference": masked_mean(k3(logps, ref_logps), mask),
        "guide/q_mean": masked_mean(shift.exp(), mask),
        "guide/active_frac": masked_mean(shift != 0, mask),
        "guide/log_q_sum": masked_mean(torch.where(mask, shift, 0.0).sum(dim=1), mask.any(dim=1)),
    }
    parts = factors(anchor.guide)
    if q_clamped is None and len(parts) < 2:
        q_clamped = is_clamped(parts[0] if parts else Flat(), shift)
    return metrics if q_clamped is None else metrics | {"guide/clamped_frac": masked_mean(q_clamped, mask)}
