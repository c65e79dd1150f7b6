"""The running state of a method's parts: an explicit value, stored by engines and saved in checkpoints.

    value = part(...)                      a part without state
    value, new = part(..., state=old)      a part with state: `start` returns the state before the first step

A state is tensors by name. Parts are pure: the same arguments, including the state, give the same value and the same new
state, and the old state is not changed. So an engine that repeats or abandons a step has nothing to undo.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from sage_rlvr.errors import CheckpointError

PartState = Mapping[str, Tensor]
State = Mapping[str, PartState]
"""State of the parts that have one, by the field of the method or the slot of an extra: {"advantage": {"mean": ...}}."""


class Stateful(Protocol):
    """A part of a kind that may have a running state."""

    def start(self) -> PartState:
        """Return the state before the first step; {} = none."""


def has_state(part: Stateful) -> bool:
    """Return True if a part is called with a state and returns a new one with its value, that is, if `start` returns a state."""
    return bool(part.start())


def start_of(parts: Mapping[str, Stateful]) -> State:
    """Return the state before the first step, by field, of those `parts` that have one."""
    return {field: dict(part.start()) for field, part in parts.items() if has_state(part)}


def called(part: Any, field: str, state: State, device: torch.device, *args: Any) -> tuple[Any, State]:
    """Return the value of the part in `field`, called with `args` and its state if it has one; and the state after it."""
    if not has_state(part):
        return part(*args), state
    own = {name: tensor.to(device) for name, tensor in state[field].items()}
    value, new = part(*args, state=own)
    return value, {**state, field: {name: tensor.detach() for name, tensor in new.items()}}


def tensors_of(parts: Mapping[str, Stateful], state: State) -> dict[str, Tensor]:
    """Return a state as one group of tensors for a checkpoint.

    The key is "field.Class.name", so a checkpoint shows which part each tensor belongs to.
    """
    return {
        f"{field}.{type(parts[field]).__name__}.{name}": tensor
        for field, own in state.items()
        for name, tensor in own.items()
    }


def state_from(parts: Mapping[str, Stateful], tensors: Mapping[str, Tensor], where: str) -> State:
    """Return the state from `tensors_of` of the same parts.

    Raise CheckpointError that names the parts if `tensors` are of others.
    """
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
    """Return the single numbers in a state, as "field/name"."""
    return {
        f"{field}/{name}": float(one) for field, own in state.items() for name, one in own.items() if one.dim() == 0
    }


def _owners(names: Mapping[str, Tensor]) -> str:
    """Return the parts of tensor names as text: "extra/erank ERank (mean, steps)"."""
    by_part: dict[str, list[str]] = {}
    for name in names:
        field, kind, tensor = name.split(".", 2)
        by_part.setdefault(f"{field} {kind}", []).append(tensor)
    return ", ".join(f"{part} ({', '.join(own)})" for part, own in by_part.items()) or "no part"
