"""Jobs in single-threaded processes: training runs with one directory each, and exact evaluations.

The state of a job is determined only by its files (a run's policy and configuration, a record's weights and problems), so the same
command continues an interrupted demo or sweep.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sage_rlvr.config import TrainConfig, dump
from sage_rlvr.errors import ConfigError, DataError, SageError
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED, FRONTIER, identity_of
from sage_rlvr.evaluation.kl import about_of, kl_path, known_kl
from sage_rlvr.evaluation.record import load_record
from sage_rlvr.evaluation.sampling import Chosen, choose
from sage_rlvr.evaluation.store import SampleStore, is_store
from sage_rlvr.evaluation.store.sample import GUIDED, SCORED
from sage_rlvr.models.policy import revision_of, run_facts, weights_hash
from sage_rlvr.process import PARENT
from sage_rlvr.runs import binding, differences, is_run, read_record
from sage_rlvr.runs.files import METRICS, count_lines
from sage_rlvr.runs.interrupts import Interrupted
from sage_rlvr.safe_io import MIB, opened
from sage_rlvr.tasks.base import problems_of
from sage_rlvr.training.opening import cores

POLL_SECONDS = 0.5
STOP_SECONDS = 20.0
NICE = 5  # of the processes: whoever sits at the machine comes first


# ------------------------------------------------------------------------------------------------------------------
# a training run


@dataclass(frozen=True, eq=False)
class Job:
    """One training run; hashed by identity, because its configuration contains mappings. arm: its printed name."""

    arm: str
    recipe: Path
    seed: int
    directory: Path
    config: TrainConfig

    @property
    def label(self) -> str:
        """Arm and seed, as progress and messages name the job: "grpo s0"."""
        return f"{self.arm} s{self.seed}"

    @property
    def finished(self) -> bool:
        """Whether this very recipe has ended here: a run of `--steps 40` must not pass for the whole one."""
        if not (self.directory / "policy" / "config.json").exists() or self.done < self.config.steps:
            return False
        return not self._other_settings()

    @property
    def done(self) -> int:
        """Steps there are, read from its metrics (a torn last line does not count)."""
        return min(self.config.steps, steps_logged(self.directory))

    def facts(self) -> dict[str, Any]:
        """The contents of run.json; raises `ConfigError` for a damaged file."""
        return read_record(self.directory, ("config", "data"), ConfigError, self.elsewhere())

    def _other_settings(self) -> dict[str, tuple[Any, Any]]:
        """Differences of the run that stands here. A local policy is known by its weights, wherever its folder lies."""
        facts = self.facts()
        found = differences(binding(facts["config"]), binding(as_read_back(dump(self.config))))
        data = differences({"data": facts["data"]}, as_read_back({"data": run_facts(self.config)}))
        data = {place: pair for place, pair in data.items() if "(absent)" not in pair}  # what only one version notes
        if not data and "model_sha256" in facts["data"]:
            found.pop("model", None)
        return found | data

    def check_same_run(self) -> None:
        """Raise ConfigError for a folder whose run has other settings; only a larger number of steps continues a run."""
        if not is_run(self.directory):
            return
        found = self._other_settings()
        if set(found) == {"steps"} and found["steps"][1] > found["steps"][0]:
            return
        if found:
            lines = "".join(
                f"\n  {place}: {json.dumps(old)} -> {json.dumps(new)}" for place, (old, new) in found.items()
            )
            raise ConfigError(f"{self.directory} contains a run with other settings:{lines}\n{self.elsewhere()}")

    def elsewhere(self) -> str:
        """What helps where this run cannot go on."""
        return f"choose another --out, or delete {self.directory} to train this arm again"

    def words(self) -> list[str]:
        """The command and its arguments, as after `sage-rlvr`."""
        return ["train", str(self.recipe), "--run", str(self.directory), "--quiet", "--seed", str(self.seed)]

    def task(self, after: tuple[ProcessTask, ...] = ()) -> ProcessTask:
        """The process that trains it, or continues."""
        return ProcessTask(
            label=self.label,
            words=tuple(self.words()),
            log=self.directory / "output.log",
            done=lambda: self.finished,
            threads=self.config.engine.threads or cores(),
            advice=f"The same command continues it; after an error about settings, {self.elsewhere()}.",
            after=after,
        )


def steps_logged(run: Path) -> int:
    """Complete lines of a run's metrics, one per step."""
    return count_lines(run / METRICS)


