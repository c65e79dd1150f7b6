"""Published methods; `METHODS` maps the names that recipes use to their factories.

Read grpo.py and sage.py first, then anchors.py (the keywords of a KL term, declared once). dapo.py, dr_grpo.py, rloo.py, bnpo.py,
maxrl.py, forward_kl.py and entropy.py are one method each; compose.py builds a method from named parts. Every file here is
imported, in alphabetical order. `METHODS` has those of sage_rlvr.contrib too, by name.
"""

from typing import TYPE_CHECKING

from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.registry import gather

if TYPE_CHECKING:  # what type checkers see: one line for each file
    from sage_rlvr.methods.bnpo import *
    from sage_rlvr.methods.compose import *
    from sage_rlvr.methods.dapo import *
    from sage_rlvr.methods.dr_grpo import *
    from sage_rlvr.methods.entropy import *
    from sage_rlvr.methods.forward_kl import *
    from sage_rlvr.methods.grpo import *
    from sage_rlvr.methods.grpo_token_mean import *
    from sage_rlvr.methods.maxrl import *
    from sage_rlvr.methods.no_kl import *
    from sage_rlvr.methods.rloo import *
    from sage_rlvr.methods.sage import *

PARTS = gather(__name__, METHODS)
globals().update(PARTS)

__all__ = ["METHODS", "Method"]
__all__ += list(PARTS)
