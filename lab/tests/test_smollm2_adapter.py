"""The shipped adapter of SmolLM2: factors give the change back, the smallest rank that loses nothing is chosen, files load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from byte_tokenizer import CHATML
from chat_policy import chat_policy
from lab.__main__ import main
from lab.smollm2_adapter import Scored, change_of, chosen, factors_of
from sage_rlvr.models import smollm2

RANK = 2


@pytest.fixture
def taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A tiny chat model in the place of SmolLM2, and the same after a change of rank 2 of every projection."""
    base, policy = Path(chat_policy(tmp_path / "base", CHATML)), tmp_path / "policy"
    monkeypatch.setattr(smollm2, "prepare", lambda name: base)
    tensors = load_file(base / "model.safetensors")
    torch.manual_seed(0)
    for name, weight in tensors.items():
        if name.endswith("_proj.weight"):
            weight += 0.1 * torch.randn(weight.shape[0], RANK) @ torch.randn(RANK, weight.shape[1])
    policy.mkdir()
    for file in base.iterdir():
        (policy / file.name).write_bytes(file.read_bytes())
    save_file(tensors, policy / "model.safetensors", metadata={"format": "pt"})
    return base, policy


def test_factors_of_the_rank_of_a_change_are_the_change(taught: tuple[Path, Path]) -> None:
    changes = change_of(*taught)
    assert len(changes) == 14 and all(name.endswith("_proj") for name in changes)
    for change in changes.values():
        b, a = factors_of(change, RANK)
        torch.testing.assert_close(b @ a, change, rtol=1e-4, atol=1e-5)
        b, a = factors_of(change, 1)
        assert float((b @ a - change).norm()) == pytest.approx(float(torch.linalg.svdvals(change)[1]), rel=1e-3)


def test_the_command_writes_an_adapter_that_merges_to_the_policy(
    taught: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base, policy = taught
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "adapter"
    assert main(["smollm2-adapter", str(policy), "--ranks", "1", "2", "--problems", "3", "--samples", "32", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert all(f"| {name} |" in said for name in ("rank 1", "rank 2", "full")) and "dequantized from Q4_1" in said
    facts = json.loads((out / "made.json").read_text())
    assert facts["rank"] == 1 and set(facts["validation"]["scores"]["full"]) == {"pass@1", "pass@8", "pass@32"}
    assert main(["smollm2-adapter", str(policy), "--rank", "2", "--out", str(out)]) == 0
    merged, wanted = smollm2.merged(base, out), load_file(policy / "model.safetensors")
    for name, value in wanted.items():
        torch.testing.assert_close(merged[name], value, rtol=0, atol=0.02)  # bfloat16
    assert json.loads((out / "made.json").read_text())["tensors_sha256"] == smollm2.tensors_sha256(merged)


def test_the_smallest_rank_that_is_not_worse_is_chosen() -> None:
    rng = np.random.default_rng(0)
    full = rng.integers(4, 12, 60)

    def scored(less: int) -> Scored:
        return Scored(f"less {less}", None, 32, np.maximum(full - less, 0))

    assert chosen([scored(3), scored(0), scored(0)], scored(0), (2, 4, 8)) == 4
    assert chosen([scored(3), scored(3)], scored(0), (2, 4)) == 4
