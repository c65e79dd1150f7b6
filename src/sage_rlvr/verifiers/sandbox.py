"""Unit tests of a program that nobody trusts: right where every call gives what it should.

    pool worker -> `sandbox_child.py`, a process per program that can only compute -> what the calls gave -> compared here

The program never meets the values that are wanted. Where the system cannot confine a program nothing is run: `require_sandbox`
refuses it, and a verdict is undecided.
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
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object: another one in every process
Test = Sequence[Any]  # (arguments, repr of the value that is wanted)


class Sandbox:
    """The process that programs are forked from, started with the first of them. Threads take turns; a fork starts its own. Each
    process has one, which `judge` and `missing` ask."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._owner = threading.RLock(), os.getpid()

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """{"calls": ...}, {"ended": why it has no answer}, or {"open": why nothing is known of it}; see `sandbox_child`."""
        if self._owner != os.getpid():  # pipes that the parent talks through, and a lock that one of its threads may hold
            self._process, self._lock, self._owner = None, threading.RLock(), os.getpid()
        line = json.dumps(job).encode() + b"\n"
        with self._lock:
            for _ in range(2):  # a process that was killed has one successor
                try:
                    return self._answer(self._process or self._start(), line)
                except (OSError, ValueError):
                    self.close()
                except BaseException:  # interrupted: the answer that comes yet is no other job's
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
        """Of the process; 0 before the first job."""
        return 0 if self._process is None else self._process.pid

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        child = Path(__file__).with_name("sandbox_child.py")
        return subprocess.Popen(
            [sys.executable, "-s", "-P", "-S", str(child)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0"},  # the order of a set is no chance; -I would not read it
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
    """Why a program cannot be confined on this system; empty where it can. A trial program is run to find out."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return f"{sys.platform} on {platform.machine()}: seccomp is for Linux on {' or '.join(MACHINES)}"
    trial = _OWN.ask(TRIAL)
    return "" if trial.get("calls") == [["value", "2"]] else str(trial.get("open") or trial.get("ended") or trial)


def require_sandbox() -> None:
    """ConfigError where programs cannot be confined here: nothing of theirs is ever run without."""
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
    """Right where `entry(*arguments)` has the wanted repr in every test (arguments, repr); else the first that fails, in words.

    seconds, memory_mb: of the whole program. box: the process to fork from, of this process by itself. Undecided where a program
    could not be confined, and so was not run, or where its process stood still (a stopped or crowded machine).
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
    """The verdict on what the calls of a program gave. Its words are data: of another shape they are wrong."""
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
    """What a call did, in words: "gave 3", "raised IndexError: list index out of range in line 2"."""
    text = ADDRESS.sub(" at 0x...", str(call[1])[:LONG])
    if call[0] == "value":
        return f"gave {text}"
    return f"raised {text}" + (f" in line {call[2]}" if len(call) == 3 and call[2] else "")


__all__ = ["MEMORY_MB", "PROGRAMS", "SECONDS", "Sandbox", "compared", "judge", "missing", "require_sandbox"]
