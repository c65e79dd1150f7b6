"""`python -m lab place`: does the place of the anchor matter? Primary endpoints, from counts and exact KLs alone.

The protocol is in lab/experiments/2026-11-29_smollm2_place/README.md. Arms end at different KLs, so each is compared with GRPO at
*its* KL. GRPO is run at three betas, which alone say what a larger KL costs in pass@32: two-stage least squares of pass@32 on arms
and log forward KL a token, with the arm as the instrument, all betas of GRPO being one arm of the second stage. (Ordinary least
squares would take the slope from the noise between training seeds of one arm, where it is another: a run that wandered farther.)
An endpoint is the difference of two arms at equal forward KL. As trained: the plain difference, with both variances apart (Welch).
Intervals hold the choice of problems too: half-widths over runs and over problems in quadrature.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import tyro
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq

from lab.primaries import (
    BASE,
    COUNTS,
    DESIGN,
    KLS,
    Counts,
    K,
    check_there,
    counts_of,
    holm,
    score,
    seeds_of,
    solves,
)
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.results.tables import Table
from sage_rlvr.sweeps.design import load_design

BRANCH, PERMUTED, OPERATOR, OPERAND = "SAGE-Branch", "SAGE-Branch, q permuted", "q at operators", "q at operands"
GRPO = ("GRPO, beta 0.02", "GRPO, beta 0.0311", "GRPO, beta 0.05")
"""Labels of the design."""
PRIMARIES = ((BRANCH, PERMUTED), (OPERATOR, OPERAND), (BRANCH, ""))
"""Pairs of arms; "" is GRPO at the same KL."""
MARGIN, ALPHA = 0.05, 0.05


@dataclass(frozen=True, eq=False)
class Run:
    """A trained policy: pass@k of each problem (k -> (P,)), and its KLs to the base, nats per token."""

    arm: str
    seed: int
    passed: Mapping[int, NDArray[np.float64]]
    forward: float
    reverse: float = math.nan

    def mean(self, k: int) -> float:
        """pass@k over the problems."""
        return float(self.passed[k].mean())


@dataclass(frozen=True)
class Endpoint:
    """A difference with its 95 % interval and two-sided p. runs: of both arms together, 0 if they were not run."""

    name: str
    value: float
    low: float
    high: float
    p: float
    runs: int

    @property
    def inside(self) -> bool:
        """Whether the interval lies within the margin."""
        return self.low > -MARGIN and self.high < MARGIN

    def told(self, corrected: float) -> str:
        """The sign if Holm's p tells it, and whether the interval lies inside the margin; both may hold."""
        found = []
        if corrected < ALPHA:
            found.append("above 0" if self.value > 0 else "below 0")
        if self.inside:
            found.append(f"within {MARGIN:g} of 0")
        return " and ".join(found) or "cannot be told"


@dataclass(frozen=True)
class Fit:
    """The second stage: arms other than GRPO, their heights over GRPO's line, the slope of log KL, with their covariance.

    freedom: degrees of freedom of the residuals. curved: p of Sargan's test that GRPO's betas lie on one line.
    """

    arms: tuple[str, ...]
    values: NDArray[np.float64]
    covariance: NDArray[np.float64]
    freedom: int
    curved: float

    def height(self, a: str, b: str) -> tuple[float, float]:
        """a less b at equal KL, and its standard error; "" is GRPO."""
        contrast = np.zeros(len(self.values))
        for name, sign in ((a, 1), (b, -1)):
            if name:
                contrast[1 + self.arms.index(name)] = sign
        return float(contrast @ self.values), math.sqrt(float(contrast @ self.covariance @ contrast))


