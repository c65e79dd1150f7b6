"""Saving a policy: whole or not at all, and a full disk is explained."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from sage_rlvr.engines.base import load_policy
from sage_rlvr.engines.sft import save_policy
from sage_rlvr.errors import CheckpointError


def full_disk_as_oserror(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk_as_safetensors_says_it(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("writer", [full_disk_as_oserror, full_disk_as_safetensors_says_it])
def test_a_full_disk_leaves_the_former_policy_and_no_residue(
    tmp_path: Path, tiny_policy: Path, monkeypatch: pytest.MonkeyPatch, writer: Any
) -> None:
    model, tokens = load_policy(str(tiny_policy))
    out = tmp_path / "run" / "policy"
    save_policy(model, tokens.tokenizer, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", writer)
    for place in (out, tmp_path / "new" / "policy"):  # also where the folder above is not there yet
        with pytest.raises(CheckpointError, match=re.escape(f"{place}: the disk is full: this policy needs about")):
            save_policy(model, tokens.tokenizer, place)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in out.parent.iterdir()] == ["policy"]


def test_other_errors_stay_what_they_are(tmp_path: Path, tiny_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = load_policy(str(tiny_policy))

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("not the disk's fault")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", broken)
    with pytest.raises(RuntimeError, match="not the disk's fault"):
        save_policy(model, tokens.tokenizer, tmp_path / "policy")
