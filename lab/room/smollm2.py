"""The study on SmolLM2: its place on the axis of the room law, and tables of its arms, from the counts of a complete room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from lab.primaries import ARM, BASE, COUNTS, DESIGN, KLS, RIVALS, kls_of
from lab.room.worlds import EXPERIMENTS
from sage_rlvr.config import build
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.chance import chance_of_task
from sage_rlvr.results.tables import Table
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.readers import CountTable, read_evaluation
from sage_rlvr.verdicts.stats.intervals import Interval, seed_interval
from sage_rlvr.verdicts.stats.paired import PairedDifference, paired_seed_counts
from sage_rlvr.verdicts.stats.passk import pass_at_k

ROOMS = {"much room": "2026-11-27_smollm2_much_room", "little room": "2026-11-27_smollm2_little_room"}
"""Name in the picture -> folder under lab/experiments."""
REPEATED = {"little room, repeated": "2026-11-28_smollm2_little_room_rep"}
"""A room again with fresh training seeds: name -> folder under lab/experiments."""
REPEATS = {"little room, repeated": "little room"}
"""Name of a repetition -> name of the room that it repeats."""
KS = (1, 8, 32, 64)
COLUMNS = tuple(f"pass@{k}" for k in KS)

Policy = tuple[str, int | None, float | None]
"""Label of the arm, training seed (None for the base), sampling temperature."""


class IncompleteRoom(DataError):
    """A run of the room's design has no counts or no KL yet."""


@dataclass(frozen=True)
class Room:
    """The policies of a complete room, all on the same problems in the same order. seeds: the training seeds of its design; kls:
    (arm, training seed) -> exact reverse KL to the base, nats per token; forward: the same of the forward KL."""

    seeds: list[int]
    counts: Mapping[Policy, CountTable]
    kls: Mapping[tuple[str, int], float]
    forward: Mapping[tuple[str, int], float]

    def runs(self, arm: str) -> list[CountTable]:
        """Counts of an arm at T = 1, one per training seed."""
        return [self.counts[arm, seed, 1.0] for seed in self.seeds]

    def bases(self) -> dict[float, CountTable]:
        """Counts of the base by temperature, the highest first."""
        found = {t: table for (arm, _, t), table in self.counts.items() if arm == BASE and t is not None}
        return dict(sorted(found.items(), reverse=True))


@dataclass(frozen=True, kw_only=True)
class SmolArm:
    """One arm on the axis of the room law: pass@k of the base, and the change by RL with its 95 % interval (`less_base`)."""

    name: str
    experiment: str
    arm: str
    seeds: int
    base: float
    change: float
    low: float
    high: float


def read_room(folder: Path) -> Room:
    """The room in a folder of lab/experiments. IncompleteRoom unless every run of its design is there: no room is read half."""
    if not (folder / DESIGN).is_file():
        raise DataError(f"{folder}: no {DESIGN}; give the folder of a room, under lab/experiments")
    for name in (COUNTS, KLS):
        if not (folder / name).is_file():
            raise IncompleteRoom(f"{folder}: no {name}; a room is read once all runs are complete")
    seeds = [int(seed) for seed in yaml.safe_load((folder / DESIGN).read_text(encoding="utf-8"))["seeds"]]
    tables = read_evaluation(folder / COUNTS).tables
    counts: dict[Policy, CountTable] = {(one.group.arm, one.group.seed, one.group.temperature): one for one in tables}
    kls = kls_of(folder / KLS)
    if (BASE, None, 1.0) not in counts:
        raise IncompleteRoom(f"{folder / COUNTS}: no counts of the base at T = 1; a room is read once all runs are complete")
    for arm in (ARM, *RIVALS):
        for seed in seeds:
            if (arm, seed, 1.0) not in counts or (arm, seed) not in kls:
                raise IncompleteRoom(
                    f"{folder}: no counts or no KL of {arm!r}, training seed {seed}; a room is read once all runs are complete"
                )
    problems = sorted(counts[BASE, None, 1.0].problems)
    for policy, table in counts.items():
        if sorted(table.problems) != problems:
            raise DataError(f"{folder / COUNTS}: {policy} has other problems than the base; evaluate all policies on one set")
    in_order = {policy: table.ordered(problems) for policy, table in counts.items()}
    return Room(seeds, in_order, kls, kls_of(folder / KLS, "forward"))


def chance_of_room(folder: Path, room: Room) -> Chance:
    """The guessers of the room's task on the problems of the room. folder: of the room's design."""
    tree = yaml.safe_load((folder / DESIGN).read_text(encoding="utf-8"))
    chance = chance_of_task(build("task", tree["base"]["task"]), sorted(room.counts[BASE, None, 1.0].problems))
    if chance is None:
        raise DataError(f"{folder}: the task of {DESIGN} has no chance floor on the problems of the counts")
    return chance


