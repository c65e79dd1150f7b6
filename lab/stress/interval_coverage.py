"""How often the intervals cover and how often the verdicts cry wolf, by simulation: the tables of lab/pages/results/coverage.md.

python -m lab.stress.interval_coverage                          prints them (some minutes)
python -m lab.stress.interval_coverage --docs lab/pages/results/coverage.md  writes them into that page
python -m lab.stress.interval_coverage --tables lone loneband   these alone
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lab.hull import CELLS, error_rates
from lab.hull_samples import samples_table
from sage_rlvr.verdicts.stats.curves import paired_curve, probability_of_improvement, seed_ks, seeds_curve
from sage_rlvr.verdicts.stats.frontier import FrontierPoint, compare_count_frontiers, frontier, gap_to_frontier
from sage_rlvr.verdicts.stats.hull import above_hull, compare_hull, on_hull
from sage_rlvr.verdicts.stats.intervals import (
    bootstrap_sees,
    column_intervals,
    difference_reach,
    mean_interval,
    share_interval,
    share_limits,
    third_moment,
)
from sage_rlvr.verdicts.stats.leash import leash_discoveries
from sage_rlvr.verdicts.stats.paired import PairedDifference, holm, paired, paired_seed_counts, paired_seeds
from sage_rlvr.verdicts.stats.passk import exact_pass_at_k, pass_at_k

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PROBLEMS = (40, 60, 134)  # AMC23, AIME 2024 and 2025, MATH-500 level 5
MANY = (300, 600)  # the Countdown demo, and twice as many
KS = (1, 8, 64, 256)
SAMPLES = 256
SEED = 3407
RESAMPLES = 1000  # of each bootstrap here, a quarter of what the verdicts draw
TYPES = 100_000  # problems a world has; problems of a data set are drawn from these, with replacement
WANTED = 0.93


@dataclass(frozen=True)
class World:
    """Success probabilities of one policy, TYPES of them: a share `never` is 0, the others come from Betas (weight, a, b)."""

    name: str
    never: float
    betas: tuple[tuple[float, float, float], ...]

    def draw(self) -> Floats:
        """(TYPES,) probabilities, the same at every call."""
        rng = np.random.default_rng(SEED)
        weights = np.array([weight for weight, _, _ in self.betas])
        kind = rng.choice(len(self.betas), TYPES, p=weights / weights.sum())
        p = np.zeros(TYPES)
        for i, (_, a, b) in enumerate(self.betas):
            p[kind == i] = rng.beta(a, b, int(np.sum(kind == i)))
        return np.where(rng.random(TYPES) < self.never, 0.0, p)


WORLDS = (
    World("AIME-like", 0.35, ((0.85, 0.3, 25.0), (0.15, 0.6, 2.0))),  # pass@1 0.03, pass@256 0.38
    World("AMC-like", 0.03, ((1.0, 0.65, 0.85),)),  # 0.42, 0.95
    World("MATH-like", 0.20, ((0.75, 0.5, 1.2), (0.25, 2.0, 1.0))),  # 0.31, 0.76
    World("U-shaped", 0.0, ((1.0, 0.12, 0.3),)),  # 0.29, 0.64
)
RARE = World("out of reach", 0.90, ((1.0, 0.5, 3.0),))  # nine problems of ten are never solved: 0.014, 0.09
LONE_WORLDS = (World("never solved", 1.0, ((1.0, 1.0, 1.0),)), WORLDS[0], WORLDS[2])  # what both policies share
LONE_SHARES, LONE_PROBLEMS, LONE_KS = (0.01, 0.02, 0.03, 0.05), (134, 200, 300, 600), (KS[0], KS[-1])
_COUNTED = f"{SAMPLES} samples"
DISCOVERIES = (  # equal policies on narrow and broad worlds: problems, samples of each
    (World("all p near 0.02", 0.0, ((1.0, 2e5, 9.8e6),)), 1000, 256),
    (World("all p near 0.016", 0.0, ((1.0, 1.6e5, 9.84e6),)), 300, 256),
    (World("p from Beta(0.5, 20)", 0.0, ((1.0, 0.5, 20.0),)), 1000, 256),
    (World("p from Beta(0.3, 6)", 0.0, ((1.0, 0.3, 6.0),)), 100, 32),
    (WORLDS[0], 30, 256),
    (WORLDS[2], 134, 256),
    (WORLDS[3], 300, 256),
)
EFFECTS = ((0.0, 0.7), (0.8, 0.5))  # of the second policy on the logits: mean and scatter over problems

Table = dict[tuple[str, int, int], float]  # (world, problems, k) -> share
Held = tuple[float, float, float]  # shares of intervals that hold the truth, lie wholly above it, wholly below it


def coverage_single(worlds: Sequence[World] = WORLDS, draws: int = 2000, sizes: Sequence[int] = PROBLEMS) -> Table:
    """How often the interval of pass@k (`share_interval` of the unbiased estimates) holds the world's pass@k."""
    out, rng = {}, np.random.default_rng(SEED)
    for world, n in product(worlds, sizes):
        p = world.draw()
        counts = rng.binomial(SAMPLES, rng.choice(p, (draws, n)))
        for k in KS:
            out[world.name, n, k] = _held(*single_limits(_unbiased(k)[counts]), _mean(p, k))[0]
    return out


