"""PSR, NSR and W-REINFORCE: only right completions, only wrong ones, or both with weights (arXiv 2506.01347).

Paper: https://arxiv.org/abs/2506.01347. Recipe: `sage-rlvr train w_reinforce --task TASK`.
Numbers worked out by hand: tests/core/objective/test_utilities.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Unpack

import torch
from torch import Tensor

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Groups,
    GroupSignals,
    ZeroVariance,
    checked,
    require_binary,
)
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget, TokenMean
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored

Over = Literal["all", "kept", "group", "tokens"]
"""Divisor of the sum over the right, and of that over the wrong; see `Signed`."""
COUNTED: dict[Over, str] = {"kept": "rows of the step", "group": "rows of the group", "tokens": "tokens of the step"}


@ADVANTAGES.register
@dataclass(frozen=True)
class Signed(Advantage):
    """right * r - wrong * (1 - r), no baseline (arXiv 2506.01347). (1, 0) is PSR, (0, 1) NSR, (lambda, 1) W-REINFORCE.

    E[grad log pi] = 0, so its expected gradient is (right + wrong) grad P for any weights: REINFORCE, with beta in effect divided
    by right + wrong. Published differences between them can come only from sampling noise, from clipping, from several updates per
    rollout, or from the divisor once rows are dropped, which is `normalize_by`:

    all     all rows, including those with A = 0: the reduction unchanged, as in the authors' code for W-REINFORCE
    kept    the step's rows of the same sign: A times rows / rows of its sign. For many prompts one factor for all of them,
            1/mean P for PSR and 1/(1 - mean P) for NSR: a step size that depends on the solve rate, but the same objective
    group   the group's rows of the same sign. Another objective: (1 - (1-P)^G)/P grad P for the right, log P truncated at
            order G, and (1 - P^G)/(1 - P) grad P for the wrong, -log(1 - P), which favors prompts that are already solved
    tokens  the step's tokens of the same sign, with a token mean: as `kept`, longer completions of a sign shrink its factor. The
            authors' code of PSR and NSR drops the other rows and averages over the tokens that are left, which is this

    normalize_by: divisor of the sum over each sign: all rows, or those of that sign in the step or group, in rows or
    tokens. right, wrong: the reward of a right completion and the penalty of a wrong one. For W-REINFORCE each sign is divided by
    its rows. kept and tokens count the full rollout. Raises DataError for rewards other than 0 and 1; a `Method` raises an error
    for `tokens` without a token mean, and for `kept` and `group` with one.
    """

    right: float = 0.1
    wrong: float = 1.0
    normalize_by: Over = "all"

    def __post_init__(self) -> None:
        if self.right < 0 or self.wrong < 0 or not 0 < self.right + self.wrong < float("inf"):
            raise ConfigError(
                f"Signed: right = {self.right!r}, wrong = {self.wrong!r}; set two numbers >= 0, not both 0: 1 and 0 are PSR, "
                "0 and 1 NSR, 0.1 and 1 the paper's W-REINFORCE."
            )
        if self.normalize_by not in ("all", *COUNTED):
            raise ConfigError(f"Signed: normalize_by = {self.normalize_by!r}; set all, {', '.join(COUNTED)}.")

    def dead(self, size: int) -> ZeroVariance:
        """Value in a zero-variance group: no baseline, so the label's weight, or times a factor of the step if rows or tokens
        are counted."""
        if self.couples_prompts:
            return ZeroVariance("compared" if self.right else 0.0, "compared" if self.wrong else 0.0, "refused")
        return ZeroVariance(self.right, -self.wrong, "refused")

    @property
    def needs(self) -> frozenset[str] | None:
        """Lengths, if tokens are counted."""
        return frozenset() if self.normalize_by == "tokens" else None

    @property
    def couples_prompts(self) -> bool:
        """Whether it counts rows or tokens of the full step."""
        return self.normalize_by in ("kept", "tokens")

    @property
    def counts(self) -> str | None:
        """The unit that the reduction must count for `normalize_by`."""
        if self.normalize_by == "all":
            return None
        return "tokens" if self.normalize_by == "tokens" else "rows"

    @property
    def gives_labels(self) -> bool:
        """Whether A is the label itself, 0 or 1, as Pacs reads it."""
        return (self.right, self.wrong, self.normalize_by) == (1, 0, "all")

    @property
    def equation(self) -> str:
        n, m = ("", "") if self.normalize_by == "all" else (" N/N+", " N/N-")
        reward, penalty = f"{self.right:g} r{n}", f"{self.wrong:g} (1 - r){m}"
        return reward if not self.wrong else f"-{penalty}" if not self.right else f"{reward} - {penalty}"

    @property
    def legend(self) -> str:
        if self.normalize_by == "all":
            return ""
        return f"N, N+, N- = {COUNTED[self.normalize_by]}: all, of right completions, of wrong ones"

    @property
    def ascends(self) -> str:
        """The objective that it raises in expectation, by `normalize_by`."""
        if self.normalize_by == "all":
            total = f"{self.right + self.wrong:g}"
            return f"{total} grad P, P = P(right): as RLOO, with beta divided by {total}; only the noise differs"
        if self.normalize_by == "group":
            kinds = ("(1 - (1 - P)^G)/P", "(1 - P^G)/(1 - P)"), ("log P", "-log(1 - P)")
            return f"({self._of(*kinds[0])}) grad P, P = P(right): {self._of(*kinds[1])} truncated at order G"
        shares = self._of("N/E[N+]", "N/E[N-]")
        return f"({shares}) grad P, P = P(right), for many prompts: as RLOO, times one factor for all prompts of a step"

    def _of(self, right: str, wrong: str) -> str:
        """The two terms with their weights, without terms of weight 0."""
        terms = ((self.right, right), (self.wrong, wrong))
        return " + ".join(text if weight == 1 else f"{weight:g} {text}" for weight, text in terms if weight)

    def __call__(self, rewards: Groups, seen: GroupSignals | None = None) -> Groups:
        values = checked(rewards, 1, "Signed")
        require_binary(values, "Signed", "LeaveOneOut, which is the same in expectation and takes any reward")
        signed = torch.where(values == 1, self.right, -self.wrong)
        if self.normalize_by == "all":
            return signed
        lengths = None if seen is None else seen.lengths
        return signed * self._per_kept(values, lengths)

    def _per_kept(self, values: Groups, lengths: Tensor | None) -> Groups:
        """The total count over the count of the completion's sign; 0 if its sign has none."""
        size = torch.ones_like(values) if self.normalize_by != "tokens" or lengths is None else lengths.float()
        sums = (lambda of: of.sum(dim=1, keepdim=True)) if self.normalize_by == "group" else torch.sum
        own = torch.where(values == 1, sums(size * values), sums(size * (1 - values)))
        return torch.where(own > 0, sums(size) / own.clamp(min=1), 0.0)


