"""The expected force of a second stage that is drawn under guidance (`GuidedStages`), over listed completions.

    A_i = r_i - mean over the others of the group of r,    w = min(pi / pi_g, clip),    pi = pi(.|x), pi_g = pi(.|x,g)
    E[ sum_i w_i A_i grad log pi(y_i|x) ] = size * sum_y pi_g(y) w(y) (r(y) - p_g) grad log pi(y|x),    p_g = E_g[r]

since the others' mean is independent of y_i. Without a clip pi_g w = pi, and the baseline p_g falls out: size * grad E_x[r],
exactly, whatever the guidance was. With one, pi_g w = min(pi, clip pi_g): completions that guidance makes less than 1/clip as
likely count too little, and the baseline no longer falls out.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from sage_rlvr.core.rollout_plans import GuidedStages
from sage_rlvr.errors import DataError

Law = Float[Tensor, " M"]


def second_stage_force(plan: GuidedStages, law: Law, guided: Law, rewards: Law) -> tuple[Law, Law]:
    """(force of one guided completion, gradient of E[r]) on the logits of a softmax policy over M listed completions, float64.

    law, guided: the chances of the completions without and with guidance, each summing to 1. DataError where a completion of the
    policy cannot be drawn under guidance: no weight brings it back.
    """
    if bool(((guided <= 0) & (law > 0)).any()):
        raise DataError("guidance gives a completion of the policy no chance, so no weight can stand for it")
    p, q, r = law.double(), guided.double(), rewards.double()
    counted = q * plan.weights(p.log(), q.log())
    return _on_logits(counted * (r - (q * r).sum()), p), _on_logits(p * r, p)


def _on_logits(coefficients: Law, law: Law) -> Law:
    """sum_y c(y) grad log pi(y): c - pi sum c on the logits."""
    return coefficients - law * coefficients.sum()


def lost_share(plan: GuidedStages, law: Law, guided: Law) -> float:
    """The probability of the policy that its clip leaves out, sum_y pi - min(pi, clip pi_g); 0 where nothing is cut."""
    counted = guided.double() * plan.weights(law.double().log(), guided.double().log())
    return float(torch.clamp(law.double() - counted, min=0.0).sum())
