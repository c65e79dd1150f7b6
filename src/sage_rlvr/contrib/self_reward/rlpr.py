"""RLPR: the policy's probability of a reference answer as the reward (arXiv 2506.18254).

Paper: https://arxiv.org/abs/2506.18254. Recipe: `sage-rlvr train rlpr --task TASK`.
Numbers worked out by hand: tests/core/test_reward_sources.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sage_rlvr.core.advantages import GroupNormalized
from sage_rlvr.core.extras.base import EXTRAS
from sage_rlvr.core.extras.source import Baseline, RewardSource, SourceRewards, Substituted
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import TokenMean
from sage_rlvr.core.rollout_plans.base import ROLLOUT_PLANS, RolloutPlan
from sage_rlvr.core.state import PartState
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored


@EXTRAS.register
@dataclass(frozen=True)
class ReferenceProbability(RewardSource):
    """r = (1 - w) clip(p(y* | x, z) - p(y* | x), 0, clip) + w [formed] - repetition [repetitive], z the text before the answer.

    p(y* | .) is the mean of the reference's token probabilities ("mean", RLPR), or their product ("product", VeriFree), or the
    latter's M-th root ("geometric"). It has no gradient: r is detached. A completion without an answer to replace, truncated or
    ill-formed, has reward 0 and no format credit.

    debias         the weights that compute p(y* | x): "initial", those at the start of the run, as in RLPR's released code (the
                   paper does not state it); "current", the policy's; "none", nothing is subtracted. Initial ones over-credit once
                   the policy knows answers without reasoning.
    form           p over the tokens of y*: their mean probability, the product, or its geometric mean
    format_weight  w
    clip           the upper bound; p - p is at most 1 anyway
    repetition     penalty of a completion that repeats an n-gram of `ngram` tokens `times` times or more; always. The released
                   code counts n-grams of words, and leaves out completions with reward 0
    given          the share of y*'s first tokens that are replaced by the completion's answer tokens; 0 is RLPR. If a
                   completion is only an answer (Countdown) z is empty, r is one number per problem, and nothing would be learned.
                   The baseline term has no substituted tokens: the end of y* follows the prompt directly.

    Computed in float32; the released code rounds p(y* | x, z) to bfloat16, in steps of .004 near 1. Reasoning that states the
    answer without deriving it gets the highest reward: compare `reward/auc` with the reward.
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
        """The weights under which the reference is scored directly after the prompt."""
        return self.debias

    @property
    def equation(self) -> str:
        """The reward in a formula, without the terms whose weight is 0."""
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
        """The meaning of the symbols in `equation`."""
        initial = ", pi_0 the initial policy of the run" if self.debias == "initial" else ""
        bare = "" if self.debias == "none" else ", and after the prompt only to nothing"
        own = f", whose first {self.given:g} are replaced by the completion's own answer tokens{bare}" if self.given else ""
        return f"z the completion's text before its answer, y* the reference answer of M tokens{own}{initial}"

    @torch.no_grad()
    def rewards_of(self, seen: Substituted) -> SourceRewards:
        """Rewards and supports, (B,) float32; a completion without an answer has support 0."""
        support = self._of(seen.logps, seen)
        if seen.before is not None and self.debias != "none":
            support = (support - self._of(seen.before, seen)).clamp(min=0.0)
        support = torch.where(seen.formed, support.clamp(max=self.clip), 0.0)
        earned = (1 - self.format_weight) * support + self.format_weight * seen.formed
        return SourceRewards(earned - self.repetition * (seen.repeated >= self.times), support)

    def _of(self, logps: torch.Tensor, seen: Substituted) -> torch.Tensor:
        """p(y* | .) of each row, (B,) float32; undefined for a row without counted tokens."""
        values, count = torch.where(seen.mask, logps.detach().float(), 0.0), seen.mask.sum(dim=1).clamp(min=1)
        if self.form == "mean":
            return torch.where(seen.mask, values.exp(), 0.0).sum(dim=1) / count
        return (values.sum(dim=1) / (count if self.form == "geometric" else 1)).exp()


