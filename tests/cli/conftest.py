"""Every test of the command line runs in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Default paths such as runs/ land in a folder of the test."""
    monkeypatch.chdir(tmp_path)
