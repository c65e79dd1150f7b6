"""Relative paths in recipes, resolved in one place when a recipe is decoded (`recipes.resolved`).

A path in a recipe starts at the recipe's folder. A path from the command line (`--task FILE`, `--a.b value`) or from Python, and
one in a shipped recipe, starts at the working directory. A decoded configuration, and so run.json, has absolute paths, so that a
run can be resumed from any directory.

Where the text may also be a Hub id (`model: owner/name`), it is a path if such a file or folder exists, or if it begins
with "." or "~".
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

KeyPath = tuple[str, ...]
FILES = (("data", "path"), ("task", "file"), ("task", "test_file"))  # rows: a file, a folder, or a Hub id
STORES = (("pairs", "attempts"), ("pairs", "retries"))
CODE = (("task", "reward"), ("teacher", "function"))  # FILE.py:NAME, or a registered name
MODELS = (("model",), ("base_model",))
ROW_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
NAMES = ("embedded", "smollm2", "smollm2-countdown", "sft", "base")  # of models, which are no folders
STARTS = "relative paths of a recipe start at its folder, those from the command line or Python at the working directory"


def anchored(value: Any, key_path: KeyPath, start: Callable[[KeyPath], Path | None]) -> Any:
    """Return the value at a place of a recipe with absolute paths.

    start: the folder for relative paths of a place; None leaves them.
    """
    if isinstance(value, dict):
        return {key: anchored(item, (*key_path, str(key)), start) for key, item in value.items()}
    if isinstance(value, list):
        return [anchored(item, (*key_path, str(number)), start) for number, item in enumerate(value)]
    if not isinstance(value, str) or not value.strip() or not (kind := _kind(key_path)) or (folder := start(key_path)) is None:
        return value
    path, _, name = value.rpartition(":") if kind == "code" else (value, "", "")
    if not path or not _is_path(kind, path, folder):
        return value
    absolute = str((folder / Path(path).expanduser()).resolve())
    return f"{absolute}:{name}" if kind == "code" else absolute


def _kind(key_path: KeyPath) -> str:
    """Return the kind of path at a place; "" for none."""
    if key_path[:1] == ("method",):
        return {"source": "model", "file": "store"}.get(key_path[-1], "")  # of the reference; of a buffer's answers
    kinds = {"rows": FILES, "store": STORES, "code": CODE, "model": MODELS}
    return next((kind for kind, places in kinds.items() if key_path in places), "")


def _is_path(kind: str, text: str, folder: Path) -> bool:
    if kind in ("store", "code"):
        return True
    if kind == "rows":
        return looks_local(text) or (folder / text).exists()
    return text.startswith((".", "~", "/")) or (text not in NAMES and (folder / text).is_dir())


def looks_local(path: str) -> bool:
    """Return True if a path of rows can only mean a local file or folder, and no Hub id (owner/name)."""
    return path.count("/") != 1 or path.startswith((".", "/", "~")) or path.endswith(ROW_SUFFIXES)


def not_in(file: Path) -> str:
    """Return the rest of the message on a missing file: the folder, the rule, and a file that may be meant."""
    file = file.expanduser().absolute()
    near = get_close_matches(file.name, sorted(p.name for p in file.parent.glob("*")), 1)
    here = Path.cwd() / file.name
    hint = f"; did you mean {near[0]}?" if near else f"; there is a {here} in the working directory" if here.exists() else ""
    return f"{file.parent}; {STARTS}{hint}"


__all__ = ["ROW_SUFFIXES", "STARTS", "KeyPath", "anchored", "looks_local", "not_in"]
