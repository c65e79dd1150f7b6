"""The objective on verl: the `sage` node of its configuration, checked against the rest. Works without verl.

    sage: {method: grpo}                 the full objective is the method's; verl's fields agree with it (`method_fields`)
    sage: {guide: branch}                verl's own objective, whose KL in the loss gets the guide
    sage: {method: grpo, guide: branch}  the method with the guide, `sage` of it
    sage: {passk: FOLDER}                verl's own objective, unchanged; pass@k of its validations (validation.py)

A configuration that would ignore the guide, or optimize another objective, raises ConfigError with the fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sage_rlvr.config import decode
from sage_rlvr.core.anchor import Anchor, sampled
from sage_rlvr.core.describe import objective_words
from sage_rlvr.core.guides import Guide, factors
from sage_rlvr.core.method import Method
from sage_rlvr.errors import CancellingGuide, ConfigError, refuse
from sage_rlvr.models.folders import vocabulary_of
from sage_rlvr.training.engines import ESTIMATOR, check_sizes, guide_refusals, refuse_all
from sage_rlvr.training.verl.fields import CLAMP, ESTIMATORS, disagreement, is_clamped, method_fields
from sage_rlvr.training.verl.terms import ACTOR, Read, honored, ignored, own_loss, policies
from sage_rlvr.training.watch import check_vocabulary
from sage_rlvr.verdicts.of_temperatures import BASE_TEMPERATURES

MODES = ("sync", "colocate_async", "separate_async")
UNPROVEN = {
    "trainer.v1.trainer_mode": ("separate_async",),
    f"{ACTOR}.strategy": ("megatron", "veomni", "torchtitan", "automodel", "mindspeed"),
    "actor_rollout_ref.rollout.name": ("sglang", "trtllm"),
}
USUAL = {  # the values that were tested: weights or routes that differ between sampling and training are not
    f"{ACTOR}.qat.enable": False,
    f"{ACTOR}.fsdp_config.qat.enable": False,
    f"{ACTOR}.megatron.qat.enable": False,
    f"{ACTOR}.megatron.router_replay.mode": "disabled",
    f"{ACTOR}.veomni.router_replay.mode": "disabled",
    "actor_rollout_ref.rollout.quantization": None,
    "actor_rollout_ref.rollout.enable_rollout_routing_replay": False,
}


@dataclass(frozen=True, kw_only=True)
class SageNode:
    """The `sage` node. method: a registered method and its arguments; guide: of the KL, with or without a method.

    seed: of guides and token weights that draw. objective_may_change: let a resume go on with another objective. task: folder
    of `sage-rlvr export verl`, for the reward manager. passk: folder of pass@k of verl's validations; temperatures: those at which
    the base is sampled for it before the first step.
    """

    method: Method | None = None
    guide: Guide | None = None
    seed: int = 0
    objective_may_change: bool = False
    task: str | None = None
    passk: str | None = None
    temperatures: tuple[float, ...] = BASE_TEMPERATURES

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> SageNode:
        """The node of a plain tree; a guide next to a method becomes its guide. ConfigError names the key and its neighbor."""
        tree = dict(tree)
        if tree.get("method") is not None and tree.get("guide") is not None:
            method = tree["method"]
            tree["method"] = {**({"name": method} if isinstance(method, str) else method), "guide": tree.pop("guide")}
        node = decode(cls, tree, where="sage")
        nothing = (
            "sage: set what verl should optimize: +sage.method=grpo, +sage.guide=branch, or both; or +sage.passk=FOLDER, which "
            "only measures pass@k"
        )
        refuse((node.method is None and node.guide is None and node.passk is None, nothing))
        return node


@dataclass(frozen=True)
class Objective:
    """A checked objective. method: None if verl's own is shaped; anchor: as verl descends it, None without a KL.

    terms: lines on what verl adds to it (`terms.honored`, `own_loss`) and on pi_old and q (`policies`).
    """

    method: Method | None
    anchor: Anchor | None
    seed: int
    may_change: bool
    terms: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The objective as it is optimized, verl's own terms and its clamp of the KL included."""
        if self.is_verls:
            return "verl's own objective, unchanged"
        # A checkpoint keeps these words and a resume compares them: a term that they leave out could change without an error.
        clamp = (CLAMP,) if is_clamped(self.anchor) else ()
        return "\n".join([objective_words(self.method, self.anchor), *self.terms, *clamp])

    @property
    def is_verls(self) -> bool:
        """Return True if nothing of this package is optimized."""
        return self.method is None and self.anchor is None

    @property
    def needs(self) -> frozenset[str]:
        """The signals that it reads."""
        needs = frozenset() if self.anchor is None else self.anchor.needs
        return needs if self.method is None else needs | self.method.needs

    @classmethod
    def of(cls, tree: Mapping[str, Any], read: Read) -> Objective:
        """The objective of the `sage` node `tree` with verl's configuration. ConfigError for all that is refused."""
        node = SageNode.of(tree)
        _check_trainer(read)
        if node.method is None and node.guide is None:
            return cls(None, None, node.seed, node.objective_may_change)
        _check_engine(read)
        if node.method is None:
            assert node.guide is not None
            terms = (own_loss(read), *policies(read))
            objective = cls(None, _anchor_of_verl(node.guide, read), node.seed, node.objective_may_change, terms)
        else:
            _check_fields(node.method, read)
            # As verl descends it: its loss reads sampled tokens only, so an exact KL is estimated, and the words then say so.
            anchor = None if node.method.anchor is None or node.method.anchor.is_off else sampled(node.method.anchor)
            objective = cls(node.method, anchor, node.seed, node.objective_may_change, (*honored(read), *policies(read)))
        _check_seen(objective, read)
        return objective


