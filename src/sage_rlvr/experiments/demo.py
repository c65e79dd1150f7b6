"""The main job: train the arms really, evaluate them and the base exactly, draw and say what differs.

Each (seed, arm) is one `sage-rlvr train` in a process of its own with a run directory of its own, so a demo that is
interrupted continues where its runs stand. Nothing is precomputed; only the base policy is shipped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from sage_rlvr.config import TrainConfig, load_config
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED, FRONTIER, Target, cross_check
from sage_rlvr.evaluation.record import Record
from sage_rlvr.experiments.jobs import Exact, Job, train_all
from sage_rlvr.experiments.jobs import evaluate_all as evaluate_in
from sage_rlvr.recipes import recipe
from sage_rlvr.report import Arm, Result, Training, arm_from_logps
from sage_rlvr.runs import read_metrics, writing

__all__ = [
    "ARMS",
    "EXTRA_ARMS",
    "Job",
    "check_by_sampling",
    "choose_arms",
    "cost",
    "dose",
    "evaluate_all",
    "evaluation_ids",
    "plan",
    "results",
    "train_all",
]

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
SPLIT = "test"
DRAW = "law"


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
        job.check_same_run()
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


def exact_of(config: TrainConfig, problems: int) -> Exact:
    """The evaluation that base and arms share."""
    return Exact(config.world, problems, split=SPLIT, draw=DRAW, temperatures=FRONTIER)


def evaluation_ids(config: TrainConfig, problems: int) -> list[str]:
    """The problems that base and arms are evaluated on; `ConfigError` where the world cannot give so many."""
    return exact_of(config, problems).ids


def _check_folder(out: Path) -> None:
    with writing("demo", out, 1 << 20):
        for folder in (out / "runs", out / "evaluations"):
            folder.mkdir(parents=True, exist_ok=True)
        probe = out / f".tmp-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()


def evaluate_all(out: Path, jobs: Sequence[Job], problems: int, console: Console) -> tuple[Record, dict[Job, Record]]:
    """Exact evaluation of the base and of each trained policy at every temperature of the frontier: `jobs.evaluate_all`."""
    return evaluate_in(out, jobs, exact_of(jobs[0].config, problems), console)


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
        equation=job.config.method.describe(),
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
