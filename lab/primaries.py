"""The two primary endpoints of the study on SmolLM2, from counts and KLs alone.

A second derivation: it follows the protocol (lab/experiments/2026-11-27_smollm2_much_room/README.md) and imports nothing of the
package's statistics. It reads counts.jsonl (`python -m lab counts FOLDER`) and exact_kl.jsonl (`python -m lab counts FOLDER --kl`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
FEWEST = 4
"""With fewer training seeds inside the KL range of the rival, endpoint 1 cannot be told (protocol)."""

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
            return f"{self.name}: cannot be told, {self.seeds} seeds with an equal KL, {self.left_out} left out"
        left_out = f", {self.left_out} seeds left out" if self.left_out else ""
        return f"{self.name}: {self.value:+.4f} ({self.low:+.4f} to {self.high:+.4f}), p {self.p:.4f}, {self.seeds} seeds{left_out}"


def counts_of(file: Path) -> Counts:
    """n and c of each policy's problems at T = 1."""
    rows: dict[tuple[str, int | None], dict[str, tuple[int, int]]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["temperature"] == 1.0:
            rows.setdefault((row["arm"], row.get("seed")), {})[row["id"]] = (row["n"], row["c"])
    problems = {tuple(sorted(own)) for own in rows.values()}
    if len(problems) != 1:
        raise DataError(f"{file}: the policies were not sampled on the same problems; evaluate all of them on one set")
    return {policy: [own[name] for name in sorted(own)] for policy, own in rows.items()}


def kls_of(file: Path) -> dict[tuple[str, int], float]:
    """Reverse KL, nats per token, of each trained policy."""
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {(row["arm"], row["seed"]): row["reverse"] for row in rows}


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
    """Mean of the gaps with Student's t over seeds. more: variance of a term that all gaps share, added to that of the mean; the
    degrees of freedom stay those of the seeds, which makes the interval too wide rather than too narrow."""
    if len(gaps) < FEWEST:
        return Endpoint(name, math.nan, -math.inf, math.inf, math.nan, len(gaps), left_out)
    own, df = variance(gaps) / len(gaps), len(gaps) - 1
    error, value = math.sqrt(own + more), fmean(gaps)
    reach = float(stats.t.ppf(0.975, df)) * error
    p = float(2 * stats.t.sf(abs(value) / error, df)) if error > 0 else math.nan
    return Endpoint(name, value, value - reach, value + reach, p, len(gaps), left_out)


def at_kl(kl: float, points: Sequence[tuple[float, float]]) -> float | None:
    """The score at `kl` on the line through (KL, score), straight in log KL; None outside."""
    (first, low), (last, high) = sorted(points)
    if not first <= kl <= last:
        return None
    share = 0.0 if first == last else math.log(kl / first) / math.log(last / first)
    return low + share * (high - low)


def endpoints(counts: Counts, kls: Mapping[tuple[str, int], float], seeds: Sequence[int]) -> list[Endpoint]:
    """Endpoints 1 and 2 of a room. seeds: the training seeds of its design. DataError if the run of one is missing."""
    scores = {policy: score(own) for policy, own in counts.items()}
    gaps, out = [], 0
    for seed in seeds:
        if missing := [arm for arm in (ARM, *RIVALS) if (arm, seed) not in scores or (arm, seed) not in kls]:
            raise DataError(
                f"seed {seed} has no counts or no KL of {', '.join(missing)}; the endpoints are read once all runs are complete"
            )
        there = at_kl(kls[ARM, seed], [(kls[arm, seed], scores[arm, seed]) for arm in RIVALS])
        if there is None:
            out += 1
        else:
            gaps.append(scores[ARM, seed] - there)
    base = (BASE, None)
    widened = [scores[ARM, seed] - scores[base] for seed in seeds]
    return [
        judged("k3 less k3_is in pass@32 at equal exact KL", gaps, left_out=out),
        judged("GRPO (k3) less the base in pass@32", widened, noise(counts[base])),
    ]


def holm(found: Sequence[Endpoint]) -> list[float]:
    """Holm's adjusted p of the two endpoints of a room; NaN where one cannot be told, which still counts."""
    order = sorted(range(len(found)), key=lambda i: (math.isnan(found[i].p), found[i].p))
    adjusted, largest = [math.nan] * len(found), 0.0
    for rank, i in enumerate(order):
        if not math.isnan(found[i].p):
            largest = max(largest, min(1.0, (len(found) - rank) * found[i].p))
            adjusted[i] = largest
    return adjusted


@dataclass(frozen=True)
class Primaries(Command):
    """Derive the primary endpoints of the study on SmolLM2 once more, from counts.jsonl and exact_kl.jsonl alone."""

    folder: tyro.conf.Positional[Path]
    """lab/experiments/2026-11-27_smollm2_much_room or _little_room."""

    def execute(self, session: Session) -> int:
        if not (self.folder / DESIGN).is_file():
            raise DataError(f"{self.folder}: no {DESIGN}; give the folder of a room, under lab/experiments")
        for name in (COUNTS, KLS):
            if not (self.folder / name).is_file():
                command = "python -m lab counts SWEEP" + (" --kl" if name == KLS else "")
                raise DataError(f"{self.folder}: no {name}; write it with `{command}` once all runs are complete")
        seeds = yaml.safe_load((self.folder / DESIGN).read_text(encoding="utf-8"))["seeds"]
        found = endpoints(counts_of(self.folder / COUNTS), kls_of(self.folder / KLS), seeds)
        for one, p in zip(found, holm(found), strict=True):
            session.say(one.line() + ("" if math.isnan(p) else f"; Holm's p of this room {p:.4f}"))
        return 0
