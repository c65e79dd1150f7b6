"""The commands that the attacks repeat, and what each leaves behind, as digests and texts: everything but clocks."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from sage_rlvr.evaluation.store import SampleStore

Made = Callable[[Path, str], dict[str, str]]
CLOCK = re.compile(
    r"seconds|time/|per_second|memory|written|started|ended|created|made_at"
)  # keys that no two runs share
MOMENTS = re.compile(  # of texts: dates, durations, sizes of pages, and the cell "training, s" behind that of the tokens drawn
    r"\d{4}-\d\d-\d\d[T ]\d\d[:-]\d\d\S*|\d[\d.,]* (?:s|ms|min|kB|MB)\b"
    r"|code [0-9a-f]{12}|\| 0\.00 \| \d+ \||<div>0\.00</div>\s*</td>\s*<td>\s*<div>\d+</div>"
)


def digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def plain(tree: Any) -> Any:
    """A tree without the keys of clocks."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items() if not CLOCK.search(str(key))}
    return [plain(value) for value in tree] if isinstance(tree, list) else tree


def _weights(path: Path) -> str:
    return digest([(name, array.tobytes()) for name, array in sorted(load_file(path).items())])


def _rows(path: Path) -> str:
    return digest([plain(json.loads(line)) for line in path.read_text("utf-8").splitlines()])


def _tree(path: Path) -> str:
    return digest(plain(json.loads(path.read_text("utf-8"))))


def _record(path: Path) -> str:
    with np.load(path, allow_pickle=False) as found:
        return digest(
            [(name, found[name].tobytes()) for name in sorted(found.files) if found[name].dtype.kind in "fiub"]
        )


def _text(path: Path) -> str:
    return MOMENTS.sub("", path.read_text("utf-8"))


def _store(path: Path) -> str:
    with SampleStore.open(path.parent) as store:
        return f"{len(store.table(('problem',)))}:{store.digest()}"


KINDS: dict[str, Callable[[Path], str]] = {
    "policy/*.safetensors": _weights,
    "metrics.jsonl": _rows,
    "*.npz": _record,
    "store.json": _store,
    "summary.json": _tree,
    "*.md": _text,
    "*.html": _text,
}


def under(*names: str) -> Made:
    """Weights, metrics, records, stores, summaries and pages in these folders or files, clocks left out."""

    def made(folder: Path, said: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in names:
            home = folder / name
            if home.is_file():
                kind = next(kind for pattern, kind in KINDS.items() if home.match(pattern))
                found[name] = kind(home)
            for pattern, kind in KINDS.items() if home.is_dir() else ():
                for path in sorted(path for path in home.rglob(pattern) if path.is_file()):
                    found[str(path.relative_to(folder))] = kind(path)
        return found

    return made


def words_said(folder: Path, said: str) -> dict[str, str]:
    """What went to the terminal, without seconds, sizes and dates."""
    return {"stdout": MOMENTS.sub("", said)}


def differing(wanted: dict[str, str], found: dict[str, str]) -> str:
    """Which of two results' parts differ, and the first line in which a text does."""
    lines = []
    for name in sorted(wanted.keys() | found.keys()):
        one, other = wanted.get(name, "").splitlines(), found.get(name, "").splitlines()
        if one != other:
            line = next((pair for pair in zip_longest(one, other, fillvalue="") if pair[0] != pair[1]), ("", ""))
            lines.append(f"{name} ({line[0][:150]!r}, not {line[1][:150]!r})")
    return ", ".join(lines)


@dataclass(frozen=True)
class Command:
    """words as typed in a folder of `inputs`; made: what it leaves, as digests; after: the commands that must have run before."""

    words: tuple[str, ...]
    made: Made = words_said
    after: tuple[str, ...] = ()


TINY = (
    "--model",
    "model",
    "--world.max_number",
    "12",
    "--steps",
    "3",
    "--rollout.prompts_per_step",
    "4",
    "--checkpoint.every",
    "1",
)
COMMANDS = {
    "train": Command(("train", "recipe.yaml", "--run", "run", "--quiet"), under("run")),
    "sft": Command(("sft", "sft.yaml", "--run", "run", "--quiet"), under("run")),
    "eval": Command(("eval", "run", "--problems", "6", "--temperatures", "0.5", "1.0"), under("run"), ("train",)),
    "eval --samples": Command(
        ("eval", "run", "--samples", "8", "--problems", "8", "--store", "store", "--quiet"), under("store"), ("train",)
    ),
    "sweep": Command(("sweep", "design.yaml", "--out", "sweep", "--workers", "2"), under("sweep")),
    "demo": Command(
        ("demo", "--out", "demo", "--arms", "grpo", "--problems", "6", "--workers", "2", *TINY), under("demo")
    ),
    "samples": Command(
        ("samples", "store", "--to-lm-eval", "harness", "--to-parquet", "store.parquet"),
        words_said,
        ("train", "eval --samples"),
    ),
    "compare": Command(("compare", "a=run", "b=run", "--out", "compared"), under("compared"), ("train", "eval")),
    "report": Command(("report", "run", "-o", "page.html"), under("page.html"), ("train", "eval")),
    "audit": Command(("audit", "rows.jsonl", "--out", "audit.md"), under("audit.md")),
}
