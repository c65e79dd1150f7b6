"""Published methods, one file each; `METHODS` maps the names used in recipes to their factories."""

from collections.abc import Callable

from sage_rlvr.core.method import Method
from sage_rlvr.methods.dr_grpo import dr_grpo
from sage_rlvr.methods.grpo import grpo
from sage_rlvr.methods.no_kl import no_kl
from sage_rlvr.methods.rloo import rloo
from sage_rlvr.methods.sage import sage

METHODS: dict[str, Callable[..., Method]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "no_kl": no_kl,
    "sage": sage,
}

__all__ = ["METHODS", "Method", "dr_grpo", "grpo", "no_kl", "rloo", "sage"]
