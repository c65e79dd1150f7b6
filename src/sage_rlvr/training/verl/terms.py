"""Fields of verl that change its loss or its sampling and that no method here has, as data. Works without verl.

    beside a method    NEUTRAL: another value raises ConfigError. HONORED: stands in the objective's words
    with a guide alone verl's loss is verl's own: ALWAYS, and each field of OWN that differs from verl's default, stand in the words
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CORRECTION, LOSS = "algorithm.rollout_correction", f"{ACTOR}.policy_loss"
Read = Callable[[str], Any]
"""A dotted key of verl's configuration -> its value, None if it is not there."""

# The value that leaves each field out of the loss. The fields of a method (`fields.method_fields`) contain these.
NEUTRAL: dict[str, Any] = {
    "algorithm.gamma": 1.0,  # these three belong to verl's own advantage estimators
    "algorithm.lam": 1.0,
    "algorithm.use_pf_ppo": False,
    "critic.enable": False,
    "trainer.critic_warmup": 0,  # steps in which the policy is not updated
    f"{CORRECTION}.bypass_mode": False,  # its own policy loss
    f"{CORRECTION}.rollout_rs": None,  # drops tokens after the advantages were computed
    f"{ROLLOUT}.ignore_eos": False,
    "actor_rollout_ref.model.mtp.enable_train": False,  # adds a loss of its own
}
# Printed beside a method.
HONORED: dict[str, Any] = {
    f"{CORRECTION}.rollout_is": None,
    f"{CORRECTION}.rollout_is_threshold": 2.0,
    f"{CORRECTION}.rollout_is_batch_normalize": False,
}
ALWAYS = ("algorithm.adv_estimator", f"{LOSS}.loss_mode", f"{ACTOR}.loss_agg_mode")
# verl's defaults, which tests compare with its configuration.
OWN: dict[str, Any] = {
    "algorithm.norm_adv_by_std_in_grpo": True,
    **NEUTRAL,
    "critic.enable": None,
    **HONORED,
    f"{CORRECTION}.rollout_rs_threshold": None,
    f"{CORRECTION}.loss_type": "ppo_clip",
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.top_p": 1.0,  # with a method a run says so: `engines.SAMPLING`
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
    f"{CORRECTION}.rollout_rs": "set rollout_is, which a method honors, or +sage.guide without +sage.method",
    f"{CORRECTION}.bypass_mode": "set +sage.guide without +sage.method",
}
"""Alternatives for users of a field, if there are any."""


def honored(read: Read) -> Iterator[str]:
    """Yield sentences on verl's terms that a method's objective includes."""
    if level := read(f"{CORRECTION}.rollout_is"):
        bound = read(f"{CORRECTION}.rollout_is_threshold")
        scaled = ", divided by its mean over the batch" if read(f"{CORRECTION}.rollout_is_batch_normalize") else ""
        yield (
            f"verl multiplies the surrogate of each token by the ratio of pi_old to the sampler (rollout_is = {level}, "
            f"rollout_is_threshold = {bound}){scaled}; a KL in the loss is not multiplied"
        )


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


__all__ = ["ACTOR", "HONORED", "INSTEAD", "NEUTRAL", "OWN", "ROLLOUT", "Read", "honored", "own_loss", "same"]
