"""Design files and what is stored of them: which runs are complete, which of them another sweep trained, what they cost, and where
file and summary differ.

A summary keeps no hash of its design. What can be held against the file is compared: arms, seeds, steps, problems, questions. A run
that one sweep took over from another (`reuse_runs`) is trained once and counts once. Summaries do not mark such runs; they
are found by
their numbers (`same_run`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.results.read import read_results
from sage_rlvr.runs import file_sha256
from sage_rlvr.sweeps.controls import PlannedArm
from sage_rlvr.sweeps.design import DesignSpec, load_design
from sage_rlvr.sweeps.resolve import resolve
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.results import Results
from sage_rlvr.verdicts.row import Row

DIGITS = 12  # of a hash

One = tuple[str, str, int]  # sweep, arm, training seed


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A design file as it stands, its arms with added controls, and its stored results; None where there are none."""

    name: str
    sha256: str
    design: DesignSpec
    arms: tuple[PlannedArm, ...]
    results: Results | None = None

    @cached_property
    def stored(self) -> Mapping[str, Any]:
        """summary.json; {} where there is none."""
        return {} if self.results is None else self.results.stored or {}

    @cached_property
    def rows(self) -> Sequence[Row]:
        """The comparisons of the summary, corrected as they are read today."""
        return [] if self.results is None else compare(self.results)

    @cached_property
    def seeds(self) -> dict[str, tuple[int, ...]]:
        """Arm -> training seeds with a complete run, evaluated exactly or by samples, or on validation problems alone where the
        design chooses."""
        sampled = {row["policy"]: row["seeds"] for row in self.stored.get("sampled") or ()}
        choice = self.stored.get("choice") or {}
        beside = choice["among"] if choice.get("chosen") else ()  # it waits until all of them are evaluated there, at every seed
        found = {
            key: tuple(arm["seeds"] or sampled.get(arm["label"], ()) or (self.stored["seeds"] if key in beside else ()))
            for key, arm in self.stored.get("arms", {}).items()
        }
        return {key: seeds for key, seeds in found.items() if seeds}

    @property
    def split(self) -> str:
        """Of the problems: train, validation or test."""
        return str((self.stored.get("evaluate") or {}).get("split", self.design.evaluate.split))

    def steps(self, arm: str) -> int:
        """Optimizer steps of each run of an arm of the summary."""
        return int(self.stored["arms"][arm].get("steps", 0))


