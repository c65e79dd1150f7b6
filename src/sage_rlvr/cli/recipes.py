"""`show`, `import-config`, `recipes` and `parts`: what a recipe means, and recipes made from the authors' files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from sage_rlvr import recipes as files
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.config import (
    FinetuneConfig,
    SftConfig,
    TrainConfig,
    WorldConfig,
    decode,
    load,
    load_config,
    parse_yaml,
    to_yaml,
)
from sage_rlvr.errors import ConfigError, suggest
from sage_rlvr.registry import kinds, registry_of


@dataclass(frozen=True)
class Show(Command):
    """Print a resolved recipe and the objective that it really optimizes."""

    edits_recipe: ClassVar[bool] = True

    recipe: tyro.conf.Positional[Path]
    """A recipe file, or the name of a shipped one."""

    def execute(self, session: Session) -> int:
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
        texts, findings, missing = import_recipes(self.source, self.out, self.plain)
        if self.out is None:
            session.say(*texts)
        session.note(*findings, *missing)
        return 0


@dataclass(frozen=True)
class Recipes(Command):
    """List the recipes that come with the package; their names stand wherever a recipe file may.

    `sage-rlvr recipes copy NAME FILE` makes one your own."""

    def execute(self, session: Session) -> int:
        session.say(*(f"{name:<32} {files.headline(file)}" for name, file in files.shipped().items() if "/" in name))
        return 0


@dataclass(frozen=True)
class CopyRecipe(Command):
    """Copy a shipped recipe to a file of your own."""

    name: tyro.conf.Positional[str]
    """Its name, as `sage-rlvr recipes` lists it."""
    to: tyro.conf.Positional[Path]
    """The new file, or a folder."""

    def execute(self, session: Session) -> int:
        session.note(f"written: {files.copy(self.name, self.to)}")
        return 0


@dataclass(frozen=True)
class Parts(Command):
    """List the parts that a recipe can name, those of plugins and installed packages included."""

    kind: tyro.conf.Positional[str | None] = None
    """One kind alone, for example guide."""

    def execute(self, session: Session) -> int:
        for kind in kinds() if self.kind is None else [self.kind]:
            session.say(f"{kind}", *(f"  {name:<24} {said}" for name, said in registry_of(kind).help().items()))
        return 0


def world_line(world: WorldConfig) -> str:
    """What enumeration says of the world's test split; five numbers would take minutes, so that is said instead."""
    if max(world.counts) > 4:
        return "world: five numbers; Countdown.facts enumerates it in some minutes"
    facts = world.build().facts("test")
    law = f", {facts['answers_mean_by_law']:.1f} as its law draws them" if "answers_mean_by_law" in facts else ""
    return (
        f"world: {facts['problems']:.0f} test problems with {facts['answers_mean']:.1f} right answers each on average "
        f"(median {facts['answers_median']:.0f}{law}) among {facts['expressions_mean']:,.0f} expressions; "
        f"the longest has {facts['longest']:.0f} characters"
    )


def reference_line(config: TrainConfig) -> str:
    """What pi_ref is loaded from when a run of this recipe starts, and whether `base_model` has a part in it."""
    anchor, unread = config.method.anchor, ""
    if config.base_model is not None and (config.reference is None or anchor is None or anchor.source != "base"):
        unread = f"; base_model = {config.base_model} is not read: only an anchor of source 'base' reads it"
    if config.reference is None or anchor is None:
        return "reference: none, this method reads no log-probs of one" + unread
    why = (
        "the anchor's source" if config.reference == anchor.source else f"model, the anchor's source is {anchor.source}"
    )
    if anchor.source == "base":
        why = "base_model" if config.base_model is not None else "model, because no base_model is given"
    return f"reference: {config.reference} ({why})" + unread


def schema_of(tree: Mapping[str, Any]) -> type[TrainConfig] | type[FinetuneConfig] | type[SftConfig]:
    """The schema of a recipe's tree: a method or a rollout trains by RL, a data set or TRL fine-tunes a model, else the
    world makes a base policy."""
    if {"method", "rollout"} & set(tree):
        return TrainConfig
    engine = tree.get("engine")
    tuned = "data" in tree or (isinstance(engine, dict) and engine.get("name") == "trl")
    return FinetuneConfig if tuned else SftConfig


def check_command(recipe: Path, tree: Mapping[str, Any], command: str) -> None:
    """ConfigError where the recipe's tree is plainly one of the other command, `train` or `sft`, with the command for it."""
    kind = "train" if {"method", "rollout"} & set(tree) else "sft"
    schema = schema_of(tree)
    own = {f.name for f in fields(schema)} - {f.name for f in fields(TrainConfig)}
    if kind != command and (kind == "train" or own & set(tree)):  # else a recipe for RL that lacks its method
        what = "an RL" if kind == "train" else "an SFT"
        raise ConfigError(f"{recipe}: this is {what} recipe; run it with: {suggest(kind, recipe)}")


def recipe_lines(config: TrainConfig | FinetuneConfig | SftConfig) -> list[str]:
    """The resolved recipe, and of an RL recipe its objective and what its reference is loaded from.

    ConfigError where its guide can never fire on the policy, as far as the policy's config.json is here.
    """
    from sage_rlvr.models.folders import vocabulary_of
    from sage_rlvr.training.watch import check_vocabulary

    lines = [to_yaml(config).rstrip()]
    if isinstance(config, TrainConfig):
        check_vocabulary(config.method, vocabulary_of(config.model))
        lines += ["\n" + config.method.describe(), "\n" + reference_line(config)]
    return lines


def import_recipes(source: Path, out: Path | None, plain: bool) -> tuple[list[str], list[str], list[str]]:
    """Their configuration as recipes, written to `out` and beside it. Returns their texts, the findings as lines, and what
    comes next. Both recipes are decoded before anything is written; ConfigError too where a file is there already."""
    from sage_rlvr.import_config import import_config

    marks = {"method", "rollout", "engine", "checkpoint", "world"} & set(tree := load(source))
    if marks and not {"rl", "sage", "sft", "train_dataset"} & set(tree):
        command = "train" if {"method", "rollout"} & marks else "sft"
        raise ConfigError(
            f"{source}: already a recipe of this package ({', '.join(sorted(marks))}); run it with: {suggest(command, source)}"
        )
    stem = source.stem if out is None else out.stem
    found = import_config(source, sft_run=f"runs/{stem}-sft", plain=plain)
    decode(TrainConfig, parse_yaml(found.train, "the imported recipe"))
    files = {} if out is None else {out: found.train}
    if found.sft is not None:
        decode(FinetuneConfig, parse_yaml(found.sft, "the imported SFT recipe"))
        files |= {} if out is None else {out.with_name(f"{stem}-sft.yaml"): found.sft}
    there = [str(path) for path in files if path.exists()]
    if there:
        raise ConfigError(f"{', '.join(there)}: there already; give another name (-o), or move it away")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    texts = [text for text in (found.sft, found.train) if text is not None]
    lines = [str(finding) for finding in found.findings]
    if out is None:  # the recipes go to the terminal, and their comments say most of it already
        lines = [str(finding) for finding in found.findings if finding.kind == "kept"]
    return texts, lines, [f"written: {path}" for path in files]
