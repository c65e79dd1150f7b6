"""Differences between the arms of a sweep: paired by seed, the problems held fixed, Holm's correction over all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.experiments.folder import ANY_TEMPERATURE, KS, NOT_RUN, Cell, Floats, Folder, K, raw_kl
from sage_rlvr.runs import read_metrics
from sage_rlvr.stats.comparison import FEWEST_SEEDS, Comparison, adjust, paired_seeds, sentence
from sage_rlvr.stats.frontier import NEAR, gap_near, gap_to_frontier

AT_EQUAL = f"pass@{K} at equal pass@1"


@dataclass(frozen=True)
class Difference:
    """One comparison before Holm: what kind, of whom, on which metric."""

    kind: str
    a: str
    b: str
    metric: str
    comparison: Comparison
    note: str = ""


def comparisons(folder: Folder, away: Mapping[str, Folder]) -> list[dict[str, Any]]:
    """All of them, with Holm's p over all; away: world -> the folder's records of other problems."""
    found = [one for a, b, kind in pairs(folder) for one in _of_pair(folder, a, b, kind)]
    found += [one for name in folder.arms for one in matched(folder, name)]
    named = [name for name, arm in folder.arms.items() if not arm["why"]]
    found += [one for name in named for one in _frontiers(folder, name)]
    found += [one for name in folder.arms for one in _near(folder, name)]
    control = folder.facts["control"]
    for world, other in away.items():
        for name in named:
            if name != control:
                found += [replace(c, metric=f"{c.metric} on {world}") for c in _of_pair(other, name, control, "away")]
    return corrected(found)


def corrected(found: Sequence[Difference]) -> list[dict[str, Any]]:
    """One family: each as strict JSON can hold it, with Holm's p over all of `found`."""
    adjusted = adjust([one.comparison for one in found])
    return [_written(replace(one, comparison=c)) for one, c in zip(found, adjusted, strict=True)]


def pairs(folder: Folder) -> list[tuple[str, str, str]]:
    """(arm, what it is held against, why): the matrix's control, the arm's own controls, each pair once. Controls that the
    sweep added are held against alone: more sentences about them would only weaken Holm's for the others."""
    control, out = folder.facts["control"], {}
    for name, arm in folder.arms.items():
        if arm["why"]:
            continue
        wanted = [(control, "control")] + [(arm[kind], kind) for kind in ("plain", "placebo") if arm[kind]]
        if arm["no_kl"] and not arm["guided"]:
            wanted.append((arm["no_kl"], "no_kl"))
        for other, kind in wanted:
            if other != name and (other, name) not in out:
                out.setdefault((name, other), kind)
    return [(a, b, kind) for (a, b), kind in out.items()]


def _of_pair(folder: Folder, a: str, b: str, kind: str) -> list[Difference]:
    seeds = folder.shared(a, b)
    if not seeds:
        return []
    left, right = (np.stack([folder.cells[name][s].passes for s in seeds]) for name in (a, b))
    return [
        Difference(kind, folder.label(a), folder.label(b), f"pass@{k}", paired_seeds(left[:, :, j], right[:, :, j]))
        for j, k in enumerate(KS)
        if k in (1, K)
    ]


def matched(
    folder: Folder, name: str, means: Callable[[Cell], Floats] = lambda cell: cell.means[[0, -1]], suffix: str = ""
) -> list[Difference]:
    """A guided arm against its unguided method at the beta whose realised raw KL is the arm's own, read between betas.

    means: pass@1 and pass@256 of a policy, (2,), by default those at temperature 1; suffix: of the metrics' names, where others."""
    arms = folder.arms[name]["matched"]
    if not arms:
        return []
    wanted: list[tuple[int, Floats]] = []
    outside = 0
    for seed in sorted(set(folder.cells[name]).intersection(*(folder.cells[other] for other in arms))):
        kls = [raw_kl(read_metrics(folder.run(other, seed))) for other in arms]
        own = raw_kl(read_metrics(folder.run(name, seed)))
        scores = np.stack([means(folder.cells[other][seed]) for other in arms])
        at = None if own is None or None in kls else between(own, np.array(kls, dtype=float), scores)
        outside += at is None
        if at is not None:
            wanted.append((seed, at))
    if not wanted:
        return []
    own_scores = np.stack([means(folder.cells[name][seed]) for seed, _ in wanted])
    other = np.stack([scores for _, scores in wanted])
    label = f"{folder.label(folder.arms[name]['plain'] or arms[0])} at the same raw KL"
    note = f"; left out: {_seeds(outside)} whose raw KL lies outside what these betas reach" if outside else ""
    return [
        Difference(
            "matched", folder.label(name), label, f"pass@{k}{suffix}", paired_seeds(own_scores[:, j], other[:, j]), note
        )
        for j, k in enumerate((1, K))
    ]


def between(kl: float, kls: Floats, scores: Floats) -> Floats | None:
    """Scores (K,) at raw KL `kl` of a method that was trained at several betas: kls (B,) and scores (B, K), linear in log KL
    between neighbours. None outside, where nothing was trained."""
    order = np.argsort(kls)
    x, y = np.log(kls[order]), scores[order]
    if not x[0] <= math.log(kl) <= x[-1]:
        return None
    return np.array([np.interp(math.log(kl), x, column) for column in y.T])


