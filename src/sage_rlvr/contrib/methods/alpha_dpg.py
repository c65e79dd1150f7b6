"""alpha-DPG: toward the reference restricted to right answers (arXiv 2512.05962).

Paper: https://arxiv.org/abs/2512.05962. Recipe: `sage-rlvr train alpha_dpg --task TASK`.
Numbers worked out by hand: tests/core/objective/test_utilities.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from sage_rlvr.core.advantages.base import (
    ADVANTAGES,
    Advantage,
    Groups,
    GroupSignals,
    ZeroVariance,
    checked,
    leave_one_out,
    require_binary,
)
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.surrogates import Clip
from sage_rlvr.errors import ConfigError


@ADVANTAGES.register
@dataclass(frozen=True)
class Filtered(Advantage):
    """A from u = r (pi_ref / pi_old)(y) / Z, minus the others' mean of the same (alpha-DPG, arXiv 2512.05962).

    Its target is the reference given that the answer is right; alpha = 0 is the forward KL to it, alpha -> 1 the reverse one.

    group  Z is the group's mean of r pi_ref / pi_old, so biased at small G. If pi_old is the reference, alpha = 0 is then
           G/(G - 1) times MaxRL, for G up to `clip`
    exact  Z is P(right) under the reference itself, if a task lists its right completions: an oracle, unbiased at every G,
           except if u is above `clip`

    scaled    (min(u, clip)^(1 - alpha) - 1) / (1 - alpha): the ratio is clipped, and alpha does not change the step size
    released  min(u^(1 - alpha) - 1, clip), Z at most 1: the authors' code clips the reward and does not divide by 1 - alpha

    With alpha = .5 and pi_old = the reference a single right answer among 16 has u = 16. Its A is 6.32 scaled, where u is clipped
    at 10, and 4 as released, where u is clipped at 121.

    z: the source of Z, an estimate from each group or the exact one.

    0 in a group without a right answer. needs: "logps", "ref_logps", and for the exact Z "ref_right"; without a KL term name the
    reference by an anchor of beta 0.

    alpha: the divergence, from forward (0) to reverse (toward 1). form: what is clipped. clip: the bound.
    """

    alpha: float = 0.5
    clip: float = 10.0
    z: Literal["group", "exact"] = "group"
    form: Literal["scaled", "released"] = "scaled"

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < 1:
            raise ConfigError(
                f"Filtered: alpha = {self.alpha!r}; set 0 <= alpha < 1 (at 1 a wrong answer would weigh -infinity)."
            )
        if not 1 < self.clip < math.inf:
            raise ConfigError(f"Filtered: clip = {self.clip!r}; set a finite number above 1, 10 by default.")
        if self.z not in ("group", "exact"):
            raise ConfigError(f"Filtered: z = {self.z!r}; set group, an estimate from each group, or exact, the oracle.")
        if self.form not in ("scaled", "released"):
            raise ConfigError(f"Filtered: form = {self.form!r}; set scaled, which clips the ratio u, or released, the reward.")

    prefers: ClassVar[str] = "those less likely under the policy than under the reference"

    def dead(self, size: int) -> ZeroVariance:
        """Nonzero in an all-right group, by the probabilities under policy and reference."""
        return ZeroVariance("compared", 0.0, "refused")

    @property
    def needs(self) -> frozenset[str]:
        """Log-probs of completions, and of a right completion if Z is exact."""
        return frozenset({"logps", "ref_logps"} | ({"ref_right"} if self.z == "exact" else set()))

    @property
    def equation(self) -> str:
        power = f"^{1 - self.alpha:g}" if self.alpha else ""
        ratio = "r (pi_ref/pi_old)(y) / " + ("mean_group r pi_ref/pi_old" if self.z == "group" else "P_ref(right)")
        if self.form == "released":
            return f"min(u{power} - 1, {self.clip:g}) - mean_others,  u = {ratio}, divisor at most 1"
        return f"(min(u, {self.clip:g}){power} - 1)/{1 - self.alpha:g} - mean_others,  u = {ratio}"

    @property
    def ascends(self) -> str:
        when = "for large G and " if self.z == "group" else ""
        scale = f"{1 - self.alpha:g} times " if self.form == "released" and self.alpha else ""
        target = f"minus {scale}the {self.alpha:g}-divergence between pi and the reference restricted to right answers"
        return f"{target}, {when}where u stays below {self._largest_ratio:g}"

    @property
    def _largest_ratio(self) -> float:
        """The u from which the clip acts."""
        return self.clip if self.form == "scaled" else (1 + self.clip) ** (1 / (1 - self.alpha))

    def __call__(self, rewards: Groups, seen: GroupSignals) -> Groups:
        values = checked(rewards, 2, "Filtered")
        require_binary(values, "Filtered", "PowerNormalized")
        gap = (seen.require("reference", "Filtered") - seen.policy).double()
        gap = torch.where(values == 1, gap, -math.inf)
        dead = values.sum(dim=1, keepdim=True) == 0
        if self.z == "exact":
            total = seen.require("ref_right", "Filtered").double()
        else:
            total = torch.logsumexp(gap, dim=1, keepdim=True) - math.log(values.shape[1])
        if self.form == "released":
            total = total.clamp(max=0.0)
        ratio = torch.where(dead, 1.0, (gap - torch.where(dead, 0.0, total)).exp())
        if self.form == "released":
            powered = (ratio ** (1 - self.alpha) - 1).clamp(max=self.clip)
        else:
            powered = (ratio.clamp(max=self.clip) ** (1 - self.alpha) - 1) / (1 - self.alpha)
        return torch.where(dead, 0.0, leave_one_out(powered)).float()


@METHODS.register(label="alpha-DPG", about="toward the reference's correct answers", arxiv="2512.05962")
def alpha_dpg(
    *,
    alpha: float = 0.5,
    clip: float = 10.0,
    z: Literal["group", "exact"] = "group",
    form: Literal["scaled", "released"] = "scaled",
    source: str = "base",
) -> Method:
    """L = (1/(B L)) sum_i sum_t -min(rho A, clip(rho) A), A from u = r pi_ref(y) / (pi_old(y) Z) (arXiv 2512.05962).

    Toward the reference restricted to right answers; alpha = 0 is the forward KL to it, alpha -> 1 the reverse one. No KL
    term: the reference is in the target. source: which reference, as in `Anchor`. z: "exact" is an oracle, if the task lists its
        right completions: Z = P(right) under the reference, without estimation. form: "released" clips and scales as the authors'
    code does (`Filtered`).
    """
    return Method("alpha_dpg", Filtered(alpha, clip, z, form), Clip(), Anchor(0.0, source=source), FixedBudget())