def coverage_difference(worlds: Sequence[World] = WORLDS, draws: int = 2000, sizes: Sequence[int] = PROBLEMS) -> Table:
    """The same for the difference of two policies on the same problems (as `paired`), the worse of two effects."""
    out, rng = {}, np.random.default_rng(SEED)
    for (name, a, b), n in product(_pairs(worlds), sizes):
        _, left, right = _data_set(a, b, rng, (draws, n))
        for k in KS:
            limits = difference_limits(_unbiased(k)[left], _unbiased(k)[right])
            out[name, n, k] = min(out.get((name, n, k), 1.0), _held(*limits, _gap(a, b, k))[0])
    return out


def coverage_band(worlds: Sequence[World] = (*WORLDS, RARE), draws: int = 300) -> dict[tuple[str, int], float]:
    """How often the band of `paired_curve` holds the true difference at k = 1, 2, 4, ... 256 all at once."""
    ks = tuple(2**i for i in range(9))
    out, rng, values = {}, np.random.default_rng(SEED), _unbiased(*ks)
    for (name, a, b), n in product(_pairs(worlds), PROBLEMS):
        truth = np.array([_gap(a, b, k) for k in ks])
        scores = (_data_set(a, b, rng, n)[1:] for _ in range(draws))
        held = [_band_holds(values[left], values[right], ks, truth) for left, right in scores]
        out[name, n] = min(out.get((name, n), 1.0), float(np.mean(held)))
    return out


def coverage_lone(
    draws: int = 2000, sizes: Sequence[int] = LONE_PROBLEMS, shares: Sequence[float] = LONE_SHARES
) -> dict[tuple[float, int, str, int], Held]:
    """How the interval of `paired` holds the difference of two policies of which one alone solves a share of the problems
    (`lone`): (share, problems, "exact" or "256 samples", k) -> `Held`, each the worst of LONE_WORLDS; draws in which no problem
    differs at all, called identical, are left out."""
    out: dict[tuple[float, int, str, int], Held] = {}
    rng = np.random.default_rng(SEED)
    for share, world, n in product(shares, LONE_WORLDS, sizes):
        a, b = lone(world, share)
        rows, left, right = _data_set(a, b, rng, (draws, n))
        for kind, k in product(("exact", _COUNTED), LONE_KS):
            x, y = _scores(kind, (a, b), rows, (left, right), k)
            differ = np.any(x != y, axis=1)
            found = _held(*difference_limits(x[differ], y[differ]), _gap(a, b, k))
            key = share, n, kind, k
            out[key] = _worst([found, out.get(key, found)])
    return out


