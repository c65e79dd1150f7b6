"""inspect_ai: an .eval log (a zip archive) or a .json log. Epochs of a sample are its completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.verdicts.readers.fields import NUMBER, Fields
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice, FileRows, name_once

LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Values of inspect's scorers: correct, incorrect, partially correct, no answer."""
WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Other texts that inspect takes for numbers, in any case."""
CUT = ("max_tokens", "model_length")
LIMITS = ("token", "message", "time", "working")


def inspect_ai(file: RowFile, choice: Choice) -> FileRows:
    """Samples with the value of one scorer. A sample that ended in a tolerated error, or was invalidated, has no score."""
    header, samples = _log(file)
    status = header.need("status", str)
    if status != "success":
        raise DataError(
            f"{file.path}: the evaluation did not finish (status {status!r}); finish it with: inspect eval-retry {file.path}"
        )
    task, temperature = _setting(header)
    paths: dict[str, tuple[str, ...]] = {}
    kept = []
    for sample in samples:
        scores = {name_once(path, paths, file.path): value for path, value in _values(sample.inside("scores"))}
        if sample.get("invalidation", dict) is not None:
            scores = dict.fromkeys(scores)
        kept.append((_row(sample) | {"task": task, "temperature": temperature}, scores, sample.number))
    names = [name for _, scores, _ in kept for name in scores]
    if not names and choice.judge is None:
        raise DataError(f"{file.path}: no sample has a score; score the log with: inspect score {file.path}, or pass --judge")
    name = choice.of(names, file.path, "scorers")
    seen: set[tuple[str, Any]] = set()
    for row, scores, number in kept:
        if (key := (row["id"], row["request"])) in seen:
            raise DataError(f"{file.location(number)}: sample {key[0]!r}, epoch {key[1]} occurs twice; write the log again")
        seen.add(key)
        yield number, row | {"score": scores.get(name)}


def _log(file: RowFile) -> tuple[Fields, Iterator[Fields]]:
    """The header, and every sample."""
    if file.container == "archive":
        number, tree = next(file.trees("header.json"))
        return _object(file, number, tree), (_object(file, *one) for one in file.trees("samples/"))
    header = _object(file, 1, file.document())
    return header, (_object(file, *one) for one in enumerate(header.need("samples", list), 1))


def _object(file: RowFile, number: int, tree: Any) -> Fields:
    if not isinstance(tree, dict):
        raise DataError(f"{file.location(number)}: {tree!r:.60}: an object {{...}} is expected; write the log again")
    return Fields(file, number, tree)


def _row(sample: Fields) -> dict[str, Any]:
    """A sample without its score."""
    output, limit = sample.inside("output"), sample.inside("limit").get("type", str)
    ends = [one.get("stop_reason") in CUT for one in output.list_of("choices", dict)]
    return {
        "id": sample.id("id"), "text": output.get("completion", str), "gold": _gold(sample), "cut": any(ends) or limit in LIMITS,
        "request": sample.get("epoch", int), "prompt": _prompt(sample),
    }  # fmt: skip


def _values(scores: Fields) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Scorer and value; a scorer with several values has one entry for each."""
    for scorer in scores.tree:
        value = scores.inner(scorer).tree.get("value")
        if isinstance(value, Mapping):
            yield from (((scorer, str(key)), _number(inner)) for key, inner in value.items())
        else:
            yield (scorer,), _number(value)


def _number(value: Any) -> Any:
    """A value as inspect's `value_to_float` reads it; other texts as they are."""
    if not isinstance(value, str):
        return value
    number = float(value) if NUMBER.fullmatch(value) and "," not in value else value
    return LETTERS.get(value, WORDS.get(value.lower(), number))


def _setting(header: Fields) -> tuple[str, float | None]:
    """Task and sampling temperature."""
    spec = header.inside("eval")
    configs = (header.inside("plan").inside("config"), spec.inside("model_generate_config"))
    known = (one.get("temperature", float) for one in configs)
    return spec.get("task", str) or "", next((float(one) for one in known if one is not None), None)


def _prompt(sample: Fields) -> str | None:
    """The input of a sample, a text or messages; None if a part is not text."""
    given = sample.tree.get("input")
    if isinstance(given, str):
        return given
    parts = [one.get("content") for one in sample.list_of("input", dict)]
    return "\n".join(parts) if parts and all(isinstance(part, str) for part in parts) else None


def _gold(sample: Fields) -> str | None:
    target = sample.tree.get("target")
    return target if isinstance(target, str) else ", ".join(sample.list_of("target", str)) or None
