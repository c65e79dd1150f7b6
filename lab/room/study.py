"""The whole study as plain numbers: settings, checks, slopes, predictors, our own worlds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from lab.room.base import PREDICTORS, ROOM, predictors
from lab.room.cohort import (
    FAMILIES,
    PACKAGE,
    VERSION,
    Cohort,
    common_noise,
    independent,
    noise_limit,
    overlap,
    own_pass8,
)
from lab.room.readings import Readings, readings_of
from lab.room.skill import balanced, block_orders, called, explained, fold_errors, line_errors, spearman
from lab.room.slopes import Slope, halves, over_groups, quantiles, simulated, unrelated
from lab.room.smollm2 import smollm2_arms
from lab.room.worlds import own_arms
from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.stats.arrays import Floats, Ints
from sage_rlvr.verdicts.stats.intervals import seed_interval

SEED = 20_261_126


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How often things are drawn: bootstrap, splits, simulations."""

    resamples: int = 400
    splits: int = 200
    simulations: int = 200


def study(cohort: Cohort, printed: Mapping[tuple[str, str], float], effort: Effort) -> dict[str, Any]:
    """Everything that the page and the picture show. printed: the package's own table, empty where it cannot be read."""
    for name in ("domain", "model"):
        if len({getattr(run, name) for run in cohort.runs}) < 2:
            raise DataError(
                f"one {name} alone: a prediction needs another to be fitted on; give runs of at least two {name}s."
            )
    drawn = replace(cohort, before=independent(cohort.before), after=independent(cohort.after))
    readings = readings_of(drawn)
    rows = setting_rows(readings)
    return {
        "source": f"{PACKAGE} {VERSION} (arXiv 2610.11064), Apache-2.0; counts and means derived from its released answers",
        "k": readings.k,
        "effort": asdict(effort),
        "checks": checks(cohort, drawn, printed),
        "noise": noise(drawn),
        "settings": rows,
        "bands": {name: bands([row for row in rows if row["method"] in methods]) for name, methods in FAMILIES.items()},
        "runs": run_rows(drawn, readings),
        "slopes": {name: slopes(drawn, readings.family(methods), effort) for name, methods in FAMILIES.items()},
        "skill": {name: skill(readings.family(methods), effort) for name, methods in FAMILIES.items()},
        "worlds": [asdict(arm) | {"room": arm.room, "change": arm.change} for arm in own_arms(readings.k)],
        "smollm2": [asdict(arm) for arm in smollm2_arms(readings.k)],
        "lines": {name: line(readings.family(methods)) for name, methods in FAMILIES.items()},
    }


