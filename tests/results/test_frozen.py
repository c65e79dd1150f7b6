"""The one list of comparisons equals the frozen numbers of the five pipelines that it replaces: raw values to 1e-9 relative.
Several training seeds were frozen on these problems (`fixed`); the default has the choice of problems in quadrature.

Adjusted p values changed once, when the families became one primary and one exploratory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from frozen import folders, freeze
from sage_rlvr.results.read import read_results
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.design import BASE
from sage_rlvr.verdicts.row import Row
from sage_rlvr.verdicts.stats.power import least_share

LABELS = folders.LABELS
GONE = {
    # Controls that the sweep added are held against alone: `report` alone compared them with others.
    ("sweep", "GRPO, beta 0.1", "GRPO"),
}
CONTROL_ONCE = "training seeds and the control's samples"
"""Intervals of a control that was sampled once were wider when they were frozen: one t quantile for both errors."""
SAME_VALUES = [name for name in freeze.FIXED if name not in ("low", "high", "p", "detectable", "detectable_high")]
PLACES = {
    "best": freeze.BEST, "b best": "a at T = 1, b at its best T", "equal": freeze.EQUAL, "a equal": freeze.AT_HOME,
    "near": freeze.NEAR, "end": "end of training",
}  # fmt: skip


def address(source: str, row: Row) -> tuple[Any, ...]:
    metric = row.metric
    at = PLACES.get(metric.at, f"T = {metric.temperature:g}")
    level = "these checkpoints" if row.comparison.over == "problems" else "these methods"
    return source, row.a, row.b, metric.bare, f"{freeze.SAME_KL}, {at}" if metric.matched else at, row.task, level


def flipped(row: Row) -> Row:
    """The same from b's side."""
    c, gap = row.comparison, row.comparison.difference
    turned = replace(gap, value=-gap.value, low=-gap.high, high=-gap.low)
    return replace(row, a=row.b, b=row.a, comparison=replace(c, difference=turned, mean_a=c.mean_b, mean_b=c.mean_a))


def values(row: Row) -> dict[str, Any]:
    c = row.comparison
    told = {"p": c.p, "detectable": c.mde, "detectable_high": c.mde_limit, "mean_a": c.mean_a, "mean_b": c.mean_b}
    gap = asdict(c.difference)
    return told | {"difference": gap["value"], "low": gap["low"], "high": gap["high"], "n": gap["n"]}


