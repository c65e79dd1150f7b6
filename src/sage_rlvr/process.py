"""The end of this process: with its parent, and never by code from outside with a code of success and no message."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PARENT = "SAGE_RLVR_ENDS_WITH_STDIN"
"""Variable set for a process of a sweep or demo: its standard input is a pipe that the parent keeps open and never writes to."""


def end_with_parent() -> None:
    """Send SIGTERM to this process when its standard input ends, if `PARENT` is set.

    A run then finishes its step, saves and releases its lock.
    """
    if os.environ.pop(PARENT, None) is None:
        return

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="parent").start()


ABORTED = 2  # the exit code of a command that code from outside has ended by os._exit(0)
_ENDINGS = {"exit", "_exit", "_Exit", "quick_exit", "Py_Exit", "execl", "execle", "execlp", "execv", "execve", "execvp", "execvpe"}
"""Functions of the C library and of Python's that end or replace the process they are called in."""
_real_exit = os._exit


@dataclass
class _Guard:
    """The command that this process runs.

    owner    this process, and none of its forks
    code     the exit code, once it is known
    watched  whether the audit hook exists, which cannot be removed
    """

    owner: int | None = None
    code: int | None = None
    watched: bool = False

    @property
    def holds(self) -> bool:
        """True if this process runs a command that must not be ended by code from outside."""
        return self.owner == os.getpid()


_guard = _Guard()


@contextmanager
def never_silently_ended(lasting: bool = False) -> Iterator[Callable[[int], int]]:
    """Prevent code from outside (a plugin, reward, task or library) from ending the command as if it were done, while the block
    runs.

    - `os._exit` and `posix._exit` of this process (not of its forks) print where they were called, and 0 becomes `ABORTED`
    - `os.exec*` and the C library's `exit` through ctypes raise RuntimeError, once such code was loaded (`watch`)
    - a fork that comes back ends in `end_fork`

    Yields a function that takes the exit code and returns it. lasting: the guard stays after the block, for handlers of `atexit`,
    whose `os._exit` then ends with that code; for a process that ends with its command.

    Not covered, because only a parent process could: C code that ends the process itself, system calls through
    ctypes, and a fork within a training step that comes back there.
    """
    names = sys.modules[os.name]

    def exit_with_a_word(status: int) -> None:
        """End the process by `os._exit`, with a message on the caller while the guard holds; 0 then becomes `ABORTED`."""
        if not _guard.holds:
            _real_exit(status)
        if _guard.code is not None:
            _real_exit(_guard.code or status)
        caller = sys._getframe(1)
        word = (
            f"{caller.f_code.co_filename}:{caller.f_lineno}: os._exit({status}) ended this command before it was done; remove the "
            "call. Saved steps are kept, and the same command continues\n"
        )
        os.write(2, word.encode("utf-8", "backslashreplace"))
        _real_exit(status or ABORTED)

    def done(code: int) -> int:
        end_fork()
        _guard.code = code
        return code

    _guard.owner, _guard.code = os.getpid(), None
    os._exit = names._exit = exit_with_a_word  # type: ignore[assignment,attr-defined]
    try:
        yield done
    finally:
        if not lasting:
            _guard.owner = None
            os._exit = names._exit = _real_exit  # type: ignore[attr-defined]


def watch() -> None:
    """Install the audit hook for endings other than `os._exit`, before code from outside is loaded; other commands need none."""
    if _guard.holds and not _guard.watched:
        _guard.watched = True
        sys.addaudithook(_audit)


def _audit(event: str, args: tuple[object, ...]) -> None:
    if event == "os.exec" and _guard.holds:
        raise RuntimeError(f"os.exec of {args[0]!r} would end this command before it is done; use subprocess.run")
    if event == "ctypes.dlsym" and _guard.holds and args[1] in _ENDINGS:
        raise RuntimeError(f"{args[1]} of the C library would end this command before it is done; raise an exception")


def end_fork() -> None:
    """End a process that code from outside forked and that came back into the command, which runs in its parent."""
    if _guard.owner not in (None, os.getpid()):
        os.write(2, b"a fork came back into this command and was ended; let a forked process end by os._exit\n")
        _real_exit(0)


@contextmanager
def exit_is_an_error() -> Iterator[None]:
    """Let `os._exit` in the main thread of a worker raise SystemExit, which is reported like any other exception.

    The worker survives.
    """
    names, owner = sys.modules[os.name], os.getpid()

    def refuse(status: int) -> None:
        if os.getpid() != owner or threading.current_thread() is not threading.main_thread():
            _real_exit(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = names._exit = refuse  # type: ignore[assignment,attr-defined]
    try:
        yield
    finally:
        os._exit = names._exit = _real_exit  # type: ignore[attr-defined]
