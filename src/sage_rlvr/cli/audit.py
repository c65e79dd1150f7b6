"""`audit` and `verify`: what the verifier says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, DataError, suggest

if TYPE_CHECKING:
    from sage_rlvr.audit import Audit as Audited


@dataclass(frozen=True)
class Audit(Command):
    """Audit the verifier on tasks.

    It says what perfect, wrong and guessed answers earn, and where the verifier fails, by id of the row. Exit code 2 if a
    check with a bar is below 99 %. pairs audits the verifier of mathematics on pairs of answers whose verdict is known, beside
    math-verify alone and lm-eval; pairs FILE does so on a file of such pairs (gold, answer, right; place, note).
    SAGE_RLVR_DATA names a folder with the data files; without it they are fetched at pinned commits."""

    tasks: tyro.conf.Positional[tuple[str, ...]]
    """Names of tasks, countdown:WORLD, files of rows with a problem and an answer, recipes with a task of their own, pairs, or
    pairs and files of pairs."""
    template: str | None = None
    """The prompt format in use: sage, boxed or as_is (default: each of them)."""
    answer_in: Literal["boxed", "tag", "stated", "last_number", "anywhere"] | None = None
    """Read the answer elsewhere than the format asks, to see what such a mistake would cost."""
    k: int = 256
    """Guesses of the guess floors."""
    rows: int = 50
    """Rows listed a check."""
    out: Path | None = None
    """Also write the audits as a Markdown page."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.audit import PAIRS, lines_of, write_page
        from sage_rlvr.runs import writing

        if not self.tasks:
            from sage_rlvr.audit import NAMES

            raise ConfigError(f"audit: name at least one task: {', '.join(NAMES)}, or a .jsonl file")
        found = []
        own_pairs = self.tasks[0] == PAIRS and len(self.tasks) > 1
        for name in self.tasks[1:] if own_pairs else self.tasks:
            found.append(self._pairs(name) if own_pairs else self._task(name))
            session.say(*lines_of(found[-1], self.rows))
        if self.out is not None:
            given = {
                "--template": self.template,
                "--answer-in": self.answer_in,
                "--k": self.k if self.k != 256 else None,
            }
            options = [word for name, value in given.items() if value is not None for word in (name, value)]
            with writing("page", self.out, 1 << 20):
                write_page(found, self.out, suggest("audit", *self.tasks, *options))
            session.say(f"page: {self.out}")
        return 0 if all(one.passed for one in found) else 2

    def _pairs(self, file: str) -> Audited:
        from sage_rlvr.audit.pairs import audit_file

        if given := self.changed("template", "answer_in", "k"):
            raise ConfigError(f"{given}: of the audit of a task; a file of pairs says itself where each answer is read (place)")
        return audit_file(Path(file))

    def _task(self, name: str) -> Audited:
        from sage_rlvr.audit import audit
        from sage_rlvr.config import task_named

        made = task_named(name) if name.endswith((".yaml", ".yml")) else name
        return audit(made, self.template, self.k, self.answer_in)


@dataclass(frozen=True)
class Verify(Command):
    """Say the verdict on one answer, and why.

    With --file: on every row of a file (.jsonl, .json, .csv, .parquet) with completion and answer."""

    gold: tyro.conf.Positional[str | None] = None
    """The right answer."""
    answer: tyro.conf.Positional[str | None] = None
    """The answer, or a whole completion together with --answer-in. Write -- before a GOLD or ANSWER that begins with -."""
    file: Path | None = None
    """Rows to verify instead of one pair."""
    answer_in: Literal["boxed", "tag", "stated", "last_number", "whole", "anywhere"] | None = None
    """Where the answer stands (default: whole for one pair, boxed for a file)."""
    tag: str = "SOLUTION"

    def execute(self, session: Session) -> int:
        from sage_rlvr.audit import verify_lines
        from sage_rlvr.progress import counting
        from sage_rlvr.verifiers.golds import gold_of
        from sage_rlvr.verifiers.pool import shared

        pair = (self.gold, self.answer)
        if (None in pair) if self.file is None else pair != (None, None):
            raise ConfigError("verify: give GOLD and ANSWER, or --file ROWS, and not both")
        if self.file is not None:
            session.note(f"verify: reading {self.file}")
            told = verify_lines(self.file, self.answer_in or "boxed", self.tag, partial(counting, session.err, "verify"))
            session.say_plainly(told)
            return 0
        options = {"answer_in": self.answer_in or "whole", "tag": self.tag}
        try:
            gold, stood = gold_of(self.gold)
        except ValueError as error:
            raise DataError(f"GOLD: {error}") from error
        if stood:
            session.note(f"gold: {gold}, {stood}")
        verdict = shared().verify([(self.answer, gold)], **options)[0]
        session.say(f"{verdict.label}: {verdict.reason}")
        return 0
