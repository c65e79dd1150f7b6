"""Every test of the command line runs in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Default paths such as runs/ land in a folder of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def drawn_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what else is on a page: figures are laid out and named, and saved as empty files."""
    monkeypatch.setattr("sage_rlvr.render.build.svg_of", lambda *_: "<svg></svg>")
    monkeypatch.setattr("sage_rlvr.render.build.file_of", lambda *_: b"")
