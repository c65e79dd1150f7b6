"""Checks of the curves of a log. Each yields findings with the step at which they begin.

Bounds are on sizes, not on certainty: in a healthy run entropy falls, the KL rises and groups become equal too, so that a change
is not yet a finding.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from sage_rlvr.symptoms.finding import Finding, Severity, shortened
from sage_rlvr.symptoms.logs.curves import LEAST, Curve, Curves, correlation
from sage_rlvr.symptoms.logs.table import Floats, LogTable, curve_of

STILL = 1e-7  # nats per token of a policy that has not moved
FAR = 1.0  # nats per token of a policy that has left its language
BACK = 5.0  # a KL that falls by this factor within a step was not the policy's
WORN = 0.05  # entropy in nats per token, below which completions are alike


# ---- rewards that are no numbers, or never vary


def not_finite(curves: Curves) -> Iterator[Finding]:
    """Find a NaN or an infinity, or the end of a run because of one."""
    bad = []
    for name in ("loss", "grad_norm", "reward", "kl", "entropy"):
        steps, values = curves.table.curve(name)
        bad += [(step, name) for step, value in zip(steps, values, strict=True) if not math.isfinite(value)]
    ended = curves.table.ended
    if not bad and not ended:
        return
    step, name = min(bad, default=(None, "loss"))
    again = sorted({where for where, _ in bad})
    until = f"in {len(again)} steps, the last is {again[-1]}" if len(again) > 1 else "in one step"
    yield Finding(
        cause="not-finite",
        severity="cannot learn",
        sentence=ended or f"{name} is not finite at step {step} ({until}): an update with it loses weights and moments",
        next_step="go back to the checkpoint before it; look for an infinite reward, fp16, or a learning rate that is too high",
        step=step,
    )


def constant(curves: Curves) -> Iterator[Finding]:
    """Explain a reward that never varies by the other curves of the log."""
    reward, unmixed = curves.reward, curves["unmixed"]
    if len(reward.values) < 3 or curves.varies or (unmixed and unmixed.mean < 0.98):
        return
    value, first, last = float(reward.values[0]), reward.steps[0], reward.steps[-1]
    none, undecided = curves["no_answer"], curves["undecided"]
    if value <= 1e-9 and curves["cut"] and curves["cut"].mean > 0.5:
        yield _cut(curves, "cannot learn", f", and the reward is {value:g} in every step")
    elif undecided and undecided.mean > 0.5:
        yield _undecided(curves, "cannot learn", first)
    elif none and none.mean > 0.5:
        yield _no_answer(none.mean, "cannot learn", first)
    elif value <= 1e-9:
        yield Finding(
            cause="all-wrong",
            severity="cannot learn",
            sentence=f"the reward is {value:g} for every completion up to step {last}: prompt, gold, reward or problems"
            + _example(curves.table),
            next_step="a log cannot tell which; sage-rlvr preflight judges golds and the rows next to them",
            step=first,
        )
    elif abs(value - 1) < 1e-9:
        yield Finding(
            cause="all-right",
            severity="cannot learn",
            sentence=f"every completion earns 1 up to step {last}: the problems are too easy, or the reward pays everything",
            next_step="use harder problems; first check that wrong answers earn 0: sage-rlvr preflight",
            step=first,
        )
    else:
        yield Finding(
            cause="reward-constant",
            severity="cannot learn",
            sentence=f"the reward is {value:g} in every step",
            next_step="read the reward function: a default, or an exception that is caught",
            step=first,
        )


def _example(table: LogTable) -> str:
    """A completion in words, with its prompt and gold."""
    if not table.completions:
        return ""
    one = table.completions[len(table.completions) // 2]
    gold = f", gold {shortened(one.gold)}" if one.gold else ""
    return f"; such as {shortened(one.text)} for {shortened(one.prompt)}{gold}"


def parts(curves: Curves) -> Iterator[Finding]:
    """Find one of several reward functions that never pays."""
    for name, column in curves.table.rewards.items():
        part = Curve.of(name, *curve_of(column))
        if len(part.values) >= LEAST and curves.varies and not part.values.any():
            yield Finding(
                cause="all-wrong",
                severity="warning",
                sentence=f"{name} is 0 for every completion up to step {part.steps[-1]}: the reward is that of the others",
                next_step=f"call {name} on a right answer, as the trainer calls it: sage-rlvr preflight",
                step=part.steps[0],
            )


def _cut(curves: Curves, severity: Severity, also: str = "", step: int | None = None) -> Finding:
    """Completions at the limit: texts that repeat one phrase would not end at any other limit either."""
    share, looping = curves["cut"], curves.looping > 0.3
    repeats = f"; {curves.looping:.0%} of them repeat one phrase" if looping else ""
    return Finding(
        cause="never-ends" if looping else "limit-too-short",
        severity=severity,
        sentence=f"{share.mean:.0%} of the completions are cut at the limit{also}{repeats}",
        next_step="check template and end token" if looping else "raise the limit; preflight says how far",
        step=share.steps[0] if step is None else step,
    )


def _undecided(curves: Curves, severity: Severity, step: int) -> Finding:
    said = next((one for one in curves.table.warnings if "undecided" in one and "(" in one), "")
    why = f" ({said.partition('(')[2].partition(')')[0]})" if said else ""
    return Finding(
        cause="reward-timeouts",
        severity=severity,
        sentence=f"{curves['undecided'].mean:.0%} of the verdicts are undecided and earn 0{why}",
        next_step="raise task.seconds, or make the reward faster",
        step=step,
    )


def _no_answer(share: float, severity: Severity, step: int | None) -> Finding:
    return Finding(
        cause="no-answer",
        severity=severity,
        sentence=f"{share:.0%} of the completions have nothing where the answer is read",
        next_step="sage-rlvr preflight names the place that has the answers",
        step=step,
    )


# ---- rewards that vary, and completions


def answers(curves: Curves) -> Iterator[Finding]:
    """Completions that are cut, without an answer, or without a verdict."""
    share, none, undecided = curves["cut"], curves["no_answer"], curves["undecided"]
    if not curves.varies:
        return
    if share and share.end > 0.3 and share.end > 2 * share.start:
        yield Finding(
            cause="limit-too-short",
            severity="warning",
            sentence=f"the share cut at the limit rose from {share.start:.0%} to {share.end:.0%}",
            next_step="raise the limit, or price length; read what the longer completions say",
            step=share.first(above=0.3),
        )
    elif share and share.mean > 0.4:
        yield _cut(curves, "warning")
    if none and none.end > 0.5 and not (share and share.values[-1] > 0.5):
        yield _no_answer(none.end, "warning", none.first(above=0.5))
    if undecided and undecided.mean > 0.05:
        yield _undecided(curves, "warning", undecided.first(above=0.05) or undecided.steps[0])


# ---- groups


def dropped(curves: Curves) -> Iterator[Finding]:
    """Dynamic sampling that hardly finds groups with mixed rewards."""
    missing, draws = curves["missing_groups"], curves["draws"]
    if missing and missing.mean > 0.25:
        yield Finding(
            cause="groups-dropped",
            severity="warning",
            sentence=f"dynamic sampling found {1 - missing.mean:.0%} of a step's groups on average",
            next_step="use problems of another difficulty, larger groups, or more refills",
            step=missing.first(above=0.25),
        )
    elif draws and draws.end >= 8:
        yield Finding(
            cause="groups-dropped",
            severity="warning",
            sentence=f"a step draws {draws.end:.0f} batches to find groups with mixed rewards",
            next_step="use problems of another difficulty, or larger groups",
            step=draws.first(above=7.5),
        )


def mixed(curves: Curves) -> Iterator[Finding]:
    """Groups without mixed rewards, though the mean varies."""
    unmixed, reward, entropy = curves["unmixed"], curves.reward, curves["entropy"]
    if not unmixed or not curves.varies or len(unmixed.values) < 3:
        return
    solved = reward.end > 0.95 or reward.mean > 0.95
    collapsed, fallen = entropy and entropy.end < WORN, entropy and entropy.end < 0.15 * entropy.start
    if unmixed.mean > 0.99 and not solved and not collapsed:
        yield Finding(
            cause="group-of-one",
            severity="cannot learn",
            sentence="no group ever has mixed rewards, though the mean reward varies from step to step",
            next_step="check that a group has several completions (n, num_generations) and that they are sampled, not greedy",
            step=unmixed.steps[0],
        )
    elif not solved and ((collapsed and unmixed.end > 0.5) or (fallen and unmixed.end > max(0.6, unmixed.start))):
        yield _collapse(entropy, unmixed, reward.end)
    elif reward.mean > 0.95 and unmixed.mean > 0.6 and reward.start > 0.9:
        yield Finding(
            cause="all-right",
            severity="warning",
            sentence=f"the reward is {reward.mean:.2g} from the start, and {unmixed.mean:.0%} of the groups have equal rewards",
            next_step="use harder problems",
            step=unmixed.steps[0],
        )
    elif unmixed.mean > 0.85 and not solved:
        yield Finding(
            cause="few-mixed",
            severity="warning",
            sentence=f"{unmixed.mean:.0%} of the groups have equal rewards, at a mean reward of {reward.mean:.2g}",
            next_step="choose problems that are solved now and then, or larger groups",
            step=unmixed.first(above=0.85),
        )


def _collapse(entropy: Curve, unmixed: Curve, reward: float) -> Finding:
    step = entropy.first(below=max(0.25 * entropy.start, 0.02))
    return Finding(
        cause="entropy-collapse",
        severity="warning",
        sentence=f"entropy fell from {entropy.start:.2g} to {entropy.end:.2g} nats per token and {unmixed.end:.0%} of the groups "
        f"are equal, at a reward of {reward:.2g}",
        next_step="add a KL term or an entropy bonus, raise the temperature, lower the learning rate; restart before this step",
        step=step if step is not None else entropy.steps[0],
    )


def baseline(curves: Curves) -> Iterator[Finding]:
    """Advantages that are the rewards themselves: what an estimator makes of groups of one, for lack of a baseline."""
    least, most, low, high = (curves[name] for name in ("advantage_min", "advantage_max", "reward_min", "reward_max"))
    same = len(least.values) == len(most.values) == len(low.values) == len(high.values)
    if not same or len(most.values) < LEAST or high.values.max() == low.values.min():
        return
    if np.allclose(most.values, high.values, rtol=1e-3) and np.allclose(least.values, low.values, rtol=1e-3):
        yield Finding(
            cause="group-of-one",
            severity="cannot learn",
            sentence="in every step the largest and the smallest advantage are the largest and the smallest reward: nothing is "
            "subtracted, as in groups of one",
            next_step="set n (num_generations) to 8 or more: a group estimator has no baseline without a second completion",
            step=most.steps[0],
        )


# ---- a policy that stays


def stays(curves: Curves) -> Iterator[Finding]:
    """Find weights that do not move, or that the KL term holds back."""
    held = _moves_not(curves) or _held(curves)
    if held is not None:
        yield held
    gradient = curves["grad_norm"]
    if gradient and gradient.values.max() == 0.0 and curves.varies and len(curves.reward.values) >= LEAST:
        yield Finding(
            cause="few-mixed",
            severity="cannot learn",
            sentence="the gradient norm is 0 in every step: no advantage is other than 0",
            next_step="look at rewards within groups: sage-rlvr preflight",
            step=gradient.steps[0],
        )


def _moves_not(curves: Curves) -> Finding | None:
    """Weights that do not move, from the first of four signs that the log has."""
    kl, changed, rate, count = curves["kl"], curves["changed"], curves["lr"], len(curves.reward.values)
    if count < LEAST:
        return None
    severity: Severity = "cannot learn"
    next_step = (
        "raise the learning rate, or load the weights in float32 (bf16 weights round small updates away); else look for frozen "
        "weights, a long warm-up, a tiny max_grad_norm"
    )
    if changed and changed.end < 1e-3 and (not kl or kl.end < 1e-4):
        sentence = f"an update changes {changed.end:.2%} of the weights after rounding, and the KL is {kl.end if kl else 0:.1g}"
    elif kl and kl.steps[-1] - kl.steps[0] >= LEAST - 1 and kl.values.max() < STILL and _pushed(curves):
        at = f", lr {rate.peak:.1g}" if rate else ""
        sentence = f"after {kl.steps[-1]} steps with gradients the KL to the reference is {kl.values.max():.1g}{at}"
    elif _flat(kl, curves.table.begins) and _pushed(curves):
        severity = "warning"
        sentence = f"the KL to the reference is {kl.values[1]:.1g} after the first update, and still {kl.end:.1g} at the end"
    elif rate and not kl and rate.peak * count < STILL:
        sentence = f"a learning rate of {rate.peak:.1g} over {count} steps moves a weight by {rate.peak * count:.0e} at most"
        next_step = "raise the learning rate"
        if _warming(rate):
            sentence += "; it still climbs linearly at the end: a warm-up that is longer than the run"
            next_step = "shorten the warm-up, or train longer"
    elif _warming(rate):
        severity = "note"
        sentence = f"the learning rate still climbs linearly at step {rate.steps[-1]}, to {rate.values[-1]:.1g}: a warm-up"
        next_step = "nothing, if the warm-up is meant to take so long; else shorten it"
    elif rate and rate.peak > 0 and np.mean(rate.values == 0) > 0.3:
        severity = "warning"
        sentence = f"the learning rate is 0 in {np.mean(rate.values == 0):.0%} of the steps"
        next_step = "compare the schedule (warm-up, number of steps) with the steps that the run takes"
    else:
        return None
    cause = "weights-do-not-move"
    return Finding(cause=cause, severity=severity, sentence=sentence, next_step=next_step, step=curves.reward.steps[0])


def _warming(rate: Curve) -> bool:
    """Whether a learning rate rises by equal steps up to its end."""
    if len(rate.values) < LEAST:
        return False
    slopes = np.diff(rate.values) / np.diff(rate.steps)
    return bool(slopes.min() > 0 and np.allclose(slopes, slopes.mean(), rtol=0.05))


def _flat(kl: Curve, begins: int) -> bool:
    """Whether a KL is above 0 after the first updates, by rounding, and constant."""
    if len(kl.values) < 10 or kl.steps[0] > begins:
        return False
    first = float(np.median(kl.values[1:4]))
    return 0 < first < 1e-3 and kl.end < 1.5 * first


def _pushed(curves: Curves) -> bool:
    """Whether updates had gradients."""
    gradient, unmixed = curves["grad_norm"], curves["unmixed"]
    return (not gradient or gradient.mean > 1e-6) and (not unmixed or unmixed.mean < 0.99)


def _held(curves: Curves) -> Finding | None:
    """A policy that the KL term holds at its reference."""
    kl, reward, beta = curves["kl"], curves.reward, _beta(curves)
    if beta is None or beta < 1.0 or not kl or kl.end > 0.3 or reward.end > reward.start + 0.1:
        return None
    return Finding(
        cause="beta-too-high",
        severity="warning",
        sentence=f"beta is about {beta:.2g} and the KL stays at {kl.end:.1g} nats per token: the KL term holds the policy at its "
        "reference",
        next_step="lower beta: 0 to 0.1 is usual",
        step=kl.steps[0],
    )


def _beta(curves: Curves) -> float | None:
    """beta from the settings, its own curve, or the loss.

    At the first update of a rollout GRPO's loss is beta times the KL."""
    setting = curves.table.settings.get("beta")
    if setting is not None:
        return float(setting)
    if curves["beta"]:
        return curves["beta"].end
    kl, loss = curves.common("kl", "loss")
    kl, loss = kl[kl > 1e-8], loss[kl > 1e-8]
    if len(kl) < LEAST:
        return None
    slope = float((kl * loss).sum() / (kl * kl).sum())
    return slope if correlation(kl, loss) > 0.9 and slope > 0 else None


