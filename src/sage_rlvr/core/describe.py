"""Text description of a method: its equation with values filled in, and the expected gradient of its terms."""

from __future__ import annotations

import re

from sage_rlvr.core.anchor import Anchor, length_note
from sage_rlvr.core.extras import MethodParts, the_one
from sage_rlvr.core.guides import Placebo, band_of, factors, is_flat
from sage_rlvr.core.rollout_plans import is_spread, is_staged
from sage_rlvr.core.schedules import show

SAMPLED = "the engine has no exact forward KL; k3 is its estimate from the sampled tokens, whose gradient has more variance"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of objects without a repr of their own: another in every process


def objective_words(method: MethodParts | None, anchor: Anchor | None) -> str:
    """Return the objective of a run on TRL or verl, as stored in its checkpoints.

    This is `described_on_engine` of the method, which starts with its name; or, without a method, the guide, KL estimator and beta
    that are added to the engine's own loss.
    """
    if method is not None:
        words = f"method {described_on_engine(method)}"
    elif anchor is not None:
        words = f"guide={anchor.guide!r}, estimator {anchor.estimator}, beta {anchor.beta!r}"
    else:
        words = "no KL term"
    return _ADDRESS.sub("", words)


def described_on_engine(method: MethodParts) -> str:
    """Return `describe` of a method as TRL and verl descend it (`anchor.sampled`)."""
    on_engine = method.sampled()
    return describe(method) if on_engine is method else f"{describe(on_engine)}\n  note: {SAMPLED}"


def describe(method: MethodParts) -> str:
    """Return the loss that is actually optimized and the expected gradient of its terms, as lines of text."""
    extras = method.extras
    buffer, source, weight = (the_one(extras, name) for name in ("buffer", "reward_source", "token_weight"))
    if buffer is not None and buffer.alone:
        return "\n".join([f"{method.name}: minimize", *buffer.lines])
    objective, penalty = _objective(method)
    advantage = method.advantage.equation if weight is None else f"w_t * [{method.advantage.equation}]"
    lines = [f"{method.name}: minimize", objective]
    lines.append(f"  rho = pi / pi_old,  A = {advantage}{penalty}")
    terms = [extra for extra in extras if extra.hook == "on_loss"]
    paying = [extra for extra in extras if extra.hook == "after_rewards"]
    legends = (method.surrogate.legend, method.advantage.legend, *(extra.legend for extra in terms))
    lines += [f"  {text}" for text in legends if text]
    for extra in extras:
        if extra.hook == "":
            lines.append(f"  {type(extra).__name__}: {extra.equation}{',  ' * bool(extra.legend)}{extra.legend}")
    whose = "verifier" if source is None else "policy"
    if source is not None:
        reward = "R" if paying else "r"  # what the verifier would give, before extras change it
        lines.append(f"  {reward} = {source.equation}")
        lines += [f"  {source.legend}"] * bool(source.legend)
        lines.append("  the verifier is only used for metrics (reward/auc: how well r ranks completions by their verdicts)")
    for number, extra in enumerate(paying):
        if number:
            of = "of r, that of the line before"
        elif extra.needs:
            of = f"of R, the {whose}'s"
        else:
            of = f"of the {whose}'s reward and the length"
        lines.append(f"  r = {extra.equation}, {of}")
    if weight is not None:
        lines.append(f"  w_t = {weight.equation}{',  ' * bool(weight.legend)}{weight.legend}")
    if method.rollout is not None:
        lines.append(f"  rollout: {method.rollout.equation}")
    if source is not None:
        lines += [f"  expected gradient of the reward term, on-policy: {source.ascends}"] * bool(source.ascends)
    elif ascends := method.surrogate.ascends or method.advantage.ascends:
        weighed = "" if weight is None else ", before the token weight"
        changed = [type(extra).__name__ for extra in extras if extra.changes_advantages]
        weighed += f", without {' and '.join(changed)}" if changed else ""
        held = "; not so here, as y_1 is chosen: see the note" if is_spread(method.rollout) else ""
        if any(extra.needs for extra in paying):
            held += "; r is treated as constant, E[r grad log pi], up to O(1/G) if the rewards of the others depend on this row"
        if is_staged(method.rollout):
            held += "; this holds per completion with G the size of its group, so prompts with more completions weigh more"
        lines.append(f"  expected gradient of the reward term, on-policy{weighed}: {ascends}{held}")
    lines += [f"  expected effect of the loss term, on-policy, is to raise: {one.ascends}" for one in terms if one.ascends]
    lines.append(f"  among right answers of a prompt: {preference(method)}")
    anchor = _live(method)
    lines += ["  no KL term"] if anchor is None else anchor_lines(anchor)
    if buffer is not None:
        lines += ["in addition", *buffer.lines]
    return "\n".join(lines + [f"  note: {note}" for note in _notes(method)])


def anchor_lines(anchor: Anchor) -> list[str]:
    """Return lines on the KL term of an objective without a method: q, the reference, and the expected gradient."""
    return [] if anchor.is_off else [*_q_lines(anchor), *_prompt_lines(anchor), _reference_line(anchor), _descended(anchor)]


def essence(method: MethodParts) -> list[str]:
    """The lines of `describe` that distinguish the arms of a sweep: the objective, q, and the gradient of the KL term."""
    buffer = the_one(method.extras, "buffer")
    if buffer is not None and buffer.alone:
        return [buffer.lines[0]]
    anchor = _live(method)
    return [_objective(method)[0], *([] if anchor is None else [*_q_lines(anchor), *_prompt_lines(anchor), _descended(anchor)])]


