"""A pool of worker processes that can be killed: any verifier gets limits on time and memory, and always a verdict.

A worker is a new interpreter, never a fork (torch and its threads do not survive one) and never a re-import of the
calling script (a script without `if __name__ == "__main__"` works). It runs one function, named in its first message, and exchanges
JSON through its pipes, a line each way per job, so that nothing it returns is executed. One thread per worker hands it the next
job, and another thread kills those whose job takes too long. A killed or crashed worker is replaced for the next job. Every frame
has a random number that its answer must repeat, so that anything that the function, or a process that it forked, writes into the
pipe is no answer: such a worker is killed. (A function could find the number in the memory of its process: this separates answers,
and is no protection against code that wants to cheat.) A worker without a parent ends itself.

For `verify_math` only the algebra runs in a worker: this process cuts the answer out of the completion, and verdicts are cached by
(answer, gold), so that a group of completions that agree costs one comparison. worker.py is the other end.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verifiers.answers import PendingComparison, prepare
from sage_rlvr.verifiers.verdict import Verdict

MATH = "sage_rlvr.verifiers.math:verify_math"
DIED = "worker died"
LIMITS = ("took longer", "needed more", DIED)  # prefixes of reasons that are not about the answer
STRANGE = f"{DIED}: something else wrote into its pipe"
LONGEST_LINE = 1 << 16  # bytes of a worker's answer
TICK = 0.05  # seconds between two checks of time limits
STARTS = 3  # times that a worker may die or be late at its start: another program may have used the memory, or the cores
PAUSE = 1.0  # seconds before the second start; twice as many before the third
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from sage_rlvr.verifiers.worker import serve; serve()"
# In another environment: this package is imported from its source, and others only if the environment lacks them.
_BOOT_THERE = (
    "import sys; sys.path.insert(0, sys.argv[1]); import sage_rlvr; sys.path.append(sys.path.pop(0)); "
    "from sage_rlvr.verifiers.worker import serve; serve()"
)


def _verdict_of(answer: Mapping[str, Any]) -> Verdict | None:
    """The verdict in a worker's answer; None if it contains none, for example if the function's code wrote it."""
    if not {"label", "reason", "score", "full"} <= set(answer) or not isinstance(answer["reason"], str):
        return None
    try:
        return Verdict(answer["label"], answer["reason"], answer["score"])
    except (DataError, TypeError):
        return None


def write_line(stream: BinaryIO, value: Any) -> None:
    """Write a value as one line of JSON."""
    stream.write(json.dumps(value).encode() + b"\n")  # ASCII: lone surrogates and line ends are sent as escapes
    stream.flush()


def _waited(pid: int) -> float:
    """Seconds that the main thread of a process was ready to compute but had no core, as on a busy machine; 0 if the system does
    not report it."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/schedstat", encoding="ascii") as status:
        return int(status.read().split()[1]) / 1e9
    return 0.0


@dataclass(eq=False)
class _Job:
    """A question, and the futures of all callers that wait for its verdict. key: the key of a cached question, else None."""

    key: Any
    args: Sequence[Any]
    options: dict[str, Any]
    futures: list[Future[Verdict]]


