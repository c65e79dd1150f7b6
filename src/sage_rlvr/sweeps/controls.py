"""The arms of a design and their controls: required, present and missing ones.

An arm is a control by its settings and not by its name: two methods are the same if all their parts are equal.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from sage_rlvr.config import TrainConfig, build, dump
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.extras import Extra
from sage_rlvr.core.extras.tokens.placebo import PlaceboWeight
from sage_rlvr.core.guides import Placebo, factors, is_flat
from sage_rlvr.core.method import Method
from sage_rlvr.core.state import has_state

Kind = Literal["no_kl", "unguided", "placebo", "matched"]
KINDS: tuple[Kind, ...] = ("no_kl", "unguided", "placebo", "matched")
MATCHED = (0.5, 1.0, 2.0)  # the unguided arm's beta, times these: between them its metrics are interpolated at an arm's raw KL


@dataclass(frozen=True, kw_only=True)
class PlannedArm:
    """One row of a resolved design.

    config: with seed 0
    why: the purpose of an added control
    plain: the arm that is this one without its guide
    placebo: the arm with its q permuted, preferably the centered one if the KL is in the reward and both exist; for an arm without
        a guide the one with its token weights permuted or its stored answers weighted by how often they were found
    no_kl: the arm without a KL
    matched: arms that are `plain` at other betas, including itself, by rising beta, or those that the design names
    dropped: a sentence on settings of its recipe's method that its edits replace

    Names of arms are None or empty if there is none, or this arm needs none.
    """

    name: str
    label: str
    recipe: str
    config: TrainConfig
    why: str = ""
    guided: bool = False
    plain: str | None = None
    placebo: str | None = None
    no_kl: str | None = None
    matched: tuple[str, ...] = ()
    dropped: str = ""

    def at(self, seed: int) -> TrainConfig:
        """The configuration with that training seed."""
        return replace(self.config, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Control:
    """A control that an arm needs. why: its purpose; without a configuration, why there is none."""

    kind: Kind
    why: str
    config: TrainConfig | None = None
    name: str = ""
    label: str = ""


def controls_of(arm: PlannedArm, arms: Sequence[PlannedArm]) -> Iterator[Control]:
    """Every control that this arm needs. `arms` may grow meanwhile: later controls are named after the earlier ones."""
    method, label = arm.config.method, arm.label
    if not guided(method):
        yield from _part_placebo_of(arm)
    if not has_kl(method):
        return
    plain = _without_guide(arm.config)
    if guided(method):
        why = f"the same KL as {label} without its guide"
        yield Control(kind="unguided", why=why, config=plain, name=f"{arm.name}_unguided", label=f"{label} unguided")
    if _is_shaped(method):
        yield _placebo_of(arm)
        yield from _matched_of(arm, plain, arms)
    no_kl = _with_beta(plain, 0.0)
    if no_kl is not None:
        name, label = _plain_names(plain, arms, arm)
        yield Control(kind="no_kl", why=f"{label} without its KL", config=no_kl, name=f"{name}_no_kl", label=f"{label} no KL")


def _placebo_of(arm: PlannedArm) -> Control:
    """The control for the place of a guide's q; none if q does not depend on the tokens."""
    anchor, label = arm.config.method.anchor, arm.label
    assert anchor is not None
    if all(part.depends_on == "nothing" for part in factors(anchor.guide)):
        why = f"no placebo of {label}: its q does not depend on the tokens, so its permutation is the same arm"
        return Control(kind="placebo", why=why)
    why = f"{label} with its q permuted over the tokens"
    if _kl_in_reward(arm.config.method):
        why += ", centered so that its mean is 0"
    return Control(kind="placebo", why=why, config=_placebo(arm.config), name=f"{arm.name}_placebo", label=f"{label} placebo")


def _part_placebo_of(arm: PlannedArm) -> Iterator[Control]:
    """The control of a method with `permuted`, of a token weight, or of stored answers with other weights."""
    weight, label, permuted = arm.config.method.token_weight, arm.label, _permutes(arm.config)
    if weight is not None and has_state(weight) and not permuted:
        yield Control(kind="placebo", why=f"no placebo of {label}: its token weight has a running state")
        return
    config = _part_placebo(arm.config)
    if config is None:
        return
    if permuted:
        why = f"{label} with what it chooses or weighs prompts by permuted over the prompts of a step"
    elif weight is None:
        why = f"{label} with its stored answers weighed by how often they were found"
    else:
        why = f"{label} with its token weights permuted within each completion"
    yield Control(kind="placebo", why=why, config=config, name=f"{arm.name}_placebo", label=f"{label} placebo")


