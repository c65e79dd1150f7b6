"""Power analysis: the smallest difference that a design can detect, and the most useful extension.

Checkpoints, one run each, paired over N problems (f of an 80 % power two-sided test at 5 %, z quantiles):

    x = (z_.975 + z_.8) sqrt(v / N),   v = v_true + v_noise / n                  [2.80 sqrt(q / N) where v is the discordance q]

Methods, S training seeds of each, problems held fixed, Student's t with S - 1 degrees of freedom (`power.detectable`):

    x = detectable(sd, S),   sd^2 = 2 sd_run^2 + v_noise / (n N)

v: variance over problems of the difference of the two estimates; v_true the part that more samples do not remove, v_noise / n
the samples' own. n: samples per problem. Differences of 0/1 outcomes that disagree on a share q of the problems have v = q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.stats.laws import norm_ppf
from sage_rlvr.stats.passk import Floats, exact_pass_at_k, pass_at_k, sampling_variance
from sage_rlvr.stats.power import detectable, fewest_units
from sage_rlvr.stats.samples.clusters import linearized

DISCORDANT = 0.10
SEED_SD = 0.01
NOISE_SHARE = 0.5
RUN_COST = 64_000  # completions drawn by a training run of 1,000 steps of 64
PAPER_GAINS = (  # the sizes at stake in the paper, mean over data sets
    "these are about the gains of Branch over GRPO in arXiv 2605.18864, on average +0.017 in pass@1 and +0.015 in pass@256"
)


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """What the plan takes as known, measured on a pilot or assumed; `source` is where each comes from.

    true: v_true, noise: v_noise (a variance over problems times samples); run_sd: SD between training runs of one method's
    mean score (one arm). k: of pass@k.
    """

    true: float
    noise: float
    run_sd: float
    k: int
    source: str

    def __post_init__(self) -> None:
        if min(self.true, self.noise, self.run_sd) < 0 or not math.isfinite(self.true + self.noise + self.run_sd):
            raise ConfigError(f"{self}: variances and standard deviations are finite and not negative.")


@dataclass(frozen=True, kw_only=True)
class EvaluationSize:
    """N problems, n samples of each, S training seeds of each of two arms."""

    problems: int
    samples: int
    seeds: int

    def __post_init__(self) -> None:
        if min(self.problems, self.samples, self.seeds) < 1:
            raise ConfigError(f"{self}: problems, samples and seeds are whole numbers from 1 on.")

    def cost(self, run_cost: float = RUN_COST) -> float:
        """Completions to draw for both arms: S (run_cost + N n) each, a training run costing run_cost of them."""
        return 2 * self.seeds * (run_cost + self.problems * self.samples)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One purchase: a larger design, its detectable difference, what it costs more, and log shrink per million completions."""

    what: str
    design: EvaluationSize
    detectable: float
    cost: float
    gain: float


@dataclass(frozen=True, kw_only=True)
class PowerPlan:
    """What a design can see of checkpoints and of methods, and the purchases in order of gain."""

    design: EvaluationSize
    pilot: Pilot
    checkpoints: float
    methods: float
    next_checkpoints: tuple[Step, ...]
    next_methods: tuple[Step, ...]


