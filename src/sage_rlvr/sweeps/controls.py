"""The arms of a design and their controls: required, present and missing ones.

An arm is a control by what it is and not by its name: two methods are the same where all their parts are equal.
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
from sage_rlvr.core.extras import Extra, PlaceboWeight
from sage_rlvr.core.guides import Placebo, factors, is_flat
from sage_rlvr.core.method import Method
from sage_rlvr.core.state import has_state

Kind = Literal["no_kl", "unguided", "placebo", "matched"]
KINDS: tuple[Kind, ...] = ("no_kl", "unguided", "placebo", "matched")
MATCHED = (0.5, 1.0, 2.0)  # the unguided arm's beta, times these: between them its metrics are read at an arm's raw KL


@dataclass(frozen=True, kw_only=True)
class PlannedArm:
    """One row of a resolved design; config: with seed 0. why: of a control that was added, what for.

    plain: the arm that is this one without its guide; placebo: with its q permuted, the centered one first where the KL is
    in the reward and both are there, or without a guide with its token weights permuted or its stored answers weighed by how often
    they were found; no_kl: without a KL; matched: arms that are `plain` at other
    betas, itself among them, by rising beta, or those that the design names. None or empty where there is none, or this arm has
    no use for one. dropped: what its recipe says of a method that its edits replace, in a sentence.
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
        """Its configuration with that training seed."""
        return replace(self.config, seed=seed)


def controls_of(arm: PlannedArm, arms: Sequence[PlannedArm]) -> Iterator[tuple[Kind, TrainConfig | None, str, str, str]]:
    """(kind, configuration, name, label, why) of every control that this arm has a use for; without a configuration where it
    has none, and why says so. `arms` may grow meanwhile: later controls are named after the earlier ones."""
    method, label = arm.config.method, arm.label
    if not guided(method):
        yield from _part_placebo_of(arm)
    if not anchored(method):
        return
    plain = _without_guide(arm.config)
    if guided(method):
        yield (
            "unguided",
            plain,
            f"{arm.name}_unguided",
            f"{label} unguided",
            f"the same KL as {label} without its guide",
        )
    if _is_shaped(method):
        yield _placebo_of(arm)
        yield from _matched_of(arm, plain, arms)
    if (bare := _with_beta(plain, 0.0)) is not None:
        stem, of = _named(plain, arms, arm)
        yield "no_kl", bare, f"{stem}_no_kl", f"{of} no KL", f"{of} without its KL"


def _placebo_of(arm: PlannedArm) -> tuple[Kind, TrainConfig | None, str, str, str]:
    method, label = arm.config.method, arm.label
    assert method.anchor is not None
    if all(part.depends_on == "nothing" for part in factors(method.anchor.guide)):
        why = f"no placebo of {label}: its q does not depend on the tokens, so its permutation is the same arm"
        return "placebo", None, "", "", why
    why = f"{label} with its q permuted over the tokens{', centered so that its mean is 0' if _paid(method) else ''}"
    return "placebo", _placebo(arm.config), f"{arm.name}_placebo", f"{label} placebo", why


def _part_placebo_of(arm: PlannedArm) -> Iterator[tuple[Kind, TrainConfig | None, str, str, str]]:
    """The control of a token weight, or of stored answers that weigh alike."""
    weight, label = arm.config.method.token_weight, arm.label
    if weight is not None and has_state(weight):
        yield "placebo", None, "", "", f"no placebo of {label}: its token weight has a running state"
    elif (control := _part_placebo(arm.config)) is not None:
        how = "its stored answers weighed by how often they were found" if weight is None else "its token weights permuted"
        within = "" if weight is None else " within each completion"
        yield "placebo", control, f"{arm.name}_placebo", f"{label} placebo", f"{label} with {how}{within}"


def _matched_of(
    arm: PlannedArm, plain: TrainConfig, arms: Sequence[PlannedArm]
) -> Iterator[tuple[Kind, TrainConfig | None, str, str, str]]:
    beta = _beta(plain)
    if beta is None:
        why = f"no matched beta for {arm.label}: its beta is a schedule and cannot be scaled"
        yield "matched", None, "", "", why
        return
    stem, label = _named(plain, arms, arm)
    for b in (beta * scale for scale in MATCHED):
        why = f"{label} at beta {b:g}: for interpolation at the raw KL of {label} with a guide"
        yield "matched", _with_beta(plain, b), f"{stem}_beta{b:g}", f"{label}, beta {b:g}", why


def twin_of(arms: Sequence[PlannedArm], config: TrainConfig | None) -> PlannedArm | None:
    """The arm that trains the same configuration; None where there is none, and of None."""
    return None if config is None else next((arm for arm in arms if same(arm.config, config)), None)


def _named(plain: TrainConfig, arms: Sequence[PlannedArm], arm: PlannedArm) -> tuple[str, str]:
    """Name and label of the arm that is `plain`; where there is none, those of `arm` and that it has lost its guide."""
    found = twin_of(arms, plain)
    return (f"{arm.name}_unguided", f"{arm.label} unguided") if found is None else (found.name, found.label)


def free_name(arms: Sequence[PlannedArm], name: str) -> str:
    """The name, with _2, _3, ... behind it where an arm has it already."""
    taken = {arm.name for arm in arms}
    return next(n for n in (name, *(f"{name}_{i}" for i in range(2, 1000))) if n not in taken)