def within_one(frozen: freeze.Row) -> freeze.Row:
    """A frozen difference in pass@k with its interval within -1 and 1, to which intervals were not held when it was frozen."""
    if not str(frozen["metric"]).startswith("pass@"):
        return frozen
    ends = {"low": max, "high": min}
    bounds = {"low": -1.0, "high": 1.0}
    return {**frozen, **{end: ends[end](frozen[end], bounds[end]) for end in ends if frozen.get(end) is not None}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return folders.write_all(tmp_path_factory.mktemp("frozen"))


def stores(made: Mapping[str, Path], task: str, temperatures: tuple[str, ...], seeds: Mapping[str, int]) -> list[str]:
    home = made["stores"]
    return [
        f"{name}={','.join(str(home / f'{name}-{task}-T{t}-s{s}') for t in temperatures for s in range(n))}"
        for name, n in seeds.items()
    ]


def named(path: Path, seeds: int) -> list[str]:
    """Records as `compare` is given them, the base first."""
    home = path / "evaluations"
    arms = {LABELS[a]: [str(home / f"{a}-s{s}.npz") for s in range(seeds)] for a in ("no_kl", "grpo", "sage_branch")}
    return [f"{BASE}={home / 'base.npz'}", *(f"{name}={','.join(paths)}" for name, paths in arms.items())]


@cache
def frozen() -> list[dict[str, Any]]:
    """The comparisons as they were frozen, but for detectable differences of shares, which are capped at 1 since."""
    rows = [row for row in freeze.read_rows(freeze.HERE / "synthetic.json") if row["row"] == "comparison"]
    return [row | {name: _capped(row, name) for name in ("detectable", "detectable_high")} for row in rows]


def _capped(row: Mapping[str, Any], name: str) -> float | None:
    value: float | None = row.get(name)
    return min(value, 1.0) if value is not None and row["metric"].startswith("pass@") else value


def check(source: str, pipelines: tuple[str, ...], found: list[Row]) -> int:
    """How many frozen rows were met; every one of these pipelines is, but for those that are no longer made."""
    rows = {address(source, row): row for row in found}
    met = 0
    for old in frozen():
        if old["source"] != source or old["pipeline"] not in pipelines or old["kind"] == "pattern":
            continue
        key = freeze.address(old)
        new = rows.get(key)
        flip = new is None
        if new is None and (mirror := rows.get((key[0], key[2], key[1], *key[3:]))) is not None:
            new = flipped(mirror)
        if new is None:
            assert (source, old["a"], old["b"]) in GONE, key
            continue
        before, after = within_one(old), values(new)
        if new.comparison.difference.over == CONTROL_ONCE:
            assert freeze.unlike(before, after, SAME_VALUES) == [], key
            assert before["low"] <= after["low"] <= after["high"] <= before["high"], key
        else:
            if new.comparison.mde == least_share(new.comparison.difference.n) > (before["detectable"] or math.inf):
                # outcomes of 0 and 1 were frozen without what their signs need
                before = {**before, **{name: after[name] for name in ("detectable", "detectable_high")}}
            assert freeze.unlike(before, after) == [], (key, "flipped" if flip else "")
        met += 1
    return met


@pytest.mark.slow
def test_a_sweep_prints_what_sweep_and_report_printed(made: Mapping[str, Path]) -> None:
    assert check("sweep", ("sweep", "report"), compare(replace(read_results(made["sweep"]), fixed=True))) > 90


@pytest.mark.slow
def test_a_demo_prints_what_demo_and_report_printed(made: Mapping[str, Path]) -> None:
    assert check("demo", ("demo", "report"), compare(read_results(made["demo"]))) > 50


@pytest.mark.slow
@pytest.mark.parametrize(("source", "seeds"), [("sweep", 3), ("sweep", 1), ("demo", 1)])
def test_records_that_are_named_print_what_compare_printed(made: Mapping[str, Path], source: str, seeds: int) -> None:
    rows = compare(replace(read_results(*named(made[source], seeds), apart=True), fixed=True))
    assert check(source, (f"compare, {seeds} seed{'s' * (seeds > 1)}",), rows) > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipelines", "task", "temperatures", "seeds"),
    [
        (("compare, 3 seeds", "report, 3 seeds"), "sums", ("1",), {"base": 1, "GRPO": 3, "SAGE": 3}),
        (("compare --frontier",), "sums", ("1", "0.6", "0.3"), {"base": 1, "GRPO": 1, "SAGE": 1}),
    ],
)
def test_stores_print_what_compare_and_report_printed(
    made: Mapping[str, Path],
    pipelines: tuple[str, ...],
    task: str,
    temperatures: tuple[str, ...],
    seeds: Mapping[str, int],
) -> None:
    found = compare(replace(read_results(*stores(made, task, temperatures, seeds), apart=True), fixed=True))
    assert check("stores", pipelines, found) > 1


@pytest.mark.slow
def test_the_choice_of_problems_adds_to_what_was_frozen(made: Mapping[str, Path]) -> None:
    """Frozen intervals over training seeds are those of `fixed`: without it the difference is the same and the interval wider."""
    these = {address("sweep", row): row.comparison for row in compare(replace(read_results(made["sweep"]), fixed=True))}
    such = {address("sweep", row): row.comparison for row in compare(read_results(made["sweep"]))}
    assert such.keys() == these.keys()
    wider = 0
    for key, one in such.items():
        other = these[key]
        if not math.isfinite(one.difference.width):
            continue
        assert one.difference.value == other.difference.value
        assert one.difference.width >= other.difference.width - 1e-12, key
        wider += one.difference.width > other.difference.width
    assert wider > 40  # of those that have an interval


@pytest.mark.slow
def test_stores_of_two_tasks_print_what_compare_printed(made: Mapping[str, Path]) -> None:
    one = {"base": 1, "GRPO": 1, "SAGE": 1}
    words = [
        f"{a},{b.split('=')[1]}"
        for a, b in zip(*(stores(made, t, ("1",), one) for t in ("sums", "riddles")), strict=True)
    ]
    found = compare(read_results(*words, apart=True))
    assert check("stores", ("compare, 1 seed", "report, 1 seed"), found) > 10
