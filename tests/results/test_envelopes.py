"""Rivals taken together: the best of several arms at the pass@1 that a candidate has, and what room is left to the ceiling."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frozen.folders import write_sweep
from sage_rlvr.errors import ConfigError
from sage_rlvr.experiments.design import Matrix
from sage_rlvr.report.build import write_summary
from sage_rlvr.results.comparisons import compare
from sage_rlvr.results.read import Results
from sage_rlvr.results.stored import design_of_summary, read_summary
from sage_rlvr.results.summary import summary_of
from sage_rlvr.results.words import answer
from sage_rlvr.stats.comparison import Reason, unknown
from sage_rlvr.stats.frontier import FrontierPoint, above_envelope

RIVALS = "GRPO over its betas"


def line(*triples: tuple[float, float, float]) -> list[FrontierPoint]:
    return [FrontierPoint(temperature=t, pass1=x, passk=y) for t, x, y in triples]


LOW, HIGH = line((0.5, 0.30, 0.80), (1.0, 0.20, 0.90)), line((0.5, 0.25, 0.90), (1.0, 0.15, 1.00))
ARM = line((0.3, 0.40, 0.60), (1.0, 0.20, 0.97))


def test_the_best_rival_is_read_at_the_arms_own_pass1() -> None:
    found = above_envelope([ARM], [[LOW], [HIGH]])
    assert found.best == 1 and found.pass1 == (0.20,) and found.rival == pytest.approx((0.95,))
    assert found.gaps == pytest.approx((0.02,))
    cold = above_envelope([ARM], [[LOW], [HIGH]], temperature=0.3)
    assert cold.best is None and cold.gaps == ()  # no rival has a pass@1 of 0.40
    assert above_envelope([ARM], [[LOW], [HIGH]], temperature=0.7).best is None  # the arm was not read there


def test_one_rival_is_the_best_of_all_seeds_and_has_to_be_read_in_each() -> None:
    """By seed LOW or HIGH is higher; the best is chosen by the mean, so that the noise of rivals is not taken for height."""
    ups = [line((0.5, 0.30, 0.80), (1.0, 0.20, 0.96)), LOW]
    found = above_envelope([ARM, ARM], [ups, [HIGH, HIGH]])
    assert found.best == 1 and found.rival == pytest.approx((0.95, 0.95))
    short = [HIGH, line((0.5, 0.18, 0.99), (1.0, 0.15, 1.00))]  # the second seed does not come to 0.20
    assert above_envelope([ARM, ARM], [short, [LOW, LOW]]).best == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = write_sweep(tmp_path / "sweep")
    facts = json.loads((out / "matrix.json").read_text())
    facts |= {"envelopes": {RIVALS: ["grpo", "grpo_beta0.1"]}, "ceiling": "no_kl", "control": "grpo"}
    (out / "matrix.json").write_text(json.dumps(facts))
    return out


def test_rows_room_and_summary_of_a_folder(folder: Path) -> None:
    results = Results.read(str(folder))
    assert results.design.candidates == ("SAGE-Branch",)  # neither rivals, nor the ceiling, nor added controls
    rows = compare(results)
    primary = [row for row in rows if row.family == "primary"]
    assert {(row.b == RIVALS, row.metric.k, row.metric.at) for row in primary} == {
        (mine, k, "a equal") for mine in (True, False) for k in (8, results.k)
    }
    assert RIVALS in answer(rows)
    found = next(row for row in primary if row.b == RIVALS and row.metric.k == results.k)
    wanted = []
    for seed in (0, 1, 2):
        own = next(p for p in results.exact("SAGE-Branch", seed).points if p.temperature == 1.0)
        heights = []
        for name in ("GRPO", "GRPO, beta 0.1"):
            x, y = zip(*sorted((p.pass1, p.passk) for p in results.exact(name, seed).points), strict=True)
            heights.append(float(np.interp(own.pass1, x, y)) if x[0] <= own.pass1 <= x[-1] else math.nan)
        wanted.append((own.passk, heights))
    best = int(np.argmax(np.mean([heights for _, heights in wanted], axis=0)))
    gaps = [own - heights[best] for own, heights in wanted]
    assert found.comparison.difference.value == pytest.approx(np.mean(gaps), abs=1e-9)
    summary = summary_of(results, rows)
    room = next(row for row in summary["room"] if row["metric"] == f"pass@{results.k}")
    assert room["own"] - room["best"] == pytest.approx(np.mean(gaps), abs=1e-9)
    assert room["rival"] == ("GRPO", "GRPO, beta 0.1")[best]


def test_an_envelope_that_nobody_reaches_counts_the_seeds_that_were_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arm has three training seeds and a rival two, and no rival has the arm's pass@1: two seeds are left out, not three."""
    monkeypatch.setattr("sage_rlvr.stats.frontier.passk_at", lambda pass1, points: None)
    results = Results.read(str(folder))
    del results.records["GRPO", 2, ""]
    assert results.seeds("SAGE-Branch") == (0, 1, 2) and results.seeds("GRPO") == (0, 1)
    rows = [row for row in compare(results) if row.why == "envelope"]
    assert rows and {(row.left_out, row.comparison.known) for row in rows} == {(2, False)}


