"""verl's PPO trainers with a guide on the reference, and with the advantages of this package.

Entry points: `python -m sage_rlvr.verl`, and recipes with `engine: {name: verl}`. Read trainer.py first (the two
methods of verl that are overridden), then objective.py and fields.py (a `Method` as fields of verl's configuration, and
what verl cannot express), batch.py and reward.py. run.py and launch.py start a run; convert.py exports a checkpoint.

`fields` and `arguments` work without verl installed; the other modules need the verl extra.
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
