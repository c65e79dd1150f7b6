"""Published methods, one file for each or for a family; `METHODS` maps the names used in recipes to their factories."""

from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.methods.bnpo import bnpo
from sage_rlvr.methods.compose import compose
from sage_rlvr.methods.dapo import dapo
from sage_rlvr.methods.dars import dars
from sage_rlvr.methods.dr_grpo import dr_grpo
from sage_rlvr.methods.forward_kl import forward_kl
from sage_rlvr.methods.grpo import grpo
from sage_rlvr.methods.grpo_token_mean import grpo_token_mean
from sage_rlvr.methods.no_kl import no_kl
from sage_rlvr.methods.objectives.losses import (
    adaptive_entropy,
    cispo,
    clip_cov,
    entropy_bonus,
    gspo,
    high_entropy,
    kl_cov,
    pacs,
    shaped_entropy,
    steer,
    verl,
)
from sage_rlvr.methods.objectives.right_answers import (
    alpha_dpg,
    distinct,
    ds_grpo,
    mara,
    outcome_counts,
    outcome_repeats,
    right_entropy,
    ucpo,
    unlikeliness,
)
from sage_rlvr.methods.objectives.stored import dph, expert_iteration, replay, rft, truth
from sage_rlvr.methods.objectives.utilities import maxrl, nsr, passk_training, pkpo, psr, rs_grpo, w_reinforce
from sage_rlvr.methods.objectives.verifier_free import rlpr, verifree
from sage_rlvr.methods.rloo import rloo
from sage_rlvr.methods.sage import sage

__all__ = [
    "METHODS",
    "Method",
    "adaptive_entropy",
    "alpha_dpg",
    "bnpo",
    "cispo",
    "clip_cov",
    "compose",
    "dapo",
    "dars",
    "distinct",
    "dph",
    "dr_grpo",
    "ds_grpo",
    "entropy_bonus",
    "expert_iteration",
    "forward_kl",
    "grpo",
    "grpo_token_mean",
    "gspo",
    "high_entropy",
    "kl_cov",
    "mara",
    "maxrl",
    "no_kl",
    "nsr",
    "outcome_counts",
    "outcome_repeats",
    "pacs",
    "passk_training",
    "pkpo",
    "psr",
    "replay",
    "rft",
    "right_entropy",
    "rloo",
    "rlpr",
    "rs_grpo",
    "sage",
    "shaped_entropy",
    "steer",
    "truth",
    "ucpo",
    "unlikeliness",
    "verifree",
    "verl",
    "w_reinforce",
]
