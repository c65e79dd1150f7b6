"""The study on SmolLM2: its place on the axis of the room law, and tables of its arms, from the counts of a complete room."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
import yaml

from lab.primaries import ARM, BASE, COUNTS, DESIGN, KLS, RIVALS, kls_of
from lab.room.worlds import EXPERIMENTS
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import DataError
from sage_rlvr.results.tables import Table
from sage_rlvr.stats.comparison import paired_seeds
from sage_rlvr.stats.intervals import Interval, seed_interval
from sage_rlvr.stats.passk import Floats, Ints, pass_at_k

ROOMS = {"much room": "2026-11-27_smollm2_much_room", "little room": "2026-11-27_smollm2_little_room"}
"""Name in the picture -> folder under lab/experiments."""
KS = (1, 8, 32, 64)

Policy = tuple[str, int | None, float]
"""Label of the arm, training seed (None for the base), sampling temperature."""


@dataclass(frozen=True)
class Counts:
    """Samples n and right ones c of the policies of one room, (problems,) each."""

    n: dict[Policy, Ints]
    c: dict[Policy, Ints]

    def score(self, policy: Policy, k: int) -> float:
        """pass@k, the mean over problems."""
        return float(np.mean(pass_at_k(self.n[policy], self.c[policy], k)))

    def scores(self, arm: str, seeds: Sequence[int], k: int) -> Floats:
        """pass@k of an arm at T = 1, one number per training seed."""
        return np.array([self.score((arm, seed, 1.0), k) for seed in seeds])


@dataclass(frozen=True, kw_only=True)
class SmolArm:
    """One arm on the axis of the room law: pass@k of the base, and the change by RL with its 95 % interval over training seeds."""

    name: str
    experiment: str
    arm: str
    seeds: int
    base: float
    change: float
    low: float
    high: float


def seeds_of(folder: Path) -> list[int]:
    """The training seeds of the room's design."""
    design = yaml.safe_load((folder / DESIGN).read_text(encoding="utf-8"))
    return [int(seed) for seed in design["seeds"]]


def read_counts(folder: Path) -> Counts:
    """counts.jsonl of a room. DataError unless every run of the design is there, so that no room is read half."""
    rows: dict[Policy, list[tuple[str, int, int]]] = {}
    for line in (folder / COUNTS).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows.setdefault((row["arm"], row.get("seed"), row["temperature"]), []).append((row["id"], row["n"], row["c"]))
    for arm in (ARM, *RIVALS):
        if missing := [seed for seed in seeds_of(folder) if (arm, seed, 1.0) not in rows]:
            raise DataError(
                f"{folder / COUNTS}: no counts of {arm!r}, training seed {missing[0]}; a room is read once all runs are complete"
            )
    ordered = {policy: sorted(own) for policy, own in rows.items()}
    n = {policy: np.array([row[1] for row in own]) for policy, own in ordered.items()}
    c = {policy: np.array([row[2] for row in own]) for policy, own in ordered.items()}
    return Counts(n, c)


def smollm2_arms(k: int, experiments: Path = EXPERIMENTS) -> list[SmolArm]:
    """GRPO with k3 in every room that is complete, at k."""
    found = []
    for name, experiment in ROOMS.items():
        folder = experiments / experiment
        try:
            counts = read_counts(folder)
        except (DataError, FileNotFoundError):
            continue
        seeds = seeds_of(folder)
        base = counts.score((BASE, None, 1.0), k)
        change = seed_interval(counts.scores(ARM, seeds, k) - base)
        found.append(
            SmolArm(
                name=f"SmolLM2-135M, {name}, GRPO",
                experiment=experiment,
                arm=ARM,
                seeds=len(seeds),
                base=base,
                change=change.value,
                low=change.low,
                high=change.high,
            )
        )
    return found


def arms_table(folder: Path) -> Table:
    """A row per policy: samples, right ones, pass@k and the exact KL; means over training seeds with 95 % intervals."""
    counts, seeds = read_counts(folder), seeds_of(folder)
    kls = kls_of(folder / KLS)
    rows = []
    for arm in (ARM, *RIVALS):
        own: list[Policy] = [(arm, seed, 1.0) for seed in seeds]
        samples, right = (sum(int(of[one].sum()) for one in own) for of in (counts.n, counts.c))
        cells = [spread(seed_interval(counts.scores(arm, seeds, k))) for k in KS]
        kl = spread(seed_interval([kls[arm, seed] for seed in seeds]))
        rows.append((arm, "1", str(len(seeds)), f"{samples:,}", f"{right:,}", *cells, kl))
    for policy in sorted((one for one in counts.n if one[0] == BASE), key=lambda one: -one[2]):
        samples, right = int(counts.n[policy].sum()), int(counts.c[policy].sum())
        cells = [f"{counts.score(policy, k):.3f}" for k in KS]
        rows.append((BASE, f"{policy[2]:g}", "", f"{samples:,}", f"{right:,}", *cells, ""))
    head = ("policy", "T", "training seeds", "samples", "right", *(f"pass@{k}" for k in KS), "KL, nats per token")
    return Table(header=head, rows=tuple(rows))


def seeds_table(folder: Path) -> Table:
    """A row per training run."""
    counts, kls = read_counts(folder), kls_of(folder / KLS)
    rows = [
        (
            arm,
            str(seed),
            f"{int(counts.c[arm, seed, 1.0].sum()):,}",
            *(f"{counts.score((arm, seed, 1.0), k):.3f}" for k in KS),
            f"{kls[arm, seed]:.4f}",
        )
        for arm in (ARM, *RIVALS)
        for seed in seeds_of(folder)
    ]
    return Table(header=("arm", "training seed", "right", *(f"pass@{k}" for k in KS), "KL, nats per token"), rows=tuple(rows))


def against_base(folder: Path) -> Table:
    """Each arm less the base at each of its temperatures, over training seeds. The base's own noise is left out here."""
    counts, seeds = read_counts(folder), seeds_of(folder)
    rows = []
    for arm in (ARM, *RIVALS):
        for policy in sorted((one for one in counts.n if one[0] == BASE), key=lambda one: -one[2]):
            base = [np.full(len(seeds), counts.score(policy, k)) for k in KS]
            gaps = [paired_seeds(counts.scores(arm, seeds, k), one).difference for k, one in zip(KS, base, strict=True)]
            rows.append((arm, f"{policy[2]:g}", *map(signed, gaps)))
    return Table(header=("arm", "T of the base", *(f"pass@{k}" for k in KS)), rows=tuple(rows))


def spread(one: Interval) -> str:
    """0.123 (0.100 to 0.146)."""
    return f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})"


def signed(one: Interval) -> str:
    """+0.012 (-0.003 to +0.027)."""
    return f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f})"


@dataclass(frozen=True)
class Arms(Command):
    """Print every arm of a complete room of the study on SmolLM2: counts, pass@k, exact KL, differences to the base."""

    folder: tyro.conf.Positional[Path]
    """lab/experiments/2026-11-27_smollm2_much_room or _little_room."""

    def execute(self, session: Session) -> int:
        for table in (arms_table(self.folder), seeds_table(self.folder), against_base(self.folder)):
            session.say(table.markdown(), "")
        return 0
