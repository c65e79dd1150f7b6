"""The common part of both directions: the harness's hashes and JSON, and the sidecar with the fields for which a store has no
column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sage_rlvr.errors import DataError
from sage_rlvr.evaluation.store import SampleStore
from sage_rlvr.evaluation.store.sample import prompt_hash
from sage_rlvr.safe_io import read_json_lines

SIDECAR = "lm_eval.jsonl"
_TEXT = str, type(None)
# Columns that are exported and imported besides the harness's, and their types.
OURS = {"seed": (int, type(None)), "finish": _TEXT, "answer": _TEXT, "verdict": str, "reason": str}


def sidecar(path: Path) -> dict[str, dict[str, Any]]:
    """Other fields of the documents of an imported store; {} for a store sampled by this package."""
    file = path / SIDECAR
    rows = read_json_lines(file, strict=False) if file.exists() else ()
    return {_known(row, file)["problem"]: row for _, row in rows}


def _known(row: dict[str, Any], file: Path) -> dict[str, Any]:
    """A row of the sidecar. Raises DataError if it is not as `import_lm_eval` writes it."""
    kinds = {"problem": str, "doc_id": object, "doc": dict, "target": str, "prompt": str}
    if wrong := [name for name, kind in kinds.items() if not isinstance(row.get(name), kind) or name not in row]:
        raise DataError(f"{file}: a document without a readable {wrong[0]}; import the samples again into another store")
    return row


def hashes_of(kept: Mapping[str, Any]) -> dict[str, str]:
    """The harness's three hashes of a document."""
    doc = json.dumps(kept["doc"], indent=2, ensure_ascii=False)
    named = {"doc_hash": doc, "prompt_hash": kept["prompt"], "target_hash": kept["target"]}
    return {name: prompt_hash(text) for name, text in named.items()}


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON as the harness writes it, with letters unescaped; ASCII if a lone surrogate requires it."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


def is_imported(store: SampleStore) -> bool:
    """Whether a store was imported from the harness and thus has documents."""
    return (store.path / SIDECAR).exists()


def targets_of(store: SampleStore) -> dict[str, str]:
    """Problem id -> the harness's target (gold) of an imported store. Raises DataError for other stores and for problems without a
    target."""
    known = sidecar(store.path)
    if not known:
        raise DataError(
            f"{store.path}: was not imported, so it has no targets; judge it again with the command that created it and --rejudge"
        )
    held = dict.fromkeys(store.lists(("problem",))["problem"])
    if lacking := [name for name in held if name not in known]:
        raise DataError(
            f"{store.path}: {SIDECAR} knows no target of {len(lacking)} of its {len(held)} problems "
            f"({', '.join(map(repr, lacking[:5]))}{', ...' if len(lacking) > 5 else ''}), which were imported under other ids "
            "or by another hand; import the file again into another store"
        )
    return {problem: str(row["target"]) for problem, row in known.items()}
