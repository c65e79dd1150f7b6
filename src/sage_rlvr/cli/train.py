"""`train` and `sft`: a recipe becomes a policy."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from sage_rlvr.cli.session import RUNS, Command, Session
from sage_rlvr.errors import ConfigError

if TYPE_CHECKING:
    from sage_rlvr.config import FinetuneConfig, SftConfig, TrainConfig
    from sage_rlvr.progress import Reporter
    from sage_rlvr.runs import RunDir


@dataclass(frozen=True)
class FromRecipe(Command):
    """What both ways of training take."""

    edits_recipe: ClassVar[bool] = True

    recipe: tyro.conf.Positional[Path]
    """A recipe file."""
    run: Annotated[Path | None, tyro.conf.arg(aliases=["--run-dir"])] = None
    """Run directory (default runs/<recipe name>, of train runs/<recipe name>-s<seed>). The same directory again continues."""
    quiet: bool = False
    """No progress; metrics.jsonl has everything."""
    report_to: tuple[str, ...] = ()
    """Send the metrics to these trackers too: trackio, wandb, tensorboard (the recipe's report_to)."""
    dry_run: bool = False
    """Print what the recipe means, and counts of its steps, tokens, forward passes and bytes; no weights, no network."""
    devices: Annotated[int | None, tyro.conf.arg(help="Not read any more; goes with version 0.3.")] = None
    gpu: Annotated[str | None, tyro.conf.arg(help="Not read any more; goes with version 0.3.")] = None
    mean_tokens: Annotated[int | None, tyro.conf.arg(help="Not read any more; goes with version 0.3.")] = None

    def edits(self, session: Session) -> list[tuple[str, str]]:
        """The edits of the recipe, --report-to among them."""
        return session.edits + ([("report_to", f"[{', '.join(self.report_to)}]")] if self.report_to else [])

    def is_dry(self, session: Session) -> bool:
        """Whether to say only what would be done."""
        if given := self.changed("devices", "gpu", "mean_tokens"):
            session.note(f"{given}: not read any more; a dry run prints counts, and what a device needs is measured")
        return self.dry_run


@dataclass(frozen=True)
class Train(FromRecipe):
    """Train a policy by RL from a recipe.

    `--a.b value` edits the recipe. Killed at any moment, the same command continues."""

    fork: bool = False
    """Continue a run although its recipe or the installed versions changed."""

    def execute(self, session: Session) -> int:
        """Train, or say what a dry run says."""
        from sage_rlvr.cli.recipes import check_command
        from sage_rlvr.config import TrainConfig, load, load_config

        check_command(self.recipe, load(self.recipe, self.edits(session)), "train")
        config = load_config(TrainConfig, self.recipe, self.edits(session))
        return _say_dry(config, session) if self.is_dry(session) else self._train(config, session)

    def _train(self, config: TrainConfig, session: Session) -> int:
        from sage_rlvr.config import dump
        from sage_rlvr.models.policy import run_facts
        from sage_rlvr.progress import Silent, Terminal
        from sage_rlvr.runs import RunDir
        from sage_rlvr.training.problems import files_of

        directory = self.run or RUNS / f"{self.recipe.stem}-s{config.seed}"
        on_trl = config.engine.name == "trl"
        if on_trl and not _is_main_rank():
            return 0 if _on_trl(config, None, directory, Silent(), _unheard) == config.steps else 1
        if not self.quiet:
            session.note(config.method.describe())
        progress: Reporter = Silent() if self.quiet else Terminal(directory.name)
        facts = run_facts(config)
        if files := files_of(config):
            facts["data"] = files
        with closing(progress), RunDir.open(directory, dump(config), kind="train", fork=self.fork, data=facts) as run:
            if on_trl:
                reached = _on_trl(config, run, directory, progress, _unheard if self.quiet else session.note)
            else:
                from sage_rlvr.training.loop import train

                reached = train(config, run, progress)
        return _ended(reached, config.steps, f"policy in {directory / 'policy'}", directory, progress, session)


@dataclass(frozen=True)
class Sft(FromRecipe):
    """Supervised fine-tuning: a base policy from scratch, or an existing model on a data set.

    The recipe says which: one with `world` makes a small policy from generated solutions; one with `data` is there to
    fine-tune an existing model, `model`, on worked solutions by TRL's SFTTrainer, whole or with LoRA, and needs the trl extra."""

    out: Path | None = None
    """Where the policy goes (default <run>/policy)."""

    def execute(self, session: Session) -> int:
        """Train, or say what a dry run says."""
        from sage_rlvr.cli.recipes import check_command, schema_of
        from sage_rlvr.config import FinetuneConfig, SftConfig, load, load_config

        check_command(self.recipe, tree := load(self.recipe, self.edits(session)), "sft")
        schema = FinetuneConfig if schema_of(tree) is FinetuneConfig else SftConfig
        config = load_config(schema, self.recipe, self.edits(session))
        if self.is_dry(session):
            return _say_dry(config, session)
        return (self._finetune if isinstance(config, FinetuneConfig) else self._from_scratch)(config, session)

    def _from_scratch(self, config: SftConfig, session: Session) -> int:
        """A small policy from generated solutions."""
        from sage_rlvr.config import dump
        from sage_rlvr.progress import Silent, Terminal
        from sage_rlvr.runs import RunDir
        from sage_rlvr.training.sft import train_sft

        directory, out = self._places()
        progress: Reporter = Silent() if self.quiet else Terminal("sft")
        with closing(progress), RunDir.open(directory, dump(config), kind="sft") as run:
            reached = train_sft(config, run, out, progress)
        return _ended(reached, config.steps, f"policy in {out}", directory, progress, session)

    def _finetune(self, config: FinetuneConfig, session: Session) -> int:
        """An existing model on rows of a data set, by TRL."""
        from sage_rlvr.config import dump
        from sage_rlvr.progress import Silent, Terminal
        from sage_rlvr.runs import RunDir

        _require_trl()
        from sage_rlvr.training.trl.sft import finetune, run_facts

        directory, out = self._places()
        if not _is_main_rank():
            found = finetune(config, None, directory, out, progress=Silent(), say=_unheard)
            return 0 if found.step == found.total else 1
        say = _unheard if self.quiet else session.note
        progress: Reporter = Silent() if self.quiet else Terminal("sft")
        with closing(progress), RunDir.open(directory, dump(config), kind="sft", data=run_facts(config)) as run:
            found = finetune(config, run, directory, out, progress=progress, say=say)
        return _ended(found.step, found.total, f"policy in {out}", directory, progress, session)

    def _places(self) -> tuple[Path, Path]:
        directory = self.run or RUNS / self.recipe.stem
        return directory, self.out or directory / "policy"


def _say_dry(config: TrainConfig | FinetuneConfig | SftConfig, session: Session) -> int:
    from sage_rlvr.cli.recipes import recipe_lines
    from sage_rlvr.training.dry_run import dry_run_lines

    session.say(*recipe_lines(config), "", *dry_run_lines(config))
    return 0


def _unheard(line: object) -> None:
    """Says nothing."""


def _is_main_rank() -> bool:
    """True in a plain process and on the first rank of torchrun or accelerate launch, which alone writes."""
    return os.environ.get("RANK", "0") == "0"


def _require_trl() -> None:
    from sage_rlvr.training.trl import require_trl

    try:
        require_trl()
    except ModuleNotFoundError as error:
        raise ConfigError(f"engine.name = 'trl': {error}") from error


def _on_trl(
    config: TrainConfig, run: RunDir | None, directory: Path, progress: Reporter, say: Callable[[str], None]
) -> int:
    _require_trl()
    from sage_rlvr.training.trl.run import train

    return train(config, run, directory, progress, say)


def _ended(reached: int, wanted: int, result: str, directory: Path, progress: Reporter, session: Session) -> int:
    if reached < wanted:
        session.note(f"stopped after step {reached} of {wanted}, saved in {directory}; the same command continues")
        return 1
    if progress.first >= wanted:
        session.note(f"nothing was left to do: all {wanted} steps were there, {result}")
    else:
        session.note(f"done: {wanted} steps, {result}")
    return 0
