"""Write the page of `sage-rlvr browse`: one HTML file, and the texts in scripts beside it if they are large.

The page has no text of a completion: it loads the part with the completions that are opened. Scripts can be loaded from a disk,
other files cannot. Texts become JSON in which no character closes a script element, and the page inserts them as text only.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from sage_rlvr.errors import ConfigError
from sage_rlvr.escaping import visible
from sage_rlvr.render.build import POLICY, asset, template
from sage_rlvr.render.markup import as_script
from sage_rlvr.render.style import dark_twins
from sage_rlvr.results.browse import GRADED, Completions, Problem
from sage_rlvr.runs.files import replacing_folder, write_text_atomic, writing

PART = 2_000_000  # characters of texts in one script; a single part is in the page itself
SHORT = 140  # characters of a problem in the table
COMMON = 24  # characters that all problems begin with, from which on the table omits them
SCRIPT = re.compile(r"\d{4,}\.js")


@dataclass(frozen=True)
class Written:
    """The files of a page. folder: None if the page has the texts; bytes: of all texts."""

    page: Path
    folder: Path | None
    parts: int
    bytes: int


def write_browser(made: Completions, out: Path, title: str, about: str) -> Written:
    """Write the page, and beside it the folder with its texts.

    Args:
        made: The completions.
        out: The .html file.
        title: The title of the page.
        about: A sentence below it.

    Returns:
        The written files.

    Raises:
        ConfigError: If the folder for the texts has other files.
        CheckpointError: If a disk is full or a folder cannot be written.
    """
    folder = out.with_name(f"{out.stem}_texts")
    others = [one.name for one in folder.iterdir() if not SCRIPT.fullmatch(one.name)] if folder.is_dir() else []
    if others:
        raise ConfigError(f"{folder} has files that are not of a page, such as {others[0]}; pass another --out")
    data = _index(made)
    id = hashlib.sha256(as_script(data).encode()).hexdigest()[:16]
    parts = _parts(made)
    first, second = next(parts), next(parts, None)
    out.parent.mkdir(parents=True, exist_ok=True)
    if second is None:
        _write_page(out, title, about, data | {"id": id, "folder": "", "starts": [0]}, f"[{','.join(first)}]")
        shutil.rmtree(folder, ignore_errors=True)
        return Written(out, None, 1, sum(map(len, first)))
    starts, begun, size = list[int](), 0, 0
    with writing("page", out.parent, 64 << 20), replacing_folder(folder) as partial:
        for number, entries in enumerate((first, second, *parts)):
            text = f'sageRlvrTexts("{id}",{number},[{",".join(entries)}]);'
            (partial / f"{number:04}.js").write_text(text, "ascii")
            starts.append(begun)
            begun, size = begun + len(entries), size + len(text)
    _write_page(out, title, about, data | {"id": id, "folder": folder.name, "starts": starts}, "null")
    return Written(out, folder, len(starts), size)


def _write_page(out: Path, title: str, about: str, data: dict[str, Any], texts: str) -> None:
    """Write the page. texts: JSON of all entries, or null if they are in the folder."""
    script = asset("browse.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" + (" 'self' file:" if data["folder"] else "")
    page = template(
        "page.html.j2", title=title, body=Markup(template("browse.html.j2", title=title, about=about)),
        policy=POLICY.format(script=allowed), twins=dark_twins(), style=Markup(asset("browse.css")), script=Markup(script),
        data=Markup(as_script(data)[:-1] + f',"texts":{texts}}}'),
    )  # fmt: skip
    with writing("page", out.parent, 8 << 20):
        write_text_atomic(out, page)


def _index(made: Completions) -> dict[str, Any]:
    """Everything but the texts. Entries of the texts are numbered: each problem has one, then each of its cells."""
    columns = made.columns
    places = {column: i for i, column in enumerate(columns)}
    arms = list(dict.fromkeys(column.arm for column in columns))
    several, prefix = len({one.task for one in made.problems.values()}) > 1, _prefix(made)
    problems, cells, entry = list[list[Any]](), list[list[Any]](), 0
    for index, problem in enumerate(made.problems.values()):
        name, asked = _named(problem, prefix)
        task = f"{problem.task}: " if several else ""
        problems.append([visible(task + name), visible(asked), visible(_short(problem.gold or "")), entry])
        for column in sorted(problem.cells, key=places.__getitem__):
            entry += 1
            codes = "".join(code for code, _, _ in problem.cells[column])
            scores = problem.scores.get(column, []) if GRADED in codes.lower() else []
            cells.append([index, places[column], codes, entry, round(float(np.mean(scores)), 3) if scores else None])
        entry += 1
    shown = [[arms.index(column.arm), column.step] for column in columns]
    cut = any(code.isupper() for _, _, codes, _, _ in cells for code in codes)
    return {"arms": list(map(visible, arms)), "columns": shown, "problems": problems, "cells": cells, "cut": cut}


def _parts(made: Completions) -> Iterator[list[str]]:
    """The entries as JSON, in parts of about `PART` characters; at least one part."""
    entries, size = list[str](), 0
    places = {column: i for i, column in enumerate(made.columns)}
    for problem in made.problems.values():
        trees: list[Any] = [{"prompt": problem.prompt or problem.id * _is_prompt(problem), "gold": problem.gold}]
        trees += ([row[1:] for row in problem.cells[column]] for column in sorted(problem.cells, key=places.__getitem__))
        for tree in trees:
            entries.append(as_script(tree))
            size += len(entries[-1])
            if size >= PART:
                yield entries
                entries, size = [], 0
    if entries:
        yield entries


def _prefix(made: Completions) -> int:
    """The number of characters that all prompts begin with, up to a word: a system prompt tells no problem from another."""
    prompts = [problem.prompt or problem.id for problem in made.problems.values()]
    first, last = min(prompts), max(prompts)  # what these two begin with, all between them do
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    word = len(re.split(r"\s", first[:same])[-1])
    return same - word if len(prompts) > 1 and same >= COMMON else 0


def _named(problem: Problem, prefix: int) -> tuple[str, str]:
    """The id of a problem, "" if that is its prompt, and the beginning of its prompt."""
    asked = problem.prompt or problem.id
    if _is_prompt(problem) or problem.id == problem.prompt:
        return "", _short(asked[prefix:])
    return _short(problem.id), _short(problem.prompt[prefix:])


def _is_prompt(problem: Problem) -> bool:
    """Whether the id of a problem is its prompt, as in logs that have no ids."""
    return not problem.prompt and (len(problem.id) > SHORT or bool(re.search(r"\s", problem.id)))


def _short(text: str) -> str:
    words = " ".join(text[: 4 * SHORT].split())
    return words if len(words) <= SHORT else words[: SHORT - 1] + "\u2026"
