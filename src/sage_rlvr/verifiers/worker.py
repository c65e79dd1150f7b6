"""What runs inside a worker process of `verifiers.pool`: take the order, load its function, answer jobs, within its limits.

A job and its answer are one line of JSON each, so that nothing that comes back is executed.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

from sage_rlvr.verifiers import Verdict


def write(stream: BinaryIO, value: Any) -> None:
    """One line of JSON into a pipe."""
    stream.write(json.dumps(value).encode() + b"\n")  # ASCII: lone surrogates and line ends travel as escapes
    stream.flush()


def read(stream: BinaryIO) -> Any:
    """The next line of a pipe."""
    return json.loads(stream.readline())  # ValueError where the line was cut, or the pipe closed


def _limit_memory(memory_mb: int) -> None:
    """Cap the address space of this process; a system without such a limit (Windows, macOS) is left as it is."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = memory_mb << 20
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _peak_mb() -> float:
    """The most address space this process has had, in MiB; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/status", encoding="ascii") as status:
        return next((int(line.split()[1]) / 1024 for line in status if line.startswith("VmPeak")), 0.0)
    return 0.0


def _alarm(seconds: float) -> None:
    """End this process after `seconds`, by the kernel, whatever it computes: for when its parent died; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _answer(function: Callable[..., Verdict], job: dict[str, Any], memory_mb: int) -> dict[str, Any]:
    """Label, reason, and "full": whether this worker must be replaced. Libraries hide a MemoryError; the peak betrays it."""
    full = False
    try:
        verdict = function(*job["args"], **job["options"])
        label, reason = verdict.label, verdict.reason
    except MemoryError:
        label, reason, full = "undecided", "", True
    except (Exception, SystemExit) as error:
        label, reason = "undecided", type(error).__name__
    full = full or _peak_mb() > memory_mb / 2
    if full and label != "right":
        label, reason = "undecided", f"needed more than {memory_mb} MB"
    return {"label": label, "reason": reason[:200], "full": full}


def serve() -> None:
    """The worker's whole life: take the order, load the function, say so, answer jobs until the pipe closes."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)  # what a library prints must not reach the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, ValueError):
        order = read(source)
        module, _, name = order["function"].partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except Exception as error:
            return write(sink, {"failed": f"{type(error).__name__}: {error}"[:500]})
        write(sink, {"ready": os.getpid()})
        _limit_memory(order["memory_mb"])
        while True:
            job = read(source)
            _alarm(order["seconds"] + 2)
            answer = _answer(function, job, order["memory_mb"])
            _alarm(0)
            write(sink, answer)
