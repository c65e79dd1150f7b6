"""lm-evaluation-harness: samples_<task>_<date>.jsonl of `--log_samples`, one row per document and filter.

A row has one value of every metric per document, over all repeats. With one repeat this is the score of that completion; a list of
values has one per repeat; `pass@1` over the repeats that pass its filter (HumanEval) gives the number of correct ones. Rows that
`sage-rlvr samples --to-lm-eval` wrote have a verdict for every completion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers.fields import Fields
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice, FileRows

OURS = "verdict of sage_rlvr"
UNSCORED = "bypass"
"""The metric of `--predict_only`, 999 for every document."""


def lm_eval(file: RowFile, choice: Choice) -> FileRows:
    """Completions with the score of one metric after one filter."""
    kept = [Fields(file, number, tree) for number, tree in file.rows()]
    names = [name for row in kept for name in _names(row)]
    if choice.judge is None and not names and any(UNSCORED in row.list_of("metrics", str) for row in kept):
        raise DataError(
            f"{file.path}: written by --predict_only, so no completion has a score (bypass = 999); evaluate without it, or judge "
            "the completions: --judge boxed"
        )
    name = choice.of(names, file.path, "scores (metric,filter)")
    after = name.rpartition(",")[2] if name else kept[0].need("filter", str) if kept else ""
    known: dict[str, Fields] = {}
    scored: dict[str, Fields] = {}
    for row in kept:
        problem = row.id("doc_id")
        first = known.setdefault(problem, row)
        if first.tree.get("doc") != row.tree.get("doc"):
            raise DataError(
                f"{file.location(row.number)}: doc_id = {problem}: another document than in row {first.number} (targets "
                f"{str(first.tree.get('target'))[:40]!r} and {str(row.tree.get('target'))[:40]!r}); {SUBTASKS}"
            )
        if name == OURS or row.need("filter", str) == after:
            if (twin := scored.setdefault(problem, row)) is not row:
                raise DataError(
                    f"{file.location(row.number)}: doc_id = {problem} after the filter {row.tree.get('filter')} is also in row "
                    f"{twin.number}: one log has it once, so logs were joined; compare each by itself, or evaluate with repeats"
                )
            yield from ((row.number, made | {"document": row.tree.get("doc")}) for made in _completions(row, name))
    if lacking := [row for problem, row in known.items() if problem not in scored]:
        raise DataError(
            f"{file.location(lacking[0].number)}: doc_id = {lacking[0].id('doc_id')} has no {name}, nor have {len(lacking) - 1} "
            "other documents; evaluate all of them with this filter, or choose another score"
        )


SUBTASKS = "if the file holds several subtasks, compare the files of each subtask by themselves"


def _names(row: Fields) -> list[str]:
    """The scores of a row as lm-eval writes them in its results: "exact_match,strict-match"."""
    if row.tree.get("sage_rlvr") is not None:
        return [OURS]
    metrics = row.list_of("metrics", str)
    return [f"{name},{row.need('filter', str)}" for name in metrics if name != UNSCORED]


def _completions(row: Fields, name: str) -> Iterator[dict[str, Any]]:
    responses = row.need("resps", list)
    texts = responses[0] if len(responses) == 1 else None
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{row.file.location(row.number)}: no generated text (multiple choice or log-likelihood); only tasks of generate_until "
            "can be compared"
        )
    prompt, temperature = _request(row)
    made = {"id": row.id("doc_id"), "gold": row.tree.get("target") or None, "temperature": temperature, "prompt": prompt}
    if not name:
        yield from (made | {"text": text} for text in texts)
        return
    metric = name.rpartition(",")[0]
    if name == OURS:
        scores: list[Any] = [one == "right" for one in row.inside("sage_rlvr").list_of("verdict", str)]
    else:
        value = row.tree.get(metric)
        scores = value if isinstance(value, list) else [value]
    if len(scores) == 1 and len(texts) > 1 and metric == "pass@1":
        if (n := _counted(row)) is None:
            raise DataError(
                f"{row.file.location(row.number)}: {len(texts)} completions and one {name}, and filtered_resps does not show over "
                "how many of them it is; evaluate with a filter that keeps the completions of a document together (take_first_k)"
            )
        yield made | {"n": n, "c": row.right(name, scores[0], n)}
        return
    if len(scores) != len(texts):
        raise DataError(
            f"{row.file.location(row.number)}: {len(texts)} completions and one {name}: texts without scores. Judge them here: "
            "--judge boxed (or last_number, exact_match, my_reward.py:score)"
        )
    for text, score in zip(texts, scores, strict=True):
        yield made | {"score": score, "text": text}


def _counted(row: Fields) -> int | None:
    """The number of completions that pass the filter, which the metric averages; None if the row does not show it."""
    kept = row.get("filtered_resps", list) or []
    return len(kept[0]) or None if len(kept) == 1 and isinstance(kept[0], list) else None


def _request(row: Fields) -> tuple[str | None, float | None]:
    """The prompt and the sampling temperature in the arguments of the request, None if they are not set."""
    requests = row.tree.get("arguments")
    several = list(requests.values()) if isinstance(requests, dict) else requests
    first = several[0] if isinstance(several, list) and several else {}
    if isinstance(first, dict):
        prompt, inner = first.get("arg_0"), first.get("arg_1")
    else:
        prompt, inner = (*first, None, None)[:2] if isinstance(first, list) else (None, None)
    if isinstance(inner, str):
        try:
            inner = json.loads(inner) if inner.startswith("{") else None
        except ValueError as error:
            raise row.error("arguments", f"= {inner!r:.60}: not JSON") from error
    temperature = inner.get("temperature") if isinstance(inner, dict) else None
    if temperature is not None and (isinstance(temperature, bool) or not isinstance(temperature, (int, float))):
        raise row.error("arguments", f"has the temperature {temperature!r:.60}: a number is expected")
    return prompt if isinstance(prompt, str) else None, None if temperature is None else float(temperature)
