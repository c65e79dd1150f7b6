"""Warnings about inactive parts: a guide with q = 1 everywhere, an empty replay buffer, a self-reward of 0, for ten
steps in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.guides import band_of, check_reach, factors, is_flat
from sage_rlvr.core.method import Method
from sage_rlvr.verifiers.reasons import warned

if TYPE_CHECKING:
    from sage_rlvr.core.extras.replay.base import Buffer
    from sage_rlvr.core.extras.source import RewardSource

PATIENCE = 10
ACTIVE, CLAMPED, ROWS = "guide/active_frac", "guide/clamped_frac", "replay/rows"
SUPPORT = "self_reward/mean"
_WHOLE = 1 - 1e-6  # a share of 1 that was averaged in float32


def check_vocabulary(part: Anchor | Method | None, logits: int | None) -> None:
    """Raise ConfigError if the guide can never act on a policy with this many logits (None: unknown); nothing without a KL term."""
    anchor = part.anchor if isinstance(part, Method) else part
    if anchor is not None and not anchor.is_off and logits is not None:
        check_reach(anchor.guide, logits)


@dataclass
class GuideWatch:
    """Counter of consecutive steps in which the guide of `anchor` did nothing; warns once per process, after ten.

    count: by metric, the steps so far with q = 1 at all counted tokens, and with all of them at an edge of the band. A
    step without these metrics (nothing was trained on) counts as neither. tell: called with kind, step and sentence, as
    `RunDir.warn`.
    """

    anchor: Anchor | None
    tell: Callable[[str, int, str], None] = warned
    count: dict[str, int] = field(default_factory=lambda: {ACTIVE: 0, CLAMPED: 0})
    warned_of: set[str] = field(default_factory=set)

    def see(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of step `step`, from 0. Warn with the place and the next step after ten bad ones in a row."""
        if self.anchor is None or is_flat(self.anchor.guide):
            return
        low, high = band_of(self.anchor.guide)
        names = " * ".join(type(part).__name__ for part in factors(self.anchor.guide))
        when = f"in the {PATIENCE} steps up to step {step}"
        idle = (
            f"{names} does nothing: q = 1 at every counted token {when} ({ACTIVE} = 0), so training equals the method "
            "without its guide. Lower its threshold (Branch: a value below the policy's entropies, whose mean is "
            "policy/entropy, or a percentile, threshold='p80'), or remove the guide."
        )
        clamped = (
            f"{names} is clamped everywhere: every counted q is at an edge of its band {when} ({CLAMPED} = 1, q in "
            f"[{low:g}, {high:g}]), so it hardly distinguishes tokens. Weaken it (Branch: a smaller ratio or a higher "
            "threshold), or widen q_min and q_max."
        )
        for metric, bad, message in (
            (ACTIVE, metrics.get(ACTIVE, 1.0) <= 0, idle),
            (CLAMPED, metrics.get(CLAMPED, 0.0) >= _WHOLE, clamped),
        ):
            if metric in metrics:
                self.count[metric] = self.count[metric] + 1 if bad else 0
            if self.count[metric] == PATIENCE and metric not in self.warned_of:
                self.warned_of.add(metric)
                self.tell(metric, step, message)


@dataclass
class BufferWatch:
    """Counter of consecutive steps that trained on no stored answer; warns after ten, or at the end of a shorter run.

    buffer: of the method, None for no watch. steps: of the run. tell: as in `GuideWatch`.
    """

    buffer: Buffer | None
    steps: int
    tell: Callable[[str, int, str], None] = warned
    count: int = 0

    def see(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of step `step`, from 0. The UserWarning, also in run.json, names what is stored and the next step."""
        if self.buffer is None:
            return
        self.count = 0 if metrics.get(ROWS, 0.0) else self.count + 1
        if self.count != PATIENCE and not (self.count == step + 1 == self.steps):
            return
        stored, weight = metrics.get("replay/answers", 0.0), self.buffer.weight_at(step, self.steps)
        cause = (
            "its weight is 0: raise weight, or remove the buffer"
            if weight == 0.0
            else "no answer was correct: use easier problems, more samples (rollout, or the buffer's base), or a file of answers"
            if not stored
            else "no stored answer was drawn: draw='step' only draws from the step's prompts; set draw='any'"
        )
        self.tell(
            "empty buffer",
            step,
            f"{type(self.buffer).__name__} trained on no stored answer in the {self.count} steps up to step {step} "
            f"({ROWS} = 0, {stored:,.0f} answers stored): {cause}.",
        )


@dataclass
class SourceWatch:
    """Counter of consecutive steps in which a reward source rewarded no reference answer; warns after ten, or at the end of the
    run.

    source: of the method, None for no watch. steps, tell: as in `BufferWatch`.
    """

    source: RewardSource | None
    steps: int
    tell: Callable[[str, int, str], None] = warned
    count: int = 0

    def see(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of step `step`, from 0.

        The UserWarning, also in run.json, names a possible reason and the next step.
        """
        if self.source is None:
            return
        self.count = 0 if metrics.get(SUPPORT, 1.0) > 0 else self.count + 1
        if self.count != PATIENCE and not (self.count == step + 1 == self.steps):
            return
        less = "; or the reference is as likely after the prompt as after any completion: set debias: none"
        less = "" if self.source.baseline == "none" else less
        self.tell(
            "unpaid",
            step,
            f"{type(self.source).__name__} assigned no reward to a reference answer in the {self.count} steps up to "
            f"step {step} ({SUPPORT} = 0). No completion had an answer where the task looks for it: at the place that "
            'its prompt format requests, else after the last \\boxed, <answer> or "answer:". Train the policy on that format '
            f"first (sage-rlvr sft), choose another format (task.prompt), or raise rollout.max_new_tokens{less}.",
        )
