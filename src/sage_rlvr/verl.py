"""verl's trainers with a shaped anchor: `python -m sage_rlvr.verl <verl's arguments> +sage.method=grpo +sage.guide=branch`.

Needs the verl extra; it takes the arguments of verl's `python -m verl.trainer.main_ppo`, and those of the `sage` node.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sage_rlvr.errors import ConfigError, SageError
from sage_rlvr.process import end_with_parent
from sage_rlvr.training.evaluations import Evaluations
from sage_rlvr.training.verl import INSTALL, require_verl

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Train; with `sage.passk` print the verdict. Return the exit code: 0; 2 if the input is rejected, with the next step."""
    end_with_parent()
    try:
        folder = _launch(argv)
    except (SageError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name != "verl":
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if folder is not None:
        _judge(Evaluations(folder))
    return 0


def _judge(stored: Evaluations) -> None:
    """Print the verdict on the evaluations of a run, if there are some of the base and of a later step."""
    from sage_rlvr.api.during import verdict  # slow to load

    base, last = stored.all(0), stored.last()
    if not base or last is None:
        return
    try:
        print(f"sage: {verdict(base, last)}")
    except SageError as error:
        print(f"sage: no verdict: {error}")


def _launch(argv: Sequence[str] | None) -> Path | None:
    require_verl()
    try:
        from sage_rlvr.training.verl.launch import main as launch  # torch
    except ImportError as error:  # of the series that it should have, and still of another layout
        raise ConfigError(f"verl is not structured as in 0.9 ({error}); {INSTALL}") from error
    return launch(argv)


if __name__ == "__main__":
    sys.exit(main())