def _matched_of(arm: PlannedArm, plain: TrainConfig, arms: Sequence[PlannedArm]) -> Iterator[Control]:
    """The unguided arm at several betas, between which its metrics are interpolated at the raw KL of this arm."""
    own = _beta(plain)
    if own is None:
        why = f"no matched beta for {arm.label}: its beta is a schedule and cannot be scaled"
        yield Control(kind="matched", why=why)
        return
    name, label = _plain_names(plain, arms, arm)
    for scale in MATCHED:
        beta = own * scale
        why = f"{label} at beta {beta:g}: for interpolation at the raw KL of {label} with a guide"
        config = _with_beta(plain, beta)
        yield Control(kind="matched", why=why, config=config, name=f"{name}_beta{beta:g}", label=f"{label}, beta {beta:g}")


def twin_of(arms: Sequence[PlannedArm], config: TrainConfig | None) -> PlannedArm | None:
    """The arm that trains the same configuration; None if there is none, and for None."""
    if config is None:
        return None
    return next((arm for arm in arms if same(arm.config, config)), None)


def _plain_names(plain: TrainConfig, arms: Sequence[PlannedArm], arm: PlannedArm) -> tuple[str, str]:
    """Name and label of the arm that is `plain`; if there is none, those of `arm` with a note that its guide is removed."""
    twin = twin_of(arms, plain)
    if twin is None:
        return f"{arm.name}_unguided", f"{arm.label} unguided"
    return twin.name, twin.label


def free_name(arms: Sequence[PlannedArm], name: str) -> str:
    """The name, with _2, _3, ... appended if an arm already has it."""
    taken = {arm.name for arm in arms}
    numbered = (f"{name}_{i}" for i in range(2, 1000))
    return next(free for free in (name, *numbered) if free not in taken)


def linked(arm: PlannedArm, arms: Sequence[PlannedArm]) -> PlannedArm:
    """The arm with the names of its controls, as far as they exist."""
    method = arm.config.method
    if not guided(method):
        arm = replace(arm, placebo=_name_in(arms, _part_placebo(arm.config)))
    if not has_kl(method):
        return arm
    plain = _without_guide(arm.config)
    arm = replace(arm, no_kl=_name_in(arms, _with_beta(plain, 0.0)))
    if not guided(method):
        return arm
    arm = replace(arm, guided=True, plain=_name_in(arms, plain))
    if not _is_shaped(method):
        return arm
    betas = _at_betas(plain, arms)
    return replace(
        arm,
        placebo=_name_in(arms, _placebo(arm.config)) or _name_in(arms, _permuted(arm.config)),
        matched=arm.matched or (tuple(betas) if len(betas) > 1 else ()),
    )


def _name_in(arms: Sequence[PlannedArm], config: TrainConfig | None) -> str | None:
    """The name of the arm that trains this configuration."""
    twin = twin_of(arms, config)
    return None if twin is None else twin.name


def _at_betas(plain: TrainConfig, arms: Sequence[PlannedArm]) -> list[str]:
    """The arms that are `plain` except for beta, by rising beta; none if its beta is a schedule."""
    if _beta(plain) is None:
        return []
    names = {}
    for arm in arms:
        beta = _beta(arm.config)
        if beta and (scaled := _with_beta(plain, beta)) and same(scaled, arm.config):
            names[beta] = arm.name
    return [names[beta] for beta in sorted(names)]


def same(a: TrainConfig, b: TrainConfig) -> bool:
    """Whether two arms train the same thing: equal runs except for the seed, and methods with equal parts under any name."""
    return _without_method(a) == _without_method(b) and _parts_of(a.method) == _parts_of(b.method)


def _parts_of(method: Method) -> Method:
    """The method without its name, and without a KL term that is off and that no other part uses."""
    parts = replace(method, name="")
    return parts if has_kl(method) or "ref_logps" in parts.needs else replace(parts, anchor=None)


