"""The base class of all commands, the output streams, and the edits of a recipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

from sage_rlvr.escaping import visible
from sage_rlvr.progress import PlainConsole

RUNS = Path("runs")  # where runs, evaluations and studies go by default


@dataclass
class Session:
    """The output streams of a command, and the recipe edits on its command line."""

    out: PlainConsole = field(default_factory=lambda: PlainConsole(width=None if sys.stdout.isatty() else 120))
    err: PlainConsole = field(default_factory=lambda: PlainConsole(stderr=True))
    edits: list[tuple[str, str]] = field(default_factory=list)
    """(a.b, value) of each `--a.b value` of a recipe."""

    def say(self, *parts: object) -> None:
        """Results: to stdout, each on a line of its own."""
        for part in parts:
            self.out.print(part, soft_wrap=True)

    def say_plainly(self, lines: Sequence[str]) -> None:
        """Results of many lines: rich takes minutes for a million."""
        for start in range(0, len(lines), 4096):
            self.out.file.write(visible("\n".join(lines[start : start + 4096])) + "\n")

    def note(self, *parts: object) -> None:
        """What goes on meanwhile: to stderr."""
        for part in parts:
            self.err.print(part, soft_wrap=True)


@dataclass(frozen=True)
class Command:
    """A command: its fields are the options, its docstring the help, `execute` the work. Only `execute` imports torch, so `--help`
    and input errors are fast."""

    edits_recipe: ClassVar[bool] = False
    """Whether `--a.b value` edits its recipe before that is decoded."""

    def execute(self, session: Session) -> int:
        """Do it. Returns the exit code."""
        raise NotImplementedError

    def changed(self, *names: str) -> str:
        """The changed options among the named ones, as on the command line: "--a, --b-c", or ""."""
        defaults = {f.name: f.default for f in fields(self)}
        return ", ".join("--" + n.replace("_", "-") for n in names if n in defaults and getattr(self, n) != defaults[n])
