"""The command line: `app` lists the commands, one file has the work of each."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """The command `sage-rlvr`. Loaded late, so that a module of this package can be used without the command line."""
    from sage_rlvr.cli.app import main as run

    run(argv)
