"""Signals of a sample store's tokens by class, as lines: section 4.2 of arXiv 2605.18864 (`anatomy.py`).

The caller supplies token texts: a store contains ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sage_rlvr.contrib.analysis.anatomy import TOKEN_CLASSES, Anatomy, ClassAnatomy, TokenSpread, token_anatomy
from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.sample_report import SampleColumns, cell, gaps
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.tasks import known_task

COLUMNS = (  # of an anatomy: head, field, percentages or not
    ("tokens", "share", True), ("entropy", "entropy", False), ("top", "top_entropy", True),
    ("surprisal", "surprisal", False), ("top", "top_surprisal", True), ("rank corr.", "correlation", False),
    ("mean q", "q", False), ("raised", "raised", True), ("lowered", "lowered", True), ("clamped", "clamped", True),
)  # fmt: skip


def anatomy_lines(store: SampleStore, text_of: Callable[[Sequence[int]], list[str]], n: int | None = None) -> list[str]:
    """Section 4.2 by class of token. text_of: token ids -> their texts. Raises DataError for samples without tokens or signals."""
    anatomy = _anatomy_of(store, text_of, n)
    distribution = f"T {store.identity.decoding['temperature']:g}"
    if store.identity.truncated_sampling:
        distribution += ", truncated"
    heads = [f"{head:>16}" for head, name, _ in COLUMNS if getattr(anatomy.classes[0], name) is not None]
    lines = [
        f"signals of {anatomy.tokens:,} tokens by class, of the sampling distribution ({distribution}); top: share of the "
        f"{anatomy.top:.0%} of tokens with the highest signal; below each number its 95 % interval over problems",
        f"  {'class':<26}" + "".join(heads),
    ]
    for row in anatomy.classes:
        lines += _class_lines(row)
    lines.append(f"  rank correlation of entropy and surprisal over all tokens {anatomy.correlation:.3f}")
    if anatomy.correlation_by_problem is not None:
        lines.append(f"  the same within a problem, mean {cell(anatomy.correlation_by_problem)} over problems")
    if anatomy.raised is not None and anatomy.clamped is not None:
        lines.append(f"  q above 1 on {cell(anatomy.raised)} of the tokens, at the clamp on {cell(anatomy.clamped)}")
    return lines


def _anatomy_of(store: SampleStore, text_of: Callable[[Sequence[int]], list[str]], n: int | None) -> Anatomy:
    """The anatomy of all tokens that the policy sampled, with the task's token classes if it has any."""
    columns = SampleColumns(store, n)
    flat: dict[str, Any] = {}
    for name in ("token_ids", "rollout_logps", "entropies", "q"):
        column = columns[name]
        missing = gaps(column)
        if missing and name != "q":
            raise DataError(
                f"{store.path}: {missing:,} of {len(column):,} samples have no {name}; token statistics need every "
                "token with its log-prob and entropy: sample with --generator sampler or transformers"
            )
        flat[name] = None if missing else np.concatenate(columns.of_policy(column))
    ids = np.unique(flat["token_ids"]).tolist()
    texts = dict(zip(ids, text_of(ids), strict=True))
    lengths = [len(row) for row in columns.of_policy(columns["token_ids"])]
    task = known_task(store.identity.task)
    table = TOKEN_CLASSES
    if task is not None and task.token_classes is not None:
        table = task.token_classes
    return token_anatomy(
        [texts[token] for token in flat["token_ids"].tolist()],
        flat["entropies"],
        -flat["rollout_logps"],
        flat["q"],
        problems=np.repeat(np.array(columns.problems, dtype=object), lengths).tolist(),
        table=table,
    )


def _class_lines(row: ClassAnatomy) -> list[str]:
    """A class on two lines: its numbers, and below each its interval over problems."""
    top, below = f"  {row.name:<26}", " " * 28
    for _, name, percent in COLUMNS:
        value = getattr(row, name)
        if value is None:
            continue
        form = ".1%" if percent else ".3f"
        number = value.mean if isinstance(value, TokenSpread) else value
        top += f"{format(number, form):>16}"
        interval, bounds = row.intervals.get(name), ""
        if interval is not None and np.isfinite(interval.width):
            bounds = f"[{interval.low:{form}}, {interval.high:{form}}]"
        below += f"{bounds:>16}"
    return [top, below.rstrip()]
