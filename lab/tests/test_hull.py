"""The command `python -m lab hull`: error rates on identical methods, pairs against all policies, bounds of stored experiments."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lab.hull import (
    CELLS,
    EXPERIMENTS,
    kept_lines,
    least_height,
    method,
    pairs_and_all,
    rates,
    sigmoid,
    stored_lines,
    untrained,
)
from lab.hull_samples import OF_ALL, OF_EACH, K, arm_at, base_of, compared, mean_over_seeds, samples_table
from sage_rlvr.verdicts.stats.frontier import frontier
from sage_rlvr.verdicts.stats.hull import on_hull
from sage_rlvr.verdicts.stats.mixture import best_mixture
from sage_rlvr.verdicts.stats.passk import exact_pass_at_k


def test_identical_methods_are_seldom_below_and_hardly_ever_above() -> None:
    """Eleven rivals, three seeds: the rule of before takes their noise for height."""
    found = rates("three T, base, guesser", 11, 3, 8, 40)
    above, below = found["cross-fitted (now)"]
    assert above <= 1 and below <= 4
    assert found["mixture as drawn"][1] >= 10 and found["rivals as drawn (before)"][1] > below
    assert rates("T = 1", 3, 3, 8, 5) == rates("T = 1", 3, 3, 8, 5)


def test_the_candidate_of_the_simulation_lies_on_the_hull_of_its_rivals() -> None:
    rng, temperatures = np.random.default_rng(0), (0.7, 1.0, 1.3)
    tables = method(rng, 3000, temperatures)
    for k in (8, 256):
        mean = [[frontier(table, k) for table in tables]]
        own = [point for line in mean[0] for point in line if point.temperature == 1.0]
        pass1, passk = (float(np.mean([getattr(point, name) for point in own])) for name in ("pass1", "passk"))
        others = [[frontier(rival[0], k)] * len(tables) for rival in untrained(1, temperatures)]
        found = on_hull(pass1, [*mean, *others])
        assert found is not None and found.height == pytest.approx(passk, abs=1e-9)
    assert {rivals for _, rivals, _, _ in CELLS} == {3, 7, 11} and {seeds for *_, seeds, _ in CELLS} == {3, 5, 8}


def test_pairs_do_not_always_suffice() -> None:
    rows = [line for line in pairs_and_all(10) if line[:3] in ("| 8", "| 6", "| 2")]
    assert len(rows) == 3 and any(not row.split("|")[2].strip().startswith("0 of") for row in rows)


def test_a_stored_lower_end_by_hand() -> None:
    """An untrained policy with p = .1 everywhere and a rival with pass@1 .3 whose right completions do not count. pass@1 of .2
    needs half of the rival, so that p = .05 and pass@2 is 1 - .95^2."""
    assert least_height(np.full((1, 4), 0.1), 0.2, 0.3, 2) == pytest.approx(1 - 0.95**2)


def test_stored_and_kept_lines_of_a_summary() -> None:
    folder = EXPERIMENTS / "2026-11-25_distinct_placebo"
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    lines = list(stored_lines(summary, np.full((1, 300), 0.1)))
    assert len(lines) == sum(row["metric"]["name"] == "pass" for row in summary["room"])
    rng = np.random.default_rng(0)
    names = {arm["label"] for arm in summary["arms"].values()}
    kept = {(name, seed): {1.0: rng.uniform(0, 0.5, 20)} for name in names for seed in (250, 251, 252)} | {
        ("base", 0): {1.0: np.full(20, 0.9)}
    }
    again = list(kept_lines(summary, kept))
    height = best_mixture([[kept["base", 0][1.0]]], 0.1, 8).height
    assert len(again) == len(lines) and any(f"{height:.4f}" in line for line in again)


@pytest.mark.parametrize(("room", "passes"), [("much", (0.029, 0.183, 0.460)), ("little", (0.074, 0.422, 0.801))])
def test_the_base_of_the_simulation_has_the_scores_of_its_room(room: str, passes: tuple[float, ...]) -> None:
    base = base_of(room)
    for k, wanted in zip((1, 8, 32), passes, strict=True):
        assert float(exact_pass_at_k(base[0], k).mean()) == pytest.approx(wanted, abs=0.01)  # type: ignore[union-attr]


def test_the_arm_of_the_simulation_lies_where_it_should() -> None:
    base, rng = base_of("much"), np.random.default_rng(0)
    for gap in (0.0, 0.1):
        arm = arm_at(base, 0.5, gap)
        assert arm is not None and mean_over_seeds(arm.logits, 1) == pytest.approx(arm.pass1)
        assert best_mixture(base[:, None], arm.pass1, K).height == pytest.approx(arm.height)
        noise = rng.normal(0, OF_ALL, (4000, 1)) + rng.normal(0, OF_EACH, (4000, 200))
        drawn = float(np.mean(exact_pass_at_k(sigmoid(arm.logits + noise), K)))
        assert drawn == pytest.approx(arm.height + gap, abs=0.005)
    assert arm_at(base, 0.5, 0.9) is None


def test_from_samples_an_arm_on_the_hull_is_seldom_above_and_one_far_above_is_seen() -> None:
    base, rng = base_of("much"), np.random.default_rng(0)
    ends = []
    for gap in (0.0, 0.1):
        arm = arm_at(base, 0.5, gap)
        assert arm is not None
        ends.append([compared(base, arm, rng).outcome for _ in range(8)])
    assert ends[0].count("better") <= 1 and ends[0].count("worse") <= 1 and ends[1].count("better") >= 3


def test_the_table_from_samples_has_a_row_per_cell() -> None:
    lines = list(samples_table(1))
    assert len(lines) == 2 + 12 and all(line.count("|") == lines[0].count("|") for line in lines)
    assert sum("no such arm" in line for line in lines) < 6


@pytest.mark.slow
def test_what_stored_experiments_tell(capsys: pytest.CaptureFixture[str]) -> None:
    """What the findings say of Distinct@k and RFT: the shipped base is evaluated for it, a minute per level."""
    from lab.__main__ import main

    assert main(["hull", "--stored"]) == 0
    text = capsys.readouterr().out
    assert "| at least 0.9645 | at most -0.0203 |" in text and "| at least 0.9801 | at most +0.0055 |" in text
