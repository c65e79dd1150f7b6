"""The primary endpoints of the studies on SmolLM2, from counts and KLs alone.

A second derivation: it follows the protocols (lab/experiments/2026-11-27_smollm2_much_room/README.md for the two rooms,
2026-11-28_smollm2_200_kl/README.md for 200 steps) and imports nothing of the package's statistics. It reads counts.jsonl and
exact_kl.jsonl (`python -m lab counts FOLDER` and `--kl`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, variance

import tyro
import yaml
from scipy import stats

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError

COUNTS, KLS, DESIGN = "counts.jsonl", "exact_kl.jsonl", "design.yaml"
K = 32
ARM, RIVALS, BASE = "GRPO, k3", ("GRPO, k3_is", "GRPO, k3_is, beta 0.05"), "base"
"""Labels of the designs."""
JACKKNIFE = (
    "Less the base the noise of its samples is the jackknife's here, which is rather too large. `python -m lab study` estimates it "
    "as `sage-rlvr compare`, so that its Holm's p is the smaller of the two; the verdicts are the same."
)
FEWEST = 4
"""With fewer training seeds an endpoint cannot be told (protocols)."""


@dataclass(frozen=True)
class Question:
    """A primary endpoint: pass@k of an arm less that of `rivals`, which are one arm; or several betas of one arm, between which it
    is read at the exact KL of `arm`; or none, for the base. experiment: the folder under lab/experiments, "" for any room."""

    name: str
    arm: str
    rivals: tuple[str, ...] = ()
    experiment: str = ""
    k: int = K


AT_EQUAL_KL = Question("k3 less k3_is in pass@32 at equal exact reverse KL", ARM, RIVALS)
LESS_THE_BASE = Question("GRPO (k3) less the base in pass@32", ARM)
_KL, _BRANCH, _EAPO = (f"2026-11-28_smollm2_200_{name}" for name in ("kl", "branch", "eapo"))
OF_200_STEPS = (
    replace(AT_EQUAL_KL, experiment=_KL, rivals=("GRPO, k3_is, beta 0.005", "GRPO, k3_is", "GRPO, k3_is, beta 0.1")),
    replace(LESS_THE_BASE, experiment=_KL),
    Question("SAGE-Branch less its q permuted in pass@32", "SAGE-Branch", ("SAGE-Branch, q permuted",), _BRANCH),
    Question("MaxRL less no KL in pass@32", "MaxRL", ("no KL",), _BRANCH),
    Question("EAPO less its weights permuted in pass@32", "EAPO", ("EAPO, weights permuted",), _EAPO),
)
"""In the order of the protocol, one family for Holm's correction."""

Counts = dict[tuple[str, int | None], list[tuple[int, int]]]
"""(arm, training seed; None for the base) -> n and c of each problem, ordered by its id."""


@dataclass(frozen=True)
class Endpoint:
    """A difference in pass@32 with its 95 % interval and two-sided p over training seeds."""

    name: str
    value: float
    low: float
    high: float
    p: float
    seeds: int
    left_out: int = 0

    def line(self) -> str:
        """One line of print."""
        if self.seeds < FEWEST:
            seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
            return f"{self.name}: cannot be told, {seeds}, {self.left_out} outside the KL range"
        left_out = f", {self.left_out} seeds left out" if self.left_out else ""
        return f"{self.name}: {self.value:+.4f} ({self.low:+.4f} to {self.high:+.4f}), p {self.p:.4f}, {self.seeds} seeds{left_out}"


