"""Laws that every guide obeys; a new guide joins by entering `GUIDES` and, if it has required fields, `EXAMPLES`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from sage_rlvr.core import Branch, Compose, Flat, Key, Placebo, Random, Signals, Token
from sage_rlvr.core.guides import GUIDES, Guide, band_of

EXAMPLES = {
    "branch_p80": Branch(threshold="p80"),
    "branch_reference": Branch(signal="reference"),
    "token_rank": Token(norm="rank"),
    "token_zscore": Token(norm="zscore"),
    "token_reference": Token(signal="reference"),
    "random_often": Random(eps=0.9, sigma=0.5),
    "placebo": Placebo(Branch()),
    "placebo_token": Placebo(Token()),
    "placebo_length": Placebo(Token(), "length"),
    "placebo_row": Placebo(Token(), "row"),
    "placebo_centered": Placebo(Token(), centered=True),
    "placebo_length_centered": Placebo(Branch(), "length", centered=True),
    "placebo_row_centered": Placebo(Branch(), "row", centered=True),
    "compose": Compose((Branch(), Random(eps=0.5), Random(eps=0.5))),
    "product": Branch() * Token(),
}
ALL = {name: EXAMPLES[name] if name in EXAMPLES else kind() for name, kind in GUIDES.items()} | EXAMPLES
guides = pytest.mark.parametrize("guide", ALL.values(), ids=ALL.keys())
seeds = st.integers(min_value=0, max_value=2**31 - 1)
KEY = Key(3407)


def make(seed: int, rows: int = 5, columns: int = 9, dtype: torch.dtype = torch.float32) -> Signals:
    """Random signals with ragged rows, one of them empty, and NaN wherever the mask is 0."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, columns + 1, (rows, 1), generator=drawn)
    lengths[int(torch.randint(0, rows, (1,), generator=drawn))] = 0
    mask = torch.arange(columns)[None, :] < lengths

    def draw(scale: float) -> torch.Tensor:
        values = (scale * torch.rand(rows, columns, generator=drawn)).to(dtype)
        return torch.where(mask, values, math.nan)

    row_ids = torch.randperm(100, generator=drawn)[:rows]
    return Signals(-draw(4.0), -draw(4.0), mask, row_ids, entropies=draw(3.5), ref_entropies=draw(3.5))


def run(guide: Guide, signals: Signals, step: int = 3) -> torch.Tensor:
    return guide(signals, step=step, total_steps=40, key=KEY)


def take(signals: Signals, change) -> Signals:
    names = ("old_logps", "ref_logps", "mask", "entropies", "ref_entropies")
    changed = {name: change(getattr(signals, name)) for name in names}
    return Signals(**changed, row_ids=signals.row_ids)


def padding(value: torch.Tensor) -> torch.Tensor:
    """Seven columns that do not count, full of NaN where NaN exists."""
    return torch.full((5, 7), False if value.dtype == torch.bool else math.nan, dtype=value.dtype)


@guides
@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_band_dtype_and_mask(guide, seed):
    signals = make(seed)
    log_q = run(guide, signals)
    low, high = band_of(guide)
    assert log_q.dtype == torch.float32 and log_q.shape == signals.mask.shape
    assert bool((log_q[~signals.mask] == 0).all()), "an uncounted token keeps its reference log-prob"
    assert bool(log_q.isfinite().all())
    assert bool(((log_q >= math.log(low) - 1e-6) & (log_q <= math.log(high) + 1e-6)).all())


@guides
@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_seven_pad_columns_do_not_matter(guide, seed):
    signals = make(seed)
    right = run(guide, take(signals, lambda value: torch.cat([value, padding(value)], dim=1)))
    assert torch.equal(right[:, :9], run(guide, signals)) and not right[:, 9:].any()


@guides
@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_left_padding_does_not_matter(guide, seed):
    signals = make(seed)
    left = take(signals, lambda value: torch.cat([padding(value), value], dim=1))
    assert torch.equal(run(guide, left)[:, 7:], run(guide, signals))


@guides
@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_row_order_does_not_matter(guide, seed):
    signals = make(seed)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    permuted = take(signals, lambda value: value[order])
    permuted = Signals(
        permuted.old_logps, permuted.ref_logps, permuted.mask, signals.row_ids[order],
        entropies=permuted.entropies, ref_entropies=permuted.ref_entropies,
    )  # fmt: skip
    assert torch.equal(run(guide, permuted), run(guide, signals)[order])


@guides
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_same_arguments_same_answer_whatever_happened_before(guide, seed):
    signals = make(seed)
    first = run(guide, signals)
    torch.rand(3)
    run(guide, make(seed + 1), step=7)
    assert torch.equal(run(guide, signals), first)


SIGNALS = ("old_logps", "ref_logps", "entropies", "ref_entropies")


def uncast(signals: Signals, change) -> Signals:
    """`signals` whose tensors are `change` of themselves, past the cast and the detach that `Signals` does."""
    copy = take(signals, lambda value: value)
    for name in SIGNALS:
        object.__setattr__(copy, name, change(getattr(signals, name)))
    return copy


