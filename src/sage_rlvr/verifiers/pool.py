"""A pool of worker processes that can be killed: any verifier gets limits on time and memory, and a verdict always.

A worker is a new interpreter, never a fork (torch and its threads do not survive one) and never a re-import of the
calling script (a script without `if __name__ == "__main__"` works). It runs one function, named in the order it gets,
and talks JSON through its pipes, a line each way per job, so that nothing that comes back from it is executed. One thread
per worker hands it the next job, and another thread kills those whose job takes too long. A killed or crashed worker is
replaced for the next job.

Of `verify_math` only the algebra goes to a worker: the answer is cut out of the completion here, and verdicts are
remembered by (answer, gold), so that a group of completions that agree costs one comparison.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers.answers import PendingComparison, prepare
from sage_rlvr.verifiers.verdict import Verdict

MATH = "sage_rlvr.verifiers.math:verify_math"
LIMITS = ("took longer", "needed more", "worker died")  # how the reasons begin that say nothing of the answer
TICK = 0.05  # seconds between two looks at whose time is over
STARTS = 3  # times that a worker may die or be late while it starts: another program may have had the memory, or the cores
PAUSE = 1.0  # seconds before the second start; twice as many before the third
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from sage_rlvr.verifiers.pool import _serve; _serve()"
# In another environment: this package comes from here, of the other packages only those that the environment lacks.
_BOOT_THERE = (
    "import sys; sys.path.insert(0, sys.argv[1]); import sage_rlvr; sys.path.append(sys.path.pop(0)); "
    "from sage_rlvr.verifiers.pool import _serve; _serve()"
)


def _write(stream: BinaryIO, value: Any) -> None:
    stream.write(json.dumps(value).encode() + b"\n")  # ASCII: lone surrogates and line ends travel as escapes
    stream.flush()


def _read(stream: BinaryIO) -> Any:
    return json.loads(stream.readline())  # ValueError where the line was cut, or the pipe closed


# ---- in the worker


def _limit_memory(memory_mb: int) -> None:
    """Cap the address space of this process; a system without such a limit (Windows, macOS) is left as it is."""
    with suppress(ImportError, ValueError, OSError):
        import resource  # Unix only

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = memory_mb << 20
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _peak_mb() -> float:
    """The most address space this process has had, in MiB; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/status", encoding="ascii") as status:
        return next((int(line.split()[1]) / 1024 for line in status if line.startswith("VmPeak")), 0.0)
    return 0.0


def _alarm(seconds: float) -> None:
    """End this process after `seconds`, by the kernel, whatever it computes: for when its parent died; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _answer(function: Callable[..., Verdict], job: dict[str, Any], memory_mb: int) -> dict[str, Any]:
    """Label, reason, score, and "full": whether this worker must be replaced. Libraries hide a MemoryError; the peak betrays it."""
    score, full = None, False
    try:
        verdict = function(*job["args"], **job["options"])
        label, reason, score = verdict.label, verdict.reason, verdict.score
    except MemoryError:
        label, reason, full = "undecided", "", True
    except (Exception, SystemExit) as error:
        label, reason = "undecided", type(error).__name__
    full = full or _peak_mb() > memory_mb / 2
    if full and label != "right":
        label, reason, score = "undecided", f"needed more than {memory_mb} MB", None
    return {"label": label, "reason": reason[:200], "score": score, "full": full}


def _serve() -> None:
    """The worker's whole life: take the order, load the function, say so, answer jobs until the pipe closes."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)  # what a library prints must not reach the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, ValueError):
        order = _read(source)
        module, _, name = order["function"].partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except Exception as error:
            return _write(sink, {"failed": f"{type(error).__name__}: {error}"[:500], "why": str(error)[:500]})
        _write(sink, {"ready": os.getpid()})
        # after the import: a limit that the import meets would look like a package that is missing
        _limit_memory(order["memory_mb"])
        while True:
            job = _read(source)
            _alarm(order["seconds"] + 2)  # later than the parent's own limit, which names the reason; for a parent that died
            answer = _answer(function, job, order["memory_mb"])
            _alarm(0)
            _write(sink, answer)


