"""Fixtures of the laws: random signals and variants of them, the value of a part, and its recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sage_rlvr.core.keys import Key
from sage_rlvr.core.signals import FIELDS, Signals
from sage_rlvr.core.state import PartState, called, start_of
from sage_rlvr.ids import name_id
from sage_rlvr.schema import build, dump

SIGNALS = ("old_logps", "ref_logps", "entropies", "ref_entropies")
OF_TOKENS = (*SIGNALS, "hidden", "entropy_drift", "places", "mask")
OPTIONAL = tuple(name for name in FIELDS if name not in ("old_logps", "mask", "row_ids"))
PLACES = ("first", "second", "third")
"""Classes of the states of `signals`."""
KEY = Key(3407)
Change = Callable[[Tensor], Tensor]


def signals(seed: int, rows: int = 5, columns: int = 9, dtype: torch.dtype = torch.float32) -> Signals:
    """Random signals with ragged rows, one of them empty, and NaN at every place with mask 0."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, columns + 1, (rows, 1), generator=drawn)
    lengths[int(torch.randint(0, rows, (1,), generator=drawn))] = 0
    mask = torch.arange(columns)[None, :] < lengths

    def draw(scale: float) -> Tensor:
        values = (scale * torch.rand(rows, columns, generator=drawn)).to(dtype)
        return torch.where(mask, values, math.nan)

    row_ids = torch.randperm(100, generator=drawn)[:rows]
    logps, ref_logps, entropies, ref_entropies = -draw(4.0), -draw(4.0), draw(3.5), draw(3.5)
    places = torch.randint(0, len(PLACES), (rows, columns), generator=drawn)
    places = torch.tensor([name_id(name) for name in PLACES])[places]
    return Signals(logps, ref_logps, mask, row_ids, entropies=entropies, ref_entropies=ref_entropies, places=places)


def rollout_signals(seed: int, rows: int = 5, columns: int = 9) -> Signals:
    """`signals` of two prompts with every optional one, those of tokens NaN at every place with mask 0."""
    given, drawn = signals(seed, rows, columns), torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, columns, 4, generator=drawn)
    drift = torch.rand(rows, columns, generator=drawn)
    return replace(
        given,
        rewards=torch.randint(0, 2, (rows,), generator=drawn).float(),
        hidden=torch.where(given.mask[:, :, None], hidden, math.nan),
        answers=torch.randint(1, 4, (rows,), generator=drawn),
        problems=torch.arange(rows) // -(-rows // 2),
        ref_right=torch.full((rows,), -1.5),
        advantages=torch.linspace(-1.0, 1.0, rows),
        base_counts=torch.tensor([[0, 9], [4, 9]])[torch.arange(rows) // -(-rows // 2)],
        entropy_drift=torch.where(given.mask, drift, math.nan),
    )


def changed(given: Signals, change: Change) -> Signals:
    """The signals with every tensor of tokens, (B, T) and (B, T, d), changed alike; for other rows there is `Signals.take`."""
    known = {name: getattr(given, name) for name in OF_TOKENS}
    return replace(given, **{name: change(value) for name, value in known.items() if value is not None})


def filled(given: Signals, value: float = 2.0) -> Signals:
    """The signals with a number off the mask, instead of NaN: a part that maps NaN to 0 reads it, and gives another result."""
    known = {name: getattr(given, name) for name in OF_TOKENS if name != "mask"}
    off = ~given.mask
    tensors = {}
    for name, tensor in known.items():
        if tensor is not None:
            tensors[name] = tensor.masked_fill(off if tensor.dim() == 2 else off[:, :, None], value)
    return replace(given, **tensors)


def check_declared(what: str, value_of: Callable[[Signals], Tensor], given: Signals, needs: Set[str]) -> None:
    """Check that a part's function of signals, (B, T), is the same at counted tokens without each signal that is not in its
    `needs`.

    what: its name in the message. value_of: signals -> (B, T).
    """
    value = value_of(given)
    for name in OPTIONAL:
        if name in needs or getattr(given, name) is None:
            continue
        message = f"{what} reads Signals.{name}, which needs = {sorted(needs)} does not declare; add {name!r} to needs"
        try:
            without = value_of(replace(given, **{name: None}))
        except Exception as error:  # of a part that reads None: any class that its code raises
            raise AssertionError(message) from error
        assert torch.equal(without[given.mask], value[given.mask]), message


def holed(value: Tensor) -> Tensor:
    """Insert uncounted columns after the second: an environment's turn in the middle of an episode."""
    return torch.cat([value[:, :2], padding(value), value[:, 2:]], dim=1)


def unholed(value: Tensor) -> Tensor:
    """Remove these columns again."""
    return torch.cat([value[:, :2], value[:, 9:]], dim=1)


def padding(value: Tensor) -> Tensor:
    """Seven uncounted columns, full of NaN if the dtype has NaN."""
    fill = math.nan if value.is_floating_point() else 0
    return torch.full((value.shape[0], 7, *value.shape[2:]), fill, dtype=value.dtype)


def value_of(kind: str, part: Any, *args: Any) -> Any:
    """Return a part's result for `args`, with its initial state if it has one, which must be pure and only tensors."""
    start = start_of({kind: part})
    if not start:
        return part(*args)
    value, after = called(part, kind, start, torch.device("cpu"), *args)
    again, same = called(part, kind, start, torch.device("cpu"), *args)
    before, own = start_of({kind: part})[kind], after[kind]
    assert torch.equal(value, again) and equal(own, same[kind]), (
        "the same state must give the same value and the same new state"
    )
    assert equal(start[kind], before), "the given state was modified; return a new one"
    assert own and {n: t.dtype for n, t in own.items()} == {n: t.dtype for n, t in before.items()}, (
        "the new state must have the names and dtypes of the initial one"
    )
    assert all(bool(one.double().isfinite().all()) for one in own.values()), "a state must be finite"
    return value


def equal(one: PartState, other: PartState) -> bool:
    """Whether two states of a part have the same tensors under the same names."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def check_recipe(kind: str, part: Any) -> None:
    """Check that the recipe of a part makes an equal one."""
    again = build(kind, dump(part))
    assert again == part, f"a recipe gives {again!r} back for {part!r}; make it a frozen dataclass, and register it"
