"""Evaluation: a policy in, stored numbers out: exact records and sample stores."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """A name of version 0.1, from where it is now, with a warning; AttributeError for any other."""
    import importlib
    import warnings

    from sage_rlvr.moved import EVALUATION

    home = next((home for home, names in EVALUATION.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{name} is in sage_rlvr.{home} now; the old place goes with version 0.3", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(f"sage_rlvr.{home}"), name)
