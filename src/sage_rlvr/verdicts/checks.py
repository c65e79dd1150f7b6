"""Checks of a design: its control against itself, and the gains of the paper."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.comparisons import with_chance
from sage_rlvr.verdicts.design import Arm, Design
from sage_rlvr.verdicts.measurements import ExactMeasurements
from sage_rlvr.verdicts.metric import PAPER, REFERENCE, Metric
from sage_rlvr.verdicts.pairs import Arms
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.stats.paired import FEWEST_SEEDS, against_itself, excludes, halves, paired_seeds
from sage_rlvr.verdicts.summary_io import row_tree

PAPER_GAINS = {1: 0.017, 256: 0.015}
"""k -> Branch minus GRPO at pass@k, averages of the paper's Table 1 (`python -m lab published`)."""


def paper_gains(design: Design, arms: Arms, fixed: bool = False) -> list[dict[str, Any]] | None:
    """Per metric and temperature: the paper's gain, the interval of GRPO with Branch minus GRPO (the first such arms), and whether
    the interval excludes the gain. None without such arms. fixed: as in `paired_seeds`."""
    arm = next((arm for arm in design.arms if arm.plain and not arm.why and _is_the_papers(arm)), None)
    if arm is None or arm.plain is None or not {arm.name, arm.plain} <= {*arms}:
        return None
    a, b, out = arms[arm.name], arms[arm.plain], []
    seeds = sorted({*a.seeds} & {*b.seeds})
    for temperature in (REFERENCE, PAPER):
        left, right = (side.where(temperature=temperature).scores() for side in (a, b))
        if not seeds or left is None or right is None or not {*seeds} <= {*left.seeds} & {*right.seeds}:
            continue
        one, two = (side.only(seeds).passes(tuple(PAPER_GAINS)) for side in (left, right))
        for j, (k, gain) in enumerate(PAPER_GAINS.items()):
            comparison = paired_seeds(one[..., j], two[..., j], fixed=fixed)
            row = {"a": arm.name, "b": arm.plain, "metric": asdict(Metric(k=k, temperature=temperature)), "gain": gain}
            out.append(row | {"difference": asdict(comparison.difference), "excluded": excludes(comparison, gain)})
    return out or None


def _is_the_papers(arm: Arm) -> bool:
    """Return whether the method is GRPO with the guide Branch."""
    method = arm.config.get("method") or {}
    parts = [method.get(part) or {} for part in ("guide", "base")]
    return method.get("name") == "sage" and [part.get("name") for part in parts] == ["branch", "grpo"]


def relabelled(control: ExactMeasurements, k: int, chance: Chance | None, fixed: bool = False) -> dict[str, Any]:
    """A/A check: split the control's seeds into halves A and B in every way. Return how many splits have no significant
    difference, and the comparisons of the first split. fixed: as in `paired_seeds`.

    Paired in order of seed; each comparison has level 0.95 without correction, so 5 % of the splits may differ by chance."""
    have, scores = control.seeds, control.where(temperature=REFERENCE).scores()
    if len(have) < 2 * FEWEST_SEEDS or scores is None:
        return {"splits": 0, "have": len(have)}
    splits = halves(have)
    out: dict[str, Any] = {"splits": len(splits), "have": len(have), "tied": {}, "first": []}
    for n in (1, k):
        made = against_itself(dict(zip(have, scores.only(have).passes([n])[..., 0], strict=True)), fixed=fixed)
        out["tied"][f"pass@{n}"] = sum(c.outcome == "tied" for c in made)
        names = [
            f"{scores.arm} {name} (seeds {', '.join(map(str, part))})" for name, part in zip("AB", splits[0], strict=True)
        ]
        first = Row(a=names[0], b=names[1], metric=Metric(k=n), comparison=made[0])
        out["first"].append(row_tree(with_chance(first, chance, {})))
    return out
