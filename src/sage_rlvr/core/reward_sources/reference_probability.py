"""RLPR: the policy's own probability of the reference answer, behind its own reasoning, as reward (arXiv 2506.18254)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from sage_rlvr.core.reward_sources.base import REWARD_SOURCES, Baseline, Paid, Substituted
from sage_rlvr.errors import ConfigError


@REWARD_SOURCES.register
@dataclass(frozen=True)
class ReferenceProbability:
    """r = (1 - w) clip(p(y* | x, z) - p(y* | x), 0, clip) + w [formed] - repetition [repetitive], z the text before the answer.

    p(y* | .) is the mean of the reference's token probabilities ("mean", RLPR), or their product ("product", VeriFree), or the
    latter's M-th root ("geometric"). Nothing passes through it: r is detached. A completion without an answer to replace, cut off
    or ill-formed, earns 0 and no format credit.

    debias         the weights that compute p(y* | x): "initial", those at the start of the run, as in RLPR's released code (the
                   paper does not say); "current", the policy's; "none", nothing is subtracted. Initial ones over-credit once
                   the policy knows answers without reasoning.
    form           of p over the tokens of y*: their mean probability, the product, or its geometric mean
    format_weight  w
    clip           the upper bound; p - p is at most 1 by itself
    repetition     penalty of a completion that repeats an n-gram of `ngram` tokens `times` times or more; always. The released
                   code counts n-grams of words, and leaves out completions that earn 0
    given          the share of y*'s first tokens in whose place the completion's own answer tokens stand; 0 is RLPR. Where a
                   completion is all answer (Countdown) z is empty, r is one number per problem, and nothing would be learned.
                   In what is subtracted nothing stands in for them: y*'s end directly behind the prompt.

    Computed in float32; the released code rounds p(y* | x, z) to bfloat16, in steps of .004 near 1. Reasoning that
    states the answer without deriving it earns most: read `reward/auc` beside the reward.
    """

    form: Literal["mean", "product", "geometric"] = "mean"
    debias: Baseline = "initial"
    format_weight: float = 0.1
    clip: float = 1.0
    repetition: float = 1.0
    ngram: int = 10
    times: int = 10
    given: float = 0.0
    prefers: ClassVar[str] = "those whose reasoning makes the reference answer likelier"
    ascends: ClassVar[str] = (
        "grad E[r] of each prompt, up to what A divides by, with r treated as constant: the policy learns to reason "
        "toward y*, without a gradient through r itself"
    )

    def __post_init__(self) -> None:
        for name, known in (("form", ("mean", "product", "geometric")), ("debias", ("initial", "current", "none"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"ReferenceProbability: {name} = {getattr(self, name)!r}; set one of {', '.join(known)}.")
        for name in ("format_weight", "given"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"ReferenceProbability: {name} = {getattr(self, name)!r} is a fraction; set 0 <= {name} < 1.")
        if not 0 < self.clip <= 1:
            raise ConfigError(f"ReferenceProbability: clip = {self.clip!r} bounds a probability; set 0 < clip <= 1.")
        if not 0 <= self.repetition < math.inf:
            raise ConfigError(f"ReferenceProbability: repetition = {self.repetition!r}; set a finite number >= 0.")
        for name in ("ngram", "times"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"ReferenceProbability: {name} = {value!r}; set a whole number >= 1 (RLPR: 10).")

    @property
    def baseline(self) -> Baseline:
        """Under which weights the reference is scored directly after the prompt."""
        return self.debias

    @property
    def equation(self) -> str:
        of = {"mean": "mean_m pi(y*_m | {})", "product": "prod_m pi(y*_m | {})", "geometric": "(prod_m pi(y*_m | {}))^(1/M)"}
        whole = of[self.form].format("x, z, y*_<m")
        if self.debias != "none":
            bare = of[self.form].format("x, y*_<m").replace("pi(", "pi_0(" if self.debias == "initial" else "pi(")
            whole = f"clip({whole} - {bare}, 0, {self.clip:g})"
        text = whole if not self.format_weight else f"{1 - self.format_weight:g} {whole} + {self.format_weight:g} [formed]"
        loss = "" if not self.repetition else f" - {self.repetition:g} [a {self.ngram}-gram {self.times} times]"
        return f"{text}{loss}"

    @property
    def legend(self) -> str:
        """What the symbols of `equation` mean."""
        initial = ", pi_0 the initial policy of the run" if self.debias == "initial" else ""
        bare = "" if self.debias == "none" else ", and after the prompt only to nothing"
        own = f", whose first {self.given:g} are replaced by the completion's own answer tokens{bare}" if self.given else ""
        return f"z the completion's text before its answer, y* the reference answer of M tokens{own}{initial}"

    @torch.no_grad()
    def __call__(self, seen: Substituted) -> Paid:
        support = self._of(seen.logps, seen)
        if seen.before is not None and self.debias != "none":
            support = (support - self._of(seen.before, seen)).clamp(min=0.0)
        support = torch.where(seen.formed, support.clamp(max=self.clip), 0.0)
        earned = (1 - self.format_weight) * support + self.format_weight * seen.formed
        return Paid(earned - self.repetition * (seen.repeated >= self.times), support)

    def _of(self, logps: torch.Tensor, seen: Substituted) -> torch.Tensor:
        """p(y* | .) of each row, (B,) float32; of a row that counts no token, anything."""
        values, count = torch.where(seen.mask, logps.detach().float(), 0.0), seen.mask.sum(dim=1).clamp(min=1)
        if self.form == "mean":
            return torch.where(seen.mask, values.exp(), 0.0).sum(dim=1) / count
        return (values.sum(dim=1) / (count if self.form == "geometric" else 1)).exp()