def coverage_lone_band(
    draws: int = 1000, sizes: Sequence[int] = LONE_PROBLEMS, shares: Sequence[float] = LONE_SHARES
) -> dict[tuple[str, int], str]:
    """The same for the band of `paired_curve`, at k = 1, 4, 16, 64, 256 all at once: (share, problems) -> "exact, 256 samples"."""
    ks, out, rng = seed_ks(SAMPLES), {}, np.random.default_rng(SEED)
    for share, n in product(shares, sizes):
        least = {"exact": 1.0, _COUNTED: 1.0}
        for world in LONE_WORLDS:
            a, b = lone(world, share)
            truth, held = np.array([_gap(a, b, k) for k in ks]), {kind: [] for kind in least}
            for _, kind in product(range(draws), least):
                if kind == "exact":
                    rows, *counts = _data_set(a, b, rng, n)
                x, y = _scores(kind, (a, b), rows, counts, *ks)
                if np.any(x != y):
                    held[kind].append(_band_holds(x, y, ks, truth))
            least = {kind: min(x, float(np.mean(held[kind]))) for kind, x in least.items()}
        out[f"{100 * share:g} %", n] = ", ".join(f"{x:.3f}" for x in least.values())
    return out


@cache
def lone(world: World, share: float) -> tuple[Floats, Floats]:
    """Two policies of the world, a and b, that agree but on `share` of the problems, which b alone solves (p from Beta(1, 2))."""
    rng, p = np.random.default_rng(SEED + 2), world.draw()
    alone = rng.random(TYPES) < share
    return np.where(alone, 0.0, p), np.where(alone, rng.beta(1.0, 2.0, TYPES), p)


def coverage_seeds(times: int = 400, problems: int = 60) -> dict[tuple[int, str], float]:
    """How often the band of `seeds_curve` over 1, 4, 16, 64, 256 holds the true difference of two methods at all k at once:
    (training seeds, world) -> share. Runs scatter as in `relabelled`, the problems held fixed; the truth is the mean over
    4000 runs of each method."""
    ks, out = seed_ks(SAMPLES), {}
    for world in WORLDS:
        rng = np.random.default_rng(SEED)
        home = rng.choice(world.draw(), problems)
        away = _shifted(home, rng.normal(0.4, 0.5, problems))
        many = [_runs(p, 4000, rng) for p in (home, away)]
        truth = np.array([_mean(many[0], k) - _mean(many[1], k) for k in ks])
        for seeds in (3, 6):
            held = []
            for _ in range(times):
                a, b = (_unbiased(*ks)[rng.binomial(SAMPLES, _runs(p, seeds, rng))] for p in (home, away))
                held.append(_band_holds(a, b, ks, truth, partial(seeds_curve, fixed=True)))
            out[seeds, world.name] = float(np.mean(held))
    return out


def coverage_frontier(
    worlds: Sequence[World] = WORLDS, sizes: Sequence[int] = PROBLEMS[1:], draws: int = 100
) -> dict[tuple[str, int], tuple[float, float]]:
    """The gap of two temperature frontiers from samples (`compare_count_frontiers`, k = 64): how often its interval holds the
    true one, where one is given, and how often one is given. Three temperatures that trade the spread of the logits for their
    mean; two policies that differ by 0.7 at random on the logits of each problem."""
    out, k, heat = {}, 64, {0.4: (1.5, 1.6), 0.7: (1.2, 0.8), 1.0: (1.0, 0.0)}
    for world in worlds:
        at = [{t: _heated(p, *bend) for t, bend in heat.items()} for p in policies(world)[0]]
        truth = gap_to_frontier(*(frontier(ps, k) for ps in at)).value
        rng = np.random.default_rng(SEED)
        for n in sizes:
            held = []
            for _ in range(draws):
                rows = rng.integers(TYPES, size=n)
                drawn = ({t: (SAMPLES, rng.binomial(SAMPLES, p[rows])) for t, p in ps.items()} for ps in at)
                found = compare_count_frontiers(*drawn, k=k, resamples=400)
                if found.difference is not None and truth is not None:
                    held.append(found.difference.contains(truth))
            out[world.name, n] = float(np.mean(held)) if held else float("nan"), len(held) / draws
    return out


