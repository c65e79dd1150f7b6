"""The locks of writers: which processes write to a store now.

    writer-PID-*.lock  held by a live writer; the operating system drops it with the process, SIGKILL included

No clock and no heartbeat: the claims of a dead writer are free at once, those of a slow writer never expire.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout

from sage_rlvr.errors import RunLocked


def sign_in(path: Path) -> FileLock:
    """The lock of a new writer to the store in the folder `path`."""
    lock = _acquire(path / f"writer-{os.getpid()}-{uuid.uuid4().hex[:8]}.lock")
    assert lock is not None
    return lock


def sign_out(lock: FileLock) -> None:
    """Release a writer's lock and delete its file."""
    lock.release()
    Path(lock.lock_file).unlink(missing_ok=True)


def name_of(lock: FileLock) -> str:
    """The name under which a writer claims chunks."""
    return Path(lock.lock_file).name


def other_writers(path: Path, own: FileLock | None) -> list[str]:
    """The names of the live writers except this one. The files of dead writers are deleted."""
    live = []
    for file in path.glob("writer-*.lock"):
        if own is not None and file.name == name_of(own):
            continue
        lock = _acquire(file)
        if lock is None:
            live.append(file.name)
        else:
            sign_out(lock)
    return live


def _acquire(file: Path) -> FileLock | None:
    """A lock; None where a live process holds it. RunLocked on a file system without locks."""
    lock = FileLock(file, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    except (OSError, NotImplementedError) as error:
        raise RunLocked(f"{file.parent}: cannot take a lock here ({error}); put the store on a local disk") from error
    return lock


def processes(names: Iterable[str]) -> str:
    """The process numbers in the names of writers, as text: "7, 12 (stopped)"."""
    return ", ".join(sorted(_with_state(name.split("-")[1]) for name in names))


def _with_state(pid: str) -> str:
    """A process number, with "(stopped)" where Linux reports that."""
    try:
        state = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return pid
    return f"{pid} (stopped)" if state in "Tt" else pid
