"""The endpoints of the study of the anchor's place: by hand, by two regressions of statsmodels, and on simulated studies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from lab.__main__ import main
from lab.place import (
    BRANCH,
    GRPO,
    MIDDLES,
    OPERAND,
    OPERATOR,
    PERMUTED,
    Run,
    as_trained,
    at_equal_kl,
    fit,
    power_table,
    primaries,
    simulated,
)
from sage_rlvr.errors import DataError

OTHERS = (BRANCH, PERMUTED, OPERATOR, OPERAND)


def study(rng: np.random.Generator, seeds: int, problems: int = 40, **more: float) -> list[Run]:
    return simulated(rng, seeds, problems=problems, **more)  # type: ignore[arg-type]


def test_two_stages_are_two_regressions_with_the_residuals_of_the_first_kl():
    runs = study(np.random.default_rng(0), 6, lift=0.1)
    y, kl = np.array([run.mean(32) for run in runs]), np.log([run.forward for run in runs])
    dummies = np.array([[run.arm == arm for arm in OTHERS] for run in runs], dtype=float)
    all_arms = np.array([[run.arm == arm for arm in MIDDLES] for run in runs], dtype=float)
    first = sm.OLS(kl, all_arms).fit().fittedvalues
    second = sm.OLS(y, np.column_stack([np.ones(len(y)), dummies, first])).fit()
    found = fit(runs)
    assert found.arms == OTHERS and found.values == pytest.approx(second.params)
    rest = y - np.column_stack([np.ones(len(y)), dummies, kl]) @ second.params
    scale = (rest @ rest) / found.freedom / second.mse_resid
    assert found.covariance == pytest.approx(second.cov_params() * scale)
    one = at_equal_kl(runs, BRANCH, "")
    means = [np.mean([run.passed[32] for run in runs if run.arm in arms], axis=0) for arms in ((BRANCH,), GRPO)]
    over_problems = stats.t.isf(0.025, 39) * np.subtract(*means).std(ddof=1) / 40**0.5
    half = np.hypot(stats.t.isf(0.025, found.freedom) * found.covariance[1, 1] ** 0.5, over_problems)
    assert one.value == pytest.approx(second.params[1]) and one.high - one.value == pytest.approx(half)
    assert one.runs == 24 and 0 <= found.curved <= 1


def test_as_trained_is_welchs():
    runs = study(np.random.default_rng(1), 5)
    one = as_trained(runs, OPERATOR, OPERAND, lambda run: run.mean(32))
    x, y = ([run.mean(32) for run in runs if run.arm == arm] for arm in (OPERATOR, OPERAND))
    known = stats.ttest_ind(x, y, equal_var=False)
    low, high = known.confidence_interval()
    assert (one.value, one.p) == pytest.approx((np.mean(x) - np.mean(y), known.pvalue))
    assert (one.low, one.high) == pytest.approx((low, high))


@pytest.mark.slow
@pytest.mark.parametrize(("within", "between"), [(-0.2, -0.1), (-0.2, -0.35), (-0.2, -0.2)])
def test_without_an_effect_of_place_none_is_told_whatever_the_slope_within_arms(within: float, between: float):
    """Least squares in one stage told one in 36 and 52 % of such studies."""
    rng = np.random.default_rng(2)
    told = [min(p for _, p in primaries(study(rng, 10, within=within, between=between))) < 0.05 for _ in range(300)]
    assert np.mean(told) < 0.09  # 0.05 and three standard errors
    heights = [at_equal_kl(study(rng, 10, within=within, between=between), OPERATOR, OPERAND).value for _ in range(200)]
    assert abs(np.mean(heights)) < 0.01


@pytest.mark.slow
def test_a_lift_is_found():
    rng = np.random.default_rng(3)
    lifted = [primaries(simulated(rng, 12, lift=0.07))[0][1] < 0.05 for _ in range(200)]
    assert np.mean(lifted) > 0.7


def test_a_large_difference_is_told_in_most_studies():
    rows = {row[0]: [float(cell.rstrip("%")) for cell in row[1:]] for row in power_table(30, 10).rows}
    assert rows["0.08"][0] > 80 and rows["0"][0] + rows["0"][1] < 25 and rows["0"][2] > 25 > rows["0.08"][2]


def test_two_betas_and_positive_kls_are_needed():
    runs = study(np.random.default_rng(4), 3)
    with pytest.raises(DataError, match="1 betas of GRPO"):
        fit([run for run in runs if run.arm not in GRPO[1:]])
    with pytest.raises(DataError, match=r"forward KL 0\.0"):
        fit([*runs, Run(BRANCH, 9, runs[0].passed, 0.0)])


def written(folder: Path, runs: list[Run], twice: bool = False, n: int = 48) -> Path:
    """The files of an experiment with three problems."""
    arms = "\n".join(
        f'  a{i}: {{recipe: real/grpo, label: "{arm}", edits: {{method.beta: 0.0{i + 1}}}}}' for i, arm in enumerate(MIDDLES)
    )
    seeds = sorted({run.seed for run in runs})
    (folder / "design.yaml").write_text(f"title: t\nseeds: {seeds}\narms:\n{arms}\ncontrol: a0\ncontrols: none\n", encoding="utf-8")
    rows = [{"arm": "base", "temperature": 1.0, "id": str(i), "n": n, "c": 5 + i} for i in range(3)]
    for run in runs:
        rows += [
            {"arm": run.arm, "seed": run.seed, "temperature": 1.0, "id": str(i), "n": n, "c": (run.seed + i) % 4} for i in range(3)
        ]
    (folder / "counts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    kls = [{"arm": run.arm, "seed": run.seed, "forward": run.forward, "reverse": run.reverse} for run in runs]
    (folder / "exact_kl.jsonl").write_text("\n".join(map(json.dumps, kls + kls[:1] * twice)), encoding="utf-8")
    return folder


def test_nothing_is_read_before_all_runs_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = study(np.random.default_rng(5), 3, problems=3)
    assert main(["place", str(written(tmp_path, runs))]) == 0
    assert f"{BRANCH} less GRPO at equal forward KL" in capsys.readouterr().out
    for lacking, message in ((runs[:-1], "1 of 21 runs are not complete"), ([], "not complete")):
        folder = written(tmp_path, runs)
        left = {(run.arm, run.seed) for run in lacking}
        rows = map(json.loads, (folder / "exact_kl.jsonl").read_text(encoding="utf-8").splitlines())
        kept = [json.dumps(row) for row in rows if (row["arm"], row["seed"]) in left]
        (folder / "exact_kl.jsonl").write_text("\n".join(kept), encoding="utf-8")
        assert main(["place", str(folder)]) == 2 and message in capsys.readouterr().err
    assert main(["place", str(written(tmp_path, runs, twice=True))]) == 2 and "two rows of" in capsys.readouterr().err
    assert main(["place", str(written(tmp_path, runs, n=20))]) == 2 and "20 samples of a problem" in capsys.readouterr().err
