"""`audit` and `verify`: check the verifier before training."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, DataError, suggest
from sage_rlvr.progress import reporting

if TYPE_CHECKING:
    from sage_rlvr.contrib.audit import AuditReport as Audited


@dataclass(frozen=True)
class Audit(Command):
    """Audit the verifier of a task, or a reward function.

    Prints the reward of perfect, wrong and guessed answers, and the ids of rows on which the verifier fails. Exit code 2 if a
    check with a bar is below 99 %. pairs audits the mathematics verifier on pairs of answers with known verdict, next to
    math-verify and lm-eval; pairs FILE audits a file of such pairs (gold, answer, right; place, note). The environment variable
    SAGE_RLVR_DATA sets a folder with the data files; by default they are downloaded at pinned commits.
    --reward audits a reward function of TRL, verl or verifiers on the rows of --rows, or on pairs."""

    tasks: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of tasks, countdown:WORLD, reasoning_gym:NAME, files of rows with a problem and an answer, recipes with a task,
    pairs, or pairs and files of pairs."""
    template: str | None = None
    """The prompt format: sage, boxed or as_is (default: the recipe's; boxed for names; boxed and as_is for files)."""
    answer_in: Literal["boxed", "tag", "stated", "last_number", "anywhere"] | None = None
    """Read the answer at a different place than the format requests, to measure the cost of that mistake."""
    k: int = 256
    """Number of guesses for the guess floors."""
    listed: int | None = None
    """Number of rows listed per check (default: 50; 3 for a reward)."""
    reward: str | None = None
    """A reward function: module:function or path/to/file.py:function."""
    rows: Path | None = None
    """Rows with golds for the reward: .jsonl, .json, .csv or .parquet."""
    gold: str | None = None
    """The column of golds (default: answer, gold, ground_truth, solution or target)."""
    signature: Literal["trl", "verl", "verifiers", "row"] | None = None
    """The signature of the reward (default: by the names of its parameters)."""
    right_from: float = 1.0
    """The reward from which on an answer counts as accepted."""
    problems: int = 50
    """Number of rows that the reward judges, evenly spaced."""
    seconds: float = 5.0
    """Time limit of a call of the reward."""
    python: str | None = None
    """The interpreter of the environment that has the reward's packages (default: this one)."""
    out: Path | None = None
    """Also write the audits as a Markdown page."""

    def execute(self, session: Session) -> int:
        """Audit and print. Exit code 2 if a check with a bar is below 99 %."""
        from sage_rlvr.contrib.audit import PAIRS, lines_of

        if self.reward is not None:
            return self._finish([self._reward(self.reward, session)], session)
        if given := self.changed("rows", "gold", "signature", "right_from", "problems", "seconds", "python"):
            raise ConfigError(f"{given}: for the audit of a reward; add --reward module:function")
        if not self.tasks:
            from sage_rlvr.contrib.audit import NAMES

            raise ConfigError(f"audit: pass at least one task: {', '.join(NAMES)}, reasoning_gym:NAME, or a .jsonl file")
        reports = []
        own_pairs = self.tasks[0] == PAIRS and len(self.tasks) > 1
        for name in self.tasks[1:] if own_pairs else self.tasks:
            if name.endswith((".yaml", ".yml")) and (prompt := _prompt_of(name)):
                session.say(prompt)
            with reporting(session.note, f"audit: checking the verifier on {name}"):
                reports.append(self._pairs(name) if own_pairs else self._task(name))
            session.say(*lines_of(reports[-1], 50 if self.listed is None else self.listed))
        return self._finish(reports, session)

    def _finish(self, reports: list[Audited], session: Session) -> int:
        from sage_rlvr.contrib.audit import write_page
        from sage_rlvr.runs import writing

        if self.out is not None:
            names = [one.name for one in fields(self) if one.name not in ("tasks", "listed", "out")]
            options = [word for name in names if (option := self.changed(name)) for word in (option, getattr(self, name))]
            with writing("page", self.out, 1 << 20):
                write_page(reports, self.out, suggest("audit", *self.tasks, *options))
            session.say(f"page: {self.out}")
        return 0 if all(one.passed for one in reports) else 2

    def _reward(self, reward: str, session: Session) -> Audited:
        from sage_rlvr.contrib.audit import PAIRS, lines_of
        from sage_rlvr.contrib.audit.rewards import audit_reward, audit_reward_on_pairs

        if given := self.changed("template", "answer_in"):
            raise ConfigError(f"{given}: for the audit of a task; a reward decides by itself where it reads an answer")
        if (self.tasks == (PAIRS,)) == (self.rows is not None) or (self.tasks and self.tasks != (PAIRS,)):
            raise ConfigError("--reward: pass either --rows FILE, a file of rows with golds, or pairs")
        if self.rows is None and (given := self.changed("gold", "problems", "k")):
            raise ConfigError(f"{given}: for a reward on --rows FILE; pairs have their own golds, and all are judged")
        with reporting(session.note, f"audit: calling the reward {reward}"):
            common: dict[str, Any] = {name: getattr(self, name) for name in ("signature", "right_from", "seconds", "python")}
            if self.rows is None:
                report = audit_reward_on_pairs(reward, **common)
            else:
                report = audit_reward(reward, self.rows, gold=self.gold, problems=self.problems, k=self.k, **common)
        session.say(*lines_of(report, 3 if self.listed is None else self.listed))
        return report

    def _pairs(self, file: str) -> Audited:
        from sage_rlvr.contrib.audit.pairs import audit_file

        if given := self.changed("template", "answer_in", "k"):
            raise ConfigError(f"{given}: for the audit of a task; the column place of a file of pairs is the place of each answer")
        return audit_file(Path(file))

    def _task(self, name: str) -> Audited:
        from sage_rlvr.config import task_named
        from sage_rlvr.contrib.audit import audit

        made = task_named(name) if name.endswith((".yaml", ".yml")) else name
        return audit(made, self.template, self.k, self.answer_in)


