"""`python -m lab register` and `python -m lab designs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.register import designs, questions
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.recipes import shipped
from sage_rlvr.runs import writing

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@dataclass(frozen=True)
class Register(Command):
    """Print the questions that results raised, and the answers from the seeds that were run for them."""

    file: Path = EXPERIMENTS / "register.yaml"
    """The register, beside the folders that it names."""
    docs: Path | None = None
    """Write results/register.md in this folder of pages (lab/pages) instead of printing."""

    def execute(self, session: Session) -> int:
        _print_or_write(session, questions.page(questions.answers(self.file)), self.docs, "register.md")
        return 0


@dataclass(frozen=True)
class Designs(Command):
    """Count the runs and CPU hours of every design, and compare controls with themselves."""

    folder: Path = EXPERIMENTS
    """The folder of experiments."""
    docs: Path | None = None
    """Write results/designs.md in this folder of pages (lab/pages) instead of printing."""

    def execute(self, session: Session) -> int:
        _print_or_write(session, designs.page(self.folder, design_files(self.folder)), self.docs, "designs.md")
        return 0


def _print_or_write(session: Session, page: str, docs: Path | None, name: str) -> None:
    if docs is None:
        session.say(page.rstrip())
        return
    where = docs / "results" / name
    with writing("page", docs, 1 << 20):
        where.write_text(page, encoding="utf-8")
    session.say(f"written: {where}")


def design_files(folder: Path) -> dict[str, Path]:
    """Experiment -> its design: the folder's own design.yaml, else the shipped design of that name without the date."""
    shipped_designs = shipped("designs")
    found = {}
    for one in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "policies"):
        own = one / "design.yaml"
        found[one.name] = own if own.is_file() else shipped_designs[one.name.partition("_")[2]]
    return found
