"""Unit tests of an untrusted program: right if every call returns the expected value.

    pool worker -> `sandbox_child.py`, a process per program that only computes -> results -> comparison in the worker

The program never sees the expected values. If the system cannot confine a program nothing is run: `require_sandbox` raises an
error, and a verdict is undecided.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers.sandbox_child import LONG, MACHINES, STILL
from sage_rlvr.verifiers.verdict import Verdict

PROGRAMS = "sage_rlvr.verifiers.sandbox:judge"
"""The function of a `Pool` that judges programs: `Pool(function=PROGRAMS)`."""
SECONDS, MEMORY_MB = 1.0, 256
TRIAL = {"source": "def f(x):\n    return x + 1", "entry": "f", "inputs": [[1]], "seconds": 5.0, "memory_mb": MEMORY_MB}
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # address of an object: another one in every process
Test = Sequence[Any]  # (arguments, repr of the expected value)


class Sandbox:
    """The process from which programs are forked, started with the first of them. Threads take turns; a fork starts another.
    Each process has one, which `judge` and `missing` use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._owner = threading.RLock(), os.getpid()

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """{"calls": ...}, {"ended": why it has no answer}, or {"open": why the result is unknown}; see `sandbox_child`."""
        if self._owner != os.getpid():  # pipes of the parent, and a lock that one of its threads may hold
            self._process, self._lock, self._owner = None, threading.RLock(), os.getpid()
        line = json.dumps(job).encode() + b"\n"
        with self._lock:
            for _ in range(2):  # a killed process has one successor
                try:
                    return self._answer(self._process or self._start(), line)
                except (OSError, ValueError):
                    self.close()
                except BaseException:  # interrupted: a late answer must not answer another job
                    self.close()
                    raise
        return {"open": "the process that forks programs died twice; is memory short?"}

    def _answer(self, process: subprocess.Popen[bytes], line: bytes) -> dict[str, Any]:
        self._process = process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        reply: dict[str, Any] = json.loads(process.stdout.readline())
        return reply

    @property
    def pid(self) -> int:
        """Id of the process; 0 before the first job."""
        return 0 if self._process is None else self._process.pid

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        child = Path(__file__).with_name("sandbox_child.py")
        return subprocess.Popen(
            [sys.executable, "-s", "-P", "-S", str(child)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0"},  # the order of a set must not be random; -I would ignore the variable
            start_new_session=True,
        )

    def close(self) -> None:
        """End the process; the next job starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


_OWN = Sandbox()


def missing() -> str:
    """The reason why a program cannot be confined on this system; empty if it can. A trial program is run to find out."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return f"{sys.platform} on {platform.machine()}: seccomp is for Linux on {' or '.join(MACHINES)}"
    trial = _OWN.ask(TRIAL)
    return "" if trial.get("calls") == [["value", "2"]] else str(trial.get("open") or trial.get("ended") or trial)


def require_sandbox() -> None:
    """Raise ConfigError if programs cannot be confined on this system: they are never run without."""
    if why := missing():
        raise ConfigError(
            f"programs are run confined or not at all, and this system cannot confine one: {why}; take a Linux with seccomp"
        )


def judge(
    source: str,
    entry: str,
    tests: Sequence[Test],
    seconds: float = SECONDS,
    memory_mb: int = MEMORY_MB,
    box: Sandbox | None = None,
) -> Verdict:
    """Right if `entry(*arguments)` has the expected repr in every test (arguments, repr); otherwise the first failure, in words.

    seconds, memory_mb: limits of the full program. box: the process to fork from, by default that of this process. Undecided if a
        program could not be confined, and so was not run, or if its process could not run (a stopped or crowded machine).
    """
    inputs = [list(arguments) for arguments, _ in tests]
    job = {"source": source, "entry": entry, "inputs": inputs, "seconds": seconds, "memory_mb": memory_mb}
    reply = (box or _OWN).ask(job)
    if "open" in reply:
        why = str(reply["open"])
        return Verdict("undecided", why if why.startswith(STILL) else f"not run, no sandbox: {why}")
    if "ended" in reply:
        return Verdict("wrong", str(reply["ended"]))
    return compared(reply.get("calls"), entry, tests)


def compared(calls: Any, entry: str, tests: Sequence[Test]) -> Verdict:
    """The verdict on the results of a program's calls. They are data: results of another shape are wrong."""
    if not isinstance(calls, list) or not all(isinstance(call, list) and len(call) in (2, 3) for call in calls):
        return Verdict("wrong", "said nothing that can be read")
    if len(calls) != len(tests):
        return Verdict("wrong", described(calls[0]) if len(calls) == 1 else "said nothing that can be read")
    passed = [call == ["value", wanted] for call, (_, wanted) in zip(calls, tests, strict=True)]
    if all(passed):
        return Verdict("right", f"{len(tests)} tests passed")
    first = passed.index(False)
    call, (arguments, wanted) = calls[first], tests[first]
    called = f"{entry}({', '.join(map(repr, arguments))})"
    return Verdict("wrong", f"{called} {described(call)}" + (f", {wanted} is wanted" if call[0] == "value" else ""))


def described(call: list[Any]) -> str:
    """Describe the result of a call in words: "gave 3", "raised IndexError: list index out of range in line 2"."""
    text = ADDRESS.sub(" at 0x...", str(call[1])[:LONG])
    if call[0] == "value":
        return f"gave {text}"
    return f"raised {text}" + (f" in line {call[2]}" if len(call) == 3 and call[2] else "")


__all__ = ["MEMORY_MB", "PROGRAMS", "SECONDS", "Sandbox", "compared", "judge", "missing", "require_sandbox"]