def see_checkpoints(design: EvaluationSize, pilot: Pilot, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """Smallest true difference of two checkpoints that is found with probability `power` (the module's first equation);
    infinite below `fewest_units(alpha)` problems, of which no verdict speaks."""
    if design.problems < fewest_units(alpha):
        return math.inf
    return _z(power, alpha) * math.sqrt((pilot.true + pilot.noise / design.samples) / design.problems)


def see_methods(design: EvaluationSize, pilot: Pilot, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """Smallest true difference of two methods on these problems (second equation); infinite below three training seeds."""
    if design.seeds < 3:
        return math.inf
    sd = math.sqrt(2 * pilot.run_sd**2 + pilot.noise / design.samples / design.problems)
    return detectable(sd, design.seeds, power=power, alpha=alpha)


def problems_needed(
    difference: float, discordant: float = DISCORDANT, *, power: float = 0.8, alpha: float = 0.05
) -> int:
    """Problems that make `difference` detectable when a share `discordant` of them flips: q ((z_.975 + z_.8) / x)^2.

    10 % discordant and +0.02: 1,963 (1,960 with 2.8 for the sum of the quantiles).
    """
    _positive(difference)
    return math.ceil(discordant * (_z(power, alpha) / difference) ** 2)


def design_needed(design: EvaluationSize, pilot: Pilot, difference: float) -> tuple[int, int | None]:
    """What finds a difference of two checkpoints with 80 % power: the number of problems at this number of samples, and the number
    of samples at this number of problems, None where no number suffices because v_true remains."""
    _positive(difference)
    factor = (_z(0.8, 0.05) / difference) ** 2
    problems = max(fewest_units(), math.ceil(factor * (pilot.true + pilot.noise / design.samples)))
    left = design.problems / factor - pilot.true
    if left <= 0 or design.problems < fewest_units():
        return problems, None
    return problems, max(pilot.k, math.ceil(pilot.noise / left))


def needed_line(design: EvaluationSize, pilot: Pilot, difference: float) -> str:
    """`design_needed` in words, beside the design."""
    problems, samples = design_needed(design, pilot, difference)
    head = f"to detect a difference of {difference:g} in pass@{pilot.k} between two checkpoints (80 % power): "
    if problems <= design.problems:
        return f"{head}this design suffices ({problems:,} problems of {design.samples:,} samples would)"
    wider = f"{head}{problems:,} problems of {design.samples:,} samples"
    if samples is None:
        return f"{wider}; with {design.problems:,} problems no number of samples suffices"
    return f"{wider}, or {samples:,} samples of each of {design.problems:,} problems"


def runs_needed(
    difference: float, run_sd: float = SEED_SD, *, known: bool = False, power: float = 0.8, alpha: float = 0.05
) -> int:
    """Training runs per arm that make `difference` detectable when runs of one arm scatter by run_sd.

    known: as if run_sd were known, 2 ((z_.975 + z_.8) run_sd / x)^2 (0.01 and +0.015: 7). Else with Student's t on paired
    seeds, which the verdicts use because three or ten runs do not tell their own scatter (the same: 10).
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
    """A pilot out of assumptions: v = discordant at `samples`, `noise_share` of it the samples' own."""
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
    """From exact probabilities a, b (N,) or (S, N), one row a training seed: v_true is the variance of the exact gaps.

    v_noise: what n = k samples would add to a problem, times k, summed over both arms, mean over problems.
    With three seeds or more run_sd is measured: the SD of the seeds' mean differences over sqrt(2).
    """
    left, right = (np.atleast_2d(np.asarray(x, dtype=float)) for x in (a, b))
    if left.shape != right.shape or left.shape[1] < 2:
        raise DataError(
            f"pilot of shapes {left.shape} and {right.shape}: both need the same problems (at least two) and seeds."
        )
    gaps = np.asarray(exact_pass_at_k(left, k)) - np.asarray(exact_pass_at_k(right, k))
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
    )


def pilot_of_counts(
    n: ArrayLike, a: ArrayLike, b: ArrayLike, k: int, run_sd: float = SEED_SD, *, n_b: ArrayLike | None = None,
    cluster: ArrayLike | None = None,
) -> Pilot:  # fmt: skip
    """From counts, right ones a, b (N,) or (S, N) among n samples: v is the variance of the gaps, v_noise the samples' own.

    n: one number, or of a's shape; n_b: samples of b where they differ from n. cluster: (N,) labels of problems that belong
    together; v is then N times the variance of the mean over clusters, so more problems means more clusters like these.
    The samples' own variance is that at the estimated probabilities c / n, which leaves out problems never solved by chance.
    With three training seeds (rows) or more run_sd is measured: the variance of the seeds' mean differences less what the
    samples put into it, over 2, square root.
    """
    left, right, many, many_b = np.broadcast_arrays(
        *(np.atleast_2d(np.asarray(x, dtype=np.int64)) for x in (a, b, n, n if n_b is None else n_b))
    )
    if left.shape[1] < 2:
        raise DataError(f"a pilot of {left.shape[1]} problem: at least two are needed to estimate the variance over problems.")
    gaps = np.asarray(pass_at_k(many, left, k)) - np.asarray(pass_at_k(many_b, right, k))
    noises = [_own_variance(*side, k) for side in ((many, left), (many_b, right))]
    own = float(np.mean(noises[0] + noises[1]))
    each = float(np.mean(many * noises[0] + many_b * noises[1]))  # of one sample of each problem
    total = float(np.mean([_over_problems(row, cluster) for row in gaps]))
    scatter, source = run_sd, "assumed"
    if len(gaps) >= 3:
        between = float(gaps.mean(axis=1).var(ddof=1)) - own / gaps.shape[1]
        scatter, source = math.sqrt(max(between, 0.0) / 2), f"measured over {len(gaps)} training seeds"
    part = min(own, total) / own if own > 0 else 0.0  # the gaps may vary less than their samples alone would make them
    fewest, most = int(min(many.min(), many_b.min())), int(max(many.max(), many_b.max()))
    samples = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    groups = "" if cluster is None else f" in {len(set(np.asarray(cluster).tolist()))} clusters"
    return Pilot(
        true=max(total - own, 0.0),
        noise=each * part,
        run_sd=scatter,
        k=k,
        source=f"from a pilot of {left.shape[1]} problems{groups} and {samples} samples; SD between training runs {scatter:.3g}, "
        f"{source}",
    )


def _own_variance(n: NDArray[np.int64], right: NDArray[np.int64], k: int) -> Floats:
    """The samples' own variance of the unbiased pass@k of each problem, of the shape of n."""
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
    """What the design can see, and for each claim the three purchases (twice the problems, twice the samples, one more
    training seed of each arm) in order of log shrink of the detectable difference per completion drawn."""
    return PowerPlan(
        design=design,
        pilot=pilot,
        checkpoints=see_checkpoints(design, pilot),
        methods=see_methods(design, pilot),
        next_checkpoints=_purchases(design, pilot, run_cost, methods=False),
        next_methods=_purchases(design, pilot, run_cost, methods=True),
    )


def plan_lines(plan: PowerPlan, *, run_cost: float = RUN_COST, measured: bool = False) -> list[str]:
    """The plan in words. measured: on two evaluations of the reader's own, so without the gains of the paper."""
    d, p = plan.design, plan.pilot
    lines = [
        f"design: {d.problems:,} problems, {d.samples:,} samples of each, {_seeds(d.seeds)} of each of two arms, "
        f"pass@{p.k}; 80 % power, two-sided 5 %",
        p.source,
        f"cost: {d.cost(run_cost):,.0f} completions, a training run counted as {run_cost:,.0f} of them (--run-cost)",
        f"claims about checkpoints: {_see(plan.checkpoints, f'fewer than {fewest_units()} problems')}",
        *_next_lines(plan.next_checkpoints, plan.checkpoints),
        f"claims about methods, on these problems: {_see(plan.methods, 'fewer than three training seeds')}",
        *_next_lines(plan.next_methods, plan.methods),
    ]
    q = p.true + p.noise / d.samples
    needed = (
        f"to detect +0.02 between checkpoints: about {_three(problems_needed(0.02, q))} problems at this variance; to detect "
        f"+0.015 between methods at SD {p.run_sd:.3g} per run: {runs_needed(0.015, p.run_sd)} runs per arm with Student's t "
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
    """log(now / then) of two detectable differences; infinite where only `then` is finite."""
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


def _seeds(n: int) -> str:
    return f"{n} training seed{'' if n == 1 else 's'}"


def _see(x: float, why_not: str) -> str:
    return f"cannot detect any difference: {why_not}" if math.isinf(x) else f"can detect a difference of {x:.3f}"


def _z(power: float, alpha: float) -> float:
    return float(norm_ppf(1 - alpha / 2) + norm_ppf(power))


def _positive(difference: float) -> None:
    if not difference > 0:
        raise ConfigError(f"difference = {difference}: the difference to detect must be above 0.")


def _three(n: int) -> str:
    digits = max(0, len(str(n)) - 3)
    return f"{round(n, -digits):,}"
