"""Memory that a process keeps for a large model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from sage_rlvr.models import devices


def test_only_large_weights_change_how_memory_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    library = type("Library", (), {"mallopt": staticmethod(lambda name, value: asked.append((name, value)))})
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "")  # so that it is as before afterwards
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE")
    monkeypatch.setattr(devices.FreedMemory, "is_kept", False)  # so that it is as before afterwards
    (tmp_path / "model.safetensors").write_bytes(b"x")
    devices.keep_memory(tmp_path)
    assert asked == [] and "THP_MEM_ALLOC_ENABLE" not in os.environ
    monkeypatch.setattr(devices, "LARGE_FILES", 1)
    devices.keep_memory(tmp_path)
    assert asked == [(-4, 0), (-1, 2**31 - 1), (-2, 256 << 20)] and os.environ["THP_MEM_ALLOC_ENABLE"] == "1"
    asked.clear()
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: object())  # another C library
    devices.keep_memory(tmp_path)
    assert asked == []


def test_freed_memory_goes_back_once_a_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    library = type("Library", (), {"malloc_trim": staticmethod(trimmed.append)})
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(devices.FreedMemory, "is_kept", True)
    freed = devices.FreedMemory()
    seen = [freed.after_step(resident) for resident in (100, 130, 140, 141, 60, 80, 85)]
    assert seen == [False, False, False, True, False, False, True] and trimmed == [0, 0]


def test_a_process_that_does_not_keep_freed_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.FreedMemory, "is_kept", False)
    freed = devices.FreedMemory()
    assert not any(freed.after_step(resident) for resident in (1, 1000))


def test_this_process_has_memory() -> None:
    resident = devices.resident_memory()
    assert resident is None or 1e6 < resident < 1e12