def test_a_stored_summary_keeps_its_envelopes(folder: Path) -> None:
    write_summary(folder)
    text = (folder / "summary.md").read_text()
    assert "## Room" in text and RIVALS in text.split("\n")[2]
    stored = read_summary(folder / "summary.json")
    design = design_of_summary(stored)
    assert design.envelopes[0].arms == ("GRPO", "GRPO, beta 0.1") and design.ceiling == "no KL"
    again = [row for row in compare(Results.read(str(folder))) if row.family == "primary"]
    assert {row["b"] for row in stored["rows"] if row["family"] == "primary"} == {row.b for row in again}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"envelopes": {"all": ("grpo", "rloo")}}, "'rloo': no such arm"),
        ({"envelopes": {"grpo": ("grpo",)}}, "an arm has this name"),
        ({"envelopes": {"all": ()}}, "name at least one arm"),
        ({"envelopes": {"all": ("grpo", "no_kl")}}, "every arm is a rival"),
        ({"envelopes": {"all": ("grpo",)}, "ceiling": "truth"}, "'truth': no such arm"),
    ],
)
def test_what_a_design_refuses(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Matrix(tier="t", seeds=(0,), arms={"grpo": "grpo", "no_kl": "no_kl"}, control="grpo", **given)  # type: ignore[arg-type]


def test_discarded_candidates_weaken_the_correction(folder: Path) -> None:
    before = {(row.b, row.metric): row for row in compare(Results.read(str(folder))) if row.family == "primary"}
    tested = [row for row in before.values() if math.isfinite(row.comparison.p)]
    facts = json.loads((folder / "matrix.json").read_text()) | {"discarded": ["rft", "replay"]}
    (folder / "matrix.json").write_text(json.dumps(facts))
    results = Results.read(str(folder))
    after = [row for row in compare(results) if row.family == "primary"]
    lowest = min(tested, key=lambda row: row.comparison.p)
    found = next(row for row in after if (row.b, row.metric) == (lowest.b, lowest.metric))
    assert found.family_size == 3 * len(tested)  # one candidate was run, two were not
    assert found.adjusted == pytest.approx(min(1.0, 3 * len(tested) * lowest.comparison.p))
    assert any("rft, replay" in note for note in results.notes)
    write_summary(folder)
    stored = read_summary(folder / "summary.json")
    assert design_of_summary(stored).discarded == ("rft", "replay")


def test_discarded_candidates_are_refused_where_they_could_not_count() -> None:
    plain = {"tier": "t", "seeds": (0, 1, 2), "arms": {"a": "grpo", "b": "rloo"}, "control": "a"}
    with pytest.raises(ConfigError, match="counts among the candidates of envelopes"):
        Matrix(**plain, discarded=("rft",))
    with pytest.raises(ConfigError, match="is an arm that is run"):
        Matrix(**plain, envelopes={"E": ("a",)}, discarded=("b",))


def test_what_cannot_be_read_is_said_without_a_number(folder: Path) -> None:
    rows = [row for row in compare(Results.read(str(folder))) if row.family == "primary"]
    blank = unknown(Reason.NO_COMMON_RANGE)
    said = answer([replace(row, comparison=blank) for row in rows])
    assert "cannot be read for SAGE-Branch (no common range of pass@1)" in said and "nan" not in said