def score(policy: CountTable, k: int) -> float:
    """pass@k, the mean over problems."""
    return float(np.mean(pass_at_k(policy.n, policy.c, k)))


def together(first: Room, fresh: Room) -> Room:
    """A room and its repetition as one. DataError unless they have the same counts of the base, and no training seed in common."""
    base = (BASE, None, 1.0)
    one, other = first.counts[base], fresh.counts[base]
    alike = one.problems == other.problems and np.array_equal(one.n, other.n) and np.array_equal(one.c, other.c)
    if not alike or set(first.seeds) & set(fresh.seeds):
        raise DataError("the two rooms differ in the counts of the base, or share a training seed; they are not one room repeated")
    counts, kls = {**fresh.counts, **first.counts}, {**fresh.kls, **first.kls}
    return Room(first.seeds + fresh.seeds, counts, kls, {**fresh.forward, **first.forward})


def less_base(runs: Sequence[CountTable], base: CountTable, k: int) -> PairedDifference:
    """pass@k of runs less that of the base on these problems, the protocol's own rule: interval and p over training seeds, with the
    noise of the base's samples, which all runs share (as `sage-rlvr compare --fixed-problems`)."""
    n = np.stack([run.n for run in runs])
    c = np.stack([run.c for run in runs])
    return paired_seed_counts(n, c, base.c[None, :], k, n_b=base.n, fixed=True)


def complete_rooms(
    experiments: Path = EXPERIMENTS, note: Callable[[object], None] | None = None, rooms: Mapping[str, str] = ROOMS
) -> dict[str, Room]:
    """Every one of these rooms that is complete, by its name. note: is given the reason why a room is left out."""
    found = {}
    for name, experiment in rooms.items():
        try:
            found[name] = read_room(experiments / experiment)
        except IncompleteRoom as error:
            if note is not None:
                note(error)
    return found


def smollm2_arms(k: int, experiments: Path = EXPERIMENTS) -> list[SmolArm]:
    """GRPO with k3 in every room that is complete, at k."""
    found = []
    for name, room in complete_rooms(experiments).items():
        base = room.counts[BASE, None, 1.0]
        change = less_base(room.runs(ARM), base, k).difference
        found.append(
            SmolArm(
                name=f"SmolLM2-135M, {name}, GRPO",
                experiment=ROOMS[name],
                arm=ARM,
                seeds=len(room.seeds),
                base=score(base, k),
                change=change.value,
                low=change.low,
                high=change.high,
            )
        )
    return found


def arms_table(room: Room) -> Table:
    """A row per arm, and one per temperature of the base: samples, right ones, pass@k and the exact KL."""
    rows = []
    for arm in (ARM, *RIVALS):
        runs = room.runs(arm)
        samples = sum(int(run.n.sum()) for run in runs)
        right = sum(int(run.c.sum()) for run in runs)
        cells = [spread(seed_interval([score(run, k) for run in runs])) for k in KS]
        kl = spread(seed_interval([room.kls[arm, seed] for seed in room.seeds]))
        rows.append((arm, "1", f"{samples:,}", f"{right:,}", *cells, kl))
    for t, base in room.bases().items():
        cells = [f"{score(base, k):.3f}" for k in KS]
        rows.append((BASE, f"{t:g}", f"{int(base.n.sum()):,}", f"{int(base.c.sum()):,}", *cells, ""))
    head = ("policy", "T", "samples", "right", *COLUMNS, "KL, nats per token")
    return Table(header=head, rows=tuple(rows), notes=(f"Means over {len(room.seeds)} training seeds, with 95 % intervals.",))


def seeds_table(room: Room) -> Table:
    """A row per training run."""
    rows = []
    for arm in (ARM, *RIVALS):
        for seed, run in zip(room.seeds, room.runs(arm), strict=True):
            cells = [f"{score(run, k):.3f}" for k in KS]
            rows.append((arm, str(seed), f"{int(run.c.sum()):,}", *cells, f"{room.kls[arm, seed]:.4f}"))
    return Table(header=("arm", "training seed", "right", *COLUMNS, "KL, nats per token"), rows=tuple(rows))


def against_base(room: Room) -> Table:
    """Each arm less the base at each of its temperatures."""
    rows = []
    for arm in (ARM, *RIVALS):
        for t, base in room.bases().items():
            gaps = [less_base(room.runs(arm), base, k).difference for k in KS]
            rows.append((arm, f"{t:g}", *map(signed, gaps)))
    note = "The arm less the base; 95 % intervals over training seeds and the base's samples, not adjusted for their number."
    return Table(header=("arm", "T of the base", *COLUMNS), rows=tuple(rows), notes=(note,))


def spread(one: Interval) -> str:
    """0.123 (0.100 to 0.146)."""
    return f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})"


def signed(one: Interval) -> str:
    """+0.012 (-0.003 to +0.027)."""
    return f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f})"
