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
from sage_rlvr.engines.base import run_facts, weights_hash
from sage_rlvr.engines.evaluate import (
    EVALUATION_SEED,
    FRONTIER,
    Target,
    cross_check,
    evaluate,
    evaluation_problems,
    world_identity,
)
from sage_rlvr.errors import ConfigError, DataError, SageError
from sage_rlvr.evaluation.record import Record, check_paired, load_record, save_record
from sage_rlvr.progress import bar, counting
from sage_rlvr.recipes import recipe
from sage_rlvr.report import Arm, Result, Training, arm_from_logps
from sage_rlvr.runs import differences, read_metrics, writing

ARMS = {"no KL": "no_kl.yaml", "GRPO": "grpo.yaml", "SAGE-Branch": "sage_branch.yaml"}
EXTRA_ARMS = {
    "Placebo": "placebo.yaml",
    "SAGE-Token": "sage_token.yaml",
    "SAGE-Random": "sage_random.yaml",
    "Dr. GRPO": "dr_grpo.yaml",
    "RLOO": "rloo.yaml",
    "RLOO+Branch": "rloo_branch.yaml",
    "Branch-strong": "branch_strong.yaml",
    "Placebo-strong": "branch_strong_placebo.yaml",
    "GRPO token-mean": "grpo_token_mean.yaml",
    "Forward-KL": "forward_kl.yaml",
    "Forward-KL+Branch": "forward_kl_branch.yaml",
    "BNPO": "bnpo.yaml",
    "BNPO-KL": "bnpo_kl.yaml",
    "BNPO+Branch": "bnpo_branch.yaml",
    "DAPO": "dapo.yaml",
    "DAPO-KL": "dapo_kl.yaml",
    "DAPO+Branch": "dapo_branch.yaml",
    "DAPO-overlong": "dapo_overlong.yaml",
}
POLL_SECONDS = 0.5
SPLIT = "test"
DRAW = "law"


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
    def guided(self) -> bool:
        """Whether the arm's anchor has a guide other than Flat."""
        anchor = self.config.method.build().anchor
        return anchor is not None and anchor.guide.name != "flat"

    @property
    def finished(self) -> bool:
        """Whether this very recipe has ended here: a run of `--steps 40` must not pass for the whole one."""
        if not (self.directory / "policy" / "config.json").exists() or self.done < self.config.steps:
            return False
        return bool(self.facts()["config"] == _as_read_back(dump(self.config)))

    @property
    def done(self) -> int:
        """Steps there are, read from its metrics (a torn last line does not count)."""
        return min(self.config.steps, len(read_metrics(self.directory)))

    def facts(self) -> dict[str, Any]:
        """What its run.json says; `ConfigError` where that file is damaged."""
        path = self.directory / "run.json"
        try:
            facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            facts = {name: facts[name] for name in ("config", "data")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} cannot be read ({error!r}); {self.elsewhere()}") from error
        return facts

    def elsewhere(self) -> str:
        """What helps where this run cannot go on."""
        return f"choose another --out, or delete {self.directory} to train this arm anew"

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "sage_rlvr", "train", str(self.recipe), "--run", str(self.directory), "--quiet"),
            *(*self.overrides, "--seed", str(self.seed)),
        ]


def plan(
    out: Path,
    seeds: Sequence[int],
    arms: dict[str, str],
    overrides: Sequence[str],
    *,
    problems: int | None = None,
    workers: int = 1,
) -> list[Job]:
    """The jobs of a demo, seed-major. Whatever can be refused is refused here, before anything trains: recipes, numbers,
    problems that the split does not hold (they are drawn), a folder that cannot be written or that holds other runs."""
    _check_numbers(seeds, arms, workers)
    pairs = [(overrides[i][2:], overrides[i + 1]) for i in range(0, len(overrides), 2)]
    jobs = []
    for seed in seeds:
        for arm, name in arms.items():
            path = recipe(name)
            config = _decoded(arm, path, [*pairs, ("seed", str(seed))])
            folder = out / "runs" / f"{Path(name).stem}-s{seed}"
            jobs.append(Job(arm, path, seed, folder, tuple(overrides), config))
    if problems is not None:
        evaluation_ids(jobs[0].config, problems)
    _check_folder(out)
    for job in jobs:
        _check_same_run(job)
    return jobs


