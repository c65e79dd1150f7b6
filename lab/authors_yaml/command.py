"""`python -m lab authors-yaml FILE`: recipes made from the train_config.yaml of SAGE's authors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sage_rlvr.cli.session import Command, Session
from sage_rlvr.config import FinetuneConfig, TrainConfig, decode, load, parse_yaml
from sage_rlvr.errors import ConfigError, suggest


@dataclass(frozen=True)
class AuthorsYaml(Command):
    """Turn the train_config.yaml of SAGE's authors into recipes.

    It says line by line what the file did not mean."""

    source: tyro.conf.Positional[Path]
    """Their file."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Where the recipe goes (default: the terminal); the SFT recipe, where there is one, goes beside it as NAME-sft.yaml."""
    plain: bool = False
    """As their train_grpo reads the file: without the guide."""

    def execute(self, session: Session) -> int:
        from lab.authors_yaml import import_config

        self._check_source()
        stem = self.source.stem if self.out is None else self.out.stem
        found = import_config(self.source, sft_run=f"runs/{stem}-sft", plain=self.plain)
        texts = {"": found.train} if found.sft is None else {"-sft": found.sft, "": found.train}
        for end, text in texts.items():
            decode(FinetuneConfig if end else TrainConfig, parse_yaml(text, "the imported recipe"))
        if self.out is None:  # the recipes go to the terminal, and their comments say most of it already
            session.say(*texts.values())
            session.note(*(str(finding) for finding in found.findings if finding.kind == "kept"))
            return 0
        files = {
            self.out.with_name(f"{stem}{end}{self.out.suffix if not end else '.yaml'}"): text
            for end, text in texts.items()
        }
        if there := [str(path) for path in files if path.exists()]:
            raise ConfigError(f"{', '.join(there)}: there already; give another name (-o), or move it away")
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        session.note(*map(str, found.findings), *(f"written: {path}" for path in files))
        return 0

    def _check_source(self) -> None:
        """ConfigError where the file is a recipe of this package."""
        marks = {"method", "rollout", "engine", "checkpoint", "world"} & set(tree := load(self.source))
        if marks and not {"rl", "sage", "sft", "train_dataset"} & set(tree):
            command = "train" if {"method", "rollout"} & marks else "sft"
            raise ConfigError(
                f"{self.source}: already a recipe of this package ({', '.join(sorted(marks))}); run it with: "
                f"{suggest(command, self.source)}"
            )
