"""The story of a log in at most twelve lines: `diagnose`.

Each check is a function of the curves that yields a finding with the step at which it begins. Bounds are on sizes, not on
certainty: in a healthy run entropy falls, the KL rises and groups become equal too, so that a change is not yet a finding.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from sage_rlvr.symptoms.causes import CAUSES
from sage_rlvr.symptoms.finding import Finding, SymptomReport
from sage_rlvr.symptoms.logs.curves import Change, Curve, correlation
from sage_rlvr.symptoms.logs.readers import read_log
from sage_rlvr.symptoms.logs.table import LogTable, curve_of

LINES = 12
MOST = 3  # findings that are reported
UNSEEN = {
    "unmixed": "share of mixed groups",
    "entropy": "entropy",
    "kl": "KL to the reference",
    "gap": "sampler against scorer",
    "held_out": "a held-out score",
    "cut": "share cut at the limit",
    "grad_norm": "gradient norm",
}


@dataclass(frozen=True)
class Curves:
    """The curves of a log."""

    table: LogTable

    def __getitem__(self, name: str) -> Curve:
        return Curve.of(name, *self.table.curve(name))

    @cached_property
    def reward(self) -> Curve:
        """Mean reward."""
        return self["reward"]

    @property
    def varies(self) -> bool:
        """Whether the mean reward ever changes."""
        return bool(self.reward) and float(np.ptp(self.reward.values)) > 1e-9

    @property
    def fell(self) -> bool:
        """Whether the reward ends far below its start or its maximum."""
        reward = self.reward
        return bool(reward) and reward.peak > 1e-9 and reward.end < 0.5 * reward.peak and reward.peak - reward.end > 0.02

    @cached_property
    def repeated(self) -> float:
        """Share of the completions in the tables that are mostly one phrase."""
        texts = [one.text for one in self.table.completions]
        return sum(map(_looping, texts)) / len(texts) if texts else 0.0


@dataclass(frozen=True)
class Diagnosis:
    """A report, and the changes with their steps."""

    report: SymptomReport
    table: LogTable
    changes: tuple[Change, ...]

    @property
    def lines(self) -> list[str]:
        """The story: at most twelve lines."""
        report = self.report
        told = [line for one in report.findings[:MOST] for line in _told(one)]
        more = report.findings[MOST:]
        rest = [f"also: {', '.join(one.cause for one in more)}"] if more else []
        first = self.order
        lines = [self.table.line, *report.facts, report.verdict, *([first] if first else []), *told, *rest]
        return [*lines, f"not visible here: {report.unseen}"][:LINES]

    @property
    def order(self) -> str:
        """List the changes, in the order of the steps."""
        if not self.changes:
            return ""
        return f"in order of change: {', '.join(map(str, self.changes[:5]))}"

    @property
    def step(self) -> int | None:
        """The step that a picture marks."""
        return next((one.step for one in self.report.findings if one.step is not None), None)


def diagnose(log: str | Path) -> Diagnosis:
    """Read a log and find what keeps its reward from rising.

    Args:
        log: A file or folder of any program that `logs.readers` knows.

    Raises:
        DataError: For a log that no reader knows, or without a reward.
    """
    return diagnosis_of(read_log(log))


def diagnosis_of(table: LogTable) -> Diagnosis:
    """The diagnosis of a log that was read."""
    curves = Curves(table)
    findings = [one for check in CHECKS for one in check(curves)]
    changes = [change for name in ORDERED if (change := curves[name].change()) is not None and _matters(change)]
    changes.sort(key=lambda change: change.step)
    report = SymptomReport.of([table.line], findings, list(_facts(curves)), _unseen(table))
    report = replace(report, findings=tuple(sorted(report.findings, key=_earliest)))
    return Diagnosis(report, table, tuple(changes))


ORDERED = ("reward", "entropy", "kl", "length", "cut", "unmixed", "clip", "grad_norm", "gap", "held_out", "no_answer")


def _earliest(one: Finding) -> tuple[int, float, int]:
    """Sort key: the worst first, then the one that begins first, because later ones may follow from it."""
    return one.rank[0], math.inf if one.step is None else one.step, one.rank[1]


def _matters(change: Change) -> bool:
    """Whether a level changed by a third, or by 0.1 for a share."""
    low, high = sorted((abs(change.before), abs(change.after)))
    return high > 0 and (high - low > 0.33 * high) and high > 1e-6


def _told(one: Finding) -> list[str]:
    when = "" if one.step is None else f", step {one.step}"
    return [f"{one.severity}: {one.cause}{when}: {one.sentence} ({one.link})", f"  next: {one.next_step}"]


def _facts(curves: Curves) -> Iterator[str]:
    """Describe the course of the reward."""
    reward = curves.reward
    if not reward:
        yield "no reward in this log"
        return
    peak, at = reward.peak, reward.steps[int(reward.smooth.argmax())]
    text = f"reward {reward.start:.3g} at the start, {reward.end:.3g} at the end, highest {peak:.3g} around step {at}"
    onset = reward.onset()
    if curves.varies and onset is not None and reward.end > reward.start:
        last = reward.steps[-1]
        text += f"; it stopped rising around step {at}" if at < last - 0.3 * (last - reward.steps[0]) else "; it still rises"
    yield text


def _unseen(table: LogTable) -> str:
    lacking = [words for name, words in UNSEEN.items() if not table.has(name)]
    if not table.completions:
        lacking.append("completions")
    lacking.append("whether the reward is right (sage-rlvr preflight)")
    return ", ".join(lacking)


def _looping(text: str) -> bool:
    words = text.split() if len(text.split()) >= 16 else list(text)
    grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return len(grams) >= 24 and len(set(grams)) < 0.3 * len(grams)


# ---- checks


def not_finite(curves: Curves) -> Iterator[Finding]:
    """Find a NaN or an infinity, or the end of a run because of one."""
    bad = []
    for name in ("loss", "grad_norm", "reward", "kl", "entropy"):
        steps, values = curves.table.curve(name)
        bad += [(step, name) for step, value in zip(steps, values, strict=True) if not math.isfinite(value)]
    ended = curves.table.ended
    if bad or ended:
        step, name = min(bad, default=(None, "loss"))
        yield Finding(
            cause="not-finite",
            severity="cannot learn",
            sentence=ended or f"{name} is not finite from step {step} on: weights and moments are lost",
            next_step="go back to the checkpoint before it; look for an infinite reward, fp16, or a learning rate that is too high",
            step=step,
        )


def constant(curves: Curves) -> Iterator[Finding]:
    """Explain a reward that never varies by the other curves of the log."""
    reward, last = curves.reward, curves.reward.steps[-1] if curves.reward else None
    unmixed = curves["unmixed"]
    if len(reward.values) < 3 or curves.varies or (unmixed and unmixed.mean < 0.98):
        return
    value = float(reward.values[0])
    cut, none, undecided = curves["cut"], curves["no_answer"], curves["undecided"]
    common = {"step": reward.steps[0], "evidence": {"reward": value, "to step": last}}
    if cut and cut.mean > 0.5 and value <= 1e-9:
        ends = curves.repeated > 0.3
        yield Finding(
            cause="never-ends" if ends else "limit-too-short",
            severity="cannot learn",
            sentence=f"{cut.mean:.0%} of the completions are cut at the limit, and the reward is {value:g} in every step"
            + (f"; {curves.repeated:.0%} of them repeat one phrase" if ends else ""),
            next_step="check template and end token" if ends else "raise the limit; preflight says how far",
            **common,
        )
    elif undecided and undecided.mean > 0.5:
        yield Finding(
            cause="reward-timeouts",
            severity="cannot learn",
            sentence=f"{undecided.mean:.0%} of the verdicts are undecided and earn 0{_why(curves.table)}",
            next_step="raise task.seconds, or make the reward faster",
            **common,
        )
    elif none and none.mean > 0.5:
        yield Finding(
            cause="no-answer",
            severity="cannot learn",
            sentence=f"{none.mean:.0%} of the completions have nothing where the answer is read",
            next_step="the place that has the answers is named by sage-rlvr preflight",
            **common,
        )
    elif value <= 1e-9:
        yield Finding(
            cause="all-wrong",
            severity="cannot learn",
            sentence=f"the reward is {value:g} for every completion up to step {last}: prompt, gold, reward or problems",
            next_step="a log cannot tell which; golds and the rows next to them are judged by sage-rlvr preflight",
            **common,
        )
    elif abs(value - 1) < 1e-9:
        yield Finding(
            cause="all-right",
            severity="cannot learn",
            sentence=f"every completion earns 1 up to step {last}: the problems are too easy, or the reward pays everything",
            next_step="use harder problems; first check that wrong answers earn 0: sage-rlvr preflight",
            **common,
        )
    else:
        yield Finding(
            cause="reward-constant",
            severity="cannot learn",
            sentence=f"the reward is {value:g} in every step",
            next_step="read the reward function: a default, or an exception that is caught",
            **common,
        )


def _why(table: LogTable) -> str:
    """The run's warning about undecided verdicts, in brackets."""
    said = next((one for one in table.warnings if "undecided" in one and "(" in one), "")
    return f" ({said.partition('(')[2].partition(')')[0]})" if said else ""


