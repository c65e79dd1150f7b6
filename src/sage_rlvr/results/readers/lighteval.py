"""lighteval: details_*.parquet of `--save-details`, one row per document with all of its completions.

A metric is one value per document. The mean over n completions (`avg@n`, and `pass@k` at k = 1) gives the number of correct ones;
any other metric is the score of a single completion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.results.readers.file import RowFile
from sage_rlvr.results.readers.registry import Choice, FileRows, reader

MEAN = re.compile(r"avg@|pass@1(?!\d)|pass@k:k=1(?!\d)")
"""Metrics that are the share of correct completions of a document."""


@reader("lighteval", ("doc", "model_response", "metric"), about="lighteval, details_*.parquet")
def lighteval(file: RowFile, choice: Choice) -> FileRows:
    """Completions with the value of one metric, or counts from a mean over completions."""
    kept = list(file.rows(("doc", "model_response", "metric")))
    name = choice.of(
        (key for _, tree in kept for key, value in _metrics(tree).items() if value is not None), file.path, "metrics"
    )
    several = any(len(tree["model_response"].get("text") or ()) > 1 for _, tree in kept)
    for number, tree in kept:
        texts, value = tree["model_response"].get("text") or [], _metrics(tree).get(name)
        doc = tree["doc"]
        row = {"id": str(doc.get("id") or number - 1), "task": str(doc.get("task_name") or ""), "gold": _gold(doc)}
        row |= {"prompt": doc["query"]} if isinstance(doc.get("query"), str) else {}
        if not several:
            yield number, row | {"score": value, "text": texts[0] if texts else None}
        else:
            yield number, row | _counted(file.location(number), name, value, len(texts))


def _metrics(tree: Mapping[str, Any]) -> dict[str, Any]:
    return dict(tree["metric"] or {})


def _counted(location: str, name: str, value: Any, n: int) -> dict[str, Any]:
    right = None if not isinstance(value, (int, float)) else value * n
    if not MEAN.match(name) or right is None or abs(right - round(right)) > 1e-6:
        raise DataError(
            f"{location}: {n} completions and one {name} = {value!r}: texts without scores; evaluate with a metric that is a mean "
            "over the completions, such as avg@n"
        )
    return {"n": n, "c": round(right)}


def _gold(doc: Mapping[str, Any]) -> str | None:
    """The gold choices of a document."""
    indices, choices = doc.get("gold_index"), doc.get("choices") or []
    at = indices if isinstance(indices, list) else [] if indices is None else [indices]
    return ", ".join(str(choices[i]) for i in at if 0 <= i < len(choices)) or None