def as_read_back(tree: Any) -> Any:
    """The tree after a JSON round trip: text keys, lists."""
    return json.loads(json.dumps(tree))


# ------------------------------------------------------------------------------------------------------------------
# processes


@dataclass(frozen=True, eq=False)
class ProcessTask:
    """One `sage-rlvr` command in a separate process.

    log: where its output is appended. done: whether its result is there and whole. advice: what helps when it failed.
    after: tasks whose results it reads; it waits for them, and is left out where one of them failed. place: its result; goes_on:
    whether it can complete what stands there, which is replaced elsewhere.
    """

    label: str
    words: tuple[str, ...]
    log: Path
    done: Callable[[], bool]
    threads: int = 1
    advice: str = "The same command tries it again."
    after: tuple[ProcessTask, ...] = ()
    place: Path | None = None
    goes_on: Callable[[], bool] = lambda: False

    def is_over(self) -> bool:
        """Whether its result is there, read off results that are there: an evaluation of a run that is to go on is none."""
        return all(task.is_over() for task in self.after) and self.done()


def run_tasks(
    tasks: Sequence[ProcessTask],
    workers: int,
    show: Callable[[], None] = lambda: None,
    failed: Callable[[ProcessTask, str], None] | None = None,
    over: set[ProcessTask] | None = None,
    took: dict[ProcessTask, float] | None = None,
) -> None:
    """Run unfinished tasks in this order, `workers` at a time. Ctrl-C, SIGTERM or a closed terminal make every process save and
    exit.

    failed: told of a task that ended without its result, and why; the others go on. None: the first failure stops all and
    is raised as SageError. over: filled with the tasks whose result is there, for a display; took: with the seconds that each
    process took, from its start to its end.
    """
    if workers < 1:
        raise ConfigError(f"--workers {workers}: training needs at least 1")
    over = set() if over is None else over
    over.update(task for task in tasks if task not in over and task.is_over())
    waiting = [task for task in tasks if task not in over]
    running: dict[ProcessTask, subprocess.Popen[bytes]] = {}
    began: dict[ProcessTask, float] = {}
    with ended_like_ctrl_c():
        try:
            while waiting or running:
                while len(running) < workers and (task := next((t for t in waiting if over.issuperset(t.after)), None)):
                    waiting.remove(task)
                    began[task], running[task] = time.monotonic(), _start(task)
                if not running:
                    break  # what is left waits for what failed
                time.sleep(POLL_SECONDS)
                show()
                for task in [t for t, process in running.items() if process.poll() is not None]:
                    problem = _problem(task, running.pop(task).returncode)
                    if problem is None:
                        over.add(task)
                        if took is not None:
                            took[task] = time.monotonic() - began[task]
                    elif failed is None:
                        raise SageError(problem)
                    else:
                        failed(task, problem)
        except BaseException:
            _stop(running)
            raise


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM and a closed terminal raise KeyboardInterrupt as Ctrl-C does, so that no training run is left behind, and it is
    said what is saved. A signal that is ignored (nohup) stays so."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    here = threading.current_thread() is threading.main_thread()  # elsewhere Python takes no handlers
    former = {number: signal.signal(number, interrupt) for number in numbers} if here else {}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _start(task: ProcessTask) -> subprocess.Popen[bytes]:
    task.log.parent.mkdir(parents=True, exist_ok=True)
    threads = str(task.threads)
    env = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", PARENT: "1"}
    command = [sys.executable, "-m", "sage_rlvr", *task.words]
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
    tail = "\n".join(_end_of(task.log).strip().splitlines()[-12:])
    return f"{task.label} ended with code {code}; the end of {task.log}:\n{tail}\n{task.advice}"


def _end_of(log: Path) -> str:
    with opened(log) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - MIB))
        return stream.read().decode("utf-8", "replace")