@METHODS.register(label="PSR", about="correct completions only", arxiv="2506.01347")
@anchored(beta=0.0, estimator="k1", placement="reward")
def psr(*, normalize_by: Over = "all", **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = r: right completions only (arXiv 2506.01347).

    In expectation REINFORCE, like nsr and w_reinforce: E[grad log pi] = 0. Published differences between them can come only from
    noise, from clipping, from several updates of a rollout, or from dropping rows and dividing by the rest, which `normalize_by`
    sets (`Signed`): remaining rows of the step, of the group (then it is log P), or remaining tokens (with a mean over tokens).
    """
    return _signed("psr", Signed(1.0, 0.0, normalize_by), **anchor)


@METHODS.register(label="NSR", about="wrong completions only", arxiv="2506.01347")
@anchored(beta=0.0, estimator="k1", placement="reward")
def nsr(*, normalize_by: Over = "all", **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = -(1 - r): wrong completions only (arXiv 2506.01347).

    In expectation the same as psr, and as RLOO; normalize_by: as in `psr`, but `group` makes it -log(1 - P).
    """
    return _signed("nsr", Signed(0.0, 1.0, normalize_by), **anchor)


@METHODS.register(label="W-REINFORCE", about="wrong ones, and a tenth of correct ones", arxiv="2506.01347")
@anchored(beta=0.0, estimator="k1", placement="reward")
def w_reinforce(*, right: float = 0.1, normalize_by: Over = "all", **anchor: Unpack[AnchorKeys]) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A = right * r - (1 - r): both with weights (arXiv 2506.01347).

    In expectation the gradient is 1 + right times RLOO's, which equals a beta smaller by that factor. normalize_by: as in `psr`,
    each sign divided by its rows or tokens.
    """
    return _signed("w_reinforce", Signed(right, 1.0, normalize_by), **anchor)


def _signed(name: str, advantage: Signed, **anchor: Unpack[AnchorKeys]) -> Method:
    """RLOO's loss with this advantage; a mean over tokens if it counts tokens."""
    reduction = TokenMean() if advantage.normalize_by == "tokens" else FixedBudget()
    return Method(name, advantage, Clip(), anchor_of(**anchor), reduction)
