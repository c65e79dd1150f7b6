"""`python -m lab summary`: the rows of a sweep that was stored as a whole, and a refusal of one that is not complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.__main__ import main
from lab.tests.test_experiments import EXPERIMENTS
from sage_rlvr.results.read import read_results
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.summary_io import row_tree

WHOLE = EXPERIMENTS / "2026-11-27_smollm2_much_room"
FILES = ("design.yaml", "counts.jsonl", "exact_kl.jsonl")


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """What is left of an experiment without its stores."""
    for name in FILES:
        shutil.copy(WHOLE / name, tmp_path)
    return tmp_path


def by_question(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows by what they compare, without those at equal raw KL."""
    rows = [row for row in summary["rows"] if row["metric"].get("matched") != "raw KL"]
    names = ("a", "b", "metric", "why", "family")
    return {json.dumps([row[name] for name in names]): row for row in rows}


def close(tree: Any) -> Any:
    """Numbers within 1e-12, all else equal."""
    if isinstance(tree, dict):
        return {name: close(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [close(value) for value in tree]
    return pytest.approx(tree, abs=1e-12) if isinstance(tree, float) else tree


RULES = {"adjusted", "family_size", "chance", "below", "rising"}
"""Fields of a row that follow from other rows or from rules that have changed: the exploratory family lacks the three rows at equal
raw KL and holds other rows against the base at any temperature; the stored floor is that of one guesser; whether the base's pass@1
still rises was not stored."""
TWO_SEEDS = {"p", "mde", "mde_limit", "problems"}
"""Of a row at equal KL with two usable seeds, "unknown" then and now: it was stored with a p, and counts as p = 1 now."""
ARM = "GRPO, k3"
"""Its pass@1 lies above the best of the base by point estimate alone, p = 0.898: it was compared with the best temperature, and is
with mixtures now."""


def test_the_rows_are_those_of_the_stored_summary(experiment: Path) -> None:
    whole = json.loads((WHOLE / "summary.json").read_text(encoding="utf-8"))
    assert main(["summary", str(experiment)]) == 0
    made = json.loads((experiment / "summary.json").read_text(encoding="utf-8"))
    stored, found = by_question(whole), by_question(made)
    assert len(made["rows"]) == 35 == len(whole["rows"]) - 3
    apart = [(json.loads(key)[0], json.loads(key)[2]["at"], json.loads(key)[2]["k"]) for key in stored.keys() ^ found.keys()]
    assert sorted(apart) == sorted((ARM, at, k) for at in ("b best", "mixture") for k in (8, 16, 32, 64))
    for question in stored.keys() & found.keys():
        row, old = found[question], stored[question]
        same = row.keys() - RULES - (TWO_SEEDS if row["why"] == "matched" else set())
        assert {name: row[name] for name in same} == close({name: old[name] for name in same}), question
        if row["why"] == "matched":
            assert row["left_out"] == 3 and row["reason"] == "two seeds" and row["p"] is None
    assert_corrected(made["rows"], {"primary": 2, "exploratory": 33})
    (first,) = [row for row in made["rows"] if row["family"] == "primary" and row["p"] is not None]
    assert first["adjusted"] == close(stored[question_of(first)]["adjusted"]) == 1.0
    for arm, values in made["arms"].items():
        assert values == close({name: whole["arms"][arm][name] for name in values})
        assert "kl_exact" in values and "grad_norm" in whole["arms"][arm]
    (task,) = whole["chance"]
    assert sorted(made["chance"][task]["each"]) == close(sorted(whole["chance"][task]["each"]))
    for one, other in zip(made["sampled"], whole["sampled"], strict=True):
        unknown = {"no_answer_frac", "cut_frac", "undecided_frac"}
        assert all(one[name] is None for name in unknown)
        if one["policy"] == "base":
            assert_of_samples(one.pop("pass"), other["pass"])
        assert {name: one[name] for name in one.keys() - unknown} == close({name: other[name] for name in one.keys() - unknown})
    assert [row_tree(row) for row in compare(read_results(experiment))] == made["rows"]
    assert any("are not known" in note for note in made["left_out"])


def question_of(row: dict[str, Any]) -> str:
    return next(iter(by_question({"rows": [row]})))


def assert_corrected(rows: Sequence[dict[str, Any]], sizes: dict[str, int]) -> None:
    """Holm's p by hand: of m comparisons the one at place i in order of p has the largest p_j (m - j) of those before it."""
    for family, size in sizes.items():
        here = [row for row in rows if row["family"] == family]
        assert len(here) == size  # all of them, with a p or without
        tested, largest = sorted((row for row in here if row["p"] is not None), key=lambda row: row["p"]), 0.0
        for place, row in enumerate(tested):
            largest = min(1.0, max(largest, row["p"] * (size - place)))
            assert row["adjusted"] == pytest.approx(largest, abs=1e-12) and row["family_size"] == size


def assert_of_samples(made: dict[str, Any], stored: dict[str, Any]) -> None:
    """With the problems fixed the interval of the base, sampled once, is over its samples alone, as those of the arms are over
    their training seeds alone; the stored one is over problems too, and wider."""
    for k, one in made.items():
        assert one["value"] == close(stored[k]["value"]) and (one["over"], one["n"]) == ("samples", 64)
        assert stored[k]["low"] < one["low"] < one["value"] < one["high"] < stored[k]["high"]


def test_a_summary_that_is_there_stays(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (experiment / "summary.json").write_text("{}")
    assert main(["summary", str(experiment)]) == 2
    assert "is there already" in capsys.readouterr().err and (experiment / "summary.json").read_text() == "{}"


def colder(row: dict[str, Any]) -> dict[str, Any]:
    """One run at another temperature."""
    return row | {"temperature": 0.7} if (row["arm"], row.get("seed")) == ("GRPO, k3", 1000) else row


Rows = list[dict[str, Any]]
INCOMPLETE: dict[str, tuple[str, Callable[[Rows], Rows]]] = {
    "no exact KL of GRPO, k3_is, beta 0.05, training seed 1004;": ("exact_kl.jsonl", lambda rows: rows[:-1]),
    "no counts of base, T = 0.4;": ("counts.jsonl", lambda rows: [row for row in rows if row["temperature"] != 0.4]),
    "no counts of GRPO, k3, training seed 1000;": ("counts.jsonl", lambda rows: list(map(colder, rows))),
    "base has 32 samples of 200 problems, not 64 of 200;": (
        "counts.jsonl", lambda rows: [row | {"n": 32, "c": row["c"] // 2} for row in rows],
    ),
    "another, training seed 1000 is not in design.yaml;": (
        "counts.jsonl", lambda rows: rows + [row | {"arm": "another", "seed": 1000} for row in rows[:200]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", INCOMPLETE)
def test_nothing_is_written_of_an_experiment_that_is_not_complete(
    said: str, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, change = INCOMPLETE[said]
    rows = [json.loads(line) for line in (WHOLE / name).read_text(encoding="utf-8").splitlines()]
    (experiment / name).write_text("".join(json.dumps(row) + "\n" for row in change(rows)), encoding="utf-8")
    assert main(["summary", str(experiment)]) == 2
    assert said in capsys.readouterr().err and not (experiment / "summary.json").exists()
    (experiment / name).unlink()
    assert main(["summary", str(experiment)]) == 2
    assert f"no {name}; give" in capsys.readouterr().err