def signal(curves: Curves) -> Iterator[Finding]:
    """Groups without mixed rewards, though the mean varies."""
    unmixed, reward, entropy = curves["unmixed"], curves.reward, curves["entropy"]
    missing, draws = curves["missing_groups"], curves["draws"]
    if missing and missing.mean > 0.25:
        yield Finding(
            cause="groups-dropped",
            severity="warning",
            sentence=f"dynamic sampling found {1 - missing.mean:.0%} of a step's groups on average",
            next_step="use problems of another difficulty, larger groups, or more refills",
            evidence={"missing": missing.mean},
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
    if not unmixed or not curves.varies or len(unmixed.values) < 3:
        return
    solved = reward.end > 0.95 or reward.mean > 0.95
    collapsed, fallen = entropy and entropy.end < 0.05, entropy and entropy.end < 0.15 * entropy.start
    if unmixed.mean > 0.99 and not solved and not collapsed:
        yield Finding(
            cause="group-of-one",
            severity="cannot learn",
            sentence="no group ever has mixed rewards, though the mean reward varies from step to step",
            next_step="check that a group has several completions (n, num_generations) and that they are sampled, not greedy",
            step=unmixed.steps[0],
        )
    elif not solved and ((collapsed and unmixed.end > 0.5) or (fallen and unmixed.end > max(0.6, unmixed.start))):
        yield _collapse(curves, entropy, unmixed)
    elif reward.mean > 0.95 and unmixed.mean > 0.6 and reward.start > 0.9:
        yield Finding(
            cause="all-right",
            severity="warning",
            sentence=f"{reward.mean:.0%} of the reward is there from the start, and {unmixed.mean:.0%} of the groups have "
            "equal rewards",
            next_step="use harder problems",
            step=unmixed.steps[0],
        )
    elif unmixed.mean > 0.85 and not solved:
        yield Finding(
            cause="few-mixed",
            severity="warning",
            sentence=f"{unmixed.mean:.0%} of the groups have equal rewards, at a mean reward of {reward.mean:.2g}",
            next_step="choose problems that are solved now and then, or larger groups",
            evidence={"unmixed": unmixed.mean},
            step=unmixed.first(above=0.85),
        )


def _collapse(curves: Curves, entropy: Curve, unmixed: Curve) -> Finding:
    step = entropy.first(below=max(0.25 * entropy.start, 0.02))
    return Finding(
        cause="entropy-collapse",
        severity="warning",
        sentence=f"entropy fell from {entropy.start:.2g} to {entropy.end:.2g} nats per token and {unmixed.end:.0%} of the "
        "groups are equal, at a "
        f"reward of {curves.reward.end:.2g}",
        next_step="add a KL term or an entropy bonus, raise the temperature, lower the learning rate; restart before this step",
        step=step if step is not None else entropy.steps[0],
    )


def cut(curves: Curves) -> Iterator[Finding]:
    """Many completions at the limit."""
    share = curves["cut"]
    if not share or not curves.varies:
        return
    if share.end > 0.3 and share.end > 2 * share.start:
        yield Finding(
            cause="limit-too-short",
            severity="warning",
            sentence=f"the share cut at the limit rose from {share.start:.0%} to {share.end:.0%}",
            next_step="raise the limit, or price length; read what the longer completions say",
            step=share.first(above=0.3),
        )
    elif share.mean > 0.4:
        looping = curves.repeated > 0.3
        yield Finding(
            cause="never-ends" if looping else "limit-too-short",
            severity="warning",
            sentence=f"{share.mean:.0%} of the completions are cut at the limit",
            next_step="check template and end token" if looping else "raise the limit",
            step=share.steps[0],
        )


def stays(curves: Curves) -> Iterator[Finding]:
    """Find weights that do not move, or that the KL term holds back."""
    kl, changed, reward, gradient = curves["kl"], curves["changed"], curves.reward, curves["grad_norm"]
    rate, table = curves["lr"], curves.table
    count = len(reward.values)
    beta = table.settings.get("beta")
    beta = curves["beta"].end if beta is None and curves["beta"] else beta if beta is not None else _beta_of(curves)
    if changed and count >= LATER and changed.end < 1e-3 and (not kl or kl.end < 1e-4):
        yield Finding(
            cause="weights-do-not-move",
            severity="cannot learn",
            sentence=f"an update changes {changed.end:.2%} of the weights after rounding, and the KL is {kl.end if kl else 0:.1g}",
            next_step="train in float32, or raise the learning rate",
            evidence={"changed": changed.end},
            step=changed.steps[0],
        )
    elif kl and count >= LATER and kl.steps[-1] - kl.steps[0] >= LATER - 1 and kl.values.max() < STILL and _pushed(curves):
        last = f", lr {rate.peak:.1g}" if rate else ""
        yield Finding(
            cause="weights-do-not-move",
            severity="cannot learn",
            sentence=f"after {kl.steps[-1]} steps with gradients the KL to the reference is {kl.values.max():.1g}: the policy "
            f"has not moved{last}",
            next_step="raise the learning rate, or load the weights in float32 (bf16 weights round small updates away)",
            step=kl.steps[0],
        )
    elif count >= 10 and _flat(kl, table.begins) and _pushed(curves):
        yield Finding(
            cause="weights-do-not-move",
            severity="warning",
            sentence=f"the KL to the reference is {kl.values[1]:.1g} after the first update, and still {kl.end:.1g} at "
            "the end: the policy "
            "has not left its start",
            next_step="load the weights in float32 (bf16 weights round small updates away), or raise the learning rate",
            step=kl.steps[0],
        )
    elif rate and not kl and rate.peak * count < 1e-7 and count >= LATER:
        yield Finding(
            cause="weights-do-not-move",
            severity="cannot learn",
            sentence=f"a learning rate of {rate.peak:.1g} over {count} steps moves a weight by {rate.peak * count:.0e} at most",
            next_step="raise the learning rate",
            step=rate.steps[0],
        )
    elif beta is not None and beta >= 1.0 and kl and kl.end < 0.3 and not reward.end > reward.start + 0.1:
        yield Finding(
            cause="beta-too-high",
            severity="warning",
            sentence=f"beta is about {beta:.2g} and the KL stays at {kl.end:.1g} nats per token: the KL term holds the policy "
            "at its reference",
            next_step="lower beta: 0 to 0.1 is usual",
            evidence={"beta": beta},
            step=kl.steps[0],
        )
    if gradient and gradient.values.max() == 0.0 and count >= LATER:
        yield Finding(
            cause="few-mixed",
            severity="cannot learn",
            sentence="the gradient norm is 0 in every step: no advantage is other than 0",
            next_step="look at rewards within groups: sage-rlvr preflight",
            step=gradient.steps[0],
        )


LATER = 6  # steps after which a policy should have moved
STILL = 1e-7  # nats per token


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


def _beta_of(curves: Curves) -> float | None:
    """beta, if the loss is beta times the KL (GRPO's loss at its first update has no other value)."""
    kl, loss = curves.table.columns.get("kl", {}), curves.table.columns.get("loss", {})
    steps = [step for step in kl if step in loss and math.isfinite(kl[step]) and math.isfinite(loss[step]) and kl[step] > 1e-8]
    if len(steps) < 6:
        return None
    x, y = np.array([kl[step] for step in steps]), np.array([loss[step] for step in steps])
    slope = float((x * y).sum() / (x * x).sum())
    return slope if correlation(x, y) > 0.9 and slope > 0 else None


def leaves(curves: Curves) -> Iterator[Finding]:
    """Find a policy that runs away: learning rate, KL, gradients."""
    kl, gradient, rate, reward = curves["kl"], curves["grad_norm"], curves["lr"], curves.reward
    entropy = curves["entropy"]
    away = bool(kl) and kl.values[-kl.part :].max() > FAR
    highest, usual = (float(gradient.values.max()), float(np.median(gradient.values))) if gradient else (0.0, 0.0)
    spike = highest > max(10.0, 30 * usual)
    turned = entropy and (entropy.end > 2.0 * entropy.start + 0.2 or entropy.end < 0.1 * entropy.start)
    quick = curves.fell and _early(reward)
    if quick and (away or spike or turned or (kl and kl.end > 0.2)):
        shown = f" at lr {rate.peak:.1g}" if rate else ""
        yield Finding(
            cause="lr-too-high",
            severity="cannot learn" if reward.end < 0.1 * reward.peak else "warning",
            sentence=f"the reward fell from {reward.peak:.2g} to {reward.end:.2g} within the first steps{shown}"
            + (f", the KL to {kl.values[-kl.part :].max():.2g} nats per token" if kl else ""),
            next_step="lower the learning rate ten times, add warm-up, clip gradients",
            step=_fall(reward),
        )
    elif away:
        yield Finding(
            cause="kl-blow-up",
            severity="warning",
            sentence=f"the KL to the reference reached {kl.values.max():.2g} nats per token; the reward is {reward.end:.2g}, "
            f"its highest {reward.peak:.2g}",
            next_step="raise beta or lower the learning rate, and read completions: the text is another language by now",
            step=kl.first(above=FAR / 2) or kl.steps[int(kl.values.argmax())],
        )
    elif curves.fell and (kl and kl.end > 0.2):
        yield Finding(
            cause="kl-blow-up",
            severity="warning",
            sentence=f"the reward fell from {reward.peak:.2g} to {reward.end:.2g} while the KL rose to {kl.end:.2g} nats per token",
            next_step="restart before this step with a higher beta or a lower learning rate",
            step=_fall(reward),
        )
    if spike and not quick:
        at = gradient.steps[int(gradient.values.argmax())]
        yield Finding(
            cause="gradient-spikes",
            severity="warning" if curves.fell else "note",
            sentence=f"the gradient norm reached {gradient.values.max():.3g} at step {at}, "
            f"{gradient.values.max() / np.median(gradient.values):.0f} "
            "times its median",
            next_step="clip gradients (max_grad_norm), look at the batch of that step",
            step=at,
        )


FAR = 1.0  # nats per token


def _early(reward: Curve) -> bool:
    """Whether the fall is in the first half of the log."""
    fall = _fall(reward)
    return fall is not None and fall <= reward.steps[0] + 0.5 * (reward.steps[-1] - reward.steps[0])


def _fall(reward: Curve) -> int | None:
    """The step after which the reward stays below half of its highest."""
    return reward.first(below=0.5 * reward.peak)


def reference(curves: Curves) -> Iterator[Finding]:
    """A KL above 0 before the first update."""
    steps, values = curves.table.curve("kl")
    if not steps or steps[0] > curves.table.begins or not math.isfinite(values[0]):
        return
    later = values[1] if len(values) > 1 else values[0]
    # The mean over several updates of the first rollout is above 0 too, and then grows.
    if values[0] > 0.05 and values[0] > 0.6 * later:
        yield Finding(
            cause="reference-differs",
            severity="warning",
            sentence=f"the KL to the reference is {values[0]:.2g} nats per token in the first step, before any update",
            next_step="check the reference: base model against adapter, or another checkpoint (base_model in a recipe)",
            step=steps[0],
        )


def samples(curves: Curves) -> Iterator[Finding]:
    """Find samples that are not the policy's: old ones, or those of a differing sampler."""
    clip, gap = curves["clip"], curves["gap"]
    if gap and gap.end > 0.1:
        grows = gap.end > 3 * max(gap.start, 1e-6)
        yield Finding(
            cause="sampler-mismatch",
            severity="warning",
            sentence=f"sampler and scorer differ by {gap.end:.2g} nats per "
            "token" + (f", {gap.start:.1g} at the start" if grows else " from the start"),
            next_step="sync the sampler's weights, compare temperature and precision, or correct by importance weights",
            step=gap.first(above=0.1) if grows else gap.steps[0],
        )
    if clip and np.quantile(clip.values, 0.75) > 0.1:
        yield Finding(
            cause="stale-samples",
            severity="warning",
            sentence=f"the clip removes the gradient of {clip.mean:.0%} of the tokens (up to {clip.values.max():.0%}): a "
            "rollout is used for too many "
            "or too large updates",
            next_step="use fewer updates per rollout, or a lower learning rate",
            step=clip.first(above=0.1) or clip.steps[int(clip.values.argmax())],
        )


def hacking(curves: Curves) -> Iterator[Finding]:
    """A reward that rises for another reason than right answers."""
    table, reward, length = curves.table, curves.reward, curves["length"]
    within = _length_in_groups(table)
    grown = bool(length) and length.end > 1.3 * length.start
    together = bool(length) and _together(table)
    if (within is not None and within > 0.6 and (grown or within > 0.8)) or (within is None and grown and together):
        apart = "the two curves rise together"
        seen = apart if within is None else f"within groups reward and length correlate by {within:.2f}"
        yield Finding(
            cause="pays-length",
            severity="warning",
            sentence=f"completions grew from {length.start:.0f} to {length.end:.0f} while the reward rose to {reward.end:.2g}; "
            f"{seen}",
            next_step="read the longest completions; pay the answer only, or price length",
            step=length.onset() or length.steps[0],
        )
    parts = {name: Curve.of(name, *curve_of(column)) for name, column in table.rewards.items()}
    easy = [one for one in parts.values() if one and one.end - one.start > 0.2 and one.end > 0.7 * max(one.peak, 1e-9)]
    easy = easy or [one for one in parts.values() if one and one.mean > 0.9]
    flat = [one for one in parts.values() if one and one.end < max(0.3, one.start + 0.02) and one.end - one.start < 0.05]
    if easy and flat and len(parts) > 1:
        rising, still = max(easy, key=lambda one: one.end), min(flat, key=lambda one: one.end)
        if rising.name != still.name and rising.end > still.end + 0.3:
            yield Finding(
                cause="pays-format",
                severity="warning",
                sentence=f"{rising.name} rose from {rising.start:.2g} to {rising.end:.2g}, {still.name} stayed at "
                f"{still.end:.2g}: the reward is "
                "earned without right answers",
                next_step=f"lower the weight of {rising.name}, or pay it only with a right answer",
                step=rising.onset() or rising.steps[0],
            )
    held = curves["held_out"]
    if len(held.values) >= 4 and reward.end > reward.start + 0.1 and held.end < held.peak - 0.05 and held.end < held.start + 0.02:
        yield Finding(
            cause="held-out-falls",
            severity="warning",
            sentence=f"the reward rose from {reward.start:.2g} to {reward.end:.2g}, the held-out score went from "
            f"{held.start:.2g} to {held.end:.2g}",
            next_step=f"keep the checkpoint around step {held.steps[int(held.values.argmax())]}; audit the reward (sage-rlvr "
            "audit --reward)",
            step=held.steps[int(held.values.argmax())],
        )


def _together(table: LogTable) -> bool:
    length, reward = table.columns.get("length", {}), table.columns.get("reward", {})
    steps = sorted(set(length) & set(reward))
    return correlation(np.array([length[s] for s in steps]), np.array([reward[s] for s in steps])) > 0.9


def _length_in_groups(table: LogTable) -> float | None:
    """Correlation of reward and length within the groups of a completion table; None without enough of them."""
    groups: dict[tuple[int, str], list[tuple[float, int]]] = defaultdict(list)
    for one in table.completions:
        if one.reward is not None:
            groups[one.step, one.prompt].append((one.reward, len(one.text)))
    pairs = []
    for group in groups.values():
        rewards, lengths = np.array(group, dtype=float).T
        if len(group) > 1 and np.ptp(rewards) > 0:
            pairs += list(zip(rewards - rewards.mean(), lengths - lengths.mean(), strict=True))
    if len(pairs) < 48:
        return None
    return correlation(*np.array(pairs).T)


def answers(curves: Curves) -> Iterator[Finding]:
    """Completions without an answer, or without a verdict."""
    none, undecided = curves["no_answer"], curves["undecided"]
    if none and curves.varies and none.end > 0.5 and not curves["cut"].values[-1:] > 0.5:
        yield Finding(
            cause="no-answer",
            severity="warning",
            sentence=f"{none.end:.0%} of the completions have nothing where the answer is read",
            next_step="the place that has the answers is named by sage-rlvr preflight",
            step=none.first(above=0.5),
        )
    if undecided and curves.varies and undecided.mean > 0.05:
        yield Finding(
            cause="reward-timeouts",
            severity="warning",
            sentence=f"{undecided.mean:.0%} of the verdicts are undecided and earn 0{_why(curves.table)}",
            next_step="raise task.seconds, or make the reward faster",
            step=undecided.first(above=0.05) or undecided.steps[0],
        )


CHECKS = (not_finite, constant, signal, cut, stays, leaves, reference, samples, hacking, answers)

__all__ = ["CAUSES", "Curves", "Diagnosis", "diagnose", "diagnosis_of"]
