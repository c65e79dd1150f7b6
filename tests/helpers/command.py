"""The command line, called from a test: its code, and what it said."""

from __future__ import annotations

import pytest

from sage_rlvr.cli.app import main

Capture = pytest.CaptureFixture[str]


def call(*words: object) -> int:
    """The exit code of a command of this program."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def said(capsys: Capture) -> tuple[str, str]:
    """(stdout, stderr) with white space made even."""
    captured = capsys.readouterr()
    return " ".join(captured.out.split()), " ".join(captured.err.split())


def refused(capsys: Capture, *words: object) -> str:
    """What a command said that ends with code 2 and without a traceback."""
    code = call(*words)
    err = said(capsys)[1]
    assert code == 2, err
    assert "Traceback" not in err
    return err