def _live(method: MethodParts) -> Anchor | None:
    """Return the anchor of a method that has a KL term."""
    return None if method.anchor is None or method.anchor.is_off else method.anchor


def _objective(method: MethodParts) -> tuple[str, str]:
    """Return the minimized expression, and what a KL in the reward subtracts from the advantage."""
    anchor, inner, penalty = _live(method), method.surrogate.equation, ""
    if anchor is not None:
        beta, reference = show(anchor.beta), "pi_ref" if is_flat(anchor.guide) else "q pi_ref"
        if anchor.placement == "loss":
            inner += f"  +  {beta} * {_of_prompt(anchor)}{_term(anchor)}(pi, {reference})"
        else:
            scale = "(G-1)/G * " if method.advantage.takes_group_mean else ""
            scale = _of_prompt(anchor) + scale
            penalty = f" - {beta} * {scale}(K_t - mean_others K_t),  K_t = sum_(s>=t) [ log pi_old - log({reference}) ]"
    inner += "".join(f"  {extra.equation}" for extra in method.extras if extra.hook == "on_loss")
    weight = "w " if method.rollout is not None and method.rollout.weighs else ""
    return f"  {method.reduction.equation} {weight}[ {inner} ]", penalty


def preference(method: MethodParts) -> str:
    """Return which correct answers the reward term prefers, as text."""
    stored = [extra for extra in method.extras if extra.hook == "stored_loss"]
    paying = [extra for hook in ("rewards_of", "after_rewards") for extra in method.extras if extra.hook == hook]
    before = () if method.advantage.evens else paying
    others = (extra for extra in method.extras if extra not in (*paying, *stored))
    parts = stored if method.is_replay_only else (*before, method.advantage, *others, *stored)
    preferences = [part.prefers for part in parts if part.prefers]
    return "; ".join(preferences) or "no preference, so the likelier answers gain most"


def _reference_line(anchor: Anchor) -> str:
    known = {
        "base": "the model before any fine-tuning (base_model of the run, or by default its initial model)",
        "sft": "the initial model of the run",
    }
    text = known.get(anchor.source, anchor.source)
    if anchor.snapshot_step is not None:
        text = f"the policy after step {anchor.snapshot_step}, and until then the initial model of the run"
    replaced = f", replaced by the policy every {anchor.refresh_every} steps" if anchor.refresh_every else ""
    return f"  pi_ref = {text}{replaced}"


def _term(anchor: Anchor) -> str:
    """Return the estimator's name in the equation; for an exact sum, the divergence."""
    if anchor.estimator != "exact":
        return anchor.estimator
    return f"exact_alpha[{anchor.effect.alpha:g}]" if anchor.divergence == "alpha" else f"exact_{anchor.divergence}"


def _q_lines(anchor: Anchor) -> list[str]:
    """Return lines on the guide; [] if q is 1."""
    if is_flat(anchor.guide):
        return []
    low, high = band_of(anchor.guide)
    single = len(factors(anchor.guide)) == 1
    band = "clamped to" if single else "each factor clamped to its band, their product in"
    band = "so that it is in" if single and anchor.guide.pays_nothing else band
    return [f"  q_t = {anchor.guide.equation}, {band} [{low:g}, {high:g}]"]


def _descended(anchor: Anchor) -> str:
    return f"  expected gradient of the KL term, on-policy: {_of_prompt(anchor)}{anchor.effect.text}"


def _of_prompt(anchor: Anchor) -> str:
    """Return the factor on beta of each prompt."""
    return "" if anchor.prompts is None else "v_x * "


def _prompt_lines(anchor: Anchor) -> list[str]:
    """Return lines on the prompt weights in the KL term; [] if all prompts count alike."""
    return [] if anchor.prompts is None else [f"  v_x = {anchor.prompts.equation},  {anchor.prompts.legend}"]


_NOISE = {
    "sequence": "E[log q] < 0, a drift toward shorter answers",
    "js": "noise, and a second-order change of the mean, because JS is not linear in q",
}


def _notes(method: MethodParts) -> list[str]:
    """Return notes on side effects that the equation does not show."""
    anchor = method.anchor
    plan = method.rollout
    staged = [plan.note] if is_staged(plan) or is_spread(plan) else []
    if anchor is None or anchor.is_off:
        return staged
    notes = staged + ([note] if (note := length_note(anchor, method.reduction)) else [])
    if against := method.advantage.against_kl:
        notes.append(against)
    if plan is not None and not is_spread(plan):
        notes.append("dropped groups have no KL term either: the KL acts only at the states of kept groups")
    if anchor.placement == "reward":
        if any(isinstance(part, Placebo) and not part.pays_nothing for part in factors(anchor.guide)):
            notes.append(
                "Placebo: each token is rewarded with its mean log q, which favors long answers if that mean is above "
                "0 and short answers below; centered=True removes the mean"
            )
        notes.append("mean_others K_t is the mean over the other completions of the group that reach t, 0 if none does")
        notes.append("later updates of a rollout clip the KL together with the reward: exact if no ratio is clipped")
        if method.reduction.divisor == "batch":
            notes.append(
                "sum_i |y_i| varies from batch to batch with the sampled lengths, so the expected gradient equals "
                "that of the KL only up to O(1/B); FixedBudget() is exact"
            )
    if anchor.estimator == "k3" and not is_flat(anchor.guide):
        notes.append("at pi = pi_ref the shaped k3 is q - log q - 1, not 0: read kl/to_reference together with kl/to_anchor")
    for name in sorted({type(part).__name__ for part in factors(anchor.guide) if part.depends_on == "nothing"}):
        notes.append(f"{name}: {_NOISE.get(anchor.effect.descends, 'noise only')}")
    return notes
