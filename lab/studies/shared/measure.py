"""`python -m lab shared`: what objectives do to coverage where prompts share parameters (`theory/shared.py`).

Three questions, each answered on worlds that were drawn before any arm was run on them (`WORLDS`, `Law()`): whether a reverse KL
lets go at once where a forward KL slides, which objectives keep most pass@256 at equal pass@1, and whether a policy that cannot
represent ref exp(r / beta) keeps the base's shares among right answers. Nothing is sampled on the measuring side. A world's
numbers are kept in <out>/world-N.json, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.theory.shared import Law, SharedWorld, Theta
from sage_rlvr.core.advantages import GroupNormalized, LeaveOneOut
from sage_rlvr.core.method import Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.errors import DataError
from sage_rlvr.methods import METHODS
from sage_rlvr.runs import writing
from sage_rlvr.safe_io import read_text
from sage_rlvr.verdicts.stats.intervals import Interval, seed_interval
from sage_rlvr.verdicts.stats.passk import exact_pass_at_k

WORLDS = 3
GROUP, GROUPS, STEPS, RATE = 16, 4, 250, 0.05
TEMPERATURES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)
BETAS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97)
LEVELS = (0.13, 0.16, 0.19)
K = 256
HOT = 0.003
FACTOR, REST_STEPS = 1.2, 400
TARGET = 0.05
STAGED, TURNED_AT = 8, (0, 60, 250)
FORWARD: dict[str, Any] = {"estimator": "k3", "placement": "loss"}
SWEEPS = {"reverse": (0.04, 0.1), "forward": (0.01, 0.08)}


@dataclass(frozen=True)
class Arm:
    """An objective with a strength to choose, `make(strength)`; groups: drawn per prompt and step, 0 for an exact gradient."""

    name: str
    make: Callable[[float], Method]
    strengths: tuple[float, ...] = BETAS
    groups: int = 0


def _arcsin(beta: float) -> Method:
    options = {"estimator": "k1", "placement": "reward"}
    return METHODS["compose"](advantage=GroupNormalized(), reduction=FixedBudget(), beta=beta, **options)


ARMS = (
    Arm("p + reverse KL (RLOO)", lambda b: METHODS["rloo"](beta=b)),
    Arm("p + forward KL", lambda b: METHODS["rloo"](beta=b, **FORWARD)),
    Arm("arcsin + reverse KL", _arcsin),
    Arm("arcsin + forward KL (GRPO, k3)", lambda b: METHODS["grpo"](beta=b)),
    Arm("log p + reverse KL (MaxRL)", lambda b: METHODS["maxrl"](beta=b)),
    Arm("log p + forward KL", lambda b: METHODS["maxrl"](beta=b, **FORWARD)),
    Arm("pass@8 + reverse KL (PKPO)", lambda b: METHODS["pkpo"](k=8, beta=b)),
    Arm("distinct@8 + reverse KL", lambda b: METHODS["distinct"](k=8, beta=b), groups=GROUPS),
    Arm("p + right entropy + reverse KL", lambda b: METHODS["right_entropy"](beta=b), groups=GROUPS),
    Arm("MARA", lambda b: METHODS["mara"](beta=b), groups=GROUPS),
    Arm("alpha-DPG, no KL", lambda a: METHODS["alpha_dpg"](alpha=a), ALPHAS, GROUPS),
    Arm("log p + reverse KL, drawn groups", lambda b: METHODS["maxrl"](beta=b), groups=GROUPS),
    Arm("p in two stages (DARS) + forward KL", lambda b: METHODS["dars"](beta=b, **FORWARD)),
    Arm("p in two stages, unbiased + forward KL", lambda b: METHODS["dars"](baseline="stages", beta=b, **FORWARD)),
)
FIRST = {
    "arcsin + forward KL (GRPO, k3)": 0.959,
    "log p + reverse KL (MaxRL)": 0.970,
    "p + reverse KL (RLOO)": 0.861,
    "MARA": 0.795,
}
"""Best pass@256 at test pass@1 of .19 and more in the first version of this world, four worlds, other draws."""


# ---- one world


@dataclass(frozen=True)
class Point:
    """A trained policy at a temperature: means over test prompts; `distinct` right answers expected in 256."""

    arm: str
    strength: float
    temperature: float
    pass1: float
    pass256: float
    distinct: float


@dataclass(frozen=True)
class Rest:
    """Where descent with one beta ends: from the base, or from the policy of a tiny beta. residual: the gradient's length."""

    kl: str
    beta: float
    start: str
    pass1: float
    pass256: float
    divergence: float
    residual: float


@dataclass(frozen=True)
class Found:
    """One world: the base's pass@1 and pass@256 on its test prompts, all points, resting points; for the reverse KL at `TARGET`
    the distance of the policy's shares among right answers from the base's, total variation, training prompts; and degrees
    between expected gradients of DARS and others, by the steps of DARS that led to the policy (`_turned`)."""

    seed: int
    base: tuple[float, float]
    points: tuple[Point, ...]
    rests: tuple[Rest, ...]
    kept: dict[str, float]
    turned: dict[str, tuple[float, float]]