def _check_numbers(seeds: Sequence[int], arms: dict[str, str], workers: int) -> None:
    if not seeds or not arms:
        raise ConfigError(f"--seeds {list(seeds)}, --arms {list(arms)}: give at least one of each")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {list(seeds)}: a seed stands there twice; the same run twice is no second witness")
    if workers < 1:
        raise ConfigError(f"--workers {workers}: training needs at least 1")


def _decoded(arm: str, path: Path, edits: Sequence[tuple[str, str]]) -> TrainConfig:
    try:
        return load_config(TrainConfig, path, edits)
    except ConfigError as error:
        if not any(name.startswith("method.") for name, _ in edits):
            raise
        hint = "the demo makes every edit in each arm, and the arms differ in `method`"
        own = "; in an arm that shapes an anchor the KL weight is method.base.beta" if "sage" in path.stem else ""
        raise ConfigError(
            f"{arm} ({path.name}): {error}. Note: {hint}{own}. Name with --arms those that have the key, "
            f"or edit a copy of the recipe and use: sage-rlvr train"
        ) from error


def evaluation_ids(config: TrainConfig, problems: int) -> list[str]:
    """The problems that base and arms are evaluated on; `ConfigError` where the world cannot give so many."""
    world = config.world.build()
    if problems < 1:
        raise ConfigError(
            f"--problems {problems}: an evaluation needs at least 1 (verdicts need 6, the demo takes 300)"
        )
    try:
        return [world.problem_id(p) for p in evaluation_problems(world, SPLIT, EVALUATION_SEED, problems, DRAW)]
    except DataError as error:
        raise ConfigError(f"--problems {problems}: {error}") from error


def _check_folder(out: Path) -> None:
    with writing("demo", out, 1 << 20):
        for folder in (out / "runs", out / "evaluations"):
            folder.mkdir(parents=True, exist_ok=True)
        probe = out / f".tmp-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()


def _check_same_run(job: Job) -> None:
    """Refuse a folder whose run had other settings; more steps are the one change that continues it."""
    if not (job.directory / "run.json").exists():
        return
    facts = job.facts()
    found = differences(facts["config"], _as_read_back(dump(job.config)))
    if set(found) == {"steps"} and found["steps"][1] > found["steps"][0]:
        found = {}
    data = differences({"data": facts["data"]}, _as_read_back({"data": run_facts(job.config)}))
    found |= {place: pair for place, pair in data.items() if "(absent)" not in pair}  # what only one version notes
    if found:
        lines = "".join(f"\n  {place}: {json.dumps(old)} -> {json.dumps(new)}" for place, (old, new) in found.items())
        raise ConfigError(f"{job.directory} holds a run with other settings:{lines}\n{job.elsewhere()}")


def _as_read_back(tree: Any) -> Any:
    return json.loads(json.dumps(tree))


