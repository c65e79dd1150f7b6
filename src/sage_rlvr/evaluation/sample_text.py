"""Stored samples as text: prompt, gold, completion, verdict. A text can neither control the terminal nor leave its margin."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import numpy as np

from sage_rlvr.errors import DataError, choose_from
from sage_rlvr.escaping import visible
from sage_rlvr.evaluation.store import Sample, SampleStore
from sage_rlvr.evaluation.store.sample import LABELS, unmarked

MARGIN = "  | "
UNKNOWN = "not in this store, which a version without prompts wrote; the same eval command adds prompt and gold"


def sample_lines(
    store: SampleStore, problems: Sequence[str] = (), n: int = 3, verdict: str | None = None, width: int = 100
) -> Iterator[str]:
    """The first n samples of each problem; by default of the first problem. verdict: only samples with this one.

    DataError for an unknown problem or verdict.
    """
    if n < 1 or verdict not in (None, *LABELS):
        raise DataError(f"n = {n}, verdict = {verdict!r}: n must be >= 1, and verdict one of {', '.join(LABELS)}")
    known = list(dict.fromkeys(store.lists(("problem",))["problem"]))
    if not known:
        raise DataError(f"{store.path}: has no samples yet; run the evaluation first")
    for name in problems:
        if name not in known:
            raise DataError(f"{store.path}: has no problem {name!r}{choose_from(name, known)}")
    questions = store.questions()
    for name in problems or known[:1]:
        question = questions.get(name)
        yield visible(f"problem {_flat(name)}")
        yield from _block("prompt", UNKNOWN if question is None else question.prompt, width)
        gold = None if question is None else "none in the task's rows" if question.gold is None else question.gold
        if gold is not None:
            yield from _block("gold", gold, width) if "\n" in gold or len(gold) > width - 6 else [visible(f"gold {gold}")]
        rows = [row for row in store.samples(problems=[name]) if verdict in (None, row.verdict)]
        for row in rows[:n]:
            yield from ("", _head(row), *_completion(row, width))
        kind = "samples" if verdict is None else f"{verdict} samples"
        yield from ("", f"{min(n, len(rows)):,} of {len(rows):,} {kind} of this problem")
    if not problems and len(known) > 1:
        more = ", ".join(map(_flat, known[1:9]))
        yield f"{len(known):,} problems in the store; the next: {more}{', ...' if len(known) > 9 else ''}"


def _flat(text: str) -> str:
    return visible(" ".join(text.split()))


def _head(row: Sample) -> str:
    """Number, verdict, reason, answer and size of a sample."""
    facts = [f"sample {row.sample}: {row.verdict}", row.reason]
    if row.answer is not None and (answer := unmarked(row.answer, row.finish)) != row.text:
        facts.append(f"answer {answer[:200]}")
    if row.token_ids is not None:
        facts.append(f"{len(np.asarray(row.token_ids)):,} tokens")
    if row.entropies is not None and len(np.asarray(row.entropies)):
        facts.append(f"mean entropy {np.nanmean(np.asarray(row.entropies)):.3f} nats")
    if row.q is not None and (q := np.asarray(row.q)).size:
        facts.append(f"q {q.min():.3f} to {q.max():.3f}")
    return "; ".join(_flat(fact) for fact in facts if fact)


def _completion(row: Sample, width: int) -> Iterator[str]:
    if row.turns is None:
        yield from _framed(row.text, width)
    for index, (who, text, _) in enumerate(row.turns or ()):
        yield from _block(f"{who}, turn {1 + index // 2}", text, width)
    if row.finish == "length":
        size = "" if row.token_ids is None else f" after {len(np.asarray(row.token_ids)):,} tokens"
        yield f"  (cut{size}: the limit of tokens was reached)" if row.turns is None else f"  (unfinished{size})"


def _block(name: str, text: str, width: int) -> Iterator[str]:
    yield name
    yield from _framed(text, width)


def _framed(text: str, width: int) -> Iterator[str]:
    """Lines within a margin, wrapped between words if possible; line ends are kept."""
    wrapper = textwrap.TextWrapper(
        max(width, 24), initial_indent=MARGIN, subsequent_indent=MARGIN, replace_whitespace=False, drop_whitespace=False,
        break_on_hyphens=False,
    )  # fmt: skip
    for line in visible(text).expandtabs(4).split("\n"):
        yield from wrapper.wrap(line) or [MARGIN.rstrip()]
