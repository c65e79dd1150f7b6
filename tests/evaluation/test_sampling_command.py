"""`sage-rlvr eval --samples`: top-ups, frontiers, refusals, signals, kills and two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command import call
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.sample_report import (
    report_lines,
)
from sage_rlvr.evaluation.sampling import SamplingRun
from sage_rlvr.evaluation.store import SampleStore, is_store


@pytest.fixture
def recipe(write_recipe: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write_recipe()
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.slow
def test_eval_samples_tops_up_compares_and_judges_again(
    recipe: Path, warm_policy: Path, tiny_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--world", recipe, "--problems", 6, "--quiet")
    assert call("eval", warm_policy, *words, "--samples", 32, "--store", "a", "--base-logprobs", tiny_policy) == 0
    said = capsys.readouterr().out
    assert "preset untruncated" in said and "perplexity under" in said and "store: a" in said
    assert call("eval", warm_policy, *words, "--samples", 64, "--store", "a", "--base-logprobs", tiny_policy) == 0
    assert "n = 64" in capsys.readouterr().out
    assert call("eval", warm_policy, *words, "--samples", 32, "--store", "a", "--effective-rank") == 0
    rank = capsys.readouterr().out.split("rank       ")[1]
    assert 1 < float(rank.split()[0]) < 9 and "effective rank of the last hidden states" in rank
    assert call("samples", "a", "--token-stats", warm_policy, "--samples", 32) == 0
    assert "signals of" in capsys.readouterr().out
    assert call("eval", tiny_policy, *words, "--samples", 64, "--preset", "paper") == 0
    home = Path("runs/samples") / tiny_policy.name / "countdown-paper"
    assert f"store: {home}" in capsys.readouterr().out
    assert call("compare", "warm=a", f"tiny={home}", "--k", 32) == 2  # not the same temperature
    assert "temperature" in capsys.readouterr().err
    assert call("eval", tiny_policy, *words, "--samples", 64, "--store", "b") == 0
    assert call("compare", "warm=a", "tiny=b", "--k", 32) == 0
    assert "pass@32" in capsys.readouterr().out
    before = SampleStore.open("a").digest()
    assert call("eval", warm_policy, *words, "--rejudge", "--store", "a") == 0
    assert capsys.readouterr().out.startswith("0 samples judged again") and SampleStore.open("a").digest() == before


@pytest.mark.slow
def test_stores_at_several_temperatures_make_a_frontier(
    recipe: Path, warm_policy: Path, tiny_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, arms = Path("runs/samples"), []
    for policy in (warm_policy, tiny_policy):
        for t in (1, 0.5):
            words = ("--world", recipe, "--problems", 6, "--quiet", "--samples", 32, "--temperature", t)
            assert call("eval", policy, *words) == 0
            assert f"preset untruncated: T {t:g}, no truncated sampling" in capsys.readouterr().out
        stores = [home / policy.name / f"countdown-untruncated-T{t}" for t in ("1", "0.5")]
        arms.append(f"{policy.name}={stores[0]},{stores[1]}")
    assert call("compare", *arms, "--k", 8, "--full") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "countdown at T = 1: pass@1 " in said and "countdown at T = 0.5: pass@1 " in said
    assert "pass@8 at equal pass@1" in said
    assert call("eval", warm_policy, "--world", recipe, "--problems", 6, "--temperature", 0.5) == 2  # exact
    assert "--temperature" in capsys.readouterr().err


@pytest.mark.slow
def test_another_policy_or_setting_does_not_continue_a_store(
    recipe: Path, warm_policy: Path, tiny_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--world", recipe, "--samples", 32, "--store", "a", "--quiet")
    assert call("eval", warm_policy, *words, "--problems", 2) == 0
    for other, hint in (
        ((tiny_policy, *words, "--problems", 2), "the weights differ: if the run was continued, use another --store"),
        ((warm_policy, *words, "--problems", 3), "problems: 2 -> 3"),
        ((warm_policy, *words, "--problems", 2, "--preset", "paper"), ""),
        ((warm_policy, *words, "--problems", 2, "--sampling-seed", 1), ""),
    ):
        assert call("eval", *other) == 2
        err = capsys.readouterr().err
        assert "made otherwise" in err and hint in err
        assert [word for word in ("other weights", "problems: 2") if word in err] == [
            w for w in ("other weights", "problems: 2") if w in hint
        ]
    assert call("eval", warm_policy, "--world", recipe, "--problems", 3, "--store", "a", "--rejudge") == 2
    assert "other problems" in capsys.readouterr().err


def test_a_sigterm_ends_an_evaluation_as_ctrl_c_does(
    recipe: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    former = signal.getsignal(signal.SIGTERM)

    def ended(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("the signal had no effect")

    monkeypatch.setattr(SamplingRun, "samples", ended)
    words = ("--world", recipe, "--samples", 32, "--problems", 2, "--store", "a", "--quiet")
    try:
        signal.signal(signal.SIGTERM, lambda *_: None)  # not the default, which would end pytest
        assert call("eval", warm_policy, *words) == 143
    finally:
        signal.signal(signal.SIGTERM, former)
    assert "interrupted; finished work is saved" in capsys.readouterr().err


def test_settings_of_one_kind_are_refused_by_the_other(
    recipe: Path, warm_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, word in (
        (("--preset", "paper"), "--samples N"),
        (("--samples", 32, "--frontier"), "--frontier"),
        (("--samples", 32, "--task", "math5"), "math500"),
        (("--samples", 32, "--generator", "server"), "--server"),
        (("--samples", 32, "--problems", 0), "problems"),
        (("--samples", -1), "--samples -1"),
        (("--samples", 32, "--max-new-tokens", 60, "--problems", 2), "--max-new-tokens"),
    ):
        assert call("eval", warm_policy, "--world", recipe, *words) == 2
        assert word in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sigkill_and_two_processes_leave_no_trace(recipe: Path, warm_policy: Path) -> None:
    """Killed three times at different moments, then finished by two processes at once: the store of one quiet run."""

    def start(store: str) -> subprocess.Popen[bytes]:
        words = [
            "eval",
            warm_policy,
            "--world",
            recipe,
            "--problems",
            "120",
            "--samples",
            "96",
            "--store",
            store,
            "--quiet",
        ]
        code = "import torch; torch.set_num_threads(1); from sage_rlvr.cli.app import main; main()"
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], env=env, stdout=subprocess.DEVNULL)

    assert start("whole").wait() == 0
    def there() -> int:
        return sum(p["rows"] for p in SampleStore.open("torn").verifiers()) // 96 if is_store("torn") else 0

    seen = 0
    for more in (1, 2, 1):
        process = start("torn")
        while process.poll() is None and there() < seen + more:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen = there()
    both = [start("torn"), start("torn")]
    assert [process.wait() for process in both] == [0, 0]
    whole, torn = SampleStore.open("whole"), SampleStore.open("torn")
    assert whole.identity.together == 8 and seen < 100
    assert whole.digest() == torn.digest() and report_lines(whole) == report_lines(torn)
    with pytest.raises(DataError):
        report_lines(SampleStore.open("whole"), 256)
