"""A small design, and processes that run in this one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sage_rlvr.cli.app import main
from sage_rlvr.sweeps import processes as work
from sage_rlvr.sweeps.processes import ProcessTask
from sweeps.sweep_common import DESIGN, Ended, Started


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Commands are run in this process, one after the other; what they were is listed."""
    found: Started = []

    def start(task: ProcessTask) -> Ended:
        found.append(task.args)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        task.log.touch()
        with pytest.raises(SystemExit) as caught:
            main(list(task.args))
        return Ended(int(caught.value.code or 0))

    monkeypatch.setattr(work, "_start", start)
    monkeypatch.setattr(work, "POLL_SECONDS", 0.0)
    return found


@pytest.fixture
def design(tmp_path: Path, warm_policy: Path) -> Callable[..., Path]:
    def write(*changes: tuple[str, str], name: str = "small.yaml") -> Path:
        text = DESIGN.format(model=warm_policy)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write