def coverage_bca(worlds: Sequence[World] = WORLDS, draws: int = 400) -> dict[tuple[str, int], tuple[float, float]]:
    """(pass@k, difference): the least coverage over KS of BCa alone, at all sizes: why it is not used alone."""
    out, rng = {}, np.random.default_rng(SEED)
    for world, n in product(worlds, (*PROBLEMS, MANY[0])):
        a, b = policies(world)[0]
        _, left, right = _data_set(a, b, rng, (draws, n))
        cells = []
        for k in KS:
            x, y = _unbiased(k)[left], _unbiased(k)[right]
            sides = ((x, _mean(a, k)), (x - y, _mean(a, k) - _mean(b, k)))
            cells.append([np.mean([mean_interval(row, resamples=400).contains(t) for row in v]) for v, t in sides])
        out[world.name, n] = tuple(np.min(cells, axis=0).tolist())
    return out


def relabelled(seeds: int, times: int = 400, problems: int = 60, samples: int = 64, k: int = 16) -> dict[str, float]:
    """Two halves of one arm, relabeled A and B: how often each rule calls A better. 2 x `seeds` training runs of one
    method on `problems` AIME-like problems, `samples` of each; runs scatter as a whole and problem by problem."""
    rng, types = np.random.default_rng(SEED + seeds), WORLDS[0].draw()
    called = dict.fromkeys(RULES, 0)
    for _ in range(times):
        runs = _runs(rng.choice(types, problems), 2 * seeds, rng)
        scores = np.asarray(pass_at_k(samples, rng.binomial(samples, runs), k))
        for name, rule in RULES.items():
            called[name] += rule(scores[:seeds], scores[seeds:])
    return {name: hits / times for name, hits in called.items()}


RULES: Mapping[str, Callable[[Floats, Floats], bool]] = {
    "methods: paired_seeds": lambda a, b: paired_seeds(a, b, fixed=True).outcome == "better",
    "methods: P(A > B) above 1/2": lambda a, b: (
        probability_of_improvement(a, b, over="training seeds", fixed=True).outcome == "better"
    ),
}


def coverage_seed_counts(seeds: int, once: bool, times: int = 400, problems: int = 60) -> dict[str, Held]:
    """How the intervals of a difference of methods from counts hold the truth: rule -> `Held`, each the worst of the AIME-like
    and AMC-like worlds at k = 1 and 256, SAMPLES a problem.

    Student's interval of the estimates beside `paired_seed_counts`. once: the other side is one policy, evaluated once, else
    as many runs of another method. Runs scatter as in `relabelled`, the problems are fixed; the truth is the mean over 4000
    runs of a method.
    """
    found: dict[str, list[Held]] = {name: [] for name in COUNT_RULES}
    for world, k in product(WORLDS[:2], (KS[0], KS[-1])):
        rng = np.random.default_rng(SEED + seeds)
        home = rng.choice(world.draw(), problems)
        away = home if once else _shifted(home, rng.normal(0.4, 0.5, problems))
        truth = _mean(_runs(home, 4000, rng), k) - _mean(home if once else _runs(away, 4000, rng), k)
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in COUNT_RULES}
        for _ in range(times):
            a = rng.binomial(SAMPLES, _runs(home, seeds, rng))
            b = rng.binomial(SAMPLES, home[None] if once else _runs(away, seeds, rng))
            for name, rule in COUNT_RULES.items():
                interval = rule(a, b, k).difference
                seen[name].append((interval.low, interval.high))
        for name, ends in seen.items():
            found[name].append(_held(*np.array(ends).T, truth))
    return {name: _worst(cells) for name, cells in found.items()}


COUNT_RULES: Mapping[str, Callable[[Ints, Ints, int], PairedDifference]] = {
    "Student alone": lambda a, b, k: paired_seeds(*np.broadcast_arrays(_unbiased(k)[a], _unbiased(k)[b]), fixed=True),
    "paired_seed_counts": lambda a, b, k: paired_seed_counts(SAMPLES, a, b, k, fixed=True),
}


def relabelled_checkpoints(times: int = 400) -> dict[tuple[int, int], float]:
    """The halves of one checkpoint's samples: (problems, k) -> how often `paired` calls A better, the worse of two worlds."""
    out, rng = {}, np.random.default_rng(SEED)
    for n, k, world in product(PROBLEMS, (KS[0], KS[-1]), (WORLDS[0], WORLDS[3])):
        p = rng.choice(world.draw(), (times, n))
        halves = _unbiased(k)[rng.binomial(SAMPLES, p)], _unbiased(k)[rng.binomial(SAMPLES, p)]
        better = np.mean([paired(a, b).outcome == "better" for a, b in zip(*halves, strict=True)])
        out[n, k] = max(out.get((n, k), 0.0), float(better))
    return out


