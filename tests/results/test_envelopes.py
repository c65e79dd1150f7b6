"""Rivals taken together: the best of several arms at the pass@1 that a candidate has, and what room is left to the ceiling."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from frozen.folders import write_stores, write_sweep
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.render.build import write_summary
from sage_rlvr.results.probabilities import load_probabilities, save_probabilities
from sage_rlvr.results.read import read_results
from sage_rlvr.results.summary import summary_of
from sage_rlvr.sweeps.design import DesignSpec
from sage_rlvr.verdicts.baselines import GUESSER, always_allowed
from sage_rlvr.verdicts.baselines import above as read_above
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.design import Envelope
from sage_rlvr.verdicts.findings import findings_of
from sage_rlvr.verdicts.measurements import ExactMeasurements
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.pairs import run_at
from sage_rlvr.verdicts.stats.frontier import FrontierPoint
from sage_rlvr.verdicts.stats.hull import AboveHull, HullMixture, Share, above_hull, compare_hull, on_hull
from sage_rlvr.verdicts.stats.mixture import above_mixtures
from sage_rlvr.verdicts.stats.paired import Reason, paired_seeds, unknown
from sage_rlvr.verdicts.summary_io import design_of_summary, read_summary
from sage_rlvr.verdicts.text.rows import answer

RIVALS = "GRPO over its betas"


def line(*triples: tuple[float, float, float]) -> list[FrontierPoint]:
    return [FrontierPoint(temperature=t, pass1=x, passk=y) for t, x, y in triples]


LOW, HIGH = line((0.5, 0.30, 0.80), (1.0, 0.20, 0.90)), line((0.5, 0.25, 0.90), (1.0, 0.15, 1.00))
ARM = line((0.3, 0.40, 0.60), (1.0, 0.20, 0.97))


def above(arm: list[list[FrontierPoint]], rivals: list[list[list[FrontierPoint]]], temperature: float = 1.0) -> AboveHull:
    found = above_hull(arm, rivals, temperature)
    assert found is not None
    return found


def gap(arm: list[list[FrontierPoint]], rivals: list[list[list[FrontierPoint]]], temperature: float = 1.0) -> float:
    return compare_hull(above(arm, rivals, temperature)).difference.value


def test_rivals_are_read_on_their_hull_at_the_arms_own_pass1() -> None:
    """At .20: LOW's own .90, or HIGH's two temperatures half and half, .95; beyond .30 the highest of all, 1.00."""
    found = above([ARM], [[LOW], [HIGH]])
    assert {(one.rival, one.temperature) for one in found.mixture.best} == {(1, 1.0), (1, 0.5)}
    assert [one.weight for one in found.mixture.best] == pytest.approx([0.5, 0.5])
    assert found.pass1 == (0.20,) and found.mixture.height == pytest.approx(0.95) and found.mixture.price == pytest.approx(1.0)
    assert found.ahead.shape == (4, 1, 2) and gap([ARM], [[LOW], [HIGH]]) == pytest.approx(0.02)
    cold = above([ARM], [[LOW], [HIGH]], temperature=0.3)  # no rival has a pass@1 of .40
    assert cold.mixture == HullMixture(best=(Share(rival=1, temperature=1.0, weight=1.0),), height=1.0, price=0.0)
    assert gap([ARM], [[LOW], [HIGH]], 0.3) == pytest.approx(-0.40)
    assert above_hull([ARM], [[LOW], [HIGH]], temperature=0.7) is None  # the arm was not read there
    hot = line((1.0, 0.10, 0.97))  # less pass@1 than any rival: they need give nothing up
    assert gap([hot], [[LOW], [HIGH]]) == pytest.approx(-0.03)


def test_a_coin_between_two_rivals_is_a_rival() -> None:
    """GRPO without a KL at (.3, .6) and with one at (.1, 1): half of each has (.2, .8), above an arm at (.2, .75)."""
    arm, rivals = [line((1.0, 0.2, 0.75))], [[line((1.0, 0.3, 0.6))], [line((1.0, 0.1, 1.0))]]
    assert {(one.rival, round(one.weight, 9)) for one in above(arm, rivals).mixture.best} == {(0, 0.5), (1, 0.5)}
    assert gap(arm, rivals) == pytest.approx(-0.05)


def test_place_and_price_are_chosen_once_for_all_seeds() -> None:
    """By seed another rival is higher; chosen by the means, so that the noise of rivals is not taken for height. Seeds of the arm
    that differ in pass@1 are moved along the hull: both lie .02 above it, though (.25, .92) and (.15, 1.02) differ."""
    two = [line((1.0, 0.25, 0.92)), line((1.0, 0.15, 1.02))]
    found = above(two, [[LOW, LOW], [HIGH, HIGH]])
    leads = found.ahead @ (found.mixture.price, 1.0)
    assert leads.min(axis=0) == pytest.approx((0.02, 0.02)) and np.std(found.arm) > 0.04
    other = line((1.0, 0.20, 0.80))
    rivals = [[other, line((1.0, 0.20, 1.00))], [line((1.0, 0.20, 0.95)), line((1.0, 0.20, 0.89))]]
    noisy = above([ARM, ARM], rivals)
    assert [one.rival for one in noisy.mixture.best] == [1] and noisy.mixture.height == pytest.approx(0.92)


def test_a_comparison_with_the_hull_by_hand() -> None:
    """Three seeds, one rival at (.2, .9): price 0, leads .04, .05, .06. Student's half width is 4.303 * .01 / sqrt(3) = .0248. At
    any price the arm has as much pass@1, so that both ends are those of the leads."""
    arm, rival = [line((1.0, 0.2, y)) for y in (0.94, 0.95, 0.96)], [line((1.0, 0.2, 0.9))] * 3
    found = compare_hull(above(arm, [rival]))
    assert (found.difference.low, found.difference.high) == pytest.approx((0.05 - 0.02484, 0.05 + 0.02484), abs=1e-4)
    assert found.outcome == "better" and (found.mean_a, found.mean_b) == pytest.approx((0.95, 0.90))
    scatters = [line((1.0, 0.2, y)) for y in (0.96, 0.86, 0.83)]  # a second rival, no higher
    assert compare_hull(above(arm, [rival, scatters])).outcome == "tied"
    fast = [line((1.0, x, y)) for x, y in ((0.29, 0.49), (0.30, 0.50), (0.32, 0.51))]  # ahead in pass@1: no "worse"
    found = compare_hull(above(fast, [rival]))
    assert found.outcome == "tied" and found.difference.high == pytest.approx(0.5)


coordinates = st.floats(0.01, 0.99)


@given(
    st.lists(st.lists(st.tuples(coordinates, coordinates), min_size=3, max_size=3), min_size=1, max_size=4),
    coordinates,
    st.floats(0.0, 0.5),
)
@example([[(0.5, 0.5), (0.5, 0.1660147078594266), (0.75, 0.4895678080059304)]], 0.75, 0.0)  # rounding made a price below 0
def test_laws_of_the_hull(scores: list[list[tuple[float, float]]], x: float, more: float) -> None:
    """Never below a rival that has the pass@1; falling and concave in pass@1; another rival can only raise it."""
    rivals = [[line(*((0.5 * (i + 1), *point) for i, point in enumerate(one)))] for one in scores]

    def height(at: float, among: list[list[list[FrontierPoint]]]) -> float:
        found = on_hull(at, among)
        assert found is not None and found.price >= -1e-9 and math.isclose(sum(one.weight for one in found.best), 1)
        points = [next(p for p in among[one.rival][0] if p.temperature == one.temperature) for one in found.best]
        mixed = sum(one.weight * point.passk for one, point in zip(found.best, points, strict=True))
        assert math.isclose(mixed, found.height, abs_tol=1e-9)
        return found.height

    top = max(point.pass1 for lines in rivals for point in lines[0])
    assume(x <= top)
    here = height(x, rivals)
    assert all(here >= p.passk - 1e-9 for lines in rivals for p in lines[0] if p.pass1 >= x)
    later = x + more * (top - x)
    there, between = height(later, rivals), height((x + later) / 2, rivals)
    assert there <= here + 1e-9 and between >= (here + there) / 2 - 1e-9
    assert height(x, rivals[:1]) <= here + 1e-9 or x > max(p.pass1 for p in rivals[0][0])


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(3, 6), st.integers(1, 3), st.floats(0.0, 0.3))
def test_laws_of_a_comparison_with_the_hull(seed: int, seeds: int, arms: int, lift: float) -> None:
    """The interval holds its value and ends at the arm's own score; better is ahead of every rival at every temperature; worse is
    behind some rival at price 0, at the hull's and where pass@1 alone counts; a rival is never above itself."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(0.2, 0.6, (arms + 1, 1, 3, 2)) + rng.normal(0, 0.02, (arms + 1, seeds, 3, 2))
    scores[0, :, :, 1] += lift - 0.15
    mine, *rivals = [[line(*((1.0 + i, *point) for i, point in enumerate(one))) for one in arm] for arm in scores.tolist()]
    read = above(mine, rivals)
    found = compare_hull(read)
    interval = found.difference
    assert interval.low <= interval.value <= interval.high
    assert interval.high <= max(interval.value, float(np.mean(read.arm))) + 1e-12
    assert (found.outcome == "tied") == (interval.low <= 0 <= interval.high)
    ps = [paired_seeds(lead @ (read.mixture.price, 1.0), np.zeros(seeds)) for lead in read.ahead]
    if found.outcome == "better":
        assert all(one.outcome == "better" for one in ps)
    if found.outcome == "worse":
        for price in ((0.0, 1.0), (read.mixture.price, 1.0), (1.0, 1e-6)):
            assert (read.ahead @ price).mean(axis=1).min() < 0
    itself = compare_hull(above(rivals[0], rivals))
    assert itself.difference.value <= 1e-12 and itself.outcome != "better"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with an envelope; tests that change it take `folder`."""
    out = write_sweep(tmp_path_factory.mktemp("envelopes") / "sweep")
    facts = json.loads((out / "design.json").read_text())
    facts |= {"baselines": {RIVALS: ["grpo", "grpo_beta0.1"]}, "oracle": "no_kl", "control": "grpo"}
    (out / "design.json").write_text(json.dumps(facts))
    return out


@pytest.fixture(scope="module")
def rows(made: Path) -> Any:
    """Every comparison of that sweep."""
    return compare(read_results(str(made)))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "sweep")


@pytest.mark.slow
def test_rows_room_and_summary_of_a_folder(made: Path, rows: Any) -> None:
    results = read_results(str(made))
    assert results.design.candidates == ("SAGE-Branch",)  # neither rivals, nor the ceiling, nor added controls
    primary = [row for row in rows if row.family == "primary"]
    assert {(row.b == RIVALS, row.metric.k, row.metric.at) for row in primary} == {
        (mine, k, "mixture") for mine in (True, False) for k in (8, results.k)
    }
    assert RIVALS in answer(rows)
    by_problem = next(row for row in rows if row.b == RIVALS and row.metric == Metric(name="distinct", k=results.k, at="hull"))
    names = ("GRPO", "GRPO, beta 0.1")
    table = results.table.exact().where(task="")
    own = [run.distinct_points[0] for run in table.where(arm="SAGE-Branch", temperature=1.0).runs.values()]
    rivals = [[run.distinct_points for run in table.where(arm=name).runs.values()] for name in names]
    x = float(np.mean([p.pass1 for p in own]))
    means = [np.mean([[(p.pass1, p.passk) for p in points] for points in lines], axis=0) for lines in rivals]
    cloud = np.concatenate(means)
    reach = [y for a, y in cloud if a >= x]
    reach += [c + (y - c) * (x - a) / (b - a) for a, c in cloud for b, y in cloud if a < x <= b]
    wanted = float(np.mean([p.passk for p in own])) - (max(reach) if reach else cloud[cloud[:, 0].argmax(), 1])
    assert by_problem.comparison.difference.value == pytest.approx(wanted, abs=1e-9)
    summary = summary_of(results, findings_of(results))
    room = {Metric.parse(row["metric"]): row for row in summary["room"]}
    first = room[Metric(name="distinct", k=results.k, at="hull")]
    assert first["own"] - first["best"] == pytest.approx(wanted, abs=1e-9)
    found = next(row for row in primary if row.b == RIVALS and row.metric.k == results.k)
    second = room[Metric(k=results.k, at="mixture")]
    assert second["own"] - second["best"] == pytest.approx(found.comparison.difference.value)


@pytest.mark.slow
def test_the_base_and_the_guesser_are_in_every_mixture_per_completion(made: Path) -> None:
    """A grid over the weights of all policies finds no better mixture; without base and guesser the candidate's lead is larger."""
    results = read_results(str(made))
    (envelope,) = results.design.baselines
    metric = Metric(k=8, at="mixture")
    arms, record = results.table.exact().where(task="").by_arm(), results.base_record
    assert record is not None
    plain = read_above(arms, "SAGE-Branch", envelope, metric, always_allowed(arms["base"], record))
    record = replace(record, meta={**record.meta, "chance": {"law": "answers", "each": [0.9] * record.problems}})
    results = replace(results, records={**results.records, ("base", 0, ""): record})
    allowed = always_allowed(arms["base"], record)
    found = read_above(arms, "SAGE-Branch", envelope, metric, allowed)
    assert plain is not None and found is not None and list(allowed) == ["base", GUESSER]
    assert found.mixture.height == pytest.approx(1 - 0.1**8, abs=1e-6) and plain.mixture.height < 0.99
    assert summary_of(results, findings_of(results))["room"][0]["rival"] == GUESSER
    tables = [[run_at(arms[name], seed).p for seed in (0, 1, 2)] for name in (*envelope.arms, "base")]
    cells = np.array([[table[t] for table in rival] for rival in tables for t in sorted(rival[0])])
    rng, x = np.random.default_rng(0), float(np.mean(plain.pass1))
    for weights in rng.dirichlet(np.full(len(cells), 0.1), 2000):
        if (mixed := np.tensordot(weights, cells, 1)).mean() >= x:
            assert float((1 - (1 - mixed) ** 8).mean()) <= plain.mixture.height + 1e-6


