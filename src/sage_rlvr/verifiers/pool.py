"""A pool of worker processes that can be killed: any verifier gets limits on time and memory, and a verdict always.

A worker is a new interpreter, never a fork (torch and its threads do not survive one) and never a re-import of the
calling script (a script without `if __name__ == "__main__"` works). It runs one function, named in the order it gets,
and talks JSON through its pipes, so that nothing that comes back from it is executed. One thread per worker hands it the
next job, and another thread kills those whose job takes too long. A killed or crashed worker is replaced for the next job.

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
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from sage_rlvr.errors import ConfigError
from sage_rlvr.verifiers import Verdict
from sage_rlvr.verifiers.answers import Question, prepare

MATH = "sage_rlvr.verifiers.math:verify_math"
LIMITS = ("took longer", "needed more", "worker died")  # how the reasons begin that say nothing of the answer
_LENGTH = struct.Struct("<I")
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from sage_rlvr.verifiers.pool import _serve; _serve()"


def _write(stream: BinaryIO, value: Any) -> None:
    frame = json.dumps(value).encode()  # ASCII: lone surrogates travel as escapes
    stream.write(_LENGTH.pack(len(frame)) + frame)
    stream.flush()


def _read(stream: BinaryIO) -> Any:
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    frame = stream.read(_LENGTH.unpack(header)[0])
    return json.loads(frame)  # ValueError when the frame was cut


# ---- in the worker


def _limit_memory(memory_mb: int) -> None:
    """Cap the address space of this process; a system without such a limit (Windows, macOS) is left as it is."""
    with suppress(ImportError, ValueError, OSError):
        import resource

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


def _answer(function: Callable[..., Verdict], job: dict[str, Any], memory_mb: int) -> tuple[str, str, bool]:
    """(label, reason, whether this worker must be replaced). Libraries hide a MemoryError; the peak betrays it."""
    try:
        verdict = function(*job["args"], **job["options"])
        label, reason, full = verdict.label, verdict.reason, False
    except MemoryError:
        label, reason, full = "undecided", "", True
    except (Exception, SystemExit) as error:
        label, reason, full = "undecided", type(error).__name__, False
    full = full or _peak_mb() > memory_mb / 2
    if full and label != "right":
        label, reason = "undecided", f"needed more than {memory_mb} MB"
    return label, reason[:200], full


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


def _serve() -> None:
    """The worker's whole life: take the order, load the function, say so, answer jobs until the pipe closes."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)  # what a library prints must not reach the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError, ValueError):
        order = _read(source)
        try:
            function = _function(order["function"])
        except Exception as error:
            return _write(sink, {"failed": f"{type(error).__name__}: {error}"[:500]})
        _write(sink, {"ready": os.getpid()})
        _limit_memory(order["memory_mb"])
        while True:
            job = _read(source)
            _alarm(order["seconds"] + 2)
            label, reason, full = _answer(function, job, order["memory_mb"])
            _alarm(0)
            _write(sink, {"label": label, "reason": reason, "full": full})


# ---- in the caller


class _Watch:
    """One thread that kills every worker whose time is over. Starting a timer a job would cost more than a short job."""

    def __init__(self) -> None:
        self.due: dict[_Worker, float] = {}
        self.changed = threading.Condition()
        self.wakes = math.inf  # when the thread looks again by itself
        self.ended = False
        threading.Thread(target=self._serve, name="verifier-watch", daemon=True).start()

    def _serve(self) -> None:
        with self.changed:
            while not self.ended:
                now = time.monotonic()
                for worker in [worker for worker, due in self.due.items() if due <= now]:
                    del self.due[worker]
                    worker.expire()
                self.wakes = min(self.due.values(), default=math.inf)
                self.changed.wait(None if self.wakes == math.inf else max(self.wakes - time.monotonic(), 0))

    def start(self, worker: _Worker, seconds: float) -> None:
        with self.changed:
            self.due[worker] = due = time.monotonic() + seconds
            if due < self.wakes:
                self.changed.notify()

    def stop(self, worker: _Worker) -> None:
        with self.changed:
            self.due.pop(worker, None)

    def end(self) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify()


class _Worker:
    """A worker process as its thread sees it."""

    def __init__(self, watch: _Watch) -> None:
        self.late, self.watch = False, watch
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps([entry for entry in sys.path if isinstance(entry, str)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the caller
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )

    def ask(self, frame: Any, seconds: float) -> Any | None:
        """The answer to a frame, or None when none came within `seconds` (`late`) or the worker died."""
        self.late = False
        self.watch.start(self, seconds)
        try:
            _write(self.process.stdin, frame)  # type: ignore[arg-type]
            return _read(self.process.stdout)  # type: ignore[arg-type]
        except (OSError, EOFError, ValueError):
            return None
        finally:
            self.watch.stop(self)

    def expire(self) -> None:
        """Its time is over."""
        self.late = True
        self.process.kill()

    def end(self) -> int:
        """Kill, wait (no zombie stays), close the pipes; the exit status."""
        self.process.kill()
        status = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError, ValueError):  # what was not yet written has no reader any more
                pipe.close()  # type: ignore[union-attr]
        return status


