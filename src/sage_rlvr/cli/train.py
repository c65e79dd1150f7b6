"""`train`, `sft` and `offline`: a recipe becomes a policy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from sage_rlvr.cli.session import RUNS, Command, Session
from sage_rlvr.errors import ConfigError

if TYPE_CHECKING:
    from sage_rlvr.config import FinetuneConfig, OfflineConfig, SftConfig, TrainConfig
    from sage_rlvr.progress import Reporter
    from sage_rlvr.runs import RunDir

    Config = TrainConfig | FinetuneConfig | SftConfig | OfflineConfig
    Say = Callable[[str], None]
    Facts = Callable[[], Mapping[str, Any] | None]
    Work = Callable[[RunDir | None, Reporter, Say], tuple[int, int]]  # steps that are there, and steps wanted



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

    fork: ClassVar[bool] = False

    def config(self, session: Session, command: str) -> Config:
        """What the recipe means, --report-to being one more edit. ConfigError where it is one of the other command."""
        from sage_rlvr.cli.recipes import read_recipe

        reported = [("report_to", f"[{', '.join(self.report_to)}]")] if self.report_to else []
        return read_recipe(self.recipe, [*session.edits, *reported], command)

    def say_dry(self, config: Config, session: Session) -> int:
        """What a dry run says."""
        from sage_rlvr.cli.recipes import recipe_lines
        from sage_rlvr.training.counts.dry_run import dry_run_lines

        session.say(*recipe_lines(config), "", *dry_run_lines(config))
        return 0

    def work(
        self, config: Any, session: Session, kind: str, places: tuple[Path, Path], facts: Facts, work: Work
    ) -> int:
        """Do the work in its run directory, places[0], and say where the policy, places[1], is. facts: of `RunDir.open`. Of several
        ranks the first alone writes and speaks."""
        from sage_rlvr.config import dump
        from sage_rlvr.progress import Silent, Terminal
        from sage_rlvr.runs import RunDir, StopFlag

        directory, policy = places
        if config.engine.name == "trl" and os.environ.get("RANK", "0") != "0":  # torchrun, accelerate launch
            reached, wanted = work(None, Silent(), _unheard)
            return 0 if reached == wanted else StopFlag.exit_code()
        if kind == "train" and not self.quiet:
            session.note(config.method.describe())
        progress: Reporter = Silent() if self.quiet else Terminal(directory.name if kind == "train" else kind)
        with closing(progress), RunDir.open(directory, dump(config), kind=kind, fork=self.fork, data=facts()) as run:
            reached, wanted = work(run, progress, _unheard if self.quiet else session.note)
            if reached >= wanted:
                run.check_judged()
        if reached < wanted:
            session.note(f"stopped after step {reached} of {wanted}, saved in {directory}; the same command continues")
            return StopFlag.exit_code()
        there, made = f"nothing was left to do: all {wanted} steps were there", f"done: {wanted} steps"
        session.note(f"{there if progress.first >= wanted else made}, policy in {policy}")
        return 0


@dataclass(frozen=True)
class Train(FromRecipe):
    """Train a policy by RL from a recipe.

    `--a.b value` edits the recipe: --steps 40, --seed 1, --method.beta 0.1. --plugin FILE.py registers parts of your
    own. Killed at any moment, the same command continues. SIGTERM and Ctrl-C finish the step in hand and save; the
    exit code is then 143 and 130 (128 + the signal), 2 where something was refused, 70 for a fault of the program."""

    fork: bool = False
    """Continue a run although its recipe or the installed versions changed."""

    def execute(self, session: Session) -> int:
        """Train, or say what a dry run says."""
        config: Any = self.config(session, "train")
        if self.dry_run:
            return self.say_dry(config, session)
        from sage_rlvr.models.policy import run_facts
        from sage_rlvr.training.problems import files_of

        directory = self.run or RUNS / f"{self.recipe.stem}-s{config.seed}"

        def facts() -> dict[str, Any]:
            files = files_of(config)
            return run_facts(config) | ({"data": files} if files else {})

        def work(run: RunDir | None, progress: Reporter, say: Say) -> tuple[int, int]:
            if config.engine.name == "trl":
                _require("trl")
                from sage_rlvr.training.trl import run as trl

                return trl.train(config, run, directory, progress, say), config.steps
            assert run is not None
            if config.engine.name == "verl":
                _require("verl")
                from sage_rlvr.training.verl import run as verl

                return verl.train(config, run, progress, say), config.steps
            from sage_rlvr.training import loop

            return loop.train(config, run, progress), config.steps

        return self.work(config, session, "train", (directory, directory / "policy"), facts, work)


@dataclass(frozen=True)
class Sft(FromRecipe):
    """Supervised fine-tuning: a base policy from scratch, or an existing model on a data set.

    The recipe says which: one with `world` makes a small policy from generated solutions; one with `data` is there to
    fine-tune an existing model, `model`, on worked solutions by TRL's SFTTrainer, whole or with LoRA, and needs the trl extra."""

    out: Path | None = None
    """Where the policy goes (default <run>/policy)."""

    def execute(self, session: Session) -> int:
        """Train, or say what a dry run says."""
        config: Any = self.config(session, "sft")
        if self.dry_run:
            return self.say_dry(config, session)
        directory = self.run or RUNS / self.recipe.stem
        out = self.out or directory / "policy"
        if not hasattr(config, "data"):  # a small policy from generated solutions
            from sage_rlvr.training.sft import train_sft

            def from_scratch(run: Any, progress: Reporter, say: Say) -> tuple[int, int]:
                return train_sft(config, run, out, progress), config.steps

            return self.work(config, session, "sft", (directory, out), lambda: None, from_scratch)
        _require("trl")
        from sage_rlvr.training.trl import sft

        def work(run: RunDir | None, progress: Reporter, say: Say) -> tuple[int, int]:
            found = sft.finetune(config, run, directory, out, progress=progress, say=say)
            return found.step, found.total

        return self.work(config, session, "sft", (directory, out), lambda: sft.run_facts(config), work)


