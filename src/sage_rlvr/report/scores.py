"""Tables and curves of scores: exact, stored or from samples, as the template takes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sage_rlvr.report.figures import Band, limits_of
from sage_rlvr.report.markup import Table
from sage_rlvr.report.policies import EPS, Policy, interval, over
from sage_rlvr.report.samples import SampleSet, by_arm, by_task, first_of_each
from sage_rlvr.results import Results, Scores
from sage_rlvr.results.metric import PAPER
from sage_rlvr.stats.comparison import FEWEST_SEEDS
from sage_rlvr.stats.curves import CurveComparison, paired_count_curve, paired_curve, seed_ks, seeds_curve
from sage_rlvr.stats.frontier import gap_curve
from sage_rlvr.stats.intervals import Interval, passk_interval, share_intervals
from sage_rlvr.stats.tempered import tempered

TABLE_KS = (1, 8, 64, 256)
MOST_GAPS = 12  # panels


def cell(found: Interval | None, digits: int = 3) -> str:
    """The value, and its interval on a second line where it has one."""
    if found is None:
        return "–"
    if not math.isfinite(found.width):
        return f"{found.value:.{digits}f}\nno interval"
    if not found.width:
        return f"{found.value:.{digits}f}"
    return f"{found.value:.{digits}f}\n{found.low:.{digits}f}–{found.high:.{digits}f}"


def score_table(results: Results, them: Mapping[str, Policy], k: int) -> Table:
    """Every policy: seeds, pass@k, distinct right answers, its best pass@1 at any temperature, raw KL."""
    several = any(len(p.seeds) > 1 for p in them.values())
    ks = [n for n in dict.fromkeys((*TABLE_KS, k)) if all(n in p.passes for p in them.values())]
    header = [
        "arm",
        *["seeds"] * several,
        *(f"pass@{n}" for n in ks),
        f"distinct in {k}",
        "best pass@1\nat any T",
        "raw KL",
    ]
    rows = []
    for name, p in them.items():
        base = name == results.design.base or (p.supported is not None and p.support is None)
        best = max((q for points in p.by_seed for q in points), key=lambda q: q.pass1, default=None)
        at = f"\nT = {best.temperature:g}" if best is not None and len(p.seeds) == 1 else ""
        rows.append([
            name, *["one policy" if base else str(len(p.seeds))] * several, *(cell(p.passes[n]) for n in ks), cell(p.distinct, 1),
            cell(p.best) + at, cell(_raw_kl(results, name)),
        ])  # fmt: skip
    how = "over training seeds (Student's t), the problems held fixed" if several else "over problems"
    note = (
        f"Means; beneath each its 95 % interval {how}. distinct in {k}: expected number of different right answers among {k} "
        "samples."
    )
    return Table(header=header, rows=rows, notes=[note])


def _raw_kl(results: Results, name: str) -> Interval | None:
    if results.stored is not None:
        row = next((row for row in results.stored["arms"].values() if row["label"] == name), {})
        return interval(row["kl_raw"]) if "kl_raw" in row else None
    found = [run.raw_kl for (arm, _), run in results.runs.items() if arm == name]
    known = [kl for kl in found if kl is not None]
    return over(known) if known else None


def passk_lines(them: Mapping[str, Policy]) -> dict[str, Band]:
    """pass@k of every policy with its band."""
    out = {}
    for name, p in them.items():
        found = list(p.passes.values())
        edges = [
            [getattr(i, end) if math.isfinite(getattr(i, end)) else i.value for i in found] for end in ("low", "high")
        ]
        out[name] = (list(p.passes), [i.value for i in found], *edges)
    return out


def frontier_of(
    them: Mapping[str, Policy], base: str | None, k: int, power: Sequence[tuple[float, float]]
) -> dict[str, Any] | None:
    """What the frontier's figure takes; None where no policy has two temperatures."""
    curves = {name: p.frontier for name, p in them.items() if len(p.frontier) > 1}
    if base is None or base not in curves:
        return None
    arms = {name: (p.passes[1], p.passes[k]) for name, p in them.items() if name != base}
    seeds = {name: p.marks for name, p in them.items() if len(p.marks) > 1}
    return {"curves": curves, "arms": arms, "k": k, "seeds": seeds, "power": power}


