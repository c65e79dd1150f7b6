"""Sizes and processes that the tests against vLLM share."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

SMALL: dict[str, Any] = {"max_model_len": 64, "enforce_eager": True, "dtype": "float32"}
START = 900.0  # seconds; on two busy cores


def kill(process: subprocess.Popen[bytes]) -> None:
    """A server and its engine, at once."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_of(address: str) -> int:
    """The port of an address."""
    return int(address.rsplit(":", 1)[1])
