"""`python -m lab gpu`: several sweeps in one pool, what it keeps, and what it must not print."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.gpu import set_aside
from sage_rlvr.sweeps.plan import plan

DESIGN = """title: {name}
seeds: [1]
base:
  steps: 2
  world: {{name: countdown, counts: {{3: 1.0}}, max_number: 9, max_target: 20, targets: expression, train_problems: 50}}
  rollout: {{prompts_per_step: 2, group_size: 2}}
  optimizer.warmup_steps: 0
arms:
  k3: {{recipe: grpo, edits: {{method.beta: 0.02}}}}
  k3_is: {{recipe: grpo, edits: {{method.beta: 0.02, method.estimator: k3_is}}}}
control: k3
controls: none
evaluate: {{problems: 4, samples: {{problems: 4, n: 4, kl: 2, score_base: false, guide: null}}}}
"""


def designs(folder: Path, *names: str) -> list[str]:
    paths = [folder / name / "design.yaml" for name in names]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text(DESIGN.format(name=path.parent.name))
    return [str(path) for path in paths]


def test_two_designs_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = designs(tmp_path, "a/one", "b/one")
    assert main(["gpu", *files, "--device", "cpu", "--out", str(tmp_path / "out")]) == 2
    assert "a second design of the name 'one'" in capsys.readouterr().err


def test_nothing_is_kept_of_runs_that_the_time_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    where = ["--out", str(out), "--results", str(results)]
    assert main(["gpu", *designs(tmp_path, "one"), "--device", "cpu", "--minutes", "0", *where]) == 0
    said = capsys.readouterr().out
    assert "one 0 of 4 steps, 0 of 2 runs evaluated" in said and "stopped after" in said and "one: 0 of 2 runs complete" in said
    assert [path.name for path in (results / "one").iterdir()] == ["runs.tar.gz"]


def test_runs_that_were_cut_off_are_out_of_reach_of_what_reads_results(tmp_path: Path) -> None:
    """A store that is not complete would pass for a policy of fewer samples: runs and samples of the base are moved away."""
    (design,) = designs(tmp_path, "one")
    sweep = plan(Path(design), tmp_path / "out")
    whole, cut = sweep.runs
    for run in sweep.runs:
        run.directory.mkdir(parents=True)
    (base,) = sweep.base_samples
    assert base.output is not None
    base.output.mkdir(parents=True)
    sweep.finished.update(whole.tasks)
    set_aside(sweep)
    assert whole.directory.is_dir() and not cut.directory.exists() and not base.output.exists()
    assert sorted(path.name for path in (tmp_path / "out" / "cut_off").iterdir()) == sorted((cut.directory.name, base.output.name))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_sweeps_are_run_and_kept_without_their_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    where = ["--out", str(out), "--results", str(results), "--workers", "2"]
    assert main(["gpu", *designs(tmp_path, "one", "two"), "--device", "cpu", "--minutes", "20", *where]) == 0
    said = capsys.readouterr().out
    assert "one: 2 of 2 runs complete" in said and "two: 2 of 2 runs complete" in said and "FAILED" not in said
    assert not re.search(r"pass@|reward", said)  # nobody reads a result before the last run has ended
    for name in ("one", "two"):
        rows = {kind: (results / name / f"{kind}.jsonl").read_text().splitlines() for kind in ("counts", "exact_kl", "cost")}
        assert {kind: len(lines) for kind, lines in rows.items()} == {"counts": 3 * 4, "exact_kl": 2, "cost": 2}
        assert json.loads((results / name / "summary.json").read_text())
        with tarfile.open(results / name / "runs.tar.gz") as archive:
            kept = archive.getnames()
        assert f"{name}/runs/k3-s1/metrics.jsonl" in kept
        assert not [one for one in kept if one.endswith((".safetensors", ".parquet", ".npz")) or "checkpoints" in one]
    assert not list(out.glob("*/runs/*/policy/model.safetensors")) and not list(out.glob("*/runs/*/checkpoints"))
