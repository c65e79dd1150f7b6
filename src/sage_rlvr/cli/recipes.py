"""`show`, `recipes`, `methods` and `parts`: print a resolved recipe, and list what is available."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import tyro

from sage_rlvr import recipes as files
from sage_rlvr.cli.session import Command, Session
from sage_rlvr.config import (
    RunConfig,
    TrainConfig,
    WorldConfig,
    dump,
    read_recipe,
    to_yaml,
)
from sage_rlvr.errors import ConfigError, SageError, neighbors, suggest
from sage_rlvr.extras import install
from sage_rlvr.names import REGISTRIES
from sage_rlvr.registry import about_of, help_of, loads, names_of, registry_of


@dataclass(frozen=True)
class Show(Command):
    """Print a resolved recipe and the loss that it actually optimizes.

    With --model MODEL also the cost of a step on this machine, from a probe of about twenty seconds."""

    edits_recipe: ClassVar[bool] = True

    recipe: tyro.conf.Positional[Path]
    """A recipe file, a shipped recipe or a method."""
    task: str | None = None
    """Settings for a method by name, as in `train`."""

    def execute(self, session: Session) -> int:
        """Print the resolved recipe and the loss that it optimizes. Returns 0; raises ConfigError for an invalid recipe."""
        config = read_recipe(self.recipe, session.edits, task=self.task)
        session.say(*recipe_lines(config))
        if isinstance(config, TrainConfig) and config.data is None and config.task is None:
            session.say("\n" + world_line(config.world))
        if isinstance(config, TrainConfig) and any(name == "model" for name, _ in session.edits):
            from sage_rlvr.cli.doctor import cost_lines

            session.say("", *cost_lines(config, session.note))
        return 0


@dataclass(frozen=True)
class Recipes(Command):
    """List the recipes that come with the package.

    Commands accept these names instead of recipe files. `sage-rlvr recipes copy NAME FILE` copies a recipe. Methods have no files:
    `sage-rlvr methods` lists them, and `sage-rlvr train maxrl --task words` trains with one."""

    words: tyro.conf.Positional[tuple[str, ...]] = ()
    """List only recipes whose name or description contains all of these words."""

    def execute(self, session: Session) -> int:
        """Print the shipped recipes that have all words. Returns 0; raises ConfigError if none has."""
        listed = [(name, files.headline(file)) for name, file in files.shipped().items() if "/" in name]
        _list(session, listed, self.words, "recipe")
        bases = [name.partition("/")[0] for name, _ in listed if name.endswith("/base")]
        if bases:
            by_name = suggest("train", "METHOD", "--task", "NAME")
            session.note(f"NAME/base has the settings of a task and no method: {by_name}, NAME one of {', '.join(bases)}")
        return 0


@dataclass(frozen=True)
class Methods(Command):
    """List the methods: what each does, its paper (arXiv) and the engines that run it.

    `sage-rlvr train NAME` trains with a method. The second part of the list has the combinations and settings of
    recipes/methods.yaml. `sage-rlvr show NAME` prints the loss that it optimizes."""

    words: tyro.conf.Positional[tuple[str, ...]] = ()
    """List only methods whose line contains all of these words."""

    def execute(self, session: Session) -> int:
        """Print the methods that have all words. Returns 0; raises ConfigError if none has."""
        head = f"{'method':<17}{'what it does':<40}{'arXiv':<11}engines"
        rows = [
            f"{name:<16} {_cut(about, 39):<39} {arxiv:<10} {_engines(name)}".rstrip()
            for name, (about, arxiv) in about_of("method").items()
        ]
        named = [f"{name:<28} {_cut(about, 51)}" for name, (_, about) in files.named_methods("").items()]
        rows, named = list(filter(self._has_words, rows)), list(filter(self._has_words, named))
        if not rows and not named:
            raise ConfigError(f"methods: none contains {' '.join(self.words)!r}; `sage-rlvr methods` lists all")
        if rows:
            session.say(head, *rows)
        if not loads("method"):
            session.note(f"what a method does, its paper and its engines are known with torch; {install('train')}")
        if named:
            session.say("", "combinations and settings of recipes/methods.yaml:", *named)
        return 0

    def _has_words(self, line: str) -> bool:
        return all(word.lower() in line.lower() for word in self.words)


def _engines(method: str) -> str:
    """The engines that run a method; "" without torch, which its parts need."""
    if not loads("method"):
        return ""
    from sage_rlvr.training.engines import runs_on

    with suppress(TypeError, SageError):  # a user's method with required arguments
        return " ".join(runs_on(registry_of("method")[method]()))
    return "loop"


def _list(session: Session, listed: Sequence[tuple[str, str]], words: Sequence[str], what: str) -> None:
    """Print name and sentence of each that contains all words. Raises ConfigError if none does."""
    lines = [f"{name:<29} {text}" for name, text in listed]
    lines = [line for line in lines if all(word.lower() in line.lower() for word in words)]
    if not lines:
        raise ConfigError(f"{what}s: none contains {' '.join(words)!r}; `sage-rlvr {what}s` lists all")
    session.say(*lines)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


@dataclass(frozen=True)
class CopyRecipe(Command):
    """Copy a shipped recipe to a file of your own."""

    name: tyro.conf.Positional[str]
    """The name of the recipe, as listed by `sage-rlvr recipes`."""
    to: tyro.conf.Positional[Path]
    """The new file, or a folder."""

    def execute(self, session: Session) -> int:
        session.note(f"written: {files.copy(self.name, self.to)}")
        return 0


@dataclass(frozen=True)
class Parts(Command):
    """List the parts that recipes and commands accept, with plugins; or the options of one part.

    For each option: default, allowed values (with the other options at their defaults) and description."""

    name: tyro.conf.Positional[str | None] = None
    """One kind of part, for example guides or token_weight; or a part, for example branch, to list its options."""

    def execute(self, session: Session) -> int:
        """Print one part with its options, or the list of all parts or of a kind. Returns 0; raises ConfigError for an
        unknown name."""
        requested = None if self.name is None else self.name.replace("-", "_")
        if requested is None or requested.removesuffix("s") in REGISTRIES:  # a list, which the base install can print
            kinds = list(REGISTRIES) if requested is None else [requested.removesuffix("s")]
            parts = {kind: help_of(kind) for kind in kinds}
            for kind, sentences in parts.items():
                session.say(*_listed(kind, sentences))
            if any("" in sentences.values() for sentences in parts.values()):
                session.note(f"what these parts do is known with torch; {install('train')}")
            return 0
        try:
            from sage_rlvr.cli.part_options import about, extras_by_kind
        except ModuleNotFoundError:
            known = [*REGISTRIES, *(name for kind in REGISTRIES for name in names_of(kind))]
            if requested in known:
                raise
            raise ConfigError(
                f"unknown part {self.name!r}{_near(requested, known)}; `{suggest('parts')}` lists all; kinds of extras, such as "
                f"token_weight, need torch: {install('train')}"
            ) from None

        kinds, kind = extras_by_kind(), requested.removesuffix("s")
        if extras := kinds.get(kind):
            session.say(*_listed(f"{kind}: extras, of which a method has at most one", extras))
            return 0
        of_name = [kind for kind in REGISTRIES if requested in registry_of(kind)]
        if not of_name:
            near = _near(requested, [*REGISTRIES, *kinds, *(name for kind in REGISTRIES for name in registry_of(kind))])
            raise ConfigError(
                f"unknown part {self.name!r}{near}; `{suggest('parts')}` lists all{registry_of('guide').own}"
            )
        for kind in of_name:
            session.say(*about(kind, requested), "")
        return 0


def _near(name: str, known: Sequence[str]) -> str:
    """The similar names, as the continuation of a message."""
    near = ", ".join(neighbors(name, known))
    return f"; near it: {near}" if near else ""


def _listed(head: str, parts: Mapping[str, str]) -> list[str]:
    """parts: name -> sentence."""
    return [head, *(f"  {name:<24} {sentence}".rstrip() for name, sentence in parts.items())]


def world_line(world: WorldConfig) -> str:
    """Facts about the test split from enumeration; for five numbers, which take minutes, a hint instead."""
    if max(world.counts) > 4:
        return "task: five numbers; Countdown.facts enumerates it in a few minutes"
    facts = world.build().facts("test")
    law = f", {facts['answers_mean_by_law']:.1f} under its sampling distribution" if "answers_mean_by_law" in facts else ""
    return (
        f"task: {facts['problems']:.0f} test problems with {facts['answers_mean']:.1f} right answers on average "
        f"(median {facts['answers_median']:.0f}{law}) among {facts['expressions_mean']:,.0f} expressions; "
        f"the longest has {facts['longest']:.0f} characters"
    )


def reference_line(config: TrainConfig) -> str:
    """The source of pi_ref in a run of this recipe, and whether `base_model` is used."""
    anchor, unread = config.method.anchor, ""
    if config.base_model is not None and (config.reference is None or anchor is None or anchor.source != "base"):
        unread = f"; base_model = {config.base_model} is not used: only a KL term with source 'base' reads it"
    if config.reference is None or anchor is None:
        return "reference: none, this method has no reference model" + unread
    why = (
        "the source of the KL term" if config.reference == anchor.source else f"model; the source of the KL term is {anchor.source}"
    )
    if anchor.source == "base":
        why = "base_model" if config.base_model is not None else "model, because base_model is not set"
    return f"reference: {config.reference} ({why})" + unread


def recipe_lines(config: RunConfig) -> list[str]:
    """The resolved recipe, and for an RL recipe its objective and the source of its reference.

    Raises ConfigError if its guide can never act on the policy, as far as the policy's config.json is available.
    """
    from sage_rlvr.models.folders import vocabulary_of
    from sage_rlvr.training.watch import check_vocabulary

    tree = dump(config)
    if getattr(config, "task", None) is not None or getattr(config, "data", None) is not None:
        tree.pop("world", None)  # the default of a key that such a recipe does not use
    lines = [to_yaml(tree).rstrip()]
    if isinstance(config, TrainConfig):
        check_vocabulary(config.method, vocabulary_of(config.model))
        lines += ["\n" + config.objective, "\n" + reference_line(config)]
    return lines
