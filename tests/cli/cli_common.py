"""What the tests of the command line share."""

from __future__ import annotations

import pytest

from sage_rlvr.cli.app import main

Capture = pytest.CaptureFixture[str]


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return int(caught.value.code or 0)


def said(capsys: Capture) -> tuple[str, str]:
    """(stdout, stderr) with white space made even."""
    captured = capsys.readouterr()
    return " ".join(captured.out.split()), " ".join(captured.err.split())


def refused(capsys: Capture, *words: object) -> str:
    code = call(*words)
    err = said(capsys)[1]
    assert code == 2, err
    assert "Traceback" not in err
    return err