class NotLoaded(ConfigError):
    """An error of a worker that cannot load its function. The pool raises it; the audit of rewards reads `why`, the message of
    the original error."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class _Worker:
    """A worker process as its thread sees it.

    due: when its time is over
    waited: seconds that it has waited for a core
    late: whether it was killed for its time
    strange: whether its pipe contained a line that answers no frame"""

    def __init__(self, python: str | None) -> None:
        self.due, self.waited, self.late, self.strange = math.inf, 0.0, False, False
        here = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
        boot = (_BOOT, here) if python is None else (_BOOT_THERE, str(Path(__file__).parents[2]))
        self.process = subprocess.Popen(
            [python or sys.executable, "-c", *boot],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # the caller handles Ctrl-C
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )

    def kill(self) -> None:
        """Kill the worker and the processes that its function started: they would keep the pipe open, and its reader waiting."""
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()

    def end(self) -> int:
        """Kill, wait (no zombie remains), close the pipes; returns the exit status."""
        self.kill()
        status = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError, ValueError):  # unwritten data has no reader any more
                pipe.close()  # type: ignore[union-attr]
        return status


class _Crew:
    """The threads, workers and cached verdicts of a pool in one process.

    It has no reference to the pool, so that an unused pool can be collected. kept: verdicts by (answer, gold), the least recently
    used removed first; open: the jobs of running comparisons, which others may join. Verdicts from a limit are not cached: another
    time the machine may be less busy.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.order = settings
        self.pid = os.getpid()
        self.lock = threading.RLock()  # a pool may be collected, and closed, in this block
        self.closed = threading.Event()
        self.workers: set[_Worker] = set()
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.kept: OrderedDict[Any, Verdict] = OrderedDict()
        self.open: dict[Any, _Job] = {}
        self.asked = self.recalled = 0
        self.threads = [threading.Thread(target=self.serve, name="verifier", daemon=True) for _ in range(settings["workers"])]
        for thread in (*self.threads, threading.Thread(target=self.watch, daemon=True)):
            thread.start()

    def watch(self) -> None:
        """Kill every worker whose time is over, not counting the time that it waited for a core. A timer per job would cost
        more than a short job."""
        while not self.closed.wait(TICK):
            with self.lock:
                for worker in self.workers:
                    if worker.due > time.monotonic():
                        continue
                    before, worker.waited = worker.waited, _waited(worker.process.pid)
                    worker.due += worker.waited - before
                    if worker.due <= time.monotonic():
                        worker.due, worker.late = math.inf, True
                        worker.kill()

    def ask(self, worker: _Worker, frame: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """The answer to a frame, or None: there was none within `seconds` (`late`), or another (`strange`), or the worker died."""
        nonce = secrets.token_hex(16)
        with self.lock:
            # before the write, which blocks if the worker does not read: `watch` ends that too
            worker.due, worker.late, worker.waited = time.monotonic() + seconds, False, _waited(worker.process.pid)
        try:
            write_line(worker.process.stdin, frame | {"nonce": nonce})  # type: ignore[arg-type]
            line = worker.process.stdout.readline(LONGEST_LINE)  # type: ignore[union-attr]
        except (OSError, ValueError):
            return None
        finally:
            with self.lock:
                worker.due = math.inf
        with suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict) and answer.get("nonce") == nonce:
                return answer
        worker.strange = line != b"" and not worker.late
        return None

    def hire(self) -> _Worker:
        """A ready worker, after at most `STARTS` tries, each with twice the time of the previous one. Raises `ConfigError` when
        none starts."""
        why = ""
        for turn in range(STARTS):
            self.closed.wait(PAUSE * turn)
            started = self.start(self.order["start_seconds"] * 2**turn)
            if not isinstance(started, str):
                return started
            why = started
        raise ConfigError(f"a worker for {self.order['function']} did not start, {STARTS} times: {why}.")

    def start(self, seconds: float) -> _Worker | str:
        """A ready worker, or why there is none this time. Raises `ConfigError` when it cannot load its function."""
        with self.lock:
            self.refuse_if_closed()
            try:
                worker = _Worker(self.order["python"])
            except OSError as error:  # no memory or process number for a fork
                return f"{error}; is memory short?"
            self.workers.add(worker)
        answer = self.ask(worker, self.order | {"parent": os.getpid()}, seconds)
        if answer is not None and "ready" in answer:
            return worker
        status = self.dismiss(worker)
        self.refuse_if_closed()
        if answer is not None:
            raise NotLoaded(
                f"a worker for {self.order['function']} did not start: {answer['failed']}. "
                "Is every package that it imports installed?",
                answer["why"],
            )
        if worker.late:
            return f"not ready within {seconds:g} s; if the machine is busy, give it time: Pool(start_seconds=...)"
        if worker.strange:
            return "something else wrote into its pipe; does the function's module write to file descriptors?"
        return f"exit status {status}" + ("; is memory short?" if status == -signal.SIGKILL else "")

    def refuse_if_closed(self) -> None:
        if self.closed.is_set():
            raise RuntimeError("the pool was closed")

    def dismiss(self, worker: _Worker) -> int:
        with self.lock:
            # Before the wait: later another process may have the number, and `watch` or `close` would kill it.
            self.workers.discard(worker)
        return worker.end()

    def run(self, job: _Job, worker: _Worker | None) -> tuple[Verdict, _Worker | None]:
        """The verdict, and the worker for the next job. A worker that dies gets one successor for the same job."""
        status = 0
        for _ in range(2):
            worker = worker or self.hire()
            answer = self.ask(worker, {"args": job.args, "options": job.options}, self.order["seconds"])
            verdict = None if answer is None else _verdict_of(answer)
            if verdict is not None and answer is not None and answer["full"] is False:
                return verdict, worker
            status = self.dismiss(worker)
            if verdict is not None:
                return verdict, None
            worker.strange = worker.strange or answer is not None  # an answer that is no verdict
            if worker.late:
                return Verdict("undecided", f"took longer than {self.order['seconds']:g} s"), None
            if worker.strange:
                return Verdict("undecided", STRANGE), None
            worker = None
        return Verdict("undecided", f"{DIED} twice, status {status}"), None

    def put(self, key: Any, args: Sequence[Any], options: dict[str, Any]) -> Future[Verdict]:
        """The future of a verdict: a cached one, that of an open job, or that of a new job."""
        future: Future[Verdict] = Future()
        with self.lock:
            self.refuse_if_closed()
            kept, job = (None, None) if key is None else (self.kept.get(key), self.open.get(key))
            self.asked += key is not None
            self.recalled += kept is not None or job is not None
            if kept is not None:
                self.kept.move_to_end(key)
                future.set_result(kept)
            elif job is not None:
                job.futures.append(future)
            else:
                job = _Job(key, args, options, [future])
                self.jobs.put(job)
                if key is not None:
                    self.open[key] = job
        return future

    def serve(self) -> None:
        """The loop of one thread: at most one worker, started with its first job."""
        worker: _Worker | None = None
        while (job := self.jobs.get()) is not None:
            with self.lock:
                job.futures = [future for future in job.futures if future.set_running_or_notify_cancel()]
                if not job.futures:
                    self.open.pop(job.key, None)
                    continue
            try:
                verdict, worker = self.run(job, worker)
            except Exception as error:
                worker = None
                for future in self.done(job, None):
                    future.set_exception(error)
            else:
                for future in self.done(job, verdict):
                    future.set_result(verdict)
            del job
        if worker is not None:
            self.dismiss(worker)

    def done(self, job: _Job, verdict: Verdict | None) -> list[Future[Verdict]]:
        """The futures that wait for the outcome of a job, which no caller can join any more; a verdict is cached."""
        with self.lock:
            self.open.pop(job.key, None)
            if job.key is not None and verdict is not None and not verdict.reason.startswith(LIMITS):
                self.kept[job.key] = verdict
                while len(self.kept) > self.order["cache"]:
                    self.kept.popitem(last=False)
        return [future for future in job.futures if future.running() or future.set_running_or_notify_cancel()]

    def close(self) -> None:
        """Cancel waiting jobs, kill running ones, and return when no child is left."""
        if self.pid != os.getpid():  # a fork inherits this object, but not its threads and children
            return
        with self.lock:
            self.closed.set()
            for worker in self.workers:
                worker.kill()
        with suppress(queue.Empty):
            while True:
                job = self.jobs.get_nowait()
                for future in job.futures if job is not None else ():
                    future.cancel()
        for _ in self.threads:
            self.jobs.put(None)
        if threading.current_thread() in self.threads:  # collected on one of its threads: a deadlock else
            return
        for thread in self.threads:
            thread.join()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(eq=False)
