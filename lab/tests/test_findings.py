# ruff: noqa: E501  (tables of addresses)
"""The page of findings says what the summaries beside it hold: every effect, from the list of comparisons."""

from __future__ import annotations

from pathlib import Path

import pytest

from sage_rlvr.results.comparisons import compare
from sage_rlvr.results.read import Results

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "findings.md"
EXPERIMENTS = ROOT / "lab" / "experiments"
BEST, TEMPERED = "each at its best temperature", "base tempered over whole completions"
SAME = "at the same raw KL"
RFT = "RFT, distinct answers of the base"
HULL, MAXRL = "at equal pass@1 on their convex hull (first at T = 1)", "MaxRL, k3 in the loss, beta 0.025"
SAMES = (f"pass@1 {SAME}", f"pass@256 {SAME}")
EFFECTS = [  # how the row of the page begins, folder of lab/experiments, a, b, metrics in the order of the row
    ("Should I use Branch?", "2026-11-21_table1", "SAGE-Branch", "GRPO", ("pass@1", "pass@256")),
    ("| At a mean q of 2", "2026-11-24_sage_on_hard_countdown", "Branch, ratio 4", "GRPO, beta 0.0125", ("pass@1", "pass@256")),
    ("| At a mean q of 2", "2026-11-24_sage_on_hard_countdown", "Branch, ratio 4", "placebo of Branch, ratio 4", ("pass@256",)),
    ("| Answers of 55 tokens", "2026-11-24_long_answers", "GRPO + strong Branch", "GRPO, beta 0.0125", ("pass@1", "pass@256")),
    ("| [Word problems]", "2026-11-25_word_problems", "GRPO + strong Branch", "GRPO, beta 0.0125", ("pass@1", "pass@256")),
    ("| Ratio and threshold tuned", "2026-11-25_branch_grid", "r0.3_t2", "GRPO, beta 0.0125", ("pass@1", "pass@256")),
    ("Does another guide help?", "2026-11-24_rarity_centered_placebo", "RLOO+Rarity", "RLOO+Rarity-placebo", ("pass@256", "pass@1")),
    ("| Branch as a bonus", "2026-11-25_kl_in_reward", "RLOO+Branch", "RLOO", ("pass@1", "pass@256")),
    ("What keeps coverage?", "2026-11-21_table1", "no KL", "GRPO", ("pass@256", "pass@1")),
    ("Does RL learn, or sharpen?", "2026-11-22_temp03", "GRPO", TEMPERED, (f"pass@1, {BEST}",)),
    ("Does it learn by heart?", "2026-11-25_few_problems_on_train", "no KL", "GRPO", ("pass@1", "pass@256")),
    ("| In the world with room it widens", "2026-11-23_countdown_hard_frontier_250", "GRPO, beta 0.025", "base", ("pass@256",)),
    ("| In 2,000 steps it learns", "2026-11-24_countdown_easy_2000_steps", "GRPO, beta 0.1", TEMPERED, (f"pass@1, {BEST}",)),
    ("Is a method above the hull", "2026-11-24_countdown_easy_2000_steps", RFT, "GRPO and RLOO over their betas", (f"pass@8 {HULL}", f"pass@256 {HULL}")),
    ("| In the world with room RFT", "2026-11-25_countdown_hard_rft", RFT, "GRPO over its betas", (f"pass@256 {HULL}",)),
    ("| There MaxRL", "2026-11-23_countdown_hard_frontier_rep", MAXRL, "GRPO over its betas", (f"pass@8 {HULL}", f"pass@256 {HULL}")),
    ("| Targets 21 to 99", "2026-11-25_sparse99_maxrl", MAXRL, "GRPO at two betas", (f"pass@8 {HULL}", f"pass@256 {HULL}")),
    ("| GPT-2's block", "2026-11-25_architectures_selected", RFT, "GRPO at two betas", (f"pass@8 {HULL}", f"pass@256 {HULL}")),
    ("k3 or k3_is", "2026-11-23_countdown_hard_k3_is", "k3_is, beta 0.025", "k3, beta 0.0125", SAMES),
    ("Pay rare right answers more?", "2026-11-25_distinct_placebo", "Distinct@k", "RLOO at two betas", (f"pass@256 {HULL}",)),
    ("Can I do without a verifier?", "2026-11-23_verifier_free", "rlpr", "no KL", ("pass@1",)),
    ("More completions for hard prompts", "2026-11-25_dars_rep", "DARS", "dars_uniform", ("pass@256", "pass@1")),
    ("Does VERL help?", "2026-11-24_erank_rep", "VERL", "GRPO, no KL", ("pass@1", "pass@256")),
]


