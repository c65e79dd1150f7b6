"""A sweep computes the exact KL of every arm to the base, keeps it with the samples, and the results have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sage_rlvr.evaluation.kl import read_kl
from sage_rlvr.render import write_summary
from sage_rlvr.results.read import read_results
from sage_rlvr.sweeps.plan import SweepPlan, plan
from sage_rlvr.sweeps.sweep import run
from sage_rlvr.verdicts.comparisons import compare
from sage_rlvr.verdicts.metric import Metric
from sweeps.sweep_common import Started, screen

EVALUATE = "evaluate: {problems: 6, temperatures: [0.5, 1.0]}"
SMALL = (("{grpo: grpo, branch: sage_branch}", "{grpo: grpo, rloo: rloo}"), ("controls: [no_kl]", "controls: none"))
EXACT_KL = Metric(name="exact KL")


@pytest.mark.slow
def test_the_exact_kl_is_computed_once_and_read_by_the_results(
    tmp_path: Path, design: Callable[..., Path], started: Started
) -> None:
    out = tmp_path / "out"

    def planned(kl: int) -> SweepPlan:
        samples = f"samples: {{problems: 4, n: 4, guide: branch, kl: {kl}}}}}"
        return plan(design(*SMALL, (EVALUATE, f"{EVALUATE[:-1]}, {samples}")), out, powers=(2.0,))

    assert run(planned(0), 1, screen()) and not list(out.rglob("kl-*.json"))
    assert not any(row.metric == EXACT_KL for row in compare(read_results(out)))
    started.clear()
    assert run(planned(2), 1, screen())  # the samples are kept, only the KLs are missing
    assert [words[words.index("--kl-samples") + 1] for words in started] == ["2"] * 4
    files = {name: next((out / "runs" / name).rglob("kl-*.json")) for name in ("grpo-s0", "rloo-s0", "grpo-s1", "rloo-s1")}
    kept, before = read_kl(files["grpo-s0"]), files["grpo-s0"].read_bytes()
    assert kept.about["samples"] == 2 and kept.sides["policy"].tokens.shape == (4, 2) and kept.per_token > 0
    started.clear()
    assert run(planned(2), 1, screen()) and not started
    found, kls = write_summary(out), {name: read_kl(file).per_token for name, file in files.items()}
    assert found["arms"]["rloo"]["kl_exact_by_seed"] == {"0": kls["rloo-s0"], "1": kls["rloo-s1"]}
    assert found["arms"]["rloo"]["kl_exact"]["value"] == pytest.approx((kls["rloo-s0"] + kls["rloo-s1"]) / 2)
    assert "KL to base" in (out / "summary.md").read_text(encoding="utf-8")
    (row,) = (row for row in compare(read_results(out)) if row.metric == EXACT_KL)
    gaps = [kls[f"rloo-s{seed}"] - kls[f"grpo-s{seed}"] for seed in (0, 1)]
    assert (row.a, row.b) == ("RLOO", "GRPO") and row.comparison.difference.value == pytest.approx(sum(gaps) / 2)
    text = files["grpo-s0"].read_text(encoding="utf-8")
    files["grpo-s0"].write_text(text.replace('"samples": 2', '"samples": 1'), encoding="utf-8")  # of another question
    assert run(planned(2), 1, screen()) and len(started) == 1 and files["grpo-s0"].read_bytes() == before