class Pool:
    """Worker processes for one verifier, for scripts, threads, asyncio and notebooks alike.

    workers        processes at most (default: the cores this process may use, at most 8); started with the first jobs
    seconds        time limit of a verification; then it is undecided, "took longer than N s". Time spent waiting for a core
                   of a busy machine does not count (Linux)
    memory_mb      address space of a worker (Linux); beyond it "needed more than N MB"
    function       "module:name" of a function that returns a `Verdict` and takes JSON values
    start_seconds  time limit for a worker to import its function; a second try has twice the time, a third four times
    cache          number of cached verdicts of `verify_math`; 0 for none. The cache changes no verdict
    python         the interpreter of another environment, which has the function's packages; None for this one

    Every item gets a verdict, in the order of the items, whatever another item does. A pool is closed by `close`, at
    the end of a `with` block, when it is collected, or when the interpreter exits; a used pool opens again by itself
    in a forked child. Pickling includes only the settings. Raises `ConfigError` when the function cannot be loaded.
    """

    workers: int | None = None
    seconds: float = 5.0
    memory_mb: int = 1024
    function: str = MATH
    start_seconds: float = 60.0
    cache: int = 65536
    python: str | None = None
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False)
    _crew: _Crew | None = field(default=None, init=False, repr=False)
    _closer: weakref.finalize[Any, Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.workers = min(cores(), 8) if self.workers is None else self.workers
        for name in ("workers", "seconds", "memory_mb", "start_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"Pool({name}={getattr(self, name)!r}): must be greater than 0.")
        if self.cache < 0:
            raise ConfigError(f"Pool(cache={self.cache!r}): must be 0 or more.")
        if ":" not in self.function:
            raise ConfigError(f"Pool(function={self.function!r}): write module:name.")

    @property
    def _settings(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    def __reduce__(self) -> tuple[Any, ...]:
        return Pool, tuple(self._settings.values())

    def _open(self) -> _Crew:
        if self._crew is not None and self._crew.pid != os.getpid():  # forked: another thread may have held the lock
            self._lock, self._crew = threading.Lock(), None
        with self._lock:
            if self._crew is None:
                self._crew = _Crew(self._settings)
                self._closer = weakref.finalize(self, self._crew.close)
            return self._crew

    def submit(self, *args: Any, **options: Any) -> Future[Verdict]:
        """Queue one verification; the future of its verdict."""
        crew = self._open()
        prepared = prepare(*args, **options) if self.function == MATH else None
        if isinstance(prepared, Verdict):
            decided: Future[Verdict] = Future()
            decided.set_result(prepared)
            return decided
        if isinstance(prepared, PendingComparison):
            return crew.put(prepared.key if self.cache else None, prepared.args, prepared.options)
        return crew.put(None, args, options)

    @property
    def remembered(self) -> tuple[int, int]:
        """(questions that needed algebra, those of them that a cached or a running comparison answered)."""
        return (0, 0) if self._crew is None else (self._crew.asked, self._crew.recalled)

    def verify(self, items: Iterable[Sequence[Any]], **options: Any) -> list[Verdict]:
        """The verdicts on (completion, gold) pairs, in their order; `options` go to the function with each."""
        futures = [self.submit(*item, **options) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()  # only those left by an interruption

    async def verify_async(self, items: Iterable[Sequence[Any]], **options: Any) -> list[Verdict]:
        """`verify` without blocking the event loop."""
        futures = [asyncio.wrap_future(self.submit(*item, **options)) for item in items]
        return list(await asyncio.gather(*futures))

    def pids(self) -> list[int]:
        """The process ids of the existing workers."""
        crew = self._crew
        if crew is None or crew.pid != os.getpid():
            return []
        with crew.lock:
            return sorted(worker.process.pid for worker in crew.workers)

    def close(self) -> None:
        """End every worker; verifications still waiting are cancelled. The next call starts afresh."""
        with self._lock:
            crew, closer, self._crew, self._closer = self._crew, self._closer, None, None
        if crew is not None and closer is not None:
            closer.detach()
            crew.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_SHARED = Pool()  # starts nothing before the first item


def shared() -> Pool:
    """The one pool of this process for mathematics, with the default limits (5 s, 1024 MB per worker)."""
    return _SHARED


__all__ = ["DIED", "LIMITS", "MATH", "Pool", "cores", "shared"]
