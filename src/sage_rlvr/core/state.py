"""The running state of a method's parts: an explicit value, stored by engines and saved in checkpoints.

    value = part(...)                      a part without state
    value, new = part(..., state=old)      one whose `start` gives a state, that before the first step

A state is tensors by name. Parts stay pure: the same arguments, the state among them, give the same value and the same new
state, and the old one is left as it is. So an engine that takes a step again, or gives one up, has nothing to undo.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from sage_rlvr.errors import CheckpointError

PartState = Mapping[str, Tensor]
State = Mapping[str, PartState]
"""By the field of the method or the slot of an extra: {"advantage": {"mean": ...}}. A part without state is not in it."""


class Stateful(Protocol):
    """A part of a kind that may have a running state."""

    def start(self) -> PartState:
        """The state before the first step; {} = none."""


def has_state(part: Stateful) -> bool:
    """Whether a part is called with a state and returns a new one beside its value: its `start` gives one."""
    return bool(part.start())


def start_of(parts: Mapping[str, Stateful]) -> State:
    """The state before the first step of those `parts`, by field, that have one."""
    return {field: dict(part.start()) for field, part in parts.items() if has_state(part)}


def called(part: Any, field: str, state: State, device: torch.device, *args: Any) -> tuple[Any, State]:
    """The value of the part in `field`, called with `args` and, where it has one, its state; and the state after it."""
    if not has_state(part):
        return part(*args), state
    own = {name: tensor.to(device) for name, tensor in state[field].items()}
    value, new = part(*args, state=own)
    return value, {**state, field: {name: tensor.detach() for name, tensor in new.items()}}


def tensors_of(parts: Mapping[str, Stateful], state: State) -> dict[str, Tensor]:
    """A state as one group of tensors for a checkpoint, "field.Class.name": whose it is stands beside what it is."""
    return {
        f"{field}.{type(parts[field]).__name__}.{name}": tensor
        for field, own in state.items()
        for name, tensor in own.items()
    }


def state_from(parts: Mapping[str, Stateful], tensors: Mapping[str, Tensor], where: str) -> State:
    """Inverse of `tensors_of`, for the same parts. CheckpointError that names the parts where `tensors` are of others."""
    start = start_of(parts)
    wanted = tensors_of(parts, start)
    if {name: one.dtype for name, one in tensors.items()} != {name: one.dtype for name, one in wanted.items()}:
        raise CheckpointError(
            f"{where}: the checkpoint has the running state of {_owners(tensors)}, but this method needs that of "
            f"{_owners(wanted)}; use the method that the run was started with, or start in a new directory"
        )
    return {
        field: {name: tensors[f"{field}.{type(parts[field]).__name__}.{name}"] for name in own} for field, own in start.items()
    }


def state_metrics(state: State) -> dict[str, float]:
    """The single numbers in a state, as "field/name"."""
    return {
        f"{field}/{name}": float(one) for field, own in state.items() for name, one in own.items() if one.dim() == 0
    }


def _owners(names: Mapping[str, Tensor]) -> str:
    """extra/erank ERank (mean, steps)"""
    by_part: dict[str, list[str]] = {}
    for name in names:
        field, kind, tensor = name.split(".", 2)
        by_part.setdefault(f"{field} {kind}", []).append(tensor)
    return ", ".join(f"{part} ({', '.join(own)})" for part, own in by_part.items()) or "no part"