def _without_method(config: TrainConfig) -> str:
    """Everything in a configuration except method and seed."""
    tree = {key: value for key, value in dump(config).items() if key not in ("method", "seed")}
    return json.dumps(tree, sort_keys=True, default=str)


def has_kl(method: Method) -> bool:
    """Whether it has a KL term."""
    return method.anchor is not None and not method.anchor.is_off


def guided(method: Method) -> bool:
    """Whether a guide shapes its KL term."""
    return method.anchor is not None and has_kl(method) and not is_flat(method.anchor.guide)


def _is_shaped(method: Method) -> bool:
    """Whether its guide is more than a placebo."""
    return method.anchor is not None and guided(method) and not isinstance(method.anchor.guide, Placebo)


def _kl_in_reward(method: Method) -> bool:
    """Whether the KL, and with it log q, is in the reward."""
    return method.anchor is not None and method.anchor.placement == "reward"


def _without_guide(config: TrainConfig) -> TrainConfig:
    tree = dump(config.method)
    return _method(config, tree["base"] or {"name": "grpo"}) if tree["name"] == "sage" else config


def _placebo(config: TrainConfig) -> TrainConfig:
    """The control for the place of q: log q permuted, and centered if the KL is in the reward, which includes its mean."""
    return _permuted(config, centered=True) if _kl_in_reward(config.method) else _permuted(config)


def _permuted(config: TrainConfig, **options: Any) -> TrainConfig:
    tree = dump(config.method)
    return _method(config, {**tree, "guide": {"name": "placebo", "guide": tree["guide"], **options}})


def _part_placebo(config: TrainConfig) -> TrainConfig | None:
    """The control of a method without a guide: the same method permuted if it has `permuted`; else with its token weights permuted;
    else with its stored answers weighted by how often they were found. None if there is no such control, and for such a control."""
    if _permutes(config):
        return _method(config, {**dump(config.method), "permuted": True})
    weight, buffer = config.method.token_weight, config.method.buffer
    if weight is not None:
        if isinstance(weight, PlaceboWeight) or has_state(weight):
            return None
        return _composed(config, extras=_with(config.method, weight, PlaceboWeight(weight)))
    if buffer is None:
        return None
    control = buffer.control()
    return None if control is None else _composed(config, extras=_with(config.method, buffer, control))


def _permutes(config: TrainConfig) -> bool:
    """Whether the method chooses or weights prompts and is not its own control: it has the setting `permuted`, which is false."""
    return dump(config.method).get("permuted") is False


def _with(method: Method, old: Extra, new: Extra) -> tuple[Extra, ...]:
    """The extras of a method, with one of them replaced."""
    return tuple(new if extra is old else extra for extra in method.extras)


def _composed(config: TrainConfig, **parts: Any) -> TrainConfig:
    """The same with other parts of its method, all of them by name: no published method has options for them."""
    method = replace(config.method, **parts)
    names = [field.name for field in fields(method) if field.name not in ("name", "anchor")]
    tree = {name: dump(getattr(method, name)) for name in names}
    tree["rollout_plan"] = tree.pop("rollout")  # "rollout" is a section of a recipe
    tree |= {"name": "compose", "title": f"{method.name}_placebo", "beta": 0.0}
    if method.anchor:
        keys = [field.name for field in fields(Anchor) if field.name not in ("guide", "prompts")]
        tree |= {key: dump(getattr(method.anchor, key)) for key in keys}
    return _method(config, tree)


def _beta(config: TrainConfig) -> float | None:
    """The number beta; None for a schedule, and for a method without one."""
    beta = dump(config.method).get("beta")
    return float(beta) if isinstance(beta, (int, float)) else None


def _with_beta(config: TrainConfig, beta: float) -> TrainConfig | None:
    """The same at another beta; None if its method has none to set."""
    tree = dump(config.method)
    if "beta" not in tree or not math.isfinite(beta):
        return None
    return _method(config, {**tree, "beta": float(f"{beta:.6g}")})


def _method(config: TrainConfig, tree: Mapping[str, Any]) -> TrainConfig:
    with warnings.catch_warnings():  # warnings were printed when the arm was read
        warnings.simplefilter("ignore")
        return replace(config, method=build("method", tree))
