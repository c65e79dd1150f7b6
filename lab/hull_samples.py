"""The hull per completion from samples, tested at the size of the study of SmolLM2: 200 problems, 64 samples, five training seeds.

The base. Logits of the problems are normal with the mean and spread that give pass@1, @8 and @32 of the two rooms at T = 1
(lab/experiments/2026-11-27_smollm2_much_room). At T = 0.7 and 0.4 mean and spread change as they did for the same model in
lab/experiments/2026-11-27_demo_smollm2; the correlation of .8 with the logits at T = 1 is a guess. A guesser is right with one
probability on all problems.

The arm. Its logits are a + b times those of the best mixture at its place, with N(0, .2^2) per training seed and N(0, .5^2) per
seed and problem; a and b give the wanted pass@1 and the wanted distance from the hull, both exact means over training seeds. The
place is part of the way from the base's pass@1 at T = 1 to its highest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import norm

from sage_rlvr.verdicts.stats.hull import compare_hull
from sage_rlvr.verdicts.stats.intervals import wilson
from sage_rlvr.verdicts.stats.mixture import above_mixtures_of_counts, best_mixture
from sage_rlvr.verdicts.stats.paired import PairedDifference
from sage_rlvr.verdicts.stats.passk import exact_pass_at_k

Floats = NDArray[np.float64]
SEED, PROBLEMS, SAMPLES, SEEDS, K = 20_261_127, 200, 64, 5, 32
OF_ALL, OF_EACH = 0.2, 0.5  # standard deviations of a training seed's logits
ROOMS = {"much": (-4.086, 1.132, 0.0053), "little": (-2.755, 0.758, 0.0236)}  # mean, spread, chance of a guess
TEMPERATURES = {1.0: (0.0, 1.0), 0.7: (0.43, 1.05), 0.4: (0.51, 1.5)}  # change of the mean, factor of the spread
ALIKE = 0.8
PLACES, GAPS = (0.5, 0.9), (0.0, 0.05, 0.1)
NODES, SHARES = np.polynomial.hermite_e.hermegauss(21)
HEADS = (
    "room", "base's pass@32 at T = 1", "arm's pass@1", "hull's pass@32 there", "arm's pass@32", "above", "below", "mean error",
    "interval holds the truth",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An arm: logits (N,) without a seed's noise, its mean pass@1, and the hull's pass@k there."""

    logits: Floats
    pass1: float
    height: float


def base_of(room: str) -> Floats:
    """Probabilities (J, N) of the base at each temperature, and of the guesser."""
    rng, (mean, spread, guess) = np.random.default_rng(SEED), ROOMS[room]
    ranks = norm.ppf((np.arange(PROBLEMS) + 0.5) / PROBLEMS)
    first, *others = (rng.permutation(ranks) for _ in TEMPERATURES)
    drawn = [first, *(ALIKE * first + np.sqrt(1 - ALIKE**2) * other for other in others)]
    tables = [expit(mean + shift + spread * factor * z) for z, (shift, factor) in zip(drawn, TEMPERATURES.values(), strict=True)]
    return np.array([*tables, np.full(PROBLEMS, guess)])


def mean_over_seeds(logits: Floats, k: int) -> float:
    """Exact mean pass@k over training seeds and problems."""
    ps = expit(logits + np.hypot(OF_ALL, OF_EACH) * NODES[:, None])
    return float((SHARES / SHARES.sum()) @ np.asarray(exact_pass_at_k(ps, k)).mean(axis=1))


def arm_at(base: Floats, place: float, gap: float, k: int = K) -> Arm | None:
    """The arm whose pass@k lies `gap` above the hull at its pass@1; None where no a and b give it."""
    ones = base[:-1].mean(axis=1)
    pass1 = float(ones[0] + place * (ones.max() - ones[0]))
    best = best_mixture(base[:, None], pass1, k)
    mixture = logit(best.weights @ base)

    def at(slope: float) -> Floats:
        shift = brentq(lambda a: mean_over_seeds(a + slope * mixture, 1) - pass1, -30, 30)
        return np.asarray(shift + slope * mixture)

    def short(slope: float) -> float:
        return mean_over_seeds(at(slope), k) - best.height - gap

    slopes = np.linspace(0.02, 2, 12)  # pass@k falls with the slope
    for low, high in pairwise(slopes):
        if short(low) >= 0 >= short(high):
            return Arm(logits=at(brentq(short, low, high)), pass1=pass1, height=best.height)
    return None


def compared(base: Floats, arm: Arm, rng: np.random.Generator, k: int = K) -> PairedDifference:
    """One simulated study: samples of five training seeds against one evaluation of the base."""
    noise = rng.normal(0, OF_ALL, (SEEDS, 1)) + rng.normal(0, OF_EACH, (SEEDS, PROBLEMS))
    own = [{1.0: (SAMPLES, rng.binomial(SAMPLES, p))} for p in expit(arm.logits + noise)]
    tables = {t: (SAMPLES, rng.binomial(SAMPLES, p)) for t, p in zip(TEMPERATURES, base[:-1], strict=True)}
    found = above_mixtures_of_counts(own, [[tables]], k, guessers=[base[-1]])
    assert found is not None
    return compare_hull(found)


def samples_table(draws: int) -> Iterator[str]:
    """A Markdown table, line by line."""
    yield "| " + " | ".join(HEADS) + " |"
    yield "|---" * len(HEADS) + "|"
    for room, place, gap in product(ROOMS, PLACES, GAPS):
        base = base_of(room)
        arm, rng = arm_at(base, place, gap), np.random.default_rng([SEED, len(room), int(100 * place), int(100 * gap)])
        first = f"| {room} | {np.mean(exact_pass_at_k(base[0], K)):.3f}"
        if arm is None:
            yield f"{first} | | | no such arm: {gap:.2f} above | | | | |"
            continue
        found = [compared(base, arm, rng) for _ in range(draws)]
        above, below = (share(sum(one.outcome == end for one in found), draws) for end in ("better", "worse"))
        error = np.mean([one.difference.value - gap for one in found])
        holds = share(sum(one.difference.contains(gap) for one in found), draws)
        on = f"{arm.pass1:.3f} | {arm.height:.3f} | hull {gap:+.2f}" if gap else f"{arm.pass1:.3f} | {arm.height:.3f} | on the hull"
        yield f"{first} | {on} | {above} | {below} | {error:+.4f} | {holds} |"


def share(count: int, draws: int) -> str:
    """A share with Wilson's 95 % interval."""
    found = wilson(count, draws)
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"