def entries(results: Path, designs: Mapping[str, Path]) -> list[Entry]:
    """Every design with what is stored of it in the folder of its name. DataError where there is no summary at all."""
    summaries = {path.parent.name for path in results.glob("*/summary.json")}
    if not summaries:
        raise DataError(
            f"{results}: holds no folder with a summary.json; name the folder that has one for each sweep, such as "
            f"lab/experiments, or make one: {suggest('sweep', 'DESIGN', '--out', results / 'NAME')}"
        )
    if lost := sorted(summaries - {*designs}):
        raise DataError(
            f"{results / lost[0]}: a summary without a design file, so its runs belong to no row; there are designs of the names "
            f"{', '.join(designs)}: rename the folder, or put the design beside them"
        )
    found = []
    for name, path in sorted(designs.items()):
        design = load_design(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # what a method warns of is told where it is run
            arms, _ = resolve(design, path)
        stored = read_results(results / name) if name in summaries else None
        found.append(
            Entry(name=name, sha256=file_sha256(path)[:DIGITS], design=design, arms=tuple(arms), results=stored)
        )
    return found


# ------------------------------------------------------------------------------------------------------------------
# runs that are counted once


def same_run(one: Mapping[str, Any], other: Mapping[str, Any], seed: int) -> bool:
    """Whether two arms of summaries have one run of this seed in common: the same pass@k to the last digit or, where the problems
    are others, the same seconds and tokens over the same seeds."""
    scores = [arm.get("pass_by_seed", {}).get(str(seed)) for arm in (one, other)]
    if scores[0] is not None and scores[0] == scores[1]:
        return True
    facts = [[arm.get(name) for name in ("train_seconds", "tokens", "seeds")] for arm in (one, other)]
    return None not in facts[0] and seed in one["seeds"] and facts[0] == facts[1]


def taken_over(found: Sequence[Entry]) -> dict[One, One]:
    """Run -> the run of a sweep in its `reuse_runs` that it is. Two sweeps that adopt from each other share a run once."""
    links: dict[One, One] = {}
    named = {entry.name: entry for entry in found}

    def origin(run: One) -> One:
        while run in links:
            run = links[run]
        return run

    for entry in found:
        beside = [named[name] for name in entry.design.reuse_runs if name in named]
        for arm, seeds in entry.seeds.items():
            for seed in seeds:
                run, mine = (entry.name, arm, seed), entry.stored["arms"][arm]
                theirs = (
                    (other.name, key, seed)
                    for other in beside
                    for key, has in other.seeds.items()
                    if seed in has and same_run(mine, other.stored["arms"][key], seed)
                )
                if (source := next((one for one in theirs if origin(one) != run), None)) is not None:
                    links[run] = source
    return links


@dataclass(frozen=True, kw_only=True)
class Count:
    """Of one sweep or of several: complete runs, and those of them taken over. Of the others: optimizer steps, CPU hours, and how
    many logged no time."""

    runs: int = 0
    taken: int = 0
    steps: int = 0
    hours: float = 0.0
    untimed: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(**{name: value + getattr(other, name) for name, value in asdict(self).items()})

    @property
    def trained(self) -> int:
        """Runs that were trained for it."""
        return self.runs - self.taken


def count(entry: Entry, links: Mapping[One, One]) -> Count:
    """An arm that is taken over in part costs its mean per run: a summary has seconds per arm, not per run."""
    total = Count()
    for arm, seeds in entry.seeds.items():
        taken = sum((entry.name, arm, seed) in links for seed in seeds)
        own, seconds = len(seeds) - taken, entry.stored["arms"][arm].get("train_seconds")
        cost = {"untimed": own} if seconds is None else {"hours": own * seconds / 3600}
        total += Count(runs=len(seeds), taken=taken, steps=own * entry.steps(arm), **cost)
    return total


# ------------------------------------------------------------------------------------------------------------------
# the file against its summary


def differences(entry: Entry) -> list[str]:
    """In words, where the stored summary is not of the design as the file stands; [] where nothing is stored or nothing differs."""
    if entry.results is None:
        return []
    stored, configs = entry.stored, {arm.name: arm.config for arm in entry.arms}
    lists = {
        "not in the summary": [key for key in configs if key not in stored["arms"]],
        "not in the file": [key for key in stored["arms"] if key not in configs],
    }
    said = [f"{', '.join(keys)}: {where}" for where, keys in lists.items() if keys]
    both = [key for key in configs if key in stored["arms"]]
    missing = {key: [seed for seed in entry.design.seeds if seed not in entry.seeds.get(key, ())] for key in both}
    extra = {key: [seed for seed in entry.seeds.get(key, ()) if seed not in entry.design.seeds] for key in both}
    said += [f"{who}: seed {which} not complete" for who, which in _grouped(missing)]
    said += [f"{who}: seed {which} not in the file" for who, which in _grouped(extra)]
    other = [key for key in both if key in entry.seeds and entry.steps(key) != configs[key].steps]
    said += [f"{key}: {entry.steps(key)} steps, in the file {configs[key].steps}" for key in other]
    wanted, had = asdict(entry.design.evaluate), stored.get("evaluate") or {}
    names = [name for name in ("split", "sampling", "problems") if had.get(name, wanted[name]) != wanted[name]]
    said += [f"{name} {had[name]}, in the file {wanted[name]}" for name in names]
    asked, ask = stored.get("questions"), [asdict(question) for question in entry.design.questions]
    return said + ["other questions"] * (asked is not None and asked != ask)  # format 1 has none


def _grouped(seeds: Mapping[str, Sequence[int]]) -> Iterable[tuple[str, str]]:
    """(arms, seeds) with the arms of the same seeds together; "all arms" where it is every one."""
    by: dict[str, list[str]] = {}
    for arm, some in seeds.items():
        by.setdefault(spans(some), []).append(arm)
    return [("all arms" if len(arms) == len(seeds) else ", ".join(arms), which) for which, arms in by.items() if which]


def spans(seeds: Iterable[int]) -> str:
    """ "0 to 5", "0, 3, 7 to 9": seeds in order, runs of three and more by their ends."""
    parts: list[str] = []
    for _, group in groupby(enumerate(sorted({*seeds})), lambda pair: pair[1] - pair[0]):
        run = [seed for _, seed in group]
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return ", ".join(parts)


__all__ = ["Count", "Entry", "One", "count", "differences", "entries", "same_run", "spans", "taken_over"]
