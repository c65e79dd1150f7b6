"""Determine the kind of run of a recipe, and decode the recipe as that kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sage_rlvr.config.runs import FinetuneConfig, OfflineConfig, SftConfig, TrainConfig
from sage_rlvr.errors import ConfigError, suggest
from sage_rlvr.recipes import ROWS, KeyPath, Recipe, Tree, is_shipped, load, locate, merge, override
from sage_rlvr.schema import decode

RunConfig = TrainConfig | FinetuneConfig | SftConfig | OfflineConfig


def schema_of(tree: Mapping[str, Any]) -> type[RunConfig]:
    """Return the schema of a recipe's tree.

    A method or a rollout trains by RL, pairs or a loss offline, a data set or TRL fine-tunes a model, else the world makes a base
    policy.
    """
    if {"method", "rollout"} & set(tree):
        return TrainConfig
    if {"pairs", "loss"} & set(tree):
        return OfflineConfig
    engine = tree.get("engine")
    tuned = "data" in tree or (isinstance(engine, dict) and engine.get("name") == "trl")
    return FinetuneConfig if tuned else SftConfig


def read_recipe(
    recipe: str | Path | Recipe,
    edits: Iterable[tuple[str, str]] = (),
    command: str = "",
    task: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Decode a recipe.

    Args:
        recipe: A file, the name of a shipped recipe or of a method, or the result of `recipes.locate`.
        edits: Pairs (dotted key, YAML text), as `--a.b value` gives them.
        command: The command that runs it ("train", "sft", "offline"); "" accepts every kind.
        task: The task for a method by name, see `recipes.locate`.
        settings: Plain values that override those of the recipe, merged key by key; a method replaces the recipe's.

    Raises:
        ConfigError: Something in it is wrong, or it is plainly a recipe of another command, which the message names.
    """
    located = recipe if isinstance(recipe, Recipe) else locate(recipe, task)
    tree = load(located)
    if settings:
        if "method" in settings:
            tree.pop("method", None)
        tree = merge(tree, Tree(settings, {key_path: f"{key_path[0]}=" for key_path in _within(settings)}))
    for key, text in edits:
        tree = override(tree, key, text)
    own = tree.get("task")
    if isinstance(own, dict) and "reward" in own and "name" not in own:
        raise ConfigError(f"task.reward = {own['reward']}: a reward function judges rows; name their file: --task FILE.jsonl")
    if located.file.parent.name == ROWS and "model" not in tree:
        rows = own.get("file") or own.get("dataset") if isinstance(own, dict) else None
        raise ConfigError(
            f"{rows or recipe}: set the model to train, --model FOLDER or --model HUB_ID; the shipped policy's vocabulary "
            "covers only Countdown"
        )
    if "arms" in tree:
        raise ConfigError(f"{recipe}: this is the design of a sweep; run it with: {suggest('sweep', recipe)}")
    schema = schema_of(tree)
    kind = command_of(schema)
    own_keys = {f.name for f in fields(schema)} - {f.name for f in fields(TrainConfig)}
    if command not in ("", kind) and (kind == "train" or own_keys & set(tree)):
        what = {"train": "an RL", "sft": "an SFT", "offline": "an offline"}[kind]
        raise ConfigError(f"{recipe}: this is {what} recipe; run it with: {suggest(kind, recipe)}")
    if kind == "train" and "method" not in tree:
        by_name = suggest("train", "METHOD", "--task", located.file.parent.name if is_shipped(located.file) else recipe)
        raise ConfigError(f"{recipe}: has no method: pass --method NAME, or train a method with these settings: {by_name}")
    # what is left for `train` is a recipe for RL that lacks its method, which decoding says
    return decode({"train": TrainConfig, "offline": OfflineConfig}.get(command, schema), tree, where=str(located))


def _within(tree: Mapping[str, Any], key_path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield every place of plain nested settings."""
    for key, value in tree.items():
        yield (*key_path, str(key))
        if isinstance(value, Mapping):
            yield from _within(value, (*key_path, str(key)))


def command_of(schema: type[RunConfig]) -> str:
    """Return the command that runs recipes of a schema."""
    return {TrainConfig: "train", OfflineConfig: "offline"}.get(schema, "sft")
