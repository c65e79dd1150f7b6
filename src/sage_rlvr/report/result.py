"""What a report is made from: frozen dataclasses that go to JSON and back. Exact probabilities, not scores."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sage_rlvr.errors import DataError
from sage_rlvr.stats.passk import check_probabilities
from sage_rlvr.stats.support import reachable, success_probability, support, support_change

SCHEMA = 1
METRICS = {  # fields of Training -> the names of metrics.jsonl
    "reward": "reward/mean", "kl_raw": "anchor/kl_raw", "kl": "anchor/kl", "entropy": "policy/entropy",
    "q_mean": "anchor/q_mean", "q_active": "anchor/q_active_share", "dead_groups": "reward/dead_group_share",
    "grad_norm": "optimizer/grad_norm",
}  # fmt: skip
KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training curves of one arm, equally long: mean reward, raw KL to the reference (nats a token, before any
    shaping) and policy entropy (nats a token) at each optimiser step.

    Further ones where they were recorded, else empty: kl, the KL to the shaped reference; q_mean and q_active, the mean of q and
    the share of tokens where it is not 1; dead_groups, the share of groups without a difference; grad_norm before clipping.
    """

    step: tuple[float, ...]
    reward: tuple[float, ...]
    kl_raw: tuple[float, ...]
    entropy: tuple[float, ...]
    kl: tuple[float, ...] = ()
    q_mean: tuple[float, ...] = ()
    q_active: tuple[float, ...] = ()
    dead_groups: tuple[float, ...] = ()
    grad_norm: tuple[float, ...] = ()


def training_of(rows: Sequence[Mapping[str, Any]]) -> Training | None:
    """The curves in the rows of a metrics.jsonl; NaN where a step has none of a metric, None without rows."""
    if not rows:
        return None
    columns = {field_: tuple(float(row.get(key, math.nan)) for row in rows) for field_, key in METRICS.items()}
    return Training(step=tuple(float(row["step"]) for row in rows), **columns)


@dataclass(frozen=True, kw_only=True)
class Support:
    """Correct completions with probability above `eps` at the arm's home temperature, over all problems together.

    `supported` of `correct` completions are in the arm's support; `preserved`, `gained`, `lost` compare with the base
    (None for the base itself).
    """

    eps: float
    correct: int
    supported: int
    preserved: int | None = None
    gained: int | None = None
    lost: int | None = None


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One policy, evaluated on the problems of the result, all arms in the same order of problems.

    ps: sampling temperature -> exact probability of being right, one number a problem; `temperature` is the home one,
    at which the table and curves are read. distinct: expected distinct correct completions in `Result.k` samples, one
    number a problem; varieties: temperature -> their mean over the problems, for the temperatures of ps or None. trained =
    False marks a policy without RL of its own (the base).
    """

    name: str
    ps: dict[float, tuple[float, ...]]
    temperature: float = 1.0
    equation: str = ""
    distinct: tuple[float, ...] | None = None
    varieties: dict[float, float] | None = None
    support: Support | None = None
    training: Training | None = None
    seconds: float | None = None
    config: dict[str, Any] = field(default_factory=dict)
    trained: bool = True

    @property
    def p(self) -> np.ndarray:
        """Probabilities (N,) at the home temperature."""
        return np.asarray(self.ps[self.temperature], dtype=float)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One evaluation of several arms on the same problems, one training seed each.

    pairs: (a, b) names whose difference the page puts in words, beside every trained arm against `base`; None takes the
    usual controls (GRPO vs no KL, SAGE-Branch vs GRPO, ... vs its placebo) as far as they are there. siblings: how many
    training seeds of the same arms there are, this one among them (`summarise_seeds` holds them together).
    """

    arms: tuple[Arm, ...]
    problems: int
    base: str = "base"
    title: str = "What these policies can solve"
    world: str = ""
    split: str = "test"
    seed: int | None = None
    siblings: int = 1
    k: int = 256
    ks: tuple[int, ...] = KS
    pairs: tuple[tuple[str, str], ...] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def arm(self, name: str) -> Arm:
        """The arm of that name, or a DataError that lists the names there are."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise DataError(f"no arm named {name!r}; there are {', '.join(repr(a.name) for a in self.arms)}.")


def arm_from_logps(
    name: str,
    logps: Mapping[float, Sequence[ArrayLike]],
    *,
    base: Sequence[ArrayLike] | None = None,
    temperature: float = 1.0,
    k: int = 256,
    eps: float = 1 / 256,
    **rest: Any,
) -> Arm:
    """An Arm from the log-probabilities of all correct completions: logps[T][problem] is one array, base likewise at
    the base's home temperature (None for the base itself). p, distinct completions and support are exact sums."""
    if temperature not in logps:
        raise DataError(f"{name}: no log-probabilities at its home temperature {temperature:g}, only {sorted(logps)}.")
    home = logps[temperature]
    change = None if base is None else support_change(base, home, eps)
    counts = Support(
        eps=eps,
        correct=int(sum(np.size(row) for row in home)),
        supported=int(support(home, eps).sum()),
        preserved=change.preserved if change else None,
        gained=change.gained if change else None,
        lost=change.lost if change else None,
    )
    ps = {float(t): tuple(success_probability(rows).tolist()) for t, rows in logps.items()}
    found = {float(t): reachable(rows, k) for t, rows in logps.items()}
    return Arm(
        name=name,
        ps=ps,
        temperature=float(temperature),
        distinct=tuple(found[temperature].tolist()),
        varieties={t: float(np.mean(each)) for t, each in found.items()},
        support=counts,
        **rest,
    )


