"""The base class of all commands, the output streams, and the edits of a recipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

from sage_rlvr.escaping import visible
from sage_rlvr.progress import PlainConsole

RUNS = Path("runs")  # default folder of runs, evaluations and studies


@dataclass
class Session:
    """The output streams of a command, as at its start even if a plugin assigns to `sys.stdout`, and the recipe edits on its
    command line."""

    out: PlainConsole = field(default_factory=lambda: PlainConsole(file=sys.stdout, width=None if sys.stdout.isatty() else 120))
    err: PlainConsole = field(default_factory=lambda: PlainConsole(file=sys.stderr, stderr=True))
    edits: list[tuple[str, str]] = field(default_factory=list)
    """(a.b, value) of each `--a.b value` of a recipe."""
    resumes: bool = False
    """Whether the running command resumes finished work."""

    def say(self, *parts: object) -> None:
        """Print results to stdout, each on a separate line."""
        for part in parts:
            self.out.print(part, soft_wrap=True)

    def say_plainly(self, lines: Sequence[str]) -> None:
        """Print results of many lines: rich takes minutes for a million."""
        for start in range(0, len(lines), 4096):
            self.out.file.write(visible("\n".join(lines[start : start + 4096])) + "\n")

    def note(self, *parts: object) -> None:
        """Print messages about the progress to stderr."""
        for part in parts:
            self.err.print(part, soft_wrap=True)


@dataclass(frozen=True)
class Command:
    """A command: its fields are the options, its docstring the help, `execute` does the work. Only `execute` imports torch, so
    `--help` and input errors are fast."""

    edits_recipe: ClassVar[bool] = False
    """Whether `--a.b value` edits its recipe before decoding."""
    optional_argument: ClassVar[bool] = False
    """Whether it edits a recipe and its positional argument may be missing."""
    resumes: ClassVar[bool] = False
    """Whether it keeps finished work, with which the same command continues after an interruption."""

    def execute(self, session: Session) -> int:
        """Run the command. Returns the exit code."""
        raise NotImplementedError

    def changed(self, *names: str) -> str:
        """The changed options among the named ones, as on the command line: "--a, --b-c", or ""."""
        defaults = {f.name: f.default for f in fields(self)}
        return ", ".join("--" + n.replace("_", "-") for n in names if n in defaults and getattr(self, n) != defaults[n])