@pytest.mark.slow
def test_every_probability_is_kept_beside_the_summary(folder: Path) -> None:
    """The comparison can be made again from the file, to the rounding of float16; problems that were drawn twice included."""
    results = read_results(str(folder))
    (envelope,) = results.design.baselines
    summary = write_summary(folder)
    assert save_probabilities(results, folder) == folder / "probabilities.npz"
    kept = load_probabilities(folder)
    assert set(kept) == {(arm, seed) for arm, seed, task in results.records if not task}
    for (arm, seed), table in kept.items():
        exact = results.table.exact().where(arm=arm, seed=seed, task="").p
        assert set(table) == set(exact) and all(np.allclose(table[t], exact[t], rtol=1e-3, atol=1e-7) for t in table)
    tables = [[kept[name, seed] for seed in (0, 1, 2)] for name in ("SAGE-Branch", *envelope.arms)]
    again = above_mixtures(tables[0], [*tables[1:], [kept["base", 0]] * 3], 8)
    against = [row for row in summary["rows"] if row["b"] == RIVALS and row["metric"]["at"] == "mixture"]
    row = next(row for row in against if row["metric"]["k"] == 8 and row["metric"]["temperature"] == 1)
    assert again is not None and compare_hull(again).difference.value == pytest.approx(row["difference"]["value"], abs=2e-3)
    seeds = summary["arms"]["sage_branch"]["frontier_by_seed"]["1"]
    for point in seeds:
        p = results.table.where(arm="SAGE-Branch", seed=1, task="", temperature=point["temperature"]).rows[0].values
        assert point["pass"]["8"] == pytest.approx(float((1 - (1 - p) ** 8).mean()))
    assert set(summary["base"]["frontier"][0]["pass"]) == set(map(str, summary["ks"]))
    (folder / "probabilities.npz").write_bytes(b"no")
    with pytest.raises(DataError, match="probabilities"):
        load_probabilities(folder)


