"""The numbers of a sweep: verdicts paired by seed, Holm over all, readings between betas, what was logged."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sage_rlvr.api.printed import caveats
from sage_rlvr.evaluation.record import load_record, save_record
from sage_rlvr.render import write_summary
from sage_rlvr.results.page.training import choice_of
from sage_rlvr.results.read import read_results
from sage_rlvr.results.summary import choose, strength
from sage_rlvr.results.tables import costs
from sage_rlvr.verdicts.checks import relabelled
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.kl import between
from sage_rlvr.verdicts.metric import Metric
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.sources import TrainingRun
from sage_rlvr.verdicts.stats.intervals import share_interval
from sage_rlvr.verdicts.stats.paired import Reason
from sage_rlvr.verdicts.text.rows import sentence
from sweeps.sweep_common import summarize


def folder_of(path: Path, scores: dict[str, list[float]], kls: dict[str, float] | None = None, copies: int = 1) -> Path:
    """A sweep's folder with made records: arm -> p of the first of two problems, one per seed (of the second always 0.5).
    copies: of both problems."""
    arms = []
    for name in scores:
        links: dict[str, object] = {"plain": None, "placebo": None, "no_kl": None, "matched": [], "guided": False}
        if name == "guided":
            links |= {"guided": True, "plain": "control", "matched": [n for n in scores if n != "guided"]}
        arms.append({"name": name, "label": name, "recipe": "", "why": "", **links})
    seeds = range(len(next(iter(scores.values()))))

    def record(name: str, p: float) -> None:
        logps = {t: [np.log([p * t]), np.log([0.5])] * copies for t in (1.0, 0.5)}
        ids = [f"{which}{i}" for i in range(copies) for which in "ab"]
        meta = {"name": name, "problem_ids": ids, "world": {}, "split": "test", "seed": 1, "sampling": "iid"}
        save_record(Record(meta, logps), path / "evaluations" / f"{name}.npz")

    record("base", 0.1)
    for name, values in scores.items():
        for seed, p in enumerate(values):
            record(f"{name}-s{seed}", p)
            (path / "runs" / f"{name}-s{seed}").mkdir(parents=True)
            row = {"step": 0, "time/step_s": 1.0, "kl/to_reference": (kls or {}).get(name, 0.1)}
            row |= {"guide/q_mean": 1.0, "guide/active_frac": 0.0}
            (path / "runs" / f"{name}-s{seed}" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    cells = [
        {"arm": n, "seed": s, "status": "evaluated", "complete": True, "evaluated": [""]} for n in scores for s in seeds
    ]
    facts = {
        "title": "t",
        "notes": "",
        "design": "m",
        "control": "control",
        "seeds": list(seeds),
        "steps": 1,
        "world": "w",
    }
    facts |= {"versions": {}, "choice": None, "left_out": [], "arms": arms, "runs": cells, "base_evaluated": [""]}
    facts |= {"evaluate": {"ood": [], "problems": 2, "split": "test", "sampling": "iid", "ood_problems": 1}}
    (path / "design.json").write_text(json.dumps(facts))
    return path


def test_verdicts_are_paired_by_seed_and_holm_runs_over_all(tmp_path: Path) -> None:
    control = [0.1, 0.2, 0.3]
    other = [p + 0.1 + e for p, e in zip(control, (0, 1e-4, -1e-4), strict=True)]
    folder = folder_of(tmp_path, {"control": control, "other": other}, copies=30)
    found = summarize(folder)
    first = found["rows"][0]
    assert (first["why"], first["a"], first["b"], first["metric"]["k"]) == ("control", "other", "control", 1)
    assert first["difference"]["value"] == pytest.approx(0.05) and first["outcome"] == "better"  # 0.1 on half of the problems
    primary = [c for c in found["rows"] if c["family"] == "primary"]  # that without a test too
    assert first["family_size"] == len(primary) and first["adjusted"] >= first["p"]
    assert found["arms"]["control"]["pass"]["1"]["value"] == pytest.approx((0.2 + 0.5) / 2)
    width = found["arms"]["control"]["pass"]["1"]["high"] - 0.35
    of_problems = share_interval([0.2, 0.5] * 30).high - 0.35
    assert width == pytest.approx(math.hypot(4.302653 * 0.05 / math.sqrt(3), of_problems), rel=1e-6)  # in quadrature


def test_scores_between_betas_are_linear_in_log_kl_and_nothing_is_read_outside() -> None:
    kls, scores = np.array([0.4, 0.1]), np.array([[0.3, 0.6], [0.1, 0.8]])
    assert between(0.2, kls, scores) == pytest.approx([0.2, 0.7])  # halfway from 0.1 to 0.4 in the logarithm
    assert between(0.1, kls, scores) == pytest.approx([0.1, 0.8])
    assert between(0.41, kls, scores) is None and between(0.09, kls, scores) is None
    assert between(0.0, kls, scores) is None and between(0.2, np.array([0.4, 0.0]), scores) is None  # before the first update
    assert between(0.2, np.array([np.inf, 0.1]), scores) is None


def test_a_guided_arm_is_held_against_its_method_at_the_same_raw_kl(tmp_path: Path) -> None:
    scores = {"control": [0.2, 0.21, 0.22], "strong": [0.4, 0.41, 0.42], "guided": [0.3, 0.31, 0.32]}
    folder = folder_of(tmp_path, scores, {"control": 0.1, "strong": 0.4, "guided": 0.2})
    found = {(row.why, row.metric): row.comparison for row in compare(read_results(folder)) if row.a == "guided"}
    assert found["matched", Metric(k=1, matched="raw KL")].difference.value == pytest.approx(0, abs=1e-12)
    assert found["control", Metric(k=1)].difference.value == pytest.approx(0.05)
    away = folder_of(tmp_path / "away", scores, {"control": 0.1, "strong": 0.4, "guided": 0.5})
    (lost, more) = (row for row in compare(read_results(away)) if row.why == "matched")
    assert lost.left_out == more.left_out == 3 and lost.comparison.reason == Reason.OUTSIDE and math.isnan(lost.adjusted)
    assert "left out: 3 training seeds whose raw KL is not within the range of these betas" in sentence(lost)


def test_near_temperature_one_an_arm_that_only_slides_gains_nothing(tmp_path: Path) -> None:
    """The hot arm is the control sampled twice as hot: above it at temperature 1, on its frontier throughout. The wide one has its
    frontier but twice the probability of another right answer. The far one has no temperature with the control's pass@1: no
    comparison, and that is said."""
    c = [0.002, 0.003, 0.004]
    folder = folder_of(tmp_path, {"control": c, "hot": [2 * p for p in c], "wide": c, "far": [50 * p for p in c]})
    factors = {"base": 50.0, "control": 1.0, "hot": 2.0, "wide": 1.0, "far": 50.0}
    for name, seed in [("base", 0), *((name, seed) for name in factors if name != "base" for seed in range(3))]:
        path = folder / "evaluations" / ("base.npz" if name == "base" else f"{name}-s{seed}.npz")
        p = c[seed] * factors[name] * (np.array([0.5, 0.5]) if name == "wide" else np.array([1.0, 1e-12]))
        rows = {t: [np.log(p * t), np.log([0.5])] for t in (0.25, 0.5, 1.0, 2.0)}  # twice as hot, twice the probability
        save_record(Record(load_record(path).meta, rows), path)
    found = summarize(folder)
    rows = [row for row in compare(read_results(folder)) if row.metric.at == "near"]
    gaps = {(row.a, row.metric): row.comparison.difference for row in rows}
    near = {key: asdict(gap) for key, gap in gaps.items() if math.isfinite(gap.value)}
    assert {name for name, _ in near} == {"hot", "wide"} and {row.a for row in rows} == {"hot", "wide", "far"}
    passk, distinct = Metric(k=256, at="near"), Metric(name="distinct", k=256, at="near")
    for what in (passk, distinct):
        assert near["hot", what]["value"] == pytest.approx(0, abs=1e-8) and near["hot", what]["n"] == 3
    assert found["arms"]["hot"]["pass"]["256"]["value"] > found["arms"]["control"]["pass"]["256"]["value"] + 0.05
    assert near["wide", passk]["value"] == pytest.approx(0, abs=1e-8)
    f = [2 * (1 - (1 - p / 2) ** 256) - (1 - (1 - p) ** 256) for p in c]  # two answers of p / 2 instead of one of p
    assert near["wide", distinct]["value"] == pytest.approx(np.mean(f) / 2, rel=1e-6)  # over two problems
    write_summary(folder)
    text = (folder / "summary.md").read_text(encoding="utf-8")
    why = "cannot be told (no temperature gives one arm the pass@1 of the other at T = 1)"
    assert f"- Against control, {passk}: " in text and text.count(f"{why}: far; identical: hot (0.000).") == 2


def test_near_temperature_one_a_guided_arm_meets_its_method_and_its_placebo_and_added_placebos_meet_nobody(
    tmp_path: Path,
) -> None:
    scores = {name: [0.2, 0.21, 0.22] for name in ("control", "plain", "shuffled", "mine", "beta")}
    folder = folder_of(tmp_path, scores)
    facts = json.loads((folder / "design.json").read_text())
    for arm in facts["arms"]:
        arm |= {"plain": "plain", "placebo": "shuffled"} if arm["name"] == "mine" else {}
        arm |= {"why": "added"} if arm["name"] in ("shuffled", "beta") else {}
    (folder / "design.json").write_text(json.dumps(facts))
    near = {(row.a, row.b) for row in compare(read_results(folder)) if row.metric.at == "near"}
    assert near == {
        ("plain", "control"),
        ("mine", "control"),
        ("mine", "plain"),
        ("mine", "shuffled"),
        ("beta", "control"),
    }


def halves_of(folder: Path) -> dict[str, Any]:
    results = read_results(folder)
    return relabelled(results.table.exact().where(arm="control", task=""), results.k, None)


def test_one_arm_under_two_names_is_tied(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    even = folder_of(tmp_path / "even", {"control": rng.normal(0.3, 0.02, 6).tolist()}, copies=30)
    found = halves_of(even)
    assert found["splits"] == 10 and found["tied"]["pass@1"] >= 9 and found["first"][0]["a"] == "control A (seeds 0, 1, 2)"
    halves = folder_of(tmp_path / "halves", {"control": [0.1, 0.1001, 0.1002, 0.3, 0.3001, 0.3002]}, copies=30)
    assert halves_of(halves)["tied"]["pass@1"] < 10  # two different arms under one name are found out
    few = folder_of(tmp_path / "few", {"control": [0.1] * 5})
    assert halves_of(few) == {"splits": 0, "have": 5}
    write_summary(few)
    why = "Not run: the control has 5 evaluated seeds; two halves of three seeds need 6."
    assert why in (few / "summary.md").read_text(encoding="utf-8")


def test_what_was_logged_is_a_mean_of_its_part_of_the_run(tmp_path: Path) -> None:
    """Thirty steps, reward the step's number, norm 1, 2, 3 in the thirds; the second seed has both doubled. Dead groups: a
    fortieth of the step's number, in both."""
    folder = folder_of(tmp_path, {"control": [0.1, 0.1]})
    for seed, scale in ((0, 1.0), (1, 2.0)):
        rows = [
            {"step": i, "time/step_s": 1.0, "reward/mean": scale * i, "optimizer/grad_norm": scale * (1 + i // 10)}
            | {"reward/zero_variance_frac": i / 40}
            for i in range(30)
        ]
        log = folder / "runs" / f"control-s{seed}" / "metrics.jsonl"
        log.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    row = summarize(folder)["arms"]["control"]
    assert [row["reward"][when]["value"] for when in ("first", "last")] == [1.5, 42.0]
    assert [row["dead"][when]["value"] for when in ("first", "last")] == pytest.approx([0.025, 0.7])
    assert [norm["value"] for norm in row["grad_norm"].values()] == [1.5, 3.0, 4.5]
    write_summary(folder)
    text = (folder / "summary.md").read_text(encoding="utf-8")
    assert "| training reward,<br>first tenth | last tenth | test pass@1 |" in text and "| 4.500 |" in text
    assert "| 0.700 |" in text and "## Controls\n\n- no control was added to the arms of the design" in text


def test_raw_kl_is_that_of_the_last_tenth() -> None:
    rows = [{"kl/to_reference": float(n)} for n in range(20)] + [{"step": 20}]
    logged, without = (TrainingRun(arm="a", seed=0, metrics=some) for some in (rows, [{"step": 0}]))
    assert logged.raw_kl == 18.5 and without.raw_kl is None
    for text in ("nan", "inf"):  # as metrics.jsonl has them
        assert TrainingRun(arm="a", seed=0, metrics=[*rows, {"kl/to_reference": text}]).raw_kl is None
        found = strength([[{"guide/q_mean": text, "guide/active_frac": 0.5}]])
        assert found is not None and found["active_first"] == 0.5 and not math.isfinite(found["q_last"])


def test_of_samples_alone_the_summary_has_what_the_runs_logged(tmp_path: Path) -> None:
    """No exact record stands there; strength, raw KL and seconds are of the runs all the same."""
    folder = folder_of(tmp_path, {"control": [0.2], "other": [0.3]})
    for record in (folder / "evaluations").glob("*-s*.npz"):
        record.unlink()
    for log in (folder / "runs").glob("*/metrics.jsonl"):
        log.write_text(json.dumps({"step": 0, "kl/to_reference": 0.1, "rollout/tokens": 7, "time/step_s": 2.0}) + "\n")
    found = summarize(folder)
    row = found["arms"]["other"]
    assert row["seeds"] == [] and row["tokens"] == 7 and row["kl_raw"]["value"] == 0.1 and row["train_seconds"] == 2.0
    assert [line[0] for line in costs(found).rows] == ["control", "other"]


def test_a_control_of_one_temperature_is_evaluated_again_by_its_path(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"control": [0.2], "other": [0.3]})
    results = read_results(folder)
    results = replace(results, table=results.table.where(temperature=1.0))
    assert f"sage-rlvr eval {folder / 'runs' / 'control-s0'} --frontier." in caveats(results)[0]


def test_the_choice_takes_the_higher_frontier(tmp_path: Path) -> None:
    folder = read_results(folder_of(tmp_path, {"control": [0.2] * 2, "a": [0.1] * 2, "b": [0.12] * 2}))
    by_pass1 = choose(folder, ("a", "b"), "pass@1")
    assert {name: sum(runs) / 2 for name, runs in by_pass1.items()} == pytest.approx({"a": 0.3, "b": 0.31})
    assert choose(folder, ("a",), "frontier")["a"] == pytest.approx([0.0, 0.0])  # it is the base's own frontier


def test_a_choice_says_whether_its_arms_differ_by_more_than_their_seeds() -> None:
    """Worked by hand in tests/verdicts/stats/test_power.py."""
    runs = {"a": {"0": 1.5, "1": 0.5}, "b": {"0": 2.5, "1": 1.5}, "c": {"0": 5.0, "1": 7.0}}
    found = {"arms": {name: {"label": name} for name in runs}}
    choice = {"scores": {"a": 1.0, "b": 2.0, "c": 6.0}, "chosen": "c", "by": "pass@1", "problems": 9}
    told = choice_of(found | {"choice": choice | {"by_seed": runs}})
    assert told is not None
    assert told["spread"] == {"tested": True, "differ": False, "arms": "2.6458", "seeds": "0.8660", "p": "p = 0.097"}
    apart = {name: {seed: 10 * sum(pair.values()) + x for seed, x in pair.items()} for name, pair in runs.items()}
    told = choice_of(found | {"choice": choice | {"by_seed": apart}})
    assert told is not None and told["spread"]["differ"]
    lost = {"a": {"0": 1.0, "1": 2.0}, "b": {"0": None, "1": 2.0}}
    told = choice_of(found | {"choice": choice | {"by_seed": lost}})
    assert told is not None and told["spread"] == {"tested": False}
    for none in ({}, {"by_seed": {}}, {"by_seed": {"a": {"0": 1.0}, "b": {"0": 2.0}}}):
        told = choice_of(found | {"choice": choice | none})
        assert told is not None and told["spread"] is None
