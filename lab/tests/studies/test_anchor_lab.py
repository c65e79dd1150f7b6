"""The whole lab on anchors: its table, its arguments, its refusals."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lab.studies.anchor.measure import run_lab
from lab.studies.anchor.rows import ADMITTED, FOR_THE_RECORD, LabResult, markdown
from lab.studies.anchor.terms import GUIDES, K1, PAPER_BRANCH
from lab.studies.anchor.variances import NO_BASELINE
from lab.tests.studies.anchor_common import BRANCH, disturbed
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.models.policy import Tokens
from sage_rlvr.tasks.countdown import Problem


@pytest.fixture(scope="module")
def folders(tiny: tuple[PreTrainedModel, Tokens], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(policy, reference)."""
    model, tokens = tiny
    place = tmp_path_factory.mktemp("lab")
    for name, one in (("policy", disturbed(model, 3, 0.05)), ("reference", model)):
        one.save_pretrained(place / name)
        tokens.tokenizer.save_pretrained(place / name)
    return str(place / "policy"), str(place / "reference")


def small_lab(folders: tuple[str, str], **changes: Any) -> LabResult:
    settings: dict[str, Any] = {
        "problems": ["1 2=3:", "2 5=7:"],
        "draws": 16,
        "reference": folders[1],
        "guides": {**GUIDES, "Branch": BRANCH},
        "remainder": 0.05,
        "max_new_tokens": 2,
    }
    return run_lab(folders[0], **(settings | changes))


@pytest.mark.slow
def test_the_table_of_a_small_policy(folders: tuple[str, str]) -> None:
    said: list[str] = []
    torch.set_num_threads(2)
    result = small_lab(folders, progress=said.append)
    assert torch.get_num_threads() == 2 and len(said) == 2
    torch.set_num_threads(1)
    assert [fact.prompt for fact in result.problems] == ["1 2=3:", "2 5=7:"] and result.remainder <= 0.05
    assert result.remainder == max(fact.remainder for fact in result.problems)
    for guide in ("Flat", "Branch"):
        k1 = result.row(K1, guide)
        assert k1.cosine > 1 - 1e-6 and k1.norm_ratio == pytest.approx(1, abs=1e-4) and k1.whole_cosine > 1 - 1e-6
    assert result.row("k1 in the reward (Dr. GRPO)").norm_ratio == pytest.approx(15 / 16, abs=1e-4)
    for term in ("k2", "straight_through", "k3_is", "exact reverse"):
        row = result.row(term, "Branch")
        assert row.status == FOR_THE_RECORD and row.guide_norm is not None and row.guide_cosine is not None
        assert row.guide_norm < 1e-4 and abs(row.guide_cosine) < 0.1
        assert result.row(term).cosine == pytest.approx(result.row("k2").cosine, abs=1e-5)
    shaped = result.row("k3", "Branch")
    assert shaped.status == ADMITTED and shaped.guide_norm is not None and shaped.guide_norm > 0.01
    assert shaped.cosine == pytest.approx(result.row("exact forward", "Branch").cosine, abs=1e-4)
    assert shaped.cosine_spread[0] <= shaped.cosine <= shaped.cosine_spread[1] < 0.99
    assert result.row("k3").variance_interval is not None and shaped.variance_ratio is None
    assert result.row(K1 + NO_BASELINE).variance_ratio != result.row(K1).variance_ratio
    with pytest.raises(DataError, match="no row 'exact forward' with guide 'Token'"):
        result.row("exact forward", "Token")


@pytest.mark.slow
def test_a_result_is_plain_and_a_function_of_its_arguments(folders: tuple[str, str]) -> None:
    result = small_lab(folders, problems=["1 2=3:"])
    assert result == small_lab(folders, problems=[Problem((1, 2), 3)])

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(plain(v) for v in value.values())
        if isinstance(value, (tuple, list)):
            return all(plain(v) for v in value)
        return value is None or type(value) in (str, int, float)

    assert plain(asdict(result))
    text = markdown(result)
    assert all(f"| {row.objective} | {row.guide} |" in text for row in result.rows)
    assert "| 1 2=3: |" in text and "refuses it" in text and "over its own mean^2" in text
    for row in result.rows:  # one problem: both variances are one trace, in the unit of Eq. (6) and of the term itself
        if row.variance_ratio is not None:
            assert row.variance_ratio == pytest.approx(row.snr_completions * row.norm_ratio**2, rel=1e-6)  # type: ignore[operator]
    assert result.row("k3").norm_ratio != pytest.approx(1.0, abs=1e-3)
    without = small_lab(folders, problems=["1 2=3:"], draws=0)
    assert "variance" not in markdown(without) and without.row("k3").cosine == result.row("k3").cosine


@pytest.mark.slow
def test_what_the_lab_refuses(folders: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="are the same on '1 2=3:'"):
        small_lab((folders[1], folders[1]))
    with pytest.raises(ConfigError, match="the first of them all is 'Flat'"):
        small_lab(folders, guides={"Branch": BRANCH})
    with pytest.raises(ConfigError, match="draws = -1"):
        small_lab(folders, draws=-1)
    with pytest.raises(DataError, match="out of reach"):
        small_lab(folders, remainder=1e-4, most_states=5)
    with pytest.raises(DataError, match="only 0 of 2 problems fit"):
        small_lab(folders, problems=2, remainder=1e-4, most_states=2)


@pytest.mark.slow
def test_the_default_lab_on_one_problem() -> None:
    """The embedded base, moved by a few steps: what the page says of it."""
    result = run_lab(problems=1, draws=64)
    assert result.remainder <= 1e-3 and result.problems[0].kl > 0.05
    assert result.row(K1).cosine > 1 - 1e-4 and result.row(K1, "Branch").cosine > 1 - 1e-4
    assert result.row("k2", "Branch").guide_norm == pytest.approx(0.0, abs=1e-4)
    assert result.row("k3", "Branch").guide_norm > 1e-3  # type: ignore[operator]
    assert result.row("k3").cosine < 0.99
    assert result.row("k3").variance_ratio > 3 * result.row("exact forward").variance_ratio  # type: ignore[operator]
    strength = {strength.guide: strength for strength in result.strengths}
    assert strength["Branch"].active_share > 0.05 > strength[PAPER_BRANCH].active_share
    assert all(row.mean_gap is None or row.mean_gap < 6 for row in result.rows)
