"""`python -m lab gpu DESIGN...`: several sweeps on one CUDA device, whole comparisons first to last, within so many minutes.

One pool of processes shares the device. They come in the order of the designs, and within a design seed by seed, so that what is
complete when the time is over is whole: all arms of the first designs, then the first seeds of the next. Of a model of 135 M
parameters a run is expected to leave a large GPU idle while Python starts its operations, so many run at a time; NVIDIA's MPS is
started where it is installed, so that operations of different processes overlap. Neither was measured yet.

Nothing of the test problems is printed. RESULTS/<experiment>/ gets counts.jsonl, exact_kl.jsonl and cost.jsonl of what is complete,
summary.json and, as an archive, design.json with every run's settings and metrics.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from lab.counts import cost_rows_of, kl_rows_of, rows_of
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError
from sage_rlvr.runs.files import METRICS
from sage_rlvr.sweeps.plan import SweepPlan, plan, write_record
from sage_rlvr.sweeps.processes import ProcessTask, run_tasks
from sage_rlvr.sweeps.sweep import write_recipes

REPORT_SECONDS = 30.0
GRACE = 2.0
"""Seconds for processes to end when the time is over: what is cut off is not continued, so there is nothing to save."""
WEIGHTS = ("policy", "checkpoints")
"""Of a run, what is not brought back."""


class TimeIsOver(Exception):
    """Raised by the display of the pool, so that it stops every process."""


@dataclass(frozen=True)
class Gpu(Command):
    """Run the designs of experiments on a CUDA device, many runs at a time, and write down what is complete."""

    designs: tyro.conf.Positional[tuple[Path, ...]]
    """Design files, in the order of their importance."""
    out: Path = Path("runs/gpu")
    """Folder of the sweeps; on a machine with much memory, a folder in memory."""
    results: Path = Path("runs/gpu-results")
    """Folder of what is kept."""
    minutes: float = 8.0
    """After so many minutes all processes are stopped; writing down what is complete takes some seconds more."""
    workers: int = 14
    """Processes at a time."""
    device: str = "cuda"
    """cuda, or cpu to try the command."""

    def execute(self, session: Session) -> int:
        """Run, stop, and write. Returns 0, or 2 where a process failed or a sweep could not be written down."""
        end = time.monotonic() + 60 * self.minutes
        edits = [("engine.device", self.device), ("engine.threads", "1"), ("checkpoint.every", "100000")]
        sweeps = {}
        for design in self.designs:
            name = design.parent.name if design.name == "design.yaml" else design.stem
            if name in sweeps:
                raise ConfigError(f"{design}: a second design of the name {name!r}; rename its folder")
            sweeps[name] = plan(design, self.out / name, edits=edits)
            write_recipes(sweeps[name])
            write_record(sweeps[name])
        with Mps(session.say, wanted=self.device == "cuda"):
            self._run(sweeps, session, end)
        whole = [keep(sweep, self.results / name, session.say) for name, sweep in sweeps.items()]
        return 0 if all(whole) and not any(sweep.failures for sweep in sweeps.values()) else 2

    def _run(self, sweeps: Mapping[str, SweepPlan], session: Session, end: float) -> None:
        began, reported = time.monotonic(), -REPORT_SECONDS
        finished: set[ProcessTask] = set()
        failures: dict[ProcessTask, str] = {}

        def failed(task: ProcessTask, problem: str) -> None:
            failures[task] = problem
            session.say(f"FAILED: {task.label}; see {task.log}")  # not `problem`: it quotes the log, which may hold test results

        def show() -> None:
            nonlocal reported
            drop_weights(sweeps.values(), finished)
            now = time.monotonic()
            if now - began - reported >= REPORT_SECONDS:
                reported = now - began
                done = ", ".join(f"{name} {progress(sweep, finished)}" for name, sweep in sweeps.items())
                session.say(f"{reported:4.0f} s: {done}; {usage() if self.device == 'cuda' else ''}")
            if now > end:
                raise TimeIsOver

        tasks = [task for sweep in sweeps.values() for task in sweep.tasks]
        try:
            run_tasks(tasks, self.workers, show, failed, finished, grace=GRACE)
        except TimeIsOver:
            session.say(f"stopped after {time.monotonic() - began:.0f} s")
        drop_weights(sweeps.values(), finished)  # of what ended since the display was last called
        for sweep in sweeps.values():
            sweep.finished |= finished & set(sweep.tasks)
            sweep.failures |= {task: problem for task, problem in failures.items() if task in sweep.tasks}
            write_record(sweep)
        if times := sorted(step_seconds(sweeps.values())):
            middle, high = times[len(times) // 2], times[len(times) * 19 // 20]
            session.say(f"{len(times)} steps, {middle:.2f} s in the median, {high:.2f} s or more for one in twenty")


def progress(sweep: SweepPlan, finished: set[ProcessTask]) -> str:
    """How far a sweep is."""
    steps, whole = sum(run.steps_done for run in sweep.runs), sum(run.config.steps for run in sweep.runs)
    evaluated = sum(finished.issuperset(run.tasks) for run in sweep.runs)
    return f"{steps} of {whole} steps, {evaluated} of {len(sweep.runs)} runs evaluated"


def step_seconds(sweeps: Iterable[SweepPlan]) -> list[float]:
    """Wall-clock seconds of every step but the first three of a run, which load what the device runs."""
    files = [run.directory / METRICS for sweep in sweeps for run in sweep.runs if run.steps_done]
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()[3:-1]]
    return [float(row["time/step_s"]) for row in rows]


def drop_weights(sweeps: Iterable[SweepPlan], finished: set[ProcessTask]) -> None:
    """Checkpoints of trained runs and weights of evaluated ones: 2 GB a run would fill a disk."""
    for sweep in sweeps:
        for run in sweep.runs:
            if run.train in finished:
                shutil.rmtree(run.directory / "checkpoints", ignore_errors=True)
            if finished.issuperset(run.tasks):
                (run.directory / "policy" / "model.safetensors").unlink(missing_ok=True)


def usage() -> str:
    """Use of the device, by nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return "nvidia-smi does not answer"
    return f"device {found}; {os.getloadavg()[0]:.1f} processes run"


