"""`import-config`, `export verl` and `push`: from and to other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.errors import ConfigError, suggest

UNKNOWN = "MODEL"  # in the printed command, if no policy is known


@dataclass(frozen=True)
class ExportVerl(Command):
    """Write the problems of a task in verl's format, after an audit of the verifier.

    FOLDER/train.parquet and val.parquet, and task.json, from which the reward manager of this package calls the task's
    verifier. The command also prints the command of a first run on one GPU."""

    task: tyro.conf.Positional[str]
    """A task's name, countdown:WORLD, a file of rows with a problem and an answer, or a recipe with a task."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The output folder."""
    model: str | None = None
    """The policy of the printed command, a folder or a Hub id; by default that of the recipe, or of Countdown the built-in one."""
    template: str = "boxed"
    """The prompt format of mathematics: sage, boxed or as_is."""
    plain: bool = False
    """Prompts as plain text, for a policy without a chat template."""
    take: int | None = None
    """Export only the first N problems of each split."""
    unaudited: bool = False
    """Export even if the verifier fails the audit."""

    def execute(self, session: Session) -> int:
        """Write the problems as verl's data files and print the command that trains on them. Returns 0; raises ConfigError for a
        task that cannot be exported."""
        from sage_rlvr.training.verl.arguments import command, words_of_export
        from sage_rlvr.training.verl.problems import SPLITS, Named, chosen, export

        named = Named.of(self.task, self.template)
        task = named.task()
        problems = chosen(task, self.take, session.note)  # first possible errors, then the audit, then the files
        options = (named.config or {}).get("chat_template_kwargs", {})
        model, prompts = self._prompts(named, task, [problem for some in problems.values() for problem in some], options)
        self._audit(task, session)
        counts = export(named, self.out, problems, talks=prompts.talks)
        session.note(*(f"{count:,} {split} problems: {self.out / SPLITS[split]}" for split, count in counts.items() if count))
        if model == UNKNOWN:
            session.note(f"in the command below replace {UNKNOWN} by your model, or name it: --model NAME")
        limit = min(task.max_new_tokens, 1024)
        session.say(command(words_of_export(self.out.absolute(), counts, model, prompts, limit=limit, options=options)))
        return 0

    def _prompts(self, named: Any, task: Any, problems: list[Any], options: dict[str, Any]) -> tuple[str, Any]:
        """The policy of the printed command, and how verl renders the problems for it; for an unknown one the common setting."""
        from sage_rlvr.models.folders import EMBEDDED, source_of
        from sage_rlvr.models.policy import load_tokens
        from sage_rlvr.tasks.abilities import Conversational
        from sage_rlvr.tasks.countdown import Countdown
        from sage_rlvr.training.verl.problems import ECHO
        from sage_rlvr.training.verl.run import Prompts, prompts_of

        usual = EMBEDDED if isinstance(task, Countdown) else None
        model = self.model or (named.config or {}).get("model") or usual
        if model is None:
            talks = not self.plain and isinstance(task, Conversational)
            return UNKNOWN, Prompts(talks, None if talks else ECHO, longest=1024)
        prompts = prompts_of(task, load_tokens(model), problems, self.plain, {} if self.plain else options)
        return source_of(model), prompts

    def _audit(self, task: Any, session: Session) -> None:
        """Print the audit. Raise ConfigError if the verifier fails it."""
        from sage_rlvr.contrib.audit import audit, lines_of

        report = audit(task)
        session.say(*lines_of(report, 5))
        if not report.passed and not self.unaudited:
            raise ConfigError(
                f"{self.task}: its verifier fails the audit above, so training would optimize a wrong reward; fix the rows, or "
                f"export anyway: {suggest('export', 'verl', self.task, '--out', self.out, '--unaudited')}"
            )


@dataclass(frozen=True)
class ImportConfig(Command):
    """Write the recipe with the settings of TRL or verl, with a line for each key.

    FILE is a GRPOConfig or a script's config of TRL (YAML, or the JSON of args.to_json_string()), or verl's overrides (key=value
    words, a shell script, or YAML). --steps, --model and any other --a.b value set values that the file lacks."""

    edits_recipe: ClassVar[bool] = True

    file: tyro.conf.Positional[Path]
    """The settings."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The recipe's file; by default the recipe is printed."""

    def execute(self, session: Session) -> int:
        """Print the recipe, or write it to --out, with a note per setting. Returns 0; raises ConfigError if the file exists."""
        from sage_rlvr.contrib.io.import_config import import_config

        imported = import_config(self.file, session.edits)
        session.note(*imported.lines)
        if self.out is None:
            session.say(imported.text.rstrip())
            return 0
        if self.out.exists():
            raise ConfigError(f"{self.out}: exists; use another name, or move it away")
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(f"# From {self.file.name}, settings of {imported.source}.\n{imported.text}", encoding="utf-8")
        session.note(f"written: {self.out}; next: {suggest('show', self.out)}")
        return 0


@dataclass(frozen=True)
class Push(Command):
    """Upload the policy of a run and its model card to the Hugging Face Hub.

    The card (README.md) names the objective, reference, verifier and settings. Log in first: hf auth login."""

    run: tyro.conf.Positional[Path]
    """A finished run, or a policy folder with a card."""
    repo: tyro.conf.Positional[str]
    """The repository on the Hub, owner/name; it is created if needed."""
    private: bool = False
    """Create the repository as a private one."""
    results: tuple[str, ...] = ()
    """The evaluations of the base and of this policy, as in compare: BASE POLICY. The card gets the verdict, and pass@k with
    intervals as metadata that the Hub displays."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.api.push import push

        session.say(push(self.run, self.repo, private=self.private, results=self.results))
        return 0