# ---- in the caller


@dataclass(eq=False)
class _Job:
    """What is to be judged, and the futures of all who wait for it. key: of a question that is remembered, else None."""

    key: Any
    args: Sequence[Any]
    options: dict[str, Any]
    futures: list[Future[Verdict]]


class NotLoaded(ConfigError):
    """A worker cannot load its function. The pool raises it; the audit of rewards reads `why`, the message of the error there."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class _Worker:
    """A worker process as its thread sees it. due: when its time is over; late: whether it was killed for that."""

    def __init__(self, python: str | None) -> None:
        self.due, self.late = math.inf, False
        here = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
        boot = (_BOOT, here) if python is None else (_BOOT_THERE, str(Path(__file__).parents[2]))
        self.process = subprocess.Popen(
            [python or sys.executable, "-c", *boot],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the caller
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )

    def kill(self) -> None:
        """Kill the worker and the processes that its function started: those would hold the pipe open, and its reader waits."""
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()

    def end(self) -> int:
        """Kill, wait (no zombie stays), close the pipes; the exit status."""
        self.kill()
        status = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError, ValueError):  # what was not yet written has no reader any more
                pipe.close()  # type: ignore[union-attr]
        return status


class _Crew:
    """The threads, workers and remembered verdicts of a pool in one process.

    Holds no pool, so that a forgotten pool can be collected. kept: verdicts by (answer, gold), the longest unused forgotten
    first; open: the jobs of those that are being decided, which others may join. What a limit decided is not kept: another
    time the machine may be less busy.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.order = settings
        self.pid = os.getpid()
        self.lock = threading.RLock()  # a pool may be collected, and closed, within
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
        """Kill every worker whose time is over. Starting a timer per job would cost more than a short job."""
        while not self.closed.wait(TICK):
            with self.lock:
                for worker in self.workers:
                    if worker.due <= time.monotonic():
                        worker.due, worker.late = math.inf, True
                        worker.kill()

    def ask(self, worker: _Worker, frame: Any, seconds: float) -> Any | None:
        """The answer to a frame, or None when none came within `seconds` (`late`) or the worker died."""
        with self.lock:
            # before the write, which blocks where the worker reads nothing: `watch` ends that too
            worker.due, worker.late = time.monotonic() + seconds, False
        try:
            _write(worker.process.stdin, frame)  # type: ignore[arg-type]
            return _read(worker.process.stdout)  # type: ignore[arg-type]
        except (OSError, ValueError):
            return None
        finally:
            with self.lock:
                worker.due = math.inf

    def hire(self) -> _Worker:
        """A worker that is ready, of `STARTS` tries, each with twice the time of the one before. `ConfigError` when none starts."""
        why = ""
        for turn in range(STARTS):
            self.closed.wait(PAUSE * turn)
            started = self.start(self.order["start_seconds"] * 2**turn)
            if not isinstance(started, str):
                return started
            why = started
        raise ConfigError(f"a worker for {self.order['function']} did not start, {STARTS} times: {why}.")

    def start(self, seconds: float) -> _Worker | str:
        """A worker that is ready, or why there is none this time. `ConfigError` when it cannot load its function."""
        with self.lock:
            self.refuse_if_closed()
            try:
                worker = _Worker(self.order["python"])
            except OSError as error:  # no memory or process number for a fork
                return f"{error}; is memory short?"
            self.workers.add(worker)
        answer = self.ask(worker, self.order, seconds)
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
        return f"exit status {status}" + ("; is memory short?" if status == -signal.SIGKILL else "")

    def refuse_if_closed(self) -> None:
        if self.closed.is_set():
            raise RuntimeError("the pool was closed")

    def dismiss(self, worker: _Worker) -> int:
        with self.lock:
            # Before the wait: afterwards the system may give the number to another process, and `watch` or `close` would kill that.
            self.workers.discard(worker)
        return worker.end()

    def run(self, job: _Job, worker: _Worker | None) -> tuple[Verdict, _Worker | None]:
        """The verdict, and the worker for the next job. A worker that dies gets one successor for the same job."""
        status = 0
        for _ in range(2):
            worker = worker or self.hire()
            answer = self.ask(worker, {"args": job.args, "options": job.options}, self.order["seconds"])
            if answer is not None and not answer["full"]:
                return Verdict(answer["label"], answer["reason"], answer["score"]), worker
            status = self.dismiss(worker)
            if answer is not None:
                return Verdict(answer["label"], answer["reason"], answer["score"]), None
            if worker.late:
                return Verdict("undecided", f"took longer than {self.order['seconds']:g} s"), None
            worker = None
        return Verdict("undecided", f"worker died twice, status {status}"), None

    def put(self, key: Any, args: Sequence[Any], options: dict[str, Any]) -> Future[Verdict]:
        """The future of a verdict: one that is kept, that of a job which is there, or that of a new job."""
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
        """The futures that wait for the outcome of a job, which nobody joins any more; a verdict is kept."""
        with self.lock:
            self.open.pop(job.key, None)
            if job.key is not None and verdict is not None and not verdict.reason.startswith(LIMITS):
                self.kept[job.key] = verdict
                while len(self.kept) > self.order["cache"]:
                    self.kept.popitem(last=False)
        return [future for future in job.futures if future.running() or future.set_running_or_notify_cancel()]

    def close(self) -> None:
        """Cancel what waits, kill what runs, and come back when no child is left."""
        if self.pid != os.getpid():  # a fork inherited this object, not its threads and children
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
        if threading.current_thread() in self.threads:  # collected on one of them, which may hold what the others wait for
            return
        for thread in self.threads:
            thread.join()


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(eq=False)
class Pool:
    """Worker processes for one verifier, for scripts, threads, asyncio and notebooks alike.

    workers        processes at most (default: the cores this process may use, at most 8); started with the first jobs
    seconds        wall time a verification may take; then it is undecided, "took longer than N s"
    memory_mb      address space of a worker (Linux); beyond it "needed more than N MB"
    function       "module:name" of a function that returns a `Verdict` and takes what JSON can carry
    start_seconds  how long a worker may take to import its function; a second try has twice the time, a third four times
    cache          verdicts of `verify_math` that are remembered; 0 for none. What is remembered changes no verdict
    python         the interpreter of another environment, which has the function's packages; None for this one

    Every item gets a verdict, in the order of the items, whatever another item does. A pool is closed by `close`, at
    the end of a `with` block, when it is collected, or when the interpreter exits; a used pool opens again by itself
    in a forked child. Pickling carries the settings alone. `ConfigError` when the function cannot be loaded.
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
        if self._crew is not None and self._crew.pid != os.getpid():  # forked: the lock may have been held elsewhere
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
        """(questions that needed algebra, those of them that a remembered or a running comparison answered)."""
        return (0, 0) if self._crew is None else (self._crew.asked, self._crew.recalled)

    def verify(self, items: Iterable[Sequence[Any]], **options: Any) -> list[Verdict]:
        """The verdicts on (completion, gold) pairs, in their order; `options` go to the function with each."""
        futures = [self.submit(*item, **options) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()  # only those that an interruption left

    async def verify_async(self, items: Iterable[Sequence[Any]], **options: Any) -> list[Verdict]:
        """`verify` without blocking the event loop."""
        futures = [asyncio.wrap_future(self.submit(*item, **options)) for item in items]
        return list(await asyncio.gather(*futures))

    def pids(self) -> list[int]:
        """The process ids of the workers that are there now."""
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
    """The one pool of this process for mathematics, with the default limits (5 s, 1024 MB a worker)."""
    return _SHARED


__all__ = ["LIMITS", "MATH", "Pool", "cores", "shared"]
