"""`train`, `sft` and `offline`: train a policy from a recipe."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from sage_rlvr.cli.session import Command, Session

if TYPE_CHECKING:
    from sage_rlvr.api.train import Run


@dataclass(frozen=True)
class FromRecipe(Command):
    """Options of all training commands."""

    edits_recipe: ClassVar[bool] = True
    resumes: ClassVar[bool] = True
    name: ClassVar[str]

    recipe: tyro.conf.Positional[Path]
    """A recipe file or the name of a shipped recipe."""
    run: Annotated[Path | None, tyro.conf.arg(aliases=["--run-dir"])] = None
    """Run directory (default runs/<recipe name>, for train runs/<recipe name>-s<seed>). The same directory continues the run."""
    quiet: bool = False
    """Do not print progress; metrics.jsonl has all metrics."""
    report_to: tuple[str, ...] = ()
    """Also send the metrics to these trackers: trackio, wandb, tensorboard (the recipe's report_to)."""
    dry_run: bool = False
    """Print the resolved recipe and counts of steps, tokens, forward passes and bytes; loads no weights, uses no network."""

    task: ClassVar[str | None] = None  # options of some of the commands, after `recipe`, which has no default
    reward: ClassVar[str | None] = None
    out: ClassVar[Path | None] = None
    fork: ClassVar[bool] = False

    def execute(self, session: Session) -> int:
        """Train, or print the dry run."""
        reported = [("report_to", f"[{', '.join(self.report_to)}]")] if self.report_to else []
        judged = [("task.reward", self.reward)] if self.reward is not None else []
        edits = [*judged, *session.edits, *reported]
        if self.dry_run:
            from sage_rlvr.api.train import directory_of, read
            from sage_rlvr.cli.recipes import recipe_lines
            from sage_rlvr.recipes import locate
            from sage_rlvr.training.counts.dry_run import dry_run_lines

            name, config = read(self.name, self.recipe, self.task, edits)
            run = directory_of(self.name, name, config, self.run).absolute()
            settings = locate(self.recipe, self.task).settings
            session.say(*settings, *recipe_lines(config), "", *dry_run_lines(config, run))
            return 0
        return _ended(self.start(session, edits), session)

    def start(self, session: Session, edits: list[tuple[str, str]]) -> Run:
        """The run with its progress."""
        from sage_rlvr.api.train import begin

        return begin(
            self.name,
            self.recipe,
            task=self.task,
            run=self.run,
            out=self.out,
            edits=edits,
            fork=self.fork,
            quiet=self.quiet,
            say=session.note,
        )


def _ended(run: Run, session: Session) -> int:
    """The exit code of a run, with a sentence on the place of its policy; only the first of several ranks prints."""
    from sage_rlvr.runs import StopFlag

    if not run.finished:
        return StopFlag.exit_code()
    if run.config.engine.name == "trl" and os.environ.get("RANK", "0") != "0":
        return 0
    there, made = f"nothing to do: all {run.total} steps were done", f"done: {run.total} steps"
    session.note(f"{there if run.before >= run.total else made}, policy in {run.policy}")
    return 0


@dataclass(frozen=True)
class Train(FromRecipe):
    """Train a policy by RL: with a method by name, or from a recipe.

    RECIPE is a method (`sage-rlvr methods` lists them; `sage-rlvr train maxrl`), a shipped recipe, or a file. `--a.b value` edits
    the recipe: --steps 40, --seed 1, --method.beta 0.1. --plugin FILE.py registers further parts. After a kill at any time
    the same command continues. SIGTERM and Ctrl-C finish the current step and save, with exit codes 143 and 130 (128 + the
    signal). Exit code 2: an error in the input; 70: a bug in the program."""

    name: ClassVar[str] = "train"

    task: str | None = None
    """Settings for a method by name: countdown (default), words, repair, knights, steps, countdown_chat, gsm, reasoning_gym:NAME, a
    recipe, or a file of rows (.jsonl)."""
    reward: str | None = None
    """FILE.py:FUNCTION that judges the completions of a file of rows (task.reward of a recipe); by default they are mathematics."""
    fork: bool = False
    """Continue a run even if its recipe or the installed versions have changed."""


@dataclass(frozen=True)
class Sft(FromRecipe):
    """Supervised fine-tuning: a base policy from scratch, or an existing model on a data set.

    A recipe with `world` trains a small policy from scratch on generated solutions. A recipe with `data` fine-tunes an existing
    `model` on worked solutions with TRL's SFTTrainer, fully or with LoRA, and needs the trl extra."""

    name: ClassVar[str] = "sft"

    out: Path | None = None
    """The folder of the policy (default <run>/policy)."""


@dataclass(frozen=True)
class Offline(FromRecipe):
    """Train on the samples of stores: SFT, DPO, or a reward model.

    The stores come from `eval --samples` (first attempts) and `eval --samples --retry-failures-of` (second attempts, with or
    without hints). The command prints the number of pairs and does not sample. Training prompts never contain hints."""

    name: ClassVar[str] = "offline"

    out: Path | None = None
    """The folder of the policy or the reward model (default <run>/policy)."""
    fork: bool = False
    """Continue a run even if its recipe or the installed versions have changed."""

