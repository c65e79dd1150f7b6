"""The study on SmolLM2 beyond its protocol: what all training seeds of little room show, and k3 against k3_is from every run.

Nothing here was planned. The protocol reads k3 against k3_is by interpolation in each training seed, and leaves out the seeds whose
KL lies outside; the regression uses all runs. `python -m lab study` prints it beside the protocol's own verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lab.primaries import ARM, RIVALS, K
from lab.room.smollm2 import REPEATS, Room, less_base, score, signed, together
from sage_rlvr.results.tables import Table
from sage_rlvr.verdicts.chance import Chance
from sage_rlvr.verdicts.stats.hull import compare_hull
from sage_rlvr.verdicts.stats.intervals import Interval
from sage_rlvr.verdicts.stats.mixture import above_mixtures_of_counts
from sage_rlvr.verdicts.stats.paired import PairedDifference

FEW = 8
"""The k at which an arm is held against the base at equal pass@1."""
DIVERGENCES = ("reverse", "forward")


@dataclass(frozen=True)
class Run:
    """A training run: whether its estimator is k3, its exact KL to the base by divergence, and its pass@1 and pass@32."""

    is_k3: bool
    kls: Mapping[str, float]
    pass1: float
    many: float


def runs_of(room: Room) -> list[Run]:
    """Every training run of a room; k3_is at both betas."""
    found = []
    for arm in (ARM, *RIVALS):
        for seed, counts in zip(room.seeds, room.runs(arm), strict=True):
            kls = {"reverse": room.kls[arm, seed], "forward": room.forward[arm, seed]}
            found.append(Run(arm == ARM, kls, score(counts, 1), score(counts, K)))
    return found


def k3_less_k3_is(runs: Sequence[Run], divergence: str, at_equal_pass1: bool = False) -> Interval | None:
    """k3 less k3_is in pass@32 at an equal exact KL, and at an equal pass@1 too where that is asked; None where they do not vary.

    Least squares of pass@32 on a constant for each estimator and one slope of log KL (and one of log pass@1) for both; 95 % by
    Student's law with the residual degrees of freedom. Runs are the units, the problems are held fixed."""
    columns = [[float(run.is_k3), 1.0, math.log(run.kls[divergence])] for run in runs]
    if at_equal_pass1:
        columns = [[*row, math.log(run.pass1)] for row, run in zip(columns, runs, strict=True)]
    x = np.array(columns)
    if np.linalg.matrix_rank(x) < x.shape[1]:
        return None
    coefficients, error, free = least_squares(x, np.array([run.many for run in runs]))
    value, reach = float(coefficients[0]), float(stats.t.ppf(0.975, free) * error[0])
    return Interval(value=value, low=value - reach, high=value + reach, level=0.95, over="runs", n=len(runs))