def linked(arm: PlannedArm, arms: Sequence[PlannedArm]) -> PlannedArm:
    """The arm with the names of its controls, as far as they are there."""
    method = arm.config.method

    def name(*configs: TrainConfig | None) -> str | None:
        return next((found.name for config in configs if (found := twin_of(arms, config))), None)

    own = None if guided(method) else name(_part_placebo(arm.config))
    if not anchored(method):
        return replace(arm, placebo=own)
    plain, shaped = _without_guide(arm.config), _is_shaped(method)
    matched = _at_betas(plain, arms) if shaped else []
    return replace(
        arm,
        guided=guided(method),
        plain=name(plain) if guided(method) else None,
        placebo=name(_placebo(arm.config), _permuted(arm.config)) if shaped else own,
        no_kl=name(_with_beta(plain, 0.0)),
        matched=arm.matched or (tuple(matched) if len(matched) > 1 else ()),
    )


def _at_betas(plain: TrainConfig, arms: Sequence[PlannedArm]) -> list[str]:
    """The arms that are `plain` but for beta, by rising beta; none where its own is a schedule."""
    found = {}
    for arm in arms if _beta(plain) is not None else ():
        beta = _beta(arm.config)
        if beta and (other := _with_beta(plain, beta)) and same(other, arm.config):
            found[beta] = arm.name
    return [name for _, name in sorted(found.items())]


def same(a: TrainConfig, b: TrainConfig) -> bool:
    """Whether two arms train the same thing: equal runs but for the seed, methods of equal parts whatever their names."""
    if _rest(a) != _rest(b):
        return False
    one, two = (replace(c.method, name="") for c in (a, b))
    off = [replace(m, anchor=None) if not anchored(m) and "ref_logps" not in m.needs else m for m in (one, two)]
    return bool(off[0] == off[1])


def _rest(config: TrainConfig) -> str:
    """Everything of a configuration but method and seed."""
    tree = {key: value for key, value in dump(config).items() if key not in ("method", "seed")}
    return json.dumps(tree, sort_keys=True, default=str)


def anchored(method: Method) -> bool:
    """Whether it has a KL term."""
    return method.anchor is not None and not method.anchor.is_off


def guided(method: Method) -> bool:
    """Whether a guide shapes its KL term."""
    return method.anchor is not None and anchored(method) and not is_flat(method.anchor.guide)


def _is_shaped(method: Method) -> bool:
    """Whether its guide is more than a placebo of one."""
    return method.anchor is not None and guided(method) and not isinstance(method.anchor.guide, Placebo)


def _paid(method: Method) -> bool:
    """Whether the KL, and with it log q, is in the reward."""
    return method.anchor is not None and method.anchor.placement == "reward"


def _without_guide(config: TrainConfig) -> TrainConfig:
    tree = dump(config.method)
    return config if tree["name"] != "sage" else _method(config, tree["base"] or {"name": "grpo"})


def _placebo(config: TrainConfig) -> TrainConfig:
    """The control for where q stands: log q permuted, and centered where the KL is in the reward, which pays for its mean."""
    return _permuted(config, centered=True) if _paid(config.method) else _permuted(config)


def _permuted(config: TrainConfig, **options: Any) -> TrainConfig:
    tree = dump(config.method)
    return _method(config, {**tree, "guide": {"name": "placebo", "guide": tree["guide"], **options}})


def _part_placebo(config: TrainConfig) -> TrainConfig | None:
    """Of a method without a guide: its token weights permuted; without any, its stored answers weighed by how often they were
    found. None where there is no such control, and of such a control."""
    method = config.method
    weight, buffer = method.token_weight, method.buffer
    if weight is not None:
        permuted = isinstance(weight, PlaceboWeight)
        return None if permuted or has_state(weight) else _composed(config, extras=_with(method, weight, PlaceboWeight(weight)))
    control = None if buffer is None else buffer.control()
    return None if buffer is None or control is None else _composed(config, extras=_with(method, buffer, control))


def _with(method: Method, old: Extra, new: Extra) -> tuple[Extra, ...]:
    """The extras of a method, with one of them replaced."""
    return tuple(new if extra is old else extra for extra in method.extras)


def _composed(config: TrainConfig, **parts: Any) -> TrainConfig:
    """The same with other parts of its method, all of them by name: no method's own options have a place for them."""
    method = replace(config.method, **parts)
    tree = {field.name: dump(getattr(method, field.name)) for field in fields(method) if field.name not in ("name", "anchor")}
    tree["rollout_plan"] = tree.pop("rollout")  # "rollout" is a section of a recipe
    keys = [field.name for field in fields(Anchor) if field.name != "guide"]
    anchor = {key: dump(getattr(method.anchor, key)) for key in keys} if method.anchor else {"beta": 0.0}
    return _method(config, {"name": "compose", "title": f"{method.name}_placebo", **tree, **anchor})


def _beta(config: TrainConfig) -> float | None:
    """The number that beta is; None for a schedule, and for a method that has none."""
    beta = dump(config.method).get("beta")
    return float(beta) if isinstance(beta, (int, float)) else None


def _with_beta(config: TrainConfig, beta: float) -> TrainConfig | None:
    """The same at another beta; None where its method has none to set."""
    tree = dump(config.method)
    if "beta" not in tree or not math.isfinite(beta):
        return None
    return _method(config, {**tree, "beta": float(f"{beta:.6g}")})


def _method(config: TrainConfig, tree: Mapping[str, Any]) -> TrainConfig:
    with warnings.catch_warnings():  # what there is to warn about was said when the arm was read
        warnings.simplefilter("ignore")
        return replace(config, method=build("method", tree))
