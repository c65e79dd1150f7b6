"""Rows whose columns have other names: `compare --fields id=question_id,correct=is_correct`, and `formats.COLUMNS`.

A column is a name, or a path through objects and lists: "outputs/text" is the field "text" of the object "outputs", or of every
object of a list "outputs". A list of scores or texts has one value for each completion of the problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sage_rlvr.errors import ConfigError, DataError
from sage_rlvr.verdicts.readers.fields import gold_key, gold_text, messages_text
from sage_rlvr.verdicts.readers.file import RowFile
from sage_rlvr.verdicts.readers.registry import Choice, FileRows, candidates
from sage_rlvr.verdicts.readers.rows import COLUMNS, GROUPED, KNOWN, OF_ONE_ARM, OF_ONE_PROBLEM

SCORES = ("correct", "score")
COUNTED = ("correct", "score", "c")
KEPT = (*GROUPED, *OF_ONE_ARM, *OF_ONE_PROBLEM)
"""Columns that `--fields` need not name: they distinguish sets of samples and problems in every file."""
WORDS = "write NAME=COLUMN, for example id=question_id,correct=is_correct,text=response"


def fields_of(words: str | Mapping[str, str]) -> dict[str, str]:
    """Own name -> column, from "id=question_id,correct=status=pass". Raise ConfigError for a name that rows do not have."""
    pairs = [*words.items()] if isinstance(words, Mapping) else [_pair(one) for one in words.split(",")]
    for name, column in pairs:
        if name not in KNOWN:
            raise ConfigError(f"--fields {name}={column}: rows have no field {name!r}, but {', '.join(KNOWN)}; {WORDS}")
        if not column and name not in GROUPED:
            raise ConfigError(f"--fields {name}=: no column; {WORDS}")
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ConfigError(f"--fields {words}: a name occurs twice; {WORDS}")
    if "id" not in made:
        raise ConfigError(f"--fields {words}: no id; name the column that identifies the problem, such as id=question_id")
    if ("n" in made and "c" not in made) or ("correct" in made and "score" in made):
        raise ConfigError(f"--fields {words}: counts are n and c, samples correct or score; name one of the three")
    return made


def _pair(word: str) -> tuple[str, str]:
    name, equals, column = word.strip().partition("=")
    if not equals:
        raise ConfigError(f"--fields {word!r}: {WORDS}")
    return name.strip(), column.strip()


def given_rows(file: RowFile, choice: Choice) -> FileRows:
    """Read rows by the columns of `--fields`. Raise DataError for a column without a value in any row of the file."""
    columns = {name: column for name, column in choice.fields.items() if column}
    dropped = {name for name, column in choice.fields.items() if not column}
    others = [name for name in KEPT if name not in columns.values() and name not in dropped]
    yield from rows_with(columns, file, choice, others, needed=True)


def rows_with(
    columns: Mapping[str, str], file: RowFile, choice: Choice, others: Sequence[str] = (), own: Sequence[str] = (), *,
    needed: bool = False,
) -> FileRows:  # fmt: skip
    """Read rows by other names of their columns.

    Args:
        columns: Own name -> column. Without a score among them, all other numbers may be the score.
        file: The rows.
        choice: The score, if there are several.
        others: Columns that are read under their own names.
        own: Columns that are neither read nor a score.
        needed: Whether every column must have a value in some row.

    Raises:
        DataError: For a column without a value, and for lists of unequal lengths.
    """
    kept = list(file.rows())
    names = {name: _path(name, column) for name, column in columns.items()}
    for name, (path, _) in names.items() if needed else ():
        if all(value is None or value == [] for value in (at(tree, path) for _, tree in kept)):
            known = ", ".join(sorted(file.keys)[:20]) or "none"
            raise DataError(f"{file.path}: --fields {name}={columns[name]}: no row has a value there; its columns are {known}")
    path, word = names.get("correct", ("", None))
    if word is not None and "true" not in json.dumps([_value(tree, path, word) for _, tree in kept]):
        choice.notes.append(f"{file.path}: no completion has {path} = {word}, so all are wrong.")
    if counted := [name for name in COUNTED if name in names]:
        choice.of([columns[counted[0]]], file.path)
    elif choice.judge is None:
        used = {*own, *others, *(column.partition("/")[0] for column in columns.values())}
        scores = candidates((tree for _, tree in kept), used, file.path)
        names["score"] = choice.of(scores, file.path, columns=scores), None
    listed = bool(counted) or choice.judge is not None
    for number, tree in kept:
        row = {name: _value(tree, path, right) for name, (path, right) in names.items()}
        row |= {name: tree[name] for name in others if name in tree and name not in row}
        at_row = _Row(file, number, {name: path for name, (path, _) in names.items()})
        if not listed:
            yield number, {name: _text(value) if name in ("id", "text") else value for name, value in row.items()}
            continue
        yield from ((number, one) for part in at_row.problems(row) for one in at_row.samples(part))


def at(tree: Mapping[str, Any], path: str) -> Any:
    """The value at a path; a list of values for a list of objects, None if there is none."""
    if path in tree:
        return tree[path]
    head, slash, rest = path.partition("/")
    inner = tree.get(head)
    if slash and isinstance(inner, list):
        return [at(one, rest) if isinstance(one, Mapping) else None for one in inner]
    return at(inner, rest) if slash and isinstance(inner, Mapping) else None


def _path(name: str, column: str) -> tuple[str, str | None]:
    """The path of a column, and the text that means correct: status=pass."""
    path, equals, right = column.partition("=")
    return (path, right) if equals and name == "correct" else (column, None)


def _value(tree: Mapping[str, Any], path: str, right: str | None) -> Any:
    value = at(tree, path)
    if right is None or value is None:
        return value
    return [_is_word(one, right) for one in value] if isinstance(value, list) else _is_word(value, right)


def _is_word(value: Any, right: str) -> bool | None:
    """Whether a value is the word that means correct, None without a value: true is "true" and "1", 1.0 is "1"."""
    if value is None or value != value:
        return None
    if isinstance(value, bool):
        return right.casefold() in (str(value).casefold(), str(int(value)))
    text = gold_text(value) or ""
    return gold_key(text) == gold_key(right) if isinstance(value, (int, float)) else text == right


class _Row:
    """A row of a file. paths: own name -> column, for errors."""

    def __init__(self, file: RowFile, number: int, paths: Mapping[str, str]) -> None:
        self.file, self.number, self.paths = file, number, paths

    def problems(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The problems of a row: several if its id is that of every object in a list."""
        ids = row.get("id")
        if not (isinstance(ids, list) and "/" in self.paths["id"]):
            yield row
            return
        for index in range(len(ids)):
            yield {name: value[index] if self._has(name, value, len(ids)) else value for name, value in row.items()}

    def samples(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The completions of a row."""
        row["id"] = _text(row.get("id"))
        lead = next((name for name in SCORES if name in row), "text")
        value = row.get(lead)
        if lead == "correct" and isinstance(value, str):
            raise self.error(
                lead, f"= {value!r:.40}: true, false or a number is expected; name the text that means correct: --fields "
                f"correct={self.paths[lead]}={value:.40}",
            )  # fmt: skip
        texts = row.get("text")
        if not isinstance(value, list) and isinstance(texts, list) and not _is_one(texts):
            if len(texts) != 1:
                raise self.error("text", f"has {len(texts)} texts, and there is one {lead}; name a list with one for each")
            row["text"] = texts[0]
        if not isinstance(value, list) or (lead == "text" and _is_one(value)):
            yield row | {"text": _text(row["text"])} if "text" in row else row
            return
        if not value:
            raise self.error(lead, "is an empty list: a problem without completions; remove the row on both sides")
        several = {name for name in (*SCORES, *COLUMNS) if name in row and self._has(name, row[name], len(value))}
        for index in range(len(value)):
            made = row | {name: row[name][index] for name in several}
            yield made | {"text": _text(made["text"])} if "text" in made else made

    def _has(self, name: str, value: Any, n: int) -> bool:
        """Whether a column has one value for each of n. Raise DataError for a list of another length."""
        if not isinstance(value, list):
            if name in ("text", "answer") and value is not None and n > 1:
                raise self.error(name, f"is one {name}, and there are {n} completions; a list with one for each is expected")
            return False
        if len(value) != n:
            raise self.error(name, f"has {len(value)} values where there are {n}; one for each is expected")
        return True

    def error(self, name: str, problem: str) -> DataError:
        """The error for a column."""
        return DataError(f"{self.file.location(self.number)}: {self.paths.get(name, name)} {problem}")


def _is_one(value: list[Any]) -> bool:
    """Whether a list is the messages of one completion, and not several completions."""
    return bool(value) and all(isinstance(one, Mapping) and "content" in one for one in value)


def _text(value: Any) -> Any:
    """Text, or the contents of messages; other lists and objects as JSON, numbers as they are."""
    if not isinstance(value, (list, dict)):
        return value
    text = messages_text(value)
    return json.dumps(value, ensure_ascii=False, default=str) if text is None else text
