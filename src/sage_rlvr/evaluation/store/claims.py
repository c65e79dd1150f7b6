"""Which samples lack, and who works on which of them.

    writer-*.lock  held by a live writer; the operating system drops it with the process, SIGKILL included

No clock and no heartbeat: a claim of a dead writer is free at once, one of a slow writer never expires.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout

from sage_rlvr.errors import ConfigError, DataError, RunLocked
from sage_rlvr.evaluation.store.database import Database
from sage_rlvr.evaluation.store.sample import Chunk, Identity, escape, unescape


class Claims(Database):
    """The chunks of a store: held, missing, claimed."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._writer: FileLock | None = None
        self.identity = Identity.of(self.facts()["identity"])

    def close(self) -> None:
        """Give claimed chunks back and close the file; a second call does nothing. Reading opens it again."""
        if self._writer is not None:
            self.release()
            self._writer.release()
            Path(self._writer.lock_file).unlink(missing_ok=True)
            self._writer = None
        self.disconnect()

    def missing(self, problem_ids: Iterable[str], n: int) -> list[Chunk]:
        """The chunks that still lack until every problem has n samples, all first chunks before any second one.

        n is rounded up to whole chunks. ConfigError for n > 1 under greedy decoding, whose samples are all the same.
        """
        wanted = self._wanted(problem_ids, n)
        with self.transaction():
            held = self._held({chunk.problem for chunk in wanted})
        return [chunk for chunk in wanted if chunk not in held]

    @property
    def _size(self) -> int:
        assert self.identity.chunk_size is not None
        return self.identity.chunk_size

    def _held(self, problems: Iterable[str]) -> set[Chunk]:
        with self.transaction() as db:
            sql = "SELECT sample FROM samples WHERE problem = ? AND sample % ? = 0"
            return {
                Chunk(p, first, self._size) for p in problems for (first,) in db.execute(sql, (escape(p), self._size))
            }

    def _wanted(self, problem_ids: Iterable[str], n: int) -> list[Chunk]:
        problems = list(problem_ids)
        twice = {p for p in problems if problems.count(p) > 1} if len(set(problems)) < len(problems) else set()
        if twice:
            raise DataError(f"problem ids {sorted(twice)[:5]} stand twice in the list; each problem is sampled once")
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigError(f"n = {n!r}: the number of samples per problem is a whole number from 1 on")
        if self.identity.greedy and n > 1:
            raise ConfigError(
                f"n = {n} at temperature 0: greedy decoding gives one completion {n} times; ask for n = 1, or sample at "
                "a temperature above 0"
            )
        return [Chunk(problem, first, self._size) for first in range(0, n, self._size) for problem in problems]

    def claim(self, problem_ids: Iterable[str], n: int, most: int = 1) -> list[Chunk]:
        """Up to `most` of the missing chunks, which no other live writer works on; [] when none is left to take.

        A claim ends with the chunk's commit, with `release`, `close`, or the end of this process, SIGKILL included. A
        writer that gets [] while `missing` is not empty can wait: others are at work on the rest.
        """
        wanted = self._wanted(problem_ids, n)
        with self.transaction(write=True) as db:
            writer = self._sign_in()
            self._bury()
            taken = {
                Chunk(unescape(p), first, self._size) for p, first in db.execute("SELECT problem, first FROM claims")
            }
            gone = taken | self._held({chunk.problem for chunk in wanted})
            free = [chunk for chunk in wanted if chunk not in gone][:most]
            db.executemany("INSERT INTO claims VALUES (?, ?, ?)", [(*c.address, writer) for c in free])
        return free

    def release(self, chunks: Iterable[Chunk] | None = None) -> None:
        """Give claimed chunks back without committing them; None gives all back."""
        if self._writer is None:
            return
        with self.transaction(write=True) as db:
            mine = Path(self._writer.lock_file).name
            given = db.execute("SELECT problem, first FROM claims WHERE writer = ?", (mine,)).fetchall()
            given = given if chunks is None else [chunk.address for chunk in chunks]
            db.executemany(
                "DELETE FROM claims WHERE problem = ? AND first = ? AND writer = ?", [(*c, mine) for c in given]
            )

    def _sign_in(self) -> str:
        """The name of this writer, whose lock is held from its first use on. In a transaction, as `_bury` is."""
        if self._writer is None:
            self.verify()
            lock = FileLock(self.path / f"writer-{uuid.uuid4().hex[:12]}.lock", timeout=0, thread_local=False)
            try:
                lock.acquire()
            except (OSError, NotImplementedError) as error:
                raise RunLocked(
                    f"{self.path}: cannot take a lock here ({error}); put the store on a local disk"
                ) from error
            self._writer = lock
        return Path(self._writer.lock_file).name

    def _bury(self) -> None:
        """Free the claims of dead writers: those whose lock can be taken."""
        alive = {self._sign_in()}
        for path in self.path.glob("writer-*.lock"):
            if path.name in alive:
                continue
            lock = FileLock(path, timeout=0, thread_local=False)
            try:
                lock.acquire()
            except Timeout:
                alive.add(path.name)
                continue
            lock.release()
            path.unlink(missing_ok=True)
        with self.transaction(write=True) as db:
            dead = {writer for (writer,) in db.execute("SELECT DISTINCT writer FROM claims")} - alive
            db.executemany("DELETE FROM claims WHERE writer = ?", [(writer,) for writer in dead])
