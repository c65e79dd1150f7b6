"""`show` and `import-config`: recipes read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from sage_rlvr.cli.session import Command, Session


@dataclass(frozen=True)
class Show(Command):
    """Print a resolved recipe and the objective that it really optimizes."""

    edits_recipe: ClassVar[bool] = True

    recipe: tyro.conf.Positional[Path]
    """A recipe file, or the name of a shipped one."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.cli.recipes import recipe_lines, schema_of, world_line
        from sage_rlvr.config import TrainConfig, load, load_config

        config = load_config(schema_of(load(self.recipe, session.edits)), self.recipe, session.edits)
        session.say(*recipe_lines(config))
        if isinstance(config, TrainConfig) and config.data is None:
            session.say("\n" + world_line(config.world))
        return 0


@dataclass(frozen=True)
class ImportConfig(Command):
    """Turn the train_config.yaml of SAGE's authors into recipes.

    It says line by line what the file did not mean."""

    source: tyro.conf.Positional[Path]
    """Their file."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Where the recipe goes (default: the terminal); the SFT recipe, where there is one, goes beside it as NAME-sft.yaml."""
    plain: bool = False
    """As their train_grpo reads the file: without the guide."""

    def execute(self, session: Session) -> int:
        from sage_rlvr.cli.recipes import import_recipes

        texts, findings, missing = import_recipes(self.source, self.out, self.plain)
        if self.out is None:
            session.say(*texts)
        session.note(*findings, *missing)
        return 0