def _frontiers(folder: Folder, name: str) -> list[Difference]:
    """Mean gap in pass@256 at equal pass@1 over the common range: to the base's temperature frontier and to the control's of
    the same seed. Only where every seed has such a range, as in `_near`."""
    out, control = [], folder.facts["control"]
    rivals: list[tuple[str, str, Mapping[int, Cell]]] = []
    if folder.base is not None:
        rivals.append(("frontier_base", "base" + ANY_TEMPERATURE, dict.fromkeys(folder.cells[name], folder.base)))
    if name != control:
        rivals.append(("frontier_control", folder.label(control) + ANY_TEMPERATURE, folder.cells[control]))
    for kind, label, others in rivals:
        both = [(cell, others[seed]) for seed, cell in sorted(folder.cells[name].items()) if seed in others]
        if not both or any(len(cell.points) < 2 for pair in both for cell in pair):
            continue
        gaps = [gap_to_frontier(a.points, b.points) for a, b in both]
        found = _from_gaps([gap.value for gap in gaps])
        if found is not None:
            low, high = (float(np.mean([getattr(gap, end) for gap in gaps])) for end in ("low", "high"))
            note = f"; mean over pass@1 {low:.3f} to {high:.3f}, which both cover"
            out.append(Difference(kind, folder.label(name) + ANY_TEMPERATURE, label, AT_EQUAL, found, note))
    return out


def _near(folder: Folder, name: str) -> list[Difference]:
    """pass@256 and distinct right answers in 256 at equal pass@1 near temperature 1 (`gap_near`), to the control, the arm's
    method without its guide and its placebo. One place on the frontiers instead of their mean, which their coldest ends drown.

    Arms that the sweep added count against the control too, but for placebos: a control's beta is what a guide has to beat.
    Only where it can be read in every seed: those in which it cannot are the ones where the two lie farthest apart.
    """
    control, arm = folder.facts["control"], folder.arms[name]
    rivals = dict.fromkeys([control, *([] if arm["why"] else [arm["plain"], arm["placebo"]])])
    if arm["why"] and name in {other["placebo"] for other in folder.arms.values()}:
        return []
    out = []
    for rival in (one for one in rivals if one and one != name):
        both = [(folder.cells[name][seed], folder.cells[rival][seed]) for seed in folder.shared(name, rival)]
        for what, line in ((f"pass@{K}", "points"), (f"distinct in {K}", "variety")):
            found = _from_gaps([gap_near(getattr(a, line), getattr(b, line)) for a, b in both])
            if found is not None:
                out.append(Difference("near", folder.label(name), folder.label(rival), what + NEAR, found))
    return out


def _from_gaps(gaps: Sequence[float | None]) -> Comparison | None:
    """One gap a training seed against zero; None where there is none, or some seed has none."""
    known = [gap for gap in gaps if gap is not None]
    return paired_seeds(known, np.zeros(len(known))) if known and len(known) == len(gaps) else None


def _written(one: Difference) -> dict[str, Any]:
    text = sentence(one.comparison, one.a, one.b, one.metric) + one.note + "."
    return {
        "kind": one.kind,
        "a": one.a,
        "b": one.b,
        "metric": one.metric,
        "sentence": text,
        **one.comparison.told_dict(),
    }


def _seeds(n: int, what: str = "") -> str:
    return f"{n} {what}{'seed' if n == 1 else 'seeds'}"


def relabelled(folder: Folder) -> dict[str, Any]:
    """The control's seeds in two halves called A and B, in every way: how many come out tied, as two names of one arm must.

    Paired in order of seed; each verdict for itself at level 0.95, so that one split in twenty may differ by chance.
    """
    cells = folder.cells[folder.facts["control"]]
    seeds = sorted(cells)[: len(cells) - len(cells) % 2]
    half = len(seeds) // 2
    if half < FEWEST_SEEDS:
        few = f"the control has {_seeds(len(cells), 'evaluated ')}"
        needs = f"splitting them in two halves of three needs {2 * FEWEST_SEEDS}"
        return {"splits": 0, "why": f"{NOT_RUN}: {few}; {needs}"}
    splits = [(a, tuple(s for s in seeds if s not in a)) for a in itertools.combinations(seeds, half) if seeds[0] in a]
    out: dict[str, Any] = {"splits": len(splits), "tied": {}, "first": []}
    for j, k in enumerate(KS):
        if k in (1, K):
            found = [
                paired_seeds(*(np.stack([cells[s].passes[:, j] for s in part]) for part in split)) for split in splits
            ]
            out["tied"][f"pass@{k}"] = sum(c.verdict == "tied" for c in found)
            named = (
                f"{folder.label(folder.facts['control'])} {name} (seeds {', '.join(map(str, part))})"
                for name, part in zip("AB", splits[0], strict=True)
            )
            out["first"].append(sentence(found[0], *named, f"pass@{k}") + ".")
    return out


def choose(folder: Folder, among: Sequence[str], by: str) -> dict[str, float]:
    """Arm -> mean over seeds of what is chosen by, on the records of `folder` (validation). The best has the largest."""
    out = {}
    for name in among:
        cells = [folder.cells[name][seed] for seed in sorted(folder.cells[name])]
        if by == "frontier":
            if folder.base is None:
                raise DataError("choose by frontier: the base was not evaluated on validation problems")
            gaps = [gap_to_frontier(cell.points, folder.base.points).value for cell in cells]
            out[name] = float(np.mean([-math.inf if gap is None else gap for gap in gaps]))
        else:
            out[name] = float(np.mean([cell.means[KS.index(int(by.removeprefix("pass@")))] for cell in cells]))
    return out


__all__ = ["Difference", "between", "choose", "comparisons", "corrected", "matched", "pairs", "relabelled"]