# ---- a policy that leaves


def leaves(curves: Curves) -> Iterator[Finding]:
    """Find a policy that runs away, by KL, entropy and gradients, or a KL that is not the policy's."""
    kl, gradient, rate, reward, entropy = curves["kl"], curves["grad_norm"], curves["lr"], curves.reward, curves["entropy"]
    latest = float(kl.values[-kl.part :].max()) if kl else 0.0
    highest, usual = (float(gradient.values.max()), float(np.median(gradient.values))) if gradient else (0.0, 0.0)
    spike = highest > max(10.0, 30 * usual)
    turned = bool(entropy) and (entropy.end > 2.0 * entropy.start + 0.2 or entropy.end < 0.1 * entropy.start)
    fall = reward.first(below=0.5 * reward.peak) if curves.fell else None
    early = fall is not None and fall <= reward.steps[0] + 0.5 * (reward.steps[-1] - reward.steps[0])
    if early and (latest > 0.2 or spike or turned):
        at = f" at lr {rate.peak:.1g}" if rate else ""
        to = f", the KL to {latest:.2g} nats per token" if kl else ""
        yield Finding(
            cause="lr-too-high",
            severity="cannot learn" if reward.end < 0.1 * reward.peak else "warning",
            sentence=f"the reward fell from {reward.peak:.2g} to {reward.end:.2g} within the first steps{at}{to}",
            next_step="lower the learning rate ten times, add warm-up, clip gradients",
            step=fall,
        )
    elif not turned and (jumps := _jumps(kl)):
        yield Finding(
            cause="sampler-mismatch",
            severity="warning",
            sentence=f"the KL to the reference jumps, to {kl.values.max():.2g} nats per token and {jumps} times back to a fifth "
            "within a step, while the entropy keeps its size: such tokens are too unlikely to be the policy's own samples",
            next_step="compare what the sampler reads and the scorer reads: padding side (left), weights, temperature, template",
            step=kl.steps[int(np.argmax(kl.values > FAR))],
        )
    elif latest > FAR or (fall is not None and kl and kl.end > 0.2):
        yield Finding(
            cause="kl-blow-up",
            severity="warning",
            sentence=f"the KL to the reference reached {kl.values.max():.2g} nats per token; the reward is {reward.end:.2g}, its "
            f"highest {reward.peak:.2g}",
            next_step="restart before this step with a higher beta or a lower learning rate, and read completions: the text is "
            "another language by now",
            step=fall or kl.first(above=FAR / 2) or kl.steps[int(kl.values.argmax())],
        )
    if spike and not early:
        where = gradient.steps[int(gradient.values.argmax())]
        yield Finding(
            cause="gradient-spikes",
            severity="warning" if curves.fell else "note",
            sentence=f"the gradient norm reached {highest:.3g} at step {where}; its median is {usual:.3g}",
            next_step="clip gradients (max_grad_norm), look at the batch of that step",
            step=where,
        )


