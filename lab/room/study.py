"""The whole study as plain numbers: settings, checks, slopes, predictors, our own worlds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.room.base import PREDICTORS, ROOM, facts, predictors
from lab.room.cohort import FAMILIES, PACKAGE, VERSION, Cohort, common_noise, independent, noise_limit, overlap, own_pass8, pass_at
from lab.room.skill import balanced, block_orders, called, explained, fold_errors, line_errors, spearman
from lab.room.slopes import Slope, halves, over_groups, quantiles, simulated, unrelated
from lab.room.worlds import own_arms
from sage_rlvr.errors import DataError
from sage_rlvr.stats.intervals import seed_interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SEED = 20_261_126


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How often things are drawn: bootstrap, splits, simulations."""

    resamples: int = 400
    splits: int = 200
    simulations: int = 200


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What the analysis reads. facts: per run and problem; solved (R, N): any right of K after RL; rights: share right after RL."""

    settings: tuple[tuple[str, str, str, str], ...]
    rows: tuple[tuple[int, ...], ...]
    facts: Mapping[str, Floats]
    solved: Floats
    rights: Floats
    problems: Ints  # (R,): runs of one value share their problems
    k: int

    def family(self, methods: tuple[str, ...]) -> Tables:
        """The settings of these methods."""
        kept = [i for i, setting in enumerate(self.settings) if setting[3] in methods]
        return replace(self, settings=tuple(self.settings[i] for i in kept), rows=tuple(self.rows[i] for i in kept))

    def groups(self, field: int) -> Ints:
        """A number for each setting's level (0), model (1), domain (2) or method (3)."""
        return np.unique([setting[field] for setting in self.settings], return_inverse=True)[1].astype(np.int64)

    def means(self, weights: Floats | None = None, seeds: Floats | None = None) -> tuple[dict[str, Floats], Floats, Floats]:
        """Of each setting: means of the base's facts, score after RL less the base's, pass@1's gain.

        weights (P, N): of problems, by their set; seeds (S, R): of runs, by setting. Both sum to 1 in a row; None is the plain mean.
        """
        of_runs = {name: self._over_problems(values, weights) for name, values in self.facts.items()}
        after, rights = self._over_problems(self.solved, weights), self._over_problems(self.rights, weights)
        table = np.zeros((len(self.rows), len(self.solved)))
        if seeds is None:
            for place, rows in enumerate(self.rows):
                table[place, list(rows)] = 1 / len(rows)
        else:
            table = seeds
        base = {name: table @ values for name, values in of_runs.items()}
        return base, table @ after - base["solved"], table @ rights - base["right"]

    def _over_problems(self, values: Floats, weights: Floats | None) -> Floats:
        return values.mean(axis=1) if weights is None else (values * weights[self.problems]).sum(axis=1)

    def resampled(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Weights of one bootstrap: problems of each set, the same for all runs that share them; runs within a setting."""
        n = self.solved.shape[1]
        problems = rng.multinomial(n, np.full(n, 1 / n), size=int(self.problems.max()) + 1) / n
        seeds = np.zeros((len(self.rows), len(self.solved)))
        for place, rows in enumerate(self.rows):
            seeds[place, list(rows)] = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows))) / len(rows)
        return problems, seeds


def tables_of(cohort: Cohort) -> Tables:
    """From independent draws: cohort.before and after (R, N, K)."""
    settings = cohort.settings()
    sets = sorted({(run.level, run.domain) for run in cohort.runs})
    k = cohort.before.shape[-1]
    return Tables(
        settings=tuple(settings), rows=tuple(map(tuple, settings.values())), facts=facts(cohort.before), solved=pass_at(cohort.after, k),
        rights=(cohort.after > 0).mean(axis=-1), problems=np.array([sets.index((run.level, run.domain)) for run in cohort.runs]), k=k,
    )  # fmt: skip


def study(cohort: Cohort, printed: Mapping[tuple[str, str], float], effort: Effort) -> dict[str, Any]:
    """Everything that the page and the picture show. printed: the package's own table, empty where it cannot be read."""
    for name in ("domain", "model"):
        if len({getattr(run, name) for run in cohort.runs}) < 2:
            raise DataError(f"one {name} alone: a prediction needs another to be fitted on; give runs of at least two {name}s.")
    drawn = replace(cohort, before=independent(cohort.before), after=independent(cohort.after))
    tables = tables_of(drawn)
    rows = setting_rows(tables)
    return {
        "source": f"{PACKAGE} {VERSION} (arXiv 2610.11064), Apache-2.0; counts and means derived from its released answers",
        "k": tables.k,
        "effort": asdict(effort),
        "checks": checks(cohort, drawn, printed),
        "noise": noise(drawn),
        "settings": rows,
        "bands": {name: bands([row for row in rows if row["method"] in methods]) for name, methods in FAMILIES.items()},
        "runs": run_rows(drawn, tables),
        "slopes": {name: slopes(drawn, tables.family(methods), effort) for name, methods in FAMILIES.items()},
        "skill": {name: skill(tables.family(methods), effort) for name, methods in FAMILIES.items()},
        "worlds": [asdict(arm) | {"room": arm.room, "change": arm.change} for arm in own_arms(tables.k)],
        "lines": {name: line(tables.family(methods)) for name, methods in FAMILIES.items()},
    }


def checks(cohort: Cohort, drawn: Cohort, printed: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """Do their own numbers come out? Where do the answers hang together?"""
    runs = np.stack([(answers > 0).any(axis=-1).mean(axis=(1, 2)) for answers in (cohort.before, cohort.after)], axis=1)
    read = ~np.isnan(cohort.printed) & np.stack([[run.own for run in cohort.runs], np.ones(len(cohort.runs), dtype=bool)], axis=1)
    own = own_pass8(cohort)
    copies = [
        float((drawn.before[row] == drawn.before[rows[0]]).mean())
        for rows in drawn.cells().values()
        for row in rows[1:]
        if drawn.runs[row].own
    ]
    return {
        "runs": len(cohort.runs),
        "without_after": cohort.without_after,
        "without_base": sum(not run.own for run in cohort.runs),
        "printed_cells": len(printed),
        "printed_cells_reproduced": sum(abs(own[cell] - value) <= 0.0005 + 1e-9 for cell, value in printed.items()),
        "checkpoints": int(read.sum()),
        "checkpoints_reproduced": int((np.abs(runs - cohort.printed)[read] < 1e-9).sum()),
        "overlap": {"before": overlap(cohort.before), "after": overlap(cohort.after)},
        "bases": len(drawn.cells()),
        "base_copies": {"least": min(copies), "median": float(np.median(copies))} if copies else None,
    }


def noise(drawn: Cohort) -> dict[str, Any]:
    """`common_noise` of each cell's first base and of all policies after RL."""
    limit = noise_limit(drawn.before.shape[-1])
    before = {"/".join(cell): common_noise(drawn.before[rows[0]]) for cell, rows in drawn.cells().items()}
    after = np.array([common_noise(one) for one in drawn.after])

    def counted(values: Floats) -> dict[str, Any]:
        seen = values[~np.isnan(values)]
        seen = seen if len(seen) else np.zeros(1)  # every problem always right or always wrong: nothing to compare
        return {"read": int((~np.isnan(values)).sum()), "above": int((seen > limit).sum()), "median": float(np.median(seen)), "largest": float(seen.max())}

    return {"limit": limit, "before": counted(np.array(list(before.values()))), "after": counted(after), "of_base": before}


def setting_rows(tables: Tables) -> list[dict[str, Any]]:
    """One row a setting: the base, and the change of pass@K and pass@1 over training seeds."""
    found = []
    base, after = tables.facts["solved"].mean(axis=1), tables.solved.mean(axis=1)
    one, then = tables.facts["right"].mean(axis=1), tables.rights.mean(axis=1)
    for (level, model, domain, method), rows in zip(tables.settings, tables.rows, strict=True):
        places = list(rows)
        gap = seed_interval(after[places] - base[places])
        found.append({
            "level": level, "model": model, "domain": domain, "method": method, "seeds": len(places),
            "base": float(base[places].mean()), "base1": float(one[places].mean()), "change": gap.value, "low": gap.low, "high": gap.high,
            "change1": float((then - one)[places].mean()), "changes": (after[places] - base[places]).tolist(),
        })  # fmt: skip
    return found


def run_rows(drawn: Cohort, tables: Tables) -> list[dict[str, Any]]:
    """One row a run, with counts of problems: solved at least once in K draws before and after, and right draws."""
    n = tables.solved.shape[1]
    return [
        {
            "level": run.level, "model": run.model, "domain": run.domain, "method": run.method, "seed": run.seed, "own_base": run.own,
            "problems": n, "solved_before": int(tables.facts["solved"][i].sum()), "solved_after": int(tables.solved[i].sum()),
            "right_before": int((drawn.before[i] > 0).sum()), "right_after": int((drawn.after[i] > 0).sum()),
        }
        for i, run in enumerate(drawn.runs)
    ]  # fmt: skip


BANDS = (0.0, 0.05, 0.35, 0.85, 1.0)


def bands(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many settings widen and narrow, by the base's pass@K: the interval over seeds excludes 0, unadjusted."""
    found = []
    for low, high in pairwise(BANDS):
        here = [row for row in rows if low <= row["base"] < high or row["base"] == high == 1]
        found.append({
            "low": low, "high": high, "settings": len(here), "domains": sorted({row["domain"] for row in here}),
            "wider": sum(row["low"] > 0 for row in here), "narrower": sum(row["high"] < 0 for row in here),
        })  # fmt: skip
    return found


def line(tables: Tables) -> dict[str, float]:
    """change = intercept + slope * room over settings; error: of domains that were left out, root mean square."""
    base, change, _ = tables.means()
    room = 1 - base["solved"]
    slope, intercept = np.polyfit(room, change, 1)
    error = float(np.sqrt(line_errors(room[None], change, tables.groups(2))[0][0] / len(change)))
    return {"slope": float(slope), "intercept": float(intercept), "error": error}


def slopes(drawn: Cohort, tables: Tables, effort: Effort) -> list[dict[str, Any]]:
    """The slope of the change on the room: as read, without what both axes share, and what nulls give."""
    base, change, gain = tables.means()
    room, k = 1 - base["solved"], tables.k
    domains = tables.groups(2)
    kept = domains != least_room(room, domains)
    parts = halves(drawn, tables.rows, effort.splits, SEED)
    seeds, n = max(map(len, tables.rows)), tables.solved.shape[1]
    nulls = simulated(base, float(gain.mean()), seeds, n, k, effort.simulations, SEED)
    half = k // 2

    def row(reading: str, at: int, found: tuple[float, float, float], over: str) -> Slope:
        return Slope(reading=reading, k=at, slope=found[0], low=found[1], high=found[2], over=over)

    read = [
        row("as read", k, over_groups(room, change, domains), "domains"),
        row("as read, without the domain of least room", k, over_groups(room[kept], change[kept], domains[kept]), "domains"),
        row("as read, fewer draws", half, parts["same"], "splits"),
        row("room and change from other problems and draws", half, parts["split"], "splits"),
        row("null: RL changes nothing (the base's own draws)", half, parts["nothing"], "splits"),
        row("null: RL changes nothing", k, nulls["nothing"], "simulations"),
        row("null: one shift of all logits", k, nulls["shift"], "simulations"),
        row("null: every base at T = 0.5", k, nulls["tempered"], "simulations"),
        row("null: scores after RL of another domain", k, unrelated(room, base["solved"] + change, domain_orders(tables)), "orders"),
    ]
    return [asdict(one) for one in read]


def least_room(room: Floats, domains: Ints) -> int:
    """The domain whose settings have the least room on average."""
    return int(np.argmin([room[domains == one].mean() for one in range(domains.max() + 1)]))


def domain_orders(tables: Tables) -> Ints:
    """Whole domains change places, each setting with the one of the same level, model and method. DataError where one has no such."""
    blocks: dict[str, list[int]] = {}
    for place in sorted(range(len(tables.settings)), key=lambda i: tables.settings[i]):
        blocks.setdefault(tables.settings[place][2], []).append(place)
    kinds = {domain: [tables.settings[i][:2] + tables.settings[i][3:] for i in places] for domain, places in blocks.items()}
    for domain, one in kinds.items():
        if one != next(iter(kinds.values())):
            raise DataError(f"{domain} has other levels, models or methods than {next(iter(kinds))}; leave out what is not in every domain.")
    return block_orders(list(blocks.values()))


def skill(tables: Tables, effort: Effort) -> dict[str, Any]:
    """Each predictor: rank correlation, sign and size by leave-one-domain-out and leave-one-model-out, and what the axes alone give.

    p: in how many of all orders in which whole domains exchange their scores after RL R^2 is at least as high; the order as is counts.
    """
    base, change, _ = tables.means()
    x, domains, models = predictors(base, tables.k), tables.groups(2), tables.groups(1)
    up = change > 0
    calls, orders = called(x, up, domains), domain_orders(tables)
    r2, by_model = explained(x, change, domains), explained(x, change, models)
    model_calls = called(x, up, models)
    after = base["solved"] + change
    elsewhere = [after[order] - base["solved"] for order in orders]  # what the axes alone give: the base is part of the change
    built = np.array([explained(x, moved, domains) for moved in elsewhere])
    built_sign = np.array([balanced(called(x, moved > 0, domains), moved > 0) for moved in elsewhere])
    errors = fold_errors(x, change, domains)
    rng = np.random.default_rng(SEED)
    again = []
    for _ in range(effort.resamples):
        means, moved, _ = tables.means(*tables.resampled(rng))
        again.append(explained(predictors(means, tables.k), moved, domains))
    boot = np.array(again)
    names = list(PREDICTORS)
    lead = boot - boot[:, [names.index(ROOM)]]
    rows = [
        {
            "predictor": name, "spearman": spearman(x[i], change),
            "right": int((calls[i] == up).sum()), "balanced": float(balanced(calls, up)[i]),
            "balanced_models": float(balanced(model_calls, up)[i]),
            "r2": float(r2[i]), "r2_low": float(np.quantile(boot[:, i], 0.025)), "r2_high": float(np.quantile(boot[:, i], 0.975)),
            "p": float((built[:, i] >= r2[i] - 1e-12).mean()), "r2_models": float(by_model[i]),
            "built_r2": quantiles(built[:, i]), "built_balanced": quantiles(built_sign[:, i]),
            "better_domains": int((errors[i] < errors[names.index(ROOM)] - 1e-12).sum()),
            "lead_low": float(np.quantile(lead[:, i], 0.025)), "lead_high": float(np.quantile(lead[:, i], 0.975)),
        }
        for i, name in enumerate(names)
    ]  # fmt: skip
    return {"settings": len(change), "up": int(up.sum()), "domains": int(domains.max()) + 1, "orders": len(orders), "rows": rows}
