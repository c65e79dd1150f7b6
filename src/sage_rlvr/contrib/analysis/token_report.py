"""Signals of a sample store's tokens by class, as lines: section 4.2 of arXiv 2605.18864 (`anatomy.py`).

Token texts are the caller's: a store keeps ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sage_rlvr.contrib.analysis.anatomy import TOKEN_CLASSES, ClassAnatomy, TokenSpread, token_anatomy
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
    drawn, flat = SampleColumns(store, n), {}
    for name in ("token_ids", "rollout_logps", "entropies", "q"):
        column = drawn[name]
        if gaps(column) and name != "q":
            raise DataError(
                f"{store.path}: {gaps(column):,} of {len(column):,} samples have no {name}; token statistics need every "
                "token with its log-prob and entropy: sample with --generator sampler or transformers"
            )
        flat[name] = None if gaps(column) else np.concatenate(drawn.of_policy(column))
    ids = np.unique(flat["token_ids"]).tolist()
    texts = dict(zip(ids, text_of(ids), strict=True))
    lengths = [len(row) for row in drawn.of_policy(drawn["token_ids"])]
    task = known_task(store.identity.task)
    found = token_anatomy(
        [texts[token] for token in flat["token_ids"].tolist()],
        flat["entropies"],
        -flat["rollout_logps"],
        flat["q"],
        problems=np.repeat(np.array(drawn.problems, dtype=object), lengths).tolist(),
        table=TOKEN_CLASSES if task is None or task.token_classes is None else task.token_classes,
    )
    law = f"T {store.identity.decoding['temperature']:g}{', truncated' if store.identity.truncated_sampling else ''}"
    heads = [head for head, name, _ in COLUMNS if getattr(found.classes[0], name) is not None]
    lines = [
        f"signals of {found.tokens:,} tokens by class, of the sampling distribution ({law}); top: share of the "
        f"{found.top:.0%} of tokens with the highest signal; below each number its 95 % interval over problems",
        f"  {'class':<26}" + "".join(f"{head:>16}" for head in heads),
        *(line for row in found.classes for line in _class_lines(row)),
        f"  rank correlation of entropy and surprisal over all tokens {found.correlation:.3f}",
    ]
    if found.correlation_by_problem is not None:
        lines.append(f"  the same within a problem, mean {cell(found.correlation_by_problem)} over problems")
    if found.raised is not None and found.clamped is not None:
        lines.append(f"  q above 1 on {cell(found.raised)} of the tokens, at the clamp on {cell(found.clamped)}")
    return lines


def _class_lines(row: ClassAnatomy) -> list[str]:
    """A class on two lines: its numbers, and below each its interval over problems."""
    top, below = f"  {row.name:<26}", " " * 28
    for _, name, percent in COLUMNS:
        found, interval, shown = getattr(row, name), row.intervals.get(name), ".1%" if percent else ".3f"
        if found is None:
            continue
        top += f"{format(found.mean if isinstance(found, TokenSpread) else found, shown):>16}"
        told = interval is not None and np.isfinite(interval.width)
        below += f"{f'[{interval.low:{shown}}, {interval.high:{shown}}]' if told else '':>16}"  # type: ignore[union-attr]
    return [top, below.rstrip()]
