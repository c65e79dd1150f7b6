"""`python -m lab ablation`: does every part of every recipe act? A few steps, each part against its neutral element.

A recipe's method takes its rollout, its loss and its gradient by the loop's own `train_step`; then the same step is taken with one
part put at its neutral element, from the same weights and, as completions are functions of policy and seed, on the same
completions. Three places are looked at: the first step, where the policy is the reference; a step after training has moved it;
and a later update of that step's rollout, where ratios have left 1. A part that changes nothing in any of them has not acted,
which is a failure unless `PROVEN` says why it must be so. The numbers are no findings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from lab.studies.gradients import Step, seen
from lab.studies.pages import remade
from sage_rlvr import recipes
from sage_rlvr.config import TrainConfig, load_config, to_yaml
from sage_rlvr.contrib.methods.pacs import Pacs
from sage_rlvr.core.advantages import LeaveOneOut
from sage_rlvr.core.guides import Flat, is_flat
from sage_rlvr.core.method import Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.registry import in_snake_case
from sage_rlvr.results import tables
from sage_rlvr.results.tables import NONE, Table
from sage_rlvr.runs import writing
from sage_rlvr.safe_io import read_text
from sage_rlvr.training.buffer import fill
from sage_rlvr.training.loop import build, train_step
from sage_rlvr.training.loop_state import TrainState

PROMPTS, MORE, STEPS, UPDATES = 4, 16, 3, 4
PLACES = ("first step", "moved", "later update")
NEUTRAL: dict[str, object] = {"advantage": LeaveOneOut(), "surrogate": Clip(), "reduction": FixedBudget()}
"""The neutral element of a part that every method has; of any other it is None."""
METRICS = {
    "anchor": "kl/", "guide": "guide/", "surrogate": "surrogate/", "reduction": "loss", "rollout": "rollout/",
    "token_weight": "extra/", "buffer": "replay/",
    "extra": "extra/", "reward_source": "reward/",
}  # fmt: skip
"""The family of a part's own metrics; "advantage/" where it is not named here or has none."""
ACTED = 1e-5
PROVEN = {
    "AdaptiveEntropy": "not yet: c = 0 until a rollout's mean entropy is at most the target",
    "StdFilter": "not yet: it keeps every group before step 10, while it learns its running mean",
}


def neutrals(method: Method) -> dict[tuple[str, str], Method]:
    """(field, part) -> the method with that part at its neutral element, for each part that is not there already."""
    found: dict[tuple[str, str], Method] = {}
    for one in fields(method):
        part, neutral = getattr(method, one.name), NEUTRAL.get(one.name)
        if one.name in ("name", "anchor", "extras") or part is None or part == neutral:
            continue
        if one.name == "advantage" and isinstance(method.surrogate, Pacs):  # its labels, no part of their own
            continue
        if method.is_replay_only:  # unread
            continue
        named = repr(part) if type(part) is type(neutral) else type(part).__name__
        found[one.name, named] = replace(method, **{one.name: neutral})
    for extra in method.extras:
        kind = "extra" if extra.kind is type(extra) else in_snake_case(extra.kind.__name__)
        found[kind, type(extra).__name__] = replace(method, extras=tuple(one for one in method.extras if one is not extra))
    anchor = method.anchor
    if anchor is not None and not anchor.is_off:
        found["anchor", f"{anchor.divergence or anchor.estimator} in the {anchor.placement}"] = replace(
            method, anchor=replace(anchor, beta=0.0, guide=Flat())
        )
        if not is_flat(anchor.guide):
            found["guide", type(anchor.guide).__name__] = replace(method, anchor=replace(anchor, guide=Flat()))
    return found


# ---- one recipe


