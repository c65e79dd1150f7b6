"""What each method's parts cost: a step of the loop against the same step with GRPO's parts, paired, in CPU seconds.

    python -m lab.stress.parts_speed [--repeats 10] [--names verl rlpr]

A method keeps its KL, rollout plan and reduction on both sides; advantage, token weight, surrogate and guide become
GRPO's on the other, which has no extras, no buffer, and the verifier's rewards. Both sides take the same step from the
same weights (the learning rate is too small to move them), so completions are the same; sides take turns and who begins
changes. The ratio is the mean over steps of the paired log-ratio, with Student's interval. What a buffer costs is the pass over
its stored answers.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import tyro

from sage_rlvr.config import TrainConfig, read_recipe
from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.guides import Flat
from sage_rlvr.core.method import Method
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.methods import METHODS
from sage_rlvr.results import tables
from sage_rlvr.results.tables import Table
from sage_rlvr.training.buffer import fill
from sage_rlvr.training.loop import build, train_step
from sage_rlvr.training.loop_state import TrainState
from sage_rlvr.training.replay import numbered
from sage_rlvr.verdicts.stats.intervals import Interval, seed_interval

WANTED = 1.05
SETTINGS: dict[str, dict[str, Any]] = {"erank": {"stride": 4}}
"""Where a method's defaults would leave its part idle on completions of at most 24 tokens."""


@dataclass(frozen=True)
class Options:
    """repeats: pairs of steps of a method. names: some methods only."""

    repeats: int = 10
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timed:
    """A method: its parts' names, CPU seconds of a step with GRPO's parts, and the ratio with its interval."""

    name: str
    parts: str
    seconds: float
    ratio: Interval

    @property
    def verdict(self) -> str:
        if self.ratio.low > WANTED:
            return "MISSED"
        return "reached" if self.ratio.high <= WANTED else "open"


def neutral(method: Method) -> Method:
    """The method with GRPO's advantage and surrogate, and none of the parts that GRPO lacks; KL, plan and reduction stay."""
    anchor = method.anchor if method.anchor is None else replace(method.anchor, guide=Flat())
    return replace(method, advantage=GroupNormalized(), surrogate=Clip(), anchor=anchor, extras=())


def own_parts(method: Method, other: Method) -> str:
    """Names of what the two differ by."""
    names = ("advantage", "surrogate")
    found = [type(getattr(method, n)).__name__ for n in names if getattr(method, n) != getattr(other, n)]
    found += [type(extra).__name__ for extra in method.extras if extra not in other.extras]
    guide = method.anchor is not None and other.anchor is not None and method.anchor.guide != other.anchor.guide
    return " + ".join(found + ([type(method.anchor.guide).__name__] if guide and method.anchor else []))


def side(loop: TrainState, method: Method) -> TrainState:
    """The loop with another method, its parts at their start, its buffer filled."""
    numbers = {} if method.buffer is None else numbered(loop.problems)
    twin = replace(loop, method=method, parts=method.start(), numbers=numbers, initial=loop.policy)
    fill(twin, say=lambda text: None)
    return twin


def seconds(loop: TrainState, step: int) -> float:
    began = time.process_time()
    train_step(loop, step)
    return time.process_time() - began


def timed(name: str, method: Method, loop: TrainState, repeats: int) -> Timed:
    """Pairs of steps, the first of them left out: it warms both sides up."""
    other = neutral(method)
    ours, theirs = side(loop, method), side(loop, other)
    pairs = []
    for step in range(repeats + 1):
        first, second = (ours, theirs) if step % 2 else (theirs, ours)
        took = {id(one): seconds(one, step) for one in (first, second)}
        pairs.append((took[id(ours)], took[id(theirs)]))
    logs = seed_interval([math.log(a / b) for a, b in pairs[1:]], over="steps")
    ratio = replace(logs, value=math.exp(logs.value), low=math.exp(logs.low), high=math.exp(logs.high))
    return Timed(name, own_parts(method, other), statistics.median(b for _, b in pairs[1:]), ratio)


def config(name: str) -> TrainConfig:
    """The recipe of GRPO with a learning rate that moves nothing, and the reference that every method may ask for."""
    small = [("rollout.prompts_per_step", "8"), ("world.train_problems", "400")]
    return read_recipe(name, [("optimizer.lr", "1e-30"), *small], command="train")


def table(found: Iterable[Timed]) -> Table:
    """A row per method."""
    columns = {
        "method": lambda one: one.name,
        "its parts": lambda one: one.parts,
        "CPU s of GRPO's step": lambda one: f"{one.seconds:.3f}",
        "ratio": lambda one: f"{one.ratio.value:.3f}\n{one.ratio.low:.3f} to {one.ratio.high:.3f}",
        f"at most {WANTED:g}": lambda one: one.verdict,
    }
    return tables.table(columns, found)


def main(options: Options) -> None:
    torch.set_num_threads(1)
    loop, found = build(config("grpo")), []
    for name in options.names or METHODS:
        method = METHODS[name](**SETTINGS.get(name, {}))
        if not own_parts(method, neutral(method)):
            continue
        found.append(timed(name, method, loop, options.repeats))
        one = found[-1]
        print(f"{name:<20} {one.ratio.value:.3f} ({one.ratio.low:.3f} .. {one.ratio.high:.3f})  {one.verdict}", flush=True)
    load = f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    which = ", ".join(options.names) or "all methods"
    busy = f"{which}: {options.repeats} pairs of steps per method; {load}."
    print(table(found).markdown(), busy, sep="\n\n")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
