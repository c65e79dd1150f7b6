"""Verdicts a second: the pool against math-verify called one completion after the other, side by side in one run.

    python benchmarks/verifier.py [--workers 2] [--problems 40] [--group 32] [--repeats 3]

Two loads, made on the spot. "algebra": every completion has another answer that only algebra can compare, so nothing is
remembered and nothing is settled by spelling: what a worker more is worth. "group": what RL sends, groups of completions
to one problem of which most agree. The sides take turns; printed are the best wall time of each, the ratio of the pool's
to one worker and to the serial side, the CPU time of this process a verdict (the pool's: what one caller can feed, however
many workers there are), and how often the sides' verdicts agree (the serial side is math-verify as its page
shows it, without its alarm signals: it has no limits, and its verdicts differ where this package corrects it).
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Callable

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


def pooled(pool: Pool) -> Callable[[Items], list[bool]]:
    return lambda items: [verdict.right for verdict in pool.verify(items)]


def best(
    sides: dict[str, Callable[[Items], list[bool]]], items: Items, repeats: int
) -> dict[str, tuple[float, float, list[bool]]]:
    """name -> (seconds of the fastest repeat, CPU seconds of this process in it, verdicts); the sides take turns."""
    found: dict[str, tuple[float, float, list[bool]]] = {}
    for _ in range(repeats):
        for name, side in sides.items():
            start, used = time.perf_counter(), time.process_time()
            verdicts = side(items)
            new = (time.perf_counter() - start, time.process_time() - used, verdicts)
            found[name] = min(found.get(name, new), new)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--group", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    many = chosen.workers
    with Pool(1, seconds=30, cache=0) as one, Pool(many, seconds=30, cache=0) as several:
        for pool in (one, several):
            pool.verify([(rf"\boxed{{x+x+{i}}}", f"2x+{i}") for i in range(4 * many)])  # every worker is there
        print(
            f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores, before anything was measured"
        )
        for load, items in (("algebra", algebra(chosen.problems, 4)), ("group", groups(chosen.problems, chosen.group))):
            sides = {
                "math-verify, serial": serially,
                "pool, 1 worker": pooled(one),
                f"pool, {many} workers": pooled(several),
            }
            if load == "group":
                sides[f"pool, {many} workers, remembering"] = lambda items: _fresh(items, many)
            found = best(sides, items, chosen.repeats)
            print(f"{load}: {len(items)} completions")
            serial, single = found["math-verify, serial"], found["pool, 1 worker"]
            for name, (seconds, used, verdicts) in found.items():
                agree = sum(a == b for a, b in zip(verdicts, serial[2], strict=True))
                print(
                    f"  {name:<32} {len(items) / seconds:8.0f} a second   {serial[0] / seconds:6.2f} x serial   "
                    f"{single[0] / seconds:6.2f} x one worker   {1000 * used / len(items):6.3f} ms CPU here   "
                    f"{agree}/{len(items)} verdicts as the serial side"
                )


_KEPT: dict[int, Pool] = {}


def _fresh(items: Items, workers: int) -> list[bool]:
    """A pool that remembers, whose workers are there and whose memory is empty when the clock starts."""
    pool = _KEPT.setdefault(workers, Pool(workers, seconds=30))
    if pool._crew is not None:
        pool._crew.memory.kept.clear()
    return [verdict.right for verdict in pool.verify(items)]


if __name__ == "__main__":
    main()