@ROLLOUT_PLANS.register
@dataclass(frozen=True)
class StdFilter(RolloutPlan):
    """Keep the groups whose standard deviation is at least ratio times its running mean over steps (RLPR, arXiv 2506.18254).

    m is a mean over each step's deviations, of all sampled groups before filtering: not over the first `skip` steps; over the next
    `collect` steps their plain mean, and until then all groups are accepted; then m <- decay m + (1 - decay) mean. Within a step
    the bar is that of earlier steps. It uses only a reward source's value of the reference, while the released code uses the full
    reward, so that the format's spread retains a prompt. A step whose mean is NaN changes nothing. The state is m and the number of
    steps seen; it also changes in a step that accepts no group, or the bar would never fall. After `max_refills` refills an engine
    continues with the groups it has.

    ratio: threshold for dropping a group, as a multiple of the running mean of the groups' standard deviations.
    """

    ratio: float = 0.5
    decay: float = 0.99
    skip: int = 5
    collect: int = 5
    max_refills: int = 9

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < math.inf:
            raise ConfigError(f"StdFilter: ratio = {self.ratio!r}; set a finite number >= 0: 0.5 to 1 in RLPR, 0 keeps all.")
        if not 0 <= self.decay < 1:
            raise ConfigError(f"StdFilter: decay = {self.decay!r}; set 0 <= decay < 1: 0.99 in RLPR.")
        for name, least in (("skip", 0), ("collect", 1), ("max_refills", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"StdFilter: {name} = {value!r}; set a whole number >= {least}.")

    @property
    def equation(self) -> str:
        begin = f"all kept before step {self.skip + self.collect}"
        bar = f"{self.ratio:g} times its running mean over steps (decay {self.decay:g}, {begin})"
        return f"keep groups with std >= {bar}; draw new prompts for the others, at most {self.max_refills} times"

    def start(self) -> dict[str, Tensor]:
        """std_mean (), and its number of steps, ()."""
        return {"std_mean": torch.zeros(()), "steps": torch.zeros((), dtype=torch.int64)}

    def keeps(self, rewards: Float[Tensor, "P G"], state: PartState) -> Bool[Tensor, " P"]:
        """(P,) true if the group's deviation reaches the bar of `state`; all of them before there is a bar."""
        spread = std_of(rewards)
        if int(state["steps"]) < self.skip + self.collect:
            return torch.ones_like(spread, dtype=torch.bool)
        return spread >= self.ratio * state["std_mean"].to(spread)

    def learned(self, rewards: Float[Tensor, "P G"], state: PartState) -> dict[str, Tensor]:
        """The state after a step with these groups."""
        mean, before, steps = std_of(rewards).mean(), state["std_mean"], int(state["steps"]) + 1
        share = 0.0 if steps <= self.skip else max(1 - self.decay, 0.0)
        if self.skip < steps <= self.skip + self.collect:
            share = 1 / (steps - self.skip)
        new = torch.lerp(before, mean.to(before), share) if bool(mean.isfinite()) else before
        return {"std_mean": new, "steps": state["steps"] + 1}


def std_of(rewards: Float[Tensor, "P G"]) -> Float[Tensor, " P"]:
    """Standard deviation of each group, over its G completions (divisor G)."""
    return rewards.detach().float().std(dim=1, correction=0)


@METHODS.register(label="RLPR", about="probability of a reference answer", arxiv="2506.18254")
@anchored(beta=0.0)
def rlpr(
    *,
    debias: Baseline = "initial",
    format_weight: float = 0.1,
    repetition: float = 1.0,
    given: float = 0.0,
    std_filter: bool = True,
    ratio: float = 0.5,
    max_refills: int = 9,
    clip_low: float = 0.2,
    clip_high: float = 0.27,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = (1/sum_i |y_i|) sum_i sum_t -min(rho A, clip(rho) A), A = (r - mean) / (std + 1e-4), r from pi(y*) (arXiv 2506.18254).

    r is the mean probability of the reference answer's tokens after the completion's reasoning, minus the same without it; see
    `ReferenceProbability`. Groups whose r varies little are dropped (`StdFilter`). The released code has an entropy bonus of 0.001,
    the default of its framework, which the paper does not mention; it is not included.
    """
    return Method(
        "rlpr",
        GroupNormalized(),
        Clip(clip_low, clip_high),
        anchor_of(**anchor),
        TokenMean(),
        rollout=StdFilter(ratio, max_refills=max_refills) if std_filter else None,
        extras=(ReferenceProbability(debias=debias, format_weight=format_weight, repetition=repetition, given=given),),
    )
