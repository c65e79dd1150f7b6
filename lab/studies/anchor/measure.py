"""The laboratory on a real policy: what each KL term descends, exactly, in the parameters of a Countdown model.

For a handful of problems all completions are listed, and every objective's exact expected gradient (`expectations.py`) is held
against that of SAGE's Eq. (6): cosine and length of the KL term and of the whole, what a guide adds, and how far the gradient
of a single completion scatters (`variances.py`).
`run_lab` puts the numbers into plain values (`rows.py`); what it measures is said in `terms.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lab.studies.anchor.expectations import (
    Case,
    Gradients,
    drawn_log_q,
    equation6,
    gradients,
    is_noisy,
    open_case,
    shaping_of,
    view_of,
)
from lab.studies.anchor.rows import ADMITTED, FOR_THE_RECORD, LabResult, LabRow, ProblemFacts, Status, Strength
from lab.studies.anchor.terms import GUIDES, PAPER_BRANCH, TERMS, Term
from lab.studies.anchor.variances import NO_BASELINE, Scatter, variances
from sage_rlvr.config import OptimizerConfig, RolloutConfig, TrainConfig, WorldConfig
from sage_rlvr.core.guides import Branch, Guide, is_flat
from sage_rlvr.core.keys import Key
from sage_rlvr.core.method import Method
from sage_rlvr.errors import CancellingGuide, ConfigError, DataError
from sage_rlvr.evaluation.evaluate import resolve
from sage_rlvr.methods import no_kl, sage
from sage_rlvr.models.folders import EMBEDDED
from sage_rlvr.models.policy import Tokens, load_policy
from sage_rlvr.tasks.countdown import parse_prompt
from sage_rlvr.training.loop import build, train_step
from sage_rlvr.training.reference import check_vocabularies, frozen

WORLD = WorldConfig(counts={3: 1.0}, max_number=9, max_target=20, train_problems=400)
"""Three numbers: what the embedded base was mostly taught, so that some 2,000 prefixes hold 99.9 % of a problem. Four would
take a hundred thousand, and of two the base was taught nothing."""
MAX_NEW_TOKENS, MOST_STATES = 24, 3000
MOVED_STEPS, MOVED_LR = 12, 3e-4
LIKELY = 1e-3
"""A strength is taken over the completions with more probability than this."""
ROUNDING = 1e-4
"""A change of a gradient that is shorter than this share of it counts as none."""
Progress = Callable[[str], None]


def run_lab(
    policy: str | Path | None = None,
    problems: int | Sequence[Any] = 5,
    draws: int = 256,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    reference: str = EMBEDDED,
    beta: float = 0.05,
    guides: Mapping[str, Guide] = GUIDES,
    remainder: float = 1e-3,
    most_states: int = MOST_STATES,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> LabResult:
    """The table of cosines, lengths and variances on real Countdown problems; a pure function of its arguments.

    policy: a run directory, a policy's folder or a Hub id; None trains `moved_policy`. problems: how many of the first
    training problems of `WORLD` that fit, or problems (prompts such as "2 3 5=13:" too). draws: completions drawn per problem
    for the variances, 0 for none. progress: called with a line of text at each stage. Raises ConfigError for what cannot
    be loaded or does not share a vocabulary with the reference, DataError for a problem that does not fit `most_states`.
    """
    say = progress or (lambda line: None)
    if draws < 0 or (isinstance(problems, int) and problems < 1) or not beta > 0:
        raise ConfigError(f"problems = {problems}, draws = {draws}, beta = {beta}: give >= 1, >= 0 and above 0")
    if "Flat" not in guides or not is_flat(guides["Flat"]):
        raise ConfigError(
            f"guides {', '.join(guides)}: the first of them all is 'Flat', which the others are held against."
        )
    with _one_thread():
        model, tokens, words = _policy(policy, seed, say)
        base, base_tokens = load_policy(reference)
        check_vocabularies((words, model, tokens), (reference, base, base_tokens))
        limits = {"max_new_tokens": max_new_tokens, "remainder": remainder, "most_states": most_states}
        measured: list[_Measured] = []
        passed_over = 0
        for opened in _cases(model, frozen(base), tokens, problems, **limits):
            if isinstance(opened, DataError):
                passed_over += 1
                continue
            if opened.kl < 1e-9:
                raise ConfigError(
                    f"policy {words!r} and reference {reference!r} are the same on {opened.name!r}: every KL term has gradient "
                    "0 there, so there is nothing to compare; give a policy that has been trained, or none for the default."
                )
            say(f"{opened.name} {len(opened.listed.probs):,} completions, remainder {opened.listed.remainder:.2g}")
            measured.append(_measure(opened, guides, beta, draws, Key(seed), len(measured)))
    facts = tuple(one.facts for one in measured)
    return LabResult(
        rows=tuple(_rows(measured, seed)),
        problems=facts,
        strengths=tuple(_strengths(measured, guides)),
        remainder=max(fact.remainder for fact in facts),
        policy=words,
        reference="the embedded base" if reference == EMBEDDED else reference,
        beta=beta,
        draws=draws,
        seed=seed,
        passed_over=passed_over,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums over several threads may round differently from run to run; the caller's number is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def moved_policy(seed: int, progress: Progress) -> tuple[PreTrainedModel, Tokens, str]:
    """The embedded base after a few steps of GRPO without KL on the lab's world, and these words; nothing is written.

    16 prompts of 16 completions per step, as in the demo; a larger learning rate than there, so that few steps suffice to
    move the policy some tenths of a nat away from the base.
    """
    config = TrainConfig(
        seed=seed,
        steps=MOVED_STEPS,
        world=WORLD,
        method=no_kl(),
        rollout=RolloutConfig(prompts_per_step=16, group_size=16, max_new_tokens=MAX_NEW_TOKENS),
        optimizer=OptimizerConfig(lr=MOVED_LR),
    )
    loop = build(config)
    for step in range(MOVED_STEPS):
        metrics = train_step(loop, step)
        if (step + 1) % 4 == 0:
            progress(f"moving the policy: step {step + 1} of {MOVED_STEPS}, reward {metrics['reward/mean']:.2f}")
    words = f"the embedded base after {MOVED_STEPS} steps of GRPO without KL (lr {MOVED_LR:g}, seed {seed}) on three numbers"
    return loop.policy, loop.tokens, words


def _policy(policy: str | Path | None, seed: int, say: Progress) -> tuple[PreTrainedModel, Tokens, str]:
    if policy is None:
        return moved_policy(seed, say)
    target = resolve(str(policy), WORLD)
    model, tokens = load_policy(target.model)
    return model.eval(), tokens, target.name if target.run is None else f"the policy of run {target.name}"


def _cases(
    model: PreTrainedModel, base: PreTrainedModel, tokens: Tokens, problems: int | Sequence[Any], **limits: Any
) -> Iterator[Case | DataError]:
    """The cases that were asked for by name; or the first that fit of the world's, a DataError for each that does not."""
    task, found = WORLD.build(), 0
    opened = partial(open_case, model, base, tokens, task, **limits)
    if not isinstance(problems, int):
        yield from (opened(parse_prompt(one) if isinstance(one, str) else one) for one in problems)
        return
    for problem in task.problems("train", WORLD.data_seed, WORLD.train_problems):
        try:
            case = opened(problem)
        except DataError as error:
            yield error
            continue
        yield case
        found += 1
        if found == problems:
            return
    raise DataError(
        f"only {found} of {problems} problems fit most_states = {limits['most_states']:,} with remainder = "
        f"{limits['remainder']:g}; raise one of them."
    )


