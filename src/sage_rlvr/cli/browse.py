"""`browse`: write a page of completions by problem and training step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError
from sage_rlvr.progress import reporting


@dataclass(frozen=True)
class Browse(Command):
    """Write a page of completions: problems by training step, with every text.

    FILES are files of completions that `compare` reads (samples, logs of other programs), folders of them (TRL's completions/,
    verl's validation and rollout dumps), sample stores, run directories, or NAME=PATH[,PATH...]. The page has right, wrong and cut
    completions of each problem at each step, prompts, golds and a search. It opens without network; large texts are in a folder
    beside it, which has to stay there."""

    files: tyro.conf.Positional[tuple[str, ...]]
    """Files, folders, stores and runs, or NAME=PATH[,PATH...]; FILE@WORD selects one step, arm or task."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("browse.html")
    """The page; large texts are written into the folder NAME_texts beside it."""
    correct: tuple[str, ...] = ()
    """For files with several scores: the one that means correct."""
    right_from: float | None = None
    """For graded scores: the least score that counts as correct (default: scores other than 0 and 1 are displayed as numbers)."""
    title: str = ""
    """The title of the page."""

    def execute(self, session: Session) -> int:
        """Read the files and write the page. Returns 0; raises DataError for a file that cannot be read."""
        from sage_rlvr.api.browse import browse

        if not self.files:
            raise ConfigError("browse: no files; pass files of completions, a folder of them, or a sample store")
        with reporting(session.note, f"browse: reading {', '.join(self.files)}"):
            made, written = browse(
                *self.files, out=self.out, correct=self.correct, right_from=self.right_from, title=self.title
            )
        if made.skipped:
            session.note(f"browse: {made.skipped} other files of these folders have no completions that a reader knows")
        session.say(made.summary())
        session.say(f"page   {written.page}  {written.page.stat().st_size / 1e6:.1f} MB")
        if written.folder is not None:
            texts = f"{written.bytes / 1e6:,.0f} MB in {written.parts} files; keep the folder beside the page"
            session.say(f"texts  {written.folder}  {texts}")
        return 0
