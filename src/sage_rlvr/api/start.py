"""One run of any recipe in its run directory: the library's part of `train`, `sft` and `offline`.

    started(config, "train", Path("runs/grpo-s0"), Path("runs/grpo-s0/policy"))      the same directory again continues

The engines are imported here, when one is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sage_rlvr.config import FinetuneConfig, OfflineConfig, SftConfig, TrainConfig, dump
from sage_rlvr.errors import ConfigError
from sage_rlvr.evaluation.base_samples import base_of
from sage_rlvr.evaluation.pairs import paired, texts_of
from sage_rlvr.models.devices import dtype_facts
from sage_rlvr.models.policy import run_facts, weights_hash
from sage_rlvr.plugins import packages_of
from sage_rlvr.progress import Reporter, Silent, Terminal
from sage_rlvr.runs import RunDir
from sage_rlvr.training.offline import train_offline
from sage_rlvr.training.problems import files_of
from sage_rlvr.training.sft import train_sft

Say = Callable[[str], None]
Work = Callable[[RunDir | None, Reporter, Say], tuple[int, int]]  # finished steps, and requested steps


@dataclass(frozen=True)
class Started:
    """The result of a start. steps, total: finished steps and steps of the recipe; first: finished steps before the start."""

    steps: int
    total: int
    first: int = 0


def start(
    config: Any, kind: str, directory: Path, policy: Path, *, fork: bool = False, quiet: bool = False, say: Say
) -> Started:
    """Run a recipe, or continue its run.

    Args:
        config: The decoded recipe.
        kind: "train", "sft" or "offline".
        directory: The run directory.
        policy: The folder of the trained policy.
        fork: Continue although the recipe or the installed versions changed.
        quiet: No progress, and no output of `training/opening.py`.
        say: Receives messages during the run. Only the first of several ranks writes and reports.

    Raises:
        ConfigError, DataError, CheckpointError, RunLocked, TrainingDiverged: See `errors`.
    """
    facts, work = _WORK[kind](config, directory, policy, say)
    if config.engine.name == "trl" and os.environ.get("RANK", "0") != "0":  # torchrun, accelerate launch
        return Started(*work(None, Silent(), _unheard))
    progress: Reporter = Silent() if quiet else Terminal(directory.name if kind == "train" else kind, say=say)
    with closing(progress), RunDir.open(directory, dump(config), kind=kind, fork=fork, data=facts()) as run:
        steps, total = work(run, progress, _unheard if quiet else say)
        if steps >= total:
            run.check_judged()
    return Started(steps, total, progress.first)


Facts = Callable[[], Mapping[str, Any] | None]


def _train(config: TrainConfig, directory: Path, policy: Path, say: Say) -> tuple[Facts, Work]:
    base = base_of(config)
    if base is not None:
        say(base.line)

    def facts() -> dict[str, Any]:
        files = files_of(config) | ({} if base is None else {f"counts of {base.where}": base.digest})
        return run_facts(config) | ({"data": files} if files else {})

    def work(run: RunDir | None, progress: Reporter, say: Say) -> tuple[int, int]:
        """Train on the engine of the recipe: the last step, and all steps. run: None in a process of TRL that writes no files."""
        if config.engine.name == "trl":
            _require("trl")
            from sage_rlvr.training.trl import run as trl  # an optional engine

            return trl.train(config, run, directory, progress, say, base), config.steps
        assert run is not None
        if config.engine.name == "verl":
            _require("verl")
            from sage_rlvr.training.verl import run as verl  # an optional engine

            return verl.train(config, run, progress, say), config.steps
        from sage_rlvr.training import loop  # the engines load the libraries that only they need

        return loop.train(config, run, progress, base), config.steps

    return facts, work


def _sft(config: SftConfig | FinetuneConfig, directory: Path, policy: Path, say: Say) -> tuple[Facts, Work]:
    if isinstance(config, SftConfig):  # a small policy from generated solutions

        scratch = config

        def from_scratch(run: Any, progress: Reporter, say: Say) -> tuple[int, int]:
            return train_sft(scratch, run, policy, progress), scratch.steps

        return (lambda: None), from_scratch
    _require("trl")
    from sage_rlvr.training.trl import sft  # an optional engine

    tuned = config

    def work(run: RunDir | None, progress: Reporter, say: Say) -> tuple[int, int]:
        finetuned = sft.finetune(tuned, run, directory, policy, progress=progress, say=say)
        return finetuned.step, finetuned.total

    return (lambda: sft.run_facts(tuned)), work


def _offline(config: OfflineConfig, directory: Path, policy: Path, say: Say) -> tuple[Facts, Work]:
    pairs = paired(config.pairs)
    for line in pairs.lines():
        say(line)

    def facts() -> dict[str, Any]:
        known = {"model_sha256": weights_hash(config.model), "data": pairs.digests, "counts": pairs.counts}
        known |= dtype_facts(config.engine)
        return known | ({"packages": packages} if (packages := packages_of(config)) else {})

    def work(run: RunDir | None, progress: Reporter, say: Say) -> tuple[int, int]:
        assert run is not None
        return train_offline(config, run, policy, progress, lambda tokens: texts_of(config, pairs, tokens)), config.steps

    return facts, work


_WORK: dict[str, Callable[[Any, Path, Path, Say], tuple[Facts, Work]]] = {"train": _train, "sft": _sft, "offline": _offline}


def _unheard(line: object) -> None:
    """Ignore a message."""


def _require(engine: str) -> None:
    from sage_rlvr.training.trl.versions import require_trl  # an optional engine
    from sage_rlvr.training.verl import require_verl  # an optional engine

    try:
        {"trl": require_trl, "verl": require_verl}[engine]()
    except ModuleNotFoundError as error:
        raise ConfigError(f"engine.name = {engine!r}: {error}") from error