def _jumps(kl: Curve) -> int:
    """Count how often a KL above `FAR` falls to a fifth within a step; 0 for fewer than twice.

    The usual estimate (k3) is exp(d) - d - 1 at sampled tokens, d = log reference - log policy. exp(d) has mean 1 over samples of
    the policy, whatever the reference, so that large values that vanish again come from tokens that it did not sample.
    """
    values = kl.values
    times = int(((values[:-1] > FAR) & (values[1:] < values[:-1] / BACK)).sum())
    return times if times >= 2 else 0


def reference(curves: Curves) -> Iterator[Finding]:
    """A KL above 0 before the first update."""
    steps, values = curves.table.curve("kl")
    if not steps or steps[0] > curves.table.begins or not math.isfinite(values[0]):
        return
    later = values[1] if len(values) > 1 else values[0]
    # The mean over several updates of the first rollout is above 0 too, and then grows.
    if values[0] > 0.05 / _heat(curves) ** 2 and values[0] > 0.6 * later:
        yield Finding(
            cause="reference-differs",
            severity="warning",
            sentence=f"the KL to the reference is {values[0]:.2g} nats per token in the first step, before any update",
            next_step="check the reference: base model against adapter, or another checkpoint (base_model in a recipe)",
            step=steps[0],
        )


