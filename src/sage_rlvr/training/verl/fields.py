"""A method as fields of verl's configuration, those of the table of engines, and the fields that a command sets differently.

Advantages, extras, token weights and the KL in the reward are the core's, by an estimator registered as `sage`: its
penalty is a return-to-go and is never divided by the group's standard deviation, as `algorithm.use_kl_in_reward` would. Works
without verl, so that a dry run can print the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sage_rlvr.core.advantages import GroupNormalized, LeaveOneOut
from sage_rlvr.core.anchor import Anchor, sampled
from sage_rlvr.core.method import Method
from sage_rlvr.training.engines import ESTIMATOR, check, fields_of
from sage_rlvr.training.verl.terms import INSTEAD, NEUTRAL, same

ESTIMATORS = {  # actor.kl_loss_type -> the estimator whose gradient it has; "+" is verl's mark for the gradient of k2
    **{"low_var_kl": "k3", "k3": "k3", "mse": "k2", "k2": "k2", "low_var_kl+": "k2", "k3+": "k2"},
    **{"kl": "k1", "k1": "k1", "kl+": "straight_through", "k1+": "straight_through"},
}
SPELLED = {"grpo": GroupNormalized, "rloo": LeaveOneOut}  # verl's estimators that a method's advantage may be called by
CLAMP = "verl clamps the log-ratio of k3 to +-20 nats and the KL of a token to 10, where the gradient is 0"


def method_fields(method: Method, max_tokens: int) -> dict[str, Any]:
    """Dotted keys of verl's configuration under which it optimizes `method`; max_tokens: of a completion.

    They are those of the table of engines (`sage_rlvr.training.engines`, docs/reference/engines.md). ConfigError that lists every
    part that verl cannot express.
    """
    check(method, "verl")
    return fields_of(method, "verl", max_tokens)


def is_clamped(anchor: Anchor | None) -> bool:
    """Return True if `CLAMP` must be shown for an anchor: k3 in verl's loss."""
    if anchor is None or anchor.is_off or anchor.placement != "loss":
        return False
    return sampled(anchor).estimator == "k3"


def different(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The keys whose values in `given` and `wanted` differ; numbers are compared as numbers."""
    return [key for key, value in wanted.items() if key in given and not same(value, given[key])]


def disagreement(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return the method's values of the fields in which `given` differs, and what to set instead; "" if they agree."""
    conflicts = []
    for key in different(wanted, given):
        means = "has no such term" if key in NEUTRAL else "needs"
        instead = f" ({INSTEAD[key]})" if key in INSTEAD else ""
        conflicts.append(f"{key} = {given[key]}, but the method {means}: {wanted[key]}{instead}")
    return "; ".join(conflicts)


def is_spelled(name: Any, method: Method) -> bool:
    """Return True if `name`, an algorithm.adv_estimator of a command, is verl's word for the method's advantage."""
    return name == ESTIMATOR or type(method.advantage) is SPELLED.get(name)


__all__ = ["CLAMP", "ESTIMATORS", "SPELLED", "disagreement", "is_clamped", "is_spelled", "method_fields"]
