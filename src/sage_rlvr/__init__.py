"""sage-rlvr: an experiment bench for exploration in RLVR. The public nouns; see docs/architecture.md for the house."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sage_rlvr.core import Anchor, Method, objective, shape
    from sage_rlvr.core.guides import Branch, Flat, Placebo, Random, Token
    from sage_rlvr.methods import bnpo, dapo, dr_grpo, forward_kl, grpo, grpo_token_mean, no_kl, rloo, sage

from sage_rlvr.moved import install

install()
try:
    __version__ = metadata.version("sage-rlvr")
except metadata.PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+source"

_HOME = {
    **dict.fromkeys(("Anchor", "Method", "objective", "shape"), "sage_rlvr.core"),
    **dict.fromkeys(("Branch", "Flat", "Placebo", "Random", "Token"), "sage_rlvr.core.guides"),
    **dict.fromkeys(("bnpo", "dapo", "dr_grpo", "forward_kl", "grpo"), "sage_rlvr.methods"),
    **dict.fromkeys(("grpo_token_mean", "no_kl", "rloo", "sage"), "sage_rlvr.methods"),
}
__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    """Load a noun when it is first asked for: importing the package costs nothing, torch comes with the first noun."""
    if name not in _HOME:
        raise AttributeError(f"module 'sage_rlvr' has no attribute {name!r}; it has {', '.join(__all__)}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
