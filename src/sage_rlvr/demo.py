"""The main job: train the arms really, evaluate them and the base exactly, draw and say what differs.

Each (seed, arm) is one `sage-rlvr train` in a process of its own with a run directory of its own, so a demo that is
interrupted continues where its runs stand. Nothing is precomputed; only the base policy is shipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from sage_rlvr.config import TrainConfig, dump, load_config
from sage_rlvr.engines.base import weights_hash
from sage_rlvr.engines.evaluate import EVALUATION_SEED, FRONTIER, Target, cross_check, evaluate, world_identity
from sage_rlvr.errors import ConfigError, SageError
from sage_rlvr.evaluation.record import Record, check_paired, load_record, save_record
from sage_rlvr.progress import bar
from sage_rlvr.recipes import recipe
from sage_rlvr.report import Arm, Result, Training, arm_from_logps
from sage_rlvr.runs import read_metrics

ARMS = {"no KL": "no_kl.yaml", "GRPO": "grpo.yaml", "SAGE-Branch": "sage_branch.yaml"}
EXTRA_ARMS = {
    "Placebo": "placebo.yaml",
    "SAGE-Token": "sage_token.yaml",
    "SAGE-Random": "sage_random.yaml",
    "Dr. GRPO": "dr_grpo.yaml",
    "RLOO": "rloo.yaml",
}
POLL_SECONDS = 0.5


@dataclass(frozen=True, eq=False)
class Job:
    """One training run of the demo; a key by identity, since its configuration holds mappings."""

    arm: str
    recipe: Path
    seed: int
    directory: Path
    overrides: tuple[str, ...]
    config: TrainConfig

    @property
    def label(self) -> str:
        return f"{self.arm} s{self.seed}"

    @property
    def finished(self) -> bool:
        """Whether this very recipe has ended here: a run of `--steps 40` must not pass for the whole one."""
        if not (self.directory / "policy" / "config.json").exists() or self.done < self.config.steps:
            return False
        facts = json.loads((self.directory / "run.json").read_text(encoding="utf-8"))
        return bool(facts["config"] == json.loads(json.dumps(dump(self.config))))

    @property
    def done(self) -> int:
        """Steps there are, read from its metrics (a torn last line does not count)."""
        return min(self.config.steps, len(read_metrics(self.directory)))

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "sage_rlvr", "train", str(self.recipe), "--run", str(self.directory), "--quiet"),
            *(*self.overrides, "--seed", str(self.seed)),
        ]


def plan(out: Path, seeds: Sequence[int], arms: dict[str, str], overrides: Sequence[str]) -> list[Job]:
    """The jobs of a demo, seed-major; every recipe is decoded here, so that a bad one stops before anything trains."""
    pairs = [(overrides[i][2:], overrides[i + 1]) for i in range(0, len(overrides), 2)]
    jobs = []
    for seed in seeds:
        for arm, name in arms.items():
            path = recipe(name)
            config = load_config(TrainConfig, path, [*pairs, ("seed", str(seed))])
            folder = out / "runs" / f"{Path(name).stem}-s{seed}"
            jobs.append(Job(arm, path, seed, folder, tuple(overrides), config))
    return jobs


def train_all(jobs: Sequence[Job], workers: int, console: Console) -> None:
    """Run what is unfinished, `workers` at a time, one thread each. Ctrl-C lets every run save and stops."""
    waiting = [job for job in jobs if not job.finished]
    running: dict[Job, subprocess.Popen[bytes]] = {}
    with _ended_like_ctrl_c(), _display(jobs, console) as show:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    job = waiting.pop(0)
                    running[job] = _start(job)
                time.sleep(POLL_SECONDS)
                show()
                for job in [j for j, process in running.items() if process.poll() is not None]:
                    _collect(job, running.pop(job))
        except BaseException:
            _stop(running)
            raise


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM and a closed terminal raise KeyboardInterrupt as Ctrl-C does, so that no training run is left behind."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    here = threading.current_thread() is threading.main_thread()  # elsewhere Python takes no handlers
    former = {number: signal.signal(number, interrupt) for number in numbers} if here else {}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _start(job: Job) -> subprocess.Popen[bytes]:
    job.directory.mkdir(parents=True, exist_ok=True)
    threads = str(job.config.engine.threads or 1)
    env = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
    with open(job.directory / "output.log", "ab") as log:
        # Its own session: Ctrl-C reaches this process alone, which then asks each run to save (see `_stop`).
        return subprocess.Popen(
            job.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )


def _collect(job: Job, process: subprocess.Popen[bytes]) -> None:
    if process.returncode == 0 and job.finished:
        return
    log = job.directory / "output.log"
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-12:])
    raise SageError(
        f"{job.label} ended with code {process.returncode}; the end of {log}:\n{tail}\nThe same command continues it."
    )


def _stop(running: dict[Job, subprocess.Popen[bytes]]) -> None:
    """Ask the runs to finish their step and save; after 20 seconds, end them (their checkpoints stay whole)."""
    for process in running.values():
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 20
    for process in running.values():
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def _display(jobs: Sequence[Job], console: Console) -> Iterator[Any]:
    """Bars in a terminal, a line every 20 seconds elsewhere."""
    if console.is_terminal:
        with bar(console) as shown:
            total = sum(job.config.steps for job in jobs)
            whole = shown.add_task("all runs", total=total, completed=sum(job.done for job in jobs), note="")
            tasks = {
                job: shown.add_task(job.label, total=job.config.steps, completed=job.done, note="") for job in jobs
            }

            def show() -> None:
                for job, task in tasks.items():
                    shown.update(task, completed=job.done)
                shown.update(whole, completed=sum(job.done for job in jobs))

            yield show
        return
    began, first, last = time.monotonic(), sum(job.done for job in jobs), [time.monotonic()]

    def show() -> None:
        now = time.monotonic()
        if now - last[0] < 20:
            return
        last[0], done, total = now, sum(job.done for job in jobs), sum(job.config.steps for job in jobs)
        left = (total - done) * (now - began) / max(done - first, 1)
        console.print(f"training: {done}/{total} steps, about {left:.0f} s left", highlight=False)

    yield show


def evaluate_all(out: Path, jobs: Sequence[Job], problems: int, console: Console) -> tuple[Record, dict[Job, Record]]:
    """Exact evaluation of the base at every temperature of its frontier and of each trained policy; kept in out/evaluations."""
    first = jobs[0].config
    world = first.world
    folder = out / "evaluations"

    def one(name: str, model: str, temperatures: Sequence[float], path: Path) -> Record:
        weights = weights_hash(model)
        if path.exists():
            record = load_record(path)
            same = record.meta.get("weights") == weights and record.meta["world"] == world_identity(world)
            if same and record.problems == problems and set(temperatures) <= set(record.logps):
                return record
        console.print(f"evaluating {name} on {problems} test problems, exactly", highlight=False)
        record = evaluate(
            Target(name, model, world), problems=problems, temperatures=temperatures, extra={"weights": weights}
        )
        save_record(record, path)
        return record

    base = one("base", first.model, FRONTIER, folder / "base.npz")
    trained = {
        job: one(job.label, str(job.directory / "policy"), (1.0,), folder / f"{job.directory.name}.npz") for job in jobs
    }
    check_paired([base, *trained.values()])
    return base, trained


def results(base: Record, trained: dict[Job, Record], seeds: Sequence[int]) -> list[Result]:
    """One `Result` a training seed, the same arms in each."""
    found = []
    home = base.logps[1.0]
    for seed in seeds:
        arms = [arm_from_logps("base", base.logps, trained=False, equation="the shipped policy, before RL")]
        arms += [_arm(job, record, home) for job, record in trained.items() if job.seed == seed]
        found.append(
            Result(
                arms=tuple(arms),
                problems=base.problems,
                title="What RL widened, and what it only sharpened",
                world=_world_text(base),
                split=base.meta["split"],
                seed=seed,
                versions=base.meta["versions"],
            )
        )
    return found


def _arm(job: Job, record: Record, home: Sequence[np.ndarray]) -> Arm:
    rows = read_metrics(job.directory)
    column = {
        name: tuple(float(row.get(key, np.nan)) for row in rows)
        for name, key in {"reward": "reward/mean", "kl_raw": "anchor/kl_raw", "entropy": "policy/entropy"}.items()
    }
    return arm_from_logps(
        job.arm,
        record.logps,
        base=home,
        equation=job.config.method.build().describe(),
        training=Training(step=tuple(float(row["step"]) for row in rows), **column),
        seconds=sum(float(row["time/step_s"]) for row in rows),
        config=json.loads((job.directory / "run.json").read_text(encoding="utf-8"))["config"],
    )


def _world_text(base: Record) -> str:
    world = base.meta["world"]
    sizes = " or ".join(str(n) for n in world["counts"])
    return (
        f"Countdown: {sizes} numbers of 1..{world['max_number']}, targets {world['min_target']}..{world['max_target']}"
    )


def check_by_sampling(jobs: Sequence[Job], base: Record, n: int = 128, problems: int = 40) -> dict[str, float]:
    """Hold the sampled share of right completions of the base against the exact one: see `cross_check`."""
    config = jobs[0].config
    return cross_check(
        Target("base", config.model, config.world),
        base,
        n=n,
        problems=problems,
        max_new_tokens=config.rollout.max_new_tokens,
        seed=EVALUATION_SEED,
    )


def choose_arms(names: Sequence[str] | None) -> dict[str, str]:
    """The arms of the given recipe stems (e.g. "grpo", "placebo"); None is the demo's three."""
    if names is None:
        return ARMS
    known = {Path(path).stem: (arm, path) for arm, path in (ARMS | EXTRA_ARMS).items()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"arms {unknown}: choose from {', '.join(known)}")
    return dict(known[name] for name in names)
