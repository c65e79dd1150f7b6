"""Untrusted programs, each in a process that can only compute: `python -s -P -S sandbox_child.py`.

    worker -> this process -> a fork that reads one job (a line, JSON) -> a fork of it, confined -> its answer -> a line back

The fork may use its memory, read clocks and write to one pipe. A seccomp filter allows the system calls of `ALLOWED` and returns
EPERM for all others, so that no file is opened, no socket, process or thread created, no signal sent, and no limit raised; there is
no scratch folder. If the kernel has Landlock, a ruleset without any right is added. Time, memory and output are bounded, and the
fork dies with this process. The expected result of a call is never sent to this process: the caller compares, so a program that
lies has to know the right value. Nor does this process ever have a job or an answer in memory, so that no data of an earlier
program is in the memory that a later one starts with.

Only the standard library, because it runs without the package and without site-packages.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import platform
import random
import resource
import select
import signal
import struct
import sys
import time
import traceback

# Modules that programs may import: loaded before the fork, which can open no file.
LOADED = (
    "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq",
    "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "textwrap", "typing",
)  # fmt: skip
# Names of calls -> their numbers on x86_64 and aarch64 (None: missing).
ALLOWED: dict[str, tuple[int, int | None]] = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "mmap": (9, 222),
    "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sched_yield": (24, 124), "mremap": (25, 216), "nanosleep": (35, 101),
    "getpid": (39, 172), "exit": (60, 93), "gettimeofday": (96, 169), "getrusage": (98, 165), "sigaltstack": (131, 132),
    "gettid": (186, 178), "time": (201, None), "futex": (202, 98), "restart_syscall": (219, 128), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94), "getrandom": (318, 278),
    "rseq": (334, 293),
}  # fmt: skip
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of `ALLOWED`, and the kernel's name of the machine
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # of classic BPF: load a word, jump if equal, return
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050001  # REFUSE: errno 1, EPERM
NO_NEW_PRIVILEGES, SECCOMP, DIE_WITH_PARENT, FILTER = 38, 22, 1, 2
LANDLOCK = (444, 446)  # create_ruleset, restrict_self: the same numbers on both machines
CONFINED, OPEN = b"=", b"!"  # the first byte of an answer: the fork was confined, or why it was not
STILL = "stood still"
GRACE, TICK = 5, 0.05  # multiple of its limit that a process may be stalled, and seconds between two checks
SAID = 1 << 16  # bytes of a program's output
LIBC = ctypes.CDLL(None, use_errno=True)
LONG = 400  # characters of a message that are stored
END = 3  # the status of a fork that found no job: the caller is gone


def seccomp_filter(machine: str) -> bytes:
    """The filter as an array of `sock_filter`: KILL for calls of another machine, ALLOW for `ALLOWED`, EPERM for the rest."""
    column, name = MACHINES[machine]
    numbers = [number for pair in ALLOWED.values() if (number := pair[column]) is not None]
    rows = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, name), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    rows += [(EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]  # to the ALLOW after the REFUSE
    return b"".join(struct.pack("HBBI", *row) for row in [*rows, (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)])


def confine(seconds: float, memory_mb: int) -> None:
    """Set limits, Landlock if there is one, then the filter, which cannot be removed. Raises OSError if the kernel refuses it."""
    whole = math.ceil(seconds) + 1  # later than the clock of the caller, which reports "took longer"
    limits = {"CPU": whole, "AS": memory_mb << 20, "FSIZE": 0, "CORE": 0, "NOFILE": 8, "NPROC": 0}
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    libc = LIBC

    def control(*words: object) -> None:
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {words[0]}: {os.strerror(ctypes.get_errno())}")

    control(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    handled = struct.pack("QQ", (1 << 13) - 1, 0)  # all rights to files of its first version, none of which is granted
    rules = libc.syscall(LANDLOCK[0], handled, 8, 0)
    if rules >= 0:
        libc.syscall(LANDLOCK[1], rules, 0)
        os.close(rules)
    rows = seccomp_filter(platform.machine())
    kept = ctypes.create_string_buffer(rows, len(rows))
    control(SECCOMP, FILTER, struct.pack("HxxxxxxP", len(rows) // 8, ctypes.addressof(kept)), 0, 0)


def calls(source: str, entry: str, inputs: list[list[object]]) -> list[list[object]]:
    """["value", repr] or ["fault", message, line of the program or 0] for each call; only one fault if the program fails."""
    scope: dict[str, object] = {"__name__": "program"}
    try:
        exec(compile(source, "program", "exec"), scope)
        function = scope[entry]
    except BaseException as error:
        return [fault(error)]
    results: list[list[object]] = []
    for arguments in inputs:
        try:
            results.append(["value", repr(function(*arguments))])  # type: ignore[operator]
        except BaseException as error:
            results.append(fault(error))
    return results


def fault(error: BaseException) -> list[object]:
    """["fault", message, line of the program where it was raised, or 0], the message truncated at `LONG` characters."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "program"]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 0
    return ["fault", f"{type(error).__name__}: {error}"[:LONG], line]


