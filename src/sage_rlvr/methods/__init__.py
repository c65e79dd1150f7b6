"""Published methods, one file for each or for a family; `METHODS` maps the names used in recipes to their factories.

Every file of this folder is imported, in the order of the alphabet, a folder where its name stands: a new method is one file.
"""

from typing import TYPE_CHECKING

from sage_rlvr.core.method import METHODS, Method
from sage_rlvr.registry import gather

if TYPE_CHECKING:  # what type checkers see: one line for each file
    from sage_rlvr.methods.bnpo import *
    from sage_rlvr.methods.compose import *
    from sage_rlvr.methods.dapo import *
    from sage_rlvr.methods.dars import *
    from sage_rlvr.methods.dr_grpo import *
    from sage_rlvr.methods.forward_kl import *
    from sage_rlvr.methods.grpo import *
    from sage_rlvr.methods.grpo_token_mean import *
    from sage_rlvr.methods.no_kl import *
    from sage_rlvr.methods.objectives.losses import *
    from sage_rlvr.methods.objectives.right_answers import *
    from sage_rlvr.methods.objectives.stored import *
    from sage_rlvr.methods.objectives.utilities import *
    from sage_rlvr.methods.objectives.verifier_free import *
    from sage_rlvr.methods.rloo import *
    from sage_rlvr.methods.sage import *

PARTS = gather(__name__, METHODS)
globals().update(PARTS)

__all__ = ["METHODS", "Method"]
__all__ += list(PARTS)
