"""`python -m lab register` and `python -m lab designs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.register import designs, questions
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.recipes import shipped

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@dataclass(frozen=True)
class Register(Command):
    """Print the questions that results raised, and the answers from the seeds that were run for them."""

    file: Path = EXPERIMENTS / "register.yaml"
    """The register, beside the folders that it names."""

    def execute(self, session: Session) -> int:
        session.say(*questions.register_lines(questions.answers(self.file)))
        return 0


@dataclass(frozen=True)
class Designs(Command):
    """Count the runs and CPU hours of every design, and compare controls with themselves."""

    folder: Path = EXPERIMENTS
    """The folder of experiments."""

    def execute(self, session: Session) -> int:
        session.say(designs.page(self.folder, design_files(self.folder)).rstrip())
        return 0


def design_files(folder: Path) -> dict[str, Path]:
    """Experiment -> its design: the folder's own design.yaml, else the shipped design of that name without the date."""
    shipped_designs = shipped("designs")
    found = {}
    for one in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "policies"):
        own = one / "design.yaml"
        found[one.name] = own if own.is_file() else shipped_designs[one.name.partition("_")[2]]
    return found
