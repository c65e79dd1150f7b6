"""The laws of a guide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sage_rlvr.core.guides import Guide, band_of
from sage_rlvr.core.signals import Signals
from sage_rlvr.testing.tried import (
    KEY,
    SIGNALS,
    Change,
    changed,
    check_declared,
    check_recipe,
    filled,
    holed,
    padding,
    signals,
    unholed,
)


def run(guide: Guide, given: Signals, step: int = 3) -> Tensor:
    """log q at one step of 40."""
    return guide(given, step=step, total_steps=40, key=KEY)


def uncast(given: Signals, change: Change) -> Signals:
    """The signals with tensors changed after the cast and the detach in `Signals`."""
    copy = changed(given, lambda value: value)
    for name in SIGNALS:
        object.__setattr__(copy, name, change(getattr(given, name)))
    return copy


class _NoHalf(TorchDispatchMode):
    """A mode that fails at the first operation with a 16-bit result."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        halves = [t for t in (made if isinstance(made, tuple | list) else [made]) if isinstance(t, Tensor)]
        assert all(t.dtype not in (torch.bfloat16, torch.float16) for t in halves), f"{func} computes in 16 bits"
        return made


def check_guide(guide: Guide, seed: int = 0) -> None:
    """All laws of a guide: values, padding, order, repeatability, gradient, precision, micro-batches, declarations, recipe."""
    assert isinstance(guide, Guide), f"{guide!r} does not inherit sage_rlvr.core.Guide"
    check_values(guide, seed)
    check_padding(guide, seed)
    check_order(guide, seed)
    check_repeats(guide, seed)
    check_no_gradient(guide)
    check_precision(guide, seed)
    if guide.depends_on != "batch":
        check_rows_apart(guide, seed)
        check_dependence(guide, seed)
    check_needs(guide, seed)
    check_recipe("guide", guide)


READ = "read signals only where signals.mask is true; signals.positions numbers the counted tokens"


def check_values(guide: Guide, seed: int) -> None:
    """Check float32 of the signals' shape, finite, inside the band, 0 off the mask."""
    given = signals(seed)
    log_q = run(guide, given)
    low, high = band_of(guide)
    assert log_q.dtype == torch.float32 and log_q.shape == given.mask.shape, "log q is (B, T) float32"
    assert bool((log_q[~given.mask] == 0).all()), f"log q must be 0 at uncounted tokens; {READ}"
    assert bool(log_q.isfinite().all()), f"log q is not finite; keep q above 0, and {READ}"
    least = math.log(low) if low > 0 else -math.inf
    inside = bool(((log_q >= least - 1e-6) & (log_q <= math.log(high) + 1e-6)).all())
    assert inside, "log q leaves the guide's band; clamp q to [q_min, q_max], as Banded does"


def check_padding(guide: Guide, seed: int) -> None:
    """Check that uncounted columns change nothing, on either side or in the middle, whatever their contents."""
    given = signals(seed)
    columns = given.mask.shape[1]
    right = run(guide, changed(given, lambda value: torch.cat([value, padding(value)], dim=1)))
    assert torch.equal(right[:, :columns], run(guide, given)) and not right[:, columns:].any(), f"right padding changes q; {READ}"
    left = run(guide, changed(given, lambda value: torch.cat([padding(value), value], dim=1)))
    assert torch.equal(left[:, 7:], run(guide, given)), f"left padding changes q; {READ}"
    middle = run(guide, changed(given, holed))
    message = f"tokens of an environment in the middle of an episode change q; {READ}"
    assert torch.equal(unholed(middle), run(guide, given)), message
    assert torch.equal(run(guide, filled(given)), run(guide, given)), f"what is off the mask changes q; {READ}"


def check_order(guide: Guide, seed: int) -> None:
    """Check that the order of the rows does not matter, only their ids."""
    given = signals(seed)
    order = torch.randperm(len(given.mask), generator=torch.Generator().manual_seed(seed))
    permuted = given.take(order, given.row_ids[order])
    message = "the order of the rows changes q; draw noise with key and signals.row_ids, independent of the position of a row"
    assert torch.equal(run(guide, permuted), run(guide, given)[order]), message