@dataclass
class _Job:
    args: list[Any]
    options: dict[str, Any]
    future: Future[Verdict] = field(default_factory=Future)


def _pass_on(source: Future[Verdict], to: Future[Verdict]) -> None:
    """Give a future the outcome of another that is done, unless it was cancelled meanwhile."""
    if source.cancelled():
        to.cancel()
    if not to.set_running_or_notify_cancel():
        return
    if (error := source.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(source.result())


class _Memory:
    """Verdicts by (answer, gold), the longest unused forgotten first; a question that is being decided is not put again.

    What a limit of the pool decided is not kept: another time the machine may be less busy.
    """

    def __init__(self, size: int) -> None:
        self.size, self.asked, self.recalled = size, 0, 0
        self.lock = threading.Lock()
        self.kept: OrderedDict[Any, Verdict] = OrderedDict()
        self.open: dict[Any, list[Any]] = {}  # key -> [the future of the job, how many wait for it]

    def ask(self, key: Any, put: Callable[[], Future[Verdict]]) -> Future[Verdict]:
        """The future of a verdict that is kept, that is being found, or that `put` finds."""
        mine: Future[Verdict] = Future()
        with self.lock:
            self.asked += 1
            if (kept := self.kept.get(key)) is not None:
                self.recalled += 1
                self.kept.move_to_end(key)
                mine.set_result(kept)
                return mine
            entry = self.open.get(key)
            self.recalled += entry is not None
            fresh = entry is None
            if entry is None:
                entry = self.open[key] = [put(), 0]
            entry[1] += 1
        if fresh:
            entry[0].add_done_callback(lambda done: self._keep(key, entry, done))
        mine.add_done_callback(lambda done: self._leave(key, entry) if done.cancelled() else None)
        entry[0].add_done_callback(lambda done: _pass_on(done, mine))
        return mine

    def _keep(self, key: Any, entry: list[Any], done: Future[Verdict]) -> None:
        with self.lock:
            if self.open.get(key) is entry:
                del self.open[key]
            if done.cancelled() or done.exception() is not None or done.result().reason.startswith(LIMITS):
                return
            self.kept[key] = done.result()
            while len(self.kept) > self.size:
                self.kept.popitem(last=False)

    def _leave(self, key: Any, entry: list[Any]) -> None:
        """One that waited was cancelled; when it was the last, the job is too."""
        with self.lock:
            entry[1] -= 1
            last = entry[1] == 0
            if last and self.open.get(key) is entry:
                del self.open[key]
        if last:
            entry[0].cancel()


class _Crew:
    """The threads and workers of a pool in one process. Holds no pool, so that a forgotten pool can be collected."""

    def __init__(self, pool: Pool) -> None:
        self.order = {"function": pool.function, "seconds": pool.seconds, "memory_mb": pool.memory_mb}
        self.seconds, self.start_seconds, self.memory_mb = pool.seconds, pool.start_seconds, pool.memory_mb
        self.pid = os.getpid()
        self.closed = False
        self.lock = threading.Lock()
        self.memory, self.watch = _Memory(pool.cache), _Watch()
        self.workers: set[_Worker] = set()
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=self.serve, name=f"verifier-{i}", daemon=True) for i in range(pool.workers)
        ]
        for thread in self.threads:
            thread.start()

    def hire(self) -> _Worker:
        """A worker that is ready. `ConfigError` when it cannot load its function or does not start."""
        with self.lock:
            if self.closed:
                raise RuntimeError("the pool was closed")
            worker = _Worker(self.watch)
            self.workers.add(worker)
        answer = worker.ask(self.order, self.start_seconds)
        if answer is not None and "ready" in answer:
            return worker
        late, status = worker.late, self.dismiss(worker)
        if self.closed:
            raise RuntimeError("the pool was closed")
        why = (answer or {}).get("failed") or (
            f"not ready within {self.start_seconds:g} s" if late else f"exit status {status}"
        )
        raise ConfigError(
            f"a worker for {self.order['function']} did not start: {why}. Is every package that it imports installed?"
        )

    def dismiss(self, worker: _Worker) -> int:
        status = worker.end()
        with self.lock:
            self.workers.discard(worker)
        return status

    def run(self, job: _Job, worker: _Worker | None) -> tuple[Verdict, _Worker | None]:
        """The verdict, and the worker for the next job. A worker that dies gets one successor for the same job."""
        status = 0
        for _ in range(2):
            worker = worker or self.hire()
            answer = worker.ask({"args": job.args, "options": job.options}, self.seconds)
            if answer is not None:
                if answer["full"]:
                    self.dismiss(worker)
                return Verdict(answer["label"], answer["reason"]), None if answer["full"] else worker
            late, status = worker.late, self.dismiss(worker)
            worker = None
            if late:
                return Verdict("undecided", f"took longer than {self.seconds:g} s"), None
        return Verdict("undecided", f"worker died twice, status {status}"), None

    def put(self, args: Sequence[Any], options: dict[str, Any]) -> Future[Verdict]:
        """Queue one job; the future of its verdict."""
        job = _Job(list(args), options)
        with self.lock:
            if self.closed:
                raise RuntimeError("the pool was closed while an item was submitted")
            self.jobs.put(job)
        return job.future

    def serve(self) -> None:
        """The loop of one thread: at most one worker, started with its first job."""
        worker: _Worker | None = None
        while (job := self.jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                verdict, worker = self.run(job, worker)
            except Exception as error:
                worker = None
                job.future.set_exception(error)
            else:
                job.future.set_result(verdict)
            del job
        if worker is not None:
            self.dismiss(worker)

    def close(self) -> None:
        """Cancel what waits, kill what runs, and come back when no child is left."""
        if self.pid != os.getpid():  # a fork inherited this object, not its threads and children
            return
        with self.lock:
            self.closed = True
            workers = list(self.workers)
        with suppress(queue.Empty):
            while True:
                job = self.jobs.get_nowait()
                if job is not None:
                    job.future.cancel()
        for worker in workers:
            worker.process.kill()
        for _ in self.threads:
            self.jobs.put(None)
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join()
        self.watch.end()


class Pool:
    """Worker processes for one verifier, for scripts, threads, asyncio and notebooks alike.

    workers        processes at most (default: the cores this process may use, at most 8); started with the first jobs
    seconds        wall time a verification may take; then it is undecided, "took longer than N s"
    memory_mb      address space of a worker (Linux); beyond it "needed more than N MB"
    function       "module:name" of a function that returns a `Verdict` and takes what JSON can carry
    start_seconds  how long a worker may take to import its function
    cache          verdicts of `verify_math` that are remembered; 0 for none. What is remembered changes no verdict

    Every item gets a verdict, in the order of the items, whatever another item does. A pool is closed by `close`, at
    the end of a `with` block, when it is collected, or when the interpreter exits; a used pool opens again by itself
    in a forked child. Pickling carries the settings alone. `ConfigError` when the function cannot be loaded.
    """

    def __init__(
        self,
        workers: int | None = None,
        seconds: float = 5.0,
        memory_mb: int = 1024,
        function: str = MATH,
        start_seconds: float = 60.0,
        cache: int = 65536,
    ) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = min(cores, 8) if workers is None else workers
        self.seconds, self.memory_mb, self.function, self.start_seconds = seconds, memory_mb, function, start_seconds
        self.cache = cache
        for name in ("workers", "seconds", "memory_mb", "start_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"Pool({name}={getattr(self, name)!r}): must be greater than 0.")
        if cache < 0:
            raise ConfigError(f"Pool(cache={cache!r}): must be 0 or more.")
        if ":" not in function:
            raise ConfigError(f"Pool(function={function!r}): write module:name.")
        self._lock = threading.Lock()
        self._crew: _Crew | None = None
        self._closer: weakref.finalize[Any, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Pool, (self.workers, self.seconds, self.memory_mb, self.function, self.start_seconds, self.cache)

    def _open(self) -> _Crew:
        if self._crew is not None and self._crew.pid != os.getpid():  # forked: the lock may have been held elsewhere
            self._lock, self._crew = threading.Lock(), None
        with self._lock:
            if self._crew is None:
                self._crew = _Crew(self)
                self._closer = weakref.finalize(self, self._crew.close)
            return self._crew

    def submit(self, *args: Any, **options: Any) -> Future[Verdict]:
        """Queue one verification; the future of its verdict."""
        crew = self._open()
        found = prepare(*args, **options) if self.function == MATH else None
        if isinstance(found, Verdict):
            decided: Future[Verdict] = Future()
            decided.set_result(found)
            return decided
        if isinstance(found, Question):
            if self.cache:
                return crew.memory.ask(found.key, lambda: crew.put(found.args, found.options))
            return crew.put(found.args, found.options)
        return crew.put(args, options)

    @property
    def remembered(self) -> tuple[int, int]:
        """(questions that needed algebra, those of them that a remembered or a running comparison answered)."""
        memory = None if self._crew is None else self._crew.memory
        return (0, 0) if memory is None else (memory.asked, memory.recalled)

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
        if closer is not None:
            closer.detach()
        if crew is not None:
            crew.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_SHARED = Pool()  # starts nothing before the first item


def shared() -> Pool:
    """The one pool of this process for mathematics, with the default limits (5 s, 1024 MB a worker)."""
    return _SHARED


__all__ = ["LIMITS", "MATH", "Pool", "shared"]
