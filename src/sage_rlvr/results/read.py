"""`Results.read(*paths)`: the only code that opens result folders. Does not import torch.

A path is the folder of a sweep or demo, a run directory, a record (.npz), a sample store, a folder with only a summary.json, or a
file of rows that a reader knows (`results.readers`). NAME=PATH[,PATH...] sets the name of an arm and lists its training seeds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.chance import KEY, chance_of_record, chance_of_store
from sage_rlvr.evaluation.judged import Reasons, problems_in, reasons_of
from sage_rlvr.evaluation.record import Record
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.reading import understood
from sage_rlvr.results.design import BASE, Design
from sage_rlvr.results.readers import Choice, CountTable, EvaluationFile
from sage_rlvr.results.scores import Floats, Scores
from sage_rlvr.stats.budget import check_budget
from sage_rlvr.stats.frontier import FrontierPoint, distinct_frontier, frontier
from sage_rlvr.stats.support import reachable, success_probability
from sage_rlvr.tasks.chance import Chance, chance_of_tree

K = 256
State = Literal["not run", "training", "trained", "validation only", "evaluated", "failed"]
"""The state of a run. In a sweep, "evaluated" means that all evaluations of the design exist."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One training run, finished or not. metrics: the rows of metrics.jsonl; warnings: the first warning of each kind (kind, step,
    message). created: ISO 8601; start: hash of the weights that it was trained from, as in the record of their evaluation; ""
    where unknown."""

    arm: str
    seed: int
    path: Path | None = None
    state: State = "not run"
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    created: str = ""
    start: str = ""
    metrics: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[Mapping[str, Any]] = ()

    def total(self, name: str) -> float | None:
        """The sum of a metric over all steps; None if a step lacks it."""
        whole = bool(self.metrics) and all(name in row for row in self.metrics)
        return float(sum(float(row[name]) for row in self.metrics)) if whole else None

    @property
    def steps(self) -> int:
        """Number of finished steps."""
        return max((int(row["step"]) + 1 for row in self.metrics), default=0)

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer updates over all steps; a step with missing groups counts with its requested number of updates."""
        updates = self.config.get("updates") or {}
        each = int(updates.get("epochs", 1)) * int(updates.get("minibatches", 1))
        return each * sum("loss" in row for row in self.metrics)

    @property
    def raw_kl(self) -> float | None:
        """Raw KL at the end of training, nats per token: the mean over the last tenth of the steps that logged it. None if no step
        logged it or if the mean is not finite."""
        values = [float(row["kl/to_reference"]) for row in self.metrics if "kl/to_reference" in row]
        found = float(np.mean(values[-max(1, len(values) // 10) :])) if values else math.nan
        return found if math.isfinite(found) else None


@dataclass(frozen=True, kw_only=True)
class Store:
    """A sample store with its arm. seed: None if unknown."""

    arm: str
    path: Path
    seed: int | None = None

    @property
    def name(self) -> str:
        """The arm with its training seed, if known."""
        return self.arm if self.seed is None else f"{self.arm}, seed {self.seed}"

    def open(self) -> SampleStore:
        """Open the store; the caller closes it."""
        return SampleStore.open(self.path)


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """Number of right samples among n for each problem of one store or one file of rows, and the chance floor on these problems.

    sizes: samples of each problem, where problems differ; n is then the smallest number on the task. seed: the training seed, None
    if unknown. store: None for rows of a file; table: the rows, None for a store. identity: the settings of a store. cluster: of
    each problem, () where each is its own."""

    arm: str
    seed: int | None
    path: Path
    task: str
    temperature: float
    problems: tuple[str, ...]
    n: int
    right: np.ndarray
    reasons: Reasons
    sizes: np.ndarray | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    failed: Sequence[str] = ()
    """What more than half of the samples failed by, a sentence each."""
    chance: Chance | None = None
    store: Store | None = None
    table: CountTable | None = None
    cluster: tuple[str, ...] = ()

    @property
    def policy(self) -> tuple[str, str, float]:
        """Arm, task and temperature, the same for all training seeds."""
        return self.arm, self.task, self.temperature

    @property
    def name(self) -> str:
        """The arm with its training seed, if known."""
        return self.arm if self.seed is None else f"{self.arm}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenRows:
    """A file of rows that was passed for an arm. name: of NAME=PATH, else ""; index: of the path in the list of
    NAME=PATH[,PATH...]; label: the arm of rows without an arm of their own."""

    evaluation: EvaluationFile
    name: str
    index: int | None
    label: str

    def arm_of(self, table: CountTable) -> str:
        """The arm of a table of the file: NAME, else the arm of its rows, else the label."""
        return self.name or table.group.arm or self.label


@dataclass(frozen=True, eq=False)
class Exact:
    """An exact record and quantities derived from it at `k` samples, computed on first use."""

    record: Record
    k: int

    @cached_property
    def p(self) -> Mapping[float, Floats]:
        """Temperature -> probability of a right completion, (N,)."""
        return {t: success_probability(rows) for t, rows in self.record.logps.items()}

    @cached_property
    def points(self) -> tuple[FrontierPoint, ...]:
        """The temperature frontier."""
        return frontier(self.p, self.k)

    @cached_property
    def distinct(self) -> Mapping[float, float]:
        """Temperature -> `reach` at the record's k."""
        return {t: self.reach(self.k, t) for t in self.record.logps}

    def reach(self, k: int, temperature: float = 1.0) -> float:
        """Expected number of distinct right completions in k samples, mean over problems."""
        return float(np.mean(reachable(self.record.logps[temperature], k)))

    def line(self, name: str, k: int) -> tuple[FrontierPoint, ...]:
        """The frontier of a metric: "distinct" at the record's k, or pass@k at any k."""
        return self.distinct_frontier if name == "distinct" else self.points if k == self.k else frontier(self.p, k)

    @cached_property
    def distinct_frontier(self) -> tuple[FrontierPoint, ...]:
        """The frontier with distinct right completions instead of pass@k."""
        return distinct_frontier(self.points, self.distinct)


@dataclass(eq=False)
class Results:
    """All results of the paths, by arm.

    records: (arm, training seed, task) -> exact record; the main task is "", the base has seed 0. runs: by (arm, seed). stored: the
    summary.json of a folder without other results. notes: what was left out and why."""

    design: Design
    records: dict[tuple[str, int, str], Record] = field(default_factory=dict)
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    given: list[GivenRows] = field(default_factory=list)
    stored: Mapping[str, Any] | None = None
    stored_in: Path | None = None
    notes: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    k: int = K
    samples: int | None = None
    strict: bool = False
    choice: Choice = field(default_factory=Choice)
    _exact: dict[tuple[str, int, str], Exact] = field(default_factory=dict, repr=False)
    _chances: dict[str, Chance | None] = field(default_factory=dict, repr=False)

    @classmethod
    def read(
        cls, *paths: str | Path, split: str | None = None, k: int | None = None, apart: bool = False, samples: int | None = None,
        choice: Choice | None = None,
    ) -> Results:  # fmt: skip
        """Read all paths. split: by default the sweep's split, else test. apart: every path is a separate arm and the first is the
        control (`compare`). samples: use only the first this many samples of each problem of a store or a file of rows. choice:
        what stands for correct in a file of rows."""
        from sage_rlvr.results.found import gather

        if k is not None and k < 1:
            raise DataError(f"k = {k}: pass@k needs k >= 1; set another k, or omit k for the largest")
        found = gather(list(map(str, paths)), split=split, apart=apart, choice=choice or Choice())
        found.samples = samples
        if found.stored is not None and not found.records:
            with found.believed():
                found.k = max(found.stored["ks"])  # a summary has no other k
                if k not in (None, found.k):
                    kept = ", ".join(map(str, found.stored["ks"]))
                    raise DataError(
                        f"k = {k}: {found.stored_in} has only scores at k = {kept} and comparisons up to {found.k}, and no "
                        "samples to "
                        "compute other k from; omit k, or compare the evaluations of the runs"
                    )
        else:
            found.k = k or min([K, *(c.n for c in found.counts)] if not found.records else [K])
        return found

    def believed(self) -> AbstractContextManager[None]:
        """Context manager for code that reads a stored summary: a missing key or a wrong type in that file raises DataError with
        its path. Without a stored summary nothing is caught."""
        return nullcontext() if self.stored_in is None or self.records else understood(self.stored_in)

    # ---- what there is

    @property
    def home(self) -> str | None:
        """The base, if it has an exact record of the main task."""
        return self.design.base if self.design.base and self.seeds(self.design.base) else None

    def seeds(self, arm: str, task: str = "") -> tuple[int, ...]:
        """Training seeds with an exact record."""
        return tuple(sorted(seed for name, seed, of in self.records if (name, of) == (arm, task)))

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Tasks with exact records, the main task "" first, then tasks of stores."""
        return tuple(dict.fromkeys([*sorted({of for *_, of in self.records}), *(c.task for c in self.counts)]))

    @property
    def several(self) -> bool:
        """Whether an arm has several training seeds; comparisons are then about methods."""
        exact = any(len(self.seeds(arm, task)) > 1 for arm, _, task in self.records)
        return exact or any(len(found) > 1 for found in self._by_policy.values())

    @property
    def sampled_only(self) -> bool:
        """Whether arms that were passed separately are compared by samples and nothing else, so that `results.verdict` has the
        answer."""
        return self.design.every and not self.records and self.stored is None and len({c.arm for c in self.counts}) > 1

    def evaluated(self, arm: str, seed: int) -> bool:
        """Whether a run has an exact record of the main task, or samples."""
        return (arm, seed, "") in self.records or any((c.arm, c.seed) == (arm, seed) for c in self.counts)

    def exact(self, arm: str, seed: int = 0, task: str = "") -> Exact:
        """The exact record of an arm; the base has one record for all seeds."""
        key = (arm, 0 if arm == self.design.base else seed, task)
        if key not in self._exact:
            self._exact[key] = Exact(self.records[key], self.k)
        return self._exact[key]

    def starting_points(self) -> dict[str, list[str]]:
        """Arm -> the arms whose every run was trained from its weights, as far as runs and evaluations have their hashes."""
        weights: dict[str, set[str]] = {}
        for (arm, _, task), record in self.records.items():
            weights.setdefault(arm, set()).update([str(record.meta.get("weights") or "")] * (not task))
        for c in self.counts:
            weights.setdefault(c.arm, set()).add(str(c.identity.get("revision", "")))
        found: dict[str, list[str]] = {}
        for arm in self.design.names:
            starts = [run.start for (name, _), run in self.runs.items() if name == arm]
            for other, known in weights.items():
                if starts and other != arm and all(one and known & {one, digest_of(one)} for one in starts):
                    found.setdefault(other, []).append(arm)
        return found

    def temperatures(self, arm: str, task: str = "") -> tuple[float, ...]:
        """Temperatures at which all seeds of the arm were evaluated, coldest first."""
        found = [set(self.records[arm, seed, task].logps) for seed in self.seeds(arm, task)]
        found += [{t for name, of, t in self._by_policy if (name, of) == (arm, task)}] * (not found)
        return tuple(sorted(set.intersection(*found)))

    def scores(self, arm: str, task: str = "", temperature: float = 1.0) -> Scores | None:
        """Scores of every seed of an arm on a task at a temperature; None without an evaluation there."""
        named: dict[str, Any] = {"arm": arm, "task": task, "temperature": temperature}
        seeds = tuple(s for s in self.seeds(arm, task) if temperature in self.records[arm, s, task].logps)
        if seeds:
            rows = np.stack([self.exact(arm, seed, task).p[temperature] for seed in seeds])
            ids = tuple(map(str, self.records[arm, seeds[0], task].meta["problem_ids"]))
            return Scores(**named, seeds=seeds, problems=ids, values=rows)
        found = self._by_policy.get((arm, task, temperature))
        if not found:
            return None
        seeds = tuple(i if c.seed is None else c.seed for i, c in enumerate(found))
        rows = np.stack([c.right for c in found])
        sizes = None
        if any(c.sizes is not None for c in found):
            sizes = np.stack([np.full(len(c.right), c.n) if c.sizes is None else c.sizes for c in found])
        first, tables = found[0], tuple(c.table for c in found if c.table is not None)
        return Scores(
            **named, seeds=seeds, problems=first.problems, values=rows, n=first.n, sizes=sizes, cluster=first.cluster,
            tables=tables if len(tables) == len(found) else (),
        )  # fmt: skip

    def chance(self, task: str = "") -> Chance | None:
        """The chance floor on the problems of a task."""
        if task not in self._chances:
            self._chances[task] = self._chance(task)
        return self._chances[task]

    def _chance(self, task: str) -> Chance | None:
        if record := next((record for (*_, of), record in self.records.items() if of == task), None):
            return chance_of_record(record)
        if self.stored is not None and not self.records and task in (kept := self.stored.get(KEY) or {}):
            return chance_of_tree(kept[task])
        return next((c.chance for c in self.counts if c.task == task), None)

    def only_scores(self, arm: str, task: str) -> Scores:
        """Scores of an arm at the reference temperature or at its only temperature; DataError otherwise."""
        known = self.temperatures(arm, task)
        found = self.scores(arm, task, 1.0 if 1.0 in known or len(known) != 1 else known[0])
        if found is None:
            raise DataError(f"{arm}: no evaluation at temperature 1; evaluate it with --temperatures 1.0")
        return found

    @cached_property
    def counts(self) -> tuple[Counts, ...]:
        """Counts of every complete store and of every file of rows; incomplete stores are noted."""
        from sage_rlvr.results.given import beside_rows, counts_of_rows

        stores = tuple(_read_counts(self))
        rows = tuple(counts_of_rows(self, stores))
        return (*(beside_rows(store, rows) for store in stores), *rows)

    @property
    def failed(self) -> list[str]:
        """What more than half of the samples of a store failed by, a sentence each, with the store's name."""
        if self.stored is not None and not self.records:
            return list(self.stored.get("failed", ()))
        return [f"{c.name}, {c.task}: {sentence}" for c in self.counts for sentence in c.failed]

    @cached_property
    def _by_policy(self) -> dict[tuple[str, str, float], list[Counts]]:
        ranked = sorted(self.counts, key=lambda c: c.policy)
        return {policy: list(found) for policy, found in groupby(ranked, key=lambda c: c.policy)}


def in_order(results: Results, policy: tuple[str, str, float]) -> tuple[int, float]:
    """A key to sort the policies of stores: the base first, hot before cold, then the arms of the design."""
    names, (name, _, temperature) = (BASE, *results.design.names), policy
    return (names.index(name) if name in names else len(names)), -temperature if name == BASE else 0.0


def digest_of(weights: str) -> str:
    """The hash of weights as sample stores have it (`models.policy.revision_of`)."""
    return weights if weights.startswith("hub:") else hashlib.sha256(weights.encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------------------
# counts of sample stores


def _read_counts(results: Results) -> Iterator[Counts]:
    """Right samples among n for every store. `strict` results (arms passed for a comparison) raise DataError for unfinished stores
    and unequal numbers of samples; other results use the smallest number of samples of all stores of a task, with a note."""
    found = [one for store in results.stores if (one := _counts(results, store, results.samples)) is not None]
    if results.strict:
        _check_stores(found)
    for c in found:
        fewest = c.n if results.strict else min(other.n for other in found if other.task == c.task)
        cut = c if c.n == fewest or c.store is None else _counts(results, c.store, fewest)
        if cut is not None and cut.n < c.n:
            results.notes.append(
                f"{c.task}: only the first {cut.n} samples of each problem are used, the number that all stores have "
                f"({c.arm} has {c.n})."
            )
        if cut is not None:
            yield cut


def _counts(results: Results, store: Store, n: int | None) -> Counts | None:
    path = store.path
    with store.open() as opened:
        counts, identity = opened.counts(n, check=results.strict), opened.identity.tree()
        chance = chance_of_store(opened.facts(), counts.problems)
        reasons = reasons_of(opened, n)
        failed = problems_in(opened, reasons, n)
        many, lacking, judges = sorted(set(counts.n.tolist())), opened.lacking(counts), opened.verifiers()
    if results.strict and lacking:
        raise DataError(f"{path}: has {lacking}, so the evaluation is not complete")
    if results.strict and len(many) != 1:
        few, most = (many[0], many[-1]) if many else (0, 0)
        hint = f", or pass --samples {few}" if few else ""
        raise DataError(f"{path}: its problems have {few} to {most} samples; finish the evaluation first{hint}")
    if lacking or not many:
        what = f"has {lacking}" if many else "holds no samples yet"
        results.notes.append(f"{store.arm}: {path.name} {what}.")
    if len(many) != 1:
        return _counts(results, store, many[0]) if many else None
    identity |= {"n": many[0], "verifier_hash": judges[-1]["verifier_hash"]} if judges else {"n": many[0]}
    return Counts(
        arm=store.arm, seed=store.seed, path=path, store=store,
        task=str(identity["task"]), temperature=float(identity["decoding"]["temperature"]),
        problems=tuple(counts.problems), n=many[0], right=counts.right, identity=identity,
        chance=chance,
        reasons=reasons, failed=failed,
    )  # fmt: skip


def _check_stores(found: Sequence[Counts]) -> None:
    """Raise DataError for unequal budgets on a task (temperatures of frontiers may differ, and those of the control, the first arm,
    where it has those of the others), for a frontier with stores of several policies, and for two stores of the same weights in
    one arm."""
    for task in dict.fromkeys(c.task for c in found):
        here = [c for c in found if c.task == task]
        read_at: dict[str, set[float]] = {}
        for c in here:
            read_at.setdefault(c.arm, set()).add(c.temperature)
        control, *others = read_at.values()
        wide = len(control) > 1 and all(len(other) > 1 or other <= control for other in others)
        check_budget({f"{c.arm} ({c.path})": c.identity for c in here}, ("temperature",) if wide else ())
        policies: dict[str, tuple[str, str]] = {}
        for c in here if wide else ():
            policy = str(c.identity["model"]), str(c.identity["revision"])
            if policies.setdefault(c.arm, policy) != policy:
                raise DataError(
                    f"{c.path}: a different policy than the other stores of {c.arm} on {task}; a frontier needs one "
                    "policy"
                )
    seen: dict[tuple[object, str], Path] = {}
    for c in found:
        revision = str(c.identity["revision"])
        first = seen.setdefault((c.policy, revision), c.path)
        if first != c.path and "unknown" not in revision:
            raise DataError(
                f"{c.arm}: {first} and {c.path} hold samples of the same weights ({revision[:12]}), so they are not "
                "two training seeds; pass one of them; `eval --samples` adds samples to a store"
            )
