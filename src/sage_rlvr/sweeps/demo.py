"""`sage-rlvr demo`: the sweep of a shipped design with other seeds, arms, problems or edits; all results are computed.

    demo.yaml                  a small base policy that is shipped, evaluated exactly
    demo_smollm2.yaml          a pretrained model, evaluated by samples beside the base at lower temperatures
    demo_smollm2_short.yaml    a third of it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sage_rlvr.errors import ConfigError, choose_from
from sage_rlvr.evaluation.evaluate import EVALUATION_SEED, Target, cross_check
from sage_rlvr.evaluation.record import load_record, record_path
from sage_rlvr.models.folders import EMBEDDED, prepared
from sage_rlvr.recipes import recipe, trainable
from sage_rlvr.results.comparisons import above_colder
from sage_rlvr.results.design import BASE, COLDER, Question
from sage_rlvr.results.metric import FEW, Metric
from sage_rlvr.results.read import K
from sage_rlvr.stats.tempered import POWERS
from sage_rlvr.sweeps import plan as plans
from sage_rlvr.sweeps.design import DesignSpec, load_design
from sage_rlvr.training.opening import cores

DESIGNS = {(EMBEDDED, False): "demo.yaml", ("smollm2", False): "demo_smollm2.yaml", ("smollm2", True): "demo_smollm2_short.yaml"}


def design(
    seeds: Sequence[int], arms: Sequence[str] | None, problems: int | None, model: str = EMBEDDED, short: bool = False
) -> tuple[Path, DesignSpec]:
    """The design file and its tree with these settings; raises `ConfigError` for invalid settings."""
    if (model, short) not in DESIGNS:
        raise ConfigError(f"--short: the demo of --model {model} has no short form; pass fewer steps, for example --steps 40")
    path = recipe(DESIGNS[model, short], "designs")
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
    sampled = model != EMBEDDED
    evaluate, few = spec.evaluate, spec.evaluate.samples
    assert few is not None
    if problems is not None and problems < 1:
        usual = few.problems if sampled else evaluate.problems
        raise ConfigError(f"--problems {problems}: an evaluation needs at least 1 (verdicts need 6, the demo takes {usual})")
    if problems is not None:
        few = replace(few, problems=problems if sampled else few.problems)
        evaluate = replace(evaluate, problems=evaluate.problems if sampled else problems, samples=few)
    control = spec.control if spec.control in chosen else chosen[0]
    return path, replace(
        spec,
        seeds=tuple(seeds),
        arms={name: spec.arms.get(name, f"real/{name}" if sampled else name) for name in chosen},
        control=control,
        evaluate=evaluate,
        questions=questions(chosen, few.n if sampled else K, sampled),
    )


def questions(arms: Sequence[str], k: int, sampled: bool) -> tuple[Question, ...]:
    """Every arm against the base; from samples also against the base at any temperature."""
    beside = tuple(Question(a=name, b=BASE, metric=Metric(k=n)) for n in (k, 1) for name in arms)
    apart = [metric for metric in above_colder(k) if metric.k in (1, FEW, k)] if sampled else []
    return beside + tuple(Question(a=name, b=COLDER, metric=metric) for metric in apart for name in arms)


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
) -> plans.Sweep:
    """The demo as a sweep; every edit is made in every arm. powers: whether the base is tempered over whole completions too.

    model: "smollm2", or a policy that takes the place of the shipped one."""
    named = model if any(model == name for name, _ in DESIGNS) else EMBEDDED
    typed = [*edits, *([("model", model)] if named != model else [])]
    path, spec = design(seeds, arms, problems, named, short)
    try:
        planned = plans.plan(path, out, spec, typed, powers=POWERS if powers else ())
        prepared(planned.arms[0].config.model)  # a pretrained model is converted here, or what is missing for it is said
        return planned
    except ConfigError as error:
        if not any(name.startswith("method.") for name, _ in edits):
            raise
        raise ConfigError(
            f"{error}. Note: the demo makes every edit in each arm, and the arms differ in `method`; in an arm with a "
            "guide the KL weight is method.base.beta. Select the arms that have the key with --arms, or edit a copy of the recipe "
            "and use: sage-rlvr train"
        ) from error


def at_a_time(planned: plans.Sweep) -> int:
    """Training runs at a time that the cores of this machine hold."""
    return max(1, cores() // (planned.arms[0].config.engine.threads or cores()))


def check_by_sampling(planned: plans.Sweep, n: int = 128, problems: int = 40) -> dict[str, float]:
    """Compare the sampled share of right completions of the base with the exact one, see `cross_check`; {} without an exact one."""
    if not planned.base:
        return {}
    config, record = planned.arms[0].config, load_record(record_path(planned.out, "base"))
    target = Target("base", config.model, config.world)
    tokens = config.rollout.max_new_tokens
    return cross_check(target, record, n=n, problems=problems, max_new_tokens=tokens, seed=EVALUATION_SEED)