def train_all(jobs: Sequence[Job], workers: int, console: Console) -> None:
    """Run what is unfinished, `workers` (at least 1) at a time, one thread each. Ctrl-C lets every run save and stops."""
    _check_numbers([0], {"any": ""}, workers)
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
        f"{job.label} ended with code {process.returncode}; the end of {log}:\n{tail}\n"
        f"The same command continues it; where it was refused, {job.elsewhere()}."
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
    """Exact evaluation of the base and of each trained policy at every temperature of the frontier, so that all are treated
    alike; kept in out/evaluations. What is there and belongs to these weights and problems is not made again."""
    first = jobs[0].config
    ids = evaluation_ids(first, problems)
    wanted = [("base", first.model, out / "evaluations" / "base.npz")]
    wanted += [
        (job.label, str(job.directory / "policy"), out / "evaluations" / f"{job.directory.name}.npz") for job in jobs
    ]
    records = [_kept(path, model, first, ids) for _, model, path in wanted]
    missing = sum(record is None for record in records)
    if missing:
        console.print(f"evaluating {missing} policies on {problems} {SPLIT} problems, exactly", highlight=False)
    with counting(console, "evaluating", missing * len(set(ids))) as advance:  # a problem drawn twice is scored once
        for i, (name, model, path) in enumerate(wanted):
            if records[i] is None:
                records[i] = record = evaluate(
                    Target(name, model, first.world), split=SPLIT, problems=problems, draw=DRAW, temperatures=FRONTIER,
                    progress=advance,
                )  # fmt: skip
                with writing("record of an evaluation", path, 4 << 20):
                    save_record(record, path)
    base, *rest = [record for record in records if record is not None]
    check_paired([base, *rest])
    return base, dict(zip(jobs, rest, strict=True))


def _kept(path: Path, model: str, config: TrainConfig, ids: list[str]) -> Record | None:
    """The record at `path` if it is whole and of these weights, problems and temperatures; a damaged one is made again."""
    try:
        record = load_record(path)
    except DataError:
        return None
    wanted = {
        "weights": weights_hash(model), "world": world_identity(config.world), "split": SPLIT, "seed": EVALUATION_SEED,
        "draw": DRAW, "problem_ids": ids,
    }  # fmt: skip
    same = all(record.meta.get(name) == value for name, value in wanted.items())
    return record if same and set(FRONTIER) <= set(record.logps) else None


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
                siblings=len(seeds),
                versions=base.meta["versions"],
                notes=(
                    *(dose(job) for job in trained if job.seed == seed and job.guided),
                    cost([job for job in trained if job.seed == seed]),
                ),
            )
        )
    return found


def dose(job: Job) -> str:
    """How much a guide did: where q stood off 1, in the first and last tenth of training. A tie of a tiny dose says little.

    Tenths of the steps with an update: one of which a rollout plan kept nothing has no q.
    """
    rows = [row for row in read_metrics(job.directory) if "anchor/q_mean" in row]
    if not rows:
        return f"Dose of {job.arm}: none, no step of the training had an update."
    part = max(1, len(rows) // 10)

    def mean(name: str, chosen: Sequence[dict[str, Any]]) -> float:
        return float(np.mean([row[name] for row in chosen]))

    (share, last_share), (q, last_q) = (
        (mean(name, rows[:part]), mean(name, rows[-part:])) for name in ("anchor/q_active_share", "anchor/q_mean")
    )
    return (
        f"Dose of {job.arm}: q differs from 1 on {share:.1%} of the tokens in the first tenth of training and {last_share:.1%} "
        f"in the last; its mean is {q:.4f} and {last_q:.4f}."
    )


def cost(jobs: Sequence[Job]) -> str:
    """Tokens that each arm's training drew, refills a step of a rollout plan, and the raw KL of its last step.

    Arms of equal steps need not have drawn the same: one with dynamic sampling draws more.
    """
    found = []
    for job in jobs:
        rows = read_metrics(job.directory)
        if not rows or any("rollout/tokens" not in row for row in rows):  # a run of an earlier version
            found.append(f"{job.arm} not recorded")
            continue
        words = [f"{sum(row['rollout/tokens'] for row in rows) / 1e6:.2f} M"]
        if "rollout/refills" in rows[0]:
            words.append(f"{sum(row['rollout/refills'] for row in rows) / len(rows):.1f} refills a step")
        if "anchor/kl_raw" in rows[-1]:
            words.append(f"raw KL {rows[-1]['anchor/kl_raw']:.3f} at the last step")
        found.append(f"{job.arm} {', '.join(words)}")
    return f"Tokens drawn in training (raw KL in nats a token): {'; '.join(found)}."


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
        config=job.facts()["config"],
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
    if len(set(names)) < len(names):
        raise ConfigError(f"--arms {list(names)}: an arm stands there twice")
    return dict(known[name] for name in names)
