"""vLLM inside TRL on a CPU: what is refused, and by whom. Should one of these fail, lab/pages/scale.md can say more."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sage_rlvr.models.folders import embedded_policy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed here")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_colocate_mode_starts_and_cannot_move_weights(tmp_path: Path) -> None:
    """Upstream, without a line of ours: `trl_colocate.py`."""
    words = [sys.executable, str(Path(__file__).with_name("trl_colocate.py")), str(embedded_policy()), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, cwd=tmp_path)
    assert done.returncode != 0 and "'Parameter' object has no attribute 'weight_loader'" in done.stderr, done.stderr[-3000:]


def test_server_mode_needs_a_cuda_device_for_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's own refusal, of a server that has answered all it was asked before."""
    from trl.generation.vllm_client import VLLMClient

    client: Any = object.__new__(VLLMClient)
    client.group_port = 51216
    monkeypatch.setattr(VLLMClient, "get_server_info", lambda self: {"weight_transfer_config": {"backend": "nccl"}}, raising=False)
    monkeypatch.setattr(VLLMClient, "get_world_size", lambda self: 1, raising=False)
    with pytest.raises(NotImplementedError, match="needs a CUDA device"):
        client.init_communicator(device="cpu")
