"""Claims: which live process works on which chunk of a store.

    writing/*-PID.lock   locked by a writer; the operating system releases the lock with the process, also after SIGKILL
    writing/HASH         the claim of a chunk: a second name (a hard link) of its holder's lock

Making a link fails if its name exists, so a chunk is claimed once; and the lock of a claim shows whether its holder is alive. No
clock and no heartbeat: a dead writer's claims are free at once, those of a slow writer never expire. The folder `writing` may be
deleted when no process writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from sage_rlvr.errors import RunLocked
from sage_rlvr.evaluation.store.sample import Chunk
from sage_rlvr.runs.files import locked_temporary, remove_dead


class Claims:
    """The claims of one writer, registered from its first claim to `close`. Raises RunLocked on a file system without locks or
    links."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._held: dict[Chunk, Path] = {}
        self._lock: tuple[Path, int] | None = None  # and its descriptor

    def register(self) -> Path:
        """This writer's lock. If it has none, make it, and remove what dead writers left."""
        if self._lock is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.iterdir():
                remove_dead(left)
            self._lock = locked_temporary(self.folder / f"{os.getpid()}.lock")
            try:
                fcntl.flock(self._lock[1], fcntl.LOCK_EX)  # which is an error if there are no locks here
            except OSError as error:
                self.close()  # else a second claim would go on without a lock
                raise self._locked(error) from error
        return self._lock[0]

    def take(self, chunk: Chunk) -> bool:
        """Claim a chunk; False if a live writer, including this one, has it."""
        claim = self.folder / hashlib.sha256(json.dumps([chunk.problem, chunk.first]).encode()).hexdigest()[:24]
        lock = self.register()
        if not remove_dead(claim):
            return False
        try:
            os.link(lock, claim)
        except FileExistsError:  # by another writer since
            return False
        except OSError as error:
            raise self._locked(error) from error
        self._held[chunk] = claim
        return True

    def has(self, chunks: Iterable[Chunk]) -> bool:
        """Whether this writer has all of these claims."""
        return all(chunk in self._held for chunk in chunks)

    def drop(self, chunks: Iterable[Chunk] | None = None) -> None:
        """Release claims; None: all."""
        for chunk in list(self._held) if chunks is None else chunks:
            if claim := self._held.pop(chunk, None):
                claim.unlink(missing_ok=True)

    def others(self) -> str:
        """The other processes with claims, as text for a message: "process 7, 12 (stopped)"."""
        pids = []
        for lock in self.folder.glob("*.lock"):
            with contextlib.suppress(FileNotFoundError):
                if lock.stat().st_nlink > 1 and (self._lock is None or lock != self._lock[0]):
                    pids.append(_with_state(lock.stem.split("-")[-1]))
        return f"process {', '.join(sorted(pids))}" if pids else "another process"

    def close(self) -> None:
        """Release everything and unregister."""
        self.drop()
        if self._lock is not None:
            self._lock[0].unlink(missing_ok=True)
            os.close(self._lock[1])
            self._lock = None

    def _locked(self, error: OSError) -> RunLocked:
        return RunLocked(f"{self.folder}: cannot lock or link files here ({error.strerror}); put the store on a local disk")


def _with_state(pid: str) -> str:
    """A process number, with "(stopped)" if Linux reports that."""
    try:
        state = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return pid
    return f"{pid} (stopped)" if state in "Tt" else pid