def _stop(running: dict[ProcessTask, subprocess.Popen[bytes]]) -> None:
    """Ask the processes to finish their step and save; after 20 seconds, end them (their checkpoints stay whole)."""
    for process in running.values():
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    for process in running.values():
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


# ------------------------------------------------------------------------------------------------------------------
# evaluations


@dataclass(frozen=True, eq=False)
class Exact:
    """An exact evaluation, whoever is evaluated: `problems` problems of a split of a task, at these temperatures; powers: of
    whole completions, too (the base's, a standing control)."""

    task: Any
    problems: int
    split: str = "test"
    sampling: str = "iid"
    temperatures: tuple[float, ...] = field(default=FRONTIER)
    powers: tuple[float, ...] = ()

    @cached_property
    def ids(self) -> list[str]:
        """The problems, of a list the first so many; `ConfigError` where a world cannot give so many, or a list none."""
        if self.problems < 1:
            raise ConfigError(
                f"--problems {self.problems}: an evaluation needs at least 1 (verdicts need 6, the demo takes 300)"
            )
        try:
            chosen = problems_of(self.task, self.split, EVALUATION_SEED, self.problems, self.sampling)
        except DataError as error:
            raise ConfigError(f"--problems {self.problems}: {error}") from error
        if not chosen:
            raise ConfigError(f"--split {self.split}: task {self.task.name} has no {self.split} problems; choose another split")
        return [p.problem_id for p in chosen]

    def is_kept(self, path: Path, model: str) -> bool:
        """Whether the record at `path` is whole, of these weights and problems, and has these temperatures."""
        if not path.exists():
            return False
        try:
            record = load_record(path)
        except DataError:
            return False
        wanted = {
            "weights": weights_hash(model), "world": identity_of(self.task), "split": self.split,
            "seed": EVALUATION_SEED, "sampling": self.sampling, "problem_ids": self.ids,
        }  # fmt: skip
        same = all(record.meta.get(name) == value for name, value in wanted.items())
        return same and set(self.temperatures) <= set(record.logps) and set(self.powers) <= set(record.norms)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampled:
    """An evaluation by samples, whoever is evaluated: `n` of each of `problems` problems of a split of a task. guide: whose q is
    kept of every token, if any's; scored: whether log-probs under the base are; kl: samples of each problem for the
    exact KL of an arm to the base, 0 for none."""

    task: Any
    problems: int
    n: int
    split: str
    sampling: str
    guide: str | None
    scored: bool
    kl: int = 0

    @cached_property
    def chosen(self) -> Chosen:
        """The problems."""
        return choose(self.task, self.split, EVALUATION_SEED, self.problems, self.sampling)

    def goes_on(self, store: Path, model: str) -> bool:
        """Whether an evaluation can complete the store: it is of these weights, problems and guide (q is not computed later)."""
        if not is_store(store):
            return False
        with SampleStore.open(store) as opened:
            known = opened.identity
            same = known.revision.partition("@")[0] == revision_of(model) and known.task_hash == self.chosen.task_hash
            return same and (self.guide is None or opened.under(GUIDED) <= {self.guide})

    def is_kept(self, store: Path, model: str) -> bool:
        """Whether the store is whole besides."""
        if not self.goes_on(store, model):
            return False
        with SampleStore.open(store) as opened:
            whole = int((opened.counts(check=False).n >= self.n).sum()) >= len(self.chosen.problems)
            return whole and not (self.scored and None in opened.under(SCORED))

    def has_kl(self, store: Path, base: Path) -> bool:
        """Whether the exact KL to the policy of `base`, a store of the same problems, is kept in the store: of these weights and
        these completions of both."""
        if not (is_store(store) and is_store(base)):
            return False
        with SampleStore.open(store) as one, SampleStore.open(base) as other:
            path = kl_path(store, other.identity.model)
            try:
                return known_kl(path, about_of({"policy": one, "base": other}, list(self.chosen.problems), self.kl)) is not None
            except DataError:  # a damaged file, which the evaluation refuses with the next step
                return False