def coverage_discoveries(
    times: int = 1000, worlds: Sequence[tuple[World, int, int]] | None = None
) -> dict[tuple[str, int, int], tuple[float, float, float]]:
    """`leash_discoveries` of two equal policies on worlds (world, problems, samples; None: DISCOVERIES) -> (how often even one
    problem is called new or lost, share found of ten more problems that the base never solves and the policy in 16 samples on
    average, how often Holm over the problems that one alone solved, one-sided, would call one: why it is not used)."""
    out, rng = {}, np.random.default_rng(SEED)
    for world, problems, n in DISCOVERIES if worlds is None else worlds:
        types, told = world.draw(), []
        for _ in range(times):
            p = rng.choice(types, problems)
            base, policy = rng.binomial(n, p), rng.binomial(n, p)
            found = leash_discoveries(n, base, n, policy)
            of_one = (base + policy)[(base == 0) ^ (policy == 0)]
            picked = np.any(holm(stats.hypergeom.pmf(of_one, 2 * n, of_one, n)) < 0.05)
            real = np.append(policy, rng.binomial(n, 16 / n, 10))
            more = leash_discoveries(n, np.append(base, np.zeros(10, int)), n, real)
            told.append((found.new.any() or found.lost.any(), more.new[-10:].sum() / 10, picked))
        out[world.name, problems, n] = tuple(np.mean(told, axis=0).tolist())
    return out


# ---- policies and data sets


def policies(world: World) -> list[tuple[Floats, Floats]]:
    """The world's policy and another one on the same problems, for each of EFFECTS."""
    p = world.draw()
    noise = np.random.default_rng(SEED + 1).standard_normal(TYPES)
    return [(p, _shifted(p, shift + scatter * noise)) for shift, scatter in EFFECTS]


def _pairs(worlds: Sequence[World]) -> list[tuple[str, Floats, Floats]]:
    return [(world.name, a, b) for world in worlds for a, b in policies(world)]


def _data_set(a: Floats, b: Floats, rng: np.random.Generator, size: int | tuple[int, int]) -> tuple[Ints, Ints, Ints]:
    """Problems drawn from the world, and how many of SAMPLES are right by either policy."""
    rows = rng.integers(TYPES, size=size)
    return rows, rng.binomial(SAMPLES, a[rows]), rng.binomial(SAMPLES, b[rows])


def _scores(
    kind: str, pair: tuple[Floats, Floats], rows: Ints, counts: Sequence[Ints], *ks: int
) -> tuple[Floats, Floats]:
    """pass@k of both policies on a data set, exact or from the counts; a last axis for several ks."""
    tables = [_exact(p, *ks)[rows] for p in pair] if kind == "exact" else [_unbiased(*ks)[c] for c in counts]
    return tables[0], tables[1]


@cache
def _unbiased(*ks: int) -> Floats:
    """Unbiased pass@k of every count of SAMPLES, (SAMPLES + 1,), with a column each for several ks."""
    columns = [np.asarray(pass_at_k(SAMPLES, np.arange(SAMPLES + 1), k)) for k in ks]
    return np.stack(columns, axis=1) if len(ks) > 1 else columns[0]


def _exact(p: Floats, *ks: int) -> Floats:
    return np.asarray(exact_pass_at_k(p[..., None], np.array(ks)) if len(ks) > 1 else exact_pass_at_k(p, ks[0]))


def _mean(p: Floats, k: int) -> float:
    return float(np.mean(_exact(p, k)))


def _gap(a: Floats, b: Floats, k: int) -> float:
    return float(np.mean(_exact(a, k) - _exact(b, k)))


def _runs(p: Floats, runs: int, rng: np.random.Generator) -> Floats:
    """(runs, N): training runs of a method whose mean run is near p (N,), scattered as a whole and problem by problem."""
    return _shifted(p, rng.normal(0, 0.15, (runs, 1)) + rng.normal(0, 0.4, (runs, len(p))))


