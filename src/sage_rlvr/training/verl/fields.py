"""A method as fields of verl's configuration, and what verl cannot express. Works without verl, so that a dry run can print it.

    sequence_mean  1/B sum_i 1/|y_i| sum_t   loss_agg_mode seq-mean-token-mean
    token_mean     1/sum_i |y_i| sum_i sum_t loss_agg_mode token-mean
    FixedBudget    1/(B L) sum_i sum_t       loss_agg_mode seq-mean-token-sum-norm, loss_scale_factor L
    Clip           low, high, dual           clip_ratio_low, clip_ratio_high, clip_ratio_c (verl has no "none": FAR for it)
    k3, k2                                   kl_loss_type low_var_kl, k2; verl's k3 holds each token's value at 10
    exact forward KL                         low_var_kl, its estimate from the sampled token
    straight_through                         kl_loss_type kl+
    EntropyBonus   a number                  entropy_coeff
    dynamic sampling                         algorithm.filter_groups by the reward

Advantages, reward transforms, token weights and the KL in the reward are the core's, by an estimator registered as `sage`: its
penalty is a return-to-go and is never divided by the group's standard deviation, as `algorithm.use_kl_in_reward` would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sage_rlvr.core.advantages import GroupNormalized, LeaveOneOut
from sage_rlvr.core.anchor import Anchor, sampled
from sage_rlvr.core.extras import unsupported
from sage_rlvr.core.guides import Guide, factors
from sage_rlvr.core.loss_terms import EntropyBonus
from sage_rlvr.core.method import Method, needs_of
from sage_rlvr.core.reductions import FixedBudget, SequenceMean, TokenMean
from sage_rlvr.core.rollout_plans import DynamicSampling
from sage_rlvr.core.schedules import Constant, Schedule, as_schedule
from sage_rlvr.core.signals import NEEDS
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.training.verl.terms import ACTOR, INSTEAD, NEUTRAL, same

ESTIMATOR = "sage"  # the name of our advantage estimator among verl's
FAR = 1e9  # clip_ratio_c where there is no dual clip: a ratio is at most exp(20) < 1e9
SEEN = frozenset({"logps", "ref_logps", "entropies", "problems", "advantages"})  # signals that the driver of verl can read
AGGREGATED = {SequenceMean: "seq-mean-token-mean", TokenMean: "token-mean", FixedBudget: "seq-mean-token-sum-norm"}
KL_TYPES = {"k3": "low_var_kl", "k2": "k2", "straight_through": "kl+"}  # estimator -> actor.kl_loss_type
ESTIMATORS = {  # actor.kl_loss_type -> the estimator whose gradient it has; "+" is verl's mark for the gradient of k2
    **{"low_var_kl": "k3", "k3": "k3", "mse": "k2", "k2": "k2", "low_var_kl+": "k2", "k3+": "k2"},
    **{"kl": "k1", "k1": "k1", "kl+": "straight_through", "k1+": "straight_through"},
}
SPELLED = {"grpo": GroupNormalized, "rloo": LeaveOneOut}  # verl's estimators that a method's advantage may be called by
CLAMP = "verl clamps the log-ratio of k3 to +-20 nats and the KL of a token to 10, where the gradient is 0"


def method_fields(method: Method, max_tokens: int) -> dict[str, Any]:
    """Dotted keys of verl's configuration under which it optimizes `method`; max_tokens: of a completion.

    ConfigError for a part that verl cannot express.
    """
    for lacking in not_on_verl(method):
        raise ConfigError(f"{method.name} on verl: {lacking}; use the loop engine.")
    reduction = next(name for kind, name in AGGREGATED.items() if isinstance(method.reduction, kind))
    tokens = method.reduction.tokens or max_tokens if isinstance(method.reduction, FixedBudget) else None
    clip: Any = method.surrogate
    found = {
        **NEUTRAL,
        "algorithm.adv_estimator": ESTIMATOR,
        "algorithm.norm_adv_by_std_in_grpo": isinstance(method.advantage, GroupNormalized),
        "algorithm.use_kl_in_reward": False,
        f"{ACTOR}.loss_agg_mode": reduction,
        f"{ACTOR}.loss_scale_factor": tokens,
        f"{ACTOR}.policy_loss.loss_mode": "vanilla",
        f"{ACTOR}.clip_ratio": clip.low,
        f"{ACTOR}.clip_ratio_low": clip.low,
        f"{ACTOR}.clip_ratio_high": clip.high,
        f"{ACTOR}.clip_ratio_c": FAR if clip.dual is None else clip.dual,
        f"{ACTOR}.entropy_coeff": 0 if method.loss_term is None else float(method.loss_term.coefficient),  # type: ignore[attr-defined]
        "algorithm.filter_groups.enable": method.rollout is not None,
    }
    return found | ({} if method.rollout is None else {"algorithm.filter_groups.metric": "reward"}) | _anchor_fields(method)


def _anchor_fields(method: Method) -> dict[str, Any]:
    anchor = method.anchor
    if anchor is None or anchor.is_off:
        return {f"{ACTOR}.use_kl_loss": False}
    in_loss = anchor.placement == "loss"
    # with the KL in the reward a coefficient of 0 makes verl load and score the reference, and adds nothing to its loss
    beta = anchor.beta_at(0, 1) if in_loss else 0.0
    kind = KL_TYPES[sampled(anchor).estimator if in_loss else "k3"]
    return {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": beta, f"{ACTOR}.kl_loss_type": kind}


def is_clamped(anchor: Anchor | None) -> bool:
    """Whether `CLAMP` is to be known of an anchor: k3 in verl's loss."""
    if anchor is None or anchor.is_off or anchor.placement != "loss":
        return False
    return sampled(anchor).estimator == "k3"


