"""Fields of verl that change its loss or its sampling and that no method here has, as data. Works without verl.

    with a method       NEUTRAL: another value raises ConfigError. HONORED: part of the text of the objective
    with only a guide   the loss is verl's own: the text has ALWAYS, and each field of OWN that differs from verl's default
    with either         `policies`: the policy of pi_old and q, if it is not the one that sampled; `ignored`: fields that verl drops
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CORRECTION, LOSS, SAMPLER = "algorithm.rollout_correction", f"{ACTOR}.policy_loss", "trainer.v1.sampler"
Read = Callable[[str], Any]
"""A dotted key of verl's configuration -> its value, None if it is not there."""

# The value that leaves each field out of the loss. The fields of a method (`fields.method_fields`) contain these.
NEUTRAL: dict[str, Any] = {
    "algorithm.gamma": 1.0,  # these three belong to verl's own advantage estimators
    "algorithm.lam": 1.0,
    "algorithm.use_pf_ppo": False,
    "critic.enable": False,
    "trainer.critic_warmup": 0,  # steps in which the policy is not updated
    f"{ROLLOUT}.ignore_eos": False,
    "actor_rollout_ref.model.mtp.enable_train": False,  # adds a loss of its own
}
# Printed with a method.
HONORED: dict[str, Any] = {
    f"{CORRECTION}.rollout_is": None,
    f"{CORRECTION}.rollout_is_threshold": 2.0,
    f"{CORRECTION}.rollout_is_batch_normalize": False,
    f"{CORRECTION}.rollout_rs": None,
    f"{CORRECTION}.rollout_rs_threshold": None,
    f"{CORRECTION}.bypass_mode": False,
}
ALWAYS = ("algorithm.adv_estimator", f"{LOSS}.loss_mode", f"{ACTOR}.loss_agg_mode")
# verl's defaults, which tests compare with its configuration.
OWN: dict[str, Any] = {
    "algorithm.norm_adv_by_std_in_grpo": True,
    **NEUTRAL,
    "critic.enable": None,
    **HONORED,
    f"{CORRECTION}.loss_type": "ppo_clip",
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.top_p": 1.0,  # a run with a method prints it: `engines.SAMPLING`
    f"{ROLLOUT}.top_k": -1,
    "algorithm.filter_groups.enable": False,
    "algorithm.filter_groups.metric": "reward",
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.clip_ratio_c": 3.0,
    f"{ACTOR}.entropy_coeff": 0,
    f"{ACTOR}.loss_scale_factor": None,
    f"{ACTOR}.tau_pos": 1.0,
    f"{ACTOR}.tau_neg": 1.05,
    f"{LOSS}.clip_cov_ratio": 0.0002,
    f"{LOSS}.clip_cov_lb": 1.0,
    f"{LOSS}.clip_cov_ub": 5.0,
    f"{LOSS}.kl_cov_ratio": 0.0002,
    f"{LOSS}.ppo_kl_coef": 0.1,
    f"{LOSS}.dro_beta": None,
}
INSTEAD = {
    "algorithm.norm_adv_by_std_in_grpo": "+sage.method=dr_grpo is without the standard deviation",
    "algorithm.gamma": "the advantages are the method's",
    "algorithm.lam": "the advantages are the method's",
    "critic.enable": "set algorithm.adv_estimator=gae and +sage.guide without +sage.method",
}
"""Alternatives for users of a field, if there are any."""


KEPT = {  # actor.loss_agg_mode -> what the tokens that rollout_rs leaves are divided by
    "seq-mean-token-mean": "the mean of a completion is over those left, the mean over completions over all",
    "token-mean": "the mean over tokens still divides by the number of all",
    "seq-mean-token-sum-norm": "the divisor is the same",
}


def honored(read: Read) -> Iterator[str]:
    """Yield sentences on verl's terms that a method's objective includes."""
    if level := read(f"{CORRECTION}.rollout_is"):
        bound = read(f"{CORRECTION}.rollout_is_threshold")
        scaled = ", divided by its mean over the batch" if read(f"{CORRECTION}.rollout_is_batch_normalize") else ""
        yield (
            f"verl multiplies the surrogate of each token by the ratio of pi_old to the sampler (rollout_is = {level}, "
            f"rollout_is_threshold = {bound}){scaled}; a KL in the loss is not multiplied"
        )
    if rule := read(f"{CORRECTION}.rollout_rs"):
        bound, mode = read(f"{CORRECTION}.rollout_rs_threshold"), str(read(f"{ACTOR}.loss_agg_mode"))
        yield (
            "verl leaves tokens out of the loss, with its KL and entropy, by the ratio of pi_old to the sampler "
            f"(rollout_rs = {rule}, rollout_rs_threshold = {bound}); advantages and q are of all tokens, and {KEPT[mode]}"
        )