def said(value: float, low: float, high: float, metric: str) -> str:
    """As the page writes an effect: three decimals, four where three show nothing; on a hull nothing bounds the upper end."""
    number = f"{value:+.{3 if abs(value) >= 0.0005 else 4}f}"
    if metric.endswith(HULL):
        return f"{number} (at most {high:+.3f})" if high < 0 else f"{number} (at least {low:+.3f})"
    return f"{number} ({low:+.3f} to {high:+.3f})"


@pytest.mark.parametrize(("start", "folder", "a", "b", "metrics"), EFFECTS)
def test_every_effect_is_in_its_summary(start: str, folder: str, a: str, b: str, metrics: tuple[str, ...]) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (line,) = (one for one in lines if one.startswith(f"| {start}"))
    assert f"`sweep {folder}`" in line
    found = compare(Results.read(str(EXPERIMENTS / folder)))
    rows = [row for row in found if row.task in ("", "countdown_steps", "word_problems") and (row.a, row.b) == (a, b)]
    for metric in metrics:
        (found,) = (row.comparison.difference for row in rows if str(row.metric) == metric)
        assert said(found.value, found.low, found.high, metric) in line, metric
    if "after correction" in line:
        judged = [row for row in rows if str(row.metric) in metrics and row.comparison.outcome != "tied"]
        assert all(row.holds for row in judged)


def test_every_row_with_a_sweep_has_its_effects_here() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`sweep " in line]
    assert rows and {line.rsplit("`sweep ", 1)[1].split("`")[0] for line in rows} == {folder for _, folder, *_ in EFFECTS}
    assert len([word for word in page.split() if word.strip("|-")]) < 1_250  # five minutes; bars of tables are not read


LEVELS = {  # row of the page: (folder, arm) of its cells, None where there is none
    "base": (("2026-11-21_table1", "base"), None, ("2026-11-24_sage_on_hard_countdown", "base")),
    "GRPO, beta 0.05; 0.1; 0.0125": (("2026-11-21_table1", "grpo"), ("2026-11-24_countdown_easy_2000_steps", "grpo_0.1"), ("2026-11-24_sage_on_hard_countdown", "grpo")),
    "GRPO, no KL": (("2026-11-21_table1", "no_kl"), ("2026-11-25_countdown_easy_betas", "grpo_0"), ("2026-11-25_countdown_hard_rft", "grpo_0")),
    "SAGE-Branch; in the last column at a mean q of 2": (("2026-11-21_table1", "sage_branch"), None, ("2026-11-24_sage_on_hard_countdown", "branch_4")),
    "RFT": (None, ("2026-11-24_countdown_easy_2000_steps", "rft"), ("2026-11-25_countdown_hard_rft", "rft")),
    "MaxRL, k3": (None, ("2026-11-25_countdown_easy_betas", "maxrl_k3_0.1"), ("2026-11-24_sage_on_hard_countdown", "maxrl")),
    "trained on given answers": (None, ("2026-11-24_countdown_easy_2000_steps", "truth"), ("2026-11-23_countdown_hard_frontier", "truth")),
}


def test_the_levels_are_those_of_their_summaries() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("| pass@1, pass@8, pass@256 at T = 1"))
    table = {cells[1].strip(): cells[2:5] for line in lines[start + 2 : start + 9] if (cells := line.split("|"))}
    assert table.keys() == LEVELS.keys()
    for name, places in LEVELS.items():
        for cell, place in zip(table[name], places, strict=True):
            if place is None:
                assert not cell.strip()
                continue
            folder, arm = place
            stored = Results.read(str(EXPERIMENTS / folder)).stored or {}
            one = stored["base"] if arm == "base" else stored["arms"][arm]
            found = [one["pass"][k] if arm == "base" else one["pass"][k]["value"] for k in ("1", "8", "256")]
            assert cell.strip().startswith(", ".join(f"{value:.3f}" for value in found)), (name, folder)
            assert arm == "base" or f"`{folder}`" in cell


def test_runs_trained_again_come_out_as_the_page_says() -> None:
    """The seeds that frozen_long and frozen_betas both trained, with the bounds of lab/pages/results/runs.md."""
    before, after = ((Results.read(str(EXPERIMENTS / name)).stored or {})["arms"] for name in ("2026-11-24_countdown_easy_2000_steps", "2026-11-25_countdown_easy_betas"))
    page = (ROOT / "lab" / "pages" / "results" / "runs.md").read_text(encoding="utf-8")
    assert "RFT within 0.001 of pass@1 and of pass@8, GRPO and RLOO within 0.013 and 0.007" in page
    both = sorted({*before} & {*after})
    assert both == ["grpo_0.05", "grpo_0.1", "grpo_0.2", "rft", "rloo_0.1"]
    for arm in both:
        for k, bound in {"1": 0.013, "8": 0.007}.items():
            moved = [abs(new[k] - before[arm]["pass_by_seed"][s][k]) for s, new in after[arm]["pass_by_seed"].items()]
            assert len(moved) == 3 and 0 < max(moved) < (0.001 if arm == "rft" else bound)