def fit(runs: Sequence[Run], k: int = K) -> Fit:
    """Two-stage least squares; see the module. DataError without two betas of GRPO, or with too few runs."""
    arms = tuple(dict.fromkeys(run.arm for run in runs if run.arm not in GRPO))
    betas = tuple(arm for arm in GRPO if any(run.arm == arm for run in runs))
    least = len(arms) + 3
    if len(betas) < 2 or len(runs) < least:
        raise DataError(f"{len(runs)} runs with {len(betas)} betas of GRPO; the slope needs two of them, and the fit {least} runs")
    for run in runs:
        if not run.forward > 0:
            raise DataError(f"{run.arm}, seed {run.seed}: forward KL {run.forward}; it must be above 0 for its logarithm")
    y = np.array([run.mean(k) for run in runs])
    kl = np.array([math.log(run.forward) for run in runs])
    of_arm = np.array([[run.arm == arm for arm in (*betas, *arms)] for run in runs], dtype=float)
    means = of_arm @ ((of_arm.T @ kl) / of_arm.sum(0))
    others = np.column_stack([np.ones(len(y)), *(of_arm[:, len(betas) :].T)])
    x, projected = np.column_stack([others, kl]), np.column_stack([others, means])
    inverse = np.linalg.inv(projected.T @ projected)
    values = inverse @ projected.T @ y
    rest = y - x @ values
    freedom = len(y) - x.shape[1]
    variance = float(rest @ rest) / freedom
    explained = of_arm @ ((of_arm.T @ rest) / of_arm.sum(0))
    sargan = len(y) * float(explained @ explained) / float(rest @ rest)
    curved = float(stats.chi2.sf(sargan, len(betas) - 2)) if len(betas) > 2 else math.nan
    return Fit(arms, values, variance * inverse, freedom, curved)


def at_equal_kl(runs: Sequence[Run], a: str, b: str, k: int = K) -> Endpoint:
    """a less b in pass@k at equal forward KL."""
    fitted = fit(runs, k)
    value, error = fitted.height(a, b)
    arms = ({a}, {b} if b else set(GRPO))
    both = sum(run.arm in arms[0] | arms[1] for run in runs)
    return _endpoint(f"{a} less {b or 'GRPO'} at equal forward KL", value, error, fitted.freedom, _gaps(runs, *arms, k), both)


def as_trained(runs: Sequence[Run], a: str, b: str, read: Callable[[Run], float], of_problems: int = 0) -> Endpoint:
    """The plain difference of two arms in what `read` gives. of_problems: a k whose spread over problems counts too, or 0."""
    left, right = ([read(run) for run in runs if run.arm == arm] for arm in (a, b))
    if min(len(left), len(right)) < 2:
        raise DataError(f"{a} less {b}: {len(left)} and {len(right)} runs; at least two of each are needed")
    x, y = np.array(left), np.array(right)
    parts = x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(x) - 1) + parts[1] ** 2 / (len(y) - 1)) if error else 1.0
    gaps = _gaps(runs, {a}, {b}, of_problems) if of_problems else np.zeros(2)
    return _endpoint(f"{a} less {b}", float(x.mean() - y.mean()), error, freedom, gaps, len(x) + len(y))


def _endpoint(name: str, value: float, error: float, freedom: float, gaps: NDArray[np.float64], runs: int) -> Endpoint:
    """error: standard error over runs, with `freedom` degrees. gaps (P,): difference of the arms' means on each problem."""
    over_problems = float(gaps.std(ddof=1) / math.sqrt(len(gaps)))

    def reach(p: float) -> float:
        return math.hypot(float(stats.t.isf(p / 2, freedom)) * error, float(stats.t.isf(p / 2, len(gaps) - 1)) * over_problems)

    half, least = reach(0.05), 1e-12
    p = least if reach(least) < abs(value) else 1.0 if value == 0 else float(brentq(lambda p: reach(p) - abs(value), least, 1.0))
    return Endpoint(name, value, value - half, value + half, p, runs)


def _gaps(runs: Sequence[Run], a: set[str], b: set[str], k: int) -> NDArray[np.float64]:
    means = [np.mean([run.passed[k] for run in runs if run.arm in arms], axis=0) for arms in (a, b)]
    return np.asarray(means[0] - means[1])


def primaries(runs: Sequence[Run]) -> list[tuple[Endpoint, float]]:
    """The primary endpoints with Holm's p."""
    found = [at_equal_kl(runs, a, b) for a, b in PRIMARIES]
    return list(zip(found, holm(found), strict=True))  # type: ignore[arg-type]