def check_repeats(guide: Guide, seed: int) -> None:
    """Check that the same arguments give the same result, whatever happened before: noise comes only from the key."""
    given = signals(seed)
    first = run(guide, given)
    torch.rand(3)
    run(guide, signals(seed + 1), step=7)
    assert torch.equal(run(guide, given), first), "two calls differ; draw noise from key, and store nothing between calls"


def check_no_gradient(guide: Guide) -> None:
    """Check that the guide stops gradients itself, for tensors that require one, as if `Signals` did not detach."""
    given = uncast(signals(0), lambda value: torch.nan_to_num(value).requires_grad_(True))
    assert not run(guide, given).requires_grad, "q has a gradient; decorate the call with @torch.no_grad()"


def check_precision(guide: Guide, seed: int) -> None:
    """Check that no operation on bf16 input computes in 16 bits, and that the guide gives the same q on float64 input."""
    given = signals(seed, dtype=torch.bfloat16)
    with _NoHalf():
        q = run(guide, given)
    wide = run(guide, uncast(given, Tensor.double))
    message = "float32 loses digits; keep sums and differences of numbers of one size, and clamp before exp"
    assert torch.allclose(q.double(), wide.double(), rtol=0, atol=2e-6), message


def check_rows_apart(guide: Guide, seed: int) -> None:
    """Check that a row's q does not depend on the other rows, unless the guide declares that it depends on the batch."""
    given = signals(seed)
    part = given.take(torch.tensor([2, 3]), given.row_ids[2:4])
    message = "q depends on other rows; declare depends_on = 'batch', or use one row at a time"
    assert torch.equal(run(guide, part), run(guide, given)[2:4]), message


OTHER_LOGPS = (-0.01, -1.5, -20.0)  # log-prob of a sampled token: likely, usual, rare
LOGPS = ("old_logps", "ref_logps")  # the signals of the sampled token; all others belong to the state before it


def check_dependence(guide: Guide, seed: int) -> None:
    """Check that q depends only on what `depends_on` and `looks_ahead` declare, from which the objective and its errors are
    derived."""
    given = signals(seed)
    q, columns = run(guide, given), range(given.mask.shape[1])
    if guide.depends_on == "nothing":
        other = signals(seed + 1, len(given.mask), len(columns))
        values = {name: torch.where(given.mask, torch.nan_to_num(getattr(other, name)), math.nan) for name in SIGNALS}
        message = "depends_on = 'nothing', but q changes with the signals; declare 'state', 'token' or 'batch'"
        assert torch.equal(run(guide, replace(given, **values)), q), message
    if guide.depends_on in ("nothing", "state"):
        for t in columns:
            for value in OTHER_LOGPS:
                changed_q = run(guide, _with(given, dict.fromkeys(LOGPS, value), slice(t, t + 1)))
                assert torch.equal(changed_q[:, t], q[:, t]), (
                    f"depends_on = {guide.depends_on!r}, but q of token {t} changes when only the log-prob of that drawn token "
                    "does; declare depends_on = 'token'"
                )
    for t in columns if not guide.looks_ahead else ():
        later = dict.fromkeys(LOGPS, -1.5) | {"entropies": 0.7, "ref_entropies": 0.7}
        changed_q = run(guide, _with(given, later, slice(t + 1, None)))
        assert torch.equal(changed_q[:, : t + 1], q[:, : t + 1]), (
            f"q up to token {t} changes with signals of later tokens; declare looks_ahead = True, or read what stands before"
        )


def check_needs(guide: Guide, seed: int) -> None:
    """Check that a signal is not read unless the guide lists it in its needs."""
    check_declared("q", lambda given: run(guide, given), signals(seed), guide.needs)


def _with(given: Signals, values: Mapping[str, float], where: slice) -> Signals:
    """The signals with these values at the counted tokens of some columns."""
    changed = {name: getattr(given, name).clone() for name in values}
    for name, value in values.items():
        changed[name][:, where] = torch.where(given.mask[:, where], value, math.nan)
    return replace(given, **changed)
