"""`show`, `import-config`, `recipes` and `parts`: what a recipe means, and recipes made from the authors' files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import tyro

from sage_rlvr import plugins
from sage_rlvr import recipes as files
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.config import (
    FinetuneConfig,
    OfflineConfig,
    SftConfig,
    TrainConfig,
    WorldConfig,
    decode,
    load,
    to_yaml,
)
from sage_rlvr.errors import ConfigError, neighbors, suggest
from sage_rlvr.registry import HOMES, help_of, registry_of

Config = TrainConfig | FinetuneConfig | SftConfig | OfflineConfig


@dataclass(frozen=True)
class Show(Command):
    """Print a resolved recipe and the objective that it really optimizes."""

    edits_recipe: ClassVar[bool] = True

    recipe: tyro.conf.Positional[Path]
    """A recipe file, or the name of a shipped one."""

    def execute(self, session: Session) -> int:
        config = read_recipe(self.recipe, session.edits)
        session.say(*recipe_lines(config))
        if isinstance(config, TrainConfig) and config.data is None and config.task is None:
            session.say("\n" + world_line(config.world))
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
    """List what recipes and commands can name, plugins included; or the options of one part.

    Of an option: its default, what it may be with the others at their defaults, and what the part's docstring says of it."""

    name: tyro.conf.Positional[str | None] = None
    """One kind alone, for example guides; or a part, for example branch, whose options are listed."""

    def execute(self, session: Session) -> int:
        asked = None if self.name is None else self.name.replace("-", "_")
        if asked is None or asked.removesuffix("s") in HOMES:  # a list, which the base install can print
            for kind in HOMES if asked is None else [asked.removesuffix("s")]:
                session.say(f"{kind}", *(f"  {name:<24} {said}" for name, said in help_of(kind).items()))
            return 0
        from sage_rlvr.cli.part_options import about

        of_name = [kind for kind in HOMES if asked in registry_of(kind)]
        if not of_name:
            near = ", ".join(neighbors(asked, [*HOMES, *(name for kind in HOMES for name in registry_of(kind))]))
            near = f"; near it: {near}" if near else ""
            raise ConfigError(
                f"no part and no kind of part {self.name!r}{near}; `{suggest('parts')}` lists all{registry_of('guide').own}"
            )
        for kind in of_name:
            session.say(*about(kind, asked), "")
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


def schema_of(tree: Mapping[str, Any]) -> type[Config]:
    """The schema of a recipe's tree: a method or a rollout trains by RL, pairs or a loss offline, a data set or TRL fine-tunes a
    model, else the world makes a base policy."""
    if {"method", "rollout"} & set(tree):
        return TrainConfig
    if {"pairs", "loss"} & set(tree):
        return OfflineConfig
    engine = tree.get("engine")
    tuned = "data" in tree or (isinstance(engine, dict) and engine.get("name") == "trl")
    return FinetuneConfig if tuned else SftConfig


def read_recipe(recipe: Path, edits: Sequence[tuple[str, str]], command: str = "") -> Config:
    """What a recipe means. ConfigError where it is plainly one of another command (train, sft, offline), with its command."""
    _refuse_a_method(recipe, command)
    tree = load(recipe, edits)
    if "arms" in tree:
        raise ConfigError(f"{recipe}: this is the design of a sweep; run it with: {suggest('sweep', recipe)}")
    schema = schema_of(tree)
    kind = {TrainConfig: "train", OfflineConfig: "offline"}.get(schema, "sft")
    own = {f.name for f in fields(schema)} - {f.name for f in fields(TrainConfig)}
    if command not in ("", kind) and (kind == "train" or own & set(tree)):
        what = {"train": "an RL", "sft": "an SFT", "offline": "an offline"}[kind]
        raise ConfigError(f"{recipe}: this is {what} recipe; run it with: {suggest(kind, recipe)}")
    # what is left for `train` is a recipe for RL that lacks its method, which decoding says
    return decode({"train": TrainConfig, "offline": OfflineConfig}.get(command, schema), tree, where=str(recipe))


def _refuse_a_method(recipe: Path, command: str) -> None:
    """ConfigError for the name of a method where a recipe is expected, with the command that trains by it."""
    name = str(recipe)
    if recipe.exists() or recipe.suffix or name in files.shipped() or name not in registry_of("method"):
        return
    words = [command or "show", "grpo", "--method", name, *plugins.options_for(registry_of("method")[name])]
    raise ConfigError(f"{name}: is a method and no recipe; take the settings of a recipe and this method: {suggest(*words)}")


def recipe_lines(config: Config) -> list[str]:
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
