"""A method as the arguments of TRL's GRPOConfig, and in one sentence each what TRL's loss cannot express."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

from sage_rlvr.core.advantages import GroupNormalised
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.method import Method
from sage_rlvr.core.reductions import FixedBudget, SequenceMean, TokenMean
from sage_rlvr.core.schedules import Constant, as_schedule
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError

# Field of GRPOConfig -> the part of a method that sets it.
PART = {
    "beta": "method.anchor.beta",
    "use_bias_correction_kl": "method.anchor.estimator",
    "sync_ref_model": "method.anchor.refresh_every",
    "ref_model_sync_steps": "method.anchor.refresh_every",
    "ref_model_mixup_alpha": "method.anchor.refresh_every",
    "loss_type": "method.reduction",
    "scale_rewards": "method.advantage",
    "multi_objective_aggregation": "method.advantage",
    "epsilon": "method.surrogate.low",
    "epsilon_high": "method.surrogate.high",
    "delta": "method.surrogate.dual",
    "importance_sampling_level": "method.surrogate",
}

# Terms of TRL's loss that no method here has, by the value that leaves them out.
NEUTRAL: dict[str, Any] = {
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "off_policy_mask_threshold": None,
    "mask_truncated_completions": False,
}


def grpo_config(method: Method) -> dict[str, Any]:
    """The fields of GRPOConfig under which TRL optimises `method`: GRPOConfig(output_dir, **grpo_config(method)).

        sequence_mean  1/B sum_i 1/|y_i| sum_t   loss_type "grpo"       k3     use_bias_correction_kl False
        token_mean     1/sum_i |y_i| sum_i sum_t loss_type "dapo"       k3_is  use_bias_correction_kl True
        FixedBudget()  1/(B L) sum_i sum_t       loss_type "dr_grpo"    GroupNormalised  scale_rewards "group"
        Clip           low, high, dual           epsilon, epsilon_high, delta   others   scale_rewards "none"

    token_mean is TRL's "dapo" and not its "bnpo", which divides each micro-batch by its own tokens; it is the token count of
    the update where a generation batch is one update, and that of the average update otherwise. The exact forward KL
    becomes k3, its one-sample estimate (a UserWarning says so). ConfigError for a part that TRL cannot express.

    What these fields cannot say, `SageTrainer(method=method)` does itself, and a plain GRPOTrainer would leave out:
    advantages of any other form, reward transforms and token weights (the core's `advantages_of`); FixedBudget(n), whose
    advantages and beta are multiplied by L / n; dynamic sampling, where what is divided by are the kept rows of a generation
    batch (and of the average update where it serves several); the KL in the reward, where beta makes TRL compute the
    reference and the loss has no KL of its own; a schedule of beta, of which `beta` is the largest value; the anchor's source.
    """
    _check_rest(method)
    return {
        **_anchor_fields(method),
        "loss_type": _loss_type(method),
        "scale_rewards": "group" if isinstance(method.advantage, GroupNormalised) else "none",
        "multi_objective_aggregation": "sum_then_normalize",
        **_clip_fields(method),
    }


def check_agreement(method: Method, args: Any) -> None:
    """ConfigError naming every field of `args`, a GRPOConfig, that says something else than `method`."""
    _check_limit(method, args)
    wanted = grpo_config(method) | {name: value for name, value in NEUTRAL.items() if hasattr(args, name)}
    different = [name for name, value in wanted.items() if _given(args, name) != value]
    if not different:
        return
    said = "; ".join(
        f"args.{name} = {getattr(args, name, None)!r}, but {PART.get(name, 'the method')} "
        + (f"means {wanted[name]!r}" if name in PART else f"has no such term: {wanted[name]!r}")
        for name in different
    )
    raise ConfigError(
        f"{method.name} on TRL: {said}. Take all of them from GRPOConfig(..., **grpo_config(method)); to train with other "
        f"values make the method with them, {making(method)}."
    )


def _given(args: Any, name: str) -> Any:
    """What `args` says there; TRL reads an epsilon_high of None as epsilon."""
    value = getattr(args, name, None)
    return args.epsilon if name == "epsilon_high" and value is None else value


def making(method: Method, what: str = "") -> str:
    """The call that makes a method of this name with `what`: method=grpo(..., what), and around it sage for its guide."""
    base, shaped, _ = method.name.partition("+")
    call = f"{base}(...{', ' if what else ''}{what})"
    return f"method=sage({call}, ...)" if shaped else f"method={call}"


def estimator_of(args: Any) -> str:
    """The KL estimator that TRL's loss computes under `args`: k3, or k3_is = k3 times the ratio in the graph."""
    return "k3_is" if getattr(args, "use_bias_correction_kl", False) else "k3"


def _check_limit(method: Method, args: Any) -> None:
    """ConfigError where overlong shaping prices another limit than that of sampling."""
    limit = getattr(method.reward_transform, "max_tokens", None)
    if limit is not None and limit != args.max_completion_length:
        raise ConfigError(
            f"{method.name} on TRL: method.reward_transform.max_tokens = {limit} is the limit that its price on length ends "
            f"at, and args.max_completion_length = {args.max_completion_length} is that of sampling; make them equal."
        )


def _refuse(method: Method, part: str) -> NoReturn:
    raise ConfigError(f"{method.name} on TRL: {part}, which TRL's GRPOTrainer has not; the loop engine runs it.")


def _check_rest(method: Method) -> None:
    weight = frozenset(getattr(method.token_weight, "needs", ()))
    if unseen := weight & {"ref_entropies", "distributions"}:
        _refuse(method, f"a token weight that reads {', '.join(sorted(unseen))}")
    if "ref_logps" in weight and (method.anchor is None or method.anchor.is_off):
        _refuse(method, "a token weight that reads a reference without a KL to it (beta = 0: none is loaded)")


def _loss_type(method: Method) -> str:
    reduction = method.reduction
    if isinstance(reduction, FixedBudget):
        return "dr_grpo"
    if isinstance(reduction, SequenceMean | TokenMean):
        return "grpo" if isinstance(reduction, SequenceMean) else "dapo"
    _refuse(method, f"reduction {reduction.equation}")


def _clip_fields(method: Method) -> dict[str, Any]:
    clip = method.surrogate
    if not isinstance(clip, Clip):
        _refuse(method, f"surrogate {type(clip).__name__}")
    if clip.dual is not None and clip.dual <= 1 + clip.high:
        _refuse(method, f"a dual clip at {clip.dual:g}, inside the clip's upper bound {1 + clip.high:g}")
    fields = {"epsilon": clip.low, "epsilon_high": clip.high, "delta": clip.dual}
    return fields | {"importance_sampling_level": "token"}


def _anchor_fields(method: Method) -> dict[str, Any]:
    anchor = method.anchor
    if anchor is None or anchor.is_off:
        return {"beta": 0.0}
    synced: dict[str, Any] = {"sync_ref_model": False}
    if every := anchor.refresh_every:
        synced = {"sync_ref_model": True, "ref_model_sync_steps": every, "ref_model_mixup_alpha": 1.0}
    return {"beta": _largest_beta(anchor), "use_bias_correction_kl": _bias_correction(method, anchor), **synced}


def _largest_beta(anchor: Anchor) -> float:
    """The number itself, or the largest value of a schedule over a thousand steps: above 0, so that TRL loads a reference."""
    schedule = as_schedule(anchor.beta)
    return schedule.value if isinstance(schedule, Constant) else max(anchor.beta_at(step, 1000) for step in range(1000))


def _bias_correction(method: Method, anchor: Anchor) -> bool:
    if anchor.placement == "reward":
        return False
    if anchor.estimator == "exact" and anchor.divergence == "forward":
        warnings.warn(
            f"{method.name} on TRL: the exact forward KL becomes k3, its estimate from the sampled token: the same "
            "expected gradient with more variance, which is stock GRPO; the loop engine sums it exactly.",
            UserWarning,
            stacklevel=2,
        )
    elif anchor.estimator not in ("k3", "k3_is"):
        _refuse(method, f"estimator {anchor.estimator}" + (f" of {anchor.divergence}" if anchor.divergence else ""))
    return anchor.estimator == "k3_is"
