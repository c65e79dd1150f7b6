"""Published methods; `METHODS` maps the names that recipes use to their factories.

Read grpo.py and sage.py first, then anchors.py (the keywords of a KL term, declared once). dapo.py, dr_grpo.py, rloo.py, bnpo.py,
maxrl.py, forward_kl.py and entropy.py are one method each; compose.py builds a method from named parts. `METHODS`
also contains the methods of sage_rlvr.contrib.
"""

from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.methods.bnpo import bnpo
from sage_rlvr.methods.compose import compose
from sage_rlvr.methods.dapo import dapo
from sage_rlvr.methods.dr_grpo import dr_grpo
from sage_rlvr.methods.entropy import entropy_bonus
from sage_rlvr.methods.forward_kl import forward_kl
from sage_rlvr.methods.grpo import grpo
from sage_rlvr.methods.grpo_token_mean import grpo_token_mean
from sage_rlvr.methods.maxrl import maxrl
from sage_rlvr.methods.no_kl import no_kl
from sage_rlvr.methods.rloo import rloo
from sage_rlvr.methods.sage import sage

__all__ = [
    "METHODS", "Method", "bnpo", "compose", "dapo", "dr_grpo", "entropy_bonus", "forward_kl", "grpo", "grpo_token_mean", "maxrl",
    "no_kl", "rloo", "sage",
]  # fmt: skip