# ------------------------------------------------------------------------------------------------------------------
# differences


def differences(results: Results, base: str | None, samples: Sequence[SampleSet]) -> list[dict[str, Any]]:
    """Paired differences over k with bands that hold at all k at once: of exact records, else of samples, task by task."""
    found: dict[tuple[str, str], CurveComparison] = {}
    pairs = [(a, b) for a, b, _ in results.design.pairs()]
    if base is not None:
        pairs += [(a, base) for a in results.design.names if a != base and (a, base) not in pairs]
    for a, b in pairs:
        one = _difference(results, a, b)
        if one is not None:
            found[a, b] = one
    if found:
        who = "training seeds" if results.several else "problems"
        about = f"Paired differences. The band holds at all k at once (95 %, over {who}): where it leaves zero, the two differ."
        return [_differences("", about, found)]
    out = []
    for task, sets in by_task(samples).items():
        first, *others = first_of_each(sets)
        counted = {
            (s.arm, first.arm): paired_count_curve(s.n, s.right, first.right)
            for s in others
            if s.problems == first.problems and s.n == first.n
        }
        if counted:
            about = f"{task}: the band holds at all k at once (95 %, over problems and their samples)."
            out.append(_differences(f"-{slug(task)}", about, counted))
    return out


def _difference(results: Results, a: str, b: str) -> CurveComparison | None:
    left, right = results.scores(a), results.scores(b)
    if left is None or right is None or left.n is not None or right.n is not None:
        return None
    ks = seed_ks(results.k)
    if not results.several:
        return paired_curve(left.passes(ks)[0], right.passes(ks)[0], ks)
    alone = len(right.values) == 1
    shared = [s for s in left.seeds if alone or s in right.seeds]
    if len(shared) < FEWEST_SEEDS or len(left.values) == 1:
        return None
    x, y = left.only(shared).passes(ks), right.only(shared).passes(ks)
    return seeds_curve(x, np.repeat(y, len(x), axis=0) if alone else y, ks)


def _differences(key: str, about: str, found: Mapping[tuple[str, str], CurveComparison]) -> dict[str, Any]:
    rows = [
        [
            f"{a} − {b}",
            *(
                f"{d:+.3f}\n{low:+.3f} to {high:+.3f}".replace("-", "−")
                for d, low, high in zip(c.difference, c.low, c.high, strict=True)
            ),
        ]
        for (a, b), c in found.items()
    ]
    table = Table(header=["pair", *(f"k = {k}" for k in next(iter(found.values())).ks)], rows=rows)
    return {"slug": key, "about": about, "found": found, "limits": limits_of(list(found.values())), "table": table}


def gaps(results: Results, them: Mapping[str, Policy], base: str | None) -> dict[str, Any] | None:
    """Every arm along its control's frontier and the control along the base's, over three training seeds or more."""
    control = results.design.control or next((n for n in them if n != base), None)
    pairs = [(name, control) for name in them if name not in (base, control)] + [(control, base)]
    found = {}
    for a, b in pairs[:MOST_GAPS]:
        if a in them and b in them and len(them[a].by_seed) >= FEWEST_SEEDS:
            left = dict(zip(them[a].seeds, them[a].by_seed, strict=True))
            right = dict(zip(them[b].seeds, them[b].by_seed, strict=True))
            shared = [s for s in left if s in right or b == base]
            rivals = [right[s] if b != base else them[b].by_seed[0] for s in shared]
            curve = gap_curve([left[s] for s in shared], rivals) if len(shared) >= FEWEST_SEEDS else None
            if curve is not None:
                found[a, b] = curve
    return {"found": found, "limits": limits_of(list(found.values()))} if found else None


# ------------------------------------------------------------------------------------------------------------------
# T = 0.3, power, other worlds, support


