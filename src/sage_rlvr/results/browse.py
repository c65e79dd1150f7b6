"""Completions of files, folders and sample stores by problem and training step, for the page of `sage-rlvr browse`.

    read_completions(["runs/grpo/completions"], Choice(wanted=("accuracy_reward",)))

Read `Completions` first; `index_of` and `entries_of` are the values of the page. A file is read by the reader of `compare` for its
format; scores need not be 0 or 1 here, and a completion may have none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sage_rlvr.errors import DataError
from sage_rlvr.escaping import visible
from sage_rlvr.verdicts.files import rows_in, shortest
from sage_rlvr.verdicts.readers import Choice, RowFile, reader_of, reads
from sage_rlvr.verdicts.readers.fields import Fields, gold_text, messages_text, sample_field
from sage_rlvr.verdicts.readers.rows import Group

RIGHT, WRONG, UNDECIDED, UNSCORED, GRADED = "rwung"
"""The code of a completion, one letter; a capital letter if it was cut at the length limit."""
SHORT = 140  # characters of a problem in the table
COMMON = 24  # characters that all prompts begin with, from which on the table omits them
SKIPPED = (".html", ".md", ".py", ".yaml", ".yml", ".txt", ".log", ".safetensors", ".bin", ".pt", ".npz")


@dataclass(frozen=True)
class Column:
    """The samples of one policy: a run, and its training step if the rows have one."""

    arm: str
    step: int | None


@dataclass
class BrowsedProblem:
    """A problem. gold: None if no row has it; cells: column -> (code, text, note) of each completion, in order; scores: column ->
    the finite scores of its completions."""

    id: str
    task: str
    prompt: str = ""
    gold: str | None = None
    cells: dict[Column, list[tuple[str, str | None, str]]] = field(default_factory=dict)
    scores: dict[Column, list[float]] = field(default_factory=dict)


@dataclass
class Completions:
    """The completions of all files. problems: (task, id) -> problem, in order of appearance; score: what counts as right, by
    file; skipped: files of the folders without completions that a reader knows."""

    problems: dict[tuple[str, str], BrowsedProblem] = field(default_factory=dict)
    score: dict[str, str] = field(default_factory=dict)
    skipped: int = 0

    @property
    def columns(self) -> list[Column]:
        """The columns: by run in order of appearance, then by step."""
        found = dict.fromkeys(column for one in self.problems.values() for column in one.cells)
        arms = list(dict.fromkeys(column.arm for column in found))
        return sorted(found, key=lambda column: (arms.index(column.arm), -1 if column.step is None else column.step))

    def counts(self) -> dict[str, int]:
        """The number of completions by code, and of those that were cut as "cut"."""
        made = dict.fromkeys((RIGHT, WRONG, UNDECIDED, UNSCORED, GRADED, "cut"), 0)
        for problem in self.problems.values():
            for rows in problem.cells.values():
                for code, _, _ in rows:
                    made[code.lower()] += 1
                    made["cut"] += code.isupper()
        return made

    def summary(self) -> str:
        """Return one sentence: the numbers of completions, problems, runs and steps, and the shares that are right and cut."""
        counts, columns = self.counts(), self.columns
        cut, total = counts.pop("cut"), sum(counts.values())
        steps = len({column.step for column in columns} - {None})
        sizes = [_many(total, "completion"), _many(len(self.problems), "problem"), _many(len({c.arm for c in columns}), "run")]
        sizes += [_many(steps, "step")] if steps else []
        words = {RIGHT: "right", WRONG: "wrong", UNDECIDED: "undecided", UNSCORED: "without a score", GRADED: "graded"}
        shares = [f"{100 * n / total:.1f} % {words[code]}" for code, n in counts.items() if n]
        shares.append(f"{100 * cut / total:.1f} % cut at the length limit" if cut else "no file says which were cut")
        scores = ", ".join(dict.fromkeys(self.score.values()))
        return f"{', '.join(sizes)}: {', '.join(shares)}. Right is by {scores}."

    def add(
        self, key: tuple[str, str], column: Column, row: tuple[str, str | None, str], score: float | None = None
    ) -> BrowsedProblem:
        """Add a completion (code, text, note) with its score, if it has one. Return its problem."""
        problem = self.problems.setdefault(key, BrowsedProblem(id=key[1], task=key[0]))
        problem.cells.setdefault(column, []).append(row)
        if score is not None and math.isfinite(score):
            problem.scores.setdefault(column, []).append(score)
        return problem


def read_completions(words: Sequence[str], choice: Choice) -> Completions:
    """Read files, folders and sample stores.

    Args:
        words: PATH, or NAME=PATH[,PATH...]. A folder is read with the files and stores in it and one level below.
        choice: The score that means correct, and the least value that counts as correct.

    Returns:
        All completions.

    Raises:
        DataError: For a file that no reader knows or with a damaged row, and if there is no completion.
    """
    made = Completions()
    sources = [source for word in words for source in _sources(word, made)]
    labels = _labels(sources)
    for source in sources:
        if source.path.is_dir():
            _add_store(made, source)
        else:
            _add_file(made, source, labels, choice.taking(*source.picks))
    if not made.problems:
        raise DataError(f"{', '.join(words)}: no completions; pass files of completions, not of counts")
    return made


@dataclass(frozen=True)
class _Source:
    """A file or store. name: NAME of NAME=PATH, or ""; picks: the words of FILE@WORD."""

    path: Path
    name: str = ""
    picks: tuple[str, ...] = ()


def _sources(word: str, made: Completions) -> Iterator[_Source]:
    """Every file and store that a word names."""
    from sage_rlvr.results.files import stores_of
    from sage_rlvr.runs import is_run

    name, _, paths = ("", "", word) if Path(word).exists() or "=" not in word else word.rpartition("=")
    for one in paths.split(",") if name else [paths]:
        path = Path(one)
        if _is_store(path):
            yield _Source(path, name)
        elif is_run(path) and (stores := stores_of(path)):
            yield from (_Source(store, name) for store in stores)
        elif path.is_dir():
            inside = [*sorted(path.iterdir(), key=_natural), *sorted(path.glob("*/*"), key=_natural)]
            stores = [inner for inner in inside if _is_store(inner)]
            files = [inner for inner in inside if inner.is_file() and inner.suffix not in SKIPPED and inner.parent not in stores]
            known = [inner for inner in files if reads(inner) and reader_of(RowFile(inner)).name != "counts"]
            made.skipped += len(files) - len(known)
            if not known and not stores:
                raise DataError(
                    f"{path}: no file of completions and no sample store in this folder or one level below; pass the folder of "
                    "TRL's completions, of verl's dumps, or a file (docs/reference/rows.md)"
                )
            yield from (_Source(inner, name) for inner in [*stores, *known])
        elif (found := rows_in(one)) is not None:
            yield _Source(found[0], name, tuple(found[1]))
        elif path.exists():
            raise DataError(f"{one}: no file of completions (docs/reference/rows.md)")
        else:
            raise DataError(f"{one}: no such file or folder")


def _is_store(path: Path) -> bool:
    return (path / "store.json").is_file()


def _natural(path: Path) -> tuple[Any, ...]:
    from sage_rlvr.evaluation.store.sample import natural

    return natural(str(path))


def _labels(sources: Sequence[_Source]) -> Mapping[str, str]:
    """The shortest unique name of each file and of its folder."""
    files = [one.path for one in sources if one.path.is_file()]
    return shortest(map(str, files)) | shortest(dict.fromkeys(str(_folder(path)) for path in files))


def _folder(path: Path) -> Path:
    """The folder that a run is called by; TRL writes into the folder completions of that of the run."""
    folder = path.resolve().parent
    return folder.parent if folder.name == "completions" else folder


def _add_file(made: Completions, source: _Source, labels: Mapping[str, str], choice: Choice) -> None:
    """Add the rows of a file. Rows with a step belong to the run of their folder, others to that of their file."""
    path = source.path
    file = RowFile(path)
    reader = reader_of(file)
    file.check_size()
    folder = labels[str(_folder(path))]
    for number, row in reader.rows_of(file, choice):
        if "n" in row and not {"correct", "score", "text"} & row.keys():
            raise DataError(f"{path}: counts per problem, without completions; pass the file of completions")
        fields = Fields(file, number, row)
        step, seed, task, own = _whole(fields, "step"), _whole(fields, "seed"), _word(fields, "task"), _word(fields, "arm")
        temperature = fields.get("temperature", float)
        if not all(Group(arm=own, task=task, step=step).named(pick) for pick in source.picks):
            continue
        arm = source.name or own or (labels[str(path)] if step is None else folder)
        arm += "" if seed is None else f", seed {seed}"
        arm += "" if temperature is None or math.isnan(temperature) else f", T = {temperature:g}"
        key = task, fields.id("id")
        text, answer, cut = (_column(fields, column) for column in ("text", "answer", "cut"))
        code, score, note = _judged(fields, choice)
        notes = " · ".join(part for part in (note, "" if answer is None else f"answer {answer}") if part)
        problem = made.add(key, Column(arm, step), (code.upper() if cut else code, text, notes), score)
        problem.prompt = problem.prompt or messages_text(row.get("prompt")) or ""
        problem.gold = gold_text(row.get("gold")) if problem.gold is None else problem.gold
    made.score[path.name] = choice.words or choice.used or "correct"


def _word(fields: Fields, name: str) -> str:
    """A label; "" for none, and for NaN, the missing value of a table."""
    value = fields.tree.get(name)
    return "" if value != value else fields.get(name, str) or ""


def _whole(fields: Fields, name: str) -> int | None:
    value = fields.get(name, float)
    if value is None or value != value:
        return None
    if value != int(value):
        raise fields.error(name, f"= {value!r}: a whole number is expected")
    return int(value)


def _column(fields: Fields, name: str) -> Any:
    try:
        return sample_field(name, fields.tree.get(name))
    except ValueError as error:
        raise fields.error(name, f"= {fields.tree[name]!r:.60}: {error}") from error


def _judged(fields: Fields, choice: Choice) -> tuple[str, float | None, str]:
    """The code of a completion, its score, None without one, and a note on it."""
    name = "correct" if "correct" in fields.tree else "score"
    value = fields.tree.get(name)
    if value is None or value != value:
        return UNSCORED, None, ""
    if not isinstance(value, (bool, int, float)):
        raise fields.error(name, f"= {value!r:.60}: a number is expected")
    if choice.right_from is not None and name == "score":
        return (RIGHT if value >= choice.right_from else WRONG), float(value), f"score {value:g}"
    if value in (0, 1):
        return (RIGHT if value else WRONG), float(value), ""
    return GRADED, float(value), f"score {value:g}"


def _add_store(made: Completions, source: _Source) -> None:
    """Add the samples of a store."""
    from sage_rlvr.evaluation.store import SampleStore

    with SampleStore.open(source.path) as store:
        known, questions = store.identity, store.questions()
        rows = store.lists(("problem", "text", "finish", "verdict", "reason", "answer"))
    arm = f"{source.name or known.model}, T = {known.decoding['temperature']:g}"
    codes = {"right": RIGHT, "wrong": WRONG, "undecided": UNDECIDED, None: UNSCORED}
    for problem, text, finish, verdict, reason, answer in zip(*rows.values(), strict=True):
        notes = [part for part in (reason, None if answer is None else f"answer {answer}") if part]
        code = codes[verdict].upper() if finish == "length" else codes[verdict]
        one = made.add((known.task, problem), Column(arm, None), (code, text, " · ".join(notes)))
        asked = questions.get(problem)
        if asked is not None and not one.prompt:
            one.prompt, one.gold = asked.prompt or "", asked.gold
    made.score[source.path.name] = "the verdict of its verifier"


def _many(n: int, word: str) -> str:
    return f"{n:,} {word}" + "s" * (n != 1)


# ------------------------------------------------------------------------------------------------------------------
# values of the page


def index_of(made: Completions) -> dict[str, Any]:
    """Return everything of a page but its texts, as JSON values. The entries of `entries_of` are numbered from 0."""
    columns = made.columns
    places = {column: i for i, column in enumerate(columns)}
    arms = list(dict.fromkeys(column.arm for column in columns))
    several, prefix = len({one.task for one in made.problems.values()}) > 1, _prefix(made)
    problems, cells, entry = list[list[Any]](), list[list[Any]](), 0
    for place, problem in enumerate(made.problems.values()):
        name, asked = _named(problem, prefix)
        task = f"{problem.task}: " if several else ""
        problems.append([visible(task + name), visible(asked), visible(_short(problem.gold or "")), entry])
        for column in sorted(problem.cells, key=places.__getitem__):
            entry += 1
            codes = "".join(code for code, _, _ in problem.cells[column])
            scores = problem.scores.get(column, []) if GRADED in codes.lower() else []
            cells.append([place, places[column], codes, entry, round(float(np.mean(scores)), 3) if scores else None])
        entry += 1
    shown = [[arms.index(column.arm), column.step] for column in columns]
    cut = any(code.isupper() for _, _, codes, _, _ in cells for code in codes)
    return {"arms": list(map(visible, arms)), "columns": shown, "problems": problems, "cells": cells, "cut": cut}


def entries_of(made: Completions) -> Iterator[Any]:
    """Yield the texts of a page as JSON values: an entry of each problem, then one of each of its cells."""
    places = {column: i for i, column in enumerate(made.columns)}
    for problem in made.problems.values():
        yield {"prompt": problem.prompt or problem.id * _is_prompt(problem), "gold": problem.gold}
        yield from ([row[1:] for row in problem.cells[column]] for column in sorted(problem.cells, key=places.__getitem__))


def _prefix(made: Completions) -> int:
    """The number of characters that all prompts begin with, up to a word: a system prompt does not distinguish problems."""
    prompts = [problem.prompt or problem.id for problem in made.problems.values()]
    first, last = min(prompts), max(prompts)  # what these two begin with, all between them do
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    word = len(re.split(r"\s", first[:same])[-1])
    return same - word if len(prompts) > 1 and same >= COMMON else 0


def _named(problem: BrowsedProblem, prefix: int) -> tuple[str, str]:
    """The id of a problem, "" if that is its prompt, and the beginning of its prompt."""
    asked = problem.prompt or problem.id
    if _is_prompt(problem) or problem.id == problem.prompt:
        return "", _short(asked[prefix:])
    return _short(problem.id), _short(problem.prompt[prefix:])


def _is_prompt(problem: BrowsedProblem) -> bool:
    """Whether the id of a problem is its prompt, as in logs that have no ids."""
    return not problem.prompt and (len(problem.id) > SHORT or bool(re.search(r"\s", problem.id)))


def _short(text: str) -> str:
    words = " ".join(text[: 4 * SHORT].split())
    return words if len(words) <= SHORT else words[: SHORT - 1] + "\u2026"
