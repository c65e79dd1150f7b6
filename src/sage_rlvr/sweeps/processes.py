"""`sage-rlvr` commands in separate processes, several at a time, each after the tasks whose results it reads.

Whether a task is finished is determined only by its files, so the same command continues an interrupted demo or sweep.
"""

from __future__ import annotations

import contextlib
import os
import re
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
NICE = 5  # nice value of the processes: the user of the machine comes first
SHOWN_LINES = 12  # lines of the log of a failed task
COUNTED = re.compile(r"\d+/\d+, .* left.*")  # pattern of a line of `sage_rlvr.progress`


@dataclass(frozen=True, eq=False)
class ProcessTask:
    """One `sage-rlvr` command in a separate process. Hashed by identity.

    args: arguments after `sage-rlvr`
    log: the file to which its output is appended
    done: whether its result exists completely
    advice: the next step when it failed
    after: tasks whose results it reads; it waits for them, and is left out if one of them failed
    output: the file or store of its result
    resumable: whether it can complete an existing result, which is otherwise replaced
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
        """Whether its result exists, and those of its inputs: an evaluation of a run that will continue does not count."""
        return all(task.is_finished() for task in self.after) and self.done()


def run_tasks(
    tasks: Sequence[ProcessTask],
    workers: int,
    show: Callable[[], None] = lambda: None,
    failed: Callable[[ProcessTask, str], None] | None = None,
    finished: set[ProcessTask] | None = None,
    seconds: dict[ProcessTask, float] | None = None,
    started: dict[ProcessTask, float] | None = None,
    grace: float = STOP_SECONDS,
) -> None:
    """Run unfinished tasks in this order, `workers` at a time. Ctrl-C, SIGTERM or a closed terminal make every process save and
    exit.

    failed: called with a task that ended without its result, and why; the others continue. None: the first failure stops all and is
        raised as SageError. finished: filled with the tasks whose result exists, for a display; seconds: with the duration of each
        process; started: with the running tasks, and since when (`time.monotonic`). grace: seconds that stopping processes have to
        save.
    """
    if workers < 1:
        raise ConfigError(f"--workers {workers}: training needs at least 1")
    finished = set() if finished is None else finished
    seconds = {} if seconds is None else seconds
    finished.update(task for task in tasks if task not in finished and task.is_finished())
    waiting = [task for task in tasks if task not in finished]
    running: dict[ProcessTask, subprocess.Popen[bytes]] = {}
    started = {} if started is None else started
    with ended_like_ctrl_c():
        try:
            while waiting or running:
                while len(running) < workers and (task := _next(waiting, finished)):
                    waiting.remove(task)
                    started[task], running[task] = time.monotonic(), _start(task)
                if not running:
                    break  # remaining tasks wait for a failed one
                time.sleep(POLL_SECONDS)
                show()
                for task in [task for task, process in running.items() if process.poll() is not None]:
                    problem, began = _problem(task, running.pop(task).returncode), started.pop(task)
                    if problem is None:
                        finished.add(task)
                        seconds[task] = time.monotonic() - began
                    elif failed is None:
                        raise SageError(problem)
                    else:
                        failed(task, problem)
        except BaseException:
            _stop(running.values(), grace)
            raise


def _next(waiting: Sequence[ProcessTask], finished: set[ProcessTask]) -> ProcessTask | None:
    """The first task whose inputs exist."""
    return next((task for task in waiting if finished.issuperset(task.after)), None)


def _start(task: ProcessTask) -> subprocess.Popen[bytes]:
    """Start its command, nicer than this process, with its output appended to the task's log."""
    task.log.parent.mkdir(parents=True, exist_ok=True)
    threads = str(task.threads)
    env = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", PARENT: "1"}
    command = [sys.executable, "-m", "sage_rlvr", *task.args]
    with open(task.log, "ab") as log:
        # A separate session: Ctrl-C reaches only this process, which then asks each run to save (see `_stop`). Its input is a pipe
        # that ends with this process, even by SIGKILL, and then the run ends.
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.PIPE, env=env, start_new_session=True
        )
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):  # it has already ended, or this process has a higher nice value
            os.setpriority(os.PRIO_PROCESS, process.pid, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    return process


def _problem(task: ProcessTask, code: int) -> str | None:
    """Return the reason why an ended process has no result, or None."""
    if code == 0 and task.done():
        return None
    lines = _end_of(task.log).strip().splitlines()[-SHOWN_LINES:]
    tail = "\n".join(lines)
    said = f"{task.label} ended with code {code}; the end of {task.log}:\n{tail}\n"
    if (why := _unwritable(task.log)) is not None:  # which ends a process too, without a message
        return f"{said}{task.log}: cannot be written: {why}. Free some space, then run the same command again to continue"
    return said + task.advice


def _unwritable(log: Path) -> str | None:
    """Return the reason why a log cannot be appended to, such as a full disk; None if it can."""
    try:
        with open(log, "ab", buffering=0) as stream:
            stream.write(b"\n")
    except OSError as error:
        return error.strerror or str(error)
    return None


def progress_of(task: ProcessTask) -> str:
    """Progress of a running task by the newest line of its log: "382/600, about 4 min left"; "" if that has no count."""
    if not task.log.is_file():
        return ""
    newest = _end_of(task.log).strip().rpartition("\n")[2]
    counted = COUNTED.search(newest)
    return "" if counted is None else counted[0]


def _end_of(log: Path) -> str:
    with opened(log) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - MIB))
        return stream.read().decode("utf-8", "replace")


def _stop(processes: Collection[subprocess.Popen[bytes]], grace: float) -> None:
    """Ask the processes to finish their step and save; after `grace` seconds, end them (their checkpoints stay valid)."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
