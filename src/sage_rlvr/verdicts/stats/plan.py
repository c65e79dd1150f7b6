"""Power analysis: the smallest difference that a design can detect, and the most useful extension.

One rule: the difference that a verdict of `compare` detects with 80 % power, simulated (`power.detectable_planned`).

    checkpoints   one run each: the band over all k, whose half-width is `Pilot.band` times that of one interval over N problems
    methods       S training seeds of each: the band over a few k, each an interval over seeds and problems in quadrature

The problems are those of a pilot, resampled; without one, 0/1 outcomes that differ on an assumed share q of the problems, or on
as many as the difference needs. The variance of a difference over problems is v_true + v_noise / n with n samples each;
the gaps of a pilot are stretched to that of the design. A difference between methods on these problems has Student's interval only:

    x = detectable(sd, S),   sd^2 = 2 sd_run^2 + v_noise / (n N)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verdicts.stats.arrays import Floats
from sage_rlvr.verdicts.stats.curves import CurveComparison, paired_count_curve, paired_curve, seed_ks
from sage_rlvr.verdicts.stats.laws import norm_ppf
from sage_rlvr.verdicts.stats.passk import curve, exact_pass_at_k, pass_at_k, powers, sampling_variance
from sage_rlvr.verdicts.stats.power import LikeCoins, LikePilot, detectable, detectable_planned, fewest_units
from sage_rlvr.verdicts.stats.samples.clusters import linearized

DISCORDANT = 0.10
BAND = 1.2
"""How many times wider than one interval the band over all k is, if no pilot shows it: `python -m lab false-verdicts`."""
MOST_PROBLEMS = 10_000_000
SEED_SD = 0.01
NOISE_SHARE = 0.5
RUN_COST = 64_000  # completions of a training run of 1,000 steps of 64
PAPER_GAINS = (  # the differences at issue in the paper, mean over data sets
    "these are about the gains of Branch over GRPO in arXiv 2605.18864, on average +0.017 in pass@1 and +0.015 in pass@256"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pilot:
    """Known inputs of the plan, measured on a pilot or assumed.

    source: where each comes from
    true: v_true
    noise: v_noise (a variance over problems times samples)
    run_sd: SD between training runs of one method's mean score (one arm)
    k: the k of pass@k
    band: how many times wider than one interval the band over all k is
    scores: pass@k of both arms on each unit of a pilot (problems, or clusters of them: `units` per problem), None without one
    spread: the variance of their difference
    """

    true: float
    noise: float
    run_sd: float
    k: int
    source: str
    band: float = BAND
    scores: tuple[Floats, Floats] | None = None
    units: float = 1.0

    @property
    def spread(self) -> float:
        """Variance of the difference over the units of the pilot."""
        return 0.0 if self.scores is None else float((self.scores[0] - self.scores[1]).var(ddof=1))

    def __post_init__(self) -> None:
        if min(self.true, self.noise, self.run_sd) < 0 or not math.isfinite(self.true + self.noise + self.run_sd):
            values = ", ".join(f"{name} = {getattr(self, name):g}" for name in ("true", "noise", "run_sd"))
            raise ConfigError(f"{values}: variances and standard deviations are finite and not negative.")


@dataclass(frozen=True, kw_only=True)
class EvaluationSize:
    """N problems, n samples of each, S training seeds of each of two arms."""

    problems: int
    samples: int
    seeds: int

    def __post_init__(self) -> None:
        if min(self.problems, self.samples, self.seeds) < 1:
            sizes = f"problems = {self.problems}, samples = {self.samples}, seeds = {self.seeds}"
            raise ConfigError(f"{sizes}: whole numbers from 1 on.")

    def cost(self, run_cost: float = RUN_COST) -> float:
        """Completions to draw for both arms: S (run_cost + N n) each, of which a training run costs run_cost."""
        return 2 * self.seeds * (run_cost + self.problems * self.samples)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One purchase: a larger design, its detectable difference, its extra cost, and log shrink per million completions."""

    what: str
    design: EvaluationSize
    detectable: float
    cost: float
    gain: float


@dataclass(frozen=True, kw_only=True)
class PowerPlan:
    """Detectable differences of a design for checkpoints and methods, and the purchases in order of gain."""

    design: EvaluationSize
    pilot: Pilot
    checkpoints: float
    methods: float
    these: float
    next_checkpoints: tuple[Step, ...]
    next_methods: tuple[Step, ...]