def _heat(curves: Curves) -> float:
    """The temperature, 1 at most, by which errors of rounded logits are divided; the KL of two roundings is quadratic in them."""
    return min(1.0, float(curves.table.settings.get("temperature", 1.0)))


def samples(curves: Curves) -> Iterator[Finding]:
    """Find samples that are not the policy's: old ones, or those of a differing sampler."""
    clip, gap, wide = curves["clip"], curves["gap"], 0.1 / _heat(curves)
    if gap and gap.end > wide:
        grows = gap.end > 3 * max(gap.start, 1e-6)
        since = f", {gap.start:.1g} at the start" if grows else " from the start"
        yield Finding(
            cause="sampler-mismatch",
            severity="warning",
            sentence=f"sampler and scorer differ by {gap.end:.2g} nats per token{since}",
            next_step="sync the sampler's weights, compare temperature and precision, or correct by importance weights",
            step=gap.first(above=wide) if grows else gap.steps[0],
        )
    if clip and np.quantile(clip.values, 0.75) > 0.1:
        yield Finding(
            cause="stale-samples",
            severity="warning",
            sentence=f"the clip removes the gradient of {clip.mean:.0%} of the tokens (up to {clip.values.max():.0%}): a rollout "
            "is used for too many or too large updates",
            next_step="use fewer updates per rollout, or a lower learning rate",
            step=clip.first(above=0.1) or clip.steps[int(clip.values.argmax())],
        )