# ---- what is read


def runs_of(folder: Path, ks: Sequence[int] = (1, 8, K)) -> tuple[list[Run], Counts]:
    """The trained policies of an experiment, and all counts. DataError unless both files have every arm and seed of its design."""
    check_there(folder)
    counts, kls = counts_of(folder / COUNTS), _kls(folder / KLS)
    design, seeds = load_design(folder / DESIGN), seeds_of(folder)
    labels = [design.spec(name).label or name for name in design.arms]
    missing = [f"{arm}, seed {seed}" for seed in seeds for arm in labels if (arm, seed) not in counts or (arm, seed) not in kls]
    if missing or (BASE, None) not in counts:
        raise DataError(
            f"{folder}: {len(missing)} of {len(labels) * len(seeds)} runs are not complete (next: {(missing or [BASE])[0]}); the "
            "protocol reads nothing before all are"
        )
    found = []
    for seed in seeds:
        for arm in labels:
            passed = {k: np.array([_solves(n, c, k, arm) for n, c in counts[arm, seed]]) for k in ks}
            found.append(Run(arm, seed, passed, *kls[arm, seed]))
    return found, counts


def _solves(n: int, c: int, k: int, arm: str) -> float:
    if n < k:
        raise DataError(f"{arm}: {n} samples of a problem; pass@{k} needs {k}")
    return solves(n, c, k)


def _kls(file: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """(arm, training seed) -> forward and reverse KL, nats per token. DataError for a run that is there twice."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    twice = [key for key, many in Counter((row["arm"], row["seed"]) for row in rows).items() if many > 1]
    if twice:
        raise DataError(f"{file}: two rows of {twice[0][0]}, seed {twice[0][1]}; remove one")
    return {(row["arm"], row["seed"]): (row["forward"], row["reverse"]) for row in rows}


# ---- simulated studies

MIDDLES = dict(zip(GRPO, (0.40, 0.30, 0.20), strict=True)) | {BRANCH: 0.28, PERMUTED: 0.32, OPERATOR: 0.22, OPERAND: 0.36}
"""Forward KL of each arm in the middle of its runs, nats per token, in simulated studies."""
LIFTS = (0.0, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08)
"""Differences of the first primary in the table of power."""


def simulated(
    rng: np.random.Generator, seeds: int, lift: float = 0.0, within: float = -0.2, between: float = -0.1, problems: int = 300
) -> list[Run]:
    """Draw the runs of a study.

    Args:
        rng: Generator of all random numbers.
        seeds: Training seeds per arm.
        lift: Height of Branch over GRPO's line in pass@32.
        within: Slope of pass@32 in log KL from seed to seed of an arm. The standard deviation about it is 0.03.
        between: The same slope from arm to arm.
        problems: Test problems, 48 samples each.

    Returns:
        One run per arm and seed. On one problem pass@32 differs from the run's by the problem's difficulty, by what the arm
        does to that problem (standard deviation 0.07), and by its 48 samples (0.25); the last two have mean 0 in a run, whose
        noise holds them already.
    """
    hard = rng.beta(2, 1, problems)
    runs = []
    for arm, middle in MIDDLES.items():
        spread = 0.5 * hard + rng.normal(0, 0.07, problems)
        for seed in range(seeds):
            wander = rng.normal(0, 0.17)
            height = 0.75 + between * np.log(middle / 0.3) + within * wander + lift * (arm == BRANCH) + rng.normal(0, 0.03)
            own = spread + rng.normal(0, 0.25, problems)
            wide = height + own - own.mean()
            runs.append(Run(arm, seed, {1: wide / 3, 8: wide / 2, K: wide}, float(middle * np.exp(wander)), middle))
    return runs


def power_table(studies: int, seeds: int) -> Table:
    """How often simulated studies tell the first primary, per true difference."""
    rows = []
    for number, lift in enumerate(LIFTS):
        rng = np.random.default_rng([7, number])
        drawn = [primaries(simulated(rng, seeds, lift))[0] for _ in range(studies)]
        above = fmean(p < ALPHA and one.value > 0 for one, p in drawn)
        below = fmean(p < ALPHA and one.value < 0 for one, p in drawn)
        rows.append((f"{lift:g}", f"{above:.1%}", f"{below:.1%}", f"{fmean(one.inside for one, _ in drawn):.1%}"))
    return Table(header=("true difference", "above 0", "below 0", f"within {MARGIN:g} of 0"), rows=tuple(rows))


# ---- what is printed


def arms_table(runs: Sequence[Run], base: Sequence[tuple[int, int]]) -> Table:
    """pass@k and KLs of each arm, mean and 95 % interval over training seeds."""
    rows = [(BASE, "", *(f"{score(base, k):.3f}" for k in (1, 8, K)), "", "")]
    for arm in dict.fromkeys(run.arm for run in runs):
        own = [run for run in runs if run.arm == arm]
        columns = [[run.mean(k) for run in own] for k in (1, 8, K)] + [[run.forward for run in own], [run.reverse for run in own]]
        rows.append((arm, str(len(own)), *map(_interval, columns)))
    return Table(header=("arm", "runs", "pass@1", "pass@8", f"pass@{K}", "forward KL", "reverse KL"), rows=tuple(rows))


def _interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{fmean(values):.3f}"
    half = float(stats.t.isf(0.025, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return f"{fmean(values):.3f} ({fmean(values) - half:.3f} to {fmean(values) + half:.3f})"


def plain_table(runs: Sequence[Run]) -> Table:
    """Each pair of arms as trained, not corrected: pass@32, 8 and 1, both KLs. GRPO is that at Branch's mean q."""
    rows = []
    for a, b in PRIMARIES:
        own, other = a, b or GRPO[1]
        found = [as_trained(runs, own, other, lambda run, k=k: run.mean(k), k) for k in (K, 8, 1)]  # type: ignore[misc]
        found += [as_trained(runs, own, other, read) for read in (lambda run: run.forward, lambda run: run.reverse)]
        rows.append((f"{own} less {other}", *map(_cell, found)))
    head = ("as trained", f"pass@{K}", "pass@8", "pass@1", "forward KL", "reverse KL")
    return Table(header=head, rows=tuple(rows))


def _cell(one: Endpoint) -> str:
    return f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f})"


