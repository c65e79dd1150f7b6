"""`eval`: evaluate a policy exactly or by samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.evaluation.settings import EvalSettings

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Eval(Command, EvalSettings):
    """Evaluate a policy: exactly, or by samples.

    WHAT is a run, a model or adapter folder, a Hub id or "embedded". Exact (Countdown, and a task that lists its solutions):
    pass@k, support, temperature frontier. By samples, on any task: every completion is kept in a store; the same command
    continues after any interruption, a larger --samples tops up."""

    what: tyro.conf.Positional[str]
    """A run, a model or adapter folder, a Hub id, or "embedded"."""
    quiet: bool = False
    """No progress."""

    def execute(self, session: Session) -> int:
        """Evaluate, print and keep."""
        from sage_rlvr.api.evaluate import evaluation_of

        settings = EvalSettings(**{f.name: getattr(self, f.name) for f in fields(EvalSettings)})
        found = evaluation_of(self.what, settings, quiet=self.quiet, say=session.note)
        session.say(*found.lines)
        if found.cross_check is None:
            return 0
        print_cross_check(session.out, found.cross_check)
        return 0 if found.cross_check["agree"] else 2


def print_cross_check(console: Console, found: Mapping[str, float]) -> None:
    """What `cross_check` found, in one line; a disagreement is loud, and says what to do."""
    agree = bool(found["agree"])
    line = (
        f"cross-check of the exact numbers by sampling: sampled {found['sampled']:.4f} ({100 * found['level']:g} % "
        f"interval {found['low']:.4f} to {found['high']:.4f}), exact {found['exact']:.4f}: "
    )
    advice = "WARNING: THEY DISAGREE, trust neither before `sage-rlvr doctor` has passed; if it does, report this"
    console.print(
        line + ("they agree" if agree else advice), style="" if agree else "bold red", soft_wrap=True
    )