class Mps:
    """NVIDIA's MPS while the pool runs, where it is installed. Its processes see it by the environment."""

    def __init__(self, say: Callable[[str], None], wanted: bool) -> None:
        self.say, self.wanted, self.started = say, wanted and shutil.which("nvidia-cuda-mps-control") is not None, False

    def __enter__(self) -> None:
        if not self.wanted:
            self.say("without MPS")
            return
        for name in ("PIPE", "LOG"):
            folder = Path(f"/tmp/mps-{name.lower()}")
            folder.mkdir(exist_ok=True)
            os.environ[f"CUDA_MPS_{name}_DIRECTORY"] = str(folder)
        started = subprocess.run(["nvidia-cuda-mps-control", "-d"], capture_output=True, text=True, timeout=60, check=False)
        probe_command = [sys.executable, "-c", "import torch; torch.ones(1, device='cuda')"]
        probe = subprocess.run(probe_command, capture_output=True, timeout=60, check=False)
        self.started = started.returncode == 0 and probe.returncode == 0
        self.say("with MPS" if self.started else f"without MPS: {started.stderr.strip() or probe.stderr.decode()[-300:]}")
        if not self.started:
            self.__exit__()

    def __exit__(self, *_: object) -> None:
        if self.wanted:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, capture_output=True, timeout=60, check=False)
            for name in ("PIPE", "LOG"):
                os.environ.pop(f"CUDA_MPS_{name}_DIRECTORY", None)


def keep(sweep: SweepPlan, folder: Path, say: Callable[[str], None]) -> bool:
    """Write what is complete of a sweep, and say how much that is, without any result. False where it could not be read."""
    from sage_rlvr.render import write_summary  # matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    whole = [run for run in sweep.runs if sweep.is_complete(run)]
    say(f"{sweep.out.name}: {len(whole)} of {len(sweep.runs)} runs complete")
    set_aside(sweep)
    is_read = True
    try:
        if whole and sweep.finished.issuperset(sweep.base_samples):
            rows: Sequence[tuple[str, Callable[[Path], Iterable[dict[str, object]]]]] = (
                ("counts.jsonl", rows_of),
                ("exact_kl.jsonl", kl_rows_of),
                ("cost.jsonl", cost_rows_of),
            )
            for name, read in rows:
                (folder / name).write_text("".join(json.dumps(row) + "\n" for row in read(sweep.out)), encoding="utf-8")
            write_summary(sweep.out)
            shutil.copy(sweep.out / "summary.json", folder)
    except Exception as error:  # of one sweep, whose message is printed; the others are still to be written down
        say(f"FAILED: {sweep.out.name} could not be read: {type(error).__name__}: {error}")
        is_read = False
    with tarfile.open(folder / "runs.tar.gz", "w:gz") as archive:
        archive.add(sweep.out, sweep.out.name, filter=without_weights)
    return is_read


def set_aside(sweep: SweepPlan) -> None:
    """Move runs and samples that were cut off from runs/ to cut_off/, where nothing reads them: a store that is not complete would
    pass for a policy with fewer samples or problems."""
    partial = [run.directory for run in sweep.runs if not sweep.is_complete(run)]
    partial += [task.output for task in sweep.base_samples if task not in sweep.finished and task.output is not None]
    for folder in partial:
        if folder.exists():
            (sweep.out / "cut_off").mkdir(exist_ok=True)
            folder.rename(sweep.out / "cut_off" / folder.name)


def without_weights(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Settings, metrics and logs; no weights and no samples."""
    parts = Path(info.name).parts
    large = info.name.endswith((".safetensors", ".parquet", ".npz", ".pt"))
    return None if large or any(part in WEIGHTS for part in parts) else info
