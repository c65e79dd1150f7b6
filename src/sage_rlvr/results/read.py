"""The only code that opens result folders: `Results.read(*paths)`. No torch.

A path is the folder of a sweep or demo, a run directory, a record (.npz), a sample store, or a folder with a summary.json alone;
NAME=PATH[,PATH...] names an arm and gives its training seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.record import Record
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.results.design import Design
from sage_rlvr.results.scores import Exact, Scores

K = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One training run, finished or not. state: in words; metrics: the rows of its metrics.jsonl."""

    arm: str
    seed: int
    path: Path | None = None
    state: str = "not run"
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    metrics: Sequence[Mapping[str, Any]] = ()

    def total(self, name: str) -> float | None:
        """The sum of a metric over all steps, None where one lacks it."""
        whole = bool(self.metrics) and all(name in row for row in self.metrics)
        return float(sum(float(row[name]) for row in self.metrics)) if whole else None

    @property
    def steps(self) -> int:
        """Steps that were done."""
        return max((int(row["step"]) + 1 for row in self.metrics), default=0)

    @property
    def raw_kl(self) -> float | None:
        """Raw KL at the end, nats per token: its mean over the last tenth of the steps that had an update."""
        return raw_kl(self.metrics)


def raw_kl(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """`Run.raw_kl` of the rows of a metrics.jsonl; None where it was not logged."""
    values = [row["anchor/kl_raw"] for row in rows if "anchor/kl_raw" in row]
    return float(np.mean(values[-max(1, len(values) // 10) :])) if values else None


@dataclass(frozen=True, kw_only=True)
class Store:
    """A sample store and whose it is. seed: None where it is not known."""

    arm: str
    path: Path
    seed: int | None = None

    def open(self) -> SampleStore:
        """The store itself; close it."""
        return SampleStore.open(self.path)


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """Right ones among n samples of each problem of one store."""

    store: Store
    task: str
    temperature: float
    problems: tuple[str, ...]
    n: int
    right: np.ndarray
    identity: Mapping[str, Any]


@dataclass(eq=False)
class Results:
    """Everything that was named, by arm. records: (arm, training seed, task) -> exact record, the main task being "", the base's
    seed 0; runs: (arm, seed); stored: the summary.json of a folder that holds nothing else; notes: what was left out and why."""

    design: Design
    records: dict[tuple[str, int, str], Record] = field(default_factory=dict)
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    stored: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    k: int = K
    samples: int | None = None
    strict: bool = False
    _exact: dict[tuple[str, int, str], Exact] = field(default_factory=dict, repr=False)

    @classmethod
    def read(
        cls, *paths: str | Path, names: Sequence[str] = (), split: str = "test", k: int | None = None, apart: bool = False,
        samples: int | None = None,
    ) -> Results:  # fmt: skip
        """Everything of these paths. names: of the paths, instead of NAME= before each. apart: every path is an arm of its own and
        the first one the control (`compare`). samples: the first so many of every problem of a store."""
        from sage_rlvr.results.found import gather

        items = [f"{name}={path}" for name, path in zip(names, paths, strict=True)] if names else list(map(str, paths))
        found = gather(items, split=split, apart=apart)
        found.samples = samples
        found.k = k or min([K, *(c.n for c in found.counts)] if not found.records else [K])
        return found

    # ---- what there is

    def seeds(self, arm: str, task: str = "") -> tuple[int, ...]:
        """Training seeds with an exact record."""
        return tuple(sorted(seed for name, seed, of in self.records if (name, of) == (arm, task)))

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Tasks with exact records, the main one "" first, then tasks of stores."""
        return tuple(dict.fromkeys([*sorted({of for *_, of in self.records}), *(c.task for c in self.counts)]))

    @property
    def several(self) -> bool:
        """Whether some arm has several training seeds, so that comparisons are about methods."""
        return any(len(self.seeds(a, t)) > 1 for a, _, t in self.records) or any(
            len(found) > 1 for found in self._by_policy.values()
        )

    def exact(self, arm: str, seed: int = 0, task: str = "") -> Exact:
        """The exact record of an arm (the base has one for all seeds), with what is read off it."""
        key = (arm, 0 if arm == self.design.base else seed, task)
        if key not in self._exact:
            self._exact[key] = Exact(self.records[key], self.k)
        return self._exact[key]

    def temperatures(self, arm: str, task: str = "") -> tuple[float, ...]:
        """At which all seeds of the arm were evaluated, coldest first."""
        found = [set(self.records[arm, seed, task].logps) for seed in self.seeds(arm, task)]
        found += [{c.temperature for c in self.counts if (c.store.arm, c.task) == (arm, task)}] * (not found)
        return tuple(sorted(set.intersection(*found))) if found else ()

    def scores(self, arm: str, task: str = "", temperature: float = 1.0) -> Scores | None:
        """Every seed of an arm on a task at a temperature; None where it was not evaluated there."""
        seeds = tuple(s for s in self.seeds(arm, task) if temperature in self.records[arm, s, task].logps)
        if seeds:
            rows = np.stack([self.exact(arm, seed, task).p[temperature] for seed in seeds])
            ids = tuple(map(str, self.records[arm, seeds[0], task].meta["problem_ids"]))
            return Scores(arm=arm, task=task, temperature=temperature, seeds=seeds, problems=ids, values=rows)
        found = self._by_policy.get((arm, task, temperature))
        if not found:
            return None
        n = found[0].n
        seeds = tuple(i if c.store.seed is None else c.store.seed for i, c in enumerate(found))
        return Scores(
            arm=arm, task=task, temperature=temperature, seeds=seeds, problems=found[0].problems, n=n,
            values=np.stack([c.right for c in found]),
        )  # fmt: skip

    def only_scores(self, arm: str, task: str) -> Scores:
        """The scores of an arm that was evaluated at the reference temperature, or at one alone; DataError elsewhere."""
        known = self.temperatures(arm, task)
        found = self.scores(arm, task, 1.0 if 1.0 in known or len(known) != 1 else known[0])
        if found is None:
            raise DataError(f"{arm}: no evaluation at temperature 1; evaluate it with --temperatures 1.0")
        return found

    @cached_property
    def counts(self) -> tuple[Counts, ...]:
        """Counts of every whole store; what is not whole is noted."""
        from sage_rlvr.results.found import read_counts

        return tuple(read_counts(self))

    @cached_property
    def _by_policy(self) -> dict[tuple[str, str, float], list[Counts]]:
        found: dict[tuple[str, str, float], list[Counts]] = {}
        for c in self.counts:
            found.setdefault((c.store.arm, c.task, c.temperature), []).append(c)
        return found
