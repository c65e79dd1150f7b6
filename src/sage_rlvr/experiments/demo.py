"""`sage-rlvr demo`: the sweep of recipes/designs/demo.yaml with other seeds, arms, problems or edits. Only the base policy is
shipped; all results are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sage_rlvr.errors import ConfigError, choose_from
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED, Target, cross_check
from sage_rlvr.evaluation.record import load_record, record_path
from sage_rlvr.experiments import plan as plans
from sage_rlvr.experiments.design import DesignSpec, load_design
from sage_rlvr.recipes import recipe, trainable
from sage_rlvr.results.design import BASE, Question
from sage_rlvr.results.read import K
from sage_rlvr.stats.tempered import POWERS

DESIGN = "demo.yaml"


def design(seeds: Sequence[int], arms: Sequence[str] | None, problems: int) -> tuple[Path, DesignSpec]:
    """The design file and its tree with these settings; raises `ConfigError` for invalid settings."""
    path = recipe(DESIGN, "designs")
    spec = load_design(path)
    chosen = list(spec.arms) if arms is None else list(arms)
    known = trainable()
    for name in chosen:
        if name not in known:
            raise ConfigError(f"--arms {name}: no such method{choose_from(name, known)}")
    for what, given in (("seeds", list(seeds)), ("arms", chosen)):
        if not given:
            raise ConfigError(f"--{what} []: pass at least one")
        if len(set(given)) < len(given):
            raise ConfigError(f"--{what} {given}: a value occurs twice; the same run twice adds no evidence")
    if problems < 1:
        raise ConfigError(
            f"--problems {problems}: an evaluation needs at least 1 (verdicts need 6, the demo takes 300)"
        )
    control = spec.control if spec.control in chosen else chosen[0]
    evaluate = replace(spec.evaluate, problems=problems)
    asked = tuple(Question(a=name, b=BASE, metric=f"pass@{k}") for k in (K, 1) for name in chosen)
    return path, replace(
        spec, seeds=tuple(seeds), arms={name: name for name in chosen}, control=control, evaluate=evaluate, questions=asked
    )


def plan(
    out: Path,
    seeds: Sequence[int],
    arms: Sequence[str] | None,
    edits: Sequence[tuple[str, str]],
    problems: int,
    *,
    powers: bool = True,
) -> plans.Sweep:
    """The demo as a sweep; every edit is made in every arm. powers: whether the base is tempered over whole completions too."""
    path, spec = design(seeds, arms, problems)
    try:
        return plans.plan(path, out, spec, edits, powers=POWERS if powers else ())
    except ConfigError as error:
        if not any(name.startswith("method.") for name, _ in edits):
            raise
        raise ConfigError(
            f"{error}. Note: the demo makes every edit in each arm, and the arms differ in `method`; in an arm with a "
            "guide the KL weight is method.base.beta. Select the arms that have the key with --arms, or edit a copy of the recipe "
            "and use: sage-rlvr train"
        ) from error


def check_by_sampling(planned: plans.Sweep, n: int = 128, problems: int = 40) -> dict[str, float]:
    """Compare the sampled share of right completions of the base with the exact one, see `cross_check`."""
    config, record = planned.arms[0].config, load_record(record_path(planned.out, "base"))
    target = Target("base", config.model, config.world)
    tokens = config.rollout.max_new_tokens
    return cross_check(target, record, n=n, problems=problems, max_new_tokens=tokens, seed=EVALUATION_SEED)