Numbers = dict[str, float]


@dataclass(frozen=True, eq=False)
class _Measured:
    """What one problem gives: facts, numbers of each (objective, guide), strengths, scatters."""

    facts: ProblemFacts
    numbers: dict[tuple[str, str], Numbers]
    status: dict[tuple[str, str], Status]
    strengths: dict[str, tuple[float, float]]
    scatters: dict[str, Scatter]


def _measure(case: Case, guides: Mapping[str, Guide], beta: float, draws: int, key: Key, number: int) -> _Measured:
    shaped = {
        (name, view): shaping_of(guide, view, key)
        for name, guide in guides.items()
        for view in (case.every, case.by_state)
    }
    pulled = {name: case.pull(equation6(case, shaped[name, case.every].of_log_q)) for name in guides}
    reward = case.pull(equation6(case, beta=0.0, rewarded=True))
    numbers: dict[tuple[str, str], Numbers] = {}
    status: dict[tuple[str, str], Status] = {}
    for term in TERMS:
        flat = gradients(case, term.build(beta=1.0))
        for name, guide in guides.items():
            found = _admitted(term, guide, case, key)
            if found is None:
                continue
            method, status[term.name, name] = found
            log_q = shaped[name, view_of(case, method)].of(term.linear)
            own = flat if is_flat(guide) else gradients(case, method, log_q)
            numbers[term.name, name] = _compared(own, pulled[name], reward, beta)
            if not is_flat(guide):
                added = _added(own.kl - flat.kl, flat.kl, pulled[name] - pulled["Flat"], pulled["Flat"])
                numbers[term.name, name] |= added
    sampled = {term.name: term.build(beta=1.0) for term in TERMS if term.base == "RLOO"}
    scatters = variances(case, sampled, draws=draws, key=key, number=number) if draws else {}
    facts = ProblemFacts(
        case.name, case.right, case.kl, len(case.listed.probs), case.listed.state_count, case.listed.remainder
    )
    dosed = {**guides, PAPER_BRANCH: Branch()}
    return _Measured(facts, numbers, status, {name: _strength(case, g, key) for name, g in dosed.items()}, scatters)