def measure(seed: int, say: Callable[[str], None] = lambda text: None) -> Found:
    """Everything of one world; some minutes on one core."""
    world = SharedWorld.draw(seed)
    points: list[Point] = []
    for arm in ARMS:
        say(f"world {seed}: {arm.name}")
        for strength in arm.strengths:
            theta = world.fit(arm.make(strength), steps=STEPS, rate=RATE, group_size=GROUP, groups=arm.groups, seed=seed)
            points += [_point(world, theta, arm.name, strength, t) for t in TEMPERATURES]
    say(f"world {seed}: resting points")
    rests = [rest for kl in SWEEPS for rest in _rests(world, kl)]
    return Found(seed, _scores(world, world.start), tuple(points), tuple(rests), _kept(world), _turned(world))


def _scores(world: SharedWorld, theta: Theta, temperature: float = 1.0) -> tuple[float, float]:
    solved = world.solved(theta, world.prompts[1], temperature).numpy()
    return float(solved.mean()), float(np.mean(exact_pass_at_k(solved, K)))


def _point(world: SharedWorld, theta: Theta, arm: str, strength: float, temperature: float) -> Point:
    test = world.prompts[1]
    probs = world.log_probs(theta, test, temperature).exp()
    distinct = torch.where(world.right[test], 1 - (1 - probs) ** K, 0.0).sum(1).mean()
    return Point(arm, strength, temperature, *(_rounded(x) for x in (*_scores(world, theta, temperature), float(distinct))))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def betas(kl: str) -> list[float]:
    """The betas at which resting points are sought, each `FACTOR` times the one before."""
    low, high = SWEEPS[kl]
    count = 1 + round(np.log(high / low) / np.log(FACTOR))
    return [_rounded(low * FACTOR**i) for i in range(count)]


def _rests(world: SharedWorld, kl: str) -> list[Rest]:
    """Resting points of linear utility at each beta, from the base and from the policy of a tiny beta."""
    options = FORWARD if kl == "forward" else {}
    hot = world.fit(METHODS["rloo"](beta=HOT, **options), steps=REST_STEPS, rate=RATE)
    found = []
    for beta in betas(kl):
        method = METHODS["rloo"](beta=beta, **options)
        for start, first in (("base", world.start), ("concentrated", hot)):
            theta = world.fit(method, first, steps=REST_STEPS, rate=RATE)
            residual = float(world.expected_gradient(method, theta).norm())
            numbers = (*_scores(world, theta), world.kl(theta, world.prompts[0]), residual)
            found.append(Rest(kl, beta, start, *(_rounded(x) for x in numbers)))
    return found


def _kept(world: SharedWorld) -> dict[str, float]:
    """Mean total variation between pi(. | right) and base(. | right), reverse KL of `TARGET`; and of the policy with a logit for
    every answer its largest distance from ref exp(r / beta)."""
    train, method = world.prompts[0], METHODS["rloo"](beta=TARGET)
    base, right = world.base[train].exp(), world.right[train].double()
    shares = base * right / (base * right).sum(1, keepdim=True)
    found = {}
    for name, start, rate in (("shared", world.start, RATE), ("table", world.table, 4 * RATE)):
        probs = world.log_probs(world.fit(method, start, steps=REST_STEPS, rate=rate), train).exp()
        own = probs * right / (probs * right).sum(1, keepdim=True)
        tilted = torch.softmax(world.base[train] + right / TARGET, 1)
        found[name] = _rounded(float((own - shares).abs().sum(1).mean() / 2))
        found[f"{name} from ref exp(r/beta)"] = _rounded(float((probs - tilted).abs().sum(1).mean() / 2))
    return found


def _turned(world: SharedWorld) -> dict[str, tuple[float, float]]:
    """Degrees between expected gradients at the policy after some steps of DARS, groups of `STAGED`, no KL: two stages under one
    baseline, as published, against each by itself, which is the bias; and one stage against those, which the allocation does."""
    found = {}
    for steps in TURNED_AT:
        theta = world.fit(METHODS["dars"](), steps=steps, rate=RATE, group_size=STAGED) if steps else world.start
        both = [replace(METHODS["dars"](baseline=one), advantage=LeaveOneOut()) for one in ("union", "stages")]
        union, stages, single = (world.expected_gradient(m, theta, group_size=STAGED) for m in (*both, METHODS["rloo"](beta=0)))
        found[str(steps)] = (_rounded(_degrees(union, stages)), _rounded(_degrees(single, stages)))
    return found


def _degrees(one: Theta, other: Theta) -> float:
    """Between two gradients; by the sine where they are close, as a cosine near 1 has no digits left."""
    a, b = (part.double().reshape(-1) / part.double().norm() for part in (one, other))
    return float(torch.rad2deg(2 * torch.atan2((a - b).norm(), (a + b).norm())))


# ---- several worlds


def find(worlds: int, out: Path, say: Callable[[str], None] = lambda text: None) -> list[Found]:
    """Worlds 0 to `worlds` - 1, one thread; those that `out` holds are read."""
    torch.set_num_threads(1)
    found = []
    for seed in range(worlds):
        path = out / f"world-{seed}.json"
        if not path.is_file():
            made = {"settings": settings(), **asdict(measure(seed, say))}
            with writing("world", out, 1 << 20):
                out.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(made, separators=(",", ":")) + "\n", encoding="utf-8")
        found.append(read(path))
    return found


