"""inspect_ai: an .eval log (a zip archive) or a .json log. Epochs of a sample are its completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.results.readers.file import RowFile
from sage_rlvr.results.readers.registry import Choice, FileRows, reader

LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Values of inspect's scorers: correct, incorrect, partially correct, no answer."""
CUT = ("max_tokens", "model_length")
LIMITS = ("token", "message", "time", "working")


@reader(
    "inspect_ai", ("header.json", "samples/"), ("eval", "samples", "status"), about="inspect_ai, .eval and .json logs"
)
def inspect_ai(file: RowFile, choice: Choice) -> FileRows:
    """Samples with the value of one scorer."""
    header, samples = _log(file)
    status = header.get("status")
    if status != "success":
        raise DataError(
            f"{file.path}: the evaluation did not finish (status {status!r}); finish it with: inspect eval-retry {file.path}"
        )
    scored = [(number, tree, _scores(location, tree)) for number, location, tree in samples]
    name = choice.of((name for _, _, scores in scored for name in scores), file.path, "scorers")
    task, temperature = _setting(header)
    for number, tree, scores in scored:
        output = tree.get("output") or {}
        ends = [one.get("stop_reason") in CUT for one in output.get("choices") or ()]
        limit = (tree.get("limit") or {}).get("type")
        yield number, {
            "id": str(tree["id"]), "score": scores.get(name), "text": output.get("completion"), "gold": _text(tree.get("target")),
            "task": task, "temperature": temperature, "cut": any(ends) or limit in LIMITS, "request": tree.get("epoch"),
            "prompt": _prompt(tree.get("input")),
        }  # fmt: skip


def _log(file: RowFile) -> tuple[Mapping[str, Any], list[tuple[int, str, Mapping[str, Any]]]]:
    """The header, and (number, location, tree) of every sample."""
    if file.container == "archive":
        header = next((tree for _, tree in file.trees("header.json")), {})
        return header, [(number, file.location(number), tree) for number, tree in file.trees("samples/")]
    tree = file.document()
    return tree, [(number, file.location(number), one) for number, one in enumerate(tree["samples"] or (), 1)]


def _scores(location: str, tree: Mapping[str, Any]) -> dict[str, float]:
    """Scorer -> value; a scorer with several values has one entry for each."""
    if not tree.get("scores"):
        error = (tree.get("error") or {}).get("message", "no scorer ran")
        raise DataError(
            f"{location}: sample {tree.get('id')!r}, epoch {tree.get('epoch')} has no score ({str(error)[:80]}); score the log "
            "with: inspect score"
        )
    return dict(_values(tree["scores"]))


def _values(scores: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for scorer, score in scores.items():
        value = score.get("value")
        if isinstance(value, dict):
            yield from ((f"{scorer}/{key}", _number(inner)) for key, inner in value.items())
        else:
            yield scorer, _number(value)


def _number(value: Any) -> Any:
    return LETTERS.get(value, value) if isinstance(value, str) else value


def _setting(header: Mapping[str, Any]) -> tuple[str, float | None]:
    """Task and sampling temperature."""
    spec, plan = header.get("eval") or {}, header.get("plan") or {}
    configs = (plan.get("config") or {}, spec.get("model_generate_config") or {})
    temperature = next((one["temperature"] for one in configs if one.get("temperature") is not None), None)
    return str(spec.get("task") or ""), None if temperature is None else float(temperature)


def _prompt(given: Any) -> str | None:
    """The input of a sample, a text or messages; None where a part is no text."""
    if isinstance(given, str):
        return given
    parts = [one.get("content") for one in given or () if isinstance(one, dict)]
    return "\n".join(parts) if parts and all(isinstance(part, str) for part in parts) else None


def _text(target: Any) -> str | None:
    return target if target is None or isinstance(target, str) else ", ".join(map(str, target))