def check(result: Result) -> Result:
    """The same result after its refusals: equal numbers of problems, probabilities, known names, equal curves."""
    if not result.arms:
        raise DataError("a result without arms; evaluate the base and one trained policy at least.")
    names = [arm.name for arm in result.arms]
    if len(set(names)) < len(names):
        raise DataError(f"arm names repeat: {names}; give each arm its own name.")
    for name in {result.base, *(n for pair in result.pairs or () for n in pair)}:
        result.arm(name)
    for arm in result.arms:
        _check_arm(arm, result.problems)
    if list(result.ks) != sorted(set(result.ks)) or not {1, result.k} <= set(result.ks):
        raise DataError(f"ks = {result.ks}: must rise, and hold 1 and k = {result.k}.")
    return result


def _check_arm(arm: Arm, problems: int) -> None:
    if arm.temperature not in arm.ps:
        raise DataError(f"{arm.name}: its home temperature {arm.temperature:g} is not among {sorted(arm.ps)}.")
    for t, p in arm.ps.items():
        if len(check_probabilities(p, f"{arm.name} at T = {t:g}: p")) != problems:
            raise DataError(f"{arm.name} at T = {t:g}: {len(p)} problems instead of {problems}; arms must be paired.")
    if arm.varieties is not None and set(arm.varieties) != set(arm.ps):
        raise DataError(
            f"{arm.name}: varieties at the temperatures {sorted(arm.varieties)}, p at {sorted(arm.ps)}; give both at the same."
        )
    if arm.distinct is not None and len(arm.distinct) != problems:
        raise DataError(f"{arm.name}: distinct has {len(arm.distinct)} entries for {problems} problems.")
    curves = [] if arm.training is None else [getattr(arm.training, f.name) for f in fields(Training)]
    if len({len(curve) for curve in curves if curve}) > 1:
        raise DataError(f"{arm.name}: its training curves differ in length; log every metric at every step.")


def to_dict(result: Result) -> dict[str, Any]:
    """JSON-able dict of a result (temperatures become strings, NaN and infinities None)."""
    return {"schema": SCHEMA, **plain(asdict(result))}


def from_dict(data: Mapping[str, Any]) -> Result:
    """Inverse of `to_dict`, and the reader of hand-written results: unknown keys are refused by name."""
    rest = dict(data)
    schema = rest.pop("schema", SCHEMA)
    if schema != SCHEMA:
        raise DataError(f"schema = {schema}: this version reads {SCHEMA}; use the version that wrote it.")
    rest["arms"] = tuple(_arm(arm) for arm in rest.get("arms", ()))
    rest["ks"] = tuple(rest.get("ks", KS))
    rest["notes"] = tuple(rest.get("notes", ()))
    if rest.get("pairs") is not None:
        rest["pairs"] = tuple((str(a), str(b)) for a, b in rest["pairs"])
    return check(_build(Result, rest))


def as_result(result: Result | Mapping[str, Any]) -> Result:
    """A checked Result from a Result or from its dict."""
    return check(result) if isinstance(result, Result) else from_dict(result)


def load_result(path: str | Path) -> Result:
    """Read a result.json."""
    try:
        return from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is not a readable result.json ({error}); run the evaluation again.") from error


def _arm(data: Mapping[str, Any]) -> Arm:
    rest = dict(data)
    rest["ps"] = {float(t): tuple(float(x) for x in p) for t, p in rest.get("ps", {}).items()}
    if rest.get("distinct") is not None:
        rest["distinct"] = tuple(rest["distinct"])
    if rest.get("varieties") is not None:
        rest["varieties"] = {float(t): float(mean) for t, mean in rest["varieties"].items()}
    if rest.get("support") is not None:
        rest["support"] = _build(Support, rest["support"])
    if rest.get("training") is not None:
        curves = {k: tuple(math.nan if x is None else x for x in v) for k, v in rest["training"].items()}
        rest["training"] = _build(Training, curves)
    return _build(Arm, rest)


def _build(kind: Any, values: Mapping[str, Any]) -> Any:
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise DataError(f"{kind.__name__}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}.")
    try:
        return kind(**values)
    except TypeError as error:
        raise DataError(f"{kind.__name__}: {error}.") from error


def plain(value: Any) -> Any:
    """The value as strict JSON can hold it: numpy becomes lists and numbers, NaN and infinities None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)