def settings() -> dict[str, Any]:
    """What a stored world was measured with."""
    arms = {arm.name: [list(arm.strengths), arm.groups] for arm in ARMS}
    chosen = {"group": GROUP, "steps": [STEPS, REST_STEPS], "rate": RATE, "hot": HOT, "factor": FACTOR, "target": TARGET}
    chosen |= {"turned": [STAGED, *TURNED_AT]}
    sweeps = {name: list(ends) for name, ends in SWEEPS.items()}
    return {"law": asdict(Law()), "arms": arms, "temperatures": list(TEMPERATURES), "sweeps": sweeps, **chosen}


def read(path: Path) -> Found:
    """A stored world. DataError where it was measured with other settings than those of today."""
    kept = json.loads(read_text(path))
    if kept.pop("settings", None) != settings():
        raise DataError(f"{path}: measured with other settings than those of this version; name another --out, or remove it.")
    points, rests = (tuple(kind(**row) for row in kept[name]) for kind, name in ((Point, "points"), (Rest, "rests")))
    turned = {steps: (pair[0], pair[1]) for steps, pair in kept["turned"].items()}
    return Found(kept["seed"], tuple(kept["base"]), points, rests, kept["kept"], turned)


def best(world: Found, arm: str, level: float) -> Point | None:
    """The point of an arm with most pass@256 among those with pass@1 of at least `level`; None where none gets there."""
    there = [point for point in world.points if point.arm == arm and point.pass1 >= level]
    return max(there, key=lambda point: point.pass256, default=None)


def gap(world: Found, kl: str) -> tuple[float, float]:
    """(largest difference in pass@256 between two resting points of one beta, that beta)."""
    pairs = {}
    for rest in world.rests:
        if rest.kl == kl:
            pairs.setdefault(rest.beta, []).append(rest.pass256)
    return max((max(pair) - min(pair), beta) for beta, pair in pairs.items())


@dataclass(frozen=True)
class Claim:
    """left > right, world by world: means of both sides, in how many worlds it is so, the difference with its interval over
    worlds."""

    name: str
    says: str
    left: float
    right: float
    more: int
    difference: Interval

    @property
    def verdict(self) -> str:
        """holds, fails, or open where the interval holds 0."""
        if self.difference.low > 0:
            return "holds"
        return "fails" if self.difference.high < 0 else "open"


def claim(name: str, says: str, pairs: Iterable[tuple[float, float]]) -> Claim:
    """A claim from (left, right) of each world."""
    left, right = (np.array(side) for side in zip(*pairs, strict=True))
    gap = seed_interval(left - right, over="worlds")
    return Claim(name, says, float(left.mean()), float(right.mean()), int((left > right).sum()), gap)


def claims(found: Sequence[Found]) -> list[Claim]:
    """Every claim with both sides; one that fewer than two worlds can answer is left out."""
    made = [
        claim(
            "a: the KL lets go at once",
            "largest gap in pass@256 between two resting points of one beta, linear utility: reverse KL > forward KL",
            [(gap(world, "reverse")[0], gap(world, "forward")[0]) for world in found],
        )
    ]
    for left, right in RIVALS:
        for level in LEVELS:
            both = [(best(world, left, level), best(world, right, level)) for world in found]
            pairs = [(a.pass256, b.pass256) for a, b in both if a is not None and b is not None]
            if len(pairs) > 1:
                says = f"best pass@256 at pass@1 >= {level:g}: {left} > {right}"
                says += "" if len(pairs) == len(found) else f" ({len(pairs)} worlds where both get there)"
                made.append(claim("b: coverage at equal pass@1", says, pairs))
    kept = [world.kept for world in found]
    says = "distance of pi(. | right) from the base's at reverse KL of .05: shared parameters > a logit for every answer"
    return [*made, claim("c: the base's conditional", says, [(one["shared"], one["table"]) for one in kept])]


_P, _FORWARD, _ARCSIN, _GRPO, _LOG, _LOG_FORWARD, _PASS8, _DISTINCT, _ENTROPY, _MARA, _DPG, _DRAWN, _DARS, _STAGES = (
    arm.name for arm in ARMS
)
RIVALS = (
    (_LOG, _P), (_LOG_FORWARD, _FORWARD), (_PASS8, _P), (_ARCSIN, _P), (_LOG, _GRPO), (_GRPO, _ARCSIN), (_FORWARD, _P),
    (_LOG_FORWARD, _LOG), (_DISTINCT, _LOG), (_ENTROPY, _P), (_MARA, _P), (_DPG, _LOG), (_DRAWN, _LOG),
    (_DARS, _FORWARD), (_DARS, _LOG_FORWARD), (_DARS, _STAGES),
)  # fmt: skip
"""The first is claimed to keep more than the second; written down before worlds were measured. The one with drawn groups is one
objective twice: what it differs by is what drawing does. The last pair is DARS with its bias and without."""
