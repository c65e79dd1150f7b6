"""Verdicts a second: the pool against math-verify called one completion after the other, side by side in one run.

    python benchmarks/verifier.py [--workers 2] [--problems 40] [--group 32] [--repeats 3]

Two loads, made on the spot. "algebra": every completion has another answer that only algebra can compare, so nothing is
remembered and nothing is settled by spelling: what a worker more is worth. "group": what RL sends, groups of completions
to one problem of which most agree. The sides take turns; printed are the best wall time of each, the ratio of the pool's
to one worker and to the serial side, and how often the sides' verdicts agree (the serial side is math-verify as its page
shows it, without its alarm signals: it has no limits, and its verdicts differ where this package corrects it).

Below each pool, over all repeats: CPU time of this process and of the workers a verdict, whose quotient is how many workers
one caller can feed; and where Linux tells (/proc/PID/schedstat), what became of the workers' wall time: computing, waiting
for a core that others had, waiting for this process. The rate "on free cores" leaves the wait for cores out: what the pool
does on a machine of its own, whatever else runs on this one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from math_verify import parse, verify

from sage_rlvr.verifiers.pool import Pool

logging.getLogger("math_verify").setLevel(logging.ERROR)
Items = list[tuple[str, str]]


def algebra(problems: int, group: int) -> Items:
    """Gold (n+1)(x+k) against its expansion, each with other numbers; every fourth answer is off by one."""
    made = []
    for i in range(problems * group):
        n, k = i % 97 + 2, i // 97 + 2
        made.append((rf"So it is $\boxed{{{n}x+{n * k + (i % 4 == 0)}}}$.", rf"{n}\left(x+{k}\right)"))
    return made


def groups(problems: int, group: int) -> Items:
    """Whole numbers, fractions and roots in turn; in a group of 32 about 20 right in three spellings, the rest wrong."""
    made = []
    for i in range(problems):
        gold, spelled, wrong = (
            (str(17 * i), [str(17 * i), f"{17 * i}.0", f"x={17 * i}"], str(i + 1)),
            (rf"\frac{{{i}}}{{7}}", [f"{i}/7", rf"\dfrac{{{i}}}{{7}}", rf"\frac{{{2 * i}}}{{14}}"], f"{i}/8"),
            (
                rf"{i}\sqrt{{2}}",
                [rf"{i}\sqrt2", rf"\sqrt{{2}}\cdot {i}", rf"\frac{{{2 * i}}}{{\sqrt{{2}}}}"],
                rf"{i}\sqrt3",
            ),
        )[i % 3]
        for j in range(group):
            answer = spelled[j % 3] if j % 8 < 5 else wrong if j % 2 else f"{wrong}+{j}"
            made.append((rf"First {j}, then {j + 1}. The answer is $\boxed{{{answer}}}$.", gold))
    return made


def serially(items: Items) -> list[bool]:
    """math-verify alone, in this process."""
    return [
        bool(verify(parse(f"${gold}$", parsing_timeout=None), parse(text, parsing_timeout=None), timeout_seconds=None))
        for text, gold in items
    ]


@dataclass
class Side:
    """One way to judge, and what its repeats took."""

    judge: Callable[[Items], list[bool]]
    pool: Pool | None = None
    walls: list[float] = field(default_factory=list)
    here: float = 0.0
    """CPU seconds of this process, all repeats."""
    ran: float = 0.0
    """Seconds that the workers computed."""
    queued: float = 0.0
    """Seconds that they were ready and had no core."""
    verdicts: list[bool] = field(default_factory=list)

    @classmethod
    def of(cls, pool: Pool) -> Side:
        return cls(lambda items: [verdict.right for verdict in pool.verify(items)], pool)

    def turn(self, items: Items) -> None:
        ran, queued = scheduled(self.pool)
        start, used = time.perf_counter(), time.process_time()
        self.verdicts = self.judge(items)
        self.walls.append(time.perf_counter() - start)
        self.here += time.process_time() - used
        after = scheduled(self.pool)
        self.ran, self.queued = self.ran + after[0] - ran, self.queued + after[1] - queued

    def free(self, items: int) -> float:
        """Verdicts a second on free cores."""
        assert self.pool is not None
        return items * len(self.walls) / (sum(self.walls) - self.queued / self.pool.workers)


def scheduled(pool: Pool | None) -> tuple[float, float]:
    """(seconds that a pool's workers have computed, seconds that they have waited for a core); zeros where nobody says."""
    paths = [Path(f"/proc/{pid}/schedstat") for pid in (pool.pids() if pool is not None else [])]
    rows = [path.read_text().split() for path in paths if path.exists()]
    return sum(int(row[0]) for row in rows) / 1e9, sum(int(row[1]) for row in rows) / 1e9


def shares(side: Side, single: Side, items: int) -> str:
    """A pool's own line; nothing where the system does not tell, or where a worker was replaced on the way."""
    if side.pool is None or side.ran <= 0 or side.queued < 0:
        return ""
    done, wall = items * len(side.walls), sum(side.walls) * side.pool.workers
    ran, queued = side.ran / wall, side.queued / wall
    return (
        f"\n    a verdict {1000 * side.here / done:.3f} ms CPU here, {1000 * side.ran / done:.3f} ms in the workers: one caller "
        f"feeds {side.ran / side.here:.0f}; their time: {ran:.0%} computing, {queued:.0%} waiting for a core, "
        f"{1 - ran - queued:.0%} for work; on free cores {side.free(items):.0f} per second, "
        f"{side.free(items) / single.free(items):.2f} x one worker"
    )


def main(
    workers: int = len(os.sched_getaffinity(0)), problems: int = 40, group: int = 32, repeats: int = 3
) -> None:
    with Pool(1, seconds=30, cache=0) as one, Pool(workers, seconds=30, cache=0) as several:
        for pool in (one, several):
            pool.verify([(rf"\boxed{{x+x+{i}}}", f"2x+{i}") for i in range(4 * workers)])  # every worker is there
        print(
            f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores, before anything was measured"
        )
        for load, items in (("algebra", algebra(problems, 4)), ("group", groups(problems, group))):
            sides = {
                "math-verify, serial": Side(serially),
                "pool, 1 worker": Side.of(one),
                f"pool, {workers} workers": Side.of(several),
            }
            if load == "group":
                sides[f"pool, {workers} workers, remembering"] = Side(lambda items: _fresh(items, workers))
            for _ in range(repeats):
                for side in sides.values():
                    side.turn(items)
            print(f"{load}: {len(items)} completions")
            serial, single = sides["math-verify, serial"], sides["pool, 1 worker"]
            for name, side in sides.items():
                agree = sum(a == b for a, b in zip(side.verdicts, serial.verdicts, strict=True))
                seconds = min(side.walls)
                print(
                    f"  {name:<32} {len(items) / seconds:8.0f} per second   {min(serial.walls) / seconds:6.2f} x serial   "
                    f"{min(single.walls) / seconds:6.2f} x one worker   {agree}/{len(items)} verdicts as the serial side"
                    f"{shares(side, single, len(items))}"
                )


_KEPT: dict[int, Pool] = {}


def _fresh(items: Items, workers: int) -> list[bool]:
    """A pool that remembers, whose workers are there and whose memory is empty when the clock starts."""
    pool = _KEPT.setdefault(workers, Pool(workers, seconds=30))
    if pool._crew is not None:
        pool._crew.kept.clear()
    return [verdict.right for verdict in pool.verify(items)]


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