def see_checkpoints(design: EvaluationSize, pilot: Pilot, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """Smallest true difference of two checkpoints that the band over k finds with probability `power`; infinite below
    `fewest_units(alpha)` problems, which get no verdict."""
    return _over_problems_alone(design, pilot, power, alpha, pilot.band)


def see_methods(
    design: EvaluationSize, pilot: Pilot, *, power: float = 0.8, alpha: float = 0.05, fixed: bool = False
) -> float:
    """Smallest true difference of two methods on such problems, or with `fixed` on these problems; infinite below three training
    seeds."""
    if design.seeds < 3:
        return math.inf
    one = alpha / len(seed_ks(pilot.k))
    sd = math.sqrt(2 * pilot.run_sd**2 + pilot.noise / design.samples / design.problems)
    of_seeds = detectable(sd, design.seeds, power=power, alpha=one)
    return of_seeds if fixed else math.hypot(of_seeds, _over_problems_alone(design, pilot, power, one, 1.0))


def _over_problems_alone(design: EvaluationSize, pilot: Pilot, power: float, alpha: float, widening: float) -> float:
    """The detectable difference if only problems and their samples vary."""
    planned = _planned(design, pilot)
    if not isinstance(planned, LikeCoins | LikePilot):
        return planned
    return detectable_planned(planned, power=power, alpha=alpha, widening=widening)


def _planned(design: EvaluationSize, pilot: Pilot) -> LikeCoins | LikePilot | float:
    """The problems of the design; infinity if they are too few, 0 if nothing scatters."""
    units = round(design.problems * pilot.units)
    v = pilot.true + pilot.noise / design.samples
    if units < fewest_units():
        return math.inf
    if v == 0:
        return 0.0
    if pilot.scores is None or pilot.spread <= 1e-12:
        return LikeCoins(units, v)
    a, b = pilot.scores
    gaps, middle = (a - b) - (a - b).mean(), (a + b) / 2
    stretched = gaps * math.sqrt(v * pilot.units / pilot.spread)  # v is N times the variance of a mean
    return LikePilot(units, middle + stretched / 2, middle - stretched / 2)


def _sees(design: EvaluationSize, pilot: Pilot, difference: float, power: float = 0.8, alpha: float = 0.05) -> bool:
    """Return whether `see_checkpoints` is at most this difference, by one look at it."""
    planned = _planned(design, pilot)
    if not isinstance(planned, LikeCoins | LikePilot):
        return planned <= difference
    return planned.missing(difference, power=power, alpha=alpha, widening=pilot.band) <= 0


def problems_needed(difference: float, pilot: Pilot, samples: int) -> int:
    """Problems, of so many samples each, that make a difference of two checkpoints detectable."""
    _positive(difference)

    def sees(n: int) -> bool:
        return _sees(EvaluationSize(problems=n, samples=samples, seeds=1), pilot, difference)

    return _least(sees, fewest_units(), MOST_PROBLEMS) or MOST_PROBLEMS


def design_needed(design: EvaluationSize, pilot: Pilot, difference: float) -> tuple[int, int | None]:
    """Return the problems needed at this number of samples, and the samples needed at this number of problems, to find a difference
    of two checkpoints with 80 % power; None if no number suffices because v_true remains."""
    def sees(samples: int) -> bool:
        return _sees(EvaluationSize(problems=design.problems, samples=samples, seeds=1), pilot, difference)

    return problems_needed(difference, pilot, design.samples), _least(sees, pilot.k, MOST_PROBLEMS)


def _least(enough: Callable[[int], bool], low: int, most: int) -> int | None:
    """The least number from `low` to `most` that is enough, within 1 %; None if none is."""
    if enough(low):
        return low
    high = 2 * low
    while not enough(high):
        low, high = high, 2 * high
        if high > most:
            return None
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def needed_line(design: EvaluationSize, pilot: Pilot, difference: float) -> str:
    """`design_needed` in words, with the design."""
    problems, samples = design_needed(design, pilot, difference)
    head = f"to detect a difference of {difference:g} in pass@{pilot.k} between two checkpoints (80 % power): "
    if problems <= design.problems:
        return f"{head}this design suffices ({_many(problems, 'problem')} of {_many(design.samples, 'sample')} would)"
    wider = f"{head}{_many(problems, 'problem')} of {_many(design.samples, 'sample')}"
    if samples is None:
        return f"{wider}; with {_many(design.problems, 'problem')} no number of samples suffices"
    return f"{wider}, or {_many(samples, 'sample')} of each of {_many(design.problems, 'problem')}"


def runs_needed(
    difference: float, run_sd: float = SEED_SD, *, known: bool = False, power: float = 0.8, alpha: float = 0.05
) -> int:
    """Training runs per arm that make `difference` detectable when runs of one arm scatter by run_sd.

    known: as if run_sd were known, 2 ((z_.975 + z_.8) run_sd / x)^2 (0.01 and +0.015: 7). Otherwise with Student's t on paired
        seeds, which the verdicts use because three or ten runs do not determine their scatter (the same: 10).
    """
    _positive(difference)
    if known:
        return math.ceil(2 * (_z(power, alpha) * run_sd / difference) ** 2)
    runs = 3
    while detectable(math.sqrt(2) * run_sd, runs, power=power, alpha=alpha) > difference:
        runs += 1
    return runs


def assume(
    *,
    k: int,
    samples: int,
    discordant: float = DISCORDANT,
    run_sd: float = SEED_SD,
    noise_share: float = NOISE_SHARE,
) -> Pilot:
    """Make a pilot from assumptions: v = discordant at `samples`, a share `noise_share` of which is noise of the samples."""
    if not 0 < discordant <= 1 or not 0 <= noise_share <= 1:
        raise ConfigError(f"discordant = {discordant}, noise share = {noise_share}: shares between 0 and 1.")
    source = (
        f"assumed: the two differ on {100 * discordant:g} % of the problems, {100 * noise_share:g} % of that by sampling "
        f"noise; the SD between training runs is {run_sd:g}. A pilot measures these: --from A=... B=..."
    )
    return Pilot(
        true=discordant * (1 - noise_share), noise=discordant * noise_share * samples, run_sd=run_sd, k=k, source=source
    )


def pilot_of_exact(a: ArrayLike, b: ArrayLike, k: int, run_sd: float = SEED_SD) -> Pilot:
    """Make a pilot from exact probabilities a, b (N,) or (S, N), one row per training seed: v_true is the variance of the exact
    gaps.

    v_noise: the variance that n = k samples would add per problem, times k, summed over both arms, mean over problems.
    With three seeds or more run_sd is measured: the SD of the seeds' mean differences over sqrt(2).
    """
    left, right = (np.atleast_2d(np.asarray(x, dtype=float)) for x in (a, b))
    if left.shape != right.shape or left.shape[1] < 2:
        raise DataError(
            f"pilot of shapes {left.shape} and {right.shape}: both need the same problems (at least two) and seeds."
        )
    one, other = np.asarray(exact_pass_at_k(left, k)), np.asarray(exact_pass_at_k(right, k))
    gaps = one - other
    noise = k * float(np.mean(sampling_variance(left, k, k) + sampling_variance(right, k, k)))
    seeds, scatter = len(gaps), run_sd
    if seeds >= 3:
        scatter = float(gaps.mean(axis=1).std(ddof=1)) / math.sqrt(2)
    source = f"measured over {seeds} training seeds" if seeds >= 3 else "assumed"
    return Pilot(
        true=float(gaps.var(axis=1, ddof=1).mean()),
        noise=noise,
        run_sd=scatter,
        k=k,
        source=f"from a pilot of {left.shape[1]} problems, exact; SD between training runs {scatter:.4f}, {source}",
        band=_band(paired_curve(curve(left[0], powers(k)), curve(right[0], powers(k)), powers(k))),
        scores=(one.mean(axis=0), other.mean(axis=0)),
    )


def pilot_of_counts(
    n: ArrayLike, a: ArrayLike, b: ArrayLike, k: int, run_sd: float = SEED_SD, *, n_b: ArrayLike | None = None,
    cluster: ArrayLike | None = None,
) -> Pilot:  # fmt: skip
    """Make a pilot from counts, right ones a, b (N,) or (S, N) among n samples: v is the variance of the gaps, v_noise that of the
    samples.

    n: one number, or of a's shape; n_b: samples of b if they differ from n. cluster: (N,) labels of problems that belong
    together; v is then N times the variance of the mean over clusters, so more problems means more clusters like these.
    The variance of the samples is that at the estimated probabilities c / n, which leaves out problems never solved by chance.
    With three training seeds (rows) or more run_sd is measured: the variance of the seeds' mean differences minus the contribution
    of the samples, over 2, square root.
    """
    left, right, many, many_b = np.broadcast_arrays(
        *(np.atleast_2d(np.asarray(x, dtype=np.int64)) for x in (a, b, n, n if n_b is None else n_b))
    )
    if left.shape[1] < 2:
        raise DataError(f"a pilot of {left.shape[1]} problem: at least two are needed to estimate the variance over problems.")
    one, other = np.asarray(pass_at_k(many, left, k)), np.asarray(pass_at_k(many_b, right, k))
    gaps = one - other
    noises = [_own_variance(*side, k) for side in ((many, left), (many_b, right))]
    own = float(np.mean(noises[0] + noises[1]))
    each = float(np.mean(many * noises[0] + many_b * noises[1]))  # of one sample of each problem
    total = float(np.mean([_over_problems(row, cluster) for row in gaps]))
    scatter, source = run_sd, "assumed"
    if len(gaps) >= 3:
        between = float(gaps.mean(axis=1).var(ddof=1)) - own / gaps.shape[1]
        scatter, source = math.sqrt(max(between, 0.0) / 2), f"measured over {len(gaps)} training seeds"
    part = min(own, total) / own if own > 0 else 0.0  # the gaps may vary less than their samples would give
    fewest, most = int(min(many.min(), many_b.min())), int(max(many.max(), many_b.max()))
    samples = _many(most, "sample") if fewest == most else f"{fewest:,} to {most:,} samples"
    groups = "" if cluster is None else f" in {_many(len(set(np.asarray(cluster).tolist())), 'cluster')}"
    scores = one.mean(axis=0), other.mean(axis=0)
    if cluster is not None:
        scores = linearized(scores[0], cluster), linearized(scores[1], cluster)
    return Pilot(
        true=max(total - own, 0.0),
        noise=each * part,
        run_sd=scatter,
        k=k,
        source=f"from a pilot of {_many(left.shape[1], 'problem')}{groups} and {samples}; SD between training runs {scatter:.3g}, "
        f"{source}",
        band=_band(paired_count_curve(many[0], left[0], right[0], n_b=many_b[0], cluster=cluster)),
        scores=scores,
        units=len(scores[0]) / len(gaps[0]),
    )


def _band(found: CurveComparison) -> float:
    return max(1.0, found.widening)


def _own_variance(n: NDArray[np.int64], right: NDArray[np.int64], k: int) -> Floats:
    """The sampling variance of the unbiased pass@k of each problem, of the shape of n."""
    out = np.zeros(n.shape)
    for m in np.unique(n).tolist():
        out[n == m] = sampling_variance(right[n == m] / m, m, k)
    return out


def _over_problems(gaps: Floats, cluster: ArrayLike | None) -> float:
    """N times the variance of the mean of gaps (N,): their variance, or that of their clusters."""
    if cluster is None:
        return float(gaps.var(ddof=1))
    units = linearized(gaps, cluster)
    if len(units) < 2:
        raise DataError("a pilot of one cluster: at least two are needed to estimate the variance over clusters.")
    return float(units.var(ddof=1)) * len(gaps) / len(units)


def make_plan(design: EvaluationSize, pilot: Pilot, *, run_cost: float = RUN_COST) -> PowerPlan:
    """The detectable differences of the design, and for each claim the three purchases (twice the problems, twice the samples, one
    more training seed of each arm) in order of log shrink of the detectable difference per completion."""
    return PowerPlan(
        design=design,
        pilot=pilot,
        checkpoints=see_checkpoints(design, pilot),
        methods=see_methods(design, pilot),
        these=see_methods(design, pilot, fixed=True),
        next_checkpoints=_purchases(design, pilot, run_cost, methods=False),
        next_methods=_purchases(design, pilot, run_cost, methods=True),
    )


def plan_lines(plan: PowerPlan, *, run_cost: float = RUN_COST, measured: bool = False) -> list[str]:
    """The plan in words. measured: whether the pilot is two evaluations of the reader, so without the gains of the paper."""
    d, p = plan.design, plan.pilot
    lines = [
        f"design: {_many(d.problems, 'problem')}, {_many(d.samples, 'sample')} of each, {_seeds(d.seeds)} of each of two arms, "
        f"pass@{p.k}; 80 % power, two-sided 5 %, by the band over k",
        p.source,
        f"cost: {d.cost(run_cost):,.0f} completions, a training run counted as {run_cost:,.0f} of them (--run-cost)",
        f"claims about checkpoints: {_see(plan.checkpoints, f'fewer than {fewest_units()} problems')}",
        *_next_lines(plan.next_checkpoints, plan.checkpoints),
        f"claims about methods, on such problems: {_see(plan.methods, 'fewer than three training seeds')}",
        *_next_lines(plan.next_methods, plan.methods),
        f"claims about methods, on these problems (--fixed-problems): {_see(plan.these, 'fewer than three training seeds')}",
    ]
    needed = (
        f"to detect +0.02 between checkpoints: about {_three(problems_needed(0.02, p, d.samples))} problems at this variance; to "
        f"detect +0.015 between methods on these problems, at one k, at SD {p.run_sd:.3g} per run: "
        f"{runs_needed(0.015, p.run_sd)} runs per arm with Student's t "
        f"({runs_needed(0.015, p.run_sd, known=True)} if that SD were known)"
    )
    return [*lines, needed if measured else f"{needed}; {PAPER_GAINS}"]


def _purchases(design: EvaluationSize, pilot: Pilot, run_cost: float, *, methods: bool) -> tuple[Step, ...]:
    see = see_methods if methods else see_checkpoints
    n, m, s = (
        design.problems,
        design.samples,
        design.seeds if methods else 1,
    )  # a claim about checkpoints has one of each
    design = EvaluationSize(problems=n, samples=m, seeds=s)
    options = [
        (f"{2 * n:,} problems (if there are more of them)", EvaluationSize(problems=2 * n, samples=m, seeds=s)),
        (f"{2 * m:,} samples per problem", EvaluationSize(problems=n, samples=2 * m, seeds=s)),
    ]
    if methods:
        more = max(s + 1, 3)
        options.append((f"{more} training seeds", EvaluationSize(problems=n, samples=m, seeds=more)))
    now, steps = see(design, pilot), []
    for what, larger in options:
        cost, then = larger.cost(run_cost) - design.cost(run_cost), see(larger, pilot)
        steps.append(Step(what=what, design=larger, detectable=then, cost=cost, gain=1e6 * _log_shrink(now, then) / cost))
    return tuple(sorted(steps, key=lambda step: -step.gain))


def _log_shrink(now: float, then: float) -> float:
    """log(now / then) of two detectable differences; infinite if only `then` is finite."""
    if math.isinf(now):
        return math.inf if math.isfinite(then) else 0.0
    return math.log(now / then) if then > 0 else 0.0  # a pilot without any difference has no variance, so both are 0


def _next_lines(steps: Sequence[Step], now: float) -> list[str]:
    words = []
    for step in steps:
        to = "still nothing" if math.isinf(step.detectable) else f"{step.detectable:.3f}"
        words.append(f"{step.what}: {to} for {step.cost:,.0f} more completions")
    best = "" if steps[0].gain > 0 else " (none helps)"
    return [f"  options for more power{best}, best value for the cost first: " + "; ".join(words)]


def _many(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _seeds(n: int) -> str:
    return _many(n, "training seed")


def _see(x: float, why_not: str) -> str:
    return f"cannot detect any difference: {why_not}" if math.isinf(x) else f"can detect a difference of {x:.3f}"


def _z(power: float, alpha: float) -> float:
    return float(norm_ppf(1 - alpha / 2) + norm_ppf(power))


def _positive(difference: float) -> None:
    if not 0 < difference < 1:
        raise ConfigError(f"difference = {difference}: the difference to detect lies between 0 and 1.")


def _three(n: int) -> str:
    digits = max(0, len(str(n)) - 3)
    return f"{round(n, -digits):,}"
