"""The task of a recipe, and tasks and worlds by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sage_rlvr import tasks
from sage_rlvr.config.kinds import schema_of
from sage_rlvr.config.parts import DataConfig, WorldConfig
from sage_rlvr.config.runs import SftConfig, TrainConfig
from sage_rlvr.errors import ConfigError
from sage_rlvr.recipes import Tree, load
from sage_rlvr.schema import decode
from sage_rlvr.tasks.countdown import WORLDS
from sage_rlvr.tasks.prompts import FORMATS, PromptFormat
from sage_rlvr.tasks.rows import DataSource

if TYPE_CHECKING:
    from sage_rlvr.tasks.base import Task


def task_of(config: TrainConfig) -> Task:
    """Return the task of a recipe: `task`; else the rows of `data`, judged as mathematics; else the generated `world`."""
    if config.task is not None:
        return config.task
    return config.world.build() if config.data is None else task_of_data(config.data)


def task_of_data(data: DataConfig) -> Task:
    """Rows of a data set, judged as mathematics."""
    from sage_rlvr.tasks.math import MathTask  # late: a generated world needs no mathematics

    return MathTask(DataSource.of(data), format_of(data))


def format_of(data: DataConfig) -> PromptFormat:
    """Return the prompt format of a data set, with the place of the answer."""
    return FORMATS[data.prompt].read_at(data.answer_in, data.tag, data.thinking, data.in_thinking)


def task_named(name: str, template: str = "boxed") -> Task:
    """Return the task of a recipe file, or a task by a name of `sage_rlvr.tasks.task_named`."""
    if name.endswith((".yaml", ".yml")):
        return task_of(recipe_of(name))

    return tasks.task_named(name, template)


def recipe_of(name: str) -> TrainConfig:
    """Return an RL recipe, for its task and policy."""
    return _of_rl(name, load(name))


def world_of(name: str) -> WorldConfig:
    """Return the world of a recipe file (RL or SFT), or a named one of `sage_rlvr.tasks.countdown.WORLDS`.

    Raise ConfigError otherwise.
    """
    if name.endswith((".yaml", ".yml")):
        tree = load(name)
        return _of_rl(name, tree).world if schema_of(tree) is TrainConfig else decode(SftConfig, tree, where=name).world
    if name not in WORLDS:
        raise ConfigError(f"world {name!r}: pass a recipe file or one of {', '.join(WORLDS)}")
    return WorldConfig.of(WORLDS[name])


def _of_rl(name: str, tree: Tree) -> TrainConfig:
    """Return a recipe for its task; the base recipe of a task has no method of its own."""
    return decode(TrainConfig, Tree({"method": "no_kl", **tree}, tree.origins), where=name)
