"""Claims: which live process works on which chunk of a store.

    writing/PID-*.lock   locked by a writer; the operating system releases the lock with the process, also after SIGKILL
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
import uuid
from collections.abc import Iterable
from pathlib import Path

from sage_rlvr.errors import RunLocked
from sage_rlvr.evaluation.store.sample import Chunk


class Claims:
    """The claims of one writer, registered from construction to `close`. Raises RunLocked on a file system without locks or
    links."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.iterdir():
            is_free(left)
        self._held: dict[Chunk, Path] = {}
        self._lock, self._descriptor = self._sign_in()

    def _sign_in(self) -> tuple[Path, int]:
        while True:
            file = self.folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.lock"
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                raise self._locked(error) from error
            if file.exists():
                return file, descriptor
            os.close(descriptor)  # another writer removed it as a dead one's before it was locked

    def take(self, chunk: Chunk) -> bool:
        """Claim a chunk; False if a live writer, including this one, has it."""
        claim = self.folder / hashlib.sha256(json.dumps([chunk.problem, chunk.first]).encode()).hexdigest()[:24]
        for _ in range(2):
            try:
                os.link(self._lock, claim)
            except FileExistsError:
                if not is_free(claim):
                    return False
            except OSError as error:
                raise self._locked(error) from error
            else:
                self._held[chunk] = claim
                return True
        return False

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
        files: dict[int, list[Path]] = {}
        for file in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                files.setdefault(file.stat().st_ino, []).append(file)
        holders = [names for names in files.values() if len(names) > 1 and self._lock not in names]
        pids = [name.name.split("-")[0] for names in holders for name in names if name.suffix == ".lock"]
        return f"process {', '.join(sorted(map(_with_state, pids)))}" if pids else "another process"

    def close(self) -> None:
        """Release everything and unregister."""
        self.drop()
        self._lock.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _locked(self, error: OSError) -> RunLocked:
        return RunLocked(f"{self.folder}: cannot lock or link files here ({error.strerror}); put the store on a local disk")


def is_free(file: Path) -> bool:
    """Whether no live process holds the lock of a file; if so, remove it."""
    try:
        descriptor = os.open(file, os.O_RDWR)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(file).st_ino == os.fstat(descriptor).st_ino:  # otherwise it is another writer's by now
                file.unlink()
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _with_state(pid: str) -> str:
    """A process number, with "(stopped)" if Linux reports that."""
    try:
        state = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return pid
    return f"{pid} (stopped)" if state in "Tt" else pid