def policies(read: Read) -> Iterator[str]:
    """Yield sentences on what pi_old and q are where completions may come from another policy than the one that is updated."""
    if read(f"{CORRECTION}.bypass_mode"):
        yield (
            "pi_old is the sampler (bypass_mode): its log-probs, each of the version of the weights that drew the token; rho, the "
            "clip and q are relative to it"
        )
    mode = read("trainer.v1.trainer_mode")
    if mode in ("colocate_async", "separate_async"):
        yield from _stale(read, mode)


def _stale(read: Read, mode: str) -> Iterator[str]:
    oldest, overdue = read(f"{SAMPLER}.max_off_policy_threshold"), read(f"{SAMPLER}.max_off_policy_strategy")
    span = f"at most {oldest} versions (max_off_policy_threshold)" if oldest else "any number of versions"
    ends = "older ones are dropped" if overdue == "drop" else "a step waits for those that would be older"
    old = f"; {ends}" if oldest else ""
    yield f"completions are of earlier weights ({mode}): from prompt to update {span}, and one may span several{old}"
    if not read(f"{CORRECTION}.bypass_mode"):
        updates = int(read(f"trainer.v1.{mode}.parameter_sync_step") or 1)
        for_all = f" for each of its {updates} updates" if updates > 1 else ""
        corrected = read(f"{CORRECTION}.rollout_is") or read(f"{CORRECTION}.rollout_rs")
        gap = "" if corrected else "; nothing corrects the difference to the sampler (rollout_is, rollout_rs, bypass_mode)"
        yield f"pi_old is the policy at the start of verl's step{for_all}, and q is of it{gap}"


def ignored(read: Read) -> str:
    """Return what verl's V1 trainers would drop without a word, and the way out; "" if nothing is.

    They set old_log_probs under bypass_mode and leave the loss as it is: `apply_bypass_mode`, which put loss_type, rollout_is and
    rollout_rs into it, belongs to the trainer before them.
    """
    bypass, logged = read(f"{CORRECTION}.bypass_mode"), read(f"{ROLLOUT}.calculate_log_probs")
    given = {name: read(f"{CORRECTION}.{name}") for name in ("rollout_is", "rollout_rs", "loss_type")}
    rules = ", ".join(f"{CORRECTION}.{name} = {given[name]}" for name in ("rollout_is", "rollout_rs") if given[name])
    if bypass and given["loss_type"] not in ("ppo_clip", None):
        return (
            f"{CORRECTION}.loss_type = {given['loss_type']}: with bypass_mode verl's V1 trainers do not read it, and the loss is "
            "clipped; set it to ppo_clip"
        )
    if bypass and rules:
        return (
            f"{rules}: with bypass_mode verl's V1 trainers do not read it, so every token would count with weight 1; remove it, or "
            f"set {CORRECTION}.bypass_mode=false"
        )
    if logged is False and (bypass or rules):
        return (
            f"{ROLLOUT}.calculate_log_probs = False: the sampler then returns no log-probs, which "
            f"{rules or 'bypass_mode'} needs; set it to true"
        )
    if given["rollout_rs"] and read(f"{CORRECTION}.rollout_rs_threshold") is None:
        return f"{CORRECTION}.rollout_rs = {given['rollout_rs']}: set rollout_rs_threshold too, such as '0.5_2.0' for token_k1"
    if read(f"{LOSS}.loss_mode") == "bypass_mode":
        return (
            f"{LOSS}.loss_mode = bypass_mode: its terms are not in the printed objective; set {LOSS}.loss_mode=vanilla and "
            f"{CORRECTION}.bypass_mode=true"
        )
    return ""


def own_loss(read: Read) -> str:
    """verl's own loss in words, for a guide without a method: equal for two configurations only if they optimize the same."""
    shown = {key: read(key) for key in ALWAYS}
    shown |= {key: read(key) for key, usual in OWN.items() if not same(read(key), usual)}
    fields = ", ".join(f"{key.removeprefix('actor_rollout_ref.')} = {value}" for key, value in shown.items())
    return f"added to verl's own loss: {fields}"


def same(one: Any, other: Any) -> bool:
    """Return True if two values of a field are equal; numbers are compared as numbers."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return float(one) == float(other) if numbers else bool(one == other)


__all__ = [
    *("ACTOR", "HONORED", "INSTEAD", "NEUTRAL", "OWN", "ROLLOUT", "Read"),
    *("honored", "ignored", "own_loss", "policies", "same"),
]
