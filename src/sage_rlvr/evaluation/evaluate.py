"""Evaluate one policy exactly on a split of an enumerable world, and write the record that all comparisons use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sage_rlvr.config import DataConfig, TrainConfig, WorldConfig, build, decode, load_config, task_named, task_of_data
from sage_rlvr.errors import ConfigError, DataError, suggest
from sage_rlvr.evaluation.exact import log_normalizers, probabilities, sampled_counts
from sage_rlvr.models.enumeration.solutions import solution_logps
from sage_rlvr.models.folders import EMBEDDED
from sage_rlvr.models.policy import load_policy, weights_hash
from sage_rlvr.models.smollm2 import LONG_NAMES
from sage_rlvr.models.weights import ADAPTER
from sage_rlvr.plugins import loaded
from sage_rlvr.runs import RECORD, is_run, read_record, versions
from sage_rlvr.safe_io import understood
from sage_rlvr.tasks import base, with_worlds
from sage_rlvr.tasks.abilities import Enumerable
from sage_rlvr.tasks.base import Task
from sage_rlvr.tasks.chance import chance_of
from sage_rlvr.tasks.countdown import SPLITS, Countdown
from sage_rlvr.tasks.countdown.chat import CountdownChat
from sage_rlvr.verdicts.chance import KEY
from sage_rlvr.verdicts.record import Record
from sage_rlvr.verdicts.stats.intervals import wilson

FRONTIER = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3)
EVALUATION_SEED = 1  # of the problems; training samples problems with world.data_seed


@dataclass(frozen=True)
class Target:
    """An evaluation's target, made by `resolve` and read by `evaluate`: a name for tables, the model to load, its world, and the
    run it came from (or None).

    task: the task that the run was trained on, if that is no Countdown world, or another one, with the name `named`
    limit: tokens of a completion on it
    """

    name: str
    model: str
    world: WorldConfig
    run: Path | None = None
    task: Task | None = None
    limit: int | None = None
    named: str | None = None

    @property
    def evaluated_task(self) -> Task:
        """The task that is evaluated."""
        return self.world.build() if self.task is None else self.task

    @property
    def tokens(self) -> int:
        """Tokens that a completion may take: the run's limit on its training task, otherwise the task's."""
        return self.evaluated_task.max_new_tokens if self.limit is None or self.task is None else self.limit

    def problems(self, split: str, seed: int, n: int, sampling: str) -> list[Any]:
        """`tasks.base.problems_of` of the task that is evaluated."""
        return base.problems_of(self.evaluated_task, split, seed, n, sampling)

    def check_listed(self) -> None:
        """Raise ConfigError if the right completions of the task cannot be listed."""
        if self.task is None or isinstance(self.task, Enumerable):
            return
        if self.named is None:
            raise ConfigError(
                f"{self.run} was trained on {self.task.name}, whose right completions cannot be enumerated; evaluate it by "
                "sampling: "
                f"{suggest('eval', self.run, '--samples', 64)}, or on another --task"
            )
        what = self.model if self.run is None else self.run
        raise ConfigError(
            f"--task {self.named}: the right completions of {self.task.name} cannot be enumerated; evaluate by sampling: "
            f"{suggest('eval', what, '--task', self.named, '--samples', 64)}"
        )


def identity_of(task: Task) -> dict[str, Any]:
    """The task in a record: for Countdown the settings that determine the test problems (without size and seed of the training
    pool), for other tasks the name."""
    return dict(task.identity)


def resolve(what: str, world: WorldConfig | None = None, named: str | None = None) -> Target:
    """Make a `Target` from a run directory, a model folder, a Hub id or a name of `NAMED`. The default task of a run is its
    training task; the plain name of a task with variants selects the run's variant."""
    path, task = Path(what), None if named is None else task_named(named)
    if not is_run(path):
        if what in LONG_NAMES and task is None and world is None:  # a chat model's default is the task in words
            task, named = task_named(CountdownChat.name), CountdownChat.name
        if isinstance(task, Countdown):
            world, task = WorldConfig.of(task), None
        name = "base" if what == EMBEDDED else path.name
        return Target(name, what, world or demo_world(), task=task, named=named)
    advice = f"restore it from a copy, or evaluate {path / 'policy'} with --world RECIPE"
    known = read_record(path, error=ConfigError, advice=advice)
    config, kind = known["config"], known.get("kind", "train")
    if not any((path / "policy" / name).exists() for name in ("config.json", ADAPTER)):
        elsewhere = "; if it was given --out, evaluate that folder with --world RECIPE" if kind == "sft" else ""
        raise ConfigError(
            f"{path}: no policy/ in this {kind} run; if it has not finished, continue it with: "
            f"{suggest(kind, 'RECIPE', '--run', path)}{elsewhere}"
        )
    with understood(path / RECORD, ConfigError, advice):
        taking = with_worlds(named)
        if world is None and (named is None or taking is not None):
            own = _task_of_run(path, config) or decode(WorldConfig, config.get("world") or {}).build()
            task = own if taking is None or isinstance(own, taking) else task
        if isinstance(task, Countdown):
            world, task = WorldConfig.of(task), None
        world = world or decode(WorldConfig, config.get("world") or {})
        longest = config.get("rollout", {}).get("max_new_tokens")
    return Target(path.name, str(path / "policy"), world, path, task, longest, named)


