"""verl's PPO trainers with a shaped anchor and the core's advantages: `sage_rlvr.verl`, and recipes with engine.name verl.

What a recipe or a method means on verl (`fields`, `arguments`) can be said without verl; the rest needs the verl extra.
"""

from __future__ import annotations


def require_verl() -> None:
    """ModuleNotFoundError that says how to install verl, where it is missing."""
    try:
        import transfer_queue  # noqa: F401
        import verl  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"sage_rlvr.verl needs verl ({error}); run in an environment without TRL: pip install 'sage-rlvr[verl]'", name="verl"
        ) from error


__all__ = ["require_verl"]
