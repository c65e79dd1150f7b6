"""lighteval: details_*.parquet of `--save-details`, one row per document with all of its completions.

A metric is one value per document. A mean over completions (`avg@n`, and `pass@k` at k = 1) gives the number of correct ones among
those that it was computed over, the first n; any other metric is the score of a single completion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers.fields import Fields, gold_text
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice, FileRows, candidates, value_of

MEAN = re.compile(r"avg@|pass@1(?!\d)|pass@k:(?:.*&)?k=1(?!\d)")
"""Metrics that are the share of correct completions of a document."""
OVER = re.compile(r"[:&]n=(\d+)|avg@(\d+)|(\d+)_samples")
"""The number of completions that a metric names: "avg@n:n=4", "avg@4", "pass@1:4_samples"."""


UNNAMED = re.compile(r"pass@1")
"""A mean that does not name its number of completions. "pass@k:k=1" is over all of them, by lighteval's rule."""


def lighteval(file: RowFile, choice: Choice) -> FileRows:
    """Completions with the value of one metric, or counts from a mean over completions."""
    kept = [(number, Fields(file, number, tree)) for number, tree in file.rows(("doc", "model_response", "metric"))]
    metrics = [_metrics(row) for _, row in kept]
    columns = candidates(metrics, (), file.path, every=True)
    name = choice.of(columns, file.path, "metrics", columns=columns)
    responses = [row.inner("model_response").list_of("text", str) for _, row in kept]
    several = any(len(texts) > 1 for texts in responses)
    if choice.judge is not None:
        texts_of = zip(kept, responses, strict=True)
        yield from ((number, _of_doc(row, number) | {"text": text}) for (number, row), texts in texts_of for text in texts)
        return
    if UNNAMED.fullmatch(name):
        _check_over_all(file.location(kept[0][0]), name, [value_of(one, name) for one in metrics], max(map(len, responses)))
    for (number, row), values, texts in zip(kept, metrics, responses, strict=True):
        made, value = _of_doc(row, number), value_of(values, name)
        if isinstance(value, list):
            if len(value) != len(texts):
                raise row.error(f"metric.{name}", f"has {len(value)} scores for {len(texts)} completions")
            yield from ((number, made | {"score": score, "text": text}) for score, text in zip(value, texts, strict=True))
            continue
        n = _over(file.location(number), name, len(texts))
        if several or n > 1:
            yield number, made | {"n": n, "c": row.right(f"metric.{name}", value, n)}
        else:
            yield number, made | {"score": value, "text": texts[0] if texts else None}


def _of_doc(row: Fields, number: int) -> dict[str, Any]:
    """The fields of a document."""
    doc = row.inner("doc")
    return {
        "id": doc.id("id") if doc.tree.get("id") not in (None, "") else str(number - 1), "gold": _gold(doc),
        "task": doc.get("task_name", str) or "", "prompt": doc.get("query", str),
    }  # fmt: skip


def _metrics(row: Fields) -> Mapping[str, Any]:
    """The metrics of a document, an object or a list of pairs (a map of Parquet)."""
    value = row.tree.get("metric")
    if isinstance(value, list) and all(isinstance(one, tuple) and len(one) == 2 for one in value):
        if len({key for key, _ in value}) < len(value):
            raise row.error("metric", "has a metric more than once")
        return {str(key): one for key, one in value}
    return row.inside("metric").tree


def _check_over_all(location: str, name: str, values: Sequence[Any], texts: int) -> None:
    """Raise DataError unless the values of a mean without a number show that it is over all completions: values over fewer, m,
    are multiples of 1 / m."""
    known = [value for value in values if isinstance(value, (int, float)) and value == value]
    fewest = next((m for m in range(1, texts) if all(abs(value * m - round(value * m)) < 1e-6 for value in known)), texts)
    if fewest < texts:
        raise DataError(
            f"{location}: {texts} completions and {name}, which does not say over how many of them it is, and all "
            f"its values are multiples of 1/{fewest}; evaluate with a metric that names the number, such as avg@n:n={texts}"
        )


def _over(location: str, name: str, texts: int) -> int:
    """The number of completions that a metric was computed over. Raises DataError if it is not that of a mean, or unknown."""
    if not MEAN.match(name):
        if texts > 1:
            raise DataError(
                f"{location}: {texts} completions and one {name}: texts without scores; evaluate with a metric that is a mean over "
                "the completions, such as avg@n"
            )
        return 1
    named = OVER.search(name)
    if named is None and name.startswith("avg@"):
        raise DataError(f"{location}: {texts} completions and {name}, which does not name the number that it is the mean over")
    n = texts if named is None else int(next(filter(None, named.groups())))
    if not 0 < n <= texts:
        raise DataError(f"{location}: {name} is over {n} completions, and the row has {texts}; write the details again")
    return n


def _gold(doc: Fields) -> str | None:
    """The gold choices of a document."""
    indices, choices = doc.tree.get("gold_index"), doc.get("choices", list) or []
    at = indices if isinstance(indices, list) else [] if indices is None else [indices]
    if not all(isinstance(i, int) for i in at):
        raise doc.error("gold_index", f"= {indices!r:.60}: whole numbers are expected")
    return ", ".join(gold_text(choices[i]) or "" for i in at if 0 <= i < len(choices)) or None