@dataclass(frozen=True)
class Place:
    """What a part changed there: share of tokens and of rows whose force on the policy it changed (None where it trains on other
    rows), |g - g0| / |g0| and the cosine of g and g0, the gradients with the part and with its neutral element (None where one
    of them is 0; 0 and None where both are)."""

    tokens: float | None
    rows: float | None
    distance: float | None
    cosine: float | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A part of a recipe at the three `PLACES`; metric: its own that it changed most, with its value and the neutral's."""

    recipe: str
    field: str
    part: str
    neutral: str
    metric: str
    value: float | None
    neutral_value: float | None
    places: tuple[Place, ...]
    prompts: int = PROMPTS

    @property
    def acted(self) -> bool:
        """Whether it changed the gradient, or what is trained on, in one place at least."""
        return any(_acted(place) for place in self.places)

    @property
    def verdict(self) -> str:
        """Where it acted first; else why it cannot, or that it did not."""
        if not self.acted:
            return PROVEN.get(self.part, "DID NOT ACT")
        where = next(name for name, place in zip(PLACES, self.places, strict=True) if _acted(place))
        return where if self.prompts == PROMPTS else f"{where}\nof {self.prompts} prompts"


def _acted(place: Place) -> bool:
    return place.distance is None or place.distance > ACTED


def config_of(recipe: str, prompts: int = PROMPTS) -> TrainConfig:
    """A shipped recipe, made small."""
    few = {"steps": STEPS, "rollout.prompts_per_step": prompts, "world.train_problems": 200, "updates.micro_batch": "null"}
    return load_config(TrainConfig, recipes.locate(recipe), [(name, str(value)) for name, value in few.items()])


def trained(family: str = "countdown") -> list[str]:
    """What trains on a task by name."""
    return [f"{family}/{name}" for name in recipes.trainable(family)]


def measure(recipe: str) -> list[Row]:
    """Every part of a recipe against its neutral element, at the three places; where one has not acted on `PROMPTS` prompts, a
    part that acts now and then, all of them on `MORE`."""
    rows = _measured(recipe, PROMPTS)
    return rows if all(row.acted for row in rows) else _measured(recipe, MORE)


def _measured(recipe: str, prompts: int) -> list[Row]:
    loop = build(config_of(recipe, prompts))
    fill(loop, say=lambda text: None)
    others = neutrals(loop.method)
    first = _compared(loop, others, 0, 0)
    for step in range(STEPS - 1):
        train_step(loop, step)
    moved = _compared(loop, others, STEPS - 1, UPDATES - 1)
    return [replace(_row(recipe, key, other, first[key], moved[key]), prompts=prompts) for key, other in others.items()]


Pair = tuple[Step, Step]


def _compared(loop: TrainState, others: Mapping[tuple[str, str], Method], step: int, last: int) -> dict[tuple[str, str], Pair]:
    own = seen(loop, loop.method, step, last)
    return {key: (own, seen(loop, other, step, last, own.path)) for key, other in others.items()}


def _row(recipe: str, key: tuple[str, str], other: Method, first: Pair, moved: Pair) -> Row:
    one = getattr(other, key[0], None) if key[0] in ("advantage", "surrogate", "reduction", "rollout") else None
    neutral = {"anchor": "beta = 0", "guide": "Flat"}.get(key[0], "none" if one is None else repr(one))
    name, value, before = _metric(key[0], (first, moved))
    places = (_place(key[0], *first, 0), _place(key[0], *moved, 0), _place(key[0], *moved, UPDATES - 1))
    return Row(
        recipe=recipe, field=key[0], part=key[1], neutral=neutral, metric=name, value=value, neutral_value=before, places=places
    )


