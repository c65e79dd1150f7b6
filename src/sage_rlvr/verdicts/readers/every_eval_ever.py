"""Every Eval Ever 0.3: *_samples.jsonl, one row per completion and result; and its aggregate, which has no counts."""

from __future__ import annotations

from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers.fields import Fields
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice, FileRows

RESULT = "evaluation_result_id"
SCORES = ("is_correct", "score")


def samples(file: RowFile, choice: Choice) -> FileRows:
    """Completions with `is_correct`, or with `score` under `--correct score`. If the rows are of several results of one evaluation,
    `--correct` names the result. A row with an error has no score. Raises DataError for an aggregate."""
    if "evaluation_results" in file.keys:
        raise _aggregate(file)
    kept = [Fields(file, number, tree) for number, tree in file.rows()]
    results: dict[str, dict[str, None]] = {}
    for row in kept:
        results.setdefault(row.need("evaluation_name", str), {}).setdefault(row.get(RESULT, str) or "")
    wanted, name = "", "is_correct"
    if any(len(names) > 1 for names in results.values()):
        named = [name for names in results.values() for name in names]
        wanted = choice.of(named, file.path, "results")
    else:
        name = choice.of(SCORES if choice.wanted else SCORES[:1], file.path)
    for row in kept:
        first = next(iter(results[row.need("evaluation_name", str)]))  # whose texts a judge marks
        if (row.get(RESULT, str) or "") != (wanted or first):
            continue
        evaluation, given, output = row.inner("evaluation"), row.inner("input"), row.inside("output")
        texts = output.list_of("raw", str)
        if len(texts) > 1:
            raise row.error("output.raw", f"has {len(texts)} responses and one score; a row for each is expected")
        golds = given.list_of("reference", str)
        if len(golds) > 1 and choice.judge is not None and choice.judge.needs_gold:
            raise given.error("reference", f"has {len(golds)} golds; is one of them enough? pass --judge my_reward.py:score")
        score = {"correct": evaluation.tree.get(name)} if name == "is_correct" else {"score": evaluation.tree.get(name)}
        made: dict[str, Any] = {
            "id": row.id("sample_id"), "task": row.need("evaluation_name", str), "model": row.need("model_id", str),
            "text": texts[0] if texts else None, "gold": ", ".join(golds) or None,
            "prompt": given.get("raw", str),
        }  # fmt: skip
        yield row.number, made | (dict.fromkeys(score) if row.tree.get("error") else score)


def _aggregate(file: RowFile) -> DataError:
    """The error for an aggregate, with the file of its samples."""
    path = Fields(file, 1, file.document()).inside("detailed_evaluation_results").get("file_path", str)
    rest = f"pass its samples, {path}" if path else "evaluate again with one row per sample (*_samples.jsonl)"
    return DataError(f"{file.path}: an aggregate of Every Eval Ever has scores and no counts of problems; {rest}")
