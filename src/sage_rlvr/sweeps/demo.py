"""`sage-rlvr demo`: the sweep of a shipped design with other seeds, arms, problems or edits; all results are computed.

    demo.yaml                  a small base policy that is shipped, evaluated exactly
    demo_smollm2.yaml          a pretrained model, evaluated by samples, with the base at lower temperatures
    demo_smollm2_short.yaml    only GRPO, with fewer problems and temperatures
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sage_rlvr.errors import ConfigError, choose_from
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED, Target, cross_check
from sage_rlvr.evaluation.record import load_record, record_path
from sage_rlvr.models.folders import EMBEDDED, prepared
from sage_rlvr.recipes import recipe, trainable
from sage_rlvr.sweeps import plan as plans
from sage_rlvr.sweeps.design import DesignSpec, load_design
from sage_rlvr.sweeps.plan import SweepPlan
from sage_rlvr.training.opening import cores
from sage_rlvr.verdicts.design import BASE, COLDER, Question
from sage_rlvr.verdicts.metric import FEW, Metric
from sage_rlvr.verdicts.of_temperatures import above_colder
from sage_rlvr.verdicts.results import K
from sage_rlvr.verdicts.stats.tempered import POWERS

DESIGNS = {(EMBEDDED, False): "demo.yaml", ("smollm2", False): "demo_smollm2.yaml", ("smollm2", True): "demo_smollm2_short.yaml"}


def design(
    seeds: Sequence[int], arms: Sequence[str] | None, problems: int | None, model: str = EMBEDDED, short: bool = False
) -> tuple[Path, DesignSpec]:
    """The design file and its tree with these settings; raises `ConfigError` for invalid settings."""
    if (model, short) not in DESIGNS:
        raise ConfigError(f"--short: the demo of --model {model} has no short form; pass fewer steps, for example --steps 40")
    path = recipe(DESIGNS[model, short], "designs")
    spec = load_design(path)
    of_all = load_design(recipe(DESIGNS[model, False], "designs")).arms  # the short form uses the arms of the full one
    names = list(spec.arms) if arms is None else list(arms)
    known = trainable()
    for name in names:
        if name not in known:
            raise ConfigError(f"--arms {name}: no such method{choose_from(name, known)}")
    _check_list("seeds", list(seeds))
    _check_list("arms", names)
    sampled = model != EMBEDDED
    samples = spec.evaluate.samples
    assert samples is not None
    evaluate = spec.evaluate
    if problems is not None:
        usual = samples.problems if sampled else evaluate.problems
        if problems < 1:
            raise ConfigError(f"--problems {problems}: an evaluation needs at least 1 (verdicts need 6, the demo takes {usual})")
        if sampled:
            evaluate = replace(evaluate, samples=replace(samples, problems=problems))
        else:
            evaluate = replace(evaluate, problems=problems)
    return path, replace(
        spec,
        seeds=tuple(seeds),
        arms={name: of_all.get(name, f"real/{name}" if sampled else name) for name in names},
        control=spec.control if spec.control in names else names[0],
        evaluate=evaluate,
        questions=questions(names, samples.n if sampled else K, sampled),
    )


def _check_list(option: str, values: list[Any]) -> None:
    """Raise ConfigError for an empty list, or a value that occurs twice."""
    if not values:
        raise ConfigError(f"--{option} []: pass at least one")
    if len(set(values)) < len(values):
        raise ConfigError(f"--{option} {values}: a value occurs twice; the same run twice adds no evidence")


def questions(arms: Sequence[str], k: int, sampled: bool) -> tuple[Question, ...]:
    """Every arm against the base; for samples also against the base at any temperature."""
    against_base = [Question(a=name, b=BASE, metric=Metric(k=n)) for n in (k, 1) for name in arms]
    if not sampled:
        return tuple(against_base)
    metrics = [metric for metric in above_colder(k) if metric.k in (1, FEW, k)]
    return (*against_base, *(Question(a=name, b=COLDER, metric=metric) for metric in metrics for name in arms))


def plan(
    out: Path,
    seeds: Sequence[int],
    arms: Sequence[str] | None,
    edits: Sequence[tuple[str, str]],
    problems: int | None = None,
    *,
    powers: bool = True,
    model: str = EMBEDDED,
    short: bool = False,
) -> SweepPlan:
    """The demo as a sweep; every edit is made in every arm. powers: whether the base is also tempered over full completions.

    model: "smollm2", or a policy that replaces the shipped one."""
    is_demo = any(model == name for name, _ in DESIGNS)
    path, spec = design(seeds, arms, problems, model if is_demo else EMBEDDED, short)
    all_edits = list(edits) if is_demo else [*edits, ("model", model)]
    try:
        planned = plans.plan(path, out, spec, all_edits, powers=POWERS if powers else ())
        prepared(planned.arms[0].config.model)  # a pretrained model is converted at this point, or an error names what is missing
        return planned
    except ConfigError as error:
        if not any(name.startswith("method.") for name, _ in edits):
            raise
        raise ConfigError(
            f"{error}. Note: the demo makes every edit in each arm, and the arms differ in `method`; in an arm with a "
            "guide the KL weight is method.base.beta. Select the arms that have the key with --arms, or edit a copy of the recipe "
            "and use: sage-rlvr train"
        ) from error


def at_a_time(planned: SweepPlan) -> int:
    """Training runs at a time that fit on the cores of this machine."""
    return max(1, cores() // (planned.arms[0].config.engine.threads or cores()))


def check_by_sampling(planned: SweepPlan, n: int = 128, problems: int = 40) -> dict[str, float]:
    """Compare the sampled share of right completions of the base with the exact one, see `cross_check`; {} without an exact one."""
    if not planned.base:
        return {}
    config, record = planned.arms[0].config, load_record(record_path(planned.out, "base"))
    target = Target("base", config.model, config.world)
    tokens = config.rollout.max_new_tokens
    return cross_check(target, record, n=n, problems=problems, max_new_tokens=tokens, seed=EVALUATION_SEED)