class NoHalf(TorchDispatchMode):
    """Fails at the first operation that makes a tensor of 16 bits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        halves = [t for t in (made if isinstance(made, tuple | list) else [made]) if isinstance(t, torch.Tensor)]
        assert all(t.dtype not in (torch.bfloat16, torch.float16) for t in halves), f"{func} computes in 16 bits"
        return made


def check_no_gradient_passes(guide: Guide) -> None:
    """Leaves that want a gradient reach the guide itself, as they would if `Signals` did not detach."""
    signals = uncast(make(0), lambda value: torch.nan_to_num(value).requires_grad_(True))
    assert all(getattr(signals, name).requires_grad for name in SIGNALS)
    assert not run(guide, signals).requires_grad


def check_float32_arithmetic(guide: Guide, seed: int) -> None:
    """bf16 comes in; no operation makes 16 bits of it, and the same guide fed with float64 gives the same q."""
    signals = make(seed, dtype=torch.bfloat16)
    with NoHalf():
        found = run(guide, signals)
    wide = run(guide, uncast(signals, torch.Tensor.double))
    assert torch.allclose(found.double(), wide.double(), rtol=0, atol=2e-6)


@guides
def test_no_gradient_passes(guide):
    check_no_gradient_passes(guide)


@guides
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_bf16_in_float32_arithmetic(guide, seed):
    check_float32_arithmetic(guide, seed)


class Careless:
    """A guide that computes in bf16, or in float16 between float32 ends, and lets the gradient through."""

    needs, depends_on, equation = frozenset({"entropies"}), "state", "careless"

    def __init__(self, spoil):
        self.spoil = spoil

    def __call__(self, signals, step, total_steps, key):
        return torch.where(signals.mask, self.spoil(signals.entropies), 0.0)


def test_a_careless_guide_breaks_both_laws():
    with pytest.raises(AssertionError):
        check_no_gradient_passes(Careless(lambda values: 0.1 * values))
    for spoil in (lambda v: (v.bfloat16() * 0.1).float(), lambda v: (0.1 * v.half()).float()):
        with pytest.raises(AssertionError, match="16 bits"):
            check_float32_arithmetic(Careless(spoil), 3)
    with pytest.raises(AssertionError):
        check_float32_arithmetic(Careless(lambda v: ((0.1 * v + 1e4) - 1e4).float()), 3)  # float32 that loses digits


@pytest.mark.parametrize("name", [n for n, g in ALL.items() if g.depends_on != "batch"])
def test_micro_batches_do_not_matter_unless_the_guide_reads_the_batch(name):
    signals, guide = make(11), ALL[name]
    part = Signals(
        signals.old_logps[2:4], signals.ref_logps[2:4], signals.mask[2:4], signals.row_ids[2:4],
        entropies=signals.entropies[2:4], ref_entropies=signals.ref_entropies[2:4],
    )  # fmt: skip
    assert torch.equal(run(guide, part), run(guide, signals)[2:4])


@settings(max_examples=20, deadline=None)
@given(seed=seeds, step=st.integers(0, 100))
def test_placebo_keeps_the_values_and_not_the_places(seed, step):
    signals = make(seed, rows=8, columns=20)
    real, sham = run(Branch(), signals, step), run(Placebo(Branch()), signals, step)
    assert torch.equal(real[signals.mask].sort().values, sham[signals.mask].sort().values)
    assert signals.mask.sum() < 20 or not torch.equal(real, sham)


@pytest.mark.parametrize("within", ["batch", "length", "row"])
@settings(max_examples=20, deadline=None)
@given(seed=seeds, step=st.integers(0, 100))
def test_placebo_keeps_the_values_of_each_set_and_centered_they_sum_to_zero(within, seed, step):
    signals = make(seed, rows=8, columns=6)
    lengths = signals.mask.sum(1)
    numbers = {"batch": torch.zeros(8), "length": lengths, "row": torch.arange(8)}[within]
    real, sham, centered = (
        run(guide, signals, step)
        for guide in (Token(), Placebo(Token(), within), Placebo(Token(), within, centered=True))
    )
    for number in numbers.unique():
        here = signals.mask & (numbers == number)[:, None]
        assert torch.equal(real[here].sort().values, sham[here].sort().values)
        assert abs(float(centered[here].double().sum())) < 1e-5
        assert not here.any() or torch.allclose(centered[here], sham[here] - real[here].mean(), atol=1e-6)


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_flat_is_neutral_in_products_and_products_add_logs(seed):
    signals = make(seed)
    branch, token = run(Branch(), signals), run(Token(), signals)
    assert torch.equal(run(Branch() * Flat(), signals), branch)
    assert torch.equal(run(Flat() * Branch(), signals), branch)
    assert torch.equal(run(Branch() * Token(), signals), branch + token)
    assert torch.equal(run(Compose(()), signals), torch.zeros_like(branch))