def counts_of(file: Path, pooled: bool = False) -> Counts:
    """n and c of each policy's problems at T = 1. pooled: a problem that was drawn again ("ID #2") is the same problem with more
    samples, and counts once."""
    rows: dict[tuple[str, int | None], dict[str, tuple[int, int]]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["temperature"] == 1.0:
            own = rows.setdefault((row["arm"], row.get("seed")), {})
            if row["id"] in own:
                raise DataError(f"{file}: {row['arm']} has two rows of {row['id']!r}; remove one")
            own[row["id"]] = (row["n"], row["c"])
    if pooled:
        rows = {policy: _pooled(own) for policy, own in rows.items()}
    problems = {tuple(sorted(own)) for own in rows.values()}
    if len(problems) != 1:
        raise DataError(f"{file}: the policies were not sampled on the same problems; evaluate all of them on one set")
    return {policy: [own[name] for name in sorted(own)] for policy, own in rows.items()}


def _pooled(own: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """n and c of each distinct problem."""
    totals: dict[str, tuple[int, int]] = {}
    for name, (n, c) in own.items():
        problem = name.partition(" #")[0]
        known_n, known_c = totals.get(problem, (0, 0))
        totals[problem] = (known_n + n, known_c + c)
    return totals


def kls_of(file: Path, divergence: str = "reverse") -> dict[tuple[str, int], float]:
    """KL to the base, nats per token, of each trained policy. divergence: reverse, as the protocols have it, or forward."""
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {(row["arm"], row["seed"]): row[divergence] for row in rows}


def solves(n: int, c: int, k: int = K) -> float:
    """Probability that k of n samples, drawn without replacement, hold one of the c right ones."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def score(policy: Sequence[tuple[int, int]], k: int = K) -> float:
    """pass@k, the mean over problems."""
    return fmean(solves(n, c, k) for n, c in policy)


def noise(policy: Sequence[tuple[int, int]], k: int = K) -> float:
    """Variance of `score` from drawing the samples again: the jackknife over the samples of each problem, which is too large rather
    than too small (by up to a third at k = n / 2)."""
    total = 0.0
    for n, c in policy:
        # Leaving out one of the c right samples gives one value, leaving out one of the n - c wrong ones another.
        without_right = solves(n - 1, c - 1, k) if c else 0.0
        without_wrong = solves(n - 1, c, k) if c < n else 0.0
        mean = (c * without_right + (n - c) * without_wrong) / n
        spread = c * (without_right - mean) ** 2 + (n - c) * (without_wrong - mean) ** 2
        total += (n - 1) / n * spread
    return total / len(policy) ** 2


def judged(name: str, gaps: Sequence[float], more: float = 0.0, left_out: int = 0) -> Endpoint:
    """Mean of the gaps with Student's t over seeds. more: variance of a term that all gaps share and that is known; its half-width,
    by the normal law, is added in quadrature. p is 1 - the level of the interval that ends at 0."""
    if len(gaps) < FEWEST:
        return Endpoint(name, math.nan, -math.inf, math.inf, math.nan, len(gaps), left_out)
    own, value = math.sqrt(variance(gaps) / len(gaps)), fmean(gaps)
    student, normal = stats.t(len(gaps) - 1), stats.norm()

    def reach(p: float) -> float:
        return math.hypot(float(student.isf(p / 2)) * own, float(normal.isf(p / 2)) * math.sqrt(more))

    low, high = 0.0, 1.0  # p lies between
    while own > 0 and high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if reach(middle) > abs(value) else (low, middle)
    return Endpoint(name, value, value - reach(0.05), value + reach(0.05), high if own > 0 else math.nan, len(gaps), left_out)


def at_kl(kl: float, points: Sequence[tuple[float, float]], scale: Callable[[float], float] = math.log) -> float | None:
    """The score at `kl` between the two neighbors of (KL, score), straight in log KL, or on another scale; None outside all of
    them."""
    for (first, low), (last, high) in pairwise(sorted(points)):
        if first <= kl <= last:
            share = 0.0 if first == last else (scale(kl) - scale(first)) / (scale(last) - scale(first))
            return low + share * (high - low)
    return None


def gaps_of(
    question: Question, counts: Counts, kls: Mapping[tuple[str, int], float], seeds: Sequence[int],
    scale: Callable[[float], float] = math.log,
) -> list[list[float]]:  # fmt: skip
    """The difference on each problem, for each training seed whose KL lies inside. DataError if the run of a seed is missing."""
    scores = {policy: [solves(n, c, question.k) for n, c in own] for policy, own in counts.items()}
    found = []
    for seed in seeds:
        if missing := [arm for arm in (question.arm, *question.rivals) if (arm, seed) not in scores or (arm, seed) not in kls]:
            raise DataError(
                f"seed {seed} has no counts or no KL of {', '.join(missing)}; the endpoints are read once all runs are complete"
            )
        own = scores[question.arm, seed]
        if not question.rivals:
            there: list[float | None] = list(scores[BASE, None])
        elif len(question.rivals) == 1:
            there = list(scores[question.rivals[0], seed])
        else:
            rivals = [(kls[arm, seed], scores[arm, seed]) for arm in question.rivals]
            there = [at_kl(kls[question.arm, seed], [(kl, of[i]) for kl, of in rivals], scale) for i in range(len(own))]
        row = [value - other for value, other in zip(own, there, strict=True) if other is not None]
        if row:  # on one problem outside the range of KL is on all
            found.append(row)
    return found


def endpoint(
    question: Question, counts: Counts, kls: Mapping[tuple[str, int], float], seeds: Sequence[int],
    scale: Callable[[float], float] = math.log,
) -> Endpoint:  # fmt: skip
    """The endpoint of these training seeds. DataError if the run of one is missing."""
    gaps = [fmean(row) for row in gaps_of(question, counts, kls, seeds, scale)]
    return judged(question.name, gaps, 0.0 if question.rivals else noise(counts[BASE, None], question.k), len(seeds) - len(gaps))


def by_one_quantile(question: Question, counts: Counts, seeds: Sequence[int]) -> Endpoint:
    """An endpoint less the base by the rule in force when the runs began: one t quantile for training seeds and samples."""
    gaps = [fmean(row) for row in gaps_of(question, counts, {(question.arm, seed): 1.0 for seed in seeds}, seeds)]
    error, value = math.sqrt(variance(gaps) / len(gaps) + noise(counts[BASE, None], question.k)), fmean(gaps)
    student = stats.t(len(gaps) - 1)
    reach, p = float(student.isf(0.025)) * error, 2 * float(student.sf(abs(value) / error))
    return Endpoint(question.name, value, value - reach, value + reach, p, len(gaps))


def over_problems(question: Question, pooled: Counts, kls: Mapping[tuple[str, int], float], seeds: Sequence[int]) -> Endpoint:
    """The endpoint on distinct problems, drawn from many: its interval also holds their choice, by the spread over problems of the
    mean over seeds. Part of the noise of samples is in both terms, so the interval is too wide rather than too narrow."""
    rows = gaps_of(question, pooled, kls, seeds)
    gaps, means = [fmean(row) for row in rows], [fmean(column) for column in zip(*rows, strict=True)]
    more = variance(means) / len(means) if means else 0.0
    return judged(question.name, gaps, more, len(seeds) - len(gaps))


def endpoints(counts: Counts, kls: Mapping[tuple[str, int], float], seeds: Sequence[int]) -> list[Endpoint]:
    """Endpoints 1 and 2 of a room. seeds: the training seeds of its design. DataError if the run of one is missing."""
    return [endpoint(question, counts, kls, seeds) for question in (AT_EQUAL_KL, LESS_THE_BASE)]


def sensitivity(folder: Path) -> Iterator[tuple[str, Endpoint]]:
    """What the endpoints of a room would be by other choices, none of which the protocol has: what is varied, and the endpoint."""
    counts, kls, seeds = counts_of(folder / COUNTS), kls_of(folder / KLS), seeds_of(folder)
    pooled = counts_of(folder / COUNTS, pooled=True)
    of = f"{len(pooled[BASE, None])} distinct problems of {len(counts[BASE, None])}"
    yield from ((of, one) for one in endpoints(pooled, kls, seeds))
    for question in (AT_EQUAL_KL, LESS_THE_BASE):
        yield f"{of}, with their choice in the interval", over_problems(question, pooled, kls, seeds)
    yield "linear in KL", endpoint(AT_EQUAL_KL, counts, kls, seeds, scale=float)
    rule = "by the interval rule in force when the runs began"
    before = [endpoint(AT_EQUAL_KL, counts, kls, seeds), by_one_quantile(LESS_THE_BASE, counts, seeds)]
    told = [f"{p:.3f}" for p in holm(before) if not math.isnan(p)]
    yield f"{rule} (Holm's p of the endpoints: {', '.join(told)})", before[1]
    # k3 descends the forward KL and k3_is the reverse one, so the divergence that is held equal may favor one of them.
    forward = replace(AT_EQUAL_KL, name=f"{ARM} less k3_is in pass@32 at equal exact forward KL")
    yield "another divergence", endpoint(forward, counts, kls_of(folder / KLS, "forward"), seeds)
    first = replace(AT_EQUAL_KL, name=f"{ARM} less k3_is in pass@1 at equal exact KL", k=1)
    yield "another k", endpoint(first, counts, kls, seeds)
    for seed in seeds:
        yield f"without training seed {seed}", endpoint(AT_EQUAL_KL, counts, kls, [other for other in seeds if other != seed])
    for rival in RIVALS:
        question = Question(f"{ARM} less {rival} in pass@32, as trained", ARM, (rival,))
        yield "no interpolation", endpoint(question, counts, kls, seeds)


class NotRun(DataError):
    """The runs of an experiment have not ended."""


def endpoints_of_200_steps(experiments: Path) -> list[Endpoint]:
    """The five endpoints of the protocol of 200 steps: each of the training seeds for which all of its arms are complete.

    NotRun while the first folder has no counts. A later folder without any was not reached in the time, and has no seeds.
    """
    if not (experiments / _KL / COUNTS).is_file():
        raise NotRun(f"{experiments / _KL}: no {COUNTS}; `python -m lab gpu` writes it once all runs have ended")
    found = []
    for question in OF_200_STEPS:
        folder = experiments / question.experiment
        if not (folder / COUNTS).is_file():
            found.append(judged(question.name, []))
            continue
        check_there(folder)
        counts, kls = counts_of(folder / COUNTS), kls_of(folder / KLS)
        arms = (question.arm, *question.rivals)
        complete = [seed for seed in seeds_of(folder) if all((arm, seed) in counts and (arm, seed) in kls for arm in arms)]
        found.append(endpoint(question, counts, kls, complete))
    return found


def seeds_of(folder: Path) -> list[int]:
    """The training seeds of an experiment's design."""
    return [int(seed) for seed in yaml.safe_load((folder / DESIGN).read_text(encoding="utf-8"))["seeds"]]


def check_there(folder: Path) -> None:
    """DataError unless the folder of an experiment has its design, counts and KLs."""
    if not (folder / DESIGN).is_file():
        raise DataError(f"{folder}: no {DESIGN}; give the folder of a room or of 200 steps, under lab/experiments")
    for name in (COUNTS, KLS):
        if not (folder / name).is_file():
            command = "python -m lab counts SWEEP" + (" --kl" if name == KLS else "")
            raise DataError(f"{folder}: no {name}; write it with `{command}` once all runs are complete")


def holm(found: Sequence[Endpoint]) -> list[float]:
    """Holm's adjusted p of the endpoints of a family; NaN where one cannot be told, which still counts."""
    order = sorted(range(len(found)), key=lambda i: (math.isnan(found[i].p), found[i].p))
    adjusted, largest = [math.nan] * len(found), 0.0
    for rank, i in enumerate(order):
        if not math.isnan(found[i].p):
            largest = max(largest, min(1.0, (len(found) - rank) * found[i].p))
            adjusted[i] = largest
    return adjusted


@dataclass(frozen=True)
class Primaries(Command):
    """Derive the primary endpoints of a study on SmolLM2 once more, from counts.jsonl and exact_kl.jsonl alone."""

    folder: tyro.conf.Positional[Path]
    """2026-11-27_smollm2_much_room or _little_room under lab/experiments; or a folder of 2026-11-28_smollm2_200, for all three."""
    sensitivity: bool = False
    """Of a room: also by other choices than the protocol's, after the fact."""

    def execute(self, session: Session) -> int:
        if self.folder.name in {question.experiment for question in OF_200_STEPS}:
            found, family = endpoints_of_200_steps(self.folder.parent), "the five of 200 steps"
        else:
            check_there(self.folder)
            counts, kls = counts_of(self.folder / COUNTS), kls_of(self.folder / KLS)
            found, family = endpoints(counts, kls, seeds_of(self.folder)), "this room"
        for one, p in zip(found, holm(found), strict=True):
            session.say(one.line() + ("" if math.isnan(p) else f"; Holm's p of {family} {p:.4f}"))
        if self.sensitivity and family == "this room":
            session.say("", JACKKNIFE, "", "By other choices, after the fact, not corrected:")
            for varied, one in sensitivity(self.folder):
                session.say(f"{varied}: {one.line()}")
        return 0