@dataclass(frozen=True)
class Place(Command):
    """The endpoints of the study of the anchor's place, by its protocol, from counts.jsonl and exact_kl.jsonl."""

    folder: tyro.conf.Positional[Path] = Path("lab/experiments/2026-11-29_smollm2_place")
    """The folder of the experiment."""
    power: int = 0
    """Read nothing; simulate this many studies of each true difference, with the design's seeds, and print how often it is told."""

    def execute(self, session: Session) -> int:
        if self.power:
            seeds = len(load_design(self.folder / DESIGN).seeds)
            session.say(f"Branch less its permuted q, {self.power} studies of {seeds} seeds per row", "")
            session.say(power_table(self.power, seeds).markdown())
            return 0
        runs, counts = runs_of(self.folder)
        fitted = fit(runs)
        session.say(arms_table(runs, counts[BASE, None]).markdown(), "")
        rows = tuple((one.name, _cell(one), f"{one.p:.4f}", f"{p:.4f}", one.told(p)) for one, p in primaries(runs))
        session.say(Table(header=(f"pass@{K}", "difference", "p", "Holm's p", "verdict"), rows=rows).markdown(), "")
        slope = fitted.values[-1], math.sqrt(fitted.covariance[-1, -1])
        session.say(
            f"pass@{K} along GRPO's betas: {slope[0]:+.3f} (standard error {slope[1]:.3f}) for e times the KL; on one line: "
            f"p {fitted.curved:.3f}", "", plain_table(runs).markdown(),
        )  # fmt: skip
        return 0


__all__ = [
    *("MIDDLES", "PRIMARIES", "Endpoint", "Fit", "Place", "Run", "as_trained", "at_equal_kl", "fit", "power_table", "primaries"),
    *("runs_of", "simulated"),
]
