"""Published methods, one file each; `METHODS` maps the names used in recipes to their factories."""

from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.methods.bnpo import bnpo
from sage_rlvr.methods.dapo import dapo
from sage_rlvr.methods.dr_grpo import dr_grpo
from sage_rlvr.methods.forward_kl import forward_kl
from sage_rlvr.methods.grpo import grpo
from sage_rlvr.methods.grpo_token_mean import grpo_token_mean
from sage_rlvr.methods.no_kl import no_kl
from sage_rlvr.methods.parts import parts
from sage_rlvr.methods.rloo import rloo
from sage_rlvr.methods.sage import sage

__all__ = [
    "METHODS",
    "Method",
    "bnpo",
    "dapo",
    "dr_grpo",
    "forward_kl",
    "grpo",
    "grpo_token_mean",
    "no_kl",
    "parts",
    "rloo",
    "sage",
]
