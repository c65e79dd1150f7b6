"""verl's trainers with a shaped anchor: `python -m sage_rlvr.verl <verl's arguments> +sage.method=grpo +sage.guide=branch`.

Needs the verl extra; it takes the arguments of verl's `python -m verl.trainer.main_ppo`, and those of the `sage` node.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sage_rlvr.errors import ConfigError, SageError
from sage_rlvr.process import end_with_parent
from sage_rlvr.training.verl import INSTALL, require_verl

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Train. Return the exit code: 0; 2 if the input is rejected, with one line on the next step."""
    end_with_parent()
    try:
        _launch(argv)
    except (SageError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name != "verl":
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


def _launch(argv: Sequence[str] | None) -> None:
    require_verl()
    try:
        from sage_rlvr.training.verl.launch import main as launch  # torch
    except ImportError as error:  # of the series that it should have, and still of another layout
        raise ConfigError(f"verl is not structured as in 0.9 ({error}); {INSTALL}") from error
    launch(argv)


if __name__ == "__main__":
    sys.exit(main())
