"""A sweep's second endpoints: read at T = 0.3 and not at 1, and against the base tempered over whole completions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sage_rlvr.evaluation.record import Record
from sage_rlvr.experiments.endpoints import PAPER_GAINS, PAPER_TEMPERATURE, endpoint_lines, endpoints
from sage_rlvr.experiments.folder import Cell, Folder
from sage_rlvr.models.generation import PRESETS
from sage_rlvr.recipes import recipe
from sage_rlvr.stats.frontier import passk_at
from sage_rlvr.stats.published import compare_arms, find_arms, load_document, read_tables
from sage_rlvr.stats.tempered import power_frontier

ENTRY = {"recipe": "", "why": "", "plain": None, "placebo": None, "no_kl": None, "guided": False, "matched": []}


def cell(hot: float, cold: float, norms: dict[float, np.ndarray] | None = None) -> Cell:
    """Two problems with one right completion each: p (hot, 0.5) at T = 1, (cold, 0.5) at T = 0.3."""
    logps = {1.0: [np.log([hot]), np.log([0.5])], 0.3: [np.log([cold]), np.log([0.5])]}
    meta = {"problem_ids": ["a", "b"], "world": {}, "split": "test", "seed": 1, "draw": "law"}
    return Cell.of(Record(meta, logps, norms or {}))


def folder(base: Cell | None, **cells: list[Cell]) -> Folder:
    facts = {"control": "grpo", "arms": [{"name": name, "label": name.upper(), **ENTRY} for name in cells]}
    return Folder(Path("."), facts, base, {name: dict(enumerate(rows)) for name, rows in cells.items()})


def test_the_papers_temperature_is_that_of_its_presets() -> None:
    assert {PRESETS[name].temperature for name in ("paper", "released_code")} == {PAPER_TEMPERATURE}


COLD = [0.30, 0.34, 0.35]


def test_the_cold_endpoint_reads_what_temperature_one_does_not_show() -> None:
    same = [cell(0.2, 0.4) for _ in COLD]
    found = endpoints(folder(cell(0.1, 0.2), grpo=same, other=[cell(0.2, p) for p in COLD]))["cold"]
    assert found["temperature"] == 0.3 and found["base"]["1"] == pytest.approx((0.2 + 0.5) / 2)
    assert found["arms"]["other"]["1"]["value"] == pytest.approx((np.mean(COLD) + 0.5) / 2)
    rows = {(c["a"], c["b"], c["metric"]): c for c in found["comparisons"]}
    gap = rows["OTHER", "GRPO", "pass@1 at T = 0.3"]
    steps = (np.array(COLD) - 0.4) / 2  # over two problems
    half = stats.t.ppf(0.975, 2) * steps.std(ddof=1) / np.sqrt(3)
    assert gap["difference"]["value"] == pytest.approx(steps.mean())
    assert gap["difference"]["high"] == pytest.approx(steps.mean() + half)
    assert {pair[:2] for pair in rows} == {("OTHER", "GRPO"), ("GRPO", "base"), ("OTHER", "base")}
    told = [c for c in rows.values() if np.isfinite(c["p"])]  # GRPO against the base has no scatter here
    assert len(told) == 5 and {c["family"] for c in told} == {5}


def test_without_that_temperature_or_normalizers_there_is_no_endpoint() -> None:
    bare = Record(cell(0.2, 0.3).record.meta, {1.0: cell(0.2, 0.3).record.logps[1.0]})
    found = endpoints(folder(cell(0.1, 0.2), grpo=[Cell.of(bare)] * 3))
    assert found == {"cold": None, "power": None, "gains": None, "leash": None} and endpoint_lines(found) == []
    assert endpoints(folder(None, grpo=[cell(0.2, 0.3)] * 3))["power"] is None


def test_the_power_endpoint_holds_an_arm_against_the_base_at_equal_pass_at_1() -> None:
    # 0.1 right against 0.9 in ten wrong ones of 0.09; the second problem's 0.5 against one wrong of 0.5
    def z(power: float) -> np.ndarray:
        sums = np.log([0.1**power + 10 * 0.09**power, 2 * 0.5**power])
        return np.stack([sums, sums], axis=1)

    powers = {power: z(power) if power > 1 else np.zeros((2, 2)) for power in (1.0, 4.0, 20.0)}
    base = cell(0.1, 0.2, powers)
    p20 = 0.1**20 / (0.1**20 + 10 * 0.09**20)
    line = power_frontier(base.record.logps[1.0], base.record.norms)
    arms = [cell(p, 0.45) for p in (0.20, 0.21, 0.22)]
    found = endpoints(folder(base, grpo=arms))["power"]
    assert [point["power"] for point in found["points"]] == [1, 4, 20]
    assert found["points"][2]["pass1"] == pytest.approx((p20 + 0.5) / 2) and found["points"][2]["known"]
    rows = {c["metric"]: c["difference"]["value"] for c in found["comparisons"]}
    assert rows["pass@1, each at its best"] == pytest.approx((0.45 + 0.5) / 2 - (p20 + 0.5) / 2)
    at_home = [arm.points[-1].passk - passk_at(arm.points[-1].pass1, line)[0] for arm in arms]  # type: ignore[index]
    assert rows["pass@256 at equal pass@1"] == pytest.approx(np.mean(at_home))
    lines = endpoint_lines({"cold": None, "power": found, "gains": None, "leash": None})
    assert "## Against the base tempered over whole completions" in lines
    assert f"| 20 | {(p20 + 0.5) / 2:.3f} | 0 |" in "\n".join(lines)


def test_an_arm_beyond_the_power_frontier_has_no_reading_at_equal_pass_at_1() -> None:
    base = cell(0.1, 0.2, {1.0: np.zeros((2, 2))})  # a frontier of one point
    found = endpoints(folder(base, grpo=[cell(0.3, 0.4)] * 3))["power"]
    assert [c["metric"] for c in found["comparisons"]] == ["pass@1, each at its best"]


def test_the_leash_is_paired_by_seed_and_never_better(tmp_path: Path) -> None:
    kls = {"grpo": [0.10, 0.12, 0.11], "token": [0.09, 0.10, 0.10]}
    for name, values in kls.items():
        for seed, kl in enumerate(values):
            run = tmp_path / "runs" / f"{name}-s{seed}"
            run.mkdir(parents=True)
            (run / "metrics.jsonl").write_text(json.dumps({"step": 0, "anchor/kl_raw": kl}) + "\n")
    made = replace(folder(None, grpo=[cell(0.2, 0.3)] * 3, token=[cell(0.2, 0.3)] * 3), path=tmp_path)
    (row,) = endpoints(made)["leash"]
    gaps = np.array(kls["token"]) - np.array(kls["grpo"])
    half = stats.t.ppf(0.975, 2) * gaps.std(ddof=1) / np.sqrt(3)
    assert (row["a"], row["b"], row["by_seed"]["a"]) == ("TOKEN", "GRPO", kls["token"])
    assert row["difference"]["value"] == pytest.approx(gaps.mean())
    assert row["difference"]["low"] == pytest.approx(gaps.mean() - half) and row["p"] == pytest.approx(row["adjusted"])
    text = "\n".join(endpoint_lines({"cold": None, "power": None, "gains": None, "leash": [row]}))
    assert "−0.0133" in text and "better" not in text and "worse" not in text


def test_at_the_papers_temperature_an_arm_that_is_only_a_tighter_leash_is_tied_at_the_same_raw_kl(
    tmp_path: Path,
) -> None:
    """The strong arm has a quarter of the KL and half as much again of p at T = 0.3; the guided one lies halfway in log KL."""
    kls, factor = {"grpo": 0.1, "strong": 0.025, "guided": 0.05}, {"grpo": 1.0, "strong": 1.5, "guided": 1.25}
    home = [0.20, 0.21, 0.23]
    cells = {name: [cell(0.2, p * factor[name]) for p in home] for name in kls}
    made = replace(folder(None, **cells), path=tmp_path)
    entry = next(arm for arm in made.facts["arms"] if arm["name"] == "guided")
    entry |= {"guided": True, "plain": "grpo", "matched": ["strong", "grpo"]}
    for name, kl in kls.items():
        for seed in range(3):
            run = tmp_path / "runs" / f"{name}-s{seed}"
            run.mkdir(parents=True)
            (run / "metrics.jsonl").write_text(json.dumps({"step": 0, "anchor/kl_raw": kl}) + "\n")
    rows = {
        (c["kind"], c["metric"]): c["difference"] for c in endpoints(made)["cold"]["comparisons"] if c["a"] == "GUIDED"
    }
    assert rows["control", "pass@1 at T = 0.3"]["value"] == pytest.approx(np.mean(home) * 0.25 / 2)
    assert rows["matched", "pass@1 at T = 0.3"]["value"] == pytest.approx(0, abs=1e-12)


def test_powers_whose_normalizer_is_not_known_are_said_and_have_no_point() -> None:
    open_ = np.log([[0.5, 2.0], [0.5, 1.0]])
    found = endpoints(folder(cell(0.1, 0.2, {1.0: np.zeros((2, 2)), 2.0: open_}), grpo=[cell(0.3, 0.4)] * 3))["power"]
    assert [point["known"] for point in found["points"]] == [True, False] and found["points"][1]["bound1"] > 0.005
    lines = endpoint_lines({"cold": None, "power": found, "gains": None, "leash": None})
    assert any(line.startswith("| 2 | not available |") for line in lines)


def test_the_papers_gains_are_held_against_the_interval(tmp_path: Path) -> None:
    home = [0.20, 0.21, 0.23]
    made = folder(None, grpo=[cell(p, p) for p in home], other=[cell(p + 0.001, p + 0.034) for p in home])
    for arm, stem in zip(made.facts["arms"], ("grpo.yaml", "sage_branch.yaml"), strict=True):
        arm["recipe"] = stem
    made.cells["weak"] = {seed: cell(0.9, 0.9) for seed in range(3)}  # GRPO at another beta is not what the paper compares with
    made.facts["arms"].append({**ENTRY, "name": "weak", "label": "WEAK", "recipe": "grpo.yaml"})
    for shift, arm in zip((0.0, 0.0004, -0.0003), list(made.cells["other"]), strict=True):
        made.cells["other"][arm] = cell(home[arm] + 0.001 + shift, home[arm] + 0.034 + shift)
    rows = {row["metric"]: row for row in endpoints(made)["gains"]}
    assert (
        rows["pass@1 at T = 1"]["excluded"] and not rows["pass@1 at T = 0.3"]["excluded"]
    )  # 0.0005 and 0.017 of two problems
    text = "\n".join(endpoint_lines({"cold": None, "power": None, "gains": list(rows.values()), "leash": None}))
    assert "pass@1 at T = 1: +0.017 is excluded" in text and "pass@1 at T = 0.3: +0.017 is not excluded" in text
    assert endpoints(folder(None, grpo=[cell(0.2, 0.3)] * 3))["gains"] is None


def test_the_papers_gains_are_those_of_its_table() -> None:
    table, (grpo, branch) = find_arms(read_tables(load_document(recipe("tables.json", "paper"))), ["GRPO", "Branch"])
    found = compare_arms(table, grpo, branch)
    printed = {k: found.averages[f"pass@{k}"].difference for k in PAPER_GAINS}
    assert printed == pytest.approx(PAPER_GAINS, abs=5e-4)
