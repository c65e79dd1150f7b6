"""TRL's GRPOTrainer with a shaped anchor: `SageTrainer`; `grpo_config`, the arguments that a method stands for; and
`environment_of`, an environment of a task for chat models.

All are loaded when first asked for: what a recipe means on TRL (`arguments`) can be said without TRL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sage_rlvr.training.trl.arguments import grpo_config
    from sage_rlvr.training.trl.episodes import environment_of
    from sage_rlvr.training.trl.trainer import SageTrainer

_HOMES = {"grpo_config": "arguments", "SageTrainer": "trainer", "environment_of": "episodes"}


def require_trl() -> None:
    """ModuleNotFoundError that says how to install TRL, where it is missing."""
    try:
        import trl  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("sage_rlvr.trl needs TRL; run: pip install 'sage-rlvr[trl]'", name="trl") from error


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_trl()
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


__all__ = ["SageTrainer", "environment_of", "grpo_config", "require_trl"]