def _heated(p: Floats, stretch: float, lift: float) -> Floats:
    """A colder policy: logits stretched away from 0 and lifted; 0 stays 0."""
    logits = np.log(np.maximum(p, 1e-300)) - np.log(np.maximum(1 - p, 1e-300))
    return np.where(p > 0, 1 / (1 + np.exp(-np.clip(stretch * logits + lift, -700, 700))), 0.0)


# GRPO's means over the eight seeds of frontier_again.yaml (betas 0, .0125, .025; pass@1, pass@k at T = .4, .6, .8, 1, 1.15, 1.3),
# how far seeds lie from them, and how pass@k goes with pass@1. At T >= .4 a seed that lies high does so at every temperature.
RIVALS: Mapping[int, tuple[tuple[tuple[float, float], ...], ...]] = {
    8: (
        ((0.107, 0.223), (0.105, 0.257), (0.103, 0.283), (0.100, 0.303), (0.097, 0.313), (0.092, 0.318)),
        ((0.106, 0.301), (0.105, 0.340), (0.102, 0.360), (0.098, 0.369), (0.094, 0.370), (0.088, 0.365)),
        ((0.092, 0.319), (0.091, 0.353), (0.088, 0.366), (0.084, 0.367), (0.080, 0.362), (0.075, 0.352)),
    ),
    256: (
        ((0.107, 0.394), (0.105, 0.510), (0.103, 0.601), (0.100, 0.670), (0.097, 0.712), (0.092, 0.747)),
        ((0.106, 0.623), (0.105, 0.743), (0.102, 0.819), (0.098, 0.864), (0.094, 0.885), (0.088, 0.899)),
        ((0.092, 0.738), (0.091, 0.842), (0.088, 0.888), (0.084, 0.911), (0.080, 0.921), (0.075, 0.925)),
    ),
}
SPREAD: Mapping[int, tuple[float, float, float]] = {8: (0.012, 0.022, 0.5), 256: (0.012, 0.035, -0.15)}
PLACES = {"end": 0.107, "steep": 0.104, "corner": 0.098, "flat": 0.085}  # the candidate's true pass@1


def coverage_hull(draws: int, seeds: int = 8) -> dict[tuple[int, str], tuple[float, float, float, float]]:
    """Of `compare_hull`, a candidate of the rivals' own spread that lies on their hull: the shares of intervals that hold the
    truth, lie wholly above it and wholly below, and the mean error."""
    rng, found = np.random.default_rng(SEED), {}
    for (k, rivals), (place, x) in product(RIVALS.items(), PLACES.items()):
        top = on_hull(x, [_lines(np.array(one)[None]) for one in rivals])
        assert top is not None
        wide, high, together = SPREAD[k]
        cover = np.array([[wide**2, together * wide * high], [together * wide * high, high**2]])
        read = []
        for _ in range(draws):
            noise = rng.multivariate_normal(np.zeros(2), cover, (1 + len(rivals), seeds, 1))
            others = [_lines(np.array(one) + moved) for one, moved in zip(rivals, noise[1:], strict=True)]
            gap = above_hull(_lines(np.array([[x, top.height]]) + noise[0], at=1.0), others)
            assert gap is not None
            read.append(compare_hull(gap).difference)
        low, high_end, value = (np.array([getattr(one, end) for one in read]) for end in ("low", "high", "value"))
        found[k, place] = (*_held(low, high_end, 0.0), float(value.mean()))
    return found


def _lines(seeds: Floats, at: float = 0.0) -> list[list[FrontierPoint]]:
    """Frontiers of (seeds, temperatures, 2), the temperatures counted from `at` on."""
    return [[FrontierPoint(temperature=at + t, pass1=a, passk=b) for t, (a, b) in enumerate(line)] for line in seeds.tolist()]


def _shifted(p: Floats, by: Floats) -> Floats:
    """p moved by `by` on the logits; 0 stays 0."""
    odds = p / np.maximum(1 - p, 1e-300) * np.exp(by)
    return odds / (1 + odds)


# ---- intervals of many data sets at once