def _prompt_of(recipe: str) -> str:
    """The first training prompt of a recipe as its policy reads it; "" if torch or the policy's tokenizer is not available."""
    from sage_rlvr.config.tasks import recipe_of, task_of
    from sage_rlvr.models.folders import config_folder

    config = recipe_of(recipe)
    where = None if find_spec("torch") is None else config_folder(config.model)
    if where is None:
        return ""
    from sage_rlvr.models.policy import PromptRenderer, load_tokens
    from sage_rlvr.training.opening import decoded

    task, tokens = task_of(config), load_tokens(str(where))
    asking = PromptRenderer.of(task, tokens, options=config.chat_template_kwargs)
    return decoded(tokens.tokenizer, asking(task.problems("train")[0]).ids)


@dataclass(frozen=True)
class Verify(Command):
    """Print the verdict on one answer with the reason.

    With --file: the verdict on every row of a file (.jsonl, .json, .csv, .parquet) with completion and answer."""

    gold: tyro.conf.Positional[str | None] = None
    """The right answer."""
    answer: tyro.conf.Positional[str | None] = None
    """The answer, or a full completion together with --answer-in. Write -- before a GOLD or ANSWER that begins with -."""
    file: Path | None = None
    """Rows to verify instead of one pair."""
    answer_in: Literal["boxed", "tag", "stated", "last_number", "whole", "anywhere"] | None = None
    """The place of the answer in the completion (default: whole for one pair, boxed for a file)."""
    tag: str = "SOLUTION"
    thinking: str = "think"
    """The tag of the thinking, after which the answer is read: think for all known marks; "" reads texts from their beginning."""
    in_thinking: bool = False
    """The prompt opened the thinking: a completion that does not close it has no answer."""

    def execute(self, session: Session) -> int:
        """Verify and print. Exit code 0 for any verdicts."""
        from sage_rlvr.contrib.audit import verify_lines
        from sage_rlvr.progress import counting
        from sage_rlvr.verifiers.golds import gold_of
        from sage_rlvr.verifiers.pool import shared

        pair = (self.gold, self.answer)
        if (None in pair) if self.file is None else pair != (None, None):
            raise ConfigError("verify: pass either GOLD and ANSWER or --file ROWS")
        thought: dict[str, Any] = {"tag": self.tag, "thinking": self.thinking, "in_thinking": self.in_thinking}
        if self.file is not None:
            session.note(f"verify: reading {self.file}")
            reading = {"answer_in": self.answer_in or "boxed", **thought}
            lines = verify_lines(self.file, reading, partial(counting, session.err, "verify"))
            session.say_plainly(lines)
            return 0
        options = {"answer_in": self.answer_in or "whole", **thought}
        try:
            gold, stood = gold_of(self.gold)
        except ValueError as error:
            raise DataError(f"GOLD: {error}") from error
        if stood:
            session.note(f"gold: {gold}, {stood}")
        verdict = shared().verify([(self.answer, gold)], **options)[0]
        session.say(f"{verdict.label}: {verdict.reason}")
        if self.answer_in is None and not verdict.right:
            self._hint(gold, thought, session)
        return 0

    def _hint(self, gold: str, thought: dict[str, Any], session: Session) -> None:
        """Print where another answer is in the answer, which was read completely."""
        from sage_rlvr.verifiers.answers import AnswerReading, extract
        from sage_rlvr.verifiers.pool import shared

        for place in ("boxed", "stated"):
            inside, _ = extract(str(self.answer), AnswerReading(place, **thought))
            if inside is not None and inside != self.answer:
                other = shared().verify([(self.answer, gold)], answer_in=place, **thought)[0]
                session.note(f"the whole text was read; of {inside!r} alone it is {other.label}: --answer-in {place}")
                return