@dataclass(frozen=True)
class Offline(FromRecipe):
    """Train on the samples of stores: SFT, DPO, or a reward model.

    The stores are those of `eval --samples`, first attempts, and of `eval --samples --after`, second attempts with guidance or
    without. What is paired is printed, and nothing is sampled. A problem is asked without guidance, whoever its winner is."""

    out: Path | None = None
    """Where the policy or the reward model goes (default <run>/policy)."""
    fork: bool = False
    """Continue a run although its recipe or the installed versions changed."""

    def execute(self, session: Session) -> int:
        """Train, or say what a dry run says."""
        config: Any = self.config(session, "offline")
        if self.dry_run:
            return self.say_dry(config, session)
        from sage_rlvr.evaluation.pairs import paired, texts_of
        from sage_rlvr.models.policy import weights_hash
        from sage_rlvr.plugins import packages_of
        from sage_rlvr.training.offline import train_offline

        found = paired(config.pairs)
        session.say(*found.lines())
        directory = self.run or RUNS / f"{self.recipe.stem}-s{config.seed}"
        out = self.out or directory / "policy"

        def facts() -> dict[str, Any]:
            known = {"model_sha256": weights_hash(config.model), "data": found.digests, "counts": found.counts}
            return known | ({"packages": packages} if (packages := packages_of(config)) else {})

        def work(run: RunDir | None, progress: Reporter, say: Say) -> tuple[int, int]:
            assert run is not None
            return train_offline(config, run, out, progress, lambda tokens: texts_of(config, found, tokens)), config.steps

        return self.work(config, session, "offline", (directory, out), facts, work)


def _unheard(line: object) -> None:
    """Says nothing."""


def _require(engine: str) -> None:
    from sage_rlvr.training.trl import require_trl
    from sage_rlvr.training.verl import require_verl

    try:
        {"trl": require_trl, "verl": require_verl}[engine]()
    except ModuleNotFoundError as error:
        raise ConfigError(f"engine.name = {engine!r}: {error}") from error
