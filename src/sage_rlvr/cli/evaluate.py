"""`eval`: evaluate a policy, exactly or by samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import tyro

from sage_rlvr.cli.compare import FAILED
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.evaluation.settings import EvalSettings

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Eval(Command, EvalSettings):
    """Evaluate a policy: exactly, or by samples.

    WHAT is a run, a model or adapter folder, a Hub id or "embedded". Exact (Countdown, and a task that lists its solutions):
    pass@k, support, temperature frontier. By samples, on any task: every completion is stored; the same command continues
    after any interruption, and a larger --samples adds samples. With --gate the exit code is 3 if the policy is not above chance
    or leaves other room than required."""

    resumes: ClassVar[bool] = True

    what: tyro.conf.Positional[str]
    """A run, a model or adapter folder, a Hub id, "embedded", or "smollm2"; with --gate also a sample store."""
    quiet: bool = False
    """Do not print progress."""
    json: bool = False
    """Print the rows, and the gate and the KL if they were computed, as JSON instead of text."""

    def execute(self, session: Session) -> int:
        """Evaluate, print and store the result."""
        from sage_rlvr.api.evaluate import evaluation_of

        settings = EvalSettings(**{f.name: getattr(self, f.name) for f in fields(EvalSettings)})
        evaluation = evaluation_of(self.what, settings, quiet=self.quiet, say=session.note)
        if self.json:
            session.say_plainly(json.dumps(evaluation.tree(), indent=1, ensure_ascii=False, allow_nan=False).splitlines())
        else:
            session.say(*evaluation.lines)
        if evaluation.cross_check is not None:
            print_cross_check(session.err if self.json else session.out, evaluation.cross_check)
            if not evaluation.cross_check["agree"]:
                return 2
        return 0 if evaluation.gate is None or evaluation.gate.passed else FAILED


def print_cross_check(console: Console, check: Mapping[str, float]) -> None:
    """Print the result of `cross_check` in one line, with the next step for a disagreement."""
    agree = bool(check["agree"])
    line = (
        f"cross-check of the exact numbers by sampling: sampled {check['sampled']:.4f} ({100 * check['level']:g} % "
        f"interval {check['low']:.4f} to {check['high']:.4f}), exact {check['exact']:.4f}: "
    )
    advice = "WARNING: THEY DISAGREE, do not use either number; run `sage-rlvr doctor`, and if it passes, report this"
    console.print(
        line + ("they agree" if agree else advice), style="" if agree else "bold red", soft_wrap=True
    )
