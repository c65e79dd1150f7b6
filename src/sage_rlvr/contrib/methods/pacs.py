"""PACS: the verdict as a classifier's label (arXiv 2509.02522).

Paper: https://arxiv.org/abs/2509.02522. Recipe: `sage-rlvr train pacs --task TASK`.
Numbers worked out by hand: tests/core/objective/test_surrogates_of_papers.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from sage_rlvr.contrib.methods.w_reinforce import Signed
from sage_rlvr.core.anchor import Anchor
from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.core.reductions import FixedBudget
from sage_rlvr.core.signals import Batch
from sage_rlvr.core.surrogates.base import SURROGATES, PerToken, Surrogate
from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.methods.anchors import AnchorKeys, anchor_of, anchored
from sage_rlvr.training.engines import GROUPED, declare, on_both


@SURROGATES.register
@dataclass(frozen=True)
class Pacs(Surrogate):
    """Binary cross-entropy of the label on a centered log-ratio (PACS, arXiv 2509.02522).

    rhat_i = scale log(pi / pi_0)(y_i),   psi_i = rhat_i - mean_others rhat,   loss of a completion: w_i BCE(sigma(psi_i), r_i)

    reference  "rollout": pi_0 is the policy of the rollout, as in the authors' code (all scores are 0 at the first update);
                "anchor": the method's reference, fixed or moved by the anchor's source and refresh_every, as in the paper
    balanced   w_i = G / (2 G_r), G_r completions of the group with that label; 1 if all labels are equal
    terms      1: the derivative of the loss on fixed samples (the code). 2: with the score-function term
               w_i BCE_i grad log pi(y_i) added (the paper); the effect of y_i on the losses of the others is left out, as in it

    At scores of 0 and without `balanced`, one term is exactly scale times an unclipped RLOO; with it (scale/4) G/(G - 1)
    (r - mean) / (mean (1 - mean)), which for large G ascends (scale/4) log(P / (1 - P)): hard and easy prompts weigh most. Two
    terms with `balanced`: the right ones' loss is the larger if few are right, and its score-function term pushes them down; at
    scale 1 that wins on hard prompts (P below .14 for large G, .09 at G = 16). No advantage: the advantage part passes the labels
    (`Signed(1, 0)`), 0 or 1. The loss of a completion is spread over its tokens, so that FixedBudget(1) is the mean over
    completions. Mini- and micro-batches must contain complete groups: raises DataError if they do not, and for labels other than 0
    and 1.
    """

    scale: float = 1.0
    reference: Literal["rollout", "anchor"] = "rollout"
    balanced: bool = True
    terms: Literal[1, 2] = 1
    sees_batch: ClassVar[bool] = True
    reads_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise ConfigError(
                f"Pacs: scale = {self.scale!r}; set a positive number, 0.5 to 1 in the paper (its beta)."
            )
        if self.reference not in ("rollout", "anchor"):
            raise ConfigError(f"Pacs: reference = {self.reference!r}; set rollout (the code) or anchor (the paper).")
        if self.terms not in (1, 2):
            raise ConfigError(f"Pacs: terms = {self.terms!r}; set 1 (the code) or 2 (the paper).")

    @property
    def needs(self) -> frozenset[str]:
        """The reference's log-probs if it is the anchor's."""
        return frozenset({"ref_logps"}) if self.reference == "anchor" else frozenset()

    @property
    def equation(self) -> str:
        loss = f"{'w ' if self.balanced else ''}BCE(sigma(psi), A)"
        return f"{loss} / |y|" if self.terms == 1 else f"({loss} + sg[{loss}] log pi(y)) / |y|"

    @property
    def ascends(self) -> str:
        first = f"{self.scale:g} grad E[r], as RLOO"
        if self.balanced:
            pushed = "" if self.terms == 1 else f" - {math.log(2) / 2:.3g} (1 - 2 P)"  # BCE is ln 2 at scores of 0
            first = f"({self.scale / 4:g}{pushed}) / (P (1 - P)) grad P for large G, P = P(right)"
        return f"at scores of 0: {first}; less where a score fits its label already"

    @property
    def legend(self) -> str:
        there = "pi_old" if self.reference == "rollout" else "pi_ref"
        weight = ",  w = G / (2 G_label)" if self.balanced else ""
        return f"psi = rhat - mean_others rhat,  rhat = {self.scale:g} log(pi/{there})(y){weight}"

    def __call__(
        self, log_ratios: PerToken, advantages: Tensor, mask: Bool[Tensor, "B T"], batch: Batch
    ) -> tuple[PerToken, dict[str, float]]:
        labels = _labels(advantages, batch.group_size)
        gained = log_ratios.sum(dim=1).reshape(labels.shape)
        size, rhat = labels.shape[1], self.scale * (gained + self._shift(batch, mask).reshape(labels.shape))
        psi = (size * rhat - rhat.sum(dim=1, keepdim=True)) / (size - 1)
        weight = _weights(labels) if self.balanced else torch.ones_like(labels)
        losses = F.binary_cross_entropy_with_logits(psi, labels, weight=weight, reduction="none")
        if self.terms == 2:
            losses = losses + losses.detach() * gained
        per_token = losses.reshape(-1, 1) / mask.sum(dim=1, keepdim=True).clamp(min=1) * mask
        fitted = ((psi > 0) == (labels > 0.5)).float().mean()
        return per_token, {
            "surrogate/fitted_frac": float(fitted),
            "surrogate/score_abs": float(psi.detach().abs().mean()),
        }

    def _shift(self, batch: Batch, mask: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
        """log pi_old - log pi_0 of each completion, nats."""
        if self.reference == "rollout":
            return torch.zeros(len(mask), device=mask.device)
        if batch.ref_logps is None:
            raise DataError("Pacs: reference='anchor' needs Batch.ref_logps, which is None; compute it (method.needs).")
        return torch.where(mask, batch.old_logps - batch.ref_logps, 0.0).detach().float().sum(dim=1)


def _labels(advantages: Tensor, size: int | None) -> Float[Tensor, "P G"]:
    if size is None or size < 2 or len(advantages) % size:
        raise DataError(
            "Pacs compares the completions of a prompt: pass whole groups of 2 or more; this batch has "
            f"{len(advantages)} rows in groups of {size}."
        )
    if advantages.shape[-1] != 1 or not bool(((advantages == 0) | (advantages == 1)).all()):
        raise DataError(
            "Pacs: the advantages must be labels, 0 or 1 per completion: use the advantage Signed(right=1, wrong=0), and no "
            "extra, token weight or KL in the reward."
        )
    return advantages.float().reshape(-1, size)


def _weights(labels: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    size, right = labels.shape[1], labels.sum(dim=1, keepdim=True)
    mixed = (right > 0) & (right < size)
    return torch.where(mixed, size / (2 * torch.where(labels == 1, right, size - right)), 1.0)

TRL, VERL = on_both(GROUPED, "use another surrogate")
declare("surrogate", Pacs, trl=TRL, verl=VERL)


@METHODS.register(label="PACS", about="the verdict as a classifier's label", arxiv="2509.02522")
@anchored(beta=0.0)
def pacs(
    *,
    scale: float = 1.0,
    reference: Literal["rollout", "anchor"] = "rollout",
    balanced: bool = True,
    terms: Literal[1, 2] = 1,
    **anchor: Unpack[AnchorKeys],
) -> Method:
    """L = (1/B) sum_i w_i BCE(sigma(psi_i), r_i), psi = scale (log(pi/pi_0)(y) - mean_others) (arXiv 2509.02522).

    reference "rollout": pi_0 is the policy of the rollout, as the released code has it; "anchor": the reference set by
    `source` and `refresh_every`, as in the paper. terms: 1 is the gradient of the released code, 2 the paper's. beta:
    weight of an additional KL term, which neither has.
    """
    there = Anchor(**anchor) if reference == "anchor" else anchor_of(**anchor)
    return Method("pacs", Signed(1.0, 0.0), Pacs(scale, reference, balanced, terms), there, FixedBudget(1))