@pytest.mark.slow
def test_candidates_are_compared_with_mixtures_from_samples_too(tmp_path: Path) -> None:
    """SAGE against GRPO over three training seeds of 16 samples: pass@8 and pass@16 at temperature 1."""
    out = write_stores(tmp_path)
    arms = (f"{name}=" + ",".join(f"{out}/{name}-sums-T1-s{seed}" for seed in (0, 1, 2)) for name in ("GRPO", "SAGE"))
    results = read_results(*arms)
    results = replace(results, design=replace(results.design, baselines=(Envelope(name="G", arms=("GRPO",)),)))
    rows = [row for row in compare(results) if row.why == "envelope" and row.metric.temperature == 1]
    assert {(row.a, row.task, row.metric.k) for row in rows} >= {("SAGE", "sums", 8), ("SAGE", "sums", 16)}
    for row in rows:
        both = [results.table.where(arm=name, task=row.task, temperature=1.0).scores() for name in ("SAGE", "GRPO")]
        own, rival = (float(side.passes([row.metric.k or 0]).mean()) for side in both if side is not None)
        assert row.comparison.mean_a == pytest.approx(own)
        ones = [float(side.passes([1]).mean()) for side in both if side is not None]
        assert row.comparison.difference.value <= own - rival + 1e-9 or ones[1] < ones[0]  # GRPO is in its own mixture
        assert row.comparison.over == "training seeds" and row.comparison.difference.n == 3


