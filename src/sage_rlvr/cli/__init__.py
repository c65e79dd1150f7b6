"""The command line, one file per group of commands.

Read app.py first (the table of commands and error handling), then session.py (the base class of all commands, output
and recipe edits). train.py, evaluate.py, compare.py, sweep.py and page.py are the main jobs; part_options.py prints the
options of a part. Commands are thin: they parse options, call `sage_rlvr.api` and print.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """The command `sage-rlvr`. Imported late, so that a module of this package can be used without the command line."""
    from sage_rlvr.cli.app import main as run

    run(argv)
