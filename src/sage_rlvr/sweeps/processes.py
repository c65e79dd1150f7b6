"""`sage-rlvr` commands in processes of their own, several at a time, each after the tasks whose results it reads.

Whether a task is finished is determined by its files alone, so the same command continues an interrupted demo or sweep.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from sage_rlvr.errors import ConfigError, SageError
from sage_rlvr.process import PARENT
from sage_rlvr.runs.interrupts import ended_like_ctrl_c
from sage_rlvr.safe_io import MIB, opened

POLL_SECONDS = 0.5
STOP_SECONDS = 20.0
NICE = 5  # of the processes: whoever sits at the machine comes first
SHOWN_LINES = 12  # of the log of a task that failed


@dataclass(frozen=True, eq=False)
class ProcessTask:
    """One `sage-rlvr` command in a separate process. Hashed by identity.

    args: behind `sage-rlvr`. log: where its output is appended. done: whether its result is there and whole. advice: what helps
    when it failed. after: tasks whose results it reads; it waits for them, and is left out where one of them failed. output: the
    file or store of its result; resumable: whether it can complete what stands there, which is replaced elsewhere.
    """

    label: str
    args: tuple[str, ...]
    log: Path
    done: Callable[[], bool]
    threads: int = 1
    advice: str = "The same command tries it again."
    after: tuple[ProcessTask, ...] = ()
    output: Path | None = None
    resumable: Callable[[], bool] = lambda: False

    def is_finished(self) -> bool:
        """Whether its result is there, read off results that are there: an evaluation of a run that is to go on is none."""
        return all(task.is_finished() for task in self.after) and self.done()


def run_tasks(
    tasks: Sequence[ProcessTask],
    workers: int,
    show: Callable[[], None] = lambda: None,
    failed: Callable[[ProcessTask, str], None] | None = None,
    finished: set[ProcessTask] | None = None,
    seconds: dict[ProcessTask, float] | None = None,
    grace: float = STOP_SECONDS,
) -> None:
    """Run unfinished tasks in this order, `workers` at a time. Ctrl-C, SIGTERM or a closed terminal make every process save and
    exit.

    failed: called with a task that ended without its result, and why; the others go on. None: the first failure stops all and
    is raised as SageError. finished: filled with the tasks whose result is there, for a display; seconds: with the time that each
    process took, from its start to its end. grace: seconds in which processes that are made to stop may save.
    """
    if workers < 1:
        raise ConfigError(f"--workers {workers}: training needs at least 1")
    finished = set() if finished is None else finished
    seconds = {} if seconds is None else seconds
    finished.update(task for task in tasks if task not in finished and task.is_finished())
    waiting = [task for task in tasks if task not in finished]
    running: dict[ProcessTask, subprocess.Popen[bytes]] = {}
    started: dict[ProcessTask, float] = {}
    with ended_like_ctrl_c():
        try:
            while waiting or running:
                while len(running) < workers and (task := _next(waiting, finished)):
                    waiting.remove(task)
                    started[task], running[task] = time.monotonic(), _start(task)
                if not running:
                    break  # what is left waits for what failed
                time.sleep(POLL_SECONDS)
                show()
                for task in [task for task, process in running.items() if process.poll() is not None]:
                    problem = _problem(task, running.pop(task).returncode)
                    if problem is None:
                        finished.add(task)
                        seconds[task] = time.monotonic() - started[task]
                    elif failed is None:
                        raise SageError(problem)
                    else:
                        failed(task, problem)
        except BaseException:
            _stop(running.values(), grace)
            raise


def _next(waiting: Sequence[ProcessTask], finished: set[ProcessTask]) -> ProcessTask | None:
    """The first task whose inputs are there."""
    return next((task for task in waiting if finished.issuperset(task.after)), None)


def _start(task: ProcessTask) -> subprocess.Popen[bytes]:
    """Start its command, nicer than this process, with its output appended to the task's log."""
    task.log.parent.mkdir(parents=True, exist_ok=True)
    threads = str(task.threads)
    env = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", PARENT: "1"}
    command = [sys.executable, "-m", "sage_rlvr", *task.args]
    with open(task.log, "ab") as log:
        # Its own session: Ctrl-C reaches this process alone, which then asks each run to save (see `_stop`). Its input is a pipe
        # that ends with this process, even by SIGKILL, and the run with it.
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.PIPE, env=env, start_new_session=True
        )
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):  # it has ended already, or this process is nicer than that itself
            os.setpriority(os.PRIO_PROCESS, process.pid, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    return process


def _problem(task: ProcessTask, code: int) -> str | None:
    """Why an ended process did not bring its result, or None."""
    if code == 0 and task.done():
        return None
    lines = _end_of(task.log).strip().splitlines()[-SHOWN_LINES:]
    tail = "\n".join(lines)
    return f"{task.label} ended with code {code}; the end of {task.log}:\n{tail}\n{task.advice}"


def _end_of(log: Path) -> str:
    with opened(log) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - MIB))
        return stream.read().decode("utf-8", "replace")


def _stop(processes: Collection[subprocess.Popen[bytes]], grace: float) -> None:
    """Ask the processes to finish their step and save; after `grace` seconds, end them (their checkpoints stay whole)."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