def test_an_envelope_is_read_over_the_seeds_that_all_have(made: Path) -> None:
    """The arm has three training seeds and a rival two; with no seed in common there is no row."""
    results = read_results(str(made))
    (envelope,) = results.design.baselines
    metric = Metric(k=results.k, at="mixture")

    def table(*without: int) -> ExactMeasurements:
        rows = results.table.exact().where(task="").rows
        return ExactMeasurements(tuple(row for row in rows if row.arm != "GRPO" or row.seed not in without))

    found = read_above(table(2).by_arm(), "SAGE-Branch", envelope, metric, {})
    assert found is not None and found.ahead.shape[1] == len(found.pass1) == 2
    assert read_above(table(0, 1, 2).by_arm(), "SAGE-Branch", envelope, metric, {}) is None
    assert not [row for row in compare(replace(results, table=table(0, 1, 2))) if row.why == "envelope"]


@pytest.mark.slow
def test_a_stored_summary_keeps_its_envelopes(folder: Path) -> None:
    write_summary(folder)
    text = (folder / "summary.md").read_text()
    assert "## Headroom" in text and RIVALS in text.split("\n")[2]
    stored = read_summary(folder / "summary.json")
    design = design_of_summary(stored)
    assert design.baselines[0].arms == ("GRPO", "GRPO, beta 0.1") and design.oracle == "no KL"
    again = [row for row in compare(read_results(str(folder))) if row.family == "primary"]
    assert {row["b"] for row in stored["rows"] if row["family"] == "primary"} == {row.b for row in again}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"baselines": {"all": ("grpo", "rloo")}}, "'rloo': no such arm"),
        ({"baselines": {"grpo": ("grpo",)}}, "an arm has this name"),
        ({"baselines": {"all": ()}}, "list at least one arm"),
        ({"baselines": {"all": ("grpo", "no_kl")}}, "every arm is a baseline"),
        ({"baselines": {"all": ("grpo",)}, "oracle": "truth"}, "'truth': no such arm"),
    ],
)
def test_what_a_design_refuses(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DesignSpec(title="t", seeds=(0,), arms={"grpo": "grpo", "no_kl": "no_kl"}, control="grpo", **given)  # type: ignore[arg-type]


@pytest.mark.slow
def test_discarded_candidates_weaken_the_correction(folder: Path, rows: Any) -> None:
    before = {(row.b, row.metric): row for row in rows if row.family == "primary"}
    tested = [row for row in before.values() if math.isfinite(row.comparison.p)]
    facts = json.loads((folder / "design.json").read_text()) | {"discarded": ["rft", "replay"]}
    (folder / "design.json").write_text(json.dumps(facts))
    results = read_results(str(folder))
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
    plain = {"title": "t", "seeds": (0, 1, 2), "arms": {"a": "grpo", "b": "rloo"}, "control": "a"}
    with pytest.raises(ConfigError, match="counts as a candidate against baselines"):
        DesignSpec(**plain, discarded=("rft",))
    with pytest.raises(ConfigError, match="is an arm of this design"):
        DesignSpec(**plain, baselines={"E": ("a",)}, discarded=("b",))


def test_what_cannot_be_read_is_said_without_a_number(rows: Any) -> None:
    blank = unknown(Reason.NO_COMMON_RANGE)
    said = answer([replace(row, comparison=blank) for row in rows if row.family == "primary"])
    assert said.startswith("No claim about methods. ") and "cannot be told (no common range of pass@1): SAGE-Branch" in said
    assert "nan" not in said
