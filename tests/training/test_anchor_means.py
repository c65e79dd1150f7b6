"""The anchor's metrics over micro-batches and over ranks: each mean is weighted by what it is a mean over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from sage_rlvr.core import Anchor
from sage_rlvr.core.anchor import anchor_metrics
from sage_rlvr.core.guides import Branch
from sage_rlvr.training import loop as engine
from sage_rlvr.training.loop import train_step
from sage_rlvr.training.trl.batch import anchor_means
from training.loop.loop_common import make


def test_micro_batches_log_the_same_as_the_whole_step(write_recipe: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    inner = engine.select

    def select(whole: object, rows: Tensor, logps: Tensor) -> object:
        batch = inner(whole, rows, logps)  # type: ignore[arg-type]
        lengths.append(int(batch.mask.sum()))
        return batch

    monkeypatch.setattr(engine, "select", select)
    recipe = write_recipe("{name: sage, base: {name: grpo, beta: 0.05}, guide: {name: branch, ratio: 1.0, threshold: 0.0}}")
    one, four = (train_step(make(recipe, *more), 0) for more in ((), (("updates.micro_batch", "1"),)))
    assert len(lengths) == 4 and len({*lengths}) > 1  # so that weights by tokens are others
    names = [name for name in one if name.startswith(("kl/", "guide/"))]
    assert {name: four[name] for name in names} == pytest.approx({name: one[name] for name in names}, abs=1e-6)
    assert one["guide/log_q_sum"] > 0.1


def test_means_over_two_ranks_are_those_of_all_their_rows() -> None:
    """A rank of two rows with one token each, and one of a single row of four."""
    generator = torch.Generator().manual_seed(0)
    logps, reference, log_q = (0.3 * torch.randn(3, 4, generator=generator) for _ in range(3))
    mask = torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
    anchor, held = Anchor(0.05, Branch()), log_q.abs() > 0.3
    ranks = [slice(0, 2), slice(2, 3)]
    sums: list[Tensor] = []

    def means(rows: slice, reduce: Callable[..., Tensor]) -> dict[str, float]:
        inputs = {"completion_mask": mask, "sage_ref_logps": reference, "sage_log_q": log_q, "sage_q_clamped": held}
        here = {name: value[rows] for name, value in inputs.items()}
        return anchor_means(anchor, here, logps[rows], SimpleNamespace(reduce=reduce))

    for rows in ranks:
        means(rows, lambda value, reduction: sums.append(value) or value)  # type: ignore[func-returns-value]
    found = [means(rows, lambda value, reduction: {"sum": sums[0] + sums[1]}[reduction]) for rows in ranks]
    wanted = anchor_metrics(anchor, logps, reference, log_q, mask.bool(), held)
    assert found[0] == found[1] == pytest.approx(wanted, abs=1e-6) and "guide/log_q_sum" in wanted
