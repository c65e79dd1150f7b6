"""The signal `places`: the class of the state before each token of a completion, as the task names it.

The class is a function of the text so far (`tasks.ClassifiesStates`), so a guide that reads it depends on the state only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.guides import factors
from sage_rlvr.core.guides.place import Place
from sage_rlvr.core.method import Method
from sage_rlvr.errors import ConfigError, DataError, choose_from
from sage_rlvr.ids import name_id
from sage_rlvr.tasks.abilities import ClassifiesStates
from sage_rlvr.tasks.base import Task

StateClass = Callable[[str], str]
"""Function from the text of a completion so far to the class of the state after it."""


def state_class_of(task: Task) -> StateClass:
    """Return the task's `state_class`. Raise ConfigError for a task that does not classify its states."""
    if not isinstance(task, ClassifiesStates):
        raise ConfigError(
            f"guide place: task {task.name} has no classes of states; give it `state_classes` and `state_class(text)`, or set "
            "`first`, the number of first tokens, in place of `classes`"
        )
    return task.state_class


def check_places(method: Method, task: Task) -> None:
    """Raise ConfigError if a Place guide of the method names a class of states that the task does not have."""
    if "places" not in method.needs:
        return
    state_class_of(task)
    assert isinstance(task, ClassifiesStates)
    for name in classes_named(method):
        if name not in task.state_classes:
            raise ConfigError(
                f"guide place: classes has {name!r}, which task {task.name} does not have{choose_from(name, task.state_classes)}"
            )


def classes_named(method: Method) -> tuple[str, ...]:
    """Return the classes of states that the factors of the method's guide name."""
    guides = () if method.anchor is None else factors(method.anchor.guide)
    inner = (getattr(guide, "guide", guide) for guide in guides)  # of a placebo
    return tuple(name for guide in inner if isinstance(guide, Place) for name in guide.classes)


def state_class_of_rewards(rewards: Any) -> StateClass | None:
    """Return the `state_class` of the first reward function that has one."""
    functions = (getattr(one, "state_class", None) for one in (rewards if isinstance(rewards, list) else [rewards]))
    return next(filter(None, functions), None)


def check_state_class(needs: frozenset[str], state_class: StateClass | None) -> None:
    """Raise ConfigError if a trainer's guide reads places and there is no `state_class`."""
    if "places" in needs and state_class is None:
        raise ConfigError(
            "SageTrainer: the guide reads classes of states, but no reward function has `state_class`; pass state_class=, a "
            "function (text of the completion so far) -> name of the class of the state, or set Place(first=...)"
        )


def places_of(state_class: StateClass, tokenizer: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the `name_id` of the class of the state before each token, (B, T) int64, 0 off the mask, for tokens and mask (B, T).

    Each token is decoded by itself. Raise DataError if `state_class` returns anything but a text.
    """
    text_of = lru_cache(maxsize=None)(lambda token: tokenizer.decode([token]))
    places = torch.zeros(tokens.shape, dtype=torch.int64)
    for row, (ids, counted) in enumerate(zip(tokens.tolist(), mask.tolist(), strict=True)):
        text = ""
        for column, (token, inside) in enumerate(zip(ids, counted, strict=True)):
            if not inside:
                continue
            name = state_class(text)
            if not isinstance(name, str):
                raise DataError(f"state_class({text!r}) returned {name!r}; it must return the name of a class of states, a text")
            places[row, column] = name_id(name)
            text += text_of(token)
    return places.to(tokens.device)