def single_limits(values: Floats) -> tuple[Floats, Floats]:
    """Ends of `share_interval` for every row of values (R, N) at once."""
    low, high = share_limits(values.mean(axis=1), values.var(axis=1, ddof=1), values.shape[1])
    coins = np.all((values == 0) | (values == 1), axis=1)
    for i in np.flatnonzero(coins):  # Wilson
        found = share_interval(values[i])
        low[i], high[i] = found.low, found.high
    seen = [i for i in np.flatnonzero(~coins) if bootstrap_sees(values[i]) and bootstrap_sees(1 - values[i])]
    return _redrawn(values, seen, low, high)


def difference_limits(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Ends of the interval of `paired` for every pair of rows of left and right (R, N) at once."""
    n, (a, b) = left.shape[1], (left.mean(axis=1), right.mean(axis=1))
    x, y = left - a[:, None], right - b[:, None]
    variances = (np.sum(x * x, axis=1) / (n - 1), np.sum(y * y, axis=1) / (n - 1))
    gaps = left - right
    below, above = difference_reach((a, b), variances, np.sum(x * y, axis=1) / (n - 1), third_moment(gaps.T), n)
    low, high = np.maximum(a - b - below, -1.0), np.minimum(a - b + above, 1.0)
    return _redrawn(gaps, [i for i, row in enumerate(gaps) if bootstrap_sees(row)], low, high)


def _redrawn(values: Floats, seen: Sequence[int], low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """low and high with BCa's ends in the rows `seen`; all rows draw the same problems again, as the fixed seed has it."""
    for i, found in zip(seen, column_intervals(values[seen].T, resamples=RESAMPLES) if len(seen) else (), strict=True):
        low[i], high[i] = found.low, found.high
    return low, high


def _held(low: Floats, high: Floats, truth: float) -> Held:
    above, below = low > truth + 1e-12, high < truth - 1e-12
    return float(np.mean(~(above | below))), float(np.mean(above)), float(np.mean(below))


def _worst(cells: Sequence[Held]) -> Held:
    held, above, below = zip(*cells, strict=True)
    return min(held), max(above), max(below)


def _band_holds(x: Floats, y: Floats, ks: Sequence[int], truth: Floats, rule: Callable[..., Any] | None = None) -> bool:
    """Whether the band of `rule`, `paired_curve` with few resamples unless told, holds the truth at all ks."""
    band = rule(x, y, ks) if rule else paired_curve(x, y, ks, resamples=400)
    return bool(np.all((band.low <= truth + 1e-12) & (truth - 1e-12 <= band.high)))


# ---- tables


def pivot(cells: Iterable[tuple[tuple[Any, ...], Any]], *heads: str) -> str:
    """A Markdown table: `heads` over the first parts of the keys, a column for each last part; numbers with three digits."""
    rows: dict[tuple[Any, ...], dict[Any, str]] = {}
    for (*row, column), value in cells:
        rows.setdefault(tuple(row), {})[column] = f"{value:.3f}" if isinstance(value, float) else value
    columns = list(dict.fromkeys(column for found in rows.values() for column in found))
    lines = [(*heads, *columns), *((*row, *(found[column] for column in columns)) for row, found in rows.items())]
    made = ["| " + " | ".join(map(str, line)) + " |" for line in lines]
    return "\n".join([made[0], "|---" * len(lines[0]) + "|", *made[1:]])


def markdown(table: Table) -> str:
    """A coverage table: a row for each number of problems and k, a column a world; values below 0.93 in bold."""
    return pivot((((n, k, world), _bold(x)) for (world, n, k), x in table.items()), "problems", "k")


def _bold(x: float) -> str:
    return f"{x:.3f}" if x >= WANTED else f"**{x:.3f}**"


def _by_problems(table: Mapping[tuple[str, int], float | str]) -> str:
    return pivot((((n, world), x) for (world, n), x in table.items()), "problems")


def _lone_table(draws: int) -> str:
    found = coverage_lone(draws).items()
    cells = [((f"{100 * share:g} %", n, f"{kind}, k = {k}"), row) for (share, n, kind, k), row in found]
    shown = ((key, f"{_bold(held)} ({far:.3f}, {short:.3f})") for key, (held, far, short) in cells)
    return pivot(shown, "alone on", "problems")


def _seed_counts_table() -> str:
    sides = {False: "as many runs of another method", True: "one policy, evaluated once"}
    columns = ("holds the truth", "wholly above", "wholly below")
    cells = []
    for (once, side), seeds in product(sides.items(), (3, 6)):
        for name, shares in coverage_seed_counts(seeds, once).items():
            cells += [((side, seeds, name, column), x) for column, x in zip(columns, shares, strict=True)]
    return pivot(cells, "other side", "seeds", "rule")


def _hull_table(draws: int) -> str:
    columns = ("holds the truth", "wholly above", "wholly below", "mean error")
    found = coverage_hull(draws).items()
    cells = [((f"pass@{k}", place, column), x) for (k, place), row in found for column, x in zip(columns, row, strict=True)]
    return pivot(cells, "metric", "the candidate's place")


def _discoveries_table() -> str:
    columns = ("even one false", "found of ten real", "Holm over lone solvers")
    found = coverage_discoveries().items()
    cells = [((*key, column), x) for key, row in found for column, x in zip(columns, row, strict=True)]
    return pivot(cells, "two equal policies", "problems", "samples")


def sections(draws: int = 2000, names: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the tables of lab/pages/results/coverage.md: those named, else all. draws: of those that are cheap."""
    for name in names or TABLES:
        yield name, TABLES[name](draws)


def write_docs(page: Path, found: Iterator[tuple[str, str]]) -> None:
    """Put each table between its markers <!-- coverage:NAME --> and <!-- /coverage --> in the page."""
    text = page.read_text(encoding="utf-8")
    for name, table in found:
        pattern = re.compile(rf"(<!-- coverage:{name} -->\n).*?(<!-- /coverage -->)", re.DOTALL)
        text, done = pattern.subn(lambda m, table=table: f"{m[1]}{table}\n{m[2]}", text)  # type: ignore[misc]
        if done != 1:
            raise SystemExit(f"{page}: {done} places for the table {name!r}; one is wanted")
    page.write_text(text, encoding="utf-8")


TABLES: Mapping[str, Callable[[int], str]] = {  # their places in lab/pages/results/coverage.md
    "passk": lambda draws: markdown(coverage_single((*WORLDS, RARE), draws, (*PROBLEMS, *MANY))),
    "difference": lambda draws: markdown(coverage_difference((*WORLDS, RARE), draws, (*PROBLEMS, *MANY))),
    "band": lambda _: _by_problems(coverage_band()),
    "lone": _lone_table,
    "loneband": lambda _: _by_problems(coverage_lone_band()),
    "bca": lambda _: _by_problems({key: f"{x:.3f}, {y:.3f}" for key, (x, y) in coverage_bca().items()}),
    "seedband": lambda _: pivot(coverage_seeds().items(), "seeds"),
    "frontier": lambda _: _by_problems({key: f"{x:.3f}, {y:.2f}" for key, (x, y) in coverage_frontier().items()}),
    "seedcounts": lambda _: _seed_counts_table(),
    "hull": _hull_table,
    "mixture": lambda draws: "\n".join(error_rates(min(draws, 300), CELLS)),
    "mixture_samples": lambda draws: "\n".join(samples_table(min(draws, 300))),
    "seeds": lambda _: pivot((((r, f"{s} seeds"), x) for s in (3, 6) for r, x in relabelled(s).items()), "rule"),
    "checkpoints": lambda _: pivot(
        (((n, f"k = {k}"), x) for (n, k), x in relabelled_checkpoints().items()), "problems"
    ),
    "discoveries": lambda _: _discoveries_table(),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Coverage and false alarms of the intervals and verdicts.")
    parser.add_argument("--docs", type=Path, help="write the tables into this page instead of printing them")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--tables", nargs="+", default=(), choices=TABLES, metavar="NAME", help="these tables alone")
    options = parser.parse_args()
    made = sections(options.draws, options.tables)
    if options.docs is None:
        for title, shown in made:
            print(f"\n{title}\n{shown}", flush=True)
    else:
        write_docs(options.docs, made)