def _metric(kind: str, pairs: Sequence[Pair]) -> tuple[str, float | None, float | None]:
    """(name, value, neutral's value) of the part's own metric that differs most, in proportion."""
    found: list[tuple[float, str, float, float | None]] = []
    for family in (METRICS.get(kind, "advantage/"), "advantage/"):
        for own, other in pairs:
            for name, value in own.metrics.items():
                if name.startswith(family):
                    before = other.metrics.get(name)
                    change = abs(value - (before or 0.0)) / (abs(value) + abs(before or 0.0) or 1.0)
                    found.append((change, name, value, before))
        if found and max(found, key=lambda one: one[0])[0] > 0:
            break
    if not found:
        return "", None, None
    _, name, value, before = max(found, key=lambda one: (one[0], "kl_raw" in one[1]))
    return name, _short(value), None if before is None else _short(before)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _place(kind: str, own: Step, other: Step, update: int) -> Place:
    tokens = rows = None
    if len(own.tokens) > update and len(other.tokens) > update:
        a, b = own.tokens[update], other.tokens[update]
        if a.mask.shape == b.mask.shape and torch.equal(a.mask, b.mask):
            changed = _differs(a.force, b.force)
            if kind in ("anchor", "guide", "extra"):  # its force goes past the surrogate
                changed |= _differs(a.loss, b.loss)
            tokens = _short(float(changed.sum() / a.mask.sum().clamp(min=1)))
            rows = _short(float(changed.any(1).float().mean()))
    g, g0 = (one.gradients[update].double() if len(one.gradients) > update else torch.zeros(0) for one in (own, other))
    some = [bool(len(one)) and bool(one.norm()) for one in (g, g0)]
    if not all(some):
        return Place(tokens, rows, None if any(some) else 0.0, None)
    return Place(tokens, rows, _short(float((g - g0).norm() / g0.norm())), _short(float(torch.cosine_similarity(g, g0, 0))))


def _differs(a: Tensor, b: Tensor) -> Tensor:
    """Where two numbers of a token differ by more than 1e-5 of their mean size."""
    return (a - b).abs() > 1e-5 * float((a.abs() + b.abs()).mean())


# ---- all recipes


def find(names: Sequence[str], out: Path, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Every recipe, one thread; what `out` holds of the same resolved recipe is read."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in names:
        path, key = out / f"{name.rpartition('/')[2]}.json", _key(name)
        if not path.is_file() or json.loads(read_text(path))["key"] != key:
            say(name)
            measured = {"key": key, "rows": [asdict(row) for row in measure(name)]}
            with writing("parts", out, 1 << 16):
                out.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        rows += read(path)
    return rows


def _key(recipe: str) -> str:
    """Of a recipe and of where it is looked at, so that what was measured before either changed is measured anew."""
    config = config_of(recipe)
    text = "\n".join([to_yaml(config), config.method.describe(), str((PROMPTS, STEPS, UPDATES))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(path: Path) -> list[Row]:
    """The stored rows of a recipe."""
    rows = json.loads(read_text(path))["rows"]
    return [Row(**{**row, "places": tuple(Place(**place) for place in row["places"])}) for row in rows]


def table(rows: Sequence[Row]) -> Table:
    """A row per part of a recipe: where it acted first, and there the tokens it changed, the gradient's distance and cosine."""
    columns: dict[str, Callable[[Row], str]] = {
        "recipe": lambda row: row.recipe.rpartition("/")[2],
        "part": lambda row: f"{row.part}\n({row.field.replace('_', ' ')})",
        "neutral": lambda row: row.neutral,
        "its metric: with it, without": _metric_cell,
    }
    for at, place in enumerate(PLACES):
        columns[f"{place}: tokens, distance, cosine"] = lambda row, at=at: _place_cell(row.places[at])  # type: ignore[misc]
    columns["acted"] = lambda row: row.verdict
    return tables.table(columns, rows)


def _metric_cell(row: Row) -> str:
    if row.value is None:
        return NONE
    before = NONE if row.neutral_value is None else f"{row.neutral_value:g}"
    return f"{row.metric}\n{row.value:g}, {before}"


def _place_cell(place: Place) -> str:
    tokens = "other rows" if place.tokens is None else f"{100 * place.tokens:.0f} %"
    if place.cosine is None:
        return f"{tokens}, {'both' if place.distance == 0 else 'one'} 0"
    return f"{tokens}, {place.distance:.2g}, {place.cosine:.3f}" if place.distance > ACTED else f"{tokens}, 0, 1"


def write_docs(rows: Sequence[Row], docs: Path) -> list[Path]:
    """Make the table of results/parts.md in docs again, and results/parts.json beside it."""
    where, text = remade(docs, "results/parts.md", {"parts": table(rows).markdown()})
    beside = where.with_suffix(".json")
    with writing("page", docs, 1 << 20):
        where.write_text(text, encoding="utf-8")
        beside.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return [where, beside]
