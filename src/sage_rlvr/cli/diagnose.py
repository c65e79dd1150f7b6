"""`diagnose`: find in a log why a reward does not rise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError


@dataclass(frozen=True)
class Diagnose(Command):
    """Say from a log what keeps a reward from rising: what changed first, and at which step.

    LOG is a run directory, TRL's trainer_state.json or output_dir, verl's console, file logger or dumps, a wandb CSV or history, or
    TensorBoard's event files; which one is found by its content. Exit code 0: nothing wrong seen; 1: warnings, or too little to
    tell; 3: this run did not learn; 2: an error in the input."""

    log: tyro.conf.Positional[Path]
    """A file or a folder."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Write a picture of the relevant curves, .svg, .pdf or .png."""
    json: bool = False
    """Print the report as JSON."""

    def execute(self, session: Session) -> int:
        """Read, judge, report."""
        from sage_rlvr.symptoms.logs.diagnose import diagnose

        if self.out is not None and self.out.suffix not in (".svg", ".pdf", ".png"):
            raise ConfigError(f"--out {self.out}: name a file that ends with .svg, .pdf or .png")
        found = diagnose(self.log)
        if self.json:
            changes = [{"metric": c.name, "step": c.step, "before": c.before, "after": c.after} for c in found.changes]
            tree = found.report.tree() | {"program": found.table.program, "changes": changes}
            session.say_plainly([json.dumps(tree, indent=1, ensure_ascii=False)])
        else:
            session.say(*found.lines)
        if self.out is not None:
            from sage_rlvr.runs import writing
            from sage_rlvr.symptoms.logs.picture import picture

            with writing("picture", self.out, 1 << 20):
                self.out.parent.mkdir(parents=True, exist_ok=True)
                self.out.write_bytes(picture(found, self.out.suffix[1:]))
            session.note(f"picture: {self.out}")
        return found.report.exit_code


__all__ = ["Diagnose"]