def fields_of(node: SageNode, read: Read) -> dict[str, Any]:
    """The fields of verl that the node's method decides; none without a method."""
    return {} if node.method is None else method_fields(node.method, int(read("actor_rollout_ref.rollout.response_length")))


def unproven(read: Read) -> list[str]:
    """The fields of verl's configuration with a value under which this package was never run."""
    untested = [key for key, values in UNPROVEN.items() if read(key) in values]
    untested += [key for key, value in USUAL.items() if read(key) not in (value, None)]
    return [f"{key}={read(key)}" for key in untested]


def _check_trainer(read: Read) -> None:
    mode = read("trainer.v1.trainer_mode")
    refuse(
        (
            read("trainer.use_v1") is False,
            "trainer.use_v1 = False: sage supports verl's V1 trainers only (the legacy trainer is removed in verl's "
            "next release); remove trainer.use_v1",
        ),
        (mode not in MODES, f"trainer.v1.trainer_mode = {mode!r}: choose one of {', '.join(MODES)}"),
    )


def _check_engine(read: Read) -> None:
    refuse(
        (
            read("distillation.enabled"),
            "distillation.enabled = True: distillation replaces the loss that the guide acts on; train without "
            "distillation",
        ),
        (
            read("algorithm.use_kl_in_reward"),
            "algorithm.use_kl_in_reward = True: verl divides this KL by the standard deviation of a group's rewards "
            "and adds it to the reward of whole completions; use +sage.method with placement=reward (dr_grpo, rloo), "
            "whose KL is a return-to-go without that division, and remove algorithm.use_kl_in_reward",
        ),
        (dropped := ignored(read), dropped),
    )


def _check_fields(method: Method, read: Read) -> None:
    """Raise ConfigError that names every field of verl that contradicts the method."""
    limit = int(read("actor_rollout_ref.rollout.response_length"))
    wanted = method_fields(method, limit)
    if conflict := disagreement(wanted, {key: read(key) for key in wanted}):
        raise ConfigError(
            f"{method.name} on verl: {conflict}. Remove these: `python -m sage_rlvr.verl` sets them; to train with other "
            "values set them in the method, as in +sage.method.beta=0.01"
        )
    check_sizes(method, "verl", limit, int(read("actor_rollout_ref.rollout.n")))


def _anchor_of_verl(guide: Guide, read: Read) -> Anchor:
    """The KL of verl's own loss with the guide."""
    name = " * ".join(type(part).__name__ for part in factors(guide))
    beta, kind = read(f"{ACTOR}.kl_loss_coef"), read(f"{ACTOR}.kl_loss_type")
    refuse(
        (
            read("algorithm.adv_estimator") == ESTIMATOR,
            f"algorithm.adv_estimator = {ESTIMATOR}: this estimator needs a method; set one (+sage.method=grpo), or "
            "use one of verl's estimators",
        ),
        (
            not read(f"{ACTOR}.use_kl_loss") or not beta,
            f"{ACTOR}.use_kl_loss = {read(f'{ACTOR}.use_kl_loss')}, kl_loss_coef = {beta}: there is no KL in the "
            f"loss, so {name} would have no effect; set {ACTOR}.use_kl_loss=true {ACTOR}.kl_loss_coef=0.05",
        ),
        (
            kind not in ESTIMATORS,
            f"{ACTOR}.kl_loss_type = {kind!r}: this package does not know its expected gradient; choose low_var_kl",
        ),
    )
    try:
        return Anchor(float(beta), guide=guide, estimator=ESTIMATORS[kind], source="sft")  # type: ignore[arg-type]
    except CancellingGuide as error:
        raise CancellingGuide(
            f"{ACTOR}.kl_loss_type = {kind}: {name} cancels under it; set {ACTOR}.kl_loss_type=low_var_kl. In full: {error}"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{ACTOR}.kl_loss_type = {kind}: {error}") from error


def _check_seen(objective: Objective, read: Read) -> None:
    """ConfigError for a signal that this run of verl does not compute, and for a guide that can never fire on its policy."""
    guide = None if objective.anchor is None else objective.anchor.guide
    refuse_all("sage on verl", [] if guide is None else guide_refusals(guide, "verl"))
    if (model := read("actor_rollout_ref.model.path")) is not None:
        check_vocabulary(objective.anchor, vocabulary_of(str(model)))
    bypass = read("algorithm.rollout_correction.bypass_mode")
    refuse(
        (
            bypass and "entropies" in objective.needs,
            "algorithm.rollout_correction.bypass_mode = True: old log-probs come from the sampler, and verl then "
            "computes no entropies, which this objective reads; set it to false, or use a guide that reads log-probs "
            "(token)",
        ),
    )


__all__ = ["MODES", "Objective", "SageNode", "fields_of", "unproven"]