def checks(cohort: Cohort, drawn: Cohort, printed: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Are the package's own numbers reproduced, and which answers are copies? base_copies: None where no base was sampled twice."""
    runs = np.stack([(answers > 0).any(axis=-1).mean(axis=(1, 2)) for answers in (cohort.before, cohort.after)], axis=1)
    read = ~np.isnan(cohort.printed) & np.stack(
        [[run.own for run in cohort.runs], np.ones(len(cohort.runs), dtype=bool)], axis=1
    )
    own = own_pass8(cohort)
    copies = base_copies(drawn)
    return {
        "runs": len(cohort.runs),
        "without_after": cohort.without_after,
        "without_base": sum(not run.own for run in cohort.runs),
        "printed_cells": len(printed),
        "printed_cells_reproduced": sum(abs(own.get(cell, np.nan) - value) <= 0.0005 + 1e-9 for cell, value in printed.items()),
        "checkpoints": int(read.sum()),
        "checkpoints_reproduced": int((np.abs(runs - cohort.printed)[read] < 1e-9).sum()),
        "overlap": {"before": overlap(cohort.before), "after": overlap(cohort.after)},
        "bases": len(drawn.cells()),
        "base_copies": {"least": min(copies), "median": float(np.median(copies))} if copies else None,
    }


def base_copies(drawn: Cohort) -> list[float]:
    """How often the answers of each further sampled base of a cell equal those of its first. A base that was taken from another run
    is left out: it would equal itself."""
    equal = []
    for rows in drawn.cells().values():
        first, *others = [row for row in rows if drawn.runs[row].own]
        equal += [float((drawn.before[row] == drawn.before[first]).mean()) for row in others]
    return equal


def noise(drawn: Cohort) -> dict[str, Any]:
    """`common_noise` of each cell's first base and of all policies after RL. median, largest: None where nothing can be read,
    every problem being always right or always wrong."""
    limit = noise_limit(drawn.before.shape[-1])
    before = {"/".join(cell): common_noise(drawn.before[rows[0]]) for cell, rows in drawn.cells().items()}
    after = np.array([common_noise(one) for one in drawn.after])

    def counted(values: Floats) -> dict[str, Any]:
        seen = values[~np.isnan(values)]
        return {
            "read": len(seen),
            "above": int((seen > limit).sum()),
            "median": float(np.median(seen)) if len(seen) else None,
            "largest": float(seen.max()) if len(seen) else None,
        }

    return {
        "limit": limit,
        "before": counted(np.array(list(before.values()))),
        "after": counted(after),
        "of_base": before,
    }


def setting_rows(readings: Readings) -> list[dict[str, Any]]:
    """One row a setting: the base, and the change of pass@K and pass@1 over training seeds."""
    found = []
    base, after = readings.facts["solved"].mean(axis=1), readings.solved.mean(axis=1)
    one, then = readings.facts["right"].mean(axis=1), readings.rights.mean(axis=1)
    for (level, model, domain, method), rows in zip(readings.settings, readings.rows, strict=True):
        places = list(rows)
        gap = seed_interval(after[places] - base[places])
        found.append(
            {
                "level": level,
                "model": model,
                "domain": domain,
                "method": method,
                "seeds": len(places),
                "base": float(base[places].mean()),
                "base1": float(one[places].mean()),
                "change": gap.value,
                "low": gap.low,
                "high": gap.high,
                "change1": float((then - one)[places].mean()),
                "changes": (after[places] - base[places]).tolist(),
            }
        )
    return found


def run_rows(drawn: Cohort, readings: Readings) -> list[dict[str, Any]]:
    """One row a run, with counts of problems: solved at least once in K draws before and after, and right draws."""
    n = readings.solved.shape[1]
    return [
        {
            "level": run.level,
            "model": run.model,
            "domain": run.domain,
            "method": run.method,
            "seed": run.seed,
            "own_base": run.own,
            "problems": n,
            "solved_before": int(readings.facts["solved"][i].sum()),
            "solved_after": int(readings.solved[i].sum()),
            "right_before": int((drawn.before[i] > 0).sum()),
            "right_after": int((drawn.after[i] > 0).sum()),
        }
        for i, run in enumerate(drawn.runs)
    ]


BANDS = (0.0, 0.05, 0.35, 0.85, 1.0)


def bands(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many settings widen and narrow, by the base's pass@K: the interval over seeds excludes 0, unadjusted."""
    found = []
    for low, high in pairwise(BANDS):
        here = [row for row in rows if low <= row["base"] < high or row["base"] == high == 1]
        found.append(
            {
                "low": low,
                "high": high,
                "settings": len(here),
                "domains": sorted({row["domain"] for row in here}),
                "wider": sum(row["low"] > 0 for row in here),
                "narrower": sum(row["high"] < 0 for row in here),
            }
        )
    return found


def line(readings: Readings) -> dict[str, float]:
    """change = intercept + slope * room over settings; error: of domains that were left out, root mean square."""
    base, change, _ = readings.means()
    room = 1 - base["solved"]
    slope, intercept = np.polyfit(room, change, 1)
    error = float(np.sqrt(line_errors(room[None], change, readings.groups(2))[0][0] / len(change)))
    return {"slope": float(slope), "intercept": float(intercept), "error": error}


def slopes(drawn: Cohort, readings: Readings, effort: Effort) -> list[dict[str, Any]]:
    """The slope of the change on the room: as read, without what both axes share, and what nulls give."""
    base, change, gain = readings.means()
    room, k = 1 - base["solved"], readings.k
    domains = readings.groups(2)
    kept = domains != least_room(room, domains)
    parts = halves(drawn, readings.rows, effort.splits, SEED)
    seeds, n = max(map(len, readings.rows)), readings.solved.shape[1]
    nulls = simulated(base, float(gain.mean()), seeds, n, k, effort.simulations, SEED)
    half = k // 2

    def row(reading: str, at: int, found: tuple[float, float, float], over: str) -> Slope:
        return Slope(reading=reading, k=at, slope=found[0], low=found[1], high=found[2], over=over)

    read = [
        row("as read", k, over_groups(room, change, domains), "domains"),
        row(
            "as read, without the domain of least room",
            k,
            over_groups(room[kept], change[kept], domains[kept]),
            "domains",
        ),
        row("as read, fewer draws", half, parts["same"], "splits"),
        row("room and change from other problems and draws", half, parts["split"], "splits"),
        row("null: RL changes nothing (the base's own draws)", half, parts["nothing"], "splits"),
        row("null: RL changes nothing", k, nulls["nothing"], "simulations"),
        row("null: one shift of all logits", k, nulls["shift"], "simulations"),
        row("null: every base at T = 0.5", k, nulls["tempered"], "simulations"),
        row(
            "null: scores after RL of another domain",
            k,
            unrelated(room, base["solved"] + change, domain_orders(readings)),
            "orders",
        ),
    ]
    return [asdict(one) for one in read]


def least_room(room: Floats, domains: Ints) -> int:
    """The domain whose settings have the least room on average."""
    return int(np.argmin([room[domains == one].mean() for one in range(domains.max() + 1)]))


def domain_orders(readings: Readings) -> Ints:
    """Orders in which whole domains change places. DataError where they differ in levels, models or methods."""
    blocks: dict[str, list[int]] = {}
    for place in sorted(range(len(readings.settings)), key=lambda i: readings.settings[i]):
        blocks.setdefault(readings.settings[place][2], []).append(place)
    kinds = {
        domain: [readings.settings[i][:2] + readings.settings[i][3:] for i in places]
        for domain, places in blocks.items()
    }
    for domain, one in kinds.items():
        if one != next(iter(kinds.values())):
            raise DataError(
                f"{domain} has other levels, models or methods than {next(iter(kinds))}; remove the runs that not every domain has."
            )
    return block_orders(list(blocks.values()))


def skill(readings: Readings, effort: Effort) -> dict[str, Any]:
    """Each predictor: rank correlation; sign and size in left-out domains and models; and what the axes alone give.

    p: the fraction of all orders in which whole domains exchange their scores after RL with an R^2 at least as high.
    """
    base, change, _ = readings.means()
    x, domains, models = predictors(base, readings.k), readings.groups(2), readings.groups(1)
    up = change > 0
    calls, orders = called(x, up, domains), domain_orders(readings)
    r2, by_model = explained(x, change, domains), explained(x, change, models)
    model_calls = called(x, up, models)
    after = base["solved"] + change
    # what the axes alone give: the base is part of the change, whichever domain's scores follow
    elsewhere = [after[order] - base["solved"] for order in orders]
    built = np.array([explained(x, moved, domains) for moved in elsewhere])
    built_sign = np.array([balanced(called(x, moved > 0, domains), moved > 0) for moved in elsewhere])
    errors = fold_errors(x, change, domains)
    boot = resampled_r2(readings, effort.resamples)
    names = list(PREDICTORS)
    lead = boot - boot[:, [names.index(ROOM)]]
    rows = [
        {
            "predictor": name,
            "spearman": spearman(x[i], change),
            "right": int((calls[i] == up).sum()),
            "balanced": float(balanced(calls, up)[i]),
            "balanced_models": float(balanced(model_calls, up)[i]),
            "r2": float(r2[i]),
            "r2_low": float(np.quantile(boot[:, i], 0.025)),
            "r2_high": float(np.quantile(boot[:, i], 0.975)),
            "p": float((built[:, i] >= r2[i] - 1e-12).mean()),
            "r2_models": float(by_model[i]),
            "built_r2": quantiles(built[:, i]),
            "built_balanced": quantiles(built_sign[:, i]),
            "better_domains": int((errors[i] < errors[names.index(ROOM)] - 1e-12).sum()),
            "lead_low": float(np.quantile(lead[:, i], 0.025)),
            "lead_high": float(np.quantile(lead[:, i], 0.975)),
        }
        for i, name in enumerate(names)
    ]
    return {
        "settings": len(change),
        "up": int(up.sum()),
        "domains": int(domains.max()) + 1,
        "orders": len(orders),
        "rows": rows,
    }


def resampled_r2(readings: Readings, resamples: int) -> Floats:
    """(resamples, predictors): `explained` over left-out domains, on resampled problems and seeds."""
    rng, domains = np.random.default_rng(SEED), readings.groups(2)
    found = []
    for _ in range(resamples):
        base, change, _ = readings.means(*readings.resampled(rng))
        found.append(explained(predictors(base, readings.k), change, domains))
    return np.array(found)
