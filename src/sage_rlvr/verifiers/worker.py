"""The loop of a worker process of a pool: read the first message, load the function, answer jobs until the pipe closes (see
pool.py)."""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO

from sage_rlvr.process import exit_is_an_error
from sage_rlvr.verifiers.pool import PAUSE, STARTS, cores, write_line
from sage_rlvr.verifiers.verdict import Verdict


def _read(stream: BinaryIO) -> Any:
    return json.loads(stream.readline())  # ValueError if the line was cut off, or the pipe closed


def _limit_memory(memory_mb: int) -> None:
    """Cap the address space of this process; does nothing on a system without such a limit (Windows, macOS)."""
    with suppress(ImportError, ValueError, OSError):
        import resource  # Unix only

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = memory_mb << 20
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _peak_mb() -> float:
    """The most address space this process has had, in MiB; 0 if the system does not report it."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/status", encoding="ascii") as status:
        return next((int(line.split()[1]) / 1024 for line in status if line.startswith("VmPeak")), 0.0)
    return 0.0


def _alarm(seconds: float) -> None:
    """Let the kernel end this process after it has computed for `seconds` on all cores: for when its parent died; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds * cores())


def _follow(parent: int) -> None:
    """End this process and those that it started once its parent is gone, whatever the function or its import is waiting for."""
    while os.getppid() == parent:
        time.sleep(PAUSE)
    os.killpg(0, signal.SIGKILL)


def _answer(function: Callable[..., Verdict], job: dict[str, Any], memory_mb: int) -> dict[str, Any]:
    """Label, reason, score, and "full": whether this worker must be replaced. Libraries hide a MemoryError; the peak reveals it."""
    score, full = None, False
    try:
        verdict = function(*job["args"], **job["options"])
        label, reason, score = verdict.label, verdict.reason, verdict.score
    except MemoryError:
        label, reason, full = "undecided", "", True
    except (Exception, SystemExit) as error:
        label, reason = "undecided", type(error).__name__
    full = full or _peak_mb() > memory_mb / 2
    if full and label != "right":
        label, reason, score = "undecided", f"needed more than {memory_mb} MB", None
    return {"label": label, "reason": reason[:200], "score": score, "full": full}


def serve() -> None:
    """Run the worker: read the first message, load the function, report ready, answer jobs until the pipe closes."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)  # output of a library must not reach the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = os.getpid()

    def reply(frame: dict[str, Any], answer: dict[str, Any]) -> None:
        if os.getpid() != own:  # the function forked, and this is the child, which has no job
            os._exit(0)
        write_line(sink, answer | {"nonce": frame["nonce"]})

    with ExitStack() as ending, suppress(OSError, ValueError):
        order = _read(source)
        if hasattr(os, "killpg"):
            threading.Thread(target=_follow, args=(order["parent"],), daemon=True).start()
        _alarm(order["start_seconds"] * 2**STARTS)  # for an import during which no thread can run
        module, _, name = order["function"].partition(":")
        ending.enter_context(exit_is_an_error())
        try:
            function = getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:
            return reply(order, {"failed": f"{type(error).__name__}: {error}"[:500], "why": str(error)[:500]})
        _alarm(0)
        reply(order, {"ready": own})
        # after the import: a limit reached during the import would look like a missing package
        _limit_memory(order["memory_mb"])
        while True:
            job = _read(source)
            _alarm(order["seconds"] + 2)  # later than the parent's limit, which names the reason; for a parent that died
            answer = _answer(function, job, order["memory_mb"])
            _alarm(0)
            reply(job, answer)


__all__ = ["serve"]