# ---- rewards for something else


def pays_length(curves: Curves) -> Iterator[Finding]:
    """A reward that rises with the length: within groups if the log has completions, else by the two curves."""
    length = curves["length"]
    if not length:
        return
    within, grown = _length_in_groups(curves.table), length.end > 1.3 * length.start
    if within is not None:
        pays, seen = within > 0.8 or (within > 0.6 and grown), f"within groups reward and length correlate by {within:.2f}"
    else:
        pays, seen = grown and correlation(*curves.common("length", "reward")) > 0.9, "the two curves rise together"
    if pays:
        yield Finding(
            cause="pays-length",
            severity="warning",
            sentence=f"completions grew from {length.start:.0f} to {length.end:.0f} while the reward rose to "
            f"{curves.reward.end:.2g}; {seen}",
            next_step="read the longest completions; pay the answer only, or price length",
            step=length.onset() or length.steps[0],
        )


def _length_in_groups(table: LogTable) -> float | None:
    """Correlation of reward and length within the groups of a completion table; None without enough of them."""
    groups: dict[tuple[int, str], list[tuple[float, int]]] = defaultdict(list)
    for one in table.completions:
        if one.reward is not None and math.isfinite(one.reward):
            groups[one.step, one.prompt].append((one.reward, len(one.text)))
    parts: list[Floats] = []
    for group in groups.values():
        pairs = np.array(group, dtype=float)
        if np.ptp(pairs[:, 0]) > 0:
            parts.append(pairs - pairs.mean(axis=0))
    if sum(map(len, parts)) < 48:
        return None
    return correlation(*np.concatenate(parts).T)