def cold_table(results: Results, base: str | None) -> Table | None:
    """pass@1 and pass@k at T = 0.3 beside T = 1."""
    rows = []
    if results.stored is not None:
        found = results.stored["endpoints"]["cold"] if results.stored.get("endpoints") else None
        if found is None:
            return None
        k = max(int(key) for row in found["arms"].values() for key in row if key.isdigit())
        home = {row["label"]: row for row in results.stored["arms"].values() if row["seeds"]}
        if found["base"]:
            own = results.stored["base"]["pass"]
            rows.append(["base", *(f"{side[key]:.3f}" for key in ("1", str(k)) for side in (found["base"], own))])
        for row in found["arms"].values():
            both = (row, home[row["label"]]["pass"])
            rows.append([row["label"], *(cell(interval(side[key])) for key in ("1", str(k)) for side in both)])
    else:
        k = results.k
        for name in (*((base,) if base else ()), *results.design.names):
            both = [results.scores(name, "", t) for t in (PAPER, 1.0)]
            if any(one is None or one.n is not None for one in both):
                continue
            cells = [
                _mean(one.passes((n,))[:, :, 0], results.several) for n in (1, k) for one in both if one is not None
            ]
            rows.append([name, *map(cell, cells)])
        if not rows:
            return None
    header = [f"pass@{n}\nT = {t:g}" for n in (1, k) for t in (PAPER, 1.0)]
    return Table(header=["arm", *header], rows=rows)


def _mean(values: np.ndarray, several: bool) -> Interval:
    """Of (S, N): over seeds where there are several, else over problems."""
    return over(values.mean(axis=1).tolist()) if several else share_intervals(values[0][:, None])[0]


def power_points(results: Results, base: str | None) -> list[dict[str, Any]]:
    """The base tempered over whole completions: power, pass@1, pass@k and what the normalizer leaves open of each."""
    if results.stored is not None:
        found = (results.stored.get("endpoints") or {}).get("power")
        return list(found["points"]) if found else []
    record = None if base is None else results.records.get((base, 0, ""))
    if record is None or not record.norms:
        return []
    k = results.k
    return [
        {"power": one.power, "known": one.known, "bound1": float(one.bound.mean()), "boundk": one.passk_bound(k)}
        | {"pass1": one.point(k).pass1, "passk": one.point(k).passk}
        for one in tempered(record.logps[1.0], record.norms)
    ]


def power_table(points: Sequence[Mapping[str, Any]], k: int) -> Table:
    """The same as a table."""
    rows = []
    for p in points:
        known = [f"{p['pass1']:.3f}", f"{p['bound1']:.1g}", f"{p['passk']:.3f}", f"{p['boundk']:.1g}"]
        rows.append(
            [
                f"{p['power']:g}",
                *(known if p["known"] else ["not available", f"{p['bound1']:.1g}", "not available", ""]),
            ]
        )
    return Table(header=["power", "pass@1", "±", f"pass@{k}", "±"], rows=rows)


def away(results: Results) -> list[dict[str, Any]]:
    """Scores on other worlds than the main one."""
    out = []
    if results.stored is not None:
        for world, found in (results.stored.get("away") or {}).items():
            rows = [["base", *(f"{found['base']['pass'][str(k)]:.3f}" for k in TABLE_KS)]] if found["base"] else []
            for name, row in found["arms"].items():
                label = results.stored["arms"][name]["label"]
                rows.append([label, *(cell(interval(row["pass"][str(k)])) for k in TABLE_KS)])
            out.append({"world": world, "table": Table(header=["arm", *(f"pass@{k}" for k in TABLE_KS)], rows=rows)})
        return out
    for world in dict.fromkeys(of for *_, of in results.records if of):
        ks = [k for k in TABLE_KS if k <= results.k]
        rows = []
        for name in dict.fromkeys([arm for arm, _, of in results.records if of == world]):
            scores = results.scores(name, world)
            if scores is not None:
                values = scores.passes(ks)
                rows.append([name, *(cell(_mean(values[:, :, j], results.several)) for j in range(len(ks)))])
        out.append({"world": world, "table": Table(header=["arm", *(f"pass@{k}" for k in ks)], rows=rows)})
    return out