def die_with(parent: int) -> None:
    """End this fork when its parent ends, or now if it has ended."""
    LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(70)


def run(job: dict[str, object], sink: int, parent: int) -> None:
    """Run the program in the fork, confined. Never returns."""
    code = 70
    try:
        die_with(parent)
        os.dup2(sink, 3)
        for other in (range(3), range(4, 256)):
            os.closerange(other.start, other.stop)
        sys.stdin = sys.stdout = sys.stderr = sys.__stdin__ = sys.__stdout__ = sys.__stderr__ = None  # type: ignore[misc]
        os.environ.clear()
        try:
            confine(float(job["seconds"]), int(job["memory_mb"]))  # type: ignore[arg-type, call-overload]
        except (OSError, KeyError, ValueError) as error:
            os.write(3, OPEN + str(error).encode())  # nothing runs unconfined
            return
        random.seed(0)  # every program draws the same random numbers; a fork would seed again
        os.write(3, CONFINED)  # later output is the program's
        results = calls(job["source"], job["entry"], job["inputs"])  # type: ignore[arg-type]
        data = json.dumps({"calls": results}).encode()
        while data:
            data = data[os.write(3, data) :]
        code = 0
    except BaseException:
        pass  # the program may have changed the interpreter: no answer is read then
    finally:
        os._exit(code)


def answer(job: dict[str, object]) -> dict[str, object]:
    """Return a program's output, or {"ended": why}; its process is gone on return."""
    source, sink = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(source)
        run(job, sink, parent)
    os.close(sink)
    seconds = float(job["seconds"])  # type: ignore[arg-type]
    due, last = time.monotonic() + seconds, time.monotonic() + GRACE * seconds
    data, late, still = b"", False, False
    while len(data) <= SAID:
        # output written in time is read even if this process was stalled meanwhile
        late = not select.select([source], [], [], max(0.0, due - time.monotonic()))[0]
        still = late and stands_still(child, seconds / 2)
        if still and time.monotonic() < last:
            due = time.monotonic() + TICK  # its time is not over: another program has the core, or somebody stopped it
            continue
        piece = b"" if late else os.read(source, SAID)
        if not piece:
            break
        data += piece
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(source)
    if still:
        return {"open": f"{STILL}: it had less than half of its {seconds:g} s in {GRACE * seconds:g} s"}
    if (late and data) or os.waitstatus_to_exitcode(status) in (-signal.SIGXCPU,):
        return {"ended": f"took longer than {seconds:g} s"}
    if len(data) > SAID:
        return {"ended": f"said more than {SAID} bytes"}
    if not data.startswith(CONFINED):
        return {"open": data.removeprefix(OPEN).decode("utf-8", "replace") or "the process died before it was confined"}
    try:
        reply = json.loads(data.removeprefix(CONFINED))
    except (ValueError, RecursionError):
        return {"ended": f"the process ended without an answer, status {os.waitstatus_to_exitcode(status)}"}
    return reply if readable(reply) else {"ended": "said nothing that can be read"}


def stands_still(child: int, least: float) -> bool:
    """Whether a process could not work: it is stopped or waits for a core, and has had less than `least` seconds of one. False
    for one that waits voluntarily, as in `time.sleep`."""
    try:
        with open(f"/proc/{child}/stat", encoding="ascii", errors="replace") as file:
            state, *fields = file.read().rpartition(")")[2].split()
        used = (int(fields[10]) + int(fields[11])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return False
    return state not in "SZX" and used < least


def readable(reply: object) -> bool:
    """Whether an answer is {"calls": the result of `calls`}. Nothing else is passed on: deeper nesting would crash its reader."""
    if not isinstance(reply, dict) or set(reply) != {"calls"} or not isinstance(reply["calls"], list):
        return False
    types = [list(map(type, call)) if isinstance(call, list) else [] for call in reply["calls"]]
    return all(kinds in ([str, str], [str, str, int]) for kinds in types)


def serve(parent: int) -> None:
    """Handle one job from standard input in a fork, with its answer on standard output; the next job follows. Never returns."""
    code = 70
    try:
        die_with(parent)
        line = sys.stdin.buffer.readline()
        data = json.dumps(answer(json.loads(line))).encode() + b"\n" if line else b""
        code = 0 if line else END
        while data:
            data = data[os.write(1, data) :]
    finally:
        os._exit(code)


def main() -> None:
    """Fork for each job, until the pipe closes; end with the first fork that could not answer, so that the caller notices."""
    LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    for name in LOADED:
        __import__(name)
    gc.freeze()  # a fork then copies less
    parent, status = os.getpid(), 0
    while status == 0 and select.select([0], [], []):
        keeper = os.fork()
        if keeper == 0:
            serve(parent)
        status = os.waitpid(keeper, 0)[1]


if __name__ == "__main__":
    main()