def least_squares(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Coefficients, their standard errors and the residual degrees of freedom of y (N,) on x (N, J)."""
    coefficients = np.linalg.lstsq(x, y, rcond=None)[0]
    free = len(y) - x.shape[1]
    variance = ((y - x @ coefficients) ** 2).sum() / free
    return coefficients, np.sqrt(variance * np.diag(np.linalg.inv(x.T @ x))), free


def repeated(rooms: Mapping[str, Room]) -> dict[str, Room]:
    """Rooms that were repeated, each with the training seeds of its repetition."""
    return {room: together(rooms[room], rooms[name]) for name, room in REPEATS.items() if name in rooms}


def regression_table(rooms: Mapping[str, Room]) -> Table:
    """A row per set of training seeds, and one for those of a room and its repetition together."""
    rows = []
    for name, room in {**rooms, **{f"{name}, all seeds": one for name, one in repeated(rooms).items()}}.items():
        runs = runs_of(room)
        found = [k3_less_k3_is(runs, divergence, equal) for equal in (False, True) for divergence in DIVERGENCES]
        rows.append((name, str(len(runs)), *("not defined" if one is None else signed(one) for one in found)))
    heads = [f"at equal {divergence} KL{too}" for too in ("", " and pass@1") for divergence in DIVERGENCES]
    note = (
        f"Exploratory, chosen after both rooms were read: k3 less k3_is in pass@{K}, least squares over all runs, a constant for "
        "each estimator and common slopes of log KL and log pass@1; 95 % over runs, problems fixed, not adjusted. k3 in a loss "
        "descends the forward KL and k3_is the reverse one, so each divergence favors one of them."
    )
    return Table(header=("training seeds", "runs", *heads), rows=tuple(rows), notes=(note,))


def best_temperature(room: Room) -> float:
    """The temperature at which the base has its highest pass@1."""
    bases = room.bases()
    return max(bases, key=lambda t: score(bases[t], 1))


def beyond(room: Room, chance: Chance, k: int = FEW) -> PairedDifference:
    """GRPO with k3 less the best mixture per completion of the base's temperatures and the guessers at equal pass@1."""
    base = {t: (int(table.n[0]), table.c) for t, table in room.bases().items()}
    arm = [{1.0: (int(run.n[0]), run.c)} for run in room.runs(ARM)]
    found = above_mixtures_of_counts(arm, [[base]], k, guessers=chance.guessers, capped=True)
    assert found is not None  # the base has samples
    return compare_hull(found)


def headline(room: Room, mixed: PairedDifference) -> str:
    """Where GRPO with k3 lies below the base, and where above the base at equal pass@1: at the base's highest pass@1, and over its
    mixtures (`beyond`); and the pass@8 that the base reaches elsewhere."""
    bases, runs, best = room.bases(), room.runs(ARM), best_temperature(room)
    problems = bases[1.0].problems
    distinct = len({problem.partition(" #")[0] for problem in problems})
    warm = max(bases, key=lambda t: score(bases[t], FEW))

    def mean(k: int) -> str:
        return f"{np.mean([score(run, k) for run in runs]):.3f}"

    def less(t: float, k: int) -> str:
        return signed(less_base(runs, bases[t], k).difference)

    narrowed = (
        f"RL narrowed: GRPO with k3 lowered pass@{K} from {score(bases[1.0], K):.3f} to {mean(K)}, {less(1.0, K)}, over "
        f"{len(room.seeds)} training seeds, {len(problems)} problems ({distinct} distinct) held fixed."
    )
    learned = (
        f"It also learned: pass@1 rose from {score(bases[1.0], 1):.3f} to {mean(1)}. Colder sampling brings the untrained model "
        f"near that, {score(bases[best], 1):.3f} at T = {best:g}, a difference of {less(best, 1)}, but its pass@{FEW} is "
        f"{score(bases[best], FEW):.3f} there and GRPO's {mean(FEW)}, {less(best, FEW)}; against mixtures of temperatures at least "
        f"{mixed.difference.low:+.3f}, p {mixed.p:.3f}."
    )
    elsewhere = f"At T = {warm:g}, with a lower pass@1, the untrained model has pass@{FEW} {score(bases[warm], FEW):.3f}."
    return " ".join([narrowed, learned, *([elsewhere] if warm != best else [])])


def beyond_lines(room: Room, chance: Chance) -> str:
    """How sure it is that GRPO with k3 learned: its pass@1 against the base's best, and pass@8 against mixtures of temperatures."""
    bases, best = room.bases(), best_temperature(room)
    one, mixed = less_base(room.runs(ARM), bases[best], 1).difference, beyond(room, chance)
    return (
        f"The base was sampled at T = {', '.join(f'{t:g}' for t in bases)}. GRPO's pass@1 less the base's highest, at "
        f"T = {best:g}: {signed(one)}. GRPO's pass@{FEW} less that of the best mixture of temperatures at equal pass@1, whose "
        f"lower end also holds the noise of pass@1: at least {mixed.difference.low:+.3f}, p {mixed.p:.3f}."
    )
