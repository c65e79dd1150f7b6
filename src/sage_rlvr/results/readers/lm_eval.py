"""lm-evaluation-harness: samples_<task>_<date>.jsonl of `--log_samples`, one row per document and filter.

A row has one value of every metric per document, over all repeats. With one repeat this is the score of that completion; a list of
values has one per repeat. Rows that `sage-rlvr samples --to-lm-eval` wrote have a verdict for every completion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sage_rlvr.errors import DataError, suggest
from sage_rlvr.results.readers.file import RowFile
from sage_rlvr.results.readers.registry import Choice, FileRows, reader

OURS = "verdict of sage_rlvr"


@reader(
    "lm_eval", ("doc_id", "doc", "target", "resps", "filter", "metrics"), about="lm-evaluation-harness, samples_*.jsonl"
)
def lm_eval(file: RowFile, choice: Choice) -> FileRows:
    """Completions with the score of one metric after one filter."""
    kept = list(file.rows())
    names = (name for _, tree in kept for name in _names(tree))
    name = choice.of(names, file.path, "scores (metric,filter)")
    for number, tree in kept:
        if name in _names(tree):
            yield from ((number, row) for row in _completions(file.location(number), tree, name))


def _names(tree: Mapping[str, Any]) -> list[str]:
    """The scores of a row as lm-eval writes them in its results: "exact_match,strict-match"."""
    own = [OURS] if isinstance(tree.get("sage_rlvr"), dict) else []
    metrics = [name for name in tree.get("metrics") or () if name in tree]
    return own or [f"{name},{tree.get('filter')}" for name in metrics]


def _completions(location: str, tree: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    texts = tree["resps"][0] if tree["resps"] else []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or len(tree["resps"]) != 1:
        raise DataError(
            f"{location}: no generated text (multiple choice or log-likelihood); only tasks of generate_until can be compared"
        )
    if name == OURS:
        scores: list[Any] = [verdict == "right" for verdict in tree["sage_rlvr"]["verdict"]]
    else:
        value = tree[name.rpartition(",")[0]]
        scores = value if isinstance(value, list) else [value]
    if len(scores) != len(texts):
        raise DataError(
            f"{location}: {len(texts)} completions and one {name}: texts without scores. Judge them, then compare the stores: "
            f"{suggest('samples', 'STORE', '--from-lm-eval', location.rpartition(':')[0], '--judge', 'boxed')}"
        )
    prompt, temperature = _request(tree)
    for text, score in zip(texts, scores, strict=True):
        yield {
            "id": str(tree["doc_id"]), "score": score, "text": text, "gold": str(tree["target"]), "temperature": temperature,
            "prompt": prompt,
        }  # fmt: skip


def _request(tree: Mapping[str, Any]) -> tuple[str | None, float | None]:
    """The prompt and the sampling temperature in the arguments of the request, None where they are not set."""
    requests = tree.get("arguments")
    first = next(iter(requests.values()), {}) if isinstance(requests, dict) else (requests or [[]])[0]
    prompt, inner = (first.get("arg_0"), first.get("arg_1")) if isinstance(first, dict) else (*first, None, None)[:2]
    if isinstance(inner, str):
        inner = json.loads(inner) if inner.startswith("{") else None
    temperature = inner.get("temperature") if isinstance(inner, dict) else None
    return prompt if isinstance(prompt, str) else None, float(temperature) if isinstance(temperature, (int, float)) else None