def not_on_verl(method: Method) -> Iterator[str]:
    """Each part of a method that verl cannot express, in words; nothing if it runs the method."""
    if method.buffer is not None:
        yield f"the replay buffer {type(method.buffer).__name__}, whose answers come from earlier rollouts"
    if method.reward_source is not None:
        yield f"the reward source {type(method.reward_source).__name__}, which needs a forward pass that verl's workers do not run"
    if method.rollout is not None and not isinstance(method.rollout, DynamicSampling):
        yield f"the rollout plan {type(method.rollout).__name__} (verl only filters groups with equal rewards)"
    if not isinstance(method.surrogate, Clip):
        yield f"surrogate {type(method.surrogate).__name__}"
    if not isinstance(method.reduction, tuple(AGGREGATED)):
        yield f"reduction {method.reduction.equation}"
    term = method.loss_term
    if term is not None and (not isinstance(term, EntropyBonus) or isinstance(term.coefficient, Schedule)):
        yield f"the loss term {type(term).__name__}" + (", scheduled" if isinstance(term, EntropyBonus) else "")
    for kind in ("token_weight", "advantage", "reward_transform"):
        if unseen := needs_of(getattr(method, kind)) - SEEN:
            yield f"the {kind.replace('_', ' ')} {type(getattr(method, kind)).__name__}, which reads {', '.join(sorted(unseen))}"
    yield from unsupported(method, "verl", frozenset(NEEDS) - SEEN)
    if method.anchor is None or method.anchor.is_off:
        if "ref_logps" in method.needs:
            yield "a part that reads a reference without a KL term (beta = 0: verl loads no reference)"
    else:
        yield from _anchor_not_on_verl(method.anchor)


def _anchor_not_on_verl(anchor: Anchor) -> Iterator[str]:
    if anchor.placement == "loss" and sampled(anchor).estimator not in KL_TYPES:
        yield f"estimator {anchor.estimator}" + (f" of {anchor.divergence}" if anchor.divergence else "")
    if anchor.placement == "loss" and not isinstance(as_schedule(anchor.beta), Constant):
        yield "a beta that changes during training, in the loss (verl's is fixed; placement='reward' supports schedules)"
    if anchor.source not in ("sft", "base") or anchor.refresh_every is not None:
        moves = " with refresh_every" if anchor.refresh_every else ""
        yield f"the source {anchor.source}{moves} (verl's reference is actor_rollout_ref.model)"
    yield from guide_not_on_verl(anchor.guide)


def guide_not_on_verl(guide: Guide) -> Iterator[str]:
    """What a guide reads that verl does not compute where q is made, in words."""
    for part in factors(guide):
        if unseen := part.needs - SEEN:
            yield f"the guide {type(part).__name__}, which reads {', '.join(sorted(unseen))}"


def different(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The keys under which `given` says something else than `wanted`; numbers are compared as numbers."""
    return [key for key, value in wanted.items() if key in given and not same(value, given[key])]


def disagreement(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """What a method needs of the fields under which `given` says something else, and what to set instead; "" if they agree."""
    said = []
    for key in different(wanted, given):
        means = "has no such term" if key in NEUTRAL else "needs"
        instead = f" ({INSTEAD[key]})" if key in INSTEAD else ""
        said.append(f"{key} = {given[key]}, but the method {means}: {wanted[key]}{instead}")
    return "; ".join(said)


def is_spelled(name: Any, method: Method) -> bool:
    """Whether `name`, an algorithm.adv_estimator of a command, is verl's word for the method's advantage."""
    return name == ESTIMATOR or isinstance(method.advantage, SPELLED.get(name, ()))


__all__ = [
    "ACTOR", "CLAMP", "ESTIMATOR", "ESTIMATORS", "disagreement", "guide_not_on_verl", "is_clamped", "is_spelled",
    "method_fields", "not_on_verl",
]  # fmt: skip
