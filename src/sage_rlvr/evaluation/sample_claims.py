"""Who works on which chunk: an entry a writer, alive as long as the operating system holds its lock.

    writers/<name>.lock   held by a live process; the system drops it with the process, SIGKILL included
    writers/<name>.json   pid, host, and the chunks that it has claimed

No clock and no heartbeat: a claim of a dead writer is free at once, one of a slow writer never expires.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from sage_rlvr.errors import RunLocked
from sage_rlvr.evaluation.sample_files import storing
from sage_rlvr.evaluation.sample_rows import Chunk, escape, unescape
from sage_rlvr.runs import write_json_atomic

WRITERS, LOCK = "writers", "lock"
PATIENCE_S = 600.0  # how long a writer waits for the store's lock, which is held for a rename and an append


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """The store's lock, also among threads; RunLocked where it cannot be had."""
    lock = FileLock(path / LOCK, timeout=PATIENCE_S, thread_local=False, poll_interval=0.01)
    try:
        lock.acquire()
    except Timeout:
        raise RunLocked(
            f"{path}: another process has held the lock for {PATIENCE_S:.0f} seconds; end it, then go on"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise RunLocked(f"{path}: cannot take a lock here ({error}); put the store on a local disk") from error
    try:
        yield
    finally:
        lock.release()


class Writer:
    """One writer's entry, made under the store's lock. chunks: what it has claimed and not committed."""

    def __init__(self, path: Path):
        self.folder = path / WRITERS
        self.name = uuid.uuid4().hex[:12]
        self.chunks: set[Chunk] = set()
        with storing(self.folder):
            self.folder.mkdir(exist_ok=True)
        self._lock = FileLock(self.folder / f"{self.name}.lock", timeout=0, thread_local=False)
        self._lock.acquire()
        self.sign()

    def sign(self) -> None:
        """Publish the claims."""
        claims = sorted([escape(chunk.problem), chunk.first] for chunk in self.chunks)
        path = self.folder / f"{self.name}.json"
        with storing(path):
            write_json_atomic(path, {"pid": os.getpid(), "host": socket.gethostname(), "chunks": claims})

    def leave(self) -> None:
        """Remove the entry, and with it the claims."""
        _remove(self.folder, self.name, self._lock)

    def others(self) -> list[str]:
        """Names of the other live writers; entries of dead ones are removed. Under the store's lock."""
        alive = []
        for path in sorted(self.folder.glob("*.lock")):
            if path.stem == self.name:
                continue
            lock = FileLock(path, timeout=0, thread_local=False)
            try:
                lock.acquire()
            except Timeout:
                alive.append(path.stem)
                continue
            _remove(self.folder, path.stem, lock)
        return alive

    def claims_of_others(self, size: int) -> set[Chunk]:
        """The chunks that other live writers have claimed. Under the store's lock."""
        claims: set[Chunk] = set()
        for name in self.others():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # it is just leaving
                owner = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
                claims |= {Chunk(unescape(problem), first, size) for problem, first in owner["chunks"]}
        return claims


def _remove(folder: Path, name: str, lock: FileLock) -> None:
    with contextlib.suppress(OSError):  # a full or vanished disk must not keep the lock
        (folder / f"{name}.json").unlink(missing_ok=True)
        (folder / f"{name}.lock").unlink(missing_ok=True)
    lock.release()
