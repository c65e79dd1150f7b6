"""`export verl`: export the problems of a task for verl."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, suggest


@dataclass(frozen=True)
class ExportVerl(Command):
    """Write the problems of a task in verl's format, after an audit of the verifier.

    FOLDER/train.parquet and val.parquet, and task.json, from which the reward manager of this package calls the task's
    verifier. The command also prints the required arguments of verl."""

    task: tyro.conf.Positional[str]
    """A task's name, countdown:WORLD, a file of rows with a problem and an answer, or a recipe with a task of its own."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The output folder."""
    template: str = "boxed"
    """The prompt format of mathematics: sage, boxed or as_is."""
    plain: bool = False
    """Prompts as plain text, for a policy without a chat template."""
    take: int | None = None
    """Export only the first N problems of each split."""
    unaudited: bool = False
    """Export even if the verifier fails the audit."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.audit import audit, lines_of
        from sage_rlvr.training.verl.arguments import REWARD, chat_words, command, written
        from sage_rlvr.training.verl.problems import ECHO, SPLITS, Named, export

        named = Named.of(self.task, self.template)
        made = named.task()
        talks = not self.plain and hasattr(made, "messages")
        found = audit(made)
        session.say(*lines_of(found, 5))
        if not found.passed and not self.unaudited:
            raise ConfigError(
                f"{self.task}: its verifier fails the audit above, so training would optimize a wrong reward; fix the rows, or "
                f"export anyway: {suggest('export', 'verl', self.task, '--out', self.out, '--unaudited')}"
            )
        counts = export(named, self.out, talks=talks, take=self.take, say=session.note)
        session.note(*(f"{count:,} {split} problems: {self.out / SPLITS[split]}" for split, count in counts.items() if count))
        fields = {"data.train_files": str(self.out / SPLITS["train"]), **REWARD, "+sage.task": str(self.out)}
        fields |= {} if talks else {"actor_rollout_ref.model.custom_chat_template": ECHO}
        fields |= chat_words((named.config or {}).get("chat_template_kwargs", {}))
        session.say(command([f"{key}={written(value)}" for key, value in fields.items()]))
        return 0