def support(them: Mapping[str, Policy], base: str | None) -> dict[str, Any] | None:
    """Right completions kept, gained and lost against the base (Definition 4.1)."""
    home = them.get(base or "")
    there = {name: p.support for name, p in them.items() if p.support is not None}
    if home is None or home.supported is None or not there:
        return None
    rows = [[str(base), f"{home.supported:,}", "–", "–", "–"]]
    for name, (kept, gained, lost) in there.items():
        share = kept.value / max(kept.value + lost.value, 1)
        rows.append([name, *(_count(i) for i in (kept, gained, lost)), f"{share:.1%}"])
    note = (
        f"A right completion is in a policy's support when its probability is above 1/{round(1 / EPS)} at temperature 1 "
        "(Definition 4.1). Kept, gained and lost are against the base: means over training seeds with their 95 % intervals, or "
        "counts of one."
    )
    table = Table(header=["arm", "kept", "gained", "lost", "share kept"], rows=rows, notes=[note])
    drawn = {name: (kept.value, gained.value, lost.value) for name, (kept, gained, lost) in there.items()}
    return {"kept": drawn, "base": float(home.supported), "table": table}


def _count(i: Interval) -> str:
    return f"{i.value:,.0f}" + (f"\n{i.low:,.0f} to {i.high:,.0f}" if i.width and math.isfinite(i.width) else "")


# ------------------------------------------------------------------------------------------------------------------
# from samples


def sampled_tables(samples: Sequence[SampleSet]) -> list[dict[str, Any]]:
    """Sampled pass@1 and pass@k: a table a task with one row an arm, and folded the stores one by one where that is more."""
    out: list[dict[str, Any]] = []
    for task, sets in by_task(samples).items():
        ks = tuple(dict.fromkeys((1, min(s.n for s in sets))))
        header = ["arm", "problems × samples", *(f"pass@{k}" for k in ks)]
        single = [_store_row(s, ks) for s in sets]
        rows = [row for mine in by_arm(sets).values() for row in _arm_rows(mine, ks)]
        over_seeds = (
            "over training seeds (Student's t) where an arm has several, else " if len(rows) < len(single) else ""
        )
        note = f"From samples; beneath each number its 95 % interval {over_seeds}over problems and their samples."
        out.append({"title": f"From samples: {task}", "table": Table(header=header, rows=rows, notes=[note])})
        if over_seeds:
            line = f"pass@k on {task}, every training seed by itself ({len(single)} rows)"
            out.append({"title": "", "table": Table(header=header, rows=single), "folded": line})
    return out


def _store_row(s: SampleSet, ks: Sequence[int]) -> list[str]:
    return [s.name, f"{len(s.problems)} × {s.n}", *(cell(passk_interval(s.n, s.right, k)) for k in ks)]


def _arm_rows(mine: Sequence[SampleSet], ks: Sequence[int]) -> list[list[str]]:
    """One row over the training seeds; a row a store where there is one alone, or where they are of other problems."""
    first = mine[0]
    if len(mine) == 1 or any((s.problems, s.n) != (first.problems, first.n) for s in mine):
        return [_store_row(s, ks) for s in mine]
    scored = Scores(
        arm=first.arm, task=first.task, temperature=first.temperature or 1.0, seeds=tuple(range(len(mine))),
        problems=first.problems, values=np.stack([s.right for s in mine]), n=first.n,
    )  # fmt: skip
    found = [scored.interval(k) for k in ks]
    cells = [cell(replace(i, low=max(i.low, 0.0), high=min(i.high, 1.0))) for i in found]
    return [[first.arm, f"{len(first.problems)} × {first.n}, {len(mine)} seeds", *cells]]


def sampled_curves(samples: Iterable[SampleSet]) -> list[dict[str, Any]]:
    """pass@k over k of the first store of each arm, task by task."""
    out = []
    for task, sets in by_task(samples).items():
        lines = {}
        for s in first_of_each(sets):
            ks = [*(2**i for i in range(s.n.bit_length()) if 2**i < s.n), s.n]
            found = [passk_interval(s.n, s.right, k) for k in ks]
            lines[s.arm] = (ks, [i.value for i in found], [i.low for i in found], [i.high for i in found])
        out.append({"task": task, "slug": slug(task), "lines": lines})
    return out


def slug(text: str) -> str:
    """A name as part of a file's."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in text)[:40].strip("-") or "task"