def _admitted(term: Term, guide: Guide, case: Case, key: Key) -> tuple[Method, Status] | None:
    """The term's method with the guide in its anchor; without it, for the record, where the anchor refuses a guide that
    cancels; None where the two cannot be put together at all."""
    base = term.build(beta=1.0)
    if is_flat(guide):
        return base, ADMITTED
    if term.base == "Dr. GRPO" or (term.linear == "neither" and is_noisy(guide, case.by_state, key)):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "noise only": the lab is there to show it
        try:
            return sage(base, guide), ADMITTED
        except CancellingGuide:
            return base, FOR_THE_RECORD
        except ConfigError:
            return None


def _compared(own: Gradients, target: Tensor, reward: Tensor, beta: float) -> Numbers:
    """Cosines and length ratios with Eq. (6), of the KL part and of the whole."""
    whole, whole_target = own.whole(beta), reward + beta * target
    return {
        "cosine": _cosine(own.kl, target),
        "norm_ratio": _length(own.kl) / _length(target),
        "whole_cosine": _cosine(whole, whole_target),
        "whole_norm_ratio": _length(whole) / _length(whole_target),
    }


def _added(change: Tensor, flat: Tensor, wanted: Tensor, target: Tensor) -> Numbers:
    """What a guide adds to a gradient, against what it adds to Eq. (6); rounding counts as nothing."""
    found = {"guide_norm": _length(change) / _length(flat)}
    if _length(wanted) > ROUNDING * _length(target):
        along = float(change.double() @ wanted.double()) / _length(wanted)
        found["guide_cosine"] = along / max(_length(change), ROUNDING * _length(flat))
    return found


def _length(vector: Tensor) -> float:
    return float(vector.double().norm())


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(a.double() @ b.double()) / (_length(a) * _length(b))


def _strength(case: Case, guide: Guide, key: Key) -> tuple[float, float]:
    """(share of tokens with q other than 1, mean q), over the likely completions and 64 draws of the noise."""
    signals, probs = case.every.listing.signals, case.every.listing.probs
    rows = (probs > LIKELY).nonzero().squeeze(1)
    log_q = drawn_log_q(guide, signals, rows, key, 64)
    weights = probs[rows][:, None] * signals.mask[rows]
    total = weights.sum()
    return float(((log_q != 0).double().mean(0) * weights).sum() / total), float(
        (log_q.exp().double().mean(0) * weights).sum() / total
    )


def _strengths(measured: Sequence[_Measured], guides: Mapping[str, Guide]) -> Iterator[Strength]:
    for name, guide in {**guides, PAPER_BRANCH: Branch()}.items():
        active, mean = np.mean([one.strengths[name] for one in measured], axis=0)
        yield Strength(name, guide.equation, float(active), float(mean))


def _rows(measured: Sequence[_Measured], seed: int) -> Iterator[LabRow]:
    for name, guide in measured[0].numbers:
        row = _row(name, guide, measured[0].status[name, guide], [one.numbers[name, guide] for one in measured])
        if guide != "Flat" or name not in measured[0].scatters:
            yield row
            continue
        for shown in (shown for shown in (name, name + NO_BASELINE) if shown in measured[0].scatters):
            units = [one.numbers[name, guide]["norm_ratio"] ** 2 for one in measured]
            yield replace(row, objective=shown, **_scattered([one.scatters[shown] for one in measured], units, seed))


def _row(objective: str, guide: str, status: Status, found: Sequence[Numbers]) -> LabRow:
    columns = {name: [one[name] for one in found if name in one] for name in ("guide_cosine", "guide_norm", *found[0])}
    means = {name: float(np.mean(column)) if column else None for name, column in columns.items()}
    spreads = {
        f"{name}_spread": (min(columns[name]), max(columns[name])) if columns[name] else None
        for name in ("cosine", "whole_cosine", "guide_cosine")
    }
    return LabRow(objective, guide, status, **means, **spreads)  # type: ignore[arg-type]


def _scattered(found: Sequence[Scatter], units: Sequence[float], seed: int, resamples: int = 2000) -> dict[str, Any]:
    """The mean over problems of trace Cov / |grad of Eq. (6)'s KL|^2, with the draws of each problem resampled for its
    interval, of trace Cov / |mean|^2, and of the gap. units: |mean|^2 over |grad of Eq. (6)'s KL|^2, one per problem.

    The resampled draws are the same for every estimator of a seed.
    """
    chance = np.random.Generator(np.random.Philox(seed))
    own = [one.distances / one.norm2 for one in found]
    ratios = [unit * ratio for unit, ratio in zip(units, own, strict=True)]
    tried = [r[chance.integers(0, len(r), (resamples, len(r)))].mean(1) for r in ratios]
    low, high = np.quantile(np.mean(tried, axis=0), [0.025, 0.975])
    return {
        "variance_ratio": float(np.mean([r.mean() for r in ratios])),
        "variance_interval": (float(low), float(high)),
        "snr_completions": float(np.mean([r.mean() for r in own])),
        "mean_gap": float(np.mean([one.gap for one in found])),
    }
