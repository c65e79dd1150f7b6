"""Sample stores as the sections take them: by task and arm, as counts, with their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sage_rlvr.evaluation.verdicts import Scored, arms_of
from sage_rlvr.report.study import SampleSet, Study


def told_apart(samples: Sequence[SampleSet]) -> tuple[SampleSet, ...]:
    """An arm that was sampled at several temperatures is as many policies, and no two training seeds."""
    laws: dict[tuple[str, str], set[float | None]] = {}
    for s in samples:
        laws.setdefault((s.arm, s.task), set()).add(s.temperature)
    several = {key for key, found in laws.items() if len(found) > 1}
    return tuple(
        replace(s, arm=f"{s.arm} at T = {s.temperature:g}")
        if (s.arm, s.task) in several and s.temperature is not None
        else s
        for s in samples
    )


def by_task(samples: Iterable[SampleSet]) -> dict[str, list[SampleSet]]:
    """The stores of each task."""
    out: dict[str, list[SampleSet]] = {}
    for s in samples:
        out.setdefault(s.task, []).append(s)
    return out


def by_arm(sets: Iterable[SampleSet]) -> dict[str, list[SampleSet]]:
    """The stores of each arm, one a training seed."""
    out: dict[str, list[SampleSet]] = {}
    for s in sets:
        out.setdefault(s.arm, []).append(s)
    return out


def one_seed(sets: Iterable[SampleSet]) -> list[SampleSet]:
    """The first store of each arm."""
    return [mine[0] for mine in by_arm(sets).values()]


def counts_of(samples: Sequence[SampleSet]) -> dict[str, dict[str, Scored]]:
    """Arm -> task -> right ones, one row a store; DataError where the stores of an arm differ in problems or n."""
    loaded: dict[str, list[tuple[str, Scored]]] = {}
    for s in samples:
        loaded.setdefault(s.arm, []).append((s.task, Scored(s.problems, s.n, s.right[None, :])))
    return arms_of(loaded)


def common_k(samples: Sequence[SampleSet]) -> int:
    """The largest k that every store has samples for."""
    return min(s.n for s in samples)


def set_name(s: SampleSet) -> str:
    """The arm, and its training seed where it has one."""
    return s.arm if s.seed is None else f"{s.arm}, seed {s.seed}"


def slug(text: str) -> str:
    """A task's name as part of a file's."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in text)[:40].strip("-") or "task"


def comparable(samples: Sequence[SampleSet]) -> list[list[SampleSet]]:
    """All together where every arm was sampled on every task, else the stores of each task by themselves."""
    tasks = by_task(samples)
    arms = [{s.arm for s in sets} for sets in tasks.values()]
    return [list(samples)] if all(found == arms[0] for found in arms) else list(tasks.values())


def beside(study: Study) -> list[SampleSet]:
    """Beside exact evaluations: the stores of every task on which an arm was sampled that has none."""
    exact = {arm.name for arm in study.results[0].arms}
    return [s for sets in by_task(study.samples).values() if any(one.arm not in exact for one in sets) for s in sets]