def _task_of_run(path: Path, config: Mapping[str, Any]) -> Task | None:
    """`own_task`; a part that is unknown because a plugin of the run is not loaded is refused with the plugin's name."""
    try:
        return own_task(config)
    except ConfigError as error:
        lacking = sorted(set(config.get("plugins") or ()) - set(loaded()))
        if not lacking:
            raise
        raise ConfigError(
            f"{error}. {path} was trained with {', '.join(lacking)}: pass it again, --plugin {lacking[0]}"
        ) from error


def own_task(config: Mapping[str, Any]) -> Task | None:
    """The task of a run's recorded recipe; None if it was trained on its `world`."""
    if config.get("data"):
        return task_of_data(decode(DataConfig, config["data"]))
    return build("task", config["task"]) if config.get("task") else None


def demo_world() -> WorldConfig:
    """The frozen world of recipes/countdown."""
    return load_config(TrainConfig, "grpo").world


def evaluate(
    target: Target,
    *,
    split: str = "test",
    problems: int = 300,
    seed: int = EVALUATION_SEED,
    sampling: str = "iid",
    temperatures: Sequence[float] = (1.0,),
    powers: Sequence[float] = (),
    threads: int = 1,
    progress: Callable[[int], None] = lambda n: None,
    extra: Mapping[str, Any] | None = None,
) -> Record:
    """Exact log-probs of every right completion of `problems` problems of `split`, those of
    `tasks.base.problems_of`. Pure in its arguments and the weights.

    powers: also the normalizers of the policy tempered over full completions (`evaluation.tempered`); about a second per problem.
    progress: called with the number of scored problems, and with powers also of normalized problems.
    """
    if split not in SPLITS:
        raise DataError(f"split {split!r}: choose 'validation' (for selection), 'test' (for reporting) or 'train'")
    if problems < 1 or not temperatures or not all(t > 0 for t in temperatures):
        raise DataError(
            f"problems = {problems}, temperatures = {tuple(temperatures)}: pass at least one of each, and every "
            "temperature above 0 (0.05 is nearly greedy)"
        )
    target.check_listed()
    torch.set_num_threads(threads)
    model, tokens = load_policy(target.model)
    task, chosen = target.evaluated_task, target.problems(split, seed, problems, sampling)
    began = time.perf_counter()
    ids = [p.problem_id for p in chosen]
    once = dict(zip(ids, chosen, strict=True))  # a problem drawn twice is scored once
    order = {name: index for index, name in enumerate(once)}
    indices = [order[name] for name in ids]
    scored = solution_logps(model, tokens, task, list(once.values()), tuple(temperatures), progress)
    logps = {t: [rows[index] for index in indices] for t, rows in scored.items()}
    if any(np.isnan(row).any() for rows in logps.values() for row in rows):
        raise DataError(f"{target.model}: log-probabilities are NaN, so the weights contain NaN or infinity; use another model")
    law = partial(log_normalizers, model, tokens, task, list(once.values()), max_new_tokens=target.tokens, progress=progress)
    norms = law(powers) if powers else {}
    norms = {power: rows[indices] for power, rows in norms.items()}
    chance = chance_of(task, chosen, list(map(len, logps[temperatures[0]])))
    meta = {
        "name": target.name,
        "model": target.model,
        "world": identity_of(task),
        "split": split,
        "seed": seed,
        "sampling": sampling,
        "problem_ids": ids,
        KEY: None if chance is None else chance.tree(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": versions(),
        "weights": weights_hash(target.model),
        "seconds": time.perf_counter() - began,
        **(extra or {}),
    }
    return Record(meta, logps, norms)


def cross_check(
    target: Target, record: Record, *, n: int, problems: int, seed: int, max_new_tokens: int | None = None, level: float = 0.999
) -> dict[str, float]:
    """Sample `n` completions of the first `problems` problems at temperature 1 and compare the share of right ones with the exact
    p.

    Returns the sampled share, its Wilson interval at `level`, the exact mean, and whether the interval contains the mean (without a
    bug it does not with probability 1 - level).
    """
    chosen = target.problems(record.meta["split"], record.meta["seed"], record.problems, record.meta["sampling"])[:problems]
    policy = load_policy(target.model)
    tokens = target.tokens if max_new_tokens is None else max_new_tokens
    counts = sampled_counts(*policy, target.evaluated_task, chosen, n=n, max_new_tokens=tokens, seed=seed)
    exact = float(probabilities(record.logps[1.0])[:problems].mean())
    drawn = n * len(chosen)  # the record may have fewer than `problems`
    interval = wilson(int(counts.sum()), drawn, level=level)
    return {
        "sampled": float(np.sum(counts)) / drawn,
        "low": interval.low,
        "high": interval.high,
        "level": level,
        "exact": exact,
        "agree": float(interval.low <= exact <= interval.high),
    }
