"""The best mixtures of several arms at equal pass@1, and the difference between a candidate and them.

    mixture per problem       a coin for each problem decides which policy answers it: straight lines between points of pass@1 and
                              pass@k, the upper end of their convex hull
    mixture per completion    a coin for each completion (`stats/mixture.py`): never lower, since pass@k is concave in the
                              probability of a right completion

Both are compared with a candidate by `compare_hull`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.frontier import FrontierPoint, at_temperature
from sage_rlvr.verdicts.stats.laws import t_ppf, t_sf
from sage_rlvr.verdicts.stats.paired import Level, PairedDifference, outcome_of, paired_seeds
from sage_rlvr.verdicts.stats.power import detectable

PRICES = np.geomspace(1e-2, 1e4, 121)  # pass@k per pass@1: beyond the last, only pass@1 decides
TINY = 1e-15  # a standard error where seeds do not scatter
NONE = np.zeros(0)
Lines = Sequence[Sequence[FrontierPoint]]  # a frontier per training seed


@dataclass(frozen=True, kw_only=True)
class Share:
    """A rival (its index) at one temperature, and its weight in a mixture."""

    rival: int
    temperature: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class HullMixture:
    """The best mixture at a pass@1. best: its policies; height: its pass@k; price: pass@k given up per pass@1 gained.

    slack: the height of the best mixture is at most `height + slack`."""

    best: tuple[Share, ...]
    height: float
    price: float
    slack: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Halves:
    """Rivals chosen by a part of the samples and judged by the others, for several ways to part them: policies, then mixtures.

    scores: (ways, rivals, seeds, 2), pass@1 and pass@k of a rival by the samples that choose
    ahead: the same shape, the arm's lead over it by the samples that judge
    shared: (rivals, 2, 2), as in `AboveHull`, of all samples
    """

    scores: Floats
    ahead: Floats
    shared: Floats


@dataclass(frozen=True, kw_only=True)
class AboveHull:
    """The best mixture, and pass@1 and pass@k of the arm for each training seed.

    ahead: (points, seeds, 2), the arm's lead over every rival at every temperature, in pass@1 and in pass@k
    mixed: the same for the best mixture per completion and mixtures near it, (mixtures, seeds, 2); empty for mixtures per problem,
        whose leads are between those of their policies
    over: the units of the second axis; for one training seed the problems

    From samples also:
    shared: (points + mixtures, 2, 2), the covariance of the mean scores of policies whose samples all seeds are compared with;
        empty without such policies
    least: the smallest half-width of the interval
    held_out: rivals chosen and judged by different samples
    """

    mixture: HullMixture
    pass1: tuple[float, ...]
    arm: tuple[float, ...]
    ahead: Floats
    mixed: Floats = field(default_factory=lambda: np.zeros((0, 1, 2)))
    over: Level = "training seeds"
    shared: Floats = field(default_factory=lambda: np.zeros((0, 2, 2)))
    least: float = 0.0
    held_out: Halves | None = None


@dataclass(frozen=True, kw_only=True)
class _Point:
    """A rival (its index) at a temperature: the means of its scores, and those of each training seed."""

    rival: int
    temperature: float
    seeds: Floats  # (seeds, 2)


def _points(rivals: Sequence[Lines]) -> list[_Point]:
    """Every rival at every temperature at which all its seeds were evaluated."""
    points = []
    for i, lines in enumerate(rivals):
        by_seed = [{point.temperature: (point.pass1, point.passk) for point in line} for line in lines]
        for t in shared_temperatures(by_seed):
            scores = np.array([of_seed[t] for of_seed in by_seed])
            points.append(_Point(rival=i, temperature=t, seeds=scores))
    return points


def shared_temperatures(by_seed: Sequence[Iterable[float]]) -> list[float]:
    """The temperatures at which all seeds of a rival were evaluated, coldest first; [] without seeds."""
    if not by_seed:
        return []
    first, *others = [{float(t) for t in temperatures} for temperatures in by_seed]
    return sorted(first.intersection(*others))


def on_hull(pass1: float, rivals: Sequence[Lines]) -> HullMixture | None:
    """The best mixture per problem with at least this pass@1; None if no rival has a temperature that all its seeds share.

    A point is a rival at a temperature, its scores means over all seeds. Beyond the highest pass@1 the result is the highest
    pass@k, at price 0.
    """
    points = _points(rivals)
    return _hull_mixture(pass1, points) if points else None


def _hull_mixture(pass1: float, points: Sequence[_Point]) -> HullMixture:
    means = np.stack([one.seeds.mean(axis=0) for one in points])
    weights, height, price = best_line(pass1, means[:, 0], means[:, 1])
    names = [(one.rival, one.temperature) for one in points]
    return HullMixture(best=shares(weights, names), height=height, price=price)


def shares(weights: Floats, names: Sequence[tuple[int, float]]) -> tuple[Share, ...]:
    """The policies with a weight above 0. names: rival and temperature of each policy."""
    used = []
    for (rival, temperature), weight in zip(names, weights, strict=True):
        if weight > 0:
            used.append(Share(rival=rival, temperature=temperature, weight=float(weight)))
    return tuple(used)


def best_line(pass1: float, ones: Floats, heights: Floats) -> tuple[Floats, float, float]:
    """(weights, height, price) of the mixture of points (J,) with the largest mean height and a mean of `ones` of at least `pass1`.

    One point, or two on either side of `pass1`. Price: of a single point with exactly this pass@1, the least at which no point with
    less pass@1 is better; of a single point with more, 0. Beyond the largest of `ones` the result is the highest point, at price 0.
    """
    weights, right = np.zeros(len(ones)), np.flatnonzero(ones >= pass1)
    inside = right if len(right) else np.arange(len(ones))
    top = int(inside[np.lexsort((ones[inside], heights[inside]))[-1]])
    height, price, ends = float(heights[top]), 0.0, (top, top, 1.0)
    left, beyond = np.flatnonzero(ones < pass1), np.flatnonzero(ones > pass1)
    if len(left) and ones[top] == pass1:
        price = max(0.0, float(((heights[left] - height) / (pass1 - ones[left])).max()))
    if len(left) and len(beyond):
        # a mixture with a point that is higher in both is never better than it; if allowed, rounding could make it so
        falls = heights[left][:, None] - heights[beyond]
        prices = np.where(falls > 0, falls / (ones[beyond] - ones[left][:, None]), np.inf)
        candidates = heights[left][:, None] - prices * (pass1 - ones[left])[:, None]
        i, j = np.unravel_index(int(candidates.argmax()), candidates.shape)
        if candidates[i, j] > height:
            a, b = int(left[i]), int(beyond[j])
            height, price = float(candidates[i, j]), float(prices[i, j])
            ends = (a, b, float((pass1 - ones[a]) / (ones[b] - ones[a])))
    first, second, weight = ends
    weights[first] += 1 - weight
    weights[second] += weight
    return weights, height, price


def above_hull(arm: Lines, rivals: Sequence[Lines], temperature: float = 1.0) -> AboveHull | None:
    """An arm at `temperature` and the mixtures per problem of rivals, for each training seed.

    arm: a frontier per training seed; rivals: the same of each, paired in order. Place and price are those of the means over the
    seeds: the best of each seed would take the rivals' noise for height. None if the arm was not evaluated at that temperature.
    """
    own = [point for line in arm if (point := at_temperature(line, temperature)) is not None]
    points = _points(rivals)
    if not own or len(own) < len(arm) or not points:
        return None
    mine = np.array([(point.pass1, point.passk) for point in own])
    return AboveHull(
        mixture=_hull_mixture(float(mine[:, 0].mean()), points),
        pass1=tuple(mine[:, 0].tolist()),
        arm=tuple(mine[:, 1].tolist()),
        ahead=np.stack([mine - one.seeds for one in points]),
    )


def compare_hull(above: AboveHull, *, level: float = 0.95) -> PairedDifference:
    """pass@k of the arm minus the best mixture at its pass@1, over training seeds (for one seed over problems); the interval is
    valid also if pass@k is steep.

    A lead is how far the arm is ahead of one policy or mixture in pass@k + price * pass@1. The gap is the least lead at the best
    mixture's price. The mixture is fitted to the same seeds, which favors the rivals, so the two ends come from two procedures:

    low    the lowest of Student's low ends over all policies and mixtures, at that price: "better" is to be ahead of each
           (an intersection-union test: Berger 1982, Technometrics 24, 295; no correction among them is needed).
    high   cross-fitted: for each seed the rival is the policy that is best on the *other* seeds, so that its noise is not taken
           for height, with the largest of these policies' errors; the largest over all prices, so that "worse" is to be behind
           at every price. Only single policies: a mixture of independently trained policies gains by averaging their noise,
           which would make identical methods "worse". At most the arm's score. From samples the rival is the best by one
           half of its completions, judged by the other half (`Halves`); mixtures of policies that were evaluated once take part.
           The gap is then that of these rivals at that price, which the choice does not favor.

    A t interval of the gaps seed by seed would contain the truth in 57 to 70 % if pass@k is steep, because the noise of pass@1
    moves the mixture. Error rates of both ends: `python -m lab hull`, and from samples `python -m lab hull --samples`.
    """
    seeds, prices = above.ahead.shape[1], np.array([above.mixture.price, 0.0, *PRICES])
    at = np.stack([prices, np.ones_like(prices)])
    single = above.ahead @ at  # (points, seeds, prices)
    every = single[..., 0]  # (points + mixtures, seeds), at the best mixture's price
    if len(above.mixed):
        every = np.concatenate([every, above.mixed @ (above.mixture.price, 1.0)])
    means = every.mean(axis=1)
    nearest = int(means.argmin())
    shared = _shared(above.shared, at[:, :1])[:, 0]
    once = float(shared[nearest]) if len(shared) else 0.0
    binding = paired_seeds(every[nearest], np.zeros(seeds), level=level, shared=once, least=above.least)
    over = f"{above.over} and the control's samples" if len(shared) else above.over
    binding = replace(binding, over=above.over, difference=replace(binding.difference, over=over))
    value, arm = float(means.min()), float(np.mean(above.arm))
    if not binding.known:
        return replace(binding, mean_a=arm, mean_b=arm - value)
    quantile = float(t_ppf((1 + level) / 2, seeds - 1))
    least = max(TINY, above.least / quantile)
    errors = _error(every, shared, least)
    if len(shared):
        # Only here one t quantile for both errors: the rates of false "higher" and "lower" were simulated with it.
        binding = replace(binding, mde=detectable(float(errors[nearest]) * math.sqrt(seeds), seeds, alpha=1 - level))
    if above.held_out is None:
        apart, scatter = _cross_fitted(single, least)
    else:
        apart, scatter = _held_out(above.held_out, at, least)
        value = float(apart[0])
    low = float((means - quantile * errors).min())
    high = float((apart + quantile * scatter).max())
    t = float((means / errors).min()) if value > 0 else min(0.0, float((apart / scatter).max()))
    p = float(2 * t_sf(abs(t), seeds - 1))
    interval = replace(binding.difference, value=value, low=min(low, value), high=max(value, min(high, arm)))
    # the difference found with 80 % power is larger than the reach to the nearer side; an end at the arm's score is no reach
    reach = min(interval.value - interval.low, interval.high - interval.value if interval.high < arm else math.inf)
    mde = max(binding.mde, reach)
    outcome = outcome_of(interval, p, level)
    return replace(binding, difference=interval, p=p, outcome=outcome, mde=mde, mean_a=arm, mean_b=arm - value)


def _shared(covariances: Floats, at: Floats) -> Floats:
    """Standard errors (points, prices) of pass@k + price * pass@1 from covariances (points, 2, 2). at: (2, prices)."""
    return np.asarray(np.sqrt(np.maximum(np.einsum("ap,nab,bp->np", at, covariances, at), 0.0)))


def _error(leads: Floats, shared: Floats, least: float = TINY) -> Floats:
    """Standard error of the mean over seeds, the second axis. shared: errors that all seeds have in common, () or empty: none."""
    error = leads.std(axis=1, ddof=1) / math.sqrt(leads.shape[1])
    if shared.size:
        error = np.hypot(error, shared)
    return np.asarray(np.maximum(error, least))


def _cross_fitted(leads: Floats, least: float) -> tuple[Floats, Floats]:
    """(mean over seeds, error) at every price, from leads (points, seeds, prices): for each seed the lead over the point that has
    the least mean lead on the other seeds, and the largest error of these points. The scatter between seeds is not used as the
    error, since points differ from each other."""
    best = (leads.sum(axis=1, keepdims=True) - leads).argmin(axis=0)
    held_out = np.take_along_axis(leads, best[None], axis=0)[0]
    errors = np.take_along_axis(_error(leads, NONE, least), best, axis=0)
    return held_out.mean(axis=0), errors.max(axis=0)


def _held_out(halves: Halves, at: Floats, least: float) -> tuple[Floats, Floats]:
    """`_cross_fitted` if half of the samples choose and the others judge: means over the ways to part them. at: (2, prices)."""
    best = (halves.scores @ at).argmax(axis=1)  # (ways, seeds, prices)
    leads = halves.ahead @ at  # (ways, rivals, seeds, prices)
    judged = np.take_along_axis(leads, best[:, None], axis=1)[:, 0]
    errors = _error(leads.mean(axis=0), _shared(halves.shared, at), least)  # every sample judges in some way
    of_best = np.take_along_axis(errors, best.reshape(-1, best.shape[-1]), axis=0)
    return judged.mean(axis=(0, 1)), of_best.max(axis=0)
