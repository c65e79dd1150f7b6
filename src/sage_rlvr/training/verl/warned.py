"""Warnings of verl's driver, which runs in an actor of Ray, on their way into run.json: lines of its output. Works without verl."""

from __future__ import annotations

import json
from pathlib import Path

from sage_rlvr.runs import RunDir

MARK = "sage warning: "


def tell(kind: str, step: int, message: str) -> None:
    """Print a line in the driver that `heard` reads."""
    print(MARK + json.dumps([kind, step, message]), flush=True)


def heard(log: Path, read: int, run: RunDir) -> int:
    """Keep the warnings in verl's output since its first `read` bytes; the bytes that are read now. An unfinished line waits."""
    with open(log, "rb") as file:
        file.seek(read)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        _, mark, words = line.partition(MARK)
        if mark:
            kind, step, message = json.loads(words)
            run.warn(kind, step, message)
    return read + len(whole)


__all__ = ["MARK", "heard", "tell"]