def pays_format(curves: Curves) -> Iterator[Finding]:
    """One of several reward functions that rises, or is high from the start, beside one that stays low."""
    listed = [part for name, column in curves.table.rewards.items() if (part := Curve.of(name, *curve_of(column)))]
    rises = [one for one in listed if one.end - one.start > 0.2 and one.end > 0.7 * max(one.peak, 1e-9)]
    easy = rises or [one for one in listed if one.mean > 0.9]
    low = [one for one in listed if one.end < max(0.3, one.start + 0.02) and one.end - one.start < 0.05]
    if not easy or not low:
        return
    rising, still = max(easy, key=lambda one: one.end), min(low, key=lambda one: one.end)
    if rising.name != still.name and rising.end > still.end + 0.3:
        yield Finding(
            cause="pays-format",
            severity="warning",
            sentence=f"{rising.name} went from {rising.start:.2g} to {rising.end:.2g}, {still.name} stayed at {still.end:.2g}: the "
            "reward is earned without right answers",
            next_step=f"lower the weight of {rising.name}, or pay it only with a right answer",
            step=rising.onset() or rising.steps[0],
        )


def held_out(curves: Curves) -> Iterator[Finding]:
    """A reward that rises while the held-out score falls."""
    held, reward = curves["held_out"], curves.reward
    if len(held.values) >= 4 and reward.end > reward.start + 0.1 and held.end < held.peak - 0.05 and held.end < held.start + 0.02:
        best = held.steps[int(held.values.argmax())]
        yield Finding(
            cause="held-out-falls",
            severity="warning",
            sentence=f"the reward rose from {reward.start:.2g} to {reward.end:.2g}, the held-out score went from "
            f"{held.start:.2g} to {held.end:.2g}",
            next_step=f"keep the checkpoint around step {best}; audit the reward (sage-rlvr audit --reward)",
            step=best,
        )


CHECKS = (
    *(not_finite, constant, parts, answers, dropped, mixed, baseline, stays, leaves, reference, samples),
    *(pays_length, pays_format, held_out),
)

__all__ = ["CHECKS"]
